"""Local training of the clients of a cohort: one client after another under any hooks, or chunks of them in batched kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.base.errors import InputError, cut
from coterie.base.rng import Generators, batches
from coterie.base.rows import named, sample, take
from coterie.compute import layers, own_rows
from coterie.compute.kernels import Batched, RowSource, StepRule, chunks
from coterie.compute.own_rows import Batch, gather, require_enough, size_of, split, transformed
from coterie.config.hooks import overrides
from coterie.contract.method import Sampler, as_sampler
from coterie.contract.training import GradientRule, LocalSGD, Penalty, Quadratic, Step, Steps, make_optimiser

if TYPE_CHECKING:
    from coterie.compute.cohort import Cohort

__all__ = ["count_batches", "of_client", "step_batches", "train"]


def train(
    cohort: Cohort,
    x: Tensor,
    local: LocalSGD,
    *,
    penalty: Penalty | None,
    correction: Tensor | None,
    sampler: Sampler | None,
    gradient_rule: GradientRule | None,
    purpose: str,
    steps: Sequence[int] | None,
    relative: bool,
) -> Tensor:
    """Local models, or updates, as `Cohort.train` says."""
    n, d = len(cohort.names), cohort.layout.dim
    if correction is not None and correction.shape not in ((d,), (n, d)):
        shape = list(correction.shape)
        raise InputError(f"a correction has shape [{d}] or [{n}, {d}], parameters without buffers; got {shape}")
    result = torch.empty(
        len(cohort.names), cohort.layout.size, dtype=cohort.layout.dtype, device=cohort.workspace.device
    )
    chosen = _adopted(sampler or local.sampler)
    chosen = chosen and _adopted(chosen.at(cohort, x))
    seen = chosen is not None and overrides(chosen, Sampler, "trained")
    settings = [local if steps is None else replace(local, steps=Steps(steps[i])) for i in range(len(cohort.names))]
    plain = local.optimiser == "sgd" and not local.momentum and local.clip is None and gradient_rule is None
    plain = plain and cohort.clients.transform is None
    if cohort.workspace.batched is not None and plain and (penalty is None or isinstance(penalty, Quadratic)):
        at_once = relative and not seen
        _train_batched(
            cohort,
            cohort.workspace.batched,
            x,
            settings,
            penalty,
            correction,
            chosen,
            purpose,
            result,
            relative=at_once,
        )
        relative = relative and not at_once
    else:
        with layers.training(cohort.workspace):
            for i in range(len(cohort.names)):
                start = of_client(x, i)
                cohort.workspace.load(start)
                layers.restart(cohort, i, purpose)
                own = None if correction is None else of_client(correction, i)
                hooks = _Hooks(cohort, i, _anchored(penalty, start, i), own, gradient_rule)
                _train_one(cohort, i, settings[i], hooks, chosen, purpose)
                result[i] = cohort.workspace.x
    if chosen is not None:
        chosen.trained(cohort, result)
    return result.sub_(x) if relative else result


def count_batches(cohort: Cohort, local: LocalSGD) -> Tensor:
    """Number of batches of each client, as `Cohort.steps` says."""
    if isinstance(local.steps, Steps):
        return torch.full((len(cohort.names),), local.steps.count)
    counts, sampler = [], _adopted(local.sampler)
    for i in range(len(cohort.names)):
        drawn, size = _drawn(cohort, i, local, sampler)
        last = drawn % size
        dropped = sampler is None and 0 < last < _smallest(cohort, size, local)
        counts.append(local.steps.count * (-(-drawn // size) - dropped))
    return torch.tensor(counts)


def _drawn(cohort: Cohort, i: int, local: LocalSGD, sampler: Sampler | None) -> tuple[int, int]:
    """Rows of one epoch, and of a batch."""
    drawn = math.ceil((1.0 if sampler is None else sampler.sample_ratio) * size_of(cohort, i, "train"))
    smallest = 1 if sampler is None else cohort.workspace.smallest_batch
    return drawn, max(smallest, min(local.batch_size or drawn, drawn))


def _smallest(cohort: Cohort, size: int, local: LocalSGD) -> int:
    """Rows under which a short last batch is left out, if batches have `size` rows."""
    return max(cohort.workspace.smallest_batch, min(local.minimum_batch, size))


def _train_batched(
    cohort: Cohort,
    kernel: Batched,
    x: Tensor,
    settings: Sequence[LocalSGD],
    penalty: Quadratic | None,
    correction: Tensor | None,
    sampler: Sampler | None,
    purpose: str,
    result: Tensor,
    *,
    relative: bool,
) -> None:
    part, lr = cohort.clients.train, settings[0].rate(cohort.round)
    mu = 0.0 if penalty is None else penalty.mu
    shift = None if penalty is None else _each(penalty.shift(lr, x))
    if correction is not None:
        pull = _each(correction) * -lr
        shift = pull if shift is None else shift + pull
    rule = StepRule(lr, 1 - lr * (settings[0].weight_decay + mu), shift)
    where = [part.positions(number) for number in cohort.index]

    def place(i: int, own: NDArray[np.int64]) -> NDArray[np.int64]:
        at = where[i]
        return own + at.start if isinstance(at, slice) else at[own]

    inputs, labels = part.inputs, part.labels
    source = RowSource(
        lambda numbers: cast("Tensor", cohort.workspace.prepare(take(inputs, numbers))),  # no kernel takes a dict
        lambda numbers: labels.index_select(0, numbers.to(labels.device)).to(cohort.workspace.device),
    )
    chosen = [_chosen(cohort, i, own, sampler, purpose) for i, own in enumerate(settings)]
    for chunk in chunks(chosen, kernel.width, place):
        kernel.train(_each(x), chunk, source, rule, result, relative=relative)
        cohort.spent["row_gradients"] += int(chunk.counts.sum())
    if not bool(torch.isfinite(result.sum())):
        for name, model in zip(cohort.names, result, strict=True):
            _check_finite(name, model, lr)


def _train_one(cohort: Cohort, i: int, local: LocalSGD, hooks: _Hooks, sampler: Sampler | None, purpose: str) -> None:
    workspace, head = cohort.workspace, cohort.workspace.head
    lr = local.rate(cohort.round)
    optimiser = make_optimiser(local, head, lr)
    decay = local.weight_decay if optimiser is None else 0.0
    plain = optimiser is None and local.clip is None and hooks.none
    for step, batch in enumerate(step_batches(cohort, i, local, sampler, purpose)):
        if plain:
            workspace.descend(*batch, lr, decay)
            continue
        grad = hooks.gradient(batch, partial(_extra_batch, cohort, i, local, purpose, step))
        if local.clip is not None:
            grad = grad * (local.clip / (grad.norm() + 1e-12)).clamp(max=1.0)
        if decay:
            grad = grad.add(head, alpha=decay)
        if optimiser is None:
            head.add_(grad, alpha=-lr)
        else:
            head.grad = grad
            optimiser.step()
    head.grad = None
    _check_finite(cohort.names[i], workspace.x, lr)


def _check_finite(name: str, model: Tensor, lr: float) -> None:
    # A sum is finite only if its terms are, and much cheaper than looking at each of them; it may overflow alone.
    if not math.isfinite(model.sum().item()) and not bool(torch.isfinite(model).all()):
        raise FloatingPointError(f"training of client {name!r} diverged (NaN or Inf); lower local lr = {lr}")


def _chosen(cohort: Cohort, i: int, local: LocalSGD, sampler: Sampler | None, purpose: str) -> list[NDArray[np.int64]]:
    """Row numbers of every step, among the client's own rows."""
    count = size_of(cohort, i, "train")
    size = min(count, local.batch_size or count)
    if size < cohort.workspace.smallest_batch:
        raise InputError(
            f"client {cohort.names[i]!r} has {count} training rows in batches of {local.batch_size}; "
            "a model with batch norm needs at least 2 in a batch: use group norm or larger batches"
        )
    if sampler is not None:
        drawn, size = _drawn(cohort, i, local, sampler)
        steps = local.steps.count if isinstance(local.steps, Steps) else local.steps.count * -(-drawn // size)
        chosen = list(_own_rows(sampler.rows(cohort, i, cohort.rng(i, purpose), steps, size), sampler, count))
    else:
        many = {"steps": local.steps.count} if isinstance(local.steps, Steps) else {"epochs": local.steps.count}
        smallest = _smallest(cohort, size, local)
        chosen = list(batches(cohort.rng(i, purpose), count, local.batch_size, smallest=smallest, **many))
    if cohort.workspace.fewest_rows > 1:
        for batch in chosen:
            require_enough(cohort, i, batch)
    return chosen


def _own_rows(rows: Any, sampler: Sampler, count: int) -> NDArray[np.int64]:
    """Row numbers [steps, batch_size] that a sampler drew. Raises `InputError` for one that the client does not have."""
    numbers = np.asarray(rows)
    whole = numbers.ndim == 2 and numbers.dtype.kind in "iu" and numbers.size > 0
    if not whole or numbers.min() < 0 or numbers.max() >= count:
        raise InputError(
            f"{type(sampler).__name__}.rows must return row numbers [steps, batch_size] from 0 to {count - 1}; got {cut(rows)}"
        )
    return numbers


def step_batches(cohort: Cohort, i: int, local: LocalSGD, sampler: Sampler | None, purpose: str) -> Iterator[Batch]:
    """The batches of all steps of the client at position `i`."""
    part, chosen = cohort.clients.train, _chosen(cohort, i, local, sampler, purpose)
    per_row = max(1, sum(v.shape[1:].numel() for v in named(sample(part.inputs)).values()))
    group = max(1, own_rows.BLOCK // (per_row * max(len(c) for c in chosen)))
    read = 0
    for low in range(0, len(chosen), group):
        # One gather for many steps, then views: a gather per step costs as much as a small model's forward pass.
        some = chosen[low : low + group]
        inputs, labels = gather(cohort, part, i, np.concatenate(some))
        inputs = transformed(cohort, i, inputs, purpose, read)
        read += len(labels)
        cohort.spent["row_gradients"] += len(labels)
        sizes = [len(batch) for batch in some]
        yield from zip(split(inputs, sizes), labels.split(sizes), strict=True)


def _extra_batch(cohort: Cohort, i: int, local: LocalSGD, purpose: str, step: int, number: int) -> Batch:
    order = cohort.rng(i, f"{purpose}/{step}").child(number).permutation(size_of(cohort, i, "train"), local.batch_size)
    require_enough(cohort, i, order)
    inputs, labels = gather(cohort, cohort.clients.train, i, order)
    return transformed(cohort, i, inputs, f"{purpose}/{step}/{number}"), labels


@dataclass(frozen=True)
class _Hooks:
    """The hooks of one client's training, and the gradient of a step under them."""

    cohort: Cohort
    client: int
    penalty: Penalty | None
    correction: Tensor | None
    rule: GradientRule | None

    @property
    def none(self) -> bool:
        """Whether a step is the plain gradient."""
        return self.penalty is None and self.correction is None and self.rule is None

    def gradient(self, batch: Batch, extra: Callable[[int], Batch]) -> Tensor:
        """Direction [d] of a step; `extra(k)` draws its k-th further batch."""
        if self.rule is None:
            return self._plain(batch)
        workspace = self.cohort.workspace
        here = workspace.head.clone()
        noise: dict[int, Generators] = {}

        def at(y: Tensor, number: int) -> Tensor:
            workspace.head.copy_(y)
            if workspace.random:  # two gradients on one batch meet the same noise, or their difference would be noise
                if number in noise:
                    noise[number].restore()
                noise.setdefault(number, Generators.now(workspace.generators))
            if number == 0:
                return self._plain(batch)
            further = extra(number)
            self.cohort.spent["row_gradients"] += len(further[1])
            return self._plain(further)

        direction = self.rule(at, here)
        workspace.head.copy_(here)
        return direction

    def _plain(self, batch: Batch) -> Tensor:
        workspace, penalty = self.cohort.workspace, self.penalty
        inputs, labels = batch
        if penalty is None or isinstance(penalty, Quadratic):
            grad = workspace.flat_gradient(inputs, labels)
        else:
            grad = workspace.flat_gradient(
                inputs, labels, lambda outputs: penalty(Step(outputs, inputs, labels, self.client, workspace.model))
            )
        if isinstance(penalty, Quadratic):
            penalty.add_gradient(grad, workspace.head)
        if self.correction is not None:
            grad.add_(self.correction)
        return grad


def _adopted(sampler: Any) -> Sampler | None:
    return sampler if sampler is None or isinstance(sampler, Sampler) else as_sampler(sampler)


def _each(value: Tensor) -> Tensor:
    return value[None] if value.ndim == 1 else value


def of_client(value: Tensor, client: int) -> Tensor:
    """One client's vector of one for all [d + b] or of one for each client [n, d + b]."""
    return value if value.ndim == 1 else value[client]


def _anchored(penalty: Penalty | None, start: Tensor, client: int) -> Penalty | None:
    if not isinstance(penalty, Quadratic):
        return penalty
    return Quadratic(penalty.mu, start if penalty.anchor is None else of_client(penalty.anchor, client))

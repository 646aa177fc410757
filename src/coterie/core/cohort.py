"""Cohorts: the clients that live in this process, with their rows, the model and their memory.

A cohort of n clients is a client whose vectors have a leading dimension. Its primitives (`train`, `gradient`, `loss`, `losses`,
`evaluate`) hide how the work is done; a client's answer never depends on who else is in the cohort, because matrix products are
done per client and only gathers and elementwise work are flat.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.core.errors import InputError, require
from coterie.core.kernels import Batched, Rule, Source, chunks
from coterie.core.loss import Kind
from coterie.core.memory import ClientState, MemoryView
from coterie.core.method import Sampler, as_sampler, overrides
from coterie.core.rng import Rng, batches
from coterie.core.rows import Clients, Inputs, Part, Rows, rows, take
from coterie.core.training import GradientRule, LocalSGD, Penalty, Quadratic, Step, Steps, make_optimiser
from coterie.core.vector import Layout
from coterie.core.workspace import Workspace

__all__ = ["Cohort"]

Batch = tuple[Inputs, Tensor]
_CHUNK = 4096
"""Rows of one forward pass; bounds memory, and is fixed so that results do not depend on what is free."""
_BLOCK = 1 << 24
"""Elements gathered at once for several local steps."""


@dataclass(frozen=True)
class Cohort:
    """The clients that a task is run for.

    Attributes:
        names: of the n clients, sorted.
        workspace: model and loss of this process.
        clients: where the rows are; `index` are the positions of the cohort's clients in it.
        memory: what these clients keep between rounds.
        seed, round: of the run; they name the randomness.
        spent: rows through gradients and through forward passes, counted as work is done.
    """

    names: tuple[str, ...]
    workspace: Workspace
    clients: Clients
    index: tuple[int, ...]
    memory: MemoryView
    seed: int
    round: int
    spent: dict[str, int]

    @property
    def layout(self) -> Layout:
        """Layout of model vectors."""
        return self.workspace.layout

    @property
    def sizes(self) -> Tensor:
        """Training rows of each client, float64 [n]."""
        return torch.tensor([self._size(i, "train") for i in range(len(self.names))], dtype=torch.float64)

    def state(self, key: str, default: Tensor) -> ClientState:
        """What the clients keep under `key`: values [n, ...], in which round each was written, whether the server counted it.

        The server counts a value when it accepts a reply of the task that used or wrote it (`replies.forgot`).

        Args:
            key: name of the state; without `/`.
            default: value of a client that keeps nothing, without client dimension.
        """
        return self.memory.state(key, default)

    def keep(self, key: str, values: Tensor) -> None:
        """Let the clients keep `values` [n, ...] under `key` for later rounds; they count only if the task ends well."""
        self.memory.put(key, values)

    def rng(self, client: int, purpose: str) -> Rng:
        """The stream of (seed, round, client, purpose) for the client at position `client`."""
        return Rng.named(self.seed, self.round, self.names[client], purpose)

    # ---- local training

    def train(
        self,
        x: Tensor,
        local: LocalSGD,
        *,
        penalty: Penalty | None = None,
        correction: Tensor | None = None,
        sampler: Sampler | None = None,
        gradient_rule: GradientRule | None = None,
        purpose: str = "train",
        steps: Sequence[int] | None = None,
        relative: bool = False,
    ) -> Tensor:
        """Local models after local training from x.

        Args:
            x: model [d + b], or one per client [n, d + b].
            local: settings; its learning rate is that of the present round.
            penalty: added to the loss of every step: `Quadratic` or a function of the `Step`.
            correction: added to every step's gradient [n, d + b] (or [d + b]).
            sampler: chooses the rows of every step; `local.sampler` if None.
            gradient_rule: replaces the plain gradient of a step.
            purpose: name of the random stream, so that the same purpose draws the same batches.
            steps: number of batches of each client [n], in place of `local.steps`.
            relative: return updates, models minus x.

        Returns:
            [n, d + b].
        """
        result = torch.empty(len(self.names), self.layout.size, dtype=self.layout.dtype, device=self.workspace.device)
        chosen = _adopted(sampler or local.sampler)
        chosen = chosen and _adopted(chosen.at(self, x))
        seen = chosen is not None and overrides(chosen, Sampler, "trained")
        settings = [local if steps is None else replace(local, steps=Steps(steps[i])) for i in range(len(self.names))]
        plain = local.optimiser == "sgd" and not local.momentum and local.clip is None and gradient_rule is None
        if self.workspace.batched is not None and plain and (penalty is None or isinstance(penalty, Quadratic)):
            at_once = relative and not seen
            self._train_batched(
                self.workspace.batched, x, settings, penalty, correction, chosen, purpose, result, relative=at_once
            )
            relative = relative and not at_once
        else:
            with self._training():
                for i in range(len(self.names)):
                    start = _of(x, i)
                    self.workspace.load(start)
                    self._begin(i, purpose)
                    own = None if correction is None else _of(correction, i)
                    hooks = _Hooks(self, i, _anchored(penalty, start, i), own, gradient_rule)
                    self._train_one(i, settings[i], hooks, chosen, purpose)
                    result[i] = self.workspace.x
        if chosen is not None:
            chosen.trained(self, result)
        return result.sub_(x) if relative else result

    def updates(self, x: Tensor, local: LocalSGD, **options: Any) -> Tensor:
        """Updates of local training: what `train` gives with these options, minus x, [n, d + b].

        A single step of plain SGD is its gradient times `-lr`, without the rounding of x.
        """
        return self.train(x, local, relative=True, **options)

    def note(self, key: str, values: Tensor, *of: Any) -> None:
        """Keep `values` [n, ...] under `key` for later tasks of this round, which get them from `noted`.

        Args:
            key: of the notes.
            values: of each client; they must not change any more.
            of: all that they were computed from beside the clients: tensors, numbers, settings.
        """
        self.memory.note(key, values, (self.seed, *of))

    def noted(self, key: str, compute: Callable[[Cohort], Tensor], *of: Any) -> Tensor:
        """What an earlier task of this round computed from the same, [n, ...]; computed now for clients that have no such note.

        Args:
            key: of the notes.
            compute: gives the same numbers for a cohort of some of these clients, [k, ...].
            of: as for `note`.
        """
        found = self.memory.noted(key, (self.seed, *of))
        missing = [i for i, value in enumerate(found) if value is None]
        if len(missing) == len(found):
            return compute(self)
        if missing:
            some = self.only(missing)
            some = replace(some, memory=self.memory.part(some.names))
            for i, value in zip(missing, compute(some), strict=True):
                found[i] = value
        return torch.stack(cast("list[Tensor]", found))

    def steps(self, local: LocalSGD) -> Tensor:
        """Number of batches that each client's training with these settings has, int64 [n]."""
        if isinstance(local.steps, Steps):
            return torch.full((len(self.names),), local.steps.count)
        counts, sampler = [], _adopted(local.sampler)
        for i in range(len(self.names)):
            drawn, size = self._drawn(i, local, sampler)
            last = drawn % size
            dropped = sampler is None and 0 < last < self._smallest(size, local)
            counts.append(local.steps.count * (-(-drawn // size) - dropped))
        return torch.tensor(counts)

    def _drawn(self, i: int, local: LocalSGD, sampler: Sampler | None) -> tuple[int, int]:
        """Rows of one epoch, and of a batch."""
        drawn = math.ceil((1.0 if sampler is None else sampler.sample_ratio) * self._size(i, "train"))
        smallest = 1 if sampler is None else self.workspace.smallest_batch
        return drawn, max(smallest, min(local.batch_size or drawn, drawn))

    def _smallest(self, size: int, local: LocalSGD) -> int:
        """Rows under which a short last batch is left out, if batches have `size` rows."""
        return max(self.workspace.smallest_batch, min(local.minimum_batch, size))

    def _enough(self, i: int, numbers: NDArray[np.int64] | None, part: str = "train") -> None:
        """Raise `InputError` if a gradient or a loss would rest on too few different rows (None: all of the part)."""
        fewest = self.workspace.fewest_rows
        if fewest > 1 and (self._size(i, part) if numbers is None else len(np.unique(numbers))) < fewest:
            raise InputError(f"client {self.names[i]!r} computes nothing of fewer than {fewest} different rows")

    def _train_batched(
        self,
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
        part, lr = self.clients.train, settings[0].rate(self.round)
        mu = 0.0 if penalty is None else penalty.mu
        shift = None
        if penalty is not None:
            shift = lr * mu * _each(x if penalty.anchor is None else penalty.anchor)
        if correction is not None:
            pull = _each(correction) * -lr
            shift = pull if shift is None else shift + pull
        rule = Rule(lr, 1 - lr * (settings[0].weight_decay + mu), shift)
        where = [part.positions(number) for number in self.index]

        def place(i: int, own: NDArray[np.int64]) -> NDArray[np.int64]:
            at = where[i]
            return own + at.start if isinstance(at, slice) else at[own]

        inputs, labels = cast("Tensor", part.inputs), part.labels  # a kernel is found for no other inputs
        source = Source(
            lambda numbers: cast("Tensor", self.workspace.prepare(inputs.index_select(0, numbers.to(inputs.device)))),
            lambda numbers: labels.index_select(0, numbers.to(labels.device)).to(self.workspace.device),
        )
        chosen = [self._chosen(i, own, sampler, purpose) for i, own in enumerate(settings)]
        for chunk in chunks(chosen, kernel.width, place):
            kernel.train(_each(x), chunk, source, rule, result, relative=relative)
            self.spent["row_gradients"] += int(chunk.counts.sum())
        if not bool(torch.isfinite(result.sum())):
            for name, model in zip(self.names, result, strict=True):
                self._check_finite(name, model, lr)

    @contextlib.contextmanager
    def _training(self) -> Iterator[None]:
        self.workspace.model.train()
        # Layers such as dropout draw from torch's global generator; it is forked, so nobody else's numbers change.
        noise = torch.random.fork_rng(devices=[]) if self.workspace.random else contextlib.nullcontext()
        try:
            with noise:
                yield
        finally:
            self.workspace.model.eval()
            self.workspace.restart_counters()

    def _begin(self, i: int, purpose: str) -> None:
        self.workspace.restart_counters()
        if self.workspace.random:
            torch.default_generator.manual_seed(self.rng(i, f"{purpose}/layers").seed())

    def _train_one(self, i: int, local: LocalSGD, hooks: _Hooks, sampler: Sampler | None, purpose: str) -> None:
        workspace, head = self.workspace, self.workspace.head
        lr = local.rate(self.round)
        optimiser = make_optimiser(local, head, lr)
        decay = local.weight_decay if optimiser is None else 0.0
        plain = optimiser is None and local.clip is None and hooks.none
        for step, batch in enumerate(self._steps(i, local, sampler, purpose)):
            if plain:
                workspace.descend(*batch, lr, decay)
                continue
            grad = hooks.gradient(batch, partial(self._extra_batch, i, local, purpose, step))
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
        self._check_finite(self.names[i], workspace.x, lr)

    def _check_finite(self, name: str, model: Tensor, lr: float) -> None:
        # A sum is finite only if its terms are, and much cheaper than looking at each of them; it may overflow alone.
        if not math.isfinite(model.sum().item()) and not bool(torch.isfinite(model).all()):
            raise FloatingPointError(f"training of client {name!r} diverged (NaN or Inf); lower local lr = {lr}")

    def _chosen(self, i: int, local: LocalSGD, sampler: Sampler | None, purpose: str) -> list[NDArray[np.int64]]:
        """Row numbers of every step, among the client's own rows."""
        count = self._size(i, "train")
        size = min(count, local.batch_size or count)
        if size < self.workspace.smallest_batch:
            raise InputError(
                f"client {self.names[i]!r} has {count} training rows in batches of {local.batch_size}; "
                "a model with batch norm needs at least 2 in a batch: use group norm or larger batches"
            )
        if sampler is not None:
            drawn, size = self._drawn(i, local, sampler)
            steps = local.steps.count if isinstance(local.steps, Steps) else local.steps.count * -(-drawn // size)
            chosen = list(sampler.rows(self, i, self.rng(i, purpose), steps, size))
        else:
            many = {"steps": local.steps.count} if isinstance(local.steps, Steps) else {"epochs": local.steps.count}
            smallest = self._smallest(size, local)
            chosen = list(batches(self.rng(i, purpose), count, local.batch_size, smallest=smallest, **many))
        if self.workspace.fewest_rows > 1:
            for batch in chosen:
                self._enough(i, batch)
        return chosen

    def _steps(self, i: int, local: LocalSGD, sampler: Sampler | None, purpose: str) -> Iterator[Batch]:
        part, chosen = self.clients.train, self._chosen(i, local, sampler, purpose)
        tensors = part.inputs.values() if isinstance(part.inputs, dict) else [part.inputs]
        per_row = max(1, sum(v.shape[1:].numel() for v in tensors))
        group = max(1, _BLOCK // (per_row * max(len(c) for c in chosen)))
        for low in range(0, len(chosen), group):
            # One gather for many steps, then views: a gather per step costs as much as a small model's forward pass.
            some = chosen[low : low + group]
            inputs, labels = self._gather(part, i, np.concatenate(some))
            self.spent["row_gradients"] += len(labels)
            sizes = [len(batch) for batch in some]
            yield from zip(_split(inputs, sizes), labels.split(sizes), strict=True)

    def _extra_batch(self, i: int, local: LocalSGD, purpose: str, step: int, number: int) -> Batch:
        order = self.rng(i, f"{purpose}/{step}").child(number).permutation(self._size(i, "train"), local.batch_size)
        self._enough(i, order)
        return self._gather(self.clients.train, i, order)

    # ---- gradients and losses at given models

    def gradient(
        self,
        x: Tensor,
        *,
        part: str = "train",
        batch_size: int | None = None,
        purpose: str = "round",
        mode: str = "eval",
    ) -> Tensor:
        """Gradient of the mean loss at x, per client.

        Args:
            x: model [d + b], or one per client [n, d + b].
            part: `train`, `validation` or `test`; or `fresh`: rows that are drawn for this batch where the data can (`Clients.draw`).
            batch_size: rows of a random batch; None: all rows.
            purpose: name of the random batch: the same purpose gives the same batch in every ask of a round.
            mode: `eval`, or `train` for layers that behave differently in training.

        Returns:
            [n, d + b], 0 on the buffers.
        """
        return self._gradient(x, part, batch_size, purpose, mode, None)

    def gradients(
        self,
        x: Tensor,
        *,
        parts: int,
        part: str = "train",
        batch_size: int | None = None,
        purpose: str = "round",
        mode: str = "eval",
    ) -> Tensor:
        """Gradients of the mean losses of `parts` disjoint shares of the batch that `gradient` takes; sizes differ by at most one.

        Args:
            x: as for `gradient`, like all that follows but `parts`.
            parts: number of shares, >= 1 and at most the rows of a batch.
            part: of the client's rows.
            batch_size: rows of all shares together; None: all rows.
            purpose: name of the random batch.
            mode: `eval` or `train`.

        Returns:
            [n, parts, d + b], 0 on the buffers.
        """
        for i, name in enumerate(self.names):
            rows_here = self._count(i, part, batch_size)
            require(1 <= parts <= rows_here, f"client {name!r}: a batch of {rows_here} rows cannot have {parts} parts")
        shares = [slice(k, None, parts) if parts > 1 else None for k in range(parts)]
        return torch.stack([self._gradient(x, part, batch_size, purpose, mode, share) for share in shares], dim=1)

    def _gradient(
        self, x: Tensor, part: str, batch_size: int | None, purpose: str, mode: str, share: slice | None
    ) -> Tensor:
        result = torch.empty(len(self.names), self.layout.size, dtype=self.layout.dtype, device=self.workspace.device)
        result[:, self.layout.dim :] = 0
        kernel = self.workspace.batched
        x = x if kernel is None else x.to(self.workspace.x)
        begun = -1
        with self._training() if mode == "train" else contextlib.nullcontext():
            for i, inputs, labels in self._chunks(x, part, batch_size, purpose, mode, share, load=kernel is None):
                count, head = self._count(i, part, batch_size), result[i, : self.layout.dim]
                weight = len(labels) / (count if share is None else len(range(count)[share]))
                if kernel is None:
                    grad = self.workspace.flat_gradient(inputs, labels)
                else:
                    inputs = cast("Tensor", inputs)  # a kernel is found for no other inputs
                    grad = kernel.gradient(_of(x, i), inputs, labels, out=head if i > begun else None)
                grad = grad if weight == 1 else grad.mul_(weight)
                if grad is not head:
                    head.copy_(grad) if i > begun else head.add_(grad)
                begun = i
                self.spent["row_gradients"] += len(labels)
        return result

    def sample_gradients(self, xs: Tensor, *, part: str = "train") -> Iterator[tuple[int, int, Tensor, Tensor]]:
        """Gradient of each row at each of several models, in eval mode.

        Args:
            xs: models [q, d + b]. Some rows come at each model in turn, so that models can be compared in little memory.
            part: `train`, `validation` or `test`.

        Yields:
            Position of the client, number of the model, labels [r] of some of the client's rows, and their gradients [r, d].
        """
        few = max(1, _BLOCK // (2 * self.layout.dim))
        for i, inputs, labels in self._chunks(xs[0], part, None, "round", "eval"):
            for low in range(0, len(labels), few):
                some = take(inputs, slice(low, low + few))
                own = labels[low : low + few]
                for number, x in enumerate(xs):
                    self.workspace.load(x)
                    self.spent["row_gradients"] += len(own)
                    yield i, number, own, self.workspace.row_gradients(some, own)

    @torch.no_grad()
    def loss(self, x: Tensor, *, part: str = "train", batch_size: int | None = None, purpose: str = "round") -> Tensor:
        """Mean loss at x over rows, float64 [n]; arguments as for `gradient`."""
        result = torch.zeros(len(self.names), dtype=torch.float64)
        for i, inputs, labels in self._chunks(x, part, batch_size, purpose, "eval"):
            result[i] += self._loss_of(inputs, labels) / self._count(i, part, batch_size)
        return result

    def _loss_of(self, inputs: Inputs, labels: Tensor) -> Tensor:
        self.spent["row_losses"] += len(labels)
        return self.workspace.loss.rows(self.workspace.model(inputs), labels).double().sum().cpu()

    @torch.no_grad()
    def losses(
        self, xs: Tensor, *, part: str = "train", batch_size: int | None = None, purpose: str = "round"
    ) -> Tensor:
        """Mean losses of many candidate models, float64 [n, q]: candidates [q, d + b], or [n, q, d + b] for each client its own."""
        result = torch.zeros(len(self.names), xs.shape[-2], dtype=torch.float64)
        if xs.ndim == 2 and len(self.names) > 1:  # so that each candidate is loaded once
            for q, x in enumerate(xs):
                result[:, q] = self.loss(x, part=part, batch_size=batch_size, purpose=purpose)
            return result
        for i, inputs, labels in self._chunks(xs, part, batch_size, purpose, "eval", load=False):
            for q, x in enumerate(xs if xs.ndim == 2 else xs[i]):
                self.workspace.load(x)
                result[i, q] += self._loss_of(inputs, labels) / self._count(i, part, batch_size)
        return result

    @torch.no_grad()
    def outputs(self, x: Tensor, *, part: str = "test") -> tuple[Tensor, Tensor, Tensor]:
        """Outputs and labels of all rows of the cohort, flat [R, ...], and the offsets [n + 1] of the clients in them."""
        found: list[Tensor] = []
        labels: list[Tensor] = []
        sizes = [0] * len(self.names)
        for i, inputs, some in self._chunks(x, part, None, "round", "eval"):
            found.append(self.workspace.model(inputs))
            labels.append(some)
            sizes[i] += len(some)
            self.spent["row_losses"] += len(some)
        offsets = torch.tensor([0, *np.cumsum(sizes)])
        return torch.cat(found), torch.cat(labels), offsets

    def evaluate(
        self, x: Tensor, metrics: Mapping[str, Callable[[Tensor, Tensor, Kind], float | None]], *, part: str = "test"
    ) -> dict[str, Tensor]:
        """Loss and metrics of x, per client.

        Losses are summed in float64. Metrics of a regression are in the unit of the label, its loss is that of the stored labels.

        Args:
            x: model [d + b], or one per client [n, d + b].
            metrics: by name, functions (outputs, labels, kind of task) -> number, or None where undefined.
            part: `train`, `validation` or `test`. A client without such rows has n = 0 and no metric.

        Returns:
            `n` [n], `loss` [n] and one entry per metric, float64 [n]; NaN where undefined.
        """
        has = [i for i in range(len(self.names)) if self._size(i, part)]
        result = {k: torch.full((len(self.names),), float("nan"), dtype=torch.float64) for k in ("loss", *metrics)}
        result["n"] = torch.tensor([self._size(i, part) for i in range(len(self.names))], dtype=torch.float64)
        if not has:
            return result
        within = self.only(has)
        outputs, labels, offsets = within.outputs(x if x.ndim == 1 else x[has], part=part)
        # Per client: the vector units of a CPU round a row otherwise than the few left over at the end, so that a loss of all rows
        # at once would depend on who shares the cohort.
        spans = [slice(int(low), int(high)) for low, high in pairwise(offsets.tolist())]
        for i, span in zip(has, spans, strict=True):
            values = self.workspace.loss.rows(outputs[span], labels[span]).double().cpu()
            result["loss"][i] = values.sum() / len(values)
        if self.workspace.loss.kind == "regression":
            scale = self.clients.label_scale
            outputs, labels = scale.undo(outputs), scale.undo(labels)
        for name, metric in metrics.items():
            for j, i in enumerate(has):
                value = metric(outputs[spans[j]], labels[spans[j]], self.workspace.loss.kind)
                if value is not None:
                    result[name][i] = value
        return result

    # ---- rows

    def has(self, client: int, part: str) -> bool:
        """Whether the client at position `client` has rows of this part."""
        return self.clients.draw is not None if part == "fresh" else self._size(client, part) > 0

    def labels(self, client: int, part: str = "train") -> Tensor:
        """Labels of the client at position `client`."""
        return self._rows(part, client).part(self.index[client]).labels

    def only(self, positions: Sequence[int]) -> Cohort:
        """The clients at `positions` as a cohort of their own; it reads their memory and writes none."""
        names = tuple(self.names[i] for i in positions)
        index = tuple(self.index[i] for i in positions)
        memory = self.memory.only(names)
        return Cohort(names, self.workspace, self.clients, index, memory, self.seed, self.round, self.spent)

    def _rows(self, part: str, client: int) -> Rows:
        require(part in ("train", "validation", "test"), f"part must be train, validation or test; got {part!r}")
        found: Rows | None = getattr(self.clients, part)
        if found is None or not self._size(client, part):
            raise InputError(f"client {self.names[client]!r} has no {part} rows")
        return found

    def _size(self, client: int, part: str) -> int:
        found: Rows | None = getattr(self.clients, part)
        # Not `found.sizes`: its cost grows with the number of clients that exist.
        at = self.index[client]
        return 0 if found is None else int(found.offsets[at + 1] - found.offsets[at])

    def _count(self, client: int, part: str, batch_size: int | None) -> int:
        if part == "fresh" and batch_size is not None:
            return batch_size
        size = self._size(client, part)
        return size if batch_size is None else min(size, batch_size)

    def _gather(self, part: Rows, i: int, chosen: NDArray[np.int64] | None) -> Batch:
        where = part.positions(self.index[i])
        at = where if chosen is None else chosen + where.start if isinstance(where, slice) else where[chosen]
        if isinstance(at, slice):
            return self.workspace.prepare(take(part.inputs, at)), part.labels[at].to(self.workspace.device)
        return self._gather_at(part, torch.from_numpy(at))

    def _gather_at(self, part: Rows, numbers: Tensor) -> Batch:
        numbers = numbers.to(part.labels.device)
        inputs, labels = _select(part.inputs, numbers), part.labels.index_select(0, numbers)
        return self.workspace.prepare(inputs), labels.to(self.workspace.device)

    def _chunks(
        self, x: Tensor, part: str, batch_size: int | None, purpose: str, mode: str, share: slice | None = None,
        *, load: bool = True,
    ) -> Iterator[tuple[int, Inputs, Tensor]]:  # fmt: skip
        require(mode in ("eval", "train"), f"mode must be eval or train; got {mode!r}")
        # Only on a change: it walks through all modules.
        if self.workspace.model.training != (mode == "train"):
            self.workspace.model.train(mode == "train")
        if load and x.ndim == 1:
            self.workspace.load(x)
        for i in range(len(self.names)):
            if load and x.ndim > 1:
                self.workspace.load(x[i])
            if mode == "train":
                self._begin(i, purpose if share is None else f"{purpose}/{share.start}")
            inputs, labels = self._batch(i, part, batch_size, purpose, share)
            for low in range(0, len(labels), _CHUNK):
                some = slice(low, low + _CHUNK)
                yield i, (inputs if rows(inputs) <= _CHUNK else take(inputs, some)), labels[some]

    def _batch(self, i: int, part: str, batch_size: int | None, purpose: str, share: slice | None) -> Batch:
        if part == "fresh":
            drawn = self._fresh(i, batch_size, self.rng(i, purpose).child(part))
            drawn = drawn if share is None else drawn.select(share)
            return self.workspace.prepare(drawn.inputs), drawn.labels.to(self.workspace.device)
        where, chosen = self._rows(part, i), None
        if share is not None or (batch_size is not None and batch_size < self._size(i, part)):
            chosen = self.rng(i, purpose).child(part).permutation(self._size(i, part), batch_size)
            chosen = chosen if share is None else chosen[share]
        self._enough(i, chosen, part)
        return self._gather(where, i, chosen)

    def _fresh(self, i: int, batch_size: int | None, rng: Rng) -> Part:
        if self.clients.draw is None or batch_size is None:
            raise InputError(
                f"fresh rows of client {self.names[i]!r} cannot be drawn: that takes data whose distribution is known, as "
                "mean-estimation or clients made with `with_draw`, and a batch size; take validation or train rows"
            )
        return self.clients.draw(self.names[i], batch_size, rng)


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
        noise: dict[int, Tensor] = {}

        def at(y: Tensor, number: int) -> Tensor:
            workspace.head.copy_(y)
            if workspace.random:  # two gradients on one batch meet the same noise, or their difference would be noise
                if number in noise:
                    torch.set_rng_state(noise[number])
                noise.setdefault(number, torch.get_rng_state())
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
        if isinstance(penalty, Quadratic) and penalty.anchor is not None:
            grad.add_(workspace.head - penalty.anchor[: workspace.layout.dim], alpha=penalty.mu)
        if self.correction is not None:
            grad.add_(self.correction[: workspace.layout.dim])
        return grad


def _select(inputs: Inputs, at: Tensor) -> Inputs:
    # `inputs[at]` takes up to fifteen times as long.
    if isinstance(inputs, dict):
        return {k: v.index_select(0, at) for k, v in inputs.items()}
    return inputs.index_select(0, at)


def _split(inputs: Inputs, sizes: list[int]) -> list[Inputs]:
    if isinstance(inputs, dict):
        pieces = zip(*(v.split(sizes) for v in inputs.values()), strict=True)
        return [dict(zip(inputs, some, strict=True)) for some in pieces]
    return list(inputs.split(sizes))


def _adopted(sampler: Any) -> Sampler | None:
    return sampler if sampler is None or isinstance(sampler, Sampler) else as_sampler(sampler)


def _each(value: Tensor) -> Tensor:
    return value[None] if value.ndim == 1 else value


def _of(value: Tensor, client: int) -> Tensor:
    return value if value.ndim == 1 else value[client]


def _anchored(penalty: Penalty | None, start: Tensor, client: int) -> Penalty | None:
    if not isinstance(penalty, Quadratic):
        return penalty
    return Quadratic(penalty.mu, start if penalty.anchor is None else _of(penalty.anchor, client))

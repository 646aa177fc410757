"""Local training of a cohort, and its hooks: one client after another under any hooks, or chunks of clients in batched kernels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypedDict, Unpack, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.base.errors import InputError, cut
from coterie.base.rng import batches
from coterie.base.rows import Inputs, row_size
from coterie.base.vector import WIDE, trim_heap
from coterie.compute import cohort_rows
from coterie.compute.cohort_rows import Batch, CohortRows
from coterie.compute.features import capture
from coterie.compute.kernels import StepRule
from coterie.compute.optimisers import OptimiserStates, make_stepper
from coterie.compute.row_noise import PrivateRows, check_private
from coterie.compute.side_by_side import SideBySide, check_finite, step_rule
from coterie.compute.step_hooks import GradientRule, Penalty, Quadratic, StepHooks
from coterie.config.local import LocalSGD, Steps
from coterie.config.rules import check_object, overrides
from coterie.contract.method import Sampler


class TrainOptions(TypedDict, total=False):
    """Options of one local training; `Cohort.train` says what they are."""

    penalty: Penalty | None
    correction: Tensor | None
    sampler: Sampler | None
    gradient_rule: GradientRule | None
    purpose: str
    layer: str | None
    steps: Sequence[int] | None
    moving: Tensor | None
    weight_decays: Sequence[float] | None


@dataclass(frozen=True)
class StepBatches:
    """The rows of a client that each step of its training uses.

    Attributes:
        cohort: Clients that train.
        local: Settings of the training.
        sampler: Chooses rows in place of epochs; None: epochs without replacement.
        purpose: Name of the random stream.
    """

    cohort: CohortRows
    local: LocalSGD
    sampler: Sampler | None
    purpose: str = "train"

    def count(self, client: int) -> int:
        """Return the number of steps of a client."""
        steps = self.local.steps
        if isinstance(steps, Steps):
            return steps.count
        rows, size = self._epoch(client)
        batches_of_epoch = -(-rows // size)
        # A short last batch may be left out.
        last_rows = rows % size
        if self.sampler is None and 0 < last_rows < self._smallest(size):
            batches_of_epoch -= 1
        all_batches = steps.count * batches_of_epoch
        return -(-all_batches // self.local.accumulate)

    def _epoch(self, client: int) -> tuple[int, int]:
        """Return the rows of one epoch and those of a batch."""
        ratio, smallest = 1.0, 1
        if self.sampler is not None:
            ratio = self.sampler.sample_ratio
            smallest = self.cohort.workspace.smallest_batch
        rows = math.ceil(ratio * self.cohort.size(client))
        return rows, max(smallest, min(self.local.batch_size or rows, rows))

    def _smallest(self, size: int) -> int:
        """Return the number of rows under which a short last batch is left out, if batches have `size` rows."""
        return max(
            self.cohort.workspace.smallest_batch, min(self.local.minimum_batch, size)
        )

    def numbers(self, client: int) -> list[NDArray[np.int64]]:
        """Return the row numbers of every batch, among the client's own rows."""
        cohort, local = self.cohort, self.local
        count, steps = cohort.size(client), local.steps.count
        size = min(count, local.batch_size or count)
        if size < cohort.workspace.smallest_batch:
            raise InputError(
                f"client {cohort.names[client]!r} has {count} training rows in batches of {local.batch_size}; "
                "a model with batch norm needs at least 2 in a batch: use group norm or larger batches"
            )
        rng, in_steps = cohort.rng(client, self.purpose), isinstance(local.steps, Steps)
        if in_steps:
            steps *= local.accumulate
        if self.sampler is not None:
            rows, size = self._epoch(client)
            if not in_steps:
                steps *= -(-rows // size)  # batches of an epoch, the last may be short
            sampled = self.sampler.rows(cohort, client, rng, steps, size)
            numbers = list(_check_numbers(sampled, self.sampler, count))
        else:
            unit = "epochs"
            if in_steps:
                unit = "steps"
            smallest = self._smallest(size)
            numbers = batches(
                rng, count, local.batch_size, smallest=smallest, **{unit: steps}
            )
        if cohort.workspace.fewest_rows > 1:
            for batch in numbers:
                cohort.require_enough(client, batch)
        return numbers

    def read(self, client: int) -> Iterator[Batch]:
        """Read the batches of a client, one after the other."""
        cohort, numbers = self.cohort, self.numbers(client)
        per_row = row_size(cohort.clients.train.inputs)
        group = max(
            1, cohort_rows.BLOCK // (per_row * max(len(batch) for batch in numbers))
        )
        start = 0
        for low in range(0, len(numbers), group):
            # One gather for many steps, then views: a gather per step costs as much as a small model's forward pass.
            steps = numbers[low : low + group]
            inputs, labels = cohort.training_rows(client, np.concatenate(steps))
            inputs = cohort.transform(client, inputs, self.purpose, start)
            start += len(labels)
            cohort.spent["row_gradients"] += len(labels)
            sizes = [len(batch) for batch in steps]
            yield from zip(_split(inputs, sizes), labels.split(sizes), strict=True)

    def of_steps(self, client: int) -> Iterator[list[Batch]]:
        """Read the batches of each step of a client."""
        remaining = self.read(client)
        while of_step := list(itertools.islice(remaining, self.local.accumulate)):
            yield of_step

    def further(self, client: int, step: int, number: int) -> Batch:
        """Read the further batch of this number that a gradient rule draws in a step."""
        cohort, purpose = self.cohort, f"{self.purpose}/{step}"
        order = (
            cohort.rng(client, purpose)
            .child(number)
            .permutation(cohort.size(client), self.local.batch_size)
        )
        cohort.require_enough(client, order)
        inputs, labels = cohort.training_rows(client, order)
        return cohort.transform(client, inputs, f"{purpose}/{number}"), labels


def _check_numbers(rows: Any, sampler: Sampler, count: int) -> NDArray[np.int64]:
    """Return row numbers [steps, batch_size] of a sampler. Raises `InputError` for one that the client does not have."""
    numbers = np.asarray(rows)
    are_integers = numbers.dtype.kind in "iu"
    are_valid = numbers.ndim == 2 and numbers.size > 0
    if are_integers and are_valid:
        are_valid = bool(0 <= numbers.min() <= numbers.max() < count)
    if not (are_integers and are_valid):
        raise InputError(
            f"{type(sampler).__name__}.rows must return row numbers [steps, batch_size] from 0 to {count - 1}; got {cut(rows)}"
        )
    return numbers


class LocalTraining:
    """One local training of the clients of a cohort.

    Args:
        cohort: Clients that train.
        x: Model [d + b] from which they start, or one per client [n, d + b].
        local: Settings; the learning rate is that of the present round.
        options: As `Cohort.train` says.

    Raises:
        InputError: A correction of another shape.
    """

    def __init__(
        self,
        cohort: CohortRows,
        x: Tensor,
        local: LocalSGD,
        **options: Unpack[TrainOptions],
    ) -> None:
        self.cohort, self.x, self.local = cohort, x, local
        self.penalty = options.get("penalty")
        self.correction = options.get("correction")
        self.rule = options.get("gradient_rule")
        self.purpose = options.get("purpose", "train")
        self._steps = options.get("steps")
        self._moving = options.get("moving")
        self._layer = options.get("layer")
        self._decays = options.get("weight_decays")
        self._found: list[Tensor] = []
        # Which of several models it starts from, and whether there are others.
        self.start, self.comes_again = 0, False
        n, d = len(cohort.names), cohort.layout.dim
        if self.correction is not None and self.correction.shape not in ((d,), (n, d)):
            shape = list(self.correction.shape)
            raise InputError(
                f"a correction has shape [{d}] or [{n}, {d}], parameters without buffers; got {shape}"
            )
        needs_gradient = local.accumulate > 1 or local.keep_state
        if self.rule is not None and needs_gradient:
            raise InputError(
                "LocalSGD.accumulate and keep_state belong to steps along a gradient, and this method has its own rule; leave them out"
            )
        self.sampler = _complete_sampler(options.get("sampler") or local.sampler)
        if self.sampler is not None:
            self.sampler = _complete_sampler(self.sampler.at(cohort, x))
        self.lr = local.rate(cohort.round)
        if local.private is not None:
            own_penalty = not isinstance(self.penalty, Quadratic | None)
            hooks = own_penalty or self.sampler is not None or self.rule is not None
            augments = cohort.clients.transform is not None
            check_private(cohort.workspace, augments=augments, hooks=hooks)

    def models(self, *, relative: bool = False) -> Tensor:
        """Train, and return the local models [n, d + b]; or updates, models minus x, if `relative`."""
        cohort, local, workspace = self.cohort, self.local, self.cohort.workspace
        result = torch.empty(
            len(cohort.names),
            cohort.layout.size,
            dtype=cohort.layout.dtype,
            device=workspace.device,
        )
        # A sampler that looks at what was trained sees models, not updates.
        watches = self.sampler is not None and overrides(
            self.sampler, Sampler, "trained"
        )
        subtract = relative
        side_by_side = self.side_by_side
        if side_by_side is not None:
            subtract = relative and watches
            side_by_side.train(
                self.x,
                self.rule_of_steps(),
                result,
                relative=relative and not watches,
            )
        else:
            self._states = OptimiserStates.begin(cohort, local, self.purpose)
            with workspace.training(), self._captured() as self._found:
                for i in range(len(cohort.names)):
                    workspace.load(of_client(self.x, i))
                    cohort.restart_layers(i, self.purpose)
                    self._train_one(i)
                    if workspace.x.nbytes >= WIDE:
                        trim_heap()  # else the gradients that are gone and this result take memory at once
                    result[i] = workspace.x
            self._states.keep()
        if self.sampler is not None:
            self.sampler.trained(cohort, result)
        if subtract:
            result.sub_(self.x)
        return result

    def _captured(self) -> AbstractContextManager[list[Tensor]]:
        """What steps call features; without a penalty of the user's own nobody asks for them."""
        if self.penalty is None or isinstance(self.penalty, Quadratic):
            return nullcontext([])
        return capture(self.cohort.workspace.model, self._layer)

    @property
    def is_plain(self) -> bool:
        """Return True if kernels know each step."""
        local = self.local
        is_sgd = local.optimiser == "sgd" and not local.momentum
        is_plain_gradient = local.clip is None and local.accumulate == 1
        is_plain_gradient = is_plain_gradient and local.private is None
        has_no_hooks = self.rule is None and self._moving is None
        if not (is_sgd and is_plain_gradient and has_no_hooks):
            return False
        if self.cohort.clients.transform is not None:
            return False
        return self.penalty is None or isinstance(self.penalty, Quadratic)

    @cached_property
    def side_by_side(self) -> SideBySide | None:
        """What trains these clients in a kernel of the workspace; None where the loop over clients does."""
        workspace = self.cohort.workspace
        kernel = workspace.batched or workspace.mapped
        if kernel is None or not self.is_plain:
            return None
        return SideBySide(self.cohort, kernel, self.numbers(), self.comes_again)

    def rule_of_steps(self) -> StepRule:
        """What a kernel does in every step."""
        penalty = cast("Quadratic | None", self.penalty)
        decays = self._decays
        if decays is None:
            return step_rule(
                self.lr, self.local.weight_decay, self.x, penalty, self.correction
            )
        return step_rule(self.lr, decays, self.x, penalty, self.correction)

    def numbers(self) -> list[list[NDArray[np.int64]]]:
        """Return the row numbers of each step, of each client."""
        clients = range(len(self.cohort.names))
        return [self._batches(client).numbers(client) for client in clients]

    @cached_property
    def _same(self) -> StepBatches:
        return StepBatches(self.cohort, self.local, self.sampler, self.purpose)

    def _batches(self, client: int) -> StepBatches:
        if self._steps is None:
            return self._same
        return replace(
            self._same, local=replace(self.local, steps=Steps(self._steps[client]))
        )

    # ---- in the loop over clients

    def _train_one(self, client: int) -> None:
        workspace, local, lr = self.cohort.workspace, self.local, self.lr
        if self._decays is not None:
            local = replace(local, weight_decay=self._decays[client])
        moving = self._moving
        start: Tensor | None = None
        if moving is not None:
            start = workspace.x.clone()
        head, every = workspace.head, self._batches(client)
        # An optimiser decays the weights itself.
        optimiser = make_stepper(workspace, local, lr)
        decay = local.weight_decay
        if optimiser is not None:
            optimiser.restore(self._states.before[client])
            decay = 0.0
        rows = self._private_rows(client)
        hooks = self._hooks(client, rows)
        # A plain step goes along the gradient of one batch as it is, which needs no vector of its own.
        is_plain_gradient = local.clip is None and local.accumulate == 1
        has_no_hooks = hooks.none and moving is None
        is_plain = is_plain_gradient and has_no_hooks
        if rows is None:
            steps = every.of_steps(client)
        else:
            steps = ([batch] for batch in rows.steps(every.count(client)))
        try:
            for step, of_step in enumerate(steps):
                if is_plain and optimiser is None:
                    workspace.descend(*of_step[0], lr, decay)
                    continue
                further = partial(every.further, client, step)
                gradient = partial(self._gradient, hooks, of_step, further)
                grad, loss = gradient()
                if decay:
                    grad = grad.add(head, alpha=decay)
                if optimiser is None:
                    head.add_(grad, alpha=-lr)
                else:
                    optimiser.step(grad, loss, gradient)
                if start is not None and moving is not None:
                    # Weight decay moves what has no gradient, and batches move statistics.
                    workspace.x.copy_(torch.where(moving, workspace.x, start))
        finally:
            if optimiser is not None:
                optimiser.end()
        if optimiser is not None and local.keep_state:
            self._states.after.append(optimiser.state())
        check_finite(self.cohort, self.cohort.names[client], workspace.x, lr)

    def _gradient(
        self,
        hooks: StepHooks,
        batches: Sequence[Batch],
        further: Callable[[int], Batch],
    ) -> tuple[Tensor, Tensor]:
        """Return the gradient [d] of a step, mean over the rows of its batches, and their loss."""
        workspace, clip = self.cohort.workspace, self.local.clip
        grad = hooks.gradient(batches[0], further)
        loss = workspace.last_loss
        # The gradient of the mean over all rows is that of the batches, weighted by their shares of the rows.
        if len(batches) > 1:
            rows = [len(labels) for _, labels in batches]
            shares = [count / sum(rows) for count in rows]
            grad, loss = grad * shares[0], loss * shares[0]
            for batch, share in zip(batches[1:], shares[1:], strict=True):
                grad.add_(hooks.gradient(batch, further), alpha=share)
                loss = loss + workspace.last_loss * share
        if self._moving is not None:
            grad = grad * self._moving[: len(grad)]
        # A gradient that is shorter stays as it is.
        if clip is not None:
            grad = grad * (clip / (grad.norm() + 1e-12)).clamp(max=1.0)
        return grad, loss

    def _private_rows(self, client: int) -> PrivateRows | None:
        noise = self.local.private
        if noise is None:
            return None
        return PrivateRows(self.cohort, client, noise, self.purpose, self.start)

    def _hooks(self, client: int, rows: PrivateRows | None) -> StepHooks:
        penalty, correction = self.penalty, self.correction
        if isinstance(penalty, Quadratic):
            anchor = penalty.anchor
            if anchor is None:
                anchor = self.x
            penalty = Quadratic(penalty.mu, of_client(anchor, client))
        if correction is not None:
            correction = of_client(correction, client)
        return StepHooks(
            self.cohort,
            client,
            penalty,
            correction,
            self.rule,
            rows,
            self._found,
        )


def _complete_sampler(sampler: Any) -> Sampler | None:
    if sampler is not None and not isinstance(sampler, Sampler):
        check_object(sampler, Sampler)
    return cast("Sampler | None", sampler)


def _split(inputs: Inputs, sizes: list[int]) -> list[Inputs]:
    """Return inputs in pieces of these sizes, as views."""
    if isinstance(inputs, dict):
        pieces = zip(*(value.split(sizes) for value in inputs.values()), strict=True)
        return [dict(zip(inputs, piece, strict=True)) for piece in pieces]
    return list(inputs.split(sizes))


def of_client(value: Tensor, client: int) -> Tensor:
    """Return one client's vector of one for all [d + b] or of one for each client [n, d + b]."""
    if value.ndim == 1:
        return value
    return value[client]

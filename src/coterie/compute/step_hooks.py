"""What a method may add to a local step: a penalty, a correction, a rule that replaces its gradient; and the gradient under them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from coterie.base.rng import Generators
from coterie.base.vector import unflatten
from coterie.compute.cohort_rows import Batch, CohortRows
from coterie.compute.features import captured
from coterie.compute.row_noise import PrivateRows


@dataclass(frozen=True)
class Quadratic:
    """The penalty `mu / 2 * ||y - anchor||^2` on the parameters y of a local model.

    Attributes:
        mu: >= 0.
        anchor: [d + b], or [n, d + b] for one anchor per client; None: the model that training starts from.

    >>> from typing import NamedTuple
    >>> import coterie as ct
    >>> Reply = NamedTuple("Reply", [("delta", ct.Update)])
    >>> @ct.task
    ... def near_update(cohort, *, x: torch.Tensor, local: ct.LocalSGD, mu: float) -> Reply:
    ...     return Reply(cohort.updates(x, local, penalty=ct.Quadratic(mu)))
    >>> engine = ct.InProcess().open(ct.data.load("heart-disease"), torch.nn.Linear(15, 1), "auto")
    >>> federation = ct.Federation(engine, engine.clients)
    >>> ask = {"x": engine.x, "local": ct.LocalSGD()}
    >>> free, near = (federation.ask(engine.clients, near_update, mu=mu, **ask).delta.norm() for mu in (0.0, 10.0))
    >>> bool(near < free)
    True
    >>> engine.close()
    """

    mu: float
    anchor: Tensor | None = None

    def add_gradient(self, grad: Tensor, y: Tensor) -> None:
        """Add mu (y - anchor) to `grad` [d], in place, at the parameters y [d]; the anchor must be given."""
        grad.add_(y - cast("Tensor", self.anchor)[: len(y)], alpha=self.mu)

    def shift(self, lr: float, start: Tensor) -> Tensor:
        """Return what the anchor adds to y in a step, lr mu anchor; y itself shrinks by lr mu. Training began at `start`."""
        anchor = self.anchor
        if anchor is None:
            anchor = start
        return lr * self.mu * anchor


@dataclass(frozen=True)
class Step:
    """One local step, as a penalty of the user's own sees it.

    Attributes:
        outputs: of the model that is trained, for the rows of the step.
        inputs: these rows, as the model takes them.
        labels: their labels.
        client: position of the client in the cohort.
        model: the module that is trained.

    >>> from typing import NamedTuple
    >>> import coterie as ct
    >>> Reply = NamedTuple("Reply", [("delta", ct.Update)])
    >>> @ct.task
    ... def small_features(cohort, *, x, local, weight) -> Reply:
    ...     def penalty(step: ct.Step):
    ...         return weight * (step.features - step.features_of(x)).square().mean()
    ...     return Reply(cohort.updates(x, local, penalty=penalty))
    >>> model = nn.Sequential(nn.Linear(15, 4), nn.Tanh(), nn.Linear(4, 1))
    >>> engine = ct.InProcess().open(ct.data.load("heart-disease"), model, "auto")
    >>> federation = ct.Federation(engine, engine.clients)
    >>> ask = {"x": engine.x, "local": ct.LocalSGD()}
    >>> free, near = (federation.ask(engine.clients, small_features, weight=w, **ask).delta for w in (0.0, 10.0))
    >>> bool(near[:, :64].norm() < free[:, :64].norm())  # the first layer makes the features
    True
    >>> engine.close()
    """

    outputs: Tensor
    inputs: Any
    labels: Tensor
    client: int
    model: nn.Module
    _found: list[Tensor]
    _cohort: CohortRows

    @property
    def features(self) -> Tensor:
        """Representations [rows, k] of these rows by the model that is trained, with their gradient; `layer` of `train` says which."""
        return captured(self._found)

    def features_of(self, x: Tensor) -> Tensor:
        """Representations [rows, k] of these rows by another model [d + b], which evaluates; nothing of it is trained."""
        workspace = self._cohort.workspace
        # No statistics of batch norm move, and what the model that is trained has given stays.
        own = list(self._found)
        self.model.eval()
        with torch.no_grad():
            vectors = unflatten(x, self._cohort.layout)
            torch.func.functional_call(self.model, vectors, (self.inputs,))
        workspace.train(True)
        self._cohort.spent["row_losses"] += len(self.labels)
        other = captured(self._found)
        self._found[:] = own
        return other


Penalty = Quadratic | Callable[[Step], Tensor]
"""A quadratic penalty, or a function of a step that returns a scalar to be added to its loss."""

GradientRule = Callable[[Callable[[Tensor, int], Tensor], Tensor], Tensor]
"""(gradient, y) -> direction [d], where `gradient(y, k)` is the gradient at y [d] on the step's k-th batch; plain: `gradient(y, 0)`.
Random layers draw the same numbers in each call with the same k."""


@dataclass(frozen=True)
class StepHooks:
    """The hooks of one client's training, and the gradient of a step under them.

    Attributes:
        cohort: the clients that train.
        client: position of the client among them.
        penalty: what is added to the loss of a step.
        correction: [d], added to its gradient.
        rule: replaces the plain gradient.
        private: rows whose gradients are hidden by noise; a step is then on all rows.
        found: what the layer of features has given in the last forward pass.
    """

    cohort: CohortRows
    client: int
    penalty: Penalty | None
    correction: Tensor | None
    rule: GradientRule | None
    private: PrivateRows | None
    found: list[Tensor]

    @property
    def none(self) -> bool:
        """True if a step is the plain gradient."""
        hooks = (self.penalty, self.correction, self.rule, self.private)
        return all(hook is None for hook in hooks)

    def gradient(self, batch: Batch, further: Callable[[int], Batch]) -> Tensor:
        """Return the direction [d] of a step; `further(k)` draws its k-th further batch."""
        if self.rule is None:
            return self._plain(batch)
        workspace = self.cohort.workspace
        start = workspace.head.clone()
        noise: dict[int, Generators] = {}
        # The rows of batch 0 were counted as they were read, for one gradient.
        counted = {0}

        def at(y: Tensor, number: int) -> Tensor:
            workspace.head.copy_(y)
            # Two gradients on one batch meet the same noise, or their difference would be noise.
            if workspace.random:
                if number in noise:
                    noise[number].restore()
                noise.setdefault(number, Generators.now(workspace.generators))
            rows = batch
            if number != 0:
                rows = further(number)
            if number in counted:
                counted.remove(number)
            else:
                self.cohort.spent["row_gradients"] += len(rows[1])
            return self._plain(rows)

        direction = self.rule(at, start)
        workspace.head.copy_(start)
        return direction

    def _plain(self, batch: Batch) -> Tensor:
        workspace, penalty = self.cohort.workspace, self.penalty
        inputs, labels = batch
        if self.private is not None:
            grad = self.private.gradient()
        elif penalty is None or isinstance(penalty, Quadratic):
            grad = workspace.flat_gradient(inputs, labels)
        else:
            model, cohort = workspace.model, self.cohort

            def penalty_of(outputs: Tensor) -> Tensor:
                plain = workspace.loss.plain(labels)
                step = Step(
                    outputs, inputs, plain, self.client, model, self.found, cohort
                )
                return penalty(step)

            grad = workspace.flat_gradient(inputs, labels, penalty_of)
        if isinstance(penalty, Quadratic):
            penalty.add_gradient(grad, workspace.head)
        if self.correction is not None:
            grad.add_(self.correction)
        return grad

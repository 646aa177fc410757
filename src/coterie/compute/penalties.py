"""What a method may add to a local step: penalties, and rules that replace its gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from coterie.base.vector import unflatten
from coterie.compute.cohort_rows import CohortRows
from coterie.compute.features import captured


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

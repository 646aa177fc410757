"""Optimisers of local training: torch's by name on one flat vector, a user's own on parameters of the model; and their state."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from coterie.base.errors import InputError, cut
from coterie.compute.cohort_rows import CohortRows
from coterie.compute.workspace import Workspace
from coterie.config.local import LocalSGD
from coterie.config.optimisers import OwnOptimiser

Again = Callable[[], tuple[Tensor, Tensor]]
"""Computes gradient [d] and loss of a step's batches at the model as it is now."""
State = dict[str, Tensor]
"""What an optimiser remembers, by number of the parameter and name: `0 exp_avg`."""

_CLASSES = {
    cls.__name__.lower(): cls
    for cls in vars(torch.optim).values()
    if isinstance(cls, type)
}


class Stepper:
    """An optimiser of torch by name. It sees the parameters as one vector, as it treats every number alike.

    Attributes:
        optimiser: the optimiser.
        parameters: the tensors that it moves.
    """

    def __init__(self, workspace: Workspace, local: LocalSGD, lr: float) -> None:
        # Every optimiser takes weight decay, and only some take momentum.
        keywords = {"weight_decay": local.weight_decay}
        if local.momentum:
            keywords["momentum"] = local.momentum
        make: Any = _CLASSES[cast("str", local.optimiser)]
        self.parameters = [workspace.head]
        self.optimiser: Any = make(self.parameters, lr, **keywords)

    def step(self, grad: Tensor, loss: Tensor, again: Again) -> None:
        """Make a step along the gradient [d] of this loss; `again` computes both at another point."""
        self.parameters[0].grad = grad
        self.optimiser.step()

    def end(self) -> None:
        """Let go of gradients, which take as much memory as the model."""
        for parameter in self.parameters:
            parameter.grad = None

    def state(self) -> State:
        """Return what the optimiser remembers; nothing if it remembers anything but tensors and numbers."""
        found: State = {}
        for number, parameter in enumerate(self.parameters):
            for name, value in self.optimiser.state.get(parameter, {}).items():
                if not isinstance(value, Tensor | int | float):
                    return {}
                kept = torch.as_tensor(value)
                if not isinstance(value, Tensor):
                    kept = kept.double()
                found[f"{number} {name}"] = kept.detach().clone()
        return found

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Let the optimiser remember what `state` gave."""
        for key, value in state.items():
            number, _, name = key.partition(" ")
            parameter = self.parameters[int(number)]
            self.optimiser.state[parameter][name] = value.clone()


class OwnStepper(Stepper):
    """An optimiser that a function of the user's makes of the parameters of the model.

    Its `step` is given a closure if it takes one, as that of torch's optimisers: it computes the gradients at the parameters as they
    are, and returns the loss. Where they have not moved, nothing is computed, so that an optimiser which calls it once costs no more.

    Raises `InputError` for a function that makes no optimiser.
    """

    def __init__(self, workspace: Workspace, local: LocalSGD, lr: float) -> None:
        own = cast("OwnOptimiser", local.optimiser)
        self._workspace = workspace
        self.parameters = list(workspace.parameters)
        self.optimiser = own(self.parameters, lr)
        step = getattr(self.optimiser, "step", None)
        if not callable(step):
            raise InputError(
                f"LocalSGD.optimiser must make an optimiser with a method step; {own.__name__} made {cut(self.optimiser)}"
            )
        self._takes_closure = bool(inspect.signature(step).parameters)
        workspace.tells_loss = True

    def step(self, grad: Tensor, loss: Tensor, again: Again) -> None:
        """Make a step along the gradient [d] of this loss; `again` computes both at another point."""
        workspace = self._workspace
        self._assign(grad)
        if self._takes_closure:
            seen = workspace.head.clone()

            def closure() -> Tensor:
                nonlocal grad, loss, seen
                if not torch.equal(seen, workspace.head):
                    with torch.enable_grad():
                        grad, loss = again()
                    seen = workspace.head.clone()
                self._assign(grad)
                return loss

            self.optimiser.step(closure)
        else:
            self.optimiser.step()
        for parameter, view in zip(self.parameters, workspace.views, strict=True):
            if parameter.data_ptr() != view.data_ptr():
                # `p.data = ...` leaves the vector that is the model; what it holds belongs there.
                view.copy_(parameter.data)
                parameter.data = view

    def end(self) -> None:
        """Let go of gradients, and let the workspace take its fastest way again."""
        super().end()
        self._workspace.tells_loss = False

    def _assign(self, grad: Tensor) -> None:
        pieces = grad.split([p.numel() for p in self.parameters])
        for parameter, piece in zip(self.parameters, pieces, strict=True):
            # A copy: an optimiser may change gradients in place, and ask for them again.
            parameter.grad = piece.view_as(parameter).clone()


def make_stepper(workspace: Workspace, local: LocalSGD, lr: float) -> Stepper | None:
    """The optimiser of one local training; None for plain SGD, which needs no object."""
    if isinstance(local.optimiser, OwnOptimiser):
        return OwnStepper(workspace, local, lr)
    if local.optimiser == "sgd" and not local.momentum:
        return None
    return Stepper(workspace, local, lr)


class OptimiserStates:
    """What the optimisers of a cohort's clients remember from one training to the next.

    Attributes:
        before: of each client, what it remembered before; nothing where it has not trained yet.
        after: of each client, what its optimiser remembers now, filled one after the other.
    """

    def __init__(self, cohort: CohortRows, prefix: str, before: list[State]) -> None:
        self._cohort, self._prefix = cohort, prefix
        self.before = before
        self.after: list[State] = []

    @classmethod
    def begin(
        cls, cohort: CohortRows, local: LocalSGD, purpose: str
    ) -> OptimiserStates:
        """Read what they remember; nothing where settings say that each training begins anew."""
        memory = cohort.memory
        before: list[State] = [{} for _ in cohort.names]
        if not local.keep_state:
            return cls(cohort, "", before)
        # A method that trains twice in a task, its own model and the common one, has two optimisers.
        prefix = memory.number_of(f"optimiser of {purpose}")
        for key in memory.keys_of(prefix):
            for state, value in zip(before, memory.each(key), strict=True):
                if value is not None:
                    state[key.removeprefix(prefix)] = value
        return cls(cohort, prefix, before)

    def keep(self) -> None:
        """Let the clients keep the states after their training, where all of them have the same form."""
        if not self.after:
            return
        for name, value in self.after[0].items():
            values = [state.get(name) for state in self.after]
            if all(v is not None and v.shape == value.shape for v in values):
                stacked = torch.stack(cast("list[Tensor]", values))
                self._cohort.keep(self._prefix + name, stacked)

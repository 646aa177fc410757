"""A run seen as MaxFL sees it, whatever its method: how far the model appeals to clients, and clients who leave where it does not."""

from __future__ import annotations

from typing import Annotated, Any

from torch import Tensor

from coterie.base.errors import require
from coterie.compute.appeal import measure_appeal, staying
from coterie.config.rules import COUNT, SIZE
from coterie.config.schema import options
from coterie.contract.federation import Federation
from coterie.contract.method import Log, Method
from coterie.contract.training import LocalSGD

__all__ = ["Appeal"]


@options
class Appeal:
    """What `[run] appeal` says, for methods with one model for everybody.

    Source: Y. J. Cho et al., "Maximizing Global Model Appeal in Federated Learning", 2022, Section 3 ("Appeal-based Flexible Client
    Participation") and Section 5. Learning rate and batch size of the warm-up are those of each method's local training.

    Attributes:
        warmup_steps: local steps from the initial model to a client's own, with which it compares.
        leave: only clients to whom the model appeals are drawn (F_k(x) < rho_k on training rows), anew in every round; a round in
            which nobody stays is skipped.
        mandatory_rounds: rounds in which everybody may be drawn, with `leave` (10 of 200 in Tables 1 and 2).
    """

    warmup_steps: Annotated[int, SIZE] = 100
    leave: bool = False
    mandatory_rounds: Annotated[int, COUNT] = 10

    def check(self, method: Method[Any]) -> None:
        """Raise `InputError` for a method that chooses its clients itself."""
        name = type(method).__name__
        require(
            not self.leave or method.participation == "run",
            f"run.appeal.leave decides who may be drawn, but {name} chooses its clients itself; leave out one of the two",
        )

    def pool(self, x: Tensor, start: Tensor, view: Federation, method: Method[Any]) -> tuple[str, ...]:
        """Clients that may be drawn in the round of `view`, with the model x [d + b] and the initial one."""
        if not self.leave or view.round <= self.mandatory_rounds:
            return view.everyone
        return staying(x, start, view, _local(method), warmup_steps=self.warmup_steps)

    def measure(self, x: Tensor, start: Tensor, view: Federation, method: Method[Any]) -> Log:
        """See `measure_appeal`."""
        return measure_appeal(x, start, view, _local(method), warmup_steps=self.warmup_steps)


def _local(method: Method[Any]) -> LocalSGD:
    local: LocalSGD = getattr(method, "local", None) or LocalSGD()
    return local

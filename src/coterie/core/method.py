"""What a method is: any object with `init`, `round` and `models`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from torch import Tensor

from coterie.core.federation import Federation
from coterie.core.rng import Rng

__all__ = ["Algorithm", "Log"]

S = TypeVar("S")
Log = dict[str, Any]
"""Quantities of one round by name: a number; a number by client or target; under `weights` the coefficient of each client's update,
by client, or by target and client."""


class Algorithm(Protocol[S]):
    """State in, state out. A method is a frozen dataclass whose fields are the paper's hyper-parameters.

    Optional attributes that the run loop reads:
        participation: `"own"` if the method chooses its clients itself (the view then has everybody).
        pooled: True if the rows of all clients lie at the `server` (the `centralised` reference).
        keeps_validation(names): clients whose validation rows must not be trained on.
        vectors(participants, clients): number of model vectors that a round holds at once, for the memory preflight.
        check(everyone): raises `InputError` for fields that do not fit these clients, before any training.
        personalised(state, federation): {client: model [d + b]} for seen and unseen clients that make a model of their own from the
            state, asked at evaluation rounds; it is what is evaluated, saved and used for predictions, and its work is not counted.
        measure(state, federation): further quantities at evaluation rounds, as a `Log`.
        sampler: its `check` and `after_round` are called (see `Sampler`); without it those of the sampler of `local`.
    """

    def init(self, x: Tensor, federation: Federation) -> S:
        """State before the first round, from the initial model x [d + b]."""
        ...

    def round(self, state: S, federation: Federation, rng: Rng) -> tuple[S, Log]:
        """One round with the participants `federation.clients`."""
        ...

    def models(self, state: S) -> Tensor | Mapping[str, Tensor]:
        """One model [d + b] for everybody, or a model for each client that has one."""
        ...

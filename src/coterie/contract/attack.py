"""The base class of attacks: it declares every hook, with a default of honesty."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from coterie.base.rng import Rng
from coterie.config.rules import Kind
from coterie.config.run import Attackers
from coterie.config.schema import options

if TYPE_CHECKING:
    from coterie.base.clients import Clients


@options
class Attack(Attackers):
    """The wrong that some clients do, and which clients they are. An attack is a frozen dataclass; its hooks default to honesty.

    Attributes:
        on: who attacks: names of clients, or a share of all (rounded), drawn by name from the seed.
        fault: reason of a failure, in words.
        late: whether a client that fails has done its work before.

    >>> import coterie as ct
    >>> @ct.options
    ... class Silence(ct.Attack):
    ...     def rewrite(self, kind, rows, attackers, rngs):
    ...         return 0 * rows[attackers]
    >>> attacks = (None, Silence(on=("cleveland", "hungary", "long-beach")))
    >>> runs = [ct.fit(ct.FedAvg(), "heart-disease", rounds=1, attack=attack) for attack in attacks]
    >>> bool(runs[0].x.norm() > 2 * runs[1].x.norm())  # three of four send zeros
    True
    """

    _kind: ClassVar = Kind("attack", "SignFlip(on=0.2)")

    fault: ClassVar[str] = "failed"
    late: ClassVar[bool] = False

    def corrupt(self, kind: str, rows: Tensor, rngs: Sequence[Rng]) -> Tensor:
        """Return what attackers who know their own reply alone send in its place [a, ...]; called where the reply is made.

        An attack with this hook travels, so it is a frozen dataclass registered with `@wire_type`.

        Args:
            kind: kind of the field, `update`, `gradient`, `gap` or `stay`.
            rows: what the a attackers would have replied [a, ...].
            rngs: one stream for each of them.
        """
        return rows

    def rewrite(
        self, kind: str, rows: Tensor, attackers: Tensor, rngs: Sequence[Rng]
    ) -> Tensor:
        """Return what attackers who know all replies send [a, ...]; called where all replies pass.

        Args:
            kind: kind of the field, `update`, `gradient`, `gap` or `stay`.
            rows: what all clients reply [n, ...].
            attackers: mask [n] of the attackers among them.
            rngs: one stream for each of the a attackers.
        """
        return rows[attackers]

    def fails(self, rng: Rng) -> bool:
        """Return True if an attacker fails in an ask."""
        return False

    def on_rows(self, clients: Clients, names: Collection[str]) -> Clients:
        """The clients with other rows at `names`, before training."""
        return clients

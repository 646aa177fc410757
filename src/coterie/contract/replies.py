"""What an algorithm gets back: the replies of all clients, stacked in the order of their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar

from torch import Tensor

from coterie.contract.envelopes import Block

__all__ = ["Average", "Replies", "stack"]

R = TypeVar("R", bound=tuple[Any, ...])


class Replies(Generic[R]):
    """The stacked fields of all replies: `replies.delta` is [n, ...] in the order of `replies.clients` (sorted by name).

    Attributes:
        clients: who replied, sorted.
        asked: who was asked, sorted.
        failed: reason of each client that did not reply or whose reply was refused.
        forgot: clients that do not have the state (`cohort.state`) which the server counted: their process ended, or the server refused
            the reply in which they changed it. Some of them may have failed.
        fields: what they replied, by name.
    """

    def __init__(
        self,
        clients: tuple[str, ...],
        asked: tuple[str, ...],
        fields: Mapping[str, Any],
        failed: Mapping[str, str],
        forgot: tuple[str, ...] = (),
    ):
        self.clients = clients
        self.asked = asked
        self.failed = dict(failed)
        self.forgot = forgot
        self.fields = dict(fields)

    def __getattr__(self, name: str) -> Tensor:
        fields = self.__dict__.get("fields", {})
        if name not in fields:
            raise AttributeError(f"the reply has no field {name!r}; it has {', '.join(fields)}")
        field: Tensor = fields[name]  # texts, which a few tasks reply, come as tuples
        return field

    def __len__(self) -> int:
        return len(self.clients)

    def __repr__(self) -> str:
        return f"<{len(self.clients)} of {len(self.asked)} replies: {', '.join(self.fields)}>"

    def named(self, values: Tensor) -> dict[str, float]:
        """`values` [n] as a dict by client, for the log."""
        return dict(zip(self.clients, values.tolist(), strict=True))

    def without(self, refused: Mapping[str, str]) -> Replies[R]:
        """The same without the clients whose reply was refused, for these reasons."""
        if not refused:
            return self
        kept = Block(self.clients, self.fields).without(refused)
        failed = {**self.failed, **refused}
        in_order = {n: failed[n] for n in self.asked if n in failed}
        return Replies(kept.names, self.asked, kept.values, in_order, self.forgot)


class Average(Replies[R]):
    """What clients replied where only a mean is wanted: `average.delta` is the weighted mean [d + b] of their updates.

    Fields declared as `Update` or `Gradient` are means; the others are stacked [n, ...], as in `Replies`.

    Attributes:
        weights: share of each client that replied in the means, float64 [n], with sum 1.
    """

    def __init__(self, replies: Replies[R], means: Mapping[str, Tensor], weights: Tensor) -> None:
        super().__init__(replies.clients, replies.asked, {**replies.fields, **means}, replies.failed, replies.forgot)
        self.weights = weights


def stack(asked: tuple[str, ...], blocks: Sequence[Block], failed: Mapping[str, str]) -> Replies[Any]:
    """The replies of all blocks in one, sorted by name."""
    replied = [n for block in blocks for n in block.names]
    order = sorted(range(len(replied)), key=replied.__getitem__)
    rank = iter(sorted(range(len(order)), key=order.__getitem__))
    places = [list(islice(rank, len(block.names))) for block in blocks]
    values = {
        key: _stacked([b.values[key] for b in blocks], order, places) for key in (blocks[0].values if blocks else ())
    }
    return Replies(tuple(replied[i] for i in order), asked, values, {n: failed[n] for n in asked if n in failed})


def _stacked(parts: Sequence[Any], order: list[int], places: Sequence[list[int]]) -> Any:
    """One field of all replies, from its rows block by block; `places` are where the rows of each block go."""
    if not isinstance(parts[0], Tensor):
        rows = [item for part in parts for item in part]
        return tuple(rows[i] for i in order)
    if len(parts) == 1:
        return parts[0] if order == list(range(len(order))) else parts[0][order]
    stacked = parts[0].new_empty(len(order), *parts[0].shape[1:])
    for place, part in zip(places, parts, strict=True):
        stacked[place] = part
    return stacked

"""The engine around an engine whose clients attack, and the choice of the attackers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, ClassVar

import torch
from torch import Tensor

from coterie.base.clients import Clients
from coterie.base.errors import InputError, cut, nearest, require
from coterie.base.rng import Rng
from coterie.config.rules import check_object, overrides
from coterie.config.schema import wire_type
from coterie.contract.attack import Attack
from coterie.contract.engine import Engine
from coterie.contract.filters import (
    WRONG_SHAPE,
    Filter,
    Passage,
    check_shape,
    in_order,
    streams,
)
from coterie.contract.replies import VECTORS, has_form
from coterie.contract.wire import Answer, Ask, Block, Context, to_json


def choose_attackers(
    on: Sequence[str] | float, names: Sequence[str], seed: int
) -> tuple[str, ...]:
    """The attackers among the clients `names`, sorted: those named, or a share of all (rounded), drawn by name from the seed.

    Raises `InputError` for an unknown name, a name that repeats, or a share that is nobody.

    Args:
        on: Names of the attackers, or their share of all clients.
        names: Names of all clients.
        seed: Seed that draws them where a share is given.

    >>> choose_attackers(("b", "a"), "abcd", 0), choose_attackers(0.5, "abcd", 0), choose_attackers(0.5, "abcd", 1)
    (('a', 'b'), ('c', 'd'), ('a', 'd'))
    """
    if isinstance(on, int | float):
        count = round(on * len(names))
        if count <= 0:
            raise InputError(
                f"a share of {on:g} of {len(names)} clients is less than one client; name clients, or raise the share"
            )
        order = sorted(
            names,
            key=lambda name: (Rng.named(seed, "attackers", name).uniform(1)[0], name),
        )
        return tuple(sorted(order[:count]))
    require(
        bool(on),
        'no client attacks; say who does: on = ["NAME"], or a share such as on = 0.1',
    )
    for name in on:
        if name not in names:
            raise InputError(
                f"there is no client {name!r} to attack; {nearest(name, names)}"
            )
    if len(set(on)) < len(on):
        raise InputError(f"attackers repeat: {', '.join(on)}; name each once")
    return tuple(sorted(on))


@wire_type
@dataclass(frozen=True)
class Corrupted(Filter):
    """The lies that some clients send in place of their own replies.

    Attributes:
        attack: what they do (`Attack.corrupt`).
        who: their names.
    """

    stage = "attack"
    kinds: ClassVar[tuple[str, ...]] = (*VECTORS, "gap", "stay")

    attack: Any
    who: tuple[str, ...]

    def apply(self, rows: Tensor, passage: Passage) -> Tensor:
        """The rows [n, ...] with those of the attackers changed."""
        attacked = [i for i, name in enumerate(passage.names) if name in self.who]
        if not attacked:
            return rows
        rngs = passage.rngs("attack")
        own_rngs = [rngs[i] for i in attacked]
        lies = self.attack.corrupt(passage.kind, rows[attacked], own_rngs)
        shape = (len(attacked), *rows.shape[1:])
        changed = rows.clone()
        changed[attacked] = check_shape(
            lies, shape, f"{type(self.attack).__name__}.corrupt"
        )
        return changed


def with_lies(clients: Clients, attack: Attack, names: Collection[str]) -> Clients:
    """The clients as the attack leaves the rows of `names`. Raises `InputError` if it returns anything else.

    Args:
        clients: All clients.
        attack: The attack.
        names: Names of the attackers.

    >>> import coterie as ct
    >>> clients = ct.data.load("heart-disease")
    >>> lying = with_lies(clients, ct.attacks.LabelFlip(), ["hungary"])
    >>> [bool((lying[name].train.labels == clients[name].train.labels).all()) for name in ("hungary", "cleveland")]
    [False, True]
    """
    changed = attack.on_rows(clients, names)
    if not isinstance(changed, Clients) or changed.names != clients.names:
        hook = f"{type(attack).__name__}.on_rows"
        raise InputError(
            f"{hook} must return the clients that it was given, with other rows; got {cut(changed)}"
        )
    return changed


class Attacked(Engine):
    """An engine some of whose clients attack. To attack a federation: `replace(federation, engine=Attacked(federation.engine, ...))`.

    Args:
        engine: The engine that is wrapped.
        attack: What the attackers do.
        clients: Names of the attackers.

    Attributes:
        attack: what the attackers do.
        attackers: their names, sorted.
        changes_replies: whether they say something else than they compute.

    Raises `InputError` if the engine is one of real machines, or a name is unknown.

    >>> import coterie as ct
    >>> engine = ct.InProcess().open(ct.data.load("heart-disease"), torch.nn.Linear(15, 1), "auto")
    >>> Attacked(engine, ct.attacks.SignFlip(), ["hungary"]).attackers
    ('hungary',)
    >>> engine.close()
    """

    def __init__(self, engine: Engine, attack: Any, clients: Sequence[str]) -> None:
        if not engine.simulated:
            raise InputError(
                f"attacks are simulated in process or on Ray, not on {type(engine).__name__}; choose engine inprocess or ray"
            )
        check_object(attack, Attack)
        self._engine = self.honest = engine
        self.attack = attack
        self.attackers = choose_attackers(clients, engine.clients, 0)
        self.clients, self.unseen = engine.clients, engine.unseen
        self.has_server = engine.has_server
        self.layout, self.x = engine.layout, engine.x
        self.model, self.loss = engine.model, engine.loss
        self.simulated, self.serves = True, engine.serves
        self.needs_all = overrides(self.attack, Attack, "rewrite")
        self.changes_replies = self.needs_all or overrides(
            self.attack, Attack, "corrupt"
        )
        self._filter = _travelling_filter(Corrupted(self.attack, self.attackers))

    def ask(self, ask: Ask) -> Answer:
        """Let the ask finish, without those that fail before it; then drop what is late and rewrite what attackers say."""
        bad = [n for n in ask.names if n in self.attackers]
        failed: dict[str, str] = {}
        for name, rng in zip(
            bad, streams(ask.context, "attack", "fault", bad), strict=True
        ):
            if self.attack.fails(rng):
                failed[name] = self.attack.fault
        reached = ask.names
        if not self.attack.late:
            reached = tuple(name for name in ask.names if name not in failed)
        sent = replace(ask.to(reached), filters=in_order((*ask.filters, *self._filter)))
        answer = Answer()
        if reached:
            answer = self._engine.ask(sent)
        for why in answer.failed.values():
            # Else the run would go on without its attackers.
            if f".corrupt {WRONG_SHAPE}" in why:
                raise InputError(why.partition(": ")[2])
        in_time = [block.without(failed) for block in answer.blocks]
        blocks = [block for block in in_time if block.names]
        if bad and self.needs_all:
            blocks = self._rewrite(ask, blocks)
        return replace(answer, blocks=tuple(blocks), failed={**answer.failed, **failed})

    def _rewrite(self, ask: Ask, blocks: Sequence[Block]) -> list[Block]:
        task = ask.function
        copies = [Block(block.names, dict(block.values)) for block in blocks]
        for field, kind in task.kinds.items():
            if kind not in Corrupted.kinds:
                continue
            sent = task.layout_of(field, ask.arguments, self.layout)
            forms: dict[Any, list[tuple[str, Tensor]]] = {}
            for block, copy_ in zip(blocks, copies, strict=True):
                value = block.values[field]
                if has_form(value, kind, len(block.names), sent):
                    copy_.values[field] = value.clone()  # type: ignore[index]
                    named = zip(block.names, copy_.values[field], strict=True)
                    forms.setdefault((value.shape[1:], value.dtype), []).extend(named)
            for rows in forms.values():
                # A sum must not depend on which worker answered first.
                rows.sort(key=itemgetter(0))
                self._rewrite_rows(kind, field, rows, ask.context, sent.dim)
        return copies

    def _rewrite_rows(
        self,
        kind: str,
        field: str,
        rows: Sequence[tuple[str, Tensor]],
        context: Context,
        dim: int,
    ) -> None:
        """Rewrite, in place, the attackers' rows of one field; `rows` are views of it, sorted by name."""
        parts: list[Tensor] = []  # of attackers, and of others where they are finite
        is_bad: list[bool] = []
        bad: list[str] = []
        stolen: list[Tensor] = []
        for name, row in rows:
            part = row
            if kind in VECTORS:  # without the statistics of batch norm behind it
                part = row[..., :dim]
            if name in self.attackers:
                bad.append(name)
                stolen.append(part)
            elif not bool(torch.isfinite(part).all()):
                continue
            parts.append(part)
            is_bad.append(name in self.attackers)
        if not stolen:
            return
        rngs = streams(context, "attack", field, bad)
        lies = self.attack.rewrite(kind, torch.stack(parts), torch.tensor(is_bad), rngs)
        shape = (len(stolen), *stolen[0].shape)
        lies = check_shape(lies, shape, f"{type(self.attack).__name__}.rewrite")
        for part, lie in zip(stolen, lies, strict=True):
            part.copy_(lie)

    def sizes(self, part: str) -> Mapping[str, int]:
        """Rows of each client."""
        return self._engine.sizes(part)

    def save_memory(self) -> dict[str, Tensor]:
        """Return the memory of all clients."""
        return self._engine.save_memory()

    def load_memory(self, saved: dict[str, Tensor]) -> None:
        """Restore what `save_memory` wrote."""
        self._engine.load_memory(saved)

    def close(self) -> None:
        """End the engine."""
        self._engine.close()


def _travelling_filter(corrupted: Corrupted) -> tuple[Corrupted, ...]:
    """The filter of an attack, if it corrupts replies where they are made. Raises `InputError` if it cannot travel there."""
    if not overrides(corrupted.attack, Attack, "corrupt"):
        return ()
    try:
        to_json(corrupted)
    except InputError as error:
        name = type(corrupted.attack).__name__
        raise InputError(
            f"{name}.corrupt runs at the clients; register the dataclass {name} with @wire_type"
        ) from error
    return (corrupted,)

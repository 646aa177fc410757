"""Attacks and faults, around any federation and any method.

`Attacked` is an engine around an engine that simulates clients. What attackers compute from their own reply alone (`corrupt`) is a
filter where the reply is made, after all other filters but masks. Those who know what others send (`rewrite`) come into play where all
replies pass, before anything is checked, so that the federation refuses or believes a lie as it would on a network. Attacked are the
fields that a reply declares as `Update`, `Gradient` or `Gap`, their d parameters only: float buffers behind them stay as they are.
Statistics are those of one ask, over the rows of the clients that replied, for each of the T models of a field [n, T, d] alone.
Randomness is named by seed, round, method, field, number of the ask in its round, and client, so that neither the number of workers nor
a resumed run changes it.

The class of an attack derives from `ct.Attack` and defines some of its hooks.

Papers: N. Tupitsa, S. Horváth, M. Takáč, E. Gorbunov, "Federated Learning Can Find Friends That Are Beneficial", 2024 (IPM, ALIE,
bit flipping, random noise); Y. J. Cho et al., "Maximizing Global Model Appeal in Federated Learning", 2022 (loss inflation, flipped
labels).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from coterie.base.clients import Clients
from coterie.base.errors import InputError, cut, is_number, nearest, require
from coterie.base.rng import Rng, normal
from coterie.base.rows import Rows
from coterie.config.rules import NOT_NEGATIVE, POSITIVE, Rule, check_object, one_of, overrides
from coterie.config.schema import options, wire_type
from coterie.contract.engine import Engine
from coterie.contract.filters import WRONG_SHAPE, Filter, Passage, in_order, of_shape, streams
from coterie.contract.method import Attack
from coterie.contract.replies import VECTORS, has_form
from coterie.contract.wire import Answer, Ask, Block, Context, to_json

__all__ = [
    "ALIE",
    "IPM",
    "Attack",
    "Attacked",
    "Dropout",
    "LabelFlip",
    "LossInflation",
    "NaN",
    "Noise",
    "SignFlip",
    "Straggler",
    "choose_attackers",
    "with_lies",
]

_STATISTICS = one_of("honest", "all")
_CORRECTION = Rule(lambda v: v in (0, 1) and type(v) is int, "0 or 1")
_PROBABILITY = Rule(lambda v: is_number(v) and 0 <= v <= 1, "a probability between 0 and 1")


@options
class IPM(Attack):
    """Inner product manipulation: the attackers send -eps * mean, so that the average points the wrong way where they are many.

    Source: C. Xie, O. Koyejo, I. Gupta, "Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation", UAI 2019.

    Attributes:
        eps: epsilon > 0; the MeritFed papers take .1.
        statistics: the mean is that of the `honest` clients' rows (the papers) or of `all` rows (the authors' code). Where no honest
            client replied it is that of all.
    """

    eps: Annotated[float, POSITIVE] = 0.1
    statistics: Annotated[str, _STATISTICS] = "honest"

    def rewrite(self, kind: str, rows: Tensor, attackers: Tensor, rngs: Sequence[Rng]) -> Tensor:
        """-eps * mean of updates and gradients."""
        if kind not in VECTORS:
            return rows[attackers]
        return (-self.eps * _rows_for_statistics(rows, attackers, self.statistics).mean(dim=0)).expand_as(
            rows[attackers]
        )


@options
class ALIE(Attack):
    """A little is enough: the attackers send mean - z * std of gradients in each coordinate, mean + z * std of updates.

    An update points the other way than a gradient, so that an attacker who is asked for both lies in one direction.

    Source: G. Baruch, M. Baruch, Y. Goldberg, "A Little Is Enough: Circumventing Defenses For Distributed Learning", NeurIPS 2019.

    Attributes:
        z: number of standard deviations > 0; the MeritFed papers take 100, which is no longer little.
        statistics: mean and deviation over the `honest` clients' rows or over `all` rows, as for IPM.
        correction: the deviation divides by the number of rows less this: 0, or 1 as the MeritFed authors' code.
    """

    z: Annotated[float, POSITIVE] = 100.0
    statistics: Annotated[str, _STATISTICS] = "honest"
    correction: Annotated[int, _CORRECTION] = 0

    def rewrite(self, kind: str, rows: Tensor, attackers: Tensor, rngs: Sequence[Rng]) -> Tensor:
        """Mean minus z deviations of gradients, plus z deviations of updates."""
        if kind not in VECTORS:
            return rows[attackers]
        visible = _rows_for_statistics(rows, attackers, self.statistics)
        z = self.z if kind == "update" else -self.z
        deviation = visible.std(dim=0, correction=min(self.correction, len(visible) - 1))
        return (visible.mean(dim=0) + z * deviation).expand_as(rows[attackers])


@wire_type
@options
class SignFlip(Attack):
    """Bit flipping: the attackers send their own update or gradient with the other sign.

    Attributes:
        scale: factor > 0 on what is sent; the MeritFed papers take 1.
    """

    scale: Annotated[float, POSITIVE] = 1.0

    def corrupt(self, kind: str, rows: Tensor, rngs: Sequence[Rng]) -> Tensor:
        """-scale times updates and gradients."""
        return -self.scale * rows if kind in VECTORS else rows


@wire_type
@options
class Noise(Attack):
    """Random noise: the attackers send sigma * N(0, I), or add it to what they would have sent.

    Attributes:
        sigma: standard deviation > 0.
        mode: `replace` (the MeritFed authors' code), or `add` (the papers' text, sigma 1), which is unbiased and harms nobody.
    """

    sigma: Annotated[float, POSITIVE] = 10.0
    mode: Annotated[str, one_of("replace", "add")] = "replace"

    def corrupt(self, kind: str, rows: Tensor, rngs: Sequence[Rng]) -> Tensor:
        """Noise instead of, or on, updates and gradients."""
        if kind not in VECTORS:
            return rows
        noise = self.sigma * normal(rows, rngs)
        return noise if self.mode == "replace" else rows + noise


@wire_type
@options
class LossInflation(Attack):
    """MaxFL's Byzantine clients: they report a huge gap, to be weighed as much as can be, and add noise to their update.

    Attributes:
        gap: what they report as loss minus requirement; 0 has the largest weight of all under MaxFL.
        stay: asked whether they stay, they answer with a gap below 0; else with `gap`, so that a huge one leaves.
        sigma: standard deviation >= 0 of the noise on updates and gradients.
    """

    gap: float = 100.0
    sigma: Annotated[float, NOT_NEGATIVE] = 1.0
    stay: bool = False

    def corrupt(self, kind: str, rows: Tensor, rngs: Sequence[Rng]) -> Tensor:
        """The gap, and noise on vectors."""
        if kind in VECTORS:
            return rows + self.sigma * normal(rows, rngs)
        return torch.full_like(rows, -1.0 if kind == "stay" and self.stay else self.gap)


@wire_type
@options
class NaN(Attack):
    """The attackers send NaN in every number, as a client does whose training broke."""

    def corrupt(self, kind: str, rows: Tensor, rngs: Sequence[Rng]) -> Tensor:
        """NaN."""
        return torch.full_like(rows, torch.nan)


@options
class Dropout(Attack):
    """The clients fail before they do anything, each in each ask with probability p.

    Attributes:
        p: probability in [0, 1].
    """

    p: Annotated[float, _PROBABILITY] = 0.5

    late = False
    fault = "dropped out"

    def fails(self, rng: Rng) -> bool:
        """Return True if a client fails in an ask."""
        return bool(rng.uniform(1)[0] < self.p)


@options
class Straggler(Attack):
    """The clients do their work and remember it, but answer too late, each in each ask with probability p; a late answer is dropped.

    Attributes:
        p: probability in [0, 1].
    """

    p: Annotated[float, _PROBABILITY] = 0.5

    late = True
    fault = "answered too late"

    def fails(self, rng: Rng) -> bool:
        """Return True if a client is late in an ask."""
        return bool(rng.uniform(1)[0] < self.p)


@options
class LabelFlip(Attack):
    """The attackers train on labels C - 1 - y and are honest otherwise. Their test rows stay right: they measure, they do not attack.

    `[split] flip` turns the labels of a share of the clients round in all their parts instead, as the MaxFL paper does.
    """

    def on_rows(self, clients: Clients, names: Collection[str]) -> Clients:
        """The clients with turned labels on the training and validation rows of `names`."""
        parts = {k: rows for k in ("train", "validation", "test") if (rows := getattr(clients, k)) is not None}
        require(
            all(r.labels.ndim == 1 and not r.labels.is_floating_point() for r in parts.values()),
            "LabelFlip turns the classes of rows round, and these labels are not classes; choose another attack",
        )
        count = max(len(clients.classes), *(1 + int(r.labels.max()) for r in parts.values()))
        turned: dict[int, Tensor] = {}  # parts may share one tensor, and `Clients.folded` looks whether they do
        for rows in (parts[k] for k in ("train", "validation") if k in parts):
            labels = turned.setdefault(id(rows.labels), rows.labels.clone())
            mine = _numbers(rows, [clients.number(n) for n in names])
            labels[mine] = count - 1 - labels[mine]
        attacked = copy(clients)
        for key in ("train", "validation"):
            if key in parts:
                rows = parts[key]
                setattr(attacked, key, Rows(rows.inputs, turned[id(rows.labels)], rows.offsets, rows.index))
        return attacked


def choose_attackers(on: Sequence[str] | float, names: Sequence[str], seed: int) -> tuple[str, ...]:
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
        order = sorted(names, key=lambda name: (Rng.named(seed, "attackers", name).uniform(1)[0], name))
        return tuple(sorted(order[:count]))
    require(bool(on), 'no client attacks; say who does: on = ["NAME"], or a share such as on = 0.1')
    for name in on:
        if name not in names:
            raise InputError(f"there is no client {name!r} to attack; {nearest(name, names)}")
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
        mine = [i for i, name in enumerate(passage.names) if name in self.who]
        if not mine:
            return rows
        rngs = passage.rngs("attack")
        changed = rows.clone()
        lies = self.attack.corrupt(passage.kind, rows[mine], [rngs[i] for i in mine])
        changed[mine] = of_shape(lies, (len(mine), *rows.shape[1:]), f"{type(self.attack).__name__}.corrupt")
        return changed


def with_lies(clients: Clients, attack: Attack, names: Collection[str]) -> Clients:
    """The clients as the attack leaves the rows of `names`. Raises `InputError` if it returns anything else.

    Args:
        clients: All clients.
        attack: The attack.
        names: Names of the attackers.
    """
    changed = attack.on_rows(clients, names)
    if not isinstance(changed, Clients) or changed.names != clients.names:
        hook = f"{type(attack).__name__}.on_rows"
        raise InputError(f"{hook} must return the clients that it was given, with other rows; got {cut(changed)}")
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

    Raises `InputError` if the engine is one of real machines, or a name is unknown.
    """

    def __init__(self, engine: Engine, attack: Any, clients: Sequence[str]) -> None:
        if not engine.simulated:
            raise InputError(
                f"attacks are simulated in process or on Ray, not on {type(engine).__name__}; choose engine inprocess or ray"
            )
        check_object(attack, Attack)
        self._engine, self.attack = engine, attack
        self.attackers = choose_attackers(clients, engine.clients, 0)
        self.clients, self.unseen, self.has_server = engine.clients, engine.unseen, engine.has_server
        self.layout, self.x, self.model, self.loss = engine.layout, engine.x, engine.model, engine.loss
        self.simulated, self.serves = True, engine.serves
        self.needs_all = overrides(self.attack, Attack, "rewrite")
        self._filter = _travelling_filter(Corrupted(self.attack, self.attackers))

    @property
    def honest(self) -> Engine:
        """The engine that is attacked."""
        return self._engine

    def ask(self, ask: Ask) -> Answer:
        """Let the ask finish, without those that fail before it; then drop what is late and rewrite what attackers say."""
        bad = [n for n in ask.names if n in self.attackers]
        rngs = streams(ask.context, "attack", "fault", bad)
        failed = {n: self.attack.fault for n, rng in zip(bad, rngs, strict=True) if self.attack.fails(rng)}
        reached = ask.names if self.attack.late else tuple(n for n in ask.names if n not in failed)
        sent = replace(ask.to(reached), filters=in_order((*ask.filters, *self._filter)))
        answer = self._engine.ask(sent) if reached else Answer()
        for why in answer.failed.values():
            if f".corrupt {WRONG_SHAPE}" in why:  # else the run would go on without its attackers
                raise InputError(why.partition(": ")[2])
        blocks = [block for b in answer.blocks if (block := b.without(failed)).names]
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
                rows.sort(key=lambda row: row[0])  # a sum must not depend on which worker answered first
                self._rewrite_rows(kind, field, rows, ask.context, sent.dim)
        return copies

    def _rewrite_rows(
        self, kind: str, field: str, rows: Sequence[tuple[str, Tensor]], context: Context, dim: int
    ) -> None:
        """Rewrite, in place, the attackers' rows of one field; `rows` are views of it, sorted by name."""
        is_number = kind not in VECTORS
        parts = [(n, row if is_number else row[..., :dim]) for n, row in rows]
        parts = [(n, part) for n, part in parts if n in self.attackers or bool(torch.isfinite(part).all())]
        bad, mine = [n for n, _ in parts if n in self.attackers], [part for n, part in parts if n in self.attackers]
        if not mine:
            return
        attackers = torch.tensor([n in self.attackers for n, _ in parts])
        rngs = streams(context, "attack", field, bad)
        lies = self.attack.rewrite(kind, torch.stack([part for _, part in parts]), attackers, rngs)
        lies = of_shape(lies, (len(mine), *mine[0].shape), f"{type(self.attack).__name__}.rewrite")
        for part, lie in zip(mine, lies, strict=True):
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


def _rows_for_statistics(rows: Tensor, attackers: Tensor, statistics: str) -> Tensor:
    return rows[~attackers] if statistics == "honest" and not bool(attackers.all()) else rows


def _numbers(rows: Rows, attackers: Collection[int]) -> Tensor:
    """Numbers of the rows of the clients at these positions. Raises `InputError` if one is another client's as well."""
    none = np.zeros(0, np.int64)
    mine = np.concatenate([none, *(rows.numbers(i) for i in attackers)])
    honest = np.concatenate([none, *(rows.numbers(i) for i in range(len(rows.sizes)) if i not in attackers)])
    shared = np.intersect1d(mine, honest)
    require(not len(shared), "an attacker shares rows with another client, so LabelFlip cannot turn their labels round")
    return torch.from_numpy(np.unique(mine))

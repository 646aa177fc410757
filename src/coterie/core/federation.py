"""What an algorithm talks to: `federation.ask(clients, task, **payload) -> Replies`."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from coterie.core.checks import misfits, not_finite, outliers
from coterie.core.envelopes import Answer, Ask, Block, ClientCost, Context, Packed
from coterie.core.errors import InputError, RunError, nearest, require
from coterie.core.filters import Filter, unpacked
from coterie.core.memory import NEVER
from coterie.core.replies import Replies, stack
from coterie.core.task import Task
from coterie.core.vector import Layout
from coterie.core.wire import PerClient, decode, encode, nbytes

__all__ = ["AskRecord", "Engine", "Federation", "QuorumError", "Replies", "Session"]

R = TypeVar("R", bound=tuple[Any, ...])
Need = float | Literal["all"]


class QuorumError(RunError):
    """Too few clients answered; the sentence says who failed, why, and the cure."""


class Engine(Protocol):
    """Carries asks to where the clients are. Everything else (order, checks, quorum) is the federation's.

    Attributes:
        clients: names, sorted.
        unseen: names of clients that never train, sorted.
        layout: of model vectors.
        has_server: whether the server holds rows.
        x: initial model [d + b].
        model: the module that vectors belong to.
    """

    clients: tuple[str, ...]
    unseen: tuple[str, ...]
    layout: Layout
    has_server: bool
    x: Tensor
    model: nn.Module

    def sizes(self, part: str) -> Mapping[str, int]:
        """Rows of each client in `train`, `validation` or `test`, unseen ones behind the others."""
        ...

    def fingerprint(self) -> str:
        """A short hash of every row and name (`Clients.fingerprint`), equal on all engines."""
        ...

    def ask(self, ask: Ask) -> Answer:
        """Run the task of `ask` where its clients are."""
        ...

    def save_memory(self) -> dict[str, Tensor]:
        """What clients remember, where the engine can tell; else empty."""
        ...

    def load_memory(self, saved: dict[str, Tensor]) -> None:
        """Undo `save_memory`."""
        ...

    def close(self) -> None:
        """End processes and free what the engine holds."""
        ...


class AskRecord(NamedTuple):
    """One ask, for the history: bytes are those of the values, per client down and up; `costs` where each client is elsewhere."""

    round: int
    ask: int
    task: str
    clients: int
    failed: int
    bytes_down: int
    bytes_up: int
    seconds: float
    costs: tuple[ClientCost, ...] = ()


@dataclass
class Session:
    """What a run counts over its asks.

    Attributes:
        asks: a record of each.
        spent: rows of work, by kind.
        failures: last reason of each client that ever failed.
        largest_update: whose update of the last ask was the longest, and its norm.
        known: all names that can be asked.
        counted: by key of client memory and client, the round of the value behind the last reply that was accepted.
        counted_before: the same as the present round began.
        asked: round, its attempt, and how often each task was asked in it.
    """

    asks: list[AskRecord] = field(default_factory=list)
    spent: dict[str, int] = field(default_factory=lambda: {"row_gradients": 0, "row_losses": 0})
    failures: dict[str, str] = field(default_factory=dict)
    largest_update: tuple[str, float] | None = None
    known: frozenset[str] = frozenset()
    counted: dict[str, dict[str, int]] = field(default_factory=dict)
    counted_before: dict[str, dict[str, int]] = field(default_factory=dict)
    asked: tuple[int, int, Counter[str]] = field(default_factory=lambda: (-1, 0, Counter()))

    def standing(self, round: int, attempt: int) -> Counter[str]:
        """How often each task was asked in this round so far. A round that is repeated counts nothing of its first try."""
        if self.asked[:2] != (round, attempt):
            if self.asked[0] == round:
                self.counted = self.counted_before
            self.counted_before = {key: dict(by_client) for key, by_client in self.counted.items()}
            self.asked = round, attempt, Counter()
        return self.asked[2]


@dataclass(frozen=True)
class Federation:
    """A view of the clients for one round.

    Attributes:
        engine: carries the asks.
        clients: participants of this round, sorted.
        seed, round, attempt: of the run.
        session: counts asks and work of the run.
        strict_wire: encode and decode every payload and reply also where nothing is sent, so that no live reference slips through.
        max_norm: an update or gradient is refused if its norm exceeds this many times the round's median (n >= 3).
        clients_per_round: of the run, for methods that choose their clients themselves; None: everybody.
        filters: what replies pass through at the clients, in their order (`core.filters`).
        label: of the method, which names the random streams of filters and attacks.
    """

    engine: Engine
    clients: tuple[str, ...]
    seed: int = 0
    round: int = 0
    attempt: int = 0
    session: Session = field(default_factory=Session)
    strict_wire: bool = False
    max_norm: float = 1e6
    clients_per_round: int | None = None
    filters: tuple[Filter, ...] = ()
    label: str = ""

    @property
    def everyone(self) -> tuple[str, ...]:
        """All clients, participants or not, sorted; without the server."""
        return self.engine.clients

    @property
    def participants(self) -> int:
        """Clients of a round: `clients_per_round`, or all."""
        return self.clients_per_round or len(self.everyone)

    @property
    def unseen(self) -> tuple[str, ...]:
        """Clients that never train and are only evaluated, sorted."""
        return self.engine.unseen

    @property
    def layout(self) -> Layout:
        """Layout of model vectors."""
        return self.engine.layout

    @property
    def dim(self) -> int:
        """Number of parameters d; entries behind it are buffers."""
        return self.engine.layout.dim

    def positions(self, names: Iterable[str]) -> Tensor:
        """Positions [n] of clients among `everyone`, int64. Raises `InputError` for one that is not there."""
        return torch.tensor([self._position(name) for name in names], dtype=torch.int64)

    def _position(self, name: str) -> int:
        at = bisect_left(self.everyone, name)
        if self.everyone[at : at + 1] != (name,):
            raise InputError(f"there is no client {name!r}; {nearest(name, self.everyone)}")
        return at

    def report(self, client: str, why: str, task: Task[Any]) -> None:
        """Count a client among those that failed in this round, with the reason in words."""
        self.session.failures[client] = f"round {self.round}, {task.name}: {why}"

    def view(self, clients: Sequence[str], round: int, attempt: int) -> Federation:
        """The same federation in another round with these participants (sorted)."""
        return replace(self, clients=tuple(clients), round=round, attempt=attempt)

    def holders(self, key: str) -> Collection[str]:
        """Clients whose state under `key` the server counts (see `cohort.state`)."""
        self.session.standing(self.round, self.attempt)
        return self.session.counted.get(key, {}).keys()

    def discard(self, key: str, clients: Iterable[str] | None = None) -> None:
        """Let what these clients (None: all) keep under `key` count no longer: their task sees it as not counted."""
        self.session.standing(self.round, self.attempt)
        by_client = self.session.counted.setdefault(key, {})
        for name in tuple(by_client if clients is None else clients):
            by_client.pop(name, None)

    def ask(self, clients: Iterable[str], task: Task[R], /, *, need: Need = 0.5, **payload: Any) -> Replies[R]:
        """Run `task` where these clients are.

        Args:
            clients: names; `server` asks the rows that the server holds.
            task: a function decorated with `@task`.
            need: share of the clients that must reply, or "all". Below it those that failed are asked once more, then `QuorumError`.
            payload: tensors, numbers, strings, None, `PerClient(tensor)` with a row per client, registered dataclasses.

        Raises:
            QuorumError: too few replies.
            InputError: unknown client, or a payload that cannot travel.
        """
        given = tuple(clients)
        order = sorted(range(len(given)), key=given.__getitem__)
        names = tuple(given[i] for i in order)
        self._check_names(names)
        asked = self.session.standing(self.round, self.attempt)
        context = Context(
            self.seed, self.round, self.attempt, len(self.session.asks), asked.total(), asked[task.name], self.label
        )
        counted = {key: tuple(by.get(n, NEVER) for n in names) for key, by in self.session.counted.items()}
        ask = Ask(
            names, task.name, {k: _reorder(k, v, order) for k, v in payload.items()}, context, counted, self.filters
        )
        replies, answer = self._once(ask, task)
        least = len(names) if need == "all" else need * len(names)
        if len(replies) < least and replies.failed:
            once_more = replace(context, ask=context.ask + 1, number=context.number + 1)
            again, more = self._once(replace(ask.to(tuple(replies.failed)), context=once_more), task)
            # Checked together: an outlier that is asked again must still stand beside the others.
            both = tuple(Block(r.clients, r.fields) for r in (replies, again) if len(r))
            replies = self._checked(ask, task, Answer(both, again.failed))
            answer = Answer.joined([answer, more])
        replies.forgot = self._count_state(answer, replies.clients)
        for name, why in replies.failed.items():
            self.report(name, why, task)
        if len(replies) < least or (names and not len(replies)):
            raise QuorumError(self._quorum_sentence(task, names, need, replies.failed))
        return replies

    def _count_state(self, answer: Answer, accepted: Collection[str]) -> tuple[str, ...]:
        """Note which state of clients is behind the replies that were accepted; returns who does not have what was counted before."""
        counted = self.session.counted
        for key, names in answer.forgot.items():
            self.discard(key, names)
        for key, rounds in answer.remembered.items():
            counted.setdefault(key, {}).update({n: number for n, number in rounds if n in accepted})
        forgot = {n: key for key, names in answer.forgot.items() for n in names}
        for name, key in forgot.items():
            if not self.session.failures.get(name, "").startswith(f"round {self.round},"):
                self.session.failures[name] = (
                    f"round {self.round}, what it kept ({key}) was lost, or of a refused reply"
                )
        return tuple(sorted(forgot))

    def _once(self, ask: Ask, task: Task[R]) -> tuple[Replies[R], Answer]:
        started = time.perf_counter()
        self.session.standing(self.round, self.attempt)[task.name] += 1
        down = nbytes(ask.payload)
        if self.strict_wire:
            ask = decode(encode({"ask": ask}))["ask"]
        answer = self.engine.ask(ask)
        for kind, count in answer.spent.items():
            self.session.spent[kind] = self.session.spent.get(kind, 0) + count
        if self.strict_wire:
            answer = replace(decode(encode({"answer": answer}))["answer"], costs=answer.costs)
        sent = sum(_row_bytes(v) for v in answer.blocks[0].values.values()) if answer.blocks else 0
        blocks, unreadable = unpacked(answer.blocks, ask, task, self.layout)
        answer = replace(answer, blocks=tuple(blocks), failed={**answer.failed, **unreadable})
        replies: Replies[R] = self._checked(ask, task, answer)
        self.session.asks.append(
            AskRecord(
                self.round,
                ask.context.ask,
                ask.task,
                len(ask.names),
                len(replies.failed),
                down,
                sent,
                time.perf_counter() - started,
                answer.costs,
            )
        )
        return replies, answer

    def _checked(self, ask: Ask, task: Task[R], answer: Answer) -> Replies[R]:
        """The replies that are fit to be used; why the others are refused is in `failed`."""
        refused = misfits(answer.blocks, ask, task, self.layout, self.engine.sizes)
        kept = [block for b in answer.blocks if (block := b.without(refused)).names]
        replies: Replies[R] = stack(ask.names, kept, {**answer.failed, **refused})
        lost, norms = not_finite(task, replies, self.dim)
        if lost:
            rows = [i for i, n in enumerate(replies.clients) if n not in lost]
            replies, norms = replies.without(lost), {k: v[rows] for k, v in norms.items()}
        for key, lengths in norms.items():
            if task.kinds[key] == "update" and len(replies):
                longest = int(lengths.argmax())
                self.session.largest_update = (replies.clients[longest], float(lengths[longest]))
        return replies.without(outliers(replies.clients, norms, self.max_norm))

    def _check_names(self, names: tuple[str, ...]) -> None:
        twice = [n for n, count in Counter(names).items() if count > 1]
        require(not twice, f"an ask names {', '.join(twice)} twice; name each client once")
        known = self.session.known = self.session.known or frozenset((*self.everyone, *self.unseen))
        for name in names:
            if name == "server":
                require(
                    self.engine.has_server,
                    "this method asks rows held by the server, and there are none; give it rows: from_tensors(server=...) or "
                    "[data] server_file",
                )
            elif name not in known:
                raise InputError(f"there is no client {name!r} to ask; {nearest(name, self.everyone)}")

    def _quorum_sentence(self, task: Task[R], names: tuple[str, ...], need: Need, failed: Mapping[str, str]) -> str:
        shown = "; ".join(f"{n} ({why})" for n, why in list(failed.items())[:5])
        more = f"; and {len(failed) - 5} more" if len(failed) > 5 else ""
        wanted = "all of them" if need == "all" else f"at least {need:.0%}"
        return (
            f"round {self.round}, task {task.name!r}: {len(names) - len(failed)} of {len(names)} clients replied, {wanted} are needed. "
            f"Failed: {shown}{more}. Mend these clients or take them out, then go on with --resume"
        )


def _reorder(name: str, value: Any, order: list[int]) -> Any:
    if not isinstance(value, PerClient):
        return value
    if value.tensor.shape[:1] != (len(order),):
        raise InputError(
            f"payload {name!r} is PerClient of shape {tuple(value.tensor.shape)} for {len(order)} clients; give one row each"
        )
    return value if order == list(range(len(order))) else PerClient(value.tensor[order])


def _row_bytes(value: Any) -> int:
    """Bytes of the first client's row."""
    if isinstance(value, Packed):
        return sum(_row_bytes(part) for part in value.parts.values())
    if isinstance(value, Tensor):
        return value[:1].numel() * value.element_size()
    return len(str(value[0])) if isinstance(value, tuple) and value else 0

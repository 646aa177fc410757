"""One ask, from what is sent to what a method may use: carried by the engine, undone, checked, repeated; stacked or averaged.

A `Session` counts over all asks of a run: work, bytes, failures, and which state of clients stands behind accepted replies.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from coterie.base.errors import InputError, RunError, cut
from coterie.base.vector import Layout, average
from coterie.contract.encoding import send
from coterie.contract.engine import Engine
from coterie.contract.filters import unpack_answer
from coterie.contract.memory import NEVER
from coterie.contract.replies import (
    VECTORS,
    Average,
    Replies,
    error_of_all,
    list_failures,
    medians,
    misfits,
    not_finite,
    outliers,
    stack,
)
from coterie.contract.task import Task
from coterie.contract.wire import Answer, Ask, Block, ClientCost, nbytes


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
    """The counts of a run over its asks.

    Attributes:
        asks: a record of each.
        spent: rows of work, by kind.
        failures: last reason of each client that ever failed.
        largest_update: whose update of the last ask was the longest, and its norm.
        known: all names that can be asked.
        counted: by key of client memory and client, the round of the value behind the last reply that was accepted.
        counted_before: the same as the present round began.
        asked: round, its attempt, and how often each task was asked in it.
        rows: training rows of each client, once they were needed.
    """

    asks: list[AskRecord] = field(default_factory=list)
    spent: dict[str, int] = field(
        default_factory=lambda: {"row_gradients": 0, "row_losses": 0}
    )
    failures: dict[str, str] = field(default_factory=dict)
    largest_update: tuple[str, float] | None = None
    known: frozenset[str] = frozenset()
    counted: dict[str, dict[str, int]] = field(default_factory=dict)
    counted_before: dict[str, dict[str, int]] = field(default_factory=dict)
    asked: tuple[int, int, Counter[str]] = field(
        default_factory=lambda: (-1, 0, Counter())
    )
    rows: Mapping[str, int] = field(default_factory=dict)

    def standing(self, round: int, attempt: int) -> Counter[str]:
        """Return how often each task was asked in this round so far. A round that is repeated counts nothing of its first try."""
        if self.asked[:2] != (round, attempt):
            if self.asked[0] == round:
                self.counted = self.counted_before
            self.counted_before = {
                key: dict(by_client) for key, by_client in self.counted.items()
            }
            self.asked = round, attempt, Counter()
        return self.asked[2]

    def discard(self, key: str, clients: Iterable[str] | None = None) -> None:
        """Let what these clients (None: all) keep under `key` count no longer."""
        by_client = self.counted.setdefault(key, {})
        for name in tuple(by_client if clients is None else clients):
            by_client.pop(name, None)

    def rounds_of(self, names: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
        """By key of client memory, the round of the value of each of these clients that counts, or `NEVER`."""
        counted: dict[str, tuple[int, ...]] = {}
        for key, rounds in self.counted.items():
            counted[key] = tuple(rounds.get(name, NEVER) for name in names)
        return counted

    def report(self, client: str, round: int, why: str) -> None:
        """Note why a client failed in this round."""
        self.failures[client] = f"round {round}, {why}"

    def count_state(
        self, answer: Answer, accepted: Collection[str], round: int
    ) -> tuple[str, ...]:
        """Note which state of clients is behind the replies that were accepted; returns who does not have what was counted before."""
        for key, names in answer.forgot.items():
            self.discard(key, names)
        for key, rounds in answer.remembered.items():
            counted = self.counted.setdefault(key, {})
            counted.update({n: number for n, number in rounds if n in accepted})
        forgetful: dict[str, str] = {}
        for key, names in answer.forgot.items():
            forgetful.update(dict.fromkeys(names, key))
        for name, key in forgetful.items():
            if not self.failures.get(name, "").startswith(f"round {round},"):
                self.report(name, round, f"what it kept ({key}) was lost")
        return tuple(sorted(forgetful))


R = TypeVar("R", bound=tuple[Any, ...])
Need = float | Literal["all"]
AT_ONCE = 64
"""Clients whose vectors are held at once at most where only their average is wanted."""
HELD_BYTES = 1 << 22
"""Bytes of such vectors, if they are made on this machine: of a large model fewer clients train at a time, in as many asks.

A batched kernel gains nothing from company whose weights do not fit into the cache."""
REMOTE_BYTES = 1 << 30
"""Bytes of such vectors from clients that are elsewhere. An ask costs them a message, so of large models alone few are asked at once:
two whose replies have 400 MB, sixty-four with 16 MB."""
SINGLE = "an average takes one vector [d + b] of each client"
"""What is wrong with a field of another shape."""


def clients_at_once(layout: Layout, serves: int) -> int:
    """Return how many clients are asked at once for vectors of this layout if only their mean is wanted.

    Args:
        layout: Of the vectors.
        serves: Clients that work at the same time on this machine; 0: they are elsewhere.
    """
    held_bytes = HELD_BYTES if serves else REMOTE_BYTES
    fitting = held_bytes // (layout.size * layout.dtype.itemsize)
    return min(AT_ONCE, max(1, serves, fitting))


def vectors_of(replies: Replies[Any], key: str) -> Tensor:
    """Return a field as vectors [n, d + b]. Raises `InputError` where it holds several of a client."""
    value: Tensor = replies.fields[key]
    if value.ndim != 2:
        raise InputError(f"field {key!r} has shape {list(value.shape)}; {SINGLE}")
    return value


def shares_of(names: Iterable[str], weights: Mapping[str, float]) -> Tensor:
    """Return the weights of these clients, float64 [n]."""
    return torch.tensor([weights[name] for name in names], dtype=torch.float64)


class QuorumError(RunError):
    """Too few clients answered; the sentence says who failed, why, and the cure."""


@dataclass(frozen=True)
class Exchange(Generic[R]):
    """One ask. See `Federation` for what its settings are."""

    engine: Engine
    session: Session
    strict_wire: bool
    max_norm: float
    task: Task[R]
    ask: Ask
    need: Need
    observer: Callable[[Task[Any], Mapping[str, Any], Replies[Any]], object] | None

    def collect(self) -> Replies[R]:
        """The replies of all clients."""
        replies, answer = self._ask_all(self.ask)
        if self._too_few(replies) and replies.failed:
            retried, retry = self._ask_all(self._retry(replies.failed))
            # Checked together: an outlier that is asked again must still stand beside the others.
            tries = [Block(r.clients, r.fields) for r in (replies, retried) if len(r)]
            both = Answer(tuple(tries), retried.failed)
            replies = self._check_replies(self.ask, both)
            answer = Answer.join([answer, retry])
        self._settle(replies, answer)
        if self.observer is not None:
            self.observer(self.task, self.ask.payload, replies)
        return replies

    def average(self, weights: Mapping[str, float]) -> Average[R]:
        """The means of vectors with these `weights` of clients, and all else stacked."""
        return self.mean(self.collect(), weights)

    def held_at_once(self) -> int:
        """How many clients' vectors are held at once where only their average is wanted."""
        serves = self.engine.serves if self.engine.simulated else 0
        return clients_at_once(self.engine.layout, serves)

    def fits(self) -> bool:
        """Return True if the vectors of all clients are held at once: there are few, or somebody must see all of them."""
        if self.engine.needs_all or self.observer is not None:
            return True
        return len(self.ask.names) <= self.held_at_once()

    def mean(self, replies: Replies[R], weights: Mapping[str, float]) -> Average[R]:
        """The means of vectors that were all collected; weights as for `average`."""
        shares = shares_of(replies.clients, weights)
        means: dict[str, Tensor] = {}
        for key in self._vector_kinds():
            means[key] = average(shares, vectors_of(replies, key))
        return Average(replies, means, shares / shares.sum())

    def _vector_kinds(self) -> dict[str, str]:
        kinds = self.task.kinds
        return {key: kind for key, kind in kinds.items() if kind in VECTORS}

    def weights(
        self, names: tuple[str, ...], tensor: Tensor | None
    ) -> dict[str, float]:
        """Return the weight of each client; None: its number of training rows. Raises `InputError` for others than finite ones."""
        if tensor is None:
            rows = self.session.rows = self.session.rows or self.engine.sizes("train")
            return {name: float(rows.get(name, 0)) for name in names}
        if tensor.shape != (len(names),):
            raise InputError(
                f"weights have shape {tuple(tensor.shape)} for {len(names)} clients"
            )
        weights = tensor.tolist()
        are_valid = all(math.isfinite(w) and w >= 0 for w in weights)
        if weights and not any(weights):
            are_valid = False  # a mean divides by their sum
        if not are_valid:
            raise InputError(
                f"weights must be finite numbers >= 0, not all of them 0; got {cut(weights)}"
            )
        return dict(zip(names, weights, strict=True))

    # ---- carried

    def _carry(self, ask: Ask, *, keep: bool = True) -> tuple[Answer, int]:
        """The answer of the engine with every field in its own form, and the bytes of one client's reply.

        What is not to `keep` lies in memory that the next ask may overwrite.
        """
        carried = ask
        if self.strict_wire:
            carried = send({"ask": ask})["ask"]
        if keep:
            answer = self.engine.ask(carried)
        else:
            answer = self.engine.borrow(carried)
        self._count_work(answer)
        if self.strict_wire:
            # The wire would make plain tuples of the costs.
            answer = replace(send({"answer": answer})["answer"], costs=answer.costs)
        bytes_of_one = 0
        if answer.blocks:
            # As they were sent: a filter may have packed them.
            bytes_of_one = answer.blocks[0].bytes_of_one()
        unpacked = unpack_answer(answer, ask, self.task, self.engine.layout)
        return unpacked, bytes_of_one

    def _count_work(self, answer: Answer) -> None:
        for kind, count in answer.spent.items():
            self.session.spent[kind] = self.session.spent.get(kind, 0) + count

    def _count(self) -> None:
        context = self.ask.context
        self.session.standing(context.round, context.attempt)[self.task.name] += 1

    def _retry(self, names: Collection[str]) -> Ask:
        context = self.ask.context
        # Another ask of the same stream: whoever replies now draws the random numbers of the first try.
        once_more = replace(context, ask=context.ask + 1, number=context.number + 1)
        ask = self.ask.to(tuple(n for n in self.ask.names if n in names))
        return replace(ask, context=once_more)

    def _record(
        self,
        ask: Ask,
        count: int,
        failed: int,
        answer: Answer,
        sent: int,
        started: float,
    ) -> None:
        record = AskRecord(
            round=ask.context.round,
            ask=ask.context.ask,
            task=ask.task,
            clients=count,
            failed=failed,
            bytes_down=nbytes(ask.payload),
            bytes_up=sent,
            seconds=time.perf_counter() - started,
            costs=answer.costs,
        )
        self.session.asks.append(record)

    # ---- stacked

    def _ask_all(self, ask: Ask) -> tuple[Replies[R], Answer]:
        started = time.perf_counter()
        self._count()
        answer, sent = self._carry(ask)
        replies = self._check_replies(ask, answer)
        self._record(ask, len(ask.names), len(replies.failed), answer, sent, started)
        return replies, answer

    def _check_replies(self, ask: Ask, answer: Answer) -> Replies[R]:
        """The replies that are fit to be used; why the others are refused is in `failed`."""
        kinds = {
            key: kind
            for key, kind in self.task.kinds.items()
            if kind != "own" or self.engine.sends_own
        }
        replies, norms = self._check_form(ask, answer, kinds)
        if not norms:
            return replies
        too_long = self._too_long(replies.clients, norms, medians(norms))
        return replies.without(too_long)

    def _check_form(
        self, ask: Ask, answer: Answer, kinds: Mapping[str, str]
    ) -> tuple[Replies[R], dict[str, Tensor]]:
        """The replies whose fields of these kinds are what the task declares and have no NaN; norms of vectors [n] by field."""
        layout, sizes = self.engine.layout, self.engine.sizes
        # First shapes and types: only what has the declared shape can be stacked.
        misshapen = misfits(answer.blocks, ask, self.task, layout, sizes, kinds)
        well_formed = [block.without(misshapen) for block in answer.blocks]
        nonempty = [block for block in well_formed if block.names]
        failed = {**answer.failed, **misshapen}
        replies: Replies[R] = stack(ask.names, nonempty, failed)

        # Then numbers. Norms are of the parameters alone, without the buffers behind them.
        dims: dict[str, int] = {}
        for key, kind in kinds.items():
            if kind in VECTORS:
                dims[key] = self.task.layout_of(key, ask.arguments, layout).dim
        diverged, norms = not_finite(kinds, replies, dims)
        return refuse(replies, norms, diverged)

    def _too_long(
        self,
        names: tuple[str, ...],
        norms: Mapping[str, Tensor],
        usual: Mapping[str, float],
    ) -> dict[str, str]:
        """Return why vectors are refused that are far longer than is usual."""
        updates = [
            norms[key]
            for key, kind in self.task.kinds.items()
            if kind == "update" and key in norms
        ]
        if updates and names:
            longest = int(updates[0].argmax())
            self.session.largest_update = (names[longest], float(updates[0][longest]))
        return outliers(names, norms, usual, self.max_norm)

    # ---- counted

    def _too_few(self, replies: Replies[R]) -> bool:
        count = len(self.ask.names)
        needed = count if self.need == "all" else self.need * count
        return len(replies.clients) < needed

    def _settle(self, replies: Replies[R], answer: Answer) -> None:
        """Note whose state counts and who failed. Raises `QuorumError` if too few replied."""
        number = self.ask.context.round
        replies.forgot = self.session.count_state(
            answer, frozenset(replies.clients), number
        )
        for name, why in replies.failed.items():
            self.session.report(name, number, f"{self.task.name}: {why}")
        # With need = 0 nobody has to reply, but of no reply there is nothing that a method could use.
        nobody_replied = len(self.ask.names) > 0 and not replies.clients
        if nobody_replied or self._too_few(replies):
            sentence = error_of_all(self.ask.names, replies.failed)
            if sentence:
                raise InputError(sentence)
            raise QuorumError(self._quorum_sentence(replies.failed))

    def _quorum_sentence(self, failed: Mapping[str, str]) -> str:
        count = len(self.ask.names)
        quorum = "all of them" if self.need == "all" else f"at least {self.need:.0%}"
        head = (
            f"round {self.ask.context.round}, task {self.task.name[-60:]!r}: {count - len(failed)} of {count} clients replied, "
            f"{quorum} are needed. Failed: "
        )
        cure = ". Correct or remove these clients, then resume"
        sign = FloatingPointError.__name__
        all_diverge = all(why.startswith(sign) for why in failed.values())
        if self.ask.context.round and all_diverge:
            cure = ". Training diverges: lower the learning rate (local lr) and repeat the run"
        return f"{head}{list_failures(failed, 300 - len(head) - len(cure))}{cure}"


def refuse(
    replies: Replies[R], norms: Mapping[str, Tensor], refused: Mapping[str, str]
) -> tuple[Replies[R], dict[str, Tensor]]:
    """The replies and norms [n] by field without the clients that are refused, for these reasons."""
    if not refused:
        return replies, dict(norms)
    rows = [i for i, name in enumerate(replies.clients) if name not in refused]
    kept_norms = {key: norm[rows] for key, norm in norms.items()}
    return replies.without(refused), kept_norms

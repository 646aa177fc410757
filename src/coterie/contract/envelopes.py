"""What travels between an algorithm's side and the clients: an ask down, an answer up. `contract.wire` turns both into bytes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from torch import Tensor

from coterie.base.errors import InputError
from coterie.contract.task import Task, find_task
from coterie.contract.wire import PerClient, envelope

__all__ = ["Answer", "Ask", "Block", "ClientCost", "Context", "Refusal", "Saved"]


@envelope
@dataclass(frozen=True)
class Context:
    """Where in a run an ask stands.

    Attributes:
        seed, round: of the run.
        attempt: drawn anew when a run starts, resumes or repeats a round.
        ask: number of the ask since this process started.
        number: of the ask in its round, which a resumed run counts alike.
        stream: how many asks of the same task came before in the round; a repeated ask has that of the first.
        label: of the method.
    """

    seed: int
    round: int
    attempt: int
    ask: int
    number: int = 0
    stream: int = 0
    label: str = ""


@envelope
@dataclass(frozen=True)
class Ask:
    """A task for some clients.

    Attributes:
        names: of the clients, sorted.
        task: name of the task, `module:function`.
        payload: its arguments; the rows of an `PerClient` are in the order of `names`.
        context: where in the run it stands.
        counted: by key of client memory, the round of each client's value that the server counted, in the order of `names`; -1: none.
        filters: what the replies pass through at the clients, in this order.
        repeats: whether the clients were asked the same before; what they have remembered since is then taken back first.
    """

    names: tuple[str, ...]
    task: str
    payload: Mapping[str, Any]
    context: Context
    counted: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    filters: tuple[Any, ...] = ()
    repeats: bool = False

    @property
    def function(self) -> Task[Any]:
        """The task. Raises `InputError` if it is not known here."""
        return find_task(self.task)

    def to(self, names: tuple[str, ...]) -> Ask:
        """The same ask to some of the clients."""
        if names == self.names:
            return self
        number = {n: i for i, n in enumerate(self.names)}
        rows = [number[n] for n in names]
        payload = {k: PerClient(v.tensor[rows]) if isinstance(v, PerClient) else v for k, v in self.payload.items()}
        counted = {key: tuple(rounds[i] for i in rows) for key, rounds in self.counted.items()}
        return replace(self, names=names, payload=payload, counted=counted)

    def again(self, names: Collection[str]) -> Ask:
        """The same ask once more to those of its clients that are among `names`."""
        some = frozenset(names)
        return replace(self.to(tuple(n for n in self.names if n in some)), repeats=True)

    def counted_by_name(self) -> dict[str, dict[str, int]]:
        """`counted` by key and client."""
        return {key: dict(zip(self.names, rounds, strict=True)) for key, rounds in self.counted.items()}

    def arguments(self) -> dict[str, Any]:
        """The payload as the task takes it: an `PerClient` is its tensor [n, ...]."""
        return {k: v.tensor if isinstance(v, PerClient) else v for k, v in self.payload.items()}


@envelope
@dataclass(frozen=True)
class Block:
    """The replies of some clients.

    Attributes:
        names: of the n clients.
        values: each field of the reply by name, [n, ...].
    """

    names: tuple[str, ...]
    values: Mapping[str, Any]

    def rows(self, kept: list[int]) -> Block:
        """The replies of the clients at these positions."""
        if len(kept) == len(self.names):
            return self
        values = {k: pick(v, kept) for k, v in self.values.items()}
        return Block(tuple(self.names[i] for i in kept), values)

    def bytes_of_one(self) -> int:
        """Bytes of the first client's reply."""
        return sum(_bytes_of_one(value) for value in self.values.values())

    def without(self, gone: Iterable[str]) -> Block:
        """The replies of the clients that are not `gone`."""
        left_out = set(gone)
        return self.rows([i for i, n in enumerate(self.names) if n not in left_out])


@envelope
@dataclass(frozen=True)
class Packed:
    """A field of a reply in the form in which a filter sends it: tensors [n, ...] by name."""

    parts: Mapping[str, Tensor]


def pick(value: Any, kept: list[int]) -> Any:
    """The rows of a field at these positions."""
    if isinstance(value, Packed):
        return Packed({name: part[kept] for name, part in value.parts.items()})
    return value[kept] if isinstance(value, Tensor) else tuple(value[i] for i in kept)


def _bytes_of_one(value: Any) -> int:
    if isinstance(value, Packed):
        return sum(_bytes_of_one(part) for part in value.parts.values())
    if isinstance(value, Tensor):
        return value[:1].numel() * value.element_size()
    return len(str(value[0])) if isinstance(value, tuple) and value else 0


class ClientCost(NamedTuple):
    """What one ask cost at a client elsewhere: bytes on the wire down and up, seconds until its reply; why it failed, or ""."""

    client: str
    bytes_down: int
    bytes_up: int
    seconds: float
    failed: str


@envelope
@dataclass(frozen=True)
class Answer:
    """What an engine brings back.

    Attributes:
        blocks: the replies; a client is in one of them or has failed.
        failed: reason by client.
        spent: rows of work done, by kind.
        costs: of clients elsewhere.
        forgot: by key of client memory, who does not have the value that the server counted.
        remembered: by key of client memory, (client, round) of the values that the task used or wrote.

    Raises `InputError` for parts of other types: an answer may come from elsewhere.
    """

    blocks: tuple[Block, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    spent: Mapping[str, int] = field(default_factory=dict)
    costs: tuple[ClientCost, ...] = ()
    forgot: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    remembered: Mapping[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        good = (
            isinstance(self.blocks, tuple)
            and all(isinstance(b, Block) and isinstance(b.values, Mapping) and _names(b.names) for b in self.blocks)
            and all(isinstance(part, Mapping) for part in (self.failed, self.spent, self.forgot, self.remembered))
            and _names(tuple(self.failed.values()))
            and all(type(count) is int for count in self.spent.values())
            and all(_names(names) for names in self.forgot.values())
            and all(_is_round(pair) for pairs in self.remembered.values() for pair in pairs)
        )
        if not good:
            raise InputError("an answer must hold replies, reasons of failures and counts of rows")

    @classmethod
    def joined(cls, answers: Iterable[Answer]) -> Answer:
        """One answer of several."""
        several = tuple(answers)
        if len(several) == 1:
            return several[0]
        blocks: list[Block] = []
        failed: dict[str, str] = {}
        spent: dict[str, int] = {}
        costs: list[ClientCost] = []
        forgot: dict[str, tuple[str, ...]] = {}
        remembered: dict[str, tuple[tuple[str, int], ...]] = {}
        for answer in several:
            blocks += answer.blocks
            failed.update(answer.failed)
            costs += answer.costs
            for kind, count in answer.spent.items():
                spent[kind] = spent.get(kind, 0) + count
            for key, names in answer.forgot.items():
                forgot[key] = (*forgot.get(key, ()), *names)
            for key, pairs in answer.remembered.items():
                remembered[key] = (*remembered.get(key, ()), *pairs)
        return cls(tuple(blocks), failed, spent, tuple(costs), forgot, remembered)


def _names(given: Any) -> bool:
    return isinstance(given, tuple) and all(isinstance(n, str) for n in given)


def _is_round(pair: Any) -> bool:
    return isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) and type(pair[1]) is int


@envelope
@dataclass(frozen=True)
class Refusal:
    """The sentence of an `InputError` that another process raised instead of answering."""

    sentence: str


@envelope
@dataclass(frozen=True)
class Saved:
    """What clients remember, as `Memory.save` gives it."""

    values: Mapping[str, Tensor]


def answer_in(message: Mapping[str, Any]) -> Answer:
    """The answer that a message of another process holds. Raises the `InputError` of that process, or one if there is no answer."""
    answer = message.get("answer")
    if isinstance(answer, Refusal):
        raise InputError(answer.sentence)
    if not isinstance(answer, Answer):
        raise InputError(f"an answer is missing; got a {type(answer).__name__}")
    return answer

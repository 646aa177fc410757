"""What travels: asks and answers, and the values that they hold. `encoding` makes bytes of them, and nothing is pickled.

A value is a tensor, int, float, bool, str, None, a tuple of these but tensors, `PerClient(tensor)`, a registered frozen dataclass of
such values, or an envelope: a frozen dataclass of the library's own, whose fields may be mappings of values and tuples of envelopes.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from coterie.base.errors import InputError
from coterie.config.schema import wire_types
from coterie.contract.task import Task, find_task

_PLAIN = (bool, int, float, str, type(None))
"""Values that are JSON as they are."""
_PLAIN_TYPES = frozenset(_PLAIN)

T = TypeVar("T")
ENVELOPES: dict[str, type] = {}
"""Classes that `envelope` has registered, by name."""


@dataclasses.dataclass(frozen=True)
class PerClient:
    """A payload with a leading client dimension: row i goes to the i-th client of the ask.

    The rows belong to the clients in the order in which the caller names them.

    Attributes:
        tensor: Tensor [clients, ...], a row for each client of the ask.

    >>> import torch
    >>> models = torch.zeros(3, 5)  # one for each of three clients
    >>> tuple(PerClient(models).tensor[1].shape)  # what the second client gets from `federation.ask(names, task, x=PerClient(models))`
    (5,)
    """

    tensor: Tensor


def tensor_of(value: Any) -> Any:
    """Return the rows of a `PerClient`; any other value as it is."""
    if isinstance(value, PerClient):
        return value.tensor
    return value


def envelope(cls: type[T]) -> type[T]:
    """Let a frozen dataclass travel whose fields may be mappings of values, or tuples of envelopes."""
    ENVELOPES[cls.__name__] = cls
    return cls


def to_json(value: Any) -> Any:
    """A payload value as plain JSON; tensors are not allowed here."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, tuple | list):
        if _PLAIN_TYPES.issuperset(map(type, value)):  # often names of all clients
            return list(value)
        return [to_json(v) for v in value]
    name = type(value).__name__
    if dataclasses.is_dataclass(value) and wire_types().get(name) is type(value):
        fields = {}
        for field_ in dataclasses.fields(value):
            fields[field_.name] = to_json(getattr(value, field_.name))
        return {"type": name, "fields": fields}
    raise InputError(
        f"a {type(value).__name__} cannot travel; a payload holds tensors, numbers, strings, None, PerClient(tensor) and dataclasses "
        "registered with @wire_type"
    )


def nbytes(values: Mapping[str, Any]) -> int:
    """Bytes of the values themselves, without framing; `PerClient` counts one row, since that is what a client receives."""
    total = 0
    for value in values.values():
        if isinstance(value, PerClient):
            total += value.tensor[:1].numel() * value.tensor.element_size()
        elif isinstance(value, Tensor):
            total += value.numel() * value.element_size()
        elif value is None or isinstance(value, str):
            total += _word_bytes(value)
        elif isinstance(value, int | float):
            total += 8
        else:
            total += len(json.dumps(to_json(value)))
    return total


@lru_cache(maxsize=256)
def _word_bytes(value: str | None) -> int:
    return len(json.dumps(value))


@envelope
@dataclass(frozen=True)
class Context:
    """The place in a run where an ask stands.

    Attributes:
        seed, round: of the run.
        attempt: drawn anew when a run starts, resumes or repeats a round.
        ask: number of the ask since this process started.
        number: number of the ask in its round, which a resumed run counts alike.
        stream: how many asks of the same task came before in the round; a repeated ask has that of the first.
        label: label of the method.
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
        names: sorted names of the clients.
        task: name of the task, `module:function`.
        payload: its arguments; the rows of an `PerClient` are in the order of `names`.
        context: where in the run it stands.
        counted: by key of client memory, the round of each client's value that the server counted, in the order of `names`; -1: none.
        filters: what the replies pass through at the clients, in this order.
        repeats: whether the clients were asked the same before; what they have remembered since is then taken back first.
        rounded: fields of the payload whose float32 numbers travel as bfloat16, two bytes each (`contract.down`).
    """

    names: tuple[str, ...]
    task: str
    payload: Mapping[str, Any]
    context: Context
    counted: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    filters: tuple[Any, ...] = ()
    repeats: bool = False
    rounded: tuple[str, ...] = ()

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
        payload = dict(self.payload)
        for key, value in payload.items():
            if isinstance(value, PerClient):
                payload[key] = PerClient(value.tensor[rows])
        counted = {key: pick(rounds, rows) for key, rounds in self.counted.items()}
        return replace(self, names=names, payload=payload, counted=counted)

    def again(self, names: Collection[str]) -> Ask:
        """The same ask once more to those of its clients that are among `names`."""
        name_set = frozenset(names)
        part = tuple(n for n in self.names if n in name_set)
        return replace(self.to(part), repeats=True)

    def rounds_by_client(self) -> dict[str, dict[str, int]]:
        """`counted` by key and client."""
        return {
            key: dict(zip(self.names, rounds, strict=True))
            for key, rounds in self.counted.items()
        }

    @cached_property
    def arguments(self) -> Mapping[str, Any]:
        """The payload as the task takes it: a `PerClient` is its tensor [n, ...], and what was rounded is float32 again."""
        arguments = {key: tensor_of(value) for key, value in self.payload.items()}
        for key in self.rounded:
            arguments[key] = arguments[key].float()
        return arguments


@envelope
@dataclass(frozen=True)
class Block:
    """The replies of some clients.

    Attributes:
        names: names of the n clients.
        values: each field of the reply by name, [n, ...].
    """

    names: tuple[str, ...]
    values: Mapping[str, Any]

    def rows(self, positions: list[int]) -> Block:
        """The replies of the clients at these positions."""
        if len(positions) == len(self.names):
            return self
        values = {k: pick(v, positions) for k, v in self.values.items()}
        return Block(tuple(self.names[i] for i in positions), values)

    def bytes_of_one(self) -> int:
        """Bytes of the first client's reply."""
        return sum(map(_bytes_of_one, self.values.values()))

    def without(self, gone: Collection[str]) -> Block:
        """The replies of the clients that are not `gone`."""
        if not gone:
            return self
        left_out = set(gone)
        return self.rows([i for i, n in enumerate(self.names) if n not in left_out])


@envelope
@dataclass(frozen=True)
class Packed:
    """A field of a reply in the form in which a filter sends it: tensors [n, ...] by name."""

    parts: Mapping[str, Tensor]


def pick(value: Any, positions: list[int]) -> Any:
    """The rows of a field at these positions."""
    if isinstance(value, Packed):
        return Packed({name: part[positions] for name, part in value.parts.items()})
    if isinstance(value, Tensor):
        return value[positions]
    return tuple(value[i] for i in positions)


def _bytes_of_one(value: Any) -> int:
    if isinstance(value, Packed):
        return sum(map(_bytes_of_one, value.parts.values()))
    if isinstance(value, Tensor):
        return value[:1].numel() * value.element_size()
    if isinstance(value, tuple) and value:
        return len(str(value[0]))
    return 0


class ClientCost(NamedTuple):
    """The cost of one ask at a client elsewhere: bytes on the wire down and up, seconds until its reply; why it failed, or ""."""

    client: str
    bytes_down: int
    bytes_up: int
    seconds: float
    failed: str


@envelope
@dataclass(frozen=True)
class Answer:
    """The answer that an engine brings back.

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
        if not self._is_well_formed():
            raise InputError(
                "an answer must hold replies, reasons of failures and counts of rows"
            )

    def _is_well_formed(self) -> bool:
        if not _are(Block, self.blocks):
            return False
        if not all(_are(str, block.names) for block in self.blocks):
            return False
        # The wire carries a cost as a plain tuple.
        if not _are((ClientCost, tuple), self.costs):
            return False
        mappings: list[Any] = [block.values for block in self.blocks]
        mappings += [self.failed, self.spent, self.forgot, self.remembered]
        if not all(isinstance(mapping, Mapping) for mapping in mappings):
            return False
        if not _are(str, tuple(self.failed.values())):
            return False
        if not _are(int, tuple(self.spent.values())):
            return False
        if not all(_are(str, names) for names in self.forgot.values()):
            return False
        for pairs in self.remembered.values():
            for pair in pairs:
                if type(pair) is not tuple or [*map(type, pair)] != [str, int]:
                    return False
        return True

    @classmethod
    def join(cls, answers: Iterable[Answer]) -> Answer:
        """One answer of several."""
        parts = tuple(answers)
        if len(parts) == 1:
            return parts[0]
        blocks: list[Block] = []
        failed: dict[str, str] = {}
        spent: dict[str, int] = {}
        costs: list[ClientCost] = []
        forgot: dict[str, tuple[str, ...]] = {}
        remembered: dict[str, tuple[tuple[str, int], ...]] = {}
        for answer in parts:
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


def _are(kinds: type | tuple[type, ...], values: Any) -> bool:
    """Return True if `values` is a tuple of nothing but these kinds, and of no kind derived from them."""
    if isinstance(kinds, type):
        kinds = (kinds,)
    return isinstance(values, tuple) and {*map(type, values)} <= {*kinds}

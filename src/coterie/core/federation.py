"""What an algorithm talks to: `federation.ask(clients, task, **payload) -> Replies`."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from coterie.core.errors import InputError, RunError, nearest, require
from coterie.core.task import Task
from coterie.core.vector import Layout
from coterie.core.wire import PerClient, decode, encode, nbytes

__all__ = [
    "Answer",
    "AskRecord",
    "Context",
    "Engine",
    "Federation",
    "QuorumError",
    "Replies",
    "Session",
    "rows_of",
    "well_formed",
]

R = TypeVar("R", bound=tuple[Any, ...])
Need = float | Literal["all"]


class QuorumError(RunError):
    """Too few clients answered; the sentence says who failed, why, and the cure."""


class Context(NamedTuple):
    """Where in a run an ask stands. `attempt` is drawn anew when a run starts, resumes or repeats a round."""

    seed: int
    round: int
    attempt: int
    ask: int


class ClientCost(NamedTuple):
    """What one ask cost at a client elsewhere: bytes on the wire down and up, seconds until its reply; why it failed, or ""."""

    client: str
    bytes_down: int
    bytes_up: int
    seconds: float
    failed: str


class Answer(NamedTuple):
    """What an engine brings back: stacked replies by shard, reasons of failures, rows of work done, and costs of clients elsewhere."""

    shards: Sequence[tuple[tuple[str, ...], tuple[Any, ...]]]
    failed: Mapping[str, str]
    spent: Mapping[str, int]
    costs: Sequence[ClientCost] = ()


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

    def ask(self, names: tuple[str, ...], task: Task[Any], payload: Mapping[str, Any], context: Context) -> Answer:
        """Run `task` for `names` (sorted); the rows of an `PerClient` are in their order."""
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
    """What a run counts over its asks."""

    asks: list[AskRecord] = field(default_factory=list)
    spent: dict[str, int] = field(default_factory=lambda: {"row_gradients": 0, "row_losses": 0})
    failures: dict[str, str] = field(default_factory=dict)
    largest_update: tuple[str, float] | None = None
    known: frozenset[str] = frozenset()


class Replies(Generic[R]):
    """The stacked fields of all replies: `replies.delta` is [n, ...] in the order of `replies.clients` (sorted by name).

    Attributes:
        clients: who replied, sorted.
        asked: who was asked, sorted.
        failed: reason of each client that did not reply or whose reply was refused.
    """

    def __init__(
        self, clients: tuple[str, ...], asked: tuple[str, ...], fields: Mapping[str, Any], failed: Mapping[str, str]
    ):
        self.clients = clients
        self.asked = asked
        self.failed = dict(failed)
        self._fields = dict(fields)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_fields"][name]
        except KeyError:
            raise AttributeError(
                f"the reply has no field {name!r}; it has {', '.join(self.__dict__['_fields'])}"
            ) from None

    def __len__(self) -> int:
        return len(self.clients)

    def __repr__(self) -> str:
        return f"<{len(self.clients)} of {len(self.asked)} replies: {', '.join(self._fields)}>"

    def named(self, values: Tensor) -> dict[str, float]:
        """`values` [n] as a dict by client, for the log."""
        return dict(zip(self.clients, values.tolist(), strict=True))


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

    def view(self, clients: Sequence[str], round: int, attempt: int) -> Federation:
        """The same federation in another round with these participants (sorted)."""
        return replace(self, clients=tuple(clients), round=round, attempt=attempt)

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
        values = {k: _reorder(k, v, order) for k, v in payload.items()}
        got = self._once(names, task, values)
        least = len(names) if need == "all" else need * len(names)
        if len(got) < least and got.failed:
            again = self._once(tuple(got.failed), task, rows_of(values, names, tuple(got.failed)))
            # Checked together: an outlier that is asked again must still stand beside the others.
            both = [(r.clients, tuple(r._fields.values())) for r in (got, again) if len(r)]
            got = self._collect(names, task, Answer(both, again.failed, {}))
        self.session.failures.update(
            {name: f"round {self.round}, {task.name}: {why}" for name, why in got.failed.items()}
        )
        if len(got) < least or (names and not len(got)):
            raise QuorumError(self._quorum_sentence(task, names, need, got.failed))
        return got

    def _once(self, names: tuple[str, ...], task: Task[R], values: Mapping[str, Any]) -> Replies[R]:
        started = time.perf_counter()
        down = nbytes(values)
        if self.strict_wire:
            values = decode(encode(values))
        context = Context(self.seed, self.round, self.attempt, len(self.session.asks))
        answer = self.engine.ask(names, task, values, context)
        for key, count in answer.spent.items():
            self.session.spent[key] = self.session.spent.get(key, 0) + count
        replies: Replies[R] = self._collect(names, task, answer)
        up = sum(_row_bytes(v) for v in replies._fields.values())
        seconds = time.perf_counter() - started
        self.session.asks.append(
            AskRecord(
                self.round,
                context.ask,
                task.name,
                len(names),
                len(replies.failed),
                down,
                up,
                seconds,
                tuple(answer.costs),
            )
        )
        return replies

    def _collect(self, names: tuple[str, ...], task: Task[R], answer: Answer) -> Replies[R]:
        failed = dict(answer.failed)
        fields = task.reply._fields  # type: ignore[attr-defined]
        shards = [(shard, dict(zip(fields, reply, strict=False))) for shard, reply in answer.shards]
        if self.strict_wire:
            shards = [(shard, decode(encode(values))) for shard, values in shards]
        usual = {k: self._usual_form([(len(shard), v[k]) for shard, v in shards], task.kinds[k]) for k in fields}
        good: list[tuple[tuple[str, ...], dict[str, Any]]] = []
        for shard, values in shards:
            refused = self._refused(shard, task, values, usual)
            failed.update(refused)
            kept = [i for i, n in enumerate(shard) if n not in refused]
            if kept:
                good.append((tuple(shard[i] for i in kept), {k: _pick(v, kept) for k, v in values.items()}))
        replies: Replies[R] = _stack(names, fields, good, failed)
        lost, norms = self._not_finite(task, replies)
        if lost:
            kept = [i for i, n in enumerate(replies.clients) if n not in lost]
            replies, norms = _without(replies, lost), {k: v[kept] for k, v in norms.items()}
        outliers = self._outliers(task, replies, norms)
        return _without(replies, outliers) if outliers else replies

    def _usual_form(self, values: Sequence[tuple[int, Any]], kind: str) -> tuple[Any, ...] | None:
        votes: Counter[tuple[Any, ...]] = Counter()
        for count, value in values:
            if well_formed(value, kind, count, self.layout):
                votes[_form(value)] += count
        return votes.most_common(1)[0][0] if votes else None

    def _refused(
        self,
        shard: tuple[str, ...],
        task: Task[R],
        values: Mapping[str, Any],
        usual: Mapping[str, tuple[Any, ...] | None],
    ) -> dict[str, str]:
        for key, kind in task.kinds.items():
            value = values[key]
            if not well_formed(value, kind, len(shard), self.layout) or _form(value) != usual[key]:
                return dict.fromkeys(shard, self._misfit(key, value, kind, len(shard)))
        return {}

    def _misfit(self, key: str, value: Any, kind: str, count: int) -> str:
        if not isinstance(value, Tensor):
            return f"field {key!r} is a {type(value).__name__}, not a tensor with a row per client"
        vector = f"[..., {self.layout.size}] {self.layout.dtype}"
        expected = vector if kind in _VECTORS else "the form that the other replies have"
        return f"field {key!r} has shape {list(value.shape)} and {value.dtype}; expected [{count}, ...], {expected}"

    def _not_finite(self, task: Task[R], replies: Replies[R]) -> tuple[dict[str, str], dict[str, Tensor]]:
        """Why replies are refused that have NaN or Inf, by client; and by field the norm of each update or gradient [n]."""
        found: dict[str, str] = {}
        norms: dict[str, Tensor] = {}
        for key, value in replies._fields.items():
            if not (isinstance(value, Tensor) and value.is_floating_point()):
                continue
            seen = value
            # A sum or a norm is finite only if all its terms are, and takes a tenth of the time that looking at each of them does.
            if task.kinds[key] in _VECTORS:
                heads, seen = value[..., : self.dim].flatten(1), value[..., self.dim :]
                norms[key] = torch.linalg.vector_norm(heads, dim=1)
            if math.isfinite(seen.sum().item() + (norms[key].sum().item() if key in norms else 0.0)):
                continue
            finite = torch.isfinite(value.reshape(len(replies), -1)).all(dim=1)
            for name, fine in zip(replies.clients, finite.tolist(), strict=True):
                if not fine:
                    found.setdefault(name, f"field {key!r} has NaN or Inf")
            if key in norms:  # in float64 it cannot overflow, but that copies everything
                norms[key] = torch.linalg.vector_norm(heads, dim=1, dtype=torch.float64)
        return found, norms

    def _outliers(self, task: Task[R], replies: Replies[R], norms_of: Mapping[str, Tensor]) -> dict[str, str]:
        found: dict[str, str] = {}
        for key, norms in norms_of.items():
            kind = task.kinds[key]
            if len(replies) < (1 if kind == "update" else 3):
                continue
            if kind == "update":
                top = int(norms.argmax())
                self.session.largest_update = (replies.clients[top], float(norms[top]))
            median = float(norms.median())
            if len(replies) >= 3 and median > 0:
                for i in torch.nonzero(norms > self.max_norm * median).flatten().tolist():
                    found[replies.clients[i]] = (
                        f"field {key!r} has norm {float(norms[i]):.3g}, over {self.max_norm:.0e} times the median {median:.3g}"
                    )
        return found

    def _check_names(self, names: tuple[str, ...]) -> None:
        twice = [n for n, count in Counter(names).items() if count > 1]
        require(not twice, f"an ask names {', '.join(twice)} twice; name each client once")
        known = self.session.known = self.session.known or frozenset((*self.everyone, *self.unseen))
        for name in names:
            if name == "server":
                require(
                    self.engine.has_server,
                    "this method asks rows held by the server, and there are none; give server rows (server_data)",
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


def rows_of(values: Mapping[str, Any], names: tuple[str, ...], some: tuple[str, ...]) -> dict[str, Any]:
    """The payload of an ask to `names` for `some` of them."""
    where = [names.index(n) for n in some]
    return {k: PerClient(v.tensor[where]) if isinstance(v, PerClient) else v for k, v in values.items()}


def _pick(value: Any, kept: list[int]) -> Any:
    if isinstance(value, Tensor):
        return value if len(kept) == value.shape[0] else value[kept]
    return tuple(value[i] for i in kept)


def _without(replies: Replies[R], lost: Mapping[str, str]) -> Replies[R]:
    kept = [i for i, n in enumerate(replies.clients) if n not in lost]
    fields = {k: _pick(v, kept) for k, v in replies._fields.items()}
    failed = {**replies.failed, **lost}
    in_order = {n: failed[n] for n in replies.asked if n in failed}
    return Replies(tuple(replies.clients[i] for i in kept), replies.asked, fields, in_order)


_VECTORS = ("update", "gradient")


def well_formed(value: Any, kind: str, count: int, layout: Layout) -> bool:
    """Whether a field of a reply has a row for each of `count` clients, and an update or a gradient the form of a model vector."""
    if not isinstance(value, Tensor):
        return kind == "other" and isinstance(value, tuple | list) and len(value) == count
    if value.shape[:1] != (count,):
        return False
    return kind not in _VECTORS or (value.ndim > 1 and value.shape[-1] == layout.size and value.dtype == layout.dtype)


def _form(value: Any) -> tuple[Any, ...]:
    return (value.shape[1:], value.dtype) if isinstance(value, Tensor) else (type(value),)


def _row_bytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return value[:1].numel() * value.element_size()
    return len(str(value[0])) if len(value) else 0


def _stack(
    names: tuple[str, ...],
    fields: tuple[str, ...],
    shards: list[tuple[tuple[str, ...], dict[str, Any]]],
    failed: Mapping[str, str],
) -> Replies[Any]:
    replied = [n for shard, _ in shards for n in shard]
    order = sorted(range(len(replied)), key=replied.__getitem__)
    sorted_already = order == list(range(len(order)))
    places: list[list[int]] = []
    if len(shards) > 1:
        rank = iter(sorted(range(len(order)), key=order.__getitem__))
        places = [list(islice(rank, len(shard))) for shard, _ in shards]
    stacked: dict[str, Any] = {}
    for key in fields if shards else ():
        values = [v[key] for _, v in shards]
        if isinstance(values[0], Tensor) and len(values) == 1:
            stacked[key] = values[0] if sorted_already else values[0][order]
        elif isinstance(values[0], Tensor):
            stacked[key] = values[0].new_empty(len(order), *values[0].shape[1:])
            for at, value in zip(places, values, strict=True):
                stacked[key][at] = value
        else:
            flat = [item for v in values for item in v]
            stacked[key] = tuple(flat[i] for i in order)
    return Replies(tuple(replied[i] for i in order), names, stacked, {n: failed[n] for n in names if n in failed})

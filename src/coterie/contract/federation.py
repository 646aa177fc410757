"""The server's side of a run: `federation.ask(clients, task, **payload) -> Replies`, and `federation.average` for means alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from coterie.base.errors import InputError, cut, nearest, require
from coterie.base.names import Names
from coterie.base.vector import Layout
from coterie.config.rules import is_number
from coterie.config.secure import SecureSums
from coterie.contract.block_exchange import BlockExchange
from coterie.contract.down import BF16, FLOAT32, round_models, rounded_fields
from coterie.contract.engine import Engine
from coterie.contract.exchange import Exchange, Need, QuorumError, Session
from coterie.contract.filters import Filter
from coterie.contract.noisy_sum import NoisySum, noise_of
from coterie.contract.replies import Average, Replies
from coterie.contract.secure_exchange import SecureExchange
from coterie.contract.task import Task
from coterie.contract.wire import Ask, Context, PerClient

__all__ = ["Federation", "Need", "QuorumError"]

R = TypeVar("R", bound=tuple[Any, ...])
GROUP_BYTES = 1 << 26
"""Bytes of the model vectors that are asked for at once where they come in groups, as those of MeritFed's targets do."""


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
        clients_per_round: clients per round of the run, for methods that choose their clients themselves; None: all.
        filters: what replies pass through at the clients, in their order (`contract.filters`).
        label: label of the method, which names the random streams of filters and attacks.
        observer: called with the task, payload and replies of each ask; None: nothing looks on. Averages then hold all replies.
        is_evaluated: says of a round's number whether models are evaluated after it.
        secure: how vectors are summed behind masks; None: they come as they are.
        down: how models are sent to clients, "float32" or "bf16" (`contract.down`).

    >>> import coterie as ct
    >>> import torch
    >>> engine = ct.InProcess().open(ct.data.load("heart-disease"), torch.nn.Linear(15, 1), "auto")
    >>> federation = Federation(engine, engine.clients)
    >>> replies = federation.ask(["hungary"], ct.metrics.evaluate, x=engine.x, part="train", metrics=("auc",))
    >>> replies.rows.tolist()  # rows of the one client that was asked
    [157.0]
    >>> engine.close()
    """

    engine: Engine
    clients: tuple[str, ...]
    seed: int = 0
    round: int = 0
    attempt: int = 0
    session: Session = field(default_factory=Session)
    strict_wire: bool = False
    max_norm: float = 100.0
    clients_per_round: int | None = None
    filters: tuple[Filter, ...] = ()
    label: str = ""
    observer: Callable[[Task[Any], Mapping[str, Any], Replies[Any]], object] | None = (
        None
    )
    is_evaluated: Callable[[int], bool] = lambda number: True
    secure: SecureSums | None = None
    down: str = FLOAT32

    @property
    def everyone(self) -> Names:
        """All clients, participants or not, sorted; without the server."""
        names = self.engine.clients
        # An engine of a user's own may keep a plain tuple.
        if not isinstance(names, Names):
            names = Names(names)
        return names

    @property
    def per_round(self) -> int:
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

    def groups_at_once(self, groups: int, vectors: int) -> int:
        """Return of how many groups the vectors should be asked for at once, if each has so many: as many as fit into `GROUP_BYTES`.

        All where a division costs messages, or where numbers depend on which ask a vector comes in (filters, attacks, an observer).
        """
        order_matters = bool(self.filters) or self.observer is not None
        if order_matters or self.engine.needs_all or not self.engine.simulated:
            return groups
        size = vectors * self.layout.size * self.layout.dtype.itemsize
        return min(groups, max(1, self.engine.serves, GROUP_BYTES // size))

    def positions(self, names: Iterable[str]) -> Tensor:
        """Positions [n] of clients among `everyone`, int64. Raises `InputError` for one that is not there."""
        return torch.tensor([self._position(name) for name in names], dtype=torch.int64)

    def _position(self, name: str) -> int:
        if name not in self.everyone:
            raise InputError(
                f"there is no client {name!r}; {nearest(name, self.everyone)}"
            )
        return self.everyone.place(name)

    def report(self, client: str, why: str, task: Task[Any]) -> None:
        """Count a client among those that failed in this round, with the reason in words."""
        self.session.report(client, self.round, f"{task.name}: {why}")

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
        self.session.discard(key, clients)

    def ask(
        self,
        clients: Iterable[str],
        task: Task[R],
        /,
        *,
        need: Need = 0.5,
        **payload: Any,
    ) -> Replies[R]:
        """Run `task` where these clients are.

        Args:
            clients: names; `server` asks the rows that the server holds.
            task: a function decorated with `@task`.
            need: share of the clients that must reply, in [0, 1], or "all". Below it those that failed are asked once more, then
                `QuorumError`.
            payload: tensors, numbers, strings, None, `PerClient(tensor)` with a row per client, registered dataclasses.

        Raises:
            QuorumError: too few replies.
            InputError: unknown client, what is no task, another `need`, or a payload that cannot travel.
        """
        return self._exchange(clients, task, payload, need).collect()

    def own_models(
        self, clients: Iterable[str], task: Task[R], /, **payload: Any
    ) -> dict[str, Tensor | None]:
        """Ask clients for models of their own, which a field of the task's reply declares as `OwnModel`; arguments as for `ask`.

        Returns:
            The model [d + b] of each client that replied. None where it stays with the client, who is another party: that one keeps it
            and evaluates it (`personalised`).
        """
        replies = self.ask(clients, task, **payload)
        field = next((key for key, kind in task.kinds.items() if kind == "own"), None)
        if field is None:
            raise InputError(
                f"{task.name} replies no model of a client's own; declare a field of its reply as ct.OwnModel"
            )
        if not self.engine.sends_own:
            return dict.fromkeys(replies.clients)
        return dict(zip(replies.clients, replies.fields[field], strict=True))

    def average(
        self,
        clients: Iterable[str],
        task: Task[R],
        /,
        *,
        weights: Tensor | None = None,
        need: Need = 0.5,
        **payload: Any,
    ) -> Average[R]:
        """Run `task` where these clients are, and average the vectors that they reply; at most `AT_ONCE` of them are held at a time.

        Args:
            clients: as for `ask`.
            task: as for `ask`; of each client it replies single updates and gradients, [n, d + b].
            weights: [n] >= 0, not all 0, in the order of `clients`; None: by number of training rows, as the engine knows them.
            need: as for `ask`.
            payload: as for `ask`.

        Returns:
            The mean [d + b] of each field that is declared as `Update` or `Gradient`, with the bits of `vector.average` over the
            replies of `ask`; all other fields stacked.

        Raises:
            QuorumError: too few replies.
            InputError: as for `ask`.
        """
        exchange = self._averaging(names := tuple(clients), task, payload, need)
        return exchange.average(exchange.weights(names, weights))

    def _averaging(
        self,
        clients: tuple[str, ...],
        task: Task[R],
        payload: Mapping[str, Any],
        need: Need,
    ) -> Exchange[R]:
        """An exchange that averages: in blocks where not all vectors are held at once."""
        exchange = self._exchange(clients, task, payload, need)
        if self.secure is not None or exchange.fits():
            return exchange
        return BlockExchange(**vars(exchange))

    def _exchange(
        self,
        clients: Iterable[str],
        task: Task[R],
        payload: Mapping[str, Any],
        need: Need,
    ) -> Exchange[R]:
        if isinstance(clients, Task) and not isinstance(task, Task):
            raise InputError(
                "clients come before the task: federation.ask(clients, task, ...)"
            )
        if not isinstance(task, Task):
            raise InputError(
                f"a federation is asked a function decorated with @task; got {cut(task)}"
            )
        asked_names = tuple(clients)
        is_share = is_number(need) and 0 <= float(need) <= 1
        if need != "all" and not is_share:
            raise InputError(f'need must be in [0, 1] or "all"; got {cut(need)}')
        # Sorted, so that sums and bits do not depend on the order in which a method names its clients.
        names = tuple(sorted(asked_names))
        order: Sequence[int] = range(len(names))
        if names != asked_names:
            order = sorted(order, key=asked_names.__getitem__)
        self._check_names(names)
        values = dict(payload)
        for key, value in payload.items():
            if isinstance(value, PerClient):
                values[key] = _reorder(key, value, order)
        rounded: tuple[str, ...] = ()
        if self.down == BF16:
            rounded = rounded_fields(task, values)
            values = round_models(values, rounded)
        ask_counts = self.session.standing(self.round, self.attempt)
        context = Context(
            seed=self.seed,
            round=self.round,
            attempt=self.attempt,
            ask=len(self.session.asks),
            number=ask_counts.total(),
            stream=ask_counts[task.name],
            label=self.label,
        )
        ask = Ask(
            names=names,
            task=task.name,
            payload=values,
            context=context,
            counted=self.session.rounds_of(names),
            filters=self.filters,
            rounded=rounded,
        )
        exchange = Exchange(
            engine=self.engine,
            session=self.session,
            strict_wire=self.strict_wire,
            max_norm=self.max_norm,
            task=task,
            ask=ask,
            need=need,
            observer=self.observer,
        )
        if self.secure is None:
            return exchange
        noise = noise_of(payload)
        if noise is not None:
            return NoisySum(**vars(exchange), secure=self.secure, noise=noise)
        return SecureExchange(**vars(exchange), secure=self.secure)

    def _check_names(self, names: tuple[str, ...]) -> None:
        if len(set(names)) < len(names):
            repeated = [name for name, count in Counter(names).items() if count > 1]
            raise InputError(
                f"an ask names {', '.join(repeated)} twice; name each client once"
            )
        addressable = self.session.known = self.session.known or frozenset(
            (*self.everyone, *self.unseen)
        )
        for name in sorted(set(names) - addressable):
            if name != "server":
                raise InputError(
                    f"there is no client {name!r} to ask; {nearest(name, self.everyone)}"
                )
            require(
                self.engine.has_server,
                "this method asks rows held by the server, and there are none; give it rows: from_tensors(server=...) or "
                "[data] server_file",
            )


def _reorder(name: str, value: PerClient, order: Sequence[int]) -> PerClient:
    if value.tensor.shape[:1] != (len(order),):
        raise InputError(
            f"payload {name!r} is PerClient of shape {tuple(value.tensor.shape)} for {len(order)} clients; give one row each"
        )
    if isinstance(order, range):  # in order already: no copy
        return value
    return PerClient(value.tensor[order])

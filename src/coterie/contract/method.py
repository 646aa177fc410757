"""The base classes of methods and samplers: they declare every hook, with a default for each, as those of attacks and filters do.

A hook is a public attribute of one of these classes. The run loop, cohorts, engines and attacks read hooks and nothing else, so a
misspelt hook is refused when a run begins.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Generic

from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import (
    TypeVar,
)  # which torch depends on; that of typing has no default yet

from coterie.base.errors import InputError, cut, nearest
from coterie.base.rng import Rng
from coterie.base.vector import Layout
from coterie.config.rules import Kind, one_of
from coterie.contract.federation import Federation

__all__ = [
    "Log",
    "Method",
    "Sampler",
    "as_log",
    "as_models",
    "clients_keeping_validation",
]

S = TypeVar("S", default=Any)
Log = dict[str, Any]
"""Quantities of one round by name: a number; a number by client or target; under `weights` the coefficient of each client's update,
by client, or by target and client."""


def as_log(log: Any, called: str, clients: Collection[str]) -> Log:
    """Return what the hook `called` says of a round. Raises `InputError` unless it is a `Log`, with weights of these clients."""
    if not isinstance(log, Mapping):
        raise InputError(
            f"{called} must return numbers by name as its log; got {cut(log)}"
        )
    for key, value in log.items():
        place = f"{called}: {key!r} of its log"
        if key == "weights" and not isinstance(value, Mapping):
            raise InputError(f"{place} must be numbers by client; got {cut(value)}")
        _check_numbers(value, place)
    # Weights of clients, or such weights by target.
    weights = log.get("weights", {})
    tables = [value for value in weights.values() if isinstance(value, Mapping)]
    # Each name once: there are as many of them as pairs of clients.
    named: dict[str, Any] = {}
    for shares in tables or [weights]:
        named.update(shares)
    _check_clients(named, f"{called}: 'weights' of its log names", clients)
    return dict(log)


def _check_numbers(value: Any, where: str) -> None:
    if isinstance(value, Mapping):
        # Most are floats: a weight for each target and client.
        if set(map(type, value.values())) == {float}:
            return
        for part in value.values():
            _check_numbers(part, where)
        return
    try:
        float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{where} must be a number, or numbers by client; got {cut(value)}"
        ) from error


def _check_clients(names: Iterable[str], where: str, clients: Collection[str]) -> None:
    for name in names:
        if name not in clients:
            raise InputError(
                f"{where} {name!r}, which is not a client; {nearest(str(name), clients)}"
            )


def as_models(
    models: Any, called: str, size: int, clients: Collection[str]
) -> dict[str, Tensor]:
    """The models [size] that the hook `called` returned, by client; `*` is the one for all. Raises `InputError` for others."""
    by_client = models
    if isinstance(models, Tensor):
        by_client = {"*": models}
    fits = isinstance(by_client, Mapping)
    if fits:
        for x in by_client.values():
            if not isinstance(x, Tensor) or x.shape != (size,):
                fits = False
    if not fits:
        raise InputError(
            f"{called} must return a model of {size} numbers, or such models by client; got {cut(models)}"
        )
    _check_clients(by_client.keys() - {"*"}, f"{called} has a model of", clients)
    return dict(by_client)


def clients_keeping_validation(
    method: Method[Any], clients: tuple[str, ...]
) -> Sequence[str]:
    """Clients whose validation rows the method does not train on. Raises `InputError` for one that there is not."""
    names_kept = method.keeps_validation(clients)
    _check_clients(
        names_kept, f"{type(method).__name__}.keeps_validation names", clients
    )
    return names_kept


class Sampler:
    """Chooses the rows of every local step in place of epochs. A sampler is a frozen dataclass, registered with `@wire_type`.

    Attributes:
        sample_ratio: share of its rows that a client draws in a local epoch.

    >>> import coterie as ct
    >>> import numpy as np
    >>> @ct.wire_type
    ... @ct.options
    ... class FirstRows(ct.Sampler):
    ...     def rows(self, cohort, client, rng, steps, batch_size):
    ...         return np.tile(np.arange(batch_size), (steps, 1))
    >>> ct.fit(ct.FedAvg(ct.LocalSGD(batch_size=8, sampler=FirstRows())), "heart-disease", rounds=2)
    <run of FedAvg: 2 rounds, seed 0, one model for all clients>
    """

    _kind = Kind("sampler", "LipschitzSampler()")
    sample_ratio: float = 1.0

    @property
    def tasks(self) -> Sequence[Any]:
        """Return what may be asked of clients: tasks, or `asks(task, ...)`. A site answers what is declared here, and nothing else."""
        return ()

    def at(self, cohort: Any, x: Tensor) -> Sampler:
        """The sampler of one training that starts from the models x, [d + b] or [n, d + b]; called where the client is."""
        return self

    def rows(
        self, cohort: Any, client: int, rng: Rng, steps: int, batch_size: int
    ) -> NDArray[Any]:
        """Row numbers [steps, batch_size] of the client at position `client`, among its own training rows."""
        raise InputError(
            f"{type(self).__name__} chooses no rows; give it `rows`, or an `at` that returns such a sampler"
        )

    def trained(self, cohort: Any, models: Tensor) -> None:
        """See the local models [n, d + b] after training; called where the client is."""

    def check(self, federation: Federation) -> None:
        """Prepare a run, before anything else. Raises `InputError` for settings that do not fit."""

    def after_round(self, x: Tensor | None, federation: Federation) -> Log:
        """Learn from a round: called after each aggregation with the model [d + b] for all clients (None if there is none).

        It may ask tasks of its own and keep what it learns in client memory.
        """
        return {}


class Method(ABC, Generic[S]):
    """State in, state out. A method is a frozen dataclass whose fields are the paper's hyper-parameters; it stores nothing on itself.

    `init`, `round` and `models` are the method; all other hooks have defaults.

    Attributes:
        needs: what a round needs of clients' updates at once: "sum", each is added as it comes (`federation.average`);
            "coordinates", each over all clients; "pairs" of them; or "all".
        keeps: model vectors that each client keeps from round to round.
        newcomers: True if clients may join in a later round: one that has not taken part changes nothing for the others.
        events_per_slope: events that a site must have for each slope of the model before it tells what the method asks; 0: none.
        packages: installed packages beside torch and NumPy that compute numbers of the method; a resumed run compares their versions.

    >>> import coterie as ct
    >>> @ct.options
    ... class HalfSteps(ct.Method):
    ...     def init(self, x, federation):
    ...         return ct.FedAvg().init(x, federation)
    ...     def round(self, state, federation, rng):
    ...         averaged, log = ct.FedAvg().round(state, federation, rng)
    ...         return averaged._replace(x=(state.x + averaged.x) / 2), log
    ...     def models(self, state):
    ...         return state.x
    >>> ct.fit(HalfSteps(), "heart-disease", rounds=2)
    <run of HalfSteps: 2 rounds, seed 0, one model for all clients>
    """

    _kind = Kind("method", "FedAvg()")

    needs = "all"
    keeps = 0
    newcomers = False
    events_per_slope: ClassVar[int] = 0
    packages: ClassVar[Sequence[str]] = ()

    @abstractmethod
    def init(self, x: Tensor, federation: Federation) -> S:
        """State before the first round, from the initial model x [d + b]."""

    @abstractmethod
    def round(self, state: S, federation: Federation, rng: Rng) -> tuple[S, Log]:
        """One round with the participants `federation.clients`."""

    @abstractmethod
    def models(self, state: S) -> Tensor | Mapping[str, Tensor]:
        """One model [d + b] for all clients, or a model for each client that has one."""

    @property
    def tasks(self) -> Sequence[Any]:
        """Return what may be asked of clients: tasks, or `asks(task, ...)`. A site answers what is declared here, and nothing else."""
        return ()

    @property
    def participation(self) -> Annotated[str, one_of("run", "own")]:
        """`"run"`: the run loop draws the participants of a round; `"own"`: the method does, and its view has all clients."""
        return "run"

    @property
    def pooled(self) -> bool:
        """Return True if the rows of all clients lie at the `server` (the `centralised` reference)."""
        return False

    @property
    def needs_server_rows(self) -> bool:
        """Return True if the method asks rows that the server holds."""
        return False

    @property
    def is_reference(self) -> bool:
        """Return True if the method is a yardstick that is not trained together, so that filters leave it alone."""
        return False

    @property
    def linear_only(self) -> bool:
        """Return True if the method solves linear models under the library's loss, and refuses all others."""
        return False

    @property
    def solves_linear(self) -> bool:
        """Return True if the method solves for linear models under the library's loss, so that nothing of it is there to tune."""
        return self.linear_only

    @property
    def tells_quadratics(self) -> bool:
        """Return True if `prior` has the quadratics that `clients` told, as `partial` saves them: without one of them, the mean of the
        others is known, and that client tests it after a training on all rows.
        """
        return False

    @property
    def needs_exact_uploads(self) -> bool:
        """Return True if what clients remember must equal what the server received, so that lossy filters are refused."""
        return False

    @property
    def sampler(self) -> Sampler | None:
        """The sampler whose `check` and `after_round` are called; by default that of the field `local`."""
        chosen: Sampler | None = getattr(getattr(self, "local", None), "sampler", None)
        return chosen

    def check(self, everyone: tuple[str, ...]) -> None:
        """Raise `InputError` for fields that do not fit these clients, before any training."""

    def check_model(self, layout: Layout) -> None:
        """Raise `InputError` for a model whose layers do not fit, before any training."""

    def notes(self, everyone: tuple[str, ...]) -> Sequence[str]:
        """Sentences for the report on what these settings do with these clients, where a reader would not expect it."""
        return ()

    def keeps_validation(self, names: tuple[str, ...]) -> Sequence[str]:
        """Clients whose validation rows must not be trained on."""
        return ()

    def memory_estimate(self, per_round: int, clients: int) -> int:
        """Number of model vectors that a round holds for its replies and what it makes of them.

        Args:
            per_round: participants; of a method that needs sums alone, those of them that are asked at once.
            clients: all clients.
        """
        return per_round

    def personalised(
        self, state: S, federation: Federation
    ) -> Mapping[str, Tensor | None]:
        """Models [d + b] that seen and unseen clients make for themselves from the state, by client: `federation.own_models`.

        Asked at evaluation rounds. They are what is evaluated, saved and used for predictions; this work is not counted. Those of
        clients that are other parties stay where they are, and are None here.
        """
        return {}

    def measure(self, state: S, federation: Federation) -> Log:
        """Further quantities at evaluation rounds."""
        return {}

    def finished(self, state: S) -> bool:
        """Return True if later rounds change no model, so that these need not be evaluated again."""
        return False

    def row_events(self, rounds: int) -> int | None:
        """Sums over rows that a client tells in so many rounds, of a method that hides rows by a field `private` of its own; None: rows
        are hidden in its local training, if at all.
        """
        return None

    def slope_variance(self, state: S) -> Tensor | None:
        """Variance [D] of known noise in the slopes of a linear model, which pooling at home takes into account; None: none."""
        return None

    def prior(self, state: S) -> Mapping[str, Any]:
        """What the clients share beside their models: tensors, texts and numbers by name, which are saved with the models."""
        return {}

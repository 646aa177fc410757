"""The history of a run: numbers by round, client, split and metric; the metrics of many clients are kept as one array."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from coterie.base.errors import InputError, nearest
from coterie.base.metric_names import find_metric
from coterie.contract.method import Log
from coterie.run.contribution import ContributionRow


class Row(NamedTuple):
    """One number of the history: client `*` and an empty split for what belongs to the whole round."""

    round: int
    client: str
    split: str
    metric: str
    value: float


class Timing(NamedTuple):
    """Seconds of a round on the wall, and of them those outside of asks: the method's own work (descent, QP, average)."""

    round: int
    seconds: float
    own: float | None = None


@dataclass(frozen=True, eq=False)
class ClientMetrics:
    """The metrics of clients on their rows of one split, after one round.

    Attributes:
        round, split: as of a `Row`.
        clients: names [k].
        metrics: names [m].
        values: float64 [k, m].
        defined: bool [k, m]: whether the client has the metric; without it there is no number.
    """

    round: int
    split: str
    clients: tuple[str, ...]
    metrics: tuple[str, ...]
    values: NDArray[np.float64]
    defined: NDArray[np.bool_]

    def rows(self) -> Iterator[Row]:
        """The numbers one by one, client after client."""
        # Python numbers of all at once: reading entries of arrays one by one is slow.
        values, defined = self.values.tolist(), self.defined.tolist()
        for i, client in enumerate(self.clients):
            for j, metric in enumerate(self.metrics):
                if defined[i][j]:
                    yield Row(self.round, client, self.split, metric, values[i][j])

    def of_metric(self, metric: str) -> list[tuple[int, str, str, float]]:
        """Round, client, split and value of one metric."""
        if metric not in self.metrics:
            return []
        column = self.metrics.index(metric)
        values = self.values[:, column].tolist()
        return [
            (self.round, self.clients[i], self.split, values[i])
            for i in np.flatnonzero(self.defined[:, column]).tolist()
        ]

    def columns(self) -> dict[str, Any]:
        """As JSON takes it: a list of values for each metric, with null where there is none."""
        values = self.values.T.astype(object)
        values[~self.defined.T] = None
        return {
            "round": self.round,
            "split": self.split,
            "clients": self.clients,
            "metrics": self.metrics,
            "values": values.tolist(),
        }

    @classmethod
    def of_columns(cls, read: Mapping[str, Any]) -> ClientMetrics:
        """Read what `columns` returned."""
        values = np.array(read["values"], np.float64).T  # None becomes NaN
        defined = []
        for column in read["values"]:
            defined.append([value is not None for value in column])
        return cls(
            round=read["round"],
            split=read["split"],
            clients=tuple(read["clients"]),
            metrics=tuple(read["metrics"]),
            values=values,
            defined=np.array(defined, dtype=bool).T,
        )


Part = Row | ClientMetrics


class History(Sequence[Row]):
    """All numbers of a run, in the order in which they were made.

    Attributes:
        parts: the same as they are kept: a `Row`, or the `ClientMetrics` of one split and round. New ones are put behind them.

    >>> History([Row(0, "a", "test", "loss", 0.7), Row(5, "a", "test", "loss", 0.4)]).select(metric="loss", client="a")
    [(0, 0.7), (5, 0.4)]
    """

    def __init__(self, parts: Iterable[Part] = ()) -> None:
        self.parts: list[Part] = [*parts]

    def __len__(self) -> int:
        count = 0
        for part in self.parts:
            count += 1 if isinstance(part, Row) else int(part.defined.sum())
        return count

    def __iter__(self) -> Iterator[Row]:
        for part in self.parts:
            if isinstance(part, Row):
                yield part
            else:
                yield from part.rows()

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> list[Row]: ...
    def __getitem__(self, place: int | slice) -> Row | list[Row]:
        return list(self)[place]

    def __reversed__(self) -> Iterator[Row]:
        return reversed(list(self))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, History | list):
            return NotImplemented
        return list(self) == list(other)

    def of_metric(self, metric: str) -> list[tuple[int, str, str, float]]:
        """Round, client, split and value of one metric."""
        found: list[tuple[int, str, str, float]] = []
        for part in self.parts:
            if isinstance(part, ClientMetrics):
                found += part.of_metric(metric)
            elif part.metric == metric:
                found.append((part.round, part.client, part.split, part.value))
        return found

    def of_round(self, number: int) -> Iterator[Row]:
        """The numbers of one round."""
        return iter(History(part for part in self.parts if part.round == number))

    def columns(self, first: int = 0) -> list[Any]:
        """The parts from the one with number `first` on, as JSON takes them."""
        columns: list[Any] = []
        for part in self.parts[first:]:
            columns.append(part if isinstance(part, Row) else part.columns())
        return columns

    @classmethod
    def of_columns(cls, parts: Iterable[Any]) -> History:
        """Read what `columns` returned."""
        history = cls()
        for part in parts:
            if isinstance(part, Mapping):
                history.parts.append(ClientMetrics.of_columns(part))
            else:
                history.parts.append(Row(*part))
        return history

    def select(
        self, metric: str, client: str = "*", split: str | None = None
    ) -> list[tuple[int, float]]:
        """(round, value) of one metric of one client; `split` may be left out where there is only one.

        Raises `InputError` where there are several and none is named, and for a metric, a client or a split that there is not.
        """
        metrics: set[str] = set()
        for part in self.parts:
            metrics.update(_metrics(part))
        metric = find_metric(metric, sorted(metrics))
        if metric not in metrics:
            raise InputError(
                f"the history has no {metric!r}; {nearest(metric, metrics)}"
            )
        points: dict[str, dict[str, list[tuple[int, float]]]] = {}
        for number, name, split_name, value in self.of_metric(metric):
            by_split = points.setdefault(name, {})
            by_split.setdefault(split_name, []).append((number, value))
        if client not in points:
            raise InputError(
                f"the history has no {metric} of client {client!r}; {nearest(client, points)}"
            )
        by_split = points[client]
        if split is None:
            if len(by_split) != 1:
                names = " and ".join(sorted(by_split))
                raise InputError(
                    f"{metric} of {client!r} was measured on {names}; name one: split=..."
                )
            (split,) = by_split
        elif split not in by_split:
            spelling = nearest(split, by_split)
            raise InputError(
                f"the history has no {metric} of {client!r} on {split!r} rows; {spelling}"
            )
        return by_split[split]

    def __repr__(self) -> str:
        rounds = {part.round for part in self.parts}
        return f"<history of {len(self)} numbers in {len(rounds)} rounds>"


def _metrics(part: Part) -> Iterable[str]:
    if isinstance(part, Row):
        return (part.metric,)
    is_there = part.defined.any(axis=0)
    return [part.metrics[i] for i in np.flatnonzero(is_there)]


@dataclass
class Record:
    """Numbers of a run round by round. Attributes as of `Run`."""

    history: History = field(default_factory=History)
    weight_rows: list[tuple[int, str, str, float]] = field(default_factory=list)
    contributions: list[ContributionRow] = field(default_factory=list)
    seconds: list[Timing] = field(default_factory=list)
    _weights: dict[str, dict[str, float]] = field(default_factory=dict)
    _unscaled: Mapping[str, Any] | None = None

    @property
    def weights(self) -> dict[str, dict[str, float]]:
        """Weights of the last round by target and client, with sum 1 for each target.

        They are a number for each pair of clients, so that they are made where they are read and not in every round.
        """
        if self._unscaled is not None:
            self.weights = {t: _shares(w) for t, w in self._unscaled.items()}
        return self._weights

    @weights.setter
    def weights(self, weights: dict[str, dict[str, float]]) -> None:
        self._weights, self._unscaled = weights, None

    def add(
        self,
        number: int,
        log: Log,
        *,
        with_weights: bool = False,
        changed_alone: bool = False,
    ) -> None:
        """Write down what a method says of a round.

        Args:
            number: of the round.
            log: what the method says.
            with_weights: whether its weights are written as rows, as in rounds that are evaluated.
            changed_alone: whether they are left out where they are those that were written last. A method that is solved for has the
                same ones in every round from its last step on, and they are a number for each pair of clients.
        """
        rows: list[Row] = []
        for key, value in log.items():
            if key == "weights":
                self._add_weights(number, value, with_weights, changed_alone)
            elif isinstance(value, Mapping):
                rows += [Row(number, k, "", key, float(v)) for k, v in value.items()]
            else:
                rows.append(Row(number, "*", "", key, float(value)))
        self.history.parts += rows

    def _add_weights(
        self,
        number: int,
        value: Mapping[str, Any],
        with_rows: bool,
        changed_alone: bool,
    ) -> None:
        # Weights of one model for all, unless there are some for each target.
        by_target: Mapping[str, Any] = {"*": value}
        if value and all(isinstance(v, Mapping) for v in value.values()):
            by_target = value
        self._unscaled = by_target
        if not with_rows:
            return
        rows = []
        for target, weights in self.weights.items():
            rows += [(number, target, c, w) for c, w in weights.items()]
        if not (changed_alone and self._were_written_last(rows)):
            self.weight_rows += rows

    def _were_written_last(self, rows: list[tuple[int, str, str, float]]) -> bool:
        """Return True if the last round that has rows has these, which are of a later one."""
        before = self.weight_rows[-len(rows) - 1 :]
        last = [row for row in before if row[0] == before[-1][0]]
        return [row[1:] for row in last] == [row[1:] for row in rows]


def _shares(weights: Mapping[str, float]) -> dict[str, float]:
    total = sum(weights.values())
    if not total:
        return dict(weights)
    return {client: weight / total for client, weight in weights.items()}

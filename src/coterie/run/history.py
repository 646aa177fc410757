"""What a run has seen and learned: the history, what it cost, and the models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor, nn

from coterie.core.errors import InputError, nearest, require
from coterie.core.method import Log
from coterie.core.session import AskRecord
from coterie.core.vector import Layout, export

__all__ = ["History", "Record", "Row", "Run", "Timing"]


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


class History(list[Row]):
    """All numbers of a run, in the order in which they were made.

    >>> History([Row(0, "a", "test", "loss", 0.7), Row(5, "a", "test", "loss", 0.4)]).select(metric="loss", client="a")
    [(0, 0.7), (5, 0.4)]
    """

    def select(self, metric: str, client: str = "*", split: str | None = None) -> list[tuple[int, float]]:
        """(round, value) of one metric of one client; `split` may be left out where there is only one.

        Raises `InputError` where there are several and none is named.
        """
        rows = [r for r in self if r.metric == metric and r.client == client and split in (None, r.split)]
        splits = sorted({r.split for r in rows})
        require(len(splits) < 2, f"{metric} of {client!r} was measured on {' and '.join(splits)}; name one: split=...")
        return [(r.round, r.value) for r in rows]

    def __repr__(self) -> str:
        return f"<history of {len(self)} numbers in {len({r.round for r in self})} rounds>"


@dataclass(repr=False)
class Run:
    """What a run has learned and seen.

    Attributes:
        method, seed, rounds: as given.
        state: of the method, after the last round.
        models: a model [d + b] by client, and under `*` one for everybody who has none of its own.
        history: all numbers.
        weights: of the last round: by target (`*`: one model for everybody) and client, divided by their sum.
        weight_rows: (round, target, client, weight) at evaluation rounds.
        summary: rows as in `summary.json`, for the last model.
        seconds: by round; the part without asks is what the method itself took.
        asks: one record per ask.
        failures: last reason of each client that ever failed.
        module: the module that the vectors belong to.
    """

    method: Any
    seed: int
    rounds: int
    state: Any
    models: Mapping[str, Tensor]
    module: nn.Module
    history: History = field(default_factory=History)
    weights: dict[str, dict[str, float]] = field(default_factory=dict)
    weight_rows: list[tuple[int, str, str, float]] = field(default_factory=list)
    summary: list[dict[str, Any]] = field(default_factory=list)
    seconds: list[Timing] = field(default_factory=list)
    asks: list[AskRecord] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        models = "one model for everybody" if set(self.models) == {"*"} else f"models of {len(self.models)} clients"
        failed = f", {len(self.failures)} clients failed" if self.failures else ""
        return f"<run of {type(self.method).__name__}: {self.rounds} rounds, seed {self.seed}, {models}{failed}>"

    @property
    def x(self) -> Tensor:
        """The model [d + b] for everybody, or the only one."""
        if "*" in self.models:
            return self.models["*"]
        if len(self.models) > 1:
            raise InputError(f"this run has a model for each of {', '.join(self.models)}; take run.models[name]")
        return next(iter(self.models.values()))

    def state_dict(self, client: str = "*", *, trained_only: bool = False) -> Mapping[str, Tensor]:
        """A state dict for the module that was trained; of the model for everybody, or of a client's own.

        With `trained_only` it lacks frozen parameters and counters, such as the backbone below adapters: load it with
        `module.load_state_dict(..., strict=False)`.
        """
        chosen = self.models.get(client, self.models.get("*"))
        if chosen is None:
            raise InputError(f"this run has no model for {client!r}; {nearest(client, self.models)}")
        return export(chosen, self.module, Layout.of(self.module), trained_only=trained_only)


@dataclass
class Record:
    """What a run writes down round by round. Attributes as of `Run`."""

    history: History = field(default_factory=History)
    weights: dict[str, dict[str, float]] = field(default_factory=dict)
    weight_rows: list[tuple[int, str, str, float]] = field(default_factory=list)
    seconds: list[Timing] = field(default_factory=list)

    def add(self, number: int, log: Log, *, with_weights: bool = False) -> None:
        """Write down what a method says of a round; its weights as rows only in rounds that are evaluated."""
        for key, value in log.items():
            if key == "weights":
                self._add_weights(number, value, with_weights)
            elif isinstance(value, Mapping):
                self.history += [Row(number, k, "", key, float(v)) for k, v in value.items()]
            else:
                self.history.append(Row(number, "*", "", key, float(value)))

    def _add_weights(self, number: int, value: Mapping[str, Any], with_rows: bool) -> None:
        nested = bool(value) and all(isinstance(v, Mapping) for v in value.values())
        by_target = value if nested else {"*": value}
        self.weights = {t: _normalised(w) for t, w in by_target.items()}
        if with_rows:
            for target, weights in self.weights.items():
                self.weight_rows += [(number, target, c, w) for c, w in weights.items()]


def _normalised(weights: Mapping[str, float]) -> dict[str, float]:
    total = sum(weights.values())
    return {k: (v / total if total else v) for k, v in weights.items()}

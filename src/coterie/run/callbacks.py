"""Objects that follow a run round by round, and may end it: early stopping, loggers, and callbacks of the user's own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, NamedTuple

from torch import Tensor, nn

from coterie.base.errors import InputError
from coterie.base.vector import Layout, export
from coterie.config.rules import NOT_NEGATIVE, SIZE, TEXT, Kind
from coterie.config.schema import options
from coterie.run.files import higher_is_better
from coterie.run.history import History


class Models(Mapping[str, Mapping[str, Tensor]]):
    """The models of an evaluation, to look at: a state dict by client, and under `*` the one for all that have none of their own.

    Each state dict is a copy: what a callback does with it changes no run.

    Args:
        vectors: the models [d + b] by client.
        module: the module that they belong to.
    """

    def __init__(self, vectors: Mapping[str, Tensor], module: nn.Module) -> None:
        self._vectors, self._module = vectors, module

    def __getitem__(self, client: str) -> Mapping[str, Tensor]:
        """Return the state dict of a client, or of all under `*`, for the module that is trained."""
        layout = Layout.of(self._module)
        copy = self._vectors[client].detach().clone()
        return export(copy, self._module, layout, trained_only=False)

    def __iter__(self) -> Iterator[str]:
        return iter(self._vectors)

    def __len__(self) -> int:
        return len(self._vectors)


class Metrics(NamedTuple):
    """Numbers and models of a run up to an evaluation.

    Attributes:
        history: all numbers so far, those of this evaluation last.
        round: of this evaluation.
        models: those of this evaluation: state dicts by client, and under `*` the one for all others. They are copies.

    >>> import coterie as ct, torch
    >>> class Shapes(ct.Callback):
    ...     decides = False
    ...     def on_evaluation(self, round, metrics):
    ...         weight = metrics.models["*"]["weight"]
    ...         print(round, tuple(weight.shape), len(metrics.means("loss", "test")))
    >>> settings = ct.RunSettings(evaluate=1, callbacks=(Shapes(),))
    >>> run = ct.fit("fedavg", "heart-disease", torch.nn.Linear(15, 1), rounds=1, settings=settings)
    0 (1, 15) 1
    1 (1, 15) 2
    """

    history: History
    round: int
    models: Mapping[str, Mapping[str, Tensor]] = {}

    def numbers(self) -> Iterator[tuple[str, float]]:
        """Name and value of each number of this round: `test/hungary/auc`, and without a client what belongs to the whole round."""
        for row in self.history.of_round(self.round):
            yield (
                "/".join(
                    part
                    for part in (row.split, row.client, row.metric)
                    if part not in ("", "*")
                ),
                row.value,
            )

    def means(self, metric: str, split: str) -> list[float]:
        """Mean of a metric over clients, each counting once, at every evaluation so far; without clients that lack it."""
        values: dict[int, list[float]] = {}
        for number, _, part, value in self.history.of_metric(metric):
            if part == split:
                values.setdefault(number, []).append(value)
        return [
            sum(of_clients) / len(of_clients)
            for _, of_clients in sorted(values.items())
        ]


class Callback:
    """Follows runs. Every hook does nothing by default.

    Attributes:
        decides: whether it may end a run, so that results depend on it. What it returns must follow from `metrics` alone, since a run
            that is resumed asks again about its last complete round.
        keeps_validation: whether validation rows must not be trained on.

    >>> import coterie as ct
    >>> class Watch(ct.Callback):
    ...     def on_evaluation(self, round, metrics):
    ...         return round >= 4  # true ends the run
    >>> clients = ct.data.load("heart-disease")
    >>> settings = ct.RunSettings(evaluate=2, callbacks=(Watch(),))
    >>> ct.fit(ct.FedAvg(), clients, model="logistic", rounds=10, settings=settings).rounds
    4
    """

    _kind: ClassVar = Kind("callback", "EarlyStopping(patience=3)")

    decides: ClassVar[bool] = True
    keeps_validation: ClassVar[bool] = False

    def check(self) -> None:
        """Raise `InputError` for what this machine lacks, before any training."""

    def begin(self, label: str, seed: int, rounds: int) -> Callback:
        """The callback that follows one run; by default this one follows all of them.

        Args:
            label: label of the method.
            seed: seed of the run.
            rounds: how many there will be at most.
        """
        return self

    def on_round(self, round: int) -> None:
        """A round is complete, and saved if `save_every` says so; 0 is the start; a resumed run tells its last saved round again."""

    def on_evaluation(self, round: int, metrics: Metrics) -> bool | None:
        """A round was evaluated, 0 and the last one among them; true ends the run after this round. `metrics.models` has its models."""
        return None

    def on_end(self) -> None:
        """The run is over, or failed."""


@options
class EarlyStopping(Callback):
    """End a run once its mean over clients on validation rows has not improved for a while; the last model counts.

    No method trains on validation rows then, whatever `merge_validation` says.

    Attributes:
        patience: evaluations without an improvement after which the run ends.
        metric: that must improve: loss, or a metric of the run.
        smallest: an improvement must be larger than this.

    >>> import coterie as ct
    >>> clients = ct.data.load("heart-disease")
    >>> settings = ct.RunSettings(evaluate=1, callbacks=(ct.EarlyStopping(patience=2),))
    >>> fast = ct.FedAvg(ct.LocalSGD(lr=3.0, steps=ct.Steps(20)))
    >>> ct.fit(fast, clients, model="logistic", rounds=50, settings=settings).rounds < 50
    True
    """

    patience: Annotated[int, SIZE] = 5
    metric: Annotated[str, TEXT] = "loss"
    smallest: Annotated[float, NOT_NEGATIVE] = 0.0

    keeps_validation = True

    def on_evaluation(self, round: int, metrics: Metrics) -> bool:
        """Return True if the best value lies `patience` evaluations back. Raises `InputError` if there is no such value."""
        sign = 1.0 if higher_is_better(self.metric) else -1.0
        values = [sign * value for value in metrics.means(self.metric, "validation")]
        if not values:
            raise InputError(
                f"early stopping needs {self.metric} on validation rows, and there is none; give split.parts a share for validation, "
                "name validation in run.evaluate.parts where that is set, or name a metric of the run"
            )
        return (
            len(values) - 1 - _last_improvement(values, self.smallest) >= self.patience
        )


def _last_improvement(values: Sequence[float], smallest: float) -> int:
    best, position = -math.inf, 0
    for i, value in enumerate(values):
        if value > best + smallest:
            best, position = value, i
    return position

"""Evaluation: the metrics of models on the rows of every client that has one, asked of the clients themselves."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.base.clients import Clients
from coterie.base.errors import InputError, cut, nearest
from coterie.base.metric_names import DEFAULT_METRICS, OF_COUNTS, OF_HAZARDS, OF_ORDERED
from coterie.base.modules import load_object
from coterie.base.rng import Rng
from coterie.compute.metrics import baselines, evaluate, find_metrics
from coterie.config.registry import METRICS, short_names
from coterie.config.run import (
    EVERYBODY,
    Evaluation,
    RunSettings,
    number_of_clients,
)
from coterie.contract.down import FLOAT32
from coterie.contract.federation import Federation, QuorumError
from coterie.contract.wire import PerClient
from coterie.run.files import SUMMARY
from coterie.run.history import ClientMetrics, Part, Row


class Measured(NamedTuple):
    """The loss and the metrics of clients on their rows of one split, and how many rows [k] these are."""

    metrics: ClientMetrics
    sizes: NDArray[np.int64]


logger = logging.getLogger("coterie")
SPLITS = ("train", "validation", "test")
GROWN = 10.0
"""Growth of the loss over that before training which counts as divergence."""


def is_evaluated(rounds: int, every: int, number: int) -> bool:
    """Return True if the models of round `number` of so many rounds are evaluated; round 0 is before the first."""
    return number in (0, rounds) or number % every == 0


class Divergence:
    """Says once that training diverges: in the first round whose mean loss (on training rows, if evaluated) has grown `GROWN` times."""

    def __init__(self) -> None:
        self._before: float | None = None
        self._told = False

    def notice(self, parts: Iterable[Part]) -> str:
        """A sentence if the next parts of the history, of one evaluation or of several, are the first to show divergence; else ""."""
        sentence = ""
        by_split: dict[str, dict[int, list[tuple[float, str]]]] = {}
        for part in parts:
            if isinstance(part, ClientMetrics):
                losses = part.values[:, part.metrics.index("loss")].tolist()
                by_split.setdefault(part.split, {})[part.round] = [
                    *zip(losses, part.clients, strict=True)
                ]
        split = min(by_split, key=SPLITS.index, default="")
        for number, losses in by_split.get(split, {}).items():
            mean = sum([value for value, _ in losses]) / len(losses)
            if self._before is None:
                self._before = mean
            initial = self._before
            if not self._told and mean > GROWN * initial > 0:
                self._told = True
                words = split.replace("train", "training")
                largest, worst = max(losses)
                sentence = (
                    f"round {number}: training diverges: the mean loss on {words} rows is {mean / initial:.3g} times that before "
                    f"training, largest for client {worst!r} ({largest:.3g}); lower the learning rate (local lr)"
                )
        return sentence


Served = Mapping[str, Tensor | None]
"""Models [d + b] by client, `*` for who has none of its own; None: a client's own, which stays with it."""


class _Look(NamedTuple):
    """The last evaluation of these models, by split."""

    round: int
    models: Served
    values: Mapping[str, Measured]


def _date(values: Mapping[str, Measured], number: int) -> dict[str, Measured]:
    """The same as of round `number`, by split."""
    return {
        split: Measured(replace(found.metrics, round=number), found.sizes)
        for split, found in values.items()
    }


def sample_clients(
    chosen: float | tuple[str, ...], everyone: tuple[str, ...], seed: int
) -> tuple[str, ...]:
    """The clients that are evaluated in between: a number or a share of all, drawn by the seed, or those named.

    Raises `InputError` for a name that there is not, and for more clients than there are.
    """
    if isinstance(chosen, tuple):
        for name in chosen:
            if name not in everyone:
                raise InputError(
                    f"run.evaluate: there is no client {name!r}; {nearest(name, everyone)}"
                )
        return tuple(sorted({*chosen}))
    count = number_of_clients(chosen, len(everyone))
    if count > len(everyone):
        raise InputError(
            f"run.evaluate: {count} clients of {len(everyone)} cannot be drawn; ask for fewer"
        )
    drawn = Rng.named(seed, "evaluate").permutation(len(everyone), count)
    return tuple(everyone[i] for i in sorted(drawn.tolist()))


class Evaluator:
    """Evaluates models, and remembers what it saw last until the next round begins.

    Where models `may_stand`, since a method solves for them in a few rounds and their outputs have no noise, what is unchanged since
    the last evaluation is not evaluated again.

    Attributes:
        seen: the models that were evaluated last, their round, and their metrics by split and client.
        own: clients that have made their models for themselves, so that nothing rounds these on their way down.
    """

    def __init__(
        self,
        federation: Federation,
        attempt: int,
        metrics: Iterable[str],
        settings: Evaluation = EVERYBODY,
        *,
        may_stand: bool = False,
    ) -> None:
        engine = federation.engine
        self._may_stand = may_stand
        self._standing = _Look(-1, {}, {})
        self._federation, self._attempt = federation, attempt
        self._engine, self._metrics = engine, tuple(metrics)
        self._splits = [s for s in SPLITS if any(engine.sizes(s).values())]
        self._looked_at = [
            s for s in self._splits if settings.parts is None or s in settings.parts
        ]
        if not self._looked_at:
            none = " or ".join(settings.parts or SPLITS)
            logger.warning(
                "run.evaluate: nobody has %s rows, so nothing is evaluated before the last round",
                none,
            )
        self._sample: tuple[str, ...] | None = None
        if settings.clients is not None:
            self._sample = sample_clients(
                settings.clients, engine.clients, federation.seed
            )
        self._last = settings.last
        self.own: frozenset[str] = frozenset()
        self.forget()

    def forget(self) -> None:
        """Let go of what was seen last: the models of an evaluation would else be held until the next one."""
        self.seen = _Look(-1, {}, {})

    def look(self, models: Served, number: int) -> list[Part]:
        """Parts of the history for the models of round `number`."""
        found = self._find_unchanged(models, number)
        if found is None:
            found = {}
            for split in self._looked_at:
                measured = self._measure(models, split, number, only=self._sample)
                if measured is not None:
                    found[split] = measured
        self.seen = _Look(number, models, found)
        if self._may_stand:
            self._standing = self.seen
        return self._parts()

    def repeat(self, number: int) -> list[Part]:
        """Parts of the history for round `number`, in which the models are those that were evaluated last."""
        values = _date(self.seen.values, number)
        self.seen = self.seen._replace(round=number, values=values)
        return self._parts()

    def _parts(self) -> list[Part]:
        spent = float(self._federation.session.spent["row_gradients"])
        gradients = Row(self.seen.round, "*", "", "row_gradients", spent)
        return [gradients, *[found.metrics for found in self.seen.values.values()]]

    def _find_unchanged(
        self, models: Served, number: int
    ) -> dict[str, Measured] | None:
        """What the last evaluation found, if these are its models and it has failed nobody; else None."""
        _, before, values = self._standing
        if not values or before.keys() != models.keys():
            return None
        for name, x in models.items():
            old = before[name]
            if x is None or old is None or not torch.equal(x, old):
                return None
        for split in self._looked_at:
            names = self._names(models, split, self._sample)
            told: Sequence[str] = ()
            if split in values:
                told = values[split].metrics.clients
            if [*told] != names:
                return None
        return _date(values, number)

    def _names(
        self, models: Served, split: str, only: tuple[str, ...] | None
    ) -> list[str]:
        """The clients, of all or of some, that have a model and rows of this split."""
        sizes = self._engine.sizes(split)
        candidates: Iterable[str] = sizes
        if only is not None:
            candidates = only
        names = [name for name in candidates if sizes[name]]
        if "*" in models:
            return names
        return [name for name in names if name in models]

    def _measure(
        self,
        models: Served,
        split: str,
        number: int,
        earlier: Measured | None = None,
        only: tuple[str, ...] | None = None,
    ) -> Measured | None:
        """Metrics of each client's model, for clients that have one and have rows of this split; asked of those not in `earlier`.

        None if there is no such client.
        """
        names_with_rows = self._names(models, split, only)
        known = {*earlier.metrics.clients} if earlier else set[str]()
        names = [n for n in names_with_rows if n not in known]
        found = [earlier] if earlier else []
        for view, group, x in self._views_of(models, names, number):
            try:
                replies = view.ask(
                    group, evaluate, x=x, part=split, metrics=self._metrics
                )
            except QuorumError:  # who failed before has failed again
                if earlier:
                    continue
                raise
            loss = replies.loss.cpu().double()[:, None]
            values = torch.cat([loss, replies.values.cpu().double()], dim=1)
            metrics_told = replies.defined.cpu()
            loss_told = torch.ones_like(loss, dtype=torch.bool)
            if not self._engine.simulated:
                # Sites that hide rows tell a loss only where [privacy] tell names it, and never one of 0.
                loss_told = (loss != 0) | metrics_told.any(dim=1, keepdim=True)
            defined = torch.cat([loss_told, metrics_told], dim=1)
            table = ClientMetrics(
                round=number,
                split=split,
                clients=tuple(replies.clients),
                metrics=("loss", *self._metrics),
                values=values.numpy(),
                defined=defined.numpy(),
            )
            found.append(Measured(table, replies.rows.cpu().long().numpy()))
        if len(found) == 1 and [*found[0].metrics.clients] == names_with_rows:
            return found[0]
        return _join_measured(found, names_with_rows)

    def summarise(self, models: Served, rounds: int) -> list[dict[str, Any]]:
        """Rows as in `summary.json` for the models of the last round, but without method and algorithm."""
        trained = self._engine.sizes("train")
        unseen, seed = set(self._engine.unseen), self._federation.seed
        row_gradients = self._federation.session.spent["row_gradients"]
        summary: list[dict[str, Any]] = []
        splits, only = self._looked_at, self._sample
        if self._last:
            splits, only = self._splits, None
        for split in splits:
            # After the last round most is known: not of a client that failed then, and nothing where a finished run is resumed.
            earlier = None
            if self.seen.models is models:
                earlier = self.seen.values.get(split)
            measured = self._measure(models, split, rounds, earlier, only)
            if measured is None:
                continue
            table = measured.metrics
            constant = self._constant_predictions(table.clients, split, rounds)
            # All keys in their order: a copy of it takes two thirds of the time of a dict that grows.
            blank: dict[str, Any] = {
                "seed": seed,
                "client": "",
                "split": split,
                "n": 0,
                "n_train": 0,
                "loss": None,
                **dict.fromkeys((*self._metrics, "majority", "majority_loss")),
                "row_gradients": row_gradients,
                "own_model": False,
                "rounds": rounds,
            }
            # As lists: one number after the other out of an array takes longer than the metrics of a small client.
            sizes = measured.sizes.tolist()
            values, defined = table.values.tolist(), table.defined.tolist()
            for i, name in enumerate(table.clients):
                row = blank.copy()
                for j, metric in enumerate(table.metrics):
                    row[metric] = values[i][j] if defined[i][j] else None
                row["client"], row["n"], row["n_train"] = name, sizes[i], trained[name]
                row["own_model"] = name in models
                if name in constant:
                    row["majority"], row["majority_loss"] = constant[name]
                if name in unseen:
                    row["unseen"] = True
                summary.append(row)
        return summary

    def _views_of(
        self, models: Served, names: Sequence[str], number: int
    ) -> Iterator[tuple[Federation, list[str], Tensor | PerClient | None]]:
        """Yield clients with their models, as `models_of` does, and the view in which they are asked."""
        view = self._view(number)
        own: frozenset[str] = frozenset()
        if view.down != FLOAT32:
            own = self.own
        sent = [name for name in names if name not in own]
        for group, x in models_of(models, sent):
            yield view, group, x
        at_home = [name for name in names if name in own]
        for group, x in models_of(models, at_home):
            yield replace(view, down=FLOAT32), group, x

    def _view(self, number: int) -> Federation:
        return self._federation.view(self._engine.clients, number, self._attempt)

    def _constant_predictions(
        self, names: tuple[str, ...], split: str, number: int
    ) -> dict[str, tuple[float, float]]:
        """Accuracy of a client's largest class and log-loss of its training shares, for each client where they are defined."""
        constant = self._view(number).ask(names, baselines, part=split)
        accuracies = constant.majority.tolist()
        losses = constant.majority_loss.tolist()
        return {
            constant.clients[i]: (accuracies[i], losses[i])
            for i in torch.nonzero(constant.defined).flatten().tolist()
        }


def _join_measured(found: Sequence[Measured], names: Sequence[str]) -> Measured | None:
    """The metrics that were found of these clients, in this order; None if there are none."""
    if not found:
        return None
    tables = [part.metrics for part in found]
    clients: list[str] = []
    for table in tables:
        clients += table.clients
    places = {client: place for place, client in enumerate(clients)}
    ordered = tuple(name for name in names if name in places)
    order = [places[name] for name in ordered]
    joined = replace(
        tables[0],
        clients=ordered,
        values=np.concatenate([table.values for table in tables])[order],
        defined=np.concatenate([table.defined for table in tables])[order],
    )
    return Measured(joined, np.concatenate([part.sizes for part in found])[order])


def models_of(
    models: Served, names: Sequence[str]
) -> Iterator[tuple[list[str], Tensor | PerClient | None]]:
    """Yield some of these clients with the model [d + b] that they all use, or with one for each where any has a model of its own.

    None is for those whose own models stay with them.
    """
    at_hand: dict[str, Tensor] = {}
    elsewhere: list[str] = []
    for name in names:
        x = models[name if name in models else "*"]
        if x is None:
            elsewhere.append(name)
        else:
            at_hand[name] = x
    if at_hand and models.keys().isdisjoint(at_hand):
        yield list(at_hand), models["*"]
    elif at_hand:
        yield list(at_hand), PerClient(torch.stack(list(at_hand.values())))
    if elsewhere:
        yield elsewhere, None


def name_metrics(metrics: Iterable[Any]) -> tuple[str, ...]:
    """Register the functions among metrics, or those of a dict, and return the metrics by their names."""
    functions = metrics if isinstance(metrics, Mapping) else {}
    names = []
    for entry in metrics:
        metric, (name,) = functions.get(entry, entry), short_names([entry])
        is_registered = name in METRICS and METRICS[name] is metric
        if callable(metric) and not is_registered:
            METRICS.add(name, _with_kind(metric))
        names.append(getattr(entry, "__name__", entry))
    return tuple(names)


def _with_kind(metric: Callable[..., Any]) -> Callable[..., Any]:
    """The function as every metric is called, with outputs, labels and kind; one that takes two is not told the kind."""
    signature = inspect.signature(metric)
    try:
        signature.bind(None, None)
    except TypeError:
        return metric
    if "kind" in signature.parameters:
        return metric
    return functools.wraps(metric)(
        lambda outputs, labels, kind: metric(outputs, labels)
    )


def add_metrics(metrics: Iterable[str]) -> None:
    """Register the metrics that come from files of the user.

    Raises:
        InputError: A metric is unknown, is not a function, or has the name of a column of summary.json.
    """
    metrics = tuple(metrics)
    for metric, name in zip(metrics, short_names(metrics), strict=True):
        if name in (*SUMMARY, "loss"):
            raise InputError(
                f"{name!r} is a column of summary.json; give the metric another name"
            )
        if ".py:" in metric:
            function = load_object(metric)
            if not callable(function):
                raise InputError(
                    f"{metric} must be a function {METRICS.function}; got {cut(function)}"
                )
            METRICS.add(name, function)
    find_metrics([metric for metric in metrics if ".py:" not in metric])


RARE = 0.05
"""Share of the rarer class below which an outcome counts as rare."""


def metrics_by_label(clients: Clients) -> tuple[str, ...]:
    """Return names of the metrics that a label calls for beside the usual ones: of counts, of ordered classes, of a rare outcome,
    of time to event.
    """
    label, labels = (clients.recipe or {}).get("label", {}), clients.plain_labels
    if clients.form.kind == "hazards":
        return OF_HAZARDS
    if clients.form.kind == "count":
        return OF_COUNTS
    if clients.form.kind == "ordered":
        return OF_ORDERED
    if label.get("count"):
        return ("poisson_deviance",)
    if label.get("kind") == "number" and len(label.get("values", ())) > 2:
        return ("class_error",)
    if labels.is_floating_point() or labels.ndim > 1 or int(labels.max()) != 1:
        return ()
    cases = int((labels == 1).sum())
    rarer = min(cases, len(labels) - cases)
    if 0 < rarer < RARE * len(labels):
        return ("auprc",)
    return ()


def _refuse_own(metrics: Iterable[str]) -> None:
    """Raise `InputError` for a metric that is not the library's, which would count all rows alike."""
    for name in metrics:
        if METRICS.find(name).__module__ != evaluate.function.__module__:
            raise InputError(
                f"the metric {name!r} of your own counts all rows alike, and these have weights; leave out that metric, or weights"
            )


def with_metrics(settings: RunSettings, clients: Clients) -> RunSettings:
    """Return the settings with the user's own metrics by their names, or if none are chosen with those that the label calls for."""
    names = name_metrics(settings.metrics)
    add_metrics(names)
    metrics = short_names(names)
    if clients.form_is_weighted:
        _refuse_own(metrics)
    if settings.metrics == DEFAULT_METRICS:
        metrics += metrics_by_label(clients)
    return replace(settings, metrics=metrics)

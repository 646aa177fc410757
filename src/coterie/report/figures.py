"""The numbers behind the figures of the HTML report: plain lists that its script draws; nothing here draws."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from coterie.report.decisions import CURVE, PER, decision_curve, treat_all
from coterie.report.groups import order_of
from coterie.report.history import Curve, Vector
from coterie.report.operating import GRID, Reliability, Roc, reliability, roc
from coterie.report.results import Results
from coterie.report.series import Weights
from coterie.report.statistics import Difference, deviation
from coterie.report.text import printable

DOTS = 12
PANELS = 8
TARGETS = 60
FRAMES = 25
POINTS = 120
MEAN = "mean of all"


def data(results: Results, tested: Sequence[str] = ()) -> dict[str, Any]:
    """All figures, with curves of their rows for the clients `tested`; every number is finite or None."""
    return {
        "split": results.split,
        "baseline": results.baseline and printable(results.baseline),
        "other": results.against and printable(results.against),
        "decides": results.comparisons.telling,
        "methods": _methods(results),
        "metrics": [_describe_metric(results, m) for m in results.metrics],
        "points": {m: _points(results, m) for m in results.metrics},
        "gaps": {m: _gaps(results, m) for m in results.metrics},
        "curves": _curves_by_metric(results),
        "weights": _weights(results),
        "tests": _tests(results, tested),
    }


def spread_evenly(length: int, most: int) -> list[int]:
    """At most `most` of `length` positions, evenly spread, first and last included.

    >>> spread_evenly(9, 3), spread_evenly(2, 3)
    ([0, 4, 8], [0, 1])
    """
    return sorted({round(i) for i in np.linspace(0, length - 1, min(length, most))})


def _describe_metric(results: Results, metric: str) -> dict[str, Any]:
    sign = 1 if results.higher_is_better(metric) else -1
    return {
        "key": metric,
        "name": results.metric_name(metric),
        "title": results.metric_title(metric),
        "sign": sign,
    }


def _methods(results: Results) -> list[dict[str, Any]]:
    """Label and colour of each method: 0 and 1 are the greys of `local` and of references."""
    free = 2
    entries = []
    for method in results.methods:
        if method == results.baseline:
            colour = 0
        elif method in results.references:
            colour = 1
        else:
            colour = free
            free += 1
        entries.append({"label": printable(method), "colour": colour})
    return entries


def _number(value: float | None) -> float | None:
    # NaN and infinity are no JSON: the script of the page draws None as a gap.
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.5g}")


def _numbers(values: Sequence[float] | Vector) -> list[float | None]:
    return [_number(float(v)) for v in values]


def _clients(results: Results, metric: str) -> list[str | None]:
    """The clients of a dot plot, and None for the mean over all."""
    shown: list[str | None] = list(results.extremes(metric, DOTS))
    if len(results.clients) > 1:
        shown.append(None)
    return shown


def _name(results: Results, client: str | None, mean: str = MEAN) -> str:
    """A client as people write it; `mean` for the mean over clients, None."""
    if client is None:
        return mean
    return results.names[client]


def _mean_of(results: Results, count: int) -> str:
    """What the mean over `count` of the clients is called."""
    if 0 < count < len(results.clients):
        return f"mean of {count}"
    return MEAN


def _points(results: Results, metric: str) -> dict[str, Any]:
    """Mean and spread over seeds per client and method, and the constant prediction to beat."""
    clients = _clients(results, metric)
    rows = []
    for method in results.methods:
        means, spreads = [], []
        for client in clients:
            values = results.values(method, client, metric)
            finite = values[np.isfinite(values)]
            means.append(_mean(finite))
            spreads.append(deviation(finite))
        rows.append({"mean": _numbers(means), "std": _numbers(spreads)})
    return {
        "clients": [_name(results, c) for c in clients],
        "rows": rows,
        "constant": _constant(results, clients, metric),
    }


def _constant(
    results: Results, clients: Sequence[str | None], metric: str
) -> dict[str, Any] | None:
    """The name of the prediction without a model, and its score at each client; None where no client has one."""
    name = ""
    means = []
    for client in clients:
        name, scores = results.comparisons.trivial(client, metric)
        means.append(_mean(scores[np.isfinite(scores)]))
    values = _numbers(means)
    if all(v is None for v in values):
        return None
    return {"name": name, "values": values}


def _mean(finite: Vector) -> float:
    """The mean of values; NaN of none, without numpy's warning."""
    if not finite.size:
        return math.nan
    return float(finite.mean())


def _gaps(results: Results, metric: str) -> dict[str, Any] | None:
    """Differences to `against` with their intervals; None if there is nothing to compare."""
    rival = results.against
    if rival is None or len(results.methods) < 2:
        return None
    clients = _clients(results, metric)
    rows: list[dict[str, Any] | None] = []
    for method in results.methods:
        if method == rival:
            rows.append(None)
            continue
        differences = [results.difference(method, rival, c, metric) for c in clients]
        rows.append(_gap_row(differences))
    # The mean is over the clients for whom the metric decides, if there are any.
    judged = sum(results.comparisons.decides(c, metric) for c in results.clients)
    mean = _mean_of(results, judged)
    names = [_name(results, client, mean) for client in clients]
    return {"clients": names, "rows": rows}


def _gap_row(differences: Sequence[Difference | None]) -> dict[str, list[Any]]:
    """The differences of one method by what is drawn of them: lists in the order of the clients."""
    row: dict[str, list[Any]] = {
        key: [] for key in ("mean", "low", "high", "verdict", "shown")
    }
    for difference in differences:
        if difference is None:
            mean, low, high, words, shown = None, None, None, None, 0
        else:
            mean, low, high = difference.mean, difference.low, difference.high
            words, shown = difference.words, 0
            if difference.strength == "shown":
                shown = difference.sign
        row["mean"].append(_number(mean))
        row["low"].append(_number(low))
        row["high"].append(_number(high))
        row["verdict"].append(words)
        row["shown"].append(shown)
    return row


def _curves_by_metric(results: Results) -> dict[str, list[dict[str, Any]]]:
    """The panels of each metric of which the history holds curves."""
    by_metric = {}
    for metric in results.metrics:
        panels = _curves(results, metric)
        if panels:
            by_metric[metric] = panels
    return by_metric


def _curves(results: Results, metric: str) -> list[dict[str, Any]]:
    """One panel per client: mean and spread over seeds by round."""
    panels = []
    if len(results.clients) > 1:
        with_curve: set[str] = set()
        for method in results.methods:
            with_curve |= results.history.clients_with(method, results.split, metric)
        judged = len(with_curve & set(results.clients))
        curves = [_mean_curve(results, m, metric) for m in results.methods]
        rows = [_curve(c) for c in curves]
        panels.append({"client": _mean_of(results, judged), "rows": rows})
    for client in results.extremes(metric, PANELS):
        curves = [results.curve(m, client, metric) for m in results.methods]
        panels.append(
            {"client": results.names[client], "rows": [_curve(c) for c in curves]}
        )
    if not any(any(panel["rows"]) for panel in panels):
        return []
    return panels


def _mean_curve(results: Results, method: str, metric: str) -> Curve | None:
    """The mean over clients, where all of them have the same rounds and seeds."""
    by_client = [results.curve(method, c, metric) for c in results.clients]
    curves = [c for c in by_client if c is not None]
    shapes = {c.values.shape for c in curves}
    if len(shapes) != 1:
        return None
    return Curve(curves[0].rounds, np.mean([c.values for c in curves], axis=0))


def _curve(curve: Curve | None) -> dict[str, Any] | None:
    if curve is None:
        return None
    places = spread_evenly(len(curve.rounds), POINTS)
    finite = np.isfinite(curve.values)
    count = finite.sum(axis=0)
    # A round without a finite value divides 0 by 0: NaN, which is drawn as a gap.
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(finite, curve.values, 0).sum(axis=0) / count
        squares = np.where(finite, (curve.values - mean) ** 2, 0)
        spread = np.sqrt(squares.sum(axis=0) / (count - 1))
    return {
        "rounds": [int(curve.rounds[i]) for i in places],
        "mean": _numbers(mean[places]),
        "std": _numbers(spread[places]),
    }


def _tests(results: Results, clients: Sequence[str]) -> dict[str, Any]:
    """ROC and reliability by client and method, decision curves, and the method that speaks, which is shown first."""
    outcomes = results.comparisons.outcomes
    panels = []
    for client in clients:
        tested = [outcomes.rows(m, client) for m in results.methods]
        bins = [reliability(rows) for rows in tested]
        if not any(bins):
            continue
        rival = results.against or ""
        share = outcomes.positive(rival, client) or 0.0
        everybody = [PER * treat_all(share, t) for t in CURVE]
        panels.append(
            {
                "client": results.names[client],
                "roc": [_columns(roc(rows)) for rows in tested],
                "bins": [_columns(curve) for curve in bins],
                "benefit": [_benefit(results, m, client) for m in results.methods],
                "all": _numbers(np.array(everybody)),
            }
        )
    shown = 0
    if results.primary is not None:
        shown = results.methods.index(results.primary)
    risks = _numbers(CURVE)
    return {"grid": _numbers(GRID), "risks": risks, "clients": panels, "first": shown}


def _benefit(results: Results, method: str, client: str) -> list[float | None] | None:
    curve = decision_curve(results, method, client)
    if curve is None:
        return None
    return _numbers(np.round(curve, 3))


def _columns(
    curve: Roc | Reliability | None,
) -> dict[str, list[float | None] | None] | None:
    if curve is None:
        return None
    columns: dict[str, list[float | None] | None] = {}
    for name, values in curve._asdict().items():
        if values is None:
            columns[name] = None
        else:
            columns[name] = [_number(round(float(x), 4)) for x in values]
    return columns


def _weights(results: Results) -> list[dict[str, Any]]:
    """Draw who helps whom, per method that weighs: by round, and the mean over the second half of the rounds."""
    if results.metrics:
        shown = set(results.extremes(results.metrics[0], TARGETS))
    else:
        shown = set(results.clients)
    entries = []
    for method, weights in results.weights.items():
        if results.algorithms[method] == "local" or method in results.references:
            continue
        entries.append(_weights_of(results, method, weights, shown))
    return entries


def _weights_of(
    results: Results, method: str, weights: Weights, shown: Collection[str]
) -> dict[str, Any]:
    """The weights of one method between the clients `shown`, and between those that the summary does not name."""
    # "*" is the target of a method with one model for all.
    kept_targets = {"*", *shown}
    targets, clients = [], []
    for position, name in enumerate(weights.targets):
        if name in kept_targets or name not in results.names:
            targets.append(position)
    for position, name in enumerate(weights.clients):
        if name in shown or name not in results.names:
            clients.append(position)
    target_names = [weights.targets[i] for i in targets]
    client_names = [weights.clients[i] for i in clients]
    if target_names == client_names:
        # A square table: friends stand next to each other.
        order = order_of(weights.late()[np.ix_(targets, clients)])
        targets = [targets[i] for i in order]
        clients = [clients[i] for i in order]

    rounds = spread_evenly(len(weights.rounds), FRAMES)
    frames = weights.values[np.ix_(rounds, targets, clients)]
    late_weights = weights.late()[np.ix_(targets, clients)]
    return {
        "method": printable(method),
        "targets": [_partner(results, weights.targets[i]) for i in targets],
        "clients": [_partner(results, weights.clients[i]) for i in clients],
        "rounds": [int(weights.rounds[i]) for i in rounds],
        "frames": [_rounded(frame) for frame in frames],
        "late": _rounded(late_weights),
        "omitted": len(weights.clients) - len(clients),
    }


def _partner(results: Results, name: str) -> str:
    if name == "*":
        return "one model for all"
    return results.names.get(name, printable(name))


def _rounded(matrix: Vector) -> list[list[float]]:
    """Rows of a table [targets, clients] with four decimals."""
    rows = []
    for row in matrix:
        rows.append([round(float(weight), 4) for weight in row])
    return rows

"""The numbers behind the figures of the HTML report: plain lists that its script draws; nothing here draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from coterie.report.decisions import CURVE, PER, decision_curve, treat_all
from coterie.report.groups import order_of
from coterie.report.history import Curve, Vector
from coterie.report.operating import GRID, Reliability, Roc, reliability, roc
from coterie.report.results import Results
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
        "metrics": [
            {
                "key": m,
                "name": results.metric_name(m),
                "title": results.metric_title(m),
                "sign": 1 if results.higher_is_better(m) else -1,
            }
            for m in results.metrics
        ],
        "points": {m: _points(results, m) for m in results.metrics},
        "gaps": {m: _gaps(results, m) for m in results.metrics},
        "curves": {
            m: panels for m in results.metrics if (panels := _curves(results, m))
        },
        "weights": _weights(results),
        "tests": _tests(results, tested),
    }


def spread_evenly(length: int, most: int) -> list[int]:
    """At most `most` of `length` positions, evenly spread, first and last included.

    >>> spread_evenly(9, 3), spread_evenly(2, 3)
    ([0, 4, 8], [0, 1])
    """
    return sorted({round(i) for i in np.linspace(0, length - 1, min(length, most))})


def _methods(results: Results) -> list[dict[str, Any]]:
    """Label and colour of each method: 0 and 1 are the greys of `local` and of references."""
    free = 2
    entries = []
    for method in results.methods:
        colour = (
            0
            if method == results.baseline
            else 1
            if method in results.references
            else free
        )
        free += colour == free
        entries.append({"label": printable(method), "colour": colour})
    return entries


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")


def _numbers(values: Sequence[float] | Vector) -> list[float | None]:
    return [_number(float(v)) for v in values]


def _clients(results: Results, metric: str) -> list[str | None]:
    """The clients of a dot plot, and None for the mean over all."""
    shown: list[str | None] = list(results.extremes(metric, DOTS))
    return [*shown, None] if len(results.clients) > 1 else shown


def _name(results: Results, client: str | None) -> str:
    return MEAN if client is None else results.names[client]


def _points(results: Results, metric: str) -> dict[str, Any]:
    """Mean and spread over seeds per client and method, and the constant prediction to beat."""
    clients = _clients(results, metric)
    rows = []
    for method in results.methods:
        by_client = [results.values(method, c, metric) for c in clients]
        finite = [v[np.isfinite(v)] for v in by_client]
        means = [float(v.mean()) if v.size else math.nan for v in finite]
        spreads = [float(v.std(ddof=1)) if v.size > 1 else math.nan for v in finite]
        rows.append({"mean": _numbers(means), "std": _numbers(spreads)})
    named = [results.comparisons.trivial(c, metric) for c in clients]
    name, constants = named[0][0], [scores for _, scores in named]
    values = _numbers(
        [
            float(v[np.isfinite(v)].mean()) if np.isfinite(v).any() else math.nan
            for v in constants
        ]
    )
    constant = (
        {"name": name, "values": values} if any(v is not None for v in values) else None
    )
    return {
        "clients": [_name(results, c) for c in clients],
        "rows": rows,
        "constant": constant,
    }


def _gaps(results: Results, metric: str) -> dict[str, Any] | None:
    """Differences to `against` with their intervals; None if there is nothing to compare."""
    rival = results.against
    if rival is None or len(results.methods) < 2:
        return None
    clients = _clients(results, metric)
    rows: list[dict[str, Any] | None] = []
    for method in results.methods:
        differences = [results.difference(method, rival, c, metric) for c in clients]
        row = {
            "mean": [_number(d.mean) if d else None for d in differences],
            "low": [_number(d.low) if d else None for d in differences],
            "high": [_number(d.high) if d else None for d in differences],
            "verdict": [d.words if d else None for d in differences],
            "shown": [
                d.sign if d and d.strength == "shown" else 0 for d in differences
            ],
        }
        rows.append(row if method != rival else None)
    judged = sum(
        results.comparisons.decides(c, metric) for c in results.clients
    )  # the mean is over them, if there are any
    mean = f"mean of {judged}" if 0 < judged < len(results.clients) else MEAN
    return {
        "clients": [mean if c is None else results.names[c] for c in clients],
        "rows": rows,
    }


def _curves(results: Results, metric: str) -> list[dict[str, Any]]:
    """One panel per client: mean and spread over seeds by round."""
    shown = results.extremes(metric, PANELS)
    panels = []
    if len(results.clients) > 1:
        having = [
            results.history.clients_with(m, results.split, metric)
            for m in results.methods
        ]
        with_curve = len(set(results.clients) & set[str]().union(*having))
        mean = f"mean of {with_curve}" if with_curve < len(results.clients) else MEAN
        panels.append(
            {
                "client": mean,
                "rows": [
                    _curve(_mean_curve(results, m, metric)) for m in results.methods
                ],
            }
        )
    panels += [
        {
            "client": results.names[c],
            "rows": [_curve(results.curve(m, c, metric)) for m in results.methods],
        }
        for c in shown
    ]
    return panels if any(any(panel["rows"]) for panel in panels) else []


def _mean_curve(results: Results, method: str, metric: str) -> Curve | None:
    """The mean over clients, where all of them have the same rounds and seeds."""
    by_client = [results.curve(method, c, metric) for c in results.clients]
    curves = [c for c in by_client if c is not None]
    if not curves or any(c.values.shape != curves[0].values.shape for c in curves):
        return None
    return Curve(curves[0].rounds, np.mean([c.values for c in curves], axis=0))


def _curve(curve: Curve | None) -> dict[str, Any] | None:
    if curve is None:
        return None
    places = spread_evenly(len(curve.rounds), POINTS)
    finite = np.isfinite(curve.values)
    count = finite.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(finite, curve.values, 0).sum(axis=0) / count
        spread = np.sqrt(
            np.where(finite, (curve.values - mean) ** 2, 0).sum(axis=0) / (count - 1)
        )
    rounds = [int(curve.rounds[i]) for i in places]
    return {
        "rounds": rounds,
        "mean": _numbers(mean[places]),
        "std": _numbers(spread[places]),
    }


def _tests(results: Results, clients: Sequence[str]) -> dict[str, Any]:
    """ROC and reliability by client and method, decision curves, and the method that speaks, which is shown first."""
    panels = []
    for client in clients:
        tested = [results.comparisons.outcomes.rows(m, client) for m in results.methods]
        curves, bins = (
            [roc(rows) for rows in tested],
            [reliability(rows) for rows in tested],
        )
        if any(bins):
            share = results.comparisons.outcomes.positive(results.against or "", client)
            everybody = [PER * treat_all(share or 0.0, t) for t in CURVE]
            curves_of_client = {
                "roc": [_columns(curve) for curve in curves],
                "bins": [_columns(curve) for curve in bins],
                "benefit": [_benefit(results, m, client) for m in results.methods],
                "all": _numbers(np.array(everybody)),
            }
            panels.append({"client": results.names[client], **curves_of_client})
    primary = results.primary
    shown = 0 if primary is None else results.methods.index(primary)
    risks = _numbers(CURVE)
    return {"grid": _numbers(GRID), "risks": risks, "clients": panels, "first": shown}


def _benefit(results: Results, method: str, client: str) -> list[float | None] | None:
    curve = decision_curve(results, method, client)
    return None if curve is None else _numbers(np.round(curve, 3))


def _columns(
    curve: Roc | Reliability | None,
) -> dict[str, list[float | None] | None] | None:
    if curve is None:
        return None
    return {
        k: None if v is None else [_number(round(float(x), 4)) for x in v]
        for k, v in curve._asdict().items()
    }


def _weights(results: Results) -> list[dict[str, Any]]:
    """Draw who helps whom, per method that weighs: by round, and the mean over the second half of the rounds."""
    entries = []
    shown = (
        set(results.extremes(results.metrics[0], TARGETS))
        if results.metrics
        else set(results.clients)
    )
    for method, weights in results.weights.items():
        if results.algorithms[method] == "local" or method in results.references:
            continue
        targets = [
            i
            for i, t in enumerate(weights.targets)
            if t == "*" or t in shown or t not in results.names
        ]
        clients = [
            i
            for i, c in enumerate(weights.clients)
            if c in shown or c not in results.names
        ]
        if [weights.targets[i] for i in targets] == [
            weights.clients[i] for i in clients
        ]:  # friends beside each other
            order = order_of(weights.late()[np.ix_(targets, clients)])
            targets, clients = [targets[i] for i in order], [clients[i] for i in order]
        places = spread_evenly(len(weights.rounds), FRAMES)
        frames = weights.values[np.ix_(places, targets, clients)]
        late_weights = weights.late()[np.ix_(targets, clients)]
        names = {"*": "one model for all", **results.names}
        entries.append(
            {
                "method": printable(method),
                "targets": [
                    names.get(weights.targets[i], printable(weights.targets[i]))
                    for i in targets
                ],
                "clients": [
                    names.get(weights.clients[i], printable(weights.clients[i]))
                    for i in clients
                ],
                "rounds": [int(weights.rounds[i]) for i in places],
                "frames": [
                    [[round(float(w), 4) for w in row] for row in frame]
                    for frame in frames
                ],
                "late": [[round(float(w), 4) for w in row] for row in late_weights],
                "omitted": len(weights.clients) - len(clients),
            }
        )
    return entries

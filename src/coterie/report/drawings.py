"""Small drawings of the HTML report, as numbers that the template writes as SVG: forest plots, and who helps whom."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from coterie.report.results import Results
from coterie.report.statistics import Difference
from coterie.report.text import listing, printable, whole_percent, with_sign
from coterie.report.verdicts import late_shares

NODES = 12
ARROW = 0.05
HEIGHT, RING = 400, 140
LETTERS, LETTER = 20, 7
"""Of a name: how many are shown, and how wide one is at 13 pixels."""


class Bar(NamedTuple):
    """One difference to training alone: positions from 0 to 100 (50 is no difference), what it shows, and its words."""

    at: float
    low: float
    high: float
    state: str
    text: str
    label: str


class Forest(NamedTuple):
    """The differences of one client: `rows` of (method, whether it is a reference, a bar or None for each of `metrics`)."""

    metrics: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, bool, tuple[Bar | None, ...]], ...]


def forest(results: Results, client: str | None) -> Forest | None:
    """Every method against training alone in what decides; None if there is nothing to compare."""
    base, metrics = results.baseline, results.comparisons.deciding(client)
    methods = [m for m in results.methods if m != base]
    if base is None or not methods or not metrics:
        return None
    differences = {
        (m, k): results.difference(m, base, client, k) for m in methods for k in metrics
    }
    reach = {
        k: max(
            (_reach(d) for (_, name), d in differences.items() if name == k and d),
            default=0.0,
        )
        or 1.0
        for k in metrics
    }
    rows = tuple(
        (
            printable(m),
            m in results.references,
            tuple(
                _bar(
                    differences[m, k],
                    reach[k],
                    results.metric_name(k),
                    results.magnitude.get(k),
                )
                for k in metrics
            ),
        )
        for m in methods
    )
    sides = tuple(
        (
            results.metric_name(k),
            "better →" if results.higher_is_better(k) else "← better",
        )
        for k in metrics
    )
    return Forest(sides, rows)


def _reach(difference: Difference) -> float:
    return max(
        abs(v)
        for v in (difference.mean, difference.low, difference.high)
        if v is not None
    )


def _bar(
    difference: Difference | None, reach: float, metric: str, size: float | None
) -> Bar | None:
    if difference is None:
        return None
    low, high = (
        difference.mean if v is None else v for v in (difference.low, difference.high)
    )
    centre, low_end, right = (
        round(50 + 46 * v / reach, 2) for v in (difference.mean, low, high)
    )
    bounded = difference.low is not None
    interval = (
        f"{with_sign(difference.low, size)} to {with_sign(difference.high, size)}"
        if bounded
        else "no interval"
    )
    mean = with_sign(difference.mean, size)
    state = ("good" if difference.sign > 0 else "bad") if difference.sign else "open"
    judgement = f", {difference.words}" if difference.sign else ""
    judged_unbroken = judgement.replace("ly ", "ly\u00a0")  # on one line
    sentence = f"{metric} {mean}, 95 % interval {interval}{judgement}"
    return Bar(
        centre, low_end, right, state, f"{mean} ({interval}){judged_unbroken}", sentence
    )


def network(results: Results) -> dict[str, Any] | None:
    """Clients on a ring, as large as they have rows, with an arrow for every weight of at least 5 %, under the first method with
    weights for each client; None where there is none, or clients are too many to draw.
    """
    method = next(
        (
            m
            for m in results.federated
            if m in results.weights and len(results.weights[m].targets) > 1
        ),
        None,
    )
    if method is None or not 1 < len(results.clients) <= NODES:
        return None
    rows = {c: results.size(c, "n_train") for c in results.clients}
    most = max((r for r in rows.values() if math.isfinite(r)), default=1.0)
    nodes, count = {}, len(results.clients)
    names = {c: _shorten(results.names[c]) for c in results.clients}
    middle = RING + 34 + LETTER * max(map(len, names.values()))
    largest = min(
        28, 0.6 * RING * math.sin(math.pi / count)
    )  # neighbours are two such sines apart
    for i, client in enumerate(results.clients):
        angle = 2 * math.pi * i / count - math.pi / 2
        share = rows[client] / most if math.isfinite(rows[client]) else 0.1
        size = largest * (0.36 + 0.64 * math.sqrt(share))
        nodes[client] = (
            middle + RING * math.cos(angle),
            HEIGHT / 2 + RING * math.sin(angle),
            size,
        )
    arrows = []
    for target in results.clients:
        shares = late_shares(results, target, method)
        total = sum(shares.values())
        for helper, share in shares.items():
            if helper != target and total > 0 and share / total >= ARROW:
                arrows.append(
                    _arrow(
                        nodes[helper],
                        nodes[target],
                        share / total,
                        results.names[helper],
                        results.names[target],
                    )
                )
    strongest = sorted(arrows, key=lambda a: -a["share"])[:6]
    sentence = listing(
        [
            f"{a['helper']} gives {a['target']} {whole_percent(a['share'])}"
            for a in strongest
        ]
    )
    return {
        "method": printable(method),
        "width": 2 * middle,
        "height": HEIGHT,
        "nodes": [
            {
                "x": round(x, 1),
                "y": round(y, 1),
                "r": round(r, 1),
                "name": names[c],
                **_label(x, y, r, middle),
            }
            for c, (x, y, r) in nodes.items()
        ],
        "arrows": arrows,
        "label": f"Who helps whom under {printable(method)}: {sentence or 'nobody gives another 5 % of the weight'}",
    }


def _shorten(name: str) -> str:
    """A long name without its middle."""
    return (
        name
        if len(name) <= LETTERS
        else f"{name[: LETTERS // 2 - 1]}…{name[-LETTERS // 2 :]}"
    )


def _label(x: float, y: float, r: float, middle: float) -> dict[str, Any]:
    """Return where the name of a node stands: beside it, away from the arrows; above or below it where that is the way out."""
    if abs(x - middle) < r:
        return {
            "label_x": round(x, 1),
            "label_y": round(y + r + 14 if y > HEIGHT / 2 else y - r - 6, 1),
            "anchor": "middle",
        }
    right = x > middle
    return {
        "label_x": round(x + (r + 6 if right else -r - 6), 1),
        "label_y": round(y + 4, 1),
        "anchor": "start" if right else "end",
    }


def _arrow(
    start: tuple[float, float, float],
    end: tuple[float, float, float],
    share: float,
    helper: str,
    target: str,
) -> dict[str, Any]:
    """A bent line from the rim of one node to that of another, so that both directions are seen."""
    (x0, y0, r0), (x1, y1, r1) = start, end
    length = math.hypot(x1 - x0, y1 - y0)
    ux, uy = (x1 - x0) / length, (y1 - y0) / length
    width = 1 + 14 * share
    gap = r1 + 6 + 2 * width
    bend_x, bend_y = (x0 + x1) / 2 - uy * 26, (y0 + y1) / 2 + ux * 26
    path = f"M{x0 + ux * r0:.1f} {y0 + uy * r0:.1f}Q{bend_x:.1f} {bend_y:.1f} {x1 - ux * gap:.1f} {y1 - uy * gap:.1f}"
    return {
        "path": path,
        "width": round(width, 1),
        "share": share,
        "helper": helper,
        "target": target,
    }

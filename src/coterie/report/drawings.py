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
    # Columns first: the bars of one metric share a scale, whose ends are the farthest end of an interval.
    columns = []
    for metric in metrics:
        differences = [results.difference(m, base, client, metric) for m in methods]
        reach = max((_reach(d) for d in differences if d), default=0.0) or 1.0
        name, size = results.metric_name(metric), results.magnitude.get(metric)
        columns.append([_bar(d, reach, name, size) for d in differences])
    rows = []
    for method, *bars in zip(methods, *columns, strict=True):
        rows.append((printable(method), method in results.references, tuple(bars)))
    sides = []
    for metric in metrics:
        side = "better →" if results.higher_is_better(metric) else "← better"
        sides.append((results.metric_name(metric), side))
    return Forest(tuple(sides), tuple(rows))


def _reach(difference: Difference) -> float:
    ends = (difference.mean, difference.low, difference.high)
    return max(abs(v) for v in ends if v is not None)


def _bar(
    difference: Difference | None, reach: float, metric: str, size: float | None
) -> Bar | None:
    if difference is None:
        return None
    if difference.low is None or difference.high is None:
        low = high = difference.mean
        interval = "no interval"
    else:
        low, high = difference.low, difference.high
        interval = f"{with_sign(low, size)} to {with_sign(high, size)}"
    # 50 is no difference, and 4 is left free at both sides.
    centre, left, right = (
        round(50 + 46 * v / reach, 2) for v in (difference.mean, low, high)
    )
    mean = with_sign(difference.mean, size)
    state, judgement = "open", ""
    if difference.sign:
        state = "good" if difference.sign > 0 else "bad"
        judgement = f", {difference.words}"
    judged_unbroken = judgement.replace("ly ", "ly\u00a0")  # on one line
    text = f"{mean} ({interval}){judged_unbroken}"
    sentence = f"{metric} {mean}, 95 % interval {interval}{judgement}"
    return Bar(centre, left, right, state, text, sentence)


def network(results: Results) -> dict[str, Any] | None:
    """Clients on a ring, as large as they have rows, with an arrow for every weight of at least 5 %, under the first method with
    weights for each client; None where there is none, or clients are too many to draw.
    """
    method = _first_with_weights(results)
    if method is None or not 1 < len(results.clients) <= NODES:
        return None
    names = {c: _shorten(results.names[c]) for c in results.clients}
    middle = RING + 34 + LETTER * max(map(len, names.values()))
    places = _place_on_ring(results, middle)
    nodes = []
    for client, (x, y, r) in places.items():
        node = {"x": round(x, 1), "y": round(y, 1), "r": round(r, 1)}
        nodes.append({**node, "name": names[client], **_label(x, y, r, middle)})
    arrows = []
    for target in results.clients:
        shares = late_shares(results, target, method)
        total = sum(shares.values())
        if total <= 0:
            continue
        for helper, share in shares.items():
            if helper == target or share / total < ARROW:
                continue
            arrow = _arrow(places[helper], places[target], share / total)
            arrow["helper"] = results.names[helper]
            arrow["target"] = results.names[target]
            arrows.append(arrow)
    gifts = []
    for arrow in sorted(arrows, key=lambda a: -a["share"])[:6]:
        percent = whole_percent(arrow["share"])
        gifts.append(f"{arrow['helper']} gives {arrow['target']} {percent}")
    sentence = listing(gifts) or "nobody gives another 5 % of the weight"
    return {
        "method": printable(method),
        "width": 2 * middle,
        "height": HEIGHT,
        "nodes": nodes,
        "arrows": arrows,
        "label": f"Who helps whom under {printable(method)}: {sentence}",
    }


def _first_with_weights(results: Results) -> str | None:
    """The first federated method that weighs clients for each target."""
    for method in results.federated:
        weights = results.weights.get(method)
        if weights is not None and len(weights.targets) > 1:
            return method
    return None


def _place_on_ring(
    results: Results, middle: float
) -> dict[str, tuple[float, float, float]]:
    """Centre (x, y) and radius of the circle of each client, the first at the top and then clockwise.

    Areas grow with training rows, on top of a part that all have, so that the smallest client is still seen.
    """
    rows = {c: results.size(c, "n_train") for c in results.clients}
    most = max(filter(math.isfinite, rows.values()), default=1.0)
    count = len(results.clients)
    # Neighbours are 2 RING sin(pi / count) apart: .6 of half of that leaves room for arrows.
    largest = min(28, 0.6 * RING * math.sin(math.pi / count))
    places = {}
    for i, client in enumerate(results.clients):
        angle = 2 * math.pi * i / count - math.pi / 2
        share = rows[client] / most if math.isfinite(rows[client]) else 0.1
        radius = largest * (0.36 + 0.64 * math.sqrt(share))
        x = middle + RING * math.cos(angle)
        y = HEIGHT / 2 + RING * math.sin(angle)
        places[client] = (x, y, radius)
    return places


def _shorten(name: str) -> str:
    """A long name without its middle."""
    if len(name) <= LETTERS:
        return name
    return f"{name[: LETTERS // 2 - 1]}…{name[-LETTERS // 2 :]}"


def _label(x: float, y: float, r: float, middle: float) -> dict[str, Any]:
    """Return where the name of a node stands: beside it, away from the arrows; above or below it where that is the way out."""
    if abs(x - middle) < r:
        label_x, anchor = x, "middle"
        label_y = y + r + 14 if y > HEIGHT / 2 else y - r - 6
    elif x > middle:
        label_x, label_y, anchor = x + (r + 6), y + 4, "start"
    else:
        label_x, label_y, anchor = x + (-r - 6), y + 4, "end"
    return {
        "label_x": round(label_x, 1),
        "label_y": round(label_y, 1),
        "anchor": anchor,
    }


def _arrow(
    start: tuple[float, float, float], end: tuple[float, float, float], share: float
) -> dict[str, Any]:
    """A bent line from the rim of one node to that of another, so that both directions are seen."""
    (x0, y0, r0), (x1, y1, r1) = start, end
    length = math.hypot(x1 - x0, y1 - y0)
    ux, uy = (x1 - x0) / length, (y1 - y0) / length
    width = 1 + 14 * share
    gap = r1 + 6 + 2 * width
    bend_x, bend_y = (x0 + x1) / 2 - uy * 26, (y0 + y1) / 2 + ux * 26
    path = f"M{x0 + ux * r0:.1f} {y0 + uy * r0:.1f}Q{bend_x:.1f} {bend_y:.1f} {x1 - ux * gap:.1f} {y1 - uy * gap:.1f}"
    return {"path": path, "width": round(width, 1), "share": share}

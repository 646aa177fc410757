"""Does joining still pay at the privacy that a client needs? The gain of one method behind less and more noise, client by client."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from coterie.report.results import Results
from coterie.report.text import printable, wrap
from coterie.report.verdicts import JOINS, judge

_LABEL = re.compile(r"(?P<method>.+)-eps(?P<epsilon>inf|[0-9.e+-]+)")


def label_at(label: str, epsilon: float) -> str:
    """Return what a method is called with the noise of one epsilon.

    >>> label_at("fedavg+bias", 0.5), label_at("fedavg", float("inf"))
    ('fedavg+bias-eps0.5', 'fedavg-epsinf')
    """
    return f"{label}-eps{epsilon:g}"


class Point(NamedTuple):
    """The gain of a method at one client with the noise of one epsilon.

    Attributes:
        epsilon: of one training; infinity: none.
        word: the verdict's; "too few rows to tell" where there is none.
        gain, low, high: by how much the log-loss (in regression the squared error, as a share of the variance of the label) is lower
            than with the client's own model without noise, with the 95 % interval; NaN where that is not known.
    """

    epsilon: float
    word: str
    gain: float
    low: float
    high: float

    @property
    def pays(self) -> bool:
        """Return True if joining pays, at least probably."""
        return self.word in JOINS


class Curve(NamedTuple):
    """The gains of a method at one client, from the least noise to the most."""

    client: str
    method: str
    points: tuple[Point, ...]

    @property
    def smallest(self) -> float | None:
        """The smallest epsilon down to which joining pays at each that was tried; None: not even at the largest."""
        paying = None
        for point in self.points:
            if not point.pays:
                break
            paying = point.epsilon
        return paying

    @property
    def answer(self) -> str:
        """What this says, in a few words."""
        if all(point.word == TOO_FEW for point in self.points):
            return TOO_FEW
        smallest, largest = self.smallest, self.points[0].epsilon
        if smallest is None:
            if math.isinf(largest):
                return "joining is not shown to pay"
            return f"joining is not shown to pay at epsilon {largest:g}"
        if math.isinf(smallest):
            return "pays, but at no tried epsilon"
        return f"pays down to epsilon {smallest:g}"


TOO_FEW = "too few rows to tell"


def privacy_curves(results: Results) -> list[Curve]:
    """Return the curve of each method that was run behind noise, for each client."""
    tried: dict[str, dict[float, str]] = {}
    for label in results.federated:
        match = _LABEL.fullmatch(label)
        if match:
            tried.setdefault(match["method"], {})[float(match["epsilon"])] = label
    curves = []
    for method, labels in tried.items():
        for client in results.clients:
            points = [
                _point(results, client, label, epsilon)
                for epsilon, label in sorted(labels.items(), reverse=True)
            ]
            curves.append(Curve(client, method, tuple(points)))
    return curves


def _point(results: Results, client: str, label: str, epsilon: float) -> Point:
    judged = judge(results, client, label)
    if judged is None:
        return Point(epsilon, TOO_FEW, math.nan, math.nan, math.nan)
    alone = judged.alone
    return Point(epsilon, judged.kind, alone.mean, alone.low, alone.high)


def curve_lines(results: Results, width: int) -> Iterator[str]:
    """Yield the curves of a run as text, wrapped to `width` columns; nothing for a run without any."""
    curves = privacy_curves(results)
    if not curves:
        return
    head = (
        f"{printable(results.title)}: does joining pay behind noise that hides each row? In comparison with each client's own "
        f"model without noise: gains in {results.gain_name} by epsilon at delta {_delta(results):g}, higher is better"
    )
    yield from wrap(head, width)
    for number, curve in enumerate(curves):
        if not number or curve.method != curves[number - 1].method:
            yield from ("", f"{curve.method}:")
        name = printable(results.names[curve.client])
        yield from wrap(f"{name:<13} {curve.answer}", width, " " * 14)
        gains = [
            f"{point.epsilon:g}: {results.gain_text(point.gain)} ({results.gain_text(point.low)} to {results.gain_text(point.high)})"
            for point in curve.points
            if not math.isnan(point.gain)
        ]
        if gains:
            yield from wrap("; ".join(gains), width, " " * 14, " " * 14)
    yield ""


def _delta(results: Results) -> float:
    settings = results.experiment.get("privacy")
    if not isinstance(settings, dict):
        return math.nan
    return float(settings["delta"])


def curves_as_json(results: Results) -> list[dict[str, Any]]:
    """Return all curves as JSON has them, where infinity is a text."""
    rows = []
    for curve in privacy_curves(results):
        for point in curve.points:
            row = {"client": curve.client, "method": curve.method, **point._asdict()}
            row["epsilon"] = float(point.epsilon)
            if math.isinf(point.epsilon):
                row["epsilon"] = "inf"
            row["answer"] = curve.answer
            rows.append(row)
    return rows

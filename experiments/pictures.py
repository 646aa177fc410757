"""The papers' figures as our runs draw them: curves over rounds, the mean over seeds in its 95 % band."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.claims import Evidence, Place
from experiments.judging import Interval, interval

WIDTH, HEIGHT = 3.64, 2.9
"""Inches; 3.64 are 350 pixels, so that two stand side by side on a page and one fits a telephone."""
STYLES = (
    ("#000000", "-"),
    ("#0072b2", "--"),
    ("#d55e00", "-."),
    ("#009e73", ":"),
    ("#cc79a7", (0, (5, 1, 1, 1, 1, 1))),
    ("#e69f00", (0, (1, 1))),
)
"""Colours that colour-blind readers tell apart (Okabe and Ito), each with a dash of its own."""


MARKS = ("o", "s", "D")
"""A mark for each reading or setting of a figure of points."""


def draw(evidence: Evidence, figure: Mapping[str, Any]) -> str:
    """Return one figure as SVG."""
    plt = pyplot()
    drawing, axes = plt.subplots(figsize=(WIDTH, HEIGHT), layout="constrained")
    if "points" in figure:
        _draw_points(evidence, figure, axes)
        axes.set_xlabel(figure["axis"], fontsize=9)
    else:
        _draw_curves(evidence, figure, axes)
        axes.set_xlabel("round", fontsize=9)
        axes.set_ylabel(figure["axis"], fontsize=9)
    axes.set_title(figure["title"], fontsize=9, loc="left")
    axes.tick_params(labelsize=8)
    drawing.legend(
        loc="outside lower center", ncols=2, fontsize=8, frameon=False, handlelength=2.6
    )
    return as_svg(plt, drawing)


def _draw_curves(evidence: Evidence, figure: Mapping[str, Any], axes: Any) -> None:
    for row, (colour, dash) in zip(figure["curves"], STYLES, strict=False):
        rounds, means, low, high = _band(evidence, row)
        axes.plot(
            rounds, means, color=colour, linestyle=dash, linewidth=1.4, label=row[3]
        )
        axes.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
    if figure.get("log"):
        axes.set_yscale("log")


def _draw_points(evidence: Evidence, figure: Mapping[str, Any], axes: Any) -> None:
    """Draw a row for each method and a mark for each setting of it."""
    points = _points(evidence, figure)
    names = list(dict.fromkeys(name for name, _, _ in points))
    settings = list(dict.fromkeys(setting for _, setting, _ in points))
    for number, setting in enumerate(settings):
        own = [(name, effect) for name, of, effect in points if of == setting]
        heights = [names.index(name) + 0.15 * number for name, _ in own]
        means = [effect.mean for _, effect in own]
        # On a logarithmic axis an interval that reaches 0 has no left end; it is drawn to a third of the mean.
        left = [mean - max(e.low, mean / 3) for mean, (_, e) in zip(means, own, strict=True)]  # fmt: skip
        right = [e.high - mean for mean, (_, e) in zip(means, own, strict=True)]
        colour, _ = STYLES[number]
        axes.errorbar(
            means,
            heights,
            xerr=[left, right],
            fmt=MARKS[number],
            color=colour,
            markersize=4,
            linewidth=1,
            label=setting,
        )
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xscale("log")


def _points(
    evidence: Evidence, figure: Mapping[str, Any]
) -> list[tuple[str, str, Interval]]:
    """Return name, setting and mean over seeds with its interval of each point."""
    found = []
    for experiment, quantity, method, name, setting in figure["points"]:
        values = evidence.values(Place(experiment, quantity, method))
        found.append((name, setting, interval(list(values.values()))))
    return found


def describe(evidence: Evidence, figure: Mapping[str, Any]) -> str:
    """Return what a reader who does not see the figure needs most: the first two values, or where the first two curves end."""
    if "points" in figure:
        values = [
            f"{name} {effect.mean:.2g} ({setting})"
            for name, setting, effect in _points(evidence, figure)[:2]
        ]
        return f"{figure['title']}: {', '.join(values)}."
    ends = []
    for row in figure["curves"][:2]:
        _, means, _, _ = _band(evidence, row)
        ends.append(f"{row[3]} {means[-1]:.2g}")
    return f"{figure['title']}; at the end {', '.join(ends)}."


def _band(
    evidence: Evidence, row: list[str]
) -> tuple[list[float], list[float], list[float], list[float]]:
    """Return rounds, means over seeds, and both ends of their intervals; the first round of no training is left out."""
    experiment, curve, method, _ = row
    by_seed = evidence.curves(Place(experiment, "", method), "", curve)
    values: dict[float, list[float]] = {}
    for rounds, numbers in by_seed.values():
        for number, value in zip(rounds, numbers, strict=True):
            values.setdefault(number, []).append(value)
    kept = sorted(n for n, several in values.items() if n > 0 and len(several) > 1)
    if not kept:
        raise ValueError(f"{experiment}: {method} has no curve {curve!r} of two seeds")
    intervals = [interval(values[number]) for number in kept]
    lowest = min(np.min(values[number]) for number in kept)
    return (
        kept,
        [one.mean for one in intervals],
        # On a logarithmic axis an interval may reach below 0; it ends at the least value that was seen.
        [max(one.low, lowest / 2) if lowest > 0 else one.low for one in intervals],
        [one.high for one in intervals],
    )


def pyplot() -> Any:
    """Return pyplot, set so that the same numbers give the same bytes."""
    from matplotlib import pyplot

    pyplot.switch_backend("svg")
    pyplot.rcParams.update(
        {
            "svg.hashsalt": "coterie",
            "svg.fonttype": "path",
            "font.family": "DejaVu Sans",
        }
    )
    return pyplot


def as_svg(plt: Any, figure: Any) -> str:
    """Return a figure of pyplot as SVG, and close it."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"

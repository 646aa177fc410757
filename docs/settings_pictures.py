"""Pictures of what the main setting of a method does, for the pages that explain it; their numbers are computed anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from coterie.solvers import appeal, mirror, variance, waterfill

LEFT, RIGHT, TOP, BOTTOM = 60.0, 460.0, 24.0, 190.0
STYLES = (("mark-one", ""), ("mark-two", "7 4"), ("mark-three", "2 4"))
"""Colour and dashes of each curve, so that nobody needs the colours."""


class Plot(NamedTuple):
    """A picture: its caption, what the axes say, and a curve for each name."""

    caption: str
    across: str
    up: str
    at: list[float]
    curves: dict[str, list[float]]


def meritfed() -> Plot:
    """The weights of three clients after two steps of mirror descent, by the length of a step."""
    updates, steps = torch.tensor([1.0, 0.8, -2.0]), [0.05 * i for i in range(61)]
    found = []
    for length in steps:
        weights = torch.full((3,), 1 / 3)
        for _ in range(2):
            slopes = (0.5 * weights @ updates - 1) * updates
            weights = mirror.entropic_step(weights, slopes, length)
        found.append(weights.tolist())
    names = ("us", "friend", "stranger")
    caption = "A longer step takes the weight of the stranger away. At 0 each client has a third."
    return Plot(caption, "md_step", "weight", steps, _by_name(names, found))


def varsel() -> Plot:
    """The exact weights of three external clients, by the budget."""
    internal = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    external = torch.tensor([[0.0, 1.0], [0.0, -2.0], [5.0, 5.0]])
    budgets = [0.1 * i for i in range(1, 31)]
    found = [
        variance.exact_weights(internal, external, budget=budget).tolist()
        for budget in budgets
    ]
    caption = "The near client is borrowed from most, up to its limit of 1. The far one gets almost nothing, whatever the budget."
    return Plot(
        caption,
        "budget",
        "weight",
        budgets,
        _by_name(("near", "other side", "far"), found),
    )


def maxfl() -> Plot:
    """The weight of a client by its gap, for three surrogates."""
    gaps = [0.2 * i for i in range(-30, 31)]
    names = ("sigmoid", "linear", "relu")
    curves = {
        name: appeal.weights(torch.tensor(gaps), surrogate=name).tolist()
        for name in names
    }
    caption = "The sigmoid weighs clients that are almost satisfied. The others never leave a hopeless client aside."
    return Plot(caption, "gap: loss minus requirement", "weight", gaps, curves)


def isfl() -> Plot:
    """The shares of three classes, by the floor."""
    p, ours, speed = (
        torch.tensor([0.5, 0.3, 0.2]),
        torch.tensor([0.2, 0.4, 0.4]),
        torch.tensor([1.0, 1.0, 2.0]),
    )
    floors = [0.02 * i for i in range(25)]
    found = [
        waterfill.closed_form(p, ours, speed, floor=floor)[0].tolist()
        for floor in floors
    ]
    caption = "A higher floor keeps more of the third class, whose gradients change fastest. At .5 the shares are those of all clients."
    return Plot(
        caption,
        "floor",
        "share of a batch",
        floors,
        _by_name(("class 1", "class 2", "class 3"), found),
    )


SETTINGS: dict[str, Callable[[], Plot]] = {
    "meritfed": meritfed,
    "varsel": varsel,
    "maxfl": maxfl,
    "isfl": isfl,
}


def _by_name(names: tuple[str, ...], rows: list[list[float]]) -> dict[str, list[float]]:
    return {name: [row[i] for row in rows] for i, name in enumerate(names)}


def setting_picture(name: str) -> str:
    """Return the picture of a method's main setting as HTML."""
    plot = SETTINGS[name]()
    label = f"{', '.join(plot.curves)}: {plot.up} by {plot.across}"
    svg = f'<svg viewBox="0 0 560 236" role="img" aria-label="{label}" font-size="13" fill="currentColor">{_drawn(plot)}</svg>'
    return f'<figure class="method-picture setting">{svg}<figcaption>{plot.caption}</figcaption></figure>'


def _drawn(plot: Plot) -> str:
    low, high = plot.at[0], plot.at[-1]
    highest = max(value for values in plot.curves.values() for value in values)
    pieces = [
        f'<path d="M{LEFT} {TOP}V{BOTTOM}H{RIGHT}" fill="none" stroke="currentColor"/>',
        f'<text x="{LEFT - 6}" y="{TOP + 5}" text-anchor="end">{highest:.2g}</text>',
        f'<text x="{LEFT - 6}" y="{BOTTOM}" text-anchor="end">0</text>',
        f'<text x="{LEFT}" y="{TOP - 8}">{plot.up}</text>',
        f'<text x="{LEFT}" y="{BOTTOM + 18}" text-anchor="middle">{low:.2g}</text>',
        f'<text x="{RIGHT}" y="{BOTTOM + 18}" text-anchor="middle">{high:.2g}</text>',
        f'<text x="{(LEFT + RIGHT) / 2}" y="{BOTTOM + 34}" text-anchor="middle">{plot.across}</text>',
    ]
    ends = []
    for (name, values), (kind, dashes) in zip(plot.curves.items(), STYLES, strict=True):
        points = [
            (
                LEFT + (RIGHT - LEFT) * (x - low) / (high - low),
                BOTTOM - (BOTTOM - TOP) * y / highest,
            )
            for x, y in zip(plot.at, values, strict=True)
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        pieces.append(
            f'<polyline points="{path}" fill="none" class="{kind}" stroke-width="2" stroke-dasharray="{dashes}"/>'
        )
        ends.append((points[-1][1] + 4, name))
    below = BOTTOM + 20
    for height, name in sorted(
        ends, reverse=True
    ):  # upwards, so that no name lies on another
        below = min(height, below - 14)
        pieces.append(f'<text x="{RIGHT + 6}" y="{below:.1f}">{name}</text>')
    return "".join(pieces)

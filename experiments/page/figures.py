"""Curves and tables of weights as SVG, told apart by dashes, words and numbers, not by colour alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

import numpy as np

from experiments.documents import Document

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 300, 56, 170, 28, 40
COLOURS = ("#1b4f9c", "#b4521e", "#2c7a3f", "#7a3d8f", "#8a6d00", "#00707a", "#a0275a", "#444444")
DASHES = ("", "7 4", "2 3", "9 3 2 3", "4 2", "1 4", "12 4", "6 2 1 2")


class Line(NamedTuple):
    """A named curve: rounds [k], means [k] and deviations [k]."""

    name: str
    rounds: Sequence[float]
    mean: Sequence[float]
    deviation: Sequence[float]


def line(document: Document, name: str, quantity: str, method: str, after: float | None = None) -> Line | None:
    """The curve of a method, over the seeds that have one with the same rounds; None if there is none.

    Args:
        document: of the experiment.
        name: of the curve.
        quantity: a key of its rows' curves.
        method: label.
        after: what is seen at this round or before is left out.
    """
    curves = [row.curves[quantity] for row in document.rows if row.method == method and quantity in row.curves]
    if not curves:
        return None
    rounds = curves[0][0]
    values = np.array([values for own, values in curves if own == rounds])
    kept = [i for i, number in enumerate(rounds) if after is None or number > after]
    mean, deviation = values.mean(axis=0), values.std(axis=0)
    return Line(name, [rounds[i] for i in kept], mean[kept].tolist(), deviation[kept].tolist())


def svg(title: str, across: str, up: str, lines: Sequence[Line], *, log: bool = False) -> str:
    """A figure with its axes, or "" without a curve.

    >>> "<svg" in svg("t", "round", "accuracy", [Line("one", [0, 1], [0.2, 0.4], [0.1, 0.1])])
    True
    """
    if not lines:
        return ""
    scale = _Scale.of(lines, log)
    body = [*_titles(title, across, up), *_axes(scale)]
    ends = _apart([scale.y(one.mean[-1]) for one in lines])
    for number, (one, end) in enumerate(zip(lines, ends, strict=True)):
        body += _curve(scale, one, COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)], end)
    return _document(title, HEIGHT, body)


def bars(title: str, up: str, groups: Mapping[str, Mapping[str, float]]) -> str:
    """A bar for each name in each group, with its number above; "" without any.

    >>> bars("t", "accuracy", {"one": {"a": 0.2, "b": 0.4}}).count("<rect")
    5
    """
    if not groups:
        return ""
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    highest = max(value for group in groups.values() for value in group.values()) or 1.0
    bottom, wide = HEIGHT - BOTTOM, (WIDTH - LEFT - RIGHT) / len(groups)
    each = 0.84 * wide / len(names)
    body = [*_titles(title, "", up), f'<path d="M{LEFT} {TOP}V{bottom}H{WIDTH - RIGHT}" fill="none" stroke="#333"/>']
    for i, (words, group) in enumerate(groups.items()):
        left = LEFT + (i + 0.08) * wide
        for j, value in ((j, group[name]) for j, name in enumerate(names) if name in group):
            x, high = left + j * each, value / highest * (bottom - TOP - 26)
            number, place = f"{value:.3f}".removeprefix("0"), f"{x + each / 2 + 3:.1f} {bottom - high - 4:.1f}"
            body.append(_bar(x, bottom - high, each, high, j))
            body.append(f'<text transform="translate({place}) rotate(-90)" font-size="9">{number}</text>')
        middle = f"{left + 0.42 * wide:.1f}"
        body.append(f'<text x="{middle}" y="{bottom + 16}" text-anchor="middle">{escape(words)}</text>')
    for j, name in enumerate(names):
        body.append(_bar(WIDTH - RIGHT + 8, TOP + 18 * j, 16, 11, j))
        body.append(f'<text x="{WIDTH - RIGHT + 32}" y="{TOP + 18 * j + 10}">{escape(name)}</text>')
    return _document(title, HEIGHT, body)


def _bar(x: float, y: float, wide: float, high: float, number: int) -> str:
    """A bar of the colour of this number, every second one pale."""
    colour, opacity = COLOURS[number], 1 - 0.6 * (number % 2)
    place = f'x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}"'
    return f'<rect {place} fill="{colour}" fill-opacity="{opacity:g}" stroke="{colour}"/>'


def _titles(title: str, across: str, up: str) -> list[str]:
    return [
        f'<text x="{LEFT}" y="16" font-weight="bold">{escape(title)}</text>',
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:g}" y="{HEIGHT - 6}" text-anchor="middle">{escape(across)}</text>',
        f'<text x="14" y="{HEIGHT / 2:g}" text-anchor="middle" transform="rotate(-90 14 {HEIGHT / 2:g})">{escape(up)}</text>',
    ]


def heat_map(title: str, weights: Mapping[str, Sequence[Sequence[float]]]) -> str:
    """A row per client and a column per round, each cell with its weight: rounds [k] and weights [k] by client; "" without any.

    >>> heat_map("t", {"one": [[1, 2], [0.2, 0.75]]}).count("<rect")
    3
    """
    if not weights:
        return ""
    rounds = next(iter(weights.values()))[0]
    wide, high = (WIDTH - 2 * LEFT) / len(rounds), 18
    body = [f'<text x="{LEFT}" y="16" font-weight="bold">{escape(title)}</text>']
    for i, (client, (_, values)) in enumerate(weights.items()):
        y = TOP + i * high
        body.append(f'<text x="{2 * LEFT - 6}" y="{y + 13}" text-anchor="end">{escape(client)}</text>')
        for j, weight in enumerate(values):
            body += _cell(2 * LEFT + j * wide, y, wide, high, weight)
    bottom = TOP + len(weights) * high
    for j, number in enumerate(rounds):
        body.append(
            f'<text x="{2 * LEFT + (j + 0.5) * wide:g}" y="{bottom + 15}" text-anchor="middle">{number:g}</text>'
        )
    body.append(f'<text x="{(WIDTH + 2 * LEFT) / 2:g}" y="{bottom + 32}" text-anchor="middle">round</text>')
    return _document(title, bottom + BOTTOM, body)


def _cell(x: float, y: float, wide: float, high: float, weight: float) -> list[str]:
    """A square as dark as the weight, and the weight as a number."""
    shade = round(255 * (1 - 0.9 * min(max(weight, 0.0), 1.0) ** 0.5))
    ink = "white" if shade < 128 else "black"
    return [
        f'<rect x="{x:g}" y="{y}" width="{wide:g}" height="{high}" fill="rgb({shade},{shade},{shade})" stroke="#ccc"/>',
        f'<text x="{x + wide / 2:g}" y="{y + 13}" text-anchor="middle" font-size="10" fill="{ink}">{weight:.2f}</text>',
    ]


def _document(title: str, height: float, body: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="12" role="img"><title>{escape(title)}</title>'
    )
    return "\n".join([head, f'<rect width="{WIDTH}" height="{height}" fill="white"/>', *body, "</svg>", ""])


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers between two, at most so many.

    >>> ticks(0.02, 0.21), ticks(1, 40)
    ([0.05, 0.1, 0.15, 0.2], [10.0, 20.0, 30.0, 40.0])
    """
    size = 10.0 ** math.floor(math.log10((high - low) / most))
    for step in (size, 2 * size, 5 * size, 10 * size):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < most:
            return [float(f"{i * step:.6g}") for i in range(first, last + 1)]
    raise ValueError(f"no round numbers between {low} and {high}")


class _Scale(NamedTuple):
    """From values to places."""

    first: float
    last: float
    low: float
    high: float
    log: bool

    @classmethod
    def of(cls, lines: Sequence[Line], log: bool) -> _Scale:
        rounds = [r for one in lines for r in one.rounds]
        pairs = [pair for one in lines for pair in zip(one.mean, one.deviation, strict=True)]
        least, high = min(m for m, _ in pairs), max(m + d for m, d in pairs)
        low = least if log else min(m - d for m, d in pairs)
        low, high = (math.log10(low), math.log10(high)) if log else (low, high)
        room = 0.05 * (high - low) or 0.05
        low -= room
        if not log and least >= 0:  # a band may reach where no value can be
            low = max(low, 0.0)
        end = max(rounds) if max(rounds) > min(rounds) else min(rounds) + 1
        return cls(min(rounds), end, low, high + room, log)

    def x(self, value: float) -> float:
        return round(LEFT + (value - self.first) / (self.last - self.first) * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        place = (math.log10(value) if value > 0 else -math.inf) if self.log else value
        place = max(place, self.low)
        return round(TOP + (self.high - place) / (self.high - self.low) * (HEIGHT - TOP - BOTTOM), 1)

    def ticks(self) -> tuple[list[float], list[float]]:
        """Values at the upright axis and at the other."""
        up = ticks(self.low, self.high)
        if self.log:
            whole = [exponent for exponent in up if exponent == int(exponent)]
            up = [10.0**exponent for exponent in whole]
        return up, ticks(self.first, self.last)


def _axes(scale: _Scale) -> list[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = [f'<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="#333"/>']
    values, numbers = scale.ticks()
    for value in values:
        parts += [
            f'<text x="{LEFT - 4}" y="{scale.y(value) + 4:g}" text-anchor="end">{value:.3g}</text>',
            f'<path d="M{LEFT} {scale.y(value):g}H{right}" stroke="#ddd"/>',
        ]
    return parts + [
        f'<text x="{scale.x(number):g}" y="{bottom + 16}" text-anchor="middle">{number:g}</text>' for number in numbers
    ]


def _curve(scale: _Scale, one: Line, colour: str, dash: str, end: float) -> list[str]:
    xs = [scale.x(r) for r in one.rounds]
    upper = [scale.y(m + d) for m, d in zip(one.mean, one.deviation, strict=True)]
    lower = [scale.y(m - d) for m, d in zip(one.mean, one.deviation, strict=True)]
    band = [*zip(xs, upper, strict=True), *reversed(list(zip(xs, lower, strict=True)))]
    path = "M" + "L".join(f"{x:g} {scale.y(m):g}" for x, m in zip(xs, one.mean, strict=True))
    points = " ".join(f"{x:g},{y:g}" for x, y in band)
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return [
        f'<polygon points="{points}" fill="{colour}" opacity="0.12"/>',
        f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>',
        f'<path d="M{WIDTH - RIGHT + 8} {end:g}h22" stroke="{colour}" stroke-width="2"{dashes}/>',
        f'<text x="{WIDTH - RIGHT + 36}" y="{end + 4:g}">{escape(one.name)}</text>',
    ]


def _apart(places: Sequence[float], least: float = 14) -> list[float]:
    """The places of labels, moved so that none lie on each other."""
    order = sorted(range(len(places)), key=places.__getitem__)
    moved, before = list(places), -math.inf
    for i in order:
        moved[i] = before = max(places[i], before + least)
    over = max(0.0, max(moved) - (HEIGHT - BOTTOM))
    return [round(place - over, 1) for place in moved]

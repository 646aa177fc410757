"""Drawings of the report as SVG files of their own: with their colours, on white, so that they can be saved and printed."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any
from urllib.parse import quote

from coterie.report.drawings import Bar, Forest
from coterie.report.followup import Group

INK, SOFT, LINE = "#1b1f24", "#57606a", "#98a1ab"
COLOURS = {"good": "#00684f", "bad": "#a8410a", "open": SOFT}
THIRD_COLOURS = ("#0067a5", "#8a6a00", "#a8410a")
NAMES, COLUMN, ROW, TOP, LETTER = 150, 290, 40, 84, 7
TIP = (
    '<defs><marker id="tip" viewBox="0 0 6 6" refX="1" refY="3" markerWidth="2.6" markerHeight="2.6" orient="auto">'
    '<path d="M0 0L6 3L0 6z" fill="#0067a5"/></marker></defs>'
)
FONT = 'font-family="Segoe UI, Roboto, Liberation Sans, Arial, sans-serif"'


def link(svg: str) -> str:
    """The target of a link to this drawing: the drawing itself."""
    return f"data:image/svg+xml,{quote(svg)}"


def forest_picture(name: str, headline: str, plot: Forest) -> str:
    """The forest plot of one client with its name and verdict."""
    width = max(NAMES + COLUMN * len(plot.metrics) + 20, 32 + LETTER * len(headline))
    height = TOP + ROW * len(plot.rows) + 10
    parts = [_text(16, 28, name, size=18, weight=650), _text(16, 50, headline, size=13)]
    for j, (metric, side) in enumerate(plot.metrics):
        parts.append(
            _text(
                _left(j) + COLUMN / 2,
                TOP - 12,
                f"{metric}, {side}",
                anchor="middle",
                colour=SOFT,
            )
        )
    for i, (method, _, bars) in enumerate(plot.rows):
        y = TOP + ROW * i
        parts.append(_text(16, y + 14, method, size=13))
        parts += [
            _bar(bar, _left(j), y) for j, bar in enumerate(bars) if bar is not None
        ]
    return _whole(width, height, parts)


def _left(column: int) -> float:
    return NAMES + COLUMN * column


def _bar(bar: Bar, column_left: float, y: float) -> str:
    colour, scale = COLOURS[bar.state], (COLUMN - 20) / 100
    centre, low, high, zero = (
        round(column_left + scale * v, 1) for v in (bar.at, bar.low, bar.high, 50)
    )
    return (
        f'<path d="M{zero} {y}V{y + 20}" stroke="{LINE}" stroke-dasharray="2 2"/>'
        f'<path d="M{low} {y + 10}H{high}" stroke="{colour}" stroke-width="2"/>'
        f'<rect x="{centre - 4:.1f}" y="{y + 6}" width="8" height="8" fill="{colour}"/>'
        + _text(
            column_left + 50 * scale,
            y + 31,
            bar.text,
            size=11,
            anchor="middle",
            colour=SOFT,
        )
    )


def network_picture(drawn: dict[str, Any]) -> str:
    """Draw who helps whom. The classes let a page give it colours of its own."""
    parts = [TIP]
    for arrow in drawn["arrows"]:
        parts.append(
            f'<path class="arrow" d="{arrow["path"]}" stroke-width="{arrow["width"]}" fill="none" stroke="#0067a5" opacity=".75"'
            ' marker-end="url(#tip)"/>'
        )
    for node in drawn["nodes"]:
        x, y, r = node["x"], node["y"], node["r"]
        parts.append(
            f'<circle cx="{x}" cy="{y}" r="{r}" fill="#eceff2" stroke="{SOFT}" stroke-width="1.5"/>'
        )
    parts += [
        _text(
            node["label_x"],
            node["label_y"],
            node["name"],
            size=13,
            anchor=node["anchor"],
        )
        for node in drawn["nodes"]
    ]
    return _whole(drawn["width"], drawn["height"], parts, label=drawn["label"])


def survival_picture(groups: Sequence[Group], horizon: str, label: str) -> str:
    """Draw survival by third of risk: steps as they were seen, dots as predicted. The classes let a page give it colours of its own."""
    width, height, left, top, bottom = 420, 250, 40, 12, 34
    end = max(float(group.times[-1]) for group in groups)
    across = (width - left - 12) / end
    down = height - top - bottom

    def place(time: float, survival: float) -> str:
        return f"{left + across * time:.1f} {top + down * (1 - survival):.1f}"

    parts = []
    for level in (0, 25, 50, 75, 100):
        y = top + down * (1 - level / 100)
        parts.append(
            f'<path class="rule" d="M{left} {y:.1f}H{width - 12}" stroke="{LINE}"/>'
        )
        parts.append(
            _text(left - 6, y + 4, f"{level} %", size=11, anchor="end", colour=SOFT)
        )
    x = left + across
    parts.append(
        f'<path class="rule" d="M{x:.1f} {top}V{top + down}" stroke="{SOFT}" stroke-dasharray="3 3"/>'
    )
    anchor = "middle"
    if x + LETTER * len(horizon) / 2 > width:
        x, anchor = width - 12, "end"
    parts.append(_text(x, height - 14, horizon, size=11, anchor=anchor, colour=SOFT))
    for number, group in enumerate(groups):
        steps = [f"M{place(0, 1)}"]
        for time, survival in zip(group.curve.times, group.curve.survival, strict=True):
            steps.append(f"H{left + across * time:.1f}")
            steps.append(f"V{top + down * (1 - survival):.1f}")
        steps.append(f"H{left + across * min(group.curve.last, end):.1f}")
        colour = THIRD_COLOURS[number % len(THIRD_COLOURS)]
        parts.append(
            f'<path class="third{number}" d="{"".join(steps)}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        dots = [
            f"M{place(time, survival)}h0"
            for time, survival in zip(group.times, group.expected, strict=True)
        ]
        parts.append(
            f'<path class="third{number}" d="{"".join(dots)}" stroke="{colour}" stroke-width="6" stroke-linecap="round"/>'
        )
    return _whole(width, height, parts, label=label)


def _text(
    x: float,
    y: float,
    words: str,
    *,
    size: float = 12,
    anchor: str = "start",
    weight: int = 400,
    colour: str = INK,
) -> str:
    place = f'x="{x:g}" y="{y:g}" font-size="{size:g}" text-anchor="{anchor}" font-weight="{weight}" fill="{colour}"'
    return f"<text {place}>{escape(words)}</text>"


def _whole(width: float, height: float, parts: list[str], label: str = "") -> str:
    role = ""
    if label:
        role = f' role="img" aria-label="{escape(label)}"'
    size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {FONT}{role}>{"".join(parts)}</svg>'

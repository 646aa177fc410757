"""The terminal table: as wide as the terminal allows, plain where there is none."""

from __future__ import annotations

import io
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from coterie.core.errors import require
from coterie.report.grids import BUDGET, MANY, Cell, Grid, budget, grid
from coterie.report.results import Results
from coterie.report.text import listing, printable

__all__ = ["describe_lines", "plain", "render"]

SHOWN = 8
LABEL = 24
NARROW = 15
HEADING = 13
GAP = 2
NARROWEST = 40


class Span(NamedTuple):
    """Some characters of a line and how they look."""

    text: str
    style: str = ""


Line = list[Span]


def render(results: Results, *, width: int | None = None, metric: str | None = None, colour: bool | None = None) -> str:
    """The tables of all metrics (or of one) with their legend: in colour for a terminal, else plain.

    Args:
        results: of a run directory.
        width: columns; default: of the terminal, 80 where there is none.
        metric: one metric only.
        colour: bold, red and green; default: if the output is a terminal and NO_COLOR is not set.
    """
    colour = _terminal() if colour is None else colour
    width = _columns(width)
    require(metric is None or metric in results.metrics, f"no metric {metric!r}; there is {listing(results.metrics)}")
    wanted = (metric,) if metric else results.metrics
    many = wanted and len(results.clients) > MANY
    clients = results.extremes(wanted[0], SHOWN) if many else results.clients
    lines: list[Line] = []
    blocks = _fitted([grid(results, m, clients, cost=i == 0) for i, m in enumerate(wanted)], width, colour)
    for block in blocks:
        lines += [*block.lines(width), []]
    inside = any(BUDGET in block.grid.rows for block in blocks)
    for sentence in _legend(results, len(clients), colour, inside):
        lines += [[Span(text, "dim")] for text in _wrap(sentence, width)]
    return _coloured(lines, width) if colour else "\n".join("".join(s.text for s in line).rstrip() for line in lines)


def plain(results: Results, *, width: int | None = None, metric: str | None = None) -> str:
    """The same without colour codes and box drawing: for files, pipes and logs."""
    return render(results, width=width, metric=metric, colour=False)


def describe_lines(results: Results, *, width: int | None = None) -> list[str]:
    """The answer in words for the terminal, wrapped."""
    from coterie.report.words import headline, tell

    width, story, lines = _columns(width), tell(results, brief=True), []
    for sentence in story.answer:
        lines += _wrap(sentence, width)
    for client in story.clients:
        lines += [
            "",
            *_wrap(f"{client.name}: {headline(results, client.verdict)}. {' '.join(client.sentences)}", width, "  "),
        ]
    for sentence in (*story.caveats, *(printable(f"{text}.") for text in results.failures)):
        lines += ["", *_wrap(sentence, width)]
    return lines


# Layout


@dataclass(frozen=True)
class Layout:
    """One table with the width of each of its columns; `tight` saves the spaces around `±`."""

    grid: Grid
    colour: bool
    tight: bool = False

    def text(self, cell: Cell) -> str:
        """The number of a cell."""
        return cell.text.replace(" ± ", "±") if self.tight else cell.text

    def name(self, row: str) -> str:
        """The name of a row; a long one without its middle."""
        most = NARROW if self.tight else LABEL
        return row if _width(row) <= most else f"{row[: most // 2]}…{row[-((most - 1) // 2) :]}"

    def suffix(self, cell: Cell) -> str:
        """The marks of a cell."""
        if self.colour:
            return {1: "▲", -1: "▼"}.get(cell.mark, "")
        return ("*" if cell.best else "") + {1: "+", -1: "!"}.get(cell.mark, "")

    @cached_property
    def label(self) -> int:
        """Width of the first column."""
        return max(_width(self.name(r)) for r in self.grid.rows)

    @cached_property
    def marks(self) -> list[int]:
        """Width of the marks in each column."""
        return [max(len(self.suffix(c)) for c in column) for column in zip(*self.grid.cells, strict=True)]

    @cached_property
    def sizes(self) -> list[int]:
        """Width of each column of numbers with its marks."""
        columns = zip(self.grid.columns, zip(*self.grid.cells, strict=True), self.marks, strict=True)
        return [
            max(max(_width(self.text(c)) for c in column) + mark, *(_width(h) for h in _headings(heading)))
            for heading, column, mark in columns
        ]

    @property
    def total(self) -> int:
        """Width of the whole table."""
        return self.label + sum(GAP + size for size in self.sizes)

    def lines(self, width: int) -> Iterator[Line]:
        """The title, the headings and the rows."""
        for text in _wrap(self.grid.title, width):
            yield [Span(text, "bold")]
        stacks = [_headings(h) for h in self.grid.columns]
        height = max(len(s) for s in stacks)
        for k in range(height):
            words = [([""] * (height - len(s)) + s)[k] for s in stacks]
            yield [Span(" " * self.label), *map(self._heading, words, self.sizes, self.marks)]
        for i, (name, row) in enumerate(zip(self.grid.rows, self.grid.cells, strict=True)):
            if self.colour and i in (0, self.grid.summary):
                yield [Span("─" * self.total, "dim")]
            cells = zip(row, self.sizes, self.marks, strict=True)
            yield [Span(_left(self.name(name), self.label)), *(span for cell in cells for span in self._cell(*cell))]

    def _heading(self, word: str, size: int, mark: int) -> Span:
        room = size - mark if _width(word) <= size - mark else size
        return Span(" " * GAP + _right(word, room) + " " * (size - room), "dim")

    def _cell(self, cell: Cell, size: int, mark: int) -> Line:
        suffix = self.suffix(cell)
        style = "bold" if cell.best else "dim" if cell.quiet else ""
        return [
            Span(" " * GAP + _right(self.text(cell), size - mark), style),
            Span(_left(suffix, mark), {1: "green", -1: "bold red"}.get(cell.mark, "")),
        ]


def _fitted(grids: list[Grid], width: int, colour: bool) -> list[Layout]:
    """All tables as they are if they fit, else all turned round, else each cut into blocks of columns."""
    for turned, tight in ((False, False), (True, False), (True, True)):
        layouts = [Layout(g.turned() if turned else g, colour, tight) for g in grids]
        if all(layout.total <= width for layout in layouts):
            return layouts
    return [layout for g in grids for layout in _cut(Layout(g, colour), width)]


def _cut(layout: Layout, width: int) -> list[Layout]:
    blocks: list[list[int]] = [[]]
    used = layout.label
    for i, size in enumerate(layout.sizes):
        if blocks[-1] and used + GAP + size > width:
            blocks.append([])
            used = layout.label
        blocks[-1].append(i)
        used += GAP + size
    parts = [layout.grid.part(block) for block in blocks]
    more = f"{layout.grid.title.partition(' (')[0]}, continued"
    return [Layout(part if i == 0 else part._replace(title=more), layout.colour) for i, part in enumerate(parts)]


def _legend(results: Results, shown: int, colour: bool, budget_inside: bool) -> list[str]:
    best, worse, better = ("bold: best", "▼", "▲") if colour else ("* best", "!", "+")
    base, several = results.baseline, len(results.seeds) > 1
    parts = [best + (f" ({listing(results.references)} left out)" if results.references else "")]
    if base and several:
        parts += [
            f"{worse} clearly worse than {base}",
            f"{better} clearly better (95 % interval over seeds excludes 0)",
        ]
    lines = [";  ".join(parts) + "."] if len(results.methods) > 1 else []
    if results.references:
        lines.append(f"{listing(results.references)}: all rows in one place, a reference that nobody can have.")
    if results.cost_unit:
        costs = [f"{m} {c.text}" for m, c in zip(results.methods, budget(results), strict=True)]
        numbers = "" if budget_inside else f": {', '.join(costs)}"
        lines.append(f"{BUDGET}: row gradients of the whole run, {results.cost_unit} = 1{numbers}.")
    total = len(results.clients)
    if shown < total:
        lines.append(
            f"{total - shown} of {total} clients are not shown; these {shown} have the largest harm and gain, or are served by a method"
            " for few. All stand in summary.json and in report.html of the run directory."
        )
    done = {m: results.finished(m) for m in results.methods}
    short = [f"{m} has {k} of {len(results.seeds)} seeds" for m, k in done.items() if k < len(results.seeds)]
    if short:
        lines.append(f"Unfinished: {listing(short)}. Comparisons use the seeds that both methods have.")
    if base and not several:
        lines.append("One seed: no verdict on any difference; repeat with --seeds 5.")
    return lines


# Characters


def _columns(width: int | None) -> int:
    return max(NARROWEST, width or shutil.get_terminal_size((80, 24)).columns)


def _terminal() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def _headings(text: str) -> list[str]:
    return textwrap.wrap(text, HEADING) or [""]


def _wrap(text: str, width: int, indent: str = "") -> list[str]:
    """Lines of at most `width` columns; `29 %` is never broken."""
    kept = text.replace(" %", "\u00a0%").replace("± ", "±\u00a0")
    lines = textwrap.wrap(kept, width, subsequent_indent=indent, break_on_hyphens=False)
    return [line.replace("\u00a0", " ") for line in lines]


def _width(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)


def _right(text: str, size: int) -> str:
    return " " * (size - _width(text)) + text


def _left(text: str, size: int) -> str:
    return text + " " * (size - _width(text))


def _coloured(lines: list[Line], width: int) -> str:
    from rich.console import Console
    from rich.text import Text

    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, highlight=False, soft_wrap=True)
    for line in lines:
        console.print(Text.assemble(*((span.text, span.style) for span in line)))
    return out.getvalue().rstrip("\n")

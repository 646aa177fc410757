"""The terminal table: as wide as the terminal allows, plain where there is none."""

from __future__ import annotations

import io
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from coterie.base.errors import InputError
from coterie.report.grids import BUDGET, MANY, Cell, Grid, budget, grid
from coterie.report.results import Results
from coterie.report.text import listing, wrap

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text
from coterie.run.files import YARDSTICKS

SHOWN = 8
LABEL = 24
NARROW = 15
HEADING = 13
NARROWEST = 40
RULES = "\n".join(("    ", "    ", " ── ", "    ", " ── ", " ── ", "    ", "    "))
"""A box of rich: lines below the headings and between sections, nothing between columns."""


def render(
    results: Results,
    *,
    width: int | None = None,
    metric: str | None = None,
    colour: bool | None = None,
) -> str:
    """The tables of all metrics (or of one) with their legend: in colour for a terminal, else plain.

    Args:
        results: results of a run directory.
        width: columns; default: of the terminal, 80 where there is none.
        metric: one metric only.
        colour: bold, red and green; default: if the output is a terminal and NO_COLOR is not set.
    """
    from rich.console import Console

    colour = _terminal() if colour is None else colour
    width = _columns(width)
    if metric is not None and metric not in results.metrics:
        raise InputError(
            f"no metric {metric!r}; there is {listing(results.metrics)}. A run measures others that it is asked for: "
            f"settings=ct.StudySettings(metrics=[{metric!r}]), or --metrics {metric}"
        )
    metrics = (metric,) if metric else results.metrics
    crowded = metrics and len(results.clients) > MANY
    clients = results.extremes(metrics[0], SHOWN) if crowded else results.clients
    written = io.StringIO()
    console = Console(
        file=written,
        width=width,
        force_terminal=colour,
        force_jupyter=False,  # in a notebook rich would show the table itself, and leave nothing to return
        color_system="standard" if colour else None,
        highlight=False,
        markup=False,
        emoji=False,
    )
    shown = _fit_width(
        [grid(results, m, clients, cost=n == 0) for n, m in enumerate(metrics)],
        width,
        colour,
    )
    for part, table in shown:
        console.print("\n".join(wrap(part.title, width)), style="bold")
        console.print(table)
        console.print()
    has_budget = any(BUDGET in part.rows for part, _ in shown)
    for sentence in _legend(results, len(clients), colour, has_budget):
        console.print("\n".join(wrap(sentence, width)), style="dim")
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines())


def plain(
    results: Results, *, width: int | None = None, metric: str | None = None
) -> str:
    """The same without colour codes and box drawing: for files, pipes and logs."""
    return render(results, width=width, metric=metric, colour=False)


# Layout


def _fit_width(grids: list[Grid], width: int, colour: bool) -> list[tuple[Grid, Table]]:
    """All tables as they are if they fit, else all turned round, else each cut into blocks of columns."""
    for turned, tight in ((False, False), (True, False), (True, True)):
        shown = [g.transpose() if turned else g for g in grids]
        tables = [_table(g, colour, tight) for g in shown]
        if all(_full_width(table) <= width for table in tables):
            return list(zip(shown, tables, strict=True))
    return [
        (part, _table(part, colour)) for g in grids for part in _cut(g, width, colour)
    ]


def _cut(table: Grid, width: int, colour: bool) -> list[Grid]:
    blocks: list[list[int]] = [[]]
    for i in range(len(table.columns)):
        if (
            blocks[-1]
            and _full_width(_table(table.part([*blocks[-1], i]), colour)) > width
        ):
            blocks.append([])
        blocks[-1].append(i)
    head, *tail = map(table.part, blocks)
    title = f"{table.title.partition(' (')[0]}, continued"
    return [head, *(part._replace(title=title) for part in tail)]


def _full_width(table: Table) -> int:
    from rich.console import Console

    console = Console(width=10_000)
    return console.measure(table).maximum


def _table(shown: Grid, colour: bool, tight: bool = False) -> Table:
    """One table without its title; `tight` saves the spaces around `±` and shortens the names of rows."""
    from rich.box import Box
    from rich.table import Table

    gap = 1 if colour else 2  # a box has a column of its own between two others
    table = Table(
        box=Box(RULES) if colour else None,
        show_edge=False,
        pad_edge=False,
        padding=(0, 0, 0, gap),
        header_style="dim",
        border_style="dim",
    )
    names = [_shorten(name, NARROW if tight else LABEL) for name in shown.rows]
    table.add_column(no_wrap=True)
    columns = [
        _column(heading, cells, colour, tight)
        for heading, *cells in zip(shown.columns, *shown.cells, strict=True)
    ]
    for heading, _ in columns:
        table.add_column(heading, no_wrap=True, vertical="bottom")
    for i, name in enumerate(names):
        table.add_row(
            name,
            *(cells[i] for _, cells in columns),
            end_section=i + 1 == shown.summary,
        )
    return table


def _column(
    heading: str, cells: Sequence[Cell], colour: bool, tight: bool
) -> tuple[str, list[Text]]:
    """A heading and its numbers, all of one width: numbers and headings are flush right, marks stand behind them."""
    from rich.text import Text

    numbers = [cell.text.replace(" ± ", "±") if tight else cell.text for cell in cells]
    marks = [_marks(cell, colour) for cell in cells]
    words = textwrap.wrap(heading, HEADING) or [""]
    mark = max(map(len, marks))
    width = max(mark + max(map(_width, numbers)), *map(_width, words))
    room = width - mark
    head = [
        _right(word, room) if _width(word) <= room else _right(word, width)
        for word in words
    ]
    texts = [
        Text.assemble(
            (_right(number, room), _style(cell)),
            (f"{text:<{mark}}", {1: "green", -1: "bold red"}.get(cell.mark, "")),
        )
        for number, text, cell in zip(numbers, marks, cells, strict=True)
    ]
    return "\n".join(f"{word:<{width}}" for word in head), texts


def _marks(cell: Cell, colour: bool) -> str:
    if colour:
        return {1: "▲", -1: "▼"}.get(cell.mark, "")
    return ("*" if cell.best else "") + {1: "+", -1: "!"}.get(cell.mark, "")


def _style(cell: Cell) -> str:
    return "bold" if cell.best else "dim" if cell.quiet else ""


def _shorten(name: str, most: int) -> str:
    """A long name without its middle."""
    return (
        name
        if _width(name) <= most
        else f"{name[: most // 2]}…{name[-((most - 1) // 2) :]}"
    )


def _legend(
    results: Results, shown: int, colour: bool, budget_inside: bool
) -> list[str]:
    best, worse, better = ("bold: best", "▼", "▲") if colour else ("* best", "!", "+")
    base, repeated = results.baseline, len(results.seeds) > 1
    parts = [
        best
        + (f" ({listing(results.references)} left out)" if results.references else "")
    ]
    if base and repeated:
        parts += [f"{worse} worse than {base}", f"{better} better"]
    lines = [";  ".join(parts) + "."] if len(results.methods) > 1 else []
    trees = [m for m in results.references if results.algorithms[m] in YARDSTICKS]
    pooled = [m for m in results.references if m not in trees]
    if pooled:
        lines.append(
            f"{listing(pooled)}: all rows in one place, for comparison only, since partners cannot share rows."
        )
    if trees:
        lines.append(
            f"{listing(trees)}: gradient-boosted trees of each client, and of all rows; a yardstick, no method."
        )
    if results.cost_unit:
        costs = [
            f"{m} {c.text}"
            for m, c in zip(results.methods, budget(results), strict=True)
        ]
        numbers = "" if budget_inside else f": {', '.join(costs)}"
        lines.append(
            f"{BUDGET}: row gradients of the whole run, {results.cost_unit} = 1{numbers}."
        )
    total = len(results.clients)
    if shown < total:
        lines.append(
            f"{total - shown} of {total} clients are not shown. The {shown} in the table have the largest gains and harms, or are among"
            " the few that a method serves. All stand in summary.json and in report.html of the run directory."
        )
    seeds_of = {m: results.seed_count(m) for m in results.methods}
    short = [
        f"{m} has {k} of {len(results.seeds)} seeds"
        for m, k in seeds_of.items()
        if k < len(results.seeds)
    ]
    if short:
        lines.append(
            f"Unfinished: {listing(short)}. Comparisons use the seeds that both methods have."
        )
    if base and not repeated:
        lines.append("One seed: no verdict on any difference; repeat with --folds 5.")
    return lines


# Characters


def _columns(width: int | None) -> int:
    return max(NARROWEST, width or shutil.get_terminal_size((80, 24)).columns)


def _terminal() -> bool:
    return (
        sys.stdout.isatty()
        and "NO_COLOR" not in os.environ
        and os.environ.get("TERM") != "dumb"
    )


def _width(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)


def _right(text: str, size: int) -> str:
    return " " * (size - _width(text)) + text

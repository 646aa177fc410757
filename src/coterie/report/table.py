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
from coterie.run.files import YARDSTICKS

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

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

    if colour is None:
        colour = _terminal()
    width = _columns(width)
    if metric is not None and metric not in results.metrics:
        raise InputError(
            f"no metric {metric!r}; there is {listing(results.metrics)}. A run measures others that it is asked for: "
            f"settings=ct.StudySettings(metrics=[{metric!r}]), or --metrics {metric}"
        )
    metrics = results.metrics
    if metric:
        metrics = (metric,)
    clients = results.clients
    if metrics and len(clients) > MANY:
        clients = results.extremes(metrics[0], SHOWN)
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
    # The costs of methods stand below the first table alone.
    grids = [grid(results, m, clients, cost=n == 0) for n, m in enumerate(metrics)]
    shown = _fit_width(grids, width, colour)
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
        shown = grids
        if turned:
            shown = [whole.transpose() for whole in grids]
        tables = [_table(g, colour, tight) for g in shown]
        if all(_full_width(table) <= width for table in tables):
            return list(zip(shown, tables, strict=True))
    blocks = []
    for whole in grids:
        for block in _cut(whole, width, colour):
            blocks.append((block, _table(block, colour)))
    return blocks


def _cut(table: Grid, width: int, colour: bool) -> list[Grid]:
    blocks: list[list[int]] = [[]]
    for i in range(len(table.columns)):
        block = blocks[-1]
        longer = table.part([*block, i])
        # A block has one column at least, also where that alone is too wide.
        if block and _full_width(_table(longer, colour)) > width:
            blocks.append([])
        blocks[-1].append(i)
    title = f"{table.title.partition(' (')[0]}, continued"
    parts = [table.part(blocks[0])]
    for block in blocks[1:]:
        parts.append(table.part(block)._replace(title=title))
    return parts


def _full_width(table: Table) -> int:
    from rich.console import Console

    console = Console(width=10_000)
    return console.measure(table).maximum


def _table(shown: Grid, colour: bool, tight: bool = False) -> Table:
    """One table without its title; `tight` saves the spaces around `±` and shortens the names of rows."""
    from rich.box import Box
    from rich.table import Table

    box, gap = None, 2
    if colour:
        box, gap = Box(RULES), 1  # a box has a column of its own between two others
    table = Table(
        box=box,
        show_edge=False,
        pad_edge=False,
        padding=(0, 0, 0, gap),
        header_style="dim",
        border_style="dim",
    )
    table.add_column(no_wrap=True)
    columns = []
    for heading, *cells in zip(shown.columns, *shown.cells, strict=True):
        wrapped, texts = _column(heading, cells, colour, tight)
        table.add_column(wrapped, no_wrap=True, vertical="bottom")
        columns.append(texts)
    longest_name = NARROW if tight else LABEL
    for i, name in enumerate(shown.rows):
        # rich draws a line below the row that ends a section: the last client.
        table.add_row(
            _shorten(name, longest_name),
            *(texts[i] for texts in columns),
            end_section=i + 1 == shown.summary,
        )
    return table


def _column(
    heading: str, cells: Sequence[Cell], colour: bool, tight: bool
) -> tuple[str, list[Text]]:
    """A heading and its numbers, all of one width: numbers and headings are flush right, marks stand behind them."""
    from rich.text import Text

    numbers = [cell.text for cell in cells]
    if tight:
        numbers = [number.replace(" ± ", "±") for number in numbers]
    marks = [_marks(cell, colour) for cell in cells]
    mark_width = max(map(len, marks))
    words = textwrap.wrap(heading, HEADING) or [""]
    number_width = max(map(_width, numbers))
    width = max(mark_width + number_width, *map(_width, words))
    room = width - mark_width
    lines = []
    for word in words:
        room_of_word = room
        if _width(word) > room:
            room_of_word = (
                width  # only a word that needs it takes the room of the marks
            )
        flush_right = _right(word, room_of_word)
        lines.append(f"{flush_right:<{width}}")
    texts = []
    for number, mark, cell in zip(numbers, marks, cells, strict=True):
        mark_style = {1: "green", -1: "bold red"}.get(cell.mark, "")
        text = Text.assemble(
            (_right(number, room), _style(cell)),
            (f"{mark:<{mark_width}}", mark_style),
        )
        texts.append(text)
    return "\n".join(lines), texts


def _marks(cell: Cell, colour: bool) -> str:
    if colour:
        return {1: "▲", -1: "▼"}.get(cell.mark, "")
    mark = {1: "+", -1: "!"}.get(cell.mark, "")
    if cell.best:
        return f"*{mark}"
    return mark


def _style(cell: Cell) -> str:
    if cell.best:
        return "bold"
    if cell.quiet:
        return "dim"
    return ""


def _shorten(name: str, most: int) -> str:
    """A long name without its middle."""
    if _width(name) <= most:
        return name
    return f"{name[: most // 2]}…{name[-((most - 1) // 2) :]}"


def _legend(
    results: Results, shown: int, colour: bool, budget_inside: bool
) -> list[str]:
    """Say what marks, references and budget are, and which clients, seeds and verdicts are missing."""
    lines = []
    if len(results.methods) > 1:
        lines.append(_legend_of_marks(results, colour))
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
        numbers = ""
        if not budget_inside:
            costs = zip(results.methods, budget(results), strict=True)
            numbers = ": " + ", ".join(f"{m} {cell.text}" for m, cell in costs)
        lines.append(
            f"{BUDGET}: row gradients of the whole run, {results.cost_unit} = 1{numbers}."
        )
    total = len(results.clients)
    if shown < total:
        lines.append(
            f"{total - shown} of {total} clients are not shown. The {shown} in the table have the largest gains and harms, or are among"
            " the few that a method serves. All stand in summary.json and in report.html of the run directory."
        )
    unfinished = []
    for method in results.methods:
        finished = results.seed_count(method)
        wanted = results.seeds_wanted(method)
        if finished < wanted:
            unfinished.append(f"{method} has {finished} of {wanted} seeds")
    if unfinished:
        lines.append(
            f"Unfinished: {listing(unfinished)}. Comparisons use the seeds that both methods have."
        )
    is_single = len(results.seeds) == 1 and not results.comparisons.enough_seeds
    if results.baseline and is_single:
        lines.append("One seed: no verdict on any difference; repeat with --folds 5.")
    return lines


def _legend_of_marks(results: Results, colour: bool) -> str:
    best, worse, better = "* best", "!", "+"
    if colour:
        best, worse, better = "bold: best", "▼", "▲"
    if results.references:
        best += f" ({listing(results.references)} left out)"
    if results.of_fewer_seeds:
        best += f" ({listing(results.of_fewer_seeds)} left out: fewer seeds)"
    parts = [best]
    if results.baseline and len(results.seeds) > 1:
        parts += [f"{worse} worse than {results.baseline}", f"{better} better"]
    return ";  ".join(parts) + "."


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

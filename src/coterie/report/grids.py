"""Clients by methods: what stands in the tables of the terminal and of the HTML report."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from coterie.base.spelling import count
from coterie.report.history import Vector
from coterie.report.results import Results
from coterie.report.statistics import deviation
from coterie.report.text import MISSING, number, printable

BUDGET = "budget"
MANY = 12


class Cell(NamedTuple):
    """One number of a table.

    Attributes:
        mean, std: over seeds; `std` is NaN with one seed.
        best: the best of its client, references left out.
        mark: 1 shown to be better, -1 worse, than each client alone, else 0.
        quiet: a reference or a baseline, not a choice.
        note: text instead of numbers.
        size: size of the numbers of its metric, by which digits are chosen (`number`).
    """

    mean: float = math.nan
    std: float = math.nan
    best: bool = False
    mark: int = 0
    quiet: bool = False
    note: str | None = None
    size: float | None = None

    @property
    def text(self) -> str:
        """The cell in words: `.927 ± .012`."""
        if self.note is not None:
            return self.note
        text = number(self.mean, self.size)
        if math.isfinite(self.std):
            text += f" ± {number(self.std, self.size)}"
        return text


class Grid(NamedTuple):
    """A table of one metric: `cells[row][column]`; the rows from `summary` on are about all clients."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]
    summary: int

    def transpose(self) -> Grid:
        """Methods as rows and clients as columns, without the budget."""
        keep = len(self.rows) - (self.rows[-1] == BUDGET)
        cells = tuple(zip(*self.cells[:keep], strict=True))
        return Grid(
            self.title, self.columns, self.rows[:keep], cells, len(self.columns)
        )

    def part(self, columns: Sequence[int]) -> Grid:
        """Some of the columns."""
        cells = tuple(tuple(row[i] for i in columns) for row in self.cells)
        return self._replace(
            columns=tuple(self.columns[i] for i in columns), cells=cells
        )


def grid(
    results: Results,
    metric: str,
    clients: Sequence[str] | None = None,
    *,
    cost: bool = False,
) -> Grid:
    """The table of one metric: `clients` (default: all), then rows about all of them; methods, then the baseline."""
    shown = results.clients
    if clients is not None:
        shown = tuple(clients)
    heading, scores = results.comparisons.trivial(None, metric)
    has_constant = bool(np.isfinite(scores).any())
    labels = [results.names[c] for c in shown]
    cells = [client_row(results, c, metric, has_constant) for c in shown]
    summary = len(labels)
    if len(results.clients) > 1:
        all_are_shown = len(shown) == len(results.clients)
        labels.append("mean" if all_are_shown else "mean of all")
        cells.append(client_row(results, None, metric, has_constant))
    if len(results.clients) > MANY:
        for label, row in _standing(results, metric):
            labels.append(label)
            cells.append(row)
    if cost and results.cost_unit:
        labels.append(BUDGET)
        cells.append(budget(results))
    columns = [printable(m) for m in results.methods]
    if has_constant:
        columns.append(heading)
    # The prediction without a model has no place among the clients and costs nothing: its cells are empty there.
    full = [row + (Cell(note=""),) * (len(columns) - len(row)) for row in cells]
    return Grid(
        _title(results, metric), tuple(labels), tuple(columns), tuple(full), summary
    )


def client_row(
    results: Results, client: str | None, metric: str, constant: bool
) -> tuple[Cell, ...]:
    """One client (None: the mean over all) under every method and, with `constant`, under a prediction without any model."""
    best_of = max if results.higher_is_better(metric) else min
    cells = [_cell(results, m, client, metric) for m in results.methods]
    # A mean over fewer seeds may be the better one by its seeds alone.
    ranked = [
        not cell.quiet and method not in results.of_fewer_seeds
        for method, cell in zip(results.methods, cells, strict=True)
    ]
    ranking = itertools.compress(cells, ranked)
    choices = [cell.mean for cell in ranking if math.isfinite(cell.mean)]
    size = results.magnitude.get(metric)
    top: str | None = None
    if len(choices) > 1:  # among fewer there is no best one
        top = number(best_of(choices), size)
    marked = []
    for cell, is_ranked in zip(cells, ranked, strict=True):
        # Cells that print as the best one share its mark.
        is_best = is_ranked and number(cell.mean, size) == top
        marked.append(cell._replace(best=is_best, size=size))
    if not constant:
        return tuple(marked)
    trivial = _spread(results.comparisons.trivial(client, metric)[1], quiet=True)
    return (*marked, trivial._replace(std=math.nan, size=size))


def _cell(results: Results, method: str, client: str | None, metric: str) -> Cell:
    is_reference = method in results.references
    cell = _spread(results.values(method, client, metric), quiet=is_reference)
    base = results.baseline
    if base is None or method == base:
        return cell
    difference = results.difference(method, base, client, metric)
    if difference is None or difference.strength != "shown":
        return cell
    return cell._replace(mark=difference.sign)


def _spread(values: Vector, *, quiet: bool) -> Cell:
    finite = values[np.isfinite(values)]
    if not finite.size:
        return Cell(quiet=quiet)
    return Cell(float(finite.mean()), deviation(finite), quiet=quiet)


def _standing(results: Results, metric: str) -> list[tuple[str, tuple[Cell, ...]]]:
    """With many clients: the worst of them, and how many a method is shown to help and harm."""
    worst = min if results.higher_is_better(metric) else max
    size = results.magnitude.get(metric)
    ends = []
    for method in results.methods:
        means = [results.mean(method, c, metric) for c in results.clients]
        worst_mean = worst(filter(math.isfinite, means), default=math.nan)
        is_reference = method in results.references
        ends.append(Cell(worst_mean, quiet=is_reference, size=size))
    rows = [("worst client", tuple(ends))]
    base = results.baseline
    if base is None:
        return rows
    for label, sign in (("better", 1), ("worse", -1)):
        tally = []
        for method in results.methods:
            if method == base:
                tally.append(Cell(note=MISSING))
                continue
            hits = 0
            for client in results.clients:
                difference = results.difference(method, base, client, metric)
                if difference is not None and difference.strength == "shown":
                    hits += difference.sign == sign
            tally.append(Cell(note=f"{hits} of {len(results.clients)}"))
        rows.append((label, tuple(tally)))
    return rows


def budget(results: Results) -> tuple[Cell, ...]:
    """Row gradients of each method as a multiple of `cost_unit`."""
    unit = results.cost(results.cost_unit or "")
    cells = []
    for method in results.methods:
        share = results.cost(method) / unit
        text = MISSING
        if math.isfinite(share):
            text = f"× {share:.2f}"
        cells.append(Cell(note=text))
    return tuple(cells)


def repeats_in_words(results: Results) -> str:
    """Over which seeds means are, such as "3 seeds"; some methods may have fewer."""
    every = len(results.seeds)
    if results.of_fewer_seeds:
        return f"the seeds of a method, at most {every}"
    return count(every, "seed")


def _title(results: Results, metric: str) -> str:
    direction = "higher" if results.higher_is_better(metric) else "lower"
    repeats = "one seed"
    if len(results.seeds) > 1:
        repeats = f"mean ± std over {repeats_in_words(results)}"
    return f"{results.metric_title(metric)} on {results.split} rows ({direction} is better; {repeats})"

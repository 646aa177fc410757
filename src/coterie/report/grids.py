"""Clients by methods: what stands in the tables of the terminal and of the HTML report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from coterie.report.history import Vector
from coterie.report.results import Results
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
        spread = f" ± {number(self.std, self.size)}" if math.isfinite(self.std) else ""
        return number(self.mean, self.size) + spread


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
    shown = results.clients if clients is None else clients
    heading, scores = results.comparisons.trivial(None, metric)
    constant = bool(np.isfinite(scores).any())
    rows = [(results.names[c], client_row(results, c, metric, constant)) for c in shown]
    summary = len(rows)
    if len(results.clients) > 1:
        rows.append(
            (
                "mean of all" if len(shown) < len(results.clients) else "mean",
                client_row(results, None, metric, constant),
            )
        )
    if len(results.clients) > MANY:
        rows += _standing(results, metric, constant)
    if cost and results.cost_unit:
        rows.append(
            (BUDGET, (*budget(results), *([Cell(note="")] if constant else [])))
        )
    columns = (
        *(printable(m) for m in results.methods),
        *([heading] if constant else []),
    )
    labels, cells = zip(*rows, strict=True)
    return Grid(_title(results, metric), tuple(labels), columns, tuple(cells), summary)


def client_row(
    results: Results, client: str | None, metric: str, constant: bool
) -> tuple[Cell, ...]:
    """One client (None: the mean over all) under every method and, with `constant`, under a prediction without any model."""
    sign = 1 if results.higher_is_better(metric) else -1
    cells = [_cell(results, m, client, metric) for m in results.methods]
    choices = [sign * c.mean for c in cells if not c.quiet and math.isfinite(c.mean)]
    size = results.magnitude.get(metric)
    top = number(sign * max(choices), size) if len(choices) > 1 else None
    marked = [
        c._replace(best=not c.quiet and number(c.mean, size) == top, size=size)
        for c in cells
    ]
    if not constant:
        return tuple(marked)
    trivial = _spread(results.comparisons.trivial(client, metric)[1], quiet=True)
    return (*marked, trivial._replace(std=math.nan, size=size))


def _cell(results: Results, method: str, client: str | None, metric: str) -> Cell:
    cell = _spread(
        results.values(method, client, metric), quiet=method in results.references
    )
    base = results.baseline
    difference = (
        results.difference(method, base, client, metric)
        if base and base != method
        else None
    )
    return cell._replace(
        mark=difference.sign
        if difference is not None and difference.strength == "shown"
        else 0
    )


def _spread(values: Vector, *, quiet: bool) -> Cell:
    finite = values[np.isfinite(values)]
    if not finite.size:
        return Cell(quiet=quiet)
    return Cell(
        float(finite.mean()),
        float(finite.std(ddof=1)) if finite.size > 1 else math.nan,
        quiet=quiet,
    )


def _standing(
    results: Results, metric: str, constant: bool
) -> list[tuple[str, tuple[Cell, ...]]]:
    """With many clients: the worst of them, and how many a method is shown to help and harm."""
    worst, tail = (
        (min if results.higher_is_better(metric) else max),
        (Cell(note=""),) * constant,
    )
    ends = []
    for method in results.methods:
        means = [
            v
            for v in (results.mean(method, c, metric) for c in results.clients)
            if math.isfinite(v)
        ]
        worst_mean = worst(means) if means else math.nan
        ends.append(
            Cell(
                worst_mean,
                quiet=method in results.references,
                size=results.magnitude.get(metric),
            )
        )
    rows = [("worst client", (*ends, *tail))]
    base = results.baseline
    if base is None:
        return rows
    for label, sign in (("better", 1), ("worse", -1)):
        tally = []
        for method in results.methods:
            differences = (
                [results.difference(method, base, c, metric) for c in results.clients]
                if base != method
                else []
            )
            hits = sum(
                d is not None and d.strength == "shown" and d.sign == sign
                for d in differences
            )
            tally.append(
                Cell(
                    note=f"{hits} of {len(results.clients)}" if differences else MISSING
                )
            )
        rows.append((label, (*tally, *tail)))
    return rows


def budget(results: Results) -> tuple[Cell, ...]:
    """Row gradients of each method as a multiple of `cost_unit`."""
    unit = results.cost(results.cost_unit or "")
    shares = [results.cost(m) / unit for m in results.methods]
    return tuple(
        Cell(note=f"× {s:.2f}" if math.isfinite(s) else MISSING) for s in shares
    )


def _title(results: Results, metric: str) -> str:
    direction = "higher" if results.higher_is_better(metric) else "lower"
    repeats = (
        f"mean ± std over {len(results.seeds)} seeds"
        if len(results.seeds) > 1
        else "one seed"
    )
    return f"{results.metric_title(metric)} on {results.split} rows ({direction} is better; {repeats})"

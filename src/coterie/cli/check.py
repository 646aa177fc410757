"""The text of `coterie check` on the screen."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from coterie.base.spelling import count, listing
from coterie.data.tables.check import Facts, TableCheck, short

if TYPE_CHECKING:
    from coterie.study.partners import PartnerForecast

FEW_CLIENTS = 5
"""So many clients have a column each; of more, the table says the extremes."""

MOST_SHOWN = 8
"""So many clients have a column of divergences each; of more, each client's nearest is named."""

MOST_DRIFTS = 10
APART = {"mean difference": 0.5, "total variation": 0.2}
"""Differences from which a column is worth a line, by measure."""


def lines(check: TableCheck, width: int | None = None) -> list[str]:
    """Problems, notes, and the tables, wrapped to `width` columns (default: the terminal's)."""
    width = width or min(160, shutil.get_terminal_size((100, 24)).columns)
    few_clients = len(check.clients) <= FEW_CLIENTS
    printed = [f"problem: {sentence}" for sentence in check.problems]
    printed += [f"note: {sentence}" for sentence in check.notes]
    label = check.columns.get(check.label or "", {})
    clients = [
        (name, str(rows), short(label[name]) if name in label else "-")
        for name, rows in check.clients.items()
    ]
    printed += [
        "",
        *_table(
            ("client", "rows", f"label {check.label}" if check.label else "label"),
            clients,
            width,
        ),
    ]
    header = (
        ("column", *check.clients)
        if few_clients
        else ("column", "kind", "missing", "range or categories", "clients")
    )
    rows = [
        _of_clients(c, distances, check.clients)
        if few_clients
        else _of_many(c, distances)
        for c, distances in check.columns.items()
    ]
    printed += [
        "",
        *_table(header, [row for row in rows if row[0] != check.label], width),
    ]
    printed += ["", *_drifts(check), ""]
    printed = printed if check.problems or check.notes else printed[1:]
    problems = len(check.problems)
    return [
        *printed,
        f"{count(problems, 'problem')} to solve before a run"
        if problems
        else "a run can start",
    ]


def partner_lines(forecast: PartnerForecast, width: int | None = None) -> list[str]:
    """FedCollab's forecast: sizes, divergences, coalitions, what it costs and what it would reveal at sites."""
    names = tuple(forecast.rows)
    few_clients = len(names) <= MOST_SHOWN
    rows: list[tuple[str, ...]] = []
    for name, by_other in forecast.divergences.items():
        other_gains = {
            other: value for other, value in by_other.items() if other != name
        }
        nearest = min(other_gains, key=other_gains.__getitem__)
        cells = (
            [f"{by_other[other]:.2f}" for other in names]
            if few_clients
            else [nearest, f"{other_gains[nearest]:.2f}"]
        )
        rows.append((name, str(forecast.rows[name]), *cells))
    header = (
        "client",
        "training rows",
        *(names if few_clients else ("nearest", "divergence")),
    )
    width = width or min(160, shutil.get_terminal_size((100, 24)).columns)
    closing = (
        "divergence: 0 if no classifier can tell the rows of two clients apart, 1 if one always can",
        f"coalitions: {' | '.join(map(', '.join, forecast.coalitions))}",
        f"cost: {count(forecast.pairs, 'small classifier')}, one for each pair of clients",
        f"reveals: of sites, two accuracies of each pair, on either half of the rows, and its classifiers, {forecast.asks} times",
        "A forecast is no verdict. A run with --methods local,fedavg,fedcollab checks it: its report counts hits and misses.",
    )
    return [
        "who belongs together? FedCollab's forecast, before any model is trained",
        *_table(header, rows, width),
        "",
        *(
            line
            for text in closing
            for line in textwrap.wrap(text, width, break_on_hyphens=False)
        ),
    ]


def _of_clients(
    column: str, by_client: Mapping[str, Facts], clients: Iterable[str]
) -> tuple[str, ...]:
    return (
        column,
        *(short(by_client[name]) if name in by_client else "-" for name in clients),
    )


def _of_many(column: str, by_client: Mapping[str, Facts]) -> tuple[str, ...]:
    facts = list(by_client.values())
    kinds = sorted({f.kind for f in facts})
    missing = [f.missing for f in facts]
    lows, highs = (
        [f.low for f in facts if f.low is not None],
        [f.high for f in facts if f.high is not None],
    )
    texts = sorted({text for f in facts for text in f.shares})
    totals = facts[0]._replace(
        low=min(lows, default=None), high=max(highs, default=None), missing=0.0
    )
    values = short(totals) if lows else listing(texts)
    return (
        column,
        ", ".join(kinds),
        " to ".join(
            dict.fromkeys(f"{share:.0%}" for share in (min(missing), max(missing)))
        ),
        values,
        str(len(facts)),
    )


def _table(
    header: Sequence[str], rows: Sequence[Sequence[str]], width: int
) -> list[str]:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in header:
        table.add_column(Text(name))
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(table)
    return [line.rstrip() for line in capture.get().strip("\n").split("\n")]


def _drifts(check: TableCheck) -> list[str]:
    large_drifts = [
        d for d in check.drift if abs(d.value) >= max(APART[d.measure], d.chance)
    ]
    if not check.drift:
        return []
    if not large_drifts:
        return ["are the clients alike? No column of a client is far from the others."]
    subject = (
        "columns of single clients are"
        if len(large_drifts) > 1
        else "column of one client is"
    )
    printed = [
        f"are the clients alike? {len(large_drifts)} {subject} far from the others; the furthest:"
    ]
    for d in large_drifts[:MOST_DRIFTS]:
        size = (
            f"{d.value:+.1f} standard deviations"
            if d.measure == "mean difference"
            else f"{d.value:.0%} of the rows"
        )
        printed.append(f"  {d.client}: {d.column} differs by {size}")
    return printed

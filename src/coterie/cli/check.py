"""The text of `coterie check` on the screen."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping, Sequence
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
    printed = [f"problem: {sentence}" for sentence in check.problems]
    printed += [f"note: {sentence}" for sentence in check.notes]
    if printed:
        printed.append("")
    printed += _table(*_client_rows(check), width)
    printed += ["", *_table(*_column_rows(check), width)]
    printed += ["", *_drifts(check), ""]
    problems = len(check.problems)
    if problems:
        printed.append(f"{count(problems, 'problem')} to solve before a run")
    else:
        printed.append("a run can start")
    return printed


def _client_rows(check: TableCheck) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Titles, and a row for each client: its rows and its labels."""
    label_title = "label"
    label_facts: Mapping[str, Facts] = {}
    if check.label:
        label_title = f"label {check.label}"
        label_facts = check.columns.get(check.label, {})
    rows: list[Sequence[str]] = []
    for name, amount in check.clients.items():
        rows.append((name, str(amount), _short_or_dash(label_facts.get(name))))
    return ("client", "rows", label_title), rows


def _short_or_dash(fact: Facts | None) -> str:
    """What a client's column holds; a dash where the client has no such column."""
    if fact is None:
        return "-"
    return short(fact)


def _column_rows(check: TableCheck) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Titles, and a row for each column but the label: a cell for each client, or of many clients the extremes."""
    few_clients = len(check.clients) <= FEW_CLIENTS
    titles: Sequence[str]
    if few_clients:
        titles = ("column", *check.clients)
    else:
        titles = ("column", "kind", "missing", "range or categories", "clients")
    rows: list[Sequence[str]] = []
    for column, by_client in check.columns.items():
        if column == check.label:
            continue
        if few_clients:
            cells = [_short_or_dash(by_client.get(name)) for name in check.clients]
        else:
            cells = _summarise(list(by_client.values()))
        rows.append((column, *cells))
    return titles, rows


def partner_lines(forecast: PartnerForecast, width: int | None = None) -> list[str]:
    """FedCollab's forecast: sizes, divergences, coalitions, what it costs and what it would reveal at sites."""
    width = width or min(160, shutil.get_terminal_size((100, 24)).columns)
    names = tuple(forecast.rows)
    few_clients = len(names) <= MOST_SHOWN
    columns: tuple[str, ...] = ("nearest", "divergence")
    if few_clients:
        columns = names
    rows: list[tuple[str, ...]] = []
    for name, by_other in forecast.divergences.items():
        if few_clients:
            cells = [f"{by_other[other]:.2f}" for other in names]
        else:
            others = [other for other in by_other if other != name]
            nearest = min(others, key=by_other.__getitem__)
            cells = [nearest, f"{by_other[nearest]:.2f}"]
        rows.append((name, str(forecast.rows[name]), *cells))
    printed = [
        "who belongs together? FedCollab's forecast, before any model is trained"
    ]
    printed += _table(("client", "training rows", *columns), rows, width)
    printed.append("")
    for text in (
        "divergence: 0 if no classifier can tell the rows of two clients apart, 1 if one always can",
        f"coalitions: {' | '.join(map(', '.join, forecast.coalitions))}",
        f"cost: {count(forecast.pairs, 'small classifier')}, one for each pair of clients",
        f"reveals: of sites, two accuracies of each pair, on either half of the rows, and its classifiers, {forecast.asks} times",
        "A forecast is no verdict. A run with --methods local,fedavg,fedcollab checks it: its report counts hits and misses.",
    ):
        printed += textwrap.wrap(text, width, break_on_hyphens=False)
    return printed


def _summarise(facts: Sequence[Facts]) -> list[str]:
    """What a column is at many clients: its kinds, the least and most missing, range or categories, and how many have it."""
    kinds = sorted({fact.kind for fact in facts})
    missing = [fact.missing for fact in facts]
    least, most = f"{min(missing):.0%}", f"{max(missing):.0%}"
    lows = [fact.low for fact in facts if fact.low is not None]
    highs = [fact.high for fact in facts if fact.high is not None]
    if lows:
        high = max(highs, default=None)
        values = short(facts[0]._replace(low=min(lows), high=high, missing=0.0))
    else:
        categories: set[str] = set()
        for fact in facts:
            categories |= fact.shares.keys()
        values = listing(sorted(categories))
    shown_missing = f"{least} to {most}"
    if least == most:
        shown_missing = least
    return [", ".join(kinds), shown_missing, values, str(len(facts))]


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
    if not check.drift:
        return []
    large = [d for d in check.drift if abs(d.value) >= max(APART[d.measure], d.chance)]
    if not large:
        return ["are the clients alike? No column of a client is far from the others."]
    are = "columns of single clients are"
    if len(large) == 1:
        are = "column of one client is"
    printed = [
        f"are the clients alike? {len(large)} {are} far from the others; the furthest:"
    ]
    for d in large[:MOST_DRIFTS]:
        size = f"{d.value:.0%} of the rows"
        if d.measure == "mean difference":
            size = f"{d.value:+.1f} standard deviations"
        printed.append(f"  {d.client}: {d.column} differs by {size}")
    return printed

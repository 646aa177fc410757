"""`report.html`: one file that answers the question, works offline and loads nothing."""

from __future__ import annotations

import json
import math
import shlex
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.base.errors import explain_imports
from coterie.base.files import write_atomically
from coterie.base.system import few_collections
from coterie.report import figures, words
from coterie.report.contributions import (
    Contribution,
    contributions,
    signs,
    silent_targets,
)
from coterie.report.decisions import table as table_of_decisions
from coterie.report.diagnosis import call_all_the_same
from coterie.report.diagnosis import table as table_of_tests
from coterie.report.drawings import forest, network
from coterie.report.files import Columns, csv_columns
from coterie.report.followup import groups_of, horizon_of
from coterie.report.forecasts import Forecast, forecasts
from coterie.report.grids import budget, grid, repeats_in_words
from coterie.report.hazard_ratios import table_of_ratios
from coterie.report.history import Vector
from coterie.report.outside import first_outside_words
from coterie.report.pictures import (
    forest_picture,
    link,
    network_picture,
    survival_picture,
)
from coterie.report.results import Results
from coterie.report.text import number, percent, printable, unbroken
from coterie.report.verdicts import Verdict
from coterie.report.words import Story
from coterie.run.files import REPORT, refuse_links

TEMPLATE = "template.html.j2"
MOST_CONTRIBUTIONS = 400
ROWS = 200
BADGES = {
    "join": "good",
    "probably join": "good",
    "safe to join": "neutral",
    "stay alone": "bad",
    "probably stay alone": "bad",
    "mixed": "mixed",
    "undecided": "neutral",
    "too few rows to tell": "open",
    "no verdict": "open",
}


def write(folder: str | Path) -> Path:
    """Write `report.html` of a run directory from its files alone; the path of the report.

    Raises:
        InputError: a file of the run is missing or broken, or jinja2 is not installed.
    """
    return write_page(Results.load(folder))


@few_collections()
def write_page(results: Results) -> Path:
    """Write the same of results that are loaded, which others may go on to use; errors as of `write`."""
    with explain_imports("the HTML report needs jinja2", "report"):
        import jinja2
        import markupsafe

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    labels = sorted(
        (words.label(results, m) for m in results.methods), key=len, reverse=True
    )
    environment.filters |= {
        "number": number,
        "kept": unbroken,
        "quoted": shlex.quote,
        "labelled": lambda text: _set_label(
            unbroken(text), labels, markupsafe.Markup("<b>{}</b>{}")
        ),
    }
    context = _context(results)
    drawn = figures.data(results, [test["client"] for test in context["tests"]])
    page = environment.get_template(TEMPLATE).render(
        **context,
        style=_beside("page.css"),
        script=_beside("page.js"),
        data=_json_for_script(drawn),
    )
    refuse_links(results.folder)
    path = results.folder / REPORT
    write_atomically(
        path, lambda temporary: temporary.write_text(page, encoding="utf-8")
    )
    return path


def _beside(name: str) -> str:
    """The text of a file beside this one."""
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def _json_for_script(data: dict[str, Any]) -> str:
    """JSON that may stand in a script element: no `<`, no NaN."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _context(results: Results) -> dict[str, Any]:
    story = words.tell(results)
    forests, pictures, tests = {}, {}, []
    for shown in story.clients:
        client = shown.client
        plot = forest(results, client)
        forests[client] = plot
        if plot:
            picture = forest_picture(shown.name, shown.headline, plot)
            pictures[client] = link(picture)
        rows = table_of_tests(results, client)
        if rows:
            tests.append(
                {
                    "client": client,
                    "name": shown.name,
                    "rows": rows,
                    "alike": call_all_the_same(results, client, rows),
                    "decisions": table_of_decisions(results, client),
                }
            )
    drawn = network(results)
    if drawn:
        picture = network_picture(drawn)
        drawn |= {"svg": picture, "link": link(picture)}
    threshold = None
    if results.threshold != "validation":
        threshold = number(float(results.threshold))
    standing = []
    if len(results.clients) > len(story.clients):
        standing = _standing(results, story.verdicts)
    horizon = ""
    if results.of_events:
        horizon = horizon_of(results)
    measured = contributions(results)
    pooled = [m for m in results.references if results.algorithms[m] == "centralised"]
    return {
        "title": printable(results.title),
        "facts": words.facts(results),
        "story": story,
        "outside": first_outside_words(results),
        "badges": BADGES,
        "gists": words.gists(results, story.verdicts),
        "predicts": results.predicts,
        "rule": words.RULE,
        "smallest": number(results.comparisons.smallest),
        "forests": forests,
        "pictures": pictures,
        "network": drawn,
        "tests": tests,
        "followed": _followed(results, story),
        "horizon": horizon,
        "hazard_ratios": _hazard_ratios(results),
        "threshold_named": results.decision_threshold is not None,
        "threshold": threshold,
        "constants": {c: words.constant(results, c) for c in forests},
        "sizes": {c: _size(results, c) for c in forests},
        "standing": standing,
        "tables": [_table(results, m) for m in results.metrics],
        "omitted": max(0, len(results.clients) - ROWS),
        "legend": {
            "base": results.baseline and printable(results.baseline),
            "references": [printable(m) for m in results.references],
            "seeds": len(results.seeds),
            "repeats": repeats_in_words(results),
            "fewer": [printable(m) for m in results.of_fewer_seeds],
        },
        "pooled": bool(pooled),
        "positive": results.positive,
        "classification": results.classification,
        "of_events": results.of_events,
        "of_counts": results.of_counts,
        "judged": results.gain_name,
        "auc": "auc" in results.metrics,
        "costs": _costs(results),
        "traffic": _traffic(results),
        "forecasts": [
            _describe_forecast(results, one)
            for one in forecasts(results, story.verdicts)
        ],
        "contributions": _contributions(results, measured),
        "signs": [
            f"{printable(m)}: {sign.in_words(results.names, *times)}"
            for m, sign, *times in signs(results)
        ],
        "unmeasured": list(silent_targets(results, measured)),
        "all_contributions": len(measured),
        "failures": [printable(text) for text in results.failures],
        "cost_unit": results.cost_unit and printable(results.cost_unit),
        "split": results.split,
        "notes": results.notes,
        "settings": (results.folder / "experiment.toml").read_text(encoding="utf-8"),
        "command": str(results.environment.get("command", "")),
        "environment": list(_flat(results.environment)),
        "folder": results.folder.name,
    }


def _followed(results: Results, story: Story) -> list[dict[str, Any]]:
    """Survival as predicted and seen, of each client with a card; empty without time to event."""
    if not results.of_events:
        return []
    shown = []
    for client in story.clients:
        rival = results.against or ""
        method = story.verdicts[client.client].method or rival
        groups = groups_of(results, method, client.client)
        if not groups:
            continue
        label = f"Survival by third of risk at {client.name}"
        picture = survival_picture(groups[1:] or groups, horizon_of(results), label)
        rows = []
        for group in groups:
            seen = _percent_or_none(group.seen)
            interval = ""
            if math.isfinite(group.low):
                interval = f"{100 * group.low:.0f} to {100 * group.high:.0f}"
            rows.append(
                {
                    "name": group.name,
                    "patients": f"{group.patients:,}",
                    "predicted": _percent_or_none(group.predicted),
                    "seen": seen,
                    "interval": interval,
                }
            )
        shown.append(
            {
                "name": client.name,
                "method": printable(method),
                "rows": rows,
                "svg": picture,
                "link": link(picture),
            }
        )
    return shown


def _hazard_ratios(results: Results) -> list[dict[str, Any]]:
    """The table of each method that tells hazard ratios; empty for others."""
    tables = []
    for method in results.methods:
        rows = table_of_ratios(results, method)
        if rows:
            tables.append({"method": printable(method), "rows": rows})
    return tables


def _percent_or_none(share: float) -> str:
    if not math.isfinite(share):
        return number(None)
    return f"{100 * share:.0f} %"


def _describe_forecast(results: Results, forecast: Forecast) -> dict[str, Any]:
    return {
        **forecast._asdict(),
        "client": results.names[forecast.client],
        "forecast": forecast.in_words(results.names),
    }


def _size(results: Results, client: str) -> str:
    parts = []
    n = results.size(client)
    if math.isfinite(n):
        parts.append(f"{n:,.0f} {results.split} rows")
    n_train = results.size(client, "n_train")
    if math.isfinite(n_train) and results.split != "train":
        parts.append(f"{n_train:,.0f} training rows")
    positive = results.comparisons.outcomes.positive(results.against or "", client)
    share = [float(v) for v in results.constant(client, "majority") if math.isfinite(v)]
    if positive is not None:
        parts.append(f"{percent(positive)} {results.positive or 'positive'}")
    elif share:
        parts.append(f"{percent(sum(share) / len(share))} in the largest class")
    return " · ".join(parts)


def _standing(results: Results, verdicts: dict[str, Verdict]) -> list[dict[str, str]]:
    """All verdicts in a list, where only some clients have a card."""
    return [
        {
            "name": results.names[c],
            "badge": BADGES[v.kind],
            "kind": words.badge(results, v),
            "reason": v.reason,
        }
        for c, v in list(verdicts.items())[:ROWS]
    ]


def _table(results: Results, metric: str) -> dict[str, Any]:
    """One metric: the cells of `grids.grid`."""
    clients = results.clients
    if len(clients) > ROWS:
        clients = results.extremes(metric, ROWS)
    table = grid(results, metric, clients)
    rows = []
    for i, (label, cells) in enumerate(zip(table.rows, table.cells, strict=True)):
        rows.append({"label": label, "cells": cells, "summary": i >= table.summary})
    extra = len(table.columns) - len(results.methods)
    quiet = [m in results.references for m in results.methods] + [True] * extra
    better = "higher" if results.higher_is_better(metric) else "lower"
    return {
        "metric": metric,
        "name": results.metric_title(metric),
        "better": better,
        "columns": list(zip(table.columns, quiet, strict=True)),
        "rows": rows,
    }


def _costs(results: Results) -> list[dict[str, Any]]:
    """Return the cost of each method: row gradients, seconds, seconds of its own work, models."""
    finite = [c for c in map(results.cost, results.methods) if math.isfinite(c)]
    most = max(finite, default=0.0)
    entries = []
    for method, multiple in zip(results.methods, budget(results), strict=True):
        cost = results.cost(method)
        multiple_text = gradients = number(None)
        bar: float = 0
        if results.cost_unit:
            multiple_text = multiple.text
        if math.isfinite(cost):
            gradients = f"{cost:,.0f}"
            if most > 0:
                bar = round(100 * cost / most, 1)
        entries.append(
            {
                "method": printable(method),
                "algorithm": printable(results.algorithms[method]),
                "models": _models_of(results, method),
                "multiple": multiple_text,
                "gradients": gradients,
                "bar": bar,
                "seconds": _seconds(results.seconds.get(method), digits=1),
                "own": _seconds(results.own_seconds.get(method), digits=2),
            }
        )
    return entries


def _models_of(results: Results, method: str) -> str:
    """Whether a method gives each client a model of its own, in words."""
    own_models = set()
    for client in results.clients:
        by_seed = results.cells.get((method, client, results.split), {})
        own_models |= {bool(row.get("own_model")) for row in by_seed.values()}
    if len(own_models) > 1:
        return "both"
    if True in own_models:
        return "one per client"
    return "one for all"


def _seconds(values: Vector | None, digits: int) -> str:
    """The mean over seeds; `-` where none were measured."""
    if values is None or not values.size or not math.isfinite(values.mean()):
        return number(None)
    return f"{values.mean():.{digits}f}"


def _contributions(
    results: Results, measured: Sequence[Contribution]
) -> list[dict[str, str]]:
    loss = "log-loss" if results.classification else "loss"
    rows = []
    for one in measured[:MOST_CONTRIBUTIONS]:
        fall = number(one.fall)
        if one.half is not None:
            fall += f" ± {number(one.half)}"
        rows.append(
            {
                "method": printable(one.method),
                "target": results.names.get(one.target, printable(one.target)),
                "client": results.names.get(one.client, printable(one.client)),
                "weight": number(one.weight),
                "fall": fall,
                "words": one.in_words(results.names, loss),
            }
        )
    return rows


def _traffic(results: Results) -> list[dict[str, Any]]:
    """Asks to each client that is elsewhere, their bytes and the seconds until its replies, all seeds together."""
    path = results.folder / "asks.csv"
    if not path.is_file():
        return []
    columns: Columns = {
        "method": str,
        "client": str,
        "bytes_down": int,
        "bytes_up": int,
        "seconds": float,
        "failed": str,
    }
    totals: dict[tuple[str, str], dict[str, float]] = defaultdict(
        lambda: defaultdict(float)
    )
    asks = zip(*csv_columns(path, columns), strict=True)
    for method, client, bytes_down, bytes_up, seconds, failed in asks:
        total = totals[method, client]
        total["asks"] += 1
        total["down"] += bytes_down
        total["up"] += bytes_up
        total["seconds"] += seconds
        total["failed"] += bool(failed)
    rows = []
    for (method, client), total in totals.items():
        rows.append(
            {
                "method": printable(method),
                "client": printable(client),
                "asks": f"{total['asks']:,.0f}",
                "down": f"{total['down'] / 1e6:.3f}",
                "up": f"{total['up'] / 1e6:.3f}",
                "seconds": f"{total['seconds']:.1f}",
                "failed": f"{total['failed']:,.0f}",
            }
        )
    return rows


def _set_label(text: str, labels: list[str], form: Any) -> Any:
    """A sentence whose label, if it begins with one, is set in `form`; escaped."""
    for label in labels:
        if text.startswith(label):
            return form.format(label, text[len(label) :])
    return text


def _flat(values: dict[str, Any], prefix: str = "") -> Any:
    """Key and value of everything in nested dictionaries."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            yield f"{prefix}{key}", json.dumps(value)
        else:
            yield f"{prefix}{key}", str(value)

"""`report.html`: one file that answers the question, works offline and loads nothing."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.base.errors import explain_imports, few_collections
from coterie.base.files import write_atomically
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
from coterie.report.forecasts import forecasts
from coterie.report.grids import budget, grid
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
    forests = {c.client: forest(results, c.client) for c in story.clients}
    drawn, measured = network(results), contributions(results)
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
        "pictures": {
            c.client: link(forest_picture(c.name, c.headline, plot))
            for c in story.clients
            if (plot := forests[c.client])
        },
        "network": drawn
        and {
            **drawn,
            "svg": network_picture(drawn),
            "link": link(network_picture(drawn)),
        },
        "tests": [
            {
                "client": c.client,
                "name": c.name,
                "rows": rows,
                "alike": call_all_the_same(results, c.client, rows),
                "decisions": table_of_decisions(results, c.client),
            }
            for c in story.clients
            if (rows := table_of_tests(results, c.client))
        ],
        "followed": _followed(results, story),
        "horizon": horizon_of(results) if results.of_events else "",
        "threshold_named": results.decision_threshold is not None,
        "threshold": None
        if results.threshold == "validation"
        else number(float(results.threshold)),
        "constants": {
            c.client: words.constant(results, c.client) for c in story.clients
        },
        "sizes": {c.client: _size(results, c.client) for c in story.clients},
        "standing": _standing(results, story.verdicts)
        if len(results.clients) > len(story.clients)
        else [],
        "tables": [_table(results, m) for m in results.metrics],
        "omitted": max(0, len(results.clients) - ROWS),
        "legend": {
            "base": results.baseline and printable(results.baseline),
            "references": [printable(m) for m in results.references],
            "seeds": len(results.seeds),
        },
        "pooled": any(
            results.algorithms[m] == "centralised" for m in results.references
        ),
        "positive": results.positive,
        "classification": results.classification,
        "of_events": results.of_events,
        "auc": "auc" in results.metrics,
        "costs": _costs(results),
        "traffic": _traffic(results),
        "forecasts": [
            {
                **f._asdict(),
                "client": results.names[f.client],
                "forecast": f.in_words(results.names),
            }
            for f in forecasts(results, story.verdicts)
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
        method = story.verdicts[client.client].method or results.against or ""
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


def _percent_or_none(share: float) -> str:
    return f"{100 * share:.0f} %" if math.isfinite(share) else number(None)


def _size(results: Results, client: str) -> str:
    parts = (
        [f"{results.size(client):,.0f} {results.split} rows"]
        if math.isfinite(results.size(client))
        else []
    )
    n_train = results.size(client, "n_train")
    parts += (
        [f"{n_train:,.0f} training rows"]
        if math.isfinite(n_train) and results.split != "train"
        else []
    )
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
    clients = (
        results.clients
        if len(results.clients) <= ROWS
        else results.extremes(metric, ROWS)
    )
    table = grid(results, metric, clients)
    rows = []
    for i, (label, cells) in enumerate(zip(table.rows, table.cells, strict=True)):
        rows.append({"label": label, "cells": cells, "summary": i >= table.summary})
    extra = len(table.columns) - len(results.methods)
    quiet = [m in results.references for m in results.methods] + [True] * extra
    return {
        "metric": metric,
        "name": results.metric_title(metric),
        "better": "higher" if results.higher_is_better(metric) else "lower",
        "columns": list(zip(table.columns, quiet, strict=True)),
        "rows": rows,
    }


def _costs(results: Results) -> list[dict[str, Any]]:
    """Return the cost of each method: row gradients, seconds, seconds of its own work, models."""
    most = max(
        (results.cost(m) for m in results.methods if math.isfinite(results.cost(m))),
        default=0.0,
    )
    entries = []
    for method, multiple in zip(results.methods, budget(results), strict=True):
        cost, seconds, own_seconds = (
            results.cost(method),
            results.seconds.get(method),
            results.own_seconds.get(method),
        )
        rows = [
            row
            for c in results.clients
            for row in results.cells.get((method, c, results.split), {}).values()
        ]
        own_models = {bool(row.get("own_model")) for row in rows}
        entries.append(
            {
                "method": printable(method),
                "algorithm": printable(results.algorithms[method]),
                "models": "both"
                if len(own_models) > 1
                else "one per client"
                if True in own_models
                else "one for all",
                "multiple": multiple.text if results.cost_unit else number(None),
                "gradients": f"{cost:,.0f}" if math.isfinite(cost) else number(None),
                "bar": round(100 * cost / most, 1)
                if most > 0 and math.isfinite(cost)
                else 0,
                "seconds": f"{seconds.mean():.1f}"
                if seconds is not None and seconds.size
                else number(None),
                "own": f"{own_seconds.mean():.2f}"
                if own_seconds is not None and math.isfinite(own_seconds.mean())
                else number(None),
            }
        )
    return entries


def _contributions(
    results: Results, measured: Sequence[Contribution]
) -> list[dict[str, str]]:
    return [
        {
            "method": printable(c.method),
            "target": results.names.get(c.target, printable(c.target)),
            "client": results.names.get(c.client, printable(c.client)),
            "weight": number(c.weight),
            "fall": number(c.fall) + ("" if c.half is None else f" ± {number(c.half)}"),
            "words": c.in_words(results.names, results.metric_name("loss")),
        }
        for c in measured[:MOST_CONTRIBUTIONS]
    ]


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
    total: dict[tuple[str, str], list[float]] = {}
    for method, client, bytes_down, bytes_up, seconds, failed in zip(
        *csv_columns(path, columns), strict=True
    ):
        so_far = total.setdefault((method, client), [0, 0, 0, 0.0, 0])
        for i, value in enumerate((1, bytes_down, bytes_up, seconds, bool(failed))):
            so_far[i] += value
    return [
        {
            "method": printable(method),
            "client": printable(client),
            "asks": f"{asks:,.0f}",
            "down": f"{bytes_down / 1e6:.3f}",
            "up": f"{bytes_up / 1e6:.3f}",
            "seconds": f"{seconds:.1f}",
            "failed": f"{failed:,.0f}",
        }
        for (method, client), (
            asks,
            bytes_down,
            bytes_up,
            seconds,
            failed,
        ) in total.items()
    ]


def _set_label(text: str, labels: list[str], form: Any) -> Any:
    """A sentence whose label, if it begins with one, is set in `form`; escaped."""
    lead = next((label for label in labels if text.startswith(label)), "")
    return form.format(lead, text[len(lead) :]) if lead else text


def _flat(values: dict[str, Any], prefix: str = "") -> Any:
    """Key and value of everything in nested dictionaries."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield (
                f"{prefix}{key}",
                json.dumps(value) if isinstance(value, list) else str(value),
            )

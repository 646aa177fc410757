"""Tables of the documentation, made from the results of benchmarks: a page of the site, and one table within docs/performance.md."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from coterie.base.files import write_atomically

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
SPEED = ("w1", "w2", "w3", "w4", "w5", "start", "tables", "heart")
"""In the order of the table of speeds."""

ABOUT = """# What was measured

This page holds the tables behind the other pages. Read it to check a number or to plan a run.
Programs write the files in `benchmarks/results`; the site shows them here."""


class Section(NamedTuple):
    """A section of the page: where its numbers lie, how they become a table, and how to repeat them."""

    title: str
    about: str
    files: tuple[str, ...]
    command: str
    show: Callable[[list[Any]], str]


def page(folder: Path = RESULTS) -> str:
    """Return the page with all tables of the results that exist in this folder."""
    parts = [ABOUT]
    for section in sections():
        found = [
            _read(folder / name) for name in section.files if (folder / name).exists()
        ]
        if found:
            parts += [
                f"## {section.title}",
                f"{section.about} Repeat: `{section.command}`.",
                section.show(found),
            ]
    return "\n\n".join(parts) + "\n"


def sections() -> list[Section]:
    """Return all sections of the page. Benchmarks are imported here: they need the package and its extras."""
    from benchmarks import (
        agreement,
        claims,
        contribution,
        engines,
        gpu,
        growth,
        many_targets,
        peers,
        row_costs,
        scale,
    )

    return [
        Section(
            "Speed",
            "Ratios to the barest honest loop (L0).",
            tuple(f"{name}.json" for name in SPEED),
            "make bench",
            speed_table,
        ),
        Section(
            "Memory and time around a step",
            "Memory is the peak of all processes above the start, as a multiple of the model. "
            "Times are CPU times.",
            ("scale.json",),
            "python benchmarks/run.py scale",
            _of_one(scale.table),
        ),
        Section(
            "Growth with parameters and clients",
            "Above: 10 clients with a perceptron. Below: logistic regression, 10 clients a round. "
            "The last column continues the line through the two largest cases.",
            ("growth.json",),
            "python benchmarks/run.py growth",
            _of_one(growth.table),
        ),
        Section(
            "Row gradients of each method",
            "Rounds 2 to 5 on the four hospitals, as multiples of FedAvg.",
            ("row_costs.json",),
            "python benchmarks/run.py row_costs",
            _of_one(row_costs.table),
        ),
        Section(
            "Many targets of MeritFed",
            "Mean estimation with 35 targets of 150 clients.",
            ("many_targets.json",),
            "python benchmarks/run.py many_targets",
            _of_one(many_targets.table),
        ),
        Section(
            "Other frameworks",
            "The same rows, participants, steps and initial weights, in turns.",
            ("peers.json",),
            "make bench-peers",
            _of_one(peers.table),
        ),
        Section(
            "Server rules of other frameworks",
            "The same updates given to each rule. Where answers differ, coterie's is computed again "
            "with the choice that explains it.",
            ("agreement.json",),
            "make agreement",
            _of_one(agreement.table),
        ),
        Section(
            "Engines",
            "The cost of one ask, and of one round on the four hospitals.",
            ("engines.json",),
            "python benchmarks/run.py engines",
            _of_one(engines.table),
        ),
        Section(
            "A GPU",
            "Ratios to the bare loop on the same GPU.",
            ("gpu.json",),
            "python benchmarks/run.py gpu",
            _of_one(gpu.table),
        ),
        Section(
            "Four hospitals again and again",
            "What the demo tells each hospital, and what it tells with other folds.",
            ("heart_disease.json",),
            "make claims",
            _of_one(claims.page),
        ),
        Section(
            "Contributions beside retrained coalitions",
            "FedAvg on four hospitals, trained with every coalition.",
            ("contribution.json",),
            "make contribution",
            _of_one(contribution.table),
        ),
        Section(
            "Disturbed runs",
            "Tries of `make torture`, by what went wrong.",
            ("torture.csv",),
            "make torture",
            _of_one(csv_table),
        ),
        Section(
            "What disturbed runs met",
            "How often each kind of disturbance and fixture occurred.",
            ("torture_met.csv",),
            "make torture",
            _of_one(csv_table),
        ),
        Section(
            "Planted faults",
            "Faults put into a copy of coterie, and whether the campaigns found them.",
            ("torture_planted.csv",),
            "python -m torture --planted",
            _of_one(csv_table),
        ),
        Section(
            "Rows that a dishonest server finds",
            "Hungary, 20 rounds, default settings of a site except `largest_layer`. Noise is secret, "
            "behind `clip` with a bound of 1. Rows: found among its own, in brackets among as many "
            "that nobody has. Members: shares of training rows and of other rows that losses call "
            "members.",
            ("red_team.csv",),
            "make attacks",
            _of_one(csv_table),
        ),
    ]


def _of_one(show: Callable[[Any], str]) -> Callable[[list[Any]], str]:
    return lambda found: show(found[0])


def _read(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".csv":
        return list(csv.reader(text.splitlines()))
    return json.loads(text)


PEERS = {
    "pfl": "pfl-research",
    "fedjax": "fedjax",
    "fedlab": "FedLab",
    "flower": "Flower",
    "flower2": "Flower, two clients at a time",
}
"""Frameworks by their names in peers.json."""

WORKS = {
    "w1": "FedAvg, 10 of 100 clients, MLP, 30 steps (W1)",
    "w2": "FedAvg, 60 clients, logistic regression, 5 steps (W2)",
    "w3": "MeritFed, 150 clients, mean estimation (W3)",
    "w4": "two convolutions, batches of 128 (W4)",
    "w5": "MeritFed, 20 clients, MLP, 10 descent steps (W5)",
    "cnn": "FedAvg, 10 of 100 clients, CNN, 15 steps",
    "lstm": "FedAvg, 10 of 100 clients, LSTM, 15 steps",
    "small": "FedAvg, 100 of 10,000 clients with six rows each",
}
"""What the works of the summary are."""


def write_summary(docs: Path = ROOT / "docs") -> None:
    """Write the table of docs/performance.md."""
    between(docs / "performance.md", summary(), "speed")


def summary(folder: Path = RESULTS) -> str:
    """Return the table of works: coterie's speed by that of the barest loop, and by that of the fastest other framework."""
    peers = _read(folder / "peers.json")["peers"]
    lines = [
        "| work, one worker | speed / barest loop | speed / fastest other framework |",
        "| --- | ---: | ---: |",
    ]
    for work, title in WORKS.items():
        loop, other = "-", "-"
        if (folder / f"{work}.json").exists():
            loop = f"{_read(folder / f'{work}.json')['ratio']:.2f}"
        ratios = {
            found["ratio"]: PEERS[key.split()[1]]
            for key, found in peers.items()
            if key.split()[0] == work and "ratio" in found
        }
        if ratios:
            other = f"{min(ratios):.1f} ({ratios[min(ratios)]})"
        lines.append(f"| {title} | {loop} | {other} |")
    return "\n".join(lines)


def write_csv(path: Path, rows: Sequence[Sequence[object]]) -> None:
    """Write rows, the first with the names of the columns."""

    def write_to(temporary: Path) -> None:
        with temporary.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)

    write_atomically(path, write_to)


def csv_table(rows: Sequence[Sequence[str]]) -> str:
    """Return the rows of a CSV file as a Markdown table."""
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def between(page: Path, text: str, name: str = "results") -> None:
    """Replace what stands between the markers `<!-- name -->` and `<!-- /name -->` of a page."""
    made = replaced(page, text, name)
    write_atomically(page, lambda temporary: temporary.write_text(made))


def replaced(page: Path, text: str, name: str) -> str:
    """A page with this text between its markers. Raises `ValueError` without them."""
    marks = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, begin, rest = page.read_text(encoding="utf-8").partition(marks[0])
    _, end, after = rest.partition(marks[1])
    if not begin or not end:
        raise ValueError(
            f"{page} has no line {marks[0]} or no line {marks[1]} after it"
        )
    return f"{before}{marks[0]}\n\n{text}\n\n{marks[1]}{after}"


def speed_table(results: Sequence[Mapping[str, Any]]) -> str:
    """The rows of all results, and the machine of the newest."""
    lines = [
        "| work | measured | goal | reached | load | commit |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for result in results:
        for row in result["rows"]:
            load = f"{row['load'][0]} -> {row['load'][1]}" + (
                " (busy)" if row["busy"] else ""
            )
            reached = "-" if row["goal"] == "none" else "yes" if row["met"] else "no"
            cells = (
                row["work"],
                row["measured"],
                row["goal"],
                reached,
                load,
                result["commit"],
            )
            lines.append("| " + " | ".join(cells) + " |")
    newest = max(results, key=lambda result: result["measured"])
    machine, versions = newest["machine"], newest["versions"]
    where = f"{machine['cpu']}, {machine['cores']} cores; Python {versions['python']}, PyTorch {versions['torch']}"
    note = (
        f"{where}; {newest['measured'][:10]}. A `+` behind a commit: sources differed from it. Busy: the load average "
        "was above 2.5 in every attempt."
    )
    return "\n".join([*lines, "", note])

"""Tables of the documentation from the results of benchmarks, and the one that stands within docs/performance.md."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.base.files import write_atomically

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
SPEED = ("w1", "w2", "w3", "w4", "w5", "start", "tables", "heart")
"""In the order of the table of speeds."""


def read(path: Path) -> Any:
    """Return a result: what its JSON says, or the rows of a CSV file."""
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
    """Write the table and the pictures of docs/performance.md."""
    # Here, since what draws reads results, too.
    from benchmarks.curves import write_pictures

    between(docs / "performance.md", summary(), "speed")
    write_pictures(read(RESULTS / "growth.json"), docs / "images")


def summary(folder: Path = RESULTS) -> str:
    """Return the table of works: coterie's speed by that of the barest loop, and by that of the fastest other framework."""
    peers = read(folder / "peers.json")["peers"]
    lines = [
        "| work, one worker | speed / barest loop | speed / fastest other framework |",
        "| --- | ---: | ---: |",
    ]
    for work, title in WORKS.items():
        loop, other = "-", "-"
        if (folder / f"{work}.json").exists():
            loop = f"{read(folder / f'{work}.json')['ratio']:.2f}"
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

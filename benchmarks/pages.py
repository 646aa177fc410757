"""Pages of the documentation whose numbers are written by benchmarks, between markers like `<!-- results -->`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.base.files import write_atomically


def write(docs: Path, results: Mapping[str, Any], speed: Sequence[str]) -> None:
    """Write the tables of the results that exist."""
    if any(name in results for name in speed):
        between(
            docs / "performance.md",
            speed_table([results[n] for n in speed if n in results]),
        )
    if "scale" in results:
        from benchmarks.scale import table as growth

        between(docs / "performance.md", growth(results["scale"]), "scale")
    if "growth" in results:
        from benchmarks.growth import table as curves

        between(docs / "performance.md", curves(results["growth"]), "growth")
    if "row_costs" in results:
        from benchmarks.row_costs import table as row_costs

        between(docs / "performance.md", row_costs(results["row_costs"]), "row_costs")
    if "many_targets" in results:
        from benchmarks.many_targets import table as many_targets

        between(
            docs / "performance.md",
            many_targets(results["many_targets"]),
            "many_targets",
        )
    if "engines" in results:
        from benchmarks.engines import table as costs

        between(docs / "performance.md", costs(results["engines"]), "engines")
    if "gpu" in results:
        from benchmarks.gpu import table as gpu

        between(docs / "howto" / "gpu.md", gpu(results["gpu"]), "gpu")
    if "functional" in results:
        from benchmarks.functional import table as functional

        between(
            docs / "performance.md", functional(results["functional"]), "functional"
        )
    if "contribution" in results:
        from benchmarks.contribution import table as truth

        between(
            docs / "explanation" / "contribution.md",
            truth(results["contribution"]),
            "contribution",
        )


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

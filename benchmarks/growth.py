"""What a round costs as clients, targets and parameters grow: CPU seconds of a round, and peak memory of all processes above the start.

By parameters: 10 clients of 32 rows, all of them in a round of two steps of 8 rows, a perceptron with one hidden layer. By clients: 8
rows of 10 numbers each, logistic regression, 10 clients a round. By targets: as many clients of 100 rows of 20 numbers, logistic
regression, 5 steps of 16 rows, all of them in a round. Each case is a process of its own; one that would need more than `TOO_MUCH`
bytes by the preflight's forecast is not run. The last column follows from the two before it on paper.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.measure import Settings
from benchmarks.scale import measure_missing, measured_on

WHAT = __doc__ or ""
METHODS = ("fedavg", "scaffold", "median", "maxfl", "meritfed")
FOR_TARGETS = ("fedavg", "meritfed", "meritfed-cheap")
SIZES: Mapping[str, Sequence[int]] = {
    "parameters": (10**4, 10**5, 10**6, 10**7, 10**8),
    "clients": (10, 10**2, 10**3, 10**4, 10**5, 10**6),
    "targets": (10, 30, 100, 300),
}
ON_PAPER = {"parameters": 10**9, "clients": 10**7}
LONGEST = {("clients", "maxfl"): 10**5}
"""Each client of MaxFL trains alone before the first round, which takes it a millisecond."""


def methods_of(axis: str) -> Sequence[str]:
    """Return the methods that are measured along an axis."""
    if axis == "targets":
        return FOR_TARGETS
    return METHODS


def run(settings: Settings) -> Iterator[dict[str, Any]]:
    """Measure each method at each size; yield all after each."""
    cases = [
        {"axis": axis, "method": method, "size": size}
        for axis, sizes in SIZES.items()
        for method in methods_of(axis)
        for size in (sizes[:2] if settings.quick else sizes)
        if size <= LONGEST.get((axis, method), size)
    ]
    return measure_missing(cases, settings)


def table(result: Mapping[str, Any]) -> str:
    """Return the two tables of the site."""
    lines: list[str] = []
    for axis, sizes in SIZES.items():
        heads = [f"{size:,}" for size in sizes]
        if axis in ON_PAPER:
            heads.append(f"{ON_PAPER[axis]:,}, on paper")
        lines += [
            f"| {axis} | {' | '.join(heads)} |",
            f"| --- |{' --- |' * len(heads)}",
        ]
        for method in methods_of(axis):
            runs = runs_along(result, axis, method)
            cells = [_cell(runs[size]) if size in runs else "-" for size in sizes]
            if axis in ON_PAPER:
                cells.append(_on_paper(runs, ON_PAPER[axis]))
            lines.append(f"| `{method}` | {' | '.join(cells)} |")
        runs_of_axis = [run for run in result["runs"] if run["axis"] == axis]
        lines += ["", measured_on(runs_of_axis), ""]
    return "\n".join(lines)


def runs_along(
    result: Mapping[str, Any], axis: str, method: str
) -> dict[int, Mapping[str, Any]]:
    """Return the runs of a method along an axis by size."""
    runs: dict[int, Mapping[str, Any]] = {}
    for run in result["runs"]:
        if (run["axis"], run["method"]) == (axis, method):
            runs[run["size"]] = run
    return runs


def _cell(run: Mapping[str, Any]) -> str:
    if "forecast" in run:
        return f"not run: {run['forecast'] / 1e9:.1f} GB forecast"
    return f"{_memory(run['bytes'])}, {_seconds(run['seconds'])}"


def _memory(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _seconds(count: float) -> str:
    return f"{count:,.0f} s" if count >= 10 else f"{count:.2g} s"


def _on_paper(runs: Mapping[int, Mapping[str, Any]], size: int) -> str:
    """What a straight line through the two largest cases says."""
    low, high = sorted(known for known, run in runs.items() if "seconds" in run)[-2:]

    def grown(key: str) -> float:
        slope = (runs[high][key] - runs[low][key]) / (high - low)
        return float(runs[high][key] + max(0.0, slope) * (size - high))

    return f"{_memory(grown('bytes'))}, {_seconds(grown('seconds'))}"

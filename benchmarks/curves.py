"""Pictures of docs/performance.md: what a round costs as clients, targets and parameters grow, from benchmarks/results/growth.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.pictures import HEIGHT, STYLES, WIDTH, as_svg, pyplot

from benchmarks.growth import SIZES, methods_of, runs_along
from coterie.base.files import write_atomically

TITLES = {
    "clients": "10 clients of so many take part",
    "targets": "each of so many clients is a target",
    "parameters": "10 clients, models of so many numbers",
}


def write_pictures(result: Mapping[str, Any], folder: Path) -> None:
    """Write one picture for each axis, named after it."""
    for axis in SIZES:
        text = draw(result, axis)
        write_atomically(
            folder / f"growth-{axis}.svg",
            lambda temporary, text=text: temporary.write_text(text),
        )


def draw(result: Mapping[str, Any], axis: str) -> str:
    """Return the curve of each method along an axis as SVG, with logarithmic scales: a straight line is a power."""
    plt = pyplot()
    drawing, axes = plt.subplots(figsize=(WIDTH, HEIGHT), layout="constrained")
    for method, (colour, dash) in zip(methods_of(axis), STYLES, strict=False):
        sizes, seconds = curve(result, axis, method)
        axes.plot(
            sizes,
            seconds,
            color=colour,
            linestyle=dash,
            linewidth=1.4,
            marker="o",
            markersize=3,
            label=method,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(axis, fontsize=9)
    axes.set_ylabel("CPU seconds of a round", fontsize=9)
    axes.set_title(TITLES[axis], fontsize=9, loc="left")
    axes.tick_params(labelsize=8)
    drawing.legend(
        loc="outside lower center", ncols=3, fontsize=8, frameon=False, handlelength=2.6
    )
    return as_svg(plt, drawing)


def curve(
    result: Mapping[str, Any], axis: str, method: str
) -> tuple[list[int], list[float]]:
    """Return the sizes at which a method was measured, ascending, and its seconds; without those that were too large to run."""
    runs = runs_along(result, axis, method)
    sizes = [size for size in sorted(runs) if "seconds" in runs[size]]
    return sizes, [runs[size]["seconds"] for size in sizes]

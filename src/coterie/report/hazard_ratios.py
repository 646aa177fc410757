"""Hazard ratios of methods that tell slopes with errors, as `cox` does: per unit of a column, per deviation, or against a category.

They are those of the training on all rows where a run has folds, else of its first seed. Inputs are scaled columns, so that a slope is
per standard deviation; a category stands against the first of its column, since only differences between categories are told apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.base.files import open_tensors
from coterie.report.results import Results
from coterie.report.text import number, printable
from coterie.run.files import ALL, safe_name, seed_suffix

Vector = NDArray[np.float64]
Z95 = 1.96


class Ratio(NamedTuple):
    """A hazard ratio and its 95 % interval.

    Attributes:
        name: of a column, or of a category against another.
        ratio, low, high: per unit of the column in its file; of a category, against the other one.
        per_deviation: per standard deviation of the training rows of all clients; NaN for a category.
    """

    name: str
    ratio: float
    low: float
    high: float
    per_deviation: float = math.nan

    @property
    def interval(self) -> str:
        """The interval in words."""
        return f"{number(self.low)} to {number(self.high)}"


def hazard_ratios(results: Results, method: str) -> list[Ratio]:
    """The hazard ratios of a method in the order of columns; empty unless it tells slopes of a time to event with their covariance."""
    fold = ALL if results.comparisons.folds else ""
    name = safe_name(f"{method}-{seed_suffix(results.seeds[0], fold)}")
    path = results.folder / "models" / "prior" / f"{name}.safetensors"
    if not results.of_events or not path.is_file():
        return []
    with open_tensors(path, "numpy") as (file, _):
        if not {"slopes", "covariance"} <= set(file.keys()):
            return []
        slopes, covariance = file.get_tensor("slopes"), file.get_tensor("covariance")
    return list(_of_columns(results.columns, slopes, covariance))


def _of_columns(
    columns: Sequence[Mapping[str, Any]], slopes: Vector, covariance: Vector
) -> Iterator[Ratio]:
    """Yield the ratios of all columns; of inputs without a recipe one for each, by its place."""
    if not columns:
        columns = [{"name": f"input {i + 1}", "scale": 1.0} for i in range(len(slopes))]
    place = 0
    for column in columns:
        name, categories = printable(str(column["name"])), column.get("categories")
        contrast = np.zeros(len(slopes))
        if categories is None:
            contrast[place] = 1 / column["scale"]
            deviation = math.exp(slopes[place])
            yield from _ratio(name, contrast, slopes, covariance, deviation)
            place += 1
            continue
        first = printable(str(categories[0]))
        for k, category in enumerate(categories):
            if k == 0 and len(categories) > 1:
                continue
            contrast = np.zeros(len(slopes))
            contrast[place + k] = 1.0
            against = "all others"
            if k > 0:
                contrast[place], against = -1.0, first
            text = f"{name}: {printable(str(category))} against {against}"
            yield from _ratio(text, contrast, slopes, covariance)
        place += len(categories)


def _ratio(
    name: str,
    contrast: Vector,
    slopes: Vector,
    covariance: Vector,
    per_deviation: float = math.nan,
) -> Iterator[Ratio]:
    """Yield the ratio of a contrast of slopes; nothing where no event tells of it."""
    variance = float(contrast @ covariance @ contrast)
    if variance <= 0:
        return
    slope, half = float(contrast @ slopes), Z95 * math.sqrt(variance)
    with np.errstate(over="ignore"):
        ratio, low, high = np.exp([slope, slope - half, slope + half]).tolist()
    yield Ratio(name, ratio, low, high, per_deviation)


def table_of_ratios(results: Results, method: str) -> list[list[str]]:
    """The rows of a table: column, hazard ratio, its interval, and per deviation; empty without hazard ratios."""
    rows = []
    for one in hazard_ratios(results, method):
        scaled = number(one.per_deviation) if math.isfinite(one.per_deviation) else ""
        rows.append([one.name, number(one.ratio), one.interval, scaled])
    return rows

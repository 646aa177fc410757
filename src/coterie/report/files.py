"""The files of a run directory, read so that every defect is a sentence that names the file."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from coterie.base.errors import InputError
from coterie.base.files import json_rows
from coterie.run.files import RUNS, SUMMARY, unescape

Columns = Mapping[str, Callable[[str], Any]]
BLOCK = 4096
"""Lines of a CSV file that are held as texts at once."""


def summary_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of `summary.json`; a row without its keys is an error that names it."""
    return json_rows(
        path, {"method": str, "seed": int, "fold": str, "client": str, "split": str}
    )


def over_folds(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row of a summary for each method, seed, client and split: metrics are means over rows, an RMSE that of all rows."""
    folds: dict[tuple[str, int, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        key = (row["method"], row["seed"], row["client"], row["split"])
        folds.setdefault(key, []).append(row)
    return [_join_folds(group) for group in folds.values()]


def _join_folds(group: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The rows of all folds as one: metrics are means weighed by the rows tested."""
    if len(group) == 1:
        return group[0]
    sizes = [row["n"] for row in group]
    joined = {
        **group[0],
        "n": sum(sizes),
        "n_train": sum(row["n_train"] for row in group) / len(group),
    }
    # What a row says of its client and run is the same in all folds; what was measured in a fold is not.
    measured_in_summary = {"majority", "majority_loss", "row_gradients"}
    same_in_all_folds = {*SUMMARY} - measured_in_summary
    for key in group[0]:
        if key in same_in_all_folds:
            continue
        # Squares of errors add up over rows, their roots do not.
        power = 2 if key == "rmse" else 1
        weighed, weights = [], []
        for row, size in zip(group, sizes, strict=True):
            value = row.get(key)
            if isinstance(value, int | float) and math.isfinite(value):
                weighed.append(float(value) ** power * size)
                weights.append(size)
        joined[key] = None
        if sum(weights):
            joined[key] = (sum(weighed) / sum(weights)) ** (1 / power)
    return joined


def coinciding(
    methods: Sequence[str], rows: Sequence[dict[str, Any]]
) -> dict[str, tuple[str, ...]]:
    """Return those of `methods` whose metrics are equal in every digit for all clients and seeds, by the first of them."""
    numbers: dict[str, dict[tuple[str, str, int, str], dict[str, Any]]] = {}
    for row in rows:
        place = (row["client"], row["split"], row["seed"], row["fold"])
        metrics = {k: v for k, v in row.items() if k not in SUMMARY}
        numbers.setdefault(row["method"], {})[place] = metrics
    twins_of: dict[str, tuple[str, ...]] = {}
    is_twin: set[str] = set()
    for i, method in enumerate(methods):
        if method in is_twin:
            continue
        twins = tuple(m for m in methods[i + 1 :] if numbers[m] == numbers[method])
        if twins:
            twins_of[method] = twins
            is_twin.update(twins)
    return twins_of


def read_combination(
    folder: Path, seeds: Sequence[int]
) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
    """Names of the runs of which a combination was made, none for one run; and the seeds of each table whose rows were tested."""
    keys = {"run": str, "table": int, "seeds": list}
    if not (folder / RUNS).is_file():
        if not seeds:
            return (), ()
        return (), (tuple(seeds),)
    runs = json_rows(folder / RUNS, keys)
    table_of = {seed: run["table"] for run in runs for seed in run["seeds"]}
    by_table: dict[int, list[int]] = {}
    for seed in seeds:
        by_table.setdefault(table_of.get(seed, 0), []).append(seed)
    tables = tuple(tuple(by_table[table]) for table in sorted(by_table))
    return tuple(run["run"] for run in runs), tables


def number_or_nan(text: str) -> float:
    """A number; NaN for an empty field, where a metric is undefined."""
    if text in ("", "null", "None"):
        return math.nan
    return float(text)


def csv_columns(path: Path, columns: Columns) -> list[list[Any]]:
    """The named columns of a CSV file, converted; any defect is an error that names the line."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = filter(None, csv.reader(file))
            return _read_columns(rows, columns)
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(
            f"{path} cannot be read ({error}); restore it or repeat the run"
        ) from error


def _read_columns(rows: Iterator[list[str]], columns: Columns) -> list[list[Any]]:
    """The same of rows whose first one is the header, block by block: texts of a long table would take several times its memory."""
    header = next(rows, [])
    lacking = [c for c in columns if c not in header]
    if lacking:
        raise ValueError(f"line 1 lacks {', '.join(lacking)}")
    found: list[list[Any]] = [[] for _ in columns]
    line = 2
    while block := list(islice(rows, BLOCK)):
        for number, row in enumerate(block, start=line):
            if len(row) != len(header):
                raise ValueError(
                    f"line {number} has {len(row)} values for {len(header)} columns"
                )
        texts_of = dict(zip(header, zip(*block, strict=True), strict=True))
        for values, (name, convert) in zip(found, columns.items(), strict=True):
            values += _convert(name, texts_of[name], convert, line)
        line += len(block)
    return found


def _convert(
    name: str, texts: Sequence[str], convert: Callable[[str], Any], first_line: int
) -> Iterator[Any]:
    """The values of the texts of a column, which begin in this line; a few names and numbers fill most of a long table."""
    values: dict[str, Any] = {}
    for place, text in enumerate(texts):
        if text in values:
            continue
        try:
            values[text] = convert(unescape(text))
        except ValueError as error:
            raise ValueError(f"line {first_line + place}, {name}: {error}") from error
    return map(values.__getitem__, texts)

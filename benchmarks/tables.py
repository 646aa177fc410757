"""Reading tables: `ct.data.from_folder` (read, split, described, agreed on, encoded, looked at for suspicions) in pandas' time for
reading the same files alone, in turns on one process, as ratio of CPU time; a wide table and a long one in seconds.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import coterie as ct
from benchmarks.measure import Settings, on_a_quiet_machine, row

WHAT = __doc__ or ""
RATIOS = {"csv": (4.0, 2.0), "parquet": (2.0, 1.3)}
WIDE, LONG = 10.0, 30.0
"""Seconds for 200 rows of 20,000 columns, and for 2 million rows of 32."""


def run(settings: Settings) -> dict[str, Any]:
    """Measure both ratios and both times."""
    rows, width, repeats = (400, 8, 2) if settings.quick else (200_000, 32, 5)
    with tempfile.TemporaryDirectory() as folder:
        found = on_a_quiet_machine(
            lambda: _measure(Path(folder), rows, width, repeats), settings
        )
    lines = [
        row(f"a folder of {form}, {rows:,} rows x {width} columns", f"{found[form]:.1f} times pandas' time",
            f"{must:g}, aim {aim:g}", found[form] <= must, found)
        for form, (must, aim) in RATIOS.items()
    ]  # fmt: skip
    for key, goal in (("wide", WIDE), ("long", LONG)):
        lines.append(
            row(
                found["sizes"][key],
                f"{found[key]:.1f} s",
                f"{goal:g} s",
                found[key] <= goal,
                found,
            )
        )
    return {**found, "rows": lines}


def _measure(folder: Path, rows: int, width: int, repeats: int) -> dict[str, Any]:
    import pandas

    _write(folder / "csv", rows // 4, width, 4)
    for path in sorted((folder / "csv").iterdir()):
        (folder / "parquet").mkdir(exist_ok=True)
        pandas.read_csv(path).to_parquet(folder / "parquet" / f"{path.stem}.parquet")
    _write(folder / "wide", rows // 2000 or 60, 20_000 if rows > 1000 else 40, 2)
    _write(folder / "long", rows // 2, width, 2, copies=10)
    readers = {"csv": pandas.read_csv, "parquet": pandas.read_parquet}
    found: dict[str, Any] = {
        form: _ratio(folder / form, readers[form], repeats) for form in RATIOS
    }
    found["sizes"] = {
        "wide": f"{2 * (rows // 2000 or 60):,} rows x {20_000 if rows > 1000 else 40:,} columns",
        "long": f"{10 * rows:,} rows x {width} columns",
    }
    return found | {
        key: _seconds(lambda key=key: _read(folder / key)) for key in found["sizes"]
    }


def _write(folder: Path, rows: int, width: int, clients: int, copies: int = 1) -> None:
    rng = np.random.default_rng(0)
    folder.mkdir()
    for client in range(clients):
        values = rng.normal(size=(rows, width - 1)).round(6)
        labels = (values.sum(1) + rng.normal(size=rows) > 0).astype(int)
        lines = [
            f"{','.join(map(repr, x))},{y}\n"
            for x, y in zip(values.tolist(), labels.tolist(), strict=True)
        ]
        header = ",".join([*(f"x{i}" for i in range(width - 1)), "outcome"])
        (folder / f"c{client}.csv").write_text(header + "\n" + "".join(lines) * copies)


def _read(folder: Path) -> object:
    return ct.data.from_folder(folder, label="outcome")


def _seconds(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


def _ratio(folder: Path, read: Callable[[Path], object], repeats: int) -> float:
    files = sorted(folder.iterdir())
    pairs = [
        (
            _seconds(lambda: _read(folder)),
            _seconds(lambda: [read(path) for path in files]),
        )
        for _ in range(repeats + 1)
    ]
    return statistics.median(ours / theirs for ours, theirs in pairs[1:])

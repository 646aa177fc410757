"""The tables of a run directory, collected from what each method and seed left; they can be made again at any time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.base.errors import InputError
from coterie.base.files import read_checkpoint, read_toml, write_tensors
from coterie.config.run import MethodEntry
from coterie.contract.wire import ClientCost
from coterie.run.checkpoint import history_lines
from coterie.run.files import (
    ASKS,
    CONTRIBUTIONS,
    HISTORY,
    LONG_HISTORY,
    LONGEST_CSV,
    TIMING,
    WEIGHTS,
    WRITER,
    YARDSTICKS,
    write_csv,
    write_json,
)
from coterie.run.hashes import (
    PROVENANCE,
    TABLES,
    find_damage,
    hash_of_tree,
    hashes,
    read_record,
    record_or_none,
    write_record,
)
from coterie.run.history import ClientMetrics, History, Row, Timing
from coterie.run.provenance import explain
from coterie.study.layout import CHECKPOINTS, Pair, is_run, pairs_of

Name = TypeVar("Name")
COLUMNS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "weights": ("weights", WEIGHTS),
    "timing": ("seconds", TIMING),
    "contribution": ("contributions", CONTRIBUTIONS),
    "asks": ("asks", (*ASKS, *ClientCost._fields)),
}
"""Tables of all pairs: the key of their rows in a line of a pair's history, and their columns. The first two are always written."""


def write_tables(folder: Path, pairs: Iterable[Pair]) -> None:
    """Write summary.json, the history, weights.csv, timing.csv and, where measured, contribution.csv and asks.csv of complete pairs."""
    summary: list[dict[str, Any]] = []
    failed: list[dict[str, Any]] = []
    rows: dict[str, list[list[Any]]] = {name: [] for name in COLUMNS}
    histories: list[tuple[tuple[str, int, str], History]] = []
    for pair in pairs:
        saved = pair.saved()
        if saved is None:
            continue
        summary += saved["summary"]
        failed += [
            {
                "method": pair.entry.label,
                "seed": pair.seed,
                "fold": pair.fold,
                "client": client,
                "last": why,
            }
            for client, why in sorted(saved["failures"].items())
        ]
        history = History.of_columns(saved["history"] or ())
        for line in map(
            json.loads, pair.history.read_text(encoding="utf-8").splitlines()
        ):
            line["seconds"] = [Timing(*row) for row in line["seconds"]]
            for name, (key, _) in COLUMNS.items():
                rows[name] += [[*pair.key, *row] for row in line.get(key, ())]
            if saved["history"] is None:
                history.parts += History.of_columns(line["history"]).parts
        histories.append((pair.key, history))
    write_json(folder / "summary.json", summary)
    if failed:
        write_json(folder / "failures.json", failed)
    for name, (_, columns) in COLUMNS.items():
        if rows[name] or name in ("weights", "timing"):
            write_csv(folder / f"{name}.csv", columns, rows[name])
    write_history(folder, histories)


def write_history(
    folder: Path, histories: Sequence[tuple[tuple[str, int, str], History]]
) -> None:
    """Write the history of each label, seed and fold: history.csv, or `LONG_HISTORY` for more than `LONGEST_CSV` numbers."""
    short, long = folder / "history.csv", folder / LONG_HISTORY
    if sum(len(history) for _, history in histories) <= LONGEST_CSV:
        write_csv(
            short,
            HISTORY,
            ([*pair, *row] for pair, history in histories for row in history),
        )
        long.unlink(missing_ok=True)
        return
    clients, series = _Places[str](), _Places[tuple[str, str]]()
    tensors: dict[str, torch.Tensor] = {}
    for run, (_, history) in enumerate(histories):
        names = ("round", "client", "series", "value")
        columns = zip(names, _columns(history, clients, series), strict=True)
        tensors |= {
            f"{run}/{name}": torch.from_numpy(column) for name, column in columns
        }
    described = {
        "clients": [*clients],
        "series": [*series],
        "runs": [pair for pair, _ in histories],
    }
    write_tensors(long, tensors, {**WRITER, **described})
    short.unlink(missing_ok=True)


class _Places(dict[Name, int]):
    """The place of each name, in the order in which they were met."""

    def of(self, names: Iterable[Name]) -> NDArray[np.int32]:
        return np.array([self.setdefault(name, len(self)) for name in names], np.int32)


def _columns(
    history: History, clients: _Places[str], series: _Places[tuple[str, str]]
) -> list[NDArray[Any]]:
    """Rounds, places of clients and of series, and values of a history, by round."""
    rows = [part for part in history.parts if isinstance(part, Row)]
    found: list[tuple[NDArray[Any], ...]] = [
        (
            np.array([row.round for row in rows], np.int32),
            clients.of(row.client for row in rows),
            series.of((row.split, row.metric) for row in rows),
            np.array([row.value for row in rows], np.float64),
        )
    ]
    for part in history.parts:
        if isinstance(part, ClientMetrics):
            of_client, of_metric = np.nonzero(part.defined)
            kinds = series.of((part.split, metric) for metric in part.metrics)
            rounds = np.full(len(of_client), part.round, np.int32)
            found.append(
                (
                    rounds,
                    clients.of(part.clients)[of_client],
                    kinds[of_metric],
                    part.values[part.defined],
                )
            )
    columns = [np.concatenate(parts) for parts in zip(*found, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    return [column[order] for column in columns]


def seal_tables(folder: Path) -> None:
    """Record the hashes of the files that people and reports read, and the methods and seeds that they were collected from, each by
    the hash of what its numbers depend on.
    """
    tables = [
        f
        for f in folder.iterdir()
        if f.suffix in (".json", ".csv", ".toml", ".safetensors")
    ]
    records_by_pair = {
        path.parent.name: record_or_none(path)
        for path in sorted((folder / CHECKPOINTS).glob("*/done.json"))
    }
    records = {
        pair: saved["provenance"]
        for pair, saved in records_by_pair.items()
        if saved is not None
    }
    write_record(
        folder / TABLES,
        {
            "files": hashes(folder, tables),
            "pairs": [*records_by_pair],
            "records": records,
        },
    )


def mend_tables(folder: Path) -> list[str]:
    """Make damaged tables of a finished run again; returns the names of those.

    Raises:
        InputError: a file that other files cannot replace, with the cure.
    """
    record = record_or_none(folder / TABLES)
    if record is None:
        return []  # the run is not finished, or reads as one that is not
    recorded: dict[str, str] = record["files"]
    broken = find_damage(folder, recorded)
    if not broken:
        return []
    settings = folder / "experiment.toml"
    if settings.name in broken:
        raise InputError(
            f"{settings} {broken.get(settings.name)}; restore it from a copy"
        )
    tables = read_toml(settings)
    # Their labels are all that is needed, so that no method has to be known here.
    methods = [
        MethodEntry(m["name"], m["label"], seeds=m.get("seeds"))
        for m in tables["methods"]
    ]
    methods += [
        MethodEntry(name, name) for name in YARDSTICKS if tables["run"].get("yardstick")
    ]
    pairs = pairs_of(
        folder, methods, tables["run"]["seeds"], tables.get("split", {}).get("folds", 0)
    )
    cure = f"continue with: coterie run {settings} --resume"
    for pair in pairs:
        if pair.damage():
            raise InputError(
                f"{pair.folder} is damaged as {next(iter(broken))} is; {cure}"
            )
    write_tables(folder, pairs)
    damage = find_damage(folder, recorded)
    for name, problem in damage.items():
        raise InputError(f"{folder / name} {problem}; {cure}")
    return sorted(broken)


class Verified(NamedTuple):
    """The findings of `verify`: how many files are as recorded, and what is wrong with the others, a sentence each."""

    whole: int
    problems: list[str]


def verify(folder: Path) -> Verified:
    """Compare every file of a run directory with what the run recorded of it. Raises `InputError` if it is not a run directory."""
    if not is_run(folder):
        raise InputError(
            f"{folder} is not a run directory; `coterie compare` writes one"
        )
    intact = 0
    problems: list[str] = []
    seals = [folder / TABLES, *sorted((folder / CHECKPOINTS).glob("*/done.json"))]
    if (record := record_or_none(folder / TABLES)) is not None:
        seals[1:] = [
            folder / CHECKPOINTS / pair / "done.json" for pair in record["pairs"]
        ]
    for path in seals:
        try:
            recorded = read_record(path)["files"]
        except InputError as error:
            problems.append(str(error))
            continue
        broken = find_damage(folder, recorded)
        intact += 1 + len(recorded) - len(broken)
        problems += [
            f"{folder / name} {problem}; {_cure(folder, name)}"
            for name, problem in broken.items()
        ]
    for path in sorted((folder / CHECKPOINTS).glob(f"*/{PROVENANCE}")):
        try:
            record, final = (
                read_record(path),
                record_or_none(path.with_name("done.json")),
            )
        except InputError as error:
            problems.append(str(error))
            continue
        if record["run"] != path.parent.name or (
            final and final["provenance"] != hash_of_tree(record["record"])
        ):
            problems.append(f"{path} belongs to another run; restore it from a copy")
        else:
            intact += 1
    for path in sorted((folder / CHECKPOINTS).glob("*/checkpoint.safetensors")):
        try:
            history_lines(path.with_name("history.jsonl"), read_checkpoint(path).meta)
            intact += 1
        except InputError as error:
            problems.append(str(error))
    return Verified(intact, list(dict.fromkeys(problems)))


def explain_run(folder: Path) -> list[str]:
    """Lines that show what the numbers of each method and seed of a run depend on, as it was recorded before round 0."""
    lines: list[str] = []
    for path in sorted((folder / CHECKPOINTS).glob(f"*/{PROVENANCE}")):
        record = read_record(path)
        lines += [
            f"{record['run']}  {hash_of_tree(record['record'])}",
            *explain(record["record"], 1),
        ]
        lines += [
            f"  accepted  {accepted['changes']}" for accepted in record["accepted"]
        ]
    return lines


def _cure(folder: Path, name: str) -> str:
    if name == "experiment.toml":
        return "restore it from a copy"
    if name.endswith("history.jsonl"):
        return f"delete {(folder / name).parent} and continue with: coterie run {folder / 'experiment.toml'} --resume"
    return f"continue with: coterie run {folder / 'experiment.toml'} --resume"

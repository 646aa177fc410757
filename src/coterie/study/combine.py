"""`coterie report A B`: several runs of one federation as one folder of results, from which reports and verdicts are made as of a run.

Runs of the same table add repeats, as if one run had had all seeds. With another table, whose rows are of other patients, each client's
gains weigh by 1 / s^2 (`report/evidence.py`). Nothing is imported and nothing trained: the files of the runs are read.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.base.errors import InputError
from coterie.base.files import (
    json_rows,
    open_tensors,
    read_json,
    read_toml,
    write_atomically,
    write_tensors,
)
from coterie.base.outputs import replace_contents
from coterie.report.outcomes import Outcomes
from coterie.report.results import Results
from coterie.report.text import listing
from coterie.run.files import (
    ALL,
    PAIRED,
    REPORT,
    RUNS,
    WRITER,
    refuse_links,
    seed_suffix,
    write_json,
)
from coterie.run.hashes import (
    PROVENANCE,
    read_record,
    refuse_damaged_outcomes,
    refuse_other_records,
)
from coterie.run.history import History, Row
from coterie.run.provenance import changes
from coterie.study.layout import CHECKPOINTS, FREE, first_fold, is_run
from coterie.study.search import chosen_penalties
from coterie.study.tables import write_history

FREE_KEYS = {"data": {"folder"}, "run": FREE, "report": {"threshold"}}
"""Keys that may differ: where rows lie, and which seeds."""
SAME_CODE = (("code",), ("method", "class"), ("machine", "coterie"))
"""Parts of the record that must agree, beside the settings."""
COINCIDENCE = 1e-6
"""Probability that rows at the same places have the same labels by chance, below which a table is one with rows added."""
APART = 2**40
"""Offset of the numbers of rows of another table, so that no two patients have the same."""


def default_folder(runs: Sequence[Path]) -> Path:
    """Return where a combination is written if nothing is said: beside the first run, with the names of all."""
    return runs[0].parent / "+".join(run.resolve().name for run in runs)


def combine_runs(runs: Sequence[Path], folder: Path, *, new_rows: bool = False) -> None:
    """Write what several runs of one federation say together, for `Results.load`.

    Args:
        runs: folders of finished runs, at least two.
        folder: where to; an earlier combination there is replaced, and files of others stay.
        new_rows: whether runs may be of different tables, of which no patient is in two.

    Raises:
        InputError: settings or code of the runs differ, a seed is there twice, tables differ without `new_rows`, or `folder` holds
            a file of another that is in the way.
    """
    if len(runs) < 2 or len({run.resolve() for run in runs}) < len(runs):
        raise InputError("name at least two different runs to combine")
    results = [_load(run) for run in runs]
    for run in results[1:]:
        _refuse_other_settings(results[0], run)
    tables = _tables_of(results, new_rows)
    seeds = _number_seeds(results, tables)
    if is_run(folder):
        raise InputError(f"{folder} is a run directory; choose another --out")
    refuse_links(folder)
    replace_contents(
        folder,
        lambda place: _write(place, results, tables, seeds),
        last=RUNS,
        later=(REPORT,),
    )


def _load(run: Path) -> Results:
    if (run / RUNS).is_file():
        raise InputError(f"{run} is a combination; name the runs of which it was made")
    if not is_run(run):
        raise InputError(f"{run} is not a run directory; `coterie compare` writes one")
    refuse_damaged_outcomes(run)
    refuse_other_records(run)
    results = Results.load(run)
    if (run / PAIRED).is_file() or results.outcomes_missing:
        raise InputError(
            f"{run} holds no outcomes of single rows, which stay at their sites; only runs that have them combine"
        )
    return results


# ---- what must agree


def _refuse_other_settings(earlier: Results, later: Results) -> None:
    """Raise `InputError` that names the first setting, client or code in which two runs differ."""
    cure = "only runs with the same settings can be combined"
    for label in sorted({*earlier.algorithms} ^ {*later.algorithms}):
        owner = later
        if label in earlier.algorithms:
            owner = earlier
        raise InputError(f"only {owner.folder} has methods.{label}; {cure}")
    for (table, key), old_value, new_value in _settings(earlier, later):
        raise InputError(
            f"{later.folder} was made with {table}.{key} = {new_value!r}, and {earlier.folder} with {old_value!r}; {cure}"
        )
    for subject, old_value, new_value in (
        ("clients", sorted(earlier.clients), sorted(later.clients)),
        ("label", earlier.label().get("column"), later.label().get("column")),
        ("classes", earlier.label().get("classes"), later.label().get("classes")),
        ("columns", _columns(earlier.folder), _columns(later.folder)),
    ):
        if old_value != new_value:
            raise InputError(
                f"{later.folder} has other {subject} than {earlier.folder}: {_only(new_value, old_value)}; {cure}"
            )
    for method in earlier.algorithms:
        old_record, new_record = _record(earlier, method), _record(later, method)
        for path in SAME_CODE:
            old_part, new_part = _part(old_record, path), _part(new_record, path)
            for change in changes(old_part, new_part, path[:1]):
                difference = f"{change.subject} of {method} differs between {earlier.folder} and {later.folder}"
                if change.detail:
                    difference += f" ({change.detail})"
                raise InputError(f"{difference}; {cure}")


def _settings(
    earlier: Results, later: Results
) -> Iterator[tuple[tuple[str, str], Any, Any]]:
    """Table, key and both values of each setting in which two experiments differ and on which numbers depend."""
    old_tables = {**earlier.experiment, **_methods_by_label(earlier)}
    new_tables = {**later.experiment, **_methods_by_label(later)}
    compared = {*old_tables, *new_tables} - {"methods", "engine", "callbacks"}
    for name in sorted(compared):
        old_table = _as_table(old_tables.get(name))
        new_table = _as_table(new_tables.get(name))
        free = FREE_KEYS.get(name, frozenset[str]())
        for key in sorted({*old_table, *new_table} - free):
            if old_table.get(key) != new_table.get(key):
                yield (name, key), old_table.get(key), new_table.get(key)


def _as_table(value: Any) -> dict[str, Any]:
    """A table as it is, and any other value under the key ""."""
    if isinstance(value, dict):
        return value
    return {"": value}


def _methods_by_label(results: Results) -> dict[str, Any]:
    """The entry of each method, without its seeds and the weight decays that the run chose itself by its own validation rows."""
    chosen = chosen_penalties(results.folder)
    tables = {}
    for saved in results.experiment.get("methods", []):
        label = saved.get("label")
        entry = {key: value for key, value in saved.items() if key != "seeds"}
        if label in chosen:
            entry["local"] = dict(entry.get("local", {}))
            entry["local"].pop("weight_decay", None)
            entry.pop("weight_decays", None)
        tables[f"methods.{label}"] = entry
    return tables


def _columns(run: Path) -> list[str]:
    return [str(column["name"]) for column in _recipe(run).get("columns", ())]


def _recipe(run: Path) -> dict[str, Any]:
    """The recipe of the first seed; empty where rows are not those of tables."""
    path = run / "preprocess.json"
    if not path.is_file():
        return {}
    return next(iter(read_json(path, dict).values()), {})


def _only(new_list: Any, old_list: Any) -> str:
    if not (isinstance(new_list, list) and isinstance(old_list, list)):
        return f"{new_list} and {old_list}"
    added = [str(name) for name in new_list if name not in old_list]
    left_out = [str(name) for name in old_list if name not in new_list]
    return listing((added or left_out)[:3]) or "in another order"


def _record(results: Results, method: str) -> Mapping[str, Any]:
    """Read what the numbers of a method depend on, as it was recorded before round 0; empty for what is trained without rounds."""
    fold = first_fold(results.comparisons.folds)
    name = f"{method}-{seed_suffix(results.seeds[0], fold)}"
    path = results.folder / CHECKPOINTS / name / PROVENANCE
    if not path.is_file():
        return {}
    return dict(read_record(path)["record"])


def _part(record: Mapping[str, Any], path: Sequence[str]) -> Mapping[str, Any]:
    part: Mapping[str, Any] = record.get(path[0], {})
    if len(path) == 1:
        return part
    return {path[1]: part.get(path[1])}


# ---- which rows


def _tables_of(results: Sequence[Results], new_rows: bool) -> list[int]:
    """The number of the table of each run: a run of a table that came before has its number."""
    labels: list[Mapping[str, Mapping[int, float]]] = []
    tables: list[int] = []
    for i, run in enumerate(results):
        labels.append({client: _labels(run, client) for client in run.clients})
        table = None
        for j in range(i):
            if _same_rows(results[j], run, labels[j], labels[i]):
                table = tables[j]
                break
        if table is None:
            if i > 0 and not new_rows:
                raise InputError(
                    f"{run.folder} and {results[0].folder} are of different rows; if no patient is in both, say so with --new-rows"
                )
            _refuse_grown(results[:i], run, labels)
            table = max(tables, default=-1) + 1
        tables.append(table)
    return tables


def _labels(results: Results, client: str) -> dict[int, float]:
    """The label of each row that was tested, by its number; 0 where a row has no single label."""
    method = results.against or results.methods[0]
    labels: dict[int, float] = {}
    for rows in results.comparisons.outcomes.rows(method, client).values():
        numbers = rows.numbers.tolist()
        if rows.labels is None:
            labels.update(dict.fromkeys(numbers, 0.0))
        else:
            values = map(float, rows.labels)
            labels.update(zip(numbers, values, strict=True))
    return labels


def _same_rows(
    earlier: Results,
    later: Results,
    was: Mapping[str, Mapping[int, float]],
    now: Mapping[str, Mapping[int, float]],
) -> bool:
    """Return True if two runs are of one table: with folds by the recipe of all rows and every label; else by rows tested in both."""
    if earlier.comparisons.folds:
        return was == now and _recipe(earlier.folder) == _recipe(later.folder)
    for client in earlier.clients:
        shared = was[client].keys() & now[client].keys()
        old_size = earlier.size(client) + earlier.size(client, "n_train")
        new_size = later.size(client) + later.size(client, "n_train")
        if not shared or old_size != new_size:
            return False
        if any(was[client][i] != now[client][i] for i in shared):
            return False
    return True


def _refuse_grown(
    earlier: Sequence[Results],
    run: Results,
    labels: Sequence[Mapping[str, Mapping[int, float]]],
) -> None:
    """Raise `InputError` if a table begins with the rows of another, so that patients are in both."""
    for results, was in zip(earlier, labels, strict=False):
        for client, now in labels[len(earlier)].items():
            if _chance(was[client], now) < COINCIDENCE:
                raise InputError(
                    f"rows of {client} in {run.folder} have the labels of those at the same places in {results.folder}, so patients "
                    "seem to be in both; make a run of the new rows alone"
                )


def _chance(was: Mapping[int, float], now: Mapping[int, float]) -> float:
    """Return how probable it is that all rows with a number in both have equal labels; 1 if they have not.

    As if each label were drawn by itself, with its share in the later table: the product of the shares of the labels that agree.
    """
    shared = was.keys() & now.keys()
    if not shared or any(was[i] != now[i] for i in shared):
        return 1.0
    labels, counts = np.unique([*now.values()], return_counts=True)
    shares = counts / counts.sum()
    share_of = dict(zip(labels.tolist(), shares.tolist(), strict=True))
    # A sum of logarithms: the product of a thousand shares is 0 in floating point.
    log_chance = 0.0
    for number in shared:
        log_chance += math.log(share_of[now[number]])
    return math.exp(log_chance)


def _number_seeds(
    results: Sequence[Results], tables: Sequence[int]
) -> list[dict[int, int]]:
    """The seed in the combination of each seed of each run: its own, unless a run of another table has taken it."""
    owners: dict[int, int] = {}
    numbered: list[dict[int, int]] = []
    for i, run in enumerate(results):
        of_run: dict[int, int] = {}
        for seed in run.seeds:
            number = seed
            if seed in owners:
                owner = owners[seed]
                if tables[owner] == tables[i]:
                    free = 1 + max(max(r.seeds) for r in results)
                    raise InputError(
                        f"{results[owner].folder} and {run.folder} are of the same rows and both have seed {seed}; repeat one with "
                        f"seeds that the other lacks: --set 'run.seeds=[{free}]'"
                    )
                number = 1 + max(*owners, *run.seeds)
            of_run[seed] = number
            owners[number] = i
        numbered.append(of_run)
    return numbered


# ---- the folder


def _write(
    place: Path,
    results: Sequence[Results],
    tables: Sequence[int],
    seeds: Sequence[Mapping[int, int]],
) -> None:
    import tomli_w

    every_seed = list(itertools.chain(*(of_run.values() for of_run in seeds)))
    experiment = read_toml(results[0].folder / "experiment.toml")
    experiment["run"]["seeds"] = every_seed
    for entry in experiment["methods"]:
        # As many as all runs together were to have.
        wanted = sum(run.seeds_wanted(entry["label"]) for run in results)
        if wanted < len(every_seed):
            entry["seeds"] = wanted
    write_atomically(
        place / "experiment.toml",
        lambda p: p.write_text(tomli_w.dumps(experiment), encoding="utf-8"),
    )
    runs = []
    environments = {}
    notes: list[str] = []
    rows: dict[str, list[dict[str, Any]]] = {"summary.json": [], "failures.json": []}
    recipes: dict[str, Any] = {}
    for run, table, of_run in zip(results, tables, seeds, strict=True):
        name = str(run.folder)
        runs.append({"run": name, "table": table, "seeds": [*of_run.values()]})
        environments[name] = run.environment
        notes += run.saved_notes
        for file in rows:
            rows[file] += _json_rows(run.folder / file, of_run)
        recipes |= _recipes_of(run.folder, of_run)
        _write_outcomes(place, run, table, of_run)
    write_json(place / RUNS, runs)
    write_json(place / "format.json", WRITER)
    write_json(place / "environment.json", {"runs": environments})
    write_json(place / "notes.json", [*dict.fromkeys(notes)])
    write_json(place / "summary.json", rows["summary.json"])
    if rows["failures.json"]:
        write_json(place / "failures.json", rows["failures.json"])
    write_history(place, [*_histories(results, seeds)])
    for name in ("weights.csv", "timing.csv", "contribution.csv"):
        _join_csv(place / name, [r.folder / name for r in results], seeds)
    if recipes:
        write_json(place / "preprocess.json", recipes)


def _recipes_of(run: Path, seeds: Mapping[int, int]) -> dict[str, Any]:
    """The recipe of each seed of a run, by the seed in the combination; none where rows are not those of tables."""
    path = run / "preprocess.json"
    if not path.is_file():
        return {}
    recipes = {}
    for seed, recipe in read_json(path, dict).items():
        if int(seed) in seeds:
            recipes[str(seeds[int(seed)])] = recipe
    return recipes


def _json_rows(path: Path, seeds: Mapping[int, int]) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    rows = []
    for row in json_rows(path, {"seed": int, "fold": str}):
        if row["fold"] != ALL and row["seed"] in seeds:
            rows.append({**row, "seed": seeds[row["seed"]]})
    return rows


def _histories(
    results: Sequence[Results], seeds: Sequence[Mapping[int, int]]
) -> Iterator[tuple[tuple[str, int, str], History]]:
    for of_results, of_run in zip(results, seeds, strict=True):
        history = of_results.history
        for run, (method, seed, fold) in enumerate(history.runs):
            if fold != ALL and seed in of_run:
                rows = History(Row(*row) for row in history.rows(run))
                yield (method, of_run[seed], fold), rows


def _join_csv(
    path: Path, parts: Sequence[Path], seeds: Sequence[Mapping[int, int]]
) -> None:
    """Write the rows of several CSV files with the same columns, under the seeds of the combination."""
    buffer, header = io.StringIO(), None
    writer = csv.writer(buffer, lineterminator="\n")
    for part, of_run in zip(parts, seeds, strict=True):
        if not part.is_file():
            continue
        with part.open(encoding="utf-8", newline="") as file:
            columns, *rows = csv.reader(file)
        place, fold = columns.index("seed"), columns.index("fold")
        if header is None:
            writer.writerow(header := columns)
        for row in rows:
            seed = int(row[place])
            if row[fold] != ALL and seed in of_run:
                row[place] = str(of_run[seed])
                writer.writerow(row)
    if header is not None:
        write_atomically(
            path, lambda p: p.write_text(buffer.getvalue(), encoding="utf-8")
        )


def _write_outcomes(
    place: Path, run: Results, table: int, seeds: Mapping[int, int]
) -> None:
    for path in Outcomes.paths(run.folder):
        with open_tensors(path, "pt") as (file, metadata):
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is not a dict
        if metadata["seed"] not in seeds:
            continue
        for key in ("numbers", "patients"):
            if key in tensors:
                tensors[key] = tensors[key] + table * APART
        metadata = {**metadata, "seed": seeds[metadata["seed"]]}
        write_tensors(
            place / "outcomes" / f"{table}-{metadata['seed']}-{path.name}",
            tensors,
            metadata,
        )

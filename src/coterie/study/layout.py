"""A run directory: which folder it is, who may write it, where each method and seed lies in it, and what a resumed run must equal."""

from __future__ import annotations

import errno
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from coterie.base.clients import Clients
from coterie.base.errors import InputError
from coterie.base.files import json_rows, remove_leftovers, write_atomically
from coterie.base.system import NO_LOCKS, UNSUPPORTED, say_once, sync
from coterie.config.run import MethodEntry
from coterie.run.experiment import Experiment
from coterie.run.files import ALL, RUNS, YARDSTICKS, refuse_links, seed_suffix
from coterie.run.hashes import PROVENANCE, find_damage, record_or_none
from coterie.run.tables import read_folder_experiment

CHECKPOINTS = "checkpoint"


def is_run(folder: Path) -> bool:
    """Return True if `folder` is a run directory, complete or not."""
    return (folder / "experiment.toml").is_file() and (folder / CHECKPOINTS).is_dir()


def refuse_run_directory(file: Path) -> None:
    """Raise `InputError` for a file within a run directory, whose files are the run's alone."""
    for folder in file.absolute().parents:
        if is_run(folder) or (folder / RUNS).is_file():
            raise InputError(
                f"{file} would lie in the run directory {folder}; choose another --out"
            )


def choose_folder(experiment: Experiment, resume: bool) -> Path:
    """The run directory: `run.out`, or runs/NAME with a number behind it if that is taken; to resume, the newest of these.

    Raises `InputError` if a named folder holds something else, or a run and `resume` is not asked for.
    """
    if experiment.run.out is not None:
        folder = Path(experiment.run.out)
        refuse_others(folder, resume)
        return folder
    plain = newest = folder = Path("runs") / experiment.title
    number = 2
    while folder.exists():
        newest, folder = folder, plain.with_name(f"{plain.name}-{number}")
        number += 1
    if resume:
        return newest
    return folder


def first_fold(folds: int) -> str:
    """The fold of a run that stands for all others in checks; "" for a run without folds."""
    return "0" if folds else ""


def fold_of_all_rows(folds: int) -> str:
    """The fold of the model for new rows, `ALL`; "" for a run without folds, whose models all train on the same rows."""
    return ALL if folds else ""


def refuse_combination(folder: Path) -> None:
    """Raise `InputError` for a combination of runs, which has results and no models."""
    if (folder / RUNS).is_file():
        runs = ", ".join(
            str(row["run"]) for row in json_rows(folder / RUNS, {"run": str})
        )
        raise InputError(
            f"{folder} combines several runs and has no models; name one of {runs}"
        )


def refuse_others(folder: Path, resume: bool) -> None:
    """Raise `InputError` if `folder` holds something else, or a run and `resume` is not asked for."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; choose another --out")
    if is_run(folder):
        if not resume:
            raise InputError(
                f"{folder} already holds a run; continue with --resume, or choose another --out"
            )
    elif folder.is_dir():
        begun = {
            CHECKPOINTS,
            "format.json",
            "tuning.csv",
        }  # a run that was killed before its first file
        foreign = next(
            (
                f.name
                for f in folder.iterdir()
                if f.name not in begun and not f.name.startswith(".")
            ),
            None,
        )
        if foreign is not None:
            raise InputError(
                f"{folder} holds {foreign} and is not a run directory; choose another --out"
            )
    refuse_links(folder)


def _require_replacing(folder: Path) -> None:
    """Raise `InputError` where a rename cannot replace a file: each round replaces the checkpoint of the one before."""
    probe = folder / "replaced"
    try:
        write_atomically(probe, lambda p: p.write_text("old"))
        write_atomically(probe, lambda p: p.write_text("new"))
        is_new = probe.read_text() == "new"
    except OSError as error:
        if error.errno not in (errno.EEXIST, *UNSUPPORTED):
            # A full disk: the user knows the run's folder, and nothing of the file that was tried.
            raise OSError(error.errno, error.strerror, str(folder.parent)) from error
        raise InputError(
            f"{folder.parent}: no file can be replaced there ({error.strerror}); choose another --out"
        ) from error
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)
    if not is_new:
        raise InputError(
            f"{folder.parent}: a rename does not replace a file there; choose another --out"
        )


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """A run directory that no other process writes; what a killed one left half done is removed."""
    import fcntl

    try:
        (folder / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        file = open(folder / CHECKPOINTS / "lock", "w")  # noqa: SIM115
    except OSError as error:
        raise InputError(
            f"{folder} cannot be made a run directory ({error.strerror}); choose another --out"
        ) from error
    with file:
        try:
            # Ends with this process, and workers do not inherit it.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            # Which of the two says that another process has the lock depends on the system. EACCES is also what some
            # file systems answer that know no locks; there nobody could have one.
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise InputError(
                    f"{folder} is being written by another process; wait for it to end"
                ) from error
            if error.errno not in UNSUPPORTED:
                raise
            say_once(NO_LOCKS, folder)
        _require_replacing(folder / CHECKPOINTS)
        # Asked here, before any process is forked, so that a limit is said once.
        sync(file.fileno(), folder)
        remove_leftovers(folder)
        yield


@dataclass
class Pair:
    """One method with one seed, and one fold of it where the run has folds: its number, `all` rows trained on, or empty."""

    entry: MethodEntry
    seed: int
    run: Path
    fold: str = ""

    @property
    def key(self) -> tuple[str, int, str]:
        """Label, seed and fold."""
        return self.entry.label, self.seed, self.fold

    @property
    def name(self) -> str:
        """The beginning of the names of its files."""
        return f"{self.entry.label}-{seed_suffix(self.seed, self.fold)}"

    @property
    def words(self) -> str:
        """For sentences: `fedavg, seed 0, fold 3`."""
        fold = {"": "", ALL: ", all rows"}.get(self.fold, f", fold {self.fold}")
        return f"{self.entry.label}, seed {self.seed}{fold}"

    @property
    def folder(self) -> Path:
        """The folder of its checkpoint."""
        return self.run / CHECKPOINTS / self.name

    @property
    def done(self) -> Path:
        """The file that says that it is complete."""
        return self.folder / "done.json"

    @property
    def history(self) -> Path:
        """The file with a line for each saved round."""
        return self.folder / "history.jsonl"

    def saved(self) -> dict[str, Any] | None:
        """Return the contents of `done`; None if the pair is not complete, or the file is damaged."""
        return record_or_none(self.done)

    def refuse_copy(self) -> None:
        """Raise `InputError` if the folder is a copy of that of another method or seed."""
        record = record_or_none(self.folder / PROVENANCE)
        if record is not None and record["run"] != self.folder.name:
            raise InputError(
                f"{self.folder} is a copy of {record['run']}; delete it and continue with --resume: this method and seed start again"
            )

    def refuse_lost_history(self) -> None:
        """Raise `InputError` if the history of a complete pair, which nothing can replace, is not as the pair left it."""
        saved = self.saved()
        if saved is None:
            return
        name = self.history.relative_to(self.run).as_posix()
        for problem in find_damage(self.run, {name: saved["files"][name]}).values():
            raise InputError(
                f"{self.history} {problem}; delete {self.folder} and continue with --resume: this method and seed start again"
            )

    def damage(self) -> dict[str, str]:
        """Return the defects of the files of a complete pair, by their path in the run directory; empty if nothing is."""
        saved = self.saved()
        if saved is None:
            return {self.done.relative_to(self.run).as_posix(): "is damaged"}
        return find_damage(self.run, saved["files"])


class Training(NamedTuple):
    """A pair to train, and how.

    Attributes:
        pair: the method, seed and fold.
        clients: their rows, as this fold finds them.
        module: the initial model.
        resume: True to resume where it stopped.
        accept_change: what may have changed since.
        progress: called with the number of each complete round.
    """

    pair: Pair
    clients: Clients
    module: nn.Module
    resume: bool
    accept_change: tuple[str, ...]
    progress: Callable[[int], None]


FREE = frozenset({"seeds", "out", "jobs", "save_every", "yardstick"})
"""Keys of [run] on which no number depends, so that they may differ when a run is resumed."""


def is_whole(pair: Pair, say: Callable[[str], None] | None) -> bool:
    """Return True if a pair is complete and all of its files are as it left them; what is not is told."""
    if not pair.done.exists():
        return False
    damage = pair.damage()
    for name, problem in damage.items():
        if say is not None:
            say(
                f"{name} {problem}: it is made again from the checkpoint of {pair.words}"
            )
    return not damage


def refuse_other_settings(experiment: Experiment, folder: Path) -> None:
    """Raise `InputError` if what was saved is of other settings. Methods and seeds may be added, also to one method."""
    saved = read_folder_experiment(folder, experiment)
    saved_tables, tables = saved.tables(), experiment.tables()
    cure = "resume with the same settings, or choose another --out"
    saved_tables["engine"], tables["engine"] = (
        saved.engine.results(),
        experiment.engine.results(),
    )
    saved_tables["callbacks"], tables["callbacks"] = (
        {"deciding": saved.deciding()},
        {"deciding": experiment.deciding()},
    )
    for table in ("data", "split", "model", "engine", "attack", "callbacks", "run"):
        was, now = saved_tables.get(table, {}), tables.get(table, {})
        for key in sorted({*was, *now} - FREE):
            if was.get(key) != now.get(key):
                raise InputError(
                    f"{folder} was made with {table}.{key} = {was.get(key)!r}, not {now.get(key)!r}; {cure}"
                )
    missing = sorted(set(saved.run.seeds) - set(experiment.run.seeds))
    if missing:
        raise InputError(
            f"{folder} has seed {missing[0]}, which is not among the seeds now; {cure}"
        )
    methods = {m["label"]: m for m in tables["methods"]}
    for method in saved_tables["methods"]:
        label = method["label"]
        if label not in methods:
            raise InputError(
                f"{folder} has results of {label!r}, which is not among the methods now; {cure}"
            )
        # A method may have more seeds than before, as the run itself.
        compared = {*method, *methods[label]} - {"seeds"}
        differ = sorted(k for k in compared if method.get(k) != methods[label].get(k))
        if differ:
            raise InputError(
                f"{folder} was made with other settings of {label!r} ({', '.join(differ)}); {cure}"
            )
        had = method.get("seeds", len(saved.run.seeds))
        has = methods[label].get("seeds", len(experiment.run.seeds))
        if has < had:
            raise InputError(
                f"{folder} was made with {had} seeds of {label!r}, not {has}; add --set {label}.seeds={had}, or choose another --out"
            )


def trainings(experiment: Experiment) -> list[tuple[int, str]]:
    """Return seed and fold of every training of a method, in their order; with folds that on all rows comes last."""
    return _trainings(experiment.run.seeds, experiment.folds)


def _trainings(seeds: Sequence[int], folds: int) -> list[tuple[int, str]]:
    if not folds:
        return [(seed, "") for seed in seeds]
    tested = [(seed, str(fold)) for seed in seeds for fold in range(folds)]
    return [*tested, (seeds[0], ALL)]


def pairs_of(
    folder: Path, entries: Iterable[MethodEntry], seeds: Sequence[int], folds: int
) -> list[Pair]:
    """Return every run of an experiment, seed by seed and fold by fold; with folds those on all rows come last.

    An entry that names a number of seeds has the first ones alone.
    """
    methods = list(entries)
    return [
        Pair(entry, seed, folder, fold)
        for seed, fold in _trainings(seeds, folds)
        for entry in methods
        if seed in seeds[: entry.seeds]
        if fold != ALL or entry.name not in YARDSTICKS
    ]


def median_rounds(pair: Pair, experiment: Experiment) -> int:
    """Return the median of the rounds after which the folds of a method ended, which callbacks may have decided."""
    pairs = pairs_of(pair.run, [pair.entry], experiment.run.seeds, experiment.folds)
    saved = [
        record["summary"]
        for fold in pairs
        if fold.fold != pair.fold and (record := fold.saved()) is not None
    ]
    rounds: list[int] = [rows[0]["rounds"] for rows in saved]
    return statistics.median_low(rounds)

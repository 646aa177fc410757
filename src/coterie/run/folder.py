"""A run directory: which folder it is, who may write it, and where the runs of each method and seed lie in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.base.errors import InputError, require
from coterie.run.entries import MethodEntry
from coterie.run.experiment import Experiment
from coterie.run.files import refuse_links
from coterie.run.seals import damaged, sealed

__all__ = ["Pair", "choose_folder", "is_run", "opened", "refuse_others"]

CHECKPOINTS = "checkpoint"


def is_run(folder: Path) -> bool:
    """Whether `folder` is a run directory, complete or not."""
    return (folder / "experiment.toml").is_file() and (folder / CHECKPOINTS).is_dir()


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
    return newest if resume else folder


def refuse_others(folder: Path, resume: bool) -> None:
    """Raise `InputError` if `folder` holds something else, or a run and `resume` is not asked for."""
    require(not folder.exists() or folder.is_dir(), f"{folder} is a file; choose another --out")
    if is_run(folder):
        require(resume, f"{folder} already holds a run; continue with --resume, or choose another --out")
    elif folder.is_dir():
        begun = {CHECKPOINTS, "format.json", "tuning.csv"}  # a run that was killed before its first file
        other = next((f.name for f in folder.iterdir() if f.name not in begun and not f.name.startswith(".")), None)
        require(other is None, f"{folder} holds {other} and is not a run directory; choose another --out")
    refuse_links(folder)


@contextmanager
def opened(folder: Path) -> Iterator[None]:
    """A run directory that no other process writes; what a killed one left half done is removed."""
    import fcntl

    try:
        (folder / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        file = open(folder / CHECKPOINTS / "lock", "w")  # noqa: SIM115
    except OSError as error:
        raise InputError(f"{folder} cannot be made a run directory ({error.strerror}); choose another --out") from error
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with this process, and workers do not inherit it
        except BlockingIOError as error:
            raise InputError(f"{folder} is being written by another process; wait for it to end") from error
        for left in folder.rglob(".*.tmp[0-9]*"):
            left.unlink()
        yield


@dataclass
class Pair:
    """One method with one seed."""

    entry: MethodEntry
    seed: int
    run: Path

    @property
    def key(self) -> tuple[str, int]:
        """Label and seed."""
        return self.entry.label, self.seed

    @property
    def folder(self) -> Path:
        """Where its checkpoint lies."""
        return self.run / CHECKPOINTS / f"{self.entry.label}-{self.seed}"

    @property
    def done(self) -> Path:
        """The file that says that it is complete."""
        return self.folder / "done.json"

    @property
    def history(self) -> Path:
        """The file with a line for each saved round."""
        return self.folder / "history.jsonl"

    def saved(self) -> dict[str, Any] | None:
        """What `done` holds; None if the pair is not complete, or the file is damaged."""
        return sealed(self.done)

    def refuse_lost_history(self) -> None:
        """Raise `InputError` if the history of a complete pair, which nothing can replace, is not as the pair left it."""
        saved, name = self.saved(), self.history.relative_to(self.run).as_posix()
        for what in damaged(self.run, {name: saved["files"][name]} if saved else {}).values():
            raise InputError(
                f"{self.history} {what}; delete {self.folder} and continue with --resume: this method and seed start again"
            )

    def damage(self) -> dict[str, str]:
        """What is wrong with the files of a complete pair, by their path in the run directory; empty if nothing is."""
        saved = self.saved()
        if saved is None:
            return {self.done.relative_to(self.run).as_posix(): "is damaged"}
        return damaged(self.run, saved["files"])

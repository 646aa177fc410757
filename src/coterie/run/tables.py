"""Files of settings: TOML tables of presets, experiments and plans, read and written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from coterie.base.errors import InputError
from coterie.base.files import read_toml, write_atomically
from coterie.run.experiment import Experiment
from coterie.run.files import own_files, own_objects
from coterie.run.method_tables import label_of

PRESETS = Path(__file__).parent / "presets"


def preset(name: str) -> dict[str, Any]:
    """The tables that `coterie compare NAME` starts from; those for a folder where NAME has none of its own."""
    tables = _preset(name)
    tables.pop("others", None)
    tables.pop("trained", None)
    return tables


def preset_methods(name: str) -> list[dict[str, Any]]:
    """The [[methods]] entries of that preset, and further ones whose arguments it knows although it does not run them unasked.

    A method that somebody names has all repeats, also one that stands for contrast in the preset.
    """
    tables = _preset(name)
    entries = [*tables.get("methods", []), *tables.get("others", [])]
    for entry in entries:
        entry.pop("seeds", None)
    return entries


def trained_methods(name: str) -> list[dict[str, Any]]:
    """The [[methods]] entries of that preset for a model that is trained and not solved for."""
    entries = {label_of(entry): entry for entry in preset_methods(name)}
    labels = _preset(name).get("trained")
    if labels is None:
        methods: list[dict[str, Any]] = preset(name)["methods"]
        return methods
    return [entries[label] for label in labels]


def _preset(name: str) -> dict[str, Any]:
    path = PRESETS / f"{name}.toml"
    if not path.is_file():
        path = PRESETS / "folder.toml"
    return read_toml(path)


def read_experiment(
    path: str | os.PathLike[str], objects: Mapping[str, Any] = MappingProxyType({})
) -> Experiment:
    """The experiment of a TOML file, which may name `objects`. Raises `InputError` that names the file and the key."""
    tables = read_toml(Path(path))
    tables.pop(
        "deploy", None
    )  # of a plan for sites elsewhere, which one machine can try
    return Experiment.from_tables(tables, str(path), objects)


def read_folder_experiment(folder: Path, now: Experiment) -> Experiment:
    """The experiment of a run directory that `now` is to continue.

    Raises `InputError` if it names a Python file that `now` does not name: reading it would run what somebody else wrote.
    """
    path = folder / "experiment.toml"
    unnamed = set(own_files(read_toml(path))) - set(own_files(now.tables()))
    if unnamed:
        raise InputError(
            f"{folder} was made with {min(unnamed, default='')}, which is not named now; resume with the same settings, or choose "
            "another --out"
        )
    missing = set(own_objects(read_toml(path))) - set(now.objects)
    if missing:
        raise InputError(
            f"{folder} was made with {min(missing, default='')}, an object of a Python program; resume from Python with the same "
            "object, or choose another folder"
        )
    return read_experiment(path, now.objects)


def write_experiment(path: Path, experiment: Experiment) -> None:
    """Write an experiment with all defaults spelled out. Without this file a folder is no run, so it reaches the disk."""
    import tomli_w

    tables = experiment.tables()
    for free in (
        "out",
        "jobs",
    ):  # where this file lies, and how many processes wrote beside it
        tables["run"].pop(free, None)
    text = tomli_w.dumps(tables)
    write_atomically(path, lambda p: p.write_text(text, encoding="utf-8"), durable=True)

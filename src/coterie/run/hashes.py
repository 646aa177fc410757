"""Seals: the hashes that a run directory keeps of its own files, so that damage is found before a number is read. Needs no torch.

`done.json` of each method and seed holds those of its history, models and outcomes; `checkpoint/tables.json` those of the tables.
Both are written last, hold a hash of themselves, and reach the disk with the files that they name.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from coterie.base.errors import InputError, require
from coterie.base.files import read_json, write_atomically

__all__ = [
    "TABLES",
    "damaged",
    "hashes",
    "intact",
    "read_sealed",
    "refuse_changed",
    "refuse_damaged_outcomes",
    "sealed",
    "write_sealed",
]

TABLES = Path("checkpoint") / "tables.json"
"""Where a run directory keeps the hashes of its tables; it is absent while these are being written."""

SEAL = "seal"


def hashes(folder: Path, files: Iterable[Path]) -> dict[str, str]:
    """The hash of each of these files of a run directory, by its path in `folder`; each is on the disk before this returns."""
    return {path.relative_to(folder).as_posix(): _hash(path, durable=True) for path in sorted(files)}


def damaged(folder: Path, recorded: Mapping[str, str]) -> dict[str, str]:
    """Files that are not as recorded: "is missing", "is damaged" or why it cannot be read, by path in `folder`."""
    problems: dict[str, str] = {}
    for name, expected in recorded.items():
        try:
            if _hash(folder / name) != expected:
                problems[name] = "is damaged"
        except FileNotFoundError:
            problems[name] = "is missing"
        except OSError as error:
            problems[name] = f"cannot be read ({error.strerror})"
    return problems


def write_sealed(path: Path, record: Mapping[str, Any]) -> None:
    """Write a JSON object with a hash of itself, and let it reach the disk."""
    text = json.dumps({**record, SEAL: _seal(record)}, indent=1, allow_nan=False)
    write_atomically(path, lambda p: p.write_text(text + "\n", encoding="utf-8"), durable=True)


def read_sealed(path: Path) -> dict[str, Any]:
    """What `write_sealed` wrote. Raises `InputError` if the file is missing, damaged or of another version."""
    require(path.exists(), f"{path} is missing, so its run is not complete; continue with --resume")
    cure = "delete it and continue with --resume"
    record = read_json(path, dict, cure)
    whole = record.pop(SEAL, None) == _seal(record)
    require(whole, f"{path} is damaged, or of another version of coterie; {cure}")
    return record


def sealed(path: Path) -> dict[str, Any] | None:
    """The same; None if the file is missing, damaged or of another version."""
    try:
        return read_sealed(path)
    except InputError:
        return None


def intact(folder: Path) -> bool:
    """Whether the tables of a finished run are as it left them; of a run that is not finished nothing is known."""
    record = sealed(folder / TABLES)
    return record is None or not damaged(folder, record["files"])


def refuse_changed(folder: Path, name: str) -> None:
    """Raise `InputError` if a file of a finished run is not as the run left it."""
    record = sealed(folder / TABLES)
    recorded = {name: record["files"][name]} if record and name in record["files"] else {}
    for what in damaged(folder, recorded).values():
        raise InputError(f"{folder / name} {what}; restore it, or resume with a file of your own and --out {folder}")


def refuse_damaged_outcomes(folder: Path) -> None:
    """Raise `InputError` if what a model said of each test row, from which intervals come, is not as its run left it."""
    for done in sorted((folder / "checkpoint").glob("*/done.json")):
        record = sealed(done)
        recorded = {} if record is None else {k: v for k, v in record["files"].items() if k.startswith("outcomes/")}
        for name, what in damaged(folder, recorded).items():
            raise InputError(f"{folder / name} {what}; continue the run with --resume, which makes it again")


def _seal(record: Mapping[str, Any]) -> str:
    text = json.dumps(record, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _hash(path: Path, *, durable: bool = False) -> str:
    with open(path, "rb") as file:
        if durable:
            os.fsync(file.fileno())
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()

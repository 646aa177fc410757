"""Seals: the hashes that a run directory keeps of its own files, so that damage is found before a number is read. Needs no torch.

`done.json` of each method and seed holds those of its history, models and outcomes; `checkpoint/tables.json` those of the tables.
Both are written last, hold a hash of themselves, and reach the disk with the files that they name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from coterie.base.errors import InputError
from coterie.base.files import json_text, read_json, write_atomically
from coterie.base.system import sync

TABLES = Path("checkpoint") / "tables.json"
"""Where a run directory keeps the hashes of its tables; it is absent while these are being written."""

PROVENANCE = "provenance.json"
"""File of the record, in the folder of one method and seed: all that their numbers depend on."""

SEAL = "seal"

Tree = Mapping[str, Any]
"""Nested mappings whose leaves are texts: short values as they are, others by their hash."""


def hashes(folder: Path, files: Iterable[Path]) -> dict[str, str]:
    """The hash of each of these files of a run directory, by its path in `folder`; each is on the disk before this returns."""
    return {
        path.relative_to(folder).as_posix(): _hash(path, durable=True)
        for path in sorted(files)
    }


def find_damage(folder: Path, recorded: Mapping[str, str]) -> dict[str, str]:
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


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write a JSON object with a hash of itself, and let it reach the disk."""
    text = json_text({**record, SEAL: _seal(record)})
    write_atomically(
        path, lambda p: p.write_text(text + "\n", encoding="utf-8"), durable=True
    )


def read_record(path: Path) -> dict[str, Any]:
    """Read what `write_record` wrote. Raises `InputError` if the file is missing, damaged or of another version."""
    if not path.exists():
        raise InputError(
            f"{path} is missing, so its run is not complete; continue with --resume"
        )
    cure = "delete it and continue with --resume"
    record = read_json(path, dict, cure)
    intact_seal = record.pop(SEAL, None) == _seal(record)
    if not intact_seal:
        raise InputError(f"{path} is damaged, or of another version of coterie; {cure}")
    return record


def record_or_none(path: Path) -> dict[str, Any] | None:
    """Read the same; None if the file is missing, damaged or of another version."""
    try:
        return read_record(path)
    except InputError:
        return None


def is_intact(folder: Path) -> bool:
    """Return False if a table of a finished run is damaged."""
    record = record_or_none(folder / TABLES)
    return record is None or not find_damage(folder, record["files"])


def refuse_change(folder: Path, name: str) -> None:
    """Raise `InputError` if a file of a finished run is not as the run left it."""
    record = record_or_none(folder / TABLES)
    recorded = {}
    if record and name in record["files"]:
        recorded = {name: record["files"][name]}
    for problem in find_damage(folder, recorded).values():
        raise InputError(
            f"{folder / name} {problem}; restore it, or resume with a file of your own and --out {folder}"
        )


def refuse_damaged_outcomes(folder: Path) -> None:
    """Raise `InputError` if what a model said of each test row, from which intervals come, is not as its run left it."""
    for path in sorted((folder / "checkpoint").glob("*/done.json")):
        record = record_or_none(path)
        if record is None:
            continue
        files = record["files"]
        recorded = {k: v for k, v in files.items() if k.startswith("outcomes/")}
        for name, problem in find_damage(folder, recorded).items():
            raise InputError(
                f"{folder / name} {problem}; continue the run with --resume, which makes it again"
            )


def refuse_other_records(folder: Path) -> None:
    """Raise `InputError` if tables, checkpoints and models of a finished run are not of one record; nothing is imported for it."""
    record = record_or_none(folder / TABLES)
    if record is None:
        return
    for pair, expected in record.get("records", {}).items():
        place = folder / "checkpoint" / pair
        done, written = (
            record_or_none(place / "done.json"),
            record_or_none(place / PROVENANCE),
        )
        is_other = done is not None and done["provenance"] != expected
        if written is not None:
            is_other |= (
                written["run"] != pair or hash_of_tree(written["record"]) != expected
            )
        if is_other:
            raise InputError(
                f"{place} is of another run than the tables of {folder}, which name another record; restore both from one copy, or "
                "repeat the run in another folder"
            )


def hash_texts(*texts: str) -> str:
    """The hash of some texts, in hexadecimal."""
    return hashlib.blake2b(
        "\0".join(texts).encode("utf-8", "surrogatepass"), digest_size=16
    ).hexdigest()


def hash_of_tree(tree: Any) -> str:
    """The hash of a tree: that of its leaves and of the hashes of its branches."""
    if not isinstance(tree, Mapping):
        return hash_texts(str(tree))
    return hash_texts(
        *(f"{name} {hash_of_tree(branch)}" for name, branch in sorted(tree.items()))
    )


def _seal(record: Mapping[str, Any]) -> str:
    text = json.dumps(record, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _hash(path: Path, *, durable: bool = False) -> str:
    with open(path, "rb") as file:
        if durable:
            sync(file.fileno(), path)
        return hashlib.file_digest(
            file, lambda: hashlib.blake2b(digest_size=16)
        ).hexdigest()

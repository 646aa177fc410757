"""What a command writes where its user says (`--out`): only what an earlier call of it made is replaced.

A folder has a record of the names that coterie put there. A file on its own is known by its first line. Anything else that
lies there is its user's: it stays, and where it is in the way it is named.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from coterie.base.errors import InputError, cut
from coterie.base.files import naming, parse_json, read_text, write_atomically

MADE = ".made-by-coterie.json"
"""The record: a list of the names in its folder that coterie made."""
ANOTHER = "choose another --out"


def names_made(folder: Path) -> set[str]:
    """The names in a folder that an earlier call put there. Raises `InputError` for a record that is damaged."""
    record = folder / MADE
    if not record.is_file():
        return set()
    names = parse_json(read_text(record), str(record), list, ANOTHER)
    # Only names of this folder: a record that was tampered with must not reach into others.
    return {
        name
        for name in names
        if isinstance(name, str) and Path(name).parts == (name,) and name != ".."
    }


def replace_contents(
    folder: Path,
    write: Callable[[Path], object],
    *,
    last: str,
    later: Collection[str] = (),
) -> None:
    """Put what `write` makes in an empty folder into `folder`, in place of what an earlier call put there.

    Args:
        folder: a new folder, or one that an earlier call filled; there files of others stay.
        write: fills the folder that it is given.
        last: the name that says that the contents are complete. It goes first and comes last, so that no reader takes a
            folder that was left half replaced for a whole one.
        later: names that the caller will write there itself.

    Raises:
        InputError: `folder` is a file, a link, or holds files of others alone; a name that is to be written is there and is
            not ours; or the system refuses.
    """
    if folder.is_symlink():
        raise InputError(
            f"{folder} is a link, and nothing is written through a link; {ANOTHER}"
        )
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; {ANOTHER}")
    ours = names_made(folder)
    if folder.is_dir() and not ours:
        foreign = next(
            (path.name for path in folder.iterdir() if path.name != MADE), None
        )
        if foreign is not None:
            raise InputError(f"{folder} holds {cut(foreign)} already; {ANOTHER}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(prefix=".new-", dir=folder))
    except OSError as error:
        raise InputError(
            f"{folder} cannot be written ({error.strerror}); {ANOTHER}"
        ) from error
    try:
        write(place)
        names = sorted(
            {path.name for path in place.iterdir()}, key=lambda name: name == last
        )
        for name in (*names, *later):
            if name not in ours and os.path.lexists(folder / name):
                raise InputError(
                    f"{folder} holds {cut(name)}, which coterie did not make; move it, or {ANOTHER}"
                )
        # Both old and new names are ours from here on, so that a call that is killed can be repeated.
        _record(folder, ours | {*names, *later})
        (folder / last).unlink(missing_ok=True)
        for name in ours - {*names}:
            _remove(folder / name)
        for name in names:
            if (folder / name).is_dir():
                _remove(folder / name)
            with naming(folder / name):
                os.replace(place / name, folder / name)
        _record(folder, {*names, *later})
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _record(folder: Path, names: Collection[str]) -> None:
    text = json.dumps(sorted(names))
    write_atomically(folder / MADE, lambda p: p.write_text(text, encoding="utf-8"))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write_output(file: Path, text: str, inputs: Sequence[Path] = ()) -> None:
    """Write a file that a user named, in place of what the same command wrote there earlier.

    Args:
        file: where to.
        text: its content. A file that begins with the same line was written by the same command.
        inputs: files that the command has read.

    Raises:
        InputError: the name is a folder or a link, one of the inputs, a file of a run directory, or holds something else.
    """
    if file.is_symlink():
        raise InputError(
            f"{file} is a link, and nothing is written through a link; {ANOTHER}"
        )
    if file.is_dir():
        raise InputError(f"{file} is a folder; {ANOTHER}")
    if file.exists():
        if any(path.exists() and file.samefile(path) for path in inputs):
            raise InputError(f"{file} is what the command reads; {ANOTHER}")
        if not _begins_with(file, text.partition("\n")[0]):
            raise InputError(f"{file} holds something else; move it, or {ANOTHER}")
    write_atomically(file, lambda p: p.write_text(text, encoding="utf-8"))


def _begins_with(file: Path, line: str) -> bool:
    expected = f"{line}\n".encode()
    with open(file, "rb") as stream:
        return stream.read(len(expected)) == expected

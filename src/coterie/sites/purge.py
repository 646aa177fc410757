"""Find and remove what finished runs leave in the kit of a site or of the server."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from coterie.base.errors import InputError

_LEFT = ("coterie", "flare", "storage", "transfer")
"""Client memory and run directories; FLARE's workspace with a site's jobs; the server's jobs; files on the way."""
_KEY = Path("coterie", "key")
"""Where the key of a kit lies that `coterie site check` has not yet moved beside its log: it stays, as the account does."""
_JOB = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_RUNNING = ("daemon_pid.fl", "pid.fl")


def leftovers(kit: Path) -> list[Path]:
    """The files that runs have left in a kit, sorted. Raises `InputError` if the folder is not a kit."""
    key = kit / _KEY
    found = [path for folder in _folders(kit) for path in _files(folder)]
    return sorted(path for path in found if path != key)


def purge(kit: Path) -> None:
    """Remove them. Raises `InputError` for a folder that is not a kit, or whose site or server is running."""
    folders = _folders(kit)
    for name in _RUNNING:
        if _runs(kit / name):
            raise InputError(f"{kit} is running; stop it first (startup/stop_fl.sh)")
    for folder in folders:
        if folder.is_symlink():
            folder.unlink()
        elif (kit / _KEY).is_relative_to(folder) and (kit / _KEY).is_file():
            _remove_all_but(kit / _KEY, folder)
        else:
            shutil.rmtree(folder)


def _remove_all_but(kept: Path, folder: Path) -> None:
    for path in folder.iterdir():
        if path == kept:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _folders(kit: Path) -> list[Path]:
    if not (kit / "startup").is_dir():
        raise InputError(
            f"{kit} is not a kit: it has no folder startup; give the kit of a site or of the server"
        )
    left = []
    for path in kit.iterdir():
        is_of_run = path.name in _LEFT or _JOB.fullmatch(path.name)
        if path.is_dir() and is_of_run:
            left.append(path)
    return left


def _files(folder: Path) -> Iterator[Path]:
    for place, inner, files in os.walk(folder):  # which follows no links
        yield from (Path(place) / name for name in files)
        yield from (
            Path(place) / name for name in inner if (Path(place) / name).is_symlink()
        )


def _runs(file: Path) -> bool:
    try:
        os.kill(int(file.read_text()), 0)
    except (OSError, ValueError):
        return False
    return True

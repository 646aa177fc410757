"""The place where FLARE works in a site's kit: a folder of its own, so that nothing which it deletes or unpacks is the site's.

FLARE's `delete_run NAME` removes any folder of its workspace, and a job is unpacked into one. So the workspace holds what
FLARE needs and no more: links to the files of `startup`, and copies of its own settings. Data, key, log and approval lie
beside it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.base.errors import InputError

WORKSPACE = "flare"
"""Folder of a site's kit."""
_SETTINGS = (
    "resources.json",
    "authorization.json",
    "log_config.json",
    "privacy.json",
    "comm_config.json",
)


def make_workspace(kit: Path) -> Path:
    """Return FLARE's workspace in a site's kit, made anew from the kit but for what jobs have left there."""
    workspace = kit.resolve() / WORKSPACE
    local, startup = workspace / "local", workspace / "startup"
    for place in (local, startup):
        if place.exists():
            shutil.rmtree(place)
        place.mkdir(parents=True)
    for file in (
        kit / "startup"
    ).iterdir():  # links to files: FLARE looks for its settings and follows no link to a folder
        (startup / file.name).symlink_to(Path("..") / ".." / "startup" / file.name)
    for name in _SETTINGS:
        for file in (kit / "local" / name, kit / "local" / f"{name}.default"):
            if file.is_file():
                shutil.copy(file, local / file.name)
    return workspace


def kit_of(workspace: Path) -> Path:
    """Return the kit to which FLARE's workspace belongs; a simulation's, and that of an old kit, is its own."""
    if is_workspace(workspace):
        return workspace.parent
    return workspace


def is_workspace(folder: Path) -> bool:
    """Return True if a folder is the workspace in a kit."""
    return folder.name == WORKSPACE and (folder.parent / "startup").is_dir()


def check_place(kit: Path, file: Path, what: str) -> None:
    """Raise `InputError` if a file of the site lies in FLARE's workspace, where jobs are unpacked and deleted."""
    workspace = kit.resolve() / WORKSPACE
    if file.resolve().is_relative_to(workspace):
        raise InputError(
            f"{what} = {file} lies in {workspace}, where FLARE unpacks and deletes jobs; move it to local of the kit"
        )


@contextmanager
def for_owner_only() -> Iterator[None]:
    """Let files that are made inside be readable and writable by their owner alone, those of child processes too."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def tighten(kit: Path) -> int:
    """Take from a kit's files what others may do with them; returns of how many. Links are not followed."""
    changed = 0
    for place, folders, files in os.walk(kit):
        for path in (Path(place), *(Path(place) / name for name in files)):
            mode = path.lstat().st_mode
            if not path.is_symlink() and mode & 0o077:
                path.chmod(mode & 0o700)
                changed += 1
        folders[:] = [name for name in folders if not (Path(place) / name).is_symlink()]
    return changed

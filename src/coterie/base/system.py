"""What a system refuses, with the operation that it refused, and what it cannot promise.

Some file systems (network drives, those of phones, some containers) know no `fsync` or no locks. A run goes on there: it is
as correct as elsewhere, and says once what is not covered.
"""

from __future__ import annotations

import errno
import gc
import logging
import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.base.errors import InputError, RunError

UNSUPPORTED = frozenset(
    {
        errno.EACCES,
        errno.EINVAL,
        errno.ENOLCK,
        errno.ENOSYS,
        errno.ENOTTY,
        errno.EOPNOTSUPP,
        errno.EPERM,
        errno.EROFS,
    }
)
"""Errors by which a file system says that it does not know an operation. EIO or ENOSPC mean that data are in danger."""
NO_SYNC = "this file system knows no fsync: after a power failure the last rounds may be missing or damaged"
NO_LOCKS = "this file system knows no locks: let no two processes write into the same run directory"
_said: set[str] = set()


def say_once(limit: str, place: str | os.PathLike[str]) -> None:
    """Log what a place does not cover; the same limit is said once in a process and those forked from it."""
    if limit not in _said:
        _said.add(limit)
        logging.getLogger("coterie").warning("%s: %s", os.fspath(place), limit)


def sync(file: int, place: str | os.PathLike[str]) -> None:
    """Put an open file, or folder, on the disk, where the file system can.

    Args:
        file: descriptor of what is open.
        place: its name, for what is said.

    Raises:
        OSError: The disk failed, so that what was written may be lost.
    """
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        say_once(NO_SYNC, place)


def sync_path(path: Path) -> None:
    """Put a file or a folder on the disk, as `sync` does."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError as error:
        # Some file systems let nobody open a folder.
        if error.errno not in UNSUPPORTED or not path.is_dir():
            raise
        say_once(NO_SYNC, path)
        return
    try:
        sync(file, path)
    finally:
        os.close(file)


@contextmanager
def attempt(operation: str, cure: str) -> Iterator[None]:
    """Let what the system refuses name the operation. Such errors (fork, pipe, mmap) name no file.

    Args:
        operation: what is attempted, with its verb: "start a worker process".
        cure: what the user can do.

    Raises:
        RunError: The system refused it.

    >>> with attempt("start a worker process", "use fewer workers"):
    ...     raise BlockingIOError(11, "Resource temporarily unavailable")
    Traceback (most recent call last):
    coterie.base.errors.RunError: the system cannot start a worker process: Resource temporarily unavailable; use fewer workers
    """
    try:
        yield
    except (OSError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or "not enough memory"
        raise RunError(f"the system cannot {operation}: {reason}; {cure}") from error


def require_children(setting: str) -> None:
    """Raise `InputError` in a daemonic process of `multiprocessing`, which may have no children.

    Args:
        setting: the setting that asks for processes, such as "workers=2".
    """
    process = multiprocessing.current_process()
    if process.daemon:
        raise InputError(
            f"{setting} needs processes of its own, which {process.name} may not have: it is daemonic; "
            "use 1, or start that process with daemon=False"
        )


@contextmanager
def few_collections() -> Iterator[None]:
    """Look for garbage rarely: rows of tables are many tuples, none in a cycle, and walking through them took a fifth of a run."""
    thresholds = gc.get_threshold()
    if thresholds[0]:  # else the caller wants none at all
        gc.set_threshold(max(50_000, thresholds[0]))
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)

"""The files of another commit beside those of this tree, for what is compared on one machine."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class GitError(Exception):
    """Git is not here, or does not know what it was asked for."""


def git(*words: str) -> str:
    """What git says in this tree. Raises `GitError`."""
    try:
        ended = subprocess.run(
            ["git", "-C", str(ROOT), *words],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise GitError(f"git cannot be started: {error}") from error
    if ended.returncode:
        raise GitError(f"git {' '.join(words)}: {ended.stderr.strip() or 'failed'}")
    return ended.stdout.strip()


def commit_of(name: str) -> str:
    """The full name of a commit. Raises `GitError` for one that is not in this clone."""
    return git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")


@contextmanager
def worktree(commit: str, tree: Path) -> Iterator[Path]:
    """The files of a commit in the folder `tree`, which is removed afterwards."""
    git("worktree", "add", "--quiet", "--force", "--detach", str(tree), commit)
    try:
        yield tree
    finally:
        git("worktree", "remove", "--force", str(tree))

"""The results of a run directory, as a terminal table, as sentences and as one HTML file.

>>> ct.report.load("runs/heart-disease").clients  # doctest: +SKIP
('cleveland', 'hungary', 'long-beach', 'switzerland')
>>> ct.report.judge("runs/heart-disease", "switzerland").kind  # doctest: +SKIP
'stay alone'
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coterie.report.results import Results
    from coterie.report.verdicts import Verdict

__all__ = ["judge", "load", "save_html", "say"]


def load(folder: str | os.PathLike[str]) -> Results:
    """The results of a run directory. Raises `InputError` that names the file which is missing or damaged.

    Args:
        folder: The run directory.

    >>> import coterie as ct
    >>> run = ct.compare(["local", "fedavg"], "heart-disease", rounds=2, seeds=1)
    >>> ct.report.load(run.folder).clients
    ('cleveland', 'hungary', 'long-beach', 'switzerland')
    """
    from coterie.report.results import Results

    return Results.load(Path(folder))


def judge(folder: str | os.PathLike[str], client: str) -> Verdict:
    """Return the verdict for a client: whether joining pays, and why. Raises `InputError` as `load`, and for an unknown client.

    Args:
        folder: The run directory.
        client: Name of the client.

    >>> import coterie as ct
    >>> run = ct.compare(["local", "fedavg"], "heart-disease", rounds=2, seeds=1)
    >>> ct.report.judge(run.folder, "hungary").kind
    'no verdict'
    """
    from coterie.report.verdicts import verdict

    return verdict(load(folder), client)


def say(folder: str | os.PathLike[str], *, tables: bool = False) -> str:
    """Return the text that the command prints: the answer, and with `tables` all tables before it. Raises as `load` does.

    Args:
        folder: The run directory.
        tables: Whether the tables of all metrics come before the answer.

    >>> import coterie as ct
    >>> run = ct.compare(["local", "fedavg"], "heart-disease", rounds=2, seeds=1)
    >>> ct.report.say(run.folder).splitlines()[0]
    'heart-disease: 4 clients, 2 methods, 1 seed, 2 rounds, 306 test rows'
    """
    from coterie.report.answer import answer_lines
    from coterie.report.table import render

    results = load(folder)
    lines = answer_lines(results)
    if tables:
        lines = [render(results, colour=False).rstrip(), "", *lines]
    return "\n".join(lines)


def save_html(folder: str | os.PathLike[str]) -> Path:
    """Write `report.html` into the run directory, for which the extra `report` is needed; its path. Errors as of `load`.

    Args:
        folder: The run directory.

    >>> import coterie as ct
    >>> run = ct.compare(["local", "fedavg"], "heart-disease", rounds=2, seeds=1)
    >>> ct.report.save_html(run.folder).name
    'report.html'
    """
    from coterie.report.html import write

    return write(Path(folder))

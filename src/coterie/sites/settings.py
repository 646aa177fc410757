"""A site's own settings: the [site] table of its `coterie.toml`, which never leaves the site."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Annotated

from coterie.base.errors import InputError, nearest
from coterie.base.files import read_toml
from coterie.base.privacy import check_delta, mu_of, usual_delta
from coterie.config.rules import (
    COUNT,
    POSITIVE,
    SIZE,
    TEXT,
    Rule,
    list_of,
    optional,
)
from coterie.config.schema import build, options
from coterie.contract.task import task_names

SETTINGS_FILE = "coterie.toml"
_TASKS = list_of(
    Rule(lambda v: isinstance(v, str), ""), "a list of names of tasks", empty=True
)


@options
class SiteSettings:
    """The [site] table of a site's own `coterie.toml`.

    Attributes:
        data: the site's data file (CSV, TSV, Parquet).
        label: the column that may be predicted; default: whichever the approved plan names.
        minimum_rows: with fewer training rows the site refuses every request but the first, which finds that out.
        minimum_cell: a part, a class, a category or a column with fewer rows than this is not spoken of: its metrics are undefined,
            its name and sums stay at the site. Where rows have weights, minima count effective rows (`sites.effective`).
        minimum_batch: a gradient, a loss or a step of training that rests on fewer rows is refused.
        largest_layer: units of the widest layer that a plan's model may have (its last layer is one) where updates leave without
            secret noise; in them a dishonest server finds rows, the more the wider the layer. 0 refuses all such plans.
        largest_mu: of a plan with secret noise, the largest mu of all that it tells about a row behind noise: whoever knows all other
            rows is right in Phi(mu / 2) of guesses about one patient (mu 1: 69 of 100, 3: 93, 5: 99).
        epsilon: what all plans together may tell of a row behind noise, for the life of the log (differential privacy); once that is
            told, nothing more leaves. None: no limit, and plans with row noise ([privacy]) are refused.
        delta: of `epsilon`, less than one in the site's rows; None: a tenth of that.
        refuse: names of tasks that the site does not run, such as `target_tasks:target_descent`, although its plan asks them.
        largest_message: megabytes (of 2^20 bytes); a longer message is refused before it is read.
        log: file to which every request is written.
    """

    data: Annotated[str, Rule(TEXT.test, "the path of a file")]
    label: Annotated[
        str | None,
        Rule(lambda v: v is None or isinstance(v, str), "the name of a column"),
    ] = None
    minimum_rows: Annotated[int, SIZE] = 20
    minimum_cell: Annotated[int, SIZE] = 10
    minimum_batch: Annotated[int, SIZE] = 8
    largest_message: Annotated[int, SIZE] = 1024
    largest_layer: Annotated[int, COUNT] = 0
    largest_mu: Annotated[float, Rule(POSITIVE.test, "a number > 0")] = 3.0
    epsilon: Annotated[float | None, optional(POSITIVE, "none")] = None
    delta: Annotated[float | None, optional(POSITIVE, "a tenth of one in its rows")] = (
        None
    )
    refuse: Annotated[tuple[str, ...], _TASKS] = ()
    log: Annotated[str, Rule(TEXT.test, "the path of a file")] = "asks.jsonl"


def read_settings(path: Path) -> SiteSettings:
    """The settings of a site; relative paths count from the file's folder. Raises `InputError` that names file, key and cure."""
    if not path.is_file():
        raise InputError(f"{path} is missing; write [site] and data = FILE into it")
    tables = read_toml(path)
    for key in tables:
        if key != "site":
            raise InputError(f"{path}: unknown table [{key}]; {nearest(key, ['site'])}")
    settings = build(
        SiteSettings, tables.get("site", {}), f"{path}, [site]", named="site"
    )
    for task in settings.refuse:
        if not any(matches(name, task) for name in task_names()):
            raise InputError(
                f"{path}: refuse names the unknown task {task!r}; {nearest(task, [short(n) for n in task_names()])}"
            )
    return dataclasses.replace(
        settings,
        data=str(path.parent / settings.data),
        log=str(path.parent / settings.log),
    )


def delta_of_site(settings: SiteSettings, rows: int) -> float:
    """Return the delta of a site with so many rows. Raises `InputError` where it would let one of them be told outright."""
    delta = usual_delta(rows) if settings.delta is None else settings.delta
    check_delta(delta, rows, "[site] delta")
    return delta


def most_mu(settings: SiteSettings, rows: int) -> float:
    """Return the mu that a site with so many rows gives for the life of its log; infinity where no epsilon is set."""
    if settings.epsilon is None:
        return math.inf
    return mu_of(settings.epsilon, delta_of_site(settings, rows))


def short(task: str) -> str:
    """A task's name without its packages.

    >>> short("coterie.compute.target_tasks:target_descent")
    'target_tasks:target_descent'
    """
    return task.rpartition(".")[2]


def matches(task: str, rule: str) -> bool:
    """Return True if `rule`, a task's name with or without its module, means `task`."""
    return rule in (task, short(task), task.rpartition(":")[2])

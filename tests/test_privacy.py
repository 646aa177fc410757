"""What leaves a site is declared: the privacy table of docs/deploy.md names every task and every field of its reply."""

from __future__ import annotations

import re
import runpy
from dataclasses import replace
from pathlib import Path

import pytest

import coterie.sites.comparisons  # noqa: F401 - it registers its tasks
from coterie.cli.catalogue import entries, traffic
from coterie.config.registry import METHODS
from coterie.contract.task import find_task, task_names

DOCS = Path(__file__).parents[1] / "docs"
pytest.importorskip("sphinx", reason="the pages are built by sphinx")
PAGES = runpy.run_path(str(DOCS / "pages.py"))
TEXT = PAGES["complete"]((DOCS / "deploy.md").read_text(encoding="utf-8"))
IMPORTED = [entry.cls for entry in entries().values()]  # their files register tasks
TASKS = [t for t in task_names() if t.startswith("coterie.")]


def rows_about(task):
    return " ".join(
        line
        for line in TEXT.splitlines()
        if line.startswith("|") and re.search(rf"[`:]{task}`", line)
    )


@pytest.mark.parametrize("name", TASKS)
def test_every_task_and_every_field_of_its_reply_stands_in_the_privacy_table(name):
    rows = rows_about(name.rpartition(":")[2])
    assert rows, f"{name} is not in the table"
    missing = [
        field for field in find_task(name).reply._fields if f"`{field}`" not in rows
    ]
    assert not missing, f"{name}: the table does not name {', '.join(missing)}"


CLASSES = {
    "server_classes": ("counts",),
    "compare": ("lipschitz", "distance", "held", "known"),
    "class_counts": ("counts",),
}
"""Fields as long as there are classes, which is what is asked; the first two tasks are the server's own."""


@pytest.mark.parametrize("name", TASKS)
def test_every_tensor_that_leaves_a_site_has_a_declared_form(name):
    task = find_task(name)
    plain = [
        field for field in task.reply._fields if field not in (*task.forms, *task.texts)
    ]
    assert plain == list(CLASSES.get(name.rpartition(":")[2], ()))


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_has_a_row(name):
    assert re.search(rf"^\| [^|]*`{name}`", TEXT, re.M)


def test_a_method_without_a_row_of_its_own_gets_one_from_its_header():
    mine = type(
        "Mine",
        (),
        {"__doc__": "Sends: d + 1 up, d down (proximal_update).\nShows: the average."},
    )
    entry = replace(entries()["fedprox"], origin=mine, shared=True)
    assert (
        PAGES["privacy_row"](entry)
        == "| `fedprox` | `proximal_update`: `delta`, `sizes` | the average |\n"
    )
    without = re.sub(
        r"^\| `fedprox`.*\n",
        "",
        (DOCS / "deploy.md").read_text(encoding="utf-8"),
        flags=re.M,
    )
    assert "`proximal_update`: `delta`" in PAGES["complete"](without)


def test_every_row_says_what_a_site_is_shown_of_others():
    rows = [line for line in TEXT.splitlines() if re.match(r"\| `[a-z-]+`.*`: ", line)]
    assert len(rows) > 20
    assert [row for row in rows if row.endswith("|  |")] == []


def test_the_tasks_of_all_methods_are_looked_at():
    known = {task.rpartition(":")[2] for task in TASKS}
    assert all(
        set(traffic(entry.paragraph("Sends"))) <= known for entry in entries().values()
    )
    assert len(TASKS) > 30

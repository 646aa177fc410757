"""What leaves a site is declared: the privacy table of docs/deploy.md names every task and every field of its reply."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from coterie.algorithms import ALGORITHMS
from coterie.catalogue import entries, traffic
from coterie.core.task import find_task, known_tasks

TEXT = (Path(__file__).parents[1] / "docs" / "deploy.md").read_text(encoding="utf-8")
TASKS = [t for t in known_tasks() if t.startswith("coterie.")]


def rows_about(task):
    return " ".join(line for line in TEXT.splitlines() if line.startswith("|") and re.search(rf"[`:]{task}`", line))


@pytest.mark.parametrize("name", TASKS)
def test_every_task_and_every_field_of_its_reply_stands_in_the_privacy_table(name):
    if name == "coterie.algorithms.centralised:pooled_update":  # rows at the server
        return
    rows = rows_about(name.rpartition(":")[2])
    assert rows, f"{name} is not in the table"
    missing = [field for field in find_task(name).reply._fields if f"`{field}`" not in rows]
    assert not missing, f"{name}: the table does not name {', '.join(missing)}"


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_method_has_a_row(name):
    assert re.search(rf"^\| [^|]*`{name}`", TEXT, re.M)


def test_the_tasks_of_all_methods_are_looked_at():
    known = {task.rpartition(":")[2] for task in TASKS}
    assert all(set(traffic(entry.said("Sends"))) <= known for entry in entries().values())
    assert len(TASKS) > 30

"""What a site tells of times to an event: counts of rows in cells of time that are the same for everybody, and never a time.

Before anything is asked, each training row is moved to the middle of a cell of time that at least `minimum_cell` rows of its kind
share; whatever a server asks of these rows, whichever intervals it names, follows from their counts alone. The rows with which a
model is trained keep their own times.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.base.errors import InputError
from coterie.base.hazards import MOST_INTERVALS, cell_of, is_edge, middle
from coterie.base.label_form import LabelForm
from coterie.data.tables.cells import Table
from coterie.data.tables.followup import followup_of
from coterie.sites.allowed import RefusedError
from coterie.sites.effective import count_training_rows
from coterie.sites.tables import table_settings

Cells = NDArray[np.int64]

TASKS = {"event": "time to event", "exposure": "counts"}
"""The form of a label by the setting that declares it."""


def form_of_options(options: Mapping[str, Any]) -> str:
    """Return the form of label that [data] declares: "time to event" or "counts"; "" for classes and numbers."""
    for key, task in TASKS.items():
        if options.get(key) is not None:
            return task
    return ""


def events_of(table: Table, options: Mapping[str, Any]) -> int | None:
    """Return the training rows with an event, with weights effective ones; None for classes and numbers."""
    counted = table.columns[str(options["label"])].numbers
    if not form_of_options(options) or counted is None:
        return None
    return count_training_rows(table, counted > 0)


def times_withheld(table: Table, options: Mapping[str, Any], least: int) -> Table:
    """Return `table` with the times of training rows that may be spoken of; as it is for other labels, and where `least` is 1.

    Events and ends of follow-up are moved to cells of at least `least` rows each, late entries too, and fewer entries to 0. Cells
    count each row once, also where rows have weights: so do the sums that are told.

    Raises `RefusedError` for fewer training rows with an event than `least`, as for a small class.
    """
    form = form_of_options(options)
    if not form or least == 1:
        return table
    train, label = table.parts["train"], str(options["label"])
    with_event = events_of(table, options) or 0
    counted = table.columns[label].numbers
    has_event = counted is not None and bool((counted[train] > 0).any())
    if has_event and with_event < least:
        raise RefusedError(
            f"fewer than {least} of its training rows have an event, and under that its site does not speak of events"
        )
    if form == "counts" or table.followup is None:
        return table
    entry, time, event = followup_of(table, label)[train].T
    ends = _cells(time)
    # So far at least `least` rows are followed: no single row says where follow-up ends.
    reached = int(np.sort(ends)[-min(least, len(ends))])
    moved = ends.copy()
    for kind in (event > 0, event <= 0):
        moved[kind] = _carried(ends[kind], least, reached)
    begins = np.zeros(len(entry))
    late = np.flatnonzero(entry > 0)
    if len(late) >= least:
        cells = _carried(_cells(entry[late]), least, 0)
        begins[late] = [middle(cell) for cell in cells.tolist()]
    followup = table.followup.copy()
    followup[train, 0] = begins
    followup[train, 1] = [middle(cell) for cell in moved.tolist()]
    return replace(table, followup=followup)


def _cells(times: NDArray[np.float64]) -> Cells:
    return cell_of(torch.from_numpy(times.copy())).numpy()


def _carried(cells: Cells, least: int, reached: int) -> Cells:
    """The cells [n] that rows are counted in: one with fewer than `least` rows is carried into the next.

    What is left behind the last full cell is counted with it, there or in the cell `reached`, whichever is later.
    """
    targets: dict[int, int] = {}
    waiting: list[int] = []
    last_full: list[int] = []
    rows = 0
    occupied, counts = np.unique(cells, return_counts=True)
    for cell, count in zip(occupied.tolist(), counts.tolist(), strict=True):
        waiting.append(cell)
        rows += count
        if rows >= least:
            targets.update(dict.fromkeys(waiting, cell))
            last_full, waiting, rows = waiting, [], 0
    if waiting:
        end = max(reached, *(targets[cell] for cell in last_full), 0)
        targets.update(dict.fromkeys((*last_full, *waiting), end))
    return np.array([targets[cell] for cell in cells.tolist()], dtype=np.int64)


def check_form(label: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Raise `RefusedError` unless the label of a recipe has the form, the order of classes and the weights that the plan declares, and
    intervals that end where cells do.
    """
    _check_order(label, options)
    if label.get("weights") != options.get("weights"):
        raise RefusedError(
            "the recipe has another column of weights than the approved plan"
        )
    task = form_of_options(options)
    told = label.get("task")
    if (told if told in TASKS.values() else "") != task:
        raise RefusedError(
            "the recipe has another form of label than the approved plan"
        )
    if not task:
        return
    for key in ("time", "entry", "exposure"):
        if label.get(key) != options.get(key):
            raise RefusedError(
                f"the recipe has another {key} than the approved plan declares"
            )
    if list(label.get("event_is", ())) != list(options.get("event_is", ())):
        raise RefusedError(
            "the recipe has other values that mean the event than the approved plan"
        )
    try:
        form = LabelForm.of_recipe(label)
    except (InputError, LookupError, TypeError) as error:
        raise RefusedError("the recipe has no intervals or rates of events") from error
    if form is None or task != "time to event":
        return
    horizon = options.get("horizon")
    if horizon is not None and form.horizon != float(horizon):
        raise RefusedError("the recipe has another horizon than the approved plan")
    ends = [cut * form.horizon for cut in form.cuts]
    if horizon is not None:
        ends = [end for end in ends if end != form.horizon]
    elif not is_edge(form.horizon):
        raise RefusedError("the recipe judges at a time at which no cell ends")
    # On a finer scale the events and the time at risk of an interval would be those of single rows.
    if len(form.cuts) > MOST_INTERVALS + 1 or not all(map(is_edge, ends)):
        raise RefusedError(
            f"the recipe has other intervals of time than up to {MOST_INTERVALS} whose ends are ends of cells"
        )


def _check_order(label: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Raise `RefusedError` if classes have an order that is not the plan's: that of numbers, or the one in which it lists them."""
    settings = table_settings(options)
    if bool(label.get("ordered")) != settings.ordered:
        raise RefusedError(
            "the recipe has another form of label than the approved plan"
        )
    if not settings.ordered:
        return
    values = label["values"]
    if settings.spellings:
        listed = dict.fromkeys(settings.spellings.values())
        in_order = [value for value in listed if value in values]
    else:
        in_order = sorted(values, key=float)
    if values != in_order or len(values) < 3:
        raise RefusedError(
            "the recipe has the classes in another order than the approved plan"
        )


def form_hash(label: Mapping[str, Any]) -> str:
    """Return a hash of the intervals, rates and horizon of a label."""
    told = [label.get(key) for key in ("horizon", "cuts", "rates")]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:32]

"""Intervals of time to event, agreed on by all clients from counts alone.

A client tells how many events of its training rows lie in cells of time that are the same for everybody, and then, for the
intervals that follow from these, events and the time at risk. No time of a row is told.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from coterie.base.errors import InputError
from coterie.base.hazards import (
    CELLS,
    FEWEST_EVENTS,
    MOST_INTERVALS,
    cell_of,
    choose_cuts,
    edge,
    events_within,
    time_within,
)
from coterie.base.vector import Layout
from coterie.contract.task import Form, task
from coterie.data.tables.cells import Table
from coterie.data.tables.followup import Rows, followup_of
from coterie.data.tables.recipe import LabelRecipe, TableCohort


class EventCells(NamedTuple):
    """Events of training rows in each cell of time, float64 [n, cells]."""

    cells: Annotated[Tensor, "other", Form((CELLS,), within=(0.0, 1e12))]


def _intervals(payload: Mapping[str, Any], layout: Layout) -> tuple[int, ...]:
    return (len(json.loads(payload["cuts"])),)


class AtRisk(NamedTuple):
    """Events and time at risk of training rows in each interval, float64 [n, K]."""

    events: Annotated[Tensor, "other", Form(_intervals, within=(0.0, 1e12))]
    exposure: Annotated[Tensor, "other", Form(_intervals, within=(0.0, 1e18))]


@task
def count_events(cohort: TableCohort, *, event: str) -> EventCells:
    """Count the events of training rows by the cell in which their time lies. `event`: the column that says whether it happened."""
    counts = []
    for table in cohort.tables:
        rows = _training_rows(table, event)
        times = torch.from_numpy(rows[rows[:, 2] > 0, 1])
        counts.append(torch.bincount(cell_of(times), minlength=CELLS))
    return EventCells(torch.stack(counts).double())


@task
def sum_followup(cohort: TableCohort, *, event: str, cuts: str) -> AtRisk:
    """Events and time at risk of training rows within intervals; `cuts`: their upper ends, a JSON list."""
    ends = json.loads(cuts)
    events, exposures = [], []
    for table in cohort.tables:
        start, end, happened = torch.from_numpy(_training_rows(table, event)).unbind(1)
        events.append(events_within(end, happened, ends).sum(0))
        exposures.append(time_within(start, end, ends).sum(0))
    return AtRisk(torch.stack(events), torch.stack(exposures))


def _training_rows(table: Table, event: str) -> Rows:
    """Entry, time and event of the training rows."""
    return followup_of(table, event)[table.parts["train"]]


def agree_on_form(label: LabelRecipe, ask: Callable[..., Any]) -> LabelRecipe:
    """Return a label of time to event, or of counts, with what all clients agree on. Raises `InputError` for too few events."""
    if label["task"] == "counts":
        return agree_on_rate(label, ask)
    return agree_on_intervals(label, ask)


def form_at_most(label: LabelRecipe, ask: Callable[..., Any]) -> LabelRecipe:
    """The same with as many intervals as there can be, and rates of 1: for one client that does not know the others.

    It asks what `agree_on_form` does, so that answers can be counted.
    """
    name = label["column"]
    if label["task"] == "counts":
        ask(sum_counts, label=name)
        return LabelRecipe(**{**label, "rates": [1.0]})
    ask(count_events, event=name)
    horizon = label.get("horizon")
    if horizon is not None:
        ask(sum_followup, event=name, cuts=json.dumps([horizon / 2, horizon]))
    shares = [(k + 1) / MOST_INTERVALS for k in range(MOST_INTERVALS)]
    ask(sum_followup, event=name, cuts=json.dumps(shares))
    ones = [1.0] * MOST_INTERVALS
    end = 1.0 if horizon is None else horizon
    return LabelRecipe(**{**label, "horizon": end, "cuts": shares, "rates": ones})


def agree_on_intervals(label: LabelRecipe, ask: Callable[..., Any]) -> LabelRecipe:
    """Return the label of time to event with the horizon, the intervals and the rates of all clients together.

    Raises `InputError` for too few events to learn from.
    """
    event, horizon = label["column"], label.get("horizon")
    cells = ask(count_events, event=event).cells.sum(0)
    total = int(cells.sum())
    if total < FEWEST_EVENTS:
        raise InputError(
            f"label {event!r}: {total} events in the training rows of all clients, and time to event needs {FEWEST_EVENTS}; wait for "
            "more, or name a commoner event"
        )
    if horizon is not None:
        _check_followed_until(horizon, event, ask)
    cuts, judged_at = choose_cuts(cells, horizon)
    replies = ask(sum_followup, event=event, cuts=json.dumps(cuts))
    events, exposure = replies.events.sum(0), replies.exposure.sum(0)
    if not float(events.sum()):
        raise InputError(
            f"label {event!r}: no event until the horizon {judged_at:g}; name a later horizon"
        )
    # An interval without events has the rate of half of one, so that its hazard can grow.
    rates = judged_at * events.clamp(min=0.5) / exposure.clamp(min=1e-12)
    kept = exposure > 0
    return LabelRecipe(
        **{
            **label,
            "horizon": judged_at,
            "cuts": [
                cut / judged_at
                for cut, used in zip(cuts, kept.tolist(), strict=True)
                if used
            ],
            "rates": rates[kept].tolist(),
            "events": total,
        }
    )


def _check_followed_until(horizon: float, event: str, ask: Callable[..., Any]) -> None:
    """Raise `InputError` for a horizon that no training row reaches, up to the width of a cell."""
    cell = int(cell_of(torch.tensor([horizon], dtype=torch.float64)))
    before = [min(edge(cell - 1), horizon / 2), horizon]
    followed = ask(sum_followup, event=event, cuts=json.dumps(before)).exposure.sum(0)
    if not float(followed[1]):
        raise InputError(
            f"label {event!r}: nobody is followed until the horizon {horizon:g}; name an earlier horizon, or leave it out"
        )


# Counts


class Totals(NamedTuple):
    """Events and exposure of training rows, float64 [n]."""

    events: Annotated[Tensor, "other", Form((), within=(0.0, 1e15))]
    exposure: Annotated[Tensor, "other", Form((), within=(0.0, 1e18))]


@task
def sum_counts(cohort: TableCohort, *, label: str) -> Totals:
    """Events and exposure of the training rows; `label`: the column of counts."""
    sums = []
    for table in cohort.tables:
        counts, train = table.columns[label].numbers, table.parts["train"]
        if counts is None or table.exposure is None:
            raise InputError(f"{table.source} says no exposure of its counts")
        sums.append([float(counts[train].sum()), float(table.exposure[train].sum())])
    return Totals(*torch.tensor(sums, dtype=torch.float64).unbind(1))


def agree_on_rate(label: LabelRecipe, ask: Callable[..., Any]) -> LabelRecipe:
    """Return the label of counts with the events per exposure of all clients. Raises `InputError` for no event at all."""
    totals = ask(sum_counts, label=label["column"])
    events, exposure = float(totals.events.sum()), float(totals.exposure.sum())
    if events < FEWEST_EVENTS:
        raise InputError(
            f"label {label['column']!r}: {events:g} events in the training rows of all clients, and a rate needs {FEWEST_EVENTS}; "
            "wait for more, or name a commoner event"
        )
    return LabelRecipe(**{**label, "rates": [events / exposure], "events": int(events)})

"""The page of the site with what was measured: the tables of all results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import (
    agreement,
    claims,
    contribution,
    engines,
    gpu,
    growth,
    many_targets,
    peers,
    row_costs,
    scale,
)
from benchmarks.pages import RESULTS, SPEED, csv_table, read, speed_table

ABOUT = """# What was measured

This page holds the tables behind the other pages. Read it to check a number or to plan a run.
Programs write the files in `benchmarks/results`; the site shows them here."""


class Section(NamedTuple):
    """A section of the page: where its numbers lie, how they become a table, and how to repeat them."""

    title: str
    about: str
    files: tuple[str, ...]
    command: str
    show: Callable[[list[Any]], str]


def page(folder: Path = RESULTS) -> str:
    """Return the page with all tables of the results that exist in this folder."""
    parts = [ABOUT]
    for section in sections():
        found = [
            read(folder / name) for name in section.files if (folder / name).exists()
        ]
        if found:
            parts += [
                f"## {section.title}",
                f"{section.about} Repeat: `{section.command}`.",
                section.show(found),
            ]
    return "\n\n".join(parts) + "\n"


def sections() -> list[Section]:
    """Return all sections of the page."""
    return [
        Section(
            "Speed",
            "Ratios to the barest honest loop (L0).",
            tuple(f"{name}.json" for name in SPEED),
            "make bench",
            speed_table,
        ),
        Section(
            "Memory and time around a step",
            "Memory is the peak of all processes above the start, as a multiple of the model. "
            "Times are CPU times.",
            ("scale.json",),
            "python benchmarks/run.py scale",
            _of_one(scale.table),
        ),
        Section(
            "Growth with parameters and clients",
            "Above: 10 clients with a perceptron. Below: logistic regression, 10 clients a round. "
            "The last column continues the line through the two largest cases.",
            ("growth.json",),
            "python benchmarks/run.py growth",
            _of_one(growth.table),
        ),
        Section(
            "Row gradients of each method",
            "Rounds 2 to 5 on the four hospitals, as multiples of FedAvg.",
            ("row_costs.json",),
            "python benchmarks/run.py row_costs",
            _of_one(row_costs.table),
        ),
        Section(
            "Many targets of MeritFed",
            "Mean estimation with 35 targets of 150 clients.",
            ("many_targets.json",),
            "python benchmarks/run.py many_targets",
            _of_one(many_targets.table),
        ),
        Section(
            "Other frameworks",
            "The same rows, participants, steps and initial weights, in turns.",
            ("peers.json",),
            "make bench-peers",
            _of_one(peers.table),
        ),
        Section(
            "Server rules of other frameworks",
            "The same updates given to each rule. Where answers differ, coterie's is computed again "
            "with the choice that explains it.",
            ("agreement.json",),
            "make agreement",
            _of_one(agreement.table),
        ),
        Section(
            "Engines",
            "The cost of one ask, and of one round on the four hospitals.",
            ("engines.json",),
            "python benchmarks/run.py engines",
            _of_one(engines.table),
        ),
        Section(
            "A GPU",
            "Ratios to the bare loop on the same GPU.",
            ("gpu.json",),
            "python benchmarks/run.py gpu",
            _of_one(gpu.table),
        ),
        Section(
            "The examples again and again",
            "What each example tells its clients, and what it tells them with other folds.",
            ("answers.json",),
            "make claims",
            _of_one(claims.page),
        ),
        Section(
            "Contributions beside retrained coalitions",
            "FedAvg on four hospitals, trained with every coalition.",
            ("contribution.json",),
            "make contribution",
            _of_one(contribution.table),
        ),
        Section(
            "Disturbed runs",
            "Tries of `make torture`, by what went wrong.",
            ("torture.csv",),
            "make torture",
            _of_one(csv_table),
        ),
        Section(
            "What disturbed runs met",
            "How often each kind of disturbance and fixture occurred.",
            ("torture_met.csv",),
            "make torture",
            _of_one(csv_table),
        ),
        Section(
            "Planted faults",
            "Faults put into a copy of coterie, and whether the campaigns found them.",
            ("torture_planted.csv",),
            "python -m torture --planted",
            _of_one(csv_table),
        ),
        Section(
            "Rows that a dishonest server finds",
            "Hungary, 20 rounds, default settings of a site except `largest_layer`. Noise is secret, "
            "behind `clip` with a bound of 1. Rows: found among its own, in brackets among as many "
            "that nobody has. Members: shares of training rows and of other rows that losses call "
            "members.",
            ("red_team.csv",),
            "make attacks",
            _of_one(csv_table),
        ),
    ]


def _of_one(show: Callable[[Any], str]) -> Callable[[list[Any]], str]:
    return lambda found: show(found[0])

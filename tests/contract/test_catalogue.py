"""What `coterie methods` says of each method is what a run of it does."""

from __future__ import annotations

import ast
import math
import re
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from test_methods import CASES, FAMILIES, quick, run
from torch import Tensor

import coterie as ct
from coterie.base.files import read_checkpoint
from coterie.cli.catalogue import entries, traffic
from coterie.config.registry import METHODS
from coterie.contract import exchange
from coterie.contract.replies import VECTORS
from coterie.contract.wire import PerClient
from coterie.engines.inprocess import InProcessEngine
from federations import Make, Problem, build, seeded

FIRST = {case[0]: case for case in reversed(CASES)}
"""Each method in its first setting."""
ROOT = Path(__file__).parents[2]
ROUND = 6
"""A round in which nothing happens for the first time at any client, and nothing is evaluated."""
SETTINGS = 1000
"""Most bytes of a payload that are settings and no floats."""
NO_YEAR = ("varsel",)
"""Under review without a year."""


def wide(width: int) -> Problem:
    """Two classes and one logit, with width + 1 parameters of 8 bytes."""

    def make(name: str) -> Make:
        def draw(count, g):
            return torch.randn(
                count, width, generator=g, dtype=torch.float64
            ), torch.arange(count) % 2

        return draw

    return Problem(
        build(make), seeded(lambda: torch.nn.Linear(width, 1), torch.float64)
    )


def sent(monkeypatch, case, width, tmp_path, **options):
    """(round, task, number of clients, floats up, floats down) of each ask, from its record, and what clients remember."""
    payloads: dict[int, tuple[tuple[str, ...], int]] = {}
    honest = InProcessEngine.ask

    def ask(self, ask):
        floats = sum(
            _floats(v.tensor[:1] if isinstance(v, PerClient) else v)
            for v in ask.payload.values()
        )
        payloads[ask.context.ask] = ask.names, floats
        return honest(self, ask)

    with monkeypatch.context() as patch:
        patch.setattr(InProcessEngine, "ask", ask)
        found = quick(
            case,
            wide(width),
            rounds=ROUND + 1,
            evaluate=ROUND + 1,
            checkpoint=tmp_path,
            **options,
        )
    asks = []
    for record in found.asks:
        names, down = payloads[record.ask]
        if (
            "server" not in names
            and not record.task.startswith("coterie.compute.metrics")
            and record.round <= ROUND
        ):
            assert 0 <= record.bytes_down - 8 * down < SETTINGS
            up = round(
                record.bytes_up / 8 - 0.45
            )  # a flag of a byte, or a number of four, is no float more
            asks.append(
                (record.round, record.task.rpartition(":")[2], len(names), up, down)
            )
    memory = read_checkpoint(tmp_path / "checkpoint.safetensors").memory
    return asks, {k: value for k, value in memory.items() if not k.endswith("/server")}


def _floats(value) -> int:
    return value.numel() if isinstance(value, Tensor) else 0


def evaluated(formula: str, **symbols: int) -> int:
    """`(n + 1) d` with the numbers of a run."""
    assert re.fullmatch(r"[()+/\d dknNTC_s]+", formula), formula
    return int(eval(re.sub(r"(?<=[\w)]) (?=[\w(])", "*", formula), {}, symbols))


@pytest.mark.in_turn(but=FAMILIES)
@pytest.mark.parametrize("name", METHODS)
def test_floats_sent_and_memory_are_those_that_are_declared(
    name, monkeypatch, tmp_path
):
    said = entries()[name].row()
    declared, case = traffic(said["sends"]), FIRST[name]
    once = set(re.findall(r"\((\w+): once", said["sends"]))
    seen = set()
    for width, participants in ((3, 5), (9, 3)):
        asks, memory = sent(
            monkeypatch, case, width, tmp_path, clients_per_round=participants
        )
        assert bool(memory) != said["memory"].startswith("none")
        numbers: Counter[str] = (
            Counter()
        )  # by client, over what it keeps under each name
        for place, value in {
            key.split("/", 1)[1]: value for key, value in memory.items()
        }.items():
            numbers[place.rpartition("/")[2]] += value.numel()
        most = max(numbers.values(), default=0) / (width + 1)
        assert round(most) <= METHODS[name].keeps <= math.ceil(most)
        symbols = {
            "d": width + 1,
            "d_s": width,
            "k": width,
            "n": participants,
            "N": 5,
            "C": 2,
            "T": targets(case),
        }
        for number, task, asked, up, down in asks:
            seen.add(task)
            if number == ROUND or task in once:
                assert task in declared
                assert (number < ROUND) == (task in once)
                assert (up, down) == tuple(
                    evaluated(f, **symbols) for f in declared[task]
                ), f"{task}, {asked} clients"
    if set(declared) - seen:  # what only other settings ask for
        for other in (c for c in CASES if c[0] == name):
            seen |= {
                task
                for _, task, *_ in sent(
                    monkeypatch, other, 3, tmp_path, clients_per_round=3
                )[0]
            }
    assert set(declared) <= seen


@pytest.mark.parametrize(
    "name", [name for name in METHODS if METHODS[name].needs == "sum"]
)
def test_a_method_that_needs_sums_alone_is_sent_one_vector_at_a_time(name, monkeypatch):
    honest, seen = InProcessEngine.ask, []

    def ask(self, ask):
        if {*VECTORS}.intersection(ask.function.kinds.values()):
            seen.append(len(ask.names))
        return honest(self, ask)

    monkeypatch.setattr(exchange, "HELD_BYTES", 1)
    monkeypatch.setattr(InProcessEngine, "ask", ask)
    quick(FIRST[name], rounds=2)
    assert {*seen} == {1}


def targets(case) -> int:
    """Clients that have a model of their own."""
    return len(run(case, rounds=0).models)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_says_what_it_is(name):
    row = entries()[name].row()
    assert row["needs"] in ("sum", "coordinates", "pairs", "all")
    for key in ("summary", "optimises", "sends", "memory"):
        assert row[key], key
        assert "\n" not in row[key]
    assert traffic(row["sends"]) or row["sends"].startswith("nothing")
    if row["paper"] and name not in NO_YEAR:
        assert 1990 <= row["year"] <= 2030


def test_the_source_of_every_method_says_what_its_class_says():
    """The list is read from files; a method that inherits `needs`, or a docstring, must not be listed as another."""
    for name, entry in entries().items():
        imported = replace(entry, origin=METHODS[name])
        assert entry.row() == imported.row()
        assert entry.about == imported.about


def test_every_method_is_a_public_name():
    assert {cls.__name__ for cls in METHODS.values()} <= set(ct.__all__)
    assert all(getattr(ct, cls.__name__) is cls for cls in METHODS.values())


@pytest.mark.parametrize("name", METHODS)
def test_the_laws_that_a_method_names_exist(name):
    laws, listed = entries()[name].laws, entries()[name].text.partition("\nLaws:\n")[2]
    assert len(laws) >= 2
    assert len(laws) >= len(re.findall(r"^- ", listed, re.M))  # no law without its test
    for file, _, test in (law.partition("::") for law in laws):
        assert test.startswith("test_")
        assert test in names_in(ROOT / file), (
            f"{name} names {file}::{test}, which is not there"
        )


@cache
def names_in(file: Path) -> set[str]:
    assert file.is_file(), file
    return {
        node.name
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef)
    }

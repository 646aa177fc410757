"""Names of clients are found by hash: what a round compares does not grow with the clients that take no part."""

from __future__ import annotations

import pytest
import torch
from test_methods import ARGUMENTS

import coterie as ct
from coterie.base.names import Names
from coterie.config.registry import METHODS
from coterie.contract import wire

ASKED = 5
ROWS = 12


class Counted(str):
    """A name that counts how often it is compared with another one, for equality or order."""

    compared = 0
    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other):
        Counted.compared += 1
        return str.__eq__(self, other)

    def __lt__(self, other):
        Counted.compared += 1
        return str.__lt__(self, other)


def federation(clients):
    g = torch.Generator().manual_seed(1)

    def part(rows):
        return ct.Part(torch.randn(rows, 3, generator=g), torch.arange(rows) % 2)

    return ct.Clients(
        [
            ct.Client(Counted(f"c{k:04d}"), part(ROWS), part(4), part(4))
            for k in range(clients)
        ]
    )


def comparisons_of_a_round(method, clients):
    """Comparisons of names in the second round of a run, without evaluation."""
    after_round = []

    def count(progress):
        after_round.append(Counted.compared)

    settings = ct.RunSettings(
        clients_per_round=ASKED, evaluate=10, callbacks=(count,), strict_wire=False
    )
    Counted.compared = 0
    ct.fit(method, federation(clients), torch.nn.Linear(3, 1), 4, settings=settings)
    return after_round[2] - after_round[1]


@pytest.fixture
def any_kind_of_text(monkeypatch):
    """Let names on the wire be of a class of their own; a wire carries plain texts only."""
    monkeypatch.setattr(
        wire, "_are", lambda kind, values: all(isinstance(v, kind) for v in values)
    )
    monkeypatch.setattr(
        wire,
        "type",
        lambda value: str if isinstance(value, str) else type(value),
        raising=False,
    )


SAMPLED = (
    "fedavg",
    "fedprox",
    "scaffold",
    "fedadam",
    "median",
    "qffl",
    "ditto",
    "moon",
)
"""Methods of which a round asks the clients that take part in it, and no others."""


@pytest.mark.in_turn(but=("fedavg", "median"))
@pytest.mark.usefixtures("any_kind_of_text")
@pytest.mark.parametrize("name", SAMPLED)
def test_a_round_compares_no_more_names_among_more_clients(name):
    method = METHODS[name](**ARGUMENTS.get(name, [{}])[0])
    few, many = (comparisons_of_a_round(method, n) for n in (10, 100))
    assert many <= 1.5 * few + 20


def test_names_are_a_tuple_that_finds_by_hash():
    names = Names(Counted(n) for n in "abcdefgh")
    Counted.compared = 0
    assert "h" in names
    assert "z" not in names
    assert Counted.compared <= 1
    assert names == tuple("abcdefgh")
    assert [names.place(n) for n in names] == list(range(8))
    with pytest.raises(KeyError):
        names.place("z")

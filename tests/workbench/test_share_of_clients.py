"""`clients_per_round` may be a share of the clients: the run is that of the number, everywhere a number is taken."""

from __future__ import annotations

import pytest
import torch

import coterie as ct
from coterie.config.run import RunSettings
from federations import assert_same_bits


@pytest.mark.parametrize("count", [1, 2, 3, 10, 97])
@pytest.mark.parametrize("share", [0.001, 0.1, 0.25, 0.5, 0.9, 0.999])
def test_a_share_is_a_number_of_clients_from_1_to_all(share, count):
    number = RunSettings(clients_per_round=share).per_round(count)
    assert type(number) is int
    assert 1 <= number <= count
    assert abs(number - share * count) <= max(0.5, 1 - share * count)


@pytest.mark.parametrize("value", [0.0, 1.0, 1.5, -0.5, float("nan"), True, "0.5"])
def test_what_is_no_number_and_no_share_is_refused(value):
    with pytest.raises(ct.InputError, match="clients_per_round"):
        RunSettings(clients_per_round=value)


def clients():
    draw = torch.Generator().manual_seed(0)
    rows = [torch.randn(20, 3, generator=draw) for _ in range(6)]
    return ct.data.from_tensors([(x, (x[:, 0] > 0).long()) for x in rows])


METHODS = ["fedavg", "power-of-choice", "ocs", "maxfl"]


@pytest.mark.parametrize("method", METHODS)
def test_a_run_has_the_bits_of_the_number(method):
    runs = [
        ct.fit(method, clients(), rounds=2, settings=RunSettings(clients_per_round=m))
        for m in (0.5, 3)
    ]
    assert_same_bits(*runs)


def test_a_comparison_and_contributions_take_it():
    settings = ct.StudySettings(clients_per_round=0.5, contribution=ct.Contribution(1))
    compared = ct.compare(["fedavg"], clients(), rounds=1, seeds=1, settings=settings)
    assert len(compared.clients) == 6


def test_a_flag_takes_it():
    from coterie.cli.options import build_parser
    from coterie.cli.settings import override

    tables = {"methods": [{"name": "fedavg"}]}
    line = ["compare", "somewhere", "--clients-per-round", "0.5"]
    override(tables, build_parser().parse_args(line))
    assert tables["run"]["clients_per_round"] == 0.5

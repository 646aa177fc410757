"""What an attack does to a whole method."""

from __future__ import annotations

import pytest
import torch

import coterie as ct
from coterie.attacks import IPM, LabelFlip, LossInflation, Noise, SignFlip
from federations import assert_close, logistic, quadratic

ONE = ct.LocalSGD(lr=0.25, steps=ct.Steps(1), batch_size=None)
SAME = {name: [1.0, -2.0] for name in "abcdef"}
"""Six clients that want the same."""
TWO = ("a", "b")


def moved(method, attack=None, rounds=1):
    problem = quadratic(SAME)
    return ct.fit(method, problem.clients, problem.model, rounds, attack=attack)


def test_ipm_stops_an_average_where_eps_is_the_ratio_of_honest_and_attackers():
    held = moved(ct.FedAvg(ONE), IPM(eps=2.0, on=("a", "b")), rounds=3)
    assert_close(held.x, torch.zeros(2, dtype=torch.float64))
    slowed = moved(ct.FedAvg(ONE), IPM(eps=0.5, on=("a", "b")))
    assert_close(slowed.x, (4 - 2 * 0.5) / 6 * moved(ct.FedAvg(ONE)).x)


def test_an_average_stands_still_if_half_flip_their_signs():
    assert_close(
        moved(ct.FedAvg(ONE), SignFlip(on=tuple("abc")), rounds=5).x,
        torch.zeros(2, dtype=torch.float64),
    )
    away = moved(ct.FedAvg(ONE), SignFlip(on=tuple("abcd")), rounds=5).x
    assert torch.all(away * torch.tensor([1.0, -2.0]) < 0)


@pytest.mark.parametrize(
    "attack",
    [SignFlip(scale=3.0, on=TWO), Noise(sigma=10.0, on=TWO), IPM(eps=5.0, on=TWO)],
    ids=lambda a: type(a).__name__,
)
def test_a_median_does_not_follow_a_minority(attack):
    honest = moved(ct.Median(ONE)).x
    assert_close(moved(ct.Median(ONE), attack).x, honest)
    assert float((moved(ct.FedAvg(ONE), attack).x - honest).norm()) > 0.1


def test_maxfl_disregards_whoever_reports_a_huge_gap():
    local = ct.LocalSGD(lr=0.1, steps=ct.Steps(2), batch_size=4)
    problem = logistic()
    method = ct.MaxFL(local=local, warmup_steps=5)
    runs = [
        ct.fit(
            method,
            problem.clients,
            problem.model,
            3,
            attack=LossInflation(gap=100.0, sigma=sigma, on=("b", "d")),
        )
        for sigma in (0.0, 5.0)
    ]
    assert max(runs[0].weights["*"][n] for n in "bd") < 1e-30
    assert_close(runs[0].x, runs[1].x)  # whatever they send


@pytest.mark.in_turn
def test_meritfed_takes_nothing_from_those_who_flip_their_signs():
    local = ct.LocalSGD(lr=1.0, steps=ct.Steps(1), batch_size=None)
    method = ct.MeritFed(
        targets="a", local=local, lr=0.2, md_steps=10, md_step=3.0, validation="train"
    )
    found = moved(method, SignFlip(on=tuple("bcde")), rounds=20)
    assert found.weights["a"]["b"] < 0.01 < found.weights["a"]["f"]
    assert float((found.models["a"] - torch.tensor([1.0, -2.0])).norm()) < 0.05


def test_flipped_labels_turn_a_lone_client_round():
    problem = logistic()
    local = ct.LocalSGD(lr=0.3, steps=ct.Steps(20), batch_size=None)
    found = ct.fit(
        ct.Local(local), problem.clients, problem.model, 5, attack=LabelFlip(on=("c",))
    )
    right = {r["client"]: r["accuracy"] for r in found.summary if r["split"] == "test"}
    assert right.pop("c") < 0.5 < min(right.values())

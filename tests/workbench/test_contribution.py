"""What each client's update adds to a target: by hand, by the laws of Shapley values, and beside a run that does not look."""

from __future__ import annotations

import csv
import json
import re

import pytest
import torch
from safetensors import safe_open

import coterie as ct
from coterie.compute.tasks import local_update
from coterie.config.registry import METHODS

HALF_STEP = ct.LocalSGD(lr=0.25, batch_size=None, steps=ct.Steps(1))
"""Halves the distance to a client's own optimum where its loss is (x - c)^2."""


def quadratic(optima: dict[str, tuple[float, int]], validation: int = 10) -> ct.Clients:
    """Clients whose loss is (x - c)^2 of one weight: {name: (c, training rows)}."""
    parts = {}
    for name, (optimum, count) in optima.items():
        rows = {"train": count, "validation": validation, "test": 4}
        parts[name] = {
            k: (torch.ones(n, 1), torch.full((n,), optimum)) for k, n in rows.items()
        }
    return ct.data.from_tensors(parts, task="regression")


def weight(value: float) -> torch.nn.Module:
    module = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(module.weight, value)
    return module


def measure(method, clients, rounds=1, seed=0, model=None, **settings) -> ct.Run:
    chosen = {
        name: settings.pop(name)
        for name in ("every", "estimator", "game")
        if name in settings
    }
    about = ct.RunSettings(
        contribution=ct.Contribution(**{"every": 1, **chosen}), **settings
    )
    return ct.fit(
        method,
        clients,
        weight(2.0) if model is None else model,
        rounds,
        seed,
        settings=about,
    )


def phi(run: ct.Run, target: str) -> dict[str, float]:
    return {row.client: row.phi for row in run.contributions if row.target == target}


@pytest.fixture(scope="module")
def patients() -> ct.Clients:
    draw = torch.Generator().manual_seed(0)
    rows = {
        name: (torch.randn(90, 4, generator=draw), torch.arange(90) % 2)
        for name in "abc"
    }
    return ct.data.from_tensors(
        rows, split={"parts": {"train": 0.5, "validation": 0.3, "test": 0.2}}
    )


REFERENCES = {"local", "centralised"}
REFUSED = re.compile(
    "holds one by one|must be a client's name|rows held by the server|fits no layer|solves linear models"
)


@pytest.mark.in_turn(
    but=(
        "fedavg",
        "scaffold",
        "ditto",
        "meritfed",
        "partial",
        "local",
        "centralised",
        "ifca",
    )
)
@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_is_measured_or_refused_in_a_sentence(name, patients):
    try:
        run = measure(name, patients, rounds=2, model=ct.models.MLP(hidden=(3,)))
    except ct.InputError as error:
        assert REFUSED.search(str(error))  # noqa: PT017 - most methods raise nothing
    else:
        assert {row.round for row in run.contributions} == (
            set() if name in REFERENCES else {1, 2}
        )


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"game": "renormalised"}, (4.875, -3.125)),
        ({"game": "fixed"}, (2.625, -0.875)),
        ({"estimator": "leave-one-out"}, (6.75, -1.25)),
        ({"estimator": "gtg"}, (4.875, -3.125)),
    ],
)
def test_two_clients_by_hand(settings, expected):
    # x = 2 moves by -1 for A (c = 0, weight 3/4) and +1 for B (c = 4), with the update of A halving its distance.
    clients = quadratic({"a": (0.0, 30), "b": (4.0, 10)})
    # Validation rows do not train, so that the weights are those of the training rows.
    found = phi(measure(ct.FedAvg(HALF_STEP), clients, **settings), "a")
    assert (found["a"], found["b"]) == pytest.approx(expected, abs=1e-5)


def test_the_fall_of_the_loss_is_shared_out():
    clients = quadratic({"a": (0.0, 30), "b": (4.0, 10), "c": (1.0, 20)})
    run = measure(ct.FedAvg(HALF_STEP), clients, rounds=6)
    losses = dict(run.history.select("loss", "a", "test"))
    assert sum(
        row.phi for row in run.contributions if row.target == "a"
    ) == pytest.approx(losses[0] - losses[6], abs=1e-5)


def test_contributions_add_up_to_the_fall_within_rounding():
    clients = quadratic({"a": (0.0, 30), "b": (4.0, 10), "c": (1.0, 20)})
    doubles = clients.map_tensors(lambda tensor, _: tensor.double())
    run = measure(ct.FedAvg(HALF_STEP), doubles, rounds=6, model=weight(2.0).double())
    losses = dict(run.history.select("loss", "a", "test"))
    shared = sum(row.phi for row in run.contributions if row.target == "a")
    assert shared == pytest.approx(losses[0] - losses[6], abs=1e-12)


def test_losses_of_all_sets_are_counted(tmp_path):
    clients, spent = quadratic({"a": (0.0, 30), "b": (4.0, 10), "c": (1.0, 20)}), []
    for every in (1, 3):  # rounds 1, 2 and 3; round 1
        settings = ct.RunSettings(contribution=ct.Contribution(every=every))
        folder = tmp_path / str(every)
        ct.fit(
            ct.FedAvg(HALF_STEP),
            clients,
            weight(2.0),
            3,
            settings=settings,
            checkpoint=folder,
        )
        with safe_open(folder / "checkpoint.safetensors", framework="pt") as saved:
            spent.append(json.loads(saved.metadata()["coterie"])["meta"]["spent"])
    assert spent[0]["row_gradients"] == spent[1]["row_gradients"]
    assert (
        spent[0]["row_losses"] - spent[1]["row_losses"] == 2 * 3 * 2**3 * 10
    )  # rounds, targets, sets, rows


def test_twins_contribute_alike():
    run = measure(
        ct.FedAvg(HALF_STEP),
        quadratic({"a": (0.0, 30), "b": (4.0, 10), "c": (4.0, 10)}),
        rounds=3,
    )
    each = [row for row in run.contributions if row.target == "a"]
    assert [r.phi for r in each if r.client == "b"] == [
        r.phi for r in each if r.client == "c"
    ]


class Ignoring(ct.FedAvg):
    """FedAvg that gives the last client no weight."""

    def round(self, state, federation, rng):
        weights = torch.ones(len(federation.clients), dtype=torch.float64)
        weights[-1] = 0.0
        average = federation.average(
            federation.clients,
            local_update,
            weights=weights,
            x=state.x,
            local=self.local,
        )
        return type(state)(state.x + average.delta), {
            "weights": average.by_client(average.weights)
        }


@pytest.mark.parametrize("game", ["renormalised", "fixed"])
def test_a_client_without_weight_contributes_exactly_nothing(game):
    clients = quadratic({"a": (0.0, 30), "b": (1.0, 30), "z": (4.0, 30)})
    found = phi(measure(Ignoring(HALF_STEP), clients, game=game), "a")
    assert found["z"] == 0.0
    assert found["a"] != 0.0


def test_looking_changes_nothing_but_the_rows_that_train():
    clients = ct.data.load("heart-disease")
    kept = {"merge_validation": False}
    looked = measure(
        ct.FedAvg(), clients, 6, model=ct.models.Logistic(), every=2, **kept
    )
    alone = ct.fit(
        ct.FedAvg(), clients, ct.models.Logistic(), 6, settings=ct.RunSettings(**kept)
    )
    assert torch.equal(looked.x, alone.x)
    assert looked.history.select("loss", "hungary", "test") == alone.history.select(
        "loss", "hungary", "test"
    )


def test_it_is_the_same_after_a_kill_and_with_workers(tmp_path):
    clients = ct.data.load("heart-disease")
    whole = measure(ct.FedAvg(), clients, 6, model=ct.models.Logistic(), every=2)
    about = ct.RunSettings(contribution=ct.Contribution(every=2))
    resumed = ct.RunSettings(contribution=ct.Contribution(every=2), resume=True)
    arguments = {
        "clients": clients,
        "model": ct.models.Logistic(),
        "checkpoint": tmp_path / "run",
    }
    ct.fit(ct.FedAvg(), rounds=3, settings=about, **arguments)
    again = ct.fit(ct.FedAvg(), rounds=6, settings=resumed, **arguments)
    shared = ct.fit(
        ct.FedAvg(),
        clients,
        ct.models.Logistic(),
        6,
        engine=ct.InProcess(workers=2),
        settings=about,
    )
    assert whole.contributions == again.contributions == shared.contributions


def test_a_method_that_chooses_on_validation_rows_does_not_see_those():
    clients = ct.data.load("heart-disease")
    reserved = clients.reserve_validation(["hungary"])
    assert (
        reserved.sizes("contribution")["hungary"]
        + reserved.sizes("validation")["hungary"]
        == clients.sizes("validation")["hungary"]
    )
    assert set(reserved.contribution.numbers(1)).isdisjoint(
        reserved.validation.numbers(1)
    )
    assert reserved.sizes("validation")["cleveland"] == 0


def test_rows_of_a_patient_stay_together():
    import numpy as np

    groups = {"train": np.array([0]), "validation": np.array([7, 7, 3, 3, 5])}
    part = lambda n: ct.Part(torch.zeros(n, 1), torch.zeros(n).long())  # noqa: E731
    client = ct.Client("a", part(1), part(5), row_groups=groups)
    reserved = ct.Clients([client]).reserve_validation(["a"])
    assert reserved.contribution.numbers(0).tolist() == [
        0,
        1,
        2,
        3,
    ]  # patients 3 and 7, and not 5
    assert reserved.row_groups["a"]["validation"].tolist() == [5]


def test_too_few_rows_say_nothing():
    run = measure(
        ct.FedAvg(HALF_STEP), quadratic({"a": (0.0, 30), "b": (4.0, 10)}, validation=9)
    )
    assert run.contributions == []


@pytest.mark.parametrize("method", [ct.Median(), ct.FedAdam(), ct.FedFomo()])
def test_a_method_that_adds_no_weighted_sum_is_refused(method):
    with pytest.raises(ct.InputError, match="adds a weighted sum of updates"):
        measure(
            method, ct.data.load("heart-disease"), rounds=2, model=ct.models.Logistic()
        )


@pytest.mark.in_turn
def test_all_sets_of_nine_clients_are_refused():
    clients = quadratic({f"c{i}": (float(i), 10) for i in range(9)})
    with pytest.raises(ct.InputError, match=r"losses of 2\^9 sets"):
        measure(ct.FedAvg(HALF_STEP), clients, estimator="exact")
    assert measure(ct.FedAvg(HALF_STEP), clients).contributions  # by orders


@pytest.mark.parametrize("seed", range(3))
def test_a_free_rider_and_a_saboteur_are_named_by_their_contribution(seed):
    draw = torch.Generator().manual_seed(seed)
    rows = {}
    for k in range(5):
        inputs = torch.randn(120, 5, generator=draw)
        rows[f"c{k}"] = (
            inputs,
            (inputs[:, 0] + 0.3 * torch.randn(120, generator=draw) > 0).long(),
        )
    clients = ct.data.from_tensors(rows, seed=seed)
    about = ct.RunSettings(contribution=ct.Contribution(game="fixed"))
    run = ct.fit(
        ct.FedAvg(ct.LocalSGD(lr=0.1)), clients, ct.models.Logistic(), 20, seed,
        attack=ct.attacks.SignFlip(on=("c4",)), settings=about,
    )  # fmt: skip
    for target in ("c0", "c1", "c2", "c3"):
        totals = {
            c: sum(
                r.phi for r in run.contributions if (r.target, r.client) == (target, c)
            )
            for c in rows
        }
        assert min(totals, key=totals.__getitem__) == "c4"
        assert totals["c4"] < 0 < min(v for c, v in totals.items() if c != "c4")


def test_a_run_directory_has_a_table_of_contributions(tmp_path):
    settings = ct.StudySettings(contribution=ct.Contribution(every=2))
    ct.compare(
        ["fedavg"],
        "heart-disease",
        rounds=4,
        seeds=2,
        folder=tmp_path / "run",
        settings=settings,
    )
    with open(tmp_path / "run" / "contribution.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["round"] for row in rows} == {"1", "3"}
    assert {(row["target"], row["client"]) for row in rows} >= {
        ("cleveland", "hungary"),
        ("switzerland", "cleveland"),
    }
    assert {row["error"] for row in rows} == {""}


def test_an_estimate_says_what_it_cost_and_what_it_left_out(patients):
    run = measure(
        "fedavg", patients, rounds=1, model=ct.models.MLP(hidden=(3,)), estimator="gtg"
    )
    told = {
        (row.client, row.metric): row.value
        for row in run.history
        if row.metric.startswith("contribution_")
    }
    for target in "abc":
        asked, orders, truncated, remainder = (
            told[target, f"contribution_{key}"]
            for key in ("asked", "orders", "truncated", "remainder")
        )
        assert 1 <= asked <= 7
        assert orders >= 3 or (orders, truncated) == (
            0,
            1.0,
        )  # a round that moves too little is skipped
        assert 0.0 <= truncated <= 1.0
        assert abs(remainder) < 0.1
    exact = measure("fedavg", patients, rounds=1, model=ct.models.MLP(hidden=(3,)))
    assert not [row for row in exact.history if row.metric.startswith("contribution_")]

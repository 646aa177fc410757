"""Rows of no client, and callbacks that see models."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

import coterie as ct
from coterie.engines.inprocess import InProcessEngine


@pytest.fixture(scope="module")
def clients():
    return ct.data.load("heart-disease")


def rows(clients, name="hungary"):
    part = clients[name].part("test")
    return part.inputs, part.labels


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(15, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


@pytest.mark.parametrize("method", ["fedavg", "fedper", "local"])
def test_rows_of_a_client_give_at_the_centre_what_they_give_there(method, clients):
    settings = ct.RunSettings(evaluate=1, central=rows(clients), central_personal=True)
    history = ct.fit(method, clients, model(), rounds=2, settings=settings).history
    named = "*" if method == "fedavg" else "hungary"
    for metric in ("loss", "auc", "accuracy"):
        central = history.select(metric, named, "central")
        assert central == history.select(metric, "hungary", "test")
        assert len(central) == 3


def test_looking_changes_nothing_and_may_begin_when_a_run_goes_on(clients, tmp_path):
    def fit(rounds, **settings):
        chosen = ct.RunSettings(evaluate=1, **settings)
        return ct.fit("fedprox", clients, model(), rounds=rounds, checkpoint=tmp_path, settings=chosen)  # fmt: skip

    class Watch(ct.Callback):
        decides = False

        def __init__(self):
            self.seen = {}

        def on_evaluation(self, round, metrics):
            found = {k: v.clone() for k, v in metrics.models["*"].items()}
            self.seen[round] = found
            for tensor in metrics.models["*"].values():
                tensor.zero_()  # of a copy

    plain = fit(4)
    fit(2)
    watch = Watch()
    again = fit(4, resume=True, callbacks=(watch,), central=rows(clients))
    assert torch.equal(plain.x, again.x)
    assert list(watch.seen) == [2, 3, 4]
    last = dict(again.state_dict())
    assert last.keys() == watch.seen[4].keys()
    assert all(torch.equal(v, watch.seen[4][k]) for k, v in last.items())
    assert not torch.equal(watch.seen[3]["0.weight"], watch.seen[4]["0.weight"])
    assert [n for n, _ in again.history.select("auc", "*", "central")] == [3, 4]


@pytest.mark.in_turn
def test_a_comparison_takes_both_and_shows_what_it_would_without(clients, tmp_path):
    class Watch(ct.Callback):
        decides = False

        def on_evaluation(self, round, metrics):
            assert metrics.models

    usual = ct.StudySettings(evaluate=1)
    more = dataclasses.replace(usual, central=rows(clients), callbacks=(Watch(),))
    before, after = (
        ct.compare(["local", "fedavg"], clients, rounds=1, seeds=1, settings=settings)
        for settings in (usual, more)
    )
    assert before.table() == after.table()
    history = after.to_pandas("history")
    central = history[history.split == "central"]
    assert set(central.method) == {"fedavg"}
    assert set(central.client) == {"*"}
    folder = tmp_path / "run"
    ct.compare(["fedavg"], clients, rounds=1, seeds=1, folder=folder, settings=usual)
    resumed = dataclasses.replace(more, resume=True)
    ct.compare(["fedavg"], clients, rounds=1, seeds=2, folder=folder, settings=resumed)


def test_who_holds_the_rows_lets_go_of_them_when_the_run_ends(clients, monkeypatch):
    closed = []
    close = InProcessEngine.close

    def recorded(engine):
        closed.append(engine.clients)
        close(engine)

    monkeypatch.setattr(InProcessEngine, "close", recorded)
    settings = ct.RunSettings(central=rows(clients))
    ct.fit("fedavg", clients, model(), rounds=1, settings=settings)
    assert ("central",) in closed


def test_rows_that_do_not_fit_are_named(clients):
    settings = ct.RunSettings(central=(torch.zeros(4, 3), torch.arange(4) % 2))
    with pytest.raises(ct.InputError, match="central: the model cannot take inputs"):
        ct.fit("fedavg", clients, model(), rounds=1, settings=settings)

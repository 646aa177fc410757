"""Top-k with error feedback, under every method with updates and on every engine: what is sent, what is kept, and what it costs."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from test_catalogue import wide
from test_methods import first_of_a_family, method_of, run
from torch import Tensor

import coterie as ct
from coterie import task
from coterie.base.errors import InputError
from coterie.compute.cohort import Shard
from coterie.contract.fitting import curvature_task
from coterie.contract.task import Update, find_task
from coterie.run.experiment import Experiment
from coterie.study.sweep import run_experiment
from federations import (
    assert_same_bits,
    batch_norm,
    federation_of,
    fit,
    logistic,
    quadratic,
)

TENTH = ct.TopK(0.1)
LOCAL = ct.LocalSGD(lr=0.1, steps=ct.Steps(2), batch_size=4)


class Told(NamedTuple):
    delta: Update


@task
def told(cohort, *, updates: Tensor) -> Told:
    """Every client sends the update that it is given, [n, d + b] or [n, T, d + b]."""
    return Told(updates)


def ask(federation, updates, number=1, names="ab"):
    federation = federation.view(federation.clients, number, 0)
    return federation.ask(names, told, updates=ct.PerClient(updates)).delta


@pytest.fixture(params=[1, 2, pytest.param("ray", marks=pytest.mark.engines)])
def federation(request):
    """Two clients, five parameters, of which two are sent."""
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    with federation_of(
        quadratic({n: [0.0] * 5 for n in "ab"}), request.param
    ) as opened:
        yield replace(opened, filters=(ct.TopK(0.4),))


# ---- what is sent


def test_the_largest_entries_are_sent_and_the_rest_is_added_to_the_next_update(
    federation,
):
    one = torch.tensor(
        [[3.0, -5.0, 1.0, 2.0, 0.0], [0.0, 0.0, 0.0, 0.0, 7.0]], dtype=torch.float64
    )
    assert ask(federation, one).tolist() == [[3, -5, 0, 0, 0], [0, 0, 0, 0, 7]]
    nothing = torch.zeros_like(one)
    assert ask(federation, nothing, 2).tolist() == [[0, 0, 1, 2, 0], [0, 0, 0, 0, 0]]
    assert ask(federation, nothing, 3).tolist() == nothing.tolist()


def test_what_was_sent_and_what_is_kept_are_together_all_updates(federation):
    g = torch.Generator().manual_seed(3)
    updates = [torch.randn(2, 5, generator=g, dtype=torch.float64) for _ in range(6)]
    sent = [ask(federation, update, number) for number, update in enumerate(updates, 1)]
    assert all(int((row != 0).sum()) == 2 for rows in sent for row in rows)
    for _ in range(
        3
    ):  # everything that is left takes three more replies of two entries
        sent.append(
            ask(federation, torch.zeros(2, 5, dtype=torch.float64), len(sent) + 1)
        )
    assert torch.allclose(sum(sent), sum(updates), atol=1e-12)


def test_each_ask_of_a_round_and_each_model_has_a_rest_of_its_own(federation):
    first = torch.tensor([[9.0, 8.0, 1.0, 0.0, 0.0]] * 2, dtype=torch.float64)
    nothing = torch.zeros_like(first)
    ask(federation, first)
    assert (
        ask(federation, nothing).tolist() == nothing.tolist()
    )  # the second ask of the same round
    assert ask(federation, nothing, 2).tolist() == [[0, 0, 1, 0, 0]] * 2
    both = torch.stack([first, -first.flip(-1)], dim=1)
    assert (
        ask(federation, both, 3).tolist() == [[[9, 8, 0, 0, 0], [0, 0, 0, -8, -9]]] * 2
    )
    assert (
        ask(federation, torch.zeros_like(both), 4).tolist()
        == [[[0, 0, 1, 0, 0], [0, 0, -1, 0, 0]]] * 2
    )


def test_a_nan_is_refused_and_does_not_spoil_the_next_update(federation):
    broken = torch.tensor(
        [[1.0, 2.0, 3.0, 4.0, float("nan")], [1.0, 2.0, 3.0, 4.0, 5.0]],
        dtype=torch.float64,
    )
    replies = federation.ask("ab", told, updates=ct.PerClient(broken))
    assert list(replies.failed) == ["a"]
    assert ask(federation, torch.zeros(2, 5, dtype=torch.float64), 2).isfinite().all()


@pytest.mark.parametrize("parts", [{"positions": torch.zeros(2, 1), "values": torch.zeros(2, 1)},
                                   {"positions": torch.zeros(2, 2), "values": torch.zeros(2, 3)},
                                   {"positions": torch.full((2, 2), 5), "values": torch.zeros(2, 2)}, {}])  # fmt: skip
def test_parts_of_another_form_cannot_be_unpacked(parts):
    with pytest.raises((ValueError, RuntimeError, KeyError)):
        ct.TopK(0.4).unpack(parts, 5)


@pytest.mark.parametrize("share", [0, 1.1, "all", True])
def test_a_share_that_is_none_is_named(share):
    with pytest.raises(
        InputError, match=r"TopK\.share must be a number in \(0, 1\]; got"
    ):
        ct.TopK(share)


# ---- under every method


@first_of_a_family
def test_every_method_sends_less_but_references_and_those_that_need_exact_uploads(case):
    problem, few = wide(20), ct.TopK(0.2)
    method = method_of(case)
    if method.needs_exact_uploads:
        with pytest.raises(
            InputError,
            match="needs exact uploads, since its clients build on what they sent; leave out",
        ):
            run(case, problem, filters=[few])
        return
    if curvature_task(method):
        with pytest.raises(InputError, match="leave out the filter TopK"):
            run(case, problem, filters=[few])
        return
    plain, filtered = (
        run(case, problem, rounds=1, filters=filters) for filters in ([], [few])
    )
    if method.is_reference:
        assert_same_bits(plain, filtered)
        return
    # A personal bias does not travel, and instead of a model a feature of each of two classes may.
    numbers = {"fedproto": 40}.get(case[0], 20 if "personal" in case[1] else 21)
    saved = numbers * 8 - numbers // 5 * (8 + 2)
    for before, after in zip(plain.asks, filtered.asks, strict=True):
        assert before.task == after.task
        updates = (
            "update" in find_task(before.task).kinds.values() and before.round == 1
        )
        assert (before.bytes_up - after.bytes_up) % saved == 0
        assert (before.bytes_up - after.bytes_up > 0) == updates


def test_a_share_of_one_is_no_filter():
    for make in (logistic, batch_norm):
        problem = make()
        plain, filtered = (
            fit(ct.FedAvg(LOCAL), problem.clients, problem.model, 4, filters=f)
            for f in ([], [ct.TopK(1.0)])
        )
        assert torch.equal(plain.x, filtered.x)


@pytest.mark.in_turn
def test_with_feedback_the_model_comes_to_the_optimum():
    """Three clients far from each other: without what is left out, the two entries that are never largest would never move."""
    centres = {"a": [9.0, 1.0, 1.0], "b": [9.0, -1.0, 2.0], "c": [9.0, 3.0, -1.5]}
    problem = quadratic(centres)
    local = ct.LocalSGD(lr=0.05, batch_size=None, steps=ct.Steps(1))
    options = {"filters": [ct.TopK(0.34)], "evaluate": 200, "strict_wire": False}
    found = fit(ct.FedAvg(local), problem.clients, problem.model, 200, **options)
    assert torch.allclose(
        found.x, torch.tensor([9.0, 1.0, 0.5], dtype=torch.float64), atol=0.05
    )


# ---- wherever the clients are


RAY = pytest.param({"engine": ct.Ray(actors=2)}, marks=pytest.mark.engines)


@pytest.mark.parametrize(
    "options",
    [{"workers": 2}, {"strict_wire": True}, RAY],
    ids=["workers", "wire", "ray"],
)
def test_the_numbers_do_not_depend_on_where_clients_are(options, request):
    if "engine" in options:
        request.getfixturevalue("ray_cluster")
    problem = batch_norm()
    method = ct.MeritFed(targets=("a", "c"), local=LOCAL)
    here, there = (
        fit(method, problem.clients, problem.model, 3, filters=[TENTH], **o)
        for o in ({}, options)
    )
    assert_same_bits(here, there)


@pytest.mark.engines
def test_bytes_on_the_wire_are_the_promised_share(ray_cluster, tmp_path):
    problem = wide(20_000)
    done = fit(
        ct.FedAvg(LOCAL),
        problem.clients,
        problem.model,
        1,
        filters=[ct.TopK(0.01)],
        engine=ct.Ray(actors=2),
    )
    sent = [
        cost.bytes_up
        for ask in done.asks
        if ask.task.endswith("local_update")
        for cost in ask.costs
    ]
    assert len(sent) == len(problem.clients)
    assert all(200 * (8 + 2) <= up < 200 * (8 + 2) + 1000 for up in sent)


def test_a_resumed_run_goes_on_with_what_was_left_out(tmp_path):
    problem = logistic()

    def go(rounds, filters=(TENTH,), **options):
        return fit(
            ct.FedAvg(LOCAL),
            problem.clients,
            problem.model,
            rounds,
            filters=filters,
            evaluate=6,
            **options,
        )

    whole = go(6)
    go(3, checkpoint=tmp_path)
    assert torch.equal(go(6, checkpoint=tmp_path, resume=True, workers=2).x, whole.x)
    assert not torch.equal(go(6, filters=()).x, whole.x)
    go(3, checkpoint=tmp_path)
    with pytest.raises(
        InputError,
        match=r"the setting filters has changed since round 3 \(.*\); resume",
    ):
        go(6, filters=[ct.TopK(0.2)], checkpoint=tmp_path, resume=True)


def test_a_client_that_loses_its_memory_begins_with_a_rest_of_zero(monkeypatch):
    problem, honest = (
        quadratic({"a": [4.0, 2.0, 1.0], "b": [4.0, 2.0, 1.0]}),
        Shard.answer,
    )

    def answer(self, ask):
        if ask.context.round == 2:
            self.memory.forget("a")
        return honest(self, ask)

    whole = fit(
        ct.FedAvg(LOCAL), problem.clients, problem.model, 2, filters=[ct.TopK(0.34)]
    )
    monkeypatch.setattr(Shard, "answer", answer)
    disturbed = fit(
        ct.FedAvg(LOCAL), problem.clients, problem.model, 2, filters=[ct.TopK(0.34)]
    )
    assert disturbed.failures == {}
    assert not torch.equal(disturbed.x, whole.x)


# ---- in a file


TABLES = {
    "data": {"name": "heart-disease"},
    "local": {"lr": 0.1, "steps": 2},
    "methods": [{"name": "local"}, {"name": "fedavg"}],
    "run": {"rounds": 2, "seeds": 1},
}


def test_a_filter_in_toml_there_and_back(tmp_path):
    read = Experiment.from_tables(
        {**TABLES, "filters": [{"name": "top-k", "share": 0.25}]}, "x.toml"
    )
    assert read.filters == (ct.TopK(0.25),)
    assert Experiment.from_tables(read.tables(), "y.toml").filters == read.filters
    run_experiment(read, tmp_path / "run")
    assert tomllib.loads((tmp_path / "run" / "experiment.toml").read_text())[
        "filters"
    ] == [{"name": "top-k", "share": 0.25}]
    assert "replies pass filters before they are sent (top-k)" in " ".join(read.notes)


@pytest.mark.parametrize(
    ("filters", "said"),
    [
        ([{"name": "topk"}], "there is no filter 'topk'; did you mean 'top-k'?"),
        ([{"name": "top-k", "shares": 0.1}], "did you mean 'share'?"),
        ([{"name": "top-k", "share": 2}], "share must be a number in (0, 1]; got 2"),
        ([{"share": 0.1}], "must be a table with a name"),
        ({"name": "top-k"}, "must be a list of tables"),
    ],
)
def test_what_is_wrong_with_a_filter_is_one_sentence(filters, said):
    with pytest.raises(InputError) as error:
        Experiment.from_tables({**TABLES, "filters": filters}, "x.toml")
    assert str(error.value).startswith("x.toml")
    assert said in str(error.value)


def test_a_method_that_needs_exact_uploads_is_named_before_any_work():
    tables = {
        **TABLES,
        "methods": [{"name": "scaffold"}],
        "filters": [{"name": "top-k"}],
    }
    with pytest.raises(InputError, match="SCAFFOLD needs exact uploads"):
        Experiment.from_tables(tables, "x.toml")

"""Runs under [secure]: means of the encoded integers bit for bit; nobody's vector is asked, and no masked ask is repeated."""

from __future__ import annotations

import sys
import tomllib

import numpy as np
import pytest
import torch
from torch import nn

import coterie as ct
from coterie.base.errors import InputError
from coterie.compute.tasks import local_update, own_update
from coterie.contract.exchange import QuorumError
from coterie.contract.federation import Federation
from coterie.contract.fixed_point import FixedPoint
from coterie.engines.inprocess import InProcessEngine
from coterie.run.experiment import Experiment

pytest.importorskip(
    "cryptography",
    reason="secure sums need cryptography: pip install 'coterie[secure]'",
)
ROWS = {"a": 30, "b": 20, "c": 50, "d": 7, "e": 13}
LOCAL = ct.LocalSGD(lr=0.1, batch_size=None, steps=ct.Steps(3))


def clients_of(rows=ROWS):
    draw = torch.Generator().manual_seed(0)
    made = {}
    for number, (name, count) in enumerate(rows.items()):
        inputs = torch.randn(count, 4, generator=draw) + number
        made[name] = (inputs, (inputs.sum(1) > 4 * number).long())
    return ct.data.from_tensors(made)


def opened(clients=None, model=None):
    module = nn.Linear(4, 1) if model is None else model
    nn.init.constant_(module.weight, 0.25)
    nn.init.constant_(module.bias, -0.5)
    return ct.InProcess().open(clients or clients_of(), module, "binary")


def federation_of(engine, **changed):
    return Federation(engine, engine.clients, round=1, **changed)


@pytest.mark.promise("secure sums")
@pytest.mark.parametrize("clip", [10.0, 0.05])
@pytest.mark.parametrize("by", ["rows", "halves"])
def test_the_mean_is_that_of_the_encoded_integers_bit_for_bit(clip, by):
    engine = opened()
    names = engine.clients
    weights = None
    whole = dict(engine.sizes("train"))
    if by == "halves":
        weights = torch.tensor([0.5, 1.0, 0.25, 0.125, 1.0])
        steps = (2.0**20 * weights).tolist()
        whole = dict(zip(names, map(round, steps), strict=True))
    x = engine.x
    plain = federation_of(engine).ask(names, local_update, x=x, local=LOCAL)
    code = FixedPoint(clip)
    total = np.zeros(len(x) + 1, dtype=np.uint64)
    for name, delta in zip(plain.clients, plain.delta, strict=True):
        total += code.encode(delta, whole[name])
    expected, clipped = code.decode(total, sum(whole.values()))
    secure = federation_of(engine, secure=ct.SecureSums(clip=clip))
    average = secure.average(names, local_update, weights=weights, x=x, local=LOCAL)
    assert torch.equal(average.delta, expected.to(x))
    assert bool(clipped) is (clip < 1)
    assert torch.equal(average.sizes, plain.sizes)
    shares = torch.tensor([whole[name] for name in names], dtype=torch.float64)
    assert torch.equal(average.weights, shares / shares.sum())
    if clip > 1:
        exact = federation_of(engine).average(
            names, local_update, weights=weights, x=x, local=LOCAL
        )
        assert torch.allclose(average.delta, exact.delta, atol=1e-6)
    engine.close()


def fit(method=None, **settings):
    return ct.fit(
        ct.FedAvg(LOCAL) if method is None else method,
        clients_of(),
        "logistic",
        rounds=3,
        settings=ct.RunSettings(**settings),
    )


def test_a_run_is_the_plain_one_but_for_rounding_and_repeats_bit_for_bit():
    """Although keys and masks are drawn anew from the system each time."""
    plain, first, second = (fit(secure=s) for s in (None, *[ct.SecureSums()] * 2))
    assert torch.equal(first.x, second.x)
    assert torch.allclose(first.x, plain.x, atol=1e-6)
    assert first.summary[0]["loss"] == pytest.approx(plain.summary[0]["loss"], abs=1e-6)


class Failing:
    """An engine of which some clients fail in their turns, and which counts who was asked for a vector."""

    def __init__(self, monkeypatch, fails):
        self.asked = []
        honest = InProcessEngine.ask

        def ask(engine, request):
            if request.task != local_update.name:
                return honest(engine, request)
            self.asked.append(request.names)
            left = tuple(name for name in request.names if name not in fails)
            answer = honest(engine, request.to(left))
            failed = dict.fromkeys(fails, "it is gone")
            return type(answer)(answer.blocks, {**answer.failed, **failed})

        monkeypatch.setattr(InProcessEngine, "ask", ask)


@pytest.mark.promise("secure sums")
def test_who_drops_out_is_left_out_and_nobody_is_asked_again(monkeypatch):
    engine = opened()
    kept = [name for name in engine.clients if name not in ("b", "e")]
    expected = federation_of(engine, secure=ct.SecureSums(3)).average(
        kept, local_update, x=engine.x, local=LOCAL
    )
    failing = Failing(monkeypatch, ("b", "e"))
    secure = federation_of(engine, secure=ct.SecureSums(3))
    average = secure.average(
        engine.clients, local_update, x=engine.x, local=LOCAL, need=0.2
    )
    assert torch.equal(average.delta, expected.delta)
    assert average.failed.keys() == {"b", "e"}
    assert failing.asked == [tuple(engine.clients)]
    engine.close()


@pytest.mark.promise("secure sums")
@pytest.mark.parametrize(
    ("fails", "threshold", "need", "why"),
    [
        (("b", "e"), 4, 0.2, "opened with 4"),
        (("a", "b", "e"), 3, 0.2, "opened with 3"),
        (("b", "e"), 3, 0.9, "at least 90% are needed"),
    ],
)
def test_too_few_survivors_end_the_round_and_the_ask_is_not_repeated(
    monkeypatch, fails, threshold, need, why
):
    """A second sum over others would give the difference, a single vector."""
    engine = opened()
    failing = Failing(monkeypatch, fails)
    secure = federation_of(engine, secure=ct.SecureSums(threshold))
    with pytest.raises(QuorumError, match=why):
        secure.average(engine.clients, local_update, x=engine.x, local=LOCAL, need=need)
    assert failing.asked == [tuple(engine.clients)]
    engine.close()


@pytest.mark.promise("secure sums")
def test_vectors_are_asked_as_sums_alone():
    engine = opened()
    secure = federation_of(engine, secure=ct.SecureSums())
    with pytest.raises(InputError, match=r"federation\.average"):
        secure.ask(engine.clients, own_update, x=engine.x, local=LOCAL)
    engine.close()


def test_nan_drops_out_and_a_norm_far_from_the_others_is_not_known():
    """The server knows no norm, so max_norm refuses nobody; a client whose vector is no number takes no part."""
    run = ct.fit(
        ct.FedAvg(LOCAL),
        clients_of(),
        "logistic",
        rounds=1,
        attack=ct.attacks.NaN(on=("d",)),
        settings=ct.RunSettings(secure=ct.SecureSums(3), max_norm=1e-9),
    )
    assert run.failures.keys() == {"d"}
    assert "NaN" in run.failures["d"]


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ({"a": 30, "b": 30}, "at least 3 clients"),
        ({"a": 970, "b": 10, "c": 10}, "a has 98% of the weight"),
    ],
)
def test_federations_in_which_a_sum_shows_a_vector_are_refused(rows, why):
    with pytest.raises(InputError, match=why):
        ct.fit(
            ct.FedAvg(LOCAL),
            clients_of(rows),
            "logistic",
            rounds=1,
            settings=ct.RunSettings(secure=ct.SecureSums()),
        )


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"settings": {"contribution": ct.Contribution()}}, "run.contribution"),
        ({"filters": [ct.TopK(0.1)]}, "filter TopK"),
        ({"method": ct.QFFL(LOCAL)}, "needs the vectors of single clients"),
        ({"method": ct.SCAFFOLD(LOCAL)}, "clips and rounds"),
        ({"method": ct.OCS(LOCAL)}, "'norms' of norms"),
        ({"model": nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))}, "batch norm"),
    ],
)
def test_what_needs_single_vectors_is_refused_with_the_reason(changed, why):
    settings = ct.RunSettings(secure=ct.SecureSums(), **changed.get("settings", {}))
    with pytest.raises(InputError, match=why) as refusal:
        ct.fit(
            changed.get("method", ct.FedAvg(LOCAL)),
            clients_of(),
            changed.get("model", "logistic"),
            rounds=1,
            filters=changed.get("filters", ()),
            settings=settings,
        )
    assert len(str(refusal.value)) <= 300


def test_references_stay_as_they_are():
    run = fit(method=ct.Local(LOCAL), secure=ct.SecureSums())
    assert len(run.models) == len(ROWS)


def test_clipped_numbers_are_said(caplog):
    fit(secure=ct.SecureSums(clip=1e-4))
    assert "raise secure.clip" in caplog.text


TABLES = {
    "data": {"name": "heart-disease"},
    "run": {"rounds": 2},
    "secure": {"threshold": 3},
}


def test_the_table_is_read_written_and_refused():
    tables = {**TABLES, "methods": [{"name": "local"}, {"name": "fedavg"}]}
    experiment = Experiment.from_tables(tables, "x.toml")
    assert experiment.run.secure == ct.SecureSums(threshold=3)
    assert experiment.tables()["secure"] == {
        "threshold": 3,
        "clip": 10.0,
        "curious": 1,
    }
    with pytest.raises(
        InputError, match="'median' needs the vectors of single clients"
    ):
        Experiment.from_tables({**tables, "methods": [{"name": "median"}]}, "x.toml")
    with pytest.raises(InputError, match=r"secure\.threshold must be .* int >= 3"):
        Experiment.from_tables({**tables, "secure": {"threshold": 2}}, "x.toml")


def test_a_comparison_in_python_has_secure_sums_and_says_so(tmp_path):
    """As it was: they were lost on the way to the tables, and updates came as they are."""
    settings = ct.StudySettings(secure=ct.SecureSums(threshold=3, clip=2.0))
    methods = ["local", ct.FedAvg(LOCAL)]
    ct.compare(
        methods, clients_of(), rounds=1, seeds=1, settings=settings, folder=tmp_path
    )
    written = tomllib.loads((tmp_path / "experiment.toml").read_text())
    assert written["secure"] == {"threshold": 3, "clip": 2.0, "curious": 1}
    assert "behind masks" in (tmp_path / "notes.json").read_text()
    with pytest.raises(InputError, match="'median' needs the vectors"):
        ct.compare(
            ["local", "median"],
            clients_of(),
            rounds=1,
            seeds=1,
            settings=settings,
            folder=tmp_path / "other",
        )


def test_without_the_package_nothing_begins(monkeypatch, tmp_path):
    """As it was: the first method trained before the second one found out."""
    monkeypatch.setitem(sys.modules, "cryptography", None)
    trained = []
    monkeypatch.setattr(InProcessEngine, "ask", lambda *asked: trained.append(asked))
    cure = r'pip install "coterie\[secure\]"'
    settings = ct.StudySettings(secure=ct.SecureSums())
    with pytest.raises(InputError, match=cure):
        ct.compare(
            ["local", "fedavg"],
            clients_of(),
            seeds=1,
            settings=settings,
            folder=tmp_path,
        )
    with pytest.raises(InputError, match=cure):
        fit(secure=ct.SecureSums())
    assert not trained


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"secure": ct.SecureSums(), "clients_per_round": 2}, "at least 3 clients"),
        ({"secure": ct.SecureSums(6)}, "from 3, more than half, to 5; got 6"),
    ],
)
def test_rounds_that_could_open_no_sum_are_refused_before_any_training(
    settings, why, monkeypatch
):
    trained = []
    monkeypatch.setattr(InProcessEngine, "ask", lambda *asked: trained.append(asked))
    with pytest.raises(InputError, match=why):
        ct.compare(
            ["local", "fedavg"],
            clients_of(),
            seeds=1,
            settings=ct.StudySettings(**settings),
        )
    assert not trained

"""FedAdp and TAWT: what must hold, a few rounds recomputed with numpy alone, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from coterie.algorithms import TAWT, FedAdp, FedAvg, SGDFull
from coterie.core.errors import InputError
from coterie.core.federation import QuorumError
from coterie.core.rows import Client, Clients, Part
from coterie.core.task import Task
from coterie.core.training import LocalSGD, Steps
from federations import SIZES, assert_close, assert_same_bits, batch_norm, fit, logistic, quadratic, start, subset

LR, STEPS = 0.4, 3
FULL = LocalSGD(lr=LR, steps=Steps(STEPS), batch_size=None)
MINI = LocalSGD(lr=0.2, steps=Steps(3), batch_size=4)


def run(method, problem, rounds=3, **options):
    options = {"merge_validation": False, "evaluate": 1, **options}
    return fit(method, problem.clients, problem.model, rounds, **options)


def updates(problem, x):
    """Updates of full-batch descent on the logistic loss, by client, written with numpy alone."""
    found = {}
    for client in problem.clients:
        rows = np.hstack([client.train.inputs.numpy(), np.ones((len(client.train.labels), 1))])
        y = x.copy()
        for _ in range(STEPS):
            y = y - LR * rows.T @ (1 / (1 + np.exp(-rows @ y)) - client.train.labels.numpy()) / len(rows)
        found[client.name] = y - x
    return found


def between(a, b):
    return math.acos(float(a @ b) / math.sqrt(float(a @ a) * float(b @ b)))


# ---- FedAdp


@pytest.mark.parametrize("reference", ["global", "d"])
@pytest.mark.parametrize(("by_size", "running_mean"), [(True, True), (False, False), (True, False)])
def test_fedadp_by_hand(reference, by_size, running_mean):
    problem = logistic()
    x, past, rounds = start(problem).numpy(), {n: [] for n in SIZES}, 3
    for _ in range(rounds):
        delta = updates(problem, x)
        sizes = {n: SIZES[n] if by_size else 1 for n in SIZES}
        average = sum(sizes[n] * delta[n] for n in SIZES) / sum(sizes.values())
        axis = average if reference == "global" else delta[reference]
        weights = {}
        for n in SIZES:
            past[n].append(0.0 if n == reference else between(delta[n], axis))
            angle = sum(past[n]) / len(past[n]) if running_mean else past[n][-1]
            weights[n] = sizes[n] * math.exp(2.0 * (1 - math.exp(-math.exp(-2.0 * (angle - 1)))))
        weights = {n: w / sum(weights.values()) for n, w in weights.items()}
        x = x + 0.7 * sum(weights[n] * delta[n] for n in SIZES)
    method = FedAdp(FULL, 0.7, 2.0, reference, by_size, running_mean)
    found = run(method, problem, rounds)
    np.testing.assert_allclose(found.x.numpy(), x, atol=1e-7)
    assert found.weights["*"] == pytest.approx(weights, abs=1e-7)
    assert max(abs(weights[n] - SIZES[n] / sum(SIZES.values())) for n in SIZES) > 0.02  # FedAvg would fail


def test_fedadp_with_equal_angles_is_fedavg():
    problem = batch_norm()
    rows = problem.clients["b"].train
    twins = Clients([Client(n, rows) for n in "abc"])
    local = replace(FULL, lr=0.1)
    one, other = run(FedAdp(local), problem.with_clients(twins)), run(FedAvg(local), problem.with_clients(twins))
    assert_close(one.x, other.x)
    # One client points along with itself, whatever its size; two that differ do not.
    lone = problem.with_clients(subset(problem.clients, "d"))
    assert_close(run(FedAdp(MINI), lone).x, run(FedAvg(MINI), lone).x)
    assert (run(FedAdp(MINI), problem).x - run(FedAvg(MINI), problem).x).abs().max() > 1e-4


def test_fedadp_a_client_that_points_away_counts_less_whatever_its_size():
    problem = quadratic({"a": [1.0, 0.2], "b": [1.0, -0.2], "c": [-1.0, 0.1]}, {"a": 4, "b": 4, "c": 6})
    local = LocalSGD(lr=0.1, steps=Steps(1), batch_size=None)
    weights = run(FedAdp(local), problem, 1).weights["*"]
    assert weights["c"] < 0.02
    assert weights["a"] == pytest.approx(weights["b"], rel=0.5)
    # Towards c as the target it is the other way round.
    assert run(FedAdp(local, reference="c"), problem, 1).weights["*"]["c"] > 0.9


def test_fedadp_a_duplicated_client_counts_twice():
    problem = logistic()
    twice = problem.with_clients(Clients([*problem.clients, Client("a-again", problem.clients["a"].train)]))
    rows = problem.clients["a"].train
    both = Part(rows.inputs.repeat(2, 1), rows.labels.repeat(2))
    heavier = problem.with_clients(Clients([*[c for c in problem.clients if c.name != "a"], Client("a", both)]))
    one, other = run(FedAdp(FULL), twice), run(FedAdp(FULL), heavier)
    assert_close(one.x, other.x, 1e-10)
    assert one.weights["*"]["a"] * 2 == pytest.approx(other.weights["*"]["a"], rel=1e-9)


def test_fedadp_takes_the_mean_over_rounds_in_which_a_client_took_part():
    problem = logistic()
    found = run(FedAdp(MINI), problem, 4, clients_per_round=2)
    assert found.state.angles[1].sum() == 8
    means = found.state.angles[0] / found.state.angles[1].clamp(min=1)
    last = {r.client: r.value for r in found.history if r.round == 4 and r.metric == "angle"}
    assert len(last) == 2
    for name, value in last.items():
        assert value == pytest.approx(float(means[list(SIZES).index(name)]), abs=1e-15)
    assert not run(FedAdp(MINI, running_mean=False), problem, 4).state.angles.any()


def test_fedadp_asks_a_reference_that_takes_no_part():
    problem = logistic()
    found = run(FedAdp(FULL, reference="c"), problem, 6, clients_per_round=2)
    by_round = {}
    for number, _, client, _ in found.weight_rows:
        by_round.setdefault(number, set()).add(client)
    asked = {r.round for r in found.asks if r.task.endswith(":own_update")}
    assert asked == {number for number, names in by_round.items() if "c" not in names}
    assert 0 < len(asked) < 6
    # The update is the same wherever it comes from: with c among two clients, or beside them.
    delta = updates(problem, start(problem).numpy())
    first = {r.client: r.value for r in found.history if r.round == 1 and r.metric == "angle"}
    assert first == pytest.approx({n: 0.0 if n == "c" else between(delta[n], delta["c"]) for n in first}, abs=1e-7)


# ---- TAWT


def test_tawt_by_hand():
    problem = logistic()
    x, weights = start(problem).numpy(), dict.fromkeys(SIZES, 0.2)
    for _ in range(3):
        delta = updates(problem, x)
        raw = {
            n: w * math.exp(0.8 * math.cos(between(delta["b"], delta[n]) if n != "b" else 0))
            for n, w in weights.items()
        }
        weights = {n: w / sum(raw.values()) for n, w in raw.items()}
        x = x + 0.7 * sum(weights[n] * delta[n] for n in SIZES)
    found = run(TAWT("b", FULL, 0.7, 0.8), problem)
    np.testing.assert_allclose(found.models["b"].numpy(), x, atol=1e-7)
    assert found.weights["b"] == pytest.approx(weights, abs=1e-7)
    assert (
        max(weights.values()) - min(weights.values()) > 0.1
    )  # the arc cosine or the other sign would turn the order round
    assert max(weights, key=weights.get) == "b"


def test_tawt_without_a_step_is_the_uniform_average():
    problem = batch_norm()
    assert_close(run(TAWT("a", MINI, step=0.0), problem).models["a"], run(SGDFull(MINI), problem).x)


def test_tawt_all_targets_are_each_target_alone():
    problem = logistic()
    together = run(TAWT(local=MINI), problem)
    for name in SIZES:
        alone = run(TAWT(name, MINI), problem)
        assert_close(together.models[name], alone.models[name])
        assert together.weights[name] == pytest.approx(alone.weights[name], abs=1e-12)
    assert (together.models["d"] - together.models["e"]).abs().max() > 1e-3


def test_tawt_absent_clients_keep_their_weights_and_absent_targets_are_asked():
    problem = logistic()
    found = run(TAWT("a", FULL), problem, 1, clients_per_round=2)
    (drawn,) = found.weights.values()
    weights = dict(zip(SIZES, found.state.weights[0].tolist(), strict=True))
    assert sum(weights.values()) == pytest.approx(1, abs=1e-14)
    for name in set(SIZES) - set(drawn):
        assert weights[name] == 0.2
    assert sum(weights[n] for n in drawn) == pytest.approx(0.4, abs=1e-14)
    assert any(r.task.endswith(":own_update") for r in found.asks) == ("a" not in drawn)


def test_tawt_and_fedadp_a_lost_target(monkeypatch):
    honest = Task.__call__

    def call(self, cohort, /, **payload):
        if "update" in self.kinds.values() and "c" in cohort.names:
            raise OSError("unplugged")
        return honest(self, cohort, **payload)

    problem = logistic()
    monkeypatch.setattr(Task, "__call__", call)
    for method in (TAWT("c", MINI), FedAdp(MINI, reference="c")):
        with pytest.raises(QuorumError, match=r"own_update.*c \(OSError: unplugged\)"):
            run(method, problem)
    several = run(TAWT(("a", "c"), MINI), problem)
    assert_close(several.models["c"], start(problem))
    assert several.weights["c"] == pytest.approx(dict.fromkeys("abde", 0.25))
    assert (several.models["a"] - start(problem)).abs().max() > 1e-3


def test_resumed_and_repeated_runs_agree(tmp_path):
    problem = logistic()
    for method in (FedAdp(MINI, reference="b"), TAWT(("a", "b"), MINI)):
        folder = tmp_path / type(method).__name__
        run(method, problem, 2, checkpoint=folder, clients_per_round=2, evaluate=4)
        resumed = run(method, problem, 4, checkpoint=folder, resume=True, clients_per_round=2, workers=2, evaluate=4)
        whole = run(method, problem, 4, clients_per_round=2, evaluate=4)
        assert all((resumed.models[k] == x).all() for k, x in whole.models.items())
        assert_same_bits(whole, run(method, problem, 4, clients_per_round=2, evaluate=4))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: FedAdp(lr=0), "FedAdp.lr must be a number > 0; got 0"),
        (lambda: FedAdp(alpha=-1), "FedAdp.alpha must be a number > 0; got -1"),
        (lambda: FedAdp(reference=""), "FedAdp.reference must be \"global\" or a client's name; got ''"),
        (lambda: FedAdp(by_size=1), "FedAdp.by_size must be true or false; got 1"),
        (lambda: FedAdp(running_mean="no"), "FedAdp.running_mean must be true or false; got 'no'"),
        (lambda: run(FedAdp(reference="z"), logistic()), "FedAdp.reference names 'z', which is not a client"),
        (lambda: TAWT(lr=0), "TAWT.lr must be a number > 0; got 0"),
        (lambda: TAWT(step=-0.1), "TAWT.step must be a number >= 0; got -0.1"),
        (lambda: TAWT(targets=()), "TAWT.targets must be"),
        (lambda: run(TAWT("z"), logistic()), "TAWT.targets names 'z', which is not a client"),
    ],
)
def test_bad_fields_are_named(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()

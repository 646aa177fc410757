"""What must hold of TAWT, and rounds recomputed with numpy alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
from short_runs import MINI, assert_resumes, between, descent, run, unplug

from coterie import TAWT, SGDFull
from coterie.base.errors import InputError
from coterie.config.local import LocalSGD, Steps
from coterie.contract.federation import QuorumError
from federations import SIZES, assert_close, batch_norm, logistic, start

MUTANTS = {
    "tawt": [
        (
            "algorithms/tawt.py",
            "entropic_step(used[t], -cosine, self.step)",
            "entropic_step(used[t], cosine, self.step)",
        ),
        (
            "algorithms/tawt.py",
            "torch.cos(angles(deltas[t, :, :dim].double(), axes[name][:dim]).cpu())",
            "-angles(deltas[t, :, :dim].double(), axes[name][:dim]).cpu()",
        ),
        (
            "algorithms/tawt.py",
            "weights[t, positions] = used[t] * mass",
            "weights[t, positions] = weights[t, positions] * 1.0",
        ),
    ],
}

FULL = LocalSGD(lr=0.4, steps=Steps(3), batch_size=None)


def test_tawt_by_hand():
    problem = logistic()
    x, weights = start(problem).numpy(), dict.fromkeys(SIZES, 0.2)
    for _ in range(3):
        delta = {n: descent(problem, n, x, FULL) for n in SIZES}
        raw = {
            n: w
            * math.exp(0.8 * math.cos(between(delta["b"], delta[n]) if n != "b" else 0))
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


def test_tawt_may_move_its_weights_in_every_second_round_only():
    problem = logistic()
    rounds = [
        run(TAWT("b", FULL, 0.7, 0.8, every=2), problem, n).weights["b"]
        for n in range(1, 6)
    ]
    assert set(rounds[0].values()) == {0.2}
    assert rounds[1] == rounds[2] != rounds[0]
    assert rounds[3] == rounds[4] != rounds[2]


def test_tawt_without_a_step_is_the_uniform_average():
    problem = batch_norm()
    assert_close(
        run(TAWT("a", MINI, step=0.0), problem).models["a"],
        run(SGDFull(MINI), problem).x,
    )


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


def test_tawt_a_lost_target(monkeypatch):
    problem = logistic()
    unplug(monkeypatch, "c")
    with pytest.raises(QuorumError, match=r"own_update.*c \(OSError: unplugged\)"):
        run(TAWT("c", MINI), problem)
    several = run(TAWT(("a", "c"), MINI), problem)
    assert_close(several.models["c"], start(problem))
    assert several.weights["c"] == pytest.approx(dict.fromkeys("abde", 0.25))
    assert (several.models["a"] - start(problem)).abs().max() > 1e-3


@pytest.mark.in_turn
def test_resumed_and_repeated_runs_agree(tmp_path):
    assert_resumes(TAWT(("a", "b"), MINI), tmp_path)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: TAWT(lr=0), "TAWT.lr must be a number > 0; got 0"),
        (lambda: TAWT(step=-0.1), "TAWT.step must be a number >= 0; got -0.1"),
        (lambda: TAWT(targets=()), "TAWT.targets must be"),
        (
            lambda: run(TAWT("z"), logistic()),
            "TAWT.targets names 'z', which is not a client",
        ),
    ],
)
def test_bad_fields_are_named(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()

"""FedAvgM, FedAdam, FedYogi and FedAdagrad: steps by hand, limits that are FedAvg, and rounds recomputed with numpy alone."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from short_runs import (
    FULL,
    LOCAL,
    MINI,
    ONE,
    assert_refused_by_the_command,
    run,
    sgd,
    trained,
)

from coterie import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedYogi
from coterie.base.errors import InputError
from coterie.config.local import LocalSGD, Steps
from federations import (
    SIZES,
    assert_close,
    batch_norm,
    dropout,
    logistic,
    quadratic,
    start,
)

MUTANTS = {
    "fedavgm": [
        ("algorithms/server_rules.py", "m = self.beta * state.m + mean", "m = mean"),
        (
            "algorithms/server_rules.py",
            "m = self.beta * state.m + mean",
            "m = self.beta * state.m + (1 - self.beta) * mean",
        ),
        (
            "algorithms/server_rules.py",
            'if self.weights == "uniform" else None',
            'if self.weights != "uniform" else None',
        ),
    ],
    "fedadam": [
        (
            "algorithms/server_rules.py",
            "self.betas[1] * state.v + (1 - self.betas[1]) * mean",
            "state.v + (1 - self.betas[1]) * mean",
        ),
        ("algorithms/server_rules.py", "m / (v.sqrt() + tau)", "m / (v + tau)"),
        (
            "algorithms/server_rules.py",
            "beta * state.m + (1 - beta) * mean",
            "beta * state.m + mean",
        ),
        ("algorithms/server_rules.py", 'getattr(self, "tau", 0.0) ** 2', "0.0"),
        (
            "algorithms/server_rules.py",
            "torch.cat([direction, mean[d:]])",
            "torch.cat([direction, 0 * mean[d:]])",
        ),
    ],
    "fedyogi": [
        (
            "algorithms/server_rules.py",
            "square * torch.sign(state.v - square)",
            "(square - state.v)",
        ),
        (
            "algorithms/server_rules.py",
            "state.v - (1 - self.betas[1]) * square * torch",
            "state.v + (1 - self.betas[1]) * square * torch",
        ),
    ],
    "fedadagrad": [
        (
            "algorithms/server_rules.py",
            "state.v + mean[: federation.dim].square()",
            "state.v",
        ),
        (
            "algorithms/server_rules.py",
            "state.v + mean[: federation.dim].square()",
            "mean[: federation.dim].square()",
        ),
    ],
}

RULES = (FedAvgM, FedAdam, FedYogi, FedAdagrad)


@pytest.mark.in_turn(but="batch_norm")
@pytest.mark.parametrize("make", [logistic, batch_norm, dropout])
def test_fedavgm_without_momentum_is_fedavg_bit_by_bit(make):
    one, other = (
        run(FedAvgM(MINI, beta=0.0, lr=0.7), make()),
        run(FedAvg(MINI, lr=0.7), make()),
    )
    assert torch.equal(one.x, other.x)
    assert one.history == other.history


@pytest.mark.parametrize(("method", "first", "second"), [
    (FedAvgM(ONE, beta=0.9), 1.0, 2.9),
    (FedAdam(ONE), 0.099005, 0.232741),
    (FedYogi(ONE), 0.099005, 0.232409),
    (FedAdagrad(ONE), 0.099900, 0.170561),
])  # fmt: skip
def test_two_steps_along_one_direction_by_hand(method, first, second):
    federation = AlwaysOne()
    state, places = method.init(torch.zeros(1, dtype=torch.float64), federation), []
    for _ in range(2):
        state, _ = method.round(state, federation, None)
        places.append(float(state.x))
    assert places == pytest.approx([first, second], abs=5e-7)


class AlwaysOne:
    """A federation of one client, whose update of a model of one number is 1."""

    dim, clients, round = 1, ("a",), 1

    def average(self, clients, task, **payload):
        delta = torch.ones(1, dtype=torch.float64)
        return SimpleNamespace(
            delta=delta, weights=delta, by_client=lambda values: {"a": float(values)}
        )


@pytest.mark.in_turn(but=("FedAdam-1-batch_norm", "FedAdagrad-2-logistic"))
@pytest.mark.parametrize("make", [logistic, batch_norm])
@pytest.mark.parametrize(
    ("rule", "factor"), [(FedAdam, 1), (FedYogi, 2), (FedAdagrad, 2)]
)
def test_a_large_tau_without_momentum_is_fedavg_with_another_rate(rule, factor, make):
    tau, rate = 1e7, 0.6
    beta = {"beta": 0.0} if rule is FedAdagrad else {"betas": (0.0, 0.0)}
    found = trained(rule(FULL, lr=factor * tau * rate, tau=tau, **beta), make())
    assert_close(found.x, trained(FedAvg(FULL, lr=rate), make()).x, 1e-6)


@pytest.mark.in_turn(but="FedAdam")
@pytest.mark.parametrize("rule", RULES)
def test_uniform_weights_count_clients_alike(rule):
    problem = quadratic({"a": [1.0], "b": [4.0]}, {"a": 30, "b": 10})
    local = LocalSGD(lr=0.25, steps=Steps(1), batch_size=None)
    whole, equal = (
        run(rule(local, weights=w), problem, 1).weights["*"]
        for w in ("size", "uniform")
    )
    assert whole == {"a": 0.75, "b": 0.25}
    assert equal == {"a": 0.5, "b": 0.5}
    by_rows, alike = (
        trained(rule(local, weights=w), problem, 30).x for w in ("size", "uniform")
    )
    assert float(by_rows) < float(alike) - 0.01


@pytest.mark.parametrize(("fields", "sentence"), [
    ((FedAvgM, {"beta": 1.0}), r"FedAvgM.beta must be in \[0, 1\); got 1"),
    ((FedAvgM, {"weights": "rows"}), r"FedAvgM.weights must be size \| uniform; got 'rows'"),
    ((FedAdam, {"betas": (0.9, 1.0)}), r"FedAdam.betas must be two numbers in \[0, 1\); got \(0.9, 1.0\)"),
    ((FedYogi, {"tau": 0}), r"FedYogi.tau must be a number > 0 and <= 1e15; got 0"),
    ((FedAdagrad, {"lr": -1}), r"FedAdagrad.lr must be a number > 0; got -1"),
])  # fmt: skip
def test_bad_settings_are_refused_with_the_reason(fields, sentence):
    rule, values = fields
    with pytest.raises(InputError, match=sentence):
        rule(**values)


def test_a_wrong_setting_ends_the_command_with_status_2(capsys, tmp_path):
    assert_refused_by_the_command(
        "fedadam",
        "fedadam.tau=0",
        "FedAdam.tau must be a number > 0 and <= 1e15; got 0",
        capsys,
        tmp_path,
    )


@pytest.mark.parametrize("name", ["FedAvgM", "FedAdam", "FedYogi", "FedAdagrad"])
def test_rounds_written_in_numpy(name):
    problem, lr, tau, (b1, b2) = logistic(), 0.2, 0.05, (0.8, 0.7)
    fields = {"FedAvgM": {"beta": b1}, "FedAdagrad": {"beta": b1, "tau": tau}}.get(
        name, {"betas": (b1, b2), "tau": tau}
    )
    method = {rule.__name__: rule for rule in RULES}[name](LOCAL, lr=lr, **fields)
    x = start(problem).numpy()
    m, v = np.zeros_like(x), np.full_like(x, tau**2)
    for number in range(1, 4):
        mean = sum(
            SIZES[n] / 60 * (sgd(x, problem, n, number, steps=3) - x) for n in SIZES
        )
        if name == "FedAvgM":
            m = b1 * m + mean
            x = x + lr * m
            continue
        m = b1 * m + (1 - b1) * mean
        if name == "FedAdam":
            v = b2 * v + (1 - b2) * mean**2
        elif name == "FedYogi":
            v = np.where(v > mean**2, v - (1 - b2) * mean**2, v + (1 - b2) * mean**2)
        else:
            v = v + mean**2
        x = x + lr * m / (np.sqrt(v) + tau)
    np.testing.assert_allclose(trained(method, problem, 3).x.numpy(), x, rtol=1e-10)

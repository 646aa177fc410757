"""solvers.appeal against autograd, exact asymptotics and the two-client toy of the paper."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.solvers import appeal

quick = settings(deadline=None, derandomize=True)
gaps = st.lists(
    st.floats(-20, 20).filter(lambda gap: abs(gap) > 1e-3), min_size=1, max_size=8
)


@quick
@given(gaps, st.sampled_from(appeal.SURROGATES))
def test_weights_are_the_slope_of_the_objective(gap, surrogate):
    gap, h = np.array(gap), 1e-6
    for k in range(len(gap)):
        step = h * np.eye(len(gap))[k]
        up, down = (
            appeal.objective(gap + sign * step, surrogate=surrogate) for sign in (1, -1)
        )
        expected = float(up - down) / (2 * h) * len(gap)
        tolerance = 1e-6 * max(1.0, math.exp(gap.max()) if surrogate == "exp" else 1.0)
        assert float(appeal.weights(gap, surrogate=surrogate)[k]) == pytest.approx(
            expected, rel=1e-5, abs=tolerance
        )


def test_sigmoid_keeps_its_digits_far_out():
    got = appeal.weights([40.0, -40.0, 700.0, 1e3, -1e3, 0.0])
    expected = [math.exp(-40) / (1 + math.exp(-40)) ** 2] * 2 + [
        math.exp(-700),
        0.0,
        0.0,
        0.25,
    ]
    np.testing.assert_allclose(got, expected, rtol=1e-13)
    assert appeal.objective([1e3, -1e3]).item() == 0.5


@pytest.mark.parametrize("surrogate", ["relu", "log"])
def test_convex_surrogates_saturate_at_one(surrogate):
    np.testing.assert_allclose(
        appeal.weights([1e3, -1e3], surrogate=surrogate), [1.0, 0.0]
    )
    np.testing.assert_allclose(
        appeal.objective([1e3, -1e3], surrogate=surrogate), 500.0
    )


def test_values_of_each_surrogate():
    expected = {
        "sigmoid": 2 / 3,
        "relu": math.log(2),
        "exp": 2.0,
        "log": math.log(3),
        "linear": math.log(2),
    }
    for surrogate, value in expected.items():
        assert appeal.objective(
            [math.log(2)], surrogate=surrogate
        ).item() == pytest.approx(value, rel=1e-15)
    assert appeal.weights([0.0], surrogate="relu").item() == 1.0


@pytest.mark.parametrize("surrogate", appeal.SURROGATES)
@pytest.mark.parametrize("squared", [0.2, 1.0, 1.09, 2.0, 10.0])
def test_the_midpoint_of_two_clients(surrogate, squared):
    """Gaps (x -+ g)^2: x = 0 is a minimum iff g^2 tanh(g^2 / 2) < 1/2 for the sigmoid, always for a convex h (Lemma A.2)."""
    g, h = math.sqrt(squared), 1e-3

    def value(x):
        return appeal.objective(
            [(x - g) ** 2, (x + g) ** 2], surrogate=surrogate
        ).item()

    is_minimum = value(h) + value(-h) > 2 * value(0.0)
    assert is_minimum == (
        surrogate != "sigmoid" or squared * math.tanh(squared / 2) < 0.5
    )


def test_dtype_and_shapes():
    gap = torch.tensor([0.5, -0.5], requires_grad=True)
    assert appeal.weights(gap).dtype is torch.float32
    assert appeal.objective(gap).shape == ()
    assert appeal.weights([]).shape == (0,)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: appeal.weights([math.nan]),
            "gap must be finite; got 1 NaN or Inf among 1 values",
        ),
        (lambda: appeal.weights(3.0), r"gap must be a vector \[n\]; got shape \[\]"),
        (lambda: appeal.objective([]), "gap must have at least one entry; got none"),
        (
            lambda: appeal.weights([0.0], surrogate="hinge"),
            "surrogate must be one of sigmoid, relu, exp, log, linear; got 'hinge'",
        ),
        (
            lambda: appeal.objective([1e3], surrogate="exp"),
            r"gap must be small enough for exp\(gap\) .* got a gap of 1000",
        ),
    ],
)
def test_bad_input_is_named(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()

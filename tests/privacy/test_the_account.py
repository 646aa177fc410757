"""mu of Gaussian events, what it is in epsilon and delta, and how much noise an epsilon needs, against other ways there."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.base.errors import InputError
from coterie.base.privacy import (
    check_delta,
    delta_of,
    epsilon_of,
    mills_ratio,
    mu_of,
    noise_multiplier,
    total_mu,
    usual_delta,
)

DELTA = 1e-5


def test_the_printed_numbers():
    assert noise_multiplier(8, DELTA, 60) == pytest.approx(4.6494, abs=1e-4)
    assert epsilon_of(total_mu([1 / 4] * 60), DELTA) == pytest.approx(9.6084, abs=1e-4)
    assert epsilon_of(1.0, DELTA) == pytest.approx(4.3772, abs=1e-4)
    assert epsilon_of(20.0, DELTA) == pytest.approx(284, abs=0.5)


BELOW, ABOVE, STEP = 2**12, 2**13, 4e-3
LOSSES = (np.arange(BELOW + ABOVE) - BELOW) * STEP


def composed_delta(events, epsilon):
    """delta of events from the distribution of their privacy losses, each N(mu^2 / 2, mu^2), added one by one on a grid."""
    spectrum = np.ones(len(LOSSES) // 2 + 1, dtype=complex)
    for mu in events:
        density = np.exp(-(((LOSSES - mu * mu / 2) / mu) ** 2) / 2)
        spectrum *= np.fft.rfft(np.roll(density / density.sum(), -BELOW))
    loss = np.roll(np.fft.irfft(spectrum), BELOW)
    gain = -np.expm1(np.minimum(epsilon - LOSSES, 0))
    return float((gain * loss).sum())


def test_random_lists_of_events_compose_as_their_privacy_losses_do():
    rng = np.random.default_rng(0)
    for _ in range(100):
        events = rng.uniform(0.05, 0.8, rng.integers(1, 9)).tolist()
        epsilon = epsilon_of(total_mu(events), 1e-4)
        assert composed_delta(events, epsilon) == pytest.approx(1e-4, rel=5e-3)
        # An epsilon that is off by a thousandth would be seen.
        assert composed_delta(events, epsilon * 1.005) < 1e-4


@given(st.floats(1e-3, 60), st.floats(1e-12, 0.4))
def test_mu_is_the_inverse_of_epsilon_and_never_claims_too_little(mu, delta):
    epsilon = epsilon_of(mu, delta)
    if epsilon:
        assert mu_of(epsilon, delta) == pytest.approx(mu, rel=1e-6)
        assert epsilon_of(mu_of(epsilon, delta), delta) <= epsilon * (1 + 1e-9)
    assert delta_of(mu, epsilon) <= delta


@given(st.floats(0.01, 50), st.floats(0, 100), st.floats(0, 10))
def test_delta_falls_in_epsilon_and_rises_in_mu(mu, epsilon, more):
    at = delta_of(mu, epsilon)
    assert 0 <= at <= 1
    assert delta_of(mu, epsilon + more) <= at * (1 + 1e-9)
    assert delta_of(mu + more, epsilon) >= at * (1 - 1e-9)


def test_tails_are_not_lost_where_the_normal_distribution_is_0():
    assert delta_of(0.3, 6.0) > 0
    assert math.isfinite(delta_of(1000.0, 1.0))
    assert mills_ratio(8.0) == pytest.approx(mills_ratio(math.nextafter(8.0, 0)))
    assert epsilon_of(math.inf, DELTA) == math.inf
    assert epsilon_of(0.0, DELTA) == 0.0


def test_a_hundred_thousand_events_are_composed_at_once():
    epsilon = epsilon_of(total_mu([0.01] * 100_000), DELTA)
    assert epsilon == pytest.approx(epsilon_of(10**0.5, DELTA))


def test_a_delta_of_one_in_n_or_more_is_refused_and_the_cure_is_taken():
    with pytest.raises(InputError, match=r"take less than 1 / 200, such as 0\.0005"):
        check_delta(1 / 200, 200, "delta")
    check_delta(usual_delta(200), 200, "delta")
    with pytest.raises(InputError, match="between 0 and 1"):
        epsilon_of(1.0, 0.0)
    with pytest.raises(InputError, match="epsilon must be"):
        mu_of(-1.0, DELTA)

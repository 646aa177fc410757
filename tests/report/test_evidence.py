"""The rule of verdicts against computations that share no code with it, and against its limits."""

from itertools import combinations

import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm, t

from coterie.report.evidence import (
    UNSURE,
    WORDS,
    Gain,
    Mixture,
    _factor_odd,
    foresee,
    share,
    state,
    together,
    vetoes,
)

TAUS = [0.0, *[0.002 * 500 ** (k / 16) for k in range(17)]]


def tau_weights() -> list[float]:
    widths = [TAUS[1] - TAUS[0]]
    widths += [(TAUS[k + 1] - TAUS[k - 1]) / 2 for k in range(1, len(TAUS) - 1)]
    widths += [TAUS[-1] - TAUS[-2]]
    return [
        width * np.exp(-(tau**2) / (2 * 0.05**2))
        for tau, width in zip(TAUS, widths, strict=True)
    ]


def gains(estimates, spreads, rows=100) -> list[Gain]:
    return [
        Gain(float(y), (float(s) - 1e-6) / 1.2, rows)
        for y, s in zip(estimates, spreads, strict=True)
    ]


def by_density(y, s, most_odd) -> list[tuple[float, float, float]]:
    """Mean, variance and P(> 0) of each client from explicit joint normals of (gains, estimates), set by set."""
    m = len(y)
    noise = np.array(
        [[s[i] * s[j] * (1.0 if i == j else 0.1) for j in range(m)] for i in range(m)]
    )
    total, results = 0.0, np.zeros((m, 3))
    for size in range(most_odd + 1):
        for odd in combinations(range(m), size):
            for tau, weight in zip(TAUS, tau_weights(), strict=True):
                prior = np.zeros((m, m))
                for i in range(m):
                    for j in range(m):
                        prior[i, j] = 0.25 * (i not in odd and j not in odd)
                        prior[i, j] += (i == j) * (0.09 if i in odd else tau**2)
                density = multivariate_normal.pdf(y, np.zeros(m), prior + noise)
                share_of = weight * 0.1**size * 0.9 ** (m - size) * density
                mean = prior @ np.linalg.solve(prior + noise, y)
                variance = np.diag(
                    prior - prior @ np.linalg.solve(prior + noise, prior)
                )
                total += share_of
                results += share_of * np.stack(
                    [mean, variance + mean**2, norm.sf(0, mean, np.sqrt(variance))],
                    axis=1,
                )
    results /= total
    return [(mean, square - mean**2, positive) for mean, square, positive in results]


@pytest.mark.parametrize(("m", "most_odd"), [(1, 0), (2, 0), (3, 1), (5, 1), (6, 2)])
def test_shared_evidence_is_that_of_explicit_joint_densities(
    m: int, most_odd: int
) -> None:
    rng = np.random.default_rng(m)
    y, s = 0.05 * rng.standard_normal(m) + 0.02, 0.01 + 0.04 * rng.random(m)
    for posterior, (mean, variance, positive) in zip(
        share(gains(y, s)), by_density(y, s, most_odd), strict=True
    ):
        assert posterior.mean == pytest.approx(mean, abs=1e-8)
        assert posterior.deviation == pytest.approx(np.sqrt(variance), abs=1e-8)
        assert posterior.above(0.0) == pytest.approx(positive, abs=1e-8)


def test_two_clients_agree_with_integration_over_a_grid_of_both_gains() -> None:
    y, s = np.array([0.06, -0.01]), np.array([0.03, 0.02])
    axis = np.linspace(-0.15, 0.2, 701)
    first, second = np.meshgrid(axis, axis, indexing="ij")
    noise = np.array([[s[0] ** 2, 0.1 * s[0] * s[1]], [0.1 * s[0] * s[1], s[1] ** 2]])
    likelihood = multivariate_normal.pdf(np.stack([first, second], axis=-1), y, noise)
    step = axis[1] - axis[0]
    posterior = np.zeros_like(first)
    for tau, weight in zip(TAUS, tau_weights(), strict=True):
        if tau == 0.0:  # both gains are the same
            prior = np.diag(norm.pdf(axis, 0, 0.5) / step)
        else:
            covariance = 0.25 * np.ones((2, 2)) + tau**2 * np.eye(2)
            prior = multivariate_normal.pdf(
                np.stack([first, second], axis=-1), [0, 0], covariance
            )
        posterior += weight * prior * likelihood
    posterior /= posterior.sum()
    shared = share(gains(y, s))
    assert shared[0].mean == pytest.approx(float((posterior * first).sum()), abs=1e-4)
    positive = (
        posterior[second > step / 2].sum()
        + posterior[np.abs(second) < step / 2].sum() / 2
    )
    assert shared[1].above(0.0) == pytest.approx(float(positive), abs=1e-3)


def test_many_clients_agree_with_all_sets_of_odd_clients() -> None:
    """The form for more than 20 clients against the enumeration of every set, for as few as can be enumerated."""
    rng = np.random.default_rng(3)
    y, s = (
        np.array([0.03, 0.05, 0.02, 0.04, 0.03, -0.3, 0.06]),
        0.01 + 0.02 * rng.random(7),
    )
    for posterior, (mean, variance, positive) in zip(
        _factor_odd(y, s), by_density(y, s, 7), strict=True
    ):
        assert posterior.mean == pytest.approx(mean, abs=1e-3)
        assert posterior.deviation == pytest.approx(np.sqrt(variance), rel=0.03)
        assert posterior.above(0.0) == pytest.approx(positive, abs=0.003)


def test_forty_nine_hospitals_are_found_alike_but_for_those_that_are_not() -> None:
    rng = np.random.default_rng(0)
    truth = np.full(49, 0.05)
    truth[:4] = -0.3
    shared = share(gains(truth + 0.06 * rng.standard_normal(49), np.full(49, 0.06)))
    assert all(posterior.above(0.0) < 0.1 for posterior in shared[:4])
    assert sum(posterior.above(0.0) > 0.8 for posterior in shared[4:]) >= 40


@pytest.mark.parametrize("count", [1, 2, 6, 20, 21, 49])
def test_without_error_the_estimate_is_the_answer(count: int) -> None:
    y = 0.03 + 0.05 * np.random.default_rng(count).standard_normal(count)
    for posterior, value in zip(share(gains(y, np.full(count, 1e-5))), y, strict=True):
        assert posterior.mean == pytest.approx(value, abs=1e-4)
        assert posterior.deviation < 5e-4


def test_without_evidence_nothing_is_known() -> None:
    [posterior] = share(gains([0.0], [50.0]))
    assert posterior.above(0.0) == pytest.approx(0.5, abs=0.01)
    assert state(Gain(0.0, 50.0, 100), posterior).word == "undecided"


@pytest.mark.parametrize(
    ("mean", "deviation", "estimate", "word"),
    [
        (0.05, 0.02, 0.05, "join"),
        (0.02, 0.015, 0.02, "probably join"),
        (0.009, 0.001, 0.009, "safe to join"),
        (-0.05, 0.02, -0.05, "stay alone"),
        (-0.02, 0.015, -0.02, "probably stay alone"),
        (0.0, 0.005, 0.0, "safe to join"),
        (0.0, 0.005, -0.03, "undecided"),  # the client's own rows do not speak for it
        (0.0, 0.05, 0.0, "undecided"),
    ],
)
def test_words(mean: float, deviation: float, estimate: float, word: str) -> None:
    posterior = Mixture(np.ones(1), np.array([mean]), np.array([deviation**2]))
    statement = state(Gain(estimate, deviation / 1.2, 100), posterior)
    assert statement.word == word
    assert statement.low < mean < statement.high


def test_the_smallest_effect_applies_to_every_word() -> None:
    posterior = Mixture(np.ones(1), np.array([0.05]), np.array([0.01**2]))
    gain = Gain(0.05, 0.01, 100)
    assert [state(gain, posterior, d).word for d in (0.01, 0.1)] == [
        "join",
        "safe to join",
    ]
    harm = Mixture(np.ones(1), np.array([-0.05]), np.array([0.01**2]))
    assert [state(Gain(-0.05, 0.01, 100), harm, d).word for d in (0.01, 0.1)] == [
        "stay alone",
        "safe to join",
    ]


def test_small_clients_together_have_an_error_clustered_by_client() -> None:
    members = [Gain(y, 0.1, n) for y, n in ((0.1, 10), (0.3, 20), (0.2, 10))]
    group, distribution = together(members)
    mean = (1.0 + 6.0 + 2.0) / 40
    square = (
        3
        / 2
        * sum((n * (y - mean)) ** 2 for y, n in ((0.1, 10), (0.3, 20), (0.2, 10)))
        / 1600
    )
    assert (group.estimate, group.rows) == (pytest.approx(mean), 40)
    assert group.error == pytest.approx(np.sqrt(square))
    assert distribution.above(0.0) == pytest.approx(t.cdf(mean / group.spread, 2))
    half = t.ppf(0.975, 2) * group.spread
    assert distribution.interval == (
        pytest.approx(mean - half),
        pytest.approx(mean + half),
    )


def test_ranking_vetoes_only_where_it_is_shown_to_suffer() -> None:
    assert vetoes(Mixture(np.ones(1), np.array([-0.05]), np.array([0.01**2])))
    assert not vetoes(Mixture(np.ones(1), np.array([-0.005]), np.array([0.001**2])))
    assert not vetoes(Mixture(np.ones(1), np.array([-0.05]), np.array([0.1**2])))


def test_the_heaviest_components_keep_their_order_on_every_processor() -> None:
    weights = np.random.default_rng(0).dirichlet(np.ones(2000))
    mixture = Mixture(weights, np.arange(2000.0), np.ones(2000))
    kept = mixture.heaviest(400)
    assert kept.means.tolist() == sorted(np.argsort(weights)[-400:])
    assert kept.weights == pytest.approx(
        weights[kept.means.astype(int)] / np.sort(weights)[-400:].sum()
    )


def test_rows_that_settle_grow_with_the_error_and_settle_as_often_as_said() -> None:
    settled = {}
    for error in (0.02, 0.06):
        gain = Gain(0.03, error, 100)
        settled[error] = foresee(gain, share([gain])[0]).rows
    assert settled[0.02] < settled[0.06]
    gain = Gain(0.03, 0.06, 100)
    [posterior] = share([gain])
    outlook = foresee(gain, posterior)
    rng = np.random.default_rng(1)
    decided = 0
    for _ in range(300):
        at = rng.choice(len(posterior.weights), p=posterior.weights)
        truth = rng.normal(posterior.means[at], np.sqrt(posterior.variances[at]))
        new = rng.normal(truth, gain.spread * np.sqrt(100 / outlook.rows))
        both = Gain(
            (100 * 0.03 + outlook.rows * new) / (100 + outlook.rows),
            0.0,
            100 + outlook.rows,
        )
        both = both._replace(error=gain.error * np.sqrt(100 / both.rows))
        decided += state(both, share([both])[0]).word != "undecided"
    assert decided / 300 == pytest.approx(0.85, abs=0.1)
    certain = foresee(gain, posterior, open_words=UNSURE).rows
    assert certain is None or certain >= outlook.rows
    assert set(next(iter(outlook.words.values()))) <= set(WORDS)
    assert all(
        sum(chances.values()) == pytest.approx(1.0)
        for chances in outlook.words.values()
    )


def test_rows_show_whether_a_safe_join_gains_or_that_no_gain_matters() -> None:
    gain = Gain(0.004, 0.005, 300)
    [posterior] = share([gain])
    assert state(gain, posterior).word == "safe to join"
    assert not state(gain, posterior).bounded
    open_words = (*UNSURE, "safe to join")
    outlook = foresee(gain, posterior, open_words=open_words)
    rng = np.random.default_rng(1)
    closed = 0
    for _ in range(300):
        at = rng.choice(
            len(posterior.weights), p=posterior.weights / posterior.weights.sum()
        )
        truth = rng.normal(posterior.means[at], np.sqrt(posterior.variances[at]))
        new = rng.normal(truth, gain.spread * np.sqrt(300 / outlook.rows))
        both = Gain(
            (300 * 0.004 + outlook.rows * new) / (300 + outlook.rows),
            0.0,
            300 + outlook.rows,
        )
        both = both._replace(error=gain.error * np.sqrt(300 / both.rows))
        after = state(both, share([both])[0])
        closed += after.word not in open_words or after.bounded
    assert closed / 300 == pytest.approx(0.85, abs=0.1)


def test_a_single_model_is_less_sure_than_the_mean_over_training_sets() -> None:
    posterior = share([Gain(0.03, 0.01, 200), Gain(0.02, 0.01, 200)])[0]
    single = posterior.widen(0.0075**2)
    assert single.mean == posterior.mean
    assert single.deviation**2 == pytest.approx(posterior.deviation**2 + 0.0075**2)
    assert 0.5 < single.above(0.0) < posterior.above(0.0)

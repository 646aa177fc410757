"""The rule of verdicts against computations that share no code with it, and against its limits."""

from itertools import product

import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm

from coterie.report.evidence import (
    SIZE_EXPONENTS,
    WORDS,
    Gain,
    Mixture,
    foresee,
    moderate_errors,
    pool_errors,
    rows_of_one_own,
    share,
    smallest_effect,
    state,
    vetoes,
)

TAUS = [0.0, *[0.002 * 500 ** (k / 16) for k in range(17)]]


def tau_weights() -> list[tuple[float, float]]:
    """Every second tau with the weight that it has among all."""
    widths = [TAUS[1] - TAUS[0]]
    widths += [(TAUS[k + 1] - TAUS[k - 1]) / 2 for k in range(1, len(TAUS) - 1)]
    widths += [TAUS[-1] - TAUS[-2]]
    weighted = [
        (tau, width * np.exp(-(tau**2) / (2 * 0.05**2)))
        for tau, width in zip(TAUS, widths, strict=True)
    ]
    return weighted[::2]


def gains(estimates, spreads, rows=100) -> list[Gain]:
    sizes = np.broadcast_to(rows, np.shape(estimates))
    return [
        Gain(float(y), (float(s) - 1e-6) / 1.2, int(n))
        for y, s, n in zip(estimates, spreads, sizes, strict=True)
    ]


def by_density(y, s, n, exponents=SIZE_EXPONENTS) -> list[tuple[float, float, float]]:
    """Mean, variance and P(> 0) of each client from explicit joint normals of (gains, estimates), kind by kind."""
    m = len(y)
    total, results = 0.0, np.zeros((m, 3))
    for exponent in exponents:
        f = np.clip((n / np.exp(np.log(n).mean())) ** exponent, 0.2, 5)
        noise = np.outer(f * s, f * s) * (0.1 + 0.9 * np.eye(m))
        for tau, weight in tau_weights():
            for kinds in product((True, False), repeat=m):
                usual = np.array(kinds)
                own = np.where(usual, tau**2, (0.3 * f) ** 2)
                prior = 0.25 * np.outer(usual, usual) + np.diag(own)
                likelihood = multivariate_normal.pdf(f * y, np.zeros(m), prior + noise)
                of_kinds = 0.8 ** usual.sum() * 0.2 ** (m - usual.sum())
                share_of = weight * of_kinds * likelihood * f.prod()
                gain = np.linalg.solve(prior + noise, prior).T
                mean = gain @ (f * y) / f
                variance = np.diag(prior - gain @ prior) / f**2
                total += share_of
                above = norm.sf(0, mean, np.sqrt(variance))
                results += share_of * np.stack([mean, variance + mean**2, above], 1)
    results /= total
    return [(mean, square - mean**2, positive) for mean, square, positive in results]


@pytest.mark.parametrize("m", [1, 2, 3, 5])
def test_shared_evidence_is_that_of_explicit_joint_densities(m: int) -> None:
    rng = np.random.default_rng(m)
    y, s = 0.05 * rng.standard_normal(m) + 0.02, 0.01 + 0.04 * rng.random(m)
    n = rng.integers(40, 400, m)
    for posterior, (mean, variance, positive) in zip(
        share(gains(y, s, n)), by_density(y, s, n), strict=True
    ):
        # The common error is cut at 2 of its deviations, and mu is on a grid.
        assert posterior.mean == pytest.approx(mean, abs=2e-3)
        assert posterior.deviation == pytest.approx(np.sqrt(variance), rel=0.03)
        assert posterior.above(0.0) == pytest.approx(positive, abs=0.015)


def test_one_odd_client_among_many_does_not_move_the_others() -> None:
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


def test_gains_and_margins_have_one_unit() -> None:
    """A rare outcome is judged as a common one whose losses are a tenth."""
    y, s, n = [0.03, 0.01, -0.02], [0.02, 0.015, 0.03], [60, 100, 200]
    usual = share(gains(y, s, n), [0.01] * 3)
    rare = share(
        [g._replace(estimate=g.estimate / 10, error=(g.spread / 10 - 1e-6) / 1.2) for g in gains(y, s, n)],
        [0.001] * 3,
    )  # fmt: skip
    for one, tenth in zip(usual, rare, strict=True):
        assert tenth.mean == pytest.approx(one.mean / 10)
        assert tenth.above(0.0) == pytest.approx(one.above(0.0))


def test_small_clients_may_gain_more() -> None:
    """Gains that fall with the rows: a small client whose rows say nothing is expected to gain more than a large one."""
    n = np.array([50, 50, 50, 100, 100, 400, 400, 400])
    y, s = 4.0 / n, np.where(n == 100, 0.005, 0.003)
    small, large = Gain(0.0, 1.0, 50), Gain(0.0, 1.0, 400)
    told = share([*gains(y, s, n), small, large])
    assert told[-2].mean > told[-1].mean + 0.02
    alike = share([*gains(y, s, n), small, large], exponents=(0.0,))
    assert alike[-2].mean == pytest.approx(alike[-1].mean)


def test_posteriors_of_some_clients_are_those_of_all() -> None:
    evidence = gains([0.03, 0.01, -0.02], [0.02, 0.015, 0.03], [60, 100, 200])
    [chosen] = share(evidence, places=[1])
    assert chosen.mean == share(evidence)[1].mean


def test_errors_are_drawn_half_way_to_their_mean() -> None:
    told = moderate_errors([Gain(0.1, 0.1, 100), Gain(0.2, 0.4, 25)])
    logs = np.log([1.0, 4.0])  # variances of a row's difference
    for gain, log in zip(told, logs, strict=True):
        assert np.log(gain.variance) == pytest.approx((log + logs.mean()) / 2)
    assert [gain.estimate for gain in told] == [0.1, 0.2]
    alone = moderate_errors([Gain(0.1, 0.1, 100)])
    assert alone[0].error == pytest.approx(0.1)


def test_small_clients_share_one_variance() -> None:
    told = pool_errors([Gain(0.1, 0.1, 10), Gain(0.2, 0.3, 20)])
    assert [g.variance for g in told] == pytest.approx([0.95, 0.95])


@pytest.mark.parametrize("p", [0.5, 0.2, 0.01])
def test_the_smallest_effect_is_that_of_the_information(p: float) -> None:
    rows = 1e7
    assert smallest_effect([rows * p, rows * (1 - p)]) == pytest.approx(
        0.04 * p * (1 - p), rel=1e-4
    )
    assert smallest_effect([rows, rows, rows]) == pytest.approx(0.01)
    assert smallest_effect([rows * p, rows * (1 - p)], 0.02) == pytest.approx(
        0.08 * p * (1 - p), rel=1e-4
    )
    assert smallest_effect([0, 100]) > 0


def test_with_three_times_its_rows_a_client_hardly_needs_partners() -> None:
    assert rows_of_one_own(100, 0.03, 0.01) == 200
    assert rows_of_one_own(100, 0.04, 0.01) == 300
    assert rows_of_one_own(100, 0.05, 0.01) is None  # 400 nobody collects
    assert rows_of_one_own(100, 0.01, 0.01) is None  # it needs none


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


@pytest.mark.in_turn
def test_rows_that_settle_grow_with_the_error_and_settle_as_often_as_said() -> None:
    settled = {}
    for error in (0.01, 0.02):
        gain = Gain(0.012, error, 100)
        settled[error] = foresee(gain, share([gain])[0]).rows
    assert settled[0.01] < (settled[0.02] or 1000)
    gain = Gain(0.012, 0.015, 100)
    [posterior] = share([gain])
    outlook = foresee(gain, posterior)
    assert state(gain, posterior).word == "undecided"
    assert 0 < outlook.rows <= 300
    rng = np.random.default_rng(1)
    left = 100 / (100 + outlook.rows)
    faded = posterior.scale(left)
    decided = 0
    for _ in range(300):
        weights = faded.weights / faded.weights.sum()
        at = rng.choice(len(weights), p=weights)
        truth = rng.normal(faded.means[at], np.sqrt(faded.variances[at]))
        new = rng.normal(truth, gain.spread * np.sqrt(100 / outlook.rows))
        own, further = (left * gain.spread) ** -2, 100 / outlook.rows * gain.spread**2
        precision = own + 1 / further
        estimate = (own * left * gain.estimate + new / further) / precision
        error = (precision**-0.5 - 1e-6) / 1.2
        both = Gain(estimate, error, 100 + outlook.rows)
        decided += state(both, share([both])[0]).word != "undecided"
    assert decided / 300 == pytest.approx(0.8, abs=0.12)
    assert set(next(iter(outlook.words.values()))) <= set(WORDS)
    for chances in outlook.words.values():
        assert sum(chances.values()) == pytest.approx(1.0)


def test_no_number_of_rows_that_nobody_collects() -> None:
    gain = Gain(0.03, 0.2, 100)
    outlook = foresee(gain, share([gain])[0])
    assert outlook.rows is None
    assert max(outlook.words) <= 300


def test_with_endless_rows_of_its_own_a_client_gains_nothing() -> None:
    gain = Gain(0.05, 0.002, 100)
    outlook = foresee(gain, share([gain])[0], further=(10_000,))
    assert outlook.words[10_000].get("safe to join", 0.0) > 0.9


def test_a_single_model_is_less_sure_than_the_mean_over_training_sets() -> None:
    posterior = share([Gain(0.03, 0.01, 200), Gain(0.02, 0.01, 200)])[0]
    single = posterior.widen(0.0075**2)
    assert single.mean == posterior.mean
    assert single.deviation**2 == pytest.approx(posterior.deviation**2 + 0.0075**2)
    assert 0.5 < single.above(0.0) < posterior.above(0.0)

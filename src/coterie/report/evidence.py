"""The rule of verdicts: what the gains of all clients say together about each of them. For readers: docs/statistics.md.

A client's own evidence is an estimate of its gain (positive: better than training alone) and a standard error, `Gain`. The
clients' gains are alike to a degree that the data tell: `share` combines them in a hierarchical model in which a few clients may
be odd, and gives each client a posterior distribution, a mixture of normals (`Mixture`). `state` turns that into one of the
words join, probably join, stay alone, probably stay alone, safe to join and undecided; `rows_to_settle` says how many more rows
of one client would probably settle an undecided one.

Errors are taken 1.2 times as large as the rows alone say, because the rows of one client share its training sets (Bayle et al.
2020; Bates, Hastie and Tibshirani 2023). The spread tau of alike clients has a half-normal prior (Gelman 2006).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

SMALLEST = 0.01
"""The smallest effect of interest: of AUC, of log-loss, and as a share of the variance of the label."""

INFLATION = 1.2
OWN_LUCK = 0.75
"""Of a single model: so many standard errors, squared, are added to the variance; 1.2 and .75 squared make 2 (docs/statistics.md)."""
CORRELATION = 0.1
"""Of the errors of two clients, which are served by models trained together."""
ODD = 0.1
"""Prior probability that a client's gain is unlike those of the others."""
COMMON_SPREAD, ODD_SPREAD, TAU_SPREAD = 0.5, 0.3, 0.05
TAUS = np.array([0.0, *np.geomspace(0.002, 1.0, 17)])
MOST_ENUMERATED = 20
"""Above so many clients the odd ones are not enumerated; given the common terms each client is odd by itself."""
CONFIDENT, PROBABLE, ALONE_CONFIDENT = 0.95, 0.8, 0.7
FACTORS = (1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32)
DRAWS = 400
ROUNDING = 1e-6
"""Amount added to each spread, so that none is 0."""
FEWEST_FREEDOM = 20

Vector = NDArray[np.float64]
Word = Literal[
    "join",
    "probably join",
    "safe to join",
    "stay alone",
    "probably stay alone",
    "undecided",
]


class Gain(NamedTuple):
    """The evidence of the rows of one client alone about one method and metric.

    Attributes:
        estimate: mean gain over training alone; positive is better.
        error: its standard error over rows, not inflated.
        rows: tested rows; patients where a patient has several.
        over_seeds: a standard error over seeds, where a run has no folds.
    """

    estimate: float
    error: float
    rows: int
    over_seeds: float = 0.0

    @property
    def spread(self) -> float:
        """The standard error with which the rule reckons."""
        return max(INFLATION * self.error, self.over_seeds) + ROUNDING

    @property
    def interval(self) -> tuple[float, float]:
        """The client's own 95 % interval."""
        return self.estimate - 1.96 * self.spread, self.estimate + 1.96 * self.spread

    def with_rows(self, rows: float, observed: ArrayLike) -> tuple[Vector, float]:
        """Estimates [draws] and spread after `rows` further rows with the mean gain `observed` [draws]."""
        total = self.rows + rows
        estimate = (
            self.rows * self.estimate + rows * np.asarray(observed, dtype=float)
        ) / total
        return estimate, self.spread * math.sqrt(self.rows / total)


class Mixture(NamedTuple):
    """A mixture of normals, the posterior of one client's gain: weights, means and variances, [components] each.

    `freedom` is that of Student's t in place of the normal, where the evidence is a mean over few clients.
    """

    weights: Vector
    means: Vector
    variances: Vector
    freedom: float = math.inf

    @property
    def mean(self) -> float:
        """Its mean."""
        return float(self.weights @ self.means)

    @property
    def deviation(self) -> float:
        """Its standard deviation."""
        return math.sqrt(
            max(
                float(self.weights @ (self.variances + (self.means - self.mean) ** 2)),
                0.0,
            )
        )

    @property
    def interval(self) -> tuple[float, float]:
        """Its mean plus and minus 1.96 standard deviations; with Student's quantile where `freedom` is finite."""
        from scipy.special import stdtrit

        half = (
            1.96 if math.isinf(self.freedom) else float(stdtrit(self.freedom, 0.975))
        ) * self.deviation
        return self.mean - half, self.mean + half

    def above(self, bound: float) -> float:
        """Probability of more than `bound`."""
        return float(
            self.weights
            @ _upper((self.means - bound) / np.sqrt(self.variances), self.freedom)
        )

    def widen(self, variance: float) -> Mixture:
        """The same with more variance in every component."""
        return self._replace(variances=self.variances + variance)

    def heaviest(self, most: int) -> Mixture:
        """The same with its `most` heaviest components alone, in their order."""
        if len(self.weights) <= most:
            return self
        # Sorted, since the order in which NumPy leaves them differs between processors.
        places = np.sort(np.argpartition(self.weights, -most)[-most:])
        return Mixture(
            self.weights[places] / self.weights[places].sum(),
            self.means[places],
            self.variances[places],
            self.freedom,
        )


def _upper(scaled: Vector, freedom: float = math.inf) -> Vector:
    """Probability that a standard normal, or Student's t, is below `scaled`."""
    from scipy.special import ndtr, stdtr

    return np.asarray(
        ndtr(scaled) if math.isinf(freedom) else stdtr(freedom, scaled), dtype=float
    )


def share(gains: Sequence[Gain]) -> list[Mixture]:
    """Return the posterior of each client's gain under the model of alike and odd clients.

    Args:
        gains: of one method and metric, client by client. A client whose error is 0 tells nothing and must be left out.
    """
    y, s = np.array([g.estimate for g in gains]), np.array([g.spread for g in gains])
    return _enumerate_odd(y, s) if len(y) <= MOST_ENUMERATED else _factor_odd(y, s)


def _log_prior_of_taus() -> Vector:
    edges = np.concatenate(
        [[TAUS[0] - (TAUS[1] - TAUS[0])], TAUS, [TAUS[-1] + (TAUS[-1] - TAUS[-2])]]
    )
    return np.asarray(
        np.log((edges[2:] - edges[:-2]) / 2) - TAUS**2 / (2 * TAU_SPREAD**2)
    )


def _enumerate_odd(y: Vector, s: Vector) -> list[Mixture]:
    m = len(y)
    most_odd = 0 if m <= 2 else 1 if m <= 5 else 2
    sets = [
        is_odd
        for size in range(most_odd + 1)
        for is_odd in combinations(range(m), size)
    ]
    is_odd = np.zeros((len(sets), m), dtype=bool)
    for i, members in enumerate(sets):
        is_odd[i, list(members)] = True
    is_usual = ~is_odd
    joint = COMMON_SPREAD**2 * (
        is_usual[:, :, None] & is_usual[:, None, :]
    )  # [sets, m, m]
    eye = np.eye(m)
    own_variance = np.where(
        is_odd[:, None, :], ODD_SPREAD**2, TAUS[None, :, None] ** 2
    )  # [sets, taus, m]
    prior = joint[:, None] + own_variance[..., None] * eye
    noise = np.outer(s, s) * (CORRELATION + (1 - CORRELATION) * eye)
    total = prior + noise
    inverse = np.linalg.inv(total)
    solved = inverse @ y
    log_weight = (
        _log_prior_of_taus()[None, :]
        + (
            is_odd.sum(axis=1) * math.log(ODD)
            + is_usual.sum(axis=1) * math.log(1 - ODD)
        )[:, None]
        - np.linalg.slogdet(total)[1] / 2
        - (solved @ y) / 2
    )
    weights = _normalise(log_weight.reshape(-1))
    means = (prior @ solved[..., None])[..., 0].reshape(-1, m)
    # S - S V^-1 S and not T - T V^-1 T, whose digits cancel where the errors are small.
    variances = np.diag(noise) - np.einsum("ij,stjk,ki->sti", noise, inverse, noise)
    variances = np.maximum(variances.reshape(-1, m), 1e-14)
    return [Mixture(weights, means[:, i], variances[:, i]) for i in range(m)]


def _factor_odd(y: Vector, s: Vector) -> list[Mixture]:
    """For many clients: given tau, the common effect mu and a common error f, clients are independent."""
    m = len(y)
    common_errors = np.linspace(-3, 3, 13)
    step = math.sqrt((1 - CORRELATION) * float(np.mean(s**2)) / m)
    centre = float(np.median(y))
    reach = float(np.abs(y - centre).max())
    levels = np.unique(
        np.concatenate(
            [
                centre + np.linspace(-10, 10, 41) * step,
                centre + np.linspace(-1, 1, 41) * reach,
            ]
        )
    )
    widths = np.gradient(levels) if len(levels) > 1 else np.ones(1)
    tau, mu, f = (
        a.reshape(-1) for a in np.meshgrid(TAUS, levels, common_errors, indexing="ij")
    )
    log_base = np.add.outer(
        _log_prior_of_taus(), np.log(widths) - levels**2 / (2 * COMMON_SPREAD**2)
    )
    log_base = np.add.outer(log_base, -(common_errors**2) / 2).reshape(-1)
    likelihood = np.zeros(len(tau))
    for i in range(m):
        likelihood += np.logaddexp(
            *(weight for weight, _, _ in _two_kinds(y[i], s[i], tau, mu, f))
        )
    log_given = log_base + likelihood
    keep = log_given > log_given.max() - 12
    tau, mu, f, log_given = tau[keep], mu[keep], f[keep], log_given[keep]
    posteriors = []
    for i in range(m):
        kinds = _two_kinds(y[i], s[i], tau, mu, f)
        evidence = np.logaddexp(kinds[0][0], kinds[1][0])
        weights = _normalise(
            np.concatenate([log_given + weight - evidence for weight, _, _ in kinds])
        )
        means = np.concatenate([mean for _, mean, _ in kinds])
        variances = np.concatenate(
            [np.broadcast_to(variance, mu.shape) for _, _, variance in kinds]
        )
        posteriors.append(Mixture(weights, means, np.maximum(variances, 1e-14)))
    return posteriors


def _two_kinds(
    y: float, s: float, tau: Vector, mu: Vector, f: Vector
) -> list[tuple[Vector, Vector, Vector]]:
    """Return for a client that is alike, and for an odd one, the log of weight times likelihood, and posterior mean and variance."""
    observed, noise = y - math.sqrt(CORRELATION) * s * f, (1 - CORRELATION) * s**2
    kinds = []
    for log_prior, centre, spread in (
        (math.log(1 - ODD), mu, tau**2),
        (math.log(ODD), 0.0 * mu, 0.0 * tau + ODD_SPREAD**2),
    ):
        total = spread + noise
        log_weight = (
            log_prior - np.log(total) / 2 - (observed - centre) ** 2 / (2 * total)
        )
        kinds.append(
            (
                log_weight,
                centre + spread / total * (observed - centre),
                spread * noise / total,
            )
        )
    return kinds


def _normalise(log_weights: Vector) -> Vector:
    weights = np.exp(log_weights - log_weights.max())
    return np.asarray(weights / weights.sum())


def combine(gains: Sequence[Gain]) -> Gain:
    """Return what several tables of one client say together, whose rows are of other patients: weights are 1 / s^2.

    Args:
        gains: of one client, method and metric, a table each; at least one. One without an error that is known weighs nothing.
    """
    bounded = [gain for gain in gains if 0 < gain.error < math.inf]
    if len(bounded) < 2:
        return (bounded or gains)[0]
    weights = np.array([gain.spread**-2 for gain in bounded])
    estimate = float(weights @ [gain.estimate for gain in bounded] / weights.sum())
    spread = 1 / math.sqrt(float(weights.sum()))
    return Gain(
        estimate,
        max(spread - ROUNDING, 0.0) / INFLATION,
        sum(gain.rows for gain in bounded),
    )


def together(gains: Sequence[Gain]) -> tuple[Gain, Mixture]:
    """Return the evidence of several small clients as one group, and its distribution.

    The error is that of a mean over clients (clustered by client), with Student's t for fewer than 20 of them. It is not
    shared with larger clients, which small ones need not resemble.

    Args:
        gains: gains of the members, at least 2.
    """
    sizes, estimates = (
        np.array([g.rows for g in gains], dtype=float),
        np.array([g.estimate for g in gains]),
    )
    total, members = sizes.sum(), len(gains)
    mean = float(sizes @ estimates / total)
    square = (
        members
        / (members - 1)
        * float(((sizes * (estimates - mean)) ** 2).sum())
        / total**2
    )
    over_seeds = (
        math.sqrt(float(((sizes * [g.over_seeds for g in gains]) ** 2).sum())) / total
    )
    group = Gain(mean, math.sqrt(square), int(total), over_seeds)
    freedom = members - 1.0 if members < FEWEST_FREEDOM else math.inf
    return group, Mixture(
        np.ones(1), np.array([mean]), np.array([group.spread**2]), freedom
    )


class Statement(NamedTuple):
    """The statement about one client and method.

    Attributes:
        word: in short.
        probability: of what the word says; of a gain where it is undecided.
        mean, low, high: the gain and its 95 % interval, with what other clients say.
        own: the same interval from the client's own rows.
        bounded: a gain above the smallest effect is excluded, too.
    """

    word: Word
    probability: float
    mean: float
    low: float
    high: float
    own: tuple[float, float]
    bounded: bool = False


def state(gain: Gain, posterior: Mixture, smallest: float = SMALLEST) -> Statement:
    """Return the first statement that holds.

    Args:
        gain: the client's own evidence.
        posterior: of its gain.
        smallest: the smallest effect of interest.
    """
    mean, gaining, safe = (
        posterior.mean,
        posterior.above(0.0),
        posterior.above(-smallest),
    )
    low, high = posterior.interval
    safe_alone = float(
        _upper(np.array((gain.estimate + smallest) / gain.spread), posterior.freedom)
    )
    index = int(
        _first_word(
            np.array([gaining]),
            np.array([mean]),
            np.array([safe]),
            np.array([safe_alone]),
            smallest,
        )[0]
    )
    word = WORDS[index]
    bounded = bool(
        _excludes_gain(
            np.array(index), np.array(safe), np.array(posterior.above(smallest))
        )
    )
    probability = {
        "stay alone": 1 - gaining,
        "probably stay alone": 1 - gaining,
        "safe to join": safe,
    }.get(word, gaining)
    return Statement(word, probability, mean, low, high, gain.interval, bounded)


WORDS: tuple[Word, ...] = (
    "join",
    "probably join",
    "stay alone",
    "probably stay alone",
    "safe to join",
    "undecided",
)
UNSURE: tuple[Word, ...] = ("probably join", "probably stay alone", "undecided")
"""Words that further rows can make certain."""


def _first_word(
    better: Vector, mean: Vector, safe: Vector, safe_alone: Vector, smallest: float
) -> NDArray[np.int64]:
    """The number in `WORDS` of the first statement that holds, of many posteriors at once."""
    conditions = (
        (better >= CONFIDENT) & (mean >= smallest),
        (better >= PROBABLE) & (mean >= smallest),
        (1 - better >= CONFIDENT) & (mean <= -smallest),
        (1 - better >= PROBABLE) & (mean <= -smallest),
        (safe >= CONFIDENT) & (safe_alone >= ALONE_CONFIDENT),
    )
    return np.asarray(
        np.select(conditions, range(len(conditions)), default=len(conditions)),
        dtype=np.int64,
    )


def _excludes_gain(
    index: NDArray[np.int64], safe: Vector, gainful: Vector
) -> NDArray[np.bool_]:
    """Return where the word is *safe to join* and a gain above the smallest effect is excluded, from the probability that no harm above
    it comes, and of such a gain.
    """
    return np.asarray(
        (index == WORDS.index("safe to join")) & (safe - gainful >= CONFIDENT)
    )


def vetoes(ranking: Mixture, smallest: float = SMALLEST) -> bool:
    """Return True if the AUC is shown to suffer, so that a gain in log-loss is no reason to join."""
    return 1 - ranking.above(0.0) >= CONFIDENT and ranking.mean <= -smallest


class Outlook(NamedTuple):
    """The probable effect of further rows.

    Attributes:
        rows: further rows of the client that would probably settle it; None if even 32 times its rows would not.
        words: the probability of each word by the number of further rows.
    """

    rows: int | None
    words: Mapping[int, Mapping[Word, float]]


def foresee(
    gain: Gain,
    posterior: Mixture,
    smallest: float = SMALLEST,
    further: Sequence[int] = (),
    open_words: Sequence[Word] = ("undecided",),
) -> Outlook:
    """Return the probability of each word after further rows of the client, by 400 draws of a fixed seed.

    That more rows of one's own also make training alone better, and so the gain smaller, is not reckoned with.

    Args:
        gain: the client's own evidence.
        posterior: of its gain.
        smallest: the smallest effect of interest.
        further: numbers of rows; by default up to 31 times those it has, until 8 in 10 draws are settled.
        open_words: the words that settle nothing; of these *safe to join* settles it where a gain above the smallest effect is
            excluded, too.
    """
    numbers = tuple(further) or tuple(
        _two_digits(gain.rows * (factor - 1)) for factor in FACTORS
    )
    heavy = posterior.heaviest(DRAWS)
    generator = np.random.default_rng(0)
    component = generator.choice(
        len(heavy.weights), DRAWS, p=heavy.weights / heavy.weights.sum()
    )
    theta = heavy.means[component] + np.sqrt(
        heavy.variances[component]
    ) * generator.standard_normal(DRAWS)
    noise = generator.standard_normal(DRAWS)
    words: dict[int, dict[Word, float]] = {}
    for rows in numbers:
        variance = gain.spread**2 * gain.rows / rows
        observed = theta + math.sqrt(variance) * noise
        index, bounded = _words_after(gain, heavy, rows, observed, variance, smallest)
        words[rows] = {
            word: float((index == i).mean())
            for i, word in enumerate(WORDS)
            if (index == i).any()
        }
        unsettled = (
            np.isin(index, [WORDS.index(word) for word in open_words]) & ~bounded
        )
        if not further and unsettled.mean() <= 1 - PROBABLE:
            return Outlook(rows, words)
    return Outlook(None, words)


def _two_digits(rows: float) -> int:
    """A number of rows, rounded up to two digits."""
    unit = int(10 ** max(0, math.floor(math.log10(rows)) - 1))
    return math.ceil(rows / unit) * unit


def _words_after(
    gain: Gain,
    heavy: Mixture,
    rows: float,
    observed: Vector,
    variance: float,
    smallest: float,
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The word of each draw once `rows` rows with the mean gain `observed` [draws] have come, by Bayes; and whether it is *safe to
    join* with a gain above the smallest effect excluded.
    """
    total = heavy.variances + variance
    gap = observed[:, None] - heavy.means
    log_weight = np.log(heavy.weights) - np.log(total) / 2 - gap**2 / (2 * total)
    weights = np.exp(log_weight - log_weight.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    means = heavy.means + heavy.variances / total * gap
    deviations = np.sqrt(heavy.variances * variance / total)
    estimate, spread = gain.with_rows(rows, observed)

    def above(limit: float) -> Vector:
        return np.asarray(
            (weights * _upper((means - limit) / deviations, heavy.freedom)).sum(axis=1)
        )

    safe, safe_alone = (
        above(-smallest),
        _upper((estimate + smallest) / spread, heavy.freedom),
    )
    index = _first_word(
        above(0.0), (weights * means).sum(axis=1), safe, safe_alone, smallest
    )
    return index, _excludes_gain(index, safe, above(smallest))

"""The rule of verdicts: what the gains of all clients say together about each of them. For readers: docs/statistics.md.

A client's own evidence is an estimate of its gain (positive: better than training alone) and a standard error, `Gain`.

- `moderate_errors` and `pool_errors`: the error of a client is an estimate, too, and clients tell about each other's.
- `share`: a hierarchical model of all gains, in which any client may be odd and small clients may gain more than large
  ones. It gives each client a posterior distribution, a mixture of normals (`Mixture`).
- `state`: one of the words join, probably join, safe to join, undecided, probably stay alone and stay alone.
- `foresee`: how many more rows of one client would probably settle an undecided one.

Errors are taken 1.2 times as large as the rows alone say, because the rows of one client share its training sets (Bayle
et al. 2020; Bates, Hastie and Tibshirani 2023). The spread tau of alike clients has a half-normal prior (Gelman 2006).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

SMALLEST = 0.01
"""The smallest effect of interest: of AUC, as a share of the variance of a label, and of the log-loss of two classes of
equal size; `smallest_effect` says what that is where classes differ in size. The prior is written for this margin."""

INFLATION = 1.2
OWN_LUCK = 0.75
"""Standard errors of luck that a single model has beside that of its training sets: .75 and 1.2 squared make 2."""
CORRELATION = 0.1
"""Of the errors of two clients, which are served by models trained together."""
USUAL = 0.8
"""Prior probability that the gain of a client is like those of the others."""
COMMON_SPREAD, ODD_SPREAD, TAU_SPREAD = 0.5, 0.3, 0.05
TAUS = np.array([0.0, *np.geomspace(0.002, 1.0, 17)])
EVERY = 2
"""Every second tau is used: gains and words do not need more."""
COMMON_ERRORS = np.linspace(-2, 2, 5)
SIZE_EXPONENTS = (0.0, 0.5, 1.0)
"""A gain may be the same at every size, or fall with the root of the rows, or with the rows. The data choose."""
LEAST_FACTOR, MOST_FACTOR = 0.2, 5.0
NEGLIGIBLE = 12.0
"""A component is left out where the log of its weight is so far below that of the heaviest one."""
CONFIDENT, PROBABLE, ALONE_CONFIDENT = 0.95, 0.8, 0.7
FACTORS = (1.5, 2, 3, 4)
MOST_ROWS = 3.0
"""Times its present rows: more rows than that nobody collects, so they are not named."""
DRAWS = 400
ROUNDING = 1e-6
"""Amount added to each spread, so that none is 0."""

Vector = NDArray[np.float64]
Word = Literal[
    "join",
    "probably join",
    "safe to join",
    "stay alone",
    "probably stay alone",
    "undecided",
]


def smallest_effect(counts: Sequence[float], smallest: float = SMALLEST) -> float:
    """Return the smallest effect on the log-loss per row of classes of these sizes.

    It is `smallest` times the information of a row, which is 1 where two classes are equally common: .04 p (1 - p) for two
    classes, where p is the share of one of them. So .01 means an AUC of about .58 at any prevalence.

    Args:
        counts: Rows of each class, at least two.
        smallest: The effect at equal classes, in nats per row.

    >>> round(smallest_effect([50, 50]), 4), round(smallest_effect([990, 10]), 5)
    (0.01, 0.00042)
    """
    # Half a row is added to each class, so that a class without rows does not make every effect matter.
    smoothed = np.asarray(counts, dtype=float) + 0.5
    shares = smoothed / smoothed.sum()
    information = 2 * (1 - float((shares**2).sum()))
    return smallest * min(1.0, information)


def smallest_effect_of_events(
    without: float, events: float, smallest: float = SMALLEST
) -> float:
    """Return the smallest effect on the loss per row of a time to event: .04 times the events per row.

    An event tells of a rate what a row of two classes tells of a share where p (1 - p) is 1: so .01 means a C of about .58.

    Args:
        without: Rows without an event.
        events: Rows with one.
        smallest: The effect on the log-loss of two classes of equal size.

    >>> smallest_effect_of_events(60, 40)
    0.016
    """
    # Half an event is added, so that a client without events does not make every effect matter.
    return 4 * smallest * max(events, 0.5) / max(without + events, 1)


def smallest_effect_of_counts(
    without: float, events: float, smallest: float = SMALLEST
) -> float:
    """Return the smallest effect on the loss per row of a count where a site tells no more than how many rows have an event.

    It is `smallest` times half the deviance of a constant rate, as where rows are here, of Poisson counts with so many rows without
    an event. Counts that vary more have a larger one, so that this is strict.

    Args:
        without: Rows without an event.
        events: Rows with one or more.
        smallest: As a share of half the deviance.

    >>> round(smallest_effect_of_counts(90, 10), 4), round(smallest_effect_of_counts(5, 95), 4)
    (0.0025, 0.0055)
    """
    # Half a row is added on either side, so that no share is 0 or 1.
    share = (events + 0.5) / (without + events + 1)
    mean = -math.log1p(-share)
    counts = np.arange(1, 60)
    log_factorials = np.cumsum(np.log(counts))
    chances = np.exp(counts * math.log(mean) - mean - log_factorials)
    half_deviance = float((chances * counts * np.log(counts / mean)).sum())
    return smallest * half_deviance


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

    @property
    def chance(self) -> float:
        """The probability of a gain by these rows alone."""
        return float(_normal_cdf(np.array(self.estimate / self.spread)))

    @property
    def variance(self) -> float:
        """Variance of the difference of a single row."""
        return self.rows * self.error**2

    def left_after(self, rows: float) -> float:
        """The share of a gain that is left after further rows, which make training alone better: n / (n + N)."""
        return self.rows / (self.rows + rows)

    def spread_of(self, rows: float) -> float:
        """The standard error of the mean gain of other rows of this client."""
        return self.spread * math.sqrt(self.rows / rows)

    def with_rows(self, rows: float, observed: ArrayLike) -> tuple[Vector, float]:
        """Estimates [draws] and spread after `rows` further rows with the mean gain `observed` [draws].

        What the present rows say is said of the gain that is left, and so is its error: both weigh by 1 / s^2.
        """
        left = self.left_after(rows)
        present = (left * self.spread) ** -2
        further = self.spread_of(rows) ** -2
        total = present + further
        weighted = present * left * self.estimate + further * np.asarray(observed)
        return weighted / total, 1 / math.sqrt(total)


class Mixture(NamedTuple):
    """A mixture of normals, the posterior of one client's gain: weights, means and variances, [components] each."""

    weights: Vector
    means: Vector
    variances: Vector

    @property
    def mean(self) -> float:
        """Its mean."""
        return float(self.weights @ self.means)

    @property
    def deviation(self) -> float:
        """Its standard deviation."""
        squares = self.variances + (self.means - self.mean) ** 2
        return math.sqrt(max(float(self.weights @ squares), 0.0))

    @property
    def interval(self) -> tuple[float, float]:
        """Its mean plus and minus 1.96 standard deviations."""
        half = 1.96 * self.deviation
        return self.mean - half, self.mean + half

    def above(self, bound: float) -> float:
        """Probability of more than `bound`."""
        scaled = (self.means - bound) / np.sqrt(self.variances)
        return float(self.weights @ _normal_cdf(scaled))

    def widen(self, variance: float) -> Mixture:
        """The same with more variance in every component."""
        return self._replace(variances=self.variances + variance)

    def scale(self, factor: float) -> Mixture:
        """The distribution of `factor` times the gain."""
        means, variances = factor * self.means, factor**2 * self.variances
        return self._replace(means=means, variances=variances)

    def heaviest(self, most: int) -> Mixture:
        """The same with its `most` heaviest components alone, in their order."""
        if len(self.weights) <= most:
            return self
        # Sorted, since the order in which NumPy leaves them differs between processors.
        places = np.sort(np.argpartition(self.weights, -most)[-most:])
        weights = self.weights[places]
        return Mixture(
            weights / weights.sum(), self.means[places], self.variances[places]
        )


def _normal_cdf(scaled: Vector) -> Vector:
    """Probability that a standard normal is below `scaled`."""
    from scipy.special import ndtr

    return np.asarray(ndtr(scaled), dtype=float)


# Errors


def moderate_errors(gains: Sequence[Gain]) -> list[Gain]:
    """Return the gains with errors that are drawn half way to what the others' suggest.

    The variance of a row's difference is estimated from few rows, and a client that gains by luck has by the same luck a
    small error: of 40 clients the 95 % intervals of .75 held the truth before, of .89 after. So the logarithm of that
    variance is moved half way to its mean over clients.

    Args:
        gains: Of one method and metric, client by client, with errors above 0.
    """
    if not gains:
        return []
    logs = np.log([gain.variance for gain in gains])
    moderated = np.exp((logs + logs.mean()) / 2)
    return [
        gain._replace(error=math.sqrt(variance / gain.rows))
        for gain, variance in zip(gains, moderated, strict=True)
    ]


def pool_errors(gains: Sequence[Gain]) -> list[Gain]:
    """Return the gains of small clients, whose rows cannot tell their own error, with that of the mean variance of all."""
    finite = [gain.variance for gain in gains if math.isfinite(gain.variance)]
    variance = float(np.mean(finite))
    return [
        gain._replace(error=math.sqrt(variance / max(gain.rows, 1))) for gain in gains
    ]


# The joint model


class _Grid(NamedTuple):
    """Points of the joint prior, [points] each, and the log of its weight there."""

    tau: Vector
    common_gain: Vector
    common_error: Vector
    log_weight: Vector


class _Scaled(NamedTuple):
    """The evidence of one client in the units of the joint model.

    Attributes:
        estimate, spread: The gain and its error; in these units the usual client gains `common_gain`.
        factor: By which a gain was multiplied because of the size of the client; an odd client's is not.
    """

    estimate: float
    spread: float
    factor: float


def share(
    gains: Sequence[Gain],
    smallest: Sequence[float] = (),
    exponents: Sequence[float] = SIZE_EXPONENTS,
    places: Sequence[int] | None = None,
) -> list[Mixture]:
    """Return the posterior of each client's gain under the model of usual and odd clients.

    Gains are divided by the client's margin, and multiplied by f_k = (n_k / n_0)^a. Then a usual client (8 in 10) gains
    N(mu, tau^2), and an odd one N(0, .3^2) without f_k. Errors have a correlation of .1. Everything but theta_k is summed
    over a grid; given its point, clients are independent.

    Args:
        gains: Of one method and metric, client by client, with errors above 0.
        smallest: Margin of each client; default: .01.
        exponents: The a among which the evidence chooses.
        places: Numbers of the clients whose posteriors are wanted; default: all.
    """
    if not gains:
        return []
    margins = np.asarray(smallest or [SMALLEST] * len(gains), dtype=float)
    units = margins / SMALLEST
    estimates = np.array([gain.estimate for gain in gains]) / units
    spreads = np.array([gain.spread for gain in gains]) / units
    log_rows = np.log([max(gain.rows, 1) for gain in gains])

    grids, clients = [], []
    for exponent in exponents:
        factors = np.exp(exponent * (log_rows - log_rows.mean()))
        factors = np.clip(factors, LEAST_FACTOR, MOST_FACTOR)
        scaled = [
            _Scaled(*values)
            for values in zip(
                factors * estimates, factors * spreads, factors, strict=True
            )
        ]
        grids.append(_likely_points(_prior_grid(scaled), scaled))
        clients.append(scaled)

    heaviest = max(float(grid.log_weight.max()) for grid in grids)
    posteriors = []
    for k in range(len(gains)) if places is None else places:
        parts = [
            _given_grid(scaled[k], grid, heaviest)
            for grid, scaled in zip(grids, clients, strict=True)
        ]
        weights, means, variances = (
            np.concatenate(columns) for columns in zip(*parts, strict=True)
        )
        mixture = Mixture(weights / weights.sum(), means, np.maximum(variances, 1e-14))
        posteriors.append(mixture.scale(float(units[k])))
    return posteriors


def _log_prior_of_taus() -> Vector:
    """The log of density times width at each of `TAUS`, of a half normal density with scale `TAU_SPREAD`."""
    # A point stands for what lies nearer to it than to its neighbours; at both ends the last distance is taken once more.
    before_first = TAUS[0] - (TAUS[1] - TAUS[0])
    behind_last = TAUS[-1] + (TAUS[-1] - TAUS[-2])
    neighbours = np.concatenate([[before_first], TAUS, [behind_last]])
    widths = (neighbours[2:] - neighbours[:-2]) / 2
    log_density = -(TAUS**2) / (2 * TAU_SPREAD**2)
    return np.asarray(np.log(widths) + log_density)


def _prior_grid(clients: Sequence[_Scaled]) -> _Grid:
    """Points of (tau, mu, common error): mu fine where the clients' mean may be, and coarse over their range."""
    estimates = np.array([client.estimate for client in clients])
    spreads = np.array([client.spread for client in clients])
    centre = float(np.median(estimates))
    # The standard error of the clients' mean, without what they have in common: six of it to both sides, in steps of a half.
    step = math.sqrt((1 - CORRELATION) * float(np.mean(spreads**2)) / len(clients))
    fine = np.linspace(-6, 6, 25) * step
    reach = float(np.abs(estimates - centre).max())
    coarse = np.linspace(-1, 1, 15) * reach
    levels = np.unique(centre + np.concatenate([fine, coarse]))

    # Logs of density times width, along each axis by itself.
    log_of_taus = _log_prior_of_taus()[::EVERY]
    log_of_levels = np.log(np.gradient(levels)) - levels**2 / (2 * COMMON_SPREAD**2)
    log_of_errors = -(COMMON_ERRORS**2) / 2
    log_of_pairs = np.add.outer(log_of_taus, log_of_levels)
    log_weight = np.add.outer(log_of_pairs, log_of_errors)
    tau, mu, error = np.meshgrid(TAUS[::EVERY], levels, COMMON_ERRORS, indexing="ij")
    return _Grid(tau.ravel(), mu.ravel(), error.ravel(), log_weight.ravel())


def _likely_points(prior: _Grid, clients: Sequence[_Scaled]) -> _Grid:
    """The points that the clients' estimates leave, with the log of their posterior weight."""
    log_weight = prior.log_weight.copy()
    for client in clients:
        usual, odd = _two_kinds(client, prior)
        # The estimate was multiplied by the factor, and so its density divided by it.
        log_weight += np.logaddexp(usual[0], odd[0]) + math.log(client.factor)
    kept = log_weight > log_weight.max() - NEGLIGIBLE
    return _Grid(
        prior.tau[kept],
        prior.common_gain[kept],
        prior.common_error[kept],
        log_weight[kept],
    )


def _given_grid(
    client: _Scaled, grid: _Grid, heaviest: float
) -> tuple[Vector, Vector, Vector]:
    """Weights, means and variances of a client's gain, once as a usual and once as an odd one at each point of the grid."""
    (usual_log, usual_mean, usual_variance), odd = _two_kinds(client, grid)
    odd_log, odd_mean, odd_variance = odd
    # At each point a client is of one of both kinds: their shares of the evidence add up to 1.
    evidence = np.logaddexp(usual_log, odd_log)
    logs = np.concatenate(
        [
            grid.log_weight + usual_log - evidence,
            grid.log_weight + odd_log - evidence,
        ]
    )
    means = np.concatenate([usual_mean, odd_mean]) / client.factor
    variances = np.concatenate([usual_variance, odd_variance]) / client.factor**2
    # The heaviest point weighs 1, so that no weight overflows.
    return np.exp(logs - heaviest), means, variances


def _two_kinds(
    client: _Scaled, grid: _Grid
) -> tuple[tuple[Vector, Vector, Vector], tuple[Vector, Vector, Vector]]:
    """For a usual client and for an odd one: the log of weight times likelihood, and the posterior mean and variance."""
    shared = math.sqrt(CORRELATION) * client.spread * grid.common_error
    observed = client.estimate - shared
    noise = (1 - CORRELATION) * client.spread**2

    def given(
        prior: float, centre: Vector | float, variance: Vector
    ) -> tuple[Vector, Vector, Vector]:
        total = variance + noise
        gap = observed - centre
        log_weight = math.log(prior) - np.log(total) / 2 - gap**2 / (2 * total)
        return log_weight, centre + variance / total * gap, variance * noise / total

    odd_variance = np.full_like(grid.tau, (ODD_SPREAD * client.factor) ** 2)
    return (
        given(USUAL, grid.common_gain, grid.tau**2),
        given(1 - USUAL, 0.0, odd_variance),
    )


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


# Words


class Statement(NamedTuple):
    """The statement about one client and method.

    Attributes:
        word: in short.
        probability: of what the word says; of a gain where it is undecided.
        mean, low, high: the gain and its 95 % interval, with what other clients say.
        own: the same interval from the client's own rows.
        smallest: the smallest effect of interest at this client.
    """

    word: Word
    probability: float
    mean: float
    low: float
    high: float
    own: tuple[float, float]
    smallest: float = SMALLEST


def state(gain: Gain, posterior: Mixture, smallest: float = SMALLEST) -> Statement:
    """Return the first statement that holds.

    Args:
        gain: the client's own evidence.
        posterior: of its gain.
        smallest: the smallest effect of interest.
    """
    gaining, safe = posterior.above(0.0), posterior.above(-smallest)
    safe_alone = float(_normal_cdf(np.array((gain.estimate + smallest) / gain.spread)))
    index = _first_word(
        np.array([gaining]),
        np.array([posterior.mean]),
        np.array([safe]),
        np.array([safe_alone]),
        smallest,
    )
    word = WORDS[int(index[0])]
    probability = gaining
    if word in ("stay alone", "probably stay alone"):
        probability = 1 - gaining
    elif word == "safe to join":
        probability = safe
    low, high = posterior.interval
    return Statement(
        word, probability, posterior.mean, low, high, gain.interval, smallest
    )


WORDS: tuple[Word, ...] = (
    "join",
    "probably join",
    "stay alone",
    "probably stay alone",
    "safe to join",
    "undecided",
)
"""In the order in which they are tried."""


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


def vetoes(ranking: Mixture, smallest: float = SMALLEST) -> bool:
    """Return True if the AUC is shown to suffer, so that a gain in log-loss is no reason to join."""
    return 1 - ranking.above(0.0) >= CONFIDENT and ranking.mean <= -smallest


# Further rows


class Outlook(NamedTuple):
    """The probable effect of further rows.

    Attributes:
        rows: further rows of the client that would probably settle it, at most three times those it has; None if these would not.
        words: the probability of each word by the number of further rows.
    """

    rows: int | None
    words: Mapping[int, Mapping[Word, float]]


def foresee(
    gain: Gain,
    posterior: Mixture,
    smallest: float = SMALLEST,
    further: Sequence[int] = (),
) -> Outlook:
    """Return the probability of each word after further rows of the client, by 400 draws of a fixed seed.

    More rows of one's own make training alone better: with N further rows a gain of theta is one of theta n / (n + N).

    Args:
        gain: the client's own evidence.
        posterior: of its gain.
        smallest: the smallest effect of interest.
        further: numbers of rows; by default up to three times those it has, until 8 in 10 draws are not undecided.
    """
    numbers = list(further)
    if not numbers:
        numbers = [round_up(gain.rows * (factor - 1)) for factor in FACTORS]
    heavy = posterior.heaviest(DRAWS)
    generator = np.random.default_rng(0)
    weights = heavy.weights / heavy.weights.sum()
    component = generator.choice(len(weights), DRAWS, p=weights)
    deviations = np.sqrt(heavy.variances[component])
    theta = heavy.means[component] + deviations * generator.standard_normal(DRAWS)
    # The same draws serve every number of rows: their probabilities differ by the rows alone.
    noise = generator.standard_normal(DRAWS)
    words: dict[int, dict[Word, float]] = {}
    for rows in numbers:
        left = gain.left_after(rows)
        observed = left * theta + gain.spread_of(rows) * noise
        index = _words_after(gain, heavy.scale(left), rows, observed, smallest)
        words[rows] = {}
        for i, word in enumerate(WORDS):
            probability = float((index == i).mean())
            if probability > 0:
                words[rows][word] = probability
        if not further and words[rows].get("undecided", 0.0) <= 1 - PROBABLE:
            return Outlook(rows, words)
    return Outlook(None, words)


def rows_of_one_own(rows: int, mean: float, smallest: float) -> int | None:
    """Further rows of its own with which a client hardly needs partners; None where it is more than three times its rows.

    With N further rows a gain is `mean` n / (n + N), which is `smallest` at N = n (mean / smallest - 1).
    """
    further = rows * (mean / smallest - 1)
    if not 0 < further <= MOST_ROWS * rows:
        return None
    return round_up(further)


def round_up(rows: float) -> int:
    """A number of rows, rounded up to two digits."""
    unit = int(10 ** max(0, math.floor(math.log10(max(rows, 1))) - 1))
    return math.ceil(rows / unit) * unit


def _words_after(
    gain: Gain,
    heavy: Mixture,
    rows: float,
    observed: Vector,
    smallest: float,
) -> NDArray[np.int64]:
    """The word of each draw once `rows` rows with the mean gain `observed` [draws] have come, by Bayes.

    `heavy` is the distribution of the gain that is then left.
    """
    variance = gain.spread_of(rows) ** 2
    total = heavy.variances + variance
    gap = observed[:, None] - heavy.means  # [draws, components]
    # A normal component stays normal; its weight is multiplied by the density of `observed`
    # under it, N(mean, total). The largest logarithm is subtracted against underflow.
    log_weight = np.log(heavy.weights) - np.log(total) / 2 - gap**2 / (2 * total)
    weights = np.exp(log_weight - log_weight.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    means = heavy.means + heavy.variances / total * gap
    deviations = np.sqrt(heavy.variances * variance / total)
    # What the client's own rows say, old and new, without its partners' gains.
    estimate, spread = gain.with_rows(rows, observed)

    def above(limit: float) -> Vector:
        scaled = (means - limit) / deviations
        return np.asarray((weights * _normal_cdf(scaled)).sum(axis=1))

    return _first_word(
        above(0.0),
        (weights * means).sum(axis=1),
        above(-smallest),
        _normal_cdf((estimate + smallest) / spread),
        smallest,
    )

"""The rule by which runs decide a sentence of a paper; in words for readers: docs/statistics.md, "A paper's sentence".

A sentence is compared in one or more settings (a rival, a rate, a data set). Each setting has numbers by seed of what is claimed about
and of what it is compared with; their paired difference, with the claimed side positive, has a t interval of 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import stdtr, stdtrit

Word = Literal[
    "confirmed",
    "opposite",
    "not clear",
    "cannot show here",
    "early training",
    "no verdict",
    "not run",
]
Direction = Literal["higher", "lower", "as high", "as low", "alike"]
LEVEL = 0.05
SEEDS = 20
"""The room of a setting is compared with what so many seeds would detect, however many were run."""


class Interval(NamedTuple):
    """The mean of paired differences with its interval; the claimed side is positive.

    Attributes:
        mean, low, high: of the difference; without an interval (one value, or values by computation) all three are the mean.
        error: standard error of the mean.
        seeds: how many values.
    """

    mean: float
    low: float
    high: float
    error: float
    seeds: int

    @property
    def half_width(self) -> float:
        """Half the length of the interval."""
        return (self.high - self.low) / 2

    def above(self, bar: float) -> float:
        """Return the one-sided p value of the mean being above a bar."""
        if self.error == 0:
            return 0.0 if self.mean > bar else 1.0
        return float(stdtr(self.seeds - 1, (bar - self.mean) / self.error))

    def below(self, bar: float) -> float:
        """Return the one-sided p value of the mean being below a bar."""
        return self._replace(mean=-self.mean).above(-bar)

    def at_twenty_seeds(self) -> float:
        """Return the half-width that 20 seeds of the same spread would give."""
        spread = self.error * math.sqrt(self.seeds)
        return float(stdtrit(SEEDS - 1, 1 - LEVEL / 2)) * spread / math.sqrt(SEEDS)


def interval(differences: Sequence[float], *, computed: bool = False) -> Interval:
    """Return the t interval of the mean of paired differences.

    Args:
        differences: one for each seed.
        computed: the values have no chance in them, so that one value decides.

    Raises:
        ValueError: fewer than two values that are not computed.
    """
    values = np.asarray(differences, dtype=float)
    mean = float(values.mean())
    if computed:
        return Interval(mean, mean, mean, 0.0, len(values))
    if len(values) < 2:
        raise ValueError("one value has no interval")
    return _around(
        mean, float(values.std(ddof=1)) / math.sqrt(len(values)), len(values)
    )


def _around(mean: float, error: float, seeds: int) -> Interval:
    half = float(stdtrit(seeds - 1, 1 - LEVEL / 2)) * error
    return Interval(mean, mean - half, mean + half, error, seeds)


class Pooled(NamedTuple):
    """The mean effect over settings, as if they were drawn from all that the sentence could be about (random effects).

    Attributes:
        effect: the mean with its interval; `seeds` counts settings, and the error has one degree of freedom less.
        spread: standard deviation of the true effects between settings.
        low, high: where the effect of a further setting would lie with nominally 95 %; None where there are fewer than three settings.
            With five settings it holds nearer 90 %, since so few hardly tell their spread (tests/test_results.py simulates it).
    """

    effect: Interval
    spread: float
    low: float | None
    high: float | None


def pool(effects: Sequence[Interval]) -> Pooled | None:
    """Return the pooled effect of settings; None for fewer than two, or where one has no error.

    The variance between settings is that of Paule and Mandel (1982): the weighted sum of squares around the pooled mean is then k - 1.
    The interval is that of Hartung and Knapp (2001), with a t quantile of k - 1 degrees and never narrower than the usual one, since
    with few settings the usual one is too short.
    """
    errors = np.array([effect.error for effect in effects])
    if len(effects) < 2 or not (errors > 0).all():
        return None
    means = np.array([effect.mean for effect in effects])
    between = _variance_between(means, errors**2)
    weights = 1 / (errors**2 + between)
    mean = float(weights @ means / weights.sum())
    excess = float(weights @ (means - mean) ** 2) / (len(means) - 1)
    error = math.sqrt(max(1.0, excess) / float(weights.sum()))
    effect = _around(mean, error, len(means))
    if len(means) < 3:
        return Pooled(effect, math.sqrt(between), None, None)
    quantile = float(stdtrit(len(means) - 1, 1 - LEVEL / 2))
    reach = quantile * math.sqrt(between + error**2)
    return Pooled(effect, math.sqrt(between), mean - reach, mean + reach)


def _variance_between(
    means: NDArray[np.float64], variances: NDArray[np.float64]
) -> float:
    """Return the variance between settings at which the weighted sum of squares is its expectation, 0 if it is below without one."""

    def surplus(between: float) -> float:
        weights = 1 / (variances + between)
        mean = weights @ means / weights.sum()
        return float(weights @ (means - mean) ** 2) - (len(means) - 1)

    if surplus(0.0) <= 0:
        return 0.0
    # The sum falls as the variance grows; at k times the plain variance of the means it is far below k - 1.
    return float(brentq(surplus, 0.0, len(means) * float(means.var()) + 1e-300))


class Setting(NamedTuple):
    """What was measured of a sentence in one setting.

    Attributes:
        effect: of what is claimed about, minus what it is compared with; the claimed side is positive, of "alike" the higher one.
        margin: of "higher" and "lower" the smallest gain that counts; else what may be lost, of "alike" in either direction.
        room: what perfect help would gain over the rival; None where the measure has no ceiling or none was run.
        early: the runs are too short for a verdict (`moves`, `too_short`).
        blocked: why the run cannot decide although it exists, as a rival that did not learn.
    """

    effect: Interval
    direction: Direction
    margin: float = 0.0
    room: float | None = None
    early: bool = False
    blocked: bool = False


def judge(
    settings: Sequence[Setting | None], over: Literal["all", "most", "one"]
) -> tuple[Word, list[Word]]:
    """Return the word of a sentence over several settings, and that of each setting; None is a setting that was not run.

    "all" is confirmed if each setting is, "most" if more than half are, "one" if one is; "all" is opposite if one setting
    is, "most" if at least half are, "one" if each is. Where fewer than all suffice for a word, their p values are corrected
    for their number (Holm). Where neither word follows and some settings could not decide, the word is theirs.
    """
    early: list[Word | None] = [
        _word_before(setting) if setting else "not run" for setting in settings
    ]
    pairs = [
        _p_values(setting)
        for setting, word in zip(settings, early, strict=True)
        if setting and word is None
    ]
    in_favour, against = ([pair[side] for pair in pairs] for side in (0, 1))
    p_values = (
        in_favour if over == "all" else _holm(in_favour),
        against if over == "one" else _holm(against),
    )
    later = map(_by_p_values, *p_values)
    words: list[Word] = [word or next(later) for word in early]
    confirmed, opposite = words.count("confirmed"), words.count("opposite")
    if not words:
        return "not run", words
    if opposite >= {"all": 1, "most": len(words) / 2, "one": len(words)}[over]:
        return "opposite", words
    if confirmed >= {"all": len(words), "most": len(words) // 2 + 1, "one": 1}[over]:
        return "confirmed", words
    if "not run" in words:
        return "not run", words
    if "not clear" in words or opposite:
        return "not clear", words
    undecided = [word for word in words if word != "confirmed"]
    return max(undecided, key=undecided.count), words


def judge_readings(
    settings: Mapping[str, Sequence[Setting | None]],
    over: Literal["all", "most", "one"],
) -> tuple[Word, list[Word]]:
    """Return the word of a sentence over several readings of one set-up, and that of each setting, reading by reading.

    The text and the authors' code may read a set-up differently, and neither is the paper more than the other. So the sentence has a
    word that it has by each reading, and is not clear where they disagree.
    """
    by_reading = [judge(several, over) for several in settings.values()]
    words = [word for _, of_settings in by_reading for word in of_settings]
    found = {word for word, _ in by_reading}
    if len(found) == 1:
        return found.pop(), words
    return "not run" if "not run" in found else "not clear", words


def judge_pooled(pooled: Pooled, direction: Direction, margin: float) -> Word:
    """Return the word of a general sentence from the mean effect over settings."""
    return judge([Setting(pooled.effect, direction, margin)], "all")[0]


def _word_before(setting: Setting) -> Word | None:
    """Return the word that stands before any interval is looked at."""
    if setting.blocked:
        return "no verdict"
    if setting.early:
        return "early training"
    gain = setting.direction in ("higher", "lower")
    if (
        gain
        and setting.room is not None
        and setting.room < setting.effect.at_twenty_seeds()
    ):
        return "cannot show here"
    return None


def _p_values(setting: Setting) -> tuple[float, float]:
    """Return the one-sided p values for the claim and against it."""
    effect, margin = setting.effect, setting.margin
    if setting.direction == "alike":
        return max(effect.above(-margin), effect.below(margin)), min(
            effect.above(margin), effect.below(-margin)
        )
    bar = margin if setting.direction in ("higher", "lower") else -margin
    return effect.above(bar), effect.below(bar)


def _by_p_values(in_favour: float, against: float) -> Word:
    if in_favour <= LEVEL / 2:
        return "confirmed"
    return "opposite" if against <= LEVEL / 2 else "not clear"


def _holm(p_values: Sequence[float]) -> list[float]:
    """Return the p values adjusted for their number (Holm, 1979)."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(np.argsort(p_values)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[int(i)] = largest
    return adjusted


def moves(late: Sequence[float], later: Sequence[float], half_width: float) -> bool:
    """Return True if the mean paired difference moves by more than the half-width from the third to the last quarter of the rounds."""
    return abs(float(np.mean(later)) - float(np.mean(late))) > half_width


def too_short(steps: float, paper: float) -> bool:
    """Return True if a run has under a tenth of the local steps that the paper states."""
    return steps < paper / 10


Agreement = Literal["agrees", "differs", "too few seeds to tell"]


def compare(
    first: Sequence[float],
    second: Sequence[float],
    bound: float,
    *,
    paired: bool = True,
) -> Agreement:
    """Return whether a second computation agrees with the first.

    Args:
        first, second: the effect by seed in each computation; one value where nothing is drawn.
        bound: half the first effect; of "as good as" half the margin.
        paired: both have the same split and test rows seed by seed; else the interval of the gap has the fewer seeds' width.
    """
    if paired:
        gap = interval(
            np.asarray(second, dtype=float) - np.asarray(first, dtype=float),
            computed=len(first) == 1,
        )
    else:
        one, two = interval(first), interval(second)
        gap = _around(
            two.mean - one.mean,
            math.hypot(one.error, two.error),
            min(one.seeds, two.seeds),
        )
    if -bound < gap.low and gap.high < bound:
        return "agrees"
    return (
        "differs" if gap.low > bound or gap.high < -bound else "too few seeds to tell"
    )

"""Claims, and the rule by which numbers decide them.

Every verdict is one of four words, from the 95 % interval of the paired difference in the claim's direction:

- confirmed: it lies on the claimed side of 0 (of the margin, if the claim has one);
- opposite: it lies on the other side;
- cannot show here: it holds 0, and the ceiling lies below the paper's effect; or data or machines are missing;
- not clear: it holds 0 otherwise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from coterie.report.statistics import paired
from experiments.documents import Document
from experiments.page.text import number, signed, times

Word = Literal["confirmed", "opposite", "cannot show here", "not clear"]
WORDS: tuple[Word, ...] = ("confirmed", "opposite", "cannot show here", "not clear")
OURS = "ours"
NORMAL = 1.96
FIGURE = re.compile(r"\b(Fig\.|Figs\.|Table|Appendix|Theorem|Section|Eq\.) ?[A-Z]?[\d.IVX]*")
Documents = Mapping[str, Document]


class Place(NamedTuple):
    """Where a number by seed lies."""

    experiment: str
    quantity: str
    method: str


@dataclass(frozen=True)
class Claim:
    """`a` is higher or lower than `b`, or as good as it.

    Attributes:
        key: names the claim, for the sentences that follow from verdicts.
        text: the claim.
        a: what is claimed about.
        b: what it is compared with.
        where: figure or table of the paper; "ours" for what no paper claims.
        direction: "higher", "lower", or "alike": within the margin on both sides.
        printed: the paper's own a - b.
        margin: what may be lost; of "alike" the largest difference, or with `ratio` the largest factor.
        ratio: compare a / b on logarithms, for numbers of different size.
        ceiling: what perfect help would reach, a number where it is known without a run; its mean distance from b is all that
            anybody could gain.
        every_seed: the claim is made of every seed.
        error: standard error of a, where it comes from draws and not from seeds: then the value nearest to the bar counts.
        note: a sentence that must stand beside the verdict.
        missing: why it cannot be run here; it stands only as long as there are no rows.
        unrun: why it was not run, though it could be.
    """

    key: str
    text: str
    a: Place | None = None
    b: Place | float = 0.0
    where: str = OURS
    direction: Literal["higher", "lower", "alike"] = "higher"
    printed: float | None = None
    margin: float = 0.0
    ratio: bool = False
    ceiling: Place | float | None = None
    every_seed: bool = False
    error: float | None = None
    note: str = ""
    missing: str = ""
    unrun: str = ""

    def __post_init__(self) -> None:
        if self.where != OURS and not FIGURE.search(self.where):
            raise ValueError(
                f"{self.key}: {self.where!r} names no figure or table; write 'ours' for what no paper claims"
            )
        if self.printed is not None and self.where == OURS:
            raise ValueError(f"{self.key}: a number of the paper needs its figure or table")


class Verdict(NamedTuple):
    """A word, or "" for what has not been run, and the numbers behind it.

    Attributes:
        word: the verdict.
        effect: mean and interval, for the table.
        over: number of pairs, such as "5 seeds"; "" if there is none.
        sentence: what the reader needs beside the word.
        has_interval: whether there is one, which misses by chance in 1 of 20.
    """

    word: Word | Literal[""]
    effect: str
    over: str
    sentence: str
    has_interval: bool = False


def judge(claim: Claim, documents: Documents) -> Verdict:
    """The verdict on a claim."""
    pairs = _pairs(claim, documents)
    if pairs is None:
        return Verdict(
            "cannot show here" if claim.missing else "", "-", "", claim.missing or claim.unrun or "Not run yet."
        )
    a, b = pairs
    interval = _interval(claim, a, b, documents)
    room = _room(claim, b, documents)
    word = word_of(claim, interval, room)
    against = number(claim.b) if isinstance(claim.b, float) else spread(b)
    sentence = f"{spread(a)} against {against}{_count(claim, a, b)}."
    if claim.printed is not None:
        sentence += f" {claim.where} prints {signed(claim.printed)}"
        if word == "not clear":
            sentence += (
                ", which the interval holds" if _holds(interval, claim.printed) else ", which lies outside of it"
            )
        sentence += "."
    if room is not None:
        sentence += f" Perfect help would give {signed(room)}."
    if claim.margin and not claim.ratio:
        sentence += f" Margin {claim.margin:g}."
    if interval is None:
        sentence += " One measurement has no interval."
    computed = _computed_again(claim, interval, documents)
    sentence += computed or ("" if word == "confirmed" else " It was not computed a second time.")
    over = f"{len(a)} {'seed' if claim.error is None else 'distance'}{'s' * (len(a) > 1)}"
    return Verdict(word, _effect(claim, interval, a, b), over, f"{sentence} {claim.note}".strip(), interval is not None)


Interval = tuple[float, float, float]
"""Mean, low and high of a - b; with `ratio` of log a - log b."""


def word_of(claim: Claim, interval: Interval | None, room: float | None = None) -> Word:
    """The word for an interval, where nobody could gain more than `room`."""
    if interval is None:
        return "not clear"
    _, low, high = interval
    margin = math.log(claim.margin) if claim.ratio and claim.margin else claim.margin
    if claim.direction == "alike":
        if -margin < low and high < margin:
            return "confirmed"
        return "opposite" if low > margin or high < -margin else "not clear"
    if claim.direction == "lower":
        low, high = -high, -low
    # A margin is lost without harm; with `ratio` it must be won, such as a rival that is twice as far away.
    bar = margin if claim.ratio else -margin
    if low > bar:
        return "confirmed"
    if high < bar:
        return "opposite"
    short = room is not None and claim.printed is not None and room < abs(claim.printed)
    return "cannot show here" if short else "not clear"


def _pairs(claim: Claim, documents: Documents) -> tuple[list[float], list[float]] | None:
    sides = []
    for place in (claim.a, claim.b):
        if isinstance(place, float):
            sides.append(dict.fromkeys(sides[0], place))
        elif place is None or place.experiment not in documents:
            return None
        else:
            sides.append(documents[place.experiment].by_seed(place.quantity, place.method))
    seeds = sorted(set(sides[0]) & set(sides[1]))
    return ([sides[0][s] for s in seeds], [sides[1][s] for s in seeds]) if seeds else None


def _interval(claim: Claim, a: Sequence[float], b: Sequence[float], documents: Documents) -> Interval | None:
    if claim.error is not None:
        gaps = np.asarray(a) - np.asarray(b)
        nearest = {"higher": gaps.min(), "lower": gaps.max(), "alike": gaps[np.abs(gaps).argmax()]}[claim.direction]
        return float(nearest), float(nearest - NORMAL * claim.error), float(nearest + NORMAL * claim.error)
    places = [place for place in (claim.a, claim.b) if isinstance(place, Place)]
    shared = max(documents[place.experiment].ratio(place.quantity) for place in places)
    one, two = (np.log(a), np.log(b)) if claim.ratio else (np.asarray(a), np.asarray(b))
    difference = paired(one, two, shared)
    if difference is None:
        return None
    if np.ptp(one) and np.array_equal(one, two):  # t has no interval where both agree in every seed
        return 0.0, 0.0, 0.0
    if difference.low is None or difference.high is None:
        return None
    return difference.mean, difference.low, difference.high


def _room(claim: Claim, b: Sequence[float], documents: Documents) -> float | None:
    """How far the ceiling lies from b, mean over the seeds that both have."""
    ceiling = claim.ceiling
    if ceiling is None or not isinstance(claim.b, Place):
        return None
    rival = documents[claim.b.experiment].by_seed(claim.b.quantity, claim.b.method)
    if isinstance(ceiling, float):
        best = dict.fromkeys(rival, ceiling)
    elif ceiling.experiment in documents:
        best = documents[ceiling.experiment].by_seed(ceiling.quantity, ceiling.method)
    else:
        return None
    gains = [best[seed] - rival[seed] for seed in best if seed in rival]
    return float(np.mean(gains)) if gains else None


def again(experiment: str) -> str:
    """The name of the document with an independent computation of an experiment."""
    return f"independent/{experiment}"


def _computed_again(claim: Claim, interval: Interval | None, documents: Documents) -> str:
    """What an independent computation of both sides gives, and whether both intervals share a point; "" if there is none."""
    if claim.a is None or interval is None:
        return ""
    a = claim.a._replace(experiment=again(claim.a.experiment))
    b = claim.b._replace(experiment=again(claim.b.experiment)) if isinstance(claim.b, Place) else claim.b
    if any(isinstance(place, Place) and place.experiment not in documents for place in (a, b)):
        return ""
    second = replace(claim, a=a, b=b)
    pairs = _pairs(second, documents)
    measured = None if pairs is None else _interval(second, *pairs, documents)
    if pairs is None or measured is None:
        return ""
    agrees = interval[1] <= measured[2] and measured[1] <= interval[2]
    effect = _effect(second, measured, *pairs)
    return f" An independent computation gives {effect} over {len(pairs[0])} seeds, which {'agrees' if agrees else 'differs'}."


def _count(claim: Claim, a: Sequence[float], b: Sequence[float]) -> str:
    if not claim.every_seed:
        return ""
    met = sum((x < y) if claim.direction == "lower" else (x > y) for x, y in zip(a, b, strict=True))
    return f", {claim.direction} in {met} of {len(a)} seeds"


def _holds(interval: Interval | None, value: float) -> bool:
    return interval is not None and interval[1] <= value <= interval[2]


def _effect(claim: Claim, interval: Interval | None, a: Sequence[float], b: Sequence[float]) -> str:
    if interval is None:
        mean = float(np.mean(a) - np.mean(b))
        return signed(mean)
    if claim.ratio:
        middle, low, high = map(math.exp, interval)
        return f"{times(middle)} times [{times(low)}, {times(high)}]"
    mean, low, high = interval
    return f"{signed(mean)} [{signed(low)}, {signed(high)}]"


def spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation over seeds.

    >>> spread([0.5, 0.7])
    '0.600 ± 0.141'
    """
    finite = [v for v in values if math.isfinite(v)]
    if not finite:
        return "-"
    mean = float(np.mean(finite))
    text = number(mean)
    return text if len(finite) < 2 else f"{text} ± {number(float(np.std(finite, ddof=1)), like=mean)}"

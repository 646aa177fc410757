"""The claims of experiments/claims.toml with what the runs say of each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, NamedTuple

from scipy.stats import spearmanr

from coterie.base.files import read_json, read_toml
from experiments import setups
from experiments.documents import BENCHMARKS, RESULTS, ROOT, Document, Row, read
from experiments.judging import (
    Agreement,
    Interval,
    Pooled,
    Setting,
    Word,
    compare,
    interval,
    judge,
    judge_pooled,
    judge_readings,
    moves,
    pool,
    too_short,
)
from experiments.setups import Constant

FILE = ROOT / "experiments" / "claims.toml"
EXPERIMENTS = ROOT / "experiments"
MEASURES = (
    "GM-appeal",
    "accuracy",
    "preferred-model accuracy",
    "GM-appeal after 5 steps",
)
NAMED = (
    "accuracy on D_S",
    "Dice",
    *(f"{measure}, {who}" for measure in MEASURES for who in ("seen", "unseen")),
)
CURVES = {name: name for name in NAMED} | {
    f"{kind}accuracy of the {whose}": f"{kind}accuracy"
    for kind, whose in (
        ("", "target"),
        ("", "internal clients"),
        ("balanced ", "target"),
    )
}
"""The curve over rounds of a quantity, by which early training is known."""
OF_CURVES: Mapping[str, Callable[[Sequence[Sequence[float]]], float]] = {
    "first": lambda c: c[0][0], "first excess": lambda c: c[0][0] / c[1][0] - 1, "minimum": lambda c: min(map(min, c)),
    "value at two fifths": lambda c: c[0][round(0.4 * (len(c[0]) - 1))],
    "largest minimum": lambda c: max(map(min, c)), "mean range": lambda c: fmean(max(v) - min(v) for v in c),
    "largest fall": lambda c: max(0.0, *(a - b for a, b in itertools.pairwise(c[0]))),
    "rank correlation over rounds": lambda c: spearmanr(*c).statistic,
}  # fmt: skip
"""A number of one curve of a run, of those of all classes, or of two that are compared."""
Values = dict[int, float]
"""A number by seed."""
Claim = Mapping[str, Any]
"""A table of the file of claims."""


class Place(NamedTuple):
    """Where a number by seed lies; `times` it counts."""

    experiment: str
    quantity: str
    method: str
    times: float = 1.0


@dataclass(frozen=True)
class Pair:
    """One setting of a claim, and what was measured.

    Attributes:
        label: what distinguishes it from the claim's other settings.
        a, b: what is compared; `b` may be a number.
        values: by seed, of both.
        effect: None where no run or a single value has been made.
        room: what perfect help would gain.
        early: the runs are too short.
        second, own: the effect in a second computation, on the same split and with own loading and splits, and whether it agrees;
            None where there is none.
        word: the verdict of this setting.
    """

    label: str
    a: Place
    b: Place | float
    values: tuple[Values, Values] = ({}, {})
    effect: Interval | None = None
    room: float | None = None
    early: bool = False
    second: tuple[Interval, Agreement] | None = None
    own: tuple[Interval, Agreement] | None = None
    word: Word = "not run"

    @property
    def means(self) -> tuple[float, float]:
        """The mean of each side over the seeds that both have."""
        return tuple(sum(values.values()) / len(values) for values in self.values)  # type: ignore[return-value]


FEWEST_POOLED = 3
"""Experiments from which on the mean effect over them gives a general sentence its word; two say nothing of a third."""
SUBSTITUTED = ("data.name", "model.name")
"""Constants whose change makes a run a substitute for the paper's, not a repetition."""
UNDECIDED = ("no verdict", "early training", "cannot show here")


@dataclass(frozen=True)
class Judged:
    """A claim with its settings and its word.

    Attributes:
        claim: the table of the file of claims.
        pairs: its settings.
        word: the verdict.
        pooled: the mean effect over experiments, the quantities and rivals of one being averaged first, since they share its runs;
            None where there are fewer than two, or nothing is drawn.
        substitute: each setting that is opposite was run on other data or with another model than the paper's: then a sentence of the
            paper is not contradicted, but not reproduced.
    """

    claim: Claim
    pairs: Sequence[Pair]
    word: Word
    pooled: Pooled | None = None
    substitute: bool = False

    @property
    def shown(self) -> str:
        """The word as readers see it."""
        if self.word == "opposite" and self.substitute and "quote" in self.claim:
            return "not reproduced on a substitute"
        return self.word

    @property
    def deciding(self) -> Pair | None:
        """The measured setting that decides: of those with its word the weakest of all or the strongest of one; of most the middle."""
        middle_of_all = self.claim["over"] == "most" and self.word != "not clear"
        of_word = (
            []
            if middle_of_all
            else [pair for pair in self.pairs if pair.word == self.word]
        )
        measured = [pair for pair in of_word or self.pairs if pair.effect]
        strengths = sorted(
            measured,
            key=lambda pair: pair.effect.mean / (pair.effect.half_width or 1e-12),
        )
        rank = {"all": 0, "most": (len(strengths) - 1) // 2, "one": -1}[
            self.claim["over"]
        ]
        return strengths[rank] if strengths else None


@dataclass(frozen=True)
class Evidence:
    """Everything that was measured, and the file of claims.

    Attributes:
        documents: by experiment; of second computations under "independent/NAME".
        papers, runs, claims: tables of the file.
        constants: the set-ups, beside the papers'.
        substitutes: experiments on other data or with another model than the paper's.
    """

    documents: Mapping[str, Document]
    papers: Sequence[Mapping[str, Any]]
    runs: Mapping[str, Mapping[str, Any]]
    claims: Sequence[Claim]
    constants: Sequence[Constant] = ()
    judged: Mapping[str, Judged] = field(init=False)
    substitutes: Collection[str] = field(init=False)

    def __post_init__(self) -> None:
        substitutes = {
            experiment
            for constant in self.constants
            if constant.key in SUBSTITUTED
            and constant.is_stated
            and not constant.is_same
            for name in constant.experiments
            for experiment in (name, f"independent/{name}")
        }
        object.__setattr__(self, "substitutes", substitutes)
        pairs = {
            claim["key"]: [self._measure(claim, pair) for pair in self._pairs(claim)]
            for claim in self.claims
        }
        object.__setattr__(
            self,
            "judged",
            {one["key"]: self.judge(one, pairs[one["key"]]) for one in self.claims},
        )

    def judge(self, claim: Claim, pairs: Sequence[Pair]) -> Judged:
        """Return a claim with its measured settings and their words."""
        only = claim.get("no_verdict_on", ())
        settings = [
            pair.effect and Setting(pair.effect, claim["direction"], margin_of(claim), pair.room, pair.early, "no_verdict" in claim
                                    and (not only or (pair.b if isinstance(pair.b, Place) else pair.a).method in only))
            for pair in pairs
        ]  # fmt: skip
        if claim.get("readings"):
            by_reading: dict[str, list[Setting | None]] = {}
            for pair, setting in zip(pairs, settings, strict=True):
                by_reading.setdefault(pair.a.experiment, []).append(setting)
            word, words = judge_readings(by_reading, claim["over"])
        else:
            word, words = judge(settings, claim["over"])
        judged = [
            replace(pair, word=own) for pair, own in zip(pairs, words, strict=True)
        ]
        by_experiment = _effects_by_experiment(claim, judged)
        pooled = pool(by_experiment) if not claim.get("computed") else None
        general = claim["over"] == "most" and "not run" not in words
        if pooled and general and len(by_experiment) >= FEWEST_POOLED:
            word = judge_pooled(pooled, claim["direction"], margin_of(claim))
        opposite = {pair.a.experiment for pair in judged if pair.word == "opposite"}
        if not opposite:  # then it is the mean over all that is opposite
            opposite = {pair.a.experiment for pair in judged}
        return Judged(
            claim, judged, word, pooled, bool(opposite) and opposite <= self.substitutes
        )

    def _pairs(self, claim: Claim) -> Iterator[Pair]:
        """Yield the settings of a claim."""
        against, quantities = (
            {"quantity": "{}"} | claim.get("against", {}),
            claim["quantities"],
        )
        rivals = claim.get("rivals") or [None]
        bars = claim.get("bars") or [claim.get("bar")] * len(quantities)
        methods = (
            [claim["method"]] if isinstance(claim["method"], str) else claim["method"]
        )
        settings = itertools.product(
            claim["experiments"], zip(quantities, bars, strict=True), methods, rivals
        )
        for experiment, (quantity, bar), method, rival in settings:
            a = Place(experiment, quantity, method)
            named = {"quantity": against["quantity"].format(quantity)} | (
                {"method": rival} if rival else {}
            )
            other = a._replace(**against | named)
            several = (
                len(claim["experiments"]) > 1,
                len(quantities) > 1,
                len(methods) > 1,
                rival,
            )
            label = ", ".join(
                itertools.compress(
                    (self.label(experiment), quantity, method, rival), several
                )
            )
            yield Pair(label, a, other if bar is None else float(bar))

    def _measure(self, claim: Claim, pair: Pair) -> Pair:
        one, two = self._both(pair, "")
        if not one or (len(one) == 1 and not claim.get("computed")):
            return pair
        effects = _effects(claim, one, two)
        effect = interval(list(effects.values()), computed=bool(claim.get("computed")))
        second, own = (
            self._again(claim, pair, effects, prefix)
            for prefix in ("independent/", "independent/own-")
        )
        room, early = self._room(claim, pair), self._early(claim, pair, effects)
        return Pair(
            pair.label, pair.a, pair.b, (one, two), effect, room, early, second, own
        )

    def _again(
        self, claim: Claim, pair: Pair, first: Values, prefix: str
    ) -> tuple[Interval, Agreement] | None:
        """Return the effect of a second computation, and whether it agrees with the first: by seed, unless it has own splits."""
        again, computed = (
            _effects(claim, *self._both(pair, prefix)),
            bool(claim.get("computed")),
        )
        paired = not prefix.endswith("own-")
        common = sorted(first.keys() & again.keys()) if paired else sorted(again)
        if min(len(common), len(first)) < 2 - computed:
            return None
        gain = claim["direction"] in ("higher", "lower")
        bound = abs(fmean(first.values())) / 2 if gain else margin_of(claim) / 2
        one, two = (
            [first[seed] for seed in (common if paired else first)],
            [again[seed] for seed in common],
        )
        return interval(two, computed=computed), compare(one, two, bound, paired=paired)

    def _both(self, pair: Pair, prefix: str) -> tuple[Values, Values]:
        """Return the numbers of both sides over the seeds that both have; the first's alone where the second is a number."""
        one = self.values(pair.a, prefix)
        two = (
            self.values(pair.b, prefix)
            if isinstance(pair.b, Place)
            else dict.fromkeys(one, pair.b)
        )
        seeds = sorted(one.keys() & two.keys())
        return {s: one[s] for s in seeds}, {s: two[s] for s in seeds}

    def values(self, place: Place, prefix: str = "") -> Values:
        """Return a quantity by seed: of the rows, or the first of "A or B" they have; "KIND of CURVE"; "rounds to METHOD's CURVE";
        one minus another, or minus one in another experiment; "rank correlation of A and B over methods" of all methods."""
        one, _, less = place.quantity.partition(" minus ")
        two, _, where = less.partition(" in ")
        there = place._replace(experiment=where or place.experiment)
        values, other = (
            self._quantity(place, one, prefix),
            self._quantity(there, two, prefix),
        )
        return {
            s: place.times * (value - other.get(s, 0.0))
            for s, value in values.items()
            if s in other or not two
        }

    def _quantity(self, place: Place, quantity: str, prefix: str) -> Values:
        document = self.documents.get(prefix + place.experiment, Document("", 0, ()))
        if quantity.endswith(" over methods"):
            two = (
                quantity.removeprefix("rank correlation of ")
                .removesuffix(" over methods")
                .split(" and ")
            )
            values = {each.seed: [[row.values[name] for name in two] for row in document.rows if row.seed == each.seed]
                      for each in document.rows}  # fmt: skip
            return {
                seed: float(spearmanr(several).statistic)
                for seed, several in values.items()
                if len(several) > 2
            }
        kind, _, name = quantity.partition(" of ")
        who, _, goal = quantity.partition("rounds to ")[2].partition("'s ")
        known = next(
            filter(
                None,
                (document.by_seed(one, place.method) for one in quantity.split(" or ")),
            ),
            {},
        )
        if known or not document.rows or not (goal or kind in OF_CURVES):
            return known
        if (
            not goal
        ):  # "q of a client" has a curve for each class, as "q of a client, class 0"
            several = {row.seed: [values for each, (_, values) in row.curves.items() if f"{each},".startswith(f"{name},")]
                       for row in document.rows if row.method == place.method}  # fmt: skip
            return {
                seed: float(OF_CURVES[kind](curves))
                for seed, curves in several.items()
                if curves
            }
        own, goals = (
            self.curves(place._replace(method=each), prefix, goal)
            for each in (place.method, who)
        )
        return {seed: next((n for n, v in zip(*own[seed], strict=True) if v >= goals[seed][1][-1]), own[seed][0][-1] + 1)
                for seed in own.keys() & goals.keys()}  # fmt: skip

    def curves(
        self, place: Place, prefix: str, name: str
    ) -> dict[int, Sequence[Sequence[float]]]:
        """Return rounds and values by seed."""
        rows = [
            row
            for row in self.documents[prefix + place.experiment].rows
            if row.method == place.method
        ]
        return {row.seed: row.curves[name] for row in rows if name in row.curves}

    def _room(self, claim: Claim, pair: Pair) -> float | None:
        """Return what perfect help would gain over the rival, mean over the seeds that both have."""
        covered = pair.a.experiment in claim.get("ceiling_of", claim["experiments"])
        if "ceiling" not in claim or not covered or not isinstance(pair.b, Place):
            return None
        best, rival = (
            self.values(Place(claim["ceiling"], pair.a.quantity, "ceiling")),
            self.values(pair.b),
        )
        gains = [best[seed] - rival[seed] for seed in best.keys() & rival.keys()]
        return sum(gains) / len(gains) if gains else None

    def _early(self, claim: Claim, pair: Pair, effects: Values) -> bool:
        run, sides = (
            self.runs[pair.a.experiment],
            [side for side in (pair.a, pair.b) if isinstance(side, Place)],
        )
        if "steps" in run and too_short(run["steps"], run["paper_steps"]):
            return True
        curves = [
            (place, CURVES.get(place.quantity, place.quantity)) for place in sides
        ]
        seeds = set(effects).intersection(
            *(self.curves(place, "", name) for place, name in curves)
        )
        if run.get("full") or len(seeds) < 2:
            return False
        one, *two = (self.curve(place, name, seeds) for place, name in curves)
        scale = math.log if claim.get("ratio") else float
        gaps = {
            n: scale(one[n]) - sum(scale(each[n]) for each in two)
            for n in sorted(set(one).intersection(*two))
        }
        end = max(gaps, default=0)
        late, later = (
            [gaps[n] for n in gaps if low * end < n <= high * end]
            for low, high in ((0.5, 0.75), (0.75, 1))
        )
        return bool(late and later) and moves(
            late, later, interval([effects[seed] for seed in seeds]).half_width
        )

    def curve(
        self, place: Place, name: str, seeds: Collection[int] | None = None
    ) -> dict[float, float]:
        """Return a curve by round, mean over these seeds, or over all."""
        points: dict[float, list[float]] = {}
        for seed, curve in self.curves(place, "", name).items():
            for number, value in (
                zip(*curve, strict=True) if seeds is None or seed in seeds else ()
            ):
                points.setdefault(number, []).append(value)
        return {number: sum(values) / len(values) for number, values in points.items()}

    def label(self, experiment: str) -> str:
        """Return what an experiment is called among those of a claim."""
        run = self.runs[experiment]
        return run.get("labels", run["experiments"])[
            run["experiments"].index(experiment)
        ]

    def seeds_of(self, experiment: str) -> int | None:
        """Return how many seeds its file declares; None where it has no file."""
        path = EXPERIMENTS / f"{experiment}.toml"
        return int(read_toml(path)["run"]["seeds"]) if path.is_file() else None


def margin_of(claim: Claim) -> float:
    """Return the margin of a claim, of a ratio its logarithm."""
    margin = float(claim.get("margin", 1.0 if claim.get("ratio") else 0.0))
    return math.log(margin) if claim.get("ratio") else margin


def _effects(claim: Claim, one: Values, two: Values) -> Values:
    """Return the differences by seed, the claimed side positive."""
    sign = -1 if claim["direction"] in ("lower", "as low") else 1
    return {
        s: sign * (math.log(one[s] / two[s]) if claim.get("ratio") else one[s] - two[s])
        for s in one
    }


def _effects_by_experiment(claim: Claim, pairs: Sequence[Pair]) -> list[Interval]:
    """Return an effect for each experiment: by seed the mean over the settings in it that could decide."""
    effects: dict[str, list[Values]] = {}
    for pair in pairs:
        if pair.effect and pair.word not in UNDECIDED:
            of_pair = _effects(claim, *pair.values)
            effects.setdefault(pair.a.experiment, []).append(of_pair)
    found = []
    for several in effects.values():
        seeds = sorted(set.intersection(*(set(one) for one in several)))
        if len(seeds) > 1:
            means = [fmean(one[seed] for one in several) for seed in seeds]
            found.append(interval(means))
    return found


def load() -> Evidence:
    """Read the claims and everything that was measured."""
    tables = read_toml(FILE)
    runs = {name: run for run in tables["runs"] for name in run["experiments"]}
    files = {
        str(path.relative_to(RESULTS).with_suffix("")): path
        for path in RESULTS.rglob("*.json")
    }
    documents = {
        name: document
        for name, path in files.items()
        if (document := read(path.stem, path.parent))
    }
    for name in ("mean-estimation", "byzantine"):
        documents[name] = _plateaus(
            name, read_json(BENCHMARKS / f"{name.replace('-', '_')}.json", dict)
        )
    return Evidence(documents, tables["papers"], runs, tables["claims"], setups.load())


def _plateaus(name: str, result: Any) -> Document:
    """Return the rows of a benchmark whose runs end in a plateau; what knows no attack stands under each."""
    runs = [
        (run, f"mu = {run['mu']:g}" if "mu" in run else run["attack"])
        for run in result["runs"]
    ]
    noted = ("method", "seed", "commit", "machine", "torch", "seconds")
    rows = [
        Row(
            **{key: run[key] for key in noted},
            settings="",
            n_train=1000,
            n_test=0,
            values=values,
            curves={
                f"{name}, {condition}": curve
                for name, curve in run.get("curves", {}).items()
            },
        )
        for run, condition in runs
        for each in (
            [condition]
            if condition
            else dict.fromkeys(other for _, other in runs if other)
        )
        for values in [{f"plateau, {each}": run["plateau"]}]
    ]
    return Document(name, 0, rows)

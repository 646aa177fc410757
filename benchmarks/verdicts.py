"""How often does the rule of verdicts err, and what does it find? Four sets of simulated federations whose true gains are known.

`benchmarks/federations.py` has the kinds, what a run sees of them and the truth. This file judges them by the rule of
`coterie.report.evidence`, beside the rule that coterie had before and a t test, and counts. `BARS` were set before the first run of
the two fresh sets; a bar missed by less than one standard error over data sets counts as met.

Estimates are kept by federation in runs/verdicts.jsonl, so that a run that was stopped goes on. Writes
benchmarks/results/verdicts.json and what stands between the markers of each set in docs/statistics.md. `python -m
benchmarks.verdicts 20 "drawn by a seed"` estimates and writes one set alone.
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.federations import METHODS, SETS, estimate
from benchmarks.pages import between
from coterie.base.files import write_atomically
from coterie.report.evidence import (
    CONFIDENT,
    Gain,
    Mixture,
    Statement,
    share,
    state,
    vetoes,
)

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "verdicts.json"
ESTIMATES = ROOT / "runs" / "verdicts.jsonl"
JOINS = ("join", "probably join")
ALONE = ("stay alone", "probably stay alone")
GAIN, HARM = 0.02, 0.01
THIS_MODEL = 0.75
"""Standard errors of luck that a statement on one model has beside that on models like it."""
FEWEST_TESTED = 30
"""Test rows of a client below which the rule of before had no word."""


class Judged(NamedTuple):
    """What one client is told, by whom, and what is true of the method that was judged.

    Attributes:
        federation: kind and number of the data set.
        word, said: what coterie says, and with which probability.
        truth, best: the true gain by the method judged, and by the best one.
        this: the gain of the one model trained on all rows.
        covered, this_covered: the interval holds `truth`; the wider one of the card holds `this`.
        no_harm: a harm above .01 is excluded, by whatever word.
        bias_word, bias_truth: of fedavg+bias, whichever method was judged.
        before, t: the true gain of the method that the rule of before, and a t test over splits, says to join with; None: they do not.
    """

    federation: tuple[str, int]
    word: str
    said: float
    truth: float
    best: float
    this: float
    covered: bool
    this_covered: bool
    no_harm: bool
    bias_word: str
    bias_truth: float
    before: float | None
    t: float | None


def judge(clients: Sequence[Mapping[str, Any]]) -> list[Judged]:
    """What each client of one federation is told; small ones, which have no word of their own, are left out."""
    large = [c for c in clients if not c["rare"]]
    if not large:
        return []
    shared = {
        m: share([Gain(*c[m]["loss"], c["rows"]) for c in large]) for m in METHODS
    }
    ranked = [i for i, c in enumerate(large) if c[METHODS[0]]["auc"]]
    ranking = {
        m: dict(
            zip(
                ranked,
                share([Gain(*large[i][m]["auc"], large[i]["rows"]) for i in ranked]),
                strict=True,
            )
        )
        for m in METHODS
        if ranked
    }
    judged = []
    for i, client in enumerate(large):
        method = max(METHODS, key=lambda m: shared[m][i].mean)
        posterior = shared[method][i]
        statement = _statement(client, method, posterior)
        veto = i in ranking.get(method, {}) and vetoes(ranking[method][i])
        word = (
            "mixed"
            if veto and statement.word in (*JOINS, "safe to join")
            else statement.word
        )
        truth, this = client[method]["truth"], client[method]["this"]
        half = 1.96 * math.hypot(
            posterior.deviation, THIS_MODEL * client[method]["loss"][1]
        )
        judged.append(
            Judged(
                (client["kind"], client["number"]),
                word,
                statement.probability,
                truth,
                max(client[m]["truth"] for m in METHODS),
                this,
                statement.low <= truth <= statement.high,
                abs(this - posterior.mean) <= half,
                word in (*JOINS, "safe to join")
                and posterior.above(-HARM) >= CONFIDENT,
                _statement(client, "fedavg+bias", shared["fedavg+bias"][i]).word,
                client["fedavg+bias"]["truth"],
                _joined_before(client),
                _joined_by_t(client),
            )
        )
    return judged


def _statement(client: Mapping[str, Any], method: str, posterior: Mixture) -> Statement:
    return state(Gain(*client[method]["loss"], client["rows"]), posterior)


def _joined_before(client: Mapping[str, Any]) -> float | None:
    """The rule of before: some method is likely better in log-loss or AUC and worse in neither."""
    if client[METHODS[0]]["before"]["tested"] < FEWEST_TESTED:
        return None
    seen = {
        m: [client[m]["before"][k] for k in ("loss", "auc") if k in client[m]["before"]]
        for m in METHODS
    }
    better = [
        m
        for m, sides in seen.items()
        if any(sure and mean > 0 for mean, sure in sides)
        and not any(sure and mean < 0 for mean, sure in sides)
    ]
    return client[max(better, key=lambda m: seen[m][0][0])]["truth"] if better else None


def _joined_by_t(client: Mapping[str, Any]) -> float | None:
    """A plain paired t test over splits of the method with the highest mean."""
    method = max(METHODS, key=lambda m: client[m]["before"]["t"][0])
    mean, p = client[method]["before"]["t"]
    return client[method]["truth"] if p < 0.05 and mean >= HARM else None


# What is counted

Test = Callable[[Judged], bool]


class Figure(NamedTuple):
    """A share: of the clients `among`, those `counted`; good if high or if low."""

    text: str
    among: Test
    counted: Test
    high: bool


def _always(judged: Judged) -> bool:
    return True


def _gains(judged: Judged) -> bool:
    return judged.best > GAIN


def _joins(judged: Judged) -> bool:
    return judged.word in JOINS


def _is(*words: str) -> Test:
    return lambda judged: judged.word in words


def _said(low: float, high: float, words: tuple[str, ...]) -> Test:
    return lambda judged: judged.word in words and low <= judged.said < high


def _right(judged: Judged) -> bool:
    return (judged.truth > 0) == _joins(judged)


FIGURES: Mapping[str, Figure] = {
    "join": Figure("gains above .02: told *join*", _gains, _is("join"), True),
    "either": Figure("gains above .02: *join* or *probably join*", _gains, _joins, True),
    "lost": Figure("joins that lose more than .01", _joins, lambda j: j.truth < -HARM, False),
    "sign": Figure("joins with the wrong sign", _joins, lambda j: j.truth < 0, False),
    "join in vain": Figure("the method judged does not gain: told *join*", lambda j: j.truth <= 0, _is("join"), False),
    "either in vain": Figure("the same: *join* or *probably join*", lambda j: j.truth <= 0, _joins, False),
    "coverage": Figure("95 % intervals that hold the truth", _always, lambda j: j.covered, True),
    "said .8": Figure("said with probability .8 to .9, and true", _said(0.8, 0.9, (*JOINS, *ALONE)), _right, True),
    "said .9": Figure("said with probability .9 to .95, and true", _said(0.9, 0.95, (*JOINS, *ALONE)), _right, True),
    "said .8, joins": Figure("the same of joins alone", _said(0.8, 0.9, JOINS), lambda j: j.truth > 0, True),
    "said .9, joins": Figure("of joins alone, .9 to .95", _said(0.9, 0.95, JOINS), lambda j: j.truth > 0, True),
    "no harm": Figure("no harm above .01: said so, by whatever word", lambda j: j.truth > -HARM, lambda j: j.no_harm, True),
    "safe": Figure("told *safe to join*: harmed by more than .01", _is("safe to join"), lambda j: j.truth < -HARM, False),
    "harm": Figure("fedavg+bias harms by more than .02: found (*stay alone*)", lambda j: j.bias_truth < -GAIN,
                   lambda j: j.bias_word == "stay alone", True),
    "harm, either": Figure("the same: or *probably*", lambda j: j.bias_truth < -GAIN, lambda j: j.bias_word in ALONE, True),
    "harm, wrong": Figure("told that fedavg+bias harms: it gains", lambda j: j.bias_word == "stay alone",
                          lambda j: j.bias_truth > 0, False),
    "undecided": Figure("undecided", _always, _is("undecided"), False),
    "before": Figure("gains above .02 found by the rule of before", _gains, lambda j: j.before is not None, True),
    "before, sign": Figure("its joins with the wrong sign", lambda j: j.before is not None, lambda j: (j.before or 0) < 0, False),
    "t": Figure("gains above .02 found by a t test over splits", _gains, lambda j: j.t is not None, True),
    "t, sign": Figure("its joins with the wrong sign", lambda j: j.t is not None, lambda j: (j.t or 0) < 0, False),
    "this, sign": Figure("joins with the wrong sign, of the model trained on all rows", _joins, lambda j: j.this < 0, False),
    "this, lost": Figure("the same: joins that lose more than .01", _joins, lambda j: j.this < -HARM, False),
    "this, coverage": Figure("the same: coverage of the card's wider interval", _always, lambda j: j.this_covered, True),
}  # fmt: skip

_EVERYWHERE = {
    "lost": 0.015, "sign": 0.04, "join in vain": 0.1, "either in vain": 0.3, "coverage": 0.93, "said .8": 0.8, "said .9": 0.9,
}  # fmt: skip
BARS: Mapping[str, Mapping[str, float]] = {
    "clients alike or in groups": {
        **_EVERYWHERE, "join": 0.5, "either": 0.85, "no harm": 0.75, "harm": 0.75, "harm, wrong": 0.002, "groups right": 0.95,
        "groups false": 0.05,
    },
    "drawn by a seed": {**_EVERYWHERE, "sign": 0.06},
}  # fmt: skip

SIZES = (-math.inf, -0.02, -0.01, 0.0, 0.01, 0.02, 0.05, math.inf)
"""Bounds of the best true gain in the table by size."""


class Share(NamedTuple):
    """A share, its standard error over data sets, and of how many."""

    value: float
    error: float
    count: int


def ratio(pairs: Sequence[tuple[int, int]]) -> Share | None:
    """Return a share from counts (those counted, all) by data set; None if there are none.

    The error is that of a ratio whose clusters, the data sets, are independent.

    >>> ratio([(1, 2), (1, 2)])
    Share(value=0.5, error=0.0, count=4)
    """
    total = sum(n for _, n in pairs)
    if not total:
        return None
    value = sum(k for k, _ in pairs) / total
    clusters = [(k - value * n) for k, n in pairs if n]
    several = len(clusters) / (len(clusters) - 1) if len(clusters) > 1 else 1.0
    return Share(
        value, math.sqrt(several * sum(c * c for c in clusters)) / total, total
    )


def shares(
    judged: Sequence[Judged], federations: Sequence[Sequence[Mapping[str, Any]]]
) -> dict[str, Share | None]:
    """All figures of some federations, and their groups."""
    by_federation: dict[tuple[str, int], list[Judged]] = defaultdict(list)
    for one in judged:
        by_federation[one.federation].append(one)
    figures: dict[str, Share | None] = {}
    for key, (_, among, counted, _) in FIGURES.items():
        members = [[j for j in each if among(j)] for each in by_federation.values()]
        figures[key] = ratio([(sum(map(counted, each)), len(each)) for each in members])
    return figures | groups_found(federations)


def groups_found(
    federations: Sequence[Sequence[Mapping[str, Any]]],
) -> dict[str, Share | None]:
    """The share of federations with groups, 100 rows and two or more clients each, that are shown the true ones; and the share of
    those without groups, without and with a shift, that are shown some.
    """
    right, false, shifted = [], [], []
    for clients in federations:
        truth, shown = [c["group"] for c in clients], [c["shown"] for c in clients]
        sizes = [truth.count(g) for g in set(truth)]
        if len(sizes) > 1 and min(sizes) > 1 and min(c["rows"] for c in clients) >= 100:
            pairs = {*zip(truth, shown, strict=True)}
            right.append(
                (
                    int(
                        None not in shown
                        and len(pairs) == len(sizes) == len(set(shown))
                    ),
                    1,
                )
            )
        if len(sizes) == 1:
            (shifted if clients[0]["shifted"] else false).append(
                (int(None not in shown), 1)
            )
    return {
        "groups right": ratio(right),
        "groups false": ratio(false),
        "groups shifted": ratio(shifted),
    }


# The page

GROUPS = {
    "groups right": ("true groups of two and more, 100 rows: shown", True),
    "groups false": ("no groups and no shift: groups shown", False),
    "groups shifted": ("no groups but a shift: groups shown", False),
}


def bars(figures: Mapping[str, Share | None], limits: Mapping[str, float]) -> str:
    """The table of all figures, with the bars that were set."""
    lines = [
        "| figure | of | share | error over data sets | bar | |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    texts = {key: (f.text, f.high) for key, f in FIGURES.items()} | GROUPS
    for key, (text, high) in texts.items():
        found = figures[key]
        if found is None:
            continue
        limit = limits.get(key)
        answer = "" if limit is None else standing(found, limit, high)
        bar = "" if limit is None else f"{limit:g}".lstrip("0")
        cells = [str(found.count), decimals(found.value), decimals(found.error), bar]
        lines.append(f"| {text} | {' | '.join(cells)} | {answer} |")
    return "\n".join(lines)


def standing(found: Share, limit: float, high: bool) -> str:
    """`met`, `met within a standard error` or `missed`."""
    short = (limit - found.value) * (1 if high else -1)
    return (
        "met"
        if short <= 0
        else "met within a standard error"
        if short <= found.error
        else "**missed**"
    )


COLUMNS = (
    "join", "either", "sign", "lost", "no harm", "coverage", "undecided", "before", "before, sign", "t", "t, sign",
)  # fmt: skip
TITLES = (
    "told *join*", "or *probably*", "wrong sign", "lose > .01", "no harm", "coverage", "undecided", "before finds", "wrong sign",
    "t test finds", "wrong sign",
)  # fmt: skip


def by_kind(rows: Mapping[str, Mapping[str, Share | None]]) -> str:
    """A row a kind."""
    lines = ["| kind | clients | gains > .02 | " + " | ".join(TITLES) + " | groups |"]
    lines.append("| --- |" + " ---: |" * (len(TITLES) + 2) + " --- |")
    for kind, figures in rows.items():
        everyone, gaining = figures["coverage"], figures["join"]
        counts = [str(s.count if s else 0) for s in (everyone, gaining)]
        cells = [
            *counts,
            *(decimals(s.value if (s := figures[key]) else None) for key in COLUMNS),
        ]
        right, false, shifted = (figures[key] for key in GROUPS)
        groups = [f"{decimals(right.value)} right"] if right else []
        groups += (
            [f"{decimals(shifted.value)} shown where none are but a shift"]
            if shifted
            else []
        )
        groups += [f"{decimals(false.value)} shown where none are"] if false else []
        lines.append(f"| {kind} | {' | '.join(cells)} | {', '.join(groups)} |")
    return "\n".join(lines)


def by_size(judged: Sequence[Judged]) -> str:
    """What clients are told, by the best true gain."""
    words = (
        "join",
        "probably join",
        "safe to join",
        "undecided",
        "mixed",
        "probably stay alone",
        "stay alone",
    )
    lines = [
        f"| best true gain | clients | {' | '.join(f'*{w}*' for w in words)} | before: join | t test: join |"
    ]
    lines.append("| --- |" + " ---: |" * (len(words) + 3))
    for low, high in pairwise(SIZES):
        some = [j for j in judged if low < j.best <= high]
        if some:
            counts = [sum(j.word == w for j in some) for w in words]
            counts += [
                sum(j.before is not None for j in some),
                sum(j.t is not None for j in some),
            ]
            bounds = [
                ("-" if b < 0 else "") + f"{abs(b):g}".lstrip("0") if b else "0"
                for b in (low, high)
            ]
            title = {
                (-math.inf, high): f"below {bounds[1]}",
                (low, math.inf): f"above {bounds[0]}",
            }.get((low, high))
            title = title or " to ".join(bounds)
            lines.append(
                f"| {title} | {len(some)} | "
                + " | ".join(decimals(c / len(some)) for c in counts)
                + " |"
            )
    return "\n".join(lines)


def decimals(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}".replace("0.", ".", 1)


def _in_lines(results: Mapping[str, Mapping[str, Any]]) -> str:
    """JSON with a line for each kind: of each figure the share, its error and of how many it is."""
    sets = [
        f"{json.dumps(title)}: {{\n"
        + ",\n".join(
            f"{json.dumps(kind)}: {json.dumps(row)}" for kind, row in kinds.items()
        )
        + "\n}"
        for title, kinds in results.items()
    ]
    return "{\n" + ",\n".join(sets) + "\n}\n"


def main(sets: int = 20, *titles: str) -> int:
    """Estimate what is missing of the sets with these titles (default: of all), judge, and write the results."""
    ESTIMATES.parent.mkdir(exist_ok=True)
    chosen = {title: SETS[title] for title in titles or SETS}
    known = (
        [json.loads(line) for line in ESTIMATES.read_text().splitlines()]
        if ESTIMATES.is_file()
        else []
    )
    done = {(clients[0]["kind"], clients[0]["number"]) for clients in known}
    with ESTIMATES.open("a") as file:
        for kinds in reversed(chosen.values()):
            for number in range(sets):
                for kind, draw in kinds.items():
                    if (kind, number) not in done:
                        known.append(estimate(kind, draw, number))
                        file.write(json.dumps(known[-1]) + "\n")
                        file.flush()
    results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    for title, kinds in chosen.items():
        federations = [
            c
            for kind in kinds
            for c in known
            if c[0]["kind"] == kind and c[0]["number"] < sets
        ]
        judged = [j for clients in federations for j in judge(clients)]
        rows = {
            k: shares(
                [j for j in judged if j.federation[0] == k],
                [c for c in federations if c[0]["kind"] == k],
            )
            for k in kinds
        }
        figures = shares(judged, federations)
        rows["all"] = figures
        results[title] = {
            kind: {
                key: s and [round(s.value, 4), round(s.error, 4), s.count]
                for key, s in row.items()
            }
            for kind, row in rows.items()
        }
        fixed = (
            " Kinds and bars were fixed before the first run, which was the only one."
            if title in BARS
            else ""
        )
        text = [
            f"### {len(kinds)} kinds, {title}",
            "",
            f"{sets} federations of each.{fixed}",
            "",
        ]
        text += [
            bars(figures, BARS.get(title, {})),
            "",
            by_kind(rows),
            "",
            by_size(judged),
        ]
        between(ROOT / "docs" / "statistics.md", "\n".join(text), f"verdicts, {title}")
        print("\n".join(text))
    write_atomically(RESULTS, lambda p: p.write_text(_in_lines(results)))
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:2]), *sys.argv[2:]))

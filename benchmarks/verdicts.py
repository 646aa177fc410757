"""How often does the rule of verdicts err, and what does it find? Simulated federations whose true gains are known.

`benchmarks/federations.py` has the kinds, what a run sees of them and the truth. This file judges them as coterie does:
`partial` speaks, another method only where it says more and is shown better. The rival is the linear model alone, as with
`rivals = ["linear"]`.

Estimates are kept by federation in runs/verdicts.jsonl, so that a run that was stopped goes on. Writes
benchmarks/results/verdicts.csv, a row for each kind and figure, and the table between the markers of docs/statistics.md.
`python -m benchmarks.verdicts 12` takes 12 federations of each kind.
"""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.federations import METHODS, PRIMARY, SETS, estimate
from benchmarks.pages import between
from coterie.base.files import write_atomically
from coterie.report.evidence import (
    SMALLEST,
    Gain,
    Mixture,
    Statement,
    moderate_errors,
    share,
    smallest_effect,
    smallest_effect_of_events,
    state,
    vetoes,
)
from coterie.report.verdicts import JOINS, STAYS, STRENGTH, Kind, may_speak_instead

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "verdicts.csv"
ESTIMATES = ROOT / "runs" / "verdicts.jsonl"
GAIN = 0.02
"""A gain that a client should hear of."""
EVERY_SET = "all kinds"
FEWEST_CASES = 5


class Judged(NamedTuple):
    """What one client is told, by which method, and what is true of it.

    Attributes:
        federation: Kind and number of the data set.
        word, said: The word, and its probability.
        truth, best: The true gain by the method that speaks, and by the best one.
        covered: The 95 % interval holds `truth`.
        smallest: The smallest effect of interest.
        alone: The word where the primary method is the only one.
        off: Estimate minus truth of the primary method.
        rows: Rows of the client.
    """

    federation: tuple[str, int]
    word: Kind
    said: float
    truth: float
    best: float
    covered: bool
    smallest: float
    alone: Kind
    off: float
    rows: int


def judge(clients: Sequence[Mapping[str, Any]]) -> list[Judged]:
    """What each client of one federation is told; those with few cases, which are judged apart, are left out."""
    large = [c for c in clients if _fewest(c) >= FEWEST_CASES]
    if not large:
        return []
    margins = [_margin(c) for c in large]
    words = {m: _words_of(m, large, margins) for m in METHODS}
    judged = []
    for i, client in enumerate(large):
        method, (word, statement) = PRIMARY, words[PRIMARY][i]
        alone = word
        for place, rival in enumerate(METHODS):
            rival_word, rival_statement = words[rival][i]
            if STRENGTH[rival_word] <= STRENGTH[word]:
                continue
            over_primary = Gain(*client[rival]["over primary"], client["rows"])
            if may_speak_instead(place, over_primary.chance):
                method, word, statement = rival, rival_word, rival_statement
        truth = client[method]["truth"]
        judged.append(
            Judged(
                federation=(client["kind"], client["number"]),
                word=word,
                said=statement.probability,
                truth=truth,
                best=max(client[m]["truth"] for m in METHODS),
                covered=statement.low <= truth <= statement.high,
                smallest=margins[i],
                alone=alone,
                off=client[PRIMARY]["loss"][0] - client[PRIMARY]["truth"],
                rows=client["rows"],
            )
        )
    return judged


def _fewest(client: Mapping[str, Any]) -> int:
    """Rows of the rarer class, or with an event; all rows where labels are numbers."""
    rows = int(client["rows"])
    cases = client["cases"]
    if "events" in client:
        return int(client["events"])
    return rows if cases is None else min(cases, rows - cases)


def _margin(client: Mapping[str, Any]) -> float:
    cases = client["cases"]
    if "events" in client:
        without = client["rows"] - client["events"]
        return smallest_effect_of_events(without, client["events"])
    if cases is None:
        return SMALLEST
    return smallest_effect([client["rows"] - cases, cases])


def _words_of(
    method: str, clients: Sequence[Mapping[str, Any]], margins: Sequence[float]
) -> list[tuple[Kind, Statement]]:
    """The word of one method at each client, after the veto of the AUC, and the statement."""
    gains = moderate_errors([Gain(*c[method]["loss"], c["rows"]) for c in clients])
    posteriors = share(gains, margins)
    vetoed = _vetoed(method, clients)
    words: list[tuple[Kind, Statement]] = []
    for i, (gain, posterior, margin) in enumerate(
        zip(gains, posteriors, margins, strict=True)
    ):
        statement = state(gain, posterior, margin)
        word: Kind = statement.word
        if i in vetoed and STRENGTH[word] > STRENGTH["mixed"]:
            word = "mixed"
        words.append((word, statement))
    return words


def _vetoed(method: str, clients: Sequence[Mapping[str, Any]]) -> set[int]:
    ranked = [i for i, c in enumerate(clients) if c[method]["auc"]]
    gains = [Gain(*clients[i][method]["auc"], clients[i]["rows"]) for i in ranked]
    known = [(i, g) for i, g in zip(ranked, gains, strict=True) if g.error > 0]
    posteriors: list[Mixture] = share(moderate_errors([gain for _, gain in known]))
    return {i for (i, _), p in zip(known, posteriors, strict=True) if vetoes(p)}


# What is counted

Test = Callable[[Judged], bool]


class Figure(NamedTuple):
    """A share: of the clients `among`, those `counted`."""

    text: str
    among: Test
    counted: Test


def _always(judged: Judged) -> bool:
    return True


def _gains(judged: Judged) -> bool:
    return judged.best > GAIN


def _is(*words: str) -> Test:
    return lambda judged: judged.word in words


def _said(low: float, high: float) -> Test:
    return lambda judged: judged.word in (*JOINS, *STAYS) and low <= judged.said < high


def _right(judged: Judged) -> bool:
    return (judged.truth > 0) == (judged.word in JOINS)


def _loses(judged: Judged) -> bool:
    return judged.truth < -judged.smallest


FIGURES: Mapping[str, Figure] = {
    "join": Figure("gains above .02: told *join*", _gains, _is("join")),
    "either": Figure("gains above .02: *join* or *probably join*", _gains, _is(*JOINS)),
    "join wrong": Figure("told *join*: loses", _is("join"), lambda j: j.truth < 0),
    "join harmed": Figure("told *join*: loses more than the smallest effect", _is("join"), _loses),
    "either wrong": Figure("told *join* or *probably*: loses", _is(*JOINS), lambda j: j.truth < 0),
    "either harmed": Figure("the same: more than the smallest effect", _is(*JOINS), _loses),
    "safe harmed": Figure("told *safe to join*: loses more than the smallest effect", _is("safe to join"), _loses),
    "safe forgone": Figure("told *safe to join*: the best method gains more than .02", _is("safe to join"), _gains),
    "stay": Figure("told (*probably*) *stay alone*", _always, _is(*STAYS)),
    "undecided": Figure("*undecided* or *mixed*", _always, _is("undecided", "mixed")),
    "coverage": Figure("95 % intervals that hold the truth", _always, lambda j: j.covered),
    "said .8": Figure("said with probability .8 to .9, and true", _said(0.8, 0.9), _right),
    "said .9": Figure("said with probability .9 to .95, and true", _said(0.9, 0.95), _right),
    "said .95": Figure("said with probability .95 to .99, and true", _said(0.95, 0.99), _right),
    "weakened": Figure("words that two more methods weaken", _always, lambda j: STRENGTH[j.word] < STRENGTH[j.alone]),
    "raised": Figure("words that two more methods raise", _always, lambda j: STRENGTH[j.word] > STRENGTH[j.alone]),
}  # fmt: skip


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
    error = math.sqrt(several * sum(c * c for c in clusters)) / total
    return Share(value, error, total)


def shares(judged: Sequence[Judged]) -> dict[str, Share | None]:
    """All figures of some federations."""
    by_federation: dict[tuple[str, int], list[Judged]] = defaultdict(list)
    for one in judged:
        by_federation[one.federation].append(one)
    figures: dict[str, Share | None] = {}
    for key, (_, among, counted) in FIGURES.items():
        members = [[j for j in each if among(j)] for each in by_federation.values()]
        figures[key] = ratio([(sum(map(counted, each)), len(each)) for each in members])
    return figures


def gains_of(clients: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    """Of each method the mean true gain, and the share of clients that it harms by more than .01; kinds count alike."""
    found = {}
    for method in METHODS:
        by_kind: dict[str, list[float]] = defaultdict(list)
        for client in clients:
            by_kind[client["kind"]].append(client[method]["truth"])
        means = [float(np.mean(v)) for v in by_kind.values()]
        harmed = [float(np.mean(np.array(v) < -0.01)) for v in by_kind.values()]
        found[method] = (float(np.mean(means)), float(np.mean(harmed)))
    return found


# The page and the file


def table(
    judged: Sequence[Judged], clients: Sequence[Mapping[str, Any]], federations: int
) -> str:
    """What docs/statistics.md shows."""
    figures = shares(judged)
    kinds = len({j.federation[0] for j in judged})
    lines = [f"{federations} federations of {kinds} kinds, {len(judged)} clients.", ""]
    lines += ["| figure | of | share | ± |", "| --- | ---: | ---: | ---: |"]
    for key, figure in FIGURES.items():
        found = figures[key]
        if found is not None:
            cells = [
                str(found.count),
                decimals(found.value),
                decimals(1.96 * found.error),
            ]
            lines.append(f"| {figure.text} | {' | '.join(cells)} |")
    lines += [
        "",
        "| true gain over training alone | mean of kinds | harmed by more than .01 |",
    ]
    lines.append("| --- | ---: | ---: |")
    for method, (mean, harmed) in gains_of(clients).items():
        lines.append(f"| {method} | {decimals(mean, sign=True)} | {decimals(harmed)} |")
    by_federation: dict[tuple[str, int], list[float]] = defaultdict(list)
    for one in judged:
        if 60 <= one.rows <= 150:
            by_federation[one.federation].append(one.off)
    # Clients of a federation share the luck of its rows, so federations are counted.
    means = [float(np.mean(off)) for off in by_federation.values()]
    if len(means) > 1:
        spread = 1.96 * float(np.std(means, ddof=1)) / math.sqrt(len(means))
        mean_off = decimals(float(np.mean(means)), sign=True)
        said = f"{mean_off} ± {decimals(spread)}"
        lines += ["", f"Estimate minus truth of `partial` at 60 to 150 rows: {said}."]
    return "\n".join(lines)


def rows_of_csv(judged: Sequence[Judged]) -> list[list[str]]:
    """A row for each kind and figure: the share, its error and of how many."""
    kinds = dict.fromkeys(j.federation[0] for j in judged)
    rows = [["kind", "figure", "share", "error", "count"]]
    for kind in (*kinds, EVERY_SET):
        of_kind = [j for j in judged if kind in (j.federation[0], EVERY_SET)]
        for key, found in shares(of_kind).items():
            if found is not None:
                numbers = [f"{found.value:.4f}", f"{found.error:.4f}", str(found.count)]
                rows.append([kind, FIGURES[key].text.replace("*", ""), *numbers])
    return rows


def decimals(value: float, *, sign: bool = False) -> str:
    """Three decimals without the leading zero.

    >>> decimals(0.0231, sign=True), decimals(-0.5), decimals(1.0)
    ('+.023', '-.500', '1.000')
    """
    text = f"{value:+.3f}" if sign else f"{value:.3f}"
    return text.replace("0.", ".", 1) if abs(value) < 1 else text


def main(sets: int = 12) -> int:
    """Estimate what is missing, judge, and write the results."""
    torch.set_num_threads(1)
    ESTIMATES.parent.mkdir(exist_ok=True)
    known = (
        [json.loads(line) for line in ESTIMATES.read_text().splitlines()]
        if ESTIMATES.is_file()
        else []
    )
    done = {(clients[0]["kind"], clients[0]["number"]) for clients in known}
    every_kind = {kind: draw for kinds in SETS.values() for kind, draw in kinds.items()}
    with ESTIMATES.open("a") as file:
        for number in range(sets):
            for kind, draw in every_kind.items():
                if (kind, number) not in done:
                    known.append(estimate(kind, draw, number))
                    file.write(json.dumps(known[-1]) + "\n")
                    file.flush()
    chosen = [c for c in known if c[0]["kind"] in every_kind and c[0]["number"] < sets]
    judged = [j for clients in chosen for j in judge(clients)]
    text = table(judged, [c for clients in chosen for c in clients], len(chosen))
    between(ROOT / "docs" / "statistics.md", text, "verdicts")
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows_of_csv(judged))
    write_atomically(RESULTS, lambda p: p.write_text(buffer.getvalue()))
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:2])))

"""`coterie plan-rows`: how probable each word of the answer is once further rows have come, by draws from what is known now.

A draw is a true gain from the posterior, and what further rows would then show; the word that the rule says of both is counted.
More rows also make training alone better: with N rows beside n a gain of theta is one of theta n / (n + N).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from coterie.base.errors import InputError
from coterie.report.evidence import (
    DRAWS,
    INFLATION,
    WORDS,
    Gain,
    Mixture,
    Word,
    foresee,
    share,
    state,
)
from coterie.report.results import Results
from coterie.report.verdicts import Verdict, verdict
from coterie.report.words import headline

FACTORS = (0.5, 1, 2, 4, 8)
MOST_WORK = 800
"""Draws times clients, for each number of further rows: with many clients there are fewer draws."""
FEWEST_DRAWS = 50

Chances = Mapping[int, Mapping[Word, float]]
"""The probability of each word by the number of further rows."""


class Plan(NamedTuple):
    """The probable effect of further rows on one client.

    Attributes:
        verdict: what is said today.
        own: by the number of further rows at this client alone.
        everybody: by the number of further rows at this client, and in proportion at every other one.
    """

    verdict: Verdict
    own: Chances
    everybody: Chances


def plan_rows(results: Results, client: str, further: Sequence[int] = ()) -> Plan:
    """Return what further rows would probably bring to `client`.

    Args:
        results: results of a finished run.
        client: its name.
        further: numbers of rows; by default half, 1, 2, 4 and 8 times those it has.

    Raises:
        InputError: an unknown client, or one of which no word is said from its own rows.
    """
    today, compared = verdict(results, client), results.comparisons
    if today.method is None or today.together:
        why = today.reason
        if today.together:
            why = "it has too few rows of its own"
        raise InputError(f"nothing can be planned for {client}: {why}")
    evidence = compared.evidence(today.method, compared.gain_metric)
    judged = {c: pair for c, pair in evidence.items() if not compared.small(c)}
    margins = {c: compared.smallest_at(c, compared.gain_metric) for c in judged}
    gain, posterior = judged[client]
    numbers = tuple(further)
    if not numbers:
        numbers = tuple(round_rows(factor * gain.rows) for factor in FACTORS)
    own = foresee(gain, posterior, margins[client], numbers).words
    return Plan(today, own, _with_partners(judged, margins, client, numbers))


def round_rows(rows: float) -> int:
    """A number of rows with two digits.

    >>> round_rows(61.5), round_rows(123), round_rows(984)
    (62, 120, 980)
    """
    unit = int(10 ** max(0, math.floor(math.log10(max(rows, 1))) - 1))
    return max(1, round(rows / unit) * unit)


def _with_partners(
    evidence: Mapping[str, tuple[Gain, Mixture]],
    margins: Mapping[str, float],
    client: str,
    numbers: Sequence[int],
) -> Chances:
    """The words on `client` if every client gets further rows in proportion: each draw is judged together again."""
    gains = {name: gain for name, (gain, _) in evidence.items()}
    names, place = [*gains], [*gains].index(client)
    draws = max(FEWEST_DRAWS, min(DRAWS, MOST_WORK // len(names)))
    generator = np.random.default_rng(0)
    posteriors = [posterior for _, posterior in evidence.values()]
    theta = _draw_gains(posteriors, draws, generator)
    noise = generator.standard_normal(theta.shape)
    smallest = [margins[name] for name in names]
    chances: dict[int, dict[Word, float]] = {}
    for number in numbers:
        ratio = number / gains[client].rows
        left = gains[client].left_after(number)
        counts: Counter[Word] = Counter()
        for true_gains, errors in zip(left * theta, noise, strict=True):
            with_partners = []
            for gain, true_gain, error in zip(
                gains.values(), true_gains, errors, strict=True
            ):
                further = ratio * gain.rows
                observed = true_gain + gain.spread_of(further) * error
                estimate, spread = gain.with_rows(further, observed)
                rows = round(gain.rows + further)
                with_partners.append(Gain(float(estimate), spread / INFLATION, rows))
            [posterior] = share(with_partners, smallest, places=[place])
            counts[state(with_partners[place], posterior, smallest[place]).word] += 1
        chances[number] = {word: counts[word] / draws for word in WORDS if counts[word]}
    return chances


def _draw_gains(
    posteriors: Sequence[Mixture], draws: int, generator: np.random.Generator
) -> np.ndarray:
    """True gains [draws, clients], each from its own distribution."""
    columns = []
    for posterior in posteriors:
        weights = posterior.weights / posterior.weights.sum()
        component = generator.choice(len(weights), draws, p=weights)
        deviations = np.sqrt(posterior.variances[component])
        normal = generator.standard_normal(draws)
        columns.append(posterior.means[component] + deviations * normal)
    return np.stack(columns, axis=1)


def plan_lines(results: Results, client: str, plan: Plan) -> list[str]:
    """The plan for a terminal: today's word, and two tables."""
    lines = [f"{results.names[client]} today: {headline(results, plan.verdict)}", ""]
    lines.append("Probability of each word after further rows, in percent:")
    rows = [*plan.own.values(), *plan.everybody.values()]
    # A word has a column if it prints as more than 0 % somewhere.
    words = [w for w in WORDS if max(row.get(w, 0) for row in rows) >= 0.005]
    width = max(len(f"{number:,}") for number in plan.own) + 2
    for heading, chances in (
        (f"rows of {results.names[client]}", plan.own),
        ("those, and in proportion at every other client", plan.everybody),
    ):
        titles = "".join(f"  {word}" for word in words)
        lines += ["", f"{heading}:", " " * width + titles]
        for number, row in chances.items():
            line = f"{number:>{width},}"
            for word in words:
                line += f"  {100 * row.get(word, 0):>{len(word)}.0f}"
            lines.append(line)
    lines.append("")
    lines.append(
        "By draws from what is known now. More rows also make training alone better, and so the gain smaller."
    )
    return lines

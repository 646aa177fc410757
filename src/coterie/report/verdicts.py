"""One verdict per client: join, join with whom, join and recalibrate, stay alone, or too little to tell.

What is *clear* or *likely* is the rule of `coterie.report.statistics`, over the federated methods and the metrics that
decide. Of these:

- `join`: a method is better in one metric and worse in none; `clear` are the metrics in which it is clearly better.
  `join with` if the method weighs updates for this client alone and some, but not all, of the others have a weight above
  the uniform share by a tenth, mean over the second half of the rounds.
- `join, then recalibrate`: the same for a method whose bias is tuned at the client afterwards, which may be likely, but
  not clearly, worse in another metric. If it is merely not worse, while the method without it is: `no gain; recalibrate
  if you join anyway`.
- `stay alone`: every federated method is worse in something and better in nothing. `mixed`: one is better in something
  and worse in something else.
- `no gain shown`: nothing is better, and some methods are worse. `no difference shown`: nothing is better or worse.
- `too few rows to tell`: fewer than 30 test rows. `no verdict`: fewer than 3 seeds, or nothing to compare with.
- A reference with all rows in one place never wins: nobody can have it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from coterie.base.errors import nearest, require
from coterie.report.results import Results
from coterie.report.statistics import FEWEST_ROWS, FEWEST_SEEDS, Difference
from coterie.report.text import count, listing, printable

__all__ = [
    "Kind",
    "Verdict",
    "beats_constant",
    "harmed",
    "helped",
    "late_shares",
    "recommended",
    "verdict",
    "whole_percent",
]

Kind = Literal[
    "join",
    "join with",
    "join, then recalibrate",
    "no gain; recalibrate if you join anyway",
    "stay alone",
    "mixed",
    "no gain shown",
    "no difference shown",
    "too few rows to tell",
    "no verdict",
]
CONCENTRATED = 1.1

Comparisons = Mapping[str, Mapping[str, Difference]]
"""By method and metric."""


class Verdict(NamedTuple):
    """What one client should do.

    Attributes:
        kind: in a few words.
        reason: in a sentence without capital and full stop.
        method: the method that wins, or that is meant; None where there is none.
        metrics: in which it is better.
        partners: for `join with`, the clients from which its weight comes and their shares.
        clear: those of `metrics` in which it is clearly, and not only likely, better.
        skill: whether the method is shown to beat always predicting the client's own training rows; None where that is not known.
    """

    kind: Kind
    reason: str
    method: str | None = None
    metrics: tuple[str, ...] = ()
    partners: tuple[tuple[str, float], ...] = ()
    clear: tuple[str, ...] = ()
    skill: bool | None = None

    @property
    def joins(self) -> bool:
        """Whether joining pays."""
        return self.kind in ("join", "join with", "join, then recalibrate")


def verdict(results: Results, client: str) -> Verdict:
    """What this client should do."""
    if results.baseline is None:
        return Verdict("no verdict", "no method trained each client alone")
    compared: dict[str, dict[str, Difference]] = {}
    for (method, metric), difference in results.compared.family(client).items():
        compared.setdefault(method, {})[metric] = difference
    if not compared:
        return Verdict("no verdict", "no federated method has a result here")
    if results.compared.too_few_rows(client):
        rows = count(round(results.size(client)), f"{results.split} row")
        return Verdict("too few rows to tell", f"{rows}; a verdict needs {FEWEST_ROWS}")
    if all(d.strength == "no verdict" for row in compared.values() for d in row.values()):
        return Verdict("no verdict", f"{count(len(results.seeds), 'seed')}; a verdict needs {FEWEST_SEEDS}")
    return _weigh(results, client, compared)


def recommended(results: Results, client: str) -> str:
    """The method for a client: a federated one if joining pays, else training alone. Raises `InputError` if nobody is called so."""
    require(client in results.clients, f"the run has no client {client!r}; {nearest(client, results.clients)}")
    judged, alone = verdict(results, client), results.baseline
    if judged.joins and judged.method is not None:
        return judged.method
    return results.methods[0] if alone is None else alone


def _weigh(results: Results, client: str, compared: Comparisons) -> Verdict:
    better = {m: _metrics(row, 1) for m, row in compared.items()}
    worse = {m: _metrics(row, -1) for m, row in compared.items()}
    tuned = {m for m in compared if results.recalibrated(m)}
    bad = {m: _metrics(row, -1, clearly=m in tuned) for m, row in compared.items()}
    winners = [m for m in compared if better[m] and not bad[m]]
    if winners:
        winners.sort(
            key=lambda m: (-len(_metrics(compared[m], 1, clearly=True)), len(worse[m]), _loss(results, m, client))
        )
        return _join(results, client, compared, winners)
    for method in sorted(tuned, key=lambda m: _loss(results, m, client)):
        plain = results.untuned(method)
        if plain in worse and worse[plain] and not worse[method]:
            return _no_gain(results, client, compared, method, plain)
    if all(worse.values()) and not any(better.values()):
        who = "every federated method is" if len(compared) > 1 else f"{printable(next(iter(compared)))} is"
        clear = [bool(_metrics(row, -1, clearly=True)) for row in compared.values()]
        how = "clearly" if all(clear) else "likely or clearly" if any(clear) else "likely"
        return Verdict("stay alone", f"{who} {how} worse")
    both = {m: f"{_said(results, row, 1)} but {_said(results, row, -1)}" for m, row in compared.items() if better[m]}
    if both:
        return Verdict("mixed", _together(both))
    harms = {m: _said(results, row, -1) for m, row in compared.items() if worse[m]}
    if harms:
        return Verdict("no gain shown", _together(harms))
    return Verdict("no difference shown", "no method is shown to help or harm")


def _metrics(row: Mapping[str, Difference], sign: int, *, clearly: bool = False) -> tuple[str, ...]:
    """The metrics in which a method is better (`sign` 1) or worse (-1) than training alone."""
    return tuple(k for k, d in row.items() if d.sign == sign and (d.strength == "clear" or not clearly))


def _said(results: Results, row: Mapping[str, Difference], sign: int) -> str:
    """`clearly better in AUC and likely better in log-loss`."""
    words: dict[str, list[str]] = {}
    for metric in _metrics(row, sign):
        words.setdefault(row[metric].words, []).append(results.metric_name(metric))
    return listing([f"{word} in {listing(metrics)}" for word, metrics in words.items()])


def _together(said: Mapping[str, str]) -> str:
    """What each method is; those of which the same is said share a clause: `fedavg and fedprox are clearly worse in AUC`."""
    methods: dict[str, list[str]] = {}
    for method, text in said.items():
        methods.setdefault(text, []).append(printable(method))
    return "; ".join(f"{listing(who)} {'is' if len(who) == 1 else 'are'} {text}" for text, who in methods.items())


def _join(results: Results, client: str, compared: Comparisons, winners: Sequence[str]) -> Verdict:
    method = winners[0]
    row, better = compared[method], _metrics(compared[method], 1)
    reason = f"{printable(method)} is {_said(results, row, 1)} than training alone"
    if _metrics(row, -1):
        reason += f", but {_said(results, row, -1)}"
    skill = beats_constant(results, client, method)
    if skill is False:
        reason += f"; {_no_skill(results)}"
    clear = _metrics(row, 1, clearly=True)
    if results.recalibrated(method):
        return Verdict("join, then recalibrate", reason, method, better, clear=clear, skill=skill)
    partners = _partners(results, client, method)
    return Verdict("join with" if partners else "join", reason, method, better, partners, clear, skill)


def _no_skill(results: Results) -> str:
    same = "giving every row the same risk" if results.classification else "always predicting the training mean"
    return f"not shown to beat {same}"


def _no_gain(results: Results, client: str, compared: Comparisons, method: str, plain: str) -> Verdict:
    reason = f"{printable(plain)} is {_said(results, compared[plain], -1)}; {printable(method)} is not shown to differ"
    return Verdict("no gain; recalibrate if you join anyway", reason, method)


def _partners(results: Results, client: str, method: str) -> tuple[tuple[str, float], ...]:
    shares = late_shares(results, client, method)
    others = {c: s for c, s in shares.items() if c != client}
    near = {c: s for c, s in others.items() if s > CONCENTRATED / len(shares)}
    return () if len(near) == len(others) else tuple(sorted(near.items(), key=lambda item: -item[1]))


def late_shares(results: Results, client: str, method: str) -> dict[str, float]:
    """Mean weight of each client for this target in the second half of the rounds; empty without own weights."""
    weights = results.weights.get(method)
    if weights is None or client not in weights.targets:
        return {}
    row = weights.late()[weights.targets.index(client)]
    return {c: float(w) for c, w in zip(weights.clients, row, strict=True) if c in results.names}


def harmed(results: Results, client: str) -> tuple[str, ...]:
    """Federated methods that are clearly worse than training alone in a metric that decides."""
    family = results.compared.family(client)
    return tuple(dict.fromkeys(m for (m, _), d in family.items() if d.strength == "clear" and d.sign < 0))


def helped(results: Results, client: str) -> tuple[str, ...]:
    """Federated methods that are clearly better than training alone in a metric that decides, and worse in none."""
    family = results.compared.family(client)
    good = dict.fromkeys(m for (m, _), d in family.items() if d.strength == "clear" and d.sign > 0)
    return tuple(m for m in good if not any(d.sign < 0 for (other, _), d in family.items() if other == m))


def beats_constant(results: Results, client: str, method: str) -> bool | None:
    """Whether a method has a lower loss than always predicting the client's own training rows, 0 outside the 95 % interval of
    the difference; None where that is not known.
    """
    difference = results.compared.against_constant(method, client)
    return None if difference is None or difference.low is None else difference.better and difference.excludes_zero


def whole_percent(share: float) -> str:
    """A weight in percent.

    >>> whole_percent(0.376), whole_percent(0.004)
    ('38 %', 'less than 1 %')
    """
    return f"{share * 100:.0f} %" if share >= 0.01 else "less than 1 %"


def _loss(results: Results, method: str, client: str) -> float:
    value = results.mean(method, client, "loss")
    return value if math.isfinite(value) else math.inf

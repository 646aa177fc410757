"""One verdict per client: join, join with whom, stay alone, or too little to tell.

- A difference is *clear* only if its 95 % interval over seeds excludes 0 (`coterie.report.statistics`).
- A method *harms* a client if its accuracy or its log-loss is clearly worse than that of the client alone.
- Verdicts look at accuracy, AUC and log-loss (for regression at the loss): `join` needs a federated method that is
  clearly better in one of them and clearly worse in none; `stay alone` that every federated method is clearly worse in
  something and better in nothing; `mixed` is what is left when something is clearly better.
- `join with` if the winning method weighs updates for this client alone and some, but not all, of the others have a
  weight above the uniform share by a tenth, mean over the second half of the rounds.
- `too few rows to tell`: fewer than 30 rows to test on (one row then moves accuracy by more than 3 points, and an AUC
  can rest on a handful of rows of one class); or nothing is clear and no accuracy difference is known to 10 points.
  With fewer than 5 seeds the latter is the fault of the seeds, and the verdict is none.
- A reference with all rows in one place never wins: nobody can have it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from coterie.core.errors import nearest, require
from coterie.report.results import Results
from coterie.report.statistics import BETTER, WORSE, Difference, VerdictWord
from coterie.report.text import count, listing, printable

__all__ = [
    "DECISIVE",
    "Kind",
    "Verdict",
    "clear",
    "decisive",
    "harmed",
    "helped",
    "late_shares",
    "recommended",
    "verdict",
    "whole_percent",
]

Kind = Literal["join", "join with", "stay alone", "mixed", "no clear difference", "too few rows to tell", "no verdict"]
DECISIVE = ("accuracy", "auc", "loss")
HARM = ("accuracy", "loss")
FEW_ROWS = 30
FEW_SEEDS = 5
WIDE = 0.10
CONCENTRATED = 1.1

Found = dict[str, dict[str, Difference]]
Metrics = dict[str, tuple[str, ...]]


class Verdict(NamedTuple):
    """What one client should do.

    Attributes:
        kind: in a few words.
        reason: in a sentence without capital and full stop.
        method: the method that wins, for `join` and `join with`.
        metrics: in which it is clearly better.
        partners: for `join with`, the clients from which its weight comes and their shares.
    """

    kind: Kind
    reason: str
    method: str | None = None
    metrics: tuple[str, ...] = ()
    partners: tuple[tuple[str, float], ...] = ()


def verdict(results: Results, client: str) -> Verdict:
    """What this client should do."""
    base = results.baseline
    if base is None:
        return Verdict("no verdict", "no method trained each client alone")
    found: Found = {}
    for method in results.federated:
        row = {k: results.difference(method, base, client, k) for k in decisive(results)}
        if any(row.values()):
            found[method] = {k: d for k, d in row.items() if d is not None}
    if not found:
        return Verdict("no verdict", "no federated method has a result here")
    if all(d.low is None for row in found.values() for d in row.values()):
        one = len(results.seeds) == 1
        return Verdict("no verdict", "one seed tells nothing about chance" if one else "the seeds show no spread")
    rows = results.size(client)
    if rows < FEW_ROWS:
        moves = (
            f", one of which moves accuracy by {100 / rows:.1f} points" if results.classification and rows > 1 else ""
        )
        return Verdict("too few rows to tell", f"{count(round(rows), f'{results.split} row')}{moves}")
    return _weigh(results, client, found)


def recommended(results: Results, client: str) -> str:
    """The method for a client: a federated one if joining pays, else training alone. Raises `InputError` if nobody is called so."""
    require(client in results.clients, f"the run has no client {client!r}; {nearest(client, results.clients)}")
    alone = results.baseline
    return verdict(results, client).method or (results.methods[0] if alone is None else alone)


def _weigh(results: Results, client: str, found: Found) -> Verdict:
    better: Metrics = {m: tuple(k for k, d in row.items() if d.verdict == BETTER) for m, row in found.items()}
    worse: Metrics = {m: tuple(k for k, d in row.items() if d.verdict == WORSE) for m, row in found.items()}
    winners = [m for m in found if better[m] and not worse[m]]
    if winners:
        winners.sort(key=lambda m: (-len(better[m]), _loss(results, m, client)))
        return _join(results, client, winners, better[winners[0]])
    if all(worse.values()) and not any(better.values()):
        who = "every federated method" if len(found) > 1 else printable(next(iter(found)))
        return Verdict("stay alone", f"{who} is clearly worse in something and clearly better in nothing")
    both = [m for m in found if better[m]]
    if both:
        texts = [f"{printable(m)} is clearly better in {_names(results, better[m])}" for m in both]
        texts = [f"{t} but clearly worse in {_names(results, worse[m])}" for t, m in zip(texts, both, strict=True)]
        return Verdict("mixed", "; ".join(texts))
    return _unclear(results, client, found, worse)


def _unclear(results: Results, client: str, found: Found, worse: Metrics) -> Verdict:
    """No federated method is clearly better in anything, and some are clearly worse in nothing."""
    harms = [m for m in found if worse[m]]
    if harms:
        harm = listing([f"{printable(m)} is clearly worse in {_names(results, worse[m])}" for m in harms])
        rest = [printable(m) for m in found if not worse[m]]
        return Verdict("no clear difference", f"with {listing(rest, 'or')}; {harm}")
    widths = [row["accuracy"].half_width for row in found.values() if "accuracy" in row]
    wide = min((w for w in widths if w is not None), default=0.0)
    if wide <= WIDE:
        return Verdict("no clear difference", "federating neither helps nor harms measurably")
    if len(results.seeds) < FEW_SEEDS:
        return Verdict("no verdict", f"{len(results.seeds)} seeds are too few for one")
    rows = count(round(results.size(client)), f"{results.split} row")
    return Verdict("too few rows to tell", f"{rows}; accuracy differences are known to ± {wide * 100:.0f} points only")


def _join(results: Results, client: str, winners: Sequence[str], metrics: tuple[str, ...]) -> Verdict:
    method, base = winners[0], results.baseline or ""
    reason = f"{printable(method)} is clearly better than training alone in {_names(results, metrics)}"
    if clear(results, method, base, client, WORSE, ("balanced_accuracy",)):
        reason += ", at the cost of balanced accuracy"
    if len(winners) > 1:
        reason += f"; {listing([printable(m) for m in winners[1:]])} {'helps' if len(winners) == 2 else 'help'} too"
    partners = _partners(results, client, method)
    return Verdict("join with" if partners else "join", reason, method, metrics, partners)


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
    """Methods under which accuracy or log-loss of this client is clearly worse than alone; references included."""
    base = results.baseline
    rivals = (*results.federated, *results.references)
    return tuple(m for m in rivals if base and clear(results, m, base, client, WORSE, HARM))


def helped(results: Results, client: str) -> tuple[str, ...]:
    """Federated methods that are clearly better than alone in something that decides, and clearly worse in nothing."""
    base, metrics = results.baseline, decisive(results)
    if base is None:
        return ()
    good = [m for m in results.federated if clear(results, m, base, client, BETTER, metrics)]
    return tuple(m for m in good if not clear(results, m, base, client, WORSE, metrics))


def clear(
    results: Results, method: str, base: str, client: str, word: VerdictWord, metrics: Sequence[str]
) -> tuple[str, ...]:
    """Those of `metrics` in which `method` is clearly `word` than `base`."""
    found = {k: results.difference(method, base, client, k) for k in metrics if k in results.metrics}
    return tuple(k for k, d in found.items() if d is not None and d.verdict == word)


def decisive(results: Results) -> tuple[str, ...]:
    """The metrics that decide, as far as there are values."""
    return tuple(m for m in DECISIVE if m in results.metrics)


def whole_percent(share: float) -> str:
    """A weight in percent.

    >>> whole_percent(0.376), whole_percent(0.004)
    ('38 %', 'less than 1 %')
    """
    return f"{share * 100:.0f} %" if share >= 0.01 else "less than 1 %"


def _loss(results: Results, method: str, client: str) -> float:
    value = results.mean(method, client, "loss")
    return value if math.isfinite(value) else math.inf


def _names(results: Results, metrics: Sequence[str]) -> str:
    return listing([results.metric_name(m) for m in metrics])

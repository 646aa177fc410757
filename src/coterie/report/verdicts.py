"""One verdict per client: join, stay alone, either of them probably, safe to join, mixed, or undecided and what would settle it.

The rule is that of `coterie.report.evidence`, applied to log-loss (in regression to squared error):

- One method is judged, the one with the highest gain by what all clients show. A reference with all rows in one place never
  wins: nobody can have it.
- The AUC cannot win a join, it can veto one: where ranking is shown to suffer, the verdict is `mixed`.
- Clients with fewer than 30 test rows, or 5 of the rarer class, are judged together, if they are enough; else there are
  `too few rows to tell`. `no verdict`: fewer than 3 seeds without folds, or nothing to compare with.
- `partners` are clients whose late weight for this client is above the uniform share by a tenth, if those are some but not all.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Literal, NamedTuple

from coterie.base.errors import InputError, nearest
from coterie.base.spelling import count
from coterie.report.comparisons import FEWEST_CASES
from coterie.report.evidence import (
    UNSURE,
    Gain,
    Mixture,
    Statement,
    Word,
    foresee,
    state,
    vetoes,
)
from coterie.report.results import Results
from coterie.report.statistics import FEWEST_ROWS, FEWEST_SEEDS
from coterie.report.text import printable, with_sign

Kind = Word | Literal["mixed", "too few rows to tell", "no verdict"]
CONCENTRATED = 1.1
_EFFECTS: Mapping[Kind, tuple[str, tuple[Word, ...]]] = {
    "undecided": ("settle it", ("undecided",)),
    "safe to join": ("show whether joining helps", (*UNSURE, "safe to join")),
    "probably join": ("make it certain", UNSURE),
    "probably stay alone": ("make it certain", UNSURE),
}
"""The effect of further rows on a word that they can change, and the words that leave it open."""


class Verdict(NamedTuple):
    """The advice for one client.

    Attributes:
        kind: in a few words.
        reason: in a sentence without capital and full stop.
        method: the method that is judged; None where there is none.
        probability: that what `kind` says is so; for `undecided` and `mixed` that joining helps. None where nothing is said.
        gain, low, high: by how much the method lowers the log-loss (in regression the squared error, as a share of the variance
            of the label), with the 95 % interval, by what all clients show.
        own: the 95 % interval from the client's rows alone.
        smallest: the smallest effect of interest, in the same unit.
        rows: about how many more rows of the client (of small clients together: of such clients) would probably settle an `undecided`,
            make a `probably` certain, or show whether it is more than `safe to join`; None for other words, and where even 32 times
            its rows would not.
        together: how many small clients are judged together; 0 for a client that has a verdict of its own.
        partners: the clients from which its weight comes and their shares.
        recalibrate: the bias of the model is to be tuned at the client after joining.
        skill: whether the method is shown to beat always predicting the client's own training rows; None where that is not known.
    """

    kind: Kind
    reason: str
    method: str | None = None
    probability: float | None = None
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    own: tuple[float, float] | None = None
    smallest: float | None = None
    rows: int | None = None
    together: int = 0
    partners: tuple[tuple[str, float], ...] = ()
    recalibrate: bool = False
    skill: bool | None = None

    def __repr__(self) -> str:
        return f"<verdict: {self}>"

    def __str__(self) -> str:
        method = "" if self.method is None else f" ({self.method})"
        return f"{self.kind}{method}: {self.reason}"

    def _repr_html_(self) -> str:
        kind, _, reason = str(self).partition(": ")
        return f"<p><b>{html.escape(kind)}</b>: {html.escape(reason)}</p>"

    @property
    def joins(self) -> bool:
        """Return True if joining pays, at least probably."""
        return self.kind in ("join", "probably join")


def verdict(results: Results, client: str) -> Verdict:
    """Return what this client should do. Raises `InputError` if no client is called so."""
    if client not in results.clients:
        raise InputError(
            f"the run has no client {client!r}; {nearest(client, results.clients)}"
        )
    if results.baseline is None:
        return Verdict("no verdict", "no method trained each client alone")
    compared = results.comparisons
    methods = [m for m in results.federated if m in results.methods_for(client)]
    if client not in results.test_clients:
        return Verdict(
            "too few rows to tell",
            "with so few rows all train and none is tested; a verdict needs more",
        )
    if not methods:
        return Verdict("no verdict", "no federated method has a result here")
    if not compared.enough_seeds:
        return Verdict(
            "no verdict",
            f"{count(len(results.seeds), 'seed')}; a verdict needs {FEWEST_SEEDS}",
        )
    if compared.small(client):
        return _of_group(results, client, methods)
    means = {
        m: posterior.mean
        for m in methods
        if (posterior := compared.posteriors(m, compared.primary).get(client))
    }
    if not means:
        return Verdict(
            "no verdict",
            "how far other patients would have given other results is not known",
        )
    method = max(means, key=lambda m: means[m])
    statement, gain = (
        compared.statement(method, client, compared.primary),
        compared.gain(method, client, compared.primary),
    )
    posterior = compared.posteriors(method, compared.primary)[client]
    if statement is None or gain is None:
        return Verdict(
            "no verdict",
            "how far other patients would have given other results is not known",
        )
    kind: Kind = statement.word
    ranking = compared.posteriors(method, "auc").get(client)
    if (
        kind in ("join", "probably join", "safe to join")
        and ranking is not None
        and vetoes(ranking, compared.smallest)
    ):
        kind = "mixed"
    rows = _rows_to_tell(statement, kind, gain, posterior, compared.smallest)
    return _verdict(results, client, method, statement, kind, rows=rows)


def _of_group(results: Results, client: str, judged: list[str]) -> Verdict:
    """The verdict of all small clients together, for one of them."""
    compared = results.comparisons
    evidence = {
        m: joint
        for m in judged
        if client in compared.group and (joint := compared.of_group(m)) is not None
    }
    if not evidence:
        size = count(round(results.size(client)), f"{results.split} row")
        if results.classification:
            size += f", {round(compared.rarest(client))} of the rarer class"
        return Verdict(
            "too few rows to tell", f"{size}; a verdict needs {_bar(results)}"
        )
    method = max(evidence, key=lambda m: evidence[m][0].estimate)
    statement = state(*evidence[method], compared.smallest)
    rows = _rows_to_tell(
        statement, statement.word, *evidence[method], compared.smallest
    )
    return _verdict(
        results,
        client,
        method,
        statement,
        statement.word,
        rows=rows,
        together=len(compared.group),
    )


def _rows_to_tell(
    statement: Statement, kind: Kind, gain: Gain, posterior: Mixture, smallest: float
) -> int | None:
    """About how many more rows would probably change a word that rows can change."""
    if kind not in _EFFECTS or statement.bounded:
        return None
    return foresee(gain, posterior, smallest, open_words=_EFFECTS[kind][1]).rows


def _verdict(
    results: Results,
    client: str,
    method: str,
    statement: Statement,
    kind: Kind,
    *,
    rows: int | None = None,
    together: int = 0,
) -> Verdict:
    unexplained = Verdict(
        kind,
        "",
        method,
        statement.probability,
        statement.mean,
        statement.low,
        statement.high,
        statement.own,
        results.comparisons.smallest,
        rows,
        together,
        _partners(results, client, method),
        results.recalibrates(method),
        beats_constant(results, client, method),
    )
    return unexplained._replace(
        reason=_reason(results, client, unexplained, bounded=statement.bounded)
    )


def _reason(results: Results, client: str, verdict: Verdict, *, bounded: bool) -> str:
    """Return why, in a sentence without capital and full stop."""
    method, metric = printable(verdict.method or ""), results.gain_name
    gain, loss = (results.gain_text(v) for v in (verdict.gain, -(verdict.gain or 0.0)))
    low, high = (results.gain_text(v) for v in (verdict.low, verdict.high))
    lowest, most = (results.gain_text(-(v or 0.0)) for v in (verdict.high, verdict.low))
    between = f"(95 %: {_side(results, verdict.low)} to {_side(results, verdict.high)})"
    hedge = (
        "up to" if verdict.together else "about"
    )  # folds overstate the gain of small clients
    if verdict.kind == "join":
        text = f"{method} lowers the {metric} by {hedge} {gain} (95 %: {low} to {high})"
    elif verdict.kind == "probably join":
        text = f"{method} probably lowers the {metric}, by {hedge} {gain} (95 %: {low} to {high})"
    elif verdict.kind == "stay alone":
        text = f"even {method}, the best method, raises the {metric} by about {loss} (95 %: {lowest} to {most})"
    elif verdict.kind == "probably stay alone":
        text = f"even {method}, the best method, probably raises the {metric}, by about {loss} (95 %: {lowest} to {most})"
    elif verdict.kind == "safe to join":
        bound = results.gain_text(verdict.smallest)
        text = (
            f"{method} changes the {metric} by at most {bound} {between}, too little to matter"
            if bounded
            else f"{method} costs at most {bound} in {metric} {between}, and a gain is not shown"
        )
    elif verdict.kind == "mixed":
        ranking = results.comparisons.posteriors(verdict.method or "", "auc")[
            client
        ].mean
        change = with_sign(-(verdict.gain or 0.0))
        text = f"{method} changes the {metric} by {change} {between}, but ranks worse (AUC {with_sign(ranking)})"
    else:
        text = f"with {method}, anything from {_side(results, verdict.low)} to {_side(results, verdict.high)} in {metric} is possible"
    if verdict.joins and verdict.skill is False:
        constant = (
            "giving every row the same risk"
            if results.classification
            else "always predicting the training mean"
        )
        text += f"; not shown to beat {constant}"
    if (
        not verdict.together
        and verdict.kind != "undecided"
        and verdict.own is not None
        and sum(verdict.own) * (verdict.gain or 0.0) < 0
    ):
        text += "; its own rows alone point the other way"
    if verdict.kind in _EFFECTS and not bounded:
        where, whose = (
            ("of such clients", "their") if verdict.together else ("here", "its")
        )
        outlook = (
            f"about {verdict.rows:,} more rows {where} would probably"
            if verdict.rows
            else f"even 30 times {whose} rows would hardly"
        )
        text += f"; {outlook} {_EFFECTS[verdict.kind][0]}"
    if not verdict.together:
        return text
    return f"for the {verdict.together} clients with {_few(results)} together, {text}; {_exception(results, client)}"


def _few(results: Results) -> str:
    """The size that clients judged together have in common: `under 30 rows`, `under 5 rows of the rarer class`, or either."""
    small = [results.size(c) < FEWEST_ROWS for c in results.comparisons.group]
    cases = f"{FEWEST_CASES} of the rarer class"
    if all(small):
        return f"under {FEWEST_ROWS} rows"
    return (
        f"under {FEWEST_ROWS} rows or {cases}"
        if any(small)
        else f"under {FEWEST_CASES} rows of the rarer class"
    )


def _exception(results: Results, client: str) -> str:
    """Return that a small client may differ from those with which it is judged, and what a verdict of its own takes.

    Sites withhold how many rows of a class they have.
    """
    rows, cases = (
        count(round(results.size(client)), "row"),
        round(results.comparisons.rarest(client)),
    )
    rare = f" ({cases} of the rarer class)" if results.classification and cases else ""
    sufficient = (
        FEWEST_ROWS
        if results.size(client) < FEWEST_ROWS
        else f"{FEWEST_CASES} of the rarer class"
    )
    return f"its own {rows}{rare} cannot tell whether it is an exception ({sufficient} could)"


def _bar(results: Results) -> str:
    """Return how many rows a verdict of a client's own takes: `30`, or `30, 5 of the rarer class`."""
    return (
        f"{FEWEST_ROWS}, {FEWEST_CASES} of the rarer class"
        if results.classification
        else str(FEWEST_ROWS)
    )


def _side(results: Results, gain: float | None) -> str:
    """`.02 worse` or `.05 better`."""
    value = gain or 0.0
    return f"{results.gain_text(abs(value))} {'better' if value > 0 else 'worse'}"


def recommend(results: Results, client: str) -> str:
    """The method for a client: a federated one if joining pays, else training alone. Raises `InputError` if no client is called so."""
    judged, baseline = verdict(results, client), results.baseline
    if judged.joins and judged.method is not None:
        return judged.method
    return results.methods[0] if baseline is None else baseline


def _partners(
    results: Results, client: str, method: str
) -> tuple[tuple[str, float], ...]:
    shares = late_shares(results, client, method)
    weights = {c: s for c, s in shares.items() if c != client}
    chosen = {c: s for c, s in weights.items() if s > CONCENTRATED / len(shares)}
    return (
        ()
        if len(chosen) == len(weights)
        else tuple(sorted(chosen.items(), key=lambda item: -item[1]))
    )


def late_shares(results: Results, client: str, method: str) -> dict[str, float]:
    """Mean weight of each client for this target in the second half of the rounds; empty without own weights."""
    weights = results.weights.get(method)
    if weights is None or client not in weights.targets:
        return {}
    row = weights.late()[weights.targets.index(client)]
    return {
        c: float(w)
        for c, w in zip(weights.clients, row, strict=True)
        if c in results.names
    }


def harming(results: Results, client: str) -> tuple[str, ...]:
    """Federated methods that are shown to be worse than training alone in a metric that decides."""
    family = results.comparisons.family(client)
    return tuple(
        dict.fromkeys(
            m for (m, _), d in family.items() if d.strength == "shown" and d.sign < 0
        )
    )


def helping(results: Results, client: str) -> tuple[str, ...]:
    """Federated methods that are shown to be better than training alone in a metric that decides, and worse in none."""
    family = results.comparisons.family(client)
    winners = dict.fromkeys(
        m for (m, _), d in family.items() if d.strength == "shown" and d.sign > 0
    )
    return tuple(
        m
        for m in winners
        if not any(d.sign < 0 for (rival, _), d in family.items() if rival == m)
    )


def beats_constant(results: Results, client: str, method: str) -> bool | None:
    """Return True if a method has a lower loss than always predicting the client's own training rows, 0 outside the 95 % interval of
    the difference; None where that is not known.
    """
    difference = results.comparisons.against_constant(method, client)
    return (
        None
        if difference is None or difference.low is None
        else difference.better and difference.excludes_zero
    )


def whole_percent(share: float) -> str:
    """A weight in percent.

    >>> whole_percent(0.376), whole_percent(0.004)
    ('38 %', 'less than 1 %')
    """
    return f"{share * 100:.0f} %" if share >= 0.01 else "less than 1 %"

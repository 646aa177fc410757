"""One verdict per client: join, safe to join, stay alone, or undecided, and what partners change.

The rule is that of `coterie.report.evidence`, applied to log-loss (in regression to squared error):

- One method speaks for joining, the one that was named before the run (`Scores.primary`). Another one speaks only where
  its word is stronger and it is shown better than the first. A reference with all rows in one place never speaks:
  nobody can have it. So a method that is added last weakens no word.
- Joining has two rivals, the client's own linear model (`local`) and boosted trees of its own. The word is the weaker
  one of those against each; gain and interval are those against `local`.
- The AUC cannot win a join, it can veto one: where ranking is shown to suffer, the verdict is `mixed`.
- Clients with fewer than 30 test rows, or 5 of the rarer class, are judged among themselves, if they are enough; else
  there are `too few rows to tell`. `no verdict`: fewer than 3 seeds without folds, or nothing to compare with.
- `partners` are clients whose late weight for this client is above the uniform share by a tenth, if those are some but not all.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Literal, NamedTuple

from coterie.base.errors import InputError, nearest
from coterie.base.spelling import count
from coterie.compute.boosted import fit_it_yourself
from coterie.compute.outcomes import BOOSTED
from coterie.report.comparisons import FEWEST_CASES
from coterie.report.evidence import Statement, Word, foresee, rows_of_one_own, vetoes
from coterie.report.results import Results
from coterie.report.statistics import FEWEST_ROWS, FEWEST_SEEDS
from coterie.report.text import describe_gain, number, printable, with_sign

Kind = Word | Literal["mixed", "too few rows to tell", "no verdict"]
CONCENTRATED = 1.1
SURE_TO_BE_BETTER = 0.05
"""Halved with each further method: the probability with which a method that is no better may take over."""
STRENGTH: Mapping[Kind, int] = {
    "join": 5,
    "probably join": 4,
    "safe to join": 3,
    "undecided": 2,
    "mixed": 2,
    "probably stay alone": 1,
    "stay alone": 0,
}
"""How strongly a word speaks for joining."""
JOINS: tuple[Kind, ...] = ("join", "probably join")
STAYS: tuple[Kind, ...] = ("stay alone", "probably stay alone")


class Verdict(NamedTuple):
    """The advice for one client.

    Attributes:
        kind: in a few words.
        reason: in a sentence without capital and full stop.
        method: the method that speaks; None where there is none.
        probability: that what `kind` says is so; for `undecided` and `mixed` that joining helps. None where nothing is said.
        gain, low, high: by how much the method lowers the log-loss (in regression the squared error, as a share of the variance
            of the label) of the client's own linear model, with the 95 % interval, by what all clients show.
        own: the 95 % interval from the client's rows alone.
        smallest: the smallest effect of interest at this client, in the same unit.
        rows: further rows of the client: with which it will hardly need partners, where it is to join; that would probably settle
            it, where it is undecided. None for other words, and where it is more than three times its rows.
        together: how many small clients are judged together; 0 for a client that has rows enough of its own.
        partners: the clients from which its weight comes and their shares.
        recalibrate: the bias of the model is to be tuned at the client after joining.
        skill: whether the method is shown to beat always predicting the client's own training rows; None where that is not known.
        boosted: the word against boosted trees of the client's own; None where none were fitted.
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
    boosted: Kind | None = None

    def __repr__(self) -> str:
        return f"<verdict: {self}>"

    def __str__(self) -> str:
        if self.method is None:
            return f"{self.kind}: {self.reason}"
        return f"{self.kind} ({self.method}): {self.reason}"

    def _repr_html_(self) -> str:
        kind, _, reason = str(self).partition(": ")
        return f"<p><b>{html.escape(kind)}</b>: {html.escape(reason)}</p>"

    @property
    def joins(self) -> bool:
        """Return True if joining pays, at least probably."""
        return self.kind in JOINS


class Judgement(NamedTuple):
    """What the rule says of one method at one client.

    Attributes:
        method: its label.
        alone: the statement on its gain over the client's own linear model.
        linear: the word against that model, after the veto of the AUC.
        boosted: the statement on its gain over the client's own boosted trees; None where none were fitted.
    """

    method: str
    alone: Statement
    linear: Kind
    boosted: Statement | None

    @property
    def kind(self) -> Kind:
        """The weaker one of the words against each rival."""
        if self.boosted is None:
            return self.linear
        return min(self.linear, self.boosted.word, key=lambda kind: STRENGTH[kind])

    @property
    def probability(self) -> float:
        """The probability of what `kind` says, against the rival by which it says so."""
        if self.boosted is not None and self.kind != self.linear:
            return self.boosted.probability
        return self.alone.probability


def verdict(results: Results, client: str) -> Verdict:
    """Return what this client should do. Raises `InputError` if no client is called so."""
    if client not in results.clients:
        raise InputError(
            f"the run has no client {client!r}; {nearest(client, results.clients)}"
        )
    compared = results.comparisons
    methods = [m for m in results.federated if m in results.methods_for(client)]
    if results.baseline is None:
        return Verdict("no verdict", "no method trained each client alone")
    if client not in results.test_clients:
        return Verdict(
            "too few rows to tell",
            "with so few rows all train and none is tested; a verdict needs more",
        )
    if not methods:
        return Verdict("no verdict", "no federated method has a result here")
    alone = results.seeds_of(results.baseline)
    # A method may have fewer seeds than the run.
    common = max(len(alone & results.seeds_of(method)) for method in methods)
    if not compared.folds and common < FEWEST_SEEDS:
        return Verdict(
            "no verdict", f"{count(common, 'seed')}; a verdict needs {FEWEST_SEEDS}"
        )
    spoken = speaker(results, client)
    if spoken is not None:
        return _verdict(results, client, spoken)
    uneven = compared.uneven(client)
    if uneven is not None:
        effective, total = uneven
        why = f"weights too uneven, {total} rows say as much as {effective} of equal weight: trim them"
        return Verdict("too few rows to tell", why)
    if compared.small(client):
        size = count(round(results.size(client)), f"{results.split} row")
        if compared.needs_cases:
            size += f", {round(compared.rarest(client))} {_kind_of_cases(results)}"
        return Verdict(
            "too few rows to tell", f"{size}; a verdict needs {_bar(results)}"
        )
    return Verdict(
        "no verdict",
        "how far other patients would have given other results is not known",
    )


# Who speaks


def judge(results: Results, client: str, method: str) -> Judgement | None:
    """Return what the rule says of one method at one client; None where that is not known."""
    compared = results.comparisons
    alone = compared.statement(method, client, compared.gain_metric)
    if alone is None:
        return None
    linear: Kind = alone.word
    ranking = compared.posteriors(method, results.ranking).get(client)
    is_vetoed = ranking is not None and vetoes(ranking, compared.smallest)
    if is_vetoed and STRENGTH[linear] > STRENGTH["mixed"]:
        linear = "mixed"
    boosted = compared.statement(method, client, compared.gain_metric, BOOSTED)
    return Judgement(method, alone, linear, boosted)


def speaker(results: Results, client: str) -> Judgement | None:
    """Return what is said by the method that speaks at one client: the primary one, or one that is shown better and says more."""
    primary = results.primary
    ordered = sorted(results.federated, key=lambda method: method != primary)
    judged = {m: judge(results, client, m) for m in ordered}
    first = next((one for one in judged.values() if one is not None), None)
    if first is None or results.comparisons.small(client):
        return first
    chosen = first
    for place, method in enumerate(ordered):
        rival = judged[method]
        if rival is None or STRENGTH[rival.kind] <= STRENGTH[chosen.kind]:
            continue
        better = results.comparisons.chance_of_better(method, first.method, client)
        if may_speak_instead(place, better):
            chosen = rival
    return chosen


def may_speak_instead(place: int, chance: float) -> bool:
    """Return True if the method number `place` beside the primary one is shown better than it, with this probability."""
    allowed: float = SURE_TO_BE_BETTER * 0.5**place
    return chance >= 1 - allowed


# What is said


def _verdict(results: Results, client: str, judged: Judgement) -> Verdict:
    compared, statement = results.comparisons, judged.alone
    small_clients_together = 0
    if compared.small(client):
        small_clients_together = len(compared.group)
    word_over_boosted: Kind | None = None
    if judged.boosted is not None:
        word_over_boosted = judged.boosted.word
    unexplained = Verdict(
        judged.kind,
        "",
        judged.method,
        judged.probability,
        statement.mean,
        statement.low,
        statement.high,
        statement.own,
        statement.smallest,
        _further_rows(results, client, judged),
        small_clients_together,
        _partners(results, client, judged.method),
        results.recalibrates(judged.method),
        beats_constant(results, client, judged.method),
        word_over_boosted,
    )
    clauses = [
        _against_linear(results, client, judged),
        _against_boosted(results, client, judged),
        *_reservations(results, client, unexplained),
        _outlook(results, client, unexplained),
    ]
    return unexplained._replace(reason="; ".join(filter(None, clauses)))


def _further_rows(results: Results, client: str, judged: Judgement) -> int | None:
    """Rows with which a client that is told to join will hardly need partners, or that would settle an `undecided`."""
    compared, statement = results.comparisons, judged.alone
    if judged.kind not in (*JOINS, "undecided") or compared.small(client):
        return None
    # The word is the weaker one of those over the own linear model and over boosted trees.
    rival = BOOSTED if judged.kind != judged.linear else ""
    evidence = compared.evidence(judged.method, compared.gain_metric, rival)
    gain, posterior = evidence[client]
    if judged.kind == "undecided":
        return foresee(gain, posterior, statement.smallest).rows
    return rows_of_one_own(gain.rows, statement.mean, statement.smallest)


def _against_linear(results: Results, client: str, judged: Judgement) -> str:
    """What the method changes in comparison with the client's own linear model."""
    statement, word = judged.alone, judged.linear
    method, metric = printable(judged.method), results.gain_name
    margin = statement.smallest
    gain = results.gain_text(abs(statement.mean), margin)
    low, high = (results.gain_text(v, margin) for v in (statement.low, statement.high))
    least, most = (
        results.gain_text(-v, margin) for v in (statement.high, statement.low)
    )
    worst, best = (_side(results, v, margin) for v in (statement.low, statement.high))
    bound = results.gain_text(margin, margin)
    if word == "join":
        return f"{method} lowers the {metric} by about {gain} (95 %: {low} to {high})"
    if word == "probably join":
        return f"{method} probably lowers the {metric}, by about {gain} (95 %: {low} to {high})"
    if word == "stay alone":
        return f"{method} raises the {metric} by about {gain} (95 %: {least} to {most})"
    if word == "probably stay alone":
        return f"{method} probably raises the {metric}, by about {gain} (95 %: {least} to {most})"
    if word == "safe to join":
        described = describe_gain(statement.low, statement.high, statement.smallest)
        return f"{method} costs at most {bound} in {metric} (95 %: {worst} to {best}): {described}"
    if word == "mixed":
        ranks = results.comparisons.posteriors(judged.method, results.ranking)
        ranking, name = ranks[client].mean, results.metric_name(results.ranking)
        change = with_sign(-statement.mean)
        return (
            f"{method} changes the {metric} by {change} (95 %: {worst} to {best}), but ranks worse"
            f" ({name} {with_sign(ranking)})"
        )
    return f"with {method}, anything from {worst} to {best} in {metric} is possible"


def _against_boosted(results: Results, client: str, judged: Judgement) -> str:
    """What boosted trees of the client's own change in the answer; empty where they change nothing."""
    statement = judged.boosted
    if statement is None:
        return ""
    if statement.word in STAYS:
        margin = _margin_of_boosted(results, client)
        if margin > 0:
            return f"your own boosted trees are better than any model here: {number(margin)}"
        gap = results.gain_text(-statement.mean, statement.smallest)
        return f"your own boosted trees are better than that, by about {gap}"
    if judged.kind == judged.linear:
        return ""
    if statement.word == "undecided":
        return "not shown to beat boosted trees of your own"
    worst, best = (
        _side(results, v, statement.smallest) for v in (statement.low, statement.high)
    )
    return f"in comparison with boosted trees of your own {worst} to {best} (95 %)"


def _margin_of_boosted(results: Results, client: str) -> float:
    """By how much the client's own boosted trees have a lower loss than each model of the run; negative if one is as good."""
    compared = results.comparisons
    margins = []
    for method in results.methods:
        if method in results.references:
            continue
        gain = compared.gain(method, client, compared.gain_metric, BOOSTED)
        if gain is not None:
            margins.append(-gain.estimate)
    return min(margins, default=0.0)


def _reservations(results: Results, client: str, verdict: Verdict) -> list[str]:
    """What a reader must know before acting on a verdict."""
    texts = []
    if verdict.joins and verdict.skill is False:
        texts.append(_beside_constant(results, client, verdict))
    contradicts = False
    if verdict.own is not None and verdict.gain is not None:
        # The middle of the interval of its own rows lies on the other side of 0.
        contradicts = sum(verdict.own) * verdict.gain < 0
    is_single = verdict.kind != "undecided" and not verdict.together
    if contradicts and is_single:
        texts.append("its own rows alone point the other way")
    return texts


def _beside_constant(results: Results, client: str, verdict: Verdict) -> str:
    """That a method is not shown to beat a constant prediction; by how much that one does better, where it is a smallest effect."""
    if not (results.classification or results.of_events):
        return "not shown to beat always predicting the training mean"
    constant = "giving every row the same risk"
    difference = results.comparisons.against_constant(verdict.method or "", client)
    smallest = verdict.smallest
    if difference is None or smallest is None or difference.mean <= smallest:
        return f"not shown to beat {constant}"
    margin = results.gain_text(difference.mean, smallest)
    return f"{constant} does better still, by about {margin}"


def _outlook(results: Results, client: str, verdict: Verdict) -> str:
    """What further rows would change; of a small client, what its rows cannot tell."""
    if verdict.together:
        return _of_small_clients(results, client, verdict.method or "")
    if verdict.rows is None:
        return ""
    rows = f"about {verdict.rows:,} more rows"
    if verdict.joins:
        return f"with {rows} of your own you will hardly need partners"
    return f"{rows} here would probably settle it"


def _of_small_clients(results: Results, client: str, method: str) -> str:
    """How many of the small clients gain, which is what their rows together can tell."""
    compared = results.comparisons
    posteriors = compared.posteriors(method, compared.gain_metric)
    members = [posteriors[c] for c in compared.group if c in posteriors]
    gaining = sum(posterior.above(0.0) for posterior in members)
    mean = sum(posterior.mean for posterior in members) / len(members)
    rows = count(round(results.size(client)), "row")
    return (
        f"of the {len(members)} clients with {_few(results)} about {round(gaining)} gain (mean {results.gain_text(mean)});"
        f" your {rows} cannot tell whether you do"
    )


def _few(results: Results) -> str:
    """The size that small clients have in common: `under 30 rows`, `under 5 rows of the rarer class`, or either."""
    small = [results.size(c) < FEWEST_ROWS for c in results.comparisons.group]
    kind = _kind_of_cases(results)
    if all(small):
        return f"under {FEWEST_ROWS} rows"
    if any(small):
        return f"under {FEWEST_ROWS} rows or {FEWEST_CASES} {kind}"
    return f"under {FEWEST_CASES} rows {kind}"


def _bar(results: Results) -> str:
    """Return how many rows a verdict of a client's own takes: `30`, or `30, 5 of the rarer class`."""
    if results.comparisons.needs_cases:
        return f"{FEWEST_ROWS}, {FEWEST_CASES} {_kind_of_cases(results)}"
    return str(FEWEST_ROWS)


def _kind_of_cases(results: Results) -> str:
    """The rows of which a client needs some."""
    if results.of_events or results.of_counts:
        return "with an event"
    return "of the rarer class"


def _side(results: Results, gain: float, smallest: float) -> str:
    """`.02 worse` or `.05 better`."""
    size = results.gain_text(abs(gain), smallest)
    if gain > 0:
        return f"{size} better"
    return f"{size} worse"


def fit_yourself(results: Results, client: str) -> str:
    """Where boosted trees of the client's own are better: say so, and how to make them, since no run keeps them. Else empty."""
    if verdict(results, client).boosted not in STAYS:
        return ""
    line = fit_it_yourself(classification=results.classification)
    return (
        f"at {results.names[client]} boosted trees that are trained alone are better; no run keeps them, so fit them"
        f" yourself: {line}"
    )


def recommend(results: Results, client: str) -> str:
    """The method for a client: a federated one if joining pays, else training alone. Raises `InputError` if no client is called so."""
    judged, baseline = verdict(results, client), results.baseline
    if judged.joins and judged.method is not None:
        return judged.method
    if baseline is None:
        return results.methods[0]
    return baseline


def _partners(
    results: Results, client: str, method: str
) -> tuple[tuple[str, float], ...]:
    shares = late_shares(results, client, method)
    weights = {c: s for c, s in shares.items() if c != client}
    chosen = {c: s for c, s in weights.items() if s > CONCENTRATED / len(shares)}
    if len(chosen) == len(weights):
        return ()
    return tuple(sorted(chosen.items(), key=lambda item: -item[1]))


def late_shares(results: Results, client: str, method: str) -> dict[str, float]:
    """Mean weight of each client for this target in the second half of the rounds; empty without own weights."""
    weights = results.weights.get(method)
    if weights is None or client not in weights.targets:
        return {}
    row = weights.late()[weights.targets.index(client)]
    by_client = zip(weights.clients, row, strict=True)
    return {name: float(w) for name, w in by_client if name in results.names}


def harming(results: Results, client: str) -> tuple[str, ...]:
    """Federated methods that are shown to be worse than training alone in a metric that decides."""
    worse: dict[str, None] = {}
    for (method, _), difference in results.comparisons.family(client).items():
        if difference.strength == "shown" and difference.sign < 0:
            worse[method] = None
    return tuple(worse)


def helping(results: Results, client: str) -> tuple[str, ...]:
    """Federated methods that are shown to be better than training alone in a metric that decides, and worse in none."""
    better: dict[str, None] = {}
    worse = set()
    for (method, _), difference in results.comparisons.family(client).items():
        if difference.sign < 0:
            worse.add(method)
        elif difference.strength == "shown" and difference.sign > 0:
            better[method] = None
    return tuple(method for method in better if method not in worse)


def beats_constant(results: Results, client: str, method: str) -> bool | None:
    """Return True if a method has a lower loss than always predicting the client's own training rows, 0 outside the 95 % interval of
    the difference; None where that is not known.
    """
    difference = results.comparisons.against_constant(method, client)
    if difference is None or difference.low is None:
        return None
    return difference.better and difference.excludes_zero

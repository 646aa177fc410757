"""The model card of a finalised model: what it is for, what to expect of it, and what it may give away (Mitchell et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping

from coterie.base.spelling import count
from coterie.report.alike import with_whom
from coterie.report.decisions import (
    MEASURES,
    PER,
    decision,
    interval_of,
    measures,
    text_of,
    treat_all,
)
from coterie.report.diagnosis import shares
from coterie.report.evidence import OWN_LUCK
from coterie.report.outside import outside_words
from coterie.report.results import Results
from coterie.report.scores import THRESHOLD
from coterie.report.statistics import FEWEST_ROWS, Difference
from coterie.report.text import (
    chance,
    first_few,
    listing,
    number,
    printable,
    whole_percent,
)
from coterie.report.verdicts import (
    fit_yourself,
    late_shares,
    verdict,
)
from coterie.report.words import headline


def card(
    results: Results,
    client: str,
    method: str,
    rows: Mapping[str, int],
    threshold: float | None = None,
    *,
    rounds: int,
) -> str:
    """The card in Markdown.

    Args:
        results: results of the run that compared the methods.
        client: whose model it is.
        method: with which it was trained.
        rows: that each client trained on, for this model.
        threshold: the risk from which a row is called positive; None where there are not two classes.
        rounds: that it was trained for.
    """
    parts = (
        [f"# {printable(results.title)}: a model for {results.names[client]}"],
        _purpose(results, client, method, threshold),
        _rows(results, client, method, rows, rounds),
        _expectation(results, client, method, threshold),
        _privacy(results),
        [
            "## Use",
            "",
            "    coterie predict FOLDER new.csv",
            "",
            "The file needs the columns of `preprocess.json`.",
        ],
    )
    return "\n".join(line for part in parts for line in (*part, ""))


def _purpose(
    results: Results, client: str, method: str, threshold: float | None
) -> list[str]:
    lines = ["## Intended use", ""]
    lines.append(
        f"Predicts {results.predicts}, for new rows of {results.names[client]} with the columns that the clients shared."
    )
    if threshold is not None:
        lines.append(
            f"A row is called positive from a predicted risk of {number(threshold)} on."
        )
    lines += [
        "It is meant for research. Nobody has assessed it as a medical device, and other sites' rows may differ.",
        "",
    ]
    lines.append(
        f"What the comparison says of joining, for {results.names[client]}: {headline(results, verdict(results, client))}"
    )
    lines.append(
        f"This model was trained with {printable(method)}.{_this_model(results, client, method)}"
    )
    pooled = with_whom(results, method, client)
    if pooled:
        lines.append(f"With whom: {pooled}.")
    elsewhere = outside_words(results, method)
    if elsewhere:
        lines.append(elsewhere)
    better = fit_yourself(results, client)
    return [*lines, f"Note: {better}"] if better else lines


def _this_model(results: Results, client: str, method: str) -> str:
    """Return how sure the gain of one model is: its training has luck of its own, which the mean over training sets has not."""
    compared = results.comparisons
    gain, posterior = (
        compared.gain(method, client, compared.gain_metric),
        compared.posteriors(method, compared.gain_metric).get(client),
    )
    if gain is None or posterior is None or not compared.folds:
        return ""
    single = posterior.widen((OWN_LUCK * gain.error) ** 2)
    low, high = (results.gain_text(v) for v in single.interval)
    return (
        f" What is said of joining holds for models trained like this one, on as many rows. This one model has luck of its own:"
        f" its gain over training alone in {results.gain_name} is {low} to {high} (95 %), above 0 with a probability of"
        f" {chance(single.above(0.0))}."
    )


def _rows(
    results: Results, client: str, method: str, rows: Mapping[str, int], rounds: int
) -> list[str]:
    name = f"`{printable(results.folder.name)}`"
    all_rounds = rounds == results.experiment.get("run", {}).get("rounds", rounds)
    lines = ["## Training", ""]
    is_baseline = method == results.baseline
    rows = {client: rows[client]} if is_baseline and client in rows else rows
    exception = (
        " but those that choose how the model is tuned"
        if results.personal_part(method)
        else ""
    )
    lines.append(
        f"{printable(results.algorithms[method])}, {count(rounds, 'round')},"
        f" {f'with the settings of the run {name}' if all_rounds else f'after which the run {name} stopped early, with its settings'},"
        f" on all rows of {results.names[client] if is_baseline else 'all clients'}{exception}:"
    )
    weights = {} if is_baseline else late_shares(results, client, method)
    total = sum(weights.values())
    lines += [
        "",
        "| client | rows |" + (" weight in the comparison |" if total else ""),
        "| --- | ---: |" + (" ---: |" if total else ""),
    ]
    for name, amount in rows.items():
        share = f" {whole_percent(weights.get(name, 0.0) / total)} |" if total else ""
        lines.append(
            f"| {results.names.get(name, printable(name))} | {amount:,} |{share}"
        )
    return lines


def _expectation(
    results: Results, client: str, method: str, threshold: float | None
) -> list[str]:
    lines = ["## What to expect", ""]
    seeds = count(len(results.seeds), "seed")
    lines.append(
        f"These numbers come from the comparison, not from this model: over {seeds}, models of {printable(method)} were trained without"
        f" the {results.split} rows and judged on them. This model was trained on these, too, so nothing is left to judge it by."
    )
    lines += [
        "",
        f"| {results.names[client]} | value | 95 % interval |",
        "| --- | ---: | ---: |",
    ]
    half = f" at {number(THRESHOLD)}" if threshold is not None else ""
    for metric in results.metrics:
        called = half if metric in ("accuracy", "balanced_accuracy") else ""
        score = results.comparisons.score(method, client, metric)
        lines += _score_row(
            results.metric_title(metric) + called, score, results.magnitude.get(metric)
        )
    chosen = results.threshold == "validation"
    for metric, share in (
        {} if threshold is None else shares(results, method, client)
    ).items():
        place = "the chosen threshold" if chosen else number(threshold)
        lines += _score_row(f"{results.metric_title(metric)} at {place}", share)
    lines += _decisions(results, client, method)
    sharing = (
        () if results.own_models(method) else results.clients
    )  # which have the same model
    compared = [
        c
        for c in sharing or (client,)
        if results.comparisons.against_constant(method, c) is not None
    ]
    small = [c for c in compared if results.comparisons.small(c)]
    judged = [c for c in compared if c not in small]
    unproven = [results.names[c] for c in judged if _no_better(results, c, method)]
    if unproven:
        lines += [
            "",
            f"Not shown to be better than a constant prediction at {listing(first_few(unproven, 8))}.",
        ]
    elif judged:
        minimum = f" with at least {FEWEST_ROWS} {results.split} rows" if small else ""
        group = f"every client{minimum}" if sharing else results.names[client]
        lines += ["", f"Shown to be better than a constant prediction at {group}."]
    if small:
        group = listing(first_few([results.names[c] for c in small], 8))
        minimum = f"{FEWEST_ROWS} {results.split} rows"
        lines += [
            "",
            f"Too few rows to tell whether it is better than a constant prediction at {group}: that takes {minimum}.",
        ]
    return lines


def _decisions(results: Results, client: str, method: str) -> list[str]:
    """Net benefit, missed patients and calibration, with intervals, beside treating everybody and nobody; none without two classes."""
    at = decision(results, client)
    found = {} if at is None else measures(results, method, client, at.threshold)
    if at is None or not found:
        return []
    lines = ["", f"For decisions at a risk of {at.words}, per 100 patients:", ""]
    lines += ["| | value | 95 % interval |", "| --- | ---: | ---: |"]
    for name, title in MEASURES.items():
        if name in found:
            score = found[name]
            interval = interval_of(name, score) or "-"
            lines.append(f"| {title} | {text_of(name, score.mean)} | {interval} |")
    share = results.comparisons.outcomes.positive(results.against or "", client) or 0.0
    everybody = text_of("net benefit", PER * treat_all(share, at.threshold))
    missed = text_of("missed", PER * share)
    return [
        *lines,
        "",
        f"Treating everybody has a net benefit of {everybody}, treating nobody one of 0 and {missed} missed.",
    ]


def _score_row(
    name: str, score: Difference | None, size: float | None = None
) -> list[str]:
    if score is None:
        return []
    interval = (
        "-"
        if score.low is None
        else f"{number(score.low, size)} to {number(score.high, size)}"
    )
    return [f"| {name} | {number(score.mean, size)} | {interval} |"]


def _no_better(results: Results, client: str, method: str) -> bool:
    difference = results.comparisons.against_constant(method, client)
    return difference is not None and not (
        difference.better and difference.excludes_zero
    )


def _privacy(results: Results) -> list[str]:
    filters = [
        str(f.get("name"))
        for f in results.experiment.get("filters", [])
        if isinstance(f, dict)
    ]
    noise = (
        f"Replies passed {listing(filters)} in training."
        if filters
        else "No noise was added in training."
    )
    text = (
        "The folder holds no rows. A model can still tell something of the rows that it was trained on (membership, rare"
        " combinations), and `preprocess.json` holds pooled means, spreads and the names of categories."
        f" {noise} Hand it on only to whom the clients would tell that much."
    )
    return ["## Privacy", "", text]

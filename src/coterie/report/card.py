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
from coterie.report.hazard_ratios import table_of_ratios
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
    lines = [f"# {printable(results.title)}: a model for {results.names[client]}", ""]
    lines += [*_purpose(results, client, method, threshold), ""]
    lines += [*_rows(results, client, method, rows, rounds), ""]
    lines += [*_expectation(results, client, method, threshold), ""]
    lines += [*_privacy(results), ""]
    lines += ["## Use", "", "    coterie predict FOLDER new.csv", ""]
    lines += ["The file needs the columns of `preprocess.json`.", ""]
    return "\n".join(lines)


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
    if better:
        lines.append(f"Note: {better}")
    return lines


def _this_model(results: Results, client: str, method: str) -> str:
    """Return how sure the gain of one model is: its training has luck of its own, which the mean over training sets has not."""
    compared = results.comparisons
    gain = compared.gain(method, client, compared.gain_metric)
    posterior = compared.posteriors(method, compared.gain_metric).get(client)
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
    run = f"`{printable(results.folder.name)}`"
    planned = results.experiment.get("run", {}).get("rounds", rounds)
    settings = f"with the settings of the run {run}"
    if rounds != planned:
        settings = f"after which the run {run} stopped early, with its settings"
    whose = "all clients"
    weights = {}
    if method == results.baseline:
        whose = results.names[client]
        if client in rows:
            rows = {client: rows[client]}
    else:
        weights = late_shares(results, client, method)
    exception = ""
    if results.keeps_rows_to_tune(method):
        exception = " but those that choose how the model is tuned"
    lines = ["## Training", ""]
    lines.append(
        f"{printable(results.algorithms[method])}, {count(rounds, 'round')}, {settings}, on all rows of {whose}{exception}:"
    )
    total = sum(weights.values())
    titles, rule = "| client | rows |", "| --- | ---: |"
    if total:
        titles += " weight in the comparison |"
        rule += " ---: |"
    lines += ["", titles, rule]
    for name, amount in rows.items():
        line = f"| {results.names.get(name, printable(name))} | {amount:,} |"
        if total:
            line += f" {whole_percent(weights.get(name, 0.0) / total)} |"
        lines.append(line)
    return lines


def _expectation(
    results: Results, client: str, method: str, threshold: float | None
) -> list[str]:
    lines = ["## What to expect", ""]
    seeds = count(results.seed_count(method), "seed")
    lines.append(
        f"These numbers come from the comparison, not from this model: over {seeds}, models of {printable(method)} were trained without"
        f" the {results.split} rows and judged on them. This model was trained on these, too, so nothing is left to judge it by."
    )
    lines += [
        "",
        f"| {results.names[client]} | value | 95 % interval |",
        "| --- | ---: | ---: |",
    ]
    for metric in results.metrics:
        title = results.metric_title(metric)
        if threshold is not None and metric in ("accuracy", "balanced_accuracy"):
            # Accuracies count the class of the larger risk, whatever the threshold is.
            title += f" at {number(THRESHOLD)}"
        score = results.comparisons.score(method, client, metric)
        lines += _score_row(title, score, results.magnitude.get(metric))
    if threshold is not None:
        place = number(threshold)
        if results.threshold == "validation":
            place = "the chosen threshold"
        for metric, share in shares(results, method, client).items():
            lines += _score_row(f"{results.metric_title(metric)} at {place}", share)
    lines += _decisions(results, client, method)
    lines += _hazard_ratios(results, method)
    return lines + _beats_constant(results, client, method)


def _beats_constant(results: Results, client: str, method: str) -> list[str]:
    """Say where this model is shown to beat a constant prediction, where not, and where rows are too few to tell."""
    compared = results.comparisons
    # A model for all is judged at all clients, one of the client's own only there.
    sharing = results.clients
    if results.own_models(method):
        sharing = ()
    small, judged, unproven = [], [], []
    for name in sharing or (client,):
        difference = compared.against_constant(method, name)
        if difference is None:
            continue
        if compared.small(name):
            small.append(results.names[name])
            continue
        judged.append(name)
        if not (difference.better and difference.excludes_zero):
            unproven.append(results.names[name])
    lines = []
    if unproven:
        lines += [
            "",
            f"Not shown to be better than a constant prediction at {listing(first_few(unproven, 8))}.",
        ]
    elif judged:
        group = results.names[client]
        if sharing:
            group = "every client"
        if sharing and small:
            group += f" with at least {FEWEST_ROWS} {results.split} rows"
        lines += ["", f"Shown to be better than a constant prediction at {group}."]
    if small:
        group = listing(first_few(small, 8))
        minimum = f"{FEWEST_ROWS} {results.split} rows"
        lines += [
            "",
            f"Too few rows to tell whether it is better than a constant prediction at {group}: that takes {minimum}.",
        ]
    return lines


def _decisions(results: Results, client: str, method: str) -> list[str]:
    """Net benefit, missed patients and calibration, with intervals, beside treating everybody and nobody; none without two classes."""
    at = decision(results, client)
    if at is None:
        return []
    found = measures(results, method, client, at.threshold)
    if not found:
        return []
    lines = ["", f"For decisions at a risk of {at.words}, per 100 patients:", ""]
    lines += ["| | value | 95 % interval |", "| --- | ---: | ---: |"]
    for name, title in MEASURES.items():
        if name in found:
            score = found[name]
            interval = interval_of(name, score) or "-"
            lines.append(f"| {title} | {text_of(name, score.mean)} | {interval} |")
    rival = results.against or ""
    share = results.comparisons.outcomes.positive(rival, client) or 0.0
    everybody = text_of("net benefit", PER * treat_all(share, at.threshold))
    missed = text_of("missed", PER * share)
    return [
        *lines,
        "",
        f"Treating everybody has a net benefit of {everybody}, treating nobody one of 0 and {missed} missed.",
    ]


def _hazard_ratios(results: Results, method: str) -> list[str]:
    """The hazard ratios of all clients together; none of methods that tell no errors of slopes."""
    rows = table_of_ratios(results, method)
    if not rows:
        return []
    lines = ["", "Hazard ratios of the comparison's training on all rows:", ""]
    lines += ["| | per unit | 95 % interval | per standard deviation |"]
    lines += ["| --- | ---: | ---: | ---: |"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows)]


def _score_row(
    name: str, score: Difference | None, size: float | None = None
) -> list[str]:
    if score is None:
        return []
    interval = "-"
    if score.low is not None:
        interval = f"{number(score.low, size)} to {number(score.high, size)}"
    return [f"| {name} | {number(score.mean, size)} | {interval} |"]


def _privacy(results: Results) -> list[str]:
    tables = results.experiment.get("filters", [])
    filters = [str(table.get("name")) for table in tables if isinstance(table, dict)]
    noise = "No noise was added in training."
    if filters:
        noise = f"Replies passed {listing(filters)} in training."
    text = (
        "The folder holds no rows. A model can still tell something of the rows that it was trained on (membership, rare"
        " combinations), and `preprocess.json` holds pooled means, spreads and the names of categories."
        f" {noise} Hand it on only to whom the clients would tell that much."
    )
    return ["## Privacy", "", text]

"""The answer in words that a physician can trust: for all clients, for each of them, and what limits it.

Every method is compared with training alone in the metrics that decide; what a client should do follows the rule of
`coterie.report.evidence`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from coterie.base.spelling import count
from coterie.report.alike import with_whom
from coterie.report.followup import in_words
from coterie.report.grids import MANY
from coterie.report.groups import Groups, groups, groups_in_words
from coterie.report.memo import cache_answers
from coterie.report.results import Results
from coterie.report.statistics import FEWEST_OF_A_CLASS, FEWEST_ROWS, Difference
from coterie.report.text import (
    chance,
    first_few,
    listing,
    number,
    printable,
    whole_percent,
    with_sign,
)
from coterie.report.verdicts import (
    Kind,
    Verdict,
    beats_constant,
    harming,
    helping,
    late_shares,
    verdict,
)

INTERVAL = "±: 95 % interval of the difference to training alone, from own rows."
RULE = f"{INTERVAL} Verdicts also use what the others' gains show."
MEANINGS = {
    "AUC": "higher AUC: better ranking",
    "log-loss": "lower log-loss: more honest risks",
    "loss": "lower loss: better",
    "RMSE": "lower RMSE: smaller errors",
    "Harrell's C": "higher C: better ranking",
}
SHOWN = 6
BACKWARDS = 0.35
"""AUC of a shared model up to which, at a client whose own model has 1 minus that, labels may be coded the other way round."""
NAMED = 6
PARTNERS = 1
PLAIN_WORDS = {"fedavg": "averaging"}
GISTS = {
    "fedavg": "one model for all, the average of what each client learns",
    "fedprox": "one model for all, the average of what each client learns while it is held near that model",
    "meritfed": "a model for each client, which learns with those whose rows lower its own loss",
    "partial": "a model for each client, drawn towards those of the others as far as they are alike",
    "fixed-effects": "one model for all, in which each client keeps its own base risk",
}
"""Methods by name, for readers who have not heard of them."""
GROUPS: dict[Kind, str] = {
    "join": "Join",
    "probably join": "Probably join",
    "safe to join": "Safe to join, no gain shown",
    "mixed": "Mixed",
    "probably stay alone": "Probably stay alone",
    "stay alone": "Stay alone",
    "undecided": "Undecided",
    "too few rows to tell": "Too few rows to tell",
    "no verdict": "No verdict",
}


class ClientStory(NamedTuple):
    """One client: the verdict, in a headline and with the numbers that decide, method by method."""

    client: str
    name: str
    verdict: Verdict
    headline: str
    badge: str
    weight: str
    numbers: tuple[str, ...]


class Story(NamedTuple):
    """The whole answer: for all, for each client (the extremes if there are many), what the metrics mean, and what limits it.

    `group` is the sentence about the small clients, which are judged among themselves; empty without any.
    """

    answer: tuple[str, ...]
    group: str
    clients: tuple[ClientStory, ...]
    meaning: str
    caveats: tuple[str, ...]
    verdicts: dict[str, Verdict]


@cache_answers
def tell(results: Results) -> Story:
    """The answer of a run directory."""
    verdicts = {c: verdict(results, c) for c in results.clients}
    short = {c: _shorten(v) for c, v in verdicts.items()}
    groupings = {
        m: grouping for m in results.federated if (grouping := groups(results, m))
    }
    crowded = len(results.clients) > MANY
    shown = (
        results.extremes(results.comparisons.telling, SHOWN)
        if crowded and results.metrics
        else results.clients
    )
    shown = tuple(
        sorted(shown, key=lambda c: verdicts[c].together > 0)
    )  # those with rows enough of their own come first
    stories = [
        ClientStory(
            c,
            results.names[c],
            short[c],
            headline(results, short[c]),
            " · ".join(
                filter(None, (badge(results, verdicts[c]), _likelihood(verdicts[c])))
            ),
            _weight(results, verdicts[c], c, groupings),
            tuple(_numbers(results, c, verdicts[c], groupings)),
        )
        for c in shown
    ]
    answer, caveats = (
        _answer(results, verdicts, groupings),
        tuple(_caveats(results, len(shown))),
    )
    return Story(
        answer,
        _of_small(verdicts),
        tuple(stories),
        _meaning(results),
        caveats,
        verdicts,
    )


def facts(results: Results) -> list[str]:
    """The size of the experiment in a few words."""
    run, rows = results.experiment.get("run"), results.size(None)
    runs = [f"{len(results.runs)} runs together"] if results.runs else []
    amounts = [
        (len(results.clients), "client"),
        (len(results.methods), "method"),
        (len(results.seeds), "seed"),
    ]
    words = [*runs, *(count(amount, word) for amount, word in amounts)]
    if isinstance(run, dict) and run.get("rounds") is not None:
        words.append(count(run["rounds"], "round"))
    return (
        [*words, f"{rows:,.0f} {results.split} rows"] if math.isfinite(rows) else words
    )


# One client


def headline(results: Results, verdict: Verdict) -> str:
    """A verdict in one sentence: `Join with Hungary (98 %): meritfed lowers the log-loss by about .03 (95 %: .01 to .05).`"""
    likely = _likelihood(verdict)
    return f"{badge(results, verdict)}{f' ({likely})' if likely else ''}: {verdict.reason}."


def _of_small(verdicts: Mapping[str, Verdict]) -> str:
    """The sentence about all small clients together; empty without any."""
    reason = next((v.reason for v in verdicts.values() if v.together), "")
    *_, text, _ = ["", *reason.split("; ")] if reason else ("", "")
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _shorten(verdict: Verdict) -> Verdict:
    """A verdict for a page that has said already what holds for the small clients together."""
    if not verdict.together:
        return verdict
    *own, _, limit = verdict.reason.split("; ")
    return verdict._replace(reason="; ".join([*own, limit]))


def _likelihood(verdict: Verdict) -> str:
    """Return how sure a verdict is: `98 %`, or `a gain: 5 in 10`; empty where nothing is said."""
    if verdict.probability is None:
        return ""
    return ("a gain: " if verdict.kind in ("undecided", "mixed") else "") + chance(
        verdict.probability
    )


def badge(results: Results, verdict: Verdict) -> str:
    """The kind of a verdict with its partners: `Join with Hungary`."""
    partners = (
        listing(first_few([results.names[c] for c, _ in verdict.partners], PARTNERS))
        if verdict.joins
        else ""
    )
    addition = ", then recalibrate" if verdict.recalibrate and verdict.joins else ""
    return f"{verdict.kind[0].upper()}{verdict.kind[1:]}{' with ' + partners if partners else ''}{addition}"


def _weight(
    results: Results, verdict: Verdict, client: str, groupings: Mapping[str, Groups]
) -> str:
    """`35 % of the weight comes from Hungary`, or how a client stands to the others; empty where a method tells neither."""
    pooled = with_whom(results, verdict.method or "", client)
    if pooled:
        return pooled
    share = takes(
        results, client, verdict.method or "", groupings.get(verdict.method or "")
    )
    return (
        ""
        if not share or share.startswith("less")
        else share.replace(" from ", " of the weight comes from ", 1)
    )


def _numbers(
    results: Results, client: str, verdict: Verdict, groupings: Mapping[str, Groups]
) -> list[str]:
    """Return those that decide: the method of the verdict, or else the one with the lowest loss; and those that are worse."""
    family = results.comparisons.family(client)
    methods = list(dict.fromkeys(method for method, _ in family))
    if not methods:
        return []
    best = verdict.method or min(
        methods, key=lambda m: (_mean(results, m, client), methods.index(m))
    )
    worse = [
        m
        for m in methods
        if m != best
        and any(d.sign < 0 for (rival, _), d in family.items() if rival == m)
    ]
    texts = []
    for method in (best, *worse):
        share = ""
        if method == best:
            weighed = takes(results, client, method, groupings.get(method))
            share = weighed or with_whom(results, method, client)
        texts.append(
            f"{printable(method)}: {numbers(results, method, client)}{'; ' if share else ''}{share}"
        )
    if results.of_events:
        texts[0] += f"; {in_words(results, best, client)}"
    return texts


def _mean(results: Results, method: str, client: str) -> float:
    value = results.mean(method, client, "loss")
    return value if math.isfinite(value) else math.inf


def numbers(
    results: Results, method: str, client: str | None, *, judged: bool = False
) -> str:
    """Differences to training alone in what decides: `AUC +.032 ± .024, log-loss −.025 ± .028`; what they show if `judged`."""
    family = results.comparisons.family(client)
    differences = {k: d for (m, k), d in family.items() if m == method}
    return ", ".join(
        f"{results.metric_name(k)} {_difference(d, results.unit(k), results.magnitude.get(k), judged)}"
        for k, d in differences.items()
    )


def _difference(
    difference: Difference, unit: str, size: float | None, judged: bool
) -> str:
    spread = (
        ""
        if difference.half_width is None
        else f" ± {number(difference.half_width, size)}"
    )
    words = f" ({difference.words})" if judged and difference.sign else ""
    return (
        f"{with_sign(difference.mean, size)}{spread}{' ' if unit else ''}{unit}{words}"
    )


def takes(
    results: Results, client: str, method: str, grouping: Groups | None = None
) -> str:
    """From whom most of the weight for this client comes, besides its own: `38 % from Hungary`; of many clients, from its group."""
    shares = late_shares(results, client, method)
    weights = {c: s for c, s in shares.items() if c != client}
    total = sum(shares.values())
    friends = grouping.friends(client) if grouping else ()
    if not weights or total <= 0 or (len(weights) >= MANY and not friends):
        return ""
    givers = sorted(friends, key=lambda c: -weights[c]) or [
        max(weights, key=lambda c: weights[c])
    ]
    share = whole_percent(sum(weights[c] for c in givers) / total)
    return f"{share} from {listing(first_few([results.names[c] for c in givers], PARTNERS))}"


def label(results: Results, method: str) -> str:
    """A method by its label, with plain words before it where there are some; fit to begin a sentence."""
    words, name = PLAIN_WORDS.get(results.algorithms[method]), printable(method)
    tuned = ", recalibrated" if results.recalibrates(method) else ""
    return f"{words.capitalize()}{tuned} ({name})" if words else name


def gists(results: Results, verdicts: Mapping[str, Verdict]) -> dict[str, str]:
    """Explain each method that verdicts speak of, by its label."""
    methods = dict.fromkeys(v.method for v in verdicts.values() if v.method is not None)
    texts = {}
    for method in methods:
        name = results.algorithms[method]
        tuned = (
            "; its bias is then tuned at each client"
            if results.recalibrates(method)
            else ""
        )
        texts[printable(method)] = (
            GISTS.get(name, f"a way to train together; coterie show {name} explains it")
            + tuned
        )
    return texts


def constant(results: Results, client: str) -> str:
    """Return the loss of a constant prediction, where some method is not shown to beat it; else empty."""
    methods = [m for m in results.methods if m not in results.references]
    beats = {m: beats_constant(results, client, m) for m in methods}
    proven = {m: b for m, b in beats.items() if b is not None}
    if results.comparisons.small(client) or not proven or all(proven.values()):
        return ""
    beating = [printable(m) for m, b in proven.items() if b]
    metric = "rmse" if "rmse" in results.metrics else "loss"
    scores = results.comparisons.trivial(client, metric)[1]
    mean = float(scores[np.isfinite(scores)].mean())
    score = (
        f"{number(mean, results.magnitude.get(metric))} {results.unit(metric)}".rstrip()
    )
    if results.classification:
        lead = f"Giving every {results.split} row the same risk (your overall rate) scores a log-loss of {score}"
    elif results.of_events:
        lead = f"Giving every {results.split} row the same risk (your own rates of events) scores a log-loss of {score}"
    else:
        lead = f"Always predicting the mean of your training rows has {'an RMSE' if metric == 'rmse' else 'a loss'} of {score}"
    verdict = (
        f"Shown to beat that: {listing(beating)}"
        if beating
        else "No model here is shown to beat that"
    )
    return f"{lead}. {verdict}."


# All clients


def _answer(
    results: Results, verdicts: dict[str, Verdict], groupings: Mapping[str, Groups]
) -> tuple[str, ...]:
    if results.baseline is None:
        lead = "No method trained each client alone, so nothing can be called help or harm."
        sentences = {
            m: _means(results, m) or _overall(results, m) for m in results.methods
        }
        return (
            lead,
            *(f"{label(results, m)}: {text}." for m, text in sentences.items() if text),
        )
    groups: dict[str, list[str]] = {group: [] for group in GROUPS.values()}
    for client in verdicts:
        groups[GROUPS[verdicts[client].kind]].append(client)
    words = (
        f"{group}: {name_clients(results, clients)}."
        for group, clients in groups.items()
        if clients
    )
    lead = " ".join([*words, *_backwards(results)])
    if lead.startswith("No verdict"):
        reasons = dict.fromkeys(v.reason for v in verdicts.values())
        lead += f" {listing([*reasons]).capitalize()}."
    methods = (
        f"{label(results, m)}: {text}."
        for m in results.federated
        if (text := _overall(results, m))
    )
    return (
        lead,
        *methods,
        *(groups_in_words(results, m, grouping) for m, grouping in groupings.items()),
    )


def _means(results: Results, method: str) -> str:
    means = {k: results.mean(method, None, k) for k in results.metrics}
    return ", ".join(
        f"{results.metric_name(k)} {number(v, results.magnitude.get(k))}"
        for k, v in means.items()
        if math.isfinite(v)
    )


def name_clients(results: Results, clients: Sequence[str]) -> str:
    """Clients by name, or how many they are: `A and B`, `all 4 clients`, `41 of 50 clients`."""
    total = len(results.clients)
    if len(clients) == total > 1:
        return f"all {total} clients"
    if len(clients) > NAMED:
        return f"{len(clients)} of {total} clients"
    return listing([results.names[c] for c in clients])


def _overall(results: Results, method: str) -> str:
    """One method for all clients: whom it helps and harms, and the mean over clients."""
    parts = []
    judged = [c for c in results.clients if not results.comparisons.small(c)]
    for verb, decide in (("better", helping), ("worse", harming)):
        helped = [c for c in judged if method in decide(results, c)]
        parts += (
            [f"{verb} for {_count_of(results, helped, len(judged))}"] if helped else []
        )
    served = results.clients_of(method)
    if 0 < len(served) < len(results.test_clients):
        parts.append(f"serves {_count_of(results, served, len(results.clients))}")
    elif len(results.test_clients) > 1 and (
        means := numbers(results, method, None, judged=True)
    ):
        parts.append(f"mean over clients {means}")
    return "; ".join(parts)


def _count_of(results: Results, clients: Sequence[str], total: int) -> str:
    names = (
        f" ({listing([results.names[c] for c in clients])})"
        if len(clients) <= NAMED
        else ""
    )
    return f"{len(clients)} of {total}{names}"


def _meaning(results: Results) -> str:
    """In which direction each metric that decides is better, and what it says; empty if nothing is compared."""
    names = (
        [results.metric_name(m) for m in results.comparisons.deciding(None)]
        if results.federated
        else []
    )
    text = "; ".join(MEANINGS[name] for name in names if name in MEANINGS)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _backwards(results: Results) -> list[str]:
    """Ask whether the label of a client is coded the other way round, where shared models rank its rows backwards."""
    shared = [
        m
        for m in results.federated
        if not results.own_models(m) and not results.recalibrates(m)
    ]
    if results.baseline is None or "auc" not in results.metrics or not shared:
        return []
    areas = {}
    for client in results.clients:
        baseline_auc, shared_auc = (
            results.mean(m, client, "auc") for m in (results.baseline, shared[0])
        )
        if (
            results.comparisons.decides(client, "auc")
            and shared_auc <= BACKWARDS
            and baseline_auc >= 1 - BACKWARDS
        ):
            areas[client] = f"{number(shared_auc)}, alone {number(baseline_auc)}"
    if not areas or 2 * len(areas) > len(results.clients):
        return []
    listed = listing(
        [f"{results.names[client]} (AUC {area})" for client, area in areas.items()]
    )
    return [
        f"{printable(shared[0])} ranks patients the wrong way round at {listed}. Is the label coded backwards there?"
    ]


def _rare_cases(results: Results) -> list[str]:
    """Say how many cases of a rare outcome there are, and the area that suits them."""
    if "auprc" not in results.metrics:
        return []
    shares = {
        c: results.comparisons.outcomes.positive(results.methods[0], c)
        for c in results.clients
    }
    cases = [
        f"{round(s * results.size(c))} of {results.size(c):.0f} at {results.names[c]}"
        for c, s in shares.items()
        if s
    ]
    areas = [
        f"{printable(m)} {number(results.mean(m, None, 'auprc'))}"
        for m in results.methods
    ]
    text = f"Cases: {listing(first_few(cases, NAMED))}. Area under the precision-recall curve, mean: {listing(areas)}."
    level = float(np.nanmean(results.comparisons.trivial(None, "loss")[1]))
    margins = [results.comparisons.smallest_at(c, "loss") for c in results.clients]
    least, most = (
        results.gain_text(v, min(margins)) for v in (min(margins), max(margins))
    )
    bound = least if least == most else f"{least} to {most}"
    rate = f"Giving every row the same risk scores a log-loss of {number(level)}"
    margin = f"a change of up to {bound} is called too small to matter"
    return [f"{text} {rate}; {margin} (--smallest sets another bound)."]


def _combination(results: Results) -> list[str]:
    """Say of which runs the results are, and how these were joined; nothing of one run."""
    if not results.runs:
        return []
    names = listing([printable(run) for run in results.runs])
    if len(results.tables) == 1:
        return [f"Runs of the same rows, whose repeats count together: {names}."]
    return [
        f"Runs with rows of other patients, {names}: each client's gains weigh by how sure they are (1/s²)."
    ]


def _rivals(results: Results) -> list[str]:
    """What joining was compared with, where rows are those of tables."""
    own = "your own model" if results.model != "logistic" else "your own linear model"
    if results.comparisons.outcomes.has_boosted:
        return [
            f"Joining is compared with {own} and with boosted trees of your own: the word is the weaker one, gains are over {own}."
        ]
    return [f"Joining is compared with {own} only."] if results.label() else []


def _caveats(results: Results, shown: int) -> list[str]:
    texts, seeds, total = (
        _combination(results),
        len(results.seeds),
        len(results.clients),
    )
    compared = bool(results.baseline and results.federated)
    if shown < total:
        texts.append(
            f"Shown: the {shown} of {total} clients with the largest gains and losses."
        )
    rare = [
        client
        for client in results.clients
        if not results.comparisons.decides(client, "auc")
        and not results.comparisons.label_counts(client)
    ]
    if compared and results.classification and "auc" in results.metrics and rare:
        reason = f"under {FEWEST_OF_A_CLASS} {results.split} rows of a class"
        has = "has" if len(rare) == 1 else "have"
        texts.append(
            f"AUC covers {total - len(rare)} of {total} clients: {name_clients(results, rare)} {has} {reason}."
        )
    if compared and not results.comparisons.enough_seeds:
        texts += [INTERVAL] if seeds > 1 else []
        texts.append(
            f"{count(seeds, 'seed')} cannot show a difference; repeat with --folds 5, or with --seeds 5."
        )
    elif compared:
        texts += [RULE, *_rivals(results)]
        if (
            0
            < (small := sum(results.comparisons.small(c) for c in results.clients))
            < len(results.clients)
        ):
            clients = f"{count(small, 'client')} with fewer than {FEWEST_ROWS} {results.split} rows, or few of a class"
            texts.append(f"Counts leave out {clients}; means do not.")
        if results.outcomes_missing:
            texts.append(
                "Losses per patient were not saved, so that there is no verdict."
            )
    for method, twins in results.coincide.items():
        names, verb = (
            listing([printable(m) for m in twins]),
            "gives" if len(twins) == 1 else "give",
        )
        texts.append(
            f"{names} {verb} the same numbers as {printable(method)} in every digit; shown once."
        )
    texts += _rare_cases(results)
    split = results.experiment.get("split")
    if isinstance(split, dict) and split.get("seed") is not None and seeds > 1:
        texts.append(
            f"split.seed = {split['seed']}: all seeds use the same {results.split} rows."
        )
    if results.split != "test":
        texts.append(
            f"There are no test rows: all numbers are about {results.split} rows and may flatter."
        )
    return texts

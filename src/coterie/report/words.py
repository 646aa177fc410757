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
from coterie.report.statistics import FEWEST_OF_A_CLASS, FEWEST_ROWS
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
    "cox": "one model for all with hazard ratios, in which each client keeps its own baseline hazard",
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
    groupings = {}
    for method in results.federated:
        grouping = groups(results, method)
        if grouping:
            groupings[method] = grouping
    shown = results.clients
    if len(results.clients) > MANY and results.metrics:
        shown = results.extremes(results.comparisons.telling, SHOWN)
    # Clients with rows enough of their own come first; the sort is stable.
    shown = tuple(sorted(shown, key=lambda c: verdicts[c].together > 0))
    return Story(
        _answer(results, verdicts, groupings),
        _about_small(verdicts),
        tuple(_tell_client(results, c, verdicts[c], groupings) for c in shown),
        _meaning(results),
        tuple(_caveats(results, len(shown))),
        verdicts,
    )


def _tell_client(
    results: Results, client: str, verdict: Verdict, groupings: Mapping[str, Groups]
) -> ClientStory:
    short = _shorten(verdict)
    parts = (badge(results, verdict), _likelihood(verdict))
    return ClientStory(
        client,
        results.names[client],
        short,
        headline(results, short),
        " · ".join(part for part in parts if part),
        _weight(results, verdict, client, groupings),
        tuple(_numbers(results, client, verdict, groupings)),
    )


def facts(results: Results) -> list[str]:
    """The size of the experiment in a few words."""
    words = []
    if results.runs:
        words.append(f"{len(results.runs)} runs together")
    words.append(count(len(results.clients), "client"))
    words.append(count(len(results.methods), "method"))
    words.append(count(len(results.seeds), "seed"))
    run = results.experiment.get("run")
    if isinstance(run, dict) and run.get("rounds") is not None:
        words.append(count(run["rounds"], "round"))
    rows = results.size(None)
    if math.isfinite(rows):
        words.append(f"{rows:,.0f} {results.split} rows")
    return words


# One client


def headline(results: Results, verdict: Verdict) -> str:
    """A verdict in one sentence: `Join with Hungary (98 %): meritfed lowers the log-loss by about .03 (95 %: .01 to .05).`"""
    told = badge(results, verdict)
    likely = _likelihood(verdict)
    if likely:
        told += f" ({likely})"
    return f"{told}: {verdict.reason}."


def _about_small(verdicts: Mapping[str, Verdict]) -> str:
    """The sentence about all small clients together; empty without any."""
    for judged in verdicts.values():
        if judged.together:
            # The last clause is about the client itself, the one before about all of them (`_shorten` leaves that out).
            text = judged.reason.split("; ")[-2]
            return f"{capitalise(text)}."
    return ""


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
    likely = chance(verdict.probability)
    if verdict.kind in ("undecided", "mixed"):
        return f"a gain: {likely}"
    return likely


def badge(results: Results, verdict: Verdict) -> str:
    """The kind of a verdict with its partners: `Join with Hungary`."""
    text = capitalise(verdict.kind)
    if not verdict.joins:
        return text
    if verdict.partners:
        names = [results.names[client] for client, _ in verdict.partners]
        text += f" with {listing(first_few(names, PARTNERS))}"
    if verdict.recalibrate:
        text += ", then recalibrate"
    return text


def _weight(
    results: Results, verdict: Verdict, client: str, groupings: Mapping[str, Groups]
) -> str:
    """`35 % of the weight comes from Hungary`, or how a client stands to the others; empty where a method tells neither."""
    pooled = with_whom(results, verdict.method or "", client)
    if pooled:
        return pooled
    method = verdict.method or ""
    share = takes(results, client, method, groupings.get(method))
    if share.startswith("less"):
        return ""
    return share.replace(" from ", " of the weight comes from ", 1)


def _numbers(
    results: Results, client: str, verdict: Verdict, groupings: Mapping[str, Groups]
) -> list[str]:
    """Return those that decide: the method of the verdict, or else the one with the lowest loss; and those that are worse."""
    family = results.comparisons.family(client)
    methods = list(dict.fromkeys(method for method, _ in family))
    if not methods:
        return []
    # Of equal losses the first method wins, as `min` takes the first.
    best = verdict.method or min(methods, key=lambda m: _mean(results, m, client))
    raising = {method for (method, _), d in family.items() if d.sign < 0}
    worse = [m for m in methods if m in raising and m != best]
    texts = [f"{printable(m)}: {numbers(results, m, client)}" for m in (best, *worse)]
    share = takes(results, client, best, groupings.get(best))
    share = share or with_whom(results, best, client)
    if share:
        texts[0] += f"; {share}"
    if results.of_events:
        texts[0] += f"; {in_words(results, best, client)}"
    return texts


def _mean(results: Results, method: str, client: str) -> float:
    value = results.mean(method, client, "loss")
    if not math.isfinite(value):
        return math.inf
    return value


def numbers(
    results: Results, method: str, client: str | None, *, judged: bool = False
) -> str:
    """Differences to training alone in what decides: `AUC +.032 ± .024, log-loss −.025 ± .028`; what they show if `judged`."""
    texts = []
    for (of_method, metric), difference in results.comparisons.family(client).items():
        if of_method != method:
            continue
        size, unit = results.magnitude.get(metric), results.unit(metric)
        text = f"{results.metric_name(metric)} {with_sign(difference.mean, size)}"
        if difference.half_width is not None:
            text += f" ± {number(difference.half_width, size)}"
        if unit:
            text += f" {unit}"
        if judged and difference.sign:
            text += f" ({difference.words})"
        texts.append(text)
    return ", ".join(texts)


def takes(
    results: Results, client: str, method: str, grouping: Groups | None = None
) -> str:
    """From whom most of the weight for this client comes, besides its own: `38 % from Hungary`; of many clients, from its group."""
    shares = late_shares(results, client, method)
    weights = {c: s for c, s in shares.items() if c != client}
    total = sum(shares.values())
    friends: Sequence[str] = ()
    if grouping:
        friends = grouping.friends(client)
    # Of many givers without a group of its own there is none to name.
    are_too_many = len(weights) >= MANY and not friends
    if not weights or total <= 0:
        return ""
    if are_too_many:
        return ""
    givers = sorted(friends, key=lambda c: -weights[c])
    if not givers:
        givers = [max(weights, key=lambda c: weights[c])]
    share = whole_percent(sum(weights[c] for c in givers) / total)
    names = [results.names[c] for c in givers]
    return f"{share} from {listing(first_few(names, PARTNERS))}"


def label(results: Results, method: str) -> str:
    """A method by its label, with plain words before it where there are some; fit to begin a sentence."""
    name = printable(method)
    words = PLAIN_WORDS.get(results.algorithms[method])
    if words is None:
        return name
    in_words = words.capitalize()
    if results.recalibrates(method):
        in_words += ", recalibrated"
    if results.pools_at_home(method):
        in_words += ", pooled at home"
    return f"{in_words} ({name})"


def gists(results: Results, verdicts: Mapping[str, Verdict]) -> dict[str, str]:
    """Explain each method that verdicts speak of, by its label."""
    methods = dict.fromkeys(v.method for v in verdicts.values() if v.method is not None)
    texts = {}
    for method in methods:
        name = results.algorithms[method]
        unknown = f"a way to train together; coterie show {name} explains it"
        gist = GISTS.get(name, unknown)
        if results.recalibrates(method):
            gist += "; its bias is then tuned at each client"
        if results.pools_at_home(method):
            gist += "; each client then fits a model of its own that it draws to the shared one as far as its rows say"
        texts[printable(method)] = gist
    return texts


def constant(results: Results, client: str) -> str:
    """Return the loss of a constant prediction, where some method is not shown to beat it; else empty."""
    methods = [m for m in results.methods if m not in results.references]
    beats = {m: beats_constant(results, client, m) for m in methods}
    proven = {m: b for m, b in beats.items() if b is not None}
    all_beat = all(proven.values())  # also where none could be shown
    if all_beat or results.comparisons.small(client):
        return ""
    beating = [printable(m) for m, b in proven.items() if b]
    metric, name_of_score = "loss", "a loss"
    if "rmse" in results.metrics:
        metric, name_of_score = "rmse", "an RMSE"
    _, scores = results.comparisons.trivial(client, metric)
    mean = float(scores[np.isfinite(scores)].mean())
    score = number(mean, results.magnitude.get(metric))
    score = f"{score} {results.unit(metric)}".rstrip()
    if results.classification:
        lead = f"Giving every {results.split} row the same risk (your overall rate) scores a log-loss of {score}"
    elif results.of_events:
        lead = f"Giving every {results.split} row the same risk (your own rates of events) scores a log-loss of {score}"
    else:
        lead = f"Always predicting the mean of your training rows has {name_of_score} of {score}"
    if beating:
        return f"{lead}. Shown to beat that: {listing(beating)}."
    return f"{lead}. No model here is shown to beat that."


# All clients


def _answer(
    results: Results, verdicts: dict[str, Verdict], groupings: Mapping[str, Groups]
) -> tuple[str, ...]:
    if results.baseline is None:
        sentences = [
            "No method trained each client alone, so nothing can be called help or harm."
        ]
        for method in results.methods:
            text = _means(results, method) or _overall(results, method)
            if text:
                sentences.append(f"{label(results, method)}: {text}.")
        return tuple(sentences)
    by_group: dict[str, list[str]] = {group: [] for group in GROUPS.values()}
    for client, judged in verdicts.items():
        by_group[GROUPS[judged.kind]].append(client)
    words = []
    for group, clients in by_group.items():
        if clients:
            words.append(f"{group}: {name_clients(results, clients)}.")
    lead = " ".join([*words, *_backwards(results)])
    if lead.startswith("No verdict"):
        reasons = dict.fromkeys(v.reason for v in verdicts.values())
        lead += f" {listing([*reasons]).capitalize()}."
    sentences = [lead]
    for method in results.federated:
        text = _overall(results, method)
        if text:
            sentences.append(f"{label(results, method)}: {text}.")
    for method, grouping in groupings.items():
        sentences.append(groups_in_words(results, method, grouping))
    return tuple(sentences)


def _means(results: Results, method: str) -> str:
    texts = []
    for metric in results.metrics:
        mean = results.mean(method, None, metric)
        if math.isfinite(mean):
            shown = number(mean, results.magnitude.get(metric))
            texts.append(f"{results.metric_name(metric)} {shown}")
    return ", ".join(texts)


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
        clients = [c for c in judged if method in decide(results, c)]
        if clients:
            parts.append(f"{verb} for {_count_of(results, clients, len(judged))}")
    served = results.clients_of(method)
    if 0 < len(served) < len(results.test_clients):
        parts.append(f"serves {_count_of(results, served, len(results.clients))}")
    elif len(results.test_clients) > 1:
        means = numbers(results, method, None, judged=True)
        if means:
            parts.append(f"mean over clients {means}")
    return "; ".join(parts)


def _count_of(results: Results, clients: Sequence[str], total: int) -> str:
    text = f"{len(clients)} of {total}"
    if len(clients) <= NAMED:
        text += f" ({listing([results.names[c] for c in clients])})"
    return text


def _meaning(results: Results) -> str:
    """In which direction each metric that decides is better, and what it says; empty if nothing is compared."""
    if not results.federated:
        return ""
    names = [results.metric_name(m) for m in results.comparisons.deciding(None)]
    text = "; ".join(MEANINGS[name] for name in names if name in MEANINGS)
    if not text:
        return ""
    return f"{capitalise(text)}."


def capitalise(text: str) -> str:
    """A text with its first letter large; the others stay as they are, as in `AUC`."""
    return text[:1].upper() + text[1:]


def _backwards(results: Results) -> list[str]:
    """Ask whether the label of a client is coded the other way round, where shared models rank its rows backwards."""
    baseline = results.baseline
    if baseline is None or "auc" not in results.metrics:
        return []
    for shared in results.federated:
        # A model of a client's own could not rank its rows backwards, and a tuned one would not.
        if not results.own_models(shared) and not results.recalibrates(shared):
            break
    else:
        return []
    backwards = []
    for client in results.clients:
        own_auc = results.mean(baseline, client, "auc")
        shared_auc = results.mean(shared, client, "auc")
        if not results.comparisons.decides(client, "auc"):
            continue
        if shared_auc <= BACKWARDS and own_auc >= 1 - BACKWARDS:
            name = results.names[client]
            areas = f"AUC {number(shared_auc)}, alone {number(own_auc)}"
            backwards.append(f"{name} ({areas})")
    # Where most clients rank backwards it is the model that is wrong, not their labels.
    if not backwards or 2 * len(backwards) > len(results.clients):
        return []
    return [
        f"{printable(shared)} ranks patients the wrong way round at {listing(backwards)}. Is the label coded backwards there?"
    ]


def _rare_cases(results: Results) -> list[str]:
    """Say how many cases of a rare outcome there are, and the area that suits them."""
    if "auprc" not in results.metrics:
        return []
    compared = results.comparisons
    cases = []
    for client in results.clients:
        share = compared.outcomes.positive(results.methods[0], client)
        if share:
            size = results.size(client)
            positive = round(share * size)
            cases.append(f"{positive} of {size:.0f} at {results.names[client]}")
    areas = []
    for method in results.methods:
        area = number(results.mean(method, None, "auprc"))
        areas.append(f"{printable(method)} {area}")
    text = f"Cases: {listing(first_few(cases, NAMED))}. Area under the precision-recall curve, mean: {listing(areas)}."
    level = float(np.nanmean(compared.trivial(None, "loss")[1]))
    margins = [compared.smallest_at(c, "loss") for c in results.clients]
    least = results.gain_text(min(margins), min(margins))
    most = results.gain_text(max(margins), min(margins))
    bound = f"{least} to {most}"
    if least == most:
        bound = least
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
    own = "your own model"
    if results.model == "logistic":
        own = "your own linear model"
    if results.comparisons.outcomes.has_boosted:
        return [
            f"Joining is compared with {own} and with boosted trees of your own: the word is the weaker one, gains are over {own}."
        ]
    if results.label():
        return [f"Joining is compared with {own} only."]
    return []


def _caveats(results: Results, shown: int) -> list[str]:
    texts = _combination(results)
    seeds, total = len(results.seeds), len(results.clients)
    compared = bool(results.baseline and results.federated)
    if shown < total:
        texts.append(
            f"Shown: the {shown} of {total} clients with the largest gains and losses."
        )
    rare = []
    has_auc = results.classification and "auc" in results.metrics
    if compared and has_auc:
        for client in results.clients:
            # Of several labels the AUC decides nowhere, however many rows there are.
            has_several = bool(results.comparisons.label_counts(client))
            if not has_several and not results.comparisons.decides(client, "auc"):
                rare.append(client)
    if rare:
        reason = f"under {FEWEST_OF_A_CLASS} {results.split} rows of a class"
        has = "has" if len(rare) == 1 else "have"
        texts.append(
            f"AUC covers {total - len(rare)} of {total} clients: {name_clients(results, rare)} {has} {reason}."
        )
    if compared and not results.comparisons.enough_seeds:
        if seeds > 1:
            texts.append(INTERVAL)
        texts.append(
            f"{count(seeds, 'seed')} cannot show a difference; repeat with --folds 5, or with --seeds 5."
        )
    elif compared:
        texts += [RULE, *_rivals(results)]
        small = sum(results.comparisons.small(c) for c in results.clients)
        if 0 < small < total:
            clients = f"{count(small, 'client')} with fewer than {FEWEST_ROWS} {results.split} rows, or few of a class"
            texts.append(f"Counts leave out {clients}; means do not.")
        if results.outcomes_missing:
            texts.append(
                "Losses per patient were not saved, so that there is no verdict."
            )
    for method, twins in results.coincide.items():
        names = listing([printable(m) for m in twins])
        verb = "gives" if len(twins) == 1 else "give"
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

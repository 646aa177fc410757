"""The answer in words that a physician can trust: for all clients, for each of them, and what limits it.

Every method is compared with training alone, metric by metric; a difference that is not clear is called so. What a
constant prediction would reach is said wherever a model does not clearly beat it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from coterie.report.grids import MANY
from coterie.report.results import Results
from coterie.report.statistics import BETTER, UNCLEAR, WORSE, Difference
from coterie.report.text import listing, number, percent, printable, shortened
from coterie.report.verdicts import DECISIVE, Kind, Verdict, harmed, helped, late_shares, verdict, whole_percent

__all__ = ["PARTNERS", "ClientStory", "Story", "headline", "label", "tell"]

SHOWN = 8
NAMED = 6
PARTNERS = 3
PLAIN_WORDS = {"fedavg": "averaging"}
GROUPS: dict[Kind, str] = {
    "join": "Join",
    "join with": "Join",
    "stay alone": "Stay alone",
    "mixed": "Mixed",
    "no clear difference": "No clear difference",
    "too few rows to tell": "Too few rows to tell",
    "no verdict": "No verdict",
}


class ClientStory(NamedTuple):
    """One client: the verdict, what each method does, and what the numbers are worth."""

    client: str
    name: str
    verdict: Verdict
    sentences: tuple[str, ...]
    harmed: tuple[str, ...]


class Story(NamedTuple):
    """The whole answer: for all, for each client (the extremes if there are many), and what limits it."""

    answer: tuple[str, ...]
    clients: tuple[ClientStory, ...]
    caveats: tuple[str, ...]
    verdicts: dict[str, Verdict]


def tell(results: Results, *, brief: bool = False) -> Story:
    """The answer of a run directory; `brief` where the numbers stand in a table beside it."""
    verdicts = {c: verdict(results, c) for c in results.clients}
    many = len(results.clients) > MANY
    shown = results.extremes(results.metrics[0], SHOWN) if many and results.metrics else results.clients
    stories = [
        ClientStory(c, results.names[c], verdicts[c], tuple(_sentences(results, c, brief)), harmed(results, c))
        for c in shown
    ]
    return Story(
        tuple(_answer(results, verdicts, brief)), tuple(stories), tuple(_caveats(results, len(shown))), verdicts
    )


def headline(results: Results, found: Verdict) -> str:
    """A verdict as a sentence without its full stop: `join with Hungary (38 % of the weight): ...`."""
    whom = [f"{results.names[c]} ({whole_percent(share)} of the weight)" for c, share in found.partners]
    mark = "" if found.reason.startswith("with ") else ":"
    return f"{found.kind}{' ' + listing(shortened(whom, PARTNERS)) if whom else ''}{mark} {found.reason}"


# One client


def _sentences(results: Results, client: str, brief: bool) -> list[str]:
    other = results.against
    sentences = []
    if other:
        rivals = results.federated if results.baseline else [m for m in results.methods if m not in results.references]
        sentences = [s for m in rivals if m != other for s in [_method(results, client, m, other, brief)] if s]
        if not sentences and not brief:
            sentences = [f"{label(results, other)}: {_values(results, client, other)}."]
    return [*sentences, *_constants(results, client)]


def _method(results: Results, client: str, method: str, other: str, brief: bool) -> str:
    """What a method does to a client, compared with another: the worse first, then the better, then the open."""
    found = {k: results.difference(method, other, client, k) for k in results.metrics}
    known = {k: d for k, d in found.items() if d is not None}
    if not known:
        return ""
    name, versus = label(results, method), _versus(results, other)
    bad = [_change(results, client, method, other, k, d) for k, d in known.items() if d.verdict == WORSE]
    good = [_change(results, client, method, other, k, d) for k, d in known.items() if d.verdict == BETTER]
    unsure = [k for k, d in known.items() if d.verdict not in (BETTER, WORSE) and not (brief and k not in DECISIVE)]
    pairs = [f"{results.metric_name(k)} {_pair(results, client, method, other, k)}" for k in unsure]
    takes = _takes(results, client, method)
    if bad or good:
        text = f"{name} {listing(bad or good)} compared with {versus}"
        text += f", but {listing(good)}" if bad and good else ""
        text += f"; not clear: {listing(pairs)}" if pairs else ""
    elif brief:
        return f"{name} {takes}." if takes else ""
    else:
        sure = any(d.verdict == UNCLEAR for d in known.values())
        text = f"{name}{' makes no clear difference' if sure else ''}: {_begin(pairs, results, other)}"
    return f"{text}. It {takes}." if takes else f"{text}."


def _change(results: Results, client: str, method: str, other: str, metric: str, difference: Difference) -> str:
    """A clear difference as a clause: `costs you 14.9 points of accuracy (.778 against .927)`."""
    pair, size = _pair(results, client, method, other, metric), abs(difference.mean)
    if metric == "accuracy":
        return f"{'gains' if difference.mean > 0 else 'costs'} you {size * 100:.1f} points of accuracy ({pair})"
    verb = "raises" if difference.mean > 0 else "lowers"
    return f"{verb} your {results.metric_name(metric)} by {number(size)} ({pair})"


def _takes(results: Results, client: str, method: str) -> str:
    """Where the weight for this client comes from."""
    shares = late_shares(results, client, method)
    others = {c: s for c, s in shares.items() if c != client}
    total = sum(shares.values())
    if not others or total <= 0:
        return ""
    foreign, top = sum(others.values()) / total, max(others, key=lambda c: others[c])
    several = foreign >= 0.01 and len(others) > 1
    most = f", most of it from {results.names[top]} ({whole_percent(others[top] / total)})" if several else ""
    return f"takes {whole_percent(foreign)} of its weight from others{most}"


def _pair(results: Results, client: str | None, method: str, other: str, metric: str) -> str:
    """Both means over the seeds that both methods have."""
    one, two = results.common(method, other, client, metric)
    return f"{number(one)} against {number(two)}"


def _begin(texts: list[str], results: Results, other: str) -> str:
    """A list whose first entry says what it is compared with: `.81 against .77 alone (clearly better), ...`."""
    words = "alone" if other == results.baseline else f"with {printable(other)}"
    head, mark, tail = texts[0].partition(" (")
    return ", ".join([f"{head} {words}{mark}{tail}", *texts[1:]])


def _values(results: Results, client: str | None, method: str) -> str:
    means = {k: results.mean(method, client, k) for k in results.metrics}
    return ", ".join(f"{results.metric_name(k)} {number(v)}" for k, v in means.items() if math.isfinite(v))


def _versus(results: Results, other: str) -> str:
    return "training alone" if other == results.baseline else printable(other)


def label(results: Results, method: str) -> str:
    """A method by its label, with plain words before it where there are some; fit to begin a sentence."""
    words, name = PLAIN_WORDS.get(results.algorithms[method]), printable(method)
    return f"{words.capitalize()} ({name})" if words else name


# Is a model better than one that always says the same?


def _constants(results: Results, client: str) -> list[str]:
    sentences = []
    share = _mean_constant(results, client, "majority")
    beaten = _beaten(results, client, "accuracy", "majority")
    if beaten and math.isfinite(share):
        text = f"{percent(share)} of your {results.split} rows are of one class: always naming it has an accuracy of"
        sentences.append(f"{text} {number(share)}, and {beaten}.")
    loss = _mean_constant(results, client, "majority_loss")
    beaten = _beaten(results, client, "loss", "majority_loss")
    if beaten and math.isfinite(loss):
        text = "Predicting your training shares for every row has a log-loss of"
        sentences.append(f"{text} {number(loss)}, and {beaten}.")
    return sentences


def _beaten(results: Results, client: str, metric: str, key: str) -> str | None:
    """Which methods beat a constant prediction; None if all do, so that there is nothing to warn of."""
    constant = results.constant(client, key)
    methods = [m for m in results.methods if m not in results.references]
    found = {m: results.judge(results.values(m, client, metric), constant, client, metric) for m in methods}
    known = {m: d for m, d in found.items() if d is not None}
    if not known:
        return None
    if all(d.low is None for d in known.values()):  # no intervals: say only what the numbers show
        sign = 1 if results.higher_is_better(metric) else -1
        above = [m for m, d in known.items() if sign * d.mean > 0]
        rest = [m for m in known if m not in above]
        if not rest:
            return None
        if len(rest) < len(above):
            return f"in this run {_some(rest)} did no better"
        return f"in this run only {_some(above)} did better" if above else "in this run no method did better"
    above = [m for m, d in known.items() if d.verdict == BETTER]
    below = [m for m, d in known.items() if d.verdict == WORSE]
    if len(above) == len(known):
        return None
    parts = [f"{_some(below)} {_is(below)} clearly worse"] if below else []
    rest = [m for m in known if m not in above]
    if len(rest) >= len(above):
        parts.insert(0, f"only {_some(above)} {_is(above)} clearly better" if above else "no method is clearly better")
    elif undecided := [m for m in rest if m not in below]:
        parts.insert(0, f"{_some(undecided)} {_is(undecided)} not clearly better")
    return "; ".join(parts)


def _is(methods: Sequence[str]) -> str:
    return "is" if len(methods) == 1 else "are"


def _some(methods: Sequence[str]) -> str:
    return listing(shortened([printable(m) for m in methods], NAMED))


def _mean_constant(results: Results, client: str, key: str) -> float:
    values = [float(v) for v in results.constant(client, key) if math.isfinite(v)]
    return sum(values) / len(values) if values else math.nan


# All clients


def _answer(results: Results, verdicts: dict[str, Verdict], brief: bool) -> list[str]:
    rivals = [m for m in results.federated if m != results.against]
    rest = [s for s in (*(_overall(results, m, brief) for m in rivals), *_references(results, brief)) if s]
    if results.baseline is None:
        lead = "No method trained each client alone, so nothing can be called help or harm"
        return [f"{lead}; methods are compared with {printable(results.against or 'nothing')}.", *rest]
    groups: dict[str, list[str]] = {group: [] for group in GROUPS.values()}
    for client, found in verdicts.items():
        groups[GROUPS[found.kind]].append(client)
    return [" ".join(f"{k}: {_named(results, who, verdicts)}." for k, who in groups.items() if who), *rest]


def _named(results: Results, clients: Sequence[str], verdicts: dict[str, Verdict]) -> str:
    total = len(results.clients)
    methods = {c: verdicts[c].method for c in clients}
    if len(clients) == total > 1 and len(set(methods.values())) == 1:
        method = methods[clients[0]]
        return f"all {total} clients" + (f" ({printable(method)})" if method else "")
    if total > MANY and len(clients) > NAMED:
        return f"{len(clients)} of {total} clients"
    return listing([results.names[c] + (f" ({printable(m)})" if m else "") for c, m in methods.items()])


def _overall(results: Results, method: str, brief: bool) -> str:
    """One method for all clients: whom it helps and harms, and the mean over clients."""
    other, text = results.against or method, label(results, method)
    if results.baseline and len(results.seeds) > 1:
        hurt = [c for c in results.clients if method in harmed(results, c)]
        good = [c for c in results.clients if method in helped(results, c)]
        parts = [f"clearly {verb} {_counted(results, who)}" for verb, who in (("helps", good), ("harms", hurt)) if who]
        text += f" {' and '.join(parts)}" if parts else " neither clearly helps nor clearly harms anybody"
    elif brief:
        return ""
    means = []
    for metric in () if brief else results.metrics:
        found = results.difference(method, other, None, metric)
        if found is not None:
            sure = {BETTER: " (clearly better)", WORSE: " (clearly worse)"}.get(found.verdict, "")
            means.append(f"{results.metric_name(metric)} {_pair(results, None, method, other, metric)}{sure}")
    if means:
        return f"{text}; mean over clients: {_begin(means, results, other)}."
    served = () if brief else results.served(method)
    if 0 < len(served) < len(results.clients):
        text += f"{'' if text == label(results, method) else ';'} serves {_counted(results, served)}"
    return f"{text}."


def _counted(results: Results, clients: Sequence[str]) -> str:
    names = f" ({listing([results.names[c] for c in clients])})" if len(clients) <= NAMED else ""
    return f"{len(clients)} of {len(results.clients)}{names}"


def _references(results: Results, brief: bool) -> list[str]:
    lead = "Reference nobody can have, all rows in one place"
    return [f"{lead} ({printable(m)}): {_values(results, None, m)}." for m in results.references if not brief]


def _caveats(results: Results, shown: int) -> list[str]:
    texts, seeds = [], len(results.seeds)
    if shown < len(results.clients):
        texts.append(
            f"Told are the {shown} of {len(results.clients)} clients that have the largest harm and gain, or are served by a method"
            " for few."
        )
    if seeds > 1:
        texts.append(
            f"A difference is called clear if its 95 % interval over {seeds} seeds excludes 0; the interval is widened"
            " because seeds share rows (Nadeau and Bengio 2003). More seeds narrow it as far as the number of rows allows."
            " Each stands for itself: of many, a few are clear by chance."
        )
    elif results.baseline:
        texts.append("One seed says nothing about chance: repeat with --seeds 5 before you act on these numbers.")
    split = results.experiment.get("split")
    if isinstance(split, dict) and split.get("seed") is not None and seeds > 1:
        texts.append(
            f"split.seed = {split['seed']}: all seeds use the same {results.split} rows, so intervals tell the noise of"
            " training only and not which rows happened to be drawn."
        )
    if results.split != "test":
        texts.append(f"There are no test rows: all numbers are about {results.split} rows and may flatter.")
    return texts

"""With whom: what partial pooling tells of how far each client is like the others.

Three things are said, and each only of the client itself:

- how much of its model is its own (`weights.csv`: the derivative of its slopes by those that its own rows call for);
- whether it is set apart: in most models of the folds its weight u was small, so that the others hardly use its rows;
- from whom its own model is shown to differ. With the distance T = (b_i - b_k)' (C_i + C_k)^-1 (b_i - b_k) of two own models
  and the errors C of their slopes, T is chi-square if they do not differ; p values are Bonferroni's over all pairs.

It is never said that leaving out a partner would help: the sign of that effect is right hardly more often than by chance.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.base.files import open_tensors
from coterie.report.memo import cache_answers
from coterie.report.results import POOLING, Results
from coterie.report.text import first_few, listing, printable, whole_percent
from coterie.run.files import ALL, safe_name, seed_suffix

APART, MOST_MODELS = 0.3, 0.8
"""A client is set apart if its weight u is below this in such a share of the models: of 848 usual clients none was, of
clients with opposite slopes among six .88."""
LEVEL = 0.05
TELLING = 2.0
"""Standard errors by which the slopes of a column that is named differ."""
MOST_COLUMNS = 3
MOST_NAMED = 3

Vector = NDArray[np.float64]


class Likeness(NamedTuple):
    """How one client stands to the others.

    Attributes:
        own: the share of its model that is its own; None where that is not known.
        is_apart: the others hardly use its rows.
        differs: clients from which its own model is shown to differ, each with the columns in which it does most.
        is_tested: whether differences were tested.
    """

    own: float | None
    is_apart: bool
    differs: tuple[tuple[str, tuple[str, ...]], ...]
    is_tested: bool


def likeness(results: Results, method: str, client: str) -> Likeness | None:
    """Return how a client stands to the others under a method that pools; None for another method, or a client alone."""
    if results.algorithms.get(method) != POOLING or len(results.clients) < 2:
        return None
    shares = results.shares_of_models.get(method)
    own = None
    if shares is not None and client in shares.targets:
        row = shares.late()[shares.targets.index(client)]
        own = float(row[shares.clients.index(client)])
    models = _own_models(results, method)
    differs = models.pairs.get(client, ()) if models is not None else ()
    tested = models is not None and client in models.clients
    return Likeness(own, _is_apart(results, method, client), differs, tested)


def with_whom(results: Results, method: str, client: str) -> str:
    """The same in words; empty where nothing is known."""
    found = likeness(results, method, client)
    if found is None:
        return ""
    texts = []
    if found.own is not None:
        texts.append(f"{whole_percent(found.own)} of your model is your own")
    if found.is_apart:
        texts.append("the others hardly use your rows")
    if found.differs:
        named = [
            f"{results.names.get(name, printable(name))} (in {listing([printable(c) for c in columns])})"
            for name, columns in found.differs
        ]
        texts.append(f"shown to differ from {listing(first_few(named, MOST_NAMED))}")
    elif found.is_tested:
        texts.append("nothing shows that you differ from the others")
    return "; ".join(texts)


def _is_apart(results: Results, method: str, client: str) -> bool:
    """Return True if the weight u of a client is small in most of the models of the folds."""
    weights = _weights_of_folds(results, method).get(client, [])
    return bool(weights) and float(np.mean(np.array(weights) < APART)) >= MOST_MODELS


@cache_answers
def _weights_of_folds(results: Results, method: str) -> dict[str, list[float]]:
    """The last weight u of each client in each of the models of the folds."""
    history = results.history
    found: dict[str, list[float]] = {}
    if ("", "u") not in history.series:
        return found
    series = history.series.index(("", "u"))
    for run, (label, _, fold) in enumerate(history.runs):
        if label != method or fold == ALL:
            continue
        numbers = history.numbers(run)
        is_weight = numbers.series == series
        clients, values = numbers.client[is_weight], numbers.value[is_weight]
        # Numbers lie by round, so that of each client the last one stays.
        last = dict(zip(clients.tolist(), values.tolist(), strict=True))
        for place, value in last.items():
            found.setdefault(history.clients[place], []).append(value)
    return found


class _OwnModels(NamedTuple):
    """Clients whose own models were told, and by client those from which it is shown to differ."""

    clients: tuple[str, ...]
    pairs: dict[str, tuple[tuple[str, tuple[str, ...]], ...]]


@cache_answers
def _own_models(results: Results, method: str) -> _OwnModels | None:
    """What the own models of one training show: of that on all rows, or else of the first seed."""
    folder = results.folder / "models" / "prior"
    for seed in results.seeds:
        for fold in (ALL, "", "0"):
            path = (
                folder
                / f"{safe_name(f'{method}-{seed_suffix(seed, fold)}')}.safetensors"
            )
            if path.is_file():
                return _compare(results, path)
    return None


def _compare(results: Results, path: Path) -> _OwnModels | None:
    from scipy.special import chdtrc

    with open_tensors(path, "numpy") as (file, about):
        needed = ("distance", "degrees", "own", "own_variance", "mu")
        if not {*needed} <= {*file.keys()}:  # the form of sums tells no own models
            return None
        tensors = (file.get_tensor(name) for name in needed)
        distance, degrees, own, variance, mu = tensors
        clients = tuple(map(str, about["clients"]))
    slopes = len(mu)
    count = len(clients) * (len(clients) - 1) / 2
    features = [str(name) for name in results.features]
    pairs: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {}
    for i, client in enumerate(clients):
        found = []
        for k, other in enumerate(clients):
            # Without a column that varies at one of the two there is nothing to compare.
            if i == k or not degrees[i, k]:
                continue
            if chdtrc(degrees[i, k], distance[i, k]) * count >= LEVEL:
                continue
            errors = np.sqrt(variance[i, :slopes] + variance[k, :slopes])
            differences = np.abs(own[i, :slopes] - own[k, :slopes])
            apart = np.divide(
                differences, errors, out=np.zeros(slopes), where=errors > 0
            )
            found.append((other, _telling_columns(apart, features)))
        pairs[client] = tuple(found)
    return _OwnModels(clients, pairs)


def _telling_columns(apart: Vector, features: list[str]) -> tuple[str, ...]:
    """The columns whose slopes differ most, in standard errors; slopes of several classes lie one class behind the other."""
    order = np.argsort(-apart, kind="stable")
    names: dict[str, None] = {}
    for place in order:
        if names and (apart[place] < TELLING or len(names) == MOST_COLUMNS):
            break
        column = int(place) % max(len(features), 1)
        names[features[column] if features else f"column {column + 1}"] = None
    return tuple(names)

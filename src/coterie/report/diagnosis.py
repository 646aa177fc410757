"""How a model of two classes serves as a test: sensitivity, specificity and the like at a threshold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from coterie.base.errors import InputError
from coterie.compute.outcomes import Influence, mean_influence
from coterie.report.results import Results
from coterie.report.scores import THRESHOLD
from coterie.report.statistics import Difference
from coterie.report.text import listing, number, printable

__all__ = [
    "THRESHOLD",
    "Diagnosis",
    "call_all_the_same",
    "diagnose",
    "operating_point",
    "shares",
    "table",
    "thresholds",
]

SHARES = ("sensitivity", "specificity", "ppv", "npv")


class Diagnosis(NamedTuple):
    """Measures of a test, each NaN where it is undefined."""

    sensitivity: float
    specificity: float
    ppv: float
    npv: float
    f1: float
    brier: float


def diagnose(
    risks: ArrayLike,
    labels: ArrayLike,
    threshold: float = THRESHOLD,
    weights: ArrayLike | None = None,
) -> Diagnosis:
    """Measures of predicted risks [R] of class 1 for labels [R] of 0 and 1; a row is called positive from `threshold` on, and counts
    by its weight [R] (None: once).

    >>> diagnose([0.9, 0.4, 0.2, 0.7], [1, 1, 0, 0])[:4]
    (0.5, 0.5, 0.5, 0.5)
    """
    risk, truth = np.asarray(risks, dtype=float), np.asarray(labels) == 1
    called = risk >= threshold
    w = np.ones(len(risk)) if weights is None else np.asarray(weights, dtype=float)
    hit, miss = float(w[called & truth].sum()), float(w[~called & truth].sum())
    alarm, calm = float(w[called & ~truth].sum()), float(w[~called & ~truth].sum())
    brier = math.nan
    if w.any():
        brier = float(np.average((risk - truth) ** 2, weights=w))
    return Diagnosis(
        _share(hit, hit + miss),
        _share(calm, calm + alarm),
        _share(hit, hit + alarm),
        _share(calm, calm + miss),
        _share(2 * hit, 2 * hit + alarm + miss),
        brier,
    )


def _share(part: float, total: float) -> float:
    if not total:
        return math.nan
    return part / total


def thresholds(results: Results, method: str, client: str) -> dict[int, float]:
    """From which risk a row is called positive, by seed; NaN where none could be chosen on validation rows."""
    by_seed = results.comparisons.outcomes.rows(method, client)
    if results.threshold == "validation":
        return {seed: rows.threshold for seed, rows in by_seed.items()}
    return dict.fromkeys(by_seed, float(results.threshold))


def operating_point(
    results: Results, method: str, client: str, seed: int | None = None
) -> float | None:
    """From which risk a client's model of a seed (None: mean over seeds) calls a row positive; None unless there are two classes.

    Raises:
        InputError: the threshold is to come from validation rows, and the method kept none.
    """
    if not results.classification or len(results.label().get("classes", ())) != 2:
        return None
    if results.threshold != "validation":
        return float(results.threshold)
    chosen = thresholds(results, method, client)
    if seed is None:
        value = _mean(list(chosen.values()))
    else:
        value = chosen.get(seed, math.nan)
    if math.isnan(value):
        raise InputError(
            f"{method} kept no validation rows of {client} to choose a threshold on; give a risk, say --threshold 0.3, or"
            " repeat the run with --set run.merge_validation=false"
        )
    return value


def table(results: Results, client: str) -> list[dict[str, Any]]:
    """A row for each method with the measures of a client's test rows, mean over seeds; empty without rows of two classes."""
    table_rows = []
    for method in results.methods:
        cuts = thresholds(results, method, client)
        diagnoses = []
        tested = results.comparisons.outcomes.rows(method, client)
        for seed, rows in tested.items():
            if rows.risks is not None and rows.labels is not None:
                diagnosis = diagnose(rows.risks, rows.labels, cuts[seed], rows.weights)
                diagnoses.append(_without_threshold(diagnosis, cuts[seed]))
        if not diagnoses:
            continue
        cells = []
        for measure in Diagnosis._fields:
            by_seed = [getattr(diagnosis, measure) for diagnosis in diagnoses]
            cells.append(number(_mean(by_seed)))
        table_rows.append(
            {
                "method": printable(method),
                "quiet": method in results.references,
                "cells": cells,
                "threshold": number(_mean(list(cuts.values()))),
            }
        )
    return table_rows


def call_all_the_same(
    results: Results, client: str, rows: Sequence[Mapping[str, Any]]
) -> str:
    """Return a sentence on the methods of a `table` that call everybody at a client positive, or nobody; empty if none does."""
    positive, name = results.positive or "positive", results.names[client]
    texts = []
    for who, sensitivity, specificity in (("everybody", 1, 0), ("nobody", 0, 1)):
        cells = [number(sensitivity), number(specificity)]
        methods = [row["method"] for row in rows if row["cells"][:2] == cells]
        if not methods:
            continue
        calls, tells = "call", "tell"
        if len(methods) == 1:
            calls, tells = "calls", "tells"
        texts.append(
            f"{listing(methods)} {calls} {who} at {name} {positive}"
            f" (sensitivity {sensitivity}, specificity {specificity}) and so {tells} nobody apart."
        )
    return " ".join(texts)


def shares(results: Results, method: str, client: str) -> dict[str, Difference]:
    """Sensitivity, specificity, PPV and NPV of a method at the thresholds, mean over seeds with intervals; empty without rows of
    two classes, and a share that is undefined in some seed is left out.
    """
    cuts = thresholds(results, method, client)
    influences: dict[str, list[Influence | None]] = {name: [] for name in SHARES}
    for seed, rows in results.comparisons.outcomes.rows(method, client).items():
        if rows.risks is None or rows.labels is None or math.isnan(cuts[seed]):
            return {}
        called, truth = rows.risks >= cuts[seed], rows.labels == 1
        parts = ((called, truth), (~called, ~truth), (truth, called), (~truth, ~called))
        for name, (part, total) in zip(SHARES, parts, strict=True):
            influence = None
            if total.any():
                influence = mean_influence(
                    rows.units[total], part[total], rows.weights_of(total)
                )
            influences[name].append(influence)
    scores: dict[str, Difference] = {}
    for name, by_seed in influences.items():
        finite = [influence for influence in by_seed if influence is not None]
        if not finite or len(finite) < len(by_seed):
            continue
        values = np.array([influence.metric for influence in finite])
        score = results.comparisons.score_of(client, name, values, by_seed)
        if score is not None:
            scores[name] = score
    return scores


def _without_threshold(diagnosis: Diagnosis, threshold: float) -> Diagnosis:
    """Without a threshold nobody is called anything; only the risks themselves can be judged."""
    if math.isfinite(threshold):
        return diagnosis
    undefined = Diagnosis(*[math.nan] * len(Diagnosis._fields))
    return undefined._replace(brier=diagnosis.brier)


def _mean(values: list[float]) -> float:
    finite = [v for v in values if math.isfinite(v)]
    if not finite:
        return math.nan
    return sum(finite) / len(finite)

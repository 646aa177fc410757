"""Time to event for readers: the survival that a method predicts for a client's patients beside that which was seen."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.compute.outcomes import Rows
from coterie.compute.survival import Curve, kaplan_meier
from coterie.report.results import Results
from coterie.report.text import printable

Vector = NDArray[np.float64]

FEWEST_EVENTS = 10
"""Events of a client from which on its patients are parted by risk."""
THIRDS = ("lowest risk", "middle", "highest risk")
EVERYBODY = "all"


class Group(NamedTuple):
    """Some patients of a client, what was predicted and what was seen.

    Attributes:
        name: `all`, or the third of risk that they are.
        patients: how many they are.
        predicted: mean predicted probability of no event until the horizon.
        seen: the same by Kaplan and Meier; NaN where nobody was followed so long.
        low: lower end of the 95 % interval of `seen`; NaN where it is not known.
        high: upper end.
        curve: by Kaplan and Meier, times in horizons.
        times: in horizons, at which `expected` is predicted [K + 1].
        expected: mean predicted survival [K + 1].
    """

    name: str
    patients: int
    predicted: float
    seen: float
    low: float
    high: float
    curve: Curve
    times: Vector
    expected: Vector


class Patients(NamedTuple):
    """The patients of a client whose rows were tested, each once.

    Attributes:
        followup: entry, time and event [n, 3], times in horizons.
        hazards: predicted cumulative hazard at the ends of the intervals, mean over seeds [n, K].
        weights: by which each counts [n]; None: once.
    """

    followup: Vector
    hazards: Vector
    weights: Vector | None = None


def patients_of(rows_of_seeds: dict[int, Rows]) -> Patients | None:
    """Return the tested rows of a client, each once, with the mean of what the models of all seeds say; None without time to event."""
    numbers, followup, hazards = [], [], []
    weights: list[Vector] = []
    for rows in rows_of_seeds.values():
        if rows.followup is None or rows.hazards is None:
            return None
        numbers.append(rows.numbers)
        followup.append(rows.followup)
        hazards.append(rows.hazards)
        if rows.weights is not None:
            weights.append(rows.weights)
    if not numbers:
        return None
    # A patient may be tested under several seeds: `place` is its position among the distinct.
    _, first, place = np.unique(
        np.concatenate(numbers), return_index=True, return_inverse=True
    )
    all_hazards = np.concatenate(hazards).astype(float)
    sums = np.zeros((len(first), all_hazards.shape[1]))
    # Not `sums[place] += ...`, which adds only once where a place repeats.
    np.add.at(sums, place, all_hazards)
    means = sums / np.bincount(place)[:, None]
    own = np.concatenate(weights)[first] if weights else None
    return Patients(np.concatenate(followup)[first].astype(float), means, own)


def groups_of(results: Results, method: str, client: str) -> list[Group]:
    """All patients of a client, and the thirds of them by predicted risk where events are enough; empty without time to event."""
    patients = patients_of(results.comparisons.outcomes.rows(method, client))
    if patients is None:
        return []
    cuts = np.asarray(results.label()["cuts"], dtype=float)
    everybody = np.ones(len(patients.followup), dtype=bool)
    groups = [_group(EVERYBODY, patients, cuts, everybody)]
    if patients.followup[:, 2].sum() < FEWEST_EVENTS:
        return groups
    risk = patients.hazards[:, -1]
    third = np.searchsorted(np.quantile(risk, (1 / 3, 2 / 3)), risk, side="left")
    for number, name in enumerate(THIRDS):
        if (third == number).any():
            groups.append(_group(name, patients, cuts, third == number))
    return groups


def _group(
    name: str, patients: Patients, cuts: Vector, members: NDArray[np.bool_]
) -> Group:
    weights = None if patients.weights is None else patients.weights[members]
    curve = kaplan_meier(patients.followup[members], weights=weights)
    survival = np.exp(-patients.hazards[members])
    times = np.concatenate([[0.0], cuts])
    expected = np.concatenate([[1.0], np.average(survival, axis=0, weights=weights)])
    at_horizon = np.array(
        [
            np.interp(1.0, times, np.concatenate([[0.0], hazard]))
            for hazard in patients.hazards[members]
        ]
    )
    return Group(
        name,
        int(members.sum()),
        float(np.average(np.exp(-at_horizon), weights=weights)),
        curve.at(1.0),
        *curve.interval(1.0),
        curve,
        times,
        expected,
    )


def horizon_of(results: Results) -> str:
    """The horizon in words: `24 months`."""
    label = results.label()
    return f"{label['horizon']:.3g} {printable(str(label.get('unit', '')))}".rstrip()


def in_words(results: Results, method: str, client: str) -> str:
    """`Of 100 patients here, 71 are predicted without the event (died) at 24 months; 68 were seen so (61 to 74)`; empty without it."""
    groups = groups_of(results, method, client)
    if not groups:
        return ""
    everybody = groups[0]
    event = printable(str(results.label()["column"]))
    said = f"of 100 patients here, {100 * everybody.predicted:.0f} are predicted without the event ({event}) at {horizon_of(results)}"
    if np.isnan(everybody.seen):
        return f"{said}; nobody was followed so long"
    seen = f"{100 * everybody.seen:.0f} were seen so"
    if np.isnan(everybody.low):
        return f"{said}; {seen}"
    return f"{said}; {seen} ({100 * everybody.low:.0f} to {100 * everybody.high:.0f})"

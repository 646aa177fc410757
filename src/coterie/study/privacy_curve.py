"""The experiment behind `coterie compare DATA --privacy inf,8,4,2,1`: each method once for each epsilon, alike in all but the noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from coterie.algorithms.fixed_effects import FixedEffects
from coterie.base.errors import InputError, cut
from coterie.config.local import LocalSGD
from coterie.config.privacy import Privacy
from coterie.config.schema import build, spell
from coterie.config.secure import SecureSums
from coterie.report.privacy import label_at
from coterie.run.method_tables import label_of, override_local
from coterie.run.private_methods import noisy_local

METHODS: tuple[str, ...] = ("local", "fedavg", "fedavg+bias")
POOLED = "fedavg+pool"
"""A linear model also is pooled at home. Nothing is told of what happens there; a bias costs validation rows."""
BOUNDED: tuple[str, ...] = ("fixed-effects", "fixed-effects+pool")
"""Shared slopes with intercepts of clients, in the form that noise by row fits."""
ROUNDS = 20
LOCAL = {"lr": 1.0, "steps": 1, "batch_size": "all"}
"""One step a round: each step costs noise, and several between averages let clients drift apart."""


def epsilons_of(text: str) -> tuple[float, ...]:
    """Return the numbers of a text such as `inf,8,4,2,1`, from the largest. Raises `InputError` for another text.

    >>> epsilons_of("1,inf,8")
    (inf, 8.0, 1.0)
    """
    try:
        numbers = {float(word) for word in text.split(",")}
    except ValueError:
        numbers = set()
    if not numbers or not all(number > 0 for number in numbers):
        raise InputError(
            f"--privacy takes numbers > 0, such as inf,8,4,2,1; got {cut(text)}"
        )
    return tuple(sorted(numbers, reverse=True))


def spread_methods(
    entries: Sequence[Mapping[str, Any]], epsilons: Sequence[float]
) -> list[dict[str, Any]]:
    """Return [[methods]] in which all but `local`, which trains without noise, stand once for each epsilon.

    Args:
        entries: [[methods]] entries, as `NAME` or `NAME+PART` makes them.
        epsilons: from the largest.
    """
    tables: list[dict[str, Any]] = [{"name": "local"}]
    for entry in entries:
        if entry["name"] == "local":
            tables[0] = dict(entry)
            continue
        spread = dict(entry)
        if entry["name"] != BOUNDED[0]:
            spread["local"] = {**entry.get("local", {}), **LOCAL}
        for epsilon in epsilons:
            label = label_at(label_of(entry), epsilon)
            tables.append({**spread, "label": label})
    return tables


def add_noise(tables: dict[str, Any], epsilons: Sequence[float]) -> None:
    """Give each method behind noise that of its epsilon, once rounds and steps are known; delta and clip are those of [privacy]."""
    settings = dict(tables.get("privacy", {}))
    settings.pop("tell", None)  # one machine tells nobody
    tables["privacy"] = {**settings, "epsilon": math.inf}
    secure_sums = None
    if "secure" in tables:
        secure_sums = build(SecureSums, tables["secure"], "[secure]", named="secure")
    _, *entries = tables["methods"]
    for number, entry in enumerate(entries):
        epsilon = epsilons[number % len(epsilons)]
        where = f"method {entry['label']!r}"
        privacy = build(Privacy, {**settings, "epsilon": epsilon}, "[privacy]")
        rounds = tables["run"]["rounds"]
        if entry["name"] == BOUNDED[0]:
            events = FixedEffects().row_events(rounds)
            entry["private"] = spell(privacy.row_noise(events))
            continue
        local = build(
            LocalSGD, override_local(tables.get("local", {}), entry["local"]), where
        )
        noisy = noisy_local(local, privacy, rounds, secure=secure_sums)
        entry["local"] = {**entry["local"], "private": spell(noisy.private)}

"""Who belongs together: hierarchical clustering of the weights that a method gives, shown only if a null test finds no chance in it.

The strength of a partition is the share of weight that clients take from their own group beyond what an even spread over the others
would give. Under the null hypothesis clients keep their own weight and spread the rest evenly; its noise is the jackknife's over
folds (without folds, over seeds). Groups stay within what the server knows: weights alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.base.spelling import count
from coterie.report.results import Results
from coterie.report.text import first_few, listing, printable

FEWEST = 3
MOST = 20
STRONGEST_BY_CHANCE, WEAKEST, STABLE = 0.05, 0.1, 0.8
"""Groups are shown at this p value, with this share of weight beyond an even spread, and if so many runs find the same ones."""

DRAWS = 99
FEWEST_ORDERED = 6
"""Fewer clients are shown as they are."""

Vector = NDArray[np.float64]
Cut = NDArray[np.int64]


class Groups(NamedTuple):
    """The groups of clients under one method: members by group, the largest first, and the mean share of a member's weight that
    comes from its own group.
    """

    members: tuple[tuple[str, ...], ...]
    shares: tuple[float, ...]

    def friends(self, client: str) -> tuple[str, ...]:
        """The other members of its group."""
        group = next((members for members in self.members if client in members), ())
        return tuple(c for c in group if c != client)


def distances(weights: ArrayLike) -> NDArray[np.float64]:
    """Distances [n, n] between clients from their weights [targets, clients]: 0 for the same profile, 1 for nothing in common.

    What a client gives itself says nothing about others and is left out. Profiles are weights in both directions, of which the
    mean is taken, and are compared by their correlation.
    """
    profile = np.asarray(weights, dtype=float).copy()
    np.fill_diagonal(profile, 0.0)
    symmetric = (profile + profile.T) / 2
    np.fill_diagonal(
        symmetric, symmetric.max(axis=1)
    )  # a client is at least as near to itself as to its nearest
    centred = symmetric - symmetric.mean(axis=1, keepdims=True)
    norms = np.linalg.norm(centred, axis=1)
    norms[norms <= 1e-9 * max(1.0, float(symmetric.max()))] = 1.0
    correlation = (centred @ centred.T) / np.outer(norms, norms)
    return np.asarray(np.clip((1 - correlation) / 2, 0, 1), dtype=float)


def split_of(weights: ArrayLike, runs: ArrayLike, folds: int = 0) -> Cut | None:
    """Return the group of each client (0, 1, ...), or None where none are shown.

    Args:
        weights: mean over all runs [n, n], target by client.
        runs: of each run [repeats x folds, n, n], fold after fold.
        folds: number of folds of a repeat; 0 for seeds without folds.
    """
    mean = np.asarray(weights, dtype=float)
    weights_of_runs = np.asarray(runs, dtype=float)
    members = len(mean)
    if members < FEWEST or len(weights_of_runs) < 2:
        return None
    cut, strength = _strongest(mean)
    if strength < WEAKEST or not _apart(mean, cut):
        return None
    agrees = [np.array_equal(_strongest(run)[0], cut) for run in weights_of_runs]
    if sum(agrees) < STABLE * len(agrees):
        return None
    parts = folds or len(weights_of_runs)
    repeats = weights_of_runs.reshape(-1, parts, members, members)
    noise = repeats - repeats.mean(axis=1, keepdims=True)
    noise = noise.reshape(weights_of_runs.shape)
    scale = np.sqrt((parts - 1) / (parts * len(repeats)))
    # Without groups, each client spreads what it does not keep evenly over the others.
    own_weight = np.diag(mean)
    even = ((1 - own_weight) / (members - 1))[:, None]
    expected = np.where(np.eye(members, dtype=bool), own_weight, even)
    generator = np.random.default_rng(0)
    as_strong = 0
    for _ in range(DRAWS):
        signs = generator.standard_normal(len(noise))
        drawn = expected + scale * np.tensordot(signs, noise, axes=1)
        as_strong += _strongest(drawn)[1] >= strength
    p = (1 + as_strong) / (1 + DRAWS)
    if p > STRONGEST_BY_CHANCE:
        return None
    return cut


def _strongest(weights: Vector) -> tuple[Cut, float]:
    """The strongest partition of average linkage, and its strength."""
    from scipy.cluster.hierarchy import cut_tree, linkage
    from scipy.spatial.distance import squareform

    nearness = (weights + weights.T) / 2
    distance = nearness.max() - nearness
    np.fill_diagonal(distance, 0.0)
    tree = linkage(squareform(np.maximum(distance, 0), checks=False), method="average")
    members = len(weights)
    cuts = cut_tree(tree, [*range(2, min(members - 1, MOST) + 1)]).T
    strengths = [_strength(weights, cut) for cut in cuts]
    best = int(np.argmax(strengths))
    return np.asarray(cuts[best], dtype=np.int64), strengths[best]


def _strength(weights: Vector, cut: Cut) -> float:
    same_side = cut[:, None] == cut[None]
    own_weight = np.diag(weights)
    weight_inside = (weights * same_side).sum(axis=1) - own_weight
    weight_of_others = weights.sum(axis=1) - own_weight
    expected = weight_of_others * (same_side.sum(axis=1) - 1) / (len(cut) - 1)
    return float((weight_inside - expected).mean())


def _apart(weights: Vector, cut: Cut) -> bool:
    """Return True if every two of a group are nearer than any two of different groups."""
    nearness, same_side = (weights + weights.T) / 2, cut[:, None] == cut[None]
    inner = nearness[same_side & ~np.eye(len(cut), dtype=bool)]
    return bool(inner.size and inner.min() > nearness[~same_side].max())


def order_of(weights: ArrayLike) -> list[int]:
    """An order of clients in which those with like weights are neighbours; as they are if they are few."""
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    distance = distances(weights)
    if len(distance) < FEWEST_ORDERED:
        return list(range(len(distance)))
    np.fill_diagonal(distance, 0.0)
    pairs = squareform(distance, checks=False)
    tree = linkage(pairs, method="average", optimal_ordering=True)
    return [int(i) for i in leaves_list(tree)]


def groups(results: Results, method: str) -> Groups | None:
    """The groups that the late weights of a method show; None where not every client has weights of its own, or none are shown."""
    weights = results.weights.get(method)
    if weights is None:
        return None
    weighed = set(weights.targets) & set(weights.clients)
    names = [c for c in results.clients if c in weighed]
    if len(names) < FEWEST:
        return None
    targets = [weights.targets.index(c) for c in names]
    clients = [weights.clients.index(c) for c in names]
    places = np.ix_(targets, clients)
    table = weights.late()[places]
    runs = np.stack([run[places] for run in weights.late_of_runs])
    folds = len({fold for _, fold in weights.runs if fold})
    cut = split_of(table, runs, folds)
    if cut is None:
        return None
    positions = [np.flatnonzero(cut == group) for group in np.unique(cut)]
    positions.sort(key=lambda inside: (-len(inside), int(inside[0])))
    total = np.maximum(table.sum(axis=1), 1e-12)
    members, shares = [], []
    for inside in positions:
        weight_inside = table[np.ix_(inside, inside)].sum(axis=1)
        members.append(tuple(names[i] for i in inside))
        shares.append(float((weight_inside / total[inside]).mean()))
    return Groups(tuple(members), tuple(shares))


def groups_in_words(results: Results, method: str, grouping: Groups) -> str:
    """`meritfed finds 2 groups: A, B and 3 others (81 % of their weight stays within); C and D (77 %).`"""
    parts = []
    stays = " of their weight stays within"
    for members, share in zip(grouping.members, grouping.shares, strict=True):
        names = listing(first_few([results.names[c] for c in members], 2))
        parts.append(f"{names} ({100 * share:.0f} %{stays})")
        stays = ""  # said once
    return (
        f"{printable(method)} finds {count(len(parts), 'group')}: {'; '.join(parts)}."
    )

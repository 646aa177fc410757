"""Who belongs together: hierarchical clustering of the weights that a method gives."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.report.results import Results
from coterie.report.text import count, first_few, listing, printable

__all__ = ["FEWEST", "Groups", "distances", "groups", "groups_in_words", "order_of", "split_of"]

FEWEST = 6
"""Fewer clients are not grouped: names say more."""

DISTINCT = 0.5
"""The mean silhouette from which groups are shown: within a group clients are then about half as far apart as from others."""

MOST = 8


class Groups(NamedTuple):
    """The groups of clients under one method: members by group, the largest first, and the mean share of a member's weight that
    comes from its own group.
    """

    members: tuple[tuple[str, ...], ...]
    shares: tuple[float, ...]

    def friends(self, client: str) -> tuple[str, ...]:
        """The other members of its group."""
        own = next((members for members in self.members if client in members), ())
        return tuple(c for c in own if c != client)


def distances(weights: ArrayLike) -> NDArray[np.float64]:
    """Distances [n, n] between clients from their weights [targets, clients]: 0 for the same profile, 1 for nothing in common.

    What a client gives itself says nothing about others and is left out. Profiles are weights in both directions, of which the
    mean is taken, and are compared by their correlation.
    """
    given = np.asarray(weights, dtype=float).copy()
    np.fill_diagonal(given, 0.0)
    both = (given + given.T) / 2
    np.fill_diagonal(both, both.max(axis=1))  # a client is at least as near to itself as to its nearest
    centred = both - both.mean(axis=1, keepdims=True)
    norms = np.linalg.norm(centred, axis=1)
    norms[norms <= 1e-9 * max(1.0, float(both.max()))] = 1.0
    correlation = (centred @ centred.T) / np.outer(norms, norms)
    return np.asarray(np.clip((1 - correlation) / 2, 0, 1), dtype=float)


def split_of(weights: ArrayLike) -> NDArray[np.int64] | None:
    """The group of each client (0, 1, ...) by average linkage, with the number of groups of the largest mean silhouette; None
    where no grouping is distinct.
    """
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    apart = distances(weights)
    count_ = len(apart)
    if count_ < FEWEST:
        return None
    np.fill_diagonal(apart, 0.0)
    tree = linkage(squareform(apart, checks=False), method="average")
    cuts = [fcluster(tree, k, criterion="maxclust") for k in range(2, min(MOST, count_ // 2) + 1)]
    scores = [_silhouette(apart, cut) for cut in cuts]
    best = int(np.argmax(scores))
    return np.asarray(cuts[best] - 1, dtype=np.int64) if scores[best] >= DISTINCT else None


def order_of(weights: ArrayLike) -> list[int]:
    """An order of clients in which those with like weights are neighbours; as they are if they are few."""
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    apart = distances(weights)
    if len(apart) < FEWEST:
        return list(range(len(apart)))
    np.fill_diagonal(apart, 0.0)
    return [
        int(i) for i in leaves_list(linkage(squareform(apart, checks=False), method="average", optimal_ordering=True))
    ]


def _silhouette(apart: NDArray[np.float64], cut: NDArray[np.int64]) -> float:
    """How much nearer clients are to their own group than to the next one, mean over clients; 0 for a client alone."""
    numbers, own = np.unique(cut, return_inverse=True)
    if len(numbers) < 2:  # ties leave fewer groups than were asked for
        return 0.0
    sizes = np.bincount(own)
    sums = np.stack([apart[:, cut == g].sum(axis=1) for g in numbers], axis=1)
    rows = np.arange(len(cut))
    inside = sums[rows, own] / np.maximum(sizes[own] - 1, 1)
    means = sums / sizes
    means[rows, own] = np.inf
    outside = means.min(axis=1)
    values = (outside - inside) / np.maximum(np.maximum(outside, inside), 1e-12)
    return float(np.where(sizes[own] > 1, values, 0.0).mean())


def groups(results: Results, method: str) -> Groups | None:
    """The groups that the late weights of a method show; None where every client has no weights of its own, or none is distinct."""
    weights = results.weights.get(method)
    if weights is None:
        return None
    names = [c for c in results.clients if c in weights.targets and c in weights.clients]
    if len(names) < FEWEST:
        return None
    late = weights.late()
    table = late[np.ix_([weights.targets.index(c) for c in names], [weights.clients.index(c) for c in names])]
    cut = split_of(table)
    if cut is None:
        return None
    inside = [np.flatnonzero(cut == g) for g in np.unique(cut)]
    inside.sort(key=lambda at: (-len(at), int(at[0])))
    total = np.maximum(table.sum(axis=1), 1e-12)
    shares = [float((table[np.ix_(at, at)].sum(axis=1) / total[at]).mean()) for at in inside]
    return Groups(tuple(tuple(names[i] for i in at) for at in inside), tuple(shares))


def groups_in_words(results: Results, method: str, grouping: Groups) -> str:
    """`meritfed finds 2 groups: A, B and 3 others (81 % of their weight stays within); C and D (77 %).`"""
    parts = []
    for i, (members, share) in enumerate(zip(grouping.members, grouping.shares, strict=True)):
        who = listing(first_few([results.names[c] for c in members], 2))
        parts.append(f"{who} ({100 * share:.0f} %{' of their weight stays within' if i == 0 else ''})")
    return f"{printable(method)} finds {count(len(parts), 'group')}: {'; '.join(parts)}."

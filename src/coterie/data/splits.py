"""Splits of one data set over clients: which client gets which row.

All randomness has a name (`generator`), so that the order of calls changes nothing, and a client's own parts depend on its
rows and its name alone. Every split gives a row to at most one client; only the copies of `target-groups` with 40 clients
share rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.base.errors import InputError
from coterie.base.rng import generator
from coterie.data.parts import Index

_ATTEMPTS = (
    200  # draws of Dirichlet shares before we say that the minimum cannot be met
)


def number_names(n: int, prefix: str = "client") -> list[str]:
    """`n` names that sort by number.

    >>> number_names(11)[9:]
    ['client-09', 'client-10']
    """
    width = len(str(max(n - 1, 0)))
    return [f"{prefix}-{i:0{width}d}" for i in range(n)]


def iid(labels: ArrayLike, n: int, *, seed: int = 0) -> list[Index]:
    """Rows dealt to `n` clients at random; sizes differ by at most one, each row is used once.

    Raises `InputError` for more clients than rows.

    Args:
        labels: Class of each row, [rows].
        n: Number of clients.
        seed: Seed of all that is drawn.

    >>> labels = np.repeat([0, 1, 2, 3], 15)  # how many rows of each class does each client get?
    >>> [np.bincount(labels[at], minlength=4).tolist() for at in iid(labels, n=3)]
    [[7, 4, 5, 4], [5, 3, 5, 7], [3, 8, 5, 4]]
    """
    rows = len(np.asarray(labels))
    _check_clients(n, rows)
    order = generator(seed, "iid").permutation(rows)
    return [np.sort(part) for part in np.array_split(order, n)]


def sized(labels: ArrayLike, sizes: Sequence[int], *, seed: int = 0) -> list[Index]:
    """Clients with so many rows each, drawn at random; each row is used at most once.

    Raises `InputError` for too few rows.

    Args:
        labels: Class of each row, [rows].
        sizes: Rows of each client.
        seed: Seed of all that is drawn.

    >>> [len(rows) for rows in sized(np.zeros(60), [30, 10, 5])]
    [30, 10, 5]
    """
    rows, total = len(np.asarray(labels)), sum(sizes)
    if total > rows:
        raise InputError(
            f"sizes add up to {total} rows, but there are {rows}; lower some of them"
        )
    order = generator(seed, "sizes").permutation(rows)[:total]
    return [np.sort(part) for part in np.split(order, np.cumsum(sizes)[:-1])]


def power_law(
    labels: ArrayLike, n: int, exponent: float, *, seed: int = 0, minimum: int = 1
) -> list[Index]:
    """All rows dealt at random to `n` clients, of which the k-th has a share in proportion to k ** -exponent (Zipf's law for 1).

    Sizes are rounded by their largest remainders. Raises `InputError` if one is below `minimum`.

    Args:
        labels: Class of each row, [rows].
        n: Number of clients.
        exponent: How fast sizes fall, > 0.
        seed: Seed of all that is drawn.
        minimum: Smallest number of rows of a client.

    >>> [len(rows) for rows in power_law(np.zeros(60), 4, exponent=1.0)]
    [29, 14, 10, 7]
    """
    rows = len(np.asarray(labels))
    _check_clients(n, rows)
    shares = np.arange(1.0, n + 1) ** -exponent
    exact = rows * shares / shares.sum()
    whole = np.floor(exact).astype(np.int64)
    by_remainder = np.argsort(whole - exact, kind="stable")
    whole[by_remainder[: rows - int(whole.sum())]] += 1
    if whole.min() < minimum:
        raise InputError(
            f"the smallest of {n} clients would have {whole.min()} rows, fewer than {minimum}; lower exponent, clients or minimum"
        )
    return sized(labels, whole.tolist(), seed=seed)


def counted(
    labels: ArrayLike, counts: Sequence[Sequence[int]], *, seed: int = 0
) -> list[Index]:
    """Clients with so many rows of each class, drawn at random; each row is used at most once.

    Raises `InputError` for too few rows of a class, or none of a client.

    Args:
        labels: Class of each row, [rows].
        counts: By client the rows of the classes 0, 1, ...; of those that it leaves out it has none.
        seed: Seed of all that is drawn.

    >>> labels = np.repeat([0, 1, 2, 3], 15)
    >>> [np.bincount(labels[at], minlength=4).tolist() for at in counted(labels, [[5, 5], [0, 1, 15]])]
    [[5, 5, 0, 0], [0, 1, 15, 0]]
    """
    classes = class_numbers(labels, "counts")
    dealt: list[list[Index]] = [[] for _ in counts]
    for c in range(max(map(len, counts))):
        of_clients = np.zeros(len(counts), dtype=np.int64)
        for client, row in enumerate(counts):
            if c < len(row):
                of_clients[client] = row[c]
        rows_of = np.flatnonzero(classes == c)
        total = int(of_clients.sum())
        if total > len(rows_of):
            raise InputError(
                f"counts ask for {total} rows of class {c}, of which there are {len(rows_of)}; lower some of them"
            )
        order = generator(seed, "counts", str(c)).permutation(rows_of)[:total]
        parts = np.split(order, np.cumsum(of_clients)[:-1])
        for client, part in enumerate(parts):
            dealt[client].append(part)
    out = [np.sort(np.concatenate(by_class)) for by_class in dealt]
    for i, rows in enumerate(out):
        if not len(rows):
            raise InputError(f"counts give client {i} no row; give it some, or drop it")
    return out


def dirichlet(
    labels: ArrayLike, n: int, alpha: float, *, seed: int = 0, minimum: int = 1
) -> list[Index]:
    """Each class is dealt to `n` clients in shares drawn from Dirichlet(alpha); each row is used once.

    Small `alpha`: few classes per client; large: every client looks alike. Shares are drawn again until every client
    has `minimum` rows. Raises `InputError` if 200 draws do not reach that, or if labels are not classes.

    Args:
        labels: Class of each row, [rows].
        n: Number of clients.
        seed: Seed of all that is drawn.
        alpha: Concentration > 0: small gives each client few classes.
        minimum: Least number of rows of a client.

    >>> labels = np.repeat([0, 1, 2, 3], 15)  # how many rows of each class does each client get?
    >>> [np.bincount(labels[at], minlength=4).tolist() for at in dirichlet(labels, n=3, alpha=0.3)]
    [[0, 3, 2, 2], [12, 0, 3, 13], [3, 12, 10, 0]]
    """
    classes = class_numbers(labels, "dirichlet")
    _check_clients(n, len(classes))
    if alpha <= 0:
        raise InputError(f"alpha = {alpha!r} must be a number above 0 (try .5)")
    if minimum * n > len(classes):
        raise InputError(
            f"{n} clients with {minimum} rows each need more than {len(classes)} rows"
        )
    rows_of = [np.flatnonzero(classes == c) for c in np.unique(classes)]
    counts = np.array([len(rows) for rows in rows_of])
    for attempt in range(_ATTEMPTS):
        rng = generator(seed, "dirichlet", str(attempt))
        drawn = rng.dirichlet(np.full(n, float(alpha)), size=len(rows_of))
        shares = np.cumsum(drawn, axis=1)
        cuts = np.rint(shares * counts[:, None]).astype(np.int64)
        cuts[:, -1] = counts  # the last share ends at 1 up to rounding
        if np.diff(cuts, axis=1, prepend=0).sum(axis=0).min() < minimum:
            continue
        dealt: list[list[Index]] = [[] for _ in range(n)]
        for rows, cut in zip(rows_of, cuts, strict=True):
            for client, part in enumerate(np.split(rng.permutation(rows), cut[:-1])):
                dealt[client].append(part)
        return [np.sort(np.concatenate(by_class)) for by_class in dealt]
    raise InputError(
        f"no draw of {_ATTEMPTS} with alpha = {alpha} gives each of {n} clients {minimum} rows; "
        "raise alpha, or lower the number of clients or `minimum`"
    )


def shards(
    labels: ArrayLike,
    n: int,
    *,
    shards_per_client: int = 2,
    shard_size: int | None = None,
    twins: int = 0,
    seed: int = 0,
) -> list[Index]:
    """Rows sorted by label are cut into shards, and `n` clients get `shards_per_client` of them at random.

    Without `shard_size` there are n * shards_per_client shards and each row is used once. With it a shard has exactly
    that many rows and the rows of the shards that no client gets are unused. The first `twins` clients get shards of the same
    classes, one of each, as Section 3 of the VaRSeL paper assumes of internal clients. Raises `InputError` for too few rows.

    Args:
        labels: Class of each row, [rows].
        n: Number of clients.
        seed: Seed of all that is drawn.
        shards_per_client: Shards that each client gets.
        shard_size: Rows of a shard; None: as many as use every row once.
        twins: Clients that get shards of the same classes.

    >>> labels = np.repeat([0, 1, 2, 3], 15)  # how many rows of each class does each client get?
    >>> [np.bincount(labels[at], minlength=4).tolist() for at in shards(labels, n=3, shards_per_client=2)]
    [[0, 10, 10, 0], [10, 0, 5, 5], [5, 5, 0, 10]]
    """
    classes = class_numbers(labels, "shards")
    _check_clients(n, len(classes))
    if shards_per_client < 1:
        raise InputError(f"shards_per_client = {shards_per_client} must be at least 1")
    total = n * shards_per_client
    rng = generator(seed, "shards")
    shuffled = rng.permutation(len(classes))
    order = shuffled[np.argsort(classes[shuffled], kind="stable")]
    if shard_size is None:
        if total > len(order):
            raise InputError(
                f"{n} clients x {shards_per_client} shards need at least {total} rows"
            )
        pieces = np.array_split(order, total)
    else:
        count = _shard_count(n, shards_per_client, shard_size, len(order))
        pieces = [order[i * shard_size : (i + 1) * shard_size] for i in range(count)]
    if twins:
        pieces = _twins_first(pieces, classes, twins, shards_per_client, rng)
    # The first shards are the twins', in order; the others get the rest at random.
    of_twins = np.arange(twins * shards_per_client).reshape(twins, shards_per_client)
    rest = len(pieces) - of_twins.size
    of_others = of_twins.size + _deal(rng, rest, n - twins, shards_per_client)
    clients = []
    for numbers in np.concatenate([of_twins, of_others]):
        own_pieces = [pieces[i] for i in numbers]
        clients.append(np.sort(np.concatenate(own_pieces)))
    return clients


def _twins_first(
    pieces: list[Index],
    classes: NDArray[Any],
    twins: int,
    each: int,
    rng: np.random.Generator,
) -> list[Index]:
    """The shards in an order that begins with those of the twins: `each` classes, drawn at random, for the first, then the next."""
    of_class: dict[Any, list[int]] = {}
    for i, piece in enumerate(pieces):
        if len(np.unique(classes[piece])) == 1:
            of_class.setdefault(classes[piece[0]], []).append(i)
    large_classes = [c for c in sorted(of_class) if len(of_class[c]) >= twins]
    if len(large_classes) < each:
        raise InputError(
            f"twins = {twins} need {each} classes with as many whole shards each, and there are {len(large_classes)}; lower shard_size"
        )
    drawn = [
        rng.permutation(of_class[large_classes[c]])[:twins]
        for c in rng.permutation(len(large_classes))[:each]
    ]
    of_twins = [int(shard[t]) for t in range(twins) for shard in drawn]
    others = [i for i in range(len(pieces)) if i not in of_twins]
    return [pieces[i] for i in (*of_twins, *others)]


def _shard_count(n: int, shards_per_client: int, shard_size: int, rows: int) -> int:
    """Shards of `shard_size` in so many rows; enough for all clients."""
    if shard_size < 1:
        raise InputError(f"shard_size = {shard_size} must be at least 1")
    total, count = n * shards_per_client, rows // shard_size
    if total > count:
        raise InputError(
            f"{n} clients x {shards_per_client} shards are {total} shards, but {rows} rows give only {count} of "
            f"{shard_size} rows; lower one of the three"
        )
    return count


def _deal(rng: np.random.Generator, count: int, n: int, each: int) -> Index:
    """Numbers of the shards of each client, [n, each]."""
    return rng.permutation(count)[: n * each].reshape(n, each)


def clusters(
    labels: ArrayLike,
    n: int,
    *,
    clusters: int = 5,
    labels_per_cluster: int = 2,
    seed: int = 0,
) -> list[Index]:
    """Clients in clusters that share no class: each cluster has `labels_per_cluster` classes, its clients get them IID.

    Classes are dealt to clusters at random, and so are clients, as evenly as `n` allows. Each row of those classes is used
    once. As in the MaxFL paper (appendix D, 5 clusters x 2 labels). Raises `InputError` for too few classes or clients.

    Args:
        labels: Class of each row, [rows].
        n: Number of clients.
        seed: Seed of all that is drawn.
        clusters: Number of clusters.
        labels_per_cluster: Classes of each cluster.

    >>> labels = np.repeat([0, 1, 2, 3], 15)  # how many rows of each class does each client get?
    >>> [np.bincount(labels[at], minlength=4).tolist() for at in clusters(labels, n=4, clusters=2, labels_per_cluster=2)]
    [[9, 0, 6, 0], [0, 9, 0, 6], [6, 0, 9, 0], [0, 6, 0, 9]]
    """
    values = class_numbers(labels, "clusters")
    _check_clients(n, len(values))
    present = np.unique(values)
    if clusters * labels_per_cluster > len(present):
        raise InputError(
            f"{clusters} clusters x {labels_per_cluster} labels need {clusters * labels_per_cluster} classes, but there are "
            f"{len(present)}; lower one of the two"
        )
    if n < clusters:
        raise InputError(
            f"{n} clients cannot fill {clusters} clusters; lower `clusters` or raise `clients`"
        )
    rng = generator(seed, "clusters")
    of_cluster = rng.permutation(present)[: clusters * labels_per_cluster].reshape(
        clusters, labels_per_cluster
    )
    member = rng.permutation(np.arange(n) % clusters)
    out = [np.zeros(0, dtype=np.int64)] * n
    for c in range(clusters):
        rows, clients = (
            rng.permutation(np.flatnonzero(np.isin(values, of_cluster[c]))),
            np.flatnonzero(member == c),
        )
        if len(rows) < len(clients):
            raise InputError(
                f"{len(rows)} rows cannot be split over the {len(clients)} clients of a cluster; lower `clients`"
            )
        for i, part in zip(clients, np.array_split(rows, len(clients)), strict=True):
            out[i] = np.sort(part)
    return out


def mixed(
    labels: ArrayLike,
    n: int,
    nr: float,
    *,
    shards_per_client: int = 2,
    shard_size: int = 500,
    seed: int = 0,
) -> list[Index]:
    """ISFL's mixed non-IID split: label-sorted shards, a share 1 - `nr` of each drawn uniformly from all classes.

    That share is drawn first, evenly by class, for as many shards as the rows give; the rest is sorted by label and cut.
    Clients get `shards_per_client` shards at random; the other shards are unused. `nr` = 1 is plain sort-and-partition.
    Raises `InputError` for too few rows.

    Args:
        labels: Class of each row, [rows].
        n: Number of clients.
        seed: Seed of all that is drawn.
        nr: Share of non-IID rows, in [0, 1].
        shards_per_client: Shards that each client gets.
        shard_size: Rows of a shard.

    >>> labels = np.repeat([0, 1, 2, 3], 15)  # how many rows of each class does each client get?
    >>> [np.bincount(labels[at], minlength=4).tolist() for at in mixed(labels, 3, nr=1.0, shards_per_client=2, shard_size=5)]
    [[0, 5, 0, 5], [0, 5, 0, 5], [5, 0, 5, 0]]
    """
    classes = class_numbers(labels, "mixed")
    _check_clients(n, len(classes))
    if not 0 <= nr <= 1:
        raise InputError(
            f"nr = {nr!r} must be a number from 0 to 1 (the paper has .95 and .98)"
        )
    count = _shard_count(n, shards_per_client, shard_size, len(classes))
    rng = generator(seed, "mixed")
    uniform = round((1 - nr) * shard_size)
    order = rng.permutation(len(classes))
    by_turns = order[
        np.argsort(_rank(classes[order]), kind="stable")
    ]  # one row of each class after the other
    pool, remaining = (
        rng.permutation(by_turns[: count * uniform]),
        by_turns[count * uniform :],
    )
    ordered = remaining[np.argsort(classes[remaining], kind="stable")][
        : count * (shard_size - uniform)
    ]
    pieces = np.concatenate(
        [pool.reshape(count, uniform), ordered.reshape(count, shard_size - uniform)],
        axis=1,
    )
    return [
        np.sort(pieces[numbers].ravel())
        for numbers in _deal(rng, count, n, shards_per_client)
    ]


def target_groups(
    labels: ArrayLike,
    alpha: float,
    *,
    held_out: int = 300,
    rows_per_client: int | str = 750,
    seed: int = 0,
) -> tuple[dict[str, Index], Index]:
    """MeritFed's image task: a target, 10 clients that are near and 9 that are far; and the target's validation rows.

    `target` has the classes 0-2; `near-00` to `near-09` have a share `alpha` of these and the rest from 3-5;
    `far-00` to `far-08` have the classes 6-9. All have `rows_per_client` rows (750 in the papers, whatever `alpha` is;
    "most": as many as the classes allow), with equal shares of classes up to a row; rows beyond are unused. `held_out`
    rows of each target class belong to no client: with them the target validates. (The paper takes these from CIFAR-10's
    test images.)

    Raises `InputError` unless there are ten classes with enough rows.

    Args:
        labels: Class of each row, [rows], 0 to 9.
        alpha: Share of the target's classes at the near clients.
        held_out: Rows of each target class that belong to no client.
        rows_per_client: Rows of each client, or "most".
        seed: Seed of all that is drawn.

    >>> labels = np.repeat(np.arange(10), 200)
    >>> groups, held_out = target_groups(labels, alpha=0.5, held_out=20, rows_per_client=30)
    >>> for name in ("target", "near-00", "far-00"):
    ...     print(name, np.bincount(labels[groups[name]], minlength=10))  # rows of each class
    target [10 10 10  0  0  0  0  0  0  0]
    near-00 [5 5 5 5 5 5 0 0 0 0]
    far-00 [0 0 0 0 0 0 8 8 7 7]
    """
    classes = class_numbers(labels, "target-groups")
    if not 0 < alpha <= 1:
        raise InputError(
            f"alpha = {alpha!r} must be a share above 0 and at most 1 for target-groups"
        )
    present = np.unique(classes)
    if not np.isin(np.arange(10), present).all():
        raise InputError(
            f"the split 'target-groups' needs rows of the classes 0 to 9, but there are {present[:10].tolist()}"
        )
    rng = generator(seed, "target-groups")
    rows = [rng.permutation(np.flatnonzero(classes == c)) for c in range(10)]
    for c in range(3):
        if held_out >= len(rows[c]):
            raise InputError(
                f"held_out = {held_out} rows of class {c} leave nothing of its {len(rows[c])} to train on; lower held_out"
            )
    validation = np.sort(np.concatenate([r[:held_out] for r in rows[:3]]))
    stock = [
        _take_turns([r[held_out:] for r in rows[:3]]),
        _take_turns(rows[3:6]),
        _take_turns(rows[6:]),
    ]

    def shares_of(size: int) -> tuple[int, int]:
        shared = round(alpha * size)
        return shared, size - shared

    def is_enough(size: int) -> bool:
        shared, own = shares_of(size)
        if size + 10 * shared > len(stock[0]) or 10 * own > len(stock[1]):
            return False
        return 9 * size <= len(stock[2])

    size = len(classes) // 20
    while size and not is_enough(size):
        size -= 1
    if size < 3:
        raise InputError(
            f"{len(classes)} rows are too few for 20 clients of 3 classes; give more rows or lower held_out"
        )
    if isinstance(rows_per_client, int):
        if rows_per_client > size:
            raise InputError(
                f"rows_per_client = {rows_per_client} is more than the {size} that the classes allow; give more rows, lower it, or "
                'take "most"'
            )
        size = rows_per_client
    shared, far_share = shares_of(size)
    lists = {"target": stock[0][:size]}
    for i in range(10):
        low, high = size + i * shared, i * far_share
        lists[f"near-{i:02d}"] = np.concatenate(
            [stock[0][low : low + shared], stock[1][high : high + far_share]]
        )
    for i in range(9):
        lists[f"far-{i:02d}"] = stock[2][i * size : (i + 1) * size]
    return {name: np.sort(numbers) for name, numbers in lists.items()}, validation


def subset(labels: ArrayLike, rows: int, *, seed: int = 0) -> Index:
    """`rows` row numbers, sorted, with every class in its share up to a row.

    >>> np.asarray([0, 0, 0, 0, 1, 1])[subset([0, 0, 0, 0, 1, 1], 3)].tolist()
    [0, 0, 1]
    """
    classes = class_numbers(labels, "rows")
    order = generator(seed, "subset").permutation(len(classes))
    part_classes = classes[order]
    _, code, count = np.unique(part_classes, return_inverse=True, return_counts=True)
    # The r-th row of a class of c rows stands at (r + 1/2) / c: any first part of that order has each class in its share.
    place_in_class = (_rank(part_classes) + 0.5) / count[code]
    evenly_mixed = order[np.argsort(place_in_class, kind="stable")]
    return np.sort(evenly_mixed[:rows])


def _rank(classes: NDArray[Any]) -> Index:
    """Return how many rows of the same class come before each row."""
    order = np.argsort(classes, kind="stable")
    _, start, count = np.unique(classes[order], return_index=True, return_counts=True)
    rank = np.empty(len(classes), dtype=np.int64)
    rank[order] = np.arange(len(classes)) - np.repeat(start, count)
    return rank


def _take_turns(groups: list[Index]) -> Index:
    """One of each group after the other, as long as all last."""
    shortest = min(map(len, groups))
    return np.stack([g[:shortest] for g in groups], axis=1).ravel()


def class_numbers(labels: ArrayLike, kind: str) -> NDArray[Any]:
    """Return labels as an array [rows]. Raises `InputError` that names the split unless there is one class per row."""
    array = np.asarray(labels)
    if np.ma.is_masked(labels):
        raise InputError(
            f"the split {kind!r} has masked labels; put a class in their place, say by .filled(...)"
        )
    if array.ndim != 1 or np.issubdtype(array.dtype, np.floating):
        raise InputError(
            f"the split {kind!r} needs one class per row, but labels are {array.dtype} {list(array.shape)}; use 'iid'"
        )
    return array


def _check_clients(n: int, rows: int) -> None:
    if n < 1:
        raise InputError(f"clients = {n} must be at least 1")
    if n > rows:
        raise InputError(
            f"{rows} rows cannot be split over {n} clients; lower `clients`"
        )

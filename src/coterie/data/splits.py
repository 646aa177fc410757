"""Who gets which row: splits of one data set over clients, and of one client's rows into train, validation and test.

All randomness has a name (`generator`): neither the order of calls nor another client can change a client's rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.core.errors import InputError, nearest, require

__all__ = [
    "DEFAULT_PARTS",
    "Split",
    "dirichlet",
    "generator",
    "iid",
    "is_number",
    "numbered",
    "shards",
    "stratified",
    "whole",
]

Index = NDArray[np.int64]

DEFAULT_PARTS: Mapping[str, float] = MappingProxyType({"train": 8 / 15, "validation": 2 / 15, "test": 1 / 3})
"""One third test; a fifth of the rest is validation."""

_ATTEMPTS = 200  # draws of Dirichlet shares before we say that the minimum cannot be met


def generator(seed: int, *names: str) -> np.random.Generator:
    """A random generator that belongs to (seed, names) and to nothing else.

    >>> bool(generator(0, "split", "a").random() == generator(0, "split", "a").random())
    True
    """
    digest = hashlib.blake2b("\x1f".join([str(int(seed)), *names]).encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


def numbered(n: int, prefix: str = "client") -> list[str]:
    """`n` names that sort by number.

    >>> numbered(11)[9:]
    ['client-09', 'client-10']
    """
    width = len(str(max(n - 1, 0)))
    return [f"{prefix}-{i:0{width}d}" for i in range(n)]


def iid(labels: ArrayLike, n: int, *, seed: int = 0) -> list[Index]:
    """Rows dealt to `n` clients at random; sizes differ by at most one, each row is used once.

    Raises `InputError` for more clients than rows.
    """
    rows = len(np.asarray(labels))
    _check_clients(n, rows)
    order = generator(seed, "iid").permutation(rows)
    return [np.sort(part) for part in np.array_split(order, n)]


def dirichlet(labels: ArrayLike, n: int, alpha: float, *, seed: int = 0, minimum: int = 1) -> list[Index]:
    """Each class is dealt to `n` clients in shares drawn from Dirichlet(alpha); each row is used once.

    Small `alpha`: few classes per client; large: every client looks alike. Shares are drawn again until every client
    has `minimum` rows. Raises `InputError` if 200 draws do not reach that, or if labels are not classes.
    """
    classes = _classes(labels, "dirichlet")
    _check_clients(n, len(classes))
    require(alpha > 0, f"alpha = {alpha!r} must be a number above 0 (try .5)")
    require(minimum * n <= len(classes), f"{n} clients with {minimum} rows each need more than {len(classes)} rows")
    rows_of = [np.flatnonzero(classes == c) for c in np.unique(classes)]
    for attempt in range(_ATTEMPTS):
        rng = generator(seed, "dirichlet", str(attempt))
        shares = np.cumsum(rng.dirichlet(np.full(n, float(alpha)), size=len(rows_of)), axis=1)
        cuts = np.rint(shares * np.array([[len(r)] for r in rows_of])).astype(np.int64)
        cuts[:, -1] = [len(r) for r in rows_of]  # the last share ends at 1 up to rounding
        if np.diff(cuts, axis=1, prepend=0).sum(axis=0).min() < minimum:
            continue
        dealt = [np.split(rng.permutation(r), cut[:-1]) for r, cut in zip(rows_of, cuts, strict=True)]
        return [np.sort(np.concatenate([by_class[i] for by_class in dealt])) for i in range(n)]
    raise InputError(
        f"no draw of {_ATTEMPTS} with alpha = {alpha} gives each of {n} clients {minimum} rows; "
        "raise alpha, or lower the number of clients or `minimum`"
    )


def shards(
    labels: ArrayLike, n: int, *, shards_per_client: int = 2, shard_size: int | None = None, seed: int = 0
) -> list[Index]:
    """Rows sorted by label are cut into shards, and `n` clients get `shards_per_client` of them at random.

    Without `shard_size` there are n * shards_per_client shards and each row is used once. With it a shard has exactly
    that many rows and the rows of the shards that nobody gets are unused. Raises `InputError` for too few rows.
    """
    classes = _classes(labels, "shards")
    _check_clients(n, len(classes))
    require(shards_per_client >= 1, f"shards_per_client = {shards_per_client} must be at least 1")
    wanted = n * shards_per_client
    rng = generator(seed, "shards")
    shuffled = rng.permutation(len(classes))
    order = shuffled[np.argsort(classes[shuffled], kind="stable")]
    if shard_size is None:
        require(wanted <= len(order), f"{n} clients x {shards_per_client} shards need at least {wanted} rows")
        pieces = np.array_split(order, wanted)
    else:
        require(shard_size >= 1, f"shard_size = {shard_size} must be at least 1")
        count = len(order) // shard_size
        require(
            wanted <= count,
            f"{n} clients x {shards_per_client} shards are {wanted} shards, but {len(order)} rows give only {count} of "
            f"{shard_size} rows; lower one of the three",
        )
        pieces = [order[i * shard_size : (i + 1) * shard_size] for i in range(count)]
    dealt = rng.permutation(len(pieces))[:wanted].reshape(n, shards_per_client)
    return [np.sort(np.concatenate([pieces[i] for i in row])) for row in dealt]


def stratified(
    labels: ArrayLike | None, fractions: Mapping[str, float], *, seed: int, name: str, n: int | None = None
) -> dict[str, Index]:
    """One client's rows in parts of the given `fractions`, every class in about these proportions.

    Parts are within one row of their share. Every class has a row in the first part (training) as far as rows suffice,
    and so has every client. `labels` [rows] of any type; None (with `n` rows) splits at random.

    >>> parts = stratified([0, 0, 0, 1, 1, 1], {"train": 2 / 3, "test": 1 / 3}, seed=0, name="a")
    >>> {k: len(v) for k, v in parts.items()}
    {'train': 4, 'test': 2}
    """
    values = np.zeros(n or 0, dtype=np.int64) if labels is None else np.asarray(labels)
    codes = np.unique(values, return_inverse=True)[1] if values.ndim == 1 else np.zeros(len(values), dtype=np.int64)
    rng = generator(seed, "parts", name)
    count = int(codes.max()) + 1 if len(codes) else 0
    # Rows class by class, in a random order of classes and of rows within a class; walking down this list with the
    # fixed pattern below gives each class its share and the client its totals.
    order = np.lexsort((rng.random(len(codes)), rng.permutation(count)[codes])) if count else np.zeros(0, np.int64)
    part = np.empty(len(codes), dtype=np.int64)
    part[order] = _pattern(tuple(fractions.values()), _round_up(len(codes)))[: len(codes)]
    if len(codes):
        _every_class_in_training(part, codes, order)
    return {key: np.flatnonzero(part == i) for i, key in enumerate(fractions)}


def _every_class_in_training(part: Index, codes: Index, order: Index) -> None:
    """Exchange rows (in place) so that part 0 has each class, as long as another class has two rows to give one."""
    if not (part == 0).any():
        part[order[0]] = 0
    inside = np.bincount(codes[part == 0], minlength=int(codes.max()) + 1)
    for c in np.flatnonzero(inside == 0):
        giver = int(np.argmax(inside))
        if inside[giver] < 2:
            return
        row_in = order[codes[order] == c][0]
        row_out = order[(codes[order] == giver) & (part[order] == 0)][-1]
        part[row_out], part[row_in] = part[row_in], 0
        inside[giver] -= 1
        inside[c] += 1


def _round_up(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


@lru_cache(maxsize=256)
def _pattern(fractions: tuple[float, ...], n: int) -> Index:
    """Part of the j-th row, j < n: always the part that is furthest behind its share (ties: the first)."""
    counts = [0] * len(fractions)
    out = np.empty(n, dtype=np.int64)
    for j in range(n):
        behind = [f * (j + 1) - c for f, c in zip(fractions, counts, strict=True)]
        out[j] = best = max(range(len(fractions)), key=behind.__getitem__)
        counts[best] += 1
    return out


def _classes(labels: ArrayLike, kind: str) -> NDArray[Any]:
    array = np.asarray(labels)
    require(
        array.ndim == 1 and not np.issubdtype(array.dtype, np.floating),
        f"the split {kind!r} needs one class per row, but labels are {array.dtype} {list(array.shape)}; use 'iid'",
    )
    return array


def _check_clients(n: int, rows: int) -> None:
    require(n >= 1, f"clients = {n} must be at least 1")
    require(n <= rows, f"{rows} rows cannot be split over {n} clients; lower `clients`")


@dataclass(frozen=True)
class Split:
    """The `[split]` table of an experiment, checked.

    Attributes:
        kind: iid, dirichlet or shards; None for data that has its own clients.
        clients: number of clients.
        alpha, minimum: of `dirichlet`.
        shards_per_client, shard_size: of `shards`.
        seed: of the whole split; None is the run's seed.
        parts: fraction of a client's rows per part.
    """

    kind: str | None = None
    clients: int = 10
    alpha: float = 0.5
    minimum: int = 3
    shards_per_client: int = 2
    shard_size: int | None = None
    seed: int | None = None
    parts: Mapping[str, float] = field(default_factory=lambda: dict(DEFAULT_PARTS))

    @classmethod
    def parse(cls, table: Mapping[str, Any] | None, *, natural: str = "", **defaults: Any) -> Split:
        """The split that `table` asks for, on top of `defaults`.

        `natural` names data that brings its own clients: only `seed` and `parts` make sense there. Raises `InputError`
        that names the key, what is allowed and the nearest spelling.
        """
        given = dict(table or {})
        allowed = list(_CHECKS)
        for key in given:
            require(key in allowed, f"[split] has no key {key!r}; {nearest(str(key), allowed)}")
            require(
                not natural or key in ("seed", "parts"),
                f"[split] {key} does not apply to {natural}, which has its own clients; only seed and parts do",
            )
        for key, value in given.items():
            check, meaning = _CHECKS[key]
            if not check(value):
                near = f"; {nearest(value, _KINDS)}" if key == "kind" and isinstance(value, str) else ""
                raise InputError(f"[split] {key} = {value!r} must be {meaning}{near}")
        if "parts" in given:
            given["parts"] = _parts(given["parts"])
        split = cls(**{**defaults, **given})
        for key, kind in _BELONGS.items():
            require(
                key not in given or split.kind == kind,
                f"[split] {key} belongs to kind = {kind!r}, but kind is {split.kind!r}; drop one of them",
            )
        return split

    def seeded(self, seed: int) -> int:
        """The seed to use in a run with `seed`."""
        return seed if self.seed is None else self.seed

    def over(self, labels: ArrayLike, *, seed: int) -> list[Index]:
        """Row numbers per client, by `kind`."""
        at = self.seeded(seed)
        if self.kind == "iid":
            return iid(labels, self.clients, seed=at)
        if self.kind == "dirichlet":
            return dirichlet(labels, self.clients, self.alpha, seed=at, minimum=self.minimum)
        return shards(
            labels, self.clients, shards_per_client=self.shards_per_client, shard_size=self.shard_size, seed=at
        )

    def within(self, labels: ArrayLike | None, *, seed: int, name: str, n: int | None = None) -> dict[str, Index]:
        """The rows of client `name` by part: `stratified` with these `parts`."""
        return stratified(labels, self.parts, seed=self.seeded(seed), name=name, n=n)


def _parts(given: Mapping[str, float]) -> dict[str, float]:
    total = float(sum(given.values()))
    require(
        abs(total - 1) < 1e-6, f"[split] parts add up to {total:g}; fractions of train, validation, test must give 1"
    )
    require(given.get("train", 0) > 0, "[split] parts need train above 0, for example {train = .6, test = .4}")
    return {key: float(given.get(key, 0.0)) for key in DEFAULT_PARTS if given.get(key, 0.0) > 0}


def whole(low: int) -> Callable[[Any], bool]:
    """A test for whole numbers of at least `low`; True and False are none."""
    return lambda v: isinstance(v, int | np.integer) and v is not True and v is not False and int(v) >= low


def is_number(value: Any) -> bool:
    """Whether `value` is a finite number; True and False are none."""
    real = isinstance(value, int | float | np.number) and value is not True and value is not False
    return real and bool(np.isfinite(float(value)))


def _is_parts(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and set(value) <= set(DEFAULT_PARTS)
        and all(is_number(v) and 0 <= v <= 1 for v in value.values())
    )


_KINDS = ("iid", "dirichlet", "shards")
_BELONGS = {"alpha": "dirichlet", "minimum": "dirichlet", "shards_per_client": "shards", "shard_size": "shards"}
_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "kind": (lambda v: v in _KINDS, "iid, dirichlet or shards"),
    "clients": (whole(1), "a whole number of at least 1"),
    "alpha": (lambda v: is_number(v) and v > 0, "a number above 0"),
    "minimum": (whole(0), "a whole number of at least 0"),
    "shards_per_client": (whole(1), "a whole number of at least 1"),
    "shard_size": (whole(1), "a whole number of at least 1"),
    "seed": (whole(0), "a whole number of at least 0"),
    "parts": (_is_parts, "a table of train, validation and test with fractions from 0 to 1"),
}

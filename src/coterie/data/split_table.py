"""The `[split]` table of an experiment: checked, and turned into the rows of every client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.base.errors import InputError, cut, is_number, nearest, require
from coterie.config.rules import COUNT, POSITIVE, SIZE, TEXT, Rule, one_of, optional
from coterie.config.schema import Flag, build, options, options_of
from coterie.data import splits
from coterie.data.splits import DEFAULT_PARTS, Index, generator, numbered

__all__ = ["KINDS_OF", "Dealt", "ReadColumn", "Split"]

ReadColumn = Callable[[str], NDArray[Any]]
"""The values of a named column, one per row."""


@dataclass(frozen=True)
class Dealt:
    """The rows of every client.

    Attributes:
        clients: row numbers by client.
        unseen: row numbers by client that never trains.
        validation: validation rows beside a client's own ones.
        copies: clients that have the rows, and the parts, of another one.
        flipped: clients whose labels are turned round.
        notes: sentences for the report.
        columns: those that only say whose row it is, and so are no inputs.
    """

    clients: Mapping[str, Index]
    unseen: Mapping[str, Index] = field(default_factory=dict)
    validation: Mapping[str, Index] = field(default_factory=dict)
    copies: Mapping[str, str] = field(default_factory=dict)
    flipped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    def used(self) -> Index:
        """All rows that somebody has, sorted."""
        return np.unique(np.concatenate([*self.clients.values(), *self.unseen.values(), *self.validation.values()]))


_KINDS = ("iid", "dirichlet", "shards", "clusters", "mixed", "target-groups", "column")
_ROWS = Rule(lambda v: v == "most" or SIZE.test(v), 'an int > 0 or "most"', ("most",))
_FRACTION = Rule(lambda v: is_number(v) and 0 <= v <= 1, "a number from 0 to 1")


def _are_parts(value: Any) -> bool:
    named = isinstance(value, Mapping) and set(value) <= set(DEFAULT_PARTS)
    return named and all(map(_FRACTION.test, value.values()))


_FOLDS = Rule(lambda v: COUNT.test(v) and v != 1, "0 or an int > 1")
_WHOLE = {"train": 1.0}
"""The parts of a client whose rows folds are dealt from."""
_PARTS = Rule(_are_parts, "a table of train, validation and test with fractions from 0 to 1")


@options
class Split:
    """The `[split]` table of an experiment, checked.

    Attributes:
        kind: iid, dirichlet, shards, clusters, mixed, target-groups or column; None: the data has its own clients.
        clients: number of clients; of target-groups 20 or 40; of column so many of its values, drawn from the seed (default: all).
        column: of `column`: which one says whose row it is, such as a writer, a patient or a hospital.
        alpha: of `dirichlet` its parameter; of `target-groups` the share of the target's classes at the clients near it.
        minimum: smallest number of rows of a client, of `dirichlet`; of `column`, where users with fewer are left out.
        shards_per_client, shard_size: of `shards` and `mixed` (there 500).
        twins: of `shards`: so many clients, the first by name, have shards of the same classes.
        nr: of `mixed`: 1 - nr of every shard are drawn from all classes.
        clusters, labels_per_cluster: of `clusters`.
        held_out: of `target-groups`: validation rows of the target, per class.
        rows_per_client: of `target-groups`: rows of each client; "most": as many as the classes allow.
        unseen: further clients of the same split that never train.
        flip: share of the clients whose labels y become C - 1 - y, in all their parts.
        test: "own", a part of each client's rows; "label-mix", rows of the data set's standard test set with the client's shares of
            classes; or "standard", all of that test set for every client.
        seed: of the whole split; None is the run's seed.
        parts: fraction of a client's rows per part.
        folds: test every row once, in so many folds of each client (cross-validation), and repeat that with each seed; a simulated
            split is then dealt once, by the first seed. 0: one split into `parts`.
    """

    kind: Annotated[str | None, optional(one_of(*_KINDS)), Flag("--split", "KIND")] = None
    clients: Annotated[int, COUNT, Flag(metavar="N")] = 10
    column: Annotated[str | None, optional(TEXT._replace(allowed="the name of a column"))] = None
    alpha: Annotated[float, POSITIVE, Flag()] = 0.5
    minimum: Annotated[int, COUNT] = 3
    shards_per_client: Annotated[int, SIZE] = 2
    shard_size: Annotated[int | None, optional(SIZE)] = None
    twins: Annotated[int, COUNT] = 0
    nr: Annotated[float, _FRACTION] = 0.95
    clusters: Annotated[int, SIZE] = 5
    labels_per_cluster: Annotated[int, SIZE] = 2
    held_out: Annotated[int, COUNT] = 300
    rows_per_client: Annotated[int | str, _ROWS] = 750
    unseen: Annotated[int, COUNT] = 0
    flip: Annotated[float, _FRACTION] = 0.0
    test: Annotated[str, one_of("own", "label-mix", "standard")] = "own"
    seed: Annotated[int | None, optional(COUNT, "that of the run")] = None
    parts: Annotated[Mapping[str, float], _PARTS] = field(default_factory=lambda: dict(DEFAULT_PARTS))
    folds: Annotated[int, _FOLDS, Flag(metavar="K")] = 0

    @classmethod
    def parse(cls, table: Mapping[str, Any] | None, *, natural: str = "", **defaults: Any) -> Split:
        """The split that `table` asks for, on top of `defaults`.

        `natural` names data that brings its own clients: only `seed`, `parts` and `folds` make sense there. Raises `InputError`
        that names the key, what is allowed and the nearest spelling.
        """
        fits = table is None or isinstance(table, Mapping)
        require(fits, f'split must be a table such as {{"kind": "iid"}}; got {cut(table)}')
        given = dict(table or {})
        for key in given:
            known = key in _KEYS
            require(known, f"[split]: unknown key {key!r}; {nearest(str(key), _KEYS)}")
            require(
                not natural or key in ("seed", "parts", "folds"),
                f"[split] {key} does not apply to {natural}, which has its own clients; only seed, parts and folds do",
            )
        if given.get("folds"):
            if "parts" in given:
                raise InputError(
                    "[split] folds and parts both say which rows are tested; drop one of them, or set folds = 0"
                )
            defaults = {**defaults, "parts": _WHOLE}
        if given.get("kind") == "target-groups":
            defaults = {**defaults, "clients": 20}
        if given.get("kind") == "column":
            require(
                "column" in given,
                "[split] kind = 'column' needs the name of the column, for example column = \"writer\"",
            )
            defaults = {**defaults, "clients": 0}
        split = build(cls, {**defaults, **given}, "[split]", named="split")
        for key, kinds in KINDS_OF.items():
            require(
                key not in given or split.kind in kinds,
                f"[split] {key} belongs to kind = {' or '.join(map(repr, kinds))}, but kind is {split.kind!r}; drop one of "
                "them",
            )
        return split

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", _parts(self.parts))
        require(self.clients > 0 or self.kind == "column", f"split.clients must be {SIZE.allowed}; got {self.clients}")
        require(
            self.test == "own" or not self.flip,
            f"flip does not apply to test = {self.test!r}, whose rows are shared by clients; drop one of them",
        )
        if self.folds and (self.test != "own" or self.unseen or self.kind == "target-groups"):
            beside = "unseen" if self.unseen else "kind" if self.kind == "target-groups" else "test"
            raise InputError(
                f"[split] {beside} = {getattr(self, beside)!r} has test rows of its own, so folds cannot deal them; set folds = 0"
            )
        if self.kind != "target-groups":
            return
        require(self.clients in (20, 40), f"clients = {self.clients} must be 20 or 40 for kind = 'target-groups'")
        require(self.alpha <= 1, f"alpha = {self.alpha} must be at most 1 for kind = 'target-groups': it is a share")
        for key in ("unseen", "flip"):
            require(
                not getattr(self, key),
                f"{key} does not apply to kind = 'target-groups', whose clients are fixed",
            )

    def seeded(self, seed: int) -> int:
        """The seed to use in a run with `seed`. Raises `InputError` for one that is none."""
        splits.check_seed(seed)
        return seed if self.seed is None else self.seed

    def deal(self, labels: ArrayLike, *, seed: int, column: ReadColumn | None = None) -> Dealt:
        """The rows of every client, by `kind`; each row goes to one client at most, copies apart.

        `column` reads a column of the rows by its name, for a kind that looks at more than labels.
        """
        if self.kind == "target-groups":
            return self._target_groups(labels, self.seeded(seed))
        if self.kind == "column":
            return self._by_column(column, self.seeded(seed))
        lists = self._lists(labels, self.clients + self.unseen, self.seeded(seed))
        seen = dict(zip(numbered(self.clients), lists, strict=False))
        return self._dealt(seen, dict(zip(numbered(self.unseen, "unseen"), lists[self.clients :], strict=True)), seed)

    def _dealt(self, seen: Mapping[str, Index], unseen: Mapping[str, Index], seed: int, *notes: str) -> Dealt:
        flipped = self._flipped([*seen], seed) + self._flipped([*unseen], seed)
        said = [*notes]
        if unseen:
            said.append(f"{len(unseen)} clients of the same split never train and are only evaluated")
        if flipped:
            said.append(f"labels y are turned into C - 1 - y, in all parts, at {', '.join(flipped)}")
        return Dealt(seen, unseen, flipped=flipped, notes=tuple(said))

    def _by_column(self, read: ReadColumn | None, seed: int) -> Dealt:
        """One client per value of the column, under that name; `unseen` ones are drawn first, by name."""
        require(
            read is not None, "[split] kind = 'column' needs a data set with named columns: a table, or one of the hub"
        )
        values = np.array([None if v is None else str(v) for v in read(str(self.column))])  # type: ignore[misc]
        gone = [i for i, value in enumerate(values) if value is None]
        require(
            not gone,
            f"[split] column {self.column!r} is missing in row {gone[0] + 1 if gone else 0}; say whose row it is",
        )
        names, whose, sizes = np.unique(values.astype(str), return_inverse=True, return_counts=True)
        order = np.argsort(whose, kind="stable")
        rows = dict(zip(names.tolist(), np.split(order, np.cumsum(sizes)[:-1]), strict=True))
        kept = {name: own for name, own in rows.items() if len(own) >= self.minimum}
        require(
            bool(kept),
            f"[split] column {self.column!r} has no value with {self.minimum} rows or more; name the column that says whose row it is, "
            "or lower split.minimum",
        )
        wanted = self.unseen + (self.clients or 1)
        require(
            wanted <= len(kept),
            f"[split] column {self.column!r} has {len(kept)} values with {self.minimum} rows or more; {wanted} clients are asked for",
        )
        drawn = sorted(kept, key=lambda name: generator(seed, "column", name).random())
        unseen = sorted(drawn[: self.unseen])
        seen = sorted(drawn[self.unseen : self.unseen + self.clients] if self.clients else drawn[self.unseen :])
        few = len(rows) - len(kept)
        note = [f"{few} values of {self.column} with fewer than {self.minimum} rows are left out"] if few else []
        dealt = self._dealt({n: kept[n] for n in seen}, {n: kept[n] for n in unseen}, seed, *note)
        return replace(dealt, columns=(str(self.column),))

    def _lists(self, labels: ArrayLike, n: int, seed: int) -> list[Index]:
        if self.kind == "iid":
            return splits.iid(labels, n, seed=seed)
        if self.kind == "dirichlet":
            return splits.dirichlet(labels, n, self.alpha, seed=seed, minimum=self.minimum)
        if self.kind == "clusters":
            each = self.labels_per_cluster
            return splits.clusters(labels, n, clusters=self.clusters, labels_per_cluster=each, seed=seed)
        per_client = self.shards_per_client
        if self.kind == "mixed":
            size = self.shard_size or 500
            return splits.mixed(labels, n, self.nr, shards_per_client=per_client, shard_size=size, seed=seed)
        require(self.twins <= n, f"twins = {self.twins} are more than the {n} clients; lower twins")
        return splits.shards(
            labels, n, shards_per_client=per_client, shard_size=self.shard_size, twins=self.twins, seed=seed
        )

    def _flipped(self, names: list[str], seed: int) -> tuple[str, ...]:
        """The share `flip` of `names`: those whose own draw is smallest."""
        at = self.seeded(seed)
        ranked = sorted(names, key=lambda name: generator(at, "flip", name).random())
        return tuple(sorted(ranked[: round(self.flip * len(names))]))

    def _target_groups(self, labels: ArrayLike, seed: int) -> Dealt:
        lists, held = splits.target_groups(
            labels, self.alpha, held_out=self.held_out, rows_per_client=self.rows_per_client, seed=seed
        )
        copies = {}
        if self.clients == 40:
            copies = {_copy(name): name for name in lists}
            lists = {**lists, **{copy: lists[name] for copy, name in copies.items()}}
        validation = {"target": held} if len(held) else {}
        notes = [
            f"target-groups: clients have {len(lists['target'])} rows each; the target validates on {len(held)} more"
        ]
        if copies:
            notes.append(
                "20 of the 40 clients are copies of the others, so that every row is used twice, as in the paper"
            )
        return Dealt(lists, validation=validation, copies=copies, notes=tuple(notes))

    def within(self, labels: ArrayLike | None, *, seed: int, name: str, n: int | None = None) -> dict[str, Index]:
        """The rows of client `name` by part: `stratified` with these `parts`."""
        return splits.stratified(labels, self.parts, seed=self.seeded(seed), name=name, n=n)

    def shares(self, *, validation: bool = True) -> dict[str, float]:
        """`parts` of a client's own rows, without those parts that it has from elsewhere: what is left, in proportion."""
        elsewhere = {"validation"} if not validation else set()
        elsewhere |= {"test"} if self.test != "own" else set()
        rest = {key: share for key, share in self.parts.items() if key not in elsewhere}
        return {key: share / sum(rest.values()) for key, share in rest.items()}

    def test_rows(self, own: ArrayLike, standard: ArrayLike, *, seed: int, name: str) -> Index:
        """Rows of the standard test set for client `name`: all, or as many as there can be with the client's shares of classes.

        Args:
            own: classes of all rows of the client [rows].
            standard: classes of the standard test set.
            seed: of the run.
            name: of the client, which names the draw.
        """
        if self.test == "standard":
            return np.arange(len(np.asarray(standard)))
        return splits.label_mix(own, standard, seed=self.seeded(seed), name=name)


def _copy(name: str) -> str:
    group, _, number = name.partition("-")
    return f"{group}-{int(number) + (10 if group == 'near' else 9):02d}" if number else "twin"


def _parts(given: Mapping[str, float]) -> dict[str, float]:
    total = float(sum(given.values()))
    require(abs(total - 1) < 1e-6, f"parts add up to {total:g}; fractions of train, validation, test must give 1")
    require(given.get("train", 0) > 0, "parts need train above 0, for example {train = .6, test = .4}")
    return {key: float(given.get(key, 0.0)) for key in DEFAULT_PARTS if given.get(key, 0.0) > 0}


_KEYS = tuple(key for option in options_of(Split) for key in option.keys)
KINDS_OF = {
    "alpha": ("dirichlet", "target-groups"),
    "minimum": ("dirichlet", "column"),
    "column": ("column",),
    "shards_per_client": ("shards", "mixed"),
    "shard_size": ("shards", "mixed"),
    "twins": ("shards",),
    "nr": ("mixed",),
    "clusters": ("clusters",),
    "labels_per_cluster": ("clusters",),
    "held_out": ("target-groups",),
    "rows_per_client": ("target-groups",),
}
"""Keys that belong to some kinds only."""

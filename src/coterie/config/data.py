"""The tables [data] and [split] of an experiment, as declared: how files become rows of clients, and who gets which row.

What reads columns and deals rows lies in `coterie.data`; nothing here needs numpy or torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from numbers import Integral, Real
from types import MappingProxyType
from typing import Annotated, Any

from coterie.base.errors import InputError, cut, nearest
from coterie.base.spelling import legible, spell
from coterie.config.rules import (
    COUNT,
    POSITIVE,
    SIZE,
    TEXT,
    Rule,
    is_number,
    list_of,
    one_of,
    optional,
)
from coterie.config.schema import Flag, build, options, options_of

DEFAULT_PARTS: Mapping[str, float] = MappingProxyType(
    {"train": 8 / 15, "validation": 2 / 15, "test": 1 / 3}
)
"""One third test; a fifth of the rest is validation."""

EVERY_FILE = "*"
"""Stands for all clients where settings are given by client."""

Missing = Sequence[str | float]
"""Values of a column that stand for "missing", such as 0 for a cholesterol that nobody measured."""


@options
class Tables:
    """Options by which tables become rows of clients: the [data] table of an experiment.

    Attributes:
        label: column to predict; None looks for one that is called label, target, outcome, y or class.
        time: column that says how long a row was followed, of a label of time to event; beside `event`, in place of `label`.
        event: column that says whether the event happened then (1) or follow-up ended before it (0); beside `time`.
        entry: column that says from when on a row was followed, where that is later than 0.
        event_is: values of `event` that mean it, where they are others than 1: [2]. All others end follow-up.
        exposure: column that says in how much time, or among how many, the events of `label`, a count, were counted: bed days.
        horizon: time until which rows are followed, and at which survival is judged; None: they are followed until the last event, and
            judged near the median time of events.
        weights: column that says how much each row counts, such as a survey's weights: 0 or more, divided by their mean at each client.
            The column is no input.
        ordered: whether the classes of the label have an order, by which a model has one score and cuts (proportional odds):
            that of numbers, or of `classes = {...}`, the lowest first.
        task: "classification" or "regression"; None: regression if the label has more than 20 numbers that are not whole. A label to
            regress on is standardised by the pooled moments of training rows, and `label_scale` of the clients undoes that: losses are
            those of the standardised label, metrics and predictions are in its unit.
        above: a number that cuts the label into two classes, `<= above` and `> above`.
        classes: names of the classes in the order of the label's sorted values; or each class and how it is spelled, which must
            cover all values: {"yes": ["Yes", "y"], "no": ["No"]}.
        categorical: columns of numbers that are codes, and columns of texts to keep although they have many values.
        drop: columns to leave out; or lists of them by client, with "*" for all clients.
        keep: columns to use although coterie asks about them or leaves them out: one that names patients, tells the classes apart by
            itself, has other units at some client, or is the time beside an event.
        group: column that says which rows belong together, such as those of a patient; they stay in one part of the split, and the
            column is no input.
        missing: values that stand for "missing", by column: {"cholesterol": [0]}.
        not_missing: words that are values of a column although they often mean "missing", such as None for "no allergy":
            {"allergy": ["None"]}. Words that `classes` lists are values of the label anyhow.
        lists: columns whose cells hold several words, and what stands between them: {"drugs": ";"}. Each word becomes an input.
        rename: columns that have another name in some files: {"MEAN_RADIUS": "mean_radius"}; or such tables by client.
        bounds: the least and the largest value that each column of numbers can have: {"age": [0, 120]}. They scale it, and the middle
            stands for what is missing, so that no client tells sums of a column. Other columns of numbers are left out then.
        rare: a category that no client has so many training rows of is pooled with the others like it, as "(rare)", and so is one that
            nobody trained with; 0 pools nothing.
        meaning: meaning of the label, in words for reports.
        unit: unit of a label that is a number, for reports.
        unlabelled: "refuse" rows without a label, or "drop" them.
        split_column: column that says train, validation or test in each row; it replaces the split.
        split_time: column of dates or numbers, such as years, by which each client's rows are split: the newest are tested, and the
            oldest train. The column is no input.
        server_file: a table with rows that the server holds, outside the folder; no statistic is taken of them.
        arrays: whether npz files hold arrays of inputs (images, sequences of tokens), used as they are, and no tables; None: those
            with an array of three or more dimensions do.

    >>> Tables(label="outcome", drop=["age"]).drop
    {'*': ('age',)}
    """

    label: Annotated[str | None, optional(TEXT), Flag(metavar="COLUMN")] = None
    time: Annotated[str | None, optional(TEXT), Flag(metavar="COLUMN")] = None
    event: Annotated[str | None, optional(TEXT), Flag(metavar="COLUMN")] = None
    entry: Annotated[str | None, optional(TEXT), Flag(metavar="COLUMN")] = None
    event_is: tuple[Any, ...] | list[Any] = ()
    horizon: Annotated[float | None, optional(POSITIVE), Flag(metavar="TIME")] = None
    exposure: Annotated[str | None, optional(TEXT), Flag(metavar="COLUMN")] = None
    weights: Annotated[str | None, optional(TEXT), Flag(metavar="COLUMN")] = None
    ordered: Annotated[bool, Flag()] = False
    task: Annotated[
        str | None,
        optional(one_of("classification", "regression")),
        Flag(metavar="TASK"),
    ] = None
    above: float | None = None
    classes: Annotated[
        tuple[str, ...] | list[str] | Mapping[str, Sequence[Any]], Flag(metavar="A,B")
    ] = ()
    categorical: Sequence[str] = ()
    drop: Sequence[str] | Mapping[str, Sequence[str]] = ()
    keep: Annotated[tuple[str, ...], Flag(metavar="A,B")] = ()
    group: Annotated[str | None, optional(TEXT), Flag(metavar="COLUMN")] = None
    missing: Mapping[str, Any] = field(default_factory=dict)
    not_missing: Mapping[str, Any] = field(default_factory=dict)
    lists: Mapping[str, str] = field(default_factory=dict)
    rename: Mapping[str, Any] = field(default_factory=dict)
    bounds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    rare: Annotated[int, COUNT] = 0
    meaning: str | None = None
    unit: str | None = None
    unlabelled: Annotated[str, one_of("refuse", "drop")] = "refuse"
    split_column: str | None = None
    split_time: str | None = None
    server_file: str | None = None
    arrays: bool | None = None

    def __post_init__(self) -> None:
        self._check_time_to_event()
        self._check_exposure()
        self._check_columns_of_the_label()
        for key in ("event", "exposure", "above"):
            if self.ordered and getattr(self, key) is not None:
                raise InputError(
                    f"ordered is about three classes or more, and {key} says another kind of label; drop one of them"
                )
        if self.ordered and self.task == "regression":
            raise InputError("ordered is about classes; drop it or task = 'regression'")
        if self.task == "regression" and self.above is not None:
            raise InputError(
                "above makes classes of the label; drop it or task = 'regression'"
            )
        for key in ("split_column", "group"):
            if self.split_time is not None and getattr(self, key) is not None:
                raise InputError(
                    f"split_time and {key} both say which rows are tested; drop one of them"
                )
        if isinstance(self.classes, Mapping):
            if self.above is not None:
                raise InputError(
                    "classes maps values of the label, and above cuts it; drop one of them"
                )
            if self.task == "regression":
                raise InputError(
                    "classes makes classes of the label; drop it or task = 'regression'"
                )
            _spellings(self.classes)
        else:
            _check_names("classes", self.classes)
        _check_bounds(self.bounds)
        _check_names("categorical", self.categorical)
        _check_names("keep", self.keep)
        by_client = self.drop
        if not isinstance(by_client, Mapping):
            by_client = {EVERY_FILE: by_client}
        for columns in by_client.values():
            _check_names("drop", columns)
        # Each has one form from here on, whichever a user chose.
        one_form = {
            "categorical": tuple(self.categorical),
            "drop": {
                client: tuple(columns)
                for client, columns in by_client.items()
                if columns
            },
            "missing": codes_of(self.missing),
            "not_missing": codes_of(self.not_missing, "not_missing"),
            "lists": _separators(self.lists),
            "rename": _renames(self.rename),
        }
        for key, value in one_form.items():
            object.__setattr__(self, key, value)

    def _check_exposure(self) -> None:
        if self.exposure is None:
            return
        for key in ("event", "task", "above", "classes"):
            if getattr(self, key) not in _UNSAID:
                raise InputError(
                    f"exposure belongs to a label that is a count, and {key} says another kind; drop one of them"
                )
        if self.exposure == self.label:
            raise InputError(
                f"label and exposure are both {self.label!r}; name the count as label, and in what it was counted as exposure"
            )

    def _check_columns_of_the_label(self) -> None:
        """Raise `InputError` for a time, an entry, an exposure or weights that are to be something else, too."""
        for key in ("label", "time", "event", "entry", "exposure"):
            if self.weights is not None and getattr(self, key) == self.weights:
                raise InputError(
                    f"{key} and weights are both {self.weights!r}; name the column that says how much rows count as weights"
                )
        dropped = self.drop
        if isinstance(dropped, Mapping):
            dropped = [name for names in dropped.values() for name in names]
        lists_of_columns = {
            "drop": dropped,
            "categorical": self.categorical,
            "lists": self.lists,
            "bounds": self.bounds,
        }
        roles = ["time", "entry", "exposure", "weights"]
        if self.exposure is not None:
            roles.append("label")
        for role in roles:
            column = getattr(self, role)
            if column is None:
                continue
            for key in ("group", "split_column", "split_time"):
                if getattr(self, key) == column:
                    raise InputError(
                        f"{key} and {role} are both {column!r}; name another column in {key}, or leave {key} out"
                    )
            for key, named in lists_of_columns.items():
                if isinstance(named, Sequence | Mapping) and column in named:
                    raise InputError(
                        f"{key} names {column!r}, which is the {role} and no input; take it out of {key}"
                    )

    def _check_time_to_event(self) -> None:
        object.__setattr__(self, "event_is", _values_of_event(self.event_is))
        of_event = {"time": self.time, "entry": self.entry, "horizon": self.horizon}
        if self.event is None:
            for key, value in of_event.items():
                if value is not None:
                    raise InputError(
                        f"{key} belongs to a label of time to event; say event, too, the column that is 1 where it happened"
                    )
            return
        if self.time is None:
            raise InputError(
                f"event = {self.event!r} needs time, the column that says how long each row was followed"
            )
        if self.label not in (None, self.event):
            raise InputError(
                f"label = {self.label!r} and event = {self.event!r} are two labels; drop one of them (and time, if that is event)"
            )
        columns = [c for c in (self.time, self.event, self.entry) if c is not None]
        if len(set(columns)) < len(columns):
            raise InputError(
                f"time, event and entry are {', '.join(columns)}; name a column each"
            )
        for key in ("task", "above", "classes"):
            if getattr(self, key) not in _UNSAID:
                raise InputError(
                    f"{key} is about classes or numbers, and this label is a time to event; drop {key} (event_is says what means it)"
                )

    @property
    def target(self) -> str | None:
        """The column to predict, if one is named: of time to event, the one that says whether it happened."""
        return self.event or self.label

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the label's sorted values; empty where they have no names."""
        if isinstance(self.classes, Mapping):
            return ()
        return tuple(self.classes)

    @property
    def spellings(self) -> dict[str, str]:
        """The class that each value of the label means, where the user mapped them."""
        if isinstance(self.classes, Mapping):
            return _spellings(self.classes)
        return {}

    @property
    def by_client(self) -> Mapping[str, Sequence[str]]:
        """Columns to leave out by client; those of `*` at every client."""
        if isinstance(self.drop, Mapping):
            return self.drop
        return {}

    def columns_to_drop(self, client: str = EVERY_FILE) -> Sequence[str]:
        """Return the columns to leave out at `client` alone, or at every client."""
        return self.by_client.get(client, ())

    def new_names(self, client: str = EVERY_FILE) -> dict[str, str]:
        """Return the new names of columns of `client` alone, or of every client."""
        return dict(self.rename.get(client, {}))

    def changes(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults."""
        return {
            name: value
            for name, value in vars(self).items()
            if value != getattr(_AS_THEY_ARE, name)
        }


_UNSAID: tuple[Any, ...] = (None, (), [], {})
"""Settings that nobody has said; 0 is one that somebody has."""


def _values_of_event(values: Any) -> tuple[Any, ...]:
    """Return the values of `event_is`. Raises `InputError` for anything but a list of texts and numbers."""
    listed = isinstance(values, list | tuple)
    if not listed or not all(isinstance(v, str) or _is_finite(v) for v in values):
        raise InputError(
            f'event_is = {_as_file(values)} must be a list of values that mean the event, such as [2] or ["dead"]'
        )
    return tuple(values)


def _is_finite(value: Any) -> bool:
    return isinstance(value, Real) and math.isfinite(value)


def _check_bounds(bounds: Any) -> None:
    """Raise `InputError` for bounds that are no table of two finite numbers, the smaller first."""
    if not isinstance(bounds, Mapping):
        raise InputError(
            f"bounds = {_as_file(bounds)} must be a table of columns and their bounds, such as {{age = [0, 120]}}"
        )
    for column, pair in bounds.items():
        is_pair = isinstance(pair, list | tuple) and len(pair) == 2
        are_numbers = is_pair and all(map(is_number, pair))
        # The width of two finite numbers may still be infinite.
        if not are_numbers or not 0 < pair[1] - pair[0] < math.inf:
            raise InputError(
                f"bounds of column {column!r} must be the least and the largest value, such as [0, 120]; got {_as_file(pair)}"
            )


def _check_names(key: str, value: Any) -> None:
    if not isinstance(value, list | tuple) or not all(
        isinstance(name, str) for name in value
    ):
        raise InputError(
            f"{key} = {value!r} must be a list of names, such as [{str(value)!r}]"
        )


def _spellings(classes: Mapping[str, Any]) -> dict[str, str]:
    """Return the class of each spelling, from `classes` as {class: spellings}; a class spells itself."""
    out: dict[str, str] = {}
    for name, listed in classes.items():
        if not isinstance(listed, list | tuple) or not all(
            isinstance(v, str | int | float) for v in listed
        ):
            raise InputError(
                f'classes: {name} = {listed!r} must be a list of values, such as {{yes = ["Yes", "y"]}}'
            )
        for value in listed:
            text = _cell(value)
            if out.get(text, name) != name:
                raise InputError(
                    f"classes lists {text!r} under {out[text]!r} and {name!r}; choose one"
                )
            out[text] = str(name)
    if len(classes) < 2:
        raise InputError("classes must map the label to at least two classes")
    return {**{str(name): str(name) for name in classes}, **out}


def _cell(value: Any) -> str:
    """Return a value of TOML as the text of a cell."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return legible(value)
    return spell(value)


def _separators(lists: Any) -> dict[str, str]:
    """Return what stands between the words of each column. Raises `InputError` for what is no text."""
    valid = isinstance(lists, Mapping)
    if valid:
        for separator in lists.values():
            valid = valid and isinstance(separator, str) and bool(separator.strip())
    if not valid:
        raise InputError(
            f'lists = {_as_file(lists)} must be a table of columns and what stands between their words, such as {{drugs = ";"}}'
        )
    return {str(column): separator.strip() for column, separator in lists.items()}


def codes_of(
    missing: Mapping[str, Any] | None, key: str = "missing"
) -> dict[str, Missing]:
    """Return the values of `key` as a list per column: those that stand for "missing". Raises `InputError` for what is neither."""
    if missing is not None and not isinstance(missing, Mapping):
        raise InputError(
            f"{key} = {_as_file(missing)} must be a table of columns and their codes, such as {{cholesterol = [0]}}"
        )
    out: dict[str, Missing] = {}
    for column, codes in (missing or {}).items():
        listed = [codes]
        if isinstance(codes, list | tuple | set):
            listed = list(codes)
        if not all(isinstance(code, str | int | float) for code in listed):
            raise InputError(f"{key}: codes of {column!r} must be numbers or texts")
        out[str(column)] = listed
    return out


def _as_file(value: Any) -> str:
    """Return a value as a file would write it, where lists stand for tuples."""
    if isinstance(value, tuple):
        value = list(value)
    return repr(value)


def _renames(rename: Any) -> dict[str, dict[str, str]]:
    """Return new names of columns by client, from {old: new} for all and {client: {old: new}} for one."""
    form = 'a table such as {MEAN_RADIUS = "mean_radius"}, or of such tables by client'
    if rename is not None and not isinstance(rename, Mapping):
        raise InputError(f"rename = {_as_file(rename)} must be {form}")
    out: dict[str, dict[str, str]] = {}
    for key, value in (rename or {}).items():
        client, names = EVERY_FILE, {key: value}
        if isinstance(value, Mapping):
            client, names = str(key), dict(value)
        for new_name in names.values():
            if not isinstance(new_name, str) or not new_name:
                raise InputError(f"rename = {_as_file(rename)} must be {form}")
        out.setdefault(client, {}).update(names)
    return out


_AS_THEY_ARE = Tables()


def check_seed(seed: object) -> None:
    """Raise `InputError` unless `seed` is one."""
    # A bool is an int of Python's, and no seed.
    if isinstance(seed, bool) or not isinstance(seed, Integral) or int(seed) < 0:
        raise InputError(f"seed must be an int >= 0; got {cut(seed)}")


OF_ROWS = ("seed", "parts", "folds")
"""Fields of a split that apply to the rows of each client, whatever made the clients."""
_KINDS = (
    "iid",
    "dirichlet",
    "shards",
    "clusters",
    "mixed",
    "target-groups",
    "column",
    "sizes",
    "power-law",
    "counts",
)
_LISTED = {
    "sizes": "rows of each client, for example sizes = [500, 100, 20]",
    "counts": "rows of each class by client, for example counts = [[50, 5], [5, 50]]",
}
"""Kinds that say something of each client, and what."""
_SIZES = list_of(SIZE, "a list of ints > 0, the rows of each client")
_COUNTS = list_of(
    list_of(COUNT, ""),
    "a list of lists of ints >= 0, for each client the rows of each class",
)
_ROWS = Rule(lambda v: v == "most" or SIZE.test(v), 'an int > 0 or "most"', ("most",))
_FRACTION = Rule(lambda v: is_number(v) and 0 <= v <= 1, "a number from 0 to 1")


def _are_parts(value: Any) -> bool:
    named = isinstance(value, Mapping) and set(value) <= set(DEFAULT_PARTS)
    return named and all(map(_FRACTION.test, value.values()))


_FOLDS = Rule(lambda v: COUNT.test(v) and v != 1, "0 or an int > 1")
_WHOLE = {"train": 1.0}
"""The parts of a client whose rows folds are dealt from."""
_PARTS = Rule(
    _are_parts, "a table of train, validation and test with fractions from 0 to 1"
)


@options
class Split:
    """The `[split]` table of an experiment, checked.

    Attributes:
        kind: iid, dirichlet, shards, clusters, mixed, target-groups, column, sizes, power-law or counts; None: the data has its own
            clients.
        clients: number of clients, by default 10; of target-groups 20 (the default) or 40; of column so many of its values, drawn from
            the seed (default: all); of sizes and counts as many as these are, without the unseen ones.
        column: of `column`: which one says whose row it is, such as a writer, a patient or a hospital.
        alpha: of `dirichlet` its parameter; of `target-groups` the share of the target's classes at the clients near it.
        unnamed: of column: "refuse" rows that do not say whose they are, or "drop" them.
        minimum: smallest number of rows of a client, of `dirichlet` and `power-law`; of `column`, where users with fewer are left out.
        shards_per_client, shard_size: of `shards` and `mixed` (there 500).
        twins: of `shards`: so many clients, the first by name, have shards of the same classes.
        nr: of `mixed`: 1 - nr of every shard are drawn from all classes.
        clusters, labels_per_cluster: of `clusters`.
        sizes: of `sizes`: rows of each client, drawn at random, such as [500, 100, 20]; unseen clients have the last of them.
        counts: of `counts`: rows of each class 0, 1, ... by client, such as [[50, 5], [5, 50]]; likewise.
        exponent: of `power-law`: the k-th client has a share of the rows in proportion to k to the power of -exponent.
        held_out: of `target-groups`: validation rows of the target, per class.
        rows_per_client: of `target-groups`: rows of each client; "most": as many as the classes allow.
        unseen: further clients of the same split that never train.
        flip: share of the clients whose labels y become C - 1 - y, in all their parts.
        test: "own", a part of each client's rows; "label-mix", rows of the data set's standard test set with the client's shares of
            classes; or "standard", all of that test set for every client.
        seed: seed of the whole split; None is the run's seed.
        parts: fraction of a client's rows per part.
        folds: test every row once, in so many folds of each client (cross-validation), and repeat that with each seed; a simulated
            split is then dealt once, by the first seed. 0: one split into `parts`.

    >>> import coterie as ct
    >>> ct.data.Split(kind="dirichlet", alpha=0.3, clients=20).alpha
    0.3
    """

    kind: Annotated[str | None, optional(one_of(*_KINDS)), Flag("--split", "KIND")] = (
        None
    )
    clients: Annotated[
        int | None, optional(COUNT, "that of the kind"), Flag(metavar="N")
    ] = None
    column: Annotated[
        str | None, optional(TEXT._replace(allowed="the name of a column"))
    ] = None
    unnamed: Annotated[str, one_of("refuse", "drop"), Flag(metavar="WORD")] = "refuse"
    alpha: Annotated[float, POSITIVE, Flag()] = 0.5
    minimum: Annotated[int, COUNT] = 3
    shards_per_client: Annotated[int, SIZE] = 2
    shard_size: Annotated[int | None, optional(SIZE)] = None
    twins: Annotated[int, COUNT] = 0
    nr: Annotated[float, _FRACTION] = 0.95
    clusters: Annotated[int, SIZE] = 5
    labels_per_cluster: Annotated[int, SIZE] = 2
    sizes: Annotated[tuple[int, ...] | None, optional(_SIZES)] = None
    counts: Annotated[tuple[tuple[int, ...], ...] | None, optional(_COUNTS)] = None
    exponent: Annotated[float, POSITIVE] = 1.0
    held_out: Annotated[int, COUNT] = 300
    rows_per_client: Annotated[int | str, _ROWS] = 750
    unseen: Annotated[int, COUNT] = 0
    flip: Annotated[float, _FRACTION] = 0.0
    test: Annotated[str, one_of("own", "label-mix", "standard")] = "own"
    seed: Annotated[int | None, optional(COUNT, "that of the run")] = None
    parts: Annotated[Mapping[str, float], _PARTS] = field(
        default_factory=lambda: dict(DEFAULT_PARTS)
    )
    folds: Annotated[int, _FOLDS, Flag(metavar="K")] = 0

    @classmethod
    def parse(
        cls,
        split: Split | Mapping[str, Any] | None,
        *,
        natural: str = "",
        **defaults: Any,
    ) -> Split:
        """Return the split that a user asks for, on top of `defaults`.

        Args:
            split: a `Split`, whose fields count as set where they differ from the class's defaults; or the table of a file.
            natural: data that brings its own clients, to which only `seed`, `parts` and `folds` apply.
            defaults: defaults of the data set.

        Raises:
            InputError: that names the key, what is allowed and the nearest spelling.
        """
        if split is None and not defaults:
            return _USUAL
        table = table_of(split)
        for key in table:
            if key not in _KEYS:
                raise InputError(
                    f"[split]: unknown key {key!r}; {nearest(str(key), _KEYS)}"
                )
            if natural and key not in OF_ROWS:
                raise InputError(
                    f"[split] {key} does not apply to {natural}, which has its own clients; only seed, parts and folds do"
                )
        if table.get("folds"):
            if "parts" in table:
                raise InputError(
                    "[split] folds and parts both say which rows are tested; drop one of them, or set folds = 0"
                )
            defaults["parts"] = _WHOLE
        if table.get("kind") in _OWN_NUMBER:
            defaults.pop("clients", None)
        if table.get("kind") == "column" and "column" not in table:
            raise InputError(
                "[split] kind = 'column' needs the name of the column, for example column = \"writer\""
            )
        parsed = build(cls, {**defaults, **table}, "[split]", named="split")
        for key, kinds in KINDS_OF.items():
            if key in table and parsed.kind not in kinds:
                raise InputError(
                    f"[split] {key} belongs to kind = {' or '.join(map(repr, kinds))}, but kind is {parsed.kind!r}; drop one of "
                    "them"
                )
        return parsed

    def changes(self) -> dict[str, Any]:
        """Return the fields that differ from the defaults of the class."""
        return {
            name: value
            for name, value in vars(self).items()
            if value != getattr(_USUAL, name)
        }

    @property
    def count(self) -> int:
        """Number of clients; 0 stands for as many as there are."""
        if self.clients is not None:
            return self.clients
        if self._listed is not None:
            return len(self._listed) - self.unseen
        return _OWN_NUMBER.get(str(self.kind), 10)

    @property
    def _listed(self) -> tuple[Any, ...] | None:
        """What a kind says of each client, one after the other; None for other kinds."""
        by_kind = {"sizes": self.sizes, "counts": self.counts}
        return by_kind.get(str(self.kind))

    def _check_listed(self) -> None:
        kind = str(self.kind)
        if kind not in _LISTED:
            return
        if self._listed is None:
            raise InputError(f"kind = {kind!r} needs {kind}, {_LISTED[kind]}")
        number = len(self._listed)
        if self.clients is not None and self.clients + self.unseen != number:
            raise InputError(
                f"clients = {self.clients} and unseen = {self.unseen} are not the {number} {kind}; leave out clients"
            )
        if self.unseen >= number:
            raise InputError(
                f"{number} {kind} leave no client to train beside unseen = {self.unseen}; lower unseen"
            )

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", _parts(self.parts))
        self._check_listed()
        if self.clients == 0 and self.kind != "column":
            raise InputError(f"split.clients must be {SIZE.allowed}; got 0")
        if self.test != "own" and self.flip:
            raise InputError(
                f"flip does not apply to test = {self.test!r}, whose rows are shared by clients; drop one of them"
            )
        own_test_rows = {
            "unseen": self.unseen > 0,
            "kind": self.kind == "target-groups",
            "test": self.test != "own",
        }
        for key, has_own in own_test_rows.items():
            if self.folds and has_own:
                raise InputError(
                    f"[split] {key} = {getattr(self, key)!r} has test rows of its own, so folds cannot deal them; set folds = 0"
                )
        if self.kind != "target-groups":
            return
        if self.count not in (20, 40):
            raise InputError(
                f"clients = {self.clients} must be 20 or 40 for kind = 'target-groups'"
            )
        if self.alpha > 1:
            raise InputError(
                f"alpha = {self.alpha} must be at most 1 for kind = 'target-groups': it is a share"
            )
        for key in ("unseen", "flip"):
            if getattr(self, key):
                raise InputError(
                    f"{key} does not apply to kind = 'target-groups', whose clients are fixed"
                )

    def seed_for(self, seed: int) -> int:
        """Return the seed to use in a run with `seed`. Raises `InputError` for one that is none."""
        check_seed(seed)
        if self.seed is None:
            return seed
        return self.seed


def _parts(fractions: Mapping[str, float]) -> dict[str, float]:
    total = float(sum(fractions.values()))
    if abs(total - 1) >= 1e-6:
        raise InputError(
            f"parts add up to {total:g}; fractions of train, validation, test must give 1"
        )
    if fractions.get("train", 0) <= 0:
        raise InputError(
            "parts need train above 0, for example {train = .6, test = .4}"
        )
    return {
        key: float(fractions.get(key, 0.0))
        for key in DEFAULT_PARTS
        if fractions.get(key, 0.0) > 0
    }


def table_of(split: Split | Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a split as the table of a file that says the same. Raises `InputError` for what is neither."""
    if isinstance(split, Split):
        return split.changes()
    if not isinstance(split, Mapping | None):
        raise InputError(
            f'split must be a Split or a table such as {{"kind": "iid"}}; got {cut(split)}'
        )
    return dict(split or {})


_USUAL = Split()
# Clients of the kinds that the defaults of a data set are not about.
_OWN_NUMBER = {"target-groups": 20, "column": 0, "sizes": 0, "counts": 0}
_KEYS = tuple(key for option in options_of(Split) for key in option.keys)
KINDS_OF = {
    "alpha": ("dirichlet", "target-groups"),
    "minimum": ("dirichlet", "power-law", "column"),
    "sizes": ("sizes",),
    "counts": ("counts",),
    "exponent": ("power-law",),
    "column": ("column",),
    "unnamed": ("column",),
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

"""The user's own tables: a folder with one file per client, or one data frame per client."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.base.clients import Client, Clients
from coterie.base.errors import InputError, nearest, require
from coterie.base.files import found
from coterie.base.rows import Part
from coterie.config.schema import build
from coterie.data.split_table import Split
from coterie.data.tables.arrays import from_array_files, is_array_file
from coterie.data.tables.columns import Column, Reading, Table
from coterie.data.tables.describe import draft_recipe
from coterie.data.tables.encode import Encoded, encode
from coterie.data.tables.numbers import complaint
from coterie.data.tables.read import SUFFIXES, read, read_frame
from coterie.data.tables.recipe import Recipe, TableCohort, describe, fit_recipe
from coterie.data.tables.settings import EVERY_FILE, FEW_NUMBERS, MANY_CLASSES, FileSettings, TableSettings, settings_of
from coterie.data.tables.spelling import listing, variants
from coterie.data.tables.suspicions import suspicions

__all__ = [
    "agree",
    "apply_recipe",
    "dealt_tables",
    "encoded_client",
    "files_of",
    "from_folder",
    "from_frames",
    "from_tables",
    "not_read",
    "ready_tables",
    "server_rows",
    "within",
]

_OTHER_TABLES = {
    ".xls",
    ".xlsm",
    ".xlsb",
    ".ods",
    ".numbers",
    ".feather",
    ".sav",
    ".dta",
    ".sas7bdat",
    ".rds",
    ".rdata",
    ".dat",
}
_OTHER_TABLES |= {".gz", ".zip"}
_OF_FILES = ("unlabelled", "split_column", "server_file")
_FEWEST_ROWS = 3  # one row each to train, to test, and to say anything about either
_PARTS = {"train": "train", "training": "train", "test": "test", "validation": "validation", "valid": "validation"}
_PARTS |= {"val": "validation"}


def from_folder(
    path: str | Path,
    *,
    label: str | None = None,
    seed: int = 0,
    split: Mapping[str, Any] | None = None,
    task: str | None = None,
    above: float | None = None,
    classes: Sequence[str] | Mapping[str, Sequence[str]] = (),
    categorical: Sequence[str] = (),
    drop: Sequence[str] | Mapping[str, Sequence[str]] = (),
    missing: Mapping[str, Any] | None = None,
    rename: Mapping[str, Any] | None = None,
    rare: int = 0,
    meaning: str | None = None,
    unit: str | None = None,
    unlabelled: str = "refuse",
    split_column: str | None = None,
    server_file: str | None = None,
    arrays: bool | None = None,
    name: str | None = None,
) -> Clients:
    """One client per CSV, TSV, Excel, Parquet or npz file in the folder `path`; a client has the file's name.

    The clients use the columns that all share; the others, dates, identifiers and columns without a value are left out,
    and `notes` says so. Two columns whose names are nearly the same, and two values of the label that differ only in
    capitals, blanks, hyphens or a last dot, are refused unless `rename`, `drop` or `classes` say what they are;
    categories that differ so are one, with a note. Percent signs, currencies and (in files with commas between cells)
    thousands commas are left out of numbers, with a note; `<5`, units and slips among numbers are refused, and so are signs
    that not all clients write.

    Numbers are imputed with the pooled mean and scaled; texts become one column per category (a missing one is all zeros).
    All of that is fitted on training rows only and lies in `recipe`.

    Args:
        path: the folder, whose other files are ignored; or one table, whose rows `split` deals to clients.
        label: column to predict; None looks for one of label, target, outcome, y, class.
        seed: of the split into train, validation and test, stratified per client.
        split: keys `seed` and `parts`, for example {"parts": {"train": .6, "test": .4}}; for one table also `kind` and its own keys.
        task: "classification" or "regression"; None: regression if the label has more than 20 numbers that are not whole. A label to
            regress on is standardised by the pooled moments of training rows, and `label_scale` of the clients undoes that: losses are
            those of the standardised label, metrics and predictions are in its unit.
        above: cuts a label of numbers into two classes.
        classes: names of the classes in the order of the label's sorted values; or each class and how it is spelled, which must
            cover all values: {"yes": ["Yes", "y"], "no": ["No"]}.
        categorical: columns of numbers that are codes, and columns of texts to keep although they have many values.
        drop: columns to leave out; or lists of them by client, with "*" for all clients.
        missing: values that stand for "missing", by column: {"cholesterol": [0]}.
        rename: columns that have another name in some files: {"MEAN_RADIUS": "mean_radius"}; or such tables by client.
        rare: a category that no client has so many training rows of is pooled with the others like it, as "(rare)", and so is one that
            nobody trained with; 0 pools nothing.
        meaning: of the label, in words for reports.
        unit: of a label that is a number, for reports.
        unlabelled: "refuse" rows without a label, or "drop" them.
        split_column: column that says train, validation or test in each row; it replaces the split.
        server_file: a table with rows that the server holds, outside the folder; no statistic is taken of them.
        arrays: whether npz files hold arrays of inputs (images, sequences of tokens), used as they are, and no tables; None: those
            with an array of three or more dimensions do.
        name: of the data set; None is the path.

    Raises:
        InputError: one sentence with file, column and cure.
    """
    about: dict[str, Any] = {"seed": seed, "split": split, "name": name or str(path)}
    options: dict[str, Any] = {
        "task": task,
        "above": above,
        "classes": classes,
        "categorical": categorical,
        "drop": drop,
        "missing": missing,
        "rename": rename,
        "rare": rare,
        "meaning": meaning,
        "unit": unit,
    }
    said = {"unlabelled": unlabelled, "split_column": split_column, "server_file": server_file, "arrays": arrays}
    own = build(FileSettings, said, str(path), named="data")
    if found(path, Path.is_file):
        settings = settings_of(label=label, **options)
        table = read(path, settings.reading(EVERY_FILE))
        dealt, notes = dealt_tables(table, settings, own, seed=seed, split=split)
        clients = from_tables(dealt, settings, "a table", own, **{**about, "split": within(split)})
        clients.notes = (*notes, *clients.notes)
        return clients
    files = files_of(Path(path))
    if is_array_file(next(iter(files.values())), arrays):
        plain: tuple[Any, ...] = (None, (), [], {}, "refuse")
        for_tables = {**options, **said, "rare": rare or None}
        given = [k for k, v in for_tables.items() if v not in plain and k not in ("classes", "arrays")]
        require(not given, f"{path} holds arrays and no tables: {', '.join(given)} do not apply; drop them")
        return from_array_files(files, label=label, classes=tuple(classes), **about)
    settings = settings_of(label=label, **options)
    tables = {stem: read(file, settings.reading(stem)) for stem, file in files.items()}
    clients = from_tables(tables, settings, name or f"the folder {path}", own, **about)
    clients.notes = (*clients.notes, *not_read(Path(path)))
    return clients


def dealt_tables(
    table: Table,
    settings: TableSettings,
    files: FileSettings,
    *,
    seed: int,
    split: Mapping[str, Any] | None,
) -> tuple[dict[str, Table], tuple[str, ...]]:
    """The tables that `split` deals the rows of one to, by client, and notes. Raises `InputError` if it does not say how."""
    rule = Split.parse(split, kind=None)
    require(
        rule.kind is not None,
        f"{table.source} is a file; give the folder with one file per client, or say with [split] kind how its rows are dealt to "
        "clients",
    )
    whole = rule.kind == "target-groups" or rule.unseen or rule.flip or rule.test != "own"
    require(not whole, "[split] target-groups, unseen, flip and test do not apply to a table; leave them out")
    settings = settings.fitted_to({table.name: table})
    label = str(settings.label)
    ready, dropped = _labelled(_mapped(table, settings), label, files)
    strata = _strata(ready.columns[label], settings)
    labels = ready.columns[label].numbers if strata is None else np.unique(strata, return_inverse=True)[1]

    def column(name: str) -> NDArray[Any]:
        require(name != label, f"[split] column = {name!r} is the label; name the column that says whose row it is")
        require(name in ready.columns, f"{table.source} has no column {name!r}; {nearest(name, ready.columns)}")
        values = ready.columns[name].spelled
        for group in variants(str(value) for value in values if value is not None):
            raise InputError(
                f"{table.source}: [split] column {name!r} has {' and '.join(map(repr, group))}: one client or {len(group)}? Write it "
                "the same way in all rows, or other names"
            )
        return values

    dealt = rule.deal(np.zeros(len(ready)) if labels is None else labels, seed=seed, column=column)
    inputs = replace(ready, columns={key: c for key, c in ready.columns.items() if key not in dealt.columns})
    return {name: _chosen(inputs, name, rows) for name, rows in dealt.clients.items()}, (*dropped, *dealt.notes)


def within(split: Mapping[str, Any] | None) -> dict[str, Any]:
    """What of a split applies to the rows of each client once they are dealt out."""
    return {key: value for key, value in (split or {}).items() if key in ("seed", "parts")}


def _chosen(table: Table, name: str, rows: NDArray[np.int64]) -> Table:
    keep = np.zeros(len(table), dtype=bool)
    keep[rows] = True
    return replace(table, name=name, columns={key: _rows(column, keep) for key, column in table.columns.items()})


def files_of(folder: Path) -> dict[str, Path]:
    """The file of each client."""
    if not found(folder, Path.is_dir):
        raise InputError(f"there is no folder {folder}; check the spelling")
    files: dict[str, Path] = {}
    for file in sorted(folder.iterdir()):
        if file.name.startswith(("~$", ".")):  # Excel's mark of an open workbook; hidden files
            continue
        require(
            file.suffix.lower() not in _OTHER_TABLES,
            f"{file} cannot be read; save it as CSV, or move it out of the folder",  # nobody is left out silently
        )
        if file.suffix.lower() in SUFFIXES:
            other = files.get(file.stem, file).name
            require(
                other == file.name, f"{other} and {file.name} in {folder} are both client {file.stem!r}; rename one"
            )
            files[file.stem] = file
    require(bool(files), f"{folder} holds no file to read; put one {', '.join(SUFFIXES)} file per client there")
    return files


def not_read(folder: Path) -> list[str]:
    """A note on what may be the table of a client under another name: files of text, or without ending, and folders of tables."""
    texts = [file.name for file in sorted(folder.iterdir()) if file.is_file() and file.suffix.lower() in (".txt", "")]
    folders = [
        f"{below.name}/"
        for below in sorted(folder.iterdir())
        if below.is_dir() and any(file.suffix.lower() in SUFFIXES for file in below.iterdir())
    ]
    names = [name for name in (*texts, *folders) if not name.startswith(".")]
    return [f"not read: {listing(names)} (put the table of a client there as NAME.csv)"] if names else []


def from_frames(frames: Mapping[str, Any], *, name: str = "frames", **options: Any) -> Clients:
    """One client per data frame (pandas, or polars by its `to_pandas`); `options` as in `from_folder`."""
    require(bool(frames), "there are no data frames; give at least one as {client: frame}")
    own = FileSettings(**{key: options.pop(key) for key in _OF_FILES if key in options})
    about = {key: options.pop(key) for key in ("seed", "split") if key in options}
    settings = settings_of(**options)
    tables = {str(key): read_frame(frame, settings.reading(str(key)), name=str(key)) for key, frame in frames.items()}
    return from_tables(tables, settings, "a mapping of data frames", own, name=name, **about)


def apply_recipe(recipe: Mapping[str, Any], rows: str | Path | Any, *, need_label: bool = False) -> Encoded:
    """New rows (a file, or a data frame) as the model of `recipe` reads them; nothing is fitted again.

    Returns inputs float32 [rows, features], labels (None where the file has none; those of a regression as (label - mean) /
    scale of `recipe["label"]`) and notes about categories that no
    training row had. Raises `InputError` that names the file and the column that is missing or wrong.
    """
    require("features" in recipe and "columns" in recipe, "this run has no recipe for tables; give tensors instead")
    named = [c["name"] for c in recipe["columns"] if c["kind"] == "category"]
    if recipe["label"]["kind"] == "text":
        named.append(recipe["label"]["column"])
    reading = Reading(recipe["missing"], named, recipe["rename"])
    on_disk = isinstance(rows, str | Path)
    table = read(rows, reading) if on_disk else read_frame(rows, reading, name="new", source="the frame")
    return encode(table, cast("Recipe", recipe), need_label=need_label)


def from_tables(
    tables: Mapping[str, Table],
    settings: TableSettings,
    natural: str,
    files: FileSettings,
    *,
    name: str,
    seed: int = 0,
    split: Mapping[str, Any] | None = None,
) -> Clients:
    """Split, describe, fit and encode: the same steps as in a federation, with everybody in one cohort."""
    rule = Split.parse(split, natural=natural)
    settings.check_names(tables)
    settings = settings.fitted_to(tables)
    ready, notes = ready_tables(tables, settings, rule, seed, files)
    cohort = TableCohort(ready)
    recipe = agree(cohort.names, settings, lambda ask, **payload: ask(cohort, **payload))
    clients = []
    for table in cohort.tables:
        client, more = encoded_client(table, recipe)
        clients.append(client)
        notes += more
    doubts = suspicions(clients, cohort.tables, recipe)
    shown = recipe["label"]["classes"]
    held = None if files.server_file is None else server_rows(files.server_file, recipe)
    out = Clients(
        clients, name=name, classes=shown, recipe=recipe, notes=[*doubts, *recipe["notes"], *notes], server=held
    )
    if shown and bool((out.train.labels == out.train.labels[0]).all()):
        only = shown[int(out.train.labels[0])]
        raise InputError(f"all training rows of all clients are {only!r}; there is nothing to learn")
    return out


def agree(names: Sequence[str], settings: TableSettings, ask: Callable[..., Any]) -> Recipe:
    """The recipe of the clients `names` (sorted), in three exchanges; `ask(task, **payload)` puts a task to all of them."""
    told = ask(describe, label=settings.label, categorical=json.dumps(sorted(settings.categorical)), rare=settings.rare)
    return fit_recipe(draft_recipe(names, told, settings), ask)


def server_rows(file: str | Path, recipe: Recipe) -> Part:
    """The rows that a server holds, under the recipe of the clients. Raises `InputError` that names file and cure."""
    return _as_part(apply_recipe(recipe, file, need_label=True), str(file))


def _as_part(rows: Encoded, source: str) -> Part:
    if rows.labels is None:
        raise InputError(f"{source} has no labels; add the column")
    return Part(rows.inputs, rows.labels)


def encoded_client(table: Table, recipe: Recipe) -> tuple[Client, tuple[str, ...]]:
    """The client that `table`, with its row numbers per part, becomes under `recipe`, and notes."""
    rows = encode(table, recipe)
    whole = _as_part(rows, table.source)
    parts = {key: whole.select(torch.from_numpy(index)) for key, index in table.parts.items() if len(index)}
    client = Client(table.name, parts["train"], parts.get("validation"), parts.get("test"), table.parts.get("test"))
    return client, rows.notes


def ready_tables(
    tables: Mapping[str, Table],
    settings: TableSettings,
    rule: Split,
    seed: int,
    files: FileSettings,
) -> tuple[dict[str, Table], list[str]]:
    """The tables with labels in all rows and row numbers per part, sorted by name, and notes."""
    ready: dict[str, Table] = {}
    notes: list[str] = []
    for client in sorted(tables):
        table, dropped = _labelled(_mapped(tables[client], settings), str(settings.label), files)
        notes += [*table.notes, *dropped]
        require(
            len(table) >= _FEWEST_ROWS,
            f"{table.source} has {len(table)} rows, too few to train and to test; give client {client!r} at least "
            f"{_FEWEST_ROWS}, or remove the file",
        )
        ready[client] = _split(table, settings, rule, seed, files.split_column)
    return ready, notes


def _labelled(table: Table, label: str, files: FileSettings) -> tuple[Table, list[str]]:
    """`table` without the rows that have no label, and a note; refused unless the user asked to drop them."""
    wrong = table.columns[label].problem
    require(wrong is None, f"{table.source}: label {label!r} {complaint(*wrong, choice='') if wrong else ''}")
    present = table.columns[label].present
    if present.all():
        return table, []
    gone = np.flatnonzero(~present)
    more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
    require(
        files.unlabelled == "drop",
        f"{table.source}: label {label!r} is missing in data row {gone[0] + 1}{more} (empty, NA, none, ?); fill it in, delete such "
        'rows, or set unlabelled = "drop"',
    )
    require(bool(present.any()), f"{table.source}: label {label!r} is missing in every row; remove the file")
    columns = {key: _rows(column, present) for key, column in table.columns.items()}
    return replace(table, columns=columns), [f"{table.name}: {len(gone)} rows without {label} were left out"]


def _mapped(table: Table, settings: TableSettings) -> Table:
    """`table` with the classes that the user's `classes` make of the label's values."""
    if not settings.spellings:
        return table
    label, texts = str(settings.label), table.columns[str(settings.label)].spelled
    for row, text in enumerate(texts):
        require(
            text is None or text in settings.spellings,
            f"{table.source}: label {label!r} is {text!r} in data row {row + 1}, which classes does not list; add it to a class",
        )
    classes = np.empty(len(texts), dtype=object)
    classes[:] = [None if text is None else settings.spellings[text] for text in texts]
    return replace(table, columns={**table.columns, label: Column("text", None, classes)})


def _rows(column: Column, keep: NDArray[np.bool_]) -> Column:
    numbers = None if column.numbers is None else column.numbers[keep]
    texts = None if column.texts is None else column.texts[keep]
    empty = numbers is not None and bool(np.isnan(numbers).all())
    return replace(column, kind="empty" if empty else column.kind, numbers=numbers, texts=texts)


def _split(table: Table, settings: TableSettings, split: Split, seed: int, split_column: str | None) -> Table:
    """`table` with row numbers per part: by its own column, or stratified by this client's labels alone.

    What other clients have plays no role, so that a newcomer does not move anybody's rows.
    """
    if split_column is None:
        strata = _strata(table.columns[str(settings.label)], settings)
        return replace(table, parts=split.within(strata, seed=seed, name=table.name, n=len(table)))
    if split_column not in table.columns:
        raise InputError(f"{table.source} has no column {split_column!r} (split_column); add it or drop that setting")
    columns = dict(table.columns)
    words = [str(t).lower() for t in columns.pop(split_column).spelled]
    for row, word in enumerate(words):
        if word not in _PARTS:
            raise InputError(
                f"{table.source}: column {split_column!r} is {word!r} in data row {row + 1}; "
                f"{nearest(word, ['train', 'validation', 'test'])}"
            )
    part = np.array([_PARTS[word] for word in words])
    parts = {key: np.flatnonzero(part == key) for key in ("train", "validation", "test")}
    require(len(parts["train"]) > 0, f"{table.source}: no row is 'train' in column {split_column!r}; mark some")
    return replace(table, columns=columns, parts=parts)


def _strata(column: Column, settings: TableSettings) -> NDArray[np.str_] | None:
    if settings.task == "regression" or column.kind == "date":
        return None
    if settings.above is not None and column.numbers is not None:
        return (column.numbers > settings.above).astype(str)
    values = column.spelled.astype(str)
    distinct = len(np.unique(values))
    whole = column.numbers is None or bool((column.numbers % 1 == 0).all())
    if settings.task is None and (distinct > MANY_CLASSES or (not whole and distinct > FEW_NUMBERS)):
        return None
    return values

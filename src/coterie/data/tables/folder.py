"""The user's own tables: a folder with one file per client, one table dealt to clients, or one data frame per client."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.base.clients import Client, Clients
from coterie.base.cures import Advice, Cure, either
from coterie.base.errors import InputError, nearest
from coterie.base.files import path_exists
from coterie.base.label_form import LabelForm
from coterie.base.rows import Part
from coterie.base.spelling import alike, names_rows, rows_left_out, variants
from coterie.config.data import EVERY_FILE, OF_ROWS, Split, Tables, table_of
from coterie.config.rules import explain_keywords
from coterie.data.dealing import deal
from coterie.data.parts import stratified
from coterie.data.splits import number_names
from coterie.data.tables.agreement import FEW_NUMBERS, MANY_CLASSES, agree
from coterie.data.tables.cells import (
    NOTHING,
    Column,
    Reading,
    Table,
    are_whole,
    complaint,
    cures_of,
    number,
    times_of,
)
from coterie.data.tables.followup import take_exposure, take_followup, take_weights
from coterie.data.tables.read import (
    Sheet,
    files_of,
    holds_arrays,
    notes_on_other_files,
    open_sheet,
    read,
    read_frame,
    reading_of,
)
from coterie.data.tables.recipe import Encoded, Recipe, TableCohort, encode, group_notes
from coterie.data.tables.suspicions import find_doubts
from coterie.data.tensors import from_array_files
from coterie.data.values import names_as_texts

_LABELS = ("label", "target", "outcome", "y", "class")
"""Names that are taken for the label if the user names none and all clients share exactly one of them."""
_FEWEST_ROWS = 3  # one row each to train, to test, and to say anything about either
_PARTS = {
    "train": "train",
    "training": "train",
    "test": "test",
    "validation": "validation",
    "valid": "validation",
}
_PARTS |= {"val": "validation"}
_USUAL = Tables()


@explain_keywords()
def from_folder(
    path: str | Path,
    *,
    label: str | None = None,
    tables: Tables = _USUAL,
    split: Split | Mapping[str, Any] | None = None,
    seed: int = 0,
    name: str | None = None,
) -> Clients:
    """Make one client of each CSV, TSV (also packed, .csv.gz), Excel, Parquet, Stata or npz file in `path`; it has the file's name.

    The clients use the columns that all share; the others, dates, identifiers and columns without a value are left out,
    and `notes` says so. Two columns whose names are nearly the same, and two values of the label that differ only in
    capitals, blanks, hyphens or a last dot, are refused unless `rename`, `drop` or `classes` say what they are;
    categories that differ so are one, with a note. Percent signs, currencies and (in files with commas between cells)
    thousands commas are left out of numbers, with a note; `<5`, units and slips among numbers are refused, and so are signs
    that not all clients write.

    Numbers are imputed with the pooled mean and scaled; texts become one column per category (a missing one is all zeros).
    All of that is fitted on training rows only and lies in `recipe`.

    Args:
        path: The folder, whose other files are ignored; or one table, whose rows `split` deals to clients.
        label: Column to predict; None looks for one of label, target, outcome, y, class. The same as `Tables.label`.
        tables: How the files are read.
        split: How each client's rows become train, validation and test (`seed` and `parts`); for one table also `kind` and its
            own fields. A table such as {"parts": {"train": .6, "test": .4}} stands for a `Split`.
        seed: Seed of the split, which is stratified per client.
        name: Name of the data set; None is the path.

    Raises:
        InputError: One sentence with file, column and cure.

    >>> import coterie as ct
    >>> from coterie.data.sets.heart_disease import FOLDER  # a folder with a CSV file for each of four hospitals
    >>> ct.data.from_folder(FOLDER, label="num", tables=ct.data.Tables(above=0), name="hearts").names
    ('cleveland', 'hungary', 'long-beach', 'switzerland')
    """
    settings = _with_label(tables, label)
    if path_exists(path := Path(path), Path.is_file):
        sheet = open_sheet(path, reading_of(settings))
        dealt, notes = deal_table(sheet, settings, seed=seed, split=split)
        clients = from_tables(
            dealt,
            settings,
            "a table",
            seed=seed,
            split=rules_of_rows(split),
            name=name or str(path),
        )
        clients.notes = (*notes, *clients.notes)
        return clients
    files = files_of(path)
    if holds_arrays(next(iter(files.values())), settings.arrays, settings.label):
        return from_array_files(
            files, settings, seed=seed, split=split, name=name or str(path), folder=path
        )
    read_files = {
        client: read(file, reading_of(settings, client))
        for client, file in files.items()
    }
    natural = name or f"the folder {path}"
    clients = from_tables(
        read_files, settings, natural, seed=seed, split=split, name=name or str(path)
    )
    clients.notes = (*clients.notes, *notes_on_other_files(path))
    return clients


@explain_keywords()
def from_frames(
    frames: Mapping[str, Any] | Sequence[Any],
    *,
    label: str | None = None,
    tables: Tables = _USUAL,
    split: Split | Mapping[str, Any] | None = None,
    seed: int = 0,
    name: str = "frames",
) -> Clients:
    """Make one client of each data frame (pandas, or polars by its `to_pandas`).

    Args:
        frames: Data frames by the name of the client, or a list of them (client-0, ...).
        label: Column to predict, as for `from_folder`.
        tables: How the frames are read.
        split: How each client's rows become train, validation and test.
        seed: Seed of the split.
        name: Name of the data set.

    Raises:
        InputError: One sentence with frame, column and cure.

    >>> import coterie as ct
    >>> import pandas as pd
    >>> frames = {name: pd.DataFrame({"age": range(40, 80), "ill": [0, 1] * 20}) for name in ("north", "south")}
    >>> ct.data.from_frames(frames, label="ill")
    <2 clients of 'frames', 42 training rows>
    """
    if isinstance(frames, list | tuple):
        frames = dict(zip(number_names(len(frames)), frames, strict=True))
    if not isinstance(frames, Mapping) or not frames:
        raise InputError(
            "there are no data frames; give at least one as {client: frame}"
        )
    settings = _with_label(tables, label)
    read_frames = {
        client: read_frame(frame, reading_of(settings, client), name=client)
        for client, frame in names_as_texts(frames, "frames").items()
    }
    return from_tables(
        read_frames,
        settings,
        "a mapping of data frames",
        seed=seed,
        split=split,
        name=name,
    )


_NAMES_OF_SITES = (
    "site",
    "hospital",
    "centre",
    "center",
    "clinic",
    "institution",
    "client",
    "partner",
    "region",
    "state",
)
"""What a column is often called that says whose a row is."""


def _how_to_divide(sheet: Sheet) -> str:
    """Return what to say of one table when nobody has said whose its rows are."""
    by_lower_case = {name.lower(): name for name in reversed(sheet.header)}
    likely = [by_lower_case[n] for n in _NAMES_OF_SITES if n in by_lower_case]
    column = "COLUMN"
    if likely:
        column = likely[0]
    return (
        f"{sheet.source} is a file; give the folder with one file per client, or say by which column its rows are divided: --split "
        f"column --set split.column={shlex.quote(column)}"
    )


def deal_table(
    sheet: Sheet,
    settings: Tables,
    *,
    seed: int,
    split: Split | Mapping[str, Any] | None,
) -> tuple[dict[str, Table], tuple[str, ...]]:
    """Return the tables that `split` deals the rows of one to, by client, and notes.

    A client's table is what it would be as a file of its own: whether its columns hold numbers or texts is told from its rows. So
    all that is said of a folder, and cured there, holds for one table. Raises `InputError` if `split` does not say how to deal.
    """
    rule = Split.parse(split, kind=None)
    if rule.kind is None:
        raise InputError(_how_to_divide(sheet))
    if rule.kind == "target-groups" or rule.unseen or rule.flip or rule.test != "own":
        raise InputError(
            "[split] target-groups, unseen, flip and test do not apply to a table; leave them out"
        )
    whole = sheet.table(replace(reading_of(settings), drop=()))
    label = label_of(settings, {whole.name: whole})
    check_label(whole, label, {whole.name: whole})
    settings = replace(settings, label=label)
    if rule.kind == "column":
        # Whose row it is follows from that column alone: the labels of each client are read with its own rows.
        ready, notes = _without_unlabelled(whole, settings)
        labels: NDArray[Any] | None = None
    else:
        ready, notes = _without_gaps(_map_classes(whole, settings), settings)
        strata = _strata(ready.columns[label], settings)
        labels = ready.columns[label].numbers
        if strata is not None:
            labels = np.unique(strata, return_inverse=True)[1]

    if labels is None:
        labels = np.zeros(len(ready))
    column = partial(_column_of_clients, sheet.source, ready, settings)
    dealt = deal(rule, labels, seed=seed, column=column)
    numbers = ready.numbers_in_source()
    rows = {name: numbers[index] for name, index in dealt.clients.items()}
    check_clients(settings, rows)
    readings = {name: reading_of(settings, name) for name in rows}
    tables = sheet.parts(rows, readings, dealt.columns)
    return tables, (*whole.notes, *notes, *dealt.notes)


def _column_of_clients(
    source: str, table: Table, settings: Tables, name: str
) -> NDArray[Any]:
    """The values of the column that says whose row it is. Raises `InputError` if it has another role, is not there or misspelled."""
    if name == settings.label:
        raise InputError(
            f"[split] column = {name!r} is the label; name the column that says whose row it is"
        )
    for role in ("time", "entry", "exposure", "weights"):
        if name == getattr(settings, role):
            raise InputError(
                f"[split] column and {role} are both {name!r}; name the column that says whose row it is"
            )
    if name not in table.columns:
        raise InputError(
            f"{source} has no column {name!r}; {nearest(name, table.columns)}"
        )
    values = table.columns[name].value_names
    for group in variants(str(value) for value in values if value is not None):
        spellings = " and ".join(map(repr, group))
        raise InputError(
            f"{source}: [split] column {name!r} has {spellings}: one client or {len(group)}? Write it the same way in all rows, or "
            "other names"
        )
    return values


def rules_of_rows(split: Split | Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what of a split applies to the rows of each client once they are dealt out."""
    return {key: value for key, value in table_of(split).items() if key in OF_ROWS}


def apply_recipe(
    recipe: Mapping[str, Any],
    rows: str | Path | Any,
    *,
    need_label: bool = False,
    weighted: bool = False,
) -> Encoded:
    """Return new rows (a file, or a data frame) as the model of `recipe` reads them; nothing is fitted again.

    Returns inputs float32 [rows, features], labels (None where the file has none; those of a regression as (label - mean) /
    scale of `recipe["label"]`) and notes about categories that no training row had. Raises `InputError` that names the file
    and the column that is missing or wrong.

    Args:
        recipe: The recipe of a run (`preprocess.json`).
        rows: A file, or a data frame.
        need_label: Whether rows without a label are refused.
        weighted: Whether labels have the weights of rows as their last column, where the recipe names some.

    >>> import coterie as ct
    >>> from coterie.data.sets.heart_disease import FOLDER
    >>> tuple(apply_recipe(ct.data.load("heart-disease").recipe, FOLDER / "hungary.csv").inputs.shape)
    (294, 15)
    """
    if "features" not in recipe or "columns" not in recipe:
        raise InputError("this run has no recipe for tables; give tensors instead")
    named = [c["name"] for c in recipe["columns"] if c["kind"] == "category"]
    if recipe["label"]["kind"] == "text":
        named.append(recipe["label"]["column"])
    lists = {c["name"]: c["separator"] for c in recipe["columns"] if "separator" in c}
    not_missing = dict(recipe.get("not_missing", {}))
    spellings = recipe["label"].get("spellings", {})
    if words := [word for word in spellings if word.lower() in NOTHING]:
        not_missing[recipe["label"]["column"]] = words
    reading = Reading(
        recipe["missing"],
        named,
        recipe["rename"],
        not_missing=not_missing,
        lists=lists,
    )
    if isinstance(rows, str | Path):
        table = read(rows, reading)
    else:
        table = read_frame(rows, reading, name="new", source="the frame")
    return encode(
        table, cast("Recipe", recipe), need_label=need_label, weighted=weighted
    )


def from_tables(
    tables: Mapping[str, Table],
    settings: Tables,
    natural: str,
    *,
    name: str,
    seed: int = 0,
    split: Split | Mapping[str, Any] | None = None,
) -> Clients:
    """Split, describe, fit and encode: the same steps as in a federation, with all clients in one cohort.

    Args:
        tables: The table of each client.
        settings: How they become rows.
        natural: What brings these clients, for errors about splits that do not apply to them.
        name: Name of the data set.
        seed: Seed of the split.
        split: How each client's rows become train, validation and test.
    """
    rule = Split.parse(split, natural=natural)
    check_names(settings, tables)
    settings = fit_to(settings, tables)
    ready, notes = ready_tables(tables, settings, rule, seed)
    cohort = TableCohort(ready)
    recipe = agree(
        cohort.names, settings, lambda ask, **payload: ask.function(cohort, **payload)
    )
    clients = []
    for table in cohort.tables:
        client, client_notes = encode_client(table, recipe)
        clients.append(client)
        notes += client_notes
    plain = [_without_weights(client, recipe) for client in clients]
    doubts, questions = find_doubts(plain, cohort.tables, recipe, settings)
    classes = recipe["label"]["classes"]
    server = None
    if settings.server_file is not None:
        server = server_rows(settings.server_file, recipe)
    sentences = group_notes([*doubts, *recipe["notes"], *notes])
    out = Clients(
        clients,
        name=name,
        classes=classes,
        recipe=recipe,
        notes=sentences,
        server=server,
    )
    labels = out.plain_labels
    if classes and bool((labels == labels[0]).all()):
        only = classes[int(labels[0])]
        raise InputError(
            f"all training rows of all clients are {only!r}; there is nothing to learn"
        )
    out.questions = tuple(questions)
    return out


def _without_weights(client: Client, recipe: Recipe) -> Client:
    """Return a client whose labels have no column of weights."""
    form = LabelForm.of_recipe(recipe["label"])
    if form is None or not form.weighted:
        return client
    parts = {
        name: Part(part.inputs, form.unweighted(part.labels))
        for name, part in client.parts()
    }
    return replace(
        client,
        train=parts["train"],
        validation=parts.get("validation"),
        test=parts.get("test"),
    )


def label_of(settings: Tables, tables: Mapping[str, Table]) -> str:
    """Return the label, if need be guessed from the names that all `tables` share. Raises `InputError` if none can be guessed."""
    if settings.target:
        return settings.target
    shared = [
        name
        for name in _LABELS
        if all(name in table.columns for table in tables.values())
    ]
    if len(shared) != 1:
        example = next(iter(tables.values()))
        raise InputError(
            f"which column is to be predicted? Give its name as label (--label NAME); {example.source} has "
            f"{', '.join(list(example.columns)[:12])}"
        )
    return shared[0]


def fit_to(settings: Tables, tables: Mapping[str, Table]) -> Tables:
    """Return the settings with the label of `tables`. Raises `InputError` for one that they do not have."""
    label = label_of(settings, tables)
    if any(label in dropped for dropped in settings.by_client.values()):
        raise InputError(
            f"drop names {label!r}, which is the label; take it out of drop"
        )
    for table in tables.values():
        check_label(table, label, tables)
    return _with_label(settings, label)


def _with_label(settings: Tables, label: str | None) -> Tables:
    """Settings with another label; as they are for None, or for the label that they have."""
    if label is None or label == settings.label:
        return settings
    return replace(settings, label=label)


def check_names(settings: Tables, tables: Mapping[str, Table]) -> None:
    """Raise `InputError` for a client, or a column to rename, that `tables`, those of all clients, do not have."""
    check_clients(settings, tables)
    if not settings.rename:
        return
    have = {c for table in tables.values() for c in (*table.columns, *table.renamed)}
    for old_name in settings.new_names():
        if old_name not in have:
            raise InputError(
                f"rename names column {old_name!r}, which no client has; {nearest(old_name, have)}"
            )


def check_clients(settings: Tables, clients: Collection[str]) -> None:
    """Raise `InputError` for settings of a client that is none of `clients`."""
    for key, by_client in (("drop", settings.by_client), ("rename", settings.rename)):
        for client in by_client:
            if client not in clients and client != EVERY_FILE:
                raise InputError(
                    f"{key} has settings for {client!r}, which is not a client; {nearest(client, clients)}"
                )


def check_label(table: Table, label: str, tables: Mapping[str, Table]) -> None:
    """Raise `InputError` if `table`, one of `tables`, has no column `label`."""
    if label in table.columns:
        return
    cures: list[Cure] = []
    have = [n for n, t in tables.items() if label in t.columns]
    similar = [c for c in table.columns if alike(c, label)]
    numbers = sum(number(name) is not None for name in table.columns)
    if 2 * numbers > len(table.columns):
        cure = (
            "; its first line has numbers: put one with the names of the columns above"
        )
    elif have and similar:
        cures = [Cure("rename", {similar[0]: label})]
        cure = f"; is {similar[0]!r} the same? Then say {cures[0]}"
    elif have and _are_vertical(table, tables):
        cure = (
            f", and shares with {have[0]!r} what says whose row it is: if these are other columns of the same patients, join the "
            "files by it first; training without joining them is vertical federated learning, which FATE and SecretFlow do"
        )
    elif have:
        cure = f" although {have[0]!r} has it: see whether its first line is the header, add the column, or name another label"
    else:
        cure = f"; {nearest(label, table.columns)}: add it, or name another label"
    raise InputError(
        Advice(f"{table.source} has no label column {label!r}{cure}", cures)
    )


def _are_vertical(table: Table, tables: Mapping[str, Table]) -> bool:
    """Return True if another of `tables` has rows of the same patients, and no column in common but those that name them."""
    for other in tables.values():
        shared = [name for name in table.columns if name in other.columns]
        if other is table or not shared or not all(map(names_rows, shared)):
            continue
        ours = set(table.columns[shared[0]].levels[0])
        theirs = set(other.columns[shared[0]].levels[0])
        if 2 * len(ours & theirs) > min(len(ours), len(theirs)):
            return True
    return False


def server_rows(file: str | Path, recipe: Recipe) -> Part:
    """Return the rows that a server holds, under the recipe of the clients. Raises `InputError` that names file and cure."""
    rows = apply_recipe(recipe, file, need_label=True, weighted=True)
    return Part(rows.inputs, cast("torch.Tensor", rows.labels))


def encode_client(table: Table, recipe: Recipe) -> tuple[Client, tuple[str, ...]]:
    """Return the client that `table`, with its row numbers per part, becomes under `recipe`, and notes."""
    rows = encode(table, recipe)
    part = Part(rows.inputs, cast("torch.Tensor", rows.labels))
    parts = {
        key: part.select(torch.from_numpy(index))
        for key, index in table.parts.items()
        if len(index)
    }
    groups = None
    if table.groups is not None:
        groups = {key: table.groups[table.parts[key]] for key in parts}
    client = Client(
        table.name,
        parts["train"],
        parts.get("validation"),
        parts.get("test"),
        table.parts.get("test"),
        groups,
    )
    return client, rows.notes


def ready_tables(
    tables: Mapping[str, Table], settings: Tables, rule: Split, seed: int
) -> tuple[dict[str, Table], list[str]]:
    """Return the tables with labels in all rows and row numbers per part, sorted by name, and notes."""
    ready: dict[str, Table] = {}
    notes: list[str] = []
    for client in sorted(tables):
        table, dropped = _without_gaps(_map_classes(tables[client], settings), settings)
        table = take_followup(_take_groups(table, settings), settings)
        table = take_weights(take_exposure(table, settings), settings)
        notes += [*table.notes, *dropped]
        if len(table) < _FEWEST_ROWS:
            raise InputError(
                f"{table.source} has {len(table)} rows, too few to train and to test; give client {client!r} at least "
                f"{_FEWEST_ROWS}, or remove the file"
            )
        ready[client] = _split(table, settings, rule, seed)
    return ready, notes


def _without_unlabelled(table: Table, settings: Tables) -> tuple[Table, list[str]]:
    """Return `table` without the rows that have no label, and a note, if the user asked to drop them; else as it is."""
    present = table.columns[str(settings.label)].present
    if settings.unlabelled == "drop" and present.any():
        return _without_gaps(table, settings)
    return table, []


def _without_gaps(table: Table, settings: Tables) -> tuple[Table, list[str]]:
    """Return `table` without the rows that have no label, and a note; refused unless the user asked to drop them."""
    label = str(settings.label)
    problem, present = table.columns[label].problem, table.columns[label].present
    if problem is not None:
        kind, row, cell = problem
        cures = cures_of(label, kind, cell, label=True)
        said = f"{table.source}: label {label!r} {complaint(kind, row, cell)}"
        if cures:
            said += f", or say {either(cures)}"
        raise InputError(Advice(said, cures))
    if present.all():
        return table, []
    missing = np.flatnonzero(~present)
    if settings.unlabelled != "drop":
        rows_without = f"data row {table.data_row(missing[0])}"
        if len(missing) > 1:
            rows_without += f" and {len(missing) - 1} more"
        cures = [Cure("unlabelled", "drop")]
        if words := [word for word, _ in table.columns[label].words]:
            cures.append(Cure("not_missing", {label: words}))
        raise InputError(
            Advice(
                f"{table.source}: label {label!r} is missing in {rows_without} (empty, NA, none, ?); "
                f"fill it in, delete such rows, or set {either(cures)}",
                cures,
            )
        )
    if not present.any():
        raise InputError(
            f"{table.source}: label {label!r} is missing in every row; remove the file"
        )
    note = f"{table.name}: {rows_left_out(len(missing), label)}"
    return table.where(present), [note]


def _take_groups(table: Table, settings: Tables) -> Table:
    """Return `table` without the column of the user's `group`, whose values say which rows belong together."""
    group = settings.group
    if group is None:
        return table
    if group == settings.label:
        raise InputError(
            f"group = {group!r} is the label; name the column that says which rows belong together"
        )
    if group not in table.columns:
        raise InputError(
            f"{table.source} has no column {group!r} (group); {nearest(group, table.columns)}"
        )
    column = table.columns[group]
    if not column.present.all():
        raise InputError(
            f"{table.source}: {group!r} is missing in data row {table.data_row(np.argmin(column.present))}; say whose row it is"
        )
    _, groups = np.unique(column.value_names.astype(str), return_inverse=True)
    columns = {key: c for key, c in table.columns.items() if key != group}
    return replace(table, columns=columns, groups=groups.astype(np.int64))


def _map_classes(table: Table, settings: Tables) -> Table:
    """Return `table` with the classes that the user's `classes` make of the label's values."""
    spellings = settings.spellings
    if not spellings:
        return table
    label, texts = str(settings.label), table.columns[str(settings.label)].value_names
    for row, text in enumerate(texts):
        if text is not None and text not in spellings:
            raise InputError(
                f"{table.source}: label {label!r} is {text!r} in data row {table.data_row(row)}, which classes does not list; "
                "add it to a class"
            )
    classes = np.empty(len(texts), dtype=object)
    classes[:] = [None if text is None else spellings[text] for text in texts]
    mapped = Column("text", None, classes)
    return replace(table, columns={**table.columns, label: mapped})


def _split(table: Table, settings: Tables, split: Split, seed: int) -> Table:
    """Return `table` with row numbers per part: by its own column, or stratified by this client's labels alone.

    What other clients have plays no role, so that a newcomer does not move the rows of others.
    """
    split_column = settings.split_column
    for key in ("split_column", "split_time"):
        if getattr(settings, key) == str(settings.label):
            raise InputError(
                f"{key} = {settings.label!r} is the label; name the column that says which rows are tested"
            )
    if settings.split_time is not None:
        return _split_by_time(table, settings.split_time, split)
    if split_column is None:
        strata = _strata(table.columns[str(settings.label)], settings)
        parts = stratified(
            strata,
            split.parts,
            seed=split.seed_for(seed),
            name=table.name,
            n=len(table),
            groups=table.groups,
        )
        return replace(table, parts=parts)
    if split_column not in table.columns:
        raise InputError(
            f"{table.source} has no column {split_column!r} (split_column); add it or drop that setting"
        )
    columns = dict(table.columns)
    words = [str(t).lower() for t in columns.pop(split_column).value_names]
    for row, word in enumerate(words):
        if word not in _PARTS:
            raise InputError(
                f"{table.source}: column {split_column!r} is {word!r} in data row {table.data_row(row)}; "
                f"{nearest(word, ['train', 'validation', 'test'])}"
            )
    part = np.array([_PARTS[word] for word in words])
    parts = {
        key: np.flatnonzero(part == key) for key in ("train", "validation", "test")
    }
    if not len(parts["train"]):
        raise InputError(
            f"{table.source}: no row is 'train' in column {split_column!r}; mark some"
        )
    return replace(table, columns=columns, parts=parts)


def _split_by_time(table: Table, name: str, split: Split) -> Table:
    """Return `table` with row numbers per part, in the order of the column `name`: training first, the newest rows last."""
    where = f"{table.source}: column {name!r} (split_time)"
    if split.folds:
        raise InputError(
            "[split] folds test every row once, and split_time the newest; set folds = 0, or drop split_time"
        )
    if name not in table.columns:
        raise InputError(
            f"{table.source} has no column {name!r} (split_time); {nearest(name, table.columns)}"
        )
    times = times_of(table.columns[name])
    if times is None:
        raise InputError(
            f"{where} must hold numbers, or dates with the year first; write them as 2023-01-31"
        )
    if np.isnan(times).any():
        row = table.data_row(np.argmax(np.isnan(times)))
        raise InputError(f"{where} is missing in data row {row}; say when that was")
    oldest_first = np.argsort(times, kind="stable")
    shares = np.cumsum(list(split.parts.values()))
    # At least one row trains, whatever the shares.
    ends = np.maximum(1, np.round(shares * len(table)).astype(np.int64))
    pieces = np.split(oldest_first, ends[:-1])
    parts = {
        key: np.sort(rows)
        for key, rows in zip(split.parts, pieces, strict=True)
        if len(rows)
    }
    columns = {key: c for key, c in table.columns.items() if key != name}
    return replace(table, columns=columns, parts=parts)


def _strata(column: Column, settings: Tables) -> NDArray[np.int64] | None:
    """Return a number for each row, in the order of the names of classes; None where the label has none."""
    if settings.task == "regression" or column.kind == "date":
        return None
    if settings.exposure is not None:
        return None
    if settings.above is not None and column.numbers is not None:
        return (column.numbers > settings.above).astype(np.int64)
    names, codes = column.levels
    distinct = len(names)
    integers = column.numbers is None or are_whole(column.numbers)
    if settings.task is None and (
        distinct > MANY_CLASSES or (not integers and distinct > FEW_NUMBERS)
    ):
        return None
    return np.argsort(np.argsort(names))[codes]

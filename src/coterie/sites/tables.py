"""Tables that stay where they are: what each site does with its own file, and what the server learns of it.

The steps are those of a folder (`folder.from_folder`): read and split each file, agree on a recipe, encode. Only the recipe needs
the others, and it is agreed on by tasks; so the rows of a site are, to the last bit, those that it would have in one folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from coterie.base.clients import PARTS, Client, Clients
from coterie.base.errors import InputError, nearest, require
from coterie.base.label_form import LabelForm, with_weights
from coterie.base.rows import Part
from coterie.config.data import EVERY_FILE, Split, Tables
from coterie.config.schema import build, options_of
from coterie.data.sets.heart_disease import OPTIONS as HEART_DISEASE
from coterie.data.tables.cells import Table
from coterie.data.tables.folder import fit_to, ready_tables
from coterie.data.tables.intervals import count_events, sum_counts, sum_followup
from coterie.data.tables.read import read, reading_of
from coterie.data.tables.recipe import Recipe, describe, moments

TABLE_TASKS = (describe, moments, count_events, sum_followup, sum_counts)
"""Tasks about a site's table; all others are about its encoded rows."""

_ALLOWED = tuple(
    option.name for option in options_of(Tables) if option.name != "arrays"
)


def table_options(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return how each site reads its file, from the [data] table of a plan: the options of a folder, or those of heart-disease.

    Raises `InputError` if the table names something that is not a table at the sites, or no label.

    >>> table_options({"folder": "hospitals", "label": "outcome"})
    {'label': 'outcome'}
    """
    options = dict(data)
    name = options.pop("name", None)
    options.pop("folder", None)
    if name not in (None, "heart-disease"):
        raise InputError(
            f"[data] name = {name!r} has no files at sites; give a folder (of files such as theirs), or heart-disease"
        )
    if name is not None:
        options = {
            **{
                k: list(v) if isinstance(v, tuple) else v
                for k, v in HEART_DISEASE.items()
            },
            **options,
        }
    if options.get("event") is not None:
        # Of time to event the label is the column that says whether it happened.
        options.setdefault("label", options["event"])
    for key in options:
        if key not in _ALLOWED:
            raise InputError(
                f"[data] has no option {key!r} for tables at sites; {nearest(key, _ALLOWED)}"
            )
    require(
        isinstance(options.get("label"), str),
        "[data] must name the label: no party sees the columns of all sites",
    )
    return options


def table_settings(options: Mapping[str, Any]) -> Tables:
    """Return the settings of `table_options`, by which the server agrees on a recipe and each site reads its file."""
    return build(
        Tables,
        {key: value for key, value in options.items() if key in _ALLOWED},
        "[data]",
        named="data",
    )


def description_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return how `agree` asks each site to describe its table."""
    settings = table_settings(options)
    return {
        "label": settings.label,
        "categorical": json.dumps(sorted(settings.categorical)),
        "rare": settings.rare,
    }


def left_out(options: Mapping[str, Any]) -> set[str]:
    """Columns that the plan leaves out at every site; those of one site are gone when its file has been read."""
    return set(table_settings(options).columns_to_drop())


def settings_of_file(settings: Tables, table: Table, site: str) -> Tables:
    """Return `settings` as they are about one site's file alone: without columns and files of other sites."""
    fitted = fit_to(settings, {site: table})
    # Of all classes a site may have two, between which there is no order to speak of.
    values = set(table.columns[str(fitted.label)].levels[0])
    return replace(
        fitted,
        rename={},
        ordered=fitted.ordered and len(values) > 2,
        drop={
            EVERY_FILE: tuple(c for c in fitted.columns_to_drop() if c in table.columns)
        },
        categorical=tuple(c for c in fitted.categorical if c in table.columns),
        missing={c: codes for c, codes in fitted.missing.items() if c in table.columns},
        not_missing={c: w for c, w in fitted.not_missing.items() if c in table.columns},
        lists={c: sign for c, sign in fitted.lists.items() if c in table.columns},
        bounds={c: pair for c, pair in fitted.bounds.items() if c in table.columns},
    )


def read_site(
    file: str | Path,
    name: str,
    options: Mapping[str, Any],
    *,
    seed: int,
    split: Mapping[str, Any] | None,
) -> tuple[Table, list[str]]:
    """The table of the site `name`, split by the seed and its name, and notes. Raises `InputError` with file and cure."""
    settings = table_settings(options)
    table = read(file, reading_of(settings, name), name=name)
    table = replace(
        table, source=f"the file of {name}"
    )  # where it lies is nobody's business
    rule = Split.parse(split, natural="tables at sites")
    ready, notes = ready_tables(
        {name: table}, fit_to(settings, {name: table}), rule, seed
    )
    return ready[name], notes


def lacking(
    table: Table, columns: Iterable[str], options: Mapping[str, Any]
) -> list[str]:
    """Return which columns that a plan needs a table lacks. Those that are no input were there, or it could not have been read."""
    settings = table_settings(options)
    of_rows = {
        settings.time,
        settings.entry,
        settings.exposure,
        settings.weights,
        settings.group,
        settings.split_column,
        settings.split_time,
    }
    return sorted(set(columns) - set(table.columns) - of_rows)


@dataclass(frozen=True)
class Facts:
    """Facts that the server knows about the rows of one site.

    Attributes:
        sizes: rows by part.
        lowest, highest: of the class labels of all parts; 0 for labels that are no classes.
        fingerprint: fingerprint of the rows.
    """

    sizes: Mapping[str, int]
    lowest: int
    highest: int
    fingerprint: str


def facts_of(clients: Clients, name: str, fingerprint: str) -> Facts:
    """The facts about one client, whose rows have this fingerprint."""
    form = clients.form
    labels = [form.unweighted(part.labels) for _, part in clients[name].parts()]
    counted = not labels[0].is_floating_point()
    return Facts(
        {key: clients.sizes(key)[name] for key in PARTS},
        min(int(v.min()) for v in labels) if counted else 0,
        max(int(v.max()) for v in labels) if counted else 0,
        fingerprint,
    )


def fingerprint_of(table: Table) -> str:
    """Return a hash of a table as it was read and split. No recipe has touched it, so that no recipe can ask which cells are equal."""
    digest = hashlib.blake2b(digest_size=16)
    for name, column in table.columns.items():
        cells = column.value_names if column.numbers is None else column.numbers
        digest.update(repr((name, column.kind, cells.tolist())).encode())
    for values in (table.followup, table.exposure, table.weights):
        if values is not None:
            digest.update(repr(values.tolist()).encode())
    for part, rows in sorted(table.parts.items()):
        digest.update(repr((part, rows.tolist())).encode())
    return digest.hexdigest()


def outputs_of_recipe(recipe: Recipe) -> int:
    """Return the outputs of a model by what a recipe says of the label, whichever of its classes occur here."""
    label = recipe["label"]
    form = LabelForm.of_recipe(label)
    if form is not None and form.has_loss:
        return form.outputs
    classes = len(label["classes"])
    if classes in (0, 2):
        return 1
    return classes


class RemoteClients(Clients):
    """Clients whose rows are elsewhere: names, sizes and fingerprints are theirs, the rows here are two of zeros each."""

    rows_elsewhere = True

    def __init__(
        self,
        facts: Mapping[str, Facts],
        recipe: Recipe,
        *,
        name: str,
        notes: Sequence[str],
        server: Part | None = None,
    ) -> None:
        classes = recipe["label"]["classes"]
        lowest, highest = (
            min(f.lowest for f in facts.values()),
            max(f.highest for f in facts.values()),
        )
        labels = torch.tensor([lowest, highest]) if classes else torch.zeros(2)
        form = LabelForm.of_recipe(recipe["label"])
        if form is not None and form.has_loss:
            # Two rows of the form that the labels at sites have: no event, and one.
            rows = {"hazards": [[0.0, 1, 0], [0, 1, 1]], "count": [[0.0, 1], [1, 1]]}
            labels = torch.tensor(rows[form.kind])
        if form is not None and form.weighted:
            labels = with_weights(labels, torch.ones(2))
        part = Part(torch.zeros(2, len(recipe["features"])), labels)
        clients = [Client(n, part) for n in facts]
        super().__init__(
            clients,
            name=name,
            classes=classes,
            recipe=recipe,
            notes=notes,
            server=server,
        )
        self.facts = dict(facts)
        if classes and lowest == highest:
            raise InputError(
                f"all rows of all clients are {classes[lowest]!r}; there is nothing to learn"
            )

    def sizes(self, part: str) -> dict[str, int]:
        """Rows of each client where they are."""
        return {name: self.facts[name].sizes.get(part, 0) for name in self.names}

    def fingerprints(self) -> dict[str, str]:
        """As each site computes it."""
        return {name: self.facts[name].fingerprint for name in self.names}

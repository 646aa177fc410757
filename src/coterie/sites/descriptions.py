"""The columns, categories and rows of a site as its plan states them, before anybody approves: `[deploy.described.SITE]`.

`coterie site describe` writes that table for a person at the site to read and send. What the site tells later must be no other, so no
site can change what all others make of their columns once the plan is approved.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from coterie.base.errors import InputError, nearest, plain
from coterie.base.files import read_toml, write_atomically
from coterie.base.outputs import write_output
from coterie.base.spelling import fold
from coterie.contract.encoding import HEAD
from coterie.data.tables.description import ColumnDescription, TableDescription
from coterie.data.tables.recipe import RARE
from coterie.run.experiment import Experiment
from coterie.sites.minima import public_description, table_withheld
from coterie.sites.settings import SiteSettings
from coterie.sites.tables import read_site, table_options

HEAD_OF_A_COLUMN = 1 << 10
"""Bytes in the head of a message for each column."""
QUOTES = 16
"""Bytes of the quotes of a text within a text within the head of a message."""
MANY_COLUMNS = 1000
"""Columns for which a head has room where the plan states none."""
Stated = str | tuple[str, ...]
"""A kind of column, or categories."""


@dataclass(frozen=True)
class SiteDescription:
    """The statements of a plan about one site.

    Attributes:
        rows: to train on, for each seed of the plan.
        label: its kind, or its values.
        columns: of each, its kind, or its categories with any seed.
    """

    rows: tuple[int, ...]
    label: Stated
    columns: dict[str, Stated]

    @classmethod
    def of(cls, descriptions: Iterable[TableDescription]) -> SiteDescription:
        """Join the descriptions of a site's table with each seed."""
        every = list(descriptions)
        columns = {
            name: _join([table.columns[name] for table in every])
            for name in every[0].columns
        }
        label = every[0].label
        return cls(
            tuple(table.rows for table in every),
            tuple(label.values) or label.kind,
            columns,
        )

    @classmethod
    def parse(cls, *, rows: Any, label: Any, columns: Any) -> SiteDescription:
        """Return what a table states, with tuples for the lists that files and messages have."""
        stated = {name: _hashable(kind) for name, kind in columns.items()}
        return cls(tuple(rows), _hashable(label), stated)

    def difference(self, description: TableDescription, seed: int) -> str:
        """Return a sentence about what a site tells otherwise with the seed of this number, or ""."""
        if description.rows != self.rows[seed]:
            return f"it describes {description.rows} rows, and the plan states {self.rows[seed]}"
        for name in sorted({*self.columns, *description.columns}):
            stated, column = self.columns.get(name), description.columns.get(name)
            if stated is None or column is None or not _fits(_state(column), stated):
                return f"its column {plain(name, 40)!r} is not as the plan states it"
        label: Stated = tuple(description.label.values) or description.label.kind
        if not _fits(label, self.label):
            return "its label is not as the plan states it"
        return ""


def _hashable(stated: Any) -> Stated:
    """What is stated of a column: its kind, or its categories as a tuple."""
    if isinstance(stated, str):
        return stated
    return tuple(stated)


def _state(column: ColumnDescription) -> Stated:
    return tuple(column.categories or ()) or column.kind


def _join(columns: list[ColumnDescription]) -> Stated:
    """The categories of all, or the kind of the first that is not empty."""
    categories = tuple(
        sorted({category for column in columns for category in column.categories or ()})
    )
    return categories or next(
        (column.kind for column in columns if column.kind != "empty"), "empty"
    )


def _fits(description: Stated, stated: Stated) -> bool:
    """Return True if a site tells what is stated, or nothing of it."""
    if description == "empty" or description == stated:
        return True
    if isinstance(description, str):  # no category has enough rows with this seed
        return description == "text" and isinstance(stated, tuple)
    return isinstance(stated, tuple) and {*description} <= {*stated}


def longest_head(stated: Mapping[str, SiteDescription]) -> int:
    """Return how many bytes may come before the tensors of a message about the tables of these sites, as their plan states them.

    A column has its entry in a description or a recipe, and each category its name there and among the features.
    """
    if not stated:
        return HEAD + HEAD_OF_A_COLUMN * MANY_COLUMNS
    longest = HEAD
    for site in stated.values():
        for name, kind in site.columns.items():
            longest += HEAD_OF_A_COLUMN
            if isinstance(kind, str):
                continue
            for category in kind:
                longest += 2 * (len(json.dumps([name, category])) + QUOTES)
    return longest


def parse_descriptions(
    table: Mapping[str, Any], sites: Collection[str]
) -> dict[str, SiteDescription]:
    """Return what a plan states of each of its sites. Raises `InputError` unless it states all of them, and nobody else."""
    for name in table:
        if name not in sites:
            raise InputError(
                f"described names {name!r}, which is not a site of the plan; {nearest(name, sites)}"
            )
    missing = [name for name in sites if name not in table]
    if missing:
        raise InputError(
            f"described must have a table of every site, and {', '.join(missing)} has none; let it write one with coterie site describe"
        )
    descriptions = {}
    for name, fields in table.items():
        try:
            description = SiteDescription.parse(**fields)
            valid = all(type(rows) is int for rows in description.rows)
            for kind in (description.label, *description.columns.values()):
                # The word for a kind, or the categories of a column.
                categories = [kind] if isinstance(kind, str) else kind
                for category in categories:
                    valid = valid and isinstance(category, str)
        except (TypeError, AttributeError):
            valid = False
        if not valid:
            raise InputError(
                f"described of {name!r} is not what coterie site describe writes; let the site write it again"
            )
        descriptions[name] = description
    return descriptions


def describe_site(
    experiment: Experiment, settings: SiteSettings, site: str
) -> list[TableDescription]:
    """Read a site's file as the plan would, with each seed, and return what it would tell. Raises `InputError` with file and cure."""
    options = table_options(experiment.data)
    split = experiment.split or None
    return [
        public_description(
            table_withheld(
                read_site(settings.data, site, options, seed=seed, split=split)[0],
                options,
                settings.minimum_cell,
            ),
            options,
        )
        for seed in experiment.split_seeds
    ]


def write_description(
    experiment: Experiment, settings: SiteSettings, site: str, file: Path
) -> str:
    """Write the table that states a site in the plan, to be appended there as it is, and return its text."""
    import tomli_w

    description = SiteDescription.of(describe_site(experiment, settings, site))
    text = tomli_w.dumps({"deploy": {"described": {site: asdict(description)}}})
    write_output(file, text)
    return text


def state_sites(plan: Path, files: Sequence[Path]) -> None:
    """Append to a plan what its sites have sent, one file each. A file of a site may state that site, and bring nothing else.

    Raises:
        InputError: a file holds another table than one of a single site, or the plan states that site already.
    """
    import tomli_w

    described: dict[str, Any] = {}
    stated = read_toml(plan).get("deploy", {}).get("described", {})
    for file in files:
        tables = read_toml(file)
        deploy = tables.get("deploy")
        sites: Any = {}
        if isinstance(deploy, dict):
            sites = deploy.get("described", {})
        if (
            not isinstance(sites, dict)
            or len(sites) != 1
            or tables != {"deploy": {"described": sites}}
        ):
            raise InputError(
                f"{file} holds more than the table of one site; let that site write it with coterie site describe"
            )
        (site,) = sites
        if site in stated or site in described:
            raise InputError(
                f"{file}: {plan} or another file states {plain(site, 40)!r} already; take one of the two out"
            )
        described |= sites
    text = (
        plan.read_text(encoding="utf-8")
        + "\n"
        + tomli_w.dumps({"deploy": {"described": described}})
    )
    write_atomically(plan, lambda p: p.write_text(text, encoding="utf-8"))


def check_file(
    described: Mapping[str, SiteDescription],
    experiment: Experiment,
    settings: SiteSettings,
    site: str,
) -> None:
    """Raise `InputError` if a site's file is not what the plan states of it."""
    if not described:
        return
    for number, description in enumerate(describe_site(experiment, settings, site)):
        why = described[site].difference(description, number)
        if why:
            raise InputError(
                f"{settings.data} is not what the plan states of {site}: {why}; write it again with coterie site describe, and send it"
            )


def difference(
    described: Mapping[str, SiteDescription],
    seeds: Sequence[int],
    site: str,
    description: TableDescription,
    seed: int,
) -> str:
    """Return a sentence about what a site tells otherwise than the plan states of it, or ""."""
    if not described:
        return ""
    return described[site].difference(description, seeds.index(seed))


def check_recipe(
    described: Mapping[str, SiteDescription], recipe: Mapping[str, Any]
) -> str:
    """Return which column of a recipe has a category that the plan states of no site, or ""."""
    if not described:
        return ""
    for column in recipe["columns"]:
        categories = {fold(RARE)}
        for site in described.values():
            stated = site.columns.get(column["name"])
            if isinstance(stated, tuple):
                categories |= {fold(category) for category in stated}
        named = {fold(category) for category in column.get("categories", ())}
        if not named <= categories:
            return str(column["name"])
    return ""

"""Check the tables of all clients in one go, and tell how alike the clients are. Nothing is trained."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.base.clients import Clients
from coterie.base.cures import Advice
from coterie.base.errors import InputError
from coterie.base.files import path_exists
from coterie.base.rows import tensors_by_name
from coterie.base.spelling import fold, spell
from coterie.config.data import Split, Tables
from coterie.data.tables.agreement import Draft, draft_recipe
from coterie.data.tables.cells import Column, Table
from coterie.data.tables.folder import (
    check_label,
    check_names,
    deal_table,
    fit_to,
    from_folder,
    from_tables,
    label_of,
    ready_tables,
    rules_of_rows,
)
from coterie.data.tables.read import (
    files_of,
    holds_arrays,
    notes_on_other_files,
    open_sheet,
    read,
    reading_of,
)
from coterie.data.tables.recipe import TableCohort, describe

_USUAL = Tables()

_SEVERAL_LABELS = "several labels"
# Shares of that many labels of a row are shown.
_LABELS_SHOWN = 6

_DOUBTS = (
    "drop what is known only afterwards",
    'say task = "regression")',
    "say which rows belong together (group)",
    "(if these are other words for the same classes, map them with classes)",
)
"""How notes end that say what a question asks."""


class Facts(NamedTuple):
    """One column at one client, over all rows.

    Attributes:
        kind: number, boolean, text, date, empty, or several labels (of a row).
        rows: rows of the table.
        missing: share of the rows, from 0 to 1.
        low, high, mean, deviation: of numbers (deviation: the standard one); None for texts.
        shares: of each text among those that are there, the largest first; of several labels a row that of rows with each label, in
            their order; empty for numbers.
    """

    kind: str
    rows: int
    missing: float
    low: float | None = None
    high: float | None = None
    mean: float | None = None
    deviation: float | None = None
    shares: Mapping[str, float] = {}


class Drift(NamedTuple):
    """The distance of a column of one client from the same column of all others together.

    Attributes:
        client, column: which.
        measure: "mean difference", in standard deviations (the root of the mean of both variances), with its sign; or "total
            variation", half the sum of the absolute differences of all shares, from 0 to 1.
        value: value of the measure.
        chance: what a client with so few values hardly ever exceeds if it is like the others.
    """

    client: str
    column: str
    measure: str
    value: float
    chance: float


@dataclass(frozen=True)
class TableCheck:
    """The findings of `check_tables`.

    Attributes:
        problems: sentences; with one of them no run would start. Questions, each with the setting for either answer, are among them.
            The settings are also objects: `cures` of each `Advice`.
        notes: sentences about what a run would leave out, map or impute.
        label: the column to predict; None if that is not known.
        columns: by column and client, in the order of the tables.
        drift: of every column that a run would use, the label among them, the largest first.
    """

    problems: tuple[str, ...]
    notes: tuple[str, ...]
    label: str | None
    columns: Mapping[str, Mapping[str, Facts]]
    drift: tuple[Drift, ...]

    @property
    def clients(self) -> dict[str, int]:
        """Rows by client."""
        rows: dict[str, int] = {}
        for by_client in self.columns.values():
            rows |= {name: facts.rows for name, facts in by_client.items()}
        return rows

    def to_json(self) -> dict[str, Any]:
        """The same for JSON."""
        columns: dict[str, dict[str, Any]] = {}
        for column, by_client in self.columns.items():
            columns[column] = {name: f._asdict() for name, f in by_client.items()}
        return {
            "problems": self.problems,
            "cures": [_lines_of_cures(problem) for problem in self.problems],
            "notes": self.notes,
            "label": self.label,
            "clients": self.clients,
            "columns": columns,
            "drift": [d._asdict() for d in self.drift],
        }


def _lines_of_cures(problem: str) -> list[str]:
    if not isinstance(problem, Advice):
        return []
    return [str(cure) for cure in problem.cures]


class _Problems(list[str]):
    """Sentences of errors that were met."""

    @contextmanager
    def collect(self) -> Iterator[None]:
        try:
            yield
        except InputError as error:
            self.append(Advice(str(error), error.cures))


def check_folder(
    path: str | Path,
    *,
    label: str | None = None,
    tables: Tables = _USUAL,
    split: Split | Mapping[str, Any] | None = None,
    seed: int = 0,
) -> TableCheck:
    """Check the tables of a folder, or one table, dealt to clients if `split` says how; arguments as for `from_folder`.

    Raises `InputError` for settings that are wrong whatever the files hold; problems of files are part of the answer.
    """
    settings = tables
    if label is not None:
        settings = replace(tables, label=label)
    path, problems = Path(path), _Problems()
    if path.is_dir():
        first_file = next(iter(files_of(path).values()))
        if holds_arrays(first_file, settings.arrays, settings.label):
            return _check_arrays(path, settings, split, seed)
    by_client: dict[str, Table] = {}
    notes: tuple[str, ...] = ()
    if path_exists(path, Path.is_file):
        is_dealt = Split.parse(split, kind=None).kind is not None
        with problems.collect():
            sheet = open_sheet(path, reading_of(settings))
            if is_dealt:
                by_client, notes = deal_table(sheet, settings, seed=seed, split=split)
            else:
                by_client = {sheet.name: sheet.table(reading_of(settings))}
        if is_dealt:
            split = rules_of_rows(split)
    else:
        for client, file in files_of(path).items():
            with problems.collect():
                by_client[client] = read(file, reading_of(settings, client))
        notes = tuple(notes_on_other_files(path))
    checked = check_tables(by_client, settings, problems, seed=seed, split=split)
    return replace(checked, notes=(*checked.notes, *notes))


def _check_arrays(
    path: Path, settings: Tables, split: Split | Mapping[str, Any] | None, seed: int
) -> TableCheck:
    """Check a folder of arrays: what stops a run, and the rows, shapes and classes of each client."""
    try:
        clients = from_folder(path, tables=settings, split=split, seed=seed)
    except InputError as error:
        return TableCheck((Advice(str(error), error.cures),), (), None, {}, ())
    columns: dict[str, dict[str, Facts]] = {}
    for client in clients:
        parts = [part for _, part in client.parts()]
        rows = sum(map(len, parts))
        for key, tensor in tensors_by_name(parts[0].read()).items():
            columns.setdefault(key, {})[client.name] = Facts(
                f"array {list(tensor.shape[1:])}", rows, 0.0
            )
        stored = torch.cat([part.labels for part in parts])
        columns.setdefault("label", {})[client.name] = _facts_of_labels(stored, clients)
    return TableCheck((), clients.notes, "label", columns, ())


def _facts_of_labels(labels: Tensor, clients: Clients) -> Facts:
    """Labels of a client: the share of each class, or of several labels a row that of the rows that have it."""
    if clients.multi_hot:
        # A bare number would read as a class: 0 and 1 are what a label can be.
        numbered = tuple(f"label {i}" for i in range(labels.shape[1]))
        names = clients.classes or numbered
        shares = labels.double().mean(0).tolist()
        by_name = dict(zip(names, shares, strict=True))
        return Facts(_SEVERAL_LABELS, len(labels), 0.0, shares=by_name)
    texts = np.array([*map(str, labels.tolist())], dtype=object)
    return facts_of(Column("text", None, texts))


def check_tables(
    tables: Mapping[str, Table],
    settings: Tables,
    problems: list[str] | None = None,
    *,
    seed: int = 0,
    split: Split | Mapping[str, Any] | None = None,
) -> TableCheck:
    """Check tables that could be read; `problems`: those of the others. One table alone is what a site can check."""
    collected = _Problems(problems or ())
    rule = Split.parse(split, natural="a folder of tables")
    notes: list[str] = []
    label: str | None = None
    ready: dict[str, Table] = {}
    draft: Draft | None = None
    if tables:
        with collected.collect():
            check_names(settings, tables)
        with collected.collect():
            label = label_of(settings, tables)
    if label is not None:
        for name, table in tables.items():
            with collected.collect():
                check_label(table, label, tables)
                alone = {name: table}
                fitting = fit_to(settings, alone)
                ready |= ready_tables(alone, fitting, rule, seed)[0]
    if ready:
        described = describe(
            TableCohort(ready),
            label=str(label),
            categorical=json.dumps(sorted(settings.categorical)),
            rare=settings.rare,
        )
        draft = draft_recipe(
            sorted(ready), described, fit_to(settings, ready), collected.collect
        )
        notes = draft["notes"]
    if tables and not collected:
        with collected.collect():
            clients = from_tables(
                tables,
                settings,
                "a folder of tables",
                name="checked",
                seed=seed,
                split=split,
            )
            notes = [
                note for note in clients.notes if not _is_asked(note, clients.questions)
            ]
            collected += clients.questions
    columns: dict[str, dict[str, Facts]] = {}
    for name, table in tables.items():
        for column, values in table.columns.items():
            columns.setdefault(column, {})[name] = facts_of(values)
    used = set(columns)
    if draft is not None:
        used = {str(label), *(column["name"] for column in draft["columns"])}
        if draft["label"].get("task") in ("classification", "time to event"):
            columns[str(label)] = {
                name: facts_of(_classes(table.columns[str(label)], settings))
                for name, table in ready.items()
            }
    used_columns = {name: facts for name, facts in columns.items() if name in used}
    return TableCheck(
        problems=tuple(dict.fromkeys(collected)),
        notes=tuple(notes),
        label=label,
        columns=columns,
        drift=_drifts(used_columns),
    )


def _is_asked(note: str, questions: Sequence[str]) -> bool:
    """Return True for a note on what a question is about, too."""
    units = "the same unit?"
    if units in note:
        return any(units in question for question in questions)
    subject = note.partition(": ")[0]
    return note.endswith(_DOUBTS) and any(q.startswith(subject) for q in questions)


def _classes(label: Column, settings: Tables) -> Column:
    """The label as texts, one per class."""
    if settings.above is None or label.numbers is None:
        return Column("text", None, label.value_names)
    texts = np.empty(len(label.numbers), dtype=object)
    is_above = label.numbers > settings.above
    texts[is_above] = f"> {spell(settings.above)}"
    texts[~is_above] = f"<= {spell(settings.above)}"
    return Column("text", None, texts)


def facts_of(column: Column) -> Facts:
    """Return the description of a column at one client."""
    present = column.present
    missing = 1 - float(present.mean())
    if column.numbers is None:
        shares: dict[str, float] = {}
        if column.kind == "text":
            counts = Counter(str(text) for text in column.value_names[present])
            shares = {text: n / counts.total() for text, n in counts.most_common()}
        return Facts(column.kind, len(column), missing, shares=shares)
    numbers = column.numbers[present]
    if not len(numbers) or not np.isfinite(numbers).all():
        return Facts(column.kind, len(column), missing)
    with np.errstate(over="ignore"):
        low, high, mean, deviation = (
            float(f(numbers)) for f in (np.min, np.max, np.mean, np.std)
        )
    if not np.isfinite(deviation):
        return Facts(column.kind, len(column), missing, low, high)
    return Facts(column.kind, len(column), missing, low, high, mean, deviation)


def _drifts(columns: Mapping[str, Mapping[str, Facts]]) -> tuple[Drift, ...]:
    drifts = []
    for column, by_client in columns.items():
        for name, at_client in by_client.items():
            other_facts = [
                facts for client, facts in by_client.items() if client != name
            ]
            drift = _drift(name, column, at_client, other_facts)
            if drift is not None:
                drifts.append(drift)

    def place(drift: Drift) -> tuple[float, str, str]:
        # Half a total variation counts like a whole standard deviation.
        unit = 1 if drift.measure == "mean difference" else 0.5
        return -abs(drift.value) / unit, drift.column, drift.client

    return tuple(sorted(drifts, key=place))


def _drift(
    client: str, column: str, at_client: Facts, other_facts: list[Facts]
) -> Drift | None:
    """The drift of a column with numbers at all clients, or texts at all; None for others."""
    present = [(facts, facts.rows * (1 - facts.missing)) for facts in other_facts]
    total = sum(rows for _, rows in present)
    is_empty_here_or_there = at_client.missing == 1 or not total
    if is_empty_here_or_there or at_client.kind == "date":
        return None
    # The variance of a difference of means, in squared standard deviations.
    noise = 1 / (at_client.rows * (1 - at_client.missing)) + 1 / total
    have_means = all(f.mean is not None or not n for f, n in present)
    if at_client.mean is not None and at_client.deviation is not None and have_means:
        moments: list[tuple[float, float, float]] = []
        for facts, n in present:
            if facts.mean is not None:
                moments.append((facts.mean, facts.deviation or 0.0, n / total))
        mean = sum(m * share for m, _, share in moments)
        # The variance of all other rows together: within clients and between their means.
        variance = sum((s**2 + (m - mean) ** 2) * share for m, s, share in moments)
        # Cohen's d, with the mean of both variances whatever their numbers of rows.
        scale = ((at_client.deviation**2 + variance) / 2) ** 0.5
        if scale == 0:
            return None
        difference = (at_client.mean - mean) / scale
        # Standard errors; four, since many columns of many clients are looked at.
        return Drift(client, column, "mean difference", difference, 4 * noise**0.5)
    kinds = {facts.kind for facts, n in present if n}
    if {*kinds, at_client.kind} != {"text"}:
        return None
    weighted_shares: list[tuple[str, float]] = []
    for facts, n in present:
        for text, share in facts.shares.items():
            weighted_shares.append((text, share * n / total))
    shares = _fold_shares(weighted_shares)
    client_shares = _fold_shares(at_client.shares.items())
    distance = 0.0
    for text in {**client_shares, **shares}:
        distance += abs(client_shares.get(text, 0.0) - shares.get(text, 0.0)) / 2
    # Its mean under no difference, and three times the most that its standard deviation can be.
    deviations = sum((p * (1 - p) * noise) ** 0.5 for p in shares.values())
    chance = deviations / (2 * math.pi) ** 0.5 + 1.5 * noise**0.5
    return Drift(client, column, "total variation", distance, chance)


def _fold_shares(shares: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Shares of categories, those that a run takes for one added up."""
    out: dict[str, float] = {}
    for text, share in shares:
        out[fold(text)] = out.get(fold(text), 0.0) + share
    return out


def short(facts: Facts) -> str:
    """The facts in a few words.

    >>> short(Facts("number", 10, .25, 1.0, 2.5, 2.0, .5)), short(Facts("text", 4, 0, shares={"a": .75, "b": .25}))
    ('1 to 2.5, 25% missing', 'a 75%, b 25%')
    >>> short(Facts("number", 2000, 0, shares={"0": .998, "1": .002}))
    '0 99.8%, 1 0.2%'
    >>> short(Facts("several labels", 40, 0, shares={"sad": .5, "long": .75, "old": .1}))
    'sad 50%, long 75%, old 10%'
    """
    if facts.low is not None and facts.high is not None:
        text = f"{_round(facts.low)} to {_round(facts.high)}"
    elif facts.shares:
        # Classes are told by the most frequent two; each of several labels says something of its own.
        shown = _LABELS_SHOWN if facts.kind == _SEVERAL_LABELS else 2
        text = ", ".join(
            f"{name[:16]} {_percent(share)}"
            for name, share in list(facts.shares.items())[:shown]
        )
        if len(facts.shares) > shown:
            text += f" and {len(facts.shares) - shown} more"
    else:
        text = facts.kind
    if 0 < facts.missing < 1:
        text += f", {facts.missing:.0%} missing"
    return text


def _percent(share: float) -> str:
    """A share in percent, with a digit more where it would be taken for none or all."""
    text = f"{share:.0%}"
    if text in ("0%", "100%") and share not in (0, 1):
        return f"{share:.1%}"
    return text


def _round(value: float) -> str:
    return spell(float(f"{value:.4g}"))

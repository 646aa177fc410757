"""Agree on a recipe: on columns, categories and the label from what each client tells, then on means and scales."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor

from coterie.base.cures import Advice, Cure, either
from coterie.base.errors import InputError, nearest
from coterie.base.spelling import (
    alike,
    fold,
    listing,
    names_event,
    names_time_to_event,
    spell,
    variants,
)
from coterie.config.data import Tables
from coterie.data.tables import recipe
from coterie.data.tables.cells import complaint, cures_of, with_signs
from coterie.data.tables.description import MANY_CATEGORIES
from coterie.data.tables.intervals import agree_on_form
from coterie.data.tables.recipe import (
    ENOUGH_TO_TELL,
    RARE,
    ColumnRecipe,
    Description,
    LabelRecipe,
    Recipe,
    describe,
    scale_of_bounds,
)

FEW_NUMBERS = 20
"""Distinct numbers that are not whole: a label with more of them is a quantity, with fewer it has classes."""

MANY_CLASSES = 50
"""A label with more distinct values needs the user's word on what it is."""

FEW_CLASSES = 10
"""Whole numbers up to so many are taken for classes without a remark."""

LONGEST = 300
"""Characters of a sentence."""

UNITS_OF_TIME = ("days", "weeks", "months", "years")
"""Names of a column of times that say its unit."""

MAPPING = "classes = {no = [...], yes = [...]}"
"""What a sentence says where only the user knows which value means what."""

_WORDS = {
    "no": {"0", "no", "n", "false", "negative", "neg", "absent", "control"},
    "yes": {"1", "yes", "y", "true", "positive", "pos", "present", "case"},
}
"""Words of a label that mean the same everywhere, folded."""

FEW_CATEGORIES = 30
"""Texts up to so many are taken for categories without a remark."""

Told = dict[str, dict[str, Any]]


class Draft(Recipe):
    """A recipe without means and scales, and the training rows of each client that they are to be taken over."""

    training_rows: dict[str, int]


FitForm = Callable[[LabelRecipe, Callable[..., Any]], LabelRecipe]
"""Fits the form of a label of time to event or of counts: its intervals and rates."""


def agree(
    names: Sequence[str],
    settings: Tables,
    ask: Callable[..., Any],
    fit_form: FitForm = agree_on_form,
) -> Recipe:
    """Fit the recipe of the clients `names` (sorted) in two exchanges; `ask(task, **payload)` puts a task to all of them."""
    described = ask(
        describe,
        label=settings.label,
        categorical=json.dumps(sorted(settings.categorical)),
        rare=settings.rare,
    )
    return fit_recipe(draft_recipe(names, described, settings), ask, fit_form)


Guard = Callable[[], AbstractContextManager[Any]]
"""Makes what surrounds each thing that clients must agree on: nothing, or what notes an error and lets the next one be looked at."""


def draft_recipe(
    names: Sequence[str],
    described: Description,
    settings: Tables,
    guard: Guard = nullcontext,
) -> Draft:
    """The columns, categories and classes that the clients `names` agree on; means and scales come later.

    Raises `InputError` that names client, file and column where they cannot agree, unless `guard` keeps it.
    """
    clients: Told = {
        name: json.loads(text) for name, text in zip(names, described.text, strict=True)
    }
    everywhere = {c for client in clients.values() for c in client["columns"]}
    dropped = settings.columns_to_drop()
    of_label = {settings.label, settings.time, settings.entry, settings.exposure}
    of_label.add(settings.weights)
    for key, named in (
        ("drop", dropped),
        ("categorical", settings.categorical),
        ("missing", settings.missing),
        ("not_missing", settings.not_missing),
        ("lists", settings.lists),
        ("bounds", settings.bounds),
    ):
        for column in named:
            with guard():
                if column not in everywhere | of_label:
                    raise InputError(
                        f"{key} names column {column!r}, which no client has; {nearest(column, everywhere)}"
                    )
    for sentence in _near_names(clients, everywhere - set(dropped)):
        with guard():
            raise InputError(sentence)
    columns: list[ColumnRecipe] = []
    left_out: dict[str, list[str]] = {"as asked": sorted(dropped)} if dropped else {}
    remarks: dict[str, list[str]] = {}
    of_survival = names_event(str(settings.label))
    leading = next(iter(clients.values()))["columns"]
    ordered = [c for c in leading if c in everywhere] + sorted(
        everywhere - set(leading)
    )
    for column in (c for c in ordered if c not in dropped):
        with guard():
            chosen = column in settings.categorical or column in settings.lists
            spec, notes = _column(column, clients, chosen)
            if spec is not None and column in settings.lists:
                spec["separator"] = settings.lists[column]
            is_number = spec is not None and spec["kind"] == "number"
            names_time = of_survival and names_time_to_event(column)
            if is_number and names_time and column not in settings.keep:
                said = f"survival: the time beside {settings.label}, known only afterwards; an event counts whenever it was"
                of_event = f'time = "{column}", event = "{settings.label}" predict when, and keep uses it'
                spec, notes = None, [f"{said}; {of_event}"]
            is_category = spec is not None and spec["kind"] != "number"
            if is_category and column in settings.bounds:
                raise InputError(
                    f"bounds names column {column!r}, whose values are categories and have none; take it out of bounds"
                )
            if spec is not None and spec["kind"] == "number" and settings.bounds:
                if column in settings.bounds:
                    bounds = scale_of_bounds(*settings.bounds[column])
                    spec["mean"], spec["scale"] = bounds
                else:
                    spec, notes = None, ["without bounds; bounds uses it"]
            if spec is not None:
                columns.append(spec)
            for note in notes:
                (remarks if spec else left_out).setdefault(note, []).append(column)
    about_label: list[str] = []
    label = cast(
        "LabelRecipe", {}
    )  # as it stays where the guard keeps what is wrong with it
    with guard():
        label = _label(clients, settings)
        if settings.weights is not None:
            label["weights"] = settings.weights
        if settings.ordered:
            _check_order(label, settings)
            label["ordered"] = True
        if label["task"] == "regression" and settings.bounds:
            _scale_label(label, settings.bounds)
        about_label = [
            f"label {settings.label}: {remark}"
            for remark in _remarks_on_classes(label, clients, settings)
        ]
    draft: Draft = {
        "version": 2,
        "label": label,
        "columns": columns,
        "features": [],
        "missing": {k: list(v) for k, v in sorted(settings.missing.items())},
        "rename": {
            old_name: new_name
            for names in settings.rename.values()
            for old_name, new_name in names.items()
        },
        "training_rows": {name: client["rows"] for name, client in clients.items()},
        "notes": about_label
        + [
            f"left out: {', '.join(names)} ({reason})"
            for reason, names in left_out.items()
        ]
        + [f"{', '.join(named)}: {remark}" for remark, named in remarks.items()],
    }
    if settings.not_missing:
        draft["not_missing"] = {k: list(v) for k, v in settings.not_missing.items()}
    return draft


def _scale_label(label: LabelRecipe, bounds: Mapping[str, Sequence[float]]) -> None:
    """Scale a label to regress on by its bounds. Raises `InputError` where columns have bounds and it has none."""
    name = label["column"]
    if name not in bounds:
        raise InputError(
            f"bounds names no label, and {name!r} is a number; give bounds.{name} = [LEAST, LARGEST]"
        )
    label["mean"], label["scale"] = scale_of_bounds(*bounds[name])


def _near_names(clients: Told, columns: set[str]) -> Iterator[str]:
    """A sentence for every two columns that no client has both of and whose names are probably one."""
    have: dict[str, set[str]] = {}
    for column in sorted(columns):
        owners = {n for n, client in clients.items() if column in client["columns"]}
        if len(owners) < len(clients):
            have[column] = owners
    # The sort is stable: columns of as many clients stay in the order of their names.
    partial = sorted(have, key=lambda column: len(have[column]))
    for i, name in enumerate(partial):
        # The commonest name first: one answer is enough where several clients have names of their own.
        for candidate in reversed(partial[i + 1 :]):
            if not have[name] & have[candidate] and alike(name, candidate):
                client, other = min(have[name]), min(have[candidate])
                cures = Cure("rename", {name: candidate}), Cure("drop", [name])
                yield Advice(
                    f"{clients[client]['source']} has a column {name!r} where {other!r} has {candidate!r}; are they the same? Then say "
                    f"{cures[0]}, else {cures[1]}",
                    cures,
                )


Drafted = tuple[ColumnRecipe | None, list[str]]
"""The column as the recipe takes it and remarks on it, or None and the one reason to leave it out."""


def _column(column: str, clients: Told, chosen: bool) -> Drafted:
    have = {
        name: client["columns"][column]
        for name, client in clients.items()
        if column in client["columns"]
    }
    if 2 * len(have) <= len(clients) and len(have) < len(clients):
        return None, [f"only at {listing(list(have))}"]
    if len(have) < len(clients):
        return None, [f"not at {listing(sorted(set(clients) - set(have)))}"]
    for name, told in have.items():
        if "problem" in told:
            kind, (row, cell) = told["problem"], told["example"]
            cures = cures_of(column, kind, cell)
            raise InputError(
                Advice(
                    f"{clients[name]['source']}: column {column!r} {complaint(kind, row, cell)}, or say {either(cures)}",
                    cures,
                )
            )
    have = {name: told for name, told in have.items() if told["kind"] != "empty"}
    kinds = {told["kind"] for told in have.values()}
    if not kinds:
        return None, ["missing at every client"]
    mixes_dates = "date" in kinds and bool(kinds & {"number", "boolean"})
    if mixes_dates and not chosen:
        dates = next(n for n, told in have.items() if told["kind"] == "date")
        site = next(n for n, told in have.items() if told["kind"] != "date")
        drop = Cure("drop", [column])
        raise InputError(
            Advice(
                f"{clients[dates]['source']}: column {column!r} holds dates or times but {have[site]['kind']}s at {site!r}; write it "
                f"the same way in all files, or say {drop}",
                [drop],
            )
        )
    if "date" in kinds:
        return None, [
            "dates or times; turn them into numbers, such as days since a start, to use them"
        ]
    mixes_texts = "text" in kinds and len(kinds) > 1
    if mixes_texts and not chosen:
        # A column of which a client knows nothing, but writes "unknown", is empty there.
        for name, told in [*have.items()]:
            if told["kind"] == "text" and told["unknown"]:
                del have[name]
        kinds = {told["kind"] for told in have.values()}
        mixes_texts = "text" in kinds and len(kinds) > 1
    if mixes_texts and not chosen:
        texts = next(n for n, told in have.items() if told["kind"] == "text")
        client = next(n for n, told in have.items() if told["kind"] != "text")
        row, example = have[texts]["example"]
        cures = cures_of(column, "text", example)
        raise InputError(
            Advice(
                f"{clients[texts]['source']}: column {column!r} is text ({example!r} in data row {row}) but {have[client]['kind']} "
                f"at {client!r}; correct that cell, or say {either(cures)}",
                cures,
            )
        )
    if kinds <= {"number", "boolean"} and not chosen:
        return _numbers(column, clients, have)
    return _category(column, have, chosen)


def _numbers(column: str, clients: Told, have: Told) -> Drafted:
    signs = _signs(f"column {column!r}", clients, have, [Cure("drop", [column])])
    rows = sum(clients[name]["rows"] for name in have)
    are_enough = rows >= ENOUGH_TO_TELL
    if are_enough and all(about.get("identifier") for about in have.values()):
        return None, [
            "whole numbers that hardly ever repeat under such a name: an identifier"
        ]
    remarks = []
    written, written_at = _join_told(have, "signs")
    if written:
        words = with_signs(sorted(written)).removeprefix("with ")
        remarks.append(f"read as numbers, without the {words} ({written_at})")
    unknown, unknown_at = _join_told(have, "unknown")
    if unknown:
        words = listing(sorted(map(repr, unknown)))
        remarks.append(f"{words} taken as missing ({unknown_at})")
    if are_enough and all(about.get("unique") for about in have.values()):
        remarks.append(
            "whole numbers that never repeat, kept as numbers (drop what only identifies rows)"
        )
    spec: ColumnRecipe = {"name": column, "kind": "number"}
    if signs:
        spec["signs"] = signs
    return spec, remarks


def _join_told(have: Told, key: str) -> tuple[set[str], str]:
    """Return the values that clients tell under `key`, and list the clients that tell any."""
    values: set[str] = set()
    owners = []
    for name, about in have.items():
        values.update(about[key])
        if about[key]:
            owners.append(name)
    return values, listing(owners)


def _signs(
    column: str, clients: Told, have: Told, cures: Sequence[Cure] = ()
) -> list[str]:
    """The signs of a column of numbers, the same at all clients, thousands commas apart. Raises `InputError` if they differ."""
    by_client = {
        name: sorted({*about["signs"]} - {","}) for name, about in have.items()
    }
    reference = next(iter(by_client))
    for name, signs in by_client.items():
        if signs != by_client[reference]:
            choice = f", or say {either(cures)}" if cures else ""
            raise InputError(
                Advice(
                    f"{clients[name]['source']}: {column} has numbers {with_signs(signs)} but {with_signs(by_client[reference])} at "
                    f"{reference!r}; write it the same way in all files{choice}",
                    cures,
                )
            )
    return by_client[reference]


def _category(column: str, have: Told, chosen: bool) -> Drafted:
    if not chosen:
        is_identifier = any(about["identifier"] for about in have.values())
        if is_identifier or all(about["unique"] for about in have.values()):
            return None, ["every row has its own text: an identifier"]
        most = max(about["distinct"] for about in have.values())
        if most > MANY_CATEGORIES:
            return None, [
                f"{most} different texts at one client; name it in categorical to keep it"
            ]
    pooling = [name for name, about in have.items() if about["pooled"]]
    spelled, _ = _join_told(have, "categories")
    if not spelled and pooling:
        return None, ["every category is rare"]
    if not spelled:
        return None, ["no value in any client's training rows"]
    remarks = []
    # Spellings of one category become one; a category with one spelling stays as it is written.
    merged_text: dict[str, str] = {}
    for group in variants(spelled):
        remarks.append(f"{', '.join(map(repr, group))} are one category")
        merged_text.update({text: fold(text) for text in group})
    folded: dict[str, set[str]] = {}
    owners: Counter[str] = Counter()
    for name, about in have.items():
        if about["categories"]:
            folded[name] = set(map(fold, about["categories"]))
            owners.update(folded[name])
    strange = []
    for name, texts in folded.items():
        if len(folded) > 1 and all(owners[text] == 1 for text in texts):
            strange.append(name)
    if strange:
        remarks.append(
            f"no category in common with other clients at {listing(strange)} (other words for the same?)"
        )
    categories = sorted({merged_text.get(text, text) for text in spelled})
    if len(categories) > FEW_CATEGORIES and not chosen:
        remarks.append(
            f"{len(categories)} categories, an input for each (drop free text; the setting rare pools small ones)"
        )
    spec: ColumnRecipe = {
        "name": column,
        "kind": "category",
        "categories": categories,
    }
    if pooling:
        spec |= {"categories": [*categories, RARE], "rare": True}
        remarks.append(
            f"categories of too few training rows (rare) are pooled ({listing(pooling)})"
        )
    return spec, remarks


def _label(clients: Told, settings: Tables) -> LabelRecipe:
    """Task, values and classes of the label."""
    name = str(settings.label)
    labels = {client: what["label"] for client, what in clients.items()}
    kinds = {a["kind"]: client for client, a in labels.items()}
    if len(kinds) > 1:
        (kind_here, client), (kind_there, other) = sorted(kinds.items())[:2]
        cures = map_to_classes(v for a in labels.values() for v in a["values"])
        raise InputError(
            Advice(
                f"label {name!r} is {kind_here} at {client!r} ({clients[client]['source']}) but {kind_there} at {other!r} "
                f"({clients[other]['source']}); write it the same way in all files, or map all values, the positive class last: "
                f"{either(cures) if cures else MAPPING}",
                cures,
            )
        )
    kind = next(iter(kinds))
    signs = _signs(f"label {name!r}", clients, labels)
    values = sorted({v for a in labels.values() for v in a["values"]})
    if settings.event is not None:
        return _time_to_event(settings)
    if settings.exposure is not None:
        return _counts(settings)
    _refuse_variants(name, labels)
    distinct = max([len(values), *(a["distinct"] for a in labels.values())])
    integers = all(a["whole"] for a in labels.values())
    spec = LabelRecipe(
        column=name, task="classification", kind=kind, above=None, values=[], classes=[]
    )
    if settings.spellings:
        spec["spellings"] = dict(settings.spellings)
    if signs:
        spec["signs"] = signs
    if settings.meaning:
        spec["meaning"] = settings.meaning
    if settings.unit:
        spec["unit"] = settings.unit
    if settings.above is not None:
        if kind != "number":
            raise InputError(
                f"above = {settings.above} needs a label of numbers, but {name!r} is {kind}"
            )
        spec["above"], spec["classes"] = settings.above, _cut_at(name, settings.above)
    elif _is_quantity(name, kind, distinct, integers, settings.task):
        spec["task"] = "regression"
        if integers and values and float(min(values, key=float)) >= 0:
            spec["count"] = True
        return spec
    else:
        if settings.spellings:
            values = [
                c for c in dict.fromkeys(settings.spellings.values()) if c in values
            ]
        elif kind == "number":
            values = sorted(values, key=float)
        if len(values) <= 1:
            raise InputError(
                f"label {name!r} is {values[0] if values else 'missing'} in every row of every client; there is nothing to learn"
            )
        spec["values"] = spec["classes"] = values
    if settings.class_names:
        if len(settings.class_names) != len(spec["classes"]):
            raise InputError(
                f"classes has {len(settings.class_names)} names but label {name!r} has {len(spec['classes'])} classes: "
                f"{', '.join(spec['classes'])}"
            )
        spec["classes"] = list(settings.class_names)
    return spec


def _check_order(label: LabelRecipe, settings: Tables) -> None:
    """Raise `InputError` for a label whose classes have no order that is known."""
    name, values = label["column"], label["values"]
    if label["task"] != "classification" or len(values) < 3:
        raise InputError(
            f"ordered is about three classes or more, and label {name!r} has {len(values) or 'numbers'}; drop ordered"
        )
    if label["kind"] != "number" and not settings.spellings:
        cure = Cure("classes", {value: [value] for value in values})
        raise InputError(
            Advice(
                f"label {name!r} is text, whose order nobody knows; say it, the lowest first, such as {cure}",
                [cure],
            )
        )


def _without_classes(column: str | None, task: str) -> LabelRecipe:
    """The label of a form in which a row has numbers and no class."""
    return LabelRecipe(
        column=str(column), task=task, kind="number", above=None, values=[], classes=[]
    )


def _time_to_event(settings: Tables) -> LabelRecipe:
    """The label of time to event as the settings say it; intervals come later."""
    spec = _without_classes(settings.event, "time to event")
    spec["time"] = str(settings.time)
    if settings.entry is not None:
        spec["entry"] = settings.entry
    if settings.event_is:
        spec["event_is"] = list(settings.event_is)
    if settings.horizon is not None:
        spec["horizon"] = float(settings.horizon)
    if settings.meaning:
        spec["meaning"] = settings.meaning
    if settings.unit or str(settings.time) in UNITS_OF_TIME:
        spec["unit"] = settings.unit or str(settings.time)
    return spec


def _counts(settings: Tables) -> LabelRecipe:
    """The label of counts with exposure as the settings say it; the rate comes later."""
    spec = _without_classes(settings.label, "counts")
    spec["exposure"] = str(settings.exposure)
    if settings.meaning:
        spec["meaning"] = settings.meaning
    return spec


def map_to_classes(values: Iterable[str]) -> list[Cure]:
    """Return the mapping of a label's values to no and yes; nothing where a value is not known to mean either.

    >>> [str(cure) for cure in map_to_classes(["0", "yes", "1", "No"])]
    ['classes = {"no" = ["0", "No"], "yes" = ["1", "yes"]}']
    """
    by_class: dict[str, list[str]] = {"no": [], "yes": []}
    for value in sorted(set(values)):
        name = next((key for key, words in _WORDS.items() if fold(value) in words), "")
        if not name:
            return []
        by_class[name].append(value)
    return [Cure("classes", by_class)] if all(by_class.values()) else []


def _cut_at(name: str, threshold: float) -> list[str]:
    """Class names of a label that is cut at `threshold`."""
    return [f"{name} <= {spell(threshold)}", f"{name} > {spell(threshold)}"]


def _remarks_on_classes(
    label: LabelRecipe, clients: Told, settings: Tables
) -> Iterator[str]:
    """Return remarks on classes: numbers that may be quantities, classes of one client, clients of one class."""
    count = len(label["values"])
    if label["kind"] == "number" and count > 2:
        integers = all(client["label"]["whole"] for client in clients.values())
        is_guess = not settings.task and not settings.classes
        if is_guess and (count > FEW_CLASSES or not integers):
            yield f'{count} numbers, taken as classes (if they are a quantity, say task = "regression")'
        if count <= FEW_CLASSES:
            low, high = label["values"][0], label["values"][-1]
            yield f"classes {low} to {high} have an order that models do not use; the mean class error says how far off they are"
    if len(clients) == 1 or not label["values"]:
        return
    single = []
    mixed: dict[str, list[str]] = {}
    owners: Counter[str] = Counter()
    for client, statement in clients.items():
        values = statement["label"]["values"]
        if len(values) == 1:
            single.append(f"{client} ({values[0]!r})")
        elif values:
            mixed[client] = values
            owners.update(values)
    if single:
        yield f"one class only at {listing(single)}"
    exclusive = []
    for client, values in mixed.items():
        alone = [repr(value) for value in values if owners[value] == 1]
        if alone:
            exclusive.append(f"{listing(alone)} only at {client}")
    if exclusive and len(mixed) > 1:
        yield f"{listing(exclusive)} (if these are other words for the same classes, map them with classes)"


def _refuse_variants(name: str, labels: Told) -> None:
    """Raise `InputError` for values of the label that are only spelled differently."""
    values = sorted({v for a in labels.values() for v in a["values"]})
    for group in variants(values):
        where = []
        for text in group:
            owners = [n for n, about in labels.items() if text in about["values"]]
            where.append(f"{text!r} at {listing(owners)}")
        question = (
            f"label {name!r} is {' and '.join(where)}: one class or {len(group)}? Write it the same way in all files, or map "
            "all values, the positive class last: "
        )
        by_class: dict[str, list[str]] = {}
        for value in values:
            by_class.setdefault(fold(value), []).append(value)
        cure = Cure("classes", dict(sorted(by_class.items())))
        if len(question) + len(str(cure)) >= LONGEST:
            raise InputError(f"{question}{MAPPING}")
        raise InputError(Advice(f"{question}{cure}", [cure]))


def _is_quantity(
    name: str, kind: str, distinct: int, integers: bool, task: str | None
) -> bool:
    """Return True if the label is a number to regress on; an error where a guess would be a gamble."""
    if kind == "date":
        raise InputError(f"label {name!r} holds dates; predict a number or a class")
    if task == "regression":
        if kind not in ("number", "boolean"):
            raise InputError(
                f"regression needs a label of numbers, but {name!r} is {kind}"
            )
        return True
    if kind == "number" and not integers and distinct > FEW_NUMBERS and task is None:
        return True
    limit = MANY_CATEGORIES if task == "classification" else MANY_CLASSES
    if distinct > limit:
        start = f"label {name!r} has {distinct} different values; "
        if task is not None or kind != "number":
            raise InputError(
                f"{start}at most {limit} classes can be told apart here; choose another label"
            )
        cures = [Cure("task", "regression")]
        if distinct <= MANY_CATEGORIES:
            cures.append(Cure("task", "classification"))
        raise InputError(Advice(f"{start}say {either(cures)}", cures))
    return False


def fit_recipe(
    draft: Draft, ask: Callable[..., Any], fit_form: FitForm = agree_on_form
) -> Recipe:
    """`draft` (of `describe.draft_recipe`) with the mean and scale of each column of numbers, and of a label to regress on.

    `ask(task, **payload)` puts a task to all clients; its reply has a leading client dimension. The result survives
    JSON unchanged.
    """
    numbers = [c for c in draft["columns"] if c["kind"] == "number"]
    if draft["label"]["task"] in ("time to event", "counts"):
        draft["label"] = fit_form(draft["label"], ask)
    label, names = draft["label"], [c["name"] for c in numbers]
    if any("scale" in column for column in numbers) or "scale" in label:
        return _with_features(draft, draft["columns"], draft["notes"])
    schema = [*names, label["column"]] if label["task"] == "regression" else names
    replies = ask(recipe.moments, schema=json.dumps(schema))
    count = replies.counts.sum(0)
    mean = (replies.counts * replies.means).sum(0) / count.clamp(min=1)
    squares = (
        replies.squares + replies.counts * (replies.means - mean) ** 2
    )  # Chan, Golub, LeVeque 1983, eq. 1.5b
    variance = squares.sum(0) / count.clamp(min=1)
    pooled, extents = torch.stack([mean, variance]), replies.squares + replies.means**2
    for j, column in enumerate(numbers):
        cures = [Cure("drop", [column["name"]])]
        column["mean"], column["scale"] = _scale(
            f"column {column['name']!r}", pooled[:, j], extents[:, j], draft, cures
        )
    if label["task"] == "regression":
        label["mean"], label["scale"] = _scale(
            f"label {label['column']!r}", pooled[:, -1], extents[:, -1], draft
        )
        if _is_constant(label["mean"], float(variance[-1])):
            raise InputError(
                f"label {label['column']!r} is {label['mean']:g} in all training rows of all clients; there is nothing to learn"
            )
    empty = {c["name"] for j, c in enumerate(numbers) if count[j] == 0}
    columns = [c for c in draft["columns"] if c["name"] not in empty]
    notes = (
        [
            f"left out: {', '.join(sorted(empty))} (no value in any client's training rows)"
        ]
        if empty
        else []
    )
    notes += _mostly_missing(numbers, replies.counts, draft)
    questions = recipe.ask_about_units(schema, replies, list(draft["training_rows"]))
    return _with_features(draft, columns, [*questions, *draft["notes"], *notes])


def _with_features(
    draft: Draft, columns: list[ColumnRecipe], notes: list[str]
) -> Recipe:
    """The recipe of a draft whose columns have their scales."""
    if not columns:
        why = "; ".join(notes) or "the tables hold those of the label alone"
        raise InputError(f"no column is left to learn from; {why}")
    features = []
    for column in columns:
        name = column["name"]
        if column["kind"] == "number":
            features.append(name)
        else:
            features += [f"{name}={value}" for value in column["categories"]]
    fitted: Recipe = {
        "version": draft["version"],
        "label": draft["label"],
        "columns": columns,
        "features": features,
        "missing": draft["missing"],
        "rename": draft["rename"],
        "notes": notes,
    }
    if "not_missing" in draft:
        fitted["not_missing"] = draft["not_missing"]
    return fitted


def _scale(
    column: str,
    moments_of: Tensor,
    extents: Tensor,
    draft: Draft,
    cures: Sequence[Cure] = (),
) -> tuple[float, float]:
    """Return mean and scale from the pooled mean and variance. `extents`: squares of each client, for the name of the one to blame."""
    mean, variance = moments_of.tolist()
    if not math.isfinite(mean) or not math.isfinite(variance):
        sentence = f"{column} holds numbers too large to square"
        are_finite = torch.isfinite(extents).tolist()
        names = zip(draft["training_rows"], are_finite, strict=True)
        where = [name for name, is_finite in names if not is_finite]
        if where:
            sentence += f" at {listing(where)}"
        sentence += "; rescale it"
        if cures:
            sentence += f" or say {either(cures)}"
        raise InputError(Advice(sentence, cures))
    if _is_constant(mean, variance):
        return mean, 1.0  # its values are 0, and stay so
    return mean, variance**0.5


def _is_constant(mean: float, variance: float) -> bool:
    """Return True if numbers with these moments are all the same, up to rounding."""
    return bool(variance**0.5 <= 1e-9 * max(abs(mean), 1e-300))


def _mostly_missing(
    numbers: list[ColumnRecipe], count: Tensor, draft: Draft
) -> list[str]:
    notes = []
    for j, column in enumerate(numbers):
        if count[:, j].sum() == 0:
            continue
        where = []
        for i, (name, rows) in enumerate(draft["training_rows"].items()):
            present = int(count[i, j])
            if present < 0.5 * rows:
                where.append(f"{name} ({1 - present / rows:.0%})")
        if where:
            notes.append(
                f"{column['name']} is mostly missing at {', '.join(where)}: the mean of all clients stands in"
            )
    return notes

"""[[methods]] entries: their labels, their local training, and the settings of each that `--tune` tries."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from coterie.base.errors import InputError, cut, nearest
from coterie.config.local import LocalSGD
from coterie.config.run import MethodEntry, Tuning
from coterie.config.schema import options_of

LOCAL_GRID: Mapping[str, list[Any]] = {"local.lr": [0.03, 0.1, 0.3]}
METHOD_GRIDS: Mapping[str, Mapping[str, list[Any]]] = {
    "fedprox": {"mu": [0.01, 0.1, 1.0]},
    "meritfed": {"md_step": [0.1, 0.3, 1.0, 3.0]},
}


def method_table(
    name: str, presets: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
) -> dict[str, Any]:
    """The [[methods]] entry of `NAME`, or of `NAME+PART`, whose clients tune that part of the model after training.

    Args:
        name: what was typed.
        presets: entries with settings, by label.
    """
    if name in presets:
        return dict(presets[name])
    plain, plus, part = name.rpartition("+")
    if not plus or ".py:" in part:
        return {"name": name}
    entry = {**presets.get(plain, {"name": plain}), "personalise": {"part": part}}
    if "label" in entry:
        entry["label"] = f"{entry['label']}+{part}"
    return entry


def label_of(table: Mapping[str, Any]) -> str:
    """Return the label of a [[methods]] entry: its own, else its name (that of a class in a file in lower case) and what is tuned.

    >>> label_of({"name": "own.py:Mine"}), label_of({"name": "fedavg", "personalise": {"part": "bias"}})
    ('mine', 'fedavg+bias')
    """
    name, tuning = str(table["name"]), table.get("personalise")
    if ".py:" in name:
        name = name.rpartition(":")[2].lower()
    if isinstance(tuning, Mapping):
        name += f"+{tuning.get('part', Tuning().part)}"
    return str(table.get("label", name))


def override_local(
    below: Mapping[str, Any], above: Mapping[str, Any]
) -> dict[str, Any]:
    """Settings of local training with those `above` in place of those `below`; epochs take the place of steps."""
    replaced = {
        key
        for option in options_of(LocalSGD)
        if set(option.keys) & set(above)
        for key in option.keys
    }
    return {**{k: v for k, v in below.items() if k not in replaced}, **above}


def unset_local(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, str]:
    """The words that take away what [local] sets `below` and a method's own local training leaves out."""
    options = {option.name: option for option in options_of(LocalSGD)}
    return {
        key: options[key].none
        for key in below
        if key not in above and key in options and options[key].none
    }


def names_of(entries: Iterable[MethodEntry]) -> set[str]:
    """Return the words with which a key of a [tune] table may begin."""
    return {"local", *(name for entry in entries for name in (entry.label, entry.name))}


def _split_key(key: str, names: Collection[str]) -> tuple[str, str]:
    """Return the method whose setting a key means, and the setting; the name of a method may have dots."""
    label = max(
        (name for name in names if key.startswith(f"{name}.")),
        key=len,
        default=key.partition(".")[0],
    )
    return label, key[len(label) + 1 :]


def check_grid(
    grid: Mapping[str, Any], entries: Sequence[MethodEntry], where: str
) -> None:
    """Raise `InputError` unless every key of a [tune] table names a method or `local`, and every value is a list."""
    labels = names_of(entries)
    for key, values in grid.items():
        if isinstance(values, Mapping):
            named = ", ".join(f'"{key}.{field}" = [...]' for field in values)
            raise InputError(
                f"{where}: {key!r} is a table of its own; write {named} in [tune]"
            )
        label, field = _split_key(key, labels)
        if label not in labels:
            raise InputError(
                f"{where}: {key!r} names no method; {nearest(label, labels)}"
            )
        if not field:
            raise InputError(
                f'{where}: {key!r} names no setting; write "{key}.FIELD" = [...]'
            )
        filled = isinstance(values, list) and bool(values)
        if not filled:
            raise InputError(
                f"{where}: {key!r} must be a list of values; got {cut(values)}"
            )


def apply(entry: MethodEntry, setting: Mapping[str, Any]) -> MethodEntry:
    """The entry with a setting: keys are fields of the method, or `local.FIELD`."""
    fields = {
        **entry.fields,
        **{k: v for k, v in setting.items() if not k.startswith("local.")},
    }
    local = {
        k.removeprefix("local."): v
        for k, v in setting.items()
        if k.startswith("local.")
    }
    return replace(entry, fields=fields, local={**entry.local, **local})


def settings_of(
    entry: MethodEntry,
    grid: Mapping[str, Any],
    names: Collection[str],
    *,
    local: bool = True,
) -> Iterator[dict[str, Any]]:
    """The settings of a method that a [tune] table asks for; those of the usual grid where it is empty.

    `names`: those of all methods (`names_of`). `local`: whether the method has local training, without which it has no part in the
    grid for all.
    """
    grid_of_entry: dict[str, Any] = {}
    if local:
        for key, values in (grid or LOCAL_GRID).items():
            if key.startswith("local."):
                grid_of_entry[key] = values
    if not grid:
        grid_of_entry |= METHOD_GRIDS.get(entry.name, {})
    # What is said of the label counts more than what is said of all methods of that name.
    for name in (entry.name, entry.label):
        for key, values in grid.items():
            label, field = _split_key(key, names)
            if label != name:
                continue
            # `local.lr` is the [local] table's key for all methods and the method local's own as well.
            if entry.name == "local" and not field.startswith("local."):
                field = f"local.{field}"
            grid_of_entry[field] = values
    for values in itertools.product(*grid_of_entry.values()):
        yield dict(zip(grid_of_entry, values, strict=True))

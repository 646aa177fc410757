"""What the options of `compare` and `run` mean: they are written into the tables of an experiment, as a TOML file would hold them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from coterie.base.errors import InputError, nearest, plain, require
from coterie.base.files import parse_toml
from coterie.cli.flags import typed
from coterie.config.registry import METHODS

if TYPE_CHECKING:
    from coterie.config.keys import Key

SEEDS_WITHOUT_FOLDS = 5
"""In place of those of a preset that names folds."""

__all__ = ["compared", "override", "set_key"]


def compared(args: argparse.Namespace) -> dict[str, Any]:
    """The tables of an experiment that `compare` asks for: those of the data set's preset, changed by what was typed."""
    from coterie.config.registry import DATASETS
    from coterie.run.spelling import data_table
    from coterie.run.tables import preset, preset_methods

    start = args.data if args.data in DATASETS else "folder"
    tables = preset(start)
    tables.setdefault("data", {}).update(data_table(args.data))
    if args.methods is not None:
        tables["methods"] = _chosen(args.methods, preset_methods(start))
        names = {"local"} | {m["name"] for m in tables["methods"]}
        tables["tune"] = {k: v for k, v in tables.get("tune", {}).items() if k.partition(".")[0] in names}
    named = start == "folder" and "folder" not in tables["data"]  # by a program, which may have split its rows
    preset_folds = tables.get("split", {}).pop("folds", 0)
    override(tables, args)
    elsewhere = {"parts", "unseen", "test"} & {*tables.get("split", {})} or "split_column" in tables["data"]
    if preset_folds and not named and not elsewhere and tables.get("split", {}).get("kind") != "target-groups":
        tables["split"] = {"folds": preset_folds, **tables.get("split", {})}
    elif preset_folds and "run.seeds" not in typed(args):
        tables["run"]["seeds"] = SEEDS_WITHOUT_FOLDS
    return tables


def _chosen(methods: str, presets: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    from coterie.run.experiment import label_of, method_table

    names = list(METHODS) if methods == "all" else [m for m in methods.split(",") if m]
    require(bool(names), "--methods names no method; give names separated by commas")
    by_label = {label_of(m): dict(m) for m in presets}
    return [method_table(name, by_label) for name in names]


def override(tables: dict[str, Any], args: argparse.Namespace) -> None:
    """Change tables by the flags of settings; `--set` comes last."""
    from coterie.config.keys import keys_with_flags

    texts = typed(args)
    by_option: dict[tuple[str, str], Key] = {}
    for key in (key for key in keys_with_flags() if key.path in texts):
        other = by_option.setdefault((key.table, key.option.name), key)
        require(other.path == key.path, f"{other.flag} and {key.flag} exclude each other; give one")
        _put(tables, key.table, key.name, key.parse(texts[key.path]))
    for setting in args.settings:
        set_key(tables, setting)


def _put(tables: dict[str, Any], table: str, path: str, value: Any) -> None:
    """Write a key. Another `name` or kind leaves of a table what belongs to all, since the rest belongs to the one before."""
    from coterie.config.keys import CHOICES, keys_of, lasting

    value = next((key.meant(value) for key in keys_of(table) if key.name == path), value)
    before = tables.setdefault(table, {})
    if table == "local":
        own = (m["local"] for m in tables.get("methods", ()) if isinstance(m.get("local"), dict))
        put_local(before, path, value, own)
        return
    if path == CHOICES.get(table) and value != before.get(path):
        kept = lasting(table, value)
        tables[table] = {k: v for k, v in before.items() if k in kept}
    _put_within(tables[table], path, value)


def put_local(local: dict[str, Any], path: str, value: Any, own: Iterable[dict[str, Any]] = ()) -> None:
    """Write a setting of local training, and into each of the methods' `own` tables that says the same otherwise."""
    from coterie.config.local import LocalSGD
    from coterie.config.schema import options_of

    name, _, inner = path.partition(".")
    keys = next((option.keys for option in options_of(LocalSGD) if name in option.keys), (name,))
    for table in (local, *(one for one in own if {*keys} & {*one})):
        nested = table.get(name)
        another = inner == "name" and isinstance(nested, dict) and nested.get("name") != value
        for key in keys:
            if key != name or another:  # another sampler has other fields
                table.pop(key, None)
        _put_within(table, path, value)


def _put_within(table: dict[str, Any], path: str, value: Any) -> None:
    """Write `value` at OUTER.INNER, or at a key of the table itself."""
    outer, dot, inner = path.partition(".")
    before = table.get(outer) if dot else None
    if isinstance(before, str):  # a name alone stands for the table that has it
        before = {"name": before}
    table[outer] = {**(before if isinstance(before, dict) else {}), inner: value} if dot else value


def set_key(tables: dict[str, Any], setting: str) -> None:
    """Write one `--set KEY=VALUE` into the tables of an experiment."""
    from coterie.config.keys import DECLARED
    from coterie.run.experiment import label_of

    labels = {label_of(m): m for m in tables.get("methods", [])}
    label = max((one for one in labels if setting.startswith(f"{one}.")), key=len, default="")  # which may have dots
    path, equals, text = setting.removeprefix(label).partition("=")
    head, _, rest = path.partition(".")
    head = label or head
    listed = head in LISTED
    require(
        bool(equals and (rest or listed)), f"--set {setting!r} must look like meritfed.md_step=.3 or run.evaluate=5"
    )
    value = _value(text)
    known = {*DECLARED, *LISTED, "tune"}
    if listed:
        tables[head] = _listed(tables.get(head, []), rest, value, f"--set {setting!r} must say which: {LISTED[head]}")
    elif label and not (label == "local" and not rest.startswith("local.")):
        target = labels[label]
        if rest.startswith("local."):
            put_local(target.setdefault("local", {}), rest.removeprefix("local."), value)
        else:
            _put_within(target, rest, _of_method(target["name"], rest, value))
    elif head == "tune":
        # Lists, as everywhere on the command line, need no brackets; one value alone is none.
        several = not isinstance(value, list) and "," in text
        tables.setdefault("tune", {})[rest] = [_value(word) for word in text.split(",")] if several else value
    elif head in known:
        _put(tables, head, rest, value)
    else:
        hint = nearest(head, {*labels, *known})
        raise InputError(f"--set {setting!r} names no method of this run and no table; {hint}")


def _of_method(name: str, field: str, value: Any) -> Any:
    """What a file says where the command line says `value` for a field of a method: there a list needs no brackets."""
    from coterie.config.schema import options_of

    if isinstance(value, str) and "," in value and name in METHODS:
        options = (option for option in options_of(METHODS.find(name)) if field in option.keys)
        return next((value.split(",") for option in options if tuple[str, ...] in option.kinds), value)
    return value


LISTED = {
    "filters": "filters.top-k.share=.1, or filters=top-k",
    "callbacks": "callbacks.early-stopping.patience=3, or callbacks=early-stopping",
}
"""Tables of which an experiment has several, each with a name, and how to spell one."""


def _listed(tables: list[dict[str, Any]], path: str, value: Any, unsaid: str) -> list[dict[str, Any]]:
    """Such tables once `path`, NAME.KEY, has a value in that of its name; without a path the names, or the tables, themselves."""
    if not path:
        return [
            one if isinstance(one, dict) else {"name": one} for one in (value if isinstance(value, list) else [value])
        ]
    name, dot, key = path.rpartition(".")
    require(bool(dot), unsaid)
    known = tables if any(one.get("name") == name for one in tables) else [*tables, {"name": name}]
    return [{**one, key: value} if one.get("name") == name else one for one in known]


def _value(text: str) -> Any:
    for parse in (int, float):
        try:
            return parse(text)
        except ValueError:
            continue
    try:
        return parse_toml(f"value = {text}", "the value of --set")["value"]
    except InputError as error:
        listed = text[:1] in "[{"
        require(not listed, f"{plain(text, 60)!r} is not a TOML value ({error}); write 0.5 for .5, and texts in quotes")
        return text

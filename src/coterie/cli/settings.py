"""Write the options of `compare` and `run` into the tables of an experiment, as a TOML file would hold them."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from coterie.base.cures import Cure
from coterie.base.errors import InputError, nearest, plain, require
from coterie.base.files import parse_toml
from coterie.cli.flags import flag_texts
from coterie.config.registry import METHODS, MODELS

if TYPE_CHECKING:
    from coterie.config.keys import Key

SEEDS_WITHOUT_FOLDS = 5
"""In place of those of a preset that names folds."""
SLOW_OF_EVENTS = ("meritfed",)
"""Not run unasked on times and counts with exposure, whose losses no kernel has: three quarters of the time went into these."""


def tables_of_command(
    args: argparse.Namespace, *, solvable: bool = True
) -> dict[str, Any]:
    """The tables of an experiment that `compare` asks for: those of the data set's preset, changed by what was typed.

    Args:
        args: what was typed.
        solvable: whether the model may be one that methods solve for; else those are not run unasked.
    """
    from coterie.config.registry import DATASETS
    from coterie.run.spelling import data_table
    from coterie.run.tables import preset, preset_methods, trained_methods

    start = args.data if args.data in DATASETS else "folder"
    tables = preset(start)
    tables.setdefault("data", {}).update(data_table(args.data))
    if args.methods is not None:
        tables["methods"] = _method_tables(args.methods, preset_methods(start))
        names = {"local"} | {m["name"] for m in tables["methods"]}
        grids = tables.get("tune", {})
        tables["tune"] = {k: grids[k] for k in grids if k.partition(".")[0] in names}
    elif not (solvable and _is_linear(tables, args)):
        tables["methods"] = trained_methods(start)
    # Data named by a program, which may have split its rows.
    is_named = start == "folder" and "folder" not in tables["data"]
    preset_folds = tables.get("split", {}).pop("folds", 0)
    if args.privacy is None:
        override(tables, args)
    else:
        _override_behind_noise(tables, args, preset_methods(start))
    if args.methods is None and {"time", "exposure"} & {*tables["data"]}:
        tables["methods"] = [
            entry for entry in tables["methods"] if entry["name"] not in SLOW_OF_EVENTS
        ]
    if not preset_folds:
        return tables
    split = tables.get("split", {})
    tested_elsewhere = {"parts", "unseen", "test"} & {*split}
    tested_elsewhere |= {"split_column", "split_time"} & {*tables["data"]}
    has_own_test_rows = is_named or split.get("kind") == "target-groups"
    if not has_own_test_rows and not tested_elsewhere:
        tables["split"] = {"folds": preset_folds, **split}
    elif "run.seeds" not in flag_texts(args):
        tables["run"]["seeds"] = SEEDS_WITHOUT_FOLDS
    return tables


def _override_behind_noise(
    tables: dict[str, Any],
    args: argparse.Namespace,
    presets: Sequence[Mapping[str, Any]],
) -> None:
    """Change tables by what was typed, once each method stands there for each epsilon of `--privacy`; then add the noise."""
    from coterie.study import privacy_curve

    epsilons = privacy_curve.epsilons_of(args.privacy)
    entries = tables["methods"]
    if args.methods is None:
        names = [*privacy_curve.METHODS]
        if _is_linear(tables, args):
            names.append(privacy_curve.POOLED)
            # The loss of events has no bound, and weights depend on other rows.
            unbounded = {"time", "event", "exposure", "weights"} & {*tables["data"]}
            if not unbounded and "secure" not in tables:
                names += privacy_curve.BOUNDED
        entries = _method_tables(",".join(names), presets)
    tables["methods"] = privacy_curve.spread_methods(entries, epsilons)
    tables.pop("tune", None)
    # Evaluated once: what is read off a curve is what the last model is worth.
    rounds = privacy_curve.ROUNDS
    tables["run"] = {**tables.get("run", {}), "rounds": rounds, "evaluate": rounds}
    override(tables, args)
    privacy_curve.add_noise(tables, epsilons)


def _is_linear(tables: Mapping[str, Any], args: argparse.Namespace) -> bool:
    """Return True if methods that solve linear models take what was typed: rows may still have too many columns for them."""
    typed = deepcopy(dict(tables))
    override(typed, args)
    loss = str(typed["run"].get("loss", "auto"))
    changed = {"attack", "filters"} & typed.keys() or typed["model"].get("freeze")
    logistic = typed["model"].get("name", MODELS.default) == "logistic"
    return logistic and ".py:" not in loss and not changed


def _method_tables(
    methods: str, presets: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    from coterie.run.method_tables import label_of, method_table

    names = [name for name in methods.split(",") if name]
    if methods == "all":
        names = list(METHODS)
    require(bool(names), "--methods names no method; give names separated by commas")
    by_label = {label_of(m): dict(m) for m in presets}
    return [method_table(name, by_label) for name in names]


def override(tables: dict[str, Any], args: argparse.Namespace) -> None:
    """Change tables by the flags of settings; `--set` comes last, but what decides which other keys a table has comes first."""
    from coterie.config.keys import CHOICES, keys_with_flags

    texts = flag_texts(args)
    choices = {f"{table}.{name}" for table, name in CHOICES.items()}
    for setting in args.settings:
        if _key_and_value(setting)[0] in choices:
            set_key(tables, setting)
    by_option: dict[tuple[str, str], Key] = {}
    for key in (key for key in keys_with_flags() if key.path in texts):
        same_option = by_option.setdefault((key.table, key.option.name), key)
        if same_option.path != key.path:
            raise InputError(
                f"{same_option.flag} and {key.flag} exclude each other; give one"
            )
        _put(tables, key.table, key.name, key.parse(texts[key.path]))
    for setting in args.settings:
        set_key(tables, setting)


def _put(tables: dict[str, Any], table: str, path: str, value: Any) -> None:
    """Write a key. Another `name` or kind leaves of a table what belongs to all, since the rest belongs to the one before."""
    from coterie.config.keys import CHOICES, keys_of, lasting

    for key in keys_of(table):
        if key.name == path:
            value = key.meant(value)
            break
    old_table = tables.setdefault(table, {})
    if table == "local":
        of_methods = [method.get("local") for method in tables.get("methods", ())]
        local_tables = [local for local in of_methods if isinstance(local, dict)]
        put_local(old_table, path, value, local_tables)
        return
    if path == CHOICES.get(table) and value != old_table.get(path):
        lasting_keys = lasting(table, value)
        tables[table] = {k: v for k, v in old_table.items() if k in lasting_keys}
    _put_within(tables[table], path, value)


def put_local(
    local: dict[str, Any],
    path: str,
    value: Any,
    local_tables: Iterable[dict[str, Any]] = (),
) -> None:
    """Write a setting of local training, and into each of the methods' tables that says the same otherwise."""
    from coterie.config.local import LocalSGD
    from coterie.config.schema import options_of

    name, _, inner = path.partition(".")
    keys: Sequence[str] = (name,)
    for option in options_of(LocalSGD):
        if name in option.keys:
            keys = option.keys
            break
    saying_otherwise = [table for table in local_tables if {*keys} & {*table}]
    for table in (local, *saying_otherwise):
        for key in keys:
            if key != name:
                table.pop(key, None)
        nested = table.get(name)
        if inner == "name" and isinstance(nested, dict) and nested.get("name") != value:
            table.pop(name)  # another sampler has other fields
        _put_within(table, path, value)


def _put_within(table: dict[str, Any], path: str, value: Any) -> None:
    """Write `value` at OUTER.INNER, or at a key of the table itself."""
    outer, dot, inner = path.partition(".")
    if not dot:
        table[outer] = value
        return
    old_table = table.get(outer)
    if isinstance(old_table, str):  # a name alone stands for the table that has it
        old_table = {"name": old_table}
    elif not isinstance(old_table, dict):
        old_table = {}
    table[outer] = {**old_table, inner: value}


def _key_and_value(setting: str) -> tuple[str, str]:
    """Return the two sides of KEY=VALUE, blanks around them aside; both empty where there is no equals sign.

    The last part of a key may be in quotes, as TOML writes the name of a column that has blanks, points or an equals sign.

    >>> _key_and_value('data.missing."a = b" = [0]')
    ('data.missing.a = b', '[0]')
    """
    match = re.fullmatch(rf"((?:{_QUOTED}|[^\"=])*)=(.*)", setting, re.DOTALL)
    if match is None:
        return "", ""
    path, text = match[1].strip(), match[2].strip()
    quoted = re.fullmatch(rf"(.*?)\.({_QUOTED})", path)
    if quoted:
        path = f"{quoted[1]}.{json.loads(quoted[2])}"
    return path, text


def set_key(tables: dict[str, Any], setting: str) -> None:
    """Write one `--set KEY=VALUE` into the tables of an experiment."""
    from coterie.config.keys import DECLARED
    from coterie.run.method_tables import label_of

    labels = {label_of(m): m for m in tables.get("methods", [])}
    prefixes = [label for label in labels if setting.startswith(f"{label}.")]
    label = max(prefixes, key=len, default="")  # which may have dots
    path, text = _key_and_value(setting.removeprefix(label))
    head, _, key_path = path.partition(".")
    head = label or head
    table_names = {*DECLARED, *LISTED, "tune"}
    if not label and head not in table_names and head in _keys_of_cures():
        _put_answer(tables, head, key_path, _value(text))
        return
    listed = head in LISTED
    if not (path and (key_path or listed)):
        raise InputError(
            f"--set {setting!r} must look like meritfed.md_step=.3 or run.evaluate=5"
        )
    value = _value(text)
    if listed:
        tables[head] = _set_in_list(
            tables.get(head, []),
            key_path,
            value,
            f"--set {setting!r} must say which: {LISTED[head]}",
        )
    elif label and (label != "local" or _is_of_method(key_path)):
        target = labels[label]
        if key_path.startswith("local."):
            put_local(
                target.setdefault("local", {}), key_path.removeprefix("local."), value
            )
        else:
            field_value = _split_list(target["name"], key_path, value)
            _put_within(target, key_path, field_value)
    elif head == "tune":
        # Lists, as everywhere on the command line, need no brackets; one value alone is none.
        if not isinstance(value, list) and "," in text:
            value = [_value(word) for word in text.split(",")]
        tables.setdefault("tune", {})[key_path] = value
    elif head in table_names:
        _put(tables, head, key_path, value)
    else:
        hint = nearest(head, {*labels, *table_names})
        raise InputError(
            f"--set {setting!r} names no method of this run and no table; {hint}"
        )


def _put_answer(tables: dict[str, Any], name: str, column: str, value: Any) -> None:
    """Write what answers a question about the data: a key of [data], or of one column there."""
    from coterie.config.keys import keys_of

    if column:
        value = {column: value}
    else:
        (key,) = (key for key in keys_of("data") if key.name == name)
        value = key.meant(value)
    tables["data"] = Cure(name, value).merge(tables.get("data", {}))


def _keys_of_cures() -> set[str]:
    """Keys of [data] that sentences print as lines of TOML: typed so, without `data.`, they are answers, which add to earlier ones."""
    from coterie.config.data import Tables
    from coterie.config.schema import options_of

    return {key for option in options_of(Tables) for key in option.keys}


def _is_of_method(key_path: str) -> bool:
    """Return True if `local.KEY` means the method `local`, and not the [local] table of all methods."""
    from coterie.config.schema import options_of

    fields = {
        key for option in options_of(METHODS.find("local")) for key in option.keys
    } | {"seeds"}  # of any method
    return key_path.partition(".")[0] in fields


def _split_list(method: str, field: str, value: Any) -> Any:
    """Return what a file says where the command line says `value` for a field of a method: there a list needs no brackets."""
    from coterie.config.schema import options_of

    if not isinstance(value, str) or "," not in value or method not in METHODS:
        return value
    for option in options_of(METHODS.find(method)):
        if field in option.keys and tuple[str, ...] in option.kinds:
            return value.split(",")
    return value


_QUOTED = r'"(?:[^"\\]|\\.)*"'
"""A text in quotes, in a regular expression."""

LISTED = {
    "filters": "filters.top-k.share=.1, or filters=top-k",
    "callbacks": "callbacks.early-stopping.patience=3, or callbacks=early-stopping",
}
"""Tables of which an experiment has several, each with a name, and how to spell one."""


def _set_in_list(
    tables: list[dict[str, Any]], path: str, value: Any, refusal: str
) -> list[dict[str, Any]]:
    """Such tables once `path`, NAME.KEY, has a value in that of its name; without a path the names, or the tables, themselves."""
    if not path:
        if not isinstance(value, list):
            value = [value]
        return [_as_table(entry) for entry in value]
    name, dot, key = path.rpartition(".")
    if not dot:
        raise InputError(refusal)
    changed = []
    is_there = False
    for entry in tables:
        if entry.get("name") == name:
            entry = {**entry, key: value}
            is_there = True
        changed.append(entry)
    if not is_there:
        changed.append({"name": name, key: value})
    return changed


def _as_table(entry: Any) -> dict[str, Any]:
    """The table that a name alone stands for, or the table itself."""
    if isinstance(entry, dict):
        return entry
    return {"name": entry}


def _value(text: str) -> Any:
    for parse in (int, float):
        try:
            return parse(text)
        except ValueError:
            continue
    try:
        return parse_toml(f"value = {text}", "the value of --set")["value"]
    except InputError as error:
        if text[:1] in "[{":
            hint = "write 0.5 for .5, and texts in quotes"
            raise InputError(
                f"{plain(text, 60)!r} is not a TOML value ({error}); {hint}"
            ) from error
        return text

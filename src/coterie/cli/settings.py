"""What the options of `compare` and `run` mean: they are written into the tables of an experiment, as a TOML file would hold them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie import catalogue
from coterie.core.errors import InputError, nearest, require

__all__ = ["compared", "override", "set_key"]


def compared(args: argparse.Namespace) -> dict[str, Any]:
    """The tables of an experiment that `compare` asks for: those of the data set's preset, changed by what was typed."""
    from coterie.data import DATASETS
    from coterie.run.tables import preset, preset_methods

    start = args.data if args.data in DATASETS else "folder"
    tables = preset(start)
    known = args.data in DATASETS or ".py:" in args.data or args.data.startswith("hf:")
    if not known and not Path(args.data).exists():
        raise InputError(
            f"there is no data set or folder {args.data!r}; {nearest(args.data, DATASETS)}; a folder path works too"
        )
    data = tables.setdefault("data", {})
    data.update({"name": args.data} if known else {"folder": args.data})
    for table, key, value in (
        ("data", "label", args.label),
        ("split", "kind", args.split),
        ("split", "clients", args.clients),
        ("split", "alpha", args.alpha),
        ("model", "init", args.init),
        ("model", "freeze", args.freeze),
    ):
        if value is not None:
            tables.setdefault(table, {})[key] = value
    if args.model is not None:
        kept = {k: v for k, v in tables.get("model", {}).items() if k in ("init", "freeze")}
        tables["model"] = {**kept, "name": args.model}
    if args.methods is not None:
        tables["methods"] = _chosen(args.methods, preset_methods(start))
        names = {"local"} | {m["name"] for m in tables["methods"]}
        tables["tune"] = {k: v for k, v in tables.get("tune", {}).items() if k.partition(".")[0] in names}
    override(tables, args)
    return tables


def _chosen(methods: str, presets: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    from coterie.run.experiment import label_of

    names = list(catalogue.entries()) if methods == "all" else [m for m in methods.split(",") if m]
    require(bool(names), "--methods names no method; give names separated by commas")
    by_label = {label_of(m): dict(m) for m in presets}
    return [by_label.get(name, {"name": name}) for name in names]


def override(tables: dict[str, Any], args: argparse.Namespace) -> None:
    """Change tables by the options that `compare` and `run` share; `--set` comes last."""
    run = tables.setdefault("run", {})
    local = tables.setdefault("local", {})
    for key in ("rounds", "clients_per_round", "out"):
        value = getattr(args, key)
        if value is not None:
            run[key] = value
    if args.seeds is not None:
        run["seeds"] = _seeds(args.seeds)
    if args.metrics is not None:
        run["metrics"] = [m for m in args.metrics.split(",") if m]
    if args.engine is not None:
        tables["engine"] = {"name": args.engine}
    for key in ("workers", "actors"):
        value = getattr(args, key)
        if value is not None:
            tables.setdefault("engine", {})[key] = value
    if args.attack is not None:
        kept = {k: v for k, v in tables.get("attack", {}).items() if k == "on"}
        tables["attack"] = {**kept, "name": args.attack}
    if args.attack_on is not None:
        who = _value(args.attack_on)
        on = who if isinstance(who, int | float) else [n for n in args.attack_on.split(",") if n]
        tables.setdefault("attack", {})["on"] = on
    if args.personalise is not None:
        tables.setdefault("personalise", {})["part"] = args.personalise
    flags = {"lr": args.lr, "steps": args.steps, "batch_size": args.batch_size}
    for key, value in flags.items():
        if value is not None:
            _set_local(tables, local, key, value)
    for setting in args.settings:
        set_key(tables, setting)


def _set_local(tables: Mapping[str, Any], local: dict[str, Any], key: str, value: Any) -> None:
    unit = {"steps": "epochs", "epochs": "steps"}.get(key)
    for table in (local, *(m["local"] for m in tables["methods"] if isinstance(m.get("local"), dict))):
        if table is local or key in table or unit in table:
            table.pop(unit or "", None)
            table[key] = value


def set_key(tables: dict[str, Any], setting: str) -> None:
    """Write one `--set KEY=VALUE` into the tables of an experiment."""
    from coterie.run.experiment import label_of

    key, equals, text = setting.partition("=")
    head, _, rest = key.partition(".")
    require(bool(equals and rest), f"--set {setting!r} must look like meritfed.md_step=.3 or run.evaluate=5")
    value = _value(text)
    labels = {label_of(m): m for m in tables.get("methods", [])}
    if head == "local" and not rest.startswith("local."):
        _set_local(tables, tables["local"], rest, value)
    elif head in labels:
        target = labels[head]
        if rest.startswith("local."):
            _set_local({"methods": []}, target.setdefault("local", {}), rest.removeprefix("local."), value)
        else:
            target[rest] = value
    elif head == "data" and rest.partition(".")[0] in ("classes", "drop", "missing", "rename"):
        key, _, inner = rest.partition(".")
        data = tables.setdefault("data", {})
        before = data.get(key) if isinstance(data.get(key), dict) else {}
        data[key] = {**before, inner: value} if inner else value
    elif head in ("data", "split", "model", "run", "engine", "attack", "personalise"):
        tables.setdefault(head, {})[rest] = value
    elif head == "tune":
        tables.setdefault("tune", {})[rest] = value
    else:
        allowed = {*labels, "data", "split", "model", "local", "engine", "attack", "personalise", "run", "tune"}
        raise InputError(f"--set {setting!r} names no method of this run and no table; {nearest(head, allowed)}")


def _value(text: str) -> Any:
    import tomllib

    for parse in (int, float):
        try:
            return parse(text)
        except ValueError:
            continue
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError as error:
        listed = text[:1] in "[{"
        require(not listed, f"{text!r} is not a TOML value ({error}); write 0.5 for .5, and texts in quotes")
        return text


def _seeds(text: str) -> int | list[int]:
    try:
        return [int(s) for s in text.split(",") if s] if "," in text else int(text)
    except ValueError:
        raise InputError(f"--seeds must be a number of seeds (5) or a list of them (3,7); got {text!r}") from None

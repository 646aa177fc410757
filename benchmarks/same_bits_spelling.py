"""How the tree that `same_bits` records spells things: every name that has changed, or is about to, is asked for here and only here.

The tree on `sys.path` is an old one or the present one; both are driven by the same cases, which are written in the first spelling.
Where a function here guesses a new name wrongly, correct it here: a recording of a base does not depend on this file.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import coterie as ct

__all__ = [
    "attacks",
    "catalogue",
    "command_options",
    "fit",
    "method",
    "personalise",
    "ray_is_here",
    "samplers",
    "tables",
]

SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "clients_per_round": ("clients_per_round", "per_round"),
    "fold_validation": ("fold_validation", "merge_validation"),
    "metrics": ("metrics",),
    "evaluate": ("evaluate", "evaluate_every"),
    "strict_wire": ("strict_wire",),
}
"""Options of a run by their first name, and what they may be called in this tree."""
PLACES = {
    "catalogue": ("coterie.algorithms:ALGORITHMS", "coterie.algorithms:METHODS"),
    "samplers": ("coterie.algorithms:SAMPLERS", "coterie.samplers:SAMPLERS"),
    "settings": ("coterie:RunSettings", "coterie.experiment:RunSettings", "coterie.run.experiment:RunSettings"),
    "personalise": ("coterie:personalise", "coterie:finetune"),
    "entry": ("coterie.run.experiment:MethodEntry", "coterie.experiment:MethodEntry"),
}
"""Where to look for a thing: the first place that has it."""


class SpellingError(Exception):
    """This file knows no spelling that the tree has; it ends the recording instead of being one of its results."""


def ray_is_here() -> bool:
    """Whether runs on Ray can be recorded."""
    return importlib.util.find_spec("ray") is not None


def catalogue() -> Mapping[str, Callable[..., Any]]:
    """Every method by its name."""
    return _find("catalogue")


def attacks() -> Mapping[str, Callable[..., Any]]:
    """Every attack by its name."""
    return ct.attacks.ATTACKS


def samplers() -> Mapping[str, Callable[..., Any]]:
    """Every sampler of training rows by its name."""
    return _find("samplers")


def method(name: str, arguments: Mapping[str, Any], local: Any) -> Any:
    """A method of the catalogue, with `local` if it trains."""
    make = catalogue()[name]
    return make(**({"local": local} if _takes(make, "local") else {}), **arguments)


def fit(
    method: Any,
    clients: Any,
    model: Any,
    rounds: int,
    *,
    workers: int = 1,
    actors: int = 0,
    attack: str = "",
    fields: Mapping[str, Any] | None = None,
    attackers: Sequence[str] | float = (),
    **options: Any,
) -> Any:
    """`ct.fit` on so many workers, or on Ray if there are actors; `fields` are those of the attack."""
    spelled = {**_engine(workers, actors), **_attack(attack, fields or {}, attackers), **_options(options)}
    return ct.fit(method, clients, model, rounds=rounds, **spelled)


def _engine(workers: int, actors: int) -> dict[str, Any]:
    if _engines_are_values():
        return {"engine": ct.Ray(actors=actors) if actors else ct.InProcess(workers=workers)}
    return {"engine": "ray", "actors": actors} if actors else {"workers": workers}


def _engines_are_values() -> bool:
    return hasattr(ct, "InProcess")


def _attack(name: str, fields: Mapping[str, Any], attackers: Sequence[str] | float) -> dict[str, Any]:
    if not name:
        return {}
    make = attacks()[name]
    if not _takes(make, "on"):
        return {"attack": make(**fields), "attackers": attackers}
    made = make(**fields, on=attackers)
    return {"attack": made} if _takes(ct.fit, "attack") else {"filters": [made]}


def _options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of `fit`, in its own arguments or in its `settings`."""
    own: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    for key, value in options.items():
        spellings = SPELLINGS.get(key, (key,))
        direct = next((s for s in spellings if _takes(ct.fit, s)), None)
        table = next((s for s in spellings if _takes(_find("settings"), s)), None)
        if direct is not None:
            own[direct] = value
        elif table is not None and _takes(ct.fit, "settings"):
            settings[table] = value
        else:
            raise SpellingError(f"neither fit nor its settings have {' or '.join(spellings)}")
    return {**own, **({"settings": _find("settings")(**settings)} if settings else {})}


def personalise(run: Any, clients: Any, **settings: Any) -> Any:
    """`ct.personalise`."""
    return _find("personalise")(run, clients, **settings)


def tables(first: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The tables of an experiment, which are given in the first spelling, in that of this tree."""
    made: dict[str, Any] = {name: dict(table) for name, table in first.items() if name != "methods"}
    made["methods"] = [dict(m) for m in first["methods"]]
    run, attack = made.get("run", {}), made.get("attack", {})
    for key in [k for k in run if k in SPELLINGS]:
        value = run.pop(key)
        run[next(s for s in SPELLINGS[key] if _takes(_find("settings"), s))] = value
    if _engines_are_values():
        engine = {k: run.pop(k) for k in ("workers", "actors") if k in run}
        name = run.pop("engine", "inprocess")
        if engine or name != "inprocess":
            made["engine"] = {"name": name, **engine}
    if "personalise" in made and _takes(_find("entry"), "personalise"):
        run[next(s for s in SPELLINGS["fold_validation"] if _takes(_find("settings"), s))] = False
        made["methods"] = [form for m in made["methods"] for form in _with_tuned(m, made["personalise"])]
        del made["personalise"]
    if attack and _takes(attacks()[attack["name"]], "on"):
        attack["on"] = attack.pop("clients", None) or attack.pop("share")
    return made


def _with_tuned(method: dict[str, Any], tuning: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    label = method.get("label", method["name"])
    return method, {**method, "label": f"{label}+{tuning['part']}", "personalise": tuning}


def command_options(help_text: str, workers: int) -> list[str]:
    """Options of a command that spread its clients over workers; `help_text` is what its `--help` says."""
    if workers == 1:
        return []
    if "--workers" in help_text:
        return ["--workers", str(workers)]
    return ["--set", f"engine.workers={workers}"]


def _find(what: str) -> Any:
    for place in PLACES[what]:
        module, _, name = place.partition(":")
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
    raise SpellingError(f"no {what} at {', '.join(PLACES[what])}")


def _takes(function: Callable[..., Any], name: str) -> bool:
    """Whether a function, or the making of a value, has this argument."""
    return name in inspect.signature(function).parameters

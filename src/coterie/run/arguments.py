"""What the arguments of `fit` and `personalise` may be, and what they mean."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from coterie.base.clients import Clients
from coterie.base.errors import InputError
from coterie.base.vector import aliases, copy_model
from coterie.config.local import LocalSGD
from coterie.config.rules import Rule, check_object, obey
from coterie.config.run import START, RunSettings
from coterie.config.schema import build
from coterie.contract.method import Method
from coterie.data.registry import clients_of, clients_or_maker, load
from coterie.models import build_model, freeze
from coterie.models.building import COMPILED
from coterie.run.experiment import find_method, model_of
from coterie.run.method_tables import method_table
from coterie.run.progress import PROGRESS
from coterie.run.result import Run

FILTER_LIST = Rule(
    lambda v: isinstance(v, Sequence) and not isinstance(v, str),
    "a list of filters such as [TopK(0.01)]",
)
_ARGUMENTS = {
    "run": Rule(lambda v: isinstance(v, Run), "a run, as fit returns it"),
    "clients": Rule(
        lambda v: isinstance(v, Clients), "Clients, as data.from_tensors makes them"
    ),
    "checkpoint": Rule(
        lambda v: v is None or isinstance(v, str | os.PathLike), "None or a folder"
    ),
    "local": Rule(
        lambda v: v is None or isinstance(v, LocalSGD), "None or LocalSGD(...)"
    ),
    "init": START,
    "settings": Rule(lambda v: isinstance(v, RunSettings), "RunSettings(...)"),
    "steps": Rule(
        lambda v: isinstance(v, Sequence), "a list of numbers such as (0, 10)"
    ),
    "lr": Rule(
        lambda v: isinstance(v, Sequence), "a list of numbers such as (0.1, 1.0)"
    ),
    "filters": FILTER_LIST,
    "progress": PROGRESS,
}


def check_arguments(**arguments: Any) -> None:
    """Raise `InputError` that names an argument of another type, and says what it must be."""
    for name, value in arguments.items():
        obey(_ARGUMENTS[name], value, name)


def clients_from(source: Any, seed: int) -> Clients:
    """Return the clients that `fit` was given: themselves, tensors, a function of the seed, or a name of data."""
    if isinstance(source, str | os.PathLike):
        return load(source, seed=seed)
    source = clients_or_maker(source)
    return clients_of(source, getattr(source, "__name__", "clients"), seed=seed)


def method_from(method: Any, local: LocalSGD | None) -> Method[Any]:
    """Return the method that an object or a name means, with this local training if any is given."""
    if isinstance(method, str):
        table = method_table(method)
        if "personalise" in table:
            raise InputError(
                f"{method!r} tunes after training; give fit {table['name']!r}, with RunSettings(merge_validation=False), and the run "
                "to personalise"
            )
        method = build(find_method(method), {}, f"method {method!r}")
    if local is not None:
        settings = fields(method) if is_dataclass(method) else ()
        if not any(setting.name == "local" for setting in settings):
            raise InputError(
                f"{type(method).__name__} has no local training to set; leave out local"
            )
        method = replace(method, local=local)
    check_object(method, Method)
    return cast("Method[Any]", method)


def module_from(
    model: Any,
    clients: Clients,
    seed: int,
    frozen: Sequence[str],
    init: Mapping[str, Tensor] | None,
) -> nn.Module:
    """Return the module that an object or a name means, as training starts from it.

    Args:
        model: As `fit` takes it.
        clients: Their rows say the shapes of inputs and outputs.
        seed: Names the random weights.
        frozen: Patterns of what is not trained (`RunSettings.freeze`).
        init: State dict to start from; None: the weights that the module has.
    """
    if isinstance(model, str):
        model = model_of({"name": model}, f"model {model!r}")
    module = build_model(model, clients, seed)
    if frozen or init is not None:
        # The caller's stays as it is.
        module = copy_model(module)
    freeze(module, frozen)
    if init is not None:
        start_from(module, init)
    return module


def start_from(module: nn.Module, init: Mapping[str, Tensor]) -> None:
    """Load a state dict into `module`; that of a module which `torch.compile` wrapped has the names of the plain module.

    Raises `InputError` that names a tensor which is missing, left over or of another shape.
    """
    # A user's dict may have keys that are no names: those are left over, and named as such.
    init = {
        name.replace(f"{COMPILED}.", "") if isinstance(name, str) else name: value
        for name, value in init.items()
    }
    expected = module.state_dict()
    for name in expected:
        if name not in init:
            raise InputError(
                f"the initial model lacks {name!r}; it has {', '.join(map(str, list(init)[:6]))}"
            )
        if not _is_plain(init[name]):
            raise InputError(
                f"{name!r} of the initial model is not a dense tensor of finite real numbers"
            )
        if init[name].shape != expected[name].shape:
            raise InputError(
                f"{name!r} of the initial model has shape {tuple(init[name].shape)}, expected {tuple(expected[name].shape)}"
            )
    for name, alias in aliases(module):
        if not torch.equal(init[name], init[alias]):
            raise InputError(
                f"{name!r} and {alias!r} are one tensor of this model, and the initial model has two values of it; give one"
            )
    extra = sorted(str(name) for name in init if name not in expected)
    if extra:
        raise InputError(
            f"the initial model has {', '.join(extra)}, which this model does not; choose the model it was trained as"
        )
    module.load_state_dict(init)


def _is_plain(value: Any) -> bool:
    if not isinstance(value, Tensor) or value.is_nested or value.is_meta:
        return False
    if value.is_complex() or value.is_quantized or value.layout != torch.strided:
        return False
    return bool(torch.isfinite(value.float()).all())

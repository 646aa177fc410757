"""The data sets by name, and `load`, which takes a name or the user's own folder."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from coterie.base.clients import Clients
from coterie.base.errors import InputError, cut, nearest
from coterie.base.files import path_exists
from coterie.base.modules import load_object
from coterie.config.data import Split, Tables, check_seed, table_of
from coterie.config.registry import DATASETS
from coterie.config.schema import build, options_of
from coterie.data import hub
from coterie.data.sets import Dataset
from coterie.data.tables.folder import from_folder
from coterie.data.tensors import from_tensors
from coterie.data.values import is_dataset, refuse_others

_ON_THE_HUB = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_HUB_OPTIONS = ("label", "input", "subset_name", "part", "rows", "lazy")
_TABLE_OPTIONS = tuple(option.name for option in options_of(Tables))


def load(
    name_or_folder: str | os.PathLike[str],
    /,
    *,
    seed: int = 0,
    split: Split | Mapping[str, Any] | None = None,
    label: str | None = None,
    folder: str | None = None,
    **options: Any,
) -> Clients:
    """The clients of a data set by name, of the user's folder with one file per client, or of the Hugging Face hub.

    Args:
        name_or_folder: a name in `DATASETS`, or a folder (write ./NAME for one that is called like a data set); FILE.py:NAME, which
            is `Clients` or a function of `seed` that gives them; or hf:NAME, or OWNER/NAME where there is no such folder, for the
            hub (extra `hub`).
        seed: of every split that `split` gives no seed of its own.
        split: who gets which row: a `Split`, or a table of its fields.
        label: column to predict, for a folder and the hub.
        folder: where the files of a named data set lie (fashion-mnist, cifar10).
        options: those of the data set (`DATASETS[name].defaults`), fields of `Tables` or of `from_hub`, or arguments of the function.

    Raises:
        InputError: one sentence with the cure, for a wrong name, option, key or file.

    >>> load("heart-disease").names
    ('cleveland', 'hungary', 'long-beach', 'switzerland')
    """
    check_seed(seed)
    if not isinstance(name_or_folder, str | os.PathLike):
        raise InputError(
            f"data is named by a text, a data set or a folder; got {cut(name_or_folder)}"
        )
    if label is not None and not isinstance(label, str):
        raise InputError(f"label = {cut(label)} must be the name of a column")
    key = os.fspath(name_or_folder)
    if ".py:" in key:
        texts = {
            k: v for k, v in {"label": label, "folder": folder}.items() if v is not None
        }
        own = load_object(key)
        if isinstance(own, Dataset):
            _check(texts | options, _options_of(own), key)
            return own.build(seed=seed, split=split, **texts, **options)
        return clients_of(own, key, seed=seed, split=split, **texts, **options)
    if key not in DATASETS:
        if key.startswith("hf:") or (
            _ON_THE_HUB.fullmatch(key) and not path_exists(key)
        ):
            if folder is not None:
                raise InputError(
                    f"{key} is a name of the hub; drop folder = {folder!r}"
                )
            _check(options, _HUB_OPTIONS, key)
            return hub.from_hub(
                key.removeprefix("hf:"), label=label, seed=seed, split=split, **options
            )
        if not path_exists(key):
            raise InputError(
                f"there is no data set or folder {key!r}; {nearest(key, DATASETS)}; a folder path works too"
            )
        if folder is not None:
            raise InputError(f"{key} is a folder already; drop folder = {folder!r}")
        _check(options, _TABLE_OPTIONS, "a folder of tables")
        tables = build(Tables, options, key, named="data")
        return from_folder(key, label=label, tables=tables, split=split, seed=seed)
    if label is not None:
        raise InputError(f"{key} has its own label; drop label = {label!r}")
    data_set: Dataset = DATASETS[key]
    settings = {**options}
    if folder is not None:
        settings["folder"] = folder
    _check(settings, _options_of(data_set), key)
    return data_set.build(seed=seed, split=split, **settings)


def _options_of(data_set: Dataset) -> list[str]:
    """Names of what can be set of a data set, beside its split."""
    return [option for option in data_set.defaults if option != "split"]


def _check(options: Mapping[str, Any], allowed: Any, name: str) -> None:
    for option in options:
        if option in allowed:
            continue
        hint = "it has none"
        if allowed:
            hint = nearest(option, allowed)
        raise InputError(f"{name} has no option {option!r}; {hint}")


def clients_or_maker(clients: Any) -> Clients | Callable[..., Clients]:
    """Return the data that a user has in hand as clients that are ready, or as a function that makes those of a seed.

    Tensors, arrays or data sets by client are split by the seed. Raises `InputError` with the line to write for anything else.
    """
    if isinstance(clients, nn.Module):
        raise InputError(
            f"clients is {type(clients).__name__}, a model; the order is ct.fit(method, clients, model)"
        )
    if isinstance(clients, Clients) or (callable(clients) and not is_dataset(clients)):
        ready: Clients | Callable[..., Clients] = clients
        return ready
    refuse_others(clients, "clients")
    if isinstance(clients, Mapping | list | tuple):

        def make(*, seed: int, split: Any = None) -> Clients:
            return from_tensors(clients, seed=seed, split=split)

        return make
    if is_dataset(clients):
        raise InputError(
            'one data set is dealt to clients first: ct.data.from_dataset(dataset, split={"kind": "dirichlet", "alpha": 0.3, '
            '"clients": 10})'
        )
    raise InputError(
        f"clients must be Clients, as ct.data.from_tensors makes them, a dict or list of what each has, a function of seed, or the "
        f"name of a data set; got {cut(clients)}"
    )


def clients_of(
    source: Any,
    name: str,
    /,
    *,
    seed: int,
    split: Split | Mapping[str, Any] | None = None,
    **options: Any,
) -> Clients:
    """Clients that are ready, or those that a function makes of `seed=...`, of `split=...` if there is one, and of `options`.

    Raises `InputError`, which calls it `name`, for a function that fails or does not take these arguments, for what is not `Clients`,
    and for settings of ready clients.
    """
    if isinstance(source, Clients):
        unused = [f"data.{key}" for key in options] + [
            f"split.{key}" for key in table_of(split)
        ]
        if unused:
            raise InputError(
                f"{name} holds clients that are ready, so {', '.join(unused)} cannot be set"
            )
        return source
    if callable(source):
        arguments: dict[str, Any] = {"seed": seed, **options}
        if split:
            arguments["split"] = table_of(split)
        _check_takes(source, arguments, name)
        try:
            source = source(**arguments)
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"{name} failed: {type(error).__name__}: {error}"
            ) from error
    if not isinstance(source, Clients):
        raise InputError(
            f"{name} gives a {type(source).__name__}; it must give Clients, as coterie.data.from_tensors does"
        )
    return source


def _check_takes(
    function: Callable[..., Any], arguments: Mapping[str, Any], name: str
) -> None:
    """Raise `InputError` unless a function can be called with these arguments."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # nothing is known of how it is called
        return
    names = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            return  # it takes all
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            names.append(parameter.name)
    refused = [key for key in arguments if key not in names]
    if not refused:
        return
    settings = [f"data.{key}" for key in refused if key not in ("seed", "split")]
    called = getattr(function, "__name__", "clients")
    cure = f"write def {called}(*, {', '.join([*names, *refused])}):"
    if "split" in refused:
        settings = [f"split.{key}" for key in arguments["split"]] + settings
        cure += ", which gives split to ct.data.from_tensors"
    sentence = f"{name} has no parameter {' and no '.join(refused)}"
    if settings:
        sentence += f" for {', '.join(settings)}"
    raise InputError(f"{sentence}; {cure}")

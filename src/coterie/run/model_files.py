"""`models/` of a run directory: the last model of each method and seed, by client where it has one of its own.

More than `APART` models of a run lie in one file, each tensor as `client/entry`. Where several models share frozen parameters, as
adapters share a backbone, these are written once to `models/frozen/`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from coterie.base.clients import Clients
from coterie.base.errors import InputError
from coterie.base.files import open_tensors, write_tensors
from coterie.base.rows import sample
from coterie.base.vector import Layout, still
from coterie.models import outputs_of
from coterie.run.files import ALL, safe_name, seed_suffix
from coterie.run.result import Run

APART = 16
"""Models of one method and seed up to which each has a file of its own; those of a tested fold, which nobody takes home, share one."""


def save_models(
    folder: Path, label: str, run: Run, clients: Clients, fold: str = ""
) -> list[Path]:
    """Write every model of a finished run, with what it takes and gives as metadata; returns the files."""
    metadata = about_models(label, run, clients)
    if fold:
        metadata["fold"] = fold
    stem = f"{label}-{seed_suffix(run.seed, fold)}"
    frozen = _frozen_tensors(run)
    files: list[Path] = []
    if run.prior:
        files.append(prior_path(folder, label, run.seed, fold))
        save_prior(files[-1], run, metadata)
    if frozen:
        files.append(frozen_path(folder, label, run.seed, fold))
        write_tensors(files[-1], frozen, metadata)
        metadata["frozen"] = True
    apart = APART
    if fold not in ("", ALL):
        apart = 1
    if len(run.models) > apart:
        files.append(_tensors_path(folder, stem))
        tensors: dict[str, Tensor] = {}
        entries: list[str] = []
        for client in run.models:
            state = run.state_dict(client)
            entries = [name for name in state if name not in frozen]
            tensors |= {f"{client}/{name}": state[name] for name in entries}
        write_tensors(files[-1], tensors, {**metadata, "together": entries})
        return files
    for client in run.models:
        name = stem if client == "*" else f"{stem}-{client}"
        files.append(_tensors_path(folder, name))
        save_model(files[-1], run, client, metadata, left_out=frozen)
    return files


def _tensors_path(folder: Path, name: str) -> Path:
    return folder / f"{safe_name(name)}.safetensors"


def frozen_path(folder: Path, label: str, seed: int | str, fold: str = "") -> Path:
    """Return the path, below `models/`, of the tensors that all models of a method and seed share."""
    return _tensors_path(folder / "frozen", f"{label}-{seed_suffix(seed, fold)}")


def prior_path(folder: Path, label: str, seed: int | str, fold: str = "") -> Path:
    """Return the path, below `models/`, of what the clients share beside their models."""
    return _tensors_path(folder / "prior", f"{label}-{seed_suffix(seed, fold)}")


def save_prior(path: Path, run: Run, metadata: Mapping[str, Any]) -> None:
    """Write what the clients of a run share: tensors, and beside `metadata` all else by its name."""
    tensors = {k: v for k, v in run.prior.items() if isinstance(v, Tensor)}
    others = {k: v for k, v in run.prior.items() if k not in tensors}
    write_tensors(path, tensors, {**metadata, **others})


def _frozen_tensors(run: Run) -> Mapping[str, Tensor]:
    """The tensors that several models of a run share because they are frozen."""
    trained = [parameter.requires_grad for parameter in run.module.parameters()]
    if len(run.models) == 1 or all(trained):
        return {}
    return still(run.module, Layout.of(run.module))


def about_models(label: str, run: Run, clients: Clients) -> dict[str, Any]:
    """Return the metadata of a model's file."""
    inputs = sample(clients.train.inputs)
    shape: Any
    if isinstance(inputs, dict):
        shape = {name: tensor.shape[1:] for name, tensor in inputs.items()}
    else:
        shape = inputs.shape[1:]
    metadata = {
        "method": label,
        "seed": run.seed,
        "rounds": run.rounds,
        "data": clients.name,
        # Of this seed: another one may lack a category or a class.
        "shape": shape,
        "outputs": outputs_of(clients),
        "classes": clients.classes,
    }
    if run.meaning is not None:
        metadata |= {"kind": run.meaning.kind, "last": run.meaning.last}
    return metadata


def save_model(
    path: Path,
    run: Run,
    client: str,
    metadata: Mapping[str, Any],
    left_out: Collection[str] = (),
) -> None:
    """Write the model of `client` ("*": the one for all clients) with `metadata`, but for some tensors."""
    state = run.state_dict(client)
    kept = {name: value for name, value in state.items() if name not in left_out}
    write_tensors(path, kept, metadata)


def load_model_file(path: Path) -> dict[str, Tensor]:
    """The state dict of a safetensors file. Raises `InputError` if it is missing or none, or holds the models of many clients."""
    return open_model_file(path)[0]


def open_model_file(
    path: Path, client: str | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state dict of a safetensors file, and what a run wrote about its model; of a file with many models, that of `client`.

    Raises `InputError` as `load_model_file` does, and for a client whose model is not there.
    """
    with open_tensors(path, "pt", "it is not a safetensors file of a model") as (
        file,
        metadata,
    ):
        names = {name: name for name in file.keys()}  # noqa: SIM118 - it is not a dict
        entries = metadata.get("together")
        if entries is not None:  # of every client
            owner = client if f"{client}/{entries[0]}" in names else "*"
            if client is None or f"{owner}/{entries[0]}" not in names:
                models = len(names) // len(entries)
                raise InputError(
                    f"{path} holds the models of {models} clients, and none of {client!r}"
                )
            names = {entry: f"{owner}/{entry}" for entry in entries}
        tensors = {entry: file.get_tensor(name) for entry, name in names.items()}
    if metadata.get("frozen") is True:
        tensors |= load_model_file(
            frozen_path(
                path.parent,
                str(metadata.get("method")),
                str(metadata.get("seed")),
                str(metadata.get("fold", "")),
            )
        )
    return tensors, metadata

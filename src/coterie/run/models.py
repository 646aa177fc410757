"""`models/` of a run directory: the last model of each method and seed, by client where it has one of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from coterie.core.inputs import sample
from coterie.core.reading import opened_tensors
from coterie.core.rows import Clients
from coterie.core.state import write_atomically
from coterie.models import outputs_of
from coterie.run.files import safe_name
from coterie.run.history import Run

__all__ = ["about_models", "load_model_file", "open_model_file", "save_model", "save_models"]


def save_models(folder: Path, label: str, run: Run, clients: Clients) -> list[Path]:
    """Write every model of a finished run, with what it takes and gives as metadata; returns the files."""
    about = about_models(label, run, clients)
    files: list[Path] = []
    for client in run.models:
        name = f"{label}-{run.seed}" + ("" if client == "*" else f"-{client}")
        files.append(folder / f"{safe_name(name)}.safetensors")
        save_model(files[-1], run, client, about)
    return files


def about_models(label: str, run: Run, clients: Clients) -> dict[str, Any]:
    """What the file of a model says of it."""
    inputs = sample(clients.train.inputs)
    return {
        "method": label,
        "seed": run.seed,
        "rounds": run.rounds,
        "data": clients.name,
        # Of this seed: another one may lack a category or a class.
        "shape": {k: v.shape[1:] for k, v in inputs.items()} if isinstance(inputs, dict) else inputs.shape[1:],
        "outputs": outputs_of(clients),
        "classes": clients.classes,
    }


def save_model(path: Path, run: Run, client: str, about: Mapping[str, Any]) -> None:
    """Write the model of `client` ("*": the one for everybody) with what is `about` it as metadata."""
    from safetensors.torch import save

    meta = {"coterie": json.dumps(about)}  # one entry: safetensors writes several in any order
    tensors = {k: v.clone() for k, v in run.state_dict(client).items()}
    # `save_file` makes files that only their owner may read; a run directory is for colleagues.
    write_atomically(path, lambda p: p.write_bytes(save(tensors, metadata=meta)))


def load_model_file(path: Path) -> dict[str, Tensor]:
    """The state dict of a safetensors file. Raises `InputError` if it is missing or none."""
    return open_model_file(path)[0]


def open_model_file(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state dict of a safetensors file, and what a run wrote about its model; errors as for `load_model_file`."""
    with opened_tensors(path, "pt", "it is not a safetensors file of a model") as (file, about):
        return {name: file.get_tensor(name) for name in file.keys()}, about  # noqa: SIM118 - it is not a dict

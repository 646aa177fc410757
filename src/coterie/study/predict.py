"""`coterie predict`: a model of a finished run, or one that was finalised, answers for new rows."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from coterie.base.errors import InputError, nearest, require
from coterie.base.files import json_rows, read_json, read_toml
from coterie.base.label_form import LabelForm
from coterie.base.loss import Kind
from coterie.base.rows import Inputs, LabelScale
from coterie.models import build_for
from coterie.run.experiment import model_of
from coterie.run.files import (
    FILES,
    hash_of,
    own_objects,
    require_readable,
    safe_name,
    seed_suffix,
)
from coterie.run.hashes import (
    TABLES,
    find_damage,
    read_record,
    record_or_none,
    refuse_change,
    refuse_other_records,
)
from coterie.run.model_files import frozen_path, open_model_file
from coterie.run.predictions import Answers, Prediction
from coterie.study.layout import (
    CHECKPOINTS,
    fold_of_all_rows,
    refuse_combination,
)

MODEL = "model.safetensors"
OUTSIDE = "outside"
"""In place of the name of a client: a hospital that took no part."""


def predict(
    folder: Path,
    data: Path,
    *,
    client: str | None = None,
    method: str | None = None,
    seed: int | None = None,
    threshold: float | None = None,
    trust: Path | None = None,
) -> Prediction:
    """Predict the rows of a table or an npz file with a client's model of a finished run, or with a finalised one.

    Args:
        folder: the run directory, or what `coterie finalise` wrote.
        data: raw columns as in the client's own file, or a pipe of a CSV; the label may be missing.
        client: client of a run, whose model; where a method has one model for all clients, that one.
        method: method of a run, its label.
        seed: seed of the run whose model is used; None: the first.
        threshold: the probability of the second of two classes from which a row is called so; None: that of a finalised model, else .5.
        trust: the Python file of a model of the user's own. It is the only file that is imported, and must be the one of the run.

    Raises:
        InputError: a run without tables, an unknown client or method, a file that does not fit, or a model whose file is not trusted.
    """
    if data.is_fifo():  # it is read twice
        with tempfile.TemporaryDirectory() as place:
            copy = Path(place) / "pipe.csv"
            copy.write_bytes(data.read_bytes())
            return predict(
                folder,
                copy,
                client=client,
                method=method,
                seed=seed,
                threshold=threshold,
                trust=trust,
            )
    from coterie.data import apply_recipe
    from coterie.data.tables.read import cells_of

    answers, recipe, metadata = load_answers(
        folder, client=client, method=method, seed=seed, trust=trust
    )
    columns: Mapping[str, Sequence[str]] = {}
    inputs: Inputs
    labels, notes = None, tuple[str, ...]()
    if recipe:
        inputs, labels, notes = apply_recipe(recipe, data)
        columns = cells_of(data)
    else:
        inputs = _arrays(metadata["shape"], data)
    cut = threshold
    if cut is None:
        cut = metadata.get("threshold")
    if cut is None:
        cut = 0.5
    prediction = answers.predict(
        inputs,
        labels,
        method=metadata["method"],
        client=str(metadata.get("client", client)),
        notes=tuple(notes),
        threshold=cut,
        columns=columns,
    )
    require(
        threshold is None or len(prediction.classes) == 2,
        "a threshold needs two classes; leave it out",
    )
    return prediction


def _arrays(shape: Any, data: Path) -> Inputs:
    """The arrays of an npz file that a model of arrays takes; what is beside them is left out.

    Args:
        shape: of one row; of inputs that are several tensors those by name.
        data: the file.
    """
    from coterie.data.tables.read import ARRAY_LABELS, read_arrays

    if data.suffix.lower() != ".npz":
        raise InputError(
            f"{data} is not an npz file, and this run is one of arrays; write the rows by numpy.savez"
        )
    arrays = read_arrays(data)
    if isinstance(shape, dict):
        wanted = {key: tuple(one_shape) for key, one_shape in shape.items()}
    else:
        # Labels that the file has may be of the same shape as the inputs.
        fitting = [
            key
            for key, array in arrays.items()
            if key not in ARRAY_LABELS and array.shape[1:] == tuple(shape)
        ]
        if len(fitting) != 1:
            raise InputError(
                f"{data} must have one array of rows of shape {list(shape)}; it has {len(fitting)}"
            )
        wanted = {fitting[0]: tuple(shape)}
    inputs: dict[str, Tensor] = {}
    for key, of_row in wanted.items():
        array = arrays.get(key)
        if array is None or array.shape[1:] != of_row:
            raise InputError(
                f"{data} must have an array {key!r} of rows of shape {list(of_row)}; it has {', '.join(arrays)}"
            )
        values = torch.from_numpy(array)
        # As when the run read its rows: numbers are float32, and whole numbers may be tokens.
        inputs[key] = values.float() if values.is_floating_point() else values
    if isinstance(shape, dict):
        return inputs
    return next(iter(inputs.values()))


def is_final(folder: Path) -> bool:
    """Return True if `folder` is what `coterie finalise` wrote."""
    return (folder / MODEL).is_file()


def load_answers(
    folder: Path,
    *,
    client: str | None = None,
    method: str | None = None,
    seed: int | None = None,
    trust: Path | None = None,
) -> tuple[Answers, dict[str, Any], dict[str, Any]]:
    """A model in eval mode, the recipe of its inputs, and what its file says about it; arguments and errors of `predict`."""
    if is_final(folder):
        choices = {"client": client, "method": method, "seed": seed}
        named = [key for key, value in choices.items() if value is not None]
        if named:
            raise InputError(f"{folder} holds one model; leave out {', '.join(named)}")
        path, recipe = folder / MODEL, _json(folder / "preprocess.json")
    else:
        path, recipe = _of_run(folder, client, method, seed)
    state, metadata = open_model_file(path, client)
    if "shape" not in metadata:
        raise InputError(
            f"{path} does not say what it takes; another version of coterie wrote it: repeat the run"
        )
    shape = metadata["shape"]
    sizes: Any
    if isinstance(shape, dict):  # of inputs that are several tensors
        sizes = {key: tuple(one_shape) for key, one_shape in shape.items()}
    else:
        sizes = tuple(shape)
    if is_final(folder):
        table = metadata["model"]
    else:
        table = read_toml(folder / "experiment.toml").get("model", {})
    classes, label = tuple(metadata["classes"]), recipe.get("label", {})
    form = LabelForm.of_recipe(label)
    built = _model(folder, table, trust)
    model = build_for(form, built, sizes, metadata["outputs"])
    if form is not None and not form.has_loss:
        form = None  # classes or numbers say it themselves
    model.load_state_dict(state)
    scale = LabelScale()
    if label and not classes and form is None:
        scale = LabelScale(label["mean"], label["scale"])
    # A file that was written before there were kinds does not say its own.
    if "kind" in metadata:
        kind = metadata["kind"]
    elif not classes:
        kind = "regression"
    elif metadata["outputs"] == 1:
        kind = "binary"
    else:
        kind = "classes"
    if kind not in get_args(Kind):
        raise InputError(
            f"{path} has outputs of an unknown kind; {nearest(str(kind), get_args(Kind))}"
        )
    last = metadata.get("last") is True
    answers = Answers(model, kind, classes, scale, last=last, form=form)
    return answers.eval(), recipe, metadata


def _of_run(
    run: Path, client: str | None, method: str | None, seed: int | None
) -> tuple[Path, dict[str, Any]]:
    """The file of a model, and the recipe of its seed."""
    require_readable(run)
    refuse_combination(run)
    refuse_other_records(run)
    for name in ("experiment.toml", "preprocess.json", "summary.json"):
        refuse_change(run, name)
    summary = json_rows(run / "summary.json", {"client": str, "method": str})
    clients = {row["client"] for row in summary}
    if client is None:
        raise InputError(
            f"say whose model answers, with --client; the run has {', '.join(sorted(clients))}"
        )
    if client not in clients and client != OUTSIDE:
        raise InputError(
            f"the run has no client {client!r}; {nearest(str(client), clients)}, or {OUTSIDE!r} for a hospital that took no part"
        )
    recipes = _recipes(run)
    used = str(seed)
    if seed is None:
        used = next(iter(recipes))
    if used not in recipes:
        raise InputError(f"the run has no seed {used}; it has {', '.join(recipes)}")
    labels_known = {row["method"] for row in summary}
    if method not in labels_known:
        raise InputError(
            f"the run has no method {method!r}; {nearest(str(method), labels_known)}"
        )
    return model_path(run, str(method), used, str(client)), recipes[used]


def _recipes(run: Path) -> dict[str, Any]:
    """The recipe of each seed of a run; empty ones where it was made of arrays, which are used as they are."""
    if (run / "preprocess.json").exists():
        recipes: dict[str, Any] = _json(run / "preprocess.json")
        return recipes
    finished = record_or_none(run / TABLES)
    if finished is None or "preprocess.json" in finished["files"]:
        raise InputError(
            f"{run / 'preprocess.json'} is missing; copy it back, or repeat the run in another folder"
        )
    tables = read_toml(run / "experiment.toml")
    if "folder" not in tables.get("data", {}):
        raise InputError(
            f"{run} was made neither from tables nor from a folder of arrays, so it cannot read a file; use its models/ from Python"
        )
    return {str(seed): {} for seed in tables["run"]["seeds"]}


def _model(run: Path, table: dict[str, Any], trust: Path | None) -> Any:
    """Return the function that builds the model of a run. A user's file is imported only if it is trusted and that of the run."""
    name = str(table.get("name", ""))
    if own_objects(name):
        raise InputError(
            f"the model of {run} is {name}, an object of a Python program; load it there: models/"
        )
    if ".py:" in name:
        path, _, attribute = name.rpartition(":")
        if trust is None:
            raise InputError(
                f"the model of {run} is {name}, and to build it runs that file; look at it, then say --trust {path}"
            )
        recorded = None
        if (run / FILES).exists():
            recorded = _json(run / FILES).get(path)
        if hash_of(trust) != recorded:
            raise InputError(
                f"{trust} is not the file with which {run} was made; give the same {path}"
            )
        table = {**table, "name": f"{trust}:{attribute}"}
    return model_of(table, f"{run}, [model]")


def model_path(run: Path, method: str, seed: str, client: str) -> Path:
    """Return the file with the model of a client. Raises `InputError` if there is none, or it is damaged."""
    folds = read_toml(run / "experiment.toml").get("split", {}).get("folds", 0)
    fold = fold_of_all_rows(folds)
    name = f"{method}-{seed_suffix(seed, fold)}"
    models = run / "models"
    # A method with one model for all clients has none under a client's name.
    model = models / f"{safe_name(f'{name}-{client}')}.safetensors"
    if not model.exists():
        model = models / f"{safe_name(name)}.safetensors"
    if not model.exists():
        raise InputError(
            f"{run} has no model of {method!r} for {client!r} with seed {seed}; choose another --method or --seed"
        )
    recorded = read_record(run / CHECKPOINTS / name / "done.json")["files"]
    opened = {}
    for file in (model, frozen_path(models, method, seed, fold)):
        path = file.relative_to(run).as_posix()
        if path in recorded:
            opened[path] = recorded[path]
    for path in find_damage(run, opened):
        raise InputError(
            f"{run / path} is damaged; continue with: coterie run {run / 'experiment.toml'} --resume"
        )
    return model


def _json(path: Path) -> Any:
    return read_json(path, dict, "is this the folder of a finished run?")

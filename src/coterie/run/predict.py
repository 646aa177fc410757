"""`coterie predict`: a finished run answers for new rows."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.core.errors import InputError, nearest, require
from coterie.core.loss import Kind, probabilities
from coterie.core.rows import LabelScale
from coterie.models import build_shape
from coterie.run.experiment import model_of
from coterie.run.files import FILES, escaped, hash_of, require_readable, safe_name
from coterie.run.models import open_model_file
from coterie.run.seals import damaged, read_sealed
from coterie.run.tables import read_tables

__all__ = ["Prediction", "predict"]


class Prediction(NamedTuple):
    """Predictions for new rows.

    Attributes:
        method: whose model was used.
        classes: names of the classes; empty for regression.
        values: probability of each class [rows, C], or the predicted number [rows, 1] in the unit of the label.
        labels: of the file, if it has them.
        notes: what was unusual about the file.
    """

    method: str
    classes: tuple[str, ...]
    values: Tensor
    labels: Tensor | None
    notes: tuple[str, ...]

    def table(self) -> str:
        """A CSV: row number, prediction, and a column per class."""
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        if not self.classes:
            writer.writerow(("row", "prediction"))
            writer.writerows((i, f"{v:.6g}") for i, v in enumerate(self.values[:, 0].tolist(), 1))
            return buffer.getvalue()
        classes = [escaped(name) for name in self.classes]
        writer.writerow(("row", "prediction", *classes))
        for i, row in enumerate(self.values.tolist(), 1):
            writer.writerow((i, classes[max(range(len(row)), key=row.__getitem__)], *(f"{p:.4f}" for p in row)))
        return buffer.getvalue()

    def accuracy(self) -> float | None:
        """Share of right predictions, if the file has labels of classes."""
        if self.labels is None or not self.classes:
            return None
        return float((self.values.argmax(dim=1) == self.labels).double().mean())


def predict(
    run: Path, data: Path, *, client: str, method: str, seed: int | None = None, trust: Path | None = None
) -> Prediction:
    """Predict the rows of a CSV, Parquet or npz file with a client's model of a finished run.

    Args:
        run: the run directory.
        data: raw columns as in the client's own file; the label may be missing.
        client: whose model; where a method has one model for everybody, that one.
        method: its label.
        seed: of the run whose model is used; None: the first.
        trust: the Python file of a model of the user's own. It is the only file that is imported, and must be the one of the run.

    Raises:
        InputError: a run without tables, an unknown client or method, a file that does not fit, or a model whose file is not trusted.
    """
    from coterie.data import apply_recipe

    require_readable(run)
    tables = read_tables(run / "experiment.toml")
    summary = _json(run / "summary.json")
    known = {row["client"] for row in summary}
    require(client in known, f"the run has no client {client!r}; {nearest(client, known)}")
    if not (run / "preprocess.json").exists():
        raise InputError(f"{run} was not made from tables, so it cannot read {data}; use its models/ from Python")
    recipes = _json(run / "preprocess.json")
    used = str(next(iter(recipes)) if seed is None else seed)
    require(used in recipes, f"the run has no seed {used}; it has {', '.join(recipes)}")
    labels_known = {row["method"] for row in summary}
    require(method in labels_known, f"the run has no method {method!r}; {nearest(method, labels_known)}")
    encoded = apply_recipe(recipes[used], data)

    path = _model_path(run, method, used, client)
    state, about = open_model_file(path)
    require("shape" in about, f"{path} does not say what it takes; another version of coterie wrote it: repeat the run")
    shape = about["shape"]
    sizes = {k: tuple(v) for k, v in shape.items()} if isinstance(shape, dict) else tuple(shape)
    built = build_shape(_model(run, tables.get("model", {}), trust), sizes, about["outputs"])
    built.load_state_dict(state)
    with torch.no_grad():
        outputs = built.eval()(encoded.inputs)
    classes = tuple(about["classes"])
    if not classes:
        scale = LabelScale(*(recipes[used]["label"][key] for key in ("mean", "scale")))
        labels = None if encoded.labels is None else scale.undo(encoded.labels)
        return Prediction(method, (), scale.undo(outputs.reshape(len(outputs), -1)), labels, tuple(encoded.notes))
    kind: Kind = "binary" if about["outputs"] == 1 else "classes"
    return Prediction(method, classes, probabilities(kind, outputs), encoded.labels, tuple(encoded.notes))


def _model(run: Path, table: dict[str, Any], trust: Path | None) -> Any:
    """What builds the model of a run. A file of the user's own is imported only if it is trusted and is the one of the run."""
    name = str(table.get("name", ""))
    if ".py:" in name:
        path, _, attribute = name.rpartition(":")
        if trust is None:
            raise InputError(
                f"the model of {run} is {name}, and to build it runs that file; look at it, then say --trust {path}"
            )
        recorded = _json(run / FILES).get(path) if (run / FILES).exists() else None
        require(hash_of(trust) == recorded, f"{trust} is not the file with which {run} was made; give the same {path}")
        table = {**table, "name": f"{trust}:{attribute}"}
    return model_of(table, f"{run}, [model]")


def _model_path(run: Path, method: str, seed: str, client: str) -> Path:
    own = run / "models" / f"{safe_name(f'{method}-{seed}-{client}')}.safetensors"
    shared = run / "models" / f"{safe_name(f'{method}-{seed}')}.safetensors"
    found = own if own.exists() else shared
    require(
        found.exists(),
        f"{run} has no model of {method!r} for {client!r} with seed {seed}; choose another --method or --seed",
    )
    name = found.relative_to(run).as_posix()
    for done in (run / "checkpoint").glob(f"*-{seed}/done.json"):
        recorded = read_sealed(done)["files"]
        broken = damaged(run, {name: recorded[name]} if name in recorded else {})
        require(not broken, f"{found} is damaged; go on with: coterie run {run / 'experiment.toml'} --resume")
    return found


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read ({error}); is this the folder of a finished run?") from error

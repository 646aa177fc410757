"""`coterie finalise`: the recommended method of a finished run, fitted again on all rows, as one model to hand on."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from coterie.base.clients import Clients
from coterie.base.errors import InputError, nearest
from coterie.base.files import json_rows, write_atomically
from coterie.config.data import DEFAULT_PARTS, EVERY_FILE
from coterie.config.registry import DATASETS
from coterie.config.run import MethodEntry
from coterie.run.evaluation import add_metrics
from coterie.run.experiment import Experiment
from coterie.run.files import FILES, hash_of, require_readable, write_json
from coterie.run.hashes import refuse_other_records
from coterie.run.model_files import (
    about_models,
    open_model_file,
    save_model,
    save_prior,
)
from coterie.run.personalise import personalise
from coterie.run.predictions import Answers
from coterie.run.provenance import Provenance
from coterie.run.result import Run
from coterie.run.tables import read_experiment
from coterie.study.layout import Pair, fold_of_all_rows, refuse_combination
from coterie.study.outside import PRIOR
from coterie.study.predict import MODEL, OUTSIDE, load_answers, model_path
from coterie.study.preflight import model_to_train, pair_world, run_settings, train


class Final(NamedTuple):
    """The result of `finalise`: `rows` that each client trained on, for how many `rounds`, and `notes` about what could not be done."""

    rows: dict[str, int]
    rounds: int
    notes: tuple[str, ...]


def finalise(
    run: Path,
    out: Path,
    *,
    client: str,
    method: str,
    threshold: float | None = None,
    accept_change: Sequence[str] = (),
) -> Final:
    """Fit `method` again on all rows of all clients, and write the model of `client` to the new folder `out`.

    Settings are those of the run, the seed is its first, and rounds are those after which the method ended with it. Rows that were
    kept for testing are trained on too; where something is chosen on validation rows, as in personalisation, these keep their share.
    `out` gets model.safetensors, preprocess.json (how columns become inputs) and model.onnx.

    Args:
        run: the run directory.
        out: a folder that does not exist or is empty.
        client: whose model is written; "outside": that of a hospital that took no part.
        method: the label of a method of the run.
        threshold: kept with the model, for `predict`.
        accept_change: what may have changed since the run, as `RunSettings` names it.

    Raises:
        InputError: a run that was not made from tables on this machine, or under attack; an unknown name; `out` holds something.
    """
    require_readable(run)
    refuse_combination(run)
    refuse_other_records(run)
    experiment = read_experiment(run / "experiment.toml")
    entries = {entry.label: entry for entry in experiment.methods}
    if method not in entries:
        raise InputError(
            f"the run has no method {method!r}; {nearest(method, entries)}"
        )
    if not (run / "preprocess.json").is_file():
        raise InputError(f"{run} was not made from tables; only these can be finalised")
    if (run / "asks.csv").is_file():
        raise InputError(
            f"the rows of {run} lie at sites; finalise works where all rows are here"
        )
    if experiment.attack is not None:
        raise InputError(f"{run} was made under attack; repeat it without [attack]")
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise InputError(f"{out} is a link or a file; choose another --out")
    if out.exists() and any(out.iterdir()):
        raise InputError(f"{out} holds something already; choose another --out")
    add_metrics(experiment.run.metrics)
    untested = _on_all_rows(experiment)
    seed = experiment.run.seeds[0]
    pair = Pair(entries[method], seed, run, fold_of_all_rows(experiment.folds))
    if pair.done.exists():
        clients = experiment.of_fold(experiment.load_data(seed), seed, pair.fold)
        Provenance(
            pair.folder, pair_world(experiment, pair, clients), accept_change
        ).compare("the run")
    clients = untested.of_fold(
        untested.load_data(seed), seed, fold_of_all_rows(untested.folds)
    )
    if client == OUTSIDE and client not in clients.names:
        path = model_path(run, method, str(seed), client)
        open_model_file(path, client)  # a method that serves nobody outside has none
    elif client not in clients.names:
        raise InputError(
            f"the run has no client {client!r}; {nearest(client, clients.names)}, or {OUTSIDE!r} for a hospital that took no part"
        )
    fitted = _fit(
        untested, entries[method], clients, seed, _rounds(run, experiment, method, seed)
    )
    _write(
        out,
        untested,
        fitted,
        clients,
        client=client,
        method=method,
        threshold=threshold,
    )
    rows = {
        row["client"]: int(row["n_train"])
        for row in fitted.summary
        if row["split"] == "train"
    }
    return Final(
        rows, fitted.rounds, tuple(_write_onnx(out, _own_file(experiment.model)))
    )


def _on_all_rows(experiment: Experiment) -> Experiment:
    """The same experiment without test rows; those of validation keep their share beside those of training."""
    if experiment.folds:
        return experiment
    parts = DEFAULT_PARTS
    name = str(experiment.data.get("name"))
    if name in DATASETS:
        parts = DATASETS[name].defaults.get("split", {}).get("parts") or parts
    parts = {**experiment.split}.get("parts") or parts
    used = {part: share for part, share in parts.items() if part != "test"}
    shares = {part: share / sum(used.values()) for part, share in used.items()}
    data = dict(experiment.data)
    if column := data.pop("split_column", None):
        # It says which rows were tested, and is no input of the final model either.
        by_client = data.get("drop", ())
        if not isinstance(by_client, Mapping):
            by_client = {EVERY_FILE: by_client}
        everywhere = [*by_client.get(EVERY_FILE, ()), column]
        data["drop"] = {**by_client, EVERY_FILE: everywhere}
    return replace(experiment, data=data, split={**experiment.split, "parts": shares})


def _rounds(run: Path, experiment: Experiment, method: str, seed: int) -> int:
    """Rounds after which a method ended, which callbacks may have decided; those of the run if it is not complete."""
    rows = json_rows(
        run / "summary.json", {"method": str, "seed": int, "fold": str, "rounds": int}
    )
    key = (method, seed, fold_of_all_rows(experiment.folds))
    for row in rows:
        if (row["method"], row["seed"], row["fold"]) == key:
            return int(row["rounds"])
    return experiment.run.rounds


def _fit(
    experiment: Experiment, entry: MethodEntry, clients: Clients, seed: int, rounds: int
) -> Run:
    module, tuning = model_to_train(experiment, clients, seed), entry.personalise
    chooses = tuning is not None and tuning.chooses
    settings = run_settings(experiment, merge_validation=not chooses)
    run = train(experiment, entry, clients, module, rounds, seed, settings)
    if tuning is None:
        return run
    return personalise(
        run,
        clients,
        **vars(tuning),
        engine=experiment.engine,
        settings=run_settings(experiment),
    )


def _write(
    out: Path, experiment: Experiment, run: Run, clients: Clients, **metadata: Any
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    owner = metadata["client"]
    if owner not in run.models:
        owner = "*"  # the model that all clients share
    model = experiment.tables()["model"]
    save_model(
        out / MODEL,
        run,
        owner,
        {**about_models(metadata["method"], run, clients), **metadata, "model": model},
    )
    if run.prior:
        save_prior(out / PRIOR, run, {"method": metadata["method"]})
    write_json(out / "preprocess.json", clients.recipe)
    if own_file := _own_file(model):
        write_json(out / FILES, {str(own_file): hash_of(own_file)})


def _own_file(model: Mapping[str, Any]) -> Path | None:
    """The file of a model of the user's own."""
    name = str(model.get("name", ""))
    if ".py:" not in name:
        return None
    return Path(name.rpartition(":")[0])


def _write_onnx(out: Path, own_file: Path | None) -> list[str]:
    """Write model.onnx; a sentence if that cannot be done."""
    try:
        import onnx  # noqa: F401 - torch imports both when it exports, and names neither where one is missing
        import onnxscript  # noqa: F401
    except ImportError:
        return ['no model.onnx: that needs pip install "coterie[onnx]"']
    answers, recipe, _ = load_answers(out, trust=own_file)
    rows = torch.export.Dim("rows")
    path = out / "model.onnx"
    output_name = "prediction" if answers.numbers else "probabilities"
    try:
        with _quiet():
            program = torch.onnx.export(
                answers,
                (torch.zeros(2, len(recipe["features"])),),
                input_names=["features"],
                output_names=[output_name],
                dynamic_shapes=({0: rows},),
                dynamo=True,
                verbose=False,
            )
            exported = cast("torch.onnx.ONNXProgram", program)  # `dynamo` gives one
            _require_same_answers(exported, answers, len(recipe["features"]))
            write_atomically(path, exported.save)
    except Exception as error:  # exporters fail in many ways on models of a user's own
        return [
            f"no model.onnx: this model cannot be exported ({type(error).__name__})"
        ]
    return []


def _require_same_answers(
    exported: torch.onnx.ONNXProgram, answers: Answers, features: int
) -> None:
    """Raises an error unless 3 rows get the answers of the model: where its code fixes the number of rows, exporters say nothing."""
    from onnx.reference import ReferenceEvaluator

    rows = torch.linspace(-1, 1, 3 * features).reshape(3, features)
    (answer,) = ReferenceEvaluator(exported.model_proto).run(
        None, {"features": rows.numpy()}
    )
    with torch.no_grad():
        torch.testing.assert_close(
            torch.from_numpy(answer), answers(rows), rtol=1e-3, atol=1e-4
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporter says of packages that nobody needs here."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)

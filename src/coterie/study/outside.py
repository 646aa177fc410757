"""A hospital that took no part in a run: the model that it is served, and one that it solves from its own rows at home.

What the clients share lies beside a model as `prior.safetensors` (docs/run-directory.md): the mean of their models, and how far they
are apart. A new hospital's own model is the mode of its rows under it, with the weight u = 1 of a usual client. No row leaves it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from coterie.base.errors import InputError
from coterie.base.files import open_tensors, read_json, write_tensors
from coterie.base.label_form import LabelForm
from coterie.base.vector import Layout, export
from coterie.compute.linear import linear_layer, outputs_of_linear, solver_labels
from coterie.data import apply_recipe
from coterie.run.files import write_json
from coterie.solvers import glm, pooling
from coterie.study.predict import MODEL, load_answers

PRIOR = "prior.safetensors"


def read_prior(path: Path) -> tuple[pooling.Prior, dict[str, Any]]:
    """Read what clients share, and the metadata of its file. Raises `InputError` for a file that has none."""
    with open_tensors(path, "pt", "take the folder of a model by partial") as (
        file,
        metadata,
    ):
        told = set(file.keys())
        if not told >= set(pooling.Prior._fields):
            raise InputError(
                f"{path} is what {metadata['method']} shares, not how far clients differ; finalise with --method partial"
            )
        prior = pooling.Prior(
            *(file.get_tensor(name) for name in pooling.Prior._fields)
        )
    return prior, metadata


def solve_own(folder: Path, rows: Path, out: Path, *, client: str) -> int:
    """Solve the model of a new hospital from its rows, under the prior of a finalised model, and write it to `out`.

    Args:
        folder: what `coterie finalise` wrote, with `prior.safetensors`.
        rows: the hospital's table, with the label.
        out: a folder, which may be the same.
        client: what the hospital is called.

    Returns:
        The number of its rows.

    Raises:
        InputError: a folder without a prior, a model that is not linear, or rows that do not fit.
    """
    if not (folder / PRIOR).is_file():
        raise InputError(
            f"{folder} holds no {PRIOR}, without which own rows cannot be fitted; finalise with --method partial"
        )
    answers, recipe, metadata = load_answers(folder)
    prior, about = read_prior(folder / PRIOR)
    layer = linear_layer(answers.model)
    if layer is None or answers.kind not in glm.FAMILIES:
        raise InputError(f"the model of {folder} is not linear; own rows need that")
    encoded = apply_recipe(recipe, rows, need_label=True, weighted=True)
    if encoded.labels is None:
        raise InputError(f"own rows for {folder} have no label column; add it")
    form = LabelForm.of_recipe(recipe["label"])
    labels, weights = encoded.labels, None
    if form is not None and form.weighted:
        weights = form.weights(labels)
        labels = form.unweighted(labels)
    theta = own_mode(
        encoded.inputs,
        solver_labels(answers.form, labels),
        answers.kind,
        outputs_of_linear(answers.model, layer),
        prior,
        weights,
    )
    layout = Layout.of(answers.model)
    state = export(theta.to(layout.dtype), answers.model, layout)
    out.mkdir(parents=True, exist_ok=True)
    write_tensors(out / MODEL, state, {**metadata, "client": client})
    write_json(out / "preprocess.json", recipe)
    write_tensors(out / PRIOR, prior._asdict(), about)
    return len(encoded.labels)


def own_mode(
    inputs: Tensor,
    labels: Tensor,
    kind: str,
    outputs: int,
    prior: pooling.Prior,
    weights: Tensor | None = None,
) -> Tensor:
    """The mode [P] of the rows of one client under a prior, with weight u = 1.

    Args:
        inputs: [n, d].
        labels: [n].
        kind: of the loss (`solvers.glm.FAMILIES`).
        outputs: C.
        prior: what the clients share.
        weights: of rows [n], which are divided by their mean; None: 1 each.
    """
    if weights is not None:
        weights = weights / weights.mean()
    family, scale = glm.FAMILIES[kind], 1.0
    if kind == "regression":
        penalty = pooling.own_precision(len(prior.mu), len(prior.m0))
        scale = 1 / pooling.noise(
            glm.mode(inputs, labels, family, penalty, weights=weights), len(labels)
        )
    return glm.mode(
        inputs,
        labels,
        family,
        prior.precision(),
        outputs,
        centre=prior.centre(),
        weights=weights,
        scale=scale,
    ).theta


def prior_words(folder: Path) -> str:
    """A section of the card on what the clients share; empty where the model's folder has no prior."""
    if not (folder / PRIOR).is_file():
        return ""
    prior, about = read_prior(folder / PRIOR)
    features = read_json(folder / "preprocess.json", dict, "finalise again")["features"]
    names = [_feature(feature) for feature in features]
    lines = [
        "## What the clients share",
        "",
        "Slopes of standardised columns: their mean, which a hospital outside is served, and the deviation between clients.",
        "",
        "| column | mean | deviation |",
        "| --- | ---: | ---: |",
    ]
    for j, (mean, variance) in enumerate(
        zip(prior.mu.tolist(), prior.t.tolist(), strict=True)
    ):
        column = str(j)
        if (
            names
        ):  # a model of several classes has a slope of each column for each class
            column = names[j % len(names)]
        lines.append(f"| {column} | {mean:.3f} | {variance**0.5:.3f} |")
    intercepts = ", ".join(f"{value:.3f}" for value in prior.m0.tolist())
    lines += [
        "",
        f"Intercept {intercepts}, deviation {float(prior.q0) ** 0.5:.3f}.",
        f"Deviation of a mean slope from 0: {float(prior.s2) ** 0.5:.3f}.",
    ]
    weights: Mapping[str, float] = about.get("weights", {})
    if weights:
        told = ", ".join(f"{name} {u:.2f}" for name, u in weights.items())
        lines.append(f"Weights u of the clients (1: as unlike as is usual): {told}.")
    return "\n".join([*lines, ""])


def outside_card(
    title: str, method: str, rows: Mapping[str, int], expectation: str = ""
) -> str:
    """The card of the model that a hospital outside is served.

    Args:
        title: of the run.
        method: whose model it is.
        rows: number of training rows by client.
        expectation: a sentence on what one may expect of it; empty where that was not measured.
    """
    told = "\n".join(f"| {name} | {amount:,} |" for name, amount in rows.items())
    measured = expectation or "How well it does there was not measured."
    return f"""# {title}: a model for a hospital that took no part

## Intended use

Predicts for a hospital that is like those of the run, by {method}. It is meant for research. Nobody has assessed it as a
medical device: try it on rows of that hospital first. {measured}

## Training

| client | rows |
| --- | ---: |
{told}

## Use

    coterie predict FOLDER new.csv
    coterie finalise FOLDER --client NAME --own rows.csv

The second line fits the hospital's own model to its rows; they do not leave it.
"""


def _feature(feature: Any) -> str:
    if isinstance(feature, dict):
        feature = feature["name"]
    return str(feature)

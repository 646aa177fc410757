"""Training alone agrees with scikit-learn at clients with at least 100 test rows: same penalty, trained to convergence.

`python tests/data/test_agreement.py` prints the table.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from folders import breast, diabetes, fifty, hospitals, plain

import coterie as ct
from coterie.config.local import LocalSGD, Steps
from coterie.data import load
from coterie.data.sets.heart_disease import OPTIONS

PENALTY, SEEDS, ROWS = 0.01, 10, 100
TRAINING = LocalSGD(
    lr=0.3, steps=Steps(400), batch_size=None, momentum=0.9, weight_decay=PENALTY
)

CASES = {
    "breast cancer": (
        lambda: breast({"large": 330, "small": 239}),
        {"label": "diagnosis"},
    ),
    "hospitals": (hospitals, OPTIONS),
    "fifty": (lambda: fifty(320), {"label": "diagnosis"}),
    "diabetes": (diabetes, {"label": "progression", "task": "regression"}),
}
BOUNDS = {"accuracy": 0.02, "log-loss": 0.03, "mae": 0.05}


def compared(
    case: str, folder: Path, seeds: int = SEEDS
) -> dict[tuple[str, str], tuple[float, float]]:
    """(client, measure): the mean over the seeds of ours and of scikit-learn's."""
    tables, options = CASES[case]
    for name, columns in tables().items():
        plain(folder, name, columns)
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for seed in range(seeds):
        clients = load(
            folder,
            seed=seed,
            split={"parts": {"train": 2 / 3, "test": 1 / 3}},
            **options,
        )
        chosen = [
            client
            for client in clients
            if client.test is not None and len(client.test) >= ROWS
        ]
        few = clients.subset([client.name for client in chosen])
        run = ct.fit(
            ct.Local(local=TRAINING),
            few,
            ct.models.Logistic(),
            rounds=3,
            seed=seed,
            settings=ct.RunSettings(evaluate=3),
        )
        rows = {row["client"]: row for row in run.summary if row["split"] == "test"}
        for client in chosen:
            for measure, values in measured(client, rows[client.name], clients).items():
                found.setdefault((client.name, measure), []).append(values)
    return {
        key: tuple(np.mean(values, axis=0).tolist()) for key, values in found.items()
    }


def measured(client, row, clients):
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.metrics import log_loss, mean_absolute_error

    (x, y), (test, truth) = (
        (p.inputs.double().numpy(), p.labels.double().numpy())
        for p in (client.train, client.test)
    )
    if not clients.classes:
        model = Ridge(alpha=len(y) * PENALTY / 2).fit(x, y)
        undo = clients.label_scale.undo
        theirs = mean_absolute_error(
            undo(torch.tensor(truth)), undo(torch.tensor(model.predict(test)))
        )
        return {"mae": (row["mae"], theirs)}
    model = LogisticRegression(C=1 / (len(y) * PENALTY), max_iter=2000).fit(x, y)
    loss = log_loss(truth, model.predict_proba(test), labels=model.classes_)
    return {
        "accuracy": (row["accuracy"], model.score(test, truth)),
        "log-loss": (row["loss"], loss),
    }


SLOW = [pytest.param(case, SEEDS, marks=pytest.mark.slow) for case in CASES]


@pytest.mark.parametrize(("case", "seeds"), [("diabetes", 1), *SLOW])
def test_training_alone_agrees_with_scikit_learn(tmp_path, case, seeds):
    results = compared(case, tmp_path, seeds)
    assert results
    for (client, measure), (ours, theirs) in results.items():
        scale = theirs if measure == "mae" else 1.0
        assert abs(ours - theirs) <= BOUNDS[measure] * scale, (
            client,
            measure,
            ours,
            theirs,
        )


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        with tempfile.TemporaryDirectory() as folder:
            for (client, measure), (ours, theirs) in compared(
                case, Path(folder)
            ).items():
                sys.stdout.write(
                    f"{case:<14} {client:<10} {measure:<9} {ours:9.4f} {theirs:9.4f} {ours - theirs:+.4f}\n"
                )

"""Write the model of every tenth round, and follow rows of no client.

python examples/every_tenth_model.py
"""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save_file

import coterie as ct


class KeepModels(ct.Callback):
    """Writes models and looks only, so that it may be added to a run that goes on."""

    decides = False

    def __init__(self, folder: Path, every: int = 10) -> None:
        self.folder, self.every = folder, every

    def on_evaluation(self, round: int, metrics: ct.Metrics) -> None:
        if round % self.every == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            save_file(
                dict(metrics.models["*"]), self.folder / f"{round:03}.safetensors"
            )


if __name__ == "__main__":
    clients = ct.data.load("heart-disease")
    rows = clients["hungary"].part("test")
    settings = ct.RunSettings(
        evaluate=5,
        callbacks=(KeepModels(Path("runs/every-tenth")),),
        central=(rows.inputs, rows.labels),
    )
    run = ct.fit("fedavg", clients, "logistic", rounds=20, settings=settings)
    for number, value in run.history.select("auc", "*", "central"):
        print(f"round {number:2}: AUC {value:.3f}")

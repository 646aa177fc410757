"""First lines that people write before they have read a page: the quick starts of other libraries, and the obvious guesses.

Each line either works or ends in one sentence with the cure: `cure` is a regular expression that the sentence contains, and a
line without one must run. The list was written before the first of them was mended.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import coterie as ct


class Line(NamedTuple):
    """What somebody writes.

    Attributes:
        name: of the case.
        code: run with the names of `names()`.
        cure: what the sentence of its error says; None: it works.
    """

    name: str
    code: str
    cure: str | None = None


class Rows(Dataset[tuple[torch.Tensor, int]]):
    """A data set of one's own, as PyTorch's tutorial has it."""

    def __init__(self, inputs: torch.Tensor, labels: torch.Tensor) -> None:
        self.inputs, self.labels = inputs, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.inputs[index], int(self.labels[index])


class Net(nn.Module):
    """A model of one's own without arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.layers(rows)


class Risk(Net):
    """Gives probabilities without a last layer that says so."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(super().forward(rows))


class Shares(nn.Module):
    """Gives shares of three classes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return F.softmax(self.layer(rows), dim=1)


class Zero(Net):
    """A logit that begins at 0 for every row, which is no probability."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.layers[2].weight)
        nn.init.zeros_(self.layers[2].bias)


def names() -> dict[str, Any]:
    """What a line may use."""
    draw = torch.Generator().manual_seed(0)
    tensors, three = {}, {}
    for client in "abc":
        inputs = torch.randn(40, 4, generator=draw)
        score = inputs[:, 0] + 0.5 * torch.randn(40, generator=draw)
        tensors[client] = (inputs, (score > 0).long())
        three[client] = (inputs, torch.bucketize(score, torch.tensor([-0.5, 0.5])))
    floats = {
        client: (inputs, labels.float()) for client, (inputs, labels) in tensors.items()
    }
    inputs, labels = (torch.cat(parts) for parts in zip(*tensors.values(), strict=True))
    return {
        "ct": ct,
        "np": np,
        "torch": torch,
        "nn": nn,
        "F": F,
        "DataLoader": DataLoader,
        "TensorDataset": TensorDataset,
        "Rows": Rows,
        "Net": Net,
        "Risk": Risk,
        "Shares": Shares,
        "Zero": Zero,
        "tensors": tensors,
        "three": three,
        "floats": floats,
        "inputs": inputs,
        "labels": labels,
        "dataset": Rows(inputs, labels),
        "clients": ct.data.from_tensors(tensors),
        "three_clients": ct.data.from_tensors(three),
    }


def frames() -> dict[str, Any]:
    """Data frames by client, with a column `outcome`; needs pandas."""
    import pandas as pd

    tensors = names()["tensors"]
    return {
        client: pd.DataFrame(
            inputs.numpy(), columns=["age", "pressure", "weight", "height"]
        ).assign(outcome=labels.numpy())
        for client, (inputs, labels) in tensors.items()
    }


SPLIT = '{"kind": "dirichlet", "alpha": 0.3, "clients": 5}'

MODELS = (
    Line(
        "sigmoid_last",
        'ct.fit("fedavg", clients, nn.Sequential(nn.Linear(4, 1), nn.Sigmoid()), 2)',
        "logit.*Sigmoid",
    ),
    Line(
        "softmax_last",
        'ct.fit("fedavg", three_clients, nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)), 2)',
        "Softmax",
    ),
    Line(
        "sigmoid_in_forward",
        'ct.fit("fedavg", clients, Risk(), 2)',
        "probabilities.*logit",
    ),
    Line(
        "softmax_in_forward",
        'ct.fit("fedavg", three_clients, Shares(), 2)',
        "probabilities.*logit",
    ),
    Line("zero_logit", 'ct.fit("fedavg", clients, Zero(), 2)'),
    Line(
        "sigmoid_with_a_loss_named",
        'ct.fit("fedavg", clients, Risk(), 2, settings=ct.RunSettings(loss=lambda p, y: F.binary_cross_entropy('
        'p.squeeze(1), y.float(), reduction="none")))',
        'kind = "binary"',
    ),
    Line("model_class", 'ct.fit("fedavg", clients, Net, 2)'),
    Line("model_factory", 'ct.fit("fedavg", clients, lambda: Net(), 2)'),
    Line("numpy_rounds", 'ct.fit("fedavg", clients, rounds=np.int64(2))'),
    Line("numpy_seed", 'ct.fit("fedavg", clients, rounds=2, seed=np.int64(1))'),
)
LABELS = (
    Line(
        "float_classes",
        'ct.fit("fedavg", ct.data.from_tensors(floats), rounds=2)',
        'task = "classification".*"regression"',
    ),
    Line(
        "float_classes_named",
        'ct.fit("fedavg", ct.data.from_tensors(floats, task="classification"), rounds=2)',
    ),
    Line(
        "float_regression_named",
        'ct.fit("fedavg", ct.data.from_tensors(floats, task="regression"), rounds=2)',
    ),
)
DATA = (
    Line("tensors_by_client", 'ct.fit("fedavg", tensors, rounds=2)'),
    Line("tensors_in_a_list", 'ct.fit("fedavg", list(tensors.values()), rounds=2)'),
    Line(
        "arrays_in_a_list",
        'ct.fit("fedavg", [(x.numpy(), y.numpy()) for x, y in tensors.values()], rounds=2)',
    ),
    Line(
        "tensor_datasets",
        'ct.fit("fedavg", [TensorDataset(x, y) for x, y in tensors.values()], rounds=2)',
    ),
    Line(
        "tensor_datasets_by_client",
        'ct.fit("fedavg", {k: TensorDataset(*v) for k, v in tensors.items()}, rounds=2)',
    ),
    Line(
        "datasets",
        'ct.fit("fedavg", [Rows(x, y) for x, y in tensors.values()], rounds=2)',
    ),
    Line("dirichlet", f"ct.data.from_dataset(dataset, split={SPLIT})"),
    Line("dirichlet_in_place", f"ct.data.from_dataset(dataset, {SPLIT})", "split="),
    Line(
        "dirichlet_of_tensors", f"ct.data.from_tensors((inputs, labels), split={SPLIT})"
    ),
    Line(
        "loaders",
        'ct.fit("fedavg", [DataLoader(Rows(x, y)) for x, y in tensors.values()], rounds=2)',
        "DataLoader.*dataset",
    ),
    Line(
        "one_loader", "ct.data.from_dataset(DataLoader(dataset))", "DataLoader.*dataset"
    ),
    Line("bare_dataset", 'ct.fit("fedavg", dataset, rounds=2)', "split="),
    Line("x_and_y", 'ct.fit("fedavg", inputs, labels)', "from_tensors"),
    Line(
        "compare_tensors_by_client",
        'ct.compare(["local", "fedavg"], tensors, rounds=2, seeds=2)',
    ),
    Line(
        "compare_datasets",
        'ct.compare(["fedavg"], [Rows(x, y) for x, y in tensors.values()], rounds=2, seeds=2)',
    ),
    Line(
        "compare_bare_dataset",
        'ct.compare(["local", "fedavg"], dataset, rounds=2)',
        "split=",
    ),
    Line(
        "split_of_fit",
        f'ct.fit("fedavg", dataset, split={SPLIT})',
        r"from_dataset\(.*split=",
    ),
)
FRAMES = (
    Line("frames_by_client", 'ct.data.from_frames(frames, label="outcome")'),
    Line(
        "frames_in_a_list",
        'ct.data.from_frames(list(frames.values()), label="outcome")',
    ),
    Line(
        "frames_without_label",
        'ct.fit("fedavg", frames, rounds=2)',
        r"from_frames\(.*label=",
    ),
    Line(
        "two_frames_in_a_list",
        'ct.fit("fedavg", list(frames.values())[:2])',
        r"from_frames\(.*label=",
    ),
    Line(
        "compare_frames",
        'ct.compare(["local", "fedavg"], frames, rounds=2)',
        r"from_frames\(.*label=",
    ),
    Line(
        "label_of_fit",
        'ct.fit("fedavg", frames, rounds=2, label="outcome")',
        r"from_frames\(.*label=",
    ),
    Line(
        "label_of_compare",
        'ct.compare(["local"], frames, rounds=2, label="outcome")',
        r"from_frames\(.*label=",
    ),
    Line(
        "frames_misspelt_label",
        'ct.data.from_frames(frames, label="outcom")',
        "outcome",
    ),
    Line(
        "frames_misspelt_keyword",
        'ct.data.from_frames(frames, labell="outcome")',
        "label",
    ),
)
LOSSES = (
    Line(
        "cross_entropy",
        'ct.fit("fedavg", three_clients, rounds=2, settings=ct.RunSettings(loss=nn.CrossEntropyLoss()))',
    ),
    Line(
        "binary_cross_entropy",
        'ct.fit("fedavg", clients, rounds=2, settings=ct.RunSettings(loss=nn.BCEWithLogitsLoss()))',
    ),
    Line(
        "positive_weight",
        'ct.fit("fedavg", clients, rounds=2, settings=ct.RunSettings(loss=nn.BCEWithLogitsLoss(pos_weight=torch.tensor([2.0]))))',
    ),
    Line(
        "label_smoothing",
        'ct.fit("fedavg", three_clients, rounds=2, settings=ct.RunSettings(loss=nn.CrossEntropyLoss(label_smoothing=0.1)))',
    ),
    Line(
        "functional_loss",
        'ct.fit("fedavg", three_clients, rounds=2, settings=ct.RunSettings(loss=F.cross_entropy))',
    ),
    Line(
        "mse",
        'ct.fit("fedavg", ct.data.from_tensors(floats, task="regression"), rounds=2, settings=ct.RunSettings(loss=nn.MSELoss()))',
    ),
    Line(
        "class_weights",
        'ct.fit("fedavg", three_clients, rounds=2, settings=ct.RunSettings(loss=nn.CrossEntropyLoss(weight=torch.ones(3))))',
        "weight",
    ),
    Line(
        "metric_function",
        'ct.fit("fedavg", clients, rounds=2, settings=ct.RunSettings(metrics=(lambda outputs, labels: 1.0,)))',
        "name",
    ),
    Line(
        "metric_by_name",
        'ct.fit("fedavg", clients, rounds=2, settings=ct.RunSettings(metrics={"share": lambda outputs, labels: 1.0}))',
    ),
)
KEYWORDS = (
    Line("american_optimizer", 'ct.LocalSGD(optimizer="adamw")'),
    Line(
        "lr", 'ct.fit("fedavg", clients, rounds=2, lr=0.1)', r"local=ct\.LocalSGD\(lr="
    ),
    Line("epochs", 'ct.fit("fedavg", clients, epochs=2)', r"ct\.Epochs"),
    Line("num_rounds", 'ct.fit("fedavg", clients, num_rounds=2)', "rounds="),
    Line(
        "device",
        'ct.fit("fedavg", clients, rounds=2, device="cpu")',
        r"engine=ct\.InProcess\(device=",
    ),
    Line(
        "workers",
        'ct.fit("fedavg", clients, rounds=2, workers=2)',
        r"engine=ct\.InProcess\(workers=",
    ),
    Line(
        "metrics",
        'ct.fit("fedavg", clients, rounds=2, metrics=["auc"])',
        r"settings=ct\.RunSettings\(metrics=",
    ),
    Line(
        "batch_size",
        'ct.fit("fedavg", clients, rounds=2, batch_size=16)',
        r"local=ct\.LocalSGD\(batch_size=",
    ),
    Line(
        "optimizer",
        'ct.fit("fedavg", clients, rounds=2, optimizer="adam")',
        r"local=ct\.LocalSGD\(optimi[sz]er=",
    ),
    Line("strategy", 'ct.fit(strategy="fedavg", clients=clients)', "method="),
    Line(
        "compare_lr",
        'ct.compare(["local", "fedavg"], clients, rounds=2, lr=0.1)',
        r"ct\.LocalSGD\(lr=",
    ),
    Line("method_lower_case", "ct.Fedavg", "FedAvg"),
    Line("method_upper_case", 'ct.fit("FedAvg", clients, rounds=2)'),
    Line("classifier", "ct.FederatedClassifier", r"coterie\.sklearn"),
    Line(
        "positional_settings",
        'ct.fit("fedavg", clients, rounds=2, settings={"evaluate": 1})',
        "RunSettings",
    ),
)
NAMES = (
    Line(
        "table_by_its_printed_name",
        'ct.compare(["local", "fedavg"], clients, rounds=2, seeds=2).table("log-loss")',
    ),
    Line(
        "table_in_capitals",
        'ct.compare(["local", "fedavg"], clients, rounds=2, seeds=2).table("AUC")',
    ),
    Line(
        "verdict_in_capitals",
        'ct.compare(["local", "fedavg"], clients, rounds=2, seeds=2).verdict("A")',
    ),
    Line(
        "history_by_its_printed_name",
        'ct.fit("fedavg", clients, rounds=2).history.select("AUC", "a", "test")',
    ),
)
FURTHER = (
    Line(
        "split_as_a_word",
        'ct.data.from_dataset(dataset, split="dirichlet")',
        r'table such as \{"kind": ',
    ),
    Line(
        "method_behind_clients",
        'ct.fit(clients, "fedavg")',
        r"ct\.fit\(method, clients",
    ),
    Line(
        "model_before_clients",
        'ct.fit("fedavg", Net(), clients)',
        r"ct\.fit\(method, clients, model",
    ),
    Line(
        "classes_of_methods",
        "ct.compare([ct.Local, ct.FedAvg], clients, rounds=2)",
        r"Local is a class.*Local\(\)",
    ),
    Line(
        "class_of_a_method",
        "ct.fit(ct.FedAvg, clients, rounds=2)",
        r"FedAvg is a class.*FedAvg\(\)",
    ),
    Line(
        "class_of_a_loss",
        'ct.fit("fedavg", clients, settings=ct.RunSettings(loss=nn.MSELoss))',
        r"MSELoss\(\)",
    ),
    Line("learning_rate", "ct.LocalSGD(learning_rate=0.1)", r"write lr="),
    Line("local_epochs", "ct.LocalSGD(local_epochs=2)", r"steps=ct\.Epochs"),
    Line("epochs_of_steps", "ct.Steps(epochs=2)", r"ct\.Epochs"),
    Line("proximal_mu", "ct.FedProx(proximal_mu=0.1)", "write mu="),
    Line(
        "fraction_fit",
        'ct.fit("fedavg", clients, fraction_fit=0.5)',
        r"ct\.RunSettings\(clients_per_round=",
    ),
    Line(
        "whole_numbers",
        'ct.fit("fedavg", [(x.long(), y) for x, y in tensors.values()])',
        r"inputs as floats",
    ),
    Line("from_csv", 'ct.data.from_csv("clinic.csv")', r"from_folder"),
    Line("from_pandas", "ct.data.from_pandas(tensors)", r"from_frames"),
    Line("model_of_a_run", 'ct.fit("fedavg", clients, rounds=2).model', r"state_dict"),
    Line(
        "metrics_of_a_run",
        'ct.fit("fedavg", clients, rounds=2).metrics',
        r"history\.select",
    ),
    Line(
        "best_method",
        'ct.compare(["local", "fedavg"], clients, rounds=2, seeds=2).best',
        r"verdict\(",
    ),
    Line(
        "frame_of_results",
        'ct.compare(["local"], clients, rounds=2, seeds=2).to_dataframe()',
        r"to_pandas\(",
    ),
    Line(
        "metric_not_measured",
        'ct.compare(["local"], clients, rounds=2, seeds=2).table("f1")',
        r"metrics=\[.*f1",
    ),
)
"""Further mistakes of four kinds of newcomers, listed before the first of them was mended."""

FIT = 'ct.fit("fedavg", clients, rounds=1, {})'
COMPARE = 'ct.compare(["local", "fedavg"], clients, rounds=1, {})'
DEAL = "ct.data.from_tensors(tensors, {})"
_HABITS: tuple[tuple[str, str, str, str, str], ...] = (
    ("random_state_of_a_fit", FIT, "random_state=1", "write seed=", "seed=1"),
    ("random_state_of_a_split", DEAL, "random_state=1", "write seed=", "seed=1"),
    ("random_state_of_runs", COMPARE, "random_state=1", "write seeds=", "seeds=1"),
    ("seed_of_runs", COMPARE, "seed=1", "write seeds=", "seeds=1"),
    (
        "verbose_fit",
        FIT,
        "verbose=1",
        r"write progress=\.\.\.",
        "progress=True",
    ),
    (
        "verbose_comparison",
        COMPARE,
        "verbose=1",
        r"write progress=\.\.\.",
        "seeds=1, progress=True",
    ),
    (
        "n_jobs_of_a_fit",
        FIT,
        "n_jobs=2",
        r"engine=ct\.InProcess\(workers=",
        "engine=ct.InProcess(workers=2)",
    ),
    (
        "n_jobs_of_a_comparison",
        COMPARE,
        "n_jobs=1",
        r"settings=ct\.StudySettings\(jobs=",
        "seeds=1, settings=ct.StudySettings(jobs=1)",
    ),
    (
        "server_learning_rate_of_a_fit",
        "ct.fit({}, clients=clients, rounds=1)",
        'method="fedavg", server_learning_rate=0.5',
        r"method=ct\.FedAvg\(lr=",
        "method=ct.FedAvg(lr=0.5)",
    ),
    (
        "server_lr_of_a_comparison",
        "ct.compare({}, clients=clients, rounds=1, seeds=1)",
        'methods=["fedavg"], server_lr=0.5',
        r"methods=\[ct\.FedAvg\(lr=",
        "methods=[ct.FedAvg(lr=0.5)]",
    ),
    (
        "server_learning_rate_of_a_method",
        "ct.FedAdam({})",
        "server_learning_rate=1",
        "write lr=",
        "lr=1",
    ),
    ("krum", "ct.{}", "Krum", r"MultiKrum\(keep=1\)", "MultiKrum(keep=1)"),
    ("krum_small", "ct.{}", "krum", r"MultiKrum\(keep=1\)", "MultiKrum(keep=1)"),
    ("median_of_flower", "ct.{}", "FedMedian", r"Median\(\)", "Median()"),
    ("trimmed_of_flower", "ct.{}", "FedTrimmedAvg", r"TrimmedMean\(", "TrimmedMean()"),
    (
        "share_of_clients",
        "ct.fit('fedavg', clients, rounds=1, settings=ct.RunSettings({}))",
        "clients_per_round=1.5",
        "share of them",
        "clients_per_round=0.5",
    ),
)
HABITS = tuple(
    line
    for name, code, written, cure, cured in _HABITS
    for line in (
        Line(name, code.format(written), cure),
        Line(f"{name}_cured", code.format(cured)),
    )
)
"""What users of other libraries write, each with the line that its sentence tells to write."""
LINES = (*MODELS, *LABELS, *DATA, *FRAMES, *LOSSES, *KEYWORDS, *NAMES, *FURTHER)
LINES += HABITS

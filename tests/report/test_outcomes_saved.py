"""What a run saves of each test row: its means are those of summary.json, and a patient has one number in all seeds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

import coterie as ct
from coterie.base.clients import Clients
from coterie.run.experiment import Experiment
from coterie.run.tables import preset
from coterie.study.row_outcomes import outcomes
from coterie.study.sweep import run_experiment


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tables = {
        k: v
        for k, v in preset("heart-disease").items()
        if k in ("data", "model", "local")
    }
    tables |= {
        "methods": [{"name": "local"}, {"name": "fedavg"}],
        "run": {"rounds": 2, "seeds": [0, 1]},
    }
    out: Path = tmp_path_factory.mktemp("runs") / "heart"
    run_experiment(Experiment.from_tables(tables, "a test"), out)
    return out


def read(folder: Path, method: str, seed: int) -> tuple[list[str], dict[str, Any]]:
    with safe_open(
        folder / "outcomes" / f"{method}-{seed}.safetensors", framework="numpy"
    ) as file:
        about = json.loads(file.metadata()["coterie"])
        assert (about["method"], about["seed"]) == (method, seed)
        return about["clients"], {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118


def test_means_are_those_of_the_summary(folder: Path) -> None:
    for row in json.loads((folder / "summary.json").read_text()):
        if row["split"] != "test":
            continue
        clients, tensors = read(folder, row["method"], row["seed"])
        low, high = tensors["offsets"][clients.index(row["client"]) :][:2]
        assert high - low == row["n"]
        assert tensors["loss"][low:high].mean() == pytest.approx(row["loss"], rel=1e-12)
        assert tensors["constant_loss"][low:high].mean() == pytest.approx(
            row["majority_loss"], rel=1e-12
        )
        predicted = tensors["outputs"][low:high, 0] > 0
        assert (predicted == tensors["labels"][low:high]).mean() == pytest.approx(
            row["accuracy"]
        )


def test_a_patient_has_the_same_number_in_every_seed(folder: Path) -> None:
    table = ct.data.load("heart-disease", seed=0)
    label = {}
    for seed in (0, 1):
        clients, tensors = read(folder, "fedavg", seed)
        spans = zip(
            clients, tensors["offsets"][:-1], tensors["offsets"][1:], strict=True
        )
        for client, low, high in spans:
            rows = dict(
                zip(
                    tensors["numbers"][low:high].tolist(),
                    tensors["labels"][low:high].tolist(),
                    strict=True,
                )
            )
            assert len(rows) == high - low
            total = sum(len(part) for _, part in table[client].parts())
            assert max(rows) < total
            for number, value in rows.items():
                assert label.setdefault((client, number), value) == value
    shared = [
        set(read(folder, "fedavg", seed)[1]["numbers"].tolist()) for seed in (0, 1)
    ]
    assert shared[0] & shared[1]
    assert shared[0] != shared[1]


def test_rows_without_numbers_are_named_by_what_is_in_them() -> None:
    inputs, labels = torch.arange(24.0).reshape(12, 2), torch.tensor([0, 1] * 6)
    numbers: dict[float, int] = {}
    for seed in (0, 1, 2):
        clients = ct.data.from_tensors(
            {"a": (inputs, labels), "b": (inputs + 100, labels)}, seed=seed
        )
        run = ct.fit(ct.FedAvg(), clients, ct.models.Logistic(), rounds=1, seed=seed)
        names, tensors = outcomes(run, clients)
        assert names == ["a", "b"]
        first = clients["a"].test
        assert first is not None
        for value, number in zip(
            first.inputs[:, 0].tolist(), tensors["numbers"].tolist(), strict=False
        ):  # type: ignore[index]
            assert numbers.setdefault(value, number) == number
    assert len(set(numbers.values())) == len(numbers) > 4


def test_regression_saves_what_the_training_mean_costs() -> None:
    inputs = torch.linspace(-1, 1, 30)[:, None]
    clients = ct.data.from_tensors({"a": (inputs, inputs[:, 0] * 3)}, seed=0)
    run = ct.fit(ct.Local(), clients, ct.models.Logistic(), rounds=1)
    _, tensors = outcomes(run, clients)
    client = clients["a"]
    assert client.test is not None
    assert client.validation is not None
    known = torch.cat(
        [client.train.labels, client.validation.labels]
    )  # trained on both
    expected = (client.test.labels - known.mean()) ** 2
    assert tensors["constant_loss"].numpy() == pytest.approx(expected.numpy(), rel=1e-5)
    squares = (tensors["outputs"][:, 0] - tensors["labels"]) ** 2
    assert tensors["loss"].numpy() == pytest.approx(squares.numpy(), rel=1e-5)


def test_numbers_stay_with_their_clients() -> None:
    clients: Clients = ct.data.load("heart-disease", seed=3)
    held = clients["hungary"]
    assert held.test is not None
    assert held.test_numbers is not None
    assert len(np.unique(held.test_numbers)) == len(held.test)


@pytest.mark.in_turn
def test_a_threshold_is_chosen_on_validation_rows_that_no_method_trained_on(
    tmp_path: Path, folder: Path
) -> None:
    assert np.isnan(
        read(folder, "fedavg", 0)[1]["thresholds"]
    ).all()  # its validation rows were trained on
    clients = ct.data.load("heart-disease", seed=0)
    run = ct.fit(
        ct.FedAvg(), clients, ct.models.build_model(ct.models.Logistic(), clients, 0), rounds=3,
        settings=ct.RunSettings(merge_validation=False),
    )  # fmt: skip
    names, tensors = outcomes(run, clients)
    for name, threshold in zip(names, tensors["thresholds"].tolist(), strict=True):
        held = clients[name].validation
        assert held is not None
        logits = run.module.eval()(held.inputs).detach().reshape(-1)
        risks, labels = torch.sigmoid(logits.double()).numpy(), held.labels.numpy()
        gains = [_youden(risks, labels, cut) for cut in (*np.sort(risks), 1.1)]
        assert _youden(risks, labels, threshold) == pytest.approx(max(gains))


def _youden(risks: Any, labels: Any, cut: float) -> float:
    called = risks >= cut
    return float(called[labels == 1].mean() - called[labels == 0].mean())


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_several_labels_have_a_share_each(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(90, 3, generator=draw)
    labels = (inputs > torch.tensor([-1.0, 0.0, 1.0])).to(dtype)
    clients = ct.data.from_tensors({"a": (inputs, labels)}, seed=0)
    settings = ct.RunSettings(loss="binary")
    run = ct.fit(
        ct.Local(), clients, torch.nn.Linear(3, 3), rounds=1, settings=settings
    )
    client = clients["a"]
    assert client.test is not None
    assert client.validation is not None
    _, tensors = outcomes(run, clients, "binary")
    known = torch.cat([client.train.labels, client.validation.labels]).double()
    shares = (known.sum(0) + 1) / (len(known) + 2)
    truth = client.test.labels.double()
    losses = -(truth * shares.log() + (1 - truth) * (1 - shares).log())
    assert tensors["constant_loss"].tolist() == pytest.approx(losses.mean(1).tolist())


def test_positions_that_are_ignored_cost_the_constant_nothing() -> None:
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(60, 4, generator=draw)
    labels = (inputs[:, :3] > 0).long()
    labels[:, 1], labels[::2, 2] = -100, -100
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Unflatten(1, (2, 3)))
    clients = ct.data.from_tensors({"a": (inputs, labels)}, seed=0)
    run = ct.fit(ct.Local(), clients, model, rounds=1)
    client = clients["a"]
    assert client.test is not None
    assert client.validation is not None
    _, tensors = outcomes(run, clients)
    known = torch.cat([client.train.labels, client.validation.labels])
    counts = torch.tensor([int((known == c).sum()) for c in (0, 1)]).double() + 1
    costs = -(counts / counts.sum()).log()
    expected = [float(costs[row[row >= 0]].mean()) for row in client.test.labels]
    assert tensors["constant_loss"].tolist() == pytest.approx(expected)

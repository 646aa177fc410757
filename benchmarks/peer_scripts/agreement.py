"""What other code bases answer to the problems of `benchmarks/agreement.py`: `python agreement.py PROBLEMS ANSWERS`.

Every answer is a list of numbers. A code base that cannot be imported, or stops, answers with one sentence.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Answers = Iterator[tuple[str, Any]]


def flower(problems: dict[str, Any]) -> Answers:
    """`flwr.server.strategy`."""
    from flwr.common import (
        Code,
        FitRes,
        Status,
        ndarrays_to_parameters,
        parameters_to_ndarrays,
    )
    from flwr.server.strategy import FedAdam, FedAvg, FedMedian, FedTrimmedAvg, Krum

    def aggregate(
        strategy: Any, models: list[Any], sizes: list[int], number: int = 1
    ) -> Any:
        status = Status(Code.OK, "")
        results = [
            (
                SimpleNamespace(cid=str(i)),
                FitRes(status, ndarrays_to_parameters([np.array(m)]), n, {}),
            )
            for i, (m, n) in enumerate(zip(models, sizes, strict=True))
        ]
        return parameters_to_ndarrays(strategy.aggregate_fit(number, results, [])[0])[0]

    rows, sizes = problems["models"], problems["sizes"]
    yield "average", aggregate(FedAvg(), rows, sizes)
    rows, sizes, f = problems["seven"], problems["seven sizes"], problems["byzantine"]
    yield "median", aggregate(FedMedian(), rows, sizes)
    yield "trimmed mean", aggregate(FedTrimmedAvg(beta=f / len(rows)), rows, sizes)
    yield "Krum", aggregate(Krum(num_malicious_clients=f), rows, sizes)
    yield (
        "multi-Krum",
        aggregate(
            Krum(num_malicious_clients=f, num_clients_to_keep=len(rows) - f),
            rows,
            sizes,
        ),
    )
    adam = problems["adam"]
    x = np.array(adam["start"])
    strategy = FedAdam(
        initial_parameters=ndarrays_to_parameters([x]),
        eta=adam["lr"], beta_1=adam["betas"][0], beta_2=adam["betas"][1], tau=adam["eps"],
    )  # fmt: skip
    for number, change in enumerate(adam["changes"], 1):
        x = aggregate(strategy, [x + np.array(change)], [1], number)
    yield "Adam", x


def nvflare(problems: dict[str, Any]) -> Answers:
    """`nvflare.app_common.aggregators`."""
    from nvflare.app_common.aggregators.weighted_aggregation_helper import (
        WeightedAggregationHelper,
    )

    def average(rows: list[Any], sizes: list[int]) -> Any:
        helper = WeightedAggregationHelper()
        for i, (row, n) in enumerate(zip(rows, sizes, strict=True)):
            helper.add({"x": np.array(row)}, n, f"site-{i}", 1)
        return helper.get_result()["x"]

    yield "average", average(problems["models"], problems["sizes"])


def fedlab(problems: dict[str, Any]) -> Answers:
    """`fedlab.utils`, and the client of `fedlab.contrib.algorithm.ditto`."""
    from fedlab.contrib.algorithm.ditto import DittoSerialClientTrainer
    from fedlab.utils.aggregator import Aggregators
    from fedlab.utils.serialization import SerializationTool

    rows = [torch.tensor(row, dtype=torch.float64) for row in problems["models"]]
    yield "average", Aggregators.fedavg_aggregate(rows)
    yield (
        "average, with sizes",
        Aggregators.fedavg_aggregate(rows, torch.tensor(problems["sizes"]).double()),
    )
    yield "buffers", [SerializationTool.serialize_model(_with_buffers()).numel()]
    work, sizes = problems["work"], torch.tensor(problems["sizes"]).double()
    module = nn.Linear(
        len(problems["rows"][0][0][0]), 1 + max(map(max, problems["classes"]))
    )
    trainer = DittoSerialClientTrainer(module, len(sizes))
    trainer.setup_optim(work["steps"], None, work["lr"])
    trainer.args = SimpleNamespace(epochs=work["steps"], lr=work["lr"], mu=work["lam"])
    x = torch.zeros_like(trainer.model_parameters)
    own = [x] * len(sizes)
    batches = [
        [(torch.tensor(inputs), torch.tensor(labels))]
        for (inputs, _), labels in zip(
            problems["rows"], problems["classes"], strict=True
        )
    ]
    for _ in range(work["rounds"]):
        trained = [
            trainer.train(x, v, batch) for v, batch in zip(own, batches, strict=True)
        ]
        own, x = (
            [v for v, _ in trained],
            Aggregators.fedavg_aggregate([y for _, y in trained], sizes),
        )
    yield "Ditto, 3 rounds, with sizes", torch.cat([x, *own])


def byzfl(problems: dict[str, Any]) -> Answers:
    """`byzfl.aggregators` and `byzfl.attacks`."""
    from byzfl import (
        ALittleIsEnough,
        GeometricMedian,
        InnerProductManipulation,
        Krum,
        Median,
        MultiKrum,
        TrMean,
    )

    rows, f = np.array(problems["seven"]), problems["byzantine"]
    yield "median", Median()(rows)
    yield "trimmed mean", TrMean(f)(rows)
    yield "Krum", Krum(f)(rows)
    yield "multi-Krum", MultiKrum(f)(rows)
    yield "geometric median", GeometricMedian()(rows)
    yield "geometric median, 2000 steps", GeometricMedian(nu=1e-9, T=2000)(rows)
    yield "ALIE", ALittleIsEnough(problems["z"])(rows)
    yield "IPM", InnerProductManipulation(problems["eps"])(rows)


def geom_median(problems: dict[str, Any]) -> Answers:
    """`geom_median.numpy`."""
    from geom_median.numpy import compute_geometric_median

    points = [np.array(row) for row in problems["seven"]]
    yield (
        "geometric median",
        compute_geometric_median(
            points, np.ones(len(points)), eps=1e-9, maxiter=2000
        ).median,
    )


def pytorch(problems: dict[str, Any]) -> Answers:
    """`torch.optim`, which NVIDIA FLARE and pfl-research step with at the server."""
    adam = problems["adam"]
    x = nn.Parameter(torch.tensor(adam["start"], dtype=torch.float64))
    optimiser = torch.optim.Adam(
        [x], lr=adam["lr"], betas=tuple(adam["betas"]), eps=adam["eps"]
    )
    for change in adam["changes"]:
        x.grad = -torch.tensor(change, dtype=torch.float64)
        optimiser.step()
    yield "Adam", x.detach()


def pfl(problems: dict[str, Any]) -> Answers:
    """`pfl.algorithm` over a simulated backend."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.user_state import InMemoryUserStateStorage
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    class Line(nn.Linear):
        def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
            return ((self(inputs)[:, 0] - labels) ** 2).mean()

        def metrics(self, inputs: Tensor, labels: Tensor) -> dict[str, Weighted]:
            return {"loss": Weighted(float(self.loss(inputs, labels)), 1)}

    rows = {
        i: (torch.tensor(x), torch.tensor(y))
        for i, (x, y) in enumerate(problems["rows"])
    }
    work = problems["work"]

    def run(
        algorithm: Any,
        weighting: list[Any],
        params: type[Any] = NNAlgorithmParams,
        **extra: Any,
    ) -> Tensor:
        module = Line(len(problems["rows"][0][0][0]), 1)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.zero_()
        order = iter(list(range(len(rows))) * work["rounds"])
        users = FederatedDataset.from_slices(rows, lambda: next(order))
        algorithm.run(
            params(
                central_num_iterations=work["rounds"], evaluation_frequency=work["rounds"] + 1,
                train_cohort_size=len(rows), val_cohort_size=None, **extra,
            ),
            SimulatedBackend(training_data=users, val_data=users, postprocessors=weighting),
            PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0)),
            NNTrainHyperParams(
                local_num_epochs=work["steps"], local_learning_rate=work["lr"], local_batch_size=None
            ),
            NNEvalHyperParams(local_batch_size=None),
            [],
        )  # fmt: skip
        return torch.cat([module.weight[0], module.bias]).detach()

    yield "FedAvg, 3 rounds", run(FederatedAveraging(), [])
    yield (
        "FedAvg, 3 rounds, with sizes",
        run(FederatedAveraging(), [WeightByDatapoints()]),
    )
    module = _with_buffers()
    module.loss = module.metrics = lambda *_: Metrics()
    kept = PyTorchModel(
        module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0)
    ).get_parameters()
    yield "buffers", [sum(value.numel() for _, value in kept.items())]
    states = InMemoryUserStateStorage()
    own = {
        "population": len(rows),
        "use_gradient_as_control_variate": False,
        "user_state_storage": states,
    }
    yield "SCAFFOLD, 3 rounds", run(SCAFFOLD(), [], SCAFFOLDParams, **own)


def _with_buffers() -> nn.Module:
    """5 * 3 + 3 + 2 * 3 = 24 parameters; running means and variances are 6 further numbers, and there is a counter."""
    return nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))


PEERS: dict[str, tuple[Callable[[dict[str, Any]], Answers], str]] = {
    "Flower": (flower, "flwr"),
    "NVIDIA FLARE": (nvflare, "nvflare"),
    "pfl-research": (pfl, "pfl"),
    "FedLab": (fedlab, "fedlab"),
    "ByzFL": (byzfl, "byzfl"),
    "geom_median": (geom_median, "geom_median"),
    "PyTorch": (pytorch, "torch"),
}


def main(problems: Path, answers: Path) -> None:
    """Answer what can be answered."""
    given = json.loads(problems.read_text())
    told: dict[str, Any] = {}
    for name, (function, package) in PEERS.items():
        found = told[name] = {"version": "", "answers": {}}
        try:
            found["version"] = version(package)
            for key, value in function(given):
                found["answers"][key] = np.asarray(value, dtype=float).tolist()
        except Exception as error:  # whatever another code base raises is its answer
            found["problem"] = f"{type(error).__name__}: {error}"[:200]
    answers.write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

"""The work with pfl-research, as its own benchmarks are written: `FederatedAveraging` over a `SimulatedBackend` in one process.

Each user is a `Dataset` of torch tensors that is made when the user is sampled; `Dataset.iter` cuts it into batches in the
order of its rows, the same in both epochs (pfl-research does not shuffle). Weights by rows, central SGD with rate 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional as F
from work import Clock, Work, build, fill, main


class MLP(nn.Sequential):
    """The model with the two methods that pfl-research asks for."""

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Mean loss of a batch."""
        self.train()
        return F.cross_entropy(self(inputs), labels)

    @torch.no_grad()
    def metrics(self, inputs: Tensor, labels: Tensor) -> dict[str, Weighted]:
        """Accuracy of a batch."""
        self.eval()
        return {
            "accuracy": Weighted(
                float((self(inputs).argmax(1) == labels).sum()), len(labels)
            )
        }


class Timed(TrainingProcessCallback):
    """The clock as a callback."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        """Before the first round."""
        self.clock.start()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """After each round."""
        self.clock.round()
        return False, Metrics()


def run(work: Work, clock: Clock) -> Sequence[Tensor]:
    """Train, and return the final layers."""
    torch.set_num_threads(1)
    module = fill(build(work, MLP, nn), work, torch)
    model = PyTorchModel(
        module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0)
    )
    images, labels = torch.from_numpy(work.floats()), torch.from_numpy(work.labels)
    users = {i: (images[i], labels[i]) for i in range(len(labels))}
    order = iter(work.participants.flatten().tolist())
    training = FederatedDataset.from_slices(users, lambda: next(order))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=work.rounds,
            evaluation_frequency=work.rounds + 1,
            train_cohort_size=work.participants.shape[1],
            val_cohort_size=None,
        ),
        SimulatedBackend(
            training_data=training,
            val_data=training,
            postprocessors=[WeightByDatapoints()],
        ),
        model,
        NNTrainHyperParams(
            local_num_epochs=work.epochs,
            local_learning_rate=work.lr,
            local_batch_size=work.batch_size,
        ),
        NNEvalHyperParams(local_batch_size=None),
        [Timed(clock)],
    )
    return [parameter.detach() for parameter in module.parameters()]


if __name__ == "__main__":
    main("pfl-research", run, ["pfl", "torch", "numpy"])

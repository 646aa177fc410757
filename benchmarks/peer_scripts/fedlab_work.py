"""The work with FedLab, as in its standalone example: a `SyncServerHandler` and an `SGDSerialClientTrainer` in one process.

Rows are float tensors in memory. A `DataLoader` whose sampler hands out whole batches takes a batch by one index instead of
stacking single rows, which is the fast way that PyTorch offers (FedLab's own data sets stack, and are slower). Shuffled.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.contrib.dataset.basic_dataset import FedDataset
from fedlab.core.standalone import StandalonePipeline
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
from work import Clock, Work, build, fill, main


class InMemory(FedDataset):
    """Rows of all clients as tensors."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        images, labels = torch.from_numpy(work.floats()), torch.from_numpy(work.labels)
        self.num = len(labels)
        self.rows = [TensorDataset(images[i], labels[i]) for i in range(self.num)]

    def get_dataset(self, id: int, type: str = "train") -> TensorDataset:
        """Rows of a client."""
        return self.rows[id]

    def get_dataloader(
        self, id: int, batch_size: int, type: str = "train"
    ) -> DataLoader:
        """Batches of a client, shuffled for each epoch."""
        rows = self.rows[id]
        return DataLoader(
            rows,
            batch_size=None,
            sampler=BatchSampler(RandomSampler(rows), batch_size, False),
        )


class Handler(SyncServerHandler):
    """The server with given participants."""

    def __init__(self, model: nn.Module, work: Work) -> None:
        super().__init__(
            model, work.rounds, work.participants.shape[1] / len(work.labels)
        )
        self.participants = work.participants.tolist()

    def sample_clients(self) -> list[int]:
        """Participants of the next round."""
        return self.participants[self.round]


class Pipeline(StandalonePipeline):
    """The loop with a clock where it would evaluate."""

    def __init__(
        self, handler: Handler, trainer: SGDSerialClientTrainer, clock: Clock
    ) -> None:
        super().__init__(handler, trainer)
        self.clock = clock

    def evaluate(self) -> None:
        """After each round."""
        self.clock.round()


def run(work: Work, clock: Clock) -> Sequence[Tensor]:
    """Train, and return the final layers."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = fill(build(work, nn.Sequential, nn), work, torch)
    trainer = SGDSerialClientTrainer(model, len(work.labels))
    trainer.setup_dataset(InMemory(work))
    trainer.setup_optim(work.epochs, work.batch_size, work.lr)
    handler = Handler(model, work)
    pipeline = Pipeline(handler, trainer, clock)
    clock.start()
    pipeline.main()
    return [parameter.detach() for parameter in handler.model.parameters()]


if __name__ == "__main__":
    main("FedLab", run, ["fedlab", "torch", "numpy"])

"""The client of `flower_work.py`: a module of its own, as in Flower's quick start, so that Ray's actors import it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
from work import Work, build

app = ClientApp()


@lru_cache(maxsize=1)
def rows(path: str) -> tuple[Work, Tensor, Tensor]:
    """The work and all rows as tensors; once per process."""
    torch.set_num_threads(1)
    work = Work(Path(path), 1)
    return work, torch.from_numpy(work.floats()), torch.from_numpy(work.labels)


@app.query()
def partition(message: Message, context: Context) -> Message:
    """Number of the client on this node."""
    number = MetricRecord({"partition": int(context.node_config["partition-id"])})
    return Message(content=RecordDict({"metrics": number}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Local training."""
    work, images, labels = rows(message.content["config"]["work"])
    number = int(context.node_config["partition-id"])
    own = TensorDataset(images[number], labels[number])
    loader = DataLoader(
        own,
        batch_size=None,
        sampler=BatchSampler(RandomSampler(own), work.batch_size, False),
    )
    model = build(work, nn.Sequential, nn)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=work.lr)
    for _ in range(work.epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
    content = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": len(own)}),
    }
    return Message(content=RecordDict(content), reply_to=message)

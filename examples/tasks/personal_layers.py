"""A researcher's task: a method after FedAS on an own data set whose rows are augmented in training."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

import coterie as ct


class Scans(Dataset[tuple[Tensor, int]]):
    def __init__(self, scanner: int) -> None:
        self.labels = torch.arange(60) % 2
        draw = torch.Generator().manual_seed(scanner)
        self.images = torch.randn(60, 1, 4, 4, generator=draw) + scanner
        self.images[self.labels == 1, :, :2] += 2

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return self.images[row], int(self.labels[row])


def flipped(image: Tensor, rng: ct.Rng) -> Tensor:
    return image.flip(-1) if torch.rand((), generator=rng.generator()) < 0.5 else image


class Reply(NamedTuple):
    delta: ct.Update
    trace: Tensor


class Own(NamedTuple):
    model: ct.OwnModel


@ct.task
def aligned(cohort: ct.Cohort, *, x: Tensor, local: ct.LocalSGD) -> Reply:
    head, last = cohort.personal("head"), cohort.state("last", x).values

    def near(step: ct.Step) -> Tensor:
        return (step.features - step.features_of(last[step.client])).square().mean()

    start = head.models(x)
    trained = cohort.train(start, local, penalty=near)
    head.keep(trained)
    cohort.keep("last", trained)
    trace = cohort.gradient(trained).square().sum(dim=1)
    return Reply(head.update(trained, start), trace)


@ct.task
def own(cohort: ct.Cohort, *, x: Tensor) -> Own:
    return Own(cohort.personal("head").models(x))


@ct.options
class Aligned(ct.FedAvg):
    keeps = 2

    def round(self, state: Any, federation: ct.Federation, rng: ct.Rng) -> Any:
        told = federation.ask(federation.clients, aligned, x=state.x, local=self.local)
        step = told.trace @ told.delta / told.trace.sum()
        return state._replace(x=state.x + step), {}

    def personalised(self, state: Any, federation: ct.Federation) -> Any:
        return federation.own_models(federation.everyone, own, x=state.x)


clients = ct.data.from_tensors([Scans(k) for k in range(4)]).with_transform(flipped)
methods = ["local", "fedavg", Aligned()]
print(ct.compare(methods, clients, ct.models.MLP(), rounds=10, seeds=2))

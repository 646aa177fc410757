"""A researcher's task: a module and a data set of one's own, 20 clients, MeritFed against three methods, a plot and a table."""

import torch
from torch import Tensor
from torch.utils.data import Dataset

import coterie as ct


class Moons(Dataset[tuple[Tensor, Tensor]]):
    """Points on two half circles; the label is the half circle."""

    def __init__(self, rows: int = 2000) -> None:
        draw = torch.Generator().manual_seed(1)
        self.labels = torch.randint(0, 2, (rows,), generator=draw)
        angle = torch.rand(rows, generator=draw) * torch.pi
        sign = 1 - 2 * self.labels
        points = torch.stack([angle.cos() + self.labels, sign * angle.sin()], dim=1)
        self.points = points + 0.2 * torch.randn(rows, 2, generator=draw)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.points[i], self.labels[i]


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layers(x)
        return outputs.squeeze(-1)


clients = ct.data.from_dataset(
    Moons(), split={"kind": "dirichlet", "alpha": 0.3, "clients": 20}
)
result = ct.compare(
    ["local", "fedavg", "scaffold", "meritfed"], clients, Network, rounds=5, seeds=3
)
print(result.table("accuracy"))
result.plot("accuracy", clients=["client-00", "client-01"]).savefig("accuracy.svg")

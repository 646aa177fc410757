"""A radiologist's task: several findings on a film, at three hospitals, and films of no hospital to test on."""

import torch
from torch import Tensor, nn

import coterie as ct

FINDINGS = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))


def films(hospital: int, count: int) -> tuple[Tensor, Tensor]:
    """Films [count, 1, 8, 8], and which of three findings each has, as floats."""
    draw = torch.Generator().manual_seed(hospital)
    found = (torch.rand(count, 3, generator=draw) < 0.3).float()
    noise = torch.randn(count, 64, generator=draw)
    return (found @ FINDINGS + noise).reshape(count, 1, 8, 8), found


model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 3)
)
hospitals = {name: films(k, 120) for k, name in enumerate(("north", "east", "west"))}
settings = ct.StudySettings(
    loss=nn.BCEWithLogitsLoss(),
    metrics=("auc", "f1"),
    evaluate=5,
    central=films(9, 200),
)
comparison = ct.compare(
    ["local", "fedavg"], hospitals, model, rounds=20, seeds=2, settings=settings
)
print(comparison)
print(comparison.table("auc"))
history = comparison.to_pandas("history")
central = history[(history.split == "central") & (history.metric == "auc")]
print(central.groupby("round").value.mean())
assert central.value.iloc[-1] > 0.8

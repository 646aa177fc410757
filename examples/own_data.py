"""Data of your own: a function of the seed that gives clients.

    coterie compare examples/own_data.py:clients
    coterie compare examples/own_data.py:tables --set data.rows=300

From Python: ct.fit(ct.FedAvg(), clients(seed=0), model=ct.models.Logistic()). A folder with one CSV per client needs no Python at all:
coterie compare my-clients/ --label outcome.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

import coterie as ct

SITES = {
    "north": 1.0,
    "south": 0.8,
    "west": -1.0,
}  # west sees the opposite of what the others see


def draw(seed: int, rows: int) -> Iterator[tuple[str, Tensor, Tensor]]:
    stream = torch.Generator().manual_seed(seed)
    for name, slope in SITES.items():
        x = torch.randn(rows, 2, generator=stream)
        noise = 0.5 * torch.randn(rows, generator=stream)
        yield name, x, (slope * x[:, 0] + noise > 0).long()


# Tensors: {name: (inputs [rows, ...], labels [rows])}; the seed splits each client's rows.
def clients(seed: int, rows: int = 150) -> ct.Clients:
    sites = {name: (x, y) for name, x, y in draw(seed, rows)}
    return ct.data.from_tensors(sites, seed=seed, name="sites", classes=["no", "yes"])


# Data frames: texts and missing values are allowed, as in a CSV.
def tables(seed: int, rows: int = 150) -> ct.Clients:
    import pandas as pd

    frames = {
        name: pd.DataFrame({"dose": x[:, 0], "age": x[:, 1], "answer": y})
        for name, x, y in draw(seed, rows)
    }
    return ct.data.from_frames(frames, seed=seed, name="sites", label="answer")

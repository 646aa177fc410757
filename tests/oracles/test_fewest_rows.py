"""Where rows are private nothing rests on fewer of them than the site says, whichever way they are read."""

from __future__ import annotations

import pytest
import torch

import coterie as ct
from coterie.base.clients import Client, Clients
from coterie.base.errors import InputError
from coterie.base.rows import Part
from coterie.compute.cohort import Cohort
from coterie.compute.workspace import Workspace
from coterie.contract.memory import Memory, MemoryView
from federations import seeded

ROWS = 6


@pytest.fixture
def private():
    """A client with six rows, and a function that says how few may be computed with."""
    inputs = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(1))
    client = Client("a", Part(inputs, torch.tensor([0, 1] * (ROWS // 2))))
    model = seeded(lambda: torch.nn.Linear(3, 1), torch.float32)
    workspace = Workspace(model, "auto", client, kernel="loop")
    spent = {"row_gradients": 0, "row_losses": 0}
    clients = Clients([client])
    memory = MemoryView(Memory(), ("a",))
    cohort = Cohort(("a",), workspace, clients, (0,), memory, 0, 1, spent)
    return cohort, workspace.x.clone()


WAYS = {
    "loss": lambda cohort, x: cohort.loss(x),
    "gradient": lambda cohort, x: cohort.gradient(x),
    "gradient of a batch": lambda cohort, x: cohort.gradient(x, batch_size=4),
    "training": lambda cohort, x: cohort.train(x, ct.LocalSGD(batch_size=4)),
    "answers": lambda cohort, x: cohort.answers([0], x, "train"),
}
READ = {"gradient of a batch": 4, "training": 2}
"""The fewest different rows that are read at once: four rows, and in a last batch what is left."""


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_computed_of_fewer_rows(way, private):
    cohort, x = private
    fewest = READ.get(way, ROWS)
    cohort.workspace.fewest_rows = fewest
    WAYS[way](cohort, x)
    cohort.workspace.fewest_rows = fewest + 1
    with pytest.raises(InputError, match=f"of fewer than {fewest + 1} different rows"):
        WAYS[way](cohort, x)

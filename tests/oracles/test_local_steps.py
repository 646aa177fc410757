"""Local steps without a pause: no number is read between a client's first and last step, nothing is held that grows, and the loss of a
step is one graph."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from coterie.compute.kernels import Batched
from coterie.compute.workspace import Workspace
from coterie.config.local import LocalSGD, Steps
from coterie.data import from_tensors
from coterie.models import CNN, MLP
from federations import Problem, build, cohort_of, seeded


class Recurrent(nn.Module):
    """An LSTM over the columns of a row, and a linear layer on its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(1, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x.flatten(1)[..., None])[0][:, -1])


class Attentive(nn.Module):
    """A layer of a transformer over the rows of an image, and a linear layer on the mean of its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x.squeeze(1)).mean(1))


class UNet(nn.Module):
    """One level of a U-Net, and the mean over the image."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.inner = (
            nn.Conv2d(1, 3, 3, padding=1),
            nn.Conv2d(3, 3, 3, padding=1),
        )
        self.up, self.head = nn.ConvTranspose2d(3, 3, 2, stride=2), nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        wide = self.down(x).relu()
        narrow = self.inner(nn.functional.max_pool2d(wide, 2)).relu()
        return self.head(torch.cat([wide, self.up(narrow)], 1)).mean((2, 3))


MODELS = {
    "kernel": (lambda: MLP((5,)).build((1, 8, 8), 2), False),
    "loop": (lambda: MLP((5,)).build((1, 8, 8), 2), True),
    "cnn": (lambda: CNN().build((1, 8, 8), 2), True),
    "lstm": (Recurrent, True),
    "transformer": (Attentive, True),
    "u-net": (UNet, True),
}


class Watched(TorchDispatchMode):
    """The operations between the first and the last local step, and the bytes that tensors hold after each step."""

    def __init__(self, monkeypatch) -> None:
        super().__init__()
        self.steps: list[int] = []  # how many operations came before the end of each
        self.names: list[str] = []
        self.held: list[int] = []
        for owner, name in ((Workspace, "descend"), (Batched, "_step")):
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, step):
        def counted(owner, *args):
            step(owner, *args)
            self.steps.append(len(self.names))
            if len(self.steps) in (2, 50):
                gc.collect()
                storages = {
                    t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
                    for t in gc.get_objects()
                    if type(t) is Tensor and t.layout == torch.strided
                }
                self.held.append(sum(storages.values()))

        return counted

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def images(client):
    return lambda count, g: (
        torch.randn(count, 1, 8, 8, generator=g),
        torch.arange(count) % 2,
    )


@pytest.mark.in_turn(but=("kernel", "loop"))
@pytest.mark.parametrize("name", MODELS)
def test_a_step_reads_no_number_and_leaves_nothing_behind(name, monkeypatch):
    make, loop = MODELS[name]
    cohort = cohort_of(Problem(build(images), seeded(make)), "a")
    assert (cohort.workspace.batched is None) == (name not in ("kernel", "loop"))
    if loop:
        cohort.workspace.batched = None
    watched = Watched(monkeypatch)
    with watched:
        cohort.train(
            cohort.workspace.x.clone(), LocalSGD(lr=0.1, steps=Steps(50), batch_size=4)
        )
    assert len(watched.steps) == 50
    between = watched.names[watched.steps[0] : watched.steps[-1]]
    assert len(between) > 49
    assert not [
        operation for operation in between if "_local_scalar_dense" in operation
    ]
    assert watched.held[0] == watched.held[1]


class Launches(TorchDispatchMode):
    """The number of operations that a device would be given; a view of a tensor is none."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        aliases = [value.alias_info for value in func._schema.returns]
        is_view = any(alias and not alias.is_write for alias in aliases)
        self.count += not is_view
        return func(*args, **(kwargs or {}))


def launches_of_a_step(problem, names, batch_size):
    """What one more local step of these clients launches."""
    counts = []
    for steps in (3, 4):
        cohort = cohort_of(problem, names)
        local = LocalSGD(lr=0.1, steps=Steps(steps), batch_size=batch_size)
        with Launches() as launches:
            cohort.train(cohort.workspace.x.clone(), local)
        counts.append(launches.count)
    return counts[1] - counts[0]


@pytest.mark.parametrize("count", [1, 3, 10, 16])
def test_a_kernel_launches_as_much_for_one_client_as_for_many(count):
    # Few inputs, so that the rows of all steps are gathered at once.
    rows = (torch.randn(32, 20), torch.arange(32) % 10)
    clients = from_tensors({f"c{i:02d}": rows for i in range(16)})
    problem = Problem(clients, seeded(lambda: MLP((64, 30)).build((20,), 10)))
    assert launches_of_a_step(problem, clients.names[:count], 8) <= 24


@pytest.mark.in_turn(but="loop")
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute"
)  # torch looks at it as it traces an LSTM
@pytest.mark.parametrize("name", [name for name in MODELS if name != "kernel"])
def test_the_loss_of_a_step_is_one_graph(name):
    import torch._dynamo

    problem = Problem(build(images), seeded(MODELS[name][0]))
    workspace, rows = cohort_of(problem, "a").workspace, problem.clients["a"].train
    inputs, labels = workspace.prepare(rows.read()), rows.labels
    found = torch._dynamo.explain(
        lambda: workspace.loss.mean(workspace.model(inputs), labels)
    )()
    assert (found.graph_count, found.graph_break_count) == (1, 0)

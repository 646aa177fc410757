"""Small federations that the tests share: clients, a model, and how to run a method on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.base.clients import Client, Clients
from coterie.base.rows import Part, take
from coterie.compute.cohort import Cohort
from coterie.compute.workspace import Workspace
from coterie.config.run import RunSettings
from coterie.contract.engine import Engine, EngineSpec
from coterie.contract.federation import Federation
from coterie.contract.memory import Memory, MemoryView
from coterie.engines.inprocess import InProcess, InProcessEngine
from coterie.run import fit as run
from coterie.run.result import Run

SIZES = {"a": 12, "b": 8, "c": 16, "d": 10, "e": 14}
"""Training rows of the clients; each has HELD validation rows and as many test rows."""
HELD = 6

Make = Callable[[int, torch.Generator], tuple[Any, Tensor]]


class Problem(NamedTuple):
    clients: Clients
    model: nn.Module

    def with_clients(self, clients: Clients) -> Problem:
        return Problem(clients, self.model)


def build(
    make: Callable[[str], Make],
    sizes: Mapping[str, int] = SIZES,
    held: int = HELD,
    **about: Any,
) -> Clients:
    """Clients whose rows `make(name)(count, generator)` draws from a stream that depends on the name alone."""
    clients = []
    for name, size in sizes.items():
        draw, stream = make(name), torch.Generator().manual_seed(sum(map(ord, name)))
        counts = (size, held, held) if held else (size,)
        clients.append(Client(name, *(Part(*draw(count, stream)) for count in counts)))
    return Clients(clients, **about)


def seeded(
    make: Callable[[], nn.Module], dtype: torch.dtype = torch.float32
) -> nn.Module:
    """A model with the same parameters in every call, none of them 0."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(7)
        return make().to(dtype)


def tilt(name: str) -> float:
    """How far a client's labels differ from the others'; the same for a name in every test."""
    return {"a": 0.0, "b": 0.5, "c": -0.5, "d": 1.0, "e": -1.0}.get(name, 0.25)


def logistic(dtype: torch.dtype = torch.float64, **about: Any) -> Problem:
    """Two classes, one logit; every client has both classes in every part. Convex."""

    def make(name: str) -> Make:
        def draw(count: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
            x = torch.randn(count, 3, generator=g, dtype=dtype)
            score = (
                x @ torch.tensor([1.0, -1.0, 0.5], dtype=dtype) + tilt(name) * x[:, 0]
            )
            return x, (
                score + 0.3 * torch.randn(count, generator=g, dtype=dtype)
                > score.median()
            ).long()

        return draw

    return Problem(build(make, **about), seeded(lambda: nn.Linear(3, 1), dtype))


def regression(dtype: torch.dtype = torch.float64, **about: Any) -> Problem:
    """Float labels and squared error. Convex."""

    def make(name: str) -> Make:
        def draw(count: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
            x = torch.randn(count, 3, generator=g, dtype=dtype)
            w = torch.tensor([1.0, -2.0, 0.5 + tilt(name)], dtype=dtype)
            return x, x @ w + 0.1 * torch.randn(count, generator=g, dtype=dtype)

        return draw

    return Problem(build(make, **about), seeded(lambda: nn.Linear(3, 1), dtype))


class Vector(nn.Module):
    """Its output is its parameter, for every row."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(dim))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.value.expand(len(inputs), -1)


def quadratic(
    centres: Mapping[str, Any],
    rows: int | Mapping[str, int] = 4,
    dtype: torch.dtype = torch.float64,
) -> Problem:
    """f_k(x) = mean((x - centre_k)^2), so that gradients are 2 (x - centre_k) / d; starts at 0, no held-out rows."""
    clients = []
    for name, centre in centres.items():
        c = torch.as_tensor(centre, dtype=dtype)
        count = rows if isinstance(rows, int) else rows[name]
        part = Part(torch.zeros(count, 1, dtype=dtype), c.expand(count, -1).clone())
        clients.append(Client(name, part))
    return Problem(Clients(clients), Vector(len(c)).to(dtype))


def classes(
    count: int, g: torch.Generator, dtype: torch.dtype, name: str, width: int = 4
) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, width, generator=g, dtype=dtype)
    y = (x[:, :3] + tilt(name) * x[:, 1:4]).argmax(1)
    y[:3] = torch.arange(3)  # each class in every part
    return x, y


def batch_norm(dtype: torch.dtype = torch.float64, **about: Any) -> Problem:
    """Three classes, an MLP with batch norm: float buffers and an integer counter."""

    def net() -> nn.Module:
        return nn.Sequential(
            nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)
        )

    return Problem(
        build(lambda n: lambda c, g: classes(c, g, dtype, n), **about),
        seeded(net, dtype),
    )


def dropout(dtype: torch.dtype = torch.float64, **about: Any) -> Problem:
    """Three classes, an MLP whose training draws random numbers."""

    def net() -> nn.Module:
        return nn.Sequential(
            nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.4), nn.Linear(8, 3)
        )

    return Problem(
        build(lambda n: lambda c, g: classes(c, g, dtype, n), **about),
        seeded(net, dtype),
    )


def frozen(dtype: torch.dtype = torch.float64, **about: Any) -> Problem:
    """Three classes, an MLP whose first layer is frozen."""
    model = seeded(
        lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), dtype
    )
    model[0].requires_grad_(False)
    return Problem(
        build(lambda n: lambda c, g: classes(c, g, dtype, n), **about), model
    )


class Bag(nn.Module):
    """The mean of the tokens' embeddings, then a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(11, 4), nn.Linear(4, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.embed(tokens).mean(1))


def tokens(dtype: torch.dtype = torch.float64, **about: Any) -> Problem:
    """Rows of integer token ids [6], three classes."""

    def make(name: str) -> Make:
        def draw(count: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
            x = torch.randint(0, 11, (count, 6), generator=g)
            return x, (x.sum(1) + len(name)) % 3

        return draw

    return Problem(build(make, **about), seeded(Bag, dtype))


class TwoInputs(nn.Module):
    """Floats and a category, given as a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.kind, self.out = nn.Embedding(4, 2), nn.Linear(5, 3)

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        return self.out(torch.cat([inputs["floats"], self.kind(inputs["kind"])], 1))


def dict_inputs(dtype: torch.dtype = torch.float64, **about: Any) -> Problem:
    """Inputs are a dict of a float tensor and an integer tensor."""

    def make(name: str) -> Make:
        def draw(count: int, g: torch.Generator) -> tuple[Any, Tensor]:
            x, y = classes(count, g, dtype, name, 4)
            return {
                "floats": x[:, :3],
                "kind": torch.randint(0, 4, (count,), generator=g),
            }, y

        return draw

    return Problem(build(make, **about), seeded(TwoInputs, dtype))


def segmentation(dtype: torch.dtype = torch.float64, **about: Any) -> Problem:
    """Images [1, 4, 4] with a class for each pixel."""

    def make(name: str) -> Make:
        def draw(count: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
            x = torch.randn(count, 1, 4, 4, generator=g, dtype=dtype) + tilt(name) / 4
            return x, ((x[:, 0] > -0.5).long() + (x[:, 0] > 0.5).long())

        return draw

    return Problem(
        build(make, **about), seeded(lambda: nn.Conv2d(1, 3, 3, padding=1), dtype)
    )


PROBLEMS: dict[str, Callable[..., Problem]] = {
    "logistic": logistic,
    "regression": regression,
    "batch-norm": batch_norm,
    "dropout": dropout,
    "frozen": frozen,
    "tokens": tokens,
    "dict-inputs": dict_inputs,
    "segmentation": segmentation,
}
"""One problem of each kind that a method must handle without knowing."""


def subset(clients: Clients, names: Iterator[str] | list[str] | str) -> Clients:
    """Some of the clients."""
    return Clients([clients[n] for n in names])


def renamed(clients: Clients, names: Mapping[str, str]) -> Clients:
    """The same rows under other names."""
    return Clients(
        [Client(names[c.name], c.train, c.validation, c.test) for c in clients]
    )


def shuffled(clients: Clients) -> list[Client]:
    """The clients in an order that is not sorted."""
    return [
        clients[i]
        for i in torch.randperm(
            len(clients), generator=torch.Generator().manual_seed(1)
        ).tolist()
    ]


def rows_of(part: Part, index: Any) -> Part:
    return Part(take(part.inputs, index), part.labels[index])


def cohort_of(
    problem: Problem,
    names: Any = None,
    *,
    seed: int = 0,
    round: int = 1,
    loss: Any = "auto",
) -> Cohort:
    """A cohort as a task would receive it."""
    chosen = problem.clients.names if names is None else tuple(names)
    workspace = Workspace(problem.model, loss, problem.clients[0])
    index = tuple(problem.clients.number(n) for n in chosen)
    spent = {"row_gradients": 0, "row_losses": 0}
    return Cohort(
        chosen,
        workspace,
        problem.clients,
        index,
        MemoryView(Memory(), chosen),
        seed,
        round,
        spent,
    )


def engine_of(problem: Problem, where: int | str = 1) -> Engine:
    """An engine: in process with so many workers, or "ray" with two actors."""
    if where == "ray":
        from coterie.engines.ray import RayEngine

        return RayEngine(problem.clients, problem.model)
    return InProcessEngine(problem.clients, problem.model, workers=where)


def fit(
    method: Any,
    clients: Clients,
    model: Any,
    rounds: int = 50,
    seed: int = 0,
    *,
    workers: int = 1,
    engine: EngineSpec | None = None,
    server: Part | None = None,
    attack: Any = None,
    filters: Any = (),
    init: Any = None,
    checkpoint: Any = None,
    metrics: tuple[str, ...] = (),
    strict_wire: bool = True,
    **settings: Any,
) -> Run:
    """`ct.fit`, in process unless an engine is given, measuring nothing but the loss unless metrics are named, which take half of
    the time of a short run. All that is sent is encoded and decoded, where `strict_wire` is not False, so that no test passes by a
    live reference. What it does not name is a field of `RunSettings`."""
    return run.fit(
        method,
        clients if server is None else clients.with_server(server),
        model,
        rounds,
        seed,
        engine=engine or InProcess(workers=workers),
        attack=attack,
        filters=filters,
        init=init,
        checkpoint=checkpoint,
        settings=RunSettings(metrics=metrics, strict_wire=strict_wire, **settings),
    )


@dataclass(frozen=True)
class Opening(EngineSpec):
    """An engine of a test: `make(clients, model, loss=...)` opens it."""

    make: Callable[..., Engine]

    def open(self, clients: Clients, model: nn.Module, loss: Any) -> Engine:
        return self.make(clients, model, loss=loss)


@contextmanager
def federation_of(
    problem: Problem,
    where: int | str = 1,
    *,
    strict_wire: bool = True,
    round: int = 1,
    **options: Any,
) -> Iterator[Federation]:
    """A federation on an engine of its own, closed afterwards."""
    engine = engine_of(problem, where)
    try:
        yield Federation(
            engine, engine.clients, round=round, strict_wire=strict_wire, **options
        )
    finally:
        engine.close()


def start(problem: Problem) -> Tensor:
    """The initial model as a vector."""
    return cohort_of(problem).workspace.x.clone()


def model_at(problem: Problem, x: Tensor) -> nn.Module:
    """A module of its own with the parameters and float buffers of x, in the order in which torch names them."""
    model = deepcopy(problem.model)
    tensors = [p for p in model.parameters() if p.requires_grad]
    tensors += [b for b in model.buffers() if b.is_floating_point()]
    with torch.no_grad():
        for tensor, values in zip(
            tensors, x.split([t.numel() for t in tensors]), strict=True
        ):
            tensor.copy_(values.view_as(tensor))
    return model


def vector_of(model: nn.Module) -> Tensor:
    """The vector of a module, written apart from the library's own."""
    tensors = [p for p in model.parameters() if p.requires_grad]
    tensors += [b for b in model.buffers() if b.is_floating_point()]
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def assert_same_bits(a: Run, b: Run) -> None:
    """All that depends on the seed is equal, bit by bit."""
    assert list(a.models) == list(b.models)
    for name, x in a.models.items():
        assert torch.equal(x, b.models[name]), (
            f"the models of {name} differ by {float((x - b.models[name]).abs().max())}"
        )
    assert a.history == b.history
    assert a.weights == b.weights
    assert a.weight_rows == b.weight_rows
    assert a.summary == b.summary
    assert a.failures == b.failures
    assert type(a.state) is type(b.state)
    for left, right in zip(a.state, b.state, strict=True):
        assert torch.equal(left, right) if isinstance(left, Tensor) else left == right


def assert_close(a: Tensor, b: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def loss_of(outputs: Tensor, labels: Tensor) -> Tensor:
    """Mean loss, written apart from the library's own."""
    if labels.is_floating_point():
        return F.mse_loss(
            outputs[:, 0] if outputs.ndim > labels.ndim else outputs, labels
        )
    if outputs.shape[1:] == (1,):
        return F.binary_cross_entropy_with_logits(
            outputs[:, 0], labels.to(outputs.dtype)
        )
    return F.cross_entropy(outputs, labels)

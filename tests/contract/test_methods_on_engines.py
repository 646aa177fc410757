"""What holds for every method in process holds on the other engines, to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_methods import CASES, LOCAL, StoppedError, each_family, problem_of, run
from torch import Tensor
from torch.nn import functional as F

import coterie as ct
from coterie.base.clients import Client, Clients
from coterie.base.errors import InputError
from coterie.base.modules import load_object
from coterie.base.rows import Part
from coterie.config.registry import ENGINES, METRICS
from coterie.contract.federation import QuorumError
from federations import (
    PROBLEMS,
    Problem,
    assert_same_bits,
    batch_norm,
    fit,
    logistic,
)

pytestmark = pytest.mark.engines
REMEMBERS = Path(__file__).parents[1] / "cli" / "remembers.py"


@pytest.fixture(params=["ray"])
def engine(request) -> dict[str, Any]:
    """What `fit` must be told to run on the engine."""
    request.getfixturevalue(f"{request.param}_cluster")
    return {"engine": ENGINES.build({"name": request.param}, "")}


def outcome(case: Any, **options: Any) -> Any:
    """The run, or the sentence with which it ended."""
    try:
        return run(case, rounds=2, **options)
    except (InputError, QuorumError) as error:
        return str(error)


def assert_same(one: Any, other: Any) -> None:
    assert isinstance(one, str) == isinstance(other, str), (one, other)
    if isinstance(one, str):
        assert one == other
    else:
        assert_same_bits(one, other)


@each_family
def test_the_bits_are_those_of_one_process(case, engine):
    for problem in ("batch-norm", "dropout"):
        assert_same(
            outcome(case, problem=problem_of(case, problem)),
            outcome(case, problem=problem_of(case, problem), **engine),
        )


@pytest.mark.parametrize("problem", sorted(PROBLEMS))
def test_any_problem_gives_the_bits_of_one_process(problem, engine):
    case = next(c for c in CASES if c[0] == "meritfed")
    made = PROBLEMS[problem]()
    assert_same_bits(run(case, made, rounds=2), run(case, made, rounds=2, **engine))


@pytest.mark.parametrize("method", [ct.SCAFFOLD(LOCAL), ct.Ditto(LOCAL)])
def test_models_in_16_bits_have_the_bits_of_one_process(method, engine):
    problem = batch_norm(torch.float32)
    options = {"rounds": 2, "down": "bf16"}
    assert_same_bits(
        fit(method, *problem, **options), fit(method, *problem, **options, **engine)
    )


@each_family
@pytest.mark.parametrize(
    "back", [False, True], ids=["to the engine", "from the engine"]
)
def test_a_checkpoint_of_one_engine_resumes_on_another(case, engine, back, tmp_path):
    options = {
        "rounds": 3,
        "evaluate": 2,
        "clients_per_round": 3,
        "problem": problem_of(case, "batch-norm"),
    }

    def interrupt(number: int) -> None:
        if number == 2:
            raise StoppedError

    first, then = (engine, {}) if back else ({}, engine)
    with pytest.raises(StoppedError):
        run(case, checkpoint=tmp_path, callbacks=(interrupt,), **options, **first)
    assert_same_bits(
        run(case, checkpoint=tmp_path, resume=True, **options, **then),
        run(case, **options),
    )


def with_spoilt_rows(problem: Problem, victim: str) -> Clients:
    """The clients, of whom one has a label of class 2 where there are two classes."""

    def spoilt(part: Part) -> Part:
        return Part(part.inputs, part.labels.where(torch.arange(len(part)) > 0, 2))

    return Clients(
        [
            Client(c.name, spoilt(c.train), c.validation, c.test)
            if c.name == victim
            else c
            for c in problem.clients
        ]
    )


def careful(outputs: Tensor, labels: Tensor) -> Tensor:
    if labels.max() > 1:
        raise ValueError("a label of class 2")
    return F.binary_cross_entropy_with_logits(
        outputs[:, 0], labels.to(outputs.dtype), reduction="none"
    )


careful.kind = "binary"


@each_family
def test_a_failing_client_is_named_as_in_process(case, engine):
    problem = logistic()
    options = {
        "problem": problem,
        "clients": with_spoilt_rows(problem, "c"),
        "loss": careful,
        "evaluate": 1,
    }
    one = outcome(case, **options)
    assert_same(one, outcome(case, **options, **engine))
    if case[0] == "fedavg":
        assert "ValueError: a label of class 2" in one.failures["c"]


def test_methods_models_losses_and_metrics_of_ones_own(engine, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    own = {
        k: load_object(f"{tmp_path}/mine.py:{k}") for k in ("Net", "surprise", "loss")
    }
    momentum = load_object(f"{REMEMBERS}:Momentum")
    METRICS.add("surprise", own["surprise"])
    try:
        options = {
            "rounds": 3,
            "evaluate": 1,
            "metrics": ("accuracy", "surprise"),
            "loss": own["loss"],
            "clients_per_round": 3,
        }
        problem = logistic(torch.float32)
        one, other = (
            fit(momentum(LOCAL), problem.clients, own["Net"](), **options, **on)
            for on in ({}, engine)
        )
    finally:
        del METRICS["surprise"]
    assert_same_bits(one, other)
    assert one.history.select("surprise", "a", "test")[-1][1] > 0


MINE = """
import torch
from torch import nn
from torch.nn import functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        nn.init.constant_(self.layer.weight, 0.1)
        nn.init.zeros_(self.layer.bias)
    def forward(self, x):
        return self.layer(x)

def loss(outputs, labels):
    return F.cross_entropy(outputs, labels, reduction="none") + 0.01 * outputs.square().sum(1)

def surprise(outputs, labels, kind):
    return float(-outputs.softmax(1)[range(len(labels)), labels].log().mean())
"""

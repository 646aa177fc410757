"""What holds for every method on the CPU holds on a GPU, up to rounding.

Where there is no GPU, one method goes through each of these tests on the CPU, so that the tests themselves have been run.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_methods import CASES, LOCAL, StoppedError, label, run
from torch import nn

import coterie as ct
from coterie.base import rng as noise
from coterie.base.errors import InputError
from coterie.base.rng import Generators, generators_of
from coterie.compute.workspace import Workspace
from coterie.config.registry import ATTACKS, FILTERS, METRICS, SAMPLERS
from coterie.config.run import Appeal
from coterie.contract.federation import QuorumError
from coterie.run.memory_forecast import free_bytes
from coterie.run.personalise import personalise
from federations import PROBLEMS, assert_close, assert_same_bits

absent = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="torch finds no GPU here"
)
GPU = pytest.param("cuda", marks=[pytest.mark.gpu, absent], id="cuda")
on_each = pytest.mark.parametrize("device", ["cpu", GPU])
SMOKE = next(case for case in CASES if case[0] == "meritfed")
each_case = pytest.mark.parametrize(
    ("case", "device"),
    [
        pytest.param(SMOKE, "cpu", id="cpu"),
        *(pytest.param(c, *GPU.values, marks=GPU.marks, id=label(c)) for c in CASES),
    ],
)
TOLERANCE = 1e-6
"""Of numbers in float64 after two rounds; a GPU adds in another order."""


def outcome(case: Any, device: str, problem: str, **options: Any) -> Any:
    """The run, or the sentence with which it ended."""
    try:
        return run(
            case,
            PROBLEMS[problem](),
            rounds=2,
            engine=ct.InProcess(device=device),
            **options,
        )
    except (InputError, QuorumError) as error:
        return str(error)


@each_case
@pytest.mark.parametrize(
    "problem", ["logistic", "batch-norm", "dict-inputs", "segmentation"]
)
def test_results_are_those_of_the_cpu(case, device, problem):
    expected, result = outcome(case, "cpu", problem), outcome(case, device, problem)
    if isinstance(expected, str):
        assert result == expected
        return
    assert not isinstance(result, str), result
    assert set(result.models) == set(expected.models)
    for name, model in expected.models.items():
        assert result.models[name].device.type == device
        assert_close(result.models[name].cpu(), model, TOLERANCE)
    losses = [[row["loss"] for row in one.summary] for one in (result, expected)]
    assert losses[0] == pytest.approx(losses[1], rel=TOLERANCE)


@each_case
def test_a_run_on_the_device_is_repeated_and_resumed_to_the_bit(case, device, tmp_path):
    engine, options = (
        ct.InProcess(device=device),
        {"rounds": 3, "evaluate": 2, "problem": PROBLEMS["dropout"]()},
    )

    def interrupt(number: int) -> None:
        if number == 2:
            raise StoppedError

    before = Generators.now(generators_of(nn.Linear(1, 1), torch.device(device)))
    try:
        whole = run(case, engine=engine, **options)
    except (InputError, QuorumError):
        return
    assert not before.differ()
    torch.rand(3, device=device)  # no result depends on it
    with pytest.raises(StoppedError):
        run(case, engine=engine, checkpoint=tmp_path, callbacks=(interrupt,), **options)
    assert_same_bits(
        whole, run(case, engine=engine, checkpoint=tmp_path, resume=True, **options)
    )


OPTIONS: dict[str, dict[str, Any]] = {
    **{f"filter {name}": {"filters": (name,)} for name in FILTERS},
    **{f"attack {name}": {"attack": ATTACKS[name](on=("b",))} for name in ATTACKS},
    **{
        f"sampler {name}": {"local": replace(LOCAL, sampler=SAMPLERS[name]())}
        for name in SAMPLERS
    },
    **{
        f"optimiser {name}": {"local": replace(LOCAL, optimiser=name)}
        for name in ("adam", "adamw")
    },
    **{
        f"problem {name}": {"problem": name} for name in PROBLEMS if name != "dropout"
    },  # noise of a GPU is another
    "all metrics": {"metrics": tuple(METRICS)},
    "appeal": {"appeal": Appeal(warmup_steps=2)},
    "three a round": {"clients_per_round": 3},
    "evaluation of a share": {"evaluate": ct.Evaluation(every=1, clients=0.5)},
}


SEEN_HERE = (
    "filter clip-*",
    "attack ipm-*",
    "sampler class-shares-loop-*",
    "problem batch-norm-auto-*",
    "appeal-loop-*",
    "all metrics-auto-*",
)
"""One of each kind; without a GPU, the device is the CPU itself."""


def told(option: str, device: str, kernel: str) -> Any:
    """Models and all numbers of a run, and of each client's model after tuning; or the sentence with which it ended."""
    options = {"problem": "logistic", "strict_wire": False, **OPTIONS[option]}
    problem, engine = (
        PROBLEMS[options.pop("problem")](),
        ct.InProcess(device=device, kernel=kernel),
    )
    try:
        whole = run(
            ("fedavg", {}),
            problem,
            rounds=2,
            engine=engine,
            merge_validation=False,
            **options,
        )
        tuned = personalise(
            whole, problem.clients, steps=(0, 3), lr=(0.1,), engine=engine
        )
    except (InputError, QuorumError) as error:
        return str(error)
    numbers = [(row.metric, row.value) for one in (whole, tuned) for row in one.history]
    return (
        {name: model.cpu() for name, model in {**whole.models, **tuned.models}.items()},
        numbers,
        whole.failures,
    )


@pytest.mark.in_turn(but=SEEN_HERE)
@on_each
@pytest.mark.parametrize("kernel", ["auto", "loop"])
@pytest.mark.parametrize("option", OPTIONS)
def test_what_a_run_is_asked_for_is_that_of_the_cpu(option, kernel, device):
    found, expected = told(option, device, kernel), told(option, "cpu", kernel)
    if isinstance(expected, str):
        assert found == expected
        return
    for name, model in expected[0].items():
        assert_close(found[0][name], model, TOLERANCE)
    assert [name for name, _ in found[1]] == [name for name, _ in expected[1]]
    values = [[value for _, value in numbers] for numbers in (found[1], expected[1])]
    assert values[0] == pytest.approx(
        values[1], rel=TOLERANCE, abs=TOLERANCE, nan_ok=True
    )
    assert found[2] == expected[2]


@on_each
def test_contributions_are_those_of_the_cpu(device):
    settings = ct.RunSettings(contribution=ct.Contribution(every=1))
    runs = [
        ct.fit(
            "fedavg",
            "heart-disease",
            rounds=2,
            settings=settings,
            engine=ct.InProcess(device=place),
        )
        for place in (device, "cpu")
    ]
    values = [[row.phi for row in run.contributions] for run in runs]
    assert len(values[0]) == 2 * 16
    assert values[0] == pytest.approx(
        values[1], rel=1e-3, abs=1e-5
    )  # of losses in float32


@on_each
def test_batched_kernels_train_on_the_device(device):
    problem = PROBLEMS["logistic"]()
    workspace = Workspace(problem.model, "auto", problem.clients[0], device)
    assert workspace.batched is not None
    assert workspace.batched.device.type == workspace.x.device.type == device
    runs = [
        run(SMOKE, problem, rounds=2, engine=ct.InProcess(device=device, kernel=kernel))
        for kernel in ("auto", "loop")
    ]
    for name, model in runs[0].models.items():
        assert_close(model, runs[1].models[name], TOLERANCE)


@contextmanager
def synchronisations(device: str) -> Iterator[list[Any]]:
    """The warnings of torch about what made this process wait for the GPU."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("warn")
        try:
            yield seen
        finally:
            if device == "cuda":
                torch.cuda.set_sync_debug_mode("default")


@pytest.mark.in_turn(but=("*-batch-norm-cpu",))
@on_each
@pytest.mark.parametrize("problem", ["batch-norm", "dropout", "segmentation"])
@pytest.mark.parametrize(
    "settings", [{}, {"clip": 1.0}, {"optimiser": "adam"}, {"momentum": 0.5}], ids=str
)
def test_no_step_waits_for_the_device(device, problem, settings):
    counts = []
    for steps in (2, 2, 8):  # the first run of a process waits once more
        made, local = (
            PROBLEMS[problem](),
            ct.LocalSGD(steps=ct.Steps(steps), batch_size=4, **settings),
        )
        with synchronisations(device) as seen:
            ct.fit(
                ct.FedAvg(local),
                made.clients,
                made.model,
                1,
                engine=ct.InProcess(device=device, kernel="loop"),
            )
        counts.append(sum("synchroniz" in str(one.message) for one in seen))
    assert counts[1] == counts[2]
    assert bool(counts[1]) == (
        device == "cuda"
    )  # a round waits, so that the warnings are seen to be counted


@on_each
def test_rows_of_the_cpu_are_predicted_after_training_on_the_device(device):
    clients = ct.data.load("heart-disease")
    run = ct.fit("fedavg", clients, rounds=1, engine=ct.InProcess(device=device))
    assert run.predict(clients[0].test.inputs).values.device.type == "cpu"
    assert all(value.device.type == "cpu" for value in run.state_dict().values())


@on_each
def test_memory_is_that_of_the_device(device):
    free = free_bytes(torch.device(device))
    assert 0 < free < 2**50
    if device == "cuda":
        assert free <= torch.cuda.mem_get_info()[1]


def test_memory_and_generator_of_a_gpu_are_asked_for_by_its_number(monkeypatch):
    monkeypatch.setattr(
        torch.cuda, "mem_get_info", lambda device: (1000 * (1 + device.index), 5000)
    )
    assert free_bytes(torch.device("cuda", 1)) == 2000
    several = tuple(torch.Generator() for _ in range(2))
    monkeypatch.setattr(torch.cuda, "default_generators", several)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    for device, own in (
        (torch.device("cuda"), several[0]),
        (torch.device("cuda:1"), several[1]),
    ):
        assert generators_of(nn.Linear(1, 1), device) == (own,)
        with noise.fork_generators(3, (own,)):
            assert torch.initial_seed() != own.initial_seed()

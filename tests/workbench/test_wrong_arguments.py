"""What a Python function cannot take is one sentence that names the argument."""

from __future__ import annotations

import inspect
import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn

import coterie as ct
from coterie import data
from coterie.base.errors import InputError
from coterie.run.history import History, Row
from federations import logistic

PROBLEM = logistic(torch.float32)
RUN = ct.fit(
    "fedavg", PROBLEM.clients, rounds=0, settings=ct.RunSettings(merge_validation=False)
)


def begun_with(**changed):
    return lambda: ct.fit(
        "fedavg", PROBLEM.clients, nn.Linear(3, 1), 0, init={**GOOD, **changed}
    )


GOOD = {"weight": torch.zeros(1, 3), "bias": torch.zeros(1)}
TIED = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1))
TIED[1].weight = TIED[0].weight
TWO = {name: (torch.zeros(8, 3), torch.arange(8) % 2) for name in "ab"}
HISTORY = History([Row(0, "a", "test", "loss", 0.7), Row(0, "b", "test", "loss", 0.7)])


def with_server(inputs, labels=torch.arange(6) % 2):  # noqa: B008
    return lambda: data.from_tensors(TWO, server=(inputs, labels))


def dealt_by(column):
    def load():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "t.csv"
            path.write_text(
                "a,ward,y\n"
                + "".join(f"{i}.5,{'nes'[i % 3]},{i % 2}\n" for i in range(60))
            )
            return data.load(
                path, label="y", split={"kind": "column", "column": column}
            )

    return load


NO_TENSOR = "'weight' of the initial model is not a dense tensor of finite real numbers"
WRONG = {
    "load": (
        lambda: data.load(None),
        r"data is named by a text, a data set or a folder; got None",
    ),
    "split": (
        lambda: data.load("digits", split="dirichlet"),
        r'split must be a Split or a table such as \{"kind": "iid"\}; got',
    ),
    "split of tensors": (
        lambda: data.from_tensors(TWO, split="x"),
        r"split must be a Split or a table such as .*; got 'x'",
    ),
    "label": (
        lambda: data.load("tests", label=["num"]),
        r"label = \['num'\] must be the name of a column",
    ),
    "classes": (
        lambda: data.from_tensors(TWO, classes="no"),
        "classes must be a list of texts; got 'no'",
    ),
    "resume": (
        lambda: ct.fit("fedavg", PROBLEM.clients, settings=ct.RunSettings(resume=True)),
        "resume needs the checkpoint of the run that goes on; give checkpoint",
    ),
    "steps": (
        lambda: ct.personalise(RUN, PROBLEM.clients, steps=3),
        r"steps must be a list of numbers such as .*; got 3",
    ),
    "rates": (
        lambda: ct.personalise(RUN, PROBLEM.clients, lr=0.1),
        r"lr must be a list of numbers such as .*; got 0\.1",
    ),
    "label as owner": (
        dealt_by("y"),
        r"\[split\] column = 'y' is the label; name the column that says whose row it is",
    ),
    "owner of one row": (
        dealt_by("a"),
        r"\[split\] column 'a' has no value with 3 rows or more; name the column that",
    ),
    "unknown owner": (dealt_by("wadr"), "has no column 'wadr'; did you mean 'ward'"),
    "tensors": (
        lambda: data.from_tensors(None),
        "clients must be a dict or a list of what each has; got None",
    ),
    "rounds": (
        lambda: ct.fit("fedavg", PROBLEM.clients, rounds=torch.eye(9)),
        "rounds must be an int >= 0, at most 1,000,000; got a Tensor of shape",
    ),
    "rounds without end": (
        lambda: ct.fit("fedavg", PROBLEM.clients, rounds=10**30),
        "rounds must be an int >= 0, at most 1,000,000; got 1000",
    ),
    "sampler": (
        lambda: ct.fit(
            "fedavg", PROBLEM.clients, local=ct.LocalSGD(lr=0.1, sampler=torch.eye(2))
        ),
        "LocalSGD.sampler must be None or a sampler, which has a method rows; got a Tensor of shape",
    ),
    "seed": (
        lambda: data.from_tensors([(torch.eye(4), torch.arange(4) % 2)], seed="x"),
        "seed must be an int >= 0; got 'x'",
    ),
    "name": (
        lambda: data.from_tensors({"a" * 5000: (torch.eye(4), torch.arange(4) % 2)}),
        "name of 5000 characters",
    ),
    "clients": (
        lambda: ct.fit("fedavg", {"a": torch.eye(2)}),
        "client 'a' is Tensor; give .inputs, labels.",
    ),
    "device": (
        lambda: ct.fit("fedavg", PROBLEM.clients, engine=ct.InProcess(device="meta")),
        "device meta computes nothing",
    ),
    "checkpoint": (
        lambda: ct.fit("fedavg", PROBLEM.clients, checkpoint=3),
        "checkpoint must be None or a folder; got 3",
    ),
    "file": (
        lambda: ct.fit("fedavg", PROBLEM.clients, checkpoint=__file__),
        "cannot be made a folder for checkpoints",
    ),
    "nul": (
        lambda: ct.fit("fedavg", PROBLEM.clients, checkpoint="a\0b"),
        "cannot be made a folder for checkpoints",
    ),
    "run": (
        lambda: ct.personalise("run", PROBLEM.clients),
        "run must be a run, as fit returns it; got 'run'",
    ),
    "list": (begun_with(weight=[1, 2, 3]), NO_TENSOR),
    "nan": (begun_with(weight=torch.full((1, 3), float("nan"))), NO_TENSOR),
    "meta": (begun_with(weight=torch.zeros(1, 3, device="meta")), NO_TENSOR),
    "sparse": (begun_with(weight=torch.zeros(1, 3).to_sparse()), NO_TENSOR),
    "complex": (begun_with(weight=torch.zeros(1, 3, dtype=torch.complex64)), NO_TENSOR),
    "names": (
        begun_with(**{"3": 1}),
        "the initial model has 3, which this model does not",
    ),
    "two values of one tensor": (
        lambda: ct.fit(
            "fedavg",
            PROBLEM.clients,
            TIED,
            init={**TIED.state_dict(), "1.weight": torch.zeros(3, 3)},
        ),
        "'0.weight' and '1.weight' are one tensor of this model, and the initial model has two values",
    ),
    "server's width": (
        with_server(torch.zeros(6, 5)),
        r"the server has inputs of shape {'inputs': \(5,\)}, its clients",
    ),
    "server's names": (
        with_server({"x": torch.zeros(6, 3)}),
        r"the server has inputs of shape {'x': \(3,\)}, its clients",
    ),
    "server's labels": (
        with_server(torch.zeros(6, 3), torch.zeros(6)),
        r"the server has labels of shape \[rows\] \(numb",
    ),
    "server's values": (
        with_server(torch.full((6, 3), torch.nan)),
        r"client 'server', train rows: inputs contain NaN",
    ),
    "server's classes": (
        lambda: ct.fit(
            "fedavg",
            with_server(torch.zeros(6, 3), torch.full((6,), 7))(),
            nn.Linear(3, 1),
        ),
        "client 'server' has the label 7, and the model knows the classes 0 and 1",
    ),
    "unseen width": (
        lambda: data.from_tensors(
            TWO, unseen={"new": (torch.zeros(6, 5), torch.arange(6) % 2)}
        ),
        r"unseen client 'new' has inputs of shape {'inputs': \(5,\)}, the others of {'inputs': \(3,\)}",
    ),
    "metric": (
        lambda: HISTORY.select("lss", "a", "test"),
        "the history has no 'lss'; did you mean 'loss'",
    ),
    "client of a metric": (
        lambda: HISTORY.select("loss", "c"),
        "the history has no loss of client 'c'; allowed: a, b",
    ),
    "split of a metric": (
        lambda: HISTORY.select("loss", "a", "tset"),
        "has no loss of 'a' on 'tset' rows; did you mean 't",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_a_function_cannot_take_is_one_sentence(case):
    call, sentence = WRONG[case]
    with pytest.raises(InputError, match=sentence) as error:
        call()
    assert len(str(error.value)) <= 300
    assert "\n" not in str(error.value)


def test_a_round_that_too_few_clients_answer_is_told_in_300_characters():
    local = ct.LocalSGD(lr=1e300)
    with pytest.raises(
        ct.RunError,
        match=r"0 of 5 clients replied.*Failed: a \(.*and [1-4] more\. Correct or remove these",
    ) as error:
        ct.fit(ct.FedAvg(local), PROBLEM.clients, nn.Linear(3, 1), 1)
    assert len(str(error.value)) <= 300


@pytest.mark.parametrize(("lr", "round", "loss"), [(1e6, 2, "inf"), (1e12, 1, "inf")])
def test_an_infinite_loss_of_a_finite_model_is_divergence(lr, round, loss):
    inputs = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    clients = data.from_tensors(dict.fromkeys("ab", (inputs, inputs[:, 0])))
    settings = ct.RunSettings(evaluate=1)
    with pytest.raises(ct.RunError) as error:
        ct.fit(
            ct.FedAvg(ct.LocalSGD(lr=lr, steps=ct.Steps(2))),
            clients,
            nn.Linear(3, 1),
            3,
            settings=settings,
        )
    said = str(error.value)
    assert said.startswith(f"round {round}, ")
    assert f"the loss on train rows of client 'a' is {loss}" in said
    assert said.endswith(
        "Training diverges: lower the learning rate (local lr) and repeat the run"
    )
    assert len(said) <= 300


def test_a_loss_that_is_infinite_before_training_is_not_called_divergence():
    clients = data.from_tensors([(1e30 * torch.ones(8, 3), torch.arange(8.0))] * 2)
    with pytest.raises(
        ct.RunError,
        match=r"round 0, .*the loss on train rows of client 'client-0' is inf\).*Correct or remove these",
    ):
        ct.fit("fedavg", clients, nn.Linear(3, 1), 1)


CALLS = (ct.fit, ct.compare, data.from_tensors, data.from_frames, data.from_folder)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_arguments_that_do_not_fit_are_one_sentence_with_a_call(call):
    """Python's own TypeError names no order: `ct.compare(clients, methods=[...])` left a user to guess."""
    first = next(iter(inspect.signature(call).parameters))
    wrong = [lambda: call(), lambda: call(*range(99)), lambda: call({}, **{first: {}})]
    for attempt in wrong:
        with pytest.raises(InputError) as error:
            attempt()
        assert f"write {call.__name__}({first}, " in str(error.value)

"""What a Python function cannot take is one sentence that names the argument."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import coterie as ct
from coterie import data
from coterie.core.errors import InputError
from federations import logistic

PROBLEM = logistic(torch.float32)


def begun_with(**changed):
    return lambda: ct.fit("fedavg", PROBLEM.clients, nn.Linear(3, 1), 0, init={**GOOD, **changed})


GOOD = {"weight": torch.zeros(1, 3), "bias": torch.zeros(1)}
NO_TENSOR = "'weight' of the initial model is no dense tensor of finite real numbers"
WRONG = {
    "load": (lambda: data.load(None), r"data is named by a text, a data set or a folder; got None"),
    "tensors": (lambda: data.from_tensors(None), "clients must be a dict or a list of what each has; got None"),
    "rounds": (
        lambda: ct.fit("fedavg", PROBLEM.clients, rounds=torch.eye(9)),
        "rounds must be an int >= 0, at most 1,000,000; got tensor",
    ),
    "rounds without end": (
        lambda: ct.fit("fedavg", PROBLEM.clients, rounds=10**30),
        "rounds must be an int >= 0, at most 1,000,000; got 1000",
    ),
    "sampler": (
        lambda: ct.fit("fedavg", PROBLEM.clients, local=ct.LocalSGD(lr=0.1, sampler=torch.eye(2))),
        "LocalSGD.sampler must be None or a sampler, which has a method rows; got tensor",
    ),
    "seed": (
        lambda: data.from_tensors([(torch.eye(4), torch.arange(4) % 2)], seed="x"),
        "seed must be an int >= 0; got 'x'",
    ),
    "name": (lambda: data.from_tensors({"a" * 5000: (torch.eye(4), torch.arange(4) % 2)}), "name of 5000 characters"),
    "clients": (lambda: ct.fit("fedavg", {"a": torch.eye(2)}), r"clients must be Clients, .*; got {'a': tensor"),
    "device": (
        lambda: ct.fit("fedavg", PROBLEM.clients, engine=ct.InProcess(device="meta")),
        "device meta computes nothing",
    ),
    "checkpoint": (
        lambda: ct.fit("fedavg", PROBLEM.clients, checkpoint=3),
        "checkpoint must be None or a folder; got 3",
    ),
    "file": (lambda: ct.fit("fedavg", PROBLEM.clients, checkpoint=__file__), "cannot be made a folder for checkpoints"),
    "nul": (lambda: ct.fit("fedavg", PROBLEM.clients, checkpoint="a\0b"), "cannot be made a folder for checkpoints"),
    "run": (lambda: ct.personalise("run", PROBLEM.clients), "run must be a run, as fit returns it; got 'run'"),
    "list": (begun_with(weight=[1, 2, 3]), NO_TENSOR),
    "nan": (begun_with(weight=torch.full((1, 3), float("nan"))), NO_TENSOR),
    "meta": (begun_with(weight=torch.zeros(1, 3, device="meta")), NO_TENSOR),
    "sparse": (begun_with(weight=torch.zeros(1, 3).to_sparse()), NO_TENSOR),
    "complex": (begun_with(weight=torch.zeros(1, 3, dtype=torch.complex64)), NO_TENSOR),
    "names": (begun_with(**{"3": 1}), "the initial model has 3, which this model does not"),
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
        ct.RunError, match=r"0 of 5 clients replied.*Failed: a \(.*and [1-4] more\. Mend these"
    ) as error:
        ct.fit(ct.FedAvg(local), PROBLEM.clients, nn.Linear(3, 1), 1)
    assert len(str(error.value)) <= 300

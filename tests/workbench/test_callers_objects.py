"""What a caller hands in stays as it is, and the same call has the same bits."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import coterie as ct
from coterie.base.errors import InputError
from federations import logistic

INIT = {
    "weight": torch.ones(1, 3, dtype=torch.float64),
    "bias": torch.zeros(1, dtype=torch.float64),
}


def module():
    return nn.Linear(3, 1, dtype=torch.float64)


FROZEN = ct.RunSettings(freeze=["bias"])


@pytest.mark.parametrize(
    "options",
    [{"init": INIT}, {"settings": FROZEN}, {"init": INIT, "settings": FROZEN}],
)
def test_a_module_is_neither_overwritten_nor_frozen(options):
    given, clients = module(), logistic().clients
    before = given.weight.clone()
    ct.fit("fedavg", clients, given, 1, **options)
    settings = ct.StudySettings(
        **vars(options.get("settings", ct.RunSettings())), init=options.get("init")
    )
    ct.compare(["fedavg"], clients, given, 1, 1, settings=settings)
    assert torch.equal(given.weight, before)
    assert all(parameter.requires_grad for parameter in given.parameters())


def test_a_run_starts_from_a_file_as_from_its_state_dict(tmp_path):
    path = tmp_path / "start.safetensors"
    save_file(INIT, path)
    given = ct.fit("fedavg", logistic().clients, module(), 1, init=INIT)
    assert torch.equal(
        ct.fit("fedavg", logistic().clients, module(), 1, init=path).x, given.x
    )
    assert torch.equal(
        ct.fit("fedavg", logistic().clients, module(), 1, init=str(path)).x, given.x
    )
    with pytest.raises(InputError, match=r"absent\.safetensors"):
        ct.fit(
            "fedavg",
            logistic().clients,
            module(),
            1,
            init=tmp_path / "absent.safetensors",
        )


def draw_with_numpy():
    return np.random.normal()  # noqa: NPY002 - the global generator is what this test is about


@pytest.mark.parametrize(
    "noise", [lambda: torch.randn(3), draw_with_numpy, random.random]
)
def test_transforms_that_draw_globally_have_the_same_bits(noise):
    given, clients = (
        module(),
        logistic().clients.with_transform(lambda row, rng: row + noise()),
    )
    torch.default_generator.manual_seed(1)
    first = ct.fit("fedavg", clients, given, 1).x
    drawn = torch.rand(1)
    torch.default_generator.manual_seed(1)
    assert torch.equal(torch.rand(1), drawn)
    assert torch.equal(ct.fit("fedavg", clients, given, 1).x, first)
    assert not torch.equal(ct.fit("fedavg", logistic().clients, given, 1).x, first)


def two_layers():
    return nn.Sequential(
        nn.Linear(3, 2, dtype=torch.float64),
        nn.Tanh(),
        nn.Linear(2, 1, dtype=torch.float64),
    )


def test_a_run_computes_gradients_where_its_caller_has_none():
    torch.manual_seed(3)
    model, clients = two_layers(), logistic().clients
    expected = ct.fit("fedavg", clients, model, 1)
    with torch.no_grad():
        run = ct.fit("fedavg", clients, model, 1)
    assert run.failures == {}
    assert torch.equal(run.x, expected.x)
    assert not run.x.requires_grad

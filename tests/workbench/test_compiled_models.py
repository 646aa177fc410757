"""A model that torch.compile wrapped is the module that was compiled: the same bits, and the names that a plain module takes."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import coterie as ct


def compiled(module):
    return torch.compile(module, backend="eager")


def parts(*wrapped):
    """A network whose parts of these numbers are compiled; the same numbers at each call."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)]
    return nn.Sequential(
        *(compiled(m) if i in wrapped else m for i, m in enumerate(layers))
    )


WAYS = {
    "whole": lambda: compiled(parts()),
    "a part": lambda: parts(0),
    "parts and whole": lambda: compiled(parts(1, 2)),
    "in place": lambda: in_place(parts()),
}


def in_place(module):
    module.compile(backend="eager")
    return module


@pytest.fixture(scope="module")
def clients():
    draw = torch.Generator().manual_seed(0)
    rows = [torch.randn(30, 4, generator=draw) for _ in range(2)]
    return ct.data.from_tensors([(x, (x[:, 0] > 0).long()) for x in rows])


@pytest.mark.in_turn(but="a part")
@pytest.mark.parametrize("way", WAYS)
def test_names_and_bits_are_those_of_the_plain_module(way, clients, tmp_path):
    plain = ct.fit("fedavg", clients, parts(), 1)
    model = WAYS[way]()
    names = list(model.state_dict())
    run = ct.fit("fedavg", clients, model, 1)
    assert torch.equal(run.x, plain.x)
    assert list(model.state_dict()) == names  # the caller's stays as it is
    state = run.state_dict()
    parts().load_state_dict(state)
    again = ct.fit("fedavg", clients, WAYS[way](), 0, init=state)
    assert torch.equal(again.x, run.x)


@pytest.mark.parametrize("way", WAYS)
def test_a_run_starts_from_the_state_of_a_compiled_model(way, clients):
    plain = ct.fit("fedavg", clients, parts(), 1)
    trained = WAYS[way]()
    for parameter in trained.parameters():
        nn.init.constant_(parameter, 0.25)
    for model in (parts(), WAYS[way]()):
        run = ct.fit("fedavg", clients, model, 0, init=trained.state_dict())
        assert run.state_dict().keys() == plain.state_dict().keys()
        assert run.state_dict()["2.weight"].eq(0.25).all()


def test_compiled_parts_of_parts_have_plain_names(clients):
    inner = nn.Sequential(compiled(nn.Linear(4, 3)), compiled(parts(0)[1]))
    model = compiled(nn.Sequential(inner, nn.Linear(3, 1)))
    built = ct.models.build_model(model, clients, 0)
    plain = nn.Sequential(nn.Sequential(*parts()[:2]), nn.Linear(3, 1))
    assert built.state_dict().keys() == plain.state_dict().keys()


@pytest.mark.in_turn
def test_a_function_may_build_a_compiled_model(clients):
    run = ct.fit("fedavg", clients, lambda shape, outputs: compiled(parts()), 1)
    assert torch.equal(run.x, ct.fit("fedavg", clients, parts(), 1).x)


def test_files_of_models_have_plain_names(clients, tmp_path):
    ct.compare(["fedavg"], clients, compiled(parts()), 1, 1, folder=tmp_path / "run")
    files = list((tmp_path / "run" / "models").rglob("*.safetensors"))
    assert files
    names = parts().state_dict().keys()
    assert all(names >= load_file(file).keys() for file in files)


def test_patterns_name_the_parts_of_the_plain_module(clients):
    settings = ct.RunSettings(freeze=("0",))
    run = ct.fit("fedavg", clients, compiled(parts()), 1, settings=settings)
    assert torch.equal(run.state_dict()["0.weight"], parts()[0].weight)

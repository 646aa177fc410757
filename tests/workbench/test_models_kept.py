"""What leaves a run as a model: every name of every tensor, and what was trained alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import coterie as ct
from coterie.base.vector import Layout


def rows(count=24, width=4, classes=2, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(count, width, generator=draw), torch.randint(
        0, classes, (count,), generator=draw
    )


def two_clients(**options):
    return ct.data.from_tensors([rows(seed=i, **options) for i in range(2)])


class Tied(nn.Module):
    """Two names of one weight, and two of one buffer."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("scale", torch.ones(1))
        self.second.register_buffer("scale", self.scale)

    def forward(self, inputs):
        if self.training:
            self.scale.mul_(0.9)
        return (self.second.scale * self.second(self.first(inputs).relu()))[:, :2].diff(
            dim=1
        )


def test_trained_parts_alone_can_be_exported():
    backbone, head = nn.Linear(4, 3), nn.Linear(3, 1)
    backbone.requires_grad_(False)
    module = nn.Sequential(backbone, nn.ReLU(), head)
    run = ct.fit(ct.MeritFed(targets="all"), two_clients(), module, 2)
    whole, own = (
        run.state_dict("client-0"),
        run.state_dict("client-0", trained_only=True),
    )
    assert list(own) == ["2.weight", "2.bias"]
    assert all(torch.equal(own[name], whole[name]) for name in own)
    fresh = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))
    fresh[0].load_state_dict(backbone.state_dict())
    fresh.load_state_dict(own, strict=False)
    assert all(
        torch.equal(value, whole[name]) for name, value in fresh.state_dict().items()
    )
    tied = ct.fit(ct.FedAvg(), two_clients(), Tied(), 1)
    assert set(tied.state_dict(trained_only=True)) == set(tied.state_dict())


def test_every_name_of_a_shared_tensor_is_exported():
    module = Tied()
    run = ct.fit(ct.MeritFed(targets="all"), two_clients(), module, 2)
    for client, x in run.models.items():
        state = run.state_dict(client)
        assert torch.equal(state["second.weight"], state["first.weight"])
        assert torch.equal(state["second.scale"], state["scale"])
        assert state["scale"] < 1
        assert not torch.equal(
            state["first.weight"], module.state_dict()["first.weight"]
        )
        loaded = Tied()
        loaded.load_state_dict(state)
        inputs = two_clients().train.inputs
        run.module.load_state_dict(state)
        assert torch.equal(loaded.eval()(inputs), run.module.eval()(inputs))
        assert len(x) == Layout.of(module).size


def test_the_summary_is_that_of_the_exported_model():
    clients = two_clients()
    run = ct.fit(ct.FedAvg(), clients, Tied(), 3)
    module = Tied().eval()
    module.load_state_dict(run.state_dict())
    for row in (r for r in run.summary if r["split"] == "test"):
        test = clients[row["client"]].test
        loss = nn.functional.binary_cross_entropy_with_logits(
            module(test.inputs)[:, 0], test.labels.float()
        )
        assert float(loss.detach()) == pytest.approx(row["loss"], rel=1e-5)


def test_a_tied_model_is_saved_and_predicts(tmp_path):
    """A run directory writes each name, from which a module without the tie gives the same outputs."""
    from safetensors.torch import load_file, save_file

    run = ct.fit(ct.FedAvg(), two_clients(), Tied(), 2)
    save_file(
        {k: v.clone() for k, v in run.state_dict().items()},
        tmp_path / "model.safetensors",
    )
    untied = Tied()
    untied.second.weight = nn.Parameter(torch.zeros(4, 4))
    untied.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert torch.equal(untied.second.weight, untied.first.weight)

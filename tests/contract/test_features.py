"""Representations of rows: those that a task reads, and those that a penalty sees in a step."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import nn

import coterie as ct

X = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
LABELS = (X[:, 0] > 0).long()


class Reply(NamedTuple):
    delta: ct.Update
    gap: torch.Tensor


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2), nn.Identity()
    )


@ct.task
def watch(cohort, *, x, local, layer) -> Reply:
    seen = []

    def penalty(step):
        seen.append((step.features.detach() - step.features_of(x)).abs().max())
        return 0 * step.features.sum()

    delta = cohort.updates(x, local, penalty=penalty, layer=layer)
    return Reply(delta, torch.tensor([float(max(seen))] * len(cohort.names)))


@ct.task
def plain(cohort, *, x, local) -> Reply:
    return Reply(cohort.updates(x, local), torch.zeros(len(cohort.names)))


@ct.task
def compared(cohort, *, x, layer) -> Reply:
    """The largest gap between the features of a cohort and those of the first layers of the same module."""
    (features,) = cohort.features(x, layer)
    module = model().eval()
    rows = cohort.training_rows(0, range(cohort.size(0)))[0]
    expected = module[:3](rows) if layer is None else module[: int(layer) + 1](rows)
    gap = (features - expected).abs().max()
    return Reply(torch.zeros(1, len(x)), gap[None].detach())


def federation():
    clients = ct.data.from_tensors({"a": (X, LABELS)})
    engine = ct.InProcess().open(clients, model(), "auto")
    return engine, ct.Federation(engine, engine.clients)


@pytest.mark.parametrize("layer", [None, "0", "1"])
def test_features_are_what_the_layer_makes_of_rows(layer):
    engine, view = federation()
    assert float(view.ask("a", compared, x=engine.x, layer=layer).gap) < 1e-6


def test_looking_at_features_changes_no_training():
    engine, view = federation()
    local = ct.LocalSGD(batch_size=5, steps=ct.Steps(4))
    free = view.ask("a", plain, x=engine.x, local=local).delta
    watched = view.ask("a", watch, x=engine.x, local=local, layer=None)
    torch.testing.assert_close(watched.delta, free)
    assert float(watched.gap) > 0.1  # training normalises by its batch


def test_a_layer_that_is_not_there_is_named():
    engine, view = federation()
    with pytest.raises(ct.InputError, match="the model has no layer 'body'"):
        view.ask("a", compared, x=engine.x, layer="body")

"""A run at hand in Python: what it prints, and what its history answers."""

from __future__ import annotations

import pytest
import torch

import coterie as ct
from coterie.run.history import History, Row


def test_a_run_and_its_history_print_one_line():
    draw = torch.Generator().manual_seed(0)
    parts = [(torch.randn(24, 3, generator=draw), torch.randint(0, 2, (24,), generator=draw)) for _ in range(3)]
    run = ct.fit(ct.FedAvg(), ct.data.from_tensors(parts), ct.models.Logistic(), 4)
    assert repr(run) == "<run of FedAvg: 4 rounds, seed 0, one model for everybody>"
    assert repr(run.history) == f"<history of {len(run.history)} numbers in 5 rounds>"
    own = ct.fit(ct.Local(), ct.data.from_tensors(parts), ct.models.Logistic(), 1, seed=2)
    assert repr(own) == "<run of Local: 1 rounds, seed 2, models of 3 clients>"


def test_a_history_does_not_mix_splits():
    history = History(
        [Row(1, "a", "test", "auc", 0.5), Row(1, "a", "validation", "auc", 0.9), Row(1, "*", "", "pool", 3)]
    )
    assert history.select("auc", "a", "validation") == [(1, 0.9)]
    assert history.select("pool") == [(1, 3)]
    with pytest.raises(ct.InputError, match=r"auc of 'a' was measured on test and validation; name one: split=\.\.\."):
        history.select("auc", "a")

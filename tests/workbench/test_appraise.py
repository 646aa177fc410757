"""Would a newcomer gain: the models of a run on rows of a client that took no part."""

from __future__ import annotations

import pytest
import torch

import coterie as ct


def rows(slope, seed, count=90):
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 2, generator=draw)
    noise = torch.randn(count, generator=draw)
    return inputs, (inputs @ torch.tensor(slope) + 0.3 * noise > 0).long()


@pytest.fixture(scope="module")
def run():
    """Each of two clients has a model of its own; they say the opposite."""
    clients = {"up": rows([1.0, 0.0], 1), "down": rows([-1.0, 0.0], 2)}
    return ct.fit("local", ct.data.from_tensors(clients), rounds=1)


def losses(comparison):
    table = comparison.to_pandas()
    return table[table.split == "test"].groupby("method").loss.mean()


@pytest.mark.in_turn
def test_the_mixture_finds_the_model_that_fits_and_needs_few_rows(run):
    found = losses(ct.appraise(run, rows([1.0, 0.0], 3, count=24), seeds=3))
    assert found["mixture"] < 0.7 * found["as-is"]
    assert found["mixture"] < 0.7 * found["bias"]


def test_a_newcomer_that_nobody_is_like_stays_alone(run):
    comparison = ct.appraise(run, rows([0.0, 2.0], 4), seeds=4, name="new")
    assert "alone" in comparison.verdict("new").kind
    assert comparison.clients == ("new",)


def test_the_model_of_all_is_served_as_it_is():
    clients = ct.data.from_tensors({"a": rows([1.0, 1.0], 5), "b": rows([1.0, 0.5], 6)})
    run = ct.fit("fedavg", clients, rounds=10)
    inputs, labels = rows([1.0, 1.0], 7)
    comparison = ct.appraise(run, (inputs, labels), ["as-is", "mixture"], seeds=3)
    found = losses(comparison)
    assert found["mixture"] == found["as-is"]  # there is one model alone
    shares = run.predict(inputs).values
    log_loss = torch.nn.functional.nll_loss(shares.log().float(), labels)
    assert found["as-is"] == pytest.approx(float(log_loss), abs=0.1)


def test_what_cannot_be_appraised_is_named(run):
    with pytest.raises(ct.InputError, match="there is no way 'mixed'; did you mean"):
        ct.appraise(run, rows([1.0, 0.0], 3), ["mixed"])
    with pytest.raises(ct.InputError, match="the model cannot take inputs"):
        ct.appraise(run, (torch.zeros(30, 5), torch.arange(30) % 2))

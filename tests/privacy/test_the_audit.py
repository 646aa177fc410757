"""An audit: whoever knows all other rows guesses from the update whether a canary was among them, and is right no more than claimed."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
import torch
from torch import nn

import coterie as ct
from coterie.base.privacy import epsilon_of, mu_of, noise_multiplier
from coterie.compute import kernels, row_noise
from coterie.compute.cohort import Shard
from coterie.compute.tasks import own_update
from coterie.compute.workspace import Workspace
from coterie.contract.wire import Ask, Context
from coterie.sites.ledger import Account, Place, Told

DELTA, STEPS, FAST, SLOW = 1e-5, 4, 300, 5000
PHI = NormalDist()


def updates(clients, noise):
    """The updates [n, 2] of as many clients, of which every second has the canary."""
    other = torch.tensor([0.0, 1.0])
    canary = torch.tensor([1e3, 0.0])  # its gradient has a length of 500 at first
    rows = {
        f"{number:05}": (
            (torch.stack([canary * (number % 2), other]), torch.tensor([1, 0])),
        )
        for number in range(clients)
    }
    federation = ct.data.from_tensors(
        {name: {"train": parts[0]} for name, parts in rows.items()}
    )
    model = nn.Linear(2, 1, bias=False)
    workspace = Workspace(model, "binary", federation[0])
    local = ct.LocalSGD(lr=1e-7, steps=ct.Steps(STEPS), batch_size=None, private=noise)
    x = torch.zeros(2)
    ask = Ask(
        tuple(federation.names),
        own_update.name,
        {"x": x, "local": local},
        Context(0, 1, 1, 1),
    )
    answer = Shard(federation, workspace).answer(ask)
    assert not answer.failed
    return torch.cat([block.values["delta"] for block in answer.blocks]) / local.lr


def bound(hits, of, level=0.025):
    """The bound below which the true rate lies with 97.5 % (Wilson, with continuity)."""
    z = PHI.inv_cdf(1 - level)
    rate = min(of, hits + 0.5) / of
    middle = (rate + z * z / (2 * of)) / (1 + z * z / of)
    return min(
        1 - 1e-9,
        middle
        + z
        / (1 + z * z / of)
        * math.sqrt(rate * (1 - rate) / of + (z / (2 * of)) ** 2),
    )


def audited(noise, trainings):
    """The epsilon that 95 % of such audits find exceeded, by the trade-off between false alarms and misses."""
    told = updates(2 * trainings, noise)[:, 0]
    threshold = STEPS / 4  # halfway: the mean of two rows moves by STEPS C / 2
    without, with_canary = told[0::2], told[1::2]
    alarms = bound(int((without > threshold).sum()), trainings)
    misses = bound(int((with_canary <= threshold).sum()), trainings)
    mu = -PHI.inv_cdf(alarms) - PHI.inv_cdf(misses)
    return epsilon_of(max(0.0, mu), DELTA)


def noise_of(epsilon):
    return ct.RowNoise(noise_multiplier(epsilon, DELTA, STEPS), clip=1.0)


@pytest.mark.promise("noise by row")
def test_no_guess_is_better_than_claimed_and_the_best_is_near():
    found = audited(noise_of(8.0), FAST)
    assert 8.0 / 2 < found <= 8.0


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 2.0, 4.0, 8.0])
def test_ten_thousand_trainings_find_no_more_than_claimed(epsilon):
    found = audited(noise_of(epsilon), SLOW)
    assert epsilon / 2 < found <= epsilon


def test_without_noise_the_canary_is_found():
    assert audited(ct.RowNoise(0.0, clip=1.0), FAST) > 8


# ---- faults that the tests above would find


@pytest.mark.in_turn
def test_rows_that_are_not_clipped_are_found(monkeypatch):
    monkeypatch.setattr(
        kernels, "shares_within", lambda norms, bound: torch.ones_like(norms)
    )
    assert audited(noise_of(2.0), FAST) > 2.0


def test_half_of_the_noise_is_found(monkeypatch):
    whole = row_noise.with_noise

    def half(workspace, total, sigma, *more):
        return whole(workspace, total, sigma / 2, *more)

    monkeypatch.setattr(row_noise, "with_noise", half)
    assert audited(noise_of(2.0), FAST) > 2.0


def test_an_account_that_does_not_read_what_others_tell_would_tell_too_much(
    tmp_path, monkeypatch
):
    """The law of test_the_epsilon_of_a_site: two processes have one epsilon."""

    def told(log):
        accounts, answered = [Account(log), Account(log)], 0
        for number, account in enumerate(accounts):
            account.most_mu = mu_of(1.0, DELTA)
            event = Told(1, account.most_mu**2)
            try:
                account.settle(
                    Place("plan", "a-0", "m:t", 1), {str(number): "r"}, event
                )
                answered += 1
            except ct.InputError:
                pass
        return answered

    assert told(tmp_path / "one.jsonl") == 1
    monkeypatch.setattr(Account, "_follow", lambda self, file: None)
    assert told(tmp_path / "two.jsonl") == 2

"""A method whose round writes on itself is told so, by `fit`, the command and the contract tests alike."""

from __future__ import annotations

import pytest
import torch

import coterie as ct
from coterie.base.errors import InputError
from coterie.testing import LawError, check_method
from federations import logistic


@ct.options
class Forgetful(ct.FedAvg):
    calls: int = 0

    def round(self, state, federation, rng):
        self.calls += 1
        return super().round(state, federation, rng)


def test_a_method_that_writes_on_itself_is_told_so():
    """It ended in FrozenInstanceError and the request to report it."""
    clients = logistic(torch.float32).clients
    with pytest.raises(InputError, match=r"Forgetful writes on .* 'calls'.*the state"):
        ct.fit(Forgetful(), clients, rounds=1)


def test_the_contract_tests_say_so_too():
    with pytest.raises(LawError, match="return it in the state"):
        check_method(Forgetful)

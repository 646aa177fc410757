"""A fixed short form of `make torture`."""

from __future__ import annotations

import os

import pytest

from torture.__main__ import counted
from torture.campaigns import CAMPAIGNS

TRIES = {"kills, then `--resume`": 8, "damaged files of a run": 8}
"""Of campaigns whose tries are runs of the command; of the others 150."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CAMPAIGNS)
def test_nothing_of_a_short_campaign_is_wrong(name, monkeypatch):
    monkeypatch.chdir(os.getcwd())
    found = counted(name, 1, 600, TRIES.get(name, 150))
    assert found.tries >= 8
    assert found.wrong == []

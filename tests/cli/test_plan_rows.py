"""`coterie plan-rows`."""

import json
from pathlib import Path

import pytest

from report import fake_run


def test_the_command_prints_tables_or_json(coterie, tmp_path: Path) -> None:
    folder = fake_run.heart(tmp_path)
    ended = coterie("plan-rows", str(folder), "--for", "CLEVELAND", "--rows", "100,500")
    assert ended.status == 0, ended.err
    assert "Cleveland today" in ended.out
    told = json.loads(
        coterie(
            "plan-rows", str(folder), "--for", "cleveland", "--rows", "100", "--json"
        ).out
    )
    assert set(told) == {"client", "today", "own", "everybody"}
    assert sum(told["own"]["100"].values()) == pytest.approx(1)
    refused = coterie("plan-rows", str(folder), "--for", "nobody")
    assert refused.status == 2
    assert "nobody" in refused.err
    assert (
        coterie("plan-rows", str(folder), "--for", "cleveland", "--rows", "0").status
        == 2
    )

"""Every test runs with `strict_wire`: whatever is asked or answered is encoded and decoded, as if it were sent."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest


@pytest.fixture(autouse=True)
def strict_wire(monkeypatch):
    from coterie import runner

    monkeypatch.setitem(runner.fit.__kwdefaults__, "strict_wire", True)

"""Every test runs with `strict_wire`: whatever is asked or answered is encoded and decoded, as if it were sent."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch


@pytest.fixture(autouse=True)
def strict_wire(monkeypatch):
    from coterie.run import fit as module

    monkeypatch.setitem(module.fit.__kwdefaults__, "strict_wire", True)


@pytest.fixture(scope="session")
def ray_cluster():
    """One Ray cluster and its actors for all tests that need one."""
    pytest.importorskip("ray", reason="engine ray is not installed: pip install 'coterie[ray]', or make test-engines")
    from coterie.engines.ray import cluster

    with cluster(3):
        yield


@pytest.fixture(autouse=True)
def same_random_numbers_in_any_order():
    """A model that a test builds itself must not depend on which tests ran before."""
    torch.default_generator.manual_seed(0)

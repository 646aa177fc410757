"""What holds for every test."""

from __future__ import annotations

import os
import signal
import sys

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
# Containers often ask for no bytecode: then each process that a test starts would spend seconds on compiling everything again.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    sys.dont_write_bytecode = False

collect_ignore = [
    "src/coterie/sites/flare/certificates.py",  # these need FLARE, which loads all of them but the first
    "src/coterie/sites/flare/client.py",
    "src/coterie/sites/flare/gate.py",
    "src/coterie/sites/flare/launchers.py",
    "src/coterie/sites/flare/server.py",
    "tests/engines/flare_job.py",
]


@pytest.fixture(scope="session", autouse=True)
def interruptible():
    """A shell starts background jobs with SIGINT ignored, which children inherit; then Ctrl-C would mean nothing to them."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def same_random_numbers_in_any_order():
    """A model that a test builds itself must not depend on which tests ran before."""
    import torch  # here, since the process that hands out tests to others needs none

    torch.default_generator.manual_seed(0)


@pytest.fixture(scope="session")
def ray_cluster():
    """One Ray cluster and its actors for all tests that need one."""
    pytest.importorskip("ray", reason="engine ray is not installed: pip install 'coterie[ray]', or make test-engines")
    from coterie.engines import ray, ray_cluster

    with pytest.MonkeyPatch.context() as patch, ray_cluster.cluster(3):
        for module in (ray, ray_cluster):
            patch.setattr(module, "STARTING", 600.0)  # on a busy machine two actors took more than two minutes to start
        yield

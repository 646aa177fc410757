"""What holds for every test; where engines, methods and what is sent are tested, all of it is encoded and decoded as if sent."""

from __future__ import annotations

import dataclasses
import inspect
import os
import signal
import sys

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
# Containers often ask for no bytecode: then each process that a test starts would spend seconds on compiling everything again.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    sys.dont_write_bytecode = False

collect_ignore = [
    "src/coterie/sites/flare/client.py",  # these three are loaded by FLARE, and need it
    "src/coterie/sites/flare/server.py",
    "tests/engines/moody.py",
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


STRICT_WIRE = ("attacks", "contract", "engines", "methods")
"""Folders of tests whose runs encode and decode everything; elsewhere runs are those of a user, and twice as fast."""


@pytest.fixture(scope="module", autouse=True)
def strict_wire(request):
    """Let runs of these folders encode and decode every message."""
    if request.path.parent.name not in STRICT_WIRE:
        yield
        return
    from coterie.config.run import RunSettings, RunTable, StudySettings
    from coterie.run.fit import fit

    with pytest.MonkeyPatch.context() as patch:
        for settings in (RunSettings, StudySettings, RunTable):
            defaults = {f.name: f.default for f in dataclasses.fields(settings)} | {"strict_wire": True}
            patch.setattr(settings.__init__, "__defaults__", tuple(defaults.values()))
        patch.setitem(inspect.unwrap(fit).__kwdefaults__, "settings", RunSettings())
        yield


@pytest.fixture(scope="session")
def ray_cluster():
    """One Ray cluster and its actors for all tests that need one."""
    pytest.importorskip("ray", reason="engine ray is not installed: pip install 'coterie[ray]', or make test-engines")
    from coterie.engines.ray_cluster import cluster

    with cluster(3):
        yield

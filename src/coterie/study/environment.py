"""The machine and the software on which a run was computed."""

from __future__ import annotations

import os
import platform
import sys
from datetime import UTC, datetime
from typing import Any

import torch


def _arithmetic() -> dict[str, Any]:
    """The properties of a machine that decide how numbers are rounded: the instruction set that torch uses, and threads."""
    return {
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": 1,  # `one_thread`
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", ""),
        "MKL_NUM_THREADS": os.environ.get("MKL_NUM_THREADS", ""),
    }


def environment(command: str, started: str) -> dict[str, Any]:
    """Versions and machine, for whoever repeats the run."""
    import importlib.metadata

    from coterie import __version__

    versions = {"coterie": __version__, "python": platform.python_version()}
    for package in ("torch", "numpy", "scipy", "safetensors", "pandas", "scikit-learn"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    machine = {"system": platform.platform(), "processor": platform.machine(), **_arithmetic()}
    finished = datetime.now(UTC).isoformat(timespec="seconds")
    return {
        "command": command or " ".join(sys.argv),
        "versions": versions,
        "machine": machine,
        "started": started,
        "finished": finished,
    }

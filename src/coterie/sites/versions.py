"""Versions and the kind of processor: where they differ between machines, numbers may differ in their last bits."""

from __future__ import annotations

import json
import platform
from importlib import metadata
from pathlib import Path

import torch

from coterie import __version__
from coterie.base.errors import InputError

VERSIONS_FILE = "versions.json"
_MUST = ("coterie", "nvflare")
"""Another version may speak another language; the others change bits alone."""


def versions() -> dict[str, str]:
    """Of what takes part in a run on this machine."""
    software = {"coterie": __version__, "python": platform.python_version(), "torch": str(torch.__version__)}
    software |= {name: metadata.version(name) for name in ("numpy", "nvflare")}
    return {**software, "processor": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"}


def compare_versions(operators: Path) -> list[str]:
    """Lines about what is the same here as where the kit was made. Raises `InputError` for what must be the same and is not."""
    versions_here = versions()
    if not operators.is_file():
        return [f"{', '.join(f'{k} {v}' for k, v in versions_here.items())}; the operator's should be the same"]
    there = json.loads(operators.read_text(encoding="utf-8"))
    for name in _MUST:
        if versions_here[name] != there.get(name):
            raise InputError(
                f"{name} is {versions_here[name]} here and {there.get(name)} at the operator; install the operator's version"
            )
    differences = [
        f"{k} is {v} here and {there.get(k)} at the operator" for k, v in versions_here.items() if v != there.get(k)
    ]
    same = ", ".join(f"{k} {v}" for k, v in versions_here.items() if v == there.get(k))
    return [
        f"the same as the operator's: {same}",
        *(f"{line}: the last bits of numbers may differ" for line in differences),
    ]

"""The software of a kit: wheels pinned by their hashes, files to run a site in a container or under systemd, and versions.

Where versions or the kind of processor differ between machines, numbers may differ in their last bits.
"""

from __future__ import annotations

import json
import platform
import shutil
from importlib import metadata
from pathlib import Path

import torch

from coterie import __version__
from coterie.base.errors import InputError
from coterie.run.files import hash_of

SOFTWARE = "software"
_FILES = Path(__file__).parent / "kit"


def add_software(kit: Path, wheels: Path | None) -> None:
    """Write the folder `software` of a kit.

    Args:
        kit: the kit.
        wheels: a folder that `pip wheel` has filled; its wheels are copied and named in `requirements.txt` with their hashes. None: the
            kit carries none.

    Raises:
        InputError: the folder has no wheel of coterie.
    """
    carried, software = wheels_in(wheels), kit / SOFTWARE
    software.mkdir()
    for file in (_FILES / "Containerfile", _FILES / "coterie.service", *carried):
        shutil.copy(file, software / file.name)
    if carried:
        (software / "requirements.txt").write_text(
            "".join(map(_pin_wheels, carried)), encoding="utf-8"
        )


def wheels_in(folder: Path | None) -> list[Path]:
    """The wheels of a folder, sorted; none if there is no folder. Raises `InputError` if none of them is of coterie."""
    if folder is None:
        return []
    wheels = sorted(folder.glob("*.whl"))
    if not any(wheel.name.startswith("coterie-") for wheel in wheels):
        raise InputError(
            f"{folder} has no wheel of coterie; fill it with: pip wheel -w {folder} 'coterie[flare]'"
        )
    return wheels


def _pin_wheels(wheel: Path) -> str:
    name, version = wheel.name.split("-")[:2]
    return f"{name.replace('_', '-')}=={version} --hash=sha256:{hash_of(wheel)}\n"


VERSIONS_FILE = "versions.json"
_MUST = ("coterie", "nvflare")
"""Another version may speak another language; the others change bits alone."""


def versions() -> dict[str, str]:
    """Return the versions of what takes part in a run on this machine."""
    software = {
        "coterie": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }
    software |= {name: metadata.version(name) for name in ("numpy", "nvflare")}
    return {
        **software,
        "processor": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
    }


def compare_versions(operators: Path) -> list[str]:
    """Lines about what is the same here as where the kit was made. Raises `InputError` for what must be the same and is not."""
    versions_here = versions()
    if not operators.is_file():
        return [
            f"{', '.join(f'{k} {v}' for k, v in versions_here.items())}; the operator's should be the same"
        ]
    theirs = json.loads(operators.read_text(encoding="utf-8"))
    for name in _MUST:
        if versions_here[name] != theirs.get(name):
            raise InputError(
                f"{name} is {versions_here[name]} here and {theirs.get(name)} at the operator; install the operator's version"
            )
    differences = [
        f"{k} is {v} here and {theirs.get(k)} at the operator"
        for k, v in versions_here.items()
        if v != theirs.get(k)
    ]
    equal = ", ".join(
        f"{k} {v}" for k, v in versions_here.items() if v == theirs.get(k)
    )
    return [
        f"the same as the operator's: {equal}",
        *(f"{line}: the last bits of numbers may differ" for line in differences),
    ]

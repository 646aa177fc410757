"""The software of a kit: wheels pinned by their hashes, and files to run a site in a container or under systemd."""

from __future__ import annotations

import shutil
from pathlib import Path

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
        (software / "requirements.txt").write_text("".join(map(_pin_wheels, carried)), encoding="utf-8")


def wheels_in(folder: Path | None) -> list[Path]:
    """The wheels of a folder, sorted; none if there is no folder. Raises `InputError` if none of them is of coterie."""
    if folder is None:
        return []
    wheels = sorted(folder.glob("*.whl"))
    if not any(wheel.name.startswith("coterie-") for wheel in wheels):
        raise InputError(f"{folder} has no wheel of coterie; fill it with: pip wheel -w {folder} 'coterie[flare]'")
    return wheels


def _pin_wheels(wheel: Path) -> str:
    name, version = wheel.name.split("-")[:2]
    return f"{name.replace('_', '-')}=={version} --hash=sha256:{hash_of(wheel)}\n"

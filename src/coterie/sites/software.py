"""The software of a kit: wheels pinned by their hashes, and files to run a site in a container or under systemd."""

from __future__ import annotations

import shutil
from pathlib import Path

from coterie.core.errors import require
from coterie.run.files import hash_of

__all__ = ["SOFTWARE", "add_software"]

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
    software = kit / SOFTWARE
    software.mkdir()
    for file in ("Containerfile", "coterie.service"):
        shutil.copy(_FILES / file, software / file)
    if wheels is None:
        return
    found = sorted(wheels.glob("*.whl"))
    require(
        any(wheel.name.startswith("coterie-") for wheel in found),
        f"{wheels} has no wheel of coterie; fill it with: pip wheel -w {wheels} 'coterie[flare]'",
    )
    for wheel in found:
        shutil.copy(wheel, software / wheel.name)
    (software / "requirements.txt").write_text("".join(map(_pinned, found)), encoding="utf-8")


def _pinned(wheel: Path) -> str:
    name, version = wheel.name.split("-")[:2]
    return f"{name.replace('_', '-')}=={version} --hash=sha256:{hash_of(wheel)}\n"

"""The software of a kit: wheels pinned by their hashes, a container's recipe, and a unit of systemd."""

from __future__ import annotations

import configparser
import shlex
import shutil
import subprocess
import sys
import venv
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest

from coterie.base.errors import InputError
from coterie.sites.software import add_software

ROOT = Path(__file__).parents[1]


def wheel(folder, name, version="1.0"):
    """A wheel with nothing but a module that says its version."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    about = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", f"version = {version!r}\n")
        archive.writestr(
            f"{about}/METADATA",
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        )
        archive.writestr(
            f"{about}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(f"{about}/RECORD", "")
    return path


def kit_of(folder, wheels):
    kit = folder / "kit"
    kit.mkdir()
    add_software(kit, wheels)
    return kit / "software"


def test_a_kit_carries_its_wheels_and_their_hashes(tmp_path):
    made = [wheel(tmp_path / "wheels", name) for name in ("coterie", "other_thing")]
    software = kit_of(tmp_path, tmp_path / "wheels")
    lines = (software / "requirements.txt").read_text().splitlines()
    assert lines == [
        f"{name}==1.0 --hash=sha256:{sha256(path.read_bytes()).hexdigest()}"
        for name, path in zip(("coterie", "other-thing"), made, strict=True)
    ]
    assert {path.name for path in software.glob("*.whl")} == {
        path.name for path in made
    }


def test_wheels_without_coterie_are_refused_with_the_cure(tmp_path):
    wheel(tmp_path / "wheels", "other")
    with pytest.raises(InputError, match="pip wheel -w"):
        kit_of(tmp_path, tmp_path / "wheels")


def test_the_unit_of_systemd_runs_the_kit_in_the_foreground(tmp_path):
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str
    unit.read(kit_of(tmp_path, None) / "coterie.service")
    service = unit["Service"]
    assert (
        service["ExecStart"]
        == f"/bin/bash {service['WorkingDirectory']}/startup/sub_start.sh --once"
    )
    assert service["ReadWritePaths"] == service["WorkingDirectory"]
    assert service["User"] != "root"


def steps(recipe):
    return [
        line.removeprefix("RUN ")
        for line in recipe.read_text().splitlines()
        if line.startswith("RUN ")
    ]


def empty(folder):
    """An empty virtual environment, and the environment of a shell in which it is active."""
    venv.create(folder, with_pip=True)
    return {
        "PATH": f"{folder / 'bin'}:/usr/bin:/bin",
        "HOME": str(folder),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


def run(step, software, environment):
    words = [word.replace("/software", str(software)) for word in shlex.split(step)]
    return subprocess.run(
        words, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_a_wheel_that_was_changed_is_not_installed(tmp_path):
    wheel(tmp_path / "wheels", "coterie")
    software = kit_of(tmp_path, tmp_path / "wheels")
    environment, install = (
        empty(tmp_path / "venv"),
        steps(software / "Containerfile")[0],
    )
    assert run(install, software, environment).returncode == 0
    with open(software / "coterie-1.0-py3-none-any.whl", "ab") as file:
        file.write(b"\n")
    again = run(
        install.replace("install", "install --force-reinstall"), software, environment
    )
    assert again.returncode != 0
    assert "DO NOT MATCH THE HASHES" in again.stderr


@pytest.mark.slow
def test_each_step_of_the_containerfile_runs_in_an_empty_environment(tmp_path):
    wheels, constraints = tmp_path / "wheels", ROOT / "constraints.txt"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--disable-pip-version-check",
    ]
    subprocess.run(
        [*pip, "-c", str(constraints), "-w", str(wheels), f"{ROOT}[flare]"], check=True
    )
    software = kit_of(tmp_path, wheels)
    shutil.rmtree(wheels)
    environment = empty(tmp_path / "venv")
    recipe = steps(software / "Containerfile")
    assert len(recipe) == 3
    for step in recipe:
        done = run(step, software, environment)
        assert done.returncode == 0, f"{step}\n{done.stdout}{done.stderr}"

"""What there is, by name: coterie's own, what installed packages bring, what a program registers, and files."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import coterie as ct
from coterie.base.errors import InputError
from coterie.config.registry import FILTERS, KINDS, METHODS, METRICS

ROOT = Path(__file__).parents[2]

PACKAGE = {
    "townspeople.py": '''"""Filters and a method of another author."""
import coterie as ct
from coterie.config.schema import options


@ct.wire_type
@options
class QSGD(ct.Filter):
    """Halve what is sent."""

    def apply(self, rows, passage):
        return rows / 2


class Nothing:
    """No filter at all."""


class Mine(ct.FedAvg):
    """Do as FedAvg does."""
''',
    "broken.py": "import nothing_that_is_installed\n",
    "townspeople-3.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: townspeople\nVersion: 3.1\n",
    "townspeople-3.1.dist-info/entry_points.txt": """[coterie.filters]
qsgd = townspeople:QSGD
clip = townspeople:QSGD
late = broken:Late
none = townspeople:Nothing

[coterie.methods]
mine = townspeople:Mine
gone = broken:Gone
""",
}


@pytest.fixture
def installed(tmp_path):
    """Run Python, or the command, where a package of another author is installed."""
    for name, text in PACKAGE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    path = os.pathsep.join([str(tmp_path), str(ROOT / "src")])

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": path}
        return subprocess.run(
            [sys.executable, *arguments],
            env=environment,
            capture_output=True,
            text=True,
        )

    return run


def test_a_package_brings_a_filter_that_is_listed_shown_and_spelled(installed):
    shown = installed("-m", "coterie", "show", "qsgd")
    assert (shown.returncode, shown.stdout) == (0, "Halve what is sent.\n")
    code = (
        "import townspeople; from coterie.config.registry import FILTERS; q = FILTERS.build({'name': 'qsgd'}, '');"
        "print(type(q) is townspeople.QSGD, FILTERS.spell(q), FILTERS.name_of(townspeople.Mine))"
    )
    assert installed("-c", code).stdout == "True {'name': 'qsgd'} None\n"


def test_a_package_that_cannot_be_imported_is_named_and_the_others_work(installed):
    listed = installed("-m", "coterie", "methods", "--json")
    names = [row["name"] for row in json.loads(listed.stdout)]
    assert names[-1] == "mine"
    assert "gone" not in names
    sentence = "the method 'gone' of the package townspeople 3.1 cannot be imported: ModuleNotFoundError: No module named 'noth"
    assert sentence in listed.stderr
    shown = installed("-m", "coterie", "show", "late")
    assert shown.returncode == 2
    assert (
        "the filter 'late' of the package townspeople 3.1 cannot be imported: ModuleNotFoundError"
        in shown.stderr
    )
    assert "mend or uninstall that package" in shown.stderr


def test_a_package_cannot_take_a_name_of_coterie_or_bring_what_is_no_filter(installed):
    code = "from coterie.config.registry import FILTERS; print(FILTERS['clip'].__module__, FILTERS.importable()[1][0])"
    sentence = "the package townspeople 3.1 has a filter 'clip' too, which is not used"
    assert installed("-c", code).stdout == f"coterie.filters.clip {sentence}\n"
    shown = installed("-m", "coterie", "show", "none")
    assert shown.returncode == 2
    sentence = "the filter 'none' of the package townspeople 3.1: <class 'townspeople.Nothing'> is not a filter"
    assert sentence in " ".join(shown.stderr.split())


def test_names_of_packages_are_listed_without_an_import(installed):
    code = "import sys; from coterie.config.registry import KINDS; n = [*map(list, KINDS.values())];"
    listed = installed(
        "-c",
        code + "print('qsgd' in n[2], 'torch' in sys.modules, 'numpy' in sys.modules)",
    )
    assert listed.stdout == "True False False\n"


def test_a_program_registers_classes_and_functions_by_the_names_that_it_chooses(
    monkeypatch,
):
    class Halved(ct.Clip):
        """Clip, and halve."""

    def always(outputs, labels, kind):
        return 1.0

    for registry, name, value in (
        (FILTERS, "half", Halved),
        (METRICS, "always", always),
    ):
        assert ct.register(registry.group, name)(value) is value
        assert (
            ct.register(registry.group, name)(value) is value
        )  # a cell of a notebook runs again
        assert registry.find(name) is value
        assert registry.name_of(value) == name
        assert registry.added[name] is value
        del registry[name]
        assert name not in registry


@pytest.mark.parametrize(
    ("group", "name", "sentence"),
    [
        (
            "filter",
            "mine",
            "there is no kind 'filter' to register; did you mean 'filters'",
        ),
        (
            "filters",
            "clip",
            "there is a filter 'clip' already; give yours another name",
        ),
        ("filters", "a,b", "'a,b' is no name of a filter; use letters, digits"),
        ("methods", 3, "3 is no name of a method"),
    ],
)
def test_a_name_that_cannot_be_registered_is_refused(group, name, sentence):
    with pytest.raises(InputError, match=sentence):
        ct.register(group, name)(object())


@pytest.mark.parametrize("group", KINDS)
def test_what_comes_with_coterie_lies_where_its_registry_says(group):
    registry = KINDS[group]
    values, problems = registry.importable()
    assert (list(values)[: len(registry.places)], problems) == (
        list(registry.places),
        (),
    )
    if group != "datasets":
        assert {
            name: f"{v.__module__}:{v.__qualname__}"
            for name, v in values.items()
            if name in registry.places
        } == registry.places
        assert all(registry.name_of(value) == name for name, value in values.items())


def test_type_checkers_know_the_public_names():
    spec = importlib.util.spec_from_file_location("stub", ROOT / "docs" / "stub.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.STUB.read_text() == script.stub(), (
        "python docs/stub.py writes it again"
    )
    assert (
        f"from {METHODS['fedprox'].__module__} import FedProx as FedProx\n"
        in script.stub()
    )

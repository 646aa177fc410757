"""Packages of other authors, one for each kind of plug-in: installed by pip, they are named, checked and used as coterie's own are."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ROOT / "examples" / "packages"
pytestmark = pytest.mark.programs

NAMES = {
    "method": "fedalign",
    "personal": "fedas",
    "filter": "qsgd",
    "sampler": "stratified",
    "metric": "mcc",
    "dataset": "rings",
    "engine": "one-by-one",
}
"""The folder of each package, which says its kind, and the name that it brings; `personal` is a method with layers of clients' own."""

PYTHON = {
    "method": 'run = ct.fit("fedalign", clients, model, 2)',
    "personal": 'run = ct.fit("fedas", clients, ct.models.MLP(), 2)',
    "filter": 'run = ct.fit("fedavg", clients, model, 2, filters=["qsgd"])',
    "sampler": 'run = ct.fit("fedavg", clients, model, 2, local=ct.LocalSGD(sampler="stratified"))',
    "metric": 'run = ct.fit("fedavg", clients, model, 2, settings=ct.RunSettings(metrics=("mcc",)))',
    "dataset": 'run = ct.fit("fedavg", "rings", model, 2)',
    "engine": 'run = ct.fit("fedavg", clients, model, 2, engine="one-by-one")',
}
TOML = {
    "method": '[[methods]]\nname = "fedalign"\npriority = ["cleveland"]\n',
    "personal": '[model]\nname = "mlp"\n[[methods]]\nname = "fedas"\nweight = 0.5\n',
    "filter": '[[filters]]\nname = "qsgd"\nlevels = 15\n',
    "sampler": '[local]\nsampler = "stratified"\n',
    "metric": '[run]\nmetrics = ["mcc"]\n',
    "dataset": '[data]\nname = "rings"\nrows = 40\n',
    "engine": '[engine]\nname = "one-by-one"\n',
}
COMMAND = {
    "method": ["--methods", "fedalign", "--set", "fedalign.priority=cleveland"],
    "personal": ["--methods", "fedas", "--model", "mlp"],
    "filter": ["--set", "filters=qsgd"],
    "sampler": ["--set", "local.sampler=stratified"],
    "metric": ["--metrics", "mcc"],
    "dataset": ["--set", "data.rows=40"],
    "engine": ["--engine", "one-by-one"],
}
each_kind = pytest.mark.parametrize("kind", NAMES)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder into which pip has installed all packages."""
    folder = tmp_path_factory.mktemp("packages")
    sources = shutil.copytree(
        PACKAGES, folder / "sources"
    )  # a build leaves files beside its source
    target = folder / "target"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-build-isolation",
    ]
    subprocess.run(
        [*pip, "--no-deps", "--target", target, *(sources / kind for kind in NAMES)],
        check=True,
    )
    return target


@pytest.fixture
def python(installed, tmp_path):
    """Run Python in an empty folder where the packages are installed."""

    def run(*arguments):
        path = os.pathsep.join([str(installed), str(ROOT / "src")])
        ended = subprocess.run(
            [sys.executable, *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": path}, cwd=tmp_path, capture_output=True, text=True,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    return run


def columns(folder):
    """The columns of the results of a run."""
    return set(json.loads((folder / "summary.json").read_text(encoding="utf-8"))[0])


@each_kind
def test_a_package_is_one_module_beside_its_pyproject(kind):
    files = sorted(p.name for p in (PACKAGES / kind).iterdir() if p.is_file())
    assert [p for p in files if p != "pyproject.toml"] == [
        p for p in files if p.endswith(".py")
    ]
    assert len(files) == 2


def test_a_method_with_layers_of_clients_own_needs_public_names_alone():
    tree = ast.parse((PACKAGES / "personal" / "fedas.py").read_text(encoding="utf-8"))
    modules = set[str]()
    for node in tree.body:
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add(str(node.module))
    # Of coterie the package alone, so public names, and what Python and torch bring.
    assert modules <= {"collections.abc", "typing", "torch", "coterie"}


@each_kind
def test_show_explains_what_a_package_brings(kind, python):
    described = json.loads(python("-m", "coterie", "show", NAMES[kind], "--json"))
    assert described["text"]
    assert (
        all(field["explanation"] for field in described["fields"]) or kind == "dataset"
    )


@each_kind
def test_the_contract_of_its_kind_takes_it(kind, python):
    check = "method" if kind == "personal" else kind
    assert python(
        "-c", f"import coterie.testing as t; print(t.check_{check}({NAMES[kind]!r}))"
    )


@each_kind
def test_python_takes_its_name(kind, python):
    setup = 'import coterie as ct; clients, model = ct.data.load("heart-disease"), ct.models.Logistic(); '
    assert python("-c", setup + PYTHON[kind] + "; print(run)")


@each_kind
def test_a_file_takes_its_name(kind, python, tmp_path):
    tables = TOML[kind]
    if "[data]" not in tables:
        tables = '[data]\nname = "heart-disease"\n' + tables
    if "[[methods]]" not in tables:
        tables += '[[methods]]\nname = "fedavg"\n'
    (tmp_path / "own.toml").write_text(tables, encoding="utf-8")
    python(
        "-m",
        "coterie",
        "run",
        "own.toml",
        "--set",
        "run.rounds=2",
        "--set",
        "run.seeds=1",
        "--out",
        "run",
    )
    saved = (tmp_path / "run" / "experiment.toml").read_text(encoding="utf-8")
    assert f'"{NAMES[kind]}"' in saved
    assert ("mcc" in columns(tmp_path / "run")) == (kind == "metric")


@each_kind
def test_the_command_takes_its_name(kind, python, tmp_path):
    data = "rings" if kind == "dataset" else "heart-disease"
    methods = [] if "--methods" in COMMAND[kind] else ["--methods", "fedavg"]
    python(
        "-m",
        "coterie",
        "compare",
        data,
        *methods,
        *COMMAND[kind],
        "--rounds",
        "2",
        "--seeds",
        "1",
        "--out",
        "run",
    )
    assert (tmp_path / "run" / "summary.json").is_file()

"""Rules that hold for the whole source: who imports whom, what `import coterie` costs, and no global seeding."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from benchmarks.rooms import (
    FILES,
    MODULES,
    SOURCE,
    arrows,
    imports,
    name_of,
    room,
    rooms,
)

from coterie.cli.catalogue import entries
from mutants import declared, mutated

LEVELS = [
    {"base"},
    {"config"},
    {"solvers", "theory"},
    {"contract"},
    {"compute"},
    {"algorithms", "attacks", "data", "filters", "models", "samplers"},
    {"engines"},
    {"run"},
    {"report"},
    {"study"},
    {"cli", "__main__"},
    {"sites"},
]
"""A room imports from its own level and from those before it; whatever is not named is above all of them."""

ONLY = {
    "solvers": {"solvers"},
    "theory": {"theory"},
    "engines": {"base", "config", "contract", "compute", "engines"},
    "report": {
        "report",
        "base.errors",
        "base.system",
        "base.metric_names",
        "base.spelling",
        "compute.boosted",
        "compute.outcomes",
        "compute.survival",
        "base.files",
        "run.files",
    },
}
"""Rooms that know less than their level would let them: solvers and theory no federated learning, engines neither data nor methods, and
reports the files of a run."""


def level(area: str) -> int:
    return next((i for i, names in enumerate(LEVELS) if area in names), len(LEVELS))


def test_the_levels_are_found():
    seen = {room(name_of(f)) for f in FILES}
    assert {
        "solvers",
        "base",
        "config",
        "contract",
        "compute",
        "algorithms",
        "data",
        "models",
        "engines",
        "run",
        "study",
        "sites",
        "cli",
        "report",
    } <= seen
    assert any(imports(f) for f in FILES if room(name_of(f)) == "compute")


def may_import(path: Path, name: str) -> bool:
    """Whether a file may import this module."""
    mine, theirs = room(name_of(path)), room(name)
    if (
        name == "coterie"
    ):  # its version; the names that it offers are imported where they are asked for
        return True
    if (
        mine == theirs == "algorithms" and path.name != "__init__.py"
    ):  # algorithms do not import each other
        return False
    allowed = ONLY.get(mine)
    return level(theirs) <= level(mine) and (
        allowed is None or bool({theirs, name.removeprefix("coterie.")} & allowed)
    )


def test_imports_point_downwards():
    files = [path for path in FILES if path != SOURCE / "__init__.py"]
    assert [
        f"{path}:{line}: must not import {name}"
        for path in files
        for name, line in imports(path)
        if not may_import(path, name)
    ] == []


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("contract/task.py", "coterie.run.fit"),
        ("engines/workers.py", "coterie.data"),
        ("report/html.py", "coterie.contract.task"),
        ("algorithms/fedavg.py", "coterie.algorithms.fedprox"),
    ],
)
def test_an_import_that_points_elsewhere_is_found(file, name):
    assert not may_import(SOURCE / file, name)


def test_only_the_room_of_sites_imports_it():
    elsewhere = [path for path in FILES if room(name_of(path)) != "sites"]
    importing = []
    for path in elsewhere:
        for name, line in imports(path):
            if room(name) == "sites":
                importing.append(f"{path}:{line} imports {name}")
    assert importing == []


def test_a_run_its_report_and_its_command_load_nothing_of_sites():
    code = """import sys
sys.modules["coterie.sites"] = None  # whoever imports it now has an error
import coterie as ct
ct.fit("fedavg", "heart-disease", rounds=1)
import coterie.report.html, coterie.study.compare, coterie.cli.show, coterie.cli.present"""
    assert "torch" in modules_after(code)


# ---- circles


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other, by whatever detour: the strongly connected components of more than one."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            fresh = graph.get(waiting.pop(), set()) - seen
            seen |= fresh
            waiting += fresh
        return seen

    reach = {name: reached(name) for name in graph}
    groups = {
        frozenset(o for o in reach[name] if name in reach.get(o, ())) for name in graph
    }
    return sorted(sorted(group) for group in groups if len(group) > 1)


def test_circles_are_found():
    assert circles(
        {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a", "e"}, "e": set()}
    ) == [["a", "b", "c"]]


def test_no_modules_import_each_other_not_even_for_types():
    assert (
        circles(
            {
                name: {n for n, _ in imports(path)} - {name}
                for name, path in MODULES.items()
            }
        )
        == []
    )


def test_no_rooms_import_each_other():
    found = arrows()
    assert (
        circles(
            {name: {other for one, other in found if one == name} for name in rooms()}
        )
        == []
    )


def test_the_design_names_every_room():
    text = (SOURCE.parents[1] / "docs" / "design.md").read_text()
    folders = {
        path.relative_to(SOURCE).parts[0] for path in FILES if path.parent != SOURCE
    }
    assert [name for name in sorted(folders) if f"`{name}/`" not in text] == []


HEAVY = (
    "pandas",
    "scipy",
    "sklearn",
    "rich",
    "safetensors",
    "pyarrow",
    "datasets",
    "PIL",
    "torchvision",
    "jinja2",
    "matplotlib",
    "mlflow",
    "wandb",
    "tensorboard",
    "tomli_w",
    "ray",
)


def modules_after(code: str) -> set[str]:
    command = f"import sys\n{code}\nprint(*{{m.split('.')[0] for m in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", command],
        env={"PYTHONPATH": str(SOURCE.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def test_import_coterie_imports_neither_torch_nor_anything_heavy():
    loaded = modules_after("import coterie as ct; ct.__version__, dir(ct)")
    assert "coterie" in loaded
    assert not loaded & {"torch", "numpy", *HEAVY}


@pytest.mark.parametrize(
    "path",
    [f for f in FILES if room(name_of(f)) == "config"],
    ids=lambda path: path.stem,
)
def test_what_is_declared_needs_neither_torch_nor_numpy(path):
    assert not modules_after(f"import {name_of(path)}") & {"torch", "numpy", *HEAVY}


@pytest.mark.in_turn(but=("compare", "site approve"))
@pytest.mark.parametrize(
    "command",
    [
        "",
        "compare",
        "run",
        "check",
        "show",
        "site approve",
        "deploy",
        "predict",
        "report",
    ],
)
def test_help_reads_the_declarations_without_torch(command):
    code = f"""import contextlib, io
from coterie.cli.main import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit): main([*{command!r}.split(), "--help"])"""
    assert not modules_after(code) & {"torch", "numpy", *HEAVY}


def test_using_every_public_name_needs_torch_and_numpy_only():
    loaded = modules_after(
        "import coterie as ct; [getattr(ct, n) for n in ct.__all__]; ct.models.Logistic, ct.metrics.auc;"
        "ct.data.load('heart-disease'); ct.data.load('mean-estimation', samples=2, test=0)"
    )
    assert {"torch", "numpy"} <= loaded
    assert not loaded & set(HEAVY)


def test_a_report_needs_no_torch():
    assert "torch" not in modules_after(
        "import coterie.report.html, coterie.report.table"
    )


def test_public_names_are_those_that_are_offered():
    import coterie as ct

    for name in ct.__all__:
        assert getattr(ct, name) is not None
    assert sorted(ct.__all__) == dir(ct)
    with pytest.raises(
        AttributeError, match="module 'coterie' has no attribute 'FedAvgg'"
    ):
        _ = ct.FedAvgg


# ---- randomness has a name

NOISE = SOURCE / "base" / "rng.py"
"""The one file that touches the global generators (of torch, numpy and Python): it seeds them by name and puts them back."""
ITS_CALLS = ("generator.manual_seed",)
GLOBAL_GENERATORS = (
    "torch.default_generator",
    "np.random.mtrand._rand",
    "random._inst",
)

NAMED_GENERATORS = ("default_rng", "Generator", "Philox", "PCG64", "SeedSequence")
TORCH_DRAWS = {
    f"torch.{n}"
    for n in (
        "rand",
        "randn",
        "randperm",
        "randint",
        "bernoulli",
        "multinomial",
        "normal",
    )
}


def seedings(path: Path) -> list[str]:
    """Calls in code (not in docstrings) that seed a global generator or draw from one."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        called = ast.unparse(node.func)
        last = called.split(".")[-1]
        own = last == "manual_seed" and called.startswith("torch.Generator(")
        seeds = last in ("manual_seed", "manual_seed_all") or called == "torch.seed"
        legacy = (
            called.startswith(("random.", "np.random."))
            and last not in NAMED_GENERATORS
        )
        draws = called in TORCH_DRAWS and "generator" not in {
            k.arg for k in node.keywords
        }
        if (seeds and not own) or legacy or draws:
            found.append(called)
    return found


def test_no_global_seeding_and_no_unnamed_draws():
    seeding = {path: calls for path in FILES if (calls := seedings(path))}
    assert seeding == {NOISE: list(ITS_CALLS)}
    for path in FILES:
        text = path.read_text()
        assert all((name in text) == (path == NOISE) for name in GLOBAL_GENERATORS), (
            path
        )
        if path != NOISE:
            assert "np.random.seed" not in text, path
            assert "\nimport random\n" not in text, path


def test_the_search_for_seeding_finds_it(tmp_path):
    bad = tmp_path / "bad.py"
    lines = [
        "torch.manual_seed(0)",
        "np.random.seed(1)",
        "torch.randn(3)",
        "np.random.rand(2)",
        "random.random()",
        "torch.cuda.manual_seed_all(1)",
    ]
    for line in lines:
        bad.write_text(line)
        assert len(seedings(bad)) == 1, line
    bad.write_text(
        '"""torch.manual_seed(0)"""\ntorch.Generator().manual_seed(1)\ntorch.randn(3, generator=g)\nnp.random.default_rng(0)\n'
    )
    assert seedings(bad) == []


# ---- methods


@pytest.mark.parametrize(
    "path",
    [f for f in FILES if f.parent == SOURCE / "algorithms"],
    ids=lambda p: name_of(p),
)
def test_a_method_has_its_header(path):
    if path.name == "__init__.py":
        return
    text = path.read_text()
    header = ast.get_docstring(ast.parse(text)) or ""
    assert "\nLaws:\n- " in header
    assert not [
        n
        for n in ast.walk(ast.parse(text))
        if isinstance(n, ast.Call) and ast.unparse(n.func) == "super"
    ]


# ---- tests know the point of each method


@pytest.mark.parametrize("entry", entries().values(), ids=lambda entry: entry.name)
def test_a_method_has_a_test_file_with_two_mutants_of_what_is_there(entry):
    """`make mutants` runs them."""
    path = Path("tests", "methods", f"test_{entry.module.rpartition('.')[2]}.py")
    assert (SOURCE.parents[1] / path).is_file()
    own = [mutant for mutant in declared() if mutant.method == entry.name]
    assert len(own) >= 2
    for mutant in own:
        assert mutant.tests == path
        assert mutated(mutant)


def test_mutants_are_of_methods_that_there_are():
    assert {mutant.method for mutant in declared()} == set(entries())

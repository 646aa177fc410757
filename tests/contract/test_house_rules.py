"""Rules that hold for the whole source: who imports whom, what `import coterie` costs, and no global seeding."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "coterie"
FILES = sorted(SOURCE.rglob("*.py"))

LEVELS = [
    {"solvers"},
    {"core"},
    {"algorithms", "attacks", "data", "models"},
    {"engines"},
    {"report", "run"},
    {"sites"},
    {"cli", "__main__"},
]
"""A module imports from its own level and from those before it; whatever is not named is above all of them."""


def area(dotted: str) -> str:
    return dotted.split(".")[1] if "." in dotted else ""


def level(area: str) -> int:
    return next((i for i, names in enumerate(LEVELS) if area in names), len(LEVELS))


def imports(path: Path) -> list[tuple[str, int]]:
    """Modules of coterie that a file imports anywhere, by full name, with their line."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            found.append((node.module or "", node.lineno))
            found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return [
        (name, line)
        for name, line in found
        if name.split(".")[0] == "coterie" and name not in ("coterie", "coterie.__version__")
    ]


def name_of(path: Path) -> str:
    return ".".join(("coterie", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")


def test_the_levels_are_found():
    seen = {area(name_of(f)) for f in FILES}
    assert {"solvers", "core", "algorithms", "data", "models", "engines", "run", "sites", "cli"} <= seen
    assert any(imports(f) for f in FILES if area(name_of(f)) == "core")


@pytest.mark.parametrize("path", [f for f in FILES if f != SOURCE / "__init__.py"], ids=lambda p: name_of(p))
def test_imports_point_downwards(path):
    mine = area(name_of(path))
    for name, line in imports(path):
        theirs = area(name)
        assert level(theirs) <= level(mine), f"{path}:{line}: {mine} must not import {name}"
        if mine == "solvers":
            assert theirs == "solvers", f"{path}:{line}: solvers know nothing of federated learning"
        if mine == "algorithms" and path.name != "__init__.py":
            assert theirs != "algorithms", f"{path}:{line}: algorithms do not import each other"


HEAVY = (
    "pandas",
    "scipy",
    "sklearn",
    "plotly",
    "rich",
    "safetensors",
    "pyarrow",
    "datasets",
    "jinja2",
    "matplotlib",
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


def test_using_every_public_name_needs_torch_and_numpy_only():
    loaded = modules_after(
        "import coterie as ct; [getattr(ct, n) for n in ct.__all__]; ct.data.from_tensors, ct.models.Logistic"
    )
    assert {"torch", "numpy"} <= loaded
    assert not loaded & set(HEAVY)


def test_public_names_are_those_that_are_offered():
    import coterie as ct

    for name in ct.__all__:
        assert getattr(ct, name) is not None
    assert sorted(ct.__all__) == dir(ct)
    with pytest.raises(AttributeError, match="module 'coterie' has no attribute 'FedAvgg'"):
        _ = ct.FedAvgg


# ---- randomness has a name

EXCEPTIONS = {SOURCE / "core" / "cohort.py": 1, SOURCE / "models.py": 1, SOURCE / "core" / "modules.py": 1}
"""Building a model (also by importing the user's file) and training one with random layers (decisions.md) seed torch's global
generator inside `fork_rng`."""


NAMED_GENERATORS = ("default_rng", "Generator", "Philox", "PCG64", "SeedSequence")
TORCH_DRAWS = {f"torch.{n}" for n in ("rand", "randn", "randperm", "randint", "bernoulli", "multinomial", "normal")}


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
        legacy = called.startswith(("random.", "np.random.")) and last not in NAMED_GENERATORS
        draws = called in TORCH_DRAWS and "generator" not in {k.arg for k in node.keywords}
        if (seeds and not own) or legacy or draws:
            found.append(called)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: name_of(p))
def test_no_global_seeding_and_no_unnamed_draws(path):
    allowed = ["torch.default_generator.manual_seed"] * EXCEPTIONS.get(path, 0)
    assert seedings(path) == allowed
    if allowed:
        assert "fork_rng(" in path.read_text()
    text = path.read_text()
    assert "np.random.seed" not in text
    assert "\nimport random\n" not in text


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


# ---- size

LONGEST_ALGORITHM, LONGEST_FUNCTION = 200, 60


@pytest.mark.parametrize("path", [f for f in FILES if f.parent == SOURCE / "algorithms"], ids=lambda p: name_of(p))
def test_a_method_is_short_and_has_its_header(path):
    if path.name == "__init__.py":
        return
    text = path.read_text()
    header = ast.get_docstring(ast.parse(text)) or ""
    assert "Laws (tests/laws)" in header
    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)]
    assert max(f.end_lineno - f.lineno + 1 for f in functions) <= LONGEST_FUNCTION
    assert not [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call) and ast.unparse(n.func) == "super"]

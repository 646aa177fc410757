"""Documents cannot rot: code in the README runs, links lead somewhere, and what is measured was written by a program."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import re
import runpy
import shlex
import textwrap
import tomllib
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
WRITTEN = [
    page
    for folder in ("", "tutorials", "howto", "explanation", "reference")
    for page in sorted((ROOT / "docs" / folder).glob("*.md"))
]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *WRITTEN]
GENERATED = ("methods/", "presets/", "commands/", "reference/api/", "measured/")
SERVICES = (
    "https://download.pytorch.org/whl/cpu",
    "https://nvflare.readthedocs.io",
    "http://localhost:",
)
SESSION = re.compile(r"^```console\n.*?^```$", re.M | re.S)
BLOCKS = re.findall(
    r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S
)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_python_in_the_readme_runs(number, capsys, tmp_path):
    # A file, since a task is found again by its module, and dataclasses look their module up.
    file = tmp_path / f"readme_{number}.py"
    file.write_text(BLOCKS[number], encoding="utf-8")
    from coterie.base.modules import load_object

    assert load_object(f"{file}:ct").__version__
    if number == 0:
        assert "'switzerland': 0." in capsys.readouterr().out


def not_replayed(page):
    """The text of a page without the sessions that `test_site.py` runs again."""
    text = page.read_text(encoding="utf-8")
    return SESSION.sub("", text)


def commands(page):
    """Every command on a page, in code blocks and within sentences; a name such as `coterie check` alone is none."""
    from coterie.cli.commands import COMMANDS

    text = not_replayed(page)
    names = "|".join({name.split()[0] for name in COMMANDS})
    found = re.findall(rf"^(?: {{4}}|\$ )?(coterie (?:{names}) .*)$", text, re.M)
    found += [
        " ".join(span.split())
        for span in re.findall(rf"`(coterie (?:{names})\s[^`]*)`", text)
    ]
    each = [one for line in found for one in re.split("; (?=coterie )", line)]
    return [
        one
        for one in each
        if one.removeprefix("coterie ") not in COMMANDS and "..." not in one
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_command_on_a_page_is_one_that_coterie_takes(page):
    from coterie.cli.options import build_parser
    from coterie.cli.settings import tables_of_command
    from coterie.config.registry import DATASETS
    from coterie.run.experiment import Experiment

    parser = build_parser()
    for command in commands(page):
        given = parser.parse_args(shlex.split(command, comments=True)[1:])
        assert given.command.split()[0] == shlex.split(command)[1]
        if getattr(given, "methods", None) and given.data in DATASETS:
            Experiment.from_tables(tables_of_command(given), command)


def test_commands_are_found_in_blocks_lists_and_sentences():
    assert "coterie predict runs/heart --client switzerland new.csv" in commands(
        ROOT / "README.md"
    )
    assert "coterie compare nhefs" in commands(ROOT / "docs" / "index.md")
    assert "coterie show top-k" in commands(ROOT / "docs" / "howto" / "compress.md")
    assert sum(len(commands(page)) for page in PAGES) > 50


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_settings_on_a_page_are_keys_that_coterie_knows(page, tmp_path):
    from coterie.run.experiment import Experiment
    from coterie.run.tables import preset
    from coterie.sites.plan import read_plan
    from coterie.sites.settings import read_settings

    readers = {"[deploy]": read_plan, "[site]": read_settings}
    for block in re.findall(r"(?:^ {4,}.*\n|^\n(?= {4}))+", not_replayed(page), re.M):
        tables = textwrap.dedent(block).strip()
        reads = next(
            (reader for head, reader in readers.items() if head in tables.splitlines()),
            None,
        )
        if reads:
            (tmp_path / "read.toml").write_text(tables, encoding="utf-8")
            assert reads(tmp_path / "read.toml") is not None
        elif re.match(r"\[\[?\w+\]\]?$", tables, re.M):
            settings = tomllib.loads(tables)
            # Some default methods send what no filter changes, so a plan with filters names its methods.
            base = preset("heart-disease")
            if "filters" in settings:
                base = {k: v for k, v in base.items() if k not in ("tune", "others")}
                base["methods"] = [{"name": "fedavg"}]
            assert Experiment.from_tables(base | settings, page.name).methods


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_python_within_a_sentence_names_what_there_is(page):
    import coterie as ct

    def named(expression):
        first, *rest = ast.unparse(expression).split(".")
        return reduce(getattr, rest, ct) if first == "ct" else None

    for span in re.findall(r"`(ct\.[^`]*)`", not_replayed(page)):
        for node in ast.walk(ast.parse(re.sub(r",? ?\.\.\.,? ?", "", span))):
            if isinstance(node, ast.Attribute):
                assert named(node) is not None or not ast.unparse(node).startswith(
                    "ct."
                )
            elif isinstance(node, ast.Call) and (callee := named(node.func)):
                given = inspect.signature(callee).bind_partial(
                    *node.args, **{k.arg: k.value for k in node.keywords}
                )
                assert len(given.arguments) <= len(node.args) + len(node.keywords)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_to_files_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    local = [
        t
        for t in targets
        if "://" not in t and not t.removeprefix("../").startswith(GENERATED)
    ]
    assert [t for t in local if not (page.parent / t).exists()] == []


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs" / "explanation").glob("*.md")), ids=lambda p: p.stem
)
def test_the_numbers_of_an_explanation_are_what_its_lines_print(page):
    blocks = re.findall(
        r"^```pycon\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S
    )
    examples = doctest.DocTestParser().get_doctest(
        "\n".join(blocks), {}, page.name, str(page), 0
    )
    printed: list[str] = []
    assert doctest.DocTestRunner().run(examples, out=printed.append).failed == 0, (
        "".join(printed)
    )
    assert page.stem in ("frameworks", "contribution") or examples.examples


def test_every_path_that_a_page_an_example_or_a_docstring_names_exists():
    named = (
        r"(?<![\w./-])((?:docs|examples|tests|src|benchmarks|experiments)/[\w/.-]*\w)"
    )
    sources = [
        file
        for folder in ("src/coterie", "examples")
        for file in (ROOT / folder).rglob("*.py")
    ]
    missing = []
    for file in (*PAGES, *sources):
        for path in re.findall(named, file.read_text(encoding="utf-8")):
            missing += [f"{file.name}: {path}"] * (
                not re.search("NAME|FILE", path) and not (ROOT / path).exists()
            )
    assert missing == []


def test_the_readme_names_every_method():
    from coterie.cli.catalogue import entries

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name for name in entries() if f"`{name}`" not in readme] == []


def test_contributing_is_short():
    assert (
        len((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()) <= 60
    )


def test_every_method_names_its_paper_and_the_papers_table_names_files_that_exist():
    from coterie.cli.catalogue import entries

    without = [name for name, entry in entries().items() if not entry.row()["paper"]]
    assert without == ["local", "centralised"]
    text = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:\w+/)*\w+\.py)`", text))
    assert len(named) > 20
    assert [
        name
        for name in named
        if not any((ROOT / folder / name).exists() for folder in ("src/coterie", ""))
    ] == []


def test_no_absolute_path_of_a_machine_is_tracked():
    found = []
    for folder in ("src", "tests", "examples", "benchmarks", "experiments", "docs"):
        for file in (ROOT / folder).rglob("*"):
            if file.suffix in {".py", ".md", ".toml", ".j2", ".sh"} and file != Path(
                __file__
            ):
                hits = re.findall(
                    r"(?<![\w.])/(?:work|root|home)/", file.read_text(encoding="utf-8")
                )
                found += [str(file)] * bool(hits)
    assert found == []


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The generated pages, by name; needs the extra `docs`."""
    pytest.importorskip("sphinx")
    folder = tmp_path_factory.mktemp("docs")
    written = runpy.run_path(str(ROOT / "docs" / "pages.py"))["write_pages"](folder)
    return {
        file.relative_to(folder).as_posix(): file.read_text(encoding="utf-8")
        for file in written
    }


def test_every_method_preset_and_command_has_a_page(pages):
    from coterie.cli.catalogue import entries
    from coterie.cli.commands import COMMANDS

    presets = [
        file.stem
        for file in (ROOT / "src" / "coterie" / "run" / "presets").glob("*.toml")
    ]
    needed = [f"methods/{name}.md" for name in entries()]
    needed += [f"presets/{name}.md" for name in presets]
    needed += [f"commands/{name.replace(' ', '-')}.md" for name in COMMANDS]
    assert [name for name in needed if name not in pages] == []


def test_every_public_name_has_a_page_that_shows_no_machinery(pages):
    import coterie as ct

    named = {Path(page).stem for page in pages if page.startswith("reference/api/")}
    modules = {
        "attacks",
        "data",
        "metrics",
        "models",
        "report",
        "solvers",
        "testing",
        "theory",
    }
    assert set(ct.__all__) - {"__version__"} - modules <= named
    assert {
        "data.from_tensors",
        "attacks.IPM",
        "solvers.mirror.entropic_descent",
    } <= named
    assert "settings: RunSettings = RunSettings()" in pages["reference/api/fit.md"]
    assert "    *,\n    engine: EngineSpec" in pages["reference/api/fit.md"]
    assert ") -> Run\n```" in pages["reference/api/fit.md"]


def test_the_page_of_a_function_says_what_it_returns(pages):
    assert "**Returns**\n\nThe run: " in pages["reference/api/fit.md"]
    assert (
        "**Returns**\n\n[`Clients`](Clients.md)"
        in pages["reference/api/data.from_tensors.md"]
    )
    assert "**Returns**\n\n`list[Index]`" in pages["reference/api/data.iid.md"]
    assert (
        "**Returns**\n\nThe comparison. Its `experiment.toml` says"
        in pages["reference/api/compare.md"]
    )


def test_what_a_class_has_beside_its_parameters_is_an_attribute(pages):
    parameters, _, attributes = pages["reference/api/MeritFed.md"].partition(
        "**Attributes**"
    )
    assert "- **`targets`** (`str | tuple[str, ...]`" in parameters
    assert "- **`needs`**: " in attributes
    assert "**Attributes**" not in pages["reference/api/Steps.md"]


def test_what_is_wrong_with_a_page_of_the_reference_is_said():
    reference = runpy.run_path(str(ROOT / "docs" / "reference.py"))

    def wrong(count: int, rule: Any = print) -> None:
        """Show Rule(1) ** 2 to nobody.

        >>> wrong(1)  # doctest: +SKIP
        """

    entry = reference["Entry"]("wrong", "", wrong)
    text = reference["page"](entry, [entry], str)
    assert set(reference["problems"]([entry], {"wrong": text})) == {
        "ct.wrong is in no group of docs/reference.py",
        "ct.wrong shows '**'",
        "ct.wrong shows 'Rule('",
        "ct.wrong does not say what count means",
        "ct.wrong does not say what rule means",
        "ct.wrong has an example that is not run",
    }

    def bare() -> None:
        """Do nothing."""

    entry = reference["Entry"]("bare", "Run", bare)
    page = reference["page"](entry, [entry], str)
    assert reference["problems"]([entry], {"bare": page}) == ["ct.bare has no example"]


def test_every_example_of_the_reference_is_run():
    """Those that doctest does not find, of types that are assignments and of tasks, are run here."""
    reference = runpy.run_path(str(ROOT / "docs" / "reference.py"))
    finder, runner, parser = (
        doctest.DocTestFinder(),
        doctest.DocTestRunner(verbose=False),
        doctest.DocTestParser(),
    )
    found: dict[str, set[str]] = {}
    ran = []
    for entry in reference["documented"]():
        name = reference["place_of"](entry).partition(":")[0]
        if name not in found:
            module = importlib.import_module(name)
            found[name] = {
                re.sub(r"\s+", " ", test.docstring)
                for test in finder.find(module, name)
            }
        example = re.sub(r"\s+", " ", entry.docstring.example)
        if not any(example in text for text in found[name]):
            scope = {"__name__": "__main__"}
            runner.run(
                parser.get_doctest(
                    f"{entry.docstring.example}\n", scope, entry.name, None, None
                )
            )
            ran.append(entry.name)
    assert runner.summarize(verbose=False).failed == 0
    assert {"Update", "Gradient", "metrics.evaluate"} <= set(ran)
    assert len(ran) < 10


def test_the_page_of_a_method_names_each_field_with_what_it_allows(pages):
    from coterie.cli.catalogue import entries
    from coterie.config.schema import options_of

    for name, entry in entries().items():
        page = pages[f"methods/{name}.md"]
        parts = (
            "**Use it when**",
            "**Choose another when**",
            "```{math}",
            "## Fields",
            "## Example",
            "## Laws",
        )
        assert [part for part in parts if part not in page] == [], name
        assert not re.search(r"^[A-Z]\w+: *$", page, re.M), (
            name
        )  # a word with nothing behind it
        assert [
            o.name for o in options_of(entry.cls) if f"| `{o.name}` |" not in page
        ] == []
    assert "| `mu` | `0.1` | a number \\>= 0 |" in pages["methods/fedprox.md"]


@pytest.mark.parametrize(
    ("plain", "formulas"),
    [
        (
            "x = theta^t, the client's gap_k",
            r"$x =\theta^t$, the client's $\mathrm{gap}_k$",
        ),
        ("md_step = alpha and a class", r"`md_step` = $\alpha$ and a class"),
        (
            "V = sum_i ||g_i - g_I||^2; lr is",
            r"$V =\sum_i \|g_i -g_I \|^2$; $\mathrm{lr}$ is",
        ),
        (
            "f_i(y) - <dual_i, y> + `a_i`",
            r"$f_i (y )-\langle \mathrm{dual}_i ,y \rangle$ + `a_i`",
        ),
        ("x <- x + mean(", r"$x \leftarrow x$ + mean("),
    ],
)
def test_symbols_in_plain_text_become_formulas(plain, formulas):
    pytest.importorskip("docutils", reason="the pages are built by sphinx")
    typeset = runpy.run_path(str(ROOT / "docs" / "symbols.py"))["typeset"]
    assert typeset(plain, str) == formulas


def test_symbols_of_every_method_are_typeset(pages):
    for name, page in pages.items():
        if name.startswith("methods/") and "Symbols: " in page:
            line = page.partition("Symbols: ")[2].partition("\n\n")[0]
            plain = re.sub(r"\$[^$]*\$|`[^`]*`", "", line)
            assert "$" in line, name
            assert re.findall(r"\w_\w|\^|\bdelta\b", plain) == [], name


@pytest.mark.parametrize("name", ["meritfed", "varsel", "maxfl", "isfl"])
def test_the_page_that_explains_a_method_has_a_picture_of_its_setting(
    name, monkeypatch
):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    pictures = runpy.run_path(str(ROOT / "docs" / "settings_pictures.py"))
    plot = pictures["SETTINGS"][name]()
    assert f"<!-- setting {name} -->" in (
        ROOT / "docs" / "explanation" / f"{name}.md"
    ).read_text(encoding="utf-8")
    assert len({tuple(values) for values in plot.curves.values()}) == 3
    drawn = pictures["setting_picture"](name)
    assert all(f">{curve}</text>" in drawn for curve in plot.curves)
    assert "nan" not in drawn


EXPLAINED = {
    "meritfed": ("algorithms/meritfed.py",),
    "varsel": ("algorithms/varsel.py", "solvers/variance.py"),
    "maxfl": ("algorithms/maxfl.py", "solvers/appeal.py"),
    "isfl": ("samplers/isfl.py", "solvers/waterfill.py"),
}


def equations(text: str) -> set[int]:
    """Numbers of equations that a text cites: of "Eqs. 4, 7 and 8" and "Eqs. 14 to 17" all of them."""
    cited = re.findall(r"Eqs?\.\s((?:\d+(?:, | and | to )?)+)", " ".join(text.split()))
    ends = [
        (int(first), int(last or first))
        for one in cited
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", one)
    ]
    return {number for first, last in ends for number in range(first, last + 1)}


@pytest.mark.parametrize("name", EXPLAINED)
def test_the_page_that_explains_a_method_has_each_equation_that_its_code_cites(name):
    code = [
        (ROOT / "src" / "coterie" / file).read_text(encoding="utf-8")
        for file in EXPLAINED[name]
    ]
    page = (ROOT / "docs" / "explanation" / f"{name}.md").read_text(encoding="utf-8")
    assert equations("\n".join(code)) - equations(page) == set()
    assert equations("(Eqs. 8 and 13 to 15, Eq. 3)") == {3, 8, 13, 14, 15}


def test_each_link_leads_to_a_paper_whose_title_was_recorded_or_to_a_known_service(
    pages,
):
    recorded = tomllib.loads((ROOT / "docs" / "links.toml").read_text(encoding="utf-8"))
    written = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
    shown, unknown = set(), []
    for page, text in {
        **written,
        **{f"{name}.md": text for name, text in pages.items()},
    }.items():
        words = " ".join(text.split()).casefold()
        for address in re.findall(r"https?://[^\s)>\"'`]+", text):
            titles = [
                title
                for title, place in recorded.items()
                if place == address and title.casefold() in words
            ]
            shown.update((title, address) for title in titles)
            unknown += [f"{page}: {address}"] * (
                not titles and not address.startswith(SERVICES)
            )
    assert unknown == []
    assert recorded.items() - shown == set()
    methods = {
        Path(name).stem: page
        for name, page in pages.items()
        if name.startswith("methods/")
    }
    bare = {name for name, page in methods.items() if "](http" not in page}
    assert bare == {
        "local",
        "centralised",
        "varsel",
        "partial",
        "fixed-effects",
        "cox",
    }  # no paper, none that was published, or only ones without an address of their own


def test_the_oldest_versions_follow_from_the_bounds():
    oldest = runpy.run_path(str(ROOT / "tests" / "oldest.py"))["oldest"]
    assert oldest(["numpy>=1.26", "safetensors>=0.4.3", "ray>=2.60,<3"]) == [
        "numpy==1.26.*",
        "safetensors==0.4.3",
        "ray==2.60.*",
    ]
    with pytest.raises(ValueError, match="no lower bound"):
        oldest(["torch"])


def test_what_git_hosts_and_citation_tools_read_is_yaml_and_of_this_version():
    import yaml

    import coterie

    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == coterie.__version__
    assert citation["authors"] == [{"name": "The coterie developers"}]
    assert f"## [{coterie.__version__}]" in (ROOT / "CHANGELOG.md").read_text(
        encoding="utf-8"
    )
    workflow = yaml.safe_load(
        (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    )
    assert [
        step["run"] for step in workflow["jobs"]["all"]["steps"] if "run" in step
    ] == [".ci/run"]
    forms = [
        yaml.safe_load(f.read_text(encoding="utf-8"))
        for f in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")
    ]
    assert sum("body" in form for form in forms) == 2


@pytest.mark.parametrize("name", ["hospital", "researcher", "own-method"])
def test_the_notebook_of_a_tutorial_has_its_cells_and_what_they_print(name):
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("nbclient")
    page = (ROOT / "docs" / "tutorials" / f"{name}.md").read_text(encoding="utf-8")
    made = runpy.run_path(str(ROOT / "docs" / "notebooks.py"))["cells"](page)
    notebook = nbformat.read(ROOT / "examples" / f"{name}.ipynb", as_version=4)
    assert [cell.source for cell in notebook.cells] == [cell.source for cell in made]
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    for cell in code:
        assert not any(out.output_type == "error" for out in cell.outputs)
        for line in "".join(out.get("text", "") for out in cell.outputs).splitlines():
            assert line.rstrip() in page or line.startswith("Writing"), line


@pytest.mark.programs
def test_a_notebook_of_few_lines(tmp_path, monkeypatch, capsys):
    pytest.importorskip("tensorboard")
    path = ROOT / "examples" / "workbench.py"
    monkeypatch.chdir(tmp_path)
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 40
    comparison = runpy.run_path(str(path))["comparison"]
    said = capsys.readouterr().out
    assert comparison.verdict("switzerland").reason in said
    assert "trees-alone" in said
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "report.html").is_file()
    assert len(list((tmp_path / "logs").glob("*/events*"))) == 9

"""Pages that follow from the code: one per method, preset and command, and one with what was measured."""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import MISSING
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

from coterie.cli.catalogue import Entry, entries, traffic
from coterie.cli.options import build_parser
from coterie.config.registry import DATASETS
from coterie.config.schema import explanations, options_of
from coterie.contract.task import find_task, task_names

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path[:0] = [str(DOCS), str(ROOT)]
import reference  # noqa: E402 - files beside this one
import symbols  # noqa: E402
from benchmarks import measured  # noqa: E402
from experiments import sentences  # noqa: E402

PRESETS = ROOT / "src" / "coterie" / "run" / "presets"
PICTURE, SETTING = (
    re.compile(rf"^<!-- {mark} (\S+) -->$", re.M) for mark in ("picture", "setting")
)
METHODS, OTHERS, NAMES = (
    "<!-- methods -->",
    "<!-- other methods -->",
    "<!-- public names -->",
)
_PIPE = re.compile(r"\\?\|")
SAID = ("Optimises", "Sends", "Memory", "Shows")
NUMBERS = """`d` is the number of parameters of the model, `n` the number of clients that take part. Numbers are
floats of one client in a round. [What leaves a site](../deploy.md#what-leaves-a-site) names every field."""
LINKS = {
    title.casefold(): address
    for title, address in tomllib.loads(
        (DOCS / "links.toml").read_text("utf-8")
    ).items()
}
COLUMNS = 90
"""Width of the help texts of commands."""


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect what this file does to the events of a build."""
    app.connect("builder-inited", lambda app: write_pages(Path(app.srcdir)))
    app.connect("source-read", _complete)
    app.connect(
        "autodoc-process-docstring", _escape_docstring, priority=400
    )  # before napoleon reads the sections
    app.connect(
        "html-page-context", _make_accessible, priority=900
    )  # after the theme has written its menu
    return {"parallel_read_safe": True}


def write_pages(docs: Path) -> list[Path]:
    """Write all generated pages; a page that says the same as before is left alone, so that it is not built again."""
    texts = {
        f"methods/{name}.md": method_page(entry) for name, entry in entries().items()
    }
    texts |= {
        f"presets/{file.stem}.md": preset_page(file)
        for file in sorted(PRESETS.glob("*.toml"))
    }
    texts |= {
        f"commands/{'-'.join(words)}.md": command_page(words, parser)
        for words, parser in commands()
    }
    texts |= {
        f"reference/api/{name}.md": text for name, text in reference_pages().items()
    }
    texts |= {
        f"results/sentences/{name}.md": text for name, text in sentences.pages().items()
    }
    texts["measured/index.md"] = measured.page()
    for name, text in texts.items():
        file = docs / name
        file.parent.mkdir(exist_ok=True, parents=True)
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
    return [docs / name for name in texts]


def reference_pages() -> dict[str, str]:
    """A page per public name and group, by name. Raises `ExtensionError` that lists what is wrong with them."""
    entries = reference.documented()
    texts = {entry.name: reference.page(entry, entries, prose) for entry in entries}
    if wrong := reference.problems(entries, texts):
        raise ExtensionError("\n".join(wrong))
    groups = {
        reference.group_place(g): reference.group_page(g, entries, prose)
        for g in reference.GROUPS
    }
    return texts | groups


# Methods


def method_page(entry: Entry) -> str:
    """The page of a method, from the text of its file and class."""
    cls = entry.cls
    about, _, example = (inspect.getdoc(cls) or "").partition("\n>>> ")
    first = about.partition("\n\n")[0]
    text = Text(entry.text)
    rows = [(word, entry.paragraph(word)) for word in SAID if entry.paragraph(word)]
    parts = [
        f"# {entry.name}",
        prose(f"{entry.summary[:1].upper()}{entry.summary[1:]}."),
        "" if entry.shared else prose(first),
        f"<!-- picture {entry.name} -->",
        f"**Use it when** {prose(entry.paragraph('Use'))}"
        if entry.paragraph("Use")
        else "",
        f"**Choose another when** {prose(entry.paragraph('Avoid'))}"
        if entry.paragraph("Avoid")
        else "",
        f"## Formula\n\n```{{math}}\n{entry.paragraph('Formula')}\n```"
        if entry.paragraph("Formula")
        else "",
        f"Symbols: {symbols.typeset(text.paragraph('Symbols'), prose)}"
        if text.paragraph("Symbols")
        else "",
        f"## What it sends and remembers\n\n{table(('', ''), rows)}",
        NUMBERS,
        f"## Fields\n\n{fields(cls)}",
        f"In a TOML file, with each default written out:\n\n```toml\n{as_toml(entry.name, cls)}\n```",
        f"On the command line: `coterie compare heart-disease --methods local,{entry.name}`.",
        f"## Example\n\n```pycon\n>>> {example.strip()}\n```",
        f"## Differences from the paper\n\n{prose(text.differences)}"
        if text.differences
        else "",
        "## More about it\n\n" + "\n\n".join(map(prose, text.remarks))
        if text.remarks
        else "",
        f"## Laws\n\nEach sentence is a test that runs with every change.\n\n{laws(text.laws)}"
        if text.laws
        else "",
        f"## Source\n\n{prose(entry.paragraph('Papers?'))}\n\nThe whole method is one file: "
        f"`src/{entry.module.replace('.', '/')}.py`."
        if entry.paragraph("Papers?")
        else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def listed() -> str:
    """The table of all methods."""
    rows = [
        (f"[{name}](methods/{name}.md)", prose(entry.summary))
        for name, entry in entries().items()
    ]
    return table(("method", "what it does"), rows)


class Text:
    """The docstring of a method's file, by its parts."""

    def __init__(self, text: str) -> None:
        self._paragraphs = text.split("\n\n")[1:]
        self.differences = self.paragraph("Differences from the papers?")
        self.laws = self.paragraph("Laws")

    def paragraph(self, word: str) -> str:
        """The paragraph that begins with `word: `."""
        found = (p for p in self._paragraphs if re.match(rf"{word}:\s", p))
        return re.sub(rf"^{word}:\s+", "", next(found, ""))

    @property
    def remarks(self) -> list[str]:
        """The paragraphs that belong to no part."""
        words = r"(Papers?|Optimises|Sends|Memory|Shows|Use|Avoid|Formula|Symbols|Differences from the papers?|Laws):\s"
        return [p for p in self._paragraphs if not re.match(words, p)]


def laws(text: str) -> str:
    """The list of laws, each with the test that checks it."""
    found = re.findall(r"^- (.*?):\n\s+(tests/\S+)$", text, re.M | re.S)
    return "\n".join(
        f"- {prose(' '.join(law.split()))}: `{test}`" for law, test in found
    )


def fields(cls: type[Any]) -> str:
    """The table of a method's fields, with what each allows."""
    said = explanations(cls)
    rows = []
    for option in options_of(cls):
        nested = "[settings of local training](../reference/api/LocalSGD.md)"
        allowed = (
            prose(option.rule.allowed)
            if option.rule
            else nested
            if option.name == "local"
            else ""
        )
        default = "" if option.default is MISSING else f"`{option.default!r}`"
        rows.append(
            (
                f"`{option.name}`",
                "" if option.name == "local" else default,
                allowed,
                said.get(option.name, ""),
            )
        )
    return table(
        ("field", "default", "allowed", "meaning"),
        [(*row[:3], prose(row[3])) for row in rows],
    )


def as_toml(name: str, cls: type[Any]) -> str:
    """The table of a method in an experiment's file; a field without a default in TOML is a comment."""
    lines = ["[[methods]]", f'name = "{name}"']
    for option in options_of(cls):
        for key, value in (
            option.spell(option.default).items()
            if option.default is not MISSING
            else ()
        ):
            if option.name != "local":
                lines.append(f"{key} = {_toml(value)}")
    return "\n".join(lines)


def _toml(value: Any) -> str:
    return (
        str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')
    )


# Presets and commands


def preset_page(file: Path) -> str:
    """What `coterie compare NAME` means, as a file."""
    name = file.stem
    text = file.read_text(encoding="utf-8").strip()
    about = (
        f"{DATASETS[name].summary}."
        if name in DATASETS
        else "Your own folder, with one file per client."
    )
    methods = [row["name"] for row in tomllib.loads(text).get("methods", [])]
    linked = ", ".join(f"[{m}](../methods/{m}.md)" for m in methods)
    data = name if name in DATASETS else "my-clients/"
    return (
        f"# {name}\n\n{prose(about)}\n\n`coterie compare {data}` uses these settings. Every key can be set with `--set`.\n\n"
        f"```toml\n{text}\n```\n" + (f"\nMethods: {linked}.\n" if linked else "")
    )


def commands() -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """Every command and command of a command, with its parser."""
    yield from _commands_of(build_parser(), ())


def _commands_of(
    parser: argparse.ArgumentParser, words: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield (*words, name), inner
                yield from _commands_of(inner, (*words, name))


def command_page(words: Iterable[str], parser: argparse.ArgumentParser) -> str:
    """The help of a command, as `coterie COMMAND --help` prints it."""
    parser.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=COLUMNS)  # type: ignore[assignment]
    command = " ".join(("coterie", *words))
    return f"# {command}\n\n```console\n$ {command} --help\n{parser.format_help().rstrip()}\n```\n"


# Text


def prose(text: str) -> str:
    """Plain text with code in backticks and titles of papers in quotes, as Markdown: no other sign has a meaning."""
    pieces = re.split(r"(`[^`]*`)", text)
    escaped = (
        p if p[:1] == "`" else re.sub(r"([\\<>*_\[\]$|{}~#])", r"\\\1", p)
        for p in pieces
    )
    return re.sub(r'"([^"`]+)"', _linked, "".join(escaped))


def _linked(quoted: re.Match[str]) -> str:
    address = LINKS.get(" ".join(quoted[1].split()).casefold())
    return f'["{quoted[1]}"]({address})' if address else quoted[0]


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(
        f"| {' | '.join(_PIPE.sub('&#124;', cell) for cell in row)} |" for row in lines
    )


def _escape_docstring(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Docstrings are plain text with code in backticks; signs that reStructuredText would read otherwise are escaped."""
    example = False
    for i, line in enumerate(lines):
        example = line.lstrip().startswith((">>>", "...")) or (
            example and bool(line.strip())
        )
        if not example:
            pieces = re.split(r"(`[^`]*`)", line)
            lines[i] = "".join(
                p if p[:1] == "`" else re.sub(r"([\\*|]|(?<=\w)_(?!\w))", r"\\\1", p)
                for p in pieces
            )


def _complete(app: Sphinx, page: str, source: list[str]) -> None:
    source[0] = complete(source[0])


def _make_accessible(
    app: Sphinx, page: str, template: str, context: dict[str, Any], tree: Any
) -> None:
    """Code and tables that scroll can be reached by keyboard, headings of the menu have a level, and an empty cell is no header."""
    body = context.get("body", "").replace("<pre>", '<pre tabindex="0">')
    body = re.sub(r'<th class="head[^>]*><p></p></th>', "<td></td>", body)
    context["body"] = body.replace(
        '<div class="table-wrapper', '<div tabindex="0" class="table-wrapper'
    )
    menu = context.get("furo_navigation_tree", "")
    context["furo_navigation_tree"] = menu.replace(
        'role="heading"', 'role="heading" aria-level="2"'
    )


def complete(markdown: str) -> str:
    """Put pictures, the list of methods, or rows of the privacy table for those without one, where a page has the mark."""
    markdown = SETTING.sub(_set, PICTURE.sub(_drawn, markdown))
    if METHODS in markdown:
        markdown = markdown.replace(METHODS, listed())
    if NAMES in markdown:
        markdown = markdown.replace(
            NAMES, reference.index(reference.documented(), prose)
        )
    if OTHERS not in markdown:
        return markdown
    missing = [
        e
        for name, e in entries().items()
        if not re.search(rf"^\| [^|]*`{name}`", markdown, re.M)
    ]
    return markdown.replace(
        OTHERS + "\n", "".join(privacy_row(entry) for entry in missing)
    )


def _drawn(mark: re.Match[str]) -> str:
    from pictures import (
        picture,
    )  # trains the method, which only a page of the site needs

    return f"```{{raw}} html\n{picture(entries()[mark.group(1)])}\n```"


def _set(mark: re.Match[str]) -> str:
    from settings_pictures import setting_picture

    return f"```{{raw}} html\n{setting_picture(mark.group(1))}\n```"


def privacy_row(entry: Entry) -> str:
    """Which fields of which tasks leave a site, from the types of the replies, and what a site is shown, from the header."""
    _ = entry.cls  # its file registers its tasks
    tasks = {
        task.rpartition(":")[2]: find_task(task).reply._fields for task in task_names()
    }
    sent = "; ".join(
        f"`{task}`: {', '.join(f'`{field}`' for field in tasks[task])}"
        for task in traffic(entry.paragraph("Sends"))
    )
    return f"| `{entry.name}` | {sent} | {entry.paragraph('Shows').rstrip('.')} |\n"

"""The reference: a page per public name under the name that its user types, `ct.NAME`, from its signature and docstring."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import cached_property
from types import ModuleType
from typing import Any, NamedTuple

import coterie as ct
from coterie.config.registry import METHODS
from coterie.contract.task import Task

GROUPS: dict[str, tuple[str, ...]] = {
    "Run": ("fit", "compare", "combine", "personalise", "appraise", "RunSettings", "StudySettings", "Contribution", "Evaluation",
        "SecureSums"),
    "Results": ("Run", "Comparison", "report"),
    "Methods": (),
    "Local training": (
        "LocalSGD", "Steps", "Epochs", "Schedule", "RowNoise", "Quadratic", "Sampler", "LipschitzSampler", "ClassShareSampler",
        "UniformClassSampler", "GradientNormSampler",
    ),
    "Data": ("Clients", "Client", "Part", "LabelForm", "data"),
    "Models and metrics": ("models", "Hazards", "Ordered", "metrics"),
    "Engines": ("InProcess", "Ray", "EngineSpec"),
    "Callbacks": ("Callback", "Metrics", "EarlyStopping", "TensorBoard", "MLflow", "WandB"),
    "Filters and attacks": ("Filter", "Passage", "ErrorFeedback", "BF16", "Clip", "GaussianNoise", "Int8", "TopK", "Attack", "attacks"),
    "Write a method": (
        "Method", "task", "Federation", "Cohort", "Personal", "Step", "Layout", "Form", "Update", "OwnModel", "Gradient", "Gap",
        "PerClient", "options", "wire_type", "move", "Rng", "register", "testing",
    ),
    "Solvers": ("solvers",),
    "Theory": ("theory",),
    "Errors": ("CoterieError", "InputError", "RunError"),
}  # fmt: skip
"""Public names as a reader looks for them. Methods come from their registry; a module stands for what it offers."""

METRIC = {
    "outputs": "Outputs of the model for some rows, [rows, ...].",
    "labels": "Labels of these rows, [rows, ...].",
    "kind": "How the outputs are read: binary, classes, multilabel or regression.",
}
"""The parameters of every metric, which is one function of these three."""
SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises")
SIGNS = re.compile(r"Rule\(|<lambda>|<function|0x[0-9a-f]{6}|\b_[A-Z]{3,}\b|\*\*")
"""What no page may show: machinery of coterie, addresses in memory, names of constants, signs of another markup."""


class Entry(NamedTuple):
    """A page of the reference.

    Attributes:
        name: as a user types it behind `ct.`, such as `data.from_tensors`.
        group: of `GROUPS`.
        value: what the name stands for.
    """

    name: str
    group: str
    value: Any

    @property
    def docstring(self) -> Docstring:
        """Of a type that is an assignment, the text that stands below it in the source."""
        if (
            isinstance(self.value, type)
            or inspect.isroutine(self.value)
            or isinstance(self.value, Task)
        ):
            return Docstring(self.value)
        module, _, name = place_of(self).partition(":")
        body = ast.parse(inspect.getsource(importlib.import_module(module))).body
        at = next(
            i
            for i, node in enumerate(body)
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
        )
        below = body[at + 1]
        text = (
            below.value.value
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            else ""
        )
        return Docstring(self.value, inspect.cleandoc(str(text)))


def place_of(entry: Entry) -> str:
    """Return the module and the name there of a public name, `coterie.run.fit:fit`."""
    value = entry.value.function if isinstance(entry.value, Task) else entry.value
    if isinstance(value, type) or inspect.isroutine(value):
        return f"{value.__module__}:{value.__qualname__}"
    return ct._PUBLIC[entry.name]


class Parameter(NamedTuple):
    """A parameter or an attribute, with its type and default as text; no default is an empty text."""

    name: str
    type: str
    default: str
    meaning: str
    keyword: bool = False


class Docstring:
    """A docstring by its parts: what it says, its sections, its examples."""

    def __init__(self, value: Any, text: str | None = None) -> None:
        text = (inspect.getdoc(value) or "") if text is None else text
        text, _, examples = text.partition(">>> ")
        self.example = f">>> {examples.strip()}" if examples else ""
        self.sections: dict[str, str] = {}
        plain: list[str] = []
        for block in re.split(rf"^(?=(?:{'|'.join(SECTIONS)}):\n)", text, flags=re.M):
            head, _, body = block.partition(":\n")
            if head not in SECTIONS:
                plain.append(block)
                continue
            inside, *behind = re.split(r"\n\n(?=\S)", body, maxsplit=1)
            self.sections[head] = (
                inspect.cleandoc(f"\n{inside}") if inside.startswith(" ") else inside
            )
            plain += behind
        self.text = "\n\n".join(part.strip() for part in plain if part.strip())
        self.bases = value.__mro__[1:] if isinstance(value, type) else ()

    @cached_property
    def meanings(self) -> dict[str, str]:
        """What each parameter or attribute means, in this docstring or in a base's; several may share an entry."""
        entries: dict[str, str] = {}
        for base in reversed(self.bases):
            if base.__module__.startswith("coterie."):
                entries |= Docstring(
                    None, inspect.cleandoc(base.__doc__ or "")
                ).meanings
        for head in ("Args", "Attributes"):
            for block in re.split(r"\n(?=\S)", self.sections.get(head, "")):
                names, colon, meaning = block.partition(":")
                if colon:
                    entries |= {
                        name.strip(" *`"): " ".join(meaning.split())
                        for name in names.split(",")
                    }
        return entries


def public() -> Iterator[Entry]:
    """Every public name with its group; a name in no group is in the group ""."""
    group_of = {name: group for group, names in GROUPS.items() for name in names}
    methods = {place.partition(":")[2] for place in METHODS.places.values()}
    for name in sorted(set(ct.__all__) - {"__version__"}):
        value = getattr(ct, name)
        group = "Methods" if name in methods else group_of.get(name, "")
        if not isinstance(value, ModuleType):
            yield Entry(name, group, value)
            continue
        for inner in value.__all__:
            member = getattr(value, inner)
            if isinstance(member, ModuleType):
                yield from (
                    Entry(f"{name}.{inner}.{key}", group, getattr(member, key))
                    for key in member.__all__
                )
            elif inner not in ct.__all__:
                yield Entry(f"{name}.{inner}", group, member)


def documented() -> list[Entry]:
    """The public names that have a page: functions, classes and types; a constant stands on the page of what uses it."""
    return [
        e
        for e in public()
        if callable(e.value) and not isinstance(e.value, type(Callable[..., Any]))
    ]


def plain_type(annotation: Any) -> str:
    """An annotation as a reader would say it: without rules, modules and the callable's arguments."""
    if annotation is inspect.Parameter.empty:
        return ""
    text = (
        annotation
        if isinstance(annotation, str)
        else inspect.formatannotation(annotation)
    )
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        return text
    return ast.unparse(_Plain().visit(tree))


class _Plain(ast.NodeTransformer):
    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """`Annotated[X, ...]` is X, `Callable[...]` is a callable, `PathLike[str]` a path."""
        name = ast.unparse(node.value).rpartition(".")[2]
        if name == "Annotated" and isinstance(node.slice, ast.Tuple):
            return self.visit(node.slice.elts[0])
        if name in ("Callable", "PathLike"):
            return ast.Name("callable" if name == "Callable" else "Path")
        return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """`torch.Tensor` is a Tensor."""
        return node if ast.unparse(node.value) == "nn" else ast.Name(node.attr)


def shown(value: Any) -> str:
    """A default as somebody would write it."""
    if is_dataclass(value) and not isinstance(value, type):
        changed = {
            f.name: getattr(value, f.name)
            for f in fields(value)
            if f.init and not _is_default(f, getattr(value, f.name))
        }
        return f"{type(value).__name__}({', '.join(f'{key}={shown(given)}' for key, given in changed.items())})"
    if callable(value):
        name = getattr(value, "__name__", type(value).__name__)
        return "a function" if name == "<lambda>" else name
    return "{}" if type(value).__name__ == "mappingproxy" else repr(value)


def _is_default(field: Any, value: Any) -> bool:
    default = (
        field.default_factory()
        if field.default_factory is not MISSING
        else field.default
    )
    return default is not MISSING and bool(value == default)


def parameters(value: Any, meanings: dict[str, str]) -> list[Parameter]:
    """The parameters of a function or of a class, with what the docstring says of each."""
    try:
        signature = inspect.signature(
            value if not getattr(value, "_is_protocol", False) else object
        )
    except (TypeError, ValueError):
        return []
    return [
        Parameter(
            {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "") + name,
            plain_type(p.annotation),
            "" if p.default is p.empty else shown(p.default),
            meanings.get(name, "")
            or (
                METRIC.get(name, "") if set(METRIC) <= set(signature.parameters) else ""
            ),
            p.kind is p.KEYWORD_ONLY,
        )
        for name, p in signature.parameters.items()
        if not name.startswith("_")
        and name not in ("self", "cls")
        and p.kind is not p.VAR_KEYWORD
    ]


def returned(value: Any) -> str:
    """The type that a function or a method returns, as a reader would say it; "" for a class, nothing, and what has no page."""
    annotation = (
        ""
        if isinstance(value, type)
        else getattr(value, "__annotations__", {}).get("return", "")
    )
    return (
        ""
        if annotation in ("", "None", None) or str(annotation).startswith("_")
        else plain_type(annotation)
    )


def signature(name: str, listed: list[Parameter], result: str = "") -> str:
    """The call and the type of its result, on one line where it fits."""
    each = [
        f"{p.name}{': ' + p.type if p.type else ''}{' = ' + p.default if p.default else ''}"
        for p in listed
    ]
    first = next((i for i, p in enumerate(listed) if p.keyword), None)
    if first is not None and not any(p.name.startswith("*") for p in listed):
        each.insert(first, "*")
    end = f") -> {result}" if result else ")"
    line = f"{name}({', '.join(each)}{end}"
    return (
        line
        if len(line) <= 88
        else f"{name}(\n" + "".join(f"    {one},\n" for one in each) + end
    )


def page(entry: Entry, entries: list[Entry], prose: Callable[[str], str]) -> str:
    """The page of a public name, as Markdown."""
    parts = [
        f"# ct.{entry.name}",
        *_body(f"ct.{entry.name}", entry.value, entry.docstring, prose),
    ]
    if isinstance(entry.value, type):
        for name, member in members(entry.value):
            parts += [
                f"## {name}",
                *_body(name, member, Docstring(member), prose, bare=True),
            ]
    if entry.group == "Methods":
        label = next(
            name
            for name, place in METHODS.places.items()
            if place.endswith(f":{entry.name}")
        )
        parts.append(
            f"## References\n\n[The page of the method](../../methods/{label}.md) has the paper, the formula and the laws."
        )
    beside = [
        e.name for e in entries if e.group == entry.group and e.name != entry.name
    ][:12]
    parts.append(
        "## See also\n\n" + ", ".join(f"[ct.{name}]({name}.md)" for name in beside)
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _body(
    name: str,
    value: Any,
    text: Docstring,
    prose: Callable[[str], str],
    *,
    bare: bool = False,
) -> Iterator[str]:
    is_called = (
        isinstance(value, type) or inspect.isroutine(value) or isinstance(value, Task)
    )
    listed = parameters(value, text.meanings) if is_called else []
    if is_called:
        yield f"```python\n{signature(name, listed, returned(value))}\n```"
    yield "\n\n".join(map(prose, text.text.split("\n\n")))
    known = {p.name.lstrip("*") for p in listed}
    further = [
        Parameter(key, "", "", said)
        for key, said in text.meanings.items()
        if key not in known
    ]
    for head, those in (
        ("**Parameters**", listed),
        ("**Attributes**" if is_called else "", further),
    ):
        if those and not (bare and not any(p.meaning for p in those)):
            yield head
            yield "\n".join(_line(p, prose) for p in those)
    result = (
        "" if bare or {"Returns", "Yields"} & set(text.sections) else returned(value)
    )
    if result:
        yield f"**Returns**\n\n{f'[`{result}`]({result}.md)' if result in ct.__all__ else f'`{result}`'}"
    for head in ("Returns", "Yields", "Raises"):
        if head in text.sections:
            blocks = (
                re.split(r"\n(?=\S)", text.sections[head])
                if head == "Raises"
                else [text.sections[head]]
            )
            each = [" ".join(block.split()) for block in blocks]
            yield f"**{head}**\n\n" + "\n".join(
                f"- {prose(one)}" if len(each) > 1 else prose(one) for one in each
            )
    if text.example:
        yield f"**Example**\n\n```pycon\n{text.example}\n```"


def _line(p: Parameter, prose: Callable[[str], str]) -> str:
    about = ", ".join(
        filter(
            None,
            (
                f"`{p.type}`" if p.type else "",
                f"default `{p.default}`" if p.default else "",
            ),
        )
    )
    return f"- **`{p.name}`**{f' ({about})' if about else ''}: {prose(p.meaning)}"


def members(cls: type[Any]) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that the class itself or a base of coterie's documents, in the order of the source."""
    seen: set[str] = set()
    for base in cls.__mro__:
        if not base.__module__.startswith("coterie."):
            continue
        for name, value in vars(base).items():
            value = getattr(value, "__func__", value)
            if not name.startswith("_") and name not in seen and _is_member(value):
                seen.add(name)
                yield name, value


def _is_member(value: Any) -> bool:
    return isinstance(value, property | cached_property) or inspect.isfunction(value)


def problems(entries: list[Entry], texts: dict[str, str]) -> list[str]:
    """What is wrong with the reference, in sentences; the site is not built with any."""
    wrong = [
        f"ct.{e.name} is in no group of docs/reference.py"
        for e in entries
        if not e.group
    ]
    for entry in entries:
        for hit in {
            match.group() for match in SIGNS.finditer(_without_code(texts[entry.name]))
        }:
            wrong.append(f"ct.{entry.name} shows {hit!r}")
        text = entry.docstring
        if not text.text:
            wrong.append(f"ct.{entry.name} has no docstring")
        is_called = isinstance(entry.value, type) or inspect.isroutine(entry.value)
        for p in parameters(entry.value, text.meanings) if is_called else ():
            if not p.meaning:
                wrong.append(f"ct.{entry.name} does not say what {p.name} means")
        if not text.example:
            wrong.append(f"ct.{entry.name} has no example")
        if "doctest: +SKIP" in text.example:
            wrong.append(f"ct.{entry.name} has an example that is not run")
    return wrong


def _without_code(text: str) -> str:
    """A page without its examples, and without the bold names that it writes itself."""
    text = re.sub(
        r"^- \*\*`[^`]*`\*\*|^\*\*\w+\*\*$", "", text.replace("\\", ""), flags=re.M
    )
    return re.sub(r"```pycon\n.*?```|`[^`\n]*\*\*[^`\n]*`", "", text, flags=re.S)


def group_place(group: str) -> str:
    """The name of a group's page, below reference/api."""
    return f"{group.lower().replace(' ', '-')}/index"


def group_page(group: str, entries: list[Entry], prose: Callable[[str], str]) -> str:
    """The page of a group: what its names are, and their pages below it in the menu."""
    own = [e for e in entries if e.group == group]
    names = "\n".join(f"ct.{e.name} <../{e.name}>" for e in own)
    about = f"This page lists the public names for: {group.lower()}. Follow a name to its parameters and an example."
    return f"# {group}\n\n{about}\n\n{_listed(own, '../', prose)}\n\n```{{toctree}}\n:hidden:\n\n{names}\n```\n"


def index(entries: list[Entry], prose: Callable[[str], str]) -> str:
    """The table of contents: each group with a line per name."""
    parts = []
    for group in GROUPS:
        own = [e for e in entries if e.group == group]
        parts.append(f"## {group}\n\n{_listed(own, 'reference/api/', prose)}")
    places = "\n".join(f"reference/api/{group_place(group)}" for group in GROUPS)
    return "\n\n".join([*parts, f"```{{toctree}}\n:hidden:\n\n{places}\n```"])


def _listed(entries: list[Entry], folder: str, prose: Callable[[str], str]) -> str:
    rows = "\n".join(
        f"| [`ct.{e.name}`]({folder}{e.name}.md) | {prose(e.docstring.text.split(chr(10) * 2)[0].replace(chr(10), ' '))} |"
        for e in entries
    )
    return f"| name | what it is |\n| --- | --- |\n{rows}"

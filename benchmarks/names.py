"""How much of the library's naming says nothing, which sentences are built although nobody reads them, and how long the code is.

    python -m benchmarks.names

`make lint` runs it and fails where a figure is above its bound in `MOST`. A local name says nothing if it would fit any value (`own`,
`found`, `rest`); a function is named by a verb or a noun, and a participle at either end (`told`, `_opened_files`) is neither. A
`require` whose sentence is computed builds it each time it holds, so there `if` and `raise` stand instead. A docstring that begins with
What or Whether, or that of a function or class with How or the like, has no verb, and leaves open what it is.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.rooms import FILES, SOURCE

_WORDS = (
    "given said own good some found made got kept known several one told others rest asked whole needed seen held wanted left those "
    "many few which before after first other both alone here thing things about at what old new more each mine theirs there apart "
    "done moved gone far fresh odd together near within inside beside behind elsewhere same so twice two wrong"
)
VAGUE = frozenset(_WORDS.split())
"""Names of locals and parameters that say nothing of the value."""
_PARTICIPLE = re.compile(
    r"[a-z]+ed|told|said|known|made|kept|sent|shown|drawn|given|found|chosen|written|taken|held|seen"
)
_NO_VERB = ("How ", "Who ", "Which ", "Where ", "Why ", "Of ")
"""Beginnings of what is no sentence; a title of a module, and the words beside a value, may begin so."""
_NOUNS = ("seed", "need", "speed", "feed", "bed", "red", "embed", "shed")


class Measured(NamedTuple):
    """In percent, local names that say nothing and functions named by a participle; computed sentences; docstrings that ask."""

    vague: float
    participles: float
    eager: int
    questions: int


MOST = Measured(vague=0.5, participles=1.3, eager=0, questions=0)
"""What is not exceeded."""


def find_hits(text: str, path: Path | str = "") -> Iterator[tuple[str, str]]:
    """Yield (kind, place and name) of each hit in a file, and one for each name, function and `require` that is counted."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and (ast.get_docstring(node) or "").startswith(_NO_VERB):
            yield "questions", f"{path}:{node.lineno}: {node.name}"
        if isinstance(node, ast.FunctionDef):
            words = node.name.strip("_").split("_")
            yield "functions", node.name
            if any(_PARTICIPLE.fullmatch(word) and word not in _NOUNS for word in (words[0], words[-1])):
                yield "participles", f"{path}:{node.lineno}: function {node.name}"
            for name in _local_names(node):
                yield "names", name
                if name in VAGUE:
                    yield "vague", f"{path}:{node.lineno}: {name} in {node.name}"
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            if node.value.value.startswith(("What ", "Whether ")):
                yield "questions", f"{path}:{node.lineno}: {node.value.value.splitlines()[0]}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "require":
            yield (
                "require" if isinstance(node.args[-1], ast.Constant | ast.Name) else "eager",
                f"{path}:{node.lineno}: require",
            )


def _local_names(function: ast.FunctionDef) -> set[str]:
    arguments = {argument.arg for argument in function.args.args + function.args.kwonlyargs}
    stores = (n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    return arguments.union(stores)


def measure(hits: Iterable[tuple[str, str]]) -> Measured:
    """Return the shares and the count of the hits of all files."""
    kinds = [kind for kind, _ in hits]
    shares = [
        100 * kinds.count(kind) / max(1, kinds.count(total))
        for kind, total in (("vague", "names"), ("participles", "functions"))
    ]
    return Measured(round(shares[0], 2), round(shares[1], 2), kinds.count("eager"), kinds.count("questions"))


def code_lines(text: str) -> int:
    """Count the lines of a file that hold code: no docstrings, comments and blanks."""
    documented = set[int]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            documented.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = [line.strip() for number, line in enumerate(text.splitlines(), 1) if number not in documented]
    return sum(bool(line) and not line.startswith("#") for line in lines)


def main() -> int:
    """Print the figures beside their bounds, and each hit above; returns 1 if one is exceeded."""
    texts = {path: path.read_text() for path in FILES}
    hits = [hit for path, text in texts.items() for hit in find_hits(text, path.relative_to(SOURCE))]
    figures = measure(hits)
    if set(sys.argv[1:]) & {"-v", "--verbose"} or any(x > most for x, most in zip(figures, MOST, strict=True)):
        print("\n".join(place for kind, place in hits if kind in Measured._fields))
    print(f"library: {sum(map(code_lines, texts.values())):,} lines of code in {len(texts)} files")
    print(f"local names that say nothing: {figures.vague} % (at most {MOST.vague} %)")
    print(f"functions named by a participle: {figures.participles} % (at most {MOST.participles} %)")
    print(f"sentences that are built although nothing is wrong: {figures.eager} (at most {MOST.eager})")
    print(f"docstrings that begin with What, Whether, How and the like: {figures.questions} (at most {MOST.questions})")
    return int(any(x > most for x, most in zip(figures, MOST, strict=True)))


if __name__ == "__main__":
    sys.exit(main())

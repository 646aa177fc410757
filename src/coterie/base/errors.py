"""The errors that a user sees, each one sentence that names the place and the cure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.base.cures import Cure

LONGEST = 600
"""Characters of an error's sentence at most."""


class CoterieError(Exception):
    """Base of all errors that coterie raises on purpose: one line of at most 600 characters.

    Args:
        sentence: What is wrong, where, and what to do. The settings that an `Advice` offers stay with the error as `cures`.

    >>> import coterie as ct
    >>> issubclass(ct.InputError, ct.CoterieError), issubclass(ct.RunError, ct.CoterieError)
    (True, True)
    """

    def __init__(self, sentence: object = "") -> None:
        super().__init__(
            shorten(" ".join(map(str.strip, str(sentence).splitlines())), LONGEST)
        )
        self.cures: tuple[Cure, ...] = getattr(sentence, "cures", ())


class InputError(CoterieError, ValueError):
    """Bad input of any kind, found before work starts. The command ends with exit status 2.

    Args:
        sentence: What is wrong, where, and what to do.

    >>> import coterie as ct
    >>> try:
    ...     ct.LocalSGD(lr=-1)
    ... except ct.InputError as error:
    ...     print(error)
    LocalSGD.lr must be a number > 0; got -1
    """


class RunError(CoterieError, RuntimeError):
    """A run that cannot go on; what was saved stays. The command ends with exit status 1.

    Args:
        sentence: What is wrong, where, and what to do.

    >>> import coterie as ct
    >>> dropouts = ct.attacks.Dropout(p=1.0, on=0.75)
    >>> try:
    ...     ct.fit("meritfed", "heart-disease", rounds=1, attack=dropouts)
    ... except ct.RunError as error:
    ...     print(str(error).partition(" replied")[0])
    round 1, task 'coterie.compute.tasks:local_updates': 1 of 4 clients
    """


@contextmanager
def explain_imports(purpose: str, extra: str) -> Iterator[None]:
    """Turn a failed import of an optional package into one sentence.

    Args:
        purpose: What needs the package, with its verb: `the HTML report needs jinja2`.
        extra: The extra of coterie that installs it.

    Raises:
        InputError: The package, or one that it imports, is missing; or it is there and fails to import, for the reason that is shown.
    """
    cure = f'pip install "coterie[{extra}]"'
    try:
        yield
    except ModuleNotFoundError as error:
        raise InputError(f"{purpose}: {cure}") from error
    except ImportError as error:
        reason = plain(" ".join(str(error).split()), 200)
        raise InputError(
            f"{purpose}, which is installed and fails to import ({reason}); renew it: {cure}"
        ) from error


def nearest(word: str, allowed: Iterable[str]) -> str:
    """A half-sentence that helps to spell `word`.

    >>> nearest("fedagv", ["fedavg", "local"])
    "did you mean 'fedavg'? (allowed: fedavg, local)"
    """
    allowed = sorted(allowed)
    word = str(word)[:100]  # the time to compare grows with the square of the length
    close = difflib.get_close_matches(word, allowed, n=1, cutoff=0.5)
    choices = f"allowed: {', '.join(allowed)}"
    if not close:
        return choices
    return f"did you mean {close[0]!r}? ({choices})"


def visible(text: str) -> str:
    r"""Return a text of another party with characters for control and direction as escapes, so that it can forge and erase no line.

    >>> visible("a" + chr(27) + "[2J" + chr(10) + "b")
    'a\\x1b[2J\\nb'
    """
    if text.isprintable():
        return text
    shown = []
    for c in text:
        if not c.isprintable():
            c = c.encode("unicode_escape").decode()
        shown.append(c)
    return "".join(shown)


def plain(text: str, most: int = 300) -> str:
    r"""A text of another party as one line that any terminal and file can take: `visible`, with at most `most` characters.

    >>> plain("a" + chr(27) + "[2J" + chr(10) + "b")
    'a\\x1b[2J\\nb'
    """
    shown = visible(text[: 4 * most])
    if len(shown) <= most:
        return shown
    return f"{shown[: most - 3]}..."


def shorten(text: str, most: int = 300) -> str:
    """A sentence of at most `most` characters: the place stands in front and the cure at the end, so the middle is left out.

    >>> shorten("field 'x' of client c is wrong in a long way; mend it", 30)
    "field 'x' of ... way; mend it"
    """
    if len(text) <= most:
        return text
    half = (most - 5) // 2
    return f"{text[:half].rstrip()} ... {text[-half:].lstrip()}"


def cut(value: Any) -> str:
    """Return `value` as the text of an error, in at most 100 characters; of tensors, arrays and frames their type and shape.

    >>> cut(range(3)), cut({"a": ["x"]})
    ('range(0, 3)', "{'a': ['x']}")
    """
    if _holds_numbers(value):
        shape = getattr(value, "shape", None)
        kind = type(value).__name__
        if shape is None:
            return f"a {kind} of {len(value)} entries"
        return f"a {kind} of shape {list(shape)}"
    one_line = " ".join(repr(value).split())
    text = re.sub(
        r" at 0x[0-9a-f]+", "", one_line
    )  # where in memory it lies says nothing
    if len(text) <= 100:
        return text
    return f"{text[:97]}..."


def _holds_numbers(value: Any, depth: int = 2) -> bool:
    """Return True for a tensor, an array or a frame, and for a container of such."""
    if getattr(value, "shape", ()):
        return isinstance(value.shape, tuple)
    if isinstance(value, Mapping):
        value = list(value.values())
    if depth == 0 or not isinstance(value, list | tuple):
        return False
    return any(_holds_numbers(part, depth - 1) for part in value)


def no_attribute(value: object, name: str, cures: Mapping[str, str]) -> AttributeError:
    """Return the error of an attribute that is not there, with what to write where people look for it under this name.

    >>> print(no_attribute(1, "size", {"size": "write x.bit_length()"}))
    'int' object has no attribute 'size'; write x.bit_length()
    """
    called = f"{type(value).__name__!r} object"
    if isinstance(value, ModuleType):
        called = f"module {value.__name__!r}"
    sentence = f"{called} has no attribute {name!r}"
    if name in cures:
        sentence += f"; {cures[name]}"
    return AttributeError(sentence, name=name, obj=value)


def require(condition: bool, sentence: str) -> None:
    """Raise `InputError(sentence)` unless `condition` holds."""
    if not condition:
        raise InputError(sentence)


@contextmanager
def prefix_errors(where: str) -> Iterator[None]:
    """Let what is refused inside begin with a place; without one nothing changes.

    >>> with prefix_errors("a.toml, [engine]"):
    ...     require(False, "say a name")
    Traceback (most recent call last):
    coterie.base.errors.InputError: a.toml, [engine]: say a name
    """
    try:
        yield
    except InputError as error:
        if not where:
            raise
        raise InputError(f"{where}: {error}") from error

"""The errors that a user sees, each one sentence that names the place and the cure; and Ctrl-C, told apart from them."""

from __future__ import annotations

import difflib
import fnmatch
import gc
import os
import re
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from coterie.base.cures import Cure

CRASH = "coterie-crash.txt"
"""The file that holds the traceback of an error that nobody expected."""


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


def match_clients(
    owner: object, field: str, everyone: tuple[str, ...], *, everybody: str = ""
) -> tuple[str, ...]:
    """The clients that a field (`schema.NAMES`, `schema.TARGETS`) names, or that fit a pattern such as "near-*", sorted.

    All of them for the word `everybody`.

    Raises `InputError` for one that does not exist.

    >>> from types import SimpleNamespace
    >>> match_clients(SimpleNamespace(targets=("b", "a")), "targets", ("a", "b", "c"))
    ('a', 'b')
    >>> match_clients(SimpleNamespace(internal="king-*"), "internal", ("fool-x", "king-a", "king-b"))
    ('king-a', 'king-b')
    """
    setting = getattr(owner, field)
    chosen = (setting,) if isinstance(setting, str) else tuple(setting)
    if chosen == (everybody,):
        return everyone
    matches: set[str] = set()
    for name in sorted(set(chosen)):
        # A name that has a star in it is not a pattern.
        fit = [name]
        if name not in everyone:
            fit = fnmatch.filter(everyone, name)
        if not fit:
            raise InputError(
                f"{type(owner).__name__}.{field} names {name!r}, which is not a client; {nearest(name, everyone)}"
            )
        matches.update(fit)
    return tuple(sorted(matches))


def write_crash(error: BaseException, folder: Path) -> str:
    """Write where an unexpected error arose to `folder`, or else to the current one; returns a sentence that says so.

    The file has files, lines, functions and types of errors, but neither messages nor values, so that it can be sent to somebody.
    """
    lines: list[str] = []
    cause: BaseException | None = error
    while cause is not None:
        lines.append(type(cause).__name__)
        for frame in reversed(traceback.extract_tb(cause.__traceback__)):
            lines.append(f"  {frame.filename}, line {frame.lineno}, in {frame.name}")
        cause = cause.__cause__ or cause.__context__
    where = ""
    for frame in traceback.extract_tb(error.__traceback__)[-1:]:
        where = f" ({Path(frame.filename).name}, line {frame.lineno})"
    place = "the traceback cannot be written here; --debug shows it"
    for path in (folder / CRASH, Path(CRASH)):
        try:
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        except OSError:
            continue
        place = f"the traceback is in {path}, please report it"
        break
    return f"unexpected {type(error).__name__}{where}; {place}"


# ---- Ctrl-C: told apart from an error of a client's own code, and never lost while a process is forked


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while clients may work; a `KeyboardInterrupt` that is none is raised by their code."""


class Ended(SystemExit):
    """The end of this process from outside; a `SystemExit` that is none is raised by a client's code."""


def leave_at_once() -> None:
    """Let Ctrl-C end this process with a sentence, wherever it is; for as long as there is nothing to save.

    A `KeyboardInterrupt` would become another error in the middle of an import (numpy), or be lost.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def _leave(number: int, frame: Any) -> NoReturn:
    os.write(2, b"coterie: stopped\n")
    os._exit(130)


@contextmanager
def raise_interrupts() -> Iterator[None]:
    """Let Ctrl-C raise `Interrupted`, where it would raise `KeyboardInterrupt` or leave at once."""
    handler = signal.getsignal(signal.SIGINT)
    if handler not in (signal.default_int_handler, _leave):
        yield  # the caller has a handler of its own
        return
    with _handle(signal.SIGINT, _interrupt):
        yield


@contextmanager
def delay_interrupts() -> Iterator[None]:
    """Let Ctrl-C and `end` wait: within `os.fork`, whose hooks are Python, they would be printed and forgotten."""
    waiting: list[int] = []

    def wait(number: int, frame: Any) -> None:
        waiting.append(number)

    with ExitStack() as stack:
        for handled in (signal.SIGINT, signal.SIGTERM):
            if callable(signal.getsignal(handled)):
                stack.enter_context(_handle(handled, wait))
        yield
    for number in waiting:
        signal.raise_signal(number)


@contextmanager
def few_collections() -> Iterator[None]:
    """Look for garbage rarely: rows of tables are many tuples, none in a cycle, and walking through them took a fifth of a run."""
    thresholds = gc.get_threshold()
    if thresholds[0]:  # else the caller wants none at all
        gc.set_threshold(max(50_000, thresholds[0]))
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def is_interrupt(error: BaseException) -> bool:
    """Return True if an error that a client's code has not caught is Ctrl-C, as far as that can be told, or `end`."""
    if signal.getsignal(signal.SIGINT) in (_interrupt, signal.SIG_IGN):
        return isinstance(error, Ended | Interrupted)
    return isinstance(error, Ended | KeyboardInterrupt)


def end(number: int, frame: Any) -> NoReturn:
    """A handler that ends this process through every `finally`."""
    # A file that is being opened just now will not be closed.
    warnings.simplefilter("ignore", ResourceWarning)
    raise Ended(0)


def _interrupt(number: int, frame: Any) -> NoReturn:
    raise Interrupted


@contextmanager
def _handle(number: int, handler: Callable[[int, Any], Any]) -> Iterator[None]:
    old_handler = signal.getsignal(number)
    # Only the main thread may choose; and what is not Python's own could not be put back.
    if old_handler is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, old_handler)

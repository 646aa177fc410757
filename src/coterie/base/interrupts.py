"""Ctrl-C, told apart from an error of a client's own code, and never lost while a process is forked."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn


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

"""Ctrl-C: told apart from an error of a client's own code, and never lost while a process is forked. Needs no torch."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NoReturn

__all__ = ["Interrupted", "heeded", "held", "interrupt", "is_interrupt"]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while clients may work; a `KeyboardInterrupt` that is none is raised by their code."""


@contextmanager
def heeded() -> Iterator[None]:
    """Let Ctrl-C raise `Interrupted`, where it would raise `KeyboardInterrupt`."""
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with _handled(interrupt) if usual else nullcontext():
        yield


@contextmanager
def held() -> Iterator[None]:
    """Let Ctrl-C wait: within `os.fork`, whose hooks are Python, it would be printed and forgotten."""
    waiting: list[int] = []
    with _handled(lambda number, frame: waiting.append(number)):
        yield
    if waiting:
        signal.raise_signal(signal.SIGINT)


def is_interrupt(error: BaseException) -> bool:
    """Whether an error that a client's code has not caught is Ctrl-C, as far as that can be told."""
    certain = signal.getsignal(signal.SIGINT) in (interrupt, signal.SIG_IGN)
    return isinstance(error, Interrupted if certain else KeyboardInterrupt)


def interrupt(number: int, frame: Any) -> NoReturn:
    """What a signal calls that ends a run, through every `finally`."""
    raise Interrupted


@contextmanager
def _handled(handler: Callable[[int, Any], Any]) -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    # Only the main thread may choose; and what is not Python's own could not be put back.
    if before is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

"""Several runs at once, each in a process that is forked from this one, so that it shares the rows and nothing is pickled."""

from __future__ import annotations

import json
import os
import signal
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

import torch

from coterie.base.crash import write_crash
from coterie.base.errors import CoterieError, InputError, RunError
from coterie.base.interrupts import delay_interrupts, end
from coterie.base.system import attempt, require_children

if TYPE_CHECKING:
    from multiprocessing.context import ForkProcess

FEWER = "use fewer --jobs; complete rounds are saved, so resume"
"""The cure where the system gives no further process."""
PATIENCE = 60.0
"""Seconds that a job has to end by itself, once it is told to."""

Work = Callable[[Callable[[int], None]], None]
"""The work of a job, given the function that tells the number of each complete round."""
Heard = tuple[Callable[[int], None], Callable[[], None]]
"""The function that is called after each round of a job, and at its end."""


class Jobs:
    """At most `most` jobs at once. With 1 there are no processes: a job is done where it is started.

    Leaving the context waits for all jobs; an exception ends those that run. They save complete rounds themselves, so nothing
    that is finished is lost.

    Args:
        most: how many run at once.
    """

    def __init__(self, most: int) -> None:
        if most > 1:
            require_children(f"--jobs {most}")
        self._most = most
        self._running: dict[Connection, tuple[ForkProcess, Heard]] = {}

    def __enter__(self) -> Jobs:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            while kind is None and self._running:
                self._receive()
        finally:
            self._stop()

    def run(self, work: Work, begin: Callable[[], Heard]) -> None:
        """Begin a job, once there is room for it.

        Args:
            work: what it does.
            begin: called when it begins; returns what is called here with the number of each complete round, and at the end.

        Raises:
            CoterieError: what this job, or one that was begun before, could not do.
        """
        while len(self._running) >= self._most:
            self._receive()
        on_round, on_end = begin()
        if self._most > 1:
            self._fork(work, (on_round, on_end))
        else:
            work(on_round)
            on_end()

    def _fork(self, work: Work, heard: Heard) -> None:
        import multiprocessing

        context = multiprocessing.get_context("fork")
        with attempt("open a pipe to the process of a run", FEWER):
            own_end, child_end = context.Pipe(duplex=False)
        process = context.Process(target=_serve, args=(work, child_end, os.getpid()))
        with delay_interrupts(), warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # a live display has a thread, which a job never uses
            with attempt("start a process for a run", FEWER):
                process.start()
        child_end.close()
        self._running[own_end] = process, heard

    def _receive(self) -> None:
        """Take what the jobs say next."""
        for pipe in cast("list[Connection]", wait(list(self._running))):
            process, (on_round, on_end) = self._running[pipe]
            try:
                message: dict[str, Any] = json.loads(pipe.recv_bytes())
            except EOFError:
                process.join()
                code = process.exitcode
                raise RunError(
                    f"the process of a run ended with exit code {code}; complete rounds are saved, so resume"
                ) from None
            if "round" in message:
                on_round(message["round"])
            elif "error" in message:
                raise {"InputError": InputError}.get(message["error"], RunError)(
                    message["sentence"]
                )
            else:
                process.join()
                del self._running[pipe]
                pipe.close()
                on_end()

    def _stop(self) -> None:
        for process, _ in self._running.values():
            process.terminate()
        deadline = time.monotonic() + PATIENCE
        for pipe, (process, _) in self._running.items():
            process.join(max(0.0, deadline - time.monotonic()))
            process.kill()  # Python forgets an exception that a signal raises where an object is being deleted
            process.join()
            pipe.close()
        self._running.clear()


def _serve(work: Work, pipe: Connection, parent: int) -> None:
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C is for the parent, which ends its jobs
    signal.signal(
        signal.SIGTERM, end
    )  # through every `finally`, so that workers end too
    _die_with(parent)
    torch.set_num_threads(1)

    def tell(**said: Any) -> None:
        pipe.send_bytes(json.dumps(said).encode())

    try:
        work(lambda number: tell(round=number))
        tell(done=True)
    except CoterieError as error:
        tell(error=type(error).__name__, sentence=str(error))
    except OSError as error:  # a full disk, a folder that may not be written
        tell(
            error="RunError",
            sentence=f"{error.filename or 'a file'}: {error.strerror}; what was saved before stays",
        )
    except Exception as error:
        tell(error="RunError", sentence=write_crash(error, Path()))


def _die_with(parent: int) -> None:
    """End this process when its parent is killed: nobody else may write the run directory that is resumed."""
    import ctypes

    set_parent_death_signal = 1
    with suppress(OSError, AttributeError):  # where the system has no such call
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)

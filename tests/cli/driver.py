"""A warm process that runs the command in forked children, and can kill them at a named call.

Importing torch takes longer than a small run. This process imports everything once, by running a small comparison; each line of JSON
on its standard input is a job, and each line on its standard output says how the job ended. Nothing in the library knows about it.

A job is {"argv": [...], "cwd": ..., "log": ..., "arm": null or {"target", "when", "match", "at", "signal"}, "delay": null or seconds}.
`arm` sends a signal to the child itself before or after the at-th call of `target` (module.function or module.Class.method) whose
arguments, as text, contain `match`; `delay` kills it after some time.
"""

from __future__ import annotations

import gc
import importlib
import io
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any


def text_of(value: Any) -> str:
    """What a kill point can name: paths, words, tasks, the round of a federation, and plain tables."""
    if isinstance(value, str | Path | dict):
        return str(value)
    if hasattr(value, "everyone"):
        return f"round {value.round}"
    return repr(value) if type(value).__name__ == "Task" else ""


def arm(
    target: str, when: str, match: str, at: int, signal_name: str = "SIGKILL"
) -> None:
    """Replace `target` by a function that counts its calls and sends this process a signal."""
    owner, name = resolve(target)
    original: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def counting(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        hit = match in " ".join(filter(None, map(text_of, args)))
        calls += hit
        if hit and calls == at and when == "before":
            os.kill(os.getpid(), getattr(signal, signal_name))
        result = original(*args, **kwargs)
        if hit and calls == at and when == "after":
            os.kill(os.getpid(), getattr(signal, signal_name))
        return result

    setattr(owner, name, counting)


def resolve(target: str) -> tuple[Any, str]:
    path, _, name = target.rpartition(".")
    try:
        return importlib.import_module(path), name
    except ModuleNotFoundError:
        module, _, cls = path.rpartition(".")
        return getattr(importlib.import_module(module), cls), name


def child(job: Mapping[str, Any]) -> None:
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(
            os.open(f"{job['log']}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
            number,
        )
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(job["cwd"])
    sys.path.insert(0, job["cwd"])  # as of `python -m coterie`
    if job["arm"]:
        arm(**job["arm"])
    from coterie.cli.main import main

    status = 70
    try:
        status = main(job["argv"])
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def run(job: Mapping[str, Any]) -> dict[str, Any]:
    started = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        child(job)
    if job["delay"] is not None:
        time.sleep(job["delay"])
        os.kill(pid, signal.SIGKILL)
    _, code = os.waitpid(pid, 0)
    return {
        "status": os.waitstatus_to_exitcode(code),
        "seconds": time.perf_counter() - started,
    }


def warm_up() -> None:
    """Import whatever a comparison and its report need, by running one."""
    import torch

    from coterie.cli.main import main
    from coterie.run import loop

    torch.set_num_threads(1)
    loop.MOST_LOST = 0.0  # children are killed in named rounds, and go on from there
    with (
        tempfile.TemporaryDirectory() as folder,
        redirect_stdout(io.StringIO()),
        redirect_stderr(io.StringIO()),
    ):
        main(
            [
                "compare",
                "heart-disease",
                "--rounds",
                "1",
                "--seeds",
                "1",
                "--tables",
                "--out",
                f"{folder}/run",
            ]
        )


def serve() -> None:
    warm_up()
    for name in ("cli.progress", "study.predict", "study.finalise"):
        importlib.import_module(f"coterie.{name}")
    gc.freeze()  # a child whose collector visits all that was imported copies half of its memory
    for line in sys.stdin:
        sys.stdout.write(json.dumps(run(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()

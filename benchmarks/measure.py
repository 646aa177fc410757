"""How speed is measured: two contestants in turns (A B A B ...), the median of the ratios of pairs, and the load beside it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import coterie
from benchmarks.trees import GitError, git
from coterie.base.files import write_atomically

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 2.5
"""Load average above which a measurement is repeated."""


class Settings(NamedTuple):
    """What the command line says: tiny sizes that only show that the code runs; minutes for a long benchmark; few pairs.

    `earlier` are the runs that a long benchmark finished before, `jobs` how many run at once.
    """

    quick: bool = False
    minutes: float = 10.0
    attempts: int = 4
    patience: float = 60.0
    short: bool = False
    earlier: Sequence[Mapping[str, Any]] = ()
    jobs: int = 2


class Seconds(NamedTuple):
    """Time on the wall, and time of the CPU spent by this process, which other processes disturb far less."""

    wall: float
    cpu: float

    @classmethod
    def now(cls) -> Seconds:
        """The clocks, once a GPU has done what it was asked to."""
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return cls(time.perf_counter(), time.process_time())

    def since(self, start: Seconds) -> Seconds:
        """From `start` to here."""
        return Seconds(self.wall - start.wall, self.cpu - start.cpu)


class Pair(NamedTuple):
    """The same work done by both, one right after the other."""

    ours: Seconds
    reference: Seconds


class Turns:
    """A `progress` hook for `ct.fit` that lets another contestant take turns with the run.

    After every `rounds` rounds of the run, `reference` is called with the number of each of them; both times make a pair.
    The first turn of each warms up and does not count. What `fit` does before its first and in its last round (start-up,
    evaluation) lies outside of all turns if the run has one round more than whole turns.
    """

    def __init__(self, reference: Callable[[int], object], rounds: int) -> None:
        self._reference, self._rounds = reference, rounds
        self._pairs: list[Pair] = []
        self._start = Seconds.now()

    def __call__(self, number: int) -> None:
        stop = Seconds.now()
        if number % self._rounds:
            return
        if number:
            for earlier in range(number - self._rounds + 1, number + 1):
                self._reference(earlier)
            self._pairs.append(Pair(stop.since(self._start), Seconds.now().since(stop)))
        self._start = Seconds.now()

    @property
    def pairs(self) -> list[Pair]:
        """All pairs but the first."""
        return self._pairs[1:]


def replace_round(method: Any, around: Callable[..., tuple[Any, Any]]) -> Any:
    """Return the method with another round: `around(round, state, federation, rng)`, called with the method's own as `round`."""
    cls = type(method)

    def called(self: Any, *arguments: Any) -> tuple[Any, Any]:
        return around(partial(cls.round, self), *arguments)

    watched = type(cls.__name__, (cls,), {"round": called})
    return watched(
        **{f.name: getattr(method, f.name) for f in dataclasses.fields(method)}
    )


def in_turns(
    ours: Callable[[], object], reference: Callable[[], object], pairs: int = 7
) -> list[Pair]:
    """Call both in turns; the first call of each warms up and does not count."""
    found = []
    for _ in range(pairs + 1):
        start = Seconds.now()
        ours()
        middle = Seconds.now()
        reference()
        found.append(Pair(middle.since(start), Seconds.now().since(middle)))
    return found[1:]


def ratio(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Our speed as a multiple of the reference's: medians over pairs, with quartiles; on the wall and in CPU time.

    >>> ratio([Pair(Seconds(2, 2), Seconds(1, 1)), Pair(Seconds(1, 1), Seconds(1, 1)), Pair(Seconds(4, 4), Seconds(1, 1))])["ratio"]
    0.5
    """
    wall = [p.reference.wall / p.ours.wall for p in pairs]
    low, _, high = statistics.quantiles(wall, n=4)
    return {
        "ratio": statistics.median(wall),
        "quartiles": [low, high],
        "cpu_ratio": statistics.median(p.reference.cpu / p.ours.cpu for p in pairs),
        "pairs": len(pairs),
        "seconds": statistics.median(p.ours.wall for p in pairs),
        "reference_seconds": statistics.median(p.reference.wall for p in pairs),
    }


def read_arguments(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    kind: str,
    names: Collection[str],
) -> tuple[argparse.Namespace, Path]:
    """Read a command line with names of this kind; also the folder of results."""
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    parser.add_argument(
        "--quick",
        action="store_true",
        help="tiny sizes: only shows that the code runs; needs --out",
    )
    parser.add_argument(
        "--out", type=Path, help="folder of the JSON results (benchmarks/results)"
    )
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in names]
    if unknown:
        parser.error(
            f"there is no {kind} {', '.join(unknown)}; choose from {', '.join(names)}"
        )
    if options.quick and options.out is None:
        parser.error("numbers of --quick are no results; give --out FOLDER")
    return options, options.out or ROOT / "benchmarks" / "results"


def on_a_quiet_machine(
    measure: Callable[[], dict[str, Any]], settings: Settings
) -> dict[str, Any]:
    """Measure; while the load average is above `LIMIT` before or after, measure again, at most `settings.attempts` times.

    Before an attempt it waits for a quiet moment, `settings.patience` seconds at most. The attempt under the lowest load
    counts; its load, the number of attempts and whether the machine was `busy` are in the result.
    """
    best: dict[str, Any] = {}
    for attempt in range(1, settings.attempts + 1):
        give_up = time.monotonic() + settings.patience
        while (before := os.getloadavg()[0]) > LIMIT and time.monotonic() < give_up:
            time.sleep(1.0)
        found = measure()
        load = [round(before, 2), round(os.getloadavg()[0], 2)]
        if not best or max(load) < max(best["load"]):
            best = {**found, "load": load, "busy": max(load) > LIMIT}
        best["attempts"] = attempt
        if not best["busy"]:
            break
    return best


def over_seeds(
    jobs: Callable[[int], Sequence[Any]],
    work: Callable[[Any], dict[str, Any]],
    settings: Settings,
    most: int,
) -> Iterator[dict[str, Any]]:
    """Do the jobs of seed 0, 1, ... in `settings.jobs` processes, while the minutes last; yield all that is done after each seed.

    A job (a named tuple) whose fields are those of an earlier run is not done again. At least one seed that was not done before
    is begun; a further one only if it may be expected to end in time.
    """
    begun, load, worked = time.perf_counter(), os.getloadavg()[0], 0
    runs = list(settings.earlier)
    processes = min(settings.jobs, os.cpu_count() or 1)
    with ProcessPoolExecutor(
        processes, multiprocessing.get_context("spawn"), _one_thread
    ) as pool:
        for seed in range(most):
            todo = [
                job
                for job in jobs(seed)
                if not any(job._asdict().items() <= run.items() for run in runs)
            ]
            if todo:
                if (
                    worked
                    and (time.perf_counter() - begun) * (worked + 1) / worked
                    > 60 * settings.minutes
                ):
                    break
                origin = {
                    "commit": commit(),
                    "machine": "{cpu}, {cores} cores".format(**machine()),
                    "torch": torch.__version__,
                }
                runs += [{**found, **origin} for found in pool.map(work, todo)]
                worked += 1
            minutes = (time.perf_counter() - begun) / 60
            yield {
                "load": [round(load, 2), round(os.getloadavg()[0], 2)],
                "minutes": minutes,
                "runs": runs,
            }


def _one_thread() -> None:
    torch.set_num_threads(1)


def decisive(found: Mapping[str, Any]) -> float:
    """The ratio that is judged: the one on the wall, or on a busy machine the one in CPU time."""
    return float(found["cpu_ratio"] if found["busy"] else found["ratio"])


def row(
    work: str, measured: str, goal: str, met: bool, found: Mapping[str, Any]
) -> dict[str, Any]:
    """A line of the table of speeds."""
    return {
        "work": work,
        "measured": measured,
        "goal": goal,
        "met": met,
        "load": found["load"],
        "busy": found["busy"],
    }


def speed_row(
    work: str, found: Mapping[str, Any], must: float, aim: float
) -> dict[str, Any]:
    """A line about a speed as a multiple of L0's."""
    speed = f"{found['ratio']:.2f} of L0's speed (in CPU time {found['cpu_ratio']:.2f})"
    goal = f"at least {must:g}" + (f", aim {aim:g}" if aim > must else "")
    return row(work, speed, goal, decisive(found) >= must, found)


def document(name: str, what: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """A result with all that is needed to judge it: machine, versions, commit."""
    return {
        "name": name,
        "what": what,
        "measured": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "coterie": coterie.__version__,
        },
        **found,
    }


def write(path: Path, result: Mapping[str, Any]) -> None:
    """Write a result as JSON, renamed into place."""
    text = json.dumps(result, indent=2) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text))


def machine() -> dict[str, Any]:
    """The kind of this machine: only on one of the same kind can the ratios of a result be expected."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def cpu_of(cpuinfo: str) -> str | None:
    """The first processor of /proc/cpuinfo with its family and model, as a virtual machine shows one name for several of a maker."""
    lines = (line.partition(":") for line in cpuinfo.partition("\n\n")[0].splitlines())
    said = {name.strip(): value.strip() for name, _, value in lines}
    if "model name" not in said:
        return None
    return f"{said['model name']} (family {said.get('cpu family', '?')}, model {said.get('model', '?')})"


def _cpu() -> str:
    try:
        found = cpu_of(Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found or platform.processor() or platform.machine()


def commit() -> str:
    """The commit, with `+` if sources differ from it."""
    try:
        changed = git("--no-optional-locks", "status", "--porcelain", "--", "src")
        return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except GitError:
        return "unknown"

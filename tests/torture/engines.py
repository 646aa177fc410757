"""Kills on Ray and on NVIDIA FLARE: processes are killed, or stopped for 75 s and continued, at random moments of a run.

Whoever answers again in time has changed no bit; whoever does not is named, and nobody else; a run that ends goes on with `--resume`.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import tomli_w

from coterie.base.files import read_toml
from deployment import HOSPITALS, deployed, differences, family
from torture.apart import PATIENCE, Tries, command
from torture.generated import Generated
from torture.worlds import complaint, numbers

STOPPED = 75.0
"""Seconds for which a process is stopped."""
METHODS = (
    {"name": "fedavg"},
    {"name": "meritfed", "targets": "all"},
    {"name": "varsel", "internal": ["a", "b"], "preselect": "smallest"},
    {"name": "maxfl", "warmup_steps": 2},
    {"name": "fedprox", "mu": 0.5},
)
"""Methods whose clients keep no state, so that one that is asked again answers with the same bits."""


def send(processes: Iterable[int], number: int) -> None:
    """Send a signal to those that live."""
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def disturb(processes: list[int], how: str) -> None:
    """Kill processes, or stop and continue them."""
    if how == "KILL":
        return send(processes, signal.SIGKILL)
    send(processes, signal.SIGSTOP)
    time.sleep(STOPPED)
    return send(processes, signal.SIGCONT)


def failures(run: Path) -> dict[str, str]:
    """Return who failed in a complete run, and why."""
    found: dict[str, str] = {}
    for path in (run / "checkpoint").glob("*/done.json"):
        found |= json.loads(path.read_text())["failures"]
    return found


def rounds_of(run: Path) -> int:
    """How many rounds of a run are saved."""
    return sum(
        path.read_bytes().count(b"\n")
        for path in (run / "checkpoint").glob("*/history.jsonl")
    )


def wait_for(process: subprocess.Popen[str], reached: Callable[[], bool]) -> bool:
    """Wait until something is reached: True, or until a process has ended: False."""
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        if reached():
            return True
        time.sleep(0.01)
    return False


def names_of(pids: Iterable[int]) -> dict[int, str]:
    """The command line of each process that lives."""
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            found[pid] = (
                Path(f"/proc/{pid}/cmdline")
                .read_bytes()
                .decode(errors="replace")
                .replace("\0", " ")
                .strip()
            )
    return found


def how_it_ended(
    process: subprocess.Popen[str], allowed: tuple[int, ...], started: Iterable[int]
) -> str:
    """Say what is wrong with how a command has ended, or nothing."""
    try:
        err = process.communicate(timeout=PATIENCE)[1]
    except subprocess.TimeoutExpired:
        send(family(process.pid), signal.SIGKILL)
        process.communicate()
        return "hang"
    if "Traceback" in err or process.returncode == 70:
        return f"traceback: {err[-400:]}"
    if process.returncode not in allowed:
        return f"other: status {process.returncode}: {err[-400:]}"
    deadline = time.monotonic() + 120
    while names_of(started) and time.monotonic() < deadline:
        time.sleep(0.2)
    if left := names_of(started):
        send(left, signal.SIGKILL)
        return f"orphan: {[name[:60] for name in left.values()]}"
    return ""


# ---- Ray

ON_RAY = (
    ("the command", "KILL"),
    ("the command", "STOP and CONT"),
    ("an actor", "KILL"),
    ("an actor", "STOP and CONT"),
    ("all actors", "KILL"),
    ("all actors", "STOP and CONT"),
    ("the node", "KILL"),
)
"""Which processes of a run on Ray are disturbed, and how."""


def ray_experiment(method: dict[str, Any]) -> Generated:
    """Forty rounds of a method on two actors."""
    tables = {
        "data": {"folder": "rows", "label": "ill", "server_file": "server.csv"},
        "split": {"folds": 0},
        "model": {"name": "mlp"},
        "local": {"lr": 0.1, "steps": 3, "batch_size": 4},
        "methods": [method],
        "run": {"rounds": 40, "seeds": [0], "evaluate": 10},
        "engine": {"name": "ray", "actors": 2},
    }
    return Generated(tables, frozenset())


def run_on_ray(
    folder: Path, who: str, how: str, at: int, expected: dict[str, bytes]
) -> str:
    """Begin a run on Ray, disturb it once it has saved `at` rounds, let it go on in one process, and say what is wrong."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "coterie",
            "run",
            "town.toml",
            "--out",
            "run",
            "--no-report",
        ],
        cwd=folder,
        env={
            **os.environ,
            "RAY_worker_niceness": "0",
        },  # a busy machine would starve the actors
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    reached = wait_for(process, lambda: rounds_of(folder / "run") >= at)
    started = [pid for pid in family(process.pid) if pid != process.pid]
    if reached:
        names = names_of(started)
        actors = [pid for pid, name in names.items() if name.startswith("ray::Actor")]
        chosen = {
            "the command": [process.pid],
            "an actor": actors[:1],
            "all actors": actors,
            "the node": [
                pid for pid, name in names.items() if "/raylet/raylet" in name
            ],
        }[who]
        disturb(chosen, how)
    allowed = (
        (0, -signal.SIGKILL)
        if who == "the command"
        else (0, 1)
        if how == "KILL"
        else (0,)
    )
    if wrong := how_it_ended(process, allowed, started):
        return wrong
    tables = read_toml(folder / "town.toml")
    (folder / "here.toml").write_text(
        tomli_w.dumps({**tables, "engine": {"name": "inprocess"}})
    )
    resumed = command(
        folder, "run", "here.toml", "--out", "run", "--no-report", "--resume"
    )
    if wrong := complaint(resumed):
        return wrong
    if resumed.status != 0:
        return f"data lost: status {resumed.status}: {resumed.err[-300:]}"
    failed = failures(folder / "run")
    if (
        who in ("an actor", "all actors") and how == "KILL" and failed
    ):  # an actor may have answered before it was killed
        return (
            ""
            if all("its actor ended" in why for why in failed.values())
            else f"other: {failed}"
        )
    found = numbers(folder / "run")
    found.pop("asks.csv", None)  # what each ask cost, which one process does not write
    return (
        ""
        if found == expected
        else f"silently different: {[n for n in found if found[n] != expected.get(n)][:4]}"
    )


def ray_runs(
    rng: random.Random, folder: Path, methods: list[str], until: float
) -> Tries:
    """Runs on Ray, each disturbed once."""
    kinds = [*ON_RAY]
    rng.shuffle(kinds)
    for number in range(10_000):
        if time.monotonic() > until:
            return
        method = METHODS[number % len(METHODS)]
        base = folder / f"ray-{number}"
        ray_experiment(method).write(base)
        here = {**ray_experiment(method).tables, "engine": {"name": "inprocess"}}
        (base / "here.toml").write_text(tomli_w.dumps(here))
        whole = command(base, "run", "here.toml", "--out", "run", "--no-report")
        who, how = kinds[number % len(kinds)]
        at = rng.randrange(1, 40)
        wrong = complaint(whole) or run_on_ray(
            base, who, how, at, numbers(base / "run")
        )
        shutil.rmtree(base)
        yield (
            (method["name"], who, how, at),
            wrong,
            (f"method: {method['name']}", f"signal: {who} {how}"),
        )


# ---- FLARE

ON_FLARE = (
    ("a site", "KILL"),
    ("a site", "STOP and CONT"),
    ("a site's job", "KILL"),
    ("the server", "KILL"),
    ("the server", "STOP and CONT"),
)
"""Which processes of a deployment are disturbed, and how."""
JOB = '\n[[methods]]\nname = "fedavg"\n\n[[methods]]\nname = "meritfed"\ntargets = ["switzerland"]\n'


def flare_runs(
    rng: random.Random, folder: Path, methods: list[str], until: float
) -> Tries:
    """Jobs of one deployment with mutual TLS, each disturbed once."""
    kinds = [*ON_FLARE]
    rng.shuffle(kinds)
    with deployed(folder, methods=JOB, rounds=12, timeout=300.0) as made:
        made.plan.write_text(made.plan.read_text() + "runs = 100\n")
        for name in HOSPITALS:
            made.approve(name)
        made.coterie("run", made.plan, "--out", folder / "whole", "--no-report")
        for number in range(10_000):
            if time.monotonic() > until:
                return
            who, how = kinds[number % len(kinds)]
            site, at = rng.choice(HOSPITALS), rng.randrange(1, 24)
            run = folder / f"run-{number}"
            wrong = disturb_job(made, run, (who, how, site), at)
            yield (
                (who, how, site, at),
                wrong,
                ("method: fedavg", "method: meritfed", f"signal: {who} {how}"),
            )


def disturb_job(made: Any, run: Path, what: tuple[str, str, str], at: int) -> str:
    """Submit a plan, disturb a process once `at` rounds are saved, submit it again until it is complete, and say what is wrong."""
    who, how, site = what
    name = "localhost" if who == "the server" else site
    process = made.coterie(
        "submit", made.plan, "--out", run, "--no-report", background=True
    )

    def reached() -> bool:
        made.start_ended()
        return rounds_of(run) >= at

    if wait_for(process, reached):
        pids = family(made.processes[name].pid)
        if who == "a site's job":
            pids = [
                pid for pid, line in names_of(pids).items() if "worker_process" in line
            ]
        disturb(pids, how)
    if wrong := how_it_ended(process, (0, 1), []):
        return wrong
    for _ in range(3):
        made.start_ended()
        again = made.coterie(
            "submit", made.plan, "--out", run, "--no-report", "--resume", check=False
        )
        away = again.returncode == 2 and "not connected to the server" in again.stderr
        if "Traceback" in again.stderr or (again.returncode not in (0, 1) and not away):
            return f"traceback: {again.stderr[-400:]}"
        if again.returncode == 0:
            break
    else:
        return f"data lost: {again.stderr[-300:]}"
    failed = failures(run)
    if failed:
        return "" if set(failed) == {site} else f"other: blames {sorted(failed)}"
    differing = differences(made.folder / "whole", run, *made.kept)
    return f"silently different: {differing[:4]}" if differing else ""

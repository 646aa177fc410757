"""Other frameworks on the same work: pfl-research, fedjax, FedLab and the simulation of Flower, each in an environment of its own.

The works are W1, a CNN, an LSTM over the lines of an image, and a logistic regression of 10,000 clients with six rows each.

All get the same file: the rows of every client, the participants of every round, the initial weights. A turn is a process
that runs all rounds, on one thread per client that is trained at the same time; turns alternate (A B A B ...). What counts is
the time of rounds, without start-up, the first rounds (compilation, caches) and the last one (in which coterie evaluates).
Frameworks draw their own batches, so models are not equal bit by bit: both must reach the same accuracy on the 10,000 test
images, else there is no number.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from benchmarks import measure, pages, w1
from benchmarks.measure import ROOT, Pair, Seconds, Settings, on_a_quiet_machine, ratio
from benchmarks.peer_scripts.work import Work, build, modules
from coterie import Clients, Part, Rng
from coterie.config.registry import MODELS
from coterie.models import build_model

WHAT = __doc__ or ""
SCRIPTS = ROOT / "benchmarks" / "peer_scripts"
VENVS = ROOT / "build" / "peers"

ENVIRONMENT = {
    **dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"
    ),
    **dict.fromkeys(("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED"), "0"),
    "PYTHONWARNINGS": "ignore",
}


class NotMeasuredError(Exception):
    """A peer has no number; why, in one line."""


class Peer(NamedTuple):
    """A framework.

    Attributes:
        label: for the table.
        script: in `peer_scripts`.
        package: whose version stands in the table.
        venv: folder of its virtual environment.
        installs: arguments of pip, one call after the other.
        must, aim: how many times as fast coterie is to be.
        workers: clients that both train at the same time.
    """

    label: str
    script: str
    package: str = ""
    venv: str = ""
    installs: tuple[tuple[str, ...], ...] = ()
    must: float = 0.0
    aim: float = 0.0
    workers: int = 1


OURS = Peer("coterie", "coterie_work.py")
TORCH = ("torch==2.13.0", "numpy==2.4.6")
FLOWER = (
    "flower_work.py",
    "flwr",
    "flower",
    ((*TORCH, "flwr[simulation]==1.41.0", "ray==2.55.1"),),
    8.0,
    18.0,
)
PEERS = {
    "pfl": Peer("pfl-research", "pfl_work.py", "pfl", "pfl", ((*TORCH, "pfl==0.6.0"),), 2.0, 4.0),
    # fedjax calls jax.tree_map, which newer versions of JAX no longer have.
    "fedjax": Peer(
        "fedjax", "fedjax_work.py", "fedjax", "fedjax",
        (("fedjax==0.0.17", "jax==0.5.3", "jaxlib==0.5.3", "dm-haiku==0.0.17", "optax==0.2.8", "numpy==2.4.6"),),
        1.3, 2.5,
    ),
    # FedLab's data sets import torchvision, whose current wheels want the CUDA build of torch. 0.15.2 is imported without its
    # compiled operators; nothing of it is used here.
    "fedlab": Peer(
        "FedLab", "fedlab_work.py", "fedlab", "fedlab",
        (
            (*TORCH, "pandas==3.1.1", "scikit-learn==1.9.1", "pynvml==13.0.1", "tqdm==4.70.1", "munch==4.0.0"),
            ("pillow==13.0.0", "requests==2.34.2"),
            ("--no-deps", "torchvision==0.15.2", "fedlab==1.3.0"),
        ),
        2.5, 4.5,
    ),
    "flower": Peer("Flower simulation, one client at a time (its default on 2 cores)", *FLOWER),
    "flower2": Peer("Flower simulation, two clients at a time", *FLOWER, workers=2),
}  # fmt: skip


class Sizes(NamedTuple):
    """How much is done in a turn, and how often; `first` and the last round do not count.

    `tolerance` is how far the accuracies of two contestants may lie apart, which draw other batches: after six or eight rounds it
    moves by points from round to round.
    """

    work: w1.Work = w1.Work()
    first: int = 4
    counted: int = 35
    pairs: int = 6
    seconds: float = 300.0
    model: str = "mlp"
    tolerance: float = 0.015

    @property
    def rounds(self) -> int:
        """Rounds of a turn."""
        return self.first + self.counted + 1

    def told(self) -> dict[str, Any]:
        """For the result."""
        work = {
            name: getattr(self.work, name)
            for name in ("clients", "per_round", "steps", "batch_size")
        }
        return {**self._asdict(), "work": work}


WORKS = {
    "w1": Sizes(),
    "cnn": Sizes(w1.Work(steps=15), 1, 6, 2, model="cnn", tolerance=0.03),
    "lstm": Sizes(w1.Work(steps=15), 1, 4, 2, model="lstm", tolerance=0.03),
    "small": Sizes(
        w1.Work(clients=10_000, per_round=100, steps=5, batch_size=6, model="logistic"),
        2,
        10,
        3,
        90.0,
    ),
}
TITLES = {"w1": "W1", "cnn": "CNN", "lstm": "LSTM", "small": "10,000 small clients"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the peers named on the command line, all if none is; write benchmarks/results/peers.json."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description="Other frameworks on the same work.",
    )
    parser.add_argument(
        "--work", action="append", choices=WORKS, help="a work, again for several (all)"
    )
    parser.add_argument(
        "--venvs",
        type=Path,
        help="folder of virtual environments to use as they are (build/peers)",
    )
    parser.add_argument(
        "--attempts",
        type=int,
        default=3,
        help="how often a pair is measured while the machine is busy",
    )
    given, folder = measure.read_arguments(parser, arguments, "peer", PEERS)
    path = folder / "peers.json"
    settings = (
        Settings(True, attempts=1, patience=0.0)
        if given.quick
        else Settings(attempts=given.attempts)
    )
    before = json.loads(path.read_text())["peers"] if path.exists() else {}
    for work in given.work or WORKS:
        sizes = tiny(WORKS[work]) if given.quick else WORKS[work]
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
            held = Path(temporary) / "work.npz"
            source = export(held, sizes, *_rows(sizes, given.quick))
            for name in given.names or PEERS:
                try:
                    python = _python(PEERS[name], given.venvs, given.quick)
                    found = on_a_quiet_machine(
                        partial(compare, PEERS[name], python, held, sizes), settings
                    )
                except NotMeasuredError as reason:
                    found = {"absent": str(reason)}
                made = measure.document("peers", WHAT.strip(), {})
                stamp = {
                    key: made[key]
                    for key in ("measured", "commit", "machine", "versions")
                }
                key, told = f"{work} {name}", {"data": source, "sizes": sizes.told()}
                before = {**before, key: {**found, **told, "made": stamp}}
                keys = [f"{one} {other}" for one in WORKS for other in PEERS]
                result = {
                    **made,
                    "peers": {key: before[key] for key in keys if key in before},
                }
                measure.write(path, result)
                print(" | ".join(_cells(key, before[key])))
    if given.out is None:
        pages.write_summary()
    return 0


def tiny(sizes: Sizes) -> Sizes:
    """The same work in seconds."""
    return sizes._replace(
        work=w1.Work(6, 2, 4, 8, model=sizes.work.model),
        first=1,
        counted=2,
        pairs=2,
        seconds=120.0,
    )


def _rows(sizes: Sizes, quick: bool) -> tuple[Clients, Part, str]:
    if quick:
        return w1.synthetic(sizes.work, 240)
    return w1.load(sizes.work, {"train": 1} if sizes.work.clients > 1000 else w1.PARTS)


def export(path: Path, sizes: Sizes, clients: Clients, test: Part, source: str) -> str:
    """Write what all contestants read (see `peer_scripts/work.py`); `source` is returned."""
    work = sizes.work
    steps = int(clients.train.sizes[0]) // work.batch_size
    if (
        set(clients.train.sizes.tolist()) != {steps * work.batch_size}
        or work.steps % steps
    ):
        raise ValueError(
            "clients must have equally many rows, in whole batches, and train for whole epochs"
        )
    ours = sizes.model == "mlp"
    model = (
        MODELS[work.model]()
        if ours
        else lambda shape, outputs: nn.Sequential(*modules(sizes.model, (), nn))
    )
    layers = build_model(model, clients, w1.SEED).parameters()
    np.savez(
        path,
        images=np.stack([_flat(client.train) for client in clients]),
        labels=np.stack([client.train.labels.numpy() for client in clients]),
        test_images=_flat(test),
        test_labels=test.labels.numpy(),
        participants=np.stack(
            [
                np.sort(
                    Rng.named(w1.SEED, "participants", number).permutation(
                        len(clients), work.per_round
                    )
                )
                for number in range(1, sizes.rounds + 1)
            ]
        ),
        epochs=work.steps // steps,
        batch_size=work.batch_size,
        lr=w1.LR,
        model=sizes.model,
        **{f"layer_{i}": layer.detach().numpy() for i, layer in enumerate(layers)},
    )
    return source


def install(peer: Peer, folder: Path) -> None:
    """Make the virtual environment of a peer in `folder`, unless it is there with the same versions. Raises `NotMeasuredError`."""
    marker, wanted = folder / "installed.json", json.dumps(peer.installs)
    if marker.exists() and marker.read_text() == wanted:
        return
    pip = [
        str(folder / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        *([*pip, *call] for call in peer.installs),
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotMeasuredError(f"cannot be installed: {_last_line(done.stderr)}")
    marker.write_text(wanted)


def compare(peer: Peer, python: Path, work: Path, sizes: Sizes) -> dict[str, Any]:
    """Both in turns on the work in the file `work`. Raises `NotMeasuredError` for a peer that does not run or learns something else."""
    theirs, ours = [], []
    for _ in range(sizes.pairs):
        theirs.append(_turn(peer, python, work, peer.workers, sizes))
        ours.append(_turn(OURS, Path(sys.executable), work, peer.workers, sizes))
    return {**judge(ours, theirs, sizes), "workers": peer.workers}


def judge(
    ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]], sizes: Sizes
) -> dict[str, Any]:
    """What pairs of turns, as the scripts wrote them, say: coterie's speed as a multiple of the peer's. Raises `NotMeasuredError`."""
    accuracy = [
        statistics.median(turn["accuracy"] for turn in turns)
        for turns in (ours, theirs)
    ]
    if abs(accuracy[0] - accuracy[1]) > sizes.tolerance:
        raise NotMeasuredError(
            f"it reaches an accuracy of {accuracy[1]:.3f}, coterie of {accuracy[0]:.3f}, so the work differs"
        )
    counted = slice(sizes.first, sizes.first + sizes.counted)

    def seconds(turn: Mapping[str, Any]) -> Seconds:
        cpu = turn["cpu_seconds"]
        return Seconds(
            sum(turn["seconds"][counted]) / sizes.counted,
            math.nan if cpu is None else sum(cpu[counted]) / sizes.counted,
        )

    found = ratio(
        [Pair(seconds(a), seconds(b)) for a, b in zip(ours, theirs, strict=True)]
    )
    cpu = None if math.isnan(found["cpu_ratio"]) else found["cpu_ratio"]
    return {
        **found,
        "cpu_ratio": cpu,
        "accuracy": accuracy[0],
        "reference_accuracy": accuracy[1],
        "versions": theirs[0]["versions"],
    }


def table(result: Mapping[str, Any]) -> str:
    """The rows of all peers on each work, and the machine."""
    names = (
        "work",
        "against",
        "coterie's speed by the peer's",
        "in CPU time",
        "goal",
        "reached",
    )
    names += (
        "ms a round, coterie / peer",
        "accuracy, coterie / peer",
        "load",
        "commit",
    )
    lines = [
        "| " + " | ".join(names) + " |",
        "| " + " | ".join(["---"] * len(names)) + " |",
        *(
            "| " + " | ".join(_cells(key, found)) + " |"
            for key, found in result["peers"].items()
        ),
    ]
    made = [found["made"] for found in result["peers"].values()]
    where = dict.fromkeys(
        f"{m['machine']['cpu']}, {m['machine']['cores']} cores; Python {m['versions']['python']}, PyTorch {m['versions']['torch']}"
        for m in made
    )
    note = (
        f"{' or '.join(where)}; {max(m['measured'] for m in made)[:10]}. A `+` behind a commit: sources differed from it. Busy: the "
        "load average was above 2.5 in every attempt; then the ratio in CPU time decides, where there is one."
    )
    return "\n".join([*lines, "", note])


def _cells(key: str, found: Mapping[str, Any]) -> tuple[str, ...]:
    work, name = key.split(" ")
    peer, commit = PEERS[name], found["made"]["commit"]
    goal = f"at least {peer.must:g} (aim {peer.aim:g})" if work == "w1" else "none"
    if "absent" in found:
        return (
            TITLES[work],
            peer.label,
            f"not measured: {found['absent']}",
            "-",
            goal,
            "-",
            "-",
            "-",
            "-",
            commit,
        )
    with_cpu = found["cpu_ratio"] is not None
    decisive = measure.decisive(found) if with_cpu else found["ratio"]
    reached = (
        "aim" if decisive >= peer.aim else "yes" if decisive >= peer.must else "no"
    )
    return (
        TITLES[work],
        f"{peer.label}, {peer.package} {found['versions'][peer.package]}",
        f"{found['ratio']:.1f}",
        f"{found['cpu_ratio']:.1f}" if with_cpu else "-",
        goal,
        reached if work == "w1" else "-",
        f"{1000 * found['seconds']:.0f} / {1000 * found['reference_seconds']:.0f}",
        f"{found['accuracy']:.3f} / {found['reference_accuracy']:.3f}",
        f"{found['load'][0]} -> {found['load'][1]}"
        + (" (busy)" if found["busy"] else ""),
        commit,
    )


def _python(peer: Peer, venvs: Path | None, only_present: bool) -> Path:
    folder = (venvs or VENVS) / peer.venv
    python = folder / "bin" / "python"
    if only_present and not python.exists():
        raise NotMeasuredError("it is not installed")
    if not only_present and not (venvs and python.exists()):
        install(peer, folder)
    return python


def _turn(
    peer: Peer, python: Path, work: Path, workers: int, sizes: Sizes
) -> dict[str, Any]:
    """All rounds in a process of their own."""
    answer = work.parent / "result.json"
    for left in (answer, answer.with_suffix(".npz")):
        left.unlink(missing_ok=True)
    environment = {
        **os.environ,
        **ENVIRONMENT,
        "PYTHONPATH": str(ROOT / "src") if peer is OURS else "",
    }
    command = [
        str(python),
        str(SCRIPTS / peer.script),
        str(work),
        str(answer),
        "--workers",
        str(workers),
    ]
    with (work.parent / "output.txt").open("w+") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=work.parent,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status: int | None = process.wait(sizes.seconds)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if process.poll() is None:
                _end(process)
        output.seek(0)
        said = output.read()
    problem = ""
    if status is None:
        problem = f"it took more than {sizes.seconds:.0f} s for {sizes.rounds} rounds"
    elif status or not answer.exists():
        problem = f"it ended with status {status}: {_last_line(said)}"
    if problem and peer is OURS:
        raise RuntimeError(f"{' '.join(command)}: {problem}")
    if problem:
        raise NotMeasuredError(problem)
    found: dict[str, Any] = json.loads(answer.read_text())
    with np.load(answer.with_suffix(".npz")) as layers:
        return {
            **found,
            "accuracy": accuracy(Work(work, workers), list(layers.values())),
        }


def accuracy(work: Work, layers: Sequence[Any]) -> float:
    """Share of test images that a model with these parameters classifies right."""
    module = build(work, nn.Sequential, nn)
    with torch.no_grad():
        for parameter, layer in zip(module.parameters(), layers, strict=True):
            parameter.copy_(torch.as_tensor(layer))
        outputs = module(
            torch.from_numpy(work.test_images.astype(np.float32) / np.float32(255))
        )
    return float((outputs.argmax(1).numpy() == work.test_labels).mean())


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and what it started; politely first, so that a server of workers can end them."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, how)
            process.wait(10)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def _flat(part: Part) -> np.ndarray[Any, Any]:
    if isinstance(part.inputs, dict):
        raise TypeError("W1 takes one tensor of inputs")
    return part.inputs.flatten(1).numpy()


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it said nothing"


if __name__ == "__main__":
    sys.exit(main())

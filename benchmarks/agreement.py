"""Server rules of coterie beside those of other code bases, on the same small numbers.

Batch order and random numbers play no part: rules are given the same updates, and training takes all rows in each step. Where
answers differ, coterie's is computed again with the one choice that explains it, and both differences are shown.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import coterie as ct
from benchmarks import measure
from benchmarks.measure import ROOT
from benchmarks.peers import TORCH, VENVS, NotMeasuredError, Peer, install
from coterie.base.vector import Layout
from coterie.solvers import adam, robust

WHAT = __doc__ or ""
SAME = 1e-6
"""Largest difference, relative to coterie's answer, that single precision explains."""
PACKAGES = Peer(
    "other code bases", "agreement.py", venv="agreement",
    installs=(
        (*TORCH, "flwr==1.41.0", "pfl==0.6.0", "byzfl==0.0.11", "geom_median==0.1.0", "munch==4.0.0", "pynvml==13.0.1",
         "msgpack", "PyYAML", "psutil"),
        ("--no-deps", "torchvision==0.15.2", "fedlab==1.3.0", "nvflare==2.9.0"),
    ),
)  # fmt: skip
Array = NDArray[np.float64]


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask all code bases; write benchmarks/results/agreement.json."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.agreement", description="Rules of other code bases."
    )
    parser.add_argument(
        "--python",
        type=Path,
        help="an interpreter that has the packages (else build/peers)",
    )
    python = parser.parse_args(arguments).python
    if python is None:
        folder = VENVS / PACKAGES.venv
        try:
            install(PACKAGES, folder)
        except NotMeasuredError as reason:
            parser.error(f"the other code bases: {reason}")
        python = folder / "bin" / "python"
    given = problems()
    rows, problem = compare(given, _asked(python, given))
    result = measure.document(
        "agreement", WHAT.strip(), {"rows": rows, "not_run": problem}
    )
    measure.write(ROOT / "benchmarks" / "results" / "agreement.json", result)
    return 0


def problems() -> dict[str, Any]:
    """The numbers that all code bases are given."""
    draws = np.random.default_rng(0)
    sizes = (40, 24, 30, 16)
    rows = []
    for size in sizes:
        x = draws.normal(size=(size, 5)).astype(np.float32)
        y = x @ draws.normal(size=5) + draws.normal(size=size)
        rows.append((x.tolist(), y.astype(np.float32).tolist()))
    return {
        "sizes": list(sizes),
        "rows": rows,
        "classes": [np.digitize(y, (-1.0, 1.0)).tolist() for _, y in rows],
        "work": {"rounds": 3, "steps": 3, "lr": 0.05, "lam": 2.0},
        "models": draws.normal(size=(4, 23)).tolist(),
        "seven": draws.normal(size=(7, 23)).tolist(),
        "seven sizes": [40, 24, 30, 16, 20, 35, 28],
        "byzantine": 1,
        "z": 1.5,
        "eps": 0.1,
        "adam": {
            "start": draws.normal(size=23).tolist(),
            "changes": draws.normal(size=(3, 23)).tolist(),
            "lr": 0.1,
            "betas": [0.9, 0.99],
            "eps": 1e-3,
        },
    }


def ours(given: Mapping[str, Any]) -> dict[str, tuple[Array, dict[str, Array]]]:
    """coterie's answers, each with what another choice, said in words, would answer."""
    models, sizes = np.array(given["models"]), np.array(given["sizes"], dtype=float)
    seven, f = np.array(given["seven"]), given["byzantine"]
    shares, weights = sizes / sizes.sum(), np.array(given["seven sizes"], dtype=float)
    best = {k: robust.multi_krum(seven, f, k).numpy() for k in (1, len(seven) - f)}
    one_more = (
        np.sort(((seven[:, None] - seven[None]) ** 2).sum(-1), axis=1)[
            :, 1 : len(seven) - f
        ]
        .sum(1)
        .argsort()
    )
    krums = {
        k: (
            seven[best[k]].mean(0),
            {"sums n - f - 1 distances": seven[one_more[:k]].mean(0)},
        )
        for k in best
    }
    krums[len(seven) - f][1]["weighs the chosen by size"] = np.average(
        seven[best[len(seven) - f]], axis=0, weights=weights[best[len(seven) - f]]
    )
    spread = seven.std(0, ddof=1)
    attack = ct.attacks.ALIE(z=given["z"])
    plus, minus = (
        attack.rewrite(
            kind, torch.tensor(np.vstack([seven, seven[:1]])), torch.tensor([7]), ()
        )[0].numpy()
        for kind in ("update", "gradient")
    )
    model = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.BatchNorm1d(3))
    layout = Layout.of(model)
    uniform = {"weighs all clients alike": trained(given, uniform=True)}
    return {
        "average": (shares @ models, {"weighs all clients alike": models.mean(0)}),
        "average, with sizes": (shares @ models, {}),
        "FedAvg, 3 rounds": (_fitted(given, "fedavg"), uniform),
        "FedAvg, 3 rounds, with sizes": (_fitted(given, "fedavg"), {}),
        "SCAFFOLD, 3 rounds": (
            _fitted(given, "scaffold"),
            {
                "adds the correction to the gradient with the other sign": trained(
                    given, uniform=True, sign=-1.0
                )
            },
        ),
        "Ditto, 3 rounds, with sizes": (
            _fitted(given, ct.Ditto(lam=given["work"]["lam"]), given["classes"], 3),
            {},
        ),
        "median": (robust.median(seven).numpy(), {}),
        "trimmed mean": (robust.trimmed_mean(seven, f).numpy(), {}),
        "Krum": krums[1],
        "multi-Krum": krums[len(seven) - f],
        "geometric median": (
            robust.geometric_median(seven, smoothing=1e-9, tolerance=1e-12, most=5000)[
                0
            ].numpy(),
            {"takes 3 steps from zero": _weiszfeld(seven, 3)},
        ),
        "geometric median, 2000 steps": (
            robust.geometric_median(seven, smoothing=1e-9, tolerance=1e-12, most=5000)[
                0
            ].numpy(),
            {},
        ),
        "Adam": (
            _adam(given["adam"]),
            {"corrects the bias one step later": _adam(given["adam"], later=1)},
        ),
        "ALIE": (
            plus,
            {
                "divides by n - 1": seven.mean(0) + given["z"] * spread,
                "goes the way of gradients, and divides by n - 1": seven.mean(0)
                - given["z"] * spread,
                "goes the way of gradients": minus,
            },
        ),
        "IPM": (-given["eps"] * seven.mean(0), {}),
        "buffers": (
            np.array([float(layout.size)]),
            {
                "leaves running means and variances where they are": np.array(
                    [float(layout.dim)]
                )
            },
        ),
    }


def compare(
    given: Mapping[str, Any], told: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """A row for each answer, and why a code base did not answer to everything."""
    mine = ours(given)
    rows = []
    for name, peer in told.items():
        for key, answer in peer["answers"].items():
            own, choices = mine[key]
            theirs = np.array(answer).reshape(-1)
            row = {
                "rule": key,
                "code base": name,
                "version": peer["version"],
                "difference": _apart(own, theirs),
            }
            if row["difference"] > SAME:
                found = {
                    choice: _apart(other, theirs) for choice, other in choices.items()
                }
                nearest = min(found, key=lambda choice: found[choice], default="")
                explained = nearest and found[nearest] <= SAME
                row |= (
                    {"choice": nearest, "with it": found[nearest]}
                    if explained
                    else {"choice": "", "with it": None}
                )
            rows.append(row)
    order = {key: number for number, key in enumerate(mine)}
    return sorted(rows, key=lambda row: order[row["rule"]]), {
        n: p["problem"] for n, p in told.items() if "problem" in p
    }


def table(result: Mapping[str, Any]) -> str:
    """The rows as a page shows them."""
    head = (
        "rule",
        "code base",
        "difference",
        "what it does otherwise",
        "difference with that",
    )
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join(['---'] * len(head))} |"]
    for row in result["rows"]:
        differs = row["difference"] > SAME
        choice = (row["choice"] or "not explained") if differs else ""
        left = f"{row['with it']:.0e}" if differs and row["choice"] else ""
        cells = (
            row["rule"],
            f"{row['code base']} {row['version']}",
            f"{row['difference']:.0e}",
            choice,
            left,
        )
        lines.append(f"| {' | '.join(cells)} |")
    stopped = [
        f"{name} stopped: `{problem}`." for name, problem in result["not_run"].items()
    ]
    note = f"Measured on {result['measured'][:10]} at commit {result['commit']} with PyTorch {result['versions']['torch']}."
    return "\n".join([*lines, "", *stopped, note])


def _asked(python: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder) / "problems.json", Path(folder) / "answers.json"
        asked.write_text(json.dumps(given))
        script = ROOT / "benchmarks" / "peer_scripts" / PACKAGES.script
        subprocess.run(
            [
                str(python.absolute()),
                "-W",
                "ignore",
                str(script),
                str(asked),
                str(answered),
            ],
            check=True,
            cwd=folder,
            stdout=subprocess.DEVNULL,
        )
        answers: dict[str, Any] = json.loads(answered.read_text())
        return answers


def _apart(own: Array, theirs: Array) -> float:
    return (
        float(np.abs(own - theirs).max() / np.abs(own).max())
        if own.shape == theirs.shape
        else float("inf")
    )


def _fitted(
    given: Mapping[str, Any], method: Any, labels: Sequence[Any] = (), outputs: int = 1
) -> Array:
    """The models that a method of coterie trains, the common one first, with all rows in each step, from zero; `labels` are classes."""
    work = given["work"]
    local = ct.LocalSGD(lr=work["lr"], steps=ct.Steps(work["steps"]), batch_size=None)
    wanted = labels or [y for _, y in given["rows"]]
    pairs = [
        (torch.tensor(x), torch.tensor(y))
        for (x, _), y in zip(given["rows"], wanted, strict=True)
    ]
    rows = [{"train": pair, "test": pair} for pair in pairs]
    model = torch.nn.Linear(5, outputs)
    zero = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    run = ct.fit(
        method,
        ct.data.from_tensors(rows),
        model,
        rounds=work["rounds"],
        local=local,
        init=zero,
    )
    return torch.cat(list(run.models.values())).double().numpy()


def trained(given: Mapping[str, Any], uniform: bool, sign: float = 0.0) -> Array:
    """The same in NumPy, with a choice of weights and of the sign of SCAFFOLD's correction (0: no correction)."""
    work, count = given["work"], len(given["rows"])
    rows = [
        (np.hstack([np.array(x), np.ones((len(y), 1))]), np.array(y))
        for x, y in given["rows"]
    ]
    shares = (
        np.full(count, 1 / count)
        if uniform
        else np.array(given["sizes"]) / sum(given["sizes"])
    )
    x, own = np.zeros(6), np.zeros((count, 6))
    for _ in range(work["rounds"]):
        moved, before = [], own.mean(0)
        for i, (inputs, labels) in enumerate(rows):
            y = x.copy()
            for _ in range(work["steps"]):
                slope = 2 * inputs.T @ (inputs @ y - labels) / len(labels)
                y -= work["lr"] * (slope + sign * (before - own[i]))
            moved.append(y)
            if sign:
                own[i] += (x - y) / (work["steps"] * work["lr"]) - before
        x = shares @ np.array(moved)
    return x


def _adam(given: Mapping[str, Any], later: int = 0) -> Array:
    """Adam at the server; `later` shifts the step by which the bias of the moments is corrected."""
    x, moments = (
        np.array(given["start"]),
        torch.zeros(2, len(given["start"]), dtype=torch.float64),
    )
    (one, two), lr = given["betas"], given["lr"]
    for number, change in enumerate(given["changes"]):
        step = adam.step(
            -np.array(change),
            moments,
            number,
            lr=lr,
            betas=(one, two),
            eps=given["eps"],
        )
        moments = step.moments
        if later:
            rate = (
                lr
                * np.sqrt(1 - two ** (number + 1 + later))
                / (1 - one ** (number + 1 + later))
            )
            x = x - rate * moments[0].numpy() / (
                np.sqrt(moments[1].numpy()) + given["eps"]
            )
        else:
            x = x + step.change.numpy()
    return x


def _weiszfeld(rows: Array, steps: int, nu: float = 0.1) -> Array:
    point = np.zeros(rows.shape[1])
    for _ in range(steps):
        weights = 1 / np.maximum(nu, np.linalg.norm(rows - point, axis=1))
        point = weights @ rows / weights.sum()
    return point


if __name__ == "__main__":
    sys.exit(main())

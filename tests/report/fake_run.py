"""Run directories with numbers of which the truth is known, written as docs/run-directory.md says."""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

HEART = ("cleveland", "hungary", "switzerland", "long-beach")
N_TEST = {"cleveland": 101, "hungary": 98, "switzerland": 41, "long-beach": 67}
MAJORITY = {
    "cleveland": 0.541,
    "hungary": 0.639,
    "switzerland": 0.8,
    "long-beach": 0.745,
}

# accuracy, balanced accuracy, AUC, log-loss per client: the numbers of the planning page.
STORY: dict[str, dict[str, tuple[float, float, float, float]]] = {
    "local": {
        "cleveland": (0.773, 0.770, 0.850, 0.480),
        "hungary": (0.832, 0.812, 0.890, 0.400),
        "switzerland": (0.927, 0.560, 0.770, 0.270),
        "long-beach": (0.762, 0.600, 0.702, 0.518),
    },
    "fedavg": {
        "cleveland": (0.772, 0.771, 0.852, 0.470),
        "hungary": (0.813, 0.805, 0.880, 0.418),
        "switzerland": (0.778, 0.712, 0.806, 0.512),
        "long-beach": (0.787, 0.671, 0.770, 0.432),
    },
    "meritfed": {
        "cleveland": (0.775, 0.771, 0.852, 0.465),
        "hungary": (0.818, 0.806, 0.886, 0.405),
        "switzerland": (0.923, 0.571, 0.790, 0.268),
        "long-beach": (0.781, 0.655, 0.768, 0.462),
    },
}
METRICS = ("accuracy", "balanced_accuracy", "auc", "loss")
COST = {"local": 1.0, "fedavg": 1.0, "meritfed": 2.31}

# Rows: targets; columns: clients in the order of HEART.
WEIGHTS = {
    "cleveland": (0.52, 0.37, 0.01, 0.10),
    "hungary": (0.29, 0.62, 0.01, 0.08),
    "switzerland": (0.01, 0.02, 0.94, 0.03),
    "long-beach": (0.38, 0.09, 0.05, 0.48),
}

Truth = Mapping[str, Mapping[str, tuple[float | None, ...]]]


def write(
    folder: Path,
    truth: Truth = STORY,
    *,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    n_test: Mapping[str, int] | int = 100,
    majority: Mapping[str, float | None] | float | None = 0.6,
    algorithms: Mapping[str, str] | None = None,
    weights: Mapping[str, Mapping[str, Sequence[float]]] | None = None,
    metrics: Sequence[str] = METRICS,
    noise: float = 0.006,
    rounds: int = 60,
    skip: Iterable[tuple[str, int]] = (),
    notes: Sequence[str] = (
        "Cholesterol of 0 is a missing value: 172 of 920 rows.",
        "Scaled with pooled sums.",
    ),
    name: str = "heart-disease",
    outcomes: bool = True,
    tuned: Mapping[str, str] | None = None,
    boosted: Mapping[str, float] | None = None,
) -> Path:
    """A run directory in which `truth[method][client]` are the means over many seeds of `metrics`; `tuned` names, for a method whose
    bias is tuned, the one that it is otherwise; `boosted` are the losses of each client's own boosted trees."""
    folder.mkdir(parents=True, exist_ok=True)
    tuned = tuned or {}
    algorithms = {m: m for m in truth} | dict(tuned) | dict(algorithms or {})
    clients = list(next(iter(truth.values())))
    sizes = {c: n_test if isinstance(n_test, int) else n_test[c] for c in clients}
    shares = {
        c: majority[c] if isinstance(majority, Mapping) else majority for c in clients
    }
    done = [(m, s) for m in truth for s in seeds if (m, s) not in set(skip)]
    values = {
        (m, s): _measure(truth[m], s, list(truth).index(m), noise) for m, s in done
    }
    summary = []
    for (method, seed), per_client in values.items():
        for client, numbers in per_client.items():
            for split in ("train", "test"):
                row = dict(zip(metrics, numbers, strict=True))
                row |= _baselines(shares[client], seed)
                summary.append(
                    {
                        "method": method,
                        "algorithm": algorithms[method],
                        "fold": "",
                        "seed": seed,
                        "client": client,
                        "split": split,
                    }
                    | {
                        "n": sizes[client] * (1 if split == "test" else 2),
                        "n_train": 2 * sizes[client],
                    }
                    | row
                    | {
                        "row_gradients": int(144000 * COST.get(method, 1.5)),
                        "rounds": rounds,
                    }
                    | {"own_model": method != "fedavg"}
                )
    (folder / "summary.json").write_text(json.dumps(summary, indent=1))
    for (method, seed), per_client in values.items() if outcomes else ():
        _outcomes(
            folder / "outcomes", method, seed, per_client, sizes, shares, metrics, noise,
            boosted if algorithms[method] == "local" else None,
        )  # fmt: skip
    _history(folder / "history.csv", values, metrics, rounds)
    _weights(folder / "weights.csv", weights or {}, clients, done, rounds)
    _csv(
        folder / "timing.csv",
        "method,seed,fold,round,seconds,own",
        [(m, s, "", r, 0.02, 0.005) for m, s in done for r in range(1, rounds + 1)],
    )
    _settings(folder, name, truth, algorithms, seeds, rounds, notes, tuned)
    return folder


def heart(folder: Path, **changes: Any) -> Path:
    """The story of the first screen: four hospitals, three methods."""
    weights = {
        "meritfed": WEIGHTS,
        "fedavg": {"*": tuple(N_TEST[c] / sum(N_TEST.values()) for c in HEART)},
    }
    settings: dict[str, Any] = {
        "n_test": N_TEST,
        "majority": MAJORITY,
        "weights": weights,
    } | changes
    return write(folder, **settings)


def _measure(
    truth: Mapping[str, tuple[float | None, ...]], seed: int, method: int, noise: float
) -> dict[str, list[float | None]]:
    """True means, a wobble of the split that all methods share, and a small one of their own."""
    result: dict[str, list[float | None]] = {}
    for i, (client, numbers) in enumerate(truth.items()):
        shared = np.random.default_rng([seed, i]).normal(0, 3 * noise, len(numbers))
        own = np.random.default_rng([seed, i, method + 1]).normal(
            0, noise, len(numbers)
        )
        result[client] = [
            None if v is None else round(float(v + a + b), 6)
            for v, a, b in zip(numbers, shared, own, strict=True)
        ]
    return result


def _outcomes(
    folder: Path,
    method: str,
    seed: int,
    values: Mapping[str, Any],
    sizes: Mapping[str, int],
    shares: Mapping[str, float | None],
    metrics: Sequence[str],
    noise: float,
    boosted: Mapping[str, float] | None,
) -> None:
    """Losses and outputs of test rows: what is hard is so for every method, and each has a small noise of its own."""
    found: dict[str, list[Any]] = {}
    names = [c for c in values if "loss" in metrics]
    for i, client in enumerate(names):
        size, loss = (
            sizes[client],
            dict(zip(metrics, values[client], strict=True))["loss"],
        )
        numbers = np.sort(np.random.default_rng([seed, i]).permutation(3 * size)[:size])
        hard = np.random.default_rng([i]).normal(0, 0.2, 3 * size)[numbers]
        own = np.random.default_rng([seed, i, *method.encode()]).normal(0, noise, size)
        share = shares[client]
        labels = (
            numbers / size
            if share is None
            else (numbers < share * 3 * size).astype(int)
        )
        columns = {
            "numbers": numbers,
            "loss": loss + hard - hard.mean() + own - own.mean(),
            "labels": labels,
        }
        columns |= {
            "constant_loss": np.full(size, 0.65),
            "outputs": (labels + 5 * hard + own)[:, None],
        }
        if boosted is not None:
            own = np.random.default_rng([seed, i, 7]).normal(0, noise, size)
            of_trees = boosted[client] + hard - hard.mean() + own - own.mean()
            columns["boosted_loss"] = of_trees
        for key, column in columns.items():
            found.setdefault(key, []).append(column)
    if names:
        tensors = {
            key: np.ascontiguousarray(np.concatenate(columns))
            for key, columns in found.items()
        }
        tensors["offsets"] = np.cumsum([0, *(sizes[c] for c in names)])
        about = {"method": method, "seed": seed, "fold": "", "clients": names}
        folder.mkdir(exist_ok=True)
        name = hashlib.blake2b(method.encode(), digest_size=8).hexdigest()
        save_file(
            tensors,
            folder / f"{name}-{seed}.safetensors",
            metadata={"coterie": json.dumps(about)},
        )


def _baselines(share: float | None, seed: int) -> dict[str, float | None]:
    if share is None:
        return {"majority": None, "majority_loss": None}
    entropy = -share * math.log(share) - (1 - share) * math.log(1 - share)
    return {
        "majority": share + 0.001 * (seed % 2),
        "majority_loss": entropy + 0.002 * (seed % 3),
    }


def _csv(path: Path, header: str, rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header.split(","))
        writer.writerows(rows)


def _history(
    path: Path,
    values: Mapping[tuple[str, int], Any],
    metrics: Sequence[str],
    rounds: int,
) -> None:
    rows: list[Sequence[Any]] = []
    for (method, seed), per_client in values.items():
        for at in range(0, rounds + 1, 5):
            left = math.exp(-at / 12)
            for client, numbers in per_client.items():
                for metric, final in zip(metrics, numbers, strict=True):
                    start = 0.693 if metric == "loss" else 0.5
                    value = (
                        ""
                        if final is None
                        else round(final + (start - final) * left, 6)
                    )
                    rows.append((method, seed, "", at, client, "test", metric, value))
            rows.append((method, seed, "", at, "*", "", "row_gradients", at * 2400))
    _csv(path, "method,seed,fold,round,client,split,metric,value", rows)


def _weights(
    path: Path,
    weights: Mapping[str, Any],
    clients: Sequence[str],
    done: Any,
    rounds: int,
) -> None:
    rows = [
        (
            method,
            seed,
            "",
            at,
            target,
            client,
            round(w + (1 / len(clients) - w) * math.exp(-at / 8), 6),
        )
        for method, seed in done
        for at in range(5, rounds + 1, 5)
        for target, row in weights.get(method, {}).items()
        for client, w in zip(clients, row, strict=True)
    ]
    _csv(path, "method,seed,fold,round,target,client,weight", rows)


def _settings(
    folder: Path,
    name: str,
    truth: Truth,
    algorithms: Any,
    seeds: Any,
    rounds: int,
    notes: Any,
    tuned: Any,
) -> None:
    lines = [
        "[data]",
        f"name = {json.dumps(name)}",
        "",
        "[local]",
        "lr = 0.1",
        "steps = 10",
        "batch_size = 16",
        "",
    ]
    for method in truth:
        lines += [
            "[[methods]]",
            f"name = {json.dumps(algorithms[method])}",
            f"label = {json.dumps(method)}",
        ]
        lines += (
            ['personalise = {part = "bias", steps = [0, 10]}', ""]
            if method in tuned
            else [""]
        )
    lines += ["[run]", f"rounds = {rounds}", f"seeds = {list(seeds)}", ""]
    (folder / "experiment.toml").write_text("\n".join(lines))
    (folder / "format.json").write_text('{"format": 4}')
    (folder / "notes.json").write_text(json.dumps(list(notes)))
    environment = {
        "command": f"coterie compare {name} --seeds {len(seeds)}",
        "start": "2025-11-21T11:20:36+00:00",
        "end": "2025-11-21T11:21:12+00:00",
        "machine": "x86_64, 2 cores",
        "versions": {"coterie": "0.1.0", "torch": "2.13.0", "python": "3.11.7"},
    }
    (folder / "environment.json").write_text(json.dumps(environment))

"""MaxFL's objective for mean estimation: two clients (Figs. 5b and 8) and three (Fig. 6); its weights (Fig. 2).

    python -m experiments.maxfl_landscape          # a few seconds; writes experiments/results/maxfl_landscape.json

F_k(w) = (w - mean_k)^2 + rho_k, so that client k's gap at w is (w - mean_k)^2. Two clients have empirical means -g and g; three have
empirical means drawn with variance 1 about true ones. MaxFL's optimum is the lowest of the fixed points of Algorithm 1 that it reaches
from each client's mean and from their average.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

from coterie.base.rng import Rng
from coterie.solvers import appeal
from experiments.documents import RESULTS

HALF_DISTANCES = (0.25, 0.5, 1.0, 1.1, 2.0, 4.0, 9.0)
"""g^2 of two clients."""
CASES = {"near": (0.0, 0.1, 0.2), "far": (0.0, 5.0, 10.0), "two near": (0.0, 0.1, 10.0)}
"""True means of three clients."""
GRID = 4001
TRACED = (0.25, 4.0)
"""g^2 of the two clients whose curves are drawn."""
POINTS = 49
TOLERANCE = 1e-3
"""A client whose loss is no higher than its own model's by more than this is served as well."""


def objective(w: Tensor, means: Tensor) -> Tensor:
    """MaxFL's objective at w [...] for means [n, ...]."""
    return torch.sigmoid((w - means).square()).mean(0)


def two_clients(squared: float) -> dict[str, Any]:
    """Number of minima, and how much larger the server's rate 1 / sum q is at the midpoint than at a minimum."""
    half = squared**0.5
    grid = torch.linspace(-half - 1, half + 1, GRID, dtype=torch.float64)
    means = torch.tensor([[-half], [half]], dtype=torch.float64)
    values = objective(grid, means)
    inner = (values[1:-1] < values[:-2]) & (values[1:-1] < values[2:])
    rate = 1 / appeal.weights((grid - means).square().flatten()).view(2, -1).sum(0)
    ratio = rate[GRID // 2] / rate[values.argmin()]
    return {"g^2": squared, "minima": int(inner.sum()), "rate, midpoint over minimum": float(ratio)}


def curves(squared: float) -> dict[str, list[list[float]]]:
    """MaxFL's objective and the server's rate 1 / sum q between and around two clients."""
    half = squared**0.5
    grid = torch.linspace(-half - 1, half + 1, POINTS, dtype=torch.float64)
    means = torch.tensor([[-half], [half]], dtype=torch.float64)
    rate = 1 / appeal.weights((grid - means).square().flatten()).view(2, -1).sum(0)
    drawn = {f"objective, g² = {squared:g}": objective(grid, means), f"rate, g² = {squared:g}": rate}
    return {name: _rounded(grid, values) for name, values in drawn.items()}


def _rounded(across: Tensor, up: Tensor) -> list[list[float]]:
    return [[float(f"{v:.5g}") for v in axis.tolist()] for axis in (across, up)]


def optimum(means: Tensor, steps: int = 500) -> Tensor:
    """MaxFL's optimum [runs] for empirical means [n, runs]."""
    reached = []
    for start in [*means, means.mean(0)]:
        w = start.clone()
        for _ in range(steps):
            q = appeal.weights((w - means).square().flatten()).view(means.shape)
            w = (q * means).sum(0) / q.sum(0)
        reached.append(w)
    found = torch.stack(reached)
    best = torch.stack([objective(w, means) for w in found]).argmin(0)
    return found.gather(0, best.unsqueeze(0)).squeeze(0)


def three_clients(case: str, seed: int, runs: int = 1000) -> list[dict[str, Any]]:
    """For MaxFL, the average of all and that of the first two: in which share of draws how many clients are satisfied."""
    truth = torch.tensor(CASES[case], dtype=torch.float64).unsqueeze(1)
    noise = torch.randn(3, runs, generator=Rng.named(seed, "landscape", case).generator(), dtype=torch.float64)
    means = truth + noise
    average, rows = means.mean(0), []
    for method, w in (("maxfl", optimum(means)), ("average", average), ("first two", means[:2].mean(0))):
        shift = w - means  # (w - theta)^2 < (mean - theta)^2  <=>  shift (shift + 2 (mean - theta)) < 0
        loss = shift * (shift + 2 * noise)
        satisfied = loss < 0
        rows.append(
            {
                "method": method,
                "case": case,
                "seed": seed,
                "at least one satisfied": share(satisfied.any(0)),
                "at least one as good": share((loss <= TOLERANCE).any(0)),
                "both of the first two satisfied": share(satisfied[:2].all(0)),
                "appeal": share(satisfied),
                "distance from the average": float((w - average).abs().mean()),
            }
        )
    return rows


def share(flags: Tensor) -> float:
    """Share of true ones."""
    return float(flags.double().mean())


def measure(seeds: int = 5) -> dict[str, Any]:
    """All figures; of Fig. 2 the gap with the largest weight."""
    gaps = torch.linspace(-10, 10, GRID, dtype=torch.float64)
    coarse = torch.linspace(-6, 6, POINTS, dtype=torch.float64)
    traced = {"weight": _rounded(coarse, appeal.weights(coarse))}
    for squared in TRACED:
        traced |= curves(squared)
    return {
        "curves": traced,
        "gap of the largest weight": float(gaps[appeal.weights(gaps).argmax()]),
        "two": [two_clients(squared) for squared in HALF_DISTANCES],
        "three": [row for case in CASES for seed in range(seeds) for row in three_clients(case, seed)],
    }


def main() -> None:
    """Write the file of results."""
    (RESULTS / "maxfl_landscape.json").write_text(json.dumps(measure(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

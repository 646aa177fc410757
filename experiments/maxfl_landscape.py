"""MaxFL's objective for mean estimation: two clients (Figs. 5b and 8) and three (Fig. 6); its weights (Fig. 2).

    python -m experiments.maxfl_landscape          # a minute; writes experiments/results/maxfl_landscape.json

F_k(w) = (w - mean_k)^2 + rho_k, so that client k's gap at w is (w - mean_k)^2. Two clients have empirical means -g and g; three have
empirical means drawn with variance 1 about true ones. MaxFL's optimum is the lowest of the fixed points of Algorithm 1 that it reaches
from each client's mean and from their average.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

from coterie.base.rng import Rng
from coterie.solvers import appeal
from experiments.documents import Document, Row, write
from experiments.running import provenance, shared

NAME = "maxfl_landscape"
NEAR, FAR = (0.25, 0.5, 1.0), (1.1, 2.0, 4.0, 9.0)
"""g^2 of two clients below and above 1.044, where the midpoint ceases to be a minimum: g^2 tanh(g^2 / 2) = 1/2."""
CASES = {
    "near": (0.0, 0.1, 0.2),
    "two near": (0.0, 0.1, 10.0),
    **{
        f"far (0, {a}, {b})": (0.0, float(a), float(b))
        for a in (3, 4, 5)
        for b in (10, 12, 15)
    },
    "far (0, 10, 30)": (0.0, 10.0, 30.0),
}
"""True means of three clients. The paper says of Fig. 6b only that all three differ, so a grid stands for it: at (0, 5, 10) the
average lies on the middle client's own mean. At (0, 10, 30) a client's noise hardly ever reaches another."""
GRID = 4001
BEYOND = 4.0
"""How far left and right of the two clients the rate is looked at: the paper speaks of flat regions where |w| >> 0."""
CLOSE = 0.1
"""What counts as the same place, in standard deviations of an empirical mean."""
TOLERANCE = 1e-3
"""A client whose loss is no higher than its own model's by more than this is served as well."""


def objective(w: Tensor, means: Tensor) -> Tensor:
    """MaxFL's objective at w [...] for means [n, ...]."""
    return torch.sigmoid((w - means).square()).mean(0)


def two_clients(squared: float) -> dict[str, float | None]:
    """Return the number of minima, and how the server's rate goes with the objective's slope and curvature.

    The rate is 1 / sum q; the rank correlations are taken over a grid of w.
    """
    half = squared**0.5
    grid = torch.linspace(-half - BEYOND, half + BEYOND, GRID, dtype=torch.float64)
    means = torch.tensor([[-half], [half]], dtype=torch.float64)
    values = objective(grid, means)
    inner = (values[1:-1] < values[:-2]) & (values[1:-1] < values[2:])
    rate = 1 / appeal.weights((grid - means).square().flatten()).view(2, -1).sum(0)
    (slope,) = torch.gradient(values, spacing=(grid,))
    (curvature,) = torch.gradient(slope, spacing=(grid,))
    return {
        f"minima, g² = {squared:g}": float(inner.sum()),
        f"rate and slope, g² = {squared:g}": rank_correlation(rate, slope.abs()),
        f"rate and curvature, g² = {squared:g}": rank_correlation(
            rate, curvature.abs()
        ),
    }


def rank_correlation(one: Tensor, two: Tensor) -> float:
    """Return Spearman's correlation of two vectors without ties."""
    ranks = torch.stack([values.argsort().argsort().double() for values in (one, two)])
    return float(torch.corrcoef(ranks)[0, 1])


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


def three_clients(
    case: str, seed: int, runs: int = 1000
) -> dict[str, dict[str, float | None]]:
    """Return for MaxFL, the average of all and that of the first two: in which share of draws how many clients are satisfied."""
    truth = torch.tensor(CASES[case], dtype=torch.float64).unsqueeze(1)
    noise = torch.randn(
        3,
        runs,
        generator=Rng.named(seed, "landscape", case).generator(),
        dtype=torch.float64,
    )
    means = truth + noise
    average = means.mean(0)
    shares: dict[str, dict[str, float | None]] = {}
    for method, w in (
        ("maxfl", optimum(means)),
        ("average", average),
        ("first two", means[:2].mean(0)),
    ):
        shift = (
            w - means
        )  # (w - theta)^2 < (mean - theta)^2  <=>  shift (shift + 2 (mean - theta)) < 0
        loss = shift * (shift + 2 * noise)
        satisfied = loss < 0
        nearest = (w - means).abs().min(0).values
        shares[method] = {
            f"at least one satisfied, {case}": share(satisfied.any(0)),
            f"at least one as good, {case}": share((loss <= TOLERANCE).any(0)),
            f"both of the first two satisfied, {case}": share(satisfied[:2].all(0)),
            f"at the average, {case}": share((w - average).abs() < CLOSE),
            f"at the average of the first two, {case}": share(
                (w - means[:2].mean(0)).abs() < CLOSE
            ),
            f"at one client's own mean, {case}": share(nearest < CLOSE),
        }
    return shares


def share(flags: Tensor) -> float:
    """Return the share of true ones."""
    return float(flags.double().mean())


def measure(seeds: int = 20) -> Document:
    """Return the shares of all cases by seed; what needs no draw stands under seed 0 of "two clients"."""
    started = time.process_time()
    gaps = torch.linspace(-10, 10, GRID, dtype=torch.float64)
    exact: dict[str, float | None] = {
        "gap of the largest weight": float(gaps[appeal.weights(gaps).argmax()])
    }
    for squared in (*NEAR, *FAR):
        exact |= two_clients(squared)
    values: dict[tuple[str, int], dict[str, float | None]] = {("two clients", 0): exact}
    for seed in range(seeds):
        for case in CASES:
            for method, shares in three_clients(case, seed).items():
                values.setdefault((method, seed), {}).update(shares)
    about = shared(provenance(started), len(values))
    rows = [
        Row(method, seed, "", n_train=1, n_test=0, values=by, **about)
        for (method, seed), by in values.items()
    ]
    return Document(NAME, 0, rows)


def main() -> None:
    """Write the file of results."""
    write(measure())


if __name__ == "__main__":
    main()

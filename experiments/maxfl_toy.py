"""MaxFL's two-client mean estimation (Fig. 5a, Appendices A and C): appeal as the clients' true means drift apart.

    python -m experiments.maxfl_toy          # two minutes; writes experiments/results/maxfl_toy.json

True means 0 and 2 g, empirical means drawn with variance 1, F_k(w) = (w - mean_k)^2 + rho_k. Plain averaging takes the middle. MaxFL
takes a local minimum of its objective: the fixed point of Algorithm 1 when each client trains to its own optimum (x_k = mean_k, lr = 1,
eps = 0), from the smaller empirical mean; both ends give the same appeal by symmetry. All runs go in step through `solvers.appeal`.

Positions are offsets from the smaller mean: far clients leave a minimum within 1e-20 of it, which a float beside the mean cannot hold
and which decides a strict comparison.
"""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor

from coterie.base.rng import Rng
from coterie.solvers import appeal
from experiments.documents import Document, Row, write
from experiments.running import provenance, shared

NAME = "maxfl_toy"

MONTE_CARLO = {
    "maxfl": {0: 0.635, 1: 0.349, 2: 0.276, 5: 0.251, 10: 0.251, 20: 0.249},
    "average": {0: 0.648, 1: 0.335, 2: 0.207, 5: 0.080, 10: 0.023, 20: 0.002},
}
"""Appeal by gamma_G^2 in an independent Monte Carlo of ours (200,000 draws); Fig. 5a prints no numbers. A test compares."""


def minimum(distance: Tensor, surrogate: str, steps: int = 2000) -> Tensor:
    """Offset from the smaller mean [runs] at which the iteration of Algorithm 1 stays."""
    offset = torch.zeros_like(distance)
    for _ in range(steps):
        gap = torch.stack([offset, distance - offset]).square()
        q = appeal.weights(gap.flatten(), surrogate=surrogate).view(2, -1)
        offset = distance * (q[1] / q.sum(0))
    return offset


def appeals(offset: Tensor, distance: Tensor, error: Tensor) -> float:
    """Mean share of clients with f_k(w) < f_k(mean_k) strictly, where error = mean_k - theta_k [2, runs], smaller mean first."""
    # (w - theta)^2 < (mean - theta)^2  <=>  s (s + 2 error) < 0 with s = w - mean
    shift = torch.stack([offset, offset - distance])
    return float((shift * (shift + 2 * error) < 0).double().mean())


def measure(seeds: int = 20, runs: int = 10_000) -> Document:
    """Return appeal by gamma_G^2 for plain averaging and for MaxFL with each surrogate, over `runs` draws a seed."""
    rows = []
    for seed in range(seeds):
        started = time.process_time()
        values: dict[str, dict[str, float | None]] = {
            "average": {},
            "maxfl": {},
            "maxfl-relu": {},
        }
        for squared in MONTE_CARLO["maxfl"]:
            truth = torch.tensor([[0.0], [2 * math.sqrt(squared)]], dtype=torch.float64)
            noise = torch.randn(
                2,
                runs,
                generator=Rng.named(seed, "toy", squared).generator(),
                dtype=torch.float64,
            )
            means = truth + noise
            distance, error = (
                (means[1] - means[0]).abs(),
                noise.gather(0, means.argsort(dim=0)),
            )
            offsets = {
                "average": distance / 2,
                "maxfl": minimum(distance, "sigmoid"),
                "maxfl-relu": minimum(distance, "relu"),
            }
            for method, offset in offsets.items():
                values[method][f"appeal, gamma² = {squared}"] = appeals(
                    offset, distance, error
                )
        about = shared(provenance(started), len(values))
        rows += [
            Row(method, seed, "", n_train=runs, n_test=0, values=by, **about)
            for method, by in values.items()
        ]
    return Document(NAME, 0, rows)


def main() -> None:
    """Write the file of results."""
    write(measure())


if __name__ == "__main__":
    main()

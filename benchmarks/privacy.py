"""Does joining pay behind row noise? Generated sites and heart-disease, by epsilon; `make privacy` writes docs/results/privacy.md.

Of each setting every seed draws sites anew, or splits the hospitals anew. A gain is the test log-loss of a site's own model (`local`,
without noise, its ridge chosen by folds) minus that of the shared one, mean over sites; intervals are over seeds.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import stdtrit
from torch import nn

import coterie as ct
from coterie.base.files import write_atomically
from coterie.base.privacy import usual_delta

PAGE = Path(__file__).parents[1] / "docs" / "results" / "privacy.md"
EPSILONS = (math.inf, 8.0, 4.0, 2.0, 1.0)
ROUNDS, RATE, CLIP = 20, 1.0, 1.0
BIAS = {"part": "bias", "steps": (0, 10, 30), "lr": (0.3, 1.0)}
"""What each site tunes at home, on rows that it keeps from training: a fifth."""
TEST_ROWS = 1000
POOL = {"part": "pool"}
MASKED_ROWS = 500
"""Above so many rows of a site noise decides nothing, masked or not."""
SPREAD, BIASES = 0.3, 0.7
"""Deviation of a site's slopes from those of all, as a share of theirs, and of its intercept."""


class Way(NamedTuple):
    """How a shared model is made and used: what each site does at home, whether noise is in masked sums alone, and by which method."""

    title: str
    home: Mapping[str, Any] | None = None
    masked: bool = False
    bounded: bool = False

    @property
    def merges(self) -> bool:
        """Return True if no rows are kept from training."""
        return self.home != BIAS


WAYS = (
    Way(""),
    Way(", bias at home", BIAS),
    Way(", pooled at home", POOL),
    Way(", pooled at home, masked sums", POOL, masked=True),
    Way(", fixed effects", bounded=True),
    Way(", fixed effects, pooled at home", POOL, bounded=True),
)


class Setting(NamedTuple):
    """Generated sites: how many, with how many rows to train and features; without sites the four hospitals of heart-disease."""

    sites: int = 0
    rows: int = 0
    features: int = 0

    @property
    def title(self) -> str:
        """Return what the page calls it."""
        if not self.sites:
            return "heart-disease, 4 hospitals"
        return f"{self.sites} sites, {self.rows} rows, {self.features} features"


SETTINGS = (
    Setting(),
    *(Setting(10, rows, 15) for rows in (50, 500, 2000)),
    *(Setting(4, rows, 15) for rows in (50, 500)),
    Setting(10, 2000, 60),
)


def clients_of(setting: Setting, seed: int) -> ct.Clients:
    """Return the clients of one seed: generated ones have slopes and an intercept that differ between sites."""
    if not setting.sites:
        return ct.data.load("heart-disease", seed=seed)
    rng = np.random.default_rng(seed)
    features = setting.features
    common = rng.normal(0, 2 / math.sqrt(features), features)
    clients = {}
    for site in range(setting.sites):
        slopes = common + SPREAD * rng.normal(0, 2 / math.sqrt(features), features)
        intercept = BIASES * rng.normal()
        parts = []
        kept = setting.rows // 5
        for rows in (setting.rows - kept, kept, TEST_ROWS):
            inputs = rng.normal(size=(rows, features))
            risk = 1 / (1 + np.exp(-(inputs @ slopes + intercept)))
            labels = rng.random(rows) < risk
            parts.append((inputs.astype(np.float32), labels.astype(np.int64)))
        clients[f"site-{site}"] = tuple(parts)
    return ct.data.from_tensors(clients)


def losses(
    method: ct.Method, clients: ct.Clients, seed: int, way: Way = WAYS[0]
) -> dict[str, float]:
    """Return the test log-loss of each client after training, and after what it does at home."""
    inputs = clients[0].train.inputs
    torch.manual_seed(seed)
    run = ct.fit(
        method,
        clients,
        model=nn.Linear(inputs.shape[1], 1),
        rounds=ROUNDS,
        seed=seed,
        settings=ct.RunSettings(
            evaluate=ROUNDS,
            metrics=(),
            merge_validation=way.merges,
            secure=secure_sums(len(clients)) if way.masked else None,
        ),
    )
    if way.home is not None:
        run = ct.personalise(run, clients, **way.home)
    return {r["client"]: r["loss"] for r in run.summary if r["split"] == "test"}


def secure_sums(sites: int) -> ct.SecureSums:
    """Masked sums that two thirds of the sites open, one of whom may be curious."""
    return ct.SecureSums(ct.SecureSums().survivors(sites))


def method_of(epsilon: float, rows: int, hidden: float = 1.0) -> ct.FedAvg:
    """FedAvg by one step on all rows a round, behind the noise of one epsilon at delta 1 / (10 rows).

    Args:
        epsilon: of all rounds.
        rows: of the largest site.
        hidden: the share of the noise that curious sites do not know.
    """
    noise = ct.RowNoise.of_epsilon(
        epsilon, delta=usual_delta(rows), steps=ROUNDS, clip=CLIP
    )
    noise = ct.RowNoise(noise.noise_multiplier / hidden, CLIP)
    local = ct.LocalSGD(
        lr=RATE, steps=ct.Steps(1), batch_size=None, weight_decay=1e-3, private=noise
    )
    return ct.FedAvg(local=local)


def bounded_of(epsilon: float, rows: int) -> ct.FixedEffects:
    """Fixed effects behind the noise of one epsilon, in an event for products of rows and one for each round; arguments as above."""
    noise = ct.RowNoise.of_epsilon(
        epsilon, delta=usual_delta(rows), steps=1 + ROUNDS, clip=CLIP
    )
    return ct.FixedEffects(private=noise)


def gains(setting: Setting, seed: int) -> dict[tuple[str, str, float], float]:
    """Return the gains of one seed by client (each hospital, or "all"), title of the way, and epsilon."""
    clients = clients_of(setting, seed)
    rows = max(setting.rows, *clients.sizes("train").values())
    alone = losses(ct.Local(), clients, seed)
    result = {}
    for way in WAYS:
        if way.masked and setting.rows > MASKED_ROWS:
            continue
        hidden = secure_sums(len(clients)).hidden_noise if way.masked else 1.0
        for epsilon in EPSILONS:
            method: ct.Method = method_of(epsilon, rows, hidden)
            if way.bounded:
                method = bounded_of(epsilon, rows)
            shared = losses(method, clients, seed, way)
            differences = {name: alone[name] - shared[name] for name in alone}
            result["all", way.title, epsilon] = statistics.mean(differences.values())
            for name, gap in differences.items():
                if not setting.sites:
                    result[name, way.title, epsilon] = gap
    return result


def half_width(values: list[float]) -> float:
    """Return half the 95 % interval of a mean over seeds."""
    if len(values) < 2:
        return math.inf
    error = statistics.stdev(values) / math.sqrt(len(values))
    return float(stdtrit(len(values) - 1, 0.975)) * error


def table(seeds: int, jobs: int) -> Iterator[str]:
    """Yield the rows of the page's table; so many processes compute it."""
    settings = [setting for setting in SETTINGS for _ in range(seeds)]
    numbers = [seed for _ in SETTINGS for seed in range(seeds)]
    with ProcessPoolExecutor(jobs, initializer=_one_thread) as pool:
        measured = list(pool.map(gains, settings, numbers))
    for number, setting in enumerate(SETTINGS):
        by_place: dict[tuple[str, str, float], list[float]] = {}
        for of_seed in measured[number * seeds : (number + 1) * seeds]:
            for place, gap in of_seed.items():
                by_place.setdefault(place, []).append(gap)
        for name, title in dict.fromkeys((key[0], key[1]) for key in by_place):
            cells = []
            for epsilon in EPSILONS:
                values = by_place[name, title, epsilon]
                cells.append(
                    f"{statistics.mean(values):+.3f} ± {half_width(values):.3f}"
                )
            called = setting.title if name == "all" else name
            yield f"| {called}{title} | {' | '.join(cells)} |"


def _one_thread() -> None:
    torch.set_num_threads(1)


def page(seeds: int, jobs: int) -> str:
    """Return the page, whose numbers are measured now."""
    rows = list(table(seeds, jobs))
    heads = " | ".join(f"{epsilon:g}" for epsilon in EPSILONS)
    return "\n".join(
        [
            "# Does joining pay behind row noise?",
            "",
            "Each row of a site is hidden by noise in training (`[privacy]`). The table says by how much the shared",
            "model lowers the test log-loss of a site's own model, which has no noise; above 0, joining pays. Means over",
            f"sites, with the 95 % interval over {seeds} seeds. The columns are epsilons; inf clips and adds no noise.",
            "",
            f"| | {heads} |",
            "| --- |" + " ---: |" * len(EPSILONS),
            *rows,
            "",
            f"FedAvg, one step on all rows a round, {ROUNDS} rounds, rate {RATE:g}, row gradients of a length of at most {CLIP:g},",
            "alike at every epsilon and chosen before on other seeds; delta is a tenth of one in the rows of the largest",
            "site. Generated sites differ in slopes (by a third) and intercepts; 1,000 rows of each test. Scaling of the",
            "hospitals' columns is not covered by epsilon. A bias is tuned at home, where nothing is told of it, on a fifth of",
            "the rows, which are then kept from training. Pooled at home (`fedavg+pool`), slopes are drawn to the shared ones",
            "as far as a site's own rows say. In masked sums (`[secure]`) two thirds of the sites make the noise of a sum, one",
            "of whom may be curious. Fixed effects share slopes by steps under a noisy bound of the curvature, and each site",
            "chooses its intercept at home.",
            "",
            "`make privacy` writes this page.",
            "",
        ]
    )


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=PAGE)
    args = parser.parse_args()
    text = page(args.seeds, args.jobs)
    write_atomically(args.out, lambda p: p.write_text(text, encoding="utf-8"))


if __name__ == "__main__":
    main()

"""Mean estimation (Tupitsa et al., Figs. 1-3) and the same under attack (Figs. 18-21), computed a second time.

The loss of a vector x [d] is ||x - s||^2 averaged over its coordinates and the samples s, so that all a round needs of a client is the
mean of its batch. All methods of a seed see the same batches. A plateau is the mean of ||x||^2 over the last fifth of the rounds.

"mean-printed" is mean estimation as the newer text prints it: the loss is the sum over the coordinates, 50 steps of mirror descent a
round, and the printed means. "mean-steps" goes over steps of mirror descent under both losses, to find which of them gain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

import coterie as ct
from experiments.independent.common import Values, generator
from experiments.independent.meritfed import gompertz

MEAN, ATTACKED, OWN = "mean-estimation", "byzantine", "own-mean-estimation"
PRINTED, STEPS = "mean-printed", "mean-steps"
DIM, SAMPLES, BATCH, SERVER_RATE = 10, 1000, 100, 0.01
DESCENTS, RADIUS = 10, 0.01
PRINTED_DESCENTS = 50
"""Steps of mirror descent a round, the distance of its loss queries, and the steps that the newer text prints."""
STEP = {0.001: 3.5, 0.01: 4.5, 0.1: 12.5}
"""Its step by the distance mu of the second group."""
GROUPS = (5, 95, 50)
HONEST, MALICIOUS = 5, 50
NORMALISED, SUMMED = 1 / DIM, 1.0
"""What the squared distance is multiplied by: the mean over coordinates of the authors' code, and the sum that is printed."""
ROUNDS = {MEAN: 5000, ATTACKED: 4000, OWN: 5000, PRINTED: 3000, STEPS: 5000}
OWN_MU = 0.01
"""The distance of the second group where samples are drawn here."""
Weigh = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From the model [d], the updates [clients, d] and the weights so far: the weights of this round."""
Attack = Callable[[Tensor, torch.Generator], Tensor]
"""From the updates of all clients, what the attackers (all but the first five) send."""
Slope = Callable[[Tensor], Tensor]
"""Gradient of the target's loss."""


def gradient(x: Tensor, mean: Tensor, scale: float = NORMALISED) -> Tensor:
    """Of the loss on samples with this mean; one for each row of `mean`."""
    return 2 * scale * (x - mean)


def plateau(
    means: Tensor,
    weigh: Weigh,
    attack: Callable[[Tensor], Tensor] | None = None,
    scale: float = NORMALISED,
) -> float:
    """Where ||x||^2 settles if client i's batch in round t has the mean means[t, i]."""
    x = torch.full((DIM,), DIM**-0.5, dtype=torch.float64)
    weights = torch.full((means.shape[1],), 1 / means.shape[1], dtype=torch.float64)
    distances = []
    for batch in means:
        updates = -gradient(x, batch, scale)
        if attack is not None:
            updates = torch.cat([updates[:HONEST], attack(updates)])
        weights = weigh(x, updates, weights)
        x = x + SERVER_RATE * weights @ updates
        distances.append(float(x.square().sum()))
    late = distances[-max(1, len(distances) // 5) :]
    return sum(late) / len(late)


def evenly(x: Tensor, updates: Tensor, weights: Tensor) -> Tensor:
    """All clients alike."""
    return weights


def drawn(count: int, random: torch.Generator) -> Weigh:
    """FedAvg: so many clients of each round alike."""

    def weigh(x: Tensor, updates: Tensor, weights: Tensor) -> Tensor:
        weights = torch.zeros_like(weights)
        weights[torch.randperm(len(updates), generator=random)[:count]] = 1 / count
        return weights

    return weigh


def descent(step: float, slopes: Weigh, steps: int = DESCENTS) -> Weigh:
    """MeritFed: entropic mirror descent from the weights of the round before."""

    def weigh(x: Tensor, updates: Tensor, weights: Tensor) -> Tensor:
        logs = weights.clamp(min=1e-300).log()
        for _ in range(steps):
            logs = (logs - step * slopes(x, updates, logs.exp())).log_softmax(0)
        return logs.exp()

    return weigh


def by_gradient(of_target: Slope) -> Weigh:
    """Eq. 8: the slope by the target's gradient."""
    return lambda x, updates, weights: (
        SERVER_RATE * updates @ of_target(x + SERVER_RATE * weights @ updates)
    )


def two_losses(mean: Tensor, random: torch.Generator) -> Weigh:
    """Eq. 9: the slope by two losses along a random direction, times the direction."""

    def slopes(x: Tensor, updates: Tensor, weights: Tensor) -> Tensor:
        way = torch.randn(len(updates), generator=random, dtype=torch.float64)
        way /= way.norm()
        over, under = (
            (x + SERVER_RATE * (weights + sign * RADIUS * way) @ updates - mean)
            .square()
            .mean()
            for sign in (1, -1)
        )
        return len(updates) * (over - under) / (2 * RADIUS) * way

    return slopes


def cosines(updates: Tensor) -> Tensor:
    """Between each update and the target's, which is the first."""
    return torch.cosine_similarity(updates, updates[:1], dim=1).clamp(-1, 1)


def fedadp(x: Tensor, updates: Tensor, weights: Tensor) -> Tensor:
    """Weights by the angle to the target's update, through FedAdp's Gompertz map with its constant 5."""
    return gompertz(cosines(updates).acos()).softmax(0)


def tawt() -> Weigh:
    """TAWT: in every other round weights are multiplied by the exponential of the cosine."""
    rounds = 0

    def weigh(x: Tensor, updates: Tensor, weights: Tensor) -> Tensor:
        nonlocal rounds
        rounds += 1
        return (
            weights
            if rounds % 2
            else (weights.clamp(min=1e-300).log() + cosines(updates)).softmax(0)
        )

    return weigh


def pushed(deviations: float, correction: int) -> Attack:
    """ALIE: all attackers send the mean of all updates, so many deviations away in each coordinate."""
    return lambda updates, random: (
        updates.mean(0) + deviations * updates.std(0, correction=correction)
    ).expand(MALICIOUS, -1)


def _noise(updates: Tensor, random: torch.Generator) -> Tensor:
    return torch.randn(updates[HONEST:].shape, generator=random, dtype=updates.dtype)


ATTACKS: Mapping[str, Attack] = {
    "IPM": lambda updates, random: (-0.1 * updates.mean(0)).expand(MALICIOUS, -1),
    "ALIE": pushed(100.0, 1),
    "ALIE, other direction": pushed(-100.0, 0),
    "bit flipping": lambda updates, random: -updates[HONEST:],
    "random noise": lambda updates, random: 10 * _noise(updates, random),
    "added noise": lambda updates, random: updates[HONEST:] + _noise(updates, random),
}


@lru_cache(maxsize=len(STEP))
def batches(
    seed: int,
    mu: float,
    groups: tuple[int, int, int],
    rounds: int,
    printed: bool = False,
) -> tuple[Tensor, Tensor]:
    """Mean of each client's batch in each round [rounds, clients, d], and the target's validation samples."""
    clients = ct.data.load(
        "mean-estimation",
        seed=seed,
        mu=mu,
        groups=list(groups),
        samples=SAMPLES,
        test=0,
        printed=printed,
    )
    samples = torch.stack([client.train.inputs for client in clients]).double()
    random = generator(seed, f"batches {mu}")
    means = torch.empty(rounds, len(samples), DIM, dtype=torch.float64)
    for number in range(rounds):
        rows = (
            torch.rand(samples.shape[:2], generator=random)
            .topk(BATCH, dim=1, sorted=False)
            .indices
        )
        means[number] = samples.gather(1, rows[:, :, None].expand(-1, -1, DIM)).mean(1)
    return means, clients["d1-000"].validation.inputs.double()


@lru_cache(maxsize=1)
def own_batches(seed: int) -> tuple[Tensor, Tensor]:
    """The same of samples drawn here, with a random unit vector as the third group's mean, as the paper prints; coterie and the
    authors' code have (0, 1, 0, 1, ...). A batch is `BATCH` samples in a row from a random place: that is quick."""
    random = generator(seed, "own samples")
    far = torch.randn(DIM, generator=random, dtype=torch.float64)
    centres = torch.stack(
        [torch.zeros(DIM), torch.full((DIM,), OWN_MU * DIM**-0.5), far / far.norm()]
    )
    members = torch.repeat_interleave(centres, torch.tensor(GROUPS), dim=0)
    noise = torch.randn(
        len(members) + 1, SAMPLES, DIM, generator=random, dtype=torch.float64
    )
    samples = noise[1:] + members[:, None]
    sums = torch.cat(
        [torch.zeros(len(samples), 1, DIM), samples, samples[:, :BATCH]], dim=1
    ).cumsum(1)
    first = torch.randint(SAMPLES, (ROUNDS[OWN], len(samples)), generator=random)
    who = torch.arange(len(samples))
    return (sums[who, first + BATCH] - sums[who, first]) / BATCH, noise[0]


def weighing(
    label: str, step: float, validation: Tensor, random: torch.Generator
) -> Weigh:
    """How a contestant weighs; the target has these validation samples."""
    mean = validation.mean(0)

    def some(x: Tensor) -> Tensor:
        return gradient(
            x,
            validation[torch.randperm(len(validation), generator=random)[:BATCH]].mean(
                0
            ),
        )

    def fresh(x: Tensor) -> Tensor:
        return gradient(
            x, torch.randn(BATCH, DIM, generator=random, dtype=torch.float64).mean(0)
        )

    return {
        "MeritFed": descent(step, by_gradient(lambda x: gradient(x, mean))),
        "MeritFed, stochastic": descent(step, by_gradient(some)),
        "MeritFed, fresh validation": descent(step, by_gradient(fresh)),
        "MeritFed, losses alone": descent(step, two_losses(mean, random)),
        "FedAvg of 5": drawn(5, random),
        "FedAvg of 10": drawn(10, random),
        "FedAdp": fedadp,
        "TAWT": tawt(),
    }.get(label, evenly)


def _settled(label: str, seed: int) -> Values:
    found = {}
    for mu, step in STEP.items():
        means, validation = batches(seed, mu, GROUPS, ROUNDS[MEAN])
        members = {"SGD Ideal": GROUPS[0], "target only": 1}.get(label, sum(GROUPS))
        weigh = weighing(label, step, validation, generator(seed, f"{label} {mu}"))
        found[f"plateau, mu = {mu:g}"] = plateau(means[:, :members], weigh)
    return found


def _settled_own(label: str, seed: int) -> Values:
    means, validation = own_batches(seed)
    members = GROUPS[0] if label == "SGD Ideal" else sum(GROUPS)
    weigh = weighing(label, STEP[OWN_MU], validation, generator(seed, f"own {label}"))
    return {f"plateau, mu = {OWN_MU:g}": plateau(means[:, :members], weigh)}


def _settled_as_printed(label: str, seed: int) -> Values:
    found = {}
    for mu, step in STEP.items():
        means, validation = batches(seed, mu, GROUPS, ROUNDS[PRINTED], printed=True)
        mean = validation.mean(0)
        weigh = weighing(label, step, validation, generator(seed, f"{label} {mu}"))
        if label == "MeritFed":
            slopes = by_gradient(lambda x, mean=mean: gradient(x, mean, SUMMED))
            weigh = descent(step, slopes, PRINTED_DESCENTS)
        members = GROUPS[0] if label == "SGD Ideal" else sum(GROUPS)
        found[f"plateau, mu = {mu:g}"] = plateau(
            means[:, :members], weigh, scale=SUMMED
        )
    return found


class Descent(NamedTuple):
    """How MeritFed descends: what the loss is multiplied by, steps a round, and their size; no step is SGD Ideal."""

    scale: float
    steps: int
    size: float

    @property
    def label(self) -> str:
        """Its name among the methods."""
        loss = "mean" if self.scale == NORMALISED else "sum"
        if not self.steps:
            return f"SGD Ideal, {loss}"
        return f"MeritFed, {loss}, {self.steps} steps of {self.size:g}"


TRIED = [
    Descent(scale, steps, size)
    for scale in (NORMALISED, SUMMED)
    for steps in (DESCENTS, PRINTED_DESCENTS)
    for size in (3.5, 0.35, 0.035, 0.0035)
]
TRIED += [Descent(scale, 0, 0.0) for scale in (NORMALISED, SUMMED)]


def _settled_by(tried: Descent, seed: int) -> Values:
    near = min(STEP)
    means, validation = batches(seed, near, GROUPS, ROUNDS[STEPS], printed=True)
    mean = validation.mean(0)
    if tried.steps:
        slopes = by_gradient(lambda x: gradient(x, mean, tried.scale))
        weigh = descent(tried.size, slopes, tried.steps)
    else:
        means, weigh = means[:, : GROUPS[0]], evenly
    if tried.scale == SUMMED:  # a round goes ten times as far
        means = means[: ROUNDS[PRINTED]]
    return {f"plateau, mu = {near:g}": plateau(means, weigh, scale=tried.scale)}


def _attacked(label: str, seed: int) -> Values:
    means, validation = batches(seed, 0.0, (HONEST + MALICIOUS, 0, 0), ROUNDS[ATTACKED])
    if label == "ideal group":
        return dict.fromkeys(
            (f"plateau, {name}" for name in ATTACKS), plateau(means[:, :HONEST], evenly)
        )
    found = {}
    for name, attack in ATTACKS.items():
        random = generator(seed, f"{label} {name}")
        found[f"plateau, {name}"] = plateau(
            means,
            weighing(label, STEP[0.001], validation, random),
            partial(attack, random=random),
        )
    return found


LABELS = {
    MEAN: ("MeritFed", "SGD Full", "SGD Ideal", "target only", "FedAvg of 5", "FedAvg of 10", "FedAdp", "TAWT",
           "MeritFed, stochastic", "MeritFed, losses alone"),
    ATTACKED: ("MeritFed", "MeritFed, fresh validation", "averaging", "FedAdp", "TAWT", "MeritFed, stochastic", "ideal group"),
    OWN: ("MeritFed", "SGD Full", "SGD Ideal"),
    PRINTED: ("MeritFed", "SGD Full", "SGD Ideal", "FedAvg of 5", "FedAvg of 10", "FedAdp", "TAWT"),
    STEPS: tuple(tried.label for tried in TRIED),
}  # fmt: skip
METHODS = {
    name: {label: partial(of, label) for label in LABELS[name]}
    for name, of in (
        (MEAN, _settled),
        (ATTACKED, _attacked),
        (OWN, _settled_own),
        (PRINTED, _settled_as_printed),
    )
}
METHODS[STEPS] = {tried.label: partial(_settled_by, tried) for tried in TRIED}
TABLES: Mapping[str, Mapping[str, Any]] = {
    name: {
        "run": {"rounds": rounds},
        "methods": [{"name": label} for label in LABELS[name]],
    }
    for name, rounds in ROUNDS.items()
}
"""In the place of the TOML files that other experiments have."""

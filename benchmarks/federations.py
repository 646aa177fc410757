"""Simulated federations whose true gains are known: kinds of clients, and what a run of linear models sees of them.

A federation is trained and tested as a run with five folds and two repeats is, with coterie's own folds, solvers and
errors: `local` is ridge regression whose penalty each tested fold chooses without its rows, `partial` is solved in two
passes, `fixed-effects` shares slopes, and `fedavg` is one ridge regression on all rows.

The truth of a client and method is its mean gain over `TRUTHS` further training sets of the same sizes, on `FRESH` new
rows. `KINDS` were written down before the first run whose figures are shown; those of a second set are drawn by a seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.base.folds import deal_folds
from coterie.compute.outcomes import Influence, auc_influence, mean_influence, row_error
from coterie.solvers import glm, pooling
from coterie.solvers.ridge import Problem, ridge_by_fold, ridge_of_all

PRIMARY = "partial"
METHODS = (PRIMARY, "fixed-effects", "fedavg")
FOLDS, REPEATS, TRUTHS, FRESH = 5, 2, 4, 10_000
INPUTS, RIDGE = 8, 1.0
PASSES = 2

Array = NDArray[np.float64]


class Client(NamedTuple):
    """How the rows of one client are distributed: coefficients [p], intercept, mean of the inputs, label flips, heavy tails; visits
    of each patient; and the group whose coefficients it has.
    """

    rows: int
    coefficients: Array
    intercept: float = 0.0
    shift: float = 0.0
    garbage: bool = False
    numbers: bool = False
    visits: int = 1
    group: int = 0

    def draw(
        self, rows: int, rng: np.random.Generator
    ) -> tuple[Array, Array, NDArray[np.int64]]:
        """Inputs [rows, p], labels [rows] and the patient of each row [rows]."""
        width, patient = len(self.coefficients), np.arange(rows) // self.visits
        inputs, effect = rng.normal(0, 1, (rows, width)), 0.0
        if self.visits > 1:
            stable = rng.normal(0, 1, (rows // self.visits + 1, width + 1))[patient]
            inputs, effect = (
                np.sqrt(0.7) * stable[:, :-1] + np.sqrt(0.3) * inputs,
                stable[:, -1],
            )
        inputs = inputs + self.shift
        score = inputs @ self.coefficients + self.intercept + effect
        labels = (
            score + rng.standard_t(3, rows)
            if self.numbers
            else (rng.random(rows) < 1 / (1 + np.exp(-score))).astype(float)
        )
        labels = rng.permutation(labels) if self.garbage else labels
        return inputs, labels, patient


Kind = Callable[[np.random.Generator], list[Client]]


def _alike(
    members: int, rows: int, spread: float = 0.0, inputs: int = INPUTS, **about: Any
) -> Kind:
    """Clients whose coefficients differ by `spread` from common ones."""

    def draw(rng: np.random.Generator) -> list[Client]:
        common = rng.normal(0, 0.6 * np.sqrt(INPUTS / inputs), inputs)
        return [
            Client(rows, common + spread * rng.normal(0, 1, inputs), **about)
            for _ in range(members)
        ]

    return draw


def _groups(
    sizes: Sequence[int], rows: int, signs: Sequence[float] = (), common_inputs: int = 0
) -> Kind:
    """Groups of clients with coefficients of their own, or the same times a sign; those of `common_inputs` are the same for all."""

    def draw(rng: np.random.Generator) -> list[Client]:
        common = rng.normal(0, 0.6, INPUTS)
        centres = [sign * common for sign in signs] or [
            rng.normal(0, 0.6, INPUTS) for _ in sizes
        ]
        for centre in centres:
            centre[:common_inputs] = common[:common_inputs]
        return [
            Client(rows, centre, group=g)
            for g, centre in enumerate(centres)
            for _ in range(sizes[g])
        ]

    return draw


def _differing(
    members: int,
    rows: Sequence[int],
    spread: float = 0.0,
    **ranges: tuple[float, float],
) -> Kind:
    """Alike clients whose intercepts or inputs are shifted, evenly from one end of the range to the other."""

    def draw(rng: np.random.Generator) -> list[Client]:
        common = rng.normal(0, 0.6, INPUTS)
        steps = {key: np.linspace(*ends, members) for key, ends in ranges.items()}
        clients = []
        for i in range(members):
            own = common + spread * rng.normal(0, 1, INPUTS) if spread else common
            clients.append(
                Client(
                    rows[i % len(rows)],
                    own,
                    **{key: float(v[i]) for key, v in steps.items()},
                )
            )
        return clients

    return draw


def _one_unlike(members: int, rows: int, its_rows: int) -> Kind:
    """Alike clients, and a small one with coefficients of its own."""

    def draw(rng: np.random.Generator) -> list[Client]:
        own = Client(its_rows, rng.normal(0, 0.6, INPUTS))
        return [*_alike(members - 1, rows)(rng), own]

    return draw


KINDS: Mapping[str, Kind] = {
    "7 identical, 70 rows": _alike(7, 70),
    "5 alike, 100 rows": _alike(5, 100, 0.12),
    "8 of 40 to 300 rows, alike": _differing(8, (40, 60, 100, 300), 0.1),
    "5 mildly unlike, 160 rows": _alike(5, 160, 0.3),
    "6 unrelated, 120 rows": _alike(6, 120, 0.8),
    "groups of 4 and 2, 110 rows": _groups((4, 2), 110),
    "one of 6 opposite, 130 rows": _groups((5, 1), 130, (1, -1)),
    "one of 60 rows unlike five of 300": _one_unlike(6, 300, 60),
    "prevalence differs, 5 of 120 rows": _differing(5, (120,), intercept=(-1.8, 1.2)),
    "rare outcome, 5 of 600 rows": _alike(5, 600, 0.1, intercept=-3.6),
    "25 inputs, 6 of 90 rows": _alike(6, 90, 0.1, inputs=25),
    "numbers, 5 of 80 rows": _alike(5, 80, 0.15, numbers=True),
    "2 alike, 100 rows": _alike(2, 100, 0.1),
    "4 of 1,200 rows, alike": _alike(4, 1200, 0.1),
    "24 of 60 rows, alike": _alike(24, 60, 0.15),
}

DRAWN_BY = 20261129


def drawn(seed: int) -> dict[str, Kind]:
    """Ten kinds that a seed draws: number and sizes of clients, likeness, groups, shifts and how rare the outcome is."""
    rng = np.random.default_rng(seed)
    kinds: dict[str, Kind] = {}
    while len(kinds) < 10:
        members = int(rng.integers(3, 13))
        sizes = np.exp(rng.uniform(np.log(50), np.log(600), members)).astype(int)
        if rng.random() < 0.5:
            sizes = np.full(members, sizes[0])
        spread = float(rng.choice([0.0, rng.uniform(0.05, 0.5)]))
        groups = int(min(rng.choice([1, 1, 1, 2, 3]), members // 2))
        moved = str(rng.choice(["", "intercept", "shift"]))
        reach, intercept = float(rng.uniform(0.3, 1.5)), float(rng.uniform(-2.5, 0.0))
        rows = f"{sizes.min()} to {sizes.max()} rows"
        facts = [f"{members} clients", rows, f"spread {spread:.2f}", f"{groups} groups"]
        facts += [
            f"{moved or 'nothing'} moved by {reach:.1f}",
            f"intercept {intercept:.1f}",
        ]
        kinds[", ".join(facts)] = _mixed(sizes, spread, groups, moved, reach, intercept)
    return kinds


def _mixed(
    sizes: NDArray[np.int64],
    spread: float,
    groups: int,
    moved: str,
    reach: float,
    intercept: float,
) -> Kind:
    """Clients of groups in turn, whose coefficients differ within a group, with a shift that grows from the first to the last."""

    def draw(rng: np.random.Generator) -> list[Client]:
        centres = rng.normal(0, 0.6, (groups, INPUTS))
        clients = []
        for i, (rows, step) in enumerate(
            zip(sizes, np.linspace(-reach, reach, len(sizes)), strict=True)
        ):
            own = centres[i % groups] + spread * rng.normal(0, 1, INPUTS)
            client = Client(int(rows), own, intercept, group=i % groups)
            clients.append(
                client._replace(**{moved: getattr(client, moved) + float(step)})
                if moved
                else client
            )
        return clients

    return draw


SETS: Mapping[str, Mapping[str, Kind]] = {
    "written down": KINDS,
    "drawn by a seed": drawn(DRAWN_BY),
}


# Training

Parts = Sequence[tuple[Array, Array]]
Models = dict[str, Array]
"""Coefficients [p + 1] by method, the intercept last."""


def _problem(inputs: Array, labels: Array, numbers: bool) -> Problem:
    kind = "regression" if numbers else "binary"
    of_labels = torch.from_numpy(_codes(labels, numbers))
    return Problem(torch.from_numpy(inputs), of_labels, kind, 1)


def _codes(labels: Array, numbers: bool) -> NDArray[Any]:
    """Labels as coterie reads them: classes are integers."""
    return labels if numbers else labels.astype(np.int64)


def _quadratics(
    problems: Sequence[Problem], theta: Tensor, scales: Sequence[float]
) -> pooling.Quadratics:
    """What clients tell at these models [m, p + 1]; numbers are divided by the residual variance."""
    told = [
        glm.moments(at, p.inputs, p.labels, glm.FAMILIES[p.kind])
        for at, p in zip(theta, problems, strict=True)
    ]
    gradients = [m.gradient * scale for m, scale in zip(told, scales, strict=True)]
    curvatures = [m.curvature * scale for m, scale in zip(told, scales, strict=True)]
    return pooling.Quadratics(theta, torch.stack(gradients), torch.stack(curvatures))


def fit_partial(problems: Sequence[Problem]) -> Tensor:
    """The models [m, p + 1] of partial pooling, in two passes."""
    slopes = problems[0].inputs.shape[1]
    precision = pooling.own_precision(slopes, 1)
    own, scales = [], []
    for p in problems:
        family = glm.FAMILIES[p.kind]
        fit, scale = glm.mode(p.inputs, p.labels, family, precision), 1.0
        if p.kind == "regression":
            scale = 1 / max(float(glm.residual_variance(fit, len(p.labels))), 1e-6)
            fit = glm.mode(p.inputs, p.labels, family, precision, scale=scale)
        own.append(fit.theta)
        scales.append(scale)
    start = torch.stack(own)
    theta = start
    for _ in range(PASSES):
        theta = pooling.pool(_quadratics(problems, theta, scales), start, slopes).theta
    return theta


def fit_shared(problems: Sequence[Problem], own_intercepts: bool) -> Tensor:
    """One ridge regression on all rows [m, p + 1], with an intercept for each client or one for all."""
    inputs = torch.cat([p.inputs for p in problems])
    labels = torch.cat([p.labels for p in problems])
    members, columns = len(problems), inputs.shape[1]
    penalty = torch.full((columns + 1,), RIDGE, dtype=torch.float64)
    penalty[-1] = 1e-3
    family = glm.FAMILIES[problems[0].kind]
    if not own_intercepts:
        theta = glm.mode(inputs, labels, family, penalty).theta
        return theta.expand(members, -1)
    owner = torch.repeat_interleave(
        torch.arange(members), torch.tensor([len(p.labels) for p in problems])
    )
    indicators = torch.nn.functional.one_hot(owner, members).double()
    of_clients = torch.full((members,), RIDGE / 20, dtype=torch.float64)
    # The common intercept is held at 0: each client has its own.
    precision = torch.cat([penalty[:-1], of_clients, torch.tensor([1e8])])
    both = torch.cat([inputs, indicators], 1)
    theta = glm.mode(both, labels, family, precision).theta
    slopes, own = theta[:columns], theta[columns : columns + members] + theta[-1]
    return torch.cat([slopes.expand(members, -1), own[:, None]], 1)


def train_together(parts: Parts, numbers: bool) -> list[Models]:
    """The models of each federated method, client by client."""
    problems = [_problem(x, y, numbers) for x, y in parts]
    fitted = {
        "partial": fit_partial(problems),
        "fixed-effects": fit_shared(problems, own_intercepts=True),
        "fedavg": fit_shared(problems, own_intercepts=False),
    }
    return [{m: fitted[m][i].numpy() for m in METHODS} for i in range(len(parts))]


def scores_of(inputs: Array, model: Array) -> Array:
    """What a model says of rows [rows]."""
    return np.asarray(inputs @ model[:-1] + model[-1])


def losses(scores: Array, labels: Array, numbers: bool, variance: float) -> Array:
    """Log-loss of each row, or squared error as a share of the variance of the labels."""
    if numbers:
        return np.asarray((scores - labels) ** 2 / variance)
    return np.asarray(np.logaddexp(0, scores) - labels * scores)


# One federation


class _Federation:
    """The rows of one federation, and what models that have not seen a row say of it."""

    def __init__(
        self, clients: Sequence[Client], name: str, rng: np.random.Generator
    ) -> None:
        self.clients, self.name, self.numbers = clients, name, clients[0].numbers
        drawn = [c.draw(c.rows, rng) for c in clients]
        self.parts = [(x, y) for x, y, _ in drawn]
        self.patients = [patient for _, _, patient in drawn]

    def folds(self, client: int, repeat: int) -> NDArray[np.int64]:
        """The fold of each row of a client."""
        codes = _codes(self.parts[client][1], self.numbers)
        name, patients = f"{self.name}/{client}", self.patients[client]
        return deal_folds(codes, FOLDS, seed=repeat, name=name, groups=patients)

    def scores(self, dealt: Sequence[NDArray[np.int64]]) -> list[dict[str, Array]]:
        """Scores [rows] of each client by method."""
        scores = []
        for (x, y), folds in zip(self.parts, dealt, strict=True):
            alone = ridge_by_fold(_problem(x, y, self.numbers), torch.from_numpy(folds))
            models = alone.models.numpy()
            of_rows = [scores_of(x, model) for model in models]
            local = np.choose(folds, of_rows)
            scores.append({"local": local, **{m: np.zeros(len(y)) for m in METHODS}})
        for part in range(FOLDS):
            training = [
                (x[folds != part], y[folds != part])
                for (x, y), folds in zip(self.parts, dealt, strict=True)
            ]
            models_of_part = train_together(training, self.numbers)
            for i, (x, _) in enumerate(self.parts):
                at = dealt[i] == part
                for method, model in models_of_part[i].items():
                    scores[i][method][at] = scores_of(x[at], model)
        return scores


def estimate(kind: str, draw: Kind, number: int) -> list[dict[str, Any]]:
    """What the rule sees, and what is true, client by client; the same federation of a kind whenever it is drawn."""
    rng = np.random.default_rng([*kind.encode(), number])
    clients = draw(rng)
    federation = _Federation(clients, f"{kind}/{number}", rng)
    truths = np.zeros((len(clients), len(METHODS)))
    fresh = [c.draw(FRESH, rng)[:2] for c in clients]
    for _ in range(TRUTHS):
        training = [c.draw(c.rows, rng)[:2] for c in clients]
        truths += _true_gains(fresh, training, federation.numbers) / TRUTHS
    dealt = [
        [federation.folds(i, r) for i in range(len(clients))] for r in range(REPEATS)
    ]
    by_repeat = [federation.scores(folds) for folds in dealt]
    found = []
    for i in range(len(clients)):
        labels, patients = federation.parts[i][1], federation.patients[i]
        rows = _Rows([s[i] for s in by_repeat], labels, federation.numbers, patients)
        cases = 0 if federation.numbers else int(labels.sum())
        about: dict[str, Any] = {
            "kind": kind,
            "number": number,
            "client": i,
            "rows": len(labels),
            "cases": None if federation.numbers else cases,
            "folds": [folds[i] for folds in dealt],
        }
        for column, method in enumerate(METHODS):
            about[method] = {
                "loss": rows.gain(method, "local"),
                "over primary": rows.gain(method, PRIMARY),
                "auc": rows.ranking_gain(method, about["folds"]),
                "truth": float(truths[i, column]),
            }
        del about["folds"]
        found.append(about)
    return found


def _true_gains(fresh: Parts, training: Parts, numbers: bool) -> Array:
    """The gain over training alone on fresh rows, [clients, methods]."""
    together = train_together(training, numbers)
    gains = []
    for i, ((inputs, labels), (x, y)) in enumerate(zip(fresh, training, strict=True)):
        codes = _codes(y, numbers)
        folds = deal_folds(codes, FOLDS, seed=0, name=f"{i}", purpose="inner")
        alone = ridge_of_all(_problem(x, y, numbers), torch.from_numpy(folds)).models
        models = [alone.numpy(), *(together[i][m] for m in METHODS)]
        variance = float(labels.var())
        mean = [
            losses(scores_of(inputs, model), labels, numbers, variance).mean()
            for model in models
        ]
        gains.append(mean[0] - np.array(mean[1:]))
    return np.array(gains)


class _Rows(NamedTuple):
    """Scores of one client's rows, repeat by repeat and method by method."""

    scores: Sequence[Mapping[str, Array]]
    labels: Array
    numbers: bool
    patients: NDArray[np.int64]

    def gain(self, method: str, rival: str) -> tuple[float, float]:
        """Mean gain of `method` over `rival` and its standard error over patients."""
        variance = float(self.labels.var())
        sides = [
            [
                mean_influence(
                    self.patients, losses(s[m], self.labels, self.numbers, variance)
                )
                for s in self.scores
            ]
            for m in (rival, method)
        ]
        return _gain(*sides)

    def ranking_gain(
        self, method: str, folds: Sequence[NDArray[np.int64]]
    ) -> tuple[float, float] | None:
        """The same in AUC, each row among those of its fold; None below ten rows of a class."""
        cases = self.labels.sum()
        if self.numbers or not 10 <= cases <= len(self.labels) - 10:
            return None
        codes = self.labels.astype(int)
        sides: list[list[Influence]] = [[], []]
        for s, dealt in zip(self.scores, folds, strict=True):
            for side, m in zip(sides, (method, "local"), strict=True):
                found = auc_influence(self.patients, s[m], codes, dealt)
                side += [] if found is None else [found]
        return _gain(*sides)


def _gain(one: Sequence[Influence], two: Sequence[Influence]) -> tuple[float, float]:
    error = row_error(one, two)
    mean = float(np.mean([a.metric - b.metric for a, b in zip(one, two, strict=True)]))
    return mean, 0.0 if error is None else error.error

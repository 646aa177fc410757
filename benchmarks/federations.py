"""Simulated federations whose true gains are known: kinds of clients, and what a run sees of them.

Four sets of kinds. `DEVELOPMENT` was looked at while the rule was built, and `WEAK_PLACES` are kinds in which a simulation of it had
failed. `ALIKE_OR_IN_GROUPS` and `DRAWN` were written down, with
the bars of `benchmarks/verdicts.py`, in a commit that came before their first run; what they show is reported and changes nothing.

A federation is trained and tested as a run with five folds and two repeats is, by the same folds and outcomes. Training is ridge
regression (logistic or linear, penalty 1) in NumPy, since the rule is what is tested. The truth of a client and method is its mean
gain over ten further training sets of that size on 40,000 fresh rows; beside it stands the gain of the one model that is trained on
all rows. Rivals are the rule that coterie had before, and a t test, both over five random splits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.base.folds import deal_folds
from coterie.compute.outcomes import Influence, auc_influence, mean_influence, row_error
from coterie.data.parts import stratified
from coterie.report.groups import split_of
from coterie.report.statistics import compare_pairs

METHODS = ("fedavg", "fedavg+bias", "meritfed")
FOLDS, REPEATS, TRUTHS, FRESH = 5, 2, 10, 40_000
SPLITS, TESTED = 5, 1 / 3
"""Random splits of the rule of before, and the share of rows that each of them tests."""
INPUTS, RIDGE, STEPS, RATE, MIRROR = 8, 1.0, 40, 0.5, 2.0

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
        """Inputs with a constant [rows, p + 1], labels [rows] and the patient of each row [rows]."""
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
        return np.column_stack([inputs, np.ones(rows)]), labels, patient


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


def _with_garbage(members: int, rows: int) -> Kind:
    def draw(rng: np.random.Generator) -> list[Client]:
        clients = _alike(members, rows)(rng)
        return [*clients[:-1], clients[-1]._replace(garbage=True)]

    return draw


def _scaled(members: int, rows: int) -> Kind:
    def draw(rng: np.random.Generator) -> list[Client]:
        common = rng.normal(0, 0.6, INPUTS)
        return [
            Client(rows, scale * common) for scale in np.geomspace(0.4, 2.5, members)
        ]

    return draw


DEVELOPMENT: Mapping[str, Kind] = {
    "identical, 60 rows": _alike(6, 60),
    "identical, 100 rows": _alike(4, 100),
    "identical, 300 rows": _alike(6, 300),
    "identical, 1500 rows": _alike(3, 1500),
    "alike, 80 rows": _alike(6, 80, 0.15),
    "alike, 150 rows": _alike(4, 150, 0.15),
    "mildly unlike, 150 rows": _alike(4, 150, 0.35),
    "mildly unlike, 300 rows": _alike(6, 300, 0.35),
    "unrelated, 150 rows": _alike(5, 150, 0.8),
    "two groups of 3, 100 rows": _groups((3, 3), 100),
    "two groups of 2, 200 rows": _groups((2, 2), 200),
    "four groups of 2, 150 rows": _groups((2, 2, 2, 2), 150),
    "opposite halves, 100 rows": _groups((3, 3), 100, (1, -1)),
    "one opposite, 120 rows": _groups((4, 1), 120, (1, -1)),
    "one with garbage labels, 100 rows": _with_garbage(5, 100),
    "prevalence differs, 100 rows": _differing(6, (100,), intercept=(-1.5, 1.5)),
    "prevalence differs, 400 rows": _differing(4, (400,), intercept=(-1.5, 1.5)),
    "inputs shifted, 120 rows": _differing(5, (120,), shift=(-1.0, 1.0)),
    "scale differs, 150 rows": _scaled(5, 150),
    "small beside large": _differing(6, (60, 80, 400, 600), intercept=(-0.2, 0.2)),
    "nothing to learn, 100 rows": lambda rng: [
        Client(100, np.zeros(INPUTS)) for _ in range(5)
    ],
    "wide, 100 rows": _alike(5, 100, inputs=25),
    "rare outcome, 600 rows": _alike(5, 600, intercept=-3.5),
    "heavy tails, 100 rows": _alike(5, 100, 0.15, numbers=True),
    "three visits a patient, 150 rows": _alike(5, 150, visits=3),
}

ALIKE_OR_IN_GROUPS: Mapping[str, Kind] = {
    "5 alike, 60 to 120 rows": _differing(5, (60, 75, 90, 105, 120), 0.1),
    "8 alike, 90 rows, 12 inputs": _alike(8, 90, 0.1, inputs=12),
    "10 identical, 70 rows, one case in four": _alike(10, 70, intercept=-1.2),
    "three groups of 3, 100 rows": _groups((3, 3, 3), 100),
    "groups of 4 and 3, 120 rows": _groups((4, 3), 120),
    "two groups of 3 with half in common, 250 rows": _groups(
        (3, 3), 250, common_inputs=INPUTS // 2
    ),
}


def _one_unlike(members: int, rows: int, its_rows: int) -> Kind:
    """Alike clients, and a small one with coefficients of its own."""

    def draw(rng: np.random.Generator) -> list[Client]:
        return [
            *_alike(members - 1, rows)(rng),
            Client(its_rows, rng.normal(0, 0.6, INPUTS)),
        ]

    return draw


def _with_numbers(kind: Kind) -> Kind:
    """The same clients with quantities as labels."""
    return lambda rng: [client._replace(numbers=True) for client in kind(rng)]


WEAK_PLACES: Mapping[str, Kind] = {
    "numbers, one of 5 opposite, 120 rows": _with_numbers(
        _groups((4, 1), 120, (1, -1))
    ),
    "one of 70 rows unlike five of 400": _one_unlike(6, 400, 70),
    "seven mildly unlike, 80 rows": _alike(7, 80, 0.35),
    "prevalence in a gradient, 6 clients of 200 rows": _differing(
        6, (200,), intercept=(-1.5, 1.5)
    ),
}


DRAWN_BY = 20261124


def _drawn() -> dict[str, Kind]:
    """Sixteen kinds that a seed draws: number and sizes of clients, likeness, groups, shifts and how rare the outcome is."""
    rng = np.random.default_rng(DRAWN_BY)
    kinds: dict[str, Kind] = {}
    while len(kinds) < 16:
        members = int(rng.integers(3, 13))
        sizes = np.exp(rng.uniform(np.log(60), np.log(1000), members)).astype(int)
        sizes = sizes if rng.random() < 0.5 else np.full(members, sizes[0])
        spread = float(rng.choice([0.0, rng.uniform(0.05, 0.5)]))
        groups = int(min(rng.choice([1, 1, 1, 2, 3]), members // 2))
        moved = str(rng.choice(["", "intercept", "shift"]))
        reach, intercept = float(rng.uniform(0.3, 1.5)), float(rng.uniform(-3.0, 0.0))
        rows = (
            f"{sizes.min()} to {sizes.max()} rows"
            if sizes.min() < sizes.max()
            else f"{sizes[0]} rows"
        )
        facts = [f"{members} clients", rows, f"spread {spread:.2f}"]
        facts += [f"{groups} groups"] * (groups > 1)
        facts += [
            f"{'prevalence' if moved == 'intercept' else 'inputs'} shifted by {reach:.1f}"
        ] * bool(moved)
        facts += [f"intercept {intercept:.1f}"]
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
    "seen while the rule was built": DEVELOPMENT,
    "clients alike or in groups": ALIKE_OR_IN_GROUPS,
    "drawn by a seed": _drawn(),
    "where the rule is known to be weak": WEAK_PLACES,
}


# Training

Parts = Sequence[tuple[Array, Array]]


def _mean(scores: Array, numbers: bool) -> Array:
    return scores if numbers else 1 / (1 + np.exp(-np.clip(scores, -30, 30)))


def fit_ridge(
    inputs: Array, labels: Array, numbers: bool, counts: Array | float = 1.0
) -> Array:
    """Coefficients [p + 1] of ridge regression by Newton's method; the constant is not penalised. A row counts `counts` times."""
    penalty = np.diag([RIDGE] * (inputs.shape[1] - 1) + [1e-3])
    x = np.zeros(inputs.shape[1])
    for _ in range(1 if numbers else 8):
        mean = _mean(inputs @ x, numbers)
        weight = counts * (
            np.ones(len(labels)) if numbers else np.maximum(mean * (1 - mean), 1e-4)
        )
        gradient = inputs.T @ (counts * (mean - labels)) + penalty @ x
        x = x - np.linalg.solve((inputs.T * weight) @ inputs + penalty, gradient)
    return x


def fit_bias(inputs: Array, labels: Array, x: Array, numbers: bool) -> Array:
    """The same coefficients with a constant that fits these rows."""
    tuned = x.copy()
    for _ in range(5):
        mean = _mean(inputs @ tuned, numbers)
        slope = len(labels) if numbers else max(float((mean * (1 - mean)).sum()), 1e-2)
        tuned[-1] -= float((mean - labels).sum() + RIDGE * (tuned[-1] - x[-1])) / (
            slope + RIDGE
        )
    return tuned


def fit_meritfed(parts: Parts, numbers: bool) -> tuple[Array, Array]:
    """MeritFed with full gradients, each client the target of a model: models [targets, p + 1], and the mean weights of the later
    half of the steps [targets, clients]; mirror descent on its own rows.
    """
    members, width = len(parts), parts[0][0].shape[1]
    most = max(len(labels) for _, labels in parts)
    inputs, labels, share_of_row = (
        np.zeros((members, most, *shape)) for shape in ((width,), (), ())
    )
    for i, (rows, values) in enumerate(parts):
        count = len(values)
        inputs[i, :count], labels[i, :count], share_of_row[i, :count] = (
            rows,
            values,
            1 / count,
        )
    x, weights = np.zeros((members, width)), np.full((members, members), 1 / members)
    late = np.zeros_like(weights)
    flat = inputs.reshape(-1, width)
    ridge = np.array([RIDGE / sum(len(v) for _, v in parts)] * (width - 1) + [0.0])

    def gradients(models: Array) -> Array:
        scores = (flat @ models.T).reshape(members, most, members)
        residual = (_mean(scores, numbers) - labels[:, :, None]) * share_of_row[
            :, :, None
        ]
        by_client = np.matmul(residual.transpose(0, 2, 1), inputs)
        return np.asarray(by_client).transpose(1, 0, 2)  # [targets, clients, p + 1]

    rate = RATE * (0.3 if numbers else 2.0)
    for step in range(STEPS):
        steps = gradients(x)
        moved = x - rate * (np.einsum("tc,tcp->tp", weights, steps) + ridge * x)
        own = gradients(moved)[np.arange(members), np.arange(members)]
        gain = np.einsum("tp,tcp->tc", own, steps) * rate * MIRROR
        weights = weights * np.exp(np.clip(gain, -30, 30))
        weights /= weights.sum(axis=1, keepdims=True)
        late += weights * (step >= STEPS // 2) / (STEPS - STEPS // 2)
        x = moved
    return x, late


def train(parts: Parts, numbers: bool) -> tuple[list[dict[str, Array]], Array]:
    """The models of each method, client by client, and MeritFed's weights [targets, clients]."""
    pooled = fit_ridge(
        np.concatenate([x for x, _ in parts]),
        np.concatenate([y for _, y in parts]),
        numbers,
    )
    merit, weights = fit_meritfed(parts, numbers)
    return [
        {
            "local": fit_ridge(x, y, numbers),
            "fedavg": pooled,
            "fedavg+bias": fit_bias(x, y, pooled, numbers),
            "meritfed": merit[i],
        }
        for i, (x, y) in enumerate(parts)
    ], weights


def losses(scores: Array, labels: Array, numbers: bool, variance: float) -> Array:
    """Log-loss of each row, or squared error as a share of the variance of the labels."""
    if numbers:
        return np.asarray((scores - labels) ** 2 / variance)
    return np.asarray(np.logaddexp(0, scores) - labels * scores)


# One federation


class _Federation:
    """The rows of one federation, and the scores of models trained on some of them."""

    def __init__(
        self, clients: Sequence[Client], name: str, rng: np.random.Generator
    ) -> None:
        self.clients, self.name, self.numbers = clients, name, clients[0].numbers
        drawn = [c.draw(c.rows, rng) for c in clients]
        self.parts = [(x, y) for x, y, _ in drawn]
        self.patients = [patient for _, _, patient in drawn]

    def folds(self, client: int, repeat: int) -> NDArray[np.int64]:
        """The fold of each row of a client."""
        labels = self.parts[client][1]
        codes = labels if self.numbers else labels.astype(int)
        return deal_folds(
            codes,
            FOLDS,
            seed=repeat,
            name=f"{self.name}/{client}",
            groups=self.patients[client],
        )

    def half(self, client: int, seed: int) -> NDArray[np.int64]:
        """1 for the rows that a random split tests, 0 for those that train."""
        labels = self.parts[client][1]
        codes = None if self.numbers else labels.astype(int)
        name = f"{self.name}/{client}/split"
        tested = stratified(
            codes,
            {"train": 1 - TESTED, "test": TESTED},
            seed=seed,
            name=name,
            n=len(labels),
        )["test"]
        return np.isin(np.arange(len(labels)), tested).astype(np.int64)

    def scores(
        self, dealt: Sequence[NDArray[np.int64]], tested: Sequence[int]
    ) -> tuple[list[dict[str, Array]], list[Array]]:
        """Scores [rows] of each client and method by models that have not seen the row, and MeritFed's weights, part by part."""
        scores: list[dict[str, Array]] = [
            {m: np.zeros(c.rows) for m in ("local", *METHODS)} for c in self.clients
        ]
        weights = []
        for part in tested:
            training = [
                (x[dealt[i] != part], y[dealt[i] != part])
                for i, (x, y) in enumerate(self.parts)
            ]
            models, weight = train(training, self.numbers)
            weights.append(weight)
            for i, (x, _) in enumerate(self.parts):
                at = dealt[i] == part
                for method, model in models[i].items():
                    scores[i][method][at] = x[at] @ model
        return scores, weights


class World(NamedTuple):
    """One federation as it is drawn: its clients, what a run sees of them, and the rows that tell the truth.

    Attributes:
        clients: How the rows of each client are distributed.
        federation: The rows that a run sees.
        fresh: `FRESH` rows of each client, on which gains are measured.
        further: As many training sets as `TRUTHS`, each of the sizes of the clients.
    """

    clients: list[Client]
    federation: _Federation
    fresh: Parts
    further: list[Parts]


def draw_world(kind: str, draw: Kind, number: int) -> World:
    """The same federation of a kind whenever it is drawn."""
    rng = np.random.default_rng([*kind.encode(), number])
    clients = draw(rng)
    federation = _Federation(clients, f"{kind}/{number}", rng)
    fresh = [c.draw(FRESH, rng)[:2] for c in clients]
    return World(
        clients,
        federation,
        fresh,
        [[c.draw(c.rows, rng)[:2] for c in clients] for _ in range(TRUTHS)],
    )


def estimate(kind: str, draw: Kind, number: int) -> list[dict[str, Any]]:
    """What the rule and its rivals see, and what is true, client by client."""
    clients, federation, fresh, further = draw_world(kind, draw, number)
    truths = np.zeros((len(clients), len(METHODS)))
    for parts in further:
        truths += _true_gains(fresh, parts, federation.numbers) / TRUTHS
    of_this = _true_gains(fresh, federation.parts, federation.numbers)
    folds = [
        [federation.folds(i, r) for i in range(len(clients))] for r in range(REPEATS)
    ]
    by_repeat = [federation.scores(dealt, range(FOLDS)) for dealt in folds]
    halves = [
        [federation.half(i, s) for i in range(len(clients))] for s in range(SPLITS)
    ]
    by_split = [federation.scores(dealt, [1])[0] for dealt in halves]
    weights = np.stack([w for _, each in by_repeat for w in each])
    shown = split_of(weights.mean(axis=0), weights, FOLDS)
    found = []
    for i, client in enumerate(clients):
        labels, patients = federation.parts[i][1], federation.patients[i]
        about: dict[str, Any] = {
            "kind": kind,
            "number": number,
            "client": i,
            "rows": len(labels),
        }
        about |= {
            "group": client.group,
            "shown": None if shown is None else int(shown[i]),
        }
        about |= {"shifted": len({(c.intercept, c.shift) for c in clients}) > 1}
        about["rare"] = bool(
            not federation.numbers and min(labels.sum(), len(labels) - labels.sum()) < 5
        )
        tests = [np.flatnonzero(dealt[i]) for dealt in halves]
        for column, method in enumerate(METHODS):
            in_folds = _Pair(
                [s[i] for s, _ in by_repeat],
                method,
                labels,
                federation.numbers,
                patients,
            )
            in_splits = _Pair(
                [s[i] for s in by_split],
                method,
                labels,
                federation.numbers,
                np.arange(len(labels)),
            )
            about[method] = {
                "loss": in_folds.loss(),
                "auc": in_folds.auc([dealt[i] for dealt in folds]),
                "truth": float(truths[i, column]),
                "this": float(of_this[i, column]),
                "before": in_splits.over_seeds(tests),
            }
        found.append(about)
    return found


def _true_gains(fresh: Parts, training: Parts, numbers: bool) -> Array:
    """The gain over training alone on fresh rows, [clients, methods]."""
    models, _ = train(training, numbers)
    gains = []
    for (inputs, labels), of_client in zip(fresh, models, strict=True):
        scores = inputs @ np.stack([of_client[m] for m in ("local", *METHODS)]).T
        mean = losses(scores, labels[:, None], numbers, float(labels.var())).mean(
            axis=0
        )
        gains.append(mean[0] - mean[1:])
    return np.array(gains)


class _Pair(NamedTuple):
    """A method beside training alone at one client: scores of its rows, repeat by repeat."""

    scores: Sequence[Mapping[str, Array]]
    method: str
    labels: Array
    numbers: bool
    patients: NDArray[np.int64]

    def _losses(self, scores: Array, at: NDArray[np.int64]) -> Array:
        return losses(
            scores[at], self.labels[at], self.numbers, float(self.labels.var())
        )

    def _influences(self, at: Sequence[NDArray[np.int64]]) -> list[list[Influence]]:
        """Of the loss alone, and under the method."""
        return [
            [mean_influence(self.patients[rows], self._losses(s[m], rows)) for s, rows in zip(self.scores, at, strict=True)]
            for m in ("local", self.method)
        ]  # fmt: skip

    def _ranks(
        self, at: Sequence[NDArray[np.int64]], folds: Sequence[NDArray[np.int64]] | None
    ) -> list[list[Influence]] | None:
        cases = self.labels.sum()
        if self.numbers or not 10 <= cases <= len(self.labels) - 10:
            return None
        codes = self.labels.astype(int)
        ranks = [
            [
                auc_influence(
                    self.patients[rows],
                    s[m][rows],
                    codes[rows],
                    None if folds is None else folds[r],
                )
                for r, (s, rows) in enumerate(zip(self.scores, at, strict=True))
            ]
            for m in (self.method, "local")
        ]
        kept = [r for r in range(len(at)) if all(side[r] is not None for side in ranks)]
        return [[side[r] for r in kept] for side in ranks] if kept else None  # type: ignore[misc]

    def loss(self) -> tuple[float, float]:
        """Gain and standard error over all rows."""
        return _gain(
            *self._influences([np.arange(len(self.labels))] * len(self.scores))
        )

    def auc(self, folds: Sequence[NDArray[np.int64]]) -> tuple[float, float] | None:
        """The same in AUC, each row among those of its fold."""
        ranks = self._ranks([np.arange(len(self.labels))] * len(self.scores), folds)
        return _gain(*ranks) if ranks else None

    def over_seeds(self, at: Sequence[NDArray[np.int64]]) -> dict[str, Any]:
        """What the rule of before saw in test rows `at` of each seed, log-loss and AUC: the mean and whether its interval excludes 0;
        and mean and p value of a plain paired t test over seeds.
        """
        from scipy.stats import ttest_1samp

        pairs = {"loss": self._influences(at), "auc": self._ranks(at, None)}
        seen: dict[str, Any] = {}
        for metric, sides in pairs.items():
            if sides is not None:
                one, two = ([i.metric for i in side] for side in sides)
                difference = compare_pairs(
                    one, two, TESTED / (1 - TESTED), row_error(*sides)
                )
                seen[metric] = (
                    (difference.mean, difference.excludes_zero)
                    if difference
                    else (0.0, False)
                )
        gaps = [a.metric - b.metric for a, b in zip(*pairs["loss"], strict=True)]  # type: ignore[misc]
        seen["t"] = (float(np.mean(gaps)), float(ttest_1samp(gaps, 0).pvalue))
        seen["tested"] = len(at[0])
        return seen


def _gain(one: Sequence[Influence], two: Sequence[Influence]) -> tuple[float, float]:
    error = row_error(one, two)
    mean = float(np.mean([a.metric - b.metric for a, b in zip(one, two, strict=True)]))
    return mean, 0.0 if error is None else error.error

"""How often does the rule of verdicts err, and what does it find? Simulated federations whose true gains are known.

Each of 24 kinds of federations is drawn several times. A federation is judged as a run with five folds and two repeats is, by the
same folds, outcomes and rule; training is ridge regression (logistic or linear) in NumPy, since what is tested is the rule.
The truth of a client and method is its mean gain over ten further training sets of that size on 40,000 fresh rows.

Estimates are kept by federation in runs/verdicts.jsonl, so that a run that was stopped goes on. Writes
benchmarks/results/verdicts.json and the table of docs/statistics.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.pages import between
from coterie.base.files import write_atomically
from coterie.compute.outcomes import Influence, auc_influence, mean_influence, row_error
from coterie.data.folds import deal_folds
from coterie.report.evidence import Gain, share, state, vetoed

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "verdicts.json"
ESTIMATES = ROOT / "runs" / "verdicts.jsonl"
METHODS = ("fedavg", "fedavg+bias", "meritfed")
FOLDS, REPEATS, TRUTHS, FRESH = 5, 2, 10, 40_000
INPUTS, RIDGE, STEPS, RATE, MIRROR = 8, 1.0, 40, 0.5, 2.0

Array = NDArray[np.float64]


class Client(NamedTuple):
    """How the rows of one client are distributed: coefficients [p], intercept, mean of the inputs, label flips, heavy tails."""

    rows: int
    coefficients: Array
    intercept: float = 0.0
    shift: float = 0.0
    garbage: bool = False
    numbers: bool = False

    def draw(self, rows: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Inputs with a constant [rows, p + 1] and labels [rows]."""
        inputs = rng.normal(self.shift, 1, (rows, len(self.coefficients)))
        score = inputs @ self.coefficients + self.intercept
        labels = (
            score + rng.standard_t(3, rows)
            if self.numbers
            else (rng.random(rows) < 1 / (1 + np.exp(-score))).astype(float)
        )
        labels = rng.permutation(labels) if self.garbage else labels
        return np.column_stack([inputs, np.ones(rows)]), labels


Kind = Callable[[np.random.Generator], list[Client]]


def _alike(members: int, rows: int, spread: float = 0.0, inputs: int = INPUTS, **about: Any) -> Kind:
    """Clients whose coefficients differ by `spread` from common ones."""

    def draw(rng: np.random.Generator) -> list[Client]:
        common = rng.normal(0, 0.6 * np.sqrt(INPUTS / inputs), inputs)
        return [Client(rows, common + spread * rng.normal(0, 1, inputs), **about) for _ in range(members)]

    return draw


def _groups(sizes: Sequence[int], rows: int, signs: Sequence[float] = ()) -> Kind:
    """Groups of clients with coefficients of their own, or the same times a sign."""

    def draw(rng: np.random.Generator) -> list[Client]:
        common = rng.normal(0, 0.6, INPUTS)
        centres = [sign * common for sign in signs] or [rng.normal(0, 0.6, INPUTS) for _ in sizes]
        return [Client(rows, centre) for size, centre in zip(sizes, centres, strict=True) for _ in range(size)]

    return draw


def _differing(members: int, rows: Sequence[int], **ranges: tuple[float, float]) -> Kind:
    """Alike clients whose intercepts or inputs are shifted, evenly from one end of the range to the other."""

    def draw(rng: np.random.Generator) -> list[Client]:
        common = rng.normal(0, 0.6, INPUTS)
        steps = {key: np.linspace(*ends, members) for key, ends in ranges.items()}
        sizes = [rows[i % len(rows)] for i in range(members)]
        return [Client(sizes[i], common, **{key: float(v[i]) for key, v in steps.items()}) for i in range(members)]

    return draw


def _with_garbage(members: int, rows: int) -> Kind:
    def draw(rng: np.random.Generator) -> list[Client]:
        clients = _alike(members, rows)(rng)
        return [*clients[:-1], clients[-1]._replace(garbage=True)]

    return draw


def _scaled(members: int, rows: int) -> Kind:
    def draw(rng: np.random.Generator) -> list[Client]:
        common = rng.normal(0, 0.6, INPUTS)
        return [Client(rows, scale * common) for scale in np.geomspace(0.4, 2.5, members)]

    return draw


KINDS: Mapping[str, Kind] = {
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
    "nothing to learn, 100 rows": lambda rng: [Client(100, np.zeros(INPUTS)) for _ in range(5)],
    "wide, 100 rows": _alike(5, 100, inputs=25),
    "rare outcome, 600 rows": _alike(5, 600, intercept=-3.5),
    "heavy tails, 100 rows": _alike(5, 100, 0.15, numbers=True),
}


# Training


def _mean(scores: Array, numbers: bool) -> Array:
    return scores if numbers else 1 / (1 + np.exp(-np.clip(scores, -30, 30)))


def fit_ridge(inputs: Array, labels: Array, numbers: bool) -> Array:
    """Coefficients [p + 1] of ridge regression by Newton's method; the constant is not penalised."""
    penalty = np.diag([RIDGE] * (inputs.shape[1] - 1) + [1e-3])
    x = np.zeros(inputs.shape[1])
    for _ in range(1 if numbers else 8):
        mean = _mean(inputs @ x, numbers)
        weight = np.ones(len(labels)) if numbers else np.maximum(mean * (1 - mean), 1e-4)
        gradient = inputs.T @ (mean - labels) + penalty @ x
        x = x - np.linalg.solve((inputs.T * weight) @ inputs + penalty, gradient)
    return x


def fit_bias(inputs: Array, labels: Array, x: Array, numbers: bool) -> Array:
    """The same coefficients with a constant that fits these rows."""
    tuned = x.copy()
    for _ in range(5):
        mean = _mean(inputs @ tuned, numbers)
        slope = len(labels) if numbers else max(float((mean * (1 - mean)).sum()), 1e-2)
        tuned[-1] -= float((mean - labels).sum() + RIDGE * (tuned[-1] - x[-1])) / (slope + RIDGE)
    return tuned


def fit_meritfed(parts: Sequence[tuple[Array, Array]], numbers: bool) -> Array:
    """MeritFed with full gradients, each client the target of a model: [targets, p + 1]; mirror descent on its own rows."""
    members, width = len(parts), parts[0][0].shape[1]
    most = max(len(labels) for _, labels in parts)
    inputs, labels, share_of_row = (
        np.zeros((members, most, width)),
        np.zeros((members, most)),
        np.zeros((members, most)),
    )
    for i, (rows, values) in enumerate(parts):
        inputs[i, : len(values)], labels[i, : len(values)], share_of_row[i, : len(values)] = (
            rows,
            values,
            1 / len(values),
        )
    x, weights = np.zeros((members, width)), np.full((members, members), 1 / members)
    flat = inputs.reshape(-1, width)
    ridge = np.array([RIDGE / sum(len(v) for _, v in parts)] * (width - 1) + [0.0])

    def gradients(models: Array) -> Array:
        scores = (flat @ models.T).reshape(members, most, members)
        residual = (_mean(scores, numbers) - labels[:, :, None]) * share_of_row[:, :, None]
        return np.asarray(np.matmul(residual.transpose(0, 2, 1), inputs)).transpose(
            1, 0, 2
        )  # [targets, clients, p + 1]

    rate = RATE * (0.3 if numbers else 2.0)
    for _ in range(STEPS):
        steps = gradients(x)
        moved = x - rate * (np.einsum("tc,tcp->tp", weights, steps) + ridge * x)
        own = gradients(moved)[np.arange(members), np.arange(members)]
        gain = np.einsum("tp,tcp->tc", own, steps) * rate * MIRROR
        weights = weights * np.exp(np.clip(gain, -30, 30))
        weights /= weights.sum(axis=1, keepdims=True)
        x = moved
    return x


def train(parts: Sequence[tuple[Array, Array]], numbers: bool) -> dict[str, list[Array]]:
    """The models of each method, client by client."""
    pooled = fit_ridge(np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts]), numbers)
    return {
        "local": [fit_ridge(x, y, numbers) for x, y in parts],
        "fedavg": [pooled] * len(parts),
        "fedavg+bias": [fit_bias(x, y, pooled, numbers) for x, y in parts],
        "meritfed": [*fit_meritfed(parts, numbers)],
    }


def losses(scores: Array, labels: Array, numbers: bool, variance: float) -> Array:
    """Log-loss of each row, or squared error as a share of the variance of the labels."""
    if numbers:
        return np.asarray((scores - labels) ** 2 / variance)
    return np.asarray(np.logaddexp(0, scores) - labels * scores)


# One federation


def estimate(kind: str, number: int) -> list[dict[str, Any]]:
    """What the rule sees and what is true, client by client."""
    rng = np.random.default_rng([list(KINDS).index(kind), number])
    clients = KINDS[kind](rng)
    numbers = clients[0].numbers
    rows = [c.draw(c.rows, rng) for c in clients]
    fresh = [c.draw(FRESH, rng) for c in clients]
    variances = [float(y.var()) for _, y in fresh]
    truths = {m: np.zeros(len(clients)) for m in METHODS}
    for _ in range(TRUTHS):
        models = train([c.draw(c.rows, rng) for c in clients], numbers)
        for i, (inputs, labels) in enumerate(fresh):
            scores = inputs @ np.stack([models[m][i] for m in ("local", *METHODS)]).T
            mean = losses(scores, labels[:, None], numbers, variances[i]).mean(axis=0)
            for column, method in enumerate(METHODS, start=1):
                truths[method][i] += float(mean[0] - mean[column]) / TRUTHS
    scores = {m: [np.zeros((REPEATS, c.rows)) for c in clients] for m in ("local", *METHODS)}
    folds = [
        np.stack([
            deal_folds(y if numbers else y.astype(int), FOLDS, seed=r, name=f"{kind}/{number}/{i}") for r in range(REPEATS)
        ])
        for i, (_, y) in enumerate(rows)
    ]  # fmt: skip
    for repeat in range(REPEATS):
        for fold in range(FOLDS):
            trained = [(x[folds[i][repeat] != fold], y[folds[i][repeat] != fold]) for i, (x, y) in enumerate(rows)]
            models = train(trained, numbers)
            for i, (x, _) in enumerate(rows):
                at = folds[i][repeat] == fold
                for method, own in models.items():
                    scores[method][i][repeat, at] = x[at] @ own[i]
    found = []
    for i, (_, y) in enumerate(rows):
        about: dict[str, Any] = {"kind": kind, "number": number, "client": i, "rows": len(y)}
        for method in METHODS:
            base, mine = scores["local"][i], scores[method][i]
            variance = float(y.var())
            pair = [
                [mean_influence(np.arange(len(y)), losses(s[r], y, numbers, variance)) for r in range(REPEATS)]
                for s in (base, mine)
            ]
            gaps = losses(base, y, numbers, variance) - losses(mine, y, numbers, variance)
            by_fold = [gaps[r, folds[i][r] == k].mean() for r in range(REPEATS) for k in range(FOLDS)]
            about[method] = {"loss": _gain(*pair), "truth": float(truths[method][i]), "t": _t_test(by_fold)}
            if not numbers and 10 <= y.sum() <= len(y) - 10:
                ranked = [
                    [auc_influence(np.arange(len(y)), s[r], y.astype(int), folds[i][r]) for r in range(REPEATS)]
                    for s in (mine, base)
                ]
                about[method]["auc"] = _gain(*[[r for r in rank if r is not None] for rank in ranked])
        about["rare"] = bool(not numbers and min(y.sum(), len(y) - y.sum()) < 5)
        found.append(about)
    return found


def _gain(one: Sequence[Influence], two: Sequence[Influence]) -> tuple[float, float]:
    error = row_error(one, two)
    return float(
        np.mean([a.metric - b.metric for a, b in zip(one, two, strict=True)])
    ), 0.0 if error is None else error.error


def _t_test(gaps: Sequence[float]) -> tuple[float, float]:
    """Mean and p value of the plain paired t test over the folds of all repeats."""
    from scipy.stats import ttest_1samp

    return float(np.mean(gaps)), float(ttest_1samp(gaps, 0).pvalue)


# The rule


class Judged(NamedTuple):
    """What one client is told, and what is true."""

    kind: str
    word: str
    probability: float
    gains: bool
    truth: float
    best: float
    covered: bool
    t_join: bool
    t_truth: float


def judge(clients: Sequence[Mapping[str, Any]]) -> list[Judged]:
    """What each client of one federation is told."""
    judged = [c for c in clients if not c["rare"]]
    if not judged:
        return []
    shared = {m: share([Gain(*c[m]["loss"], c["rows"]) for c in judged]) for m in METHODS}
    ranked = [i for i, c in enumerate(judged) if "auc" in c[METHODS[0]]]
    ranking = {
        m: dict(zip(ranked, share([Gain(*judged[i][m]["auc"], judged[i]["rows"]) for i in ranked]), strict=True))
        for m in METHODS
        if ranked
    }
    told = []
    for i, client in enumerate(judged):
        method = max(METHODS, key=lambda m: shared[m][i].mean)
        statement = state(Gain(*client[method]["loss"], client["rows"]), shared[method][i])
        veto = method in ranking and i in ranking[method] and vetoed(ranking[method][i])
        word = "mixed" if veto and statement.word in ("join", "probably join", "safe to join") else statement.word
        truth, best = client[method]["truth"], max(client[m]["truth"] for m in METHODS)
        by_t = max(METHODS, key=lambda m: client[m]["t"][0])
        t_mean, t_p = client[by_t]["t"]
        told.append(
            Judged(
                client["kind"],
                word,
                shared[method][i].above(0.0),
                best > 0.02,
                truth,
                best,
                statement.low <= truth <= statement.high,
                t_p < 0.05 and t_mean >= 0.01,
                client[by_t]["truth"],
            )
        )
    return told


def summary(told: Sequence[Judged]) -> dict[str, Any]:
    """Counts and shares over some clients; None where nobody is concerned."""
    gaining = [j for j in told if j.gains]
    joins = [j for j in told if j.word in ("join", "probably join")]
    sure = [j for j in told if j.word == "join"]
    harmed = [j for j in told if j.best < -0.02]
    t_joins = [j for j in told if j.t_join]

    def part(some: Iterable[bool]) -> float | None:
        flags = [*some]
        return round(sum(flags) / len(flags), 4) if flags else None

    return {
        "clients": len(told),
        "gains": len(gaining),
        "join": part(j.word == "join" for j in gaining),
        "join or probably": part(j.word in ("join", "probably join") for j in gaining),
        "joins": len(joins),
        "joins with the wrong sign": part(j.truth < 0 for j in joins),
        "sure joins with the wrong sign": part(j.truth < 0 for j in sure),
        "joins that lose more than .01": part(j.truth < -0.01 for j in joins),
        "told to join without a gain": part(j in joins for j in told if j.truth <= 0),
        "told to join for sure without a gain": part(j.word == "join" for j in told if j.truth <= 0),
        "coverage": part(j.covered for j in told),
        "true at .8 to .9": part(j.truth > 0 for j in told if 0.8 <= j.probability < 0.9),
        "true at .9 to .95": part(j.truth > 0 for j in told if 0.9 <= j.probability < 0.95),
        "safe": part(j.word in ("safe to join", "join", "probably join") for j in told if j.best > -0.01),
        "safe but harmed": part(j.truth < -0.01 for j in told if j.word == "safe to join"),
        "harm found": part("stay alone" in j.word for j in harmed),
        "undecided": part(j.word == "undecided" for j in told),
        "t test: gains found": part(j.t_join for j in gaining),
        "t test: wrong sign": part(j.t_truth < 0 for j in t_joins),
    }


COLUMNS = (
    ("gains", "gains > .02"),
    ("join", "told *join*"),
    ("join or probably", "or *probably*"),
    ("joins with the wrong sign", "wrong sign"),
    ("joins that lose more than .01", "lose > .01"),
    ("coverage", "coverage"),
    ("undecided", "undecided"),
    ("t test: gains found", "t test finds"),
    ("t test: wrong sign", "wrong sign"),
)


def table(by_kind: Mapping[str, Mapping[str, Any]], sets: int) -> str:
    """The table of docs/statistics.md, and in words what it shows over all kinds."""
    lines = ["| kind | clients | " + " | ".join(title for _, title in COLUMNS) + " |"]
    lines.append("| --- |" + " ---: |" * (len(COLUMNS) + 1))
    for kind, row in by_kind.items():
        cells = [str(row["clients"]), *(_cell(row[key]) for key, _ in COLUMNS)]
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    whole = by_kind["all"]
    calibration = [
        f"{sets} federations of each kind. *All* are all clients together, and the last two columns are the plain t test over folds.",
        (
            f"Of clients told a gain with a probability of .8 to .9, {_cell(whole['true at .8 to .9'])} truly gain; of those with "
            f".9 to .95, {_cell(whole['true at .9 to .95'])}."
        ),
        (
            f"Of clients whose judged method does not gain, {_cell(whole['told to join for sure without a gain'])} are told *join*, "
            f"{_cell(whole['told to join without a gain'])} either."
        ),
        (
            f"*Safe to join*, or a join, is said to {_cell(whole['safe'])} of those whom the best method harms by at most .01; of "
            f"those told *safe to join*, {_cell(whole['safe but harmed'])} are harmed by more."
        ),
    ]
    return "\n".join([*lines, "", *calibration])


def _cell(value: float | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.3f}".replace("0.", ".", 1)


def main(sets: int = 20) -> int:
    """Estimate what is missing, judge, and write the results."""
    ESTIMATES.parent.mkdir(exist_ok=True)
    known = [json.loads(line) for line in ESTIMATES.read_text().splitlines()] if ESTIMATES.is_file() else []
    done = {(one[0]["kind"], one[0]["number"]) for one in known}
    with ESTIMATES.open("a") as file:
        for number in range(sets):
            for kind in KINDS:
                if (kind, number) not in done:
                    known.append(estimate(kind, number))
                    file.write(json.dumps(known[-1]) + "\n")
                    file.flush()
    wanted = [one for one in known if one[0]["number"] < sets]
    told = {kind: [j for one in wanted if one[0]["kind"] == kind for j in judge(one)] for kind in KINDS}
    by_kind = {kind: summary(judged) for kind, judged in told.items()}
    by_kind["all"] = summary([j for judged in told.values() for j in judged])
    write_atomically(RESULTS, lambda p: p.write_text(json.dumps({"sets": sets, "kinds": by_kind}, indent=1) + "\n"))
    between(ROOT / "docs" / "statistics.md", table(by_kind, sets), "verdicts")
    whole = by_kind["all"]
    print(json.dumps(whole, indent=1))
    return 0 if whole["coverage"] >= 0.93 and whole["joins that lose more than .01"] <= 0.015 else 1


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))

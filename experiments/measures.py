"""What is kept of a run: a number by quantity, and curves over rounds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from scipy.stats import spearmanr

from coterie.run.result import Run
from coterie.samplers.isfl import MOST_CLASSES

Curve = dict[int, float]
"""Values by round."""
OF_CLIENT = "weight, client "
"""A curve of this name and a client's is the client's own weight."""


class Measured(NamedTuple):
    """Numbers and curves of one run, and the rows of the clients that count."""

    values: Mapping[str, float | None]
    curves: Mapping[str, Curve]
    n_train: int
    n_test: int


class Looked(NamedTuple):
    """What a run saw of the clients that count."""

    run: Run
    clients: Sequence[str]

    def rows(self, split: str) -> dict[str, int]:
        """Rows of each client in a split."""
        return {
            row["client"]: row["n"] for row in self.run.summary if row["split"] == split
        }

    def over_rows(
        self, metric: str, split: str = "test", clients: Sequence[str] = ()
    ) -> Curve:
        """A metric on all rows of the clients together, by round."""
        rows, named = self.rows(split), set(clients or self.clients)
        sums: dict[int, list[float]] = {}
        for row in self.run.history:
            if row.metric == metric and row.split == split and row.client in named:
                total = sums.setdefault(row.round, [0.0, 0.0])
                total[0] += rows[row.client] * row.value
                total[1] += rows[row.client]
        return {
            number: total / count for number, (total, count) in sums.items() if count
        }

    def logged(self, metric: str, client: str | None = None) -> Curve:
        """What the method logged about itself by round: mean over clients, or of one client."""
        values: dict[int, list[float]] = {}
        for row in self.run.history:
            if (
                row.metric == metric
                and row.split == ""
                and client in (None, row.client)
            ):
                values.setdefault(row.round, []).append(row.value)
        return {number: statistics.fmean(several) for number, several in values.items()}

    def weight(self, prefix: str) -> Curve:
        """Sum of the weights of clients whose names begin like this, by evaluated round."""
        sums: Curve = {}
        for number, _, client, weight in self.run.weight_rows:
            sums[number] = sums.get(number, 0.0) + (
                weight if client.startswith(prefix) else 0.0
            )
        return sums

    def weights(self) -> dict[str, Curve]:
        """The weight of each client that ever had one, by evaluated round."""
        by_client: dict[str, Curve] = {}
        for number, _, client, weight in self.run.weight_rows:
            by_client.setdefault(client, {})[number] = weight
        return by_client

    def measured(
        self, values: Mapping[str, float | None], curves: Mapping[str, Curve]
    ) -> Measured:
        """These numbers with the rows of the clients that count."""
        train, test = self.rows("train"), self.rows("test")
        sizes = (
            sum(rows.get(client, 0) for client in self.clients)
            for rows in (train, test)
        )
        known = {name: value for name, value in values.items() if value is not None}
        return Measured(
            known, {name: curve for name, curve in curves.items() if curve}, *sizes
        )


def last(curve: Curve) -> float | None:
    """The value of the last round."""
    return curve[max(curve)] if curve else None


def first(curve: Curve) -> float | None:
    """The value of the first round."""
    return curve[min(curve)] if curve else None


def best(curve: Curve) -> float | None:
    """The highest value."""
    return max(curve.values(), default=None)


def fifth(curve: Curve, *, late: bool) -> float | None:
    """Mean over the first or the last fifth of the rounds that have a value."""
    values = [value for _, value in sorted(curve.items())]
    size = max(1, len(values) // 5)
    return (
        statistics.fmean(values[-size:] if late else values[:size]) if values else None
    )


def last_half(curve: Curve) -> float | None:
    """Mean over the second half of the rounds."""
    if not curve:
        return None
    middle = (min(curve) + max(curve)) / 2
    return statistics.fmean(
        value for number, value in curve.items() if number >= middle
    )


def thinned(curve: Curve, points: int = 20) -> list[list[float]]:
    """Rounds and values, four digits, at most about so many of them and the last."""
    rounds = sorted(curve)
    chosen = sorted({*rounds[:: -(-len(rounds) // points)], rounds[-1]})
    return [chosen, [float(f"{curve[number]:.4g}") for number in chosen]]


def of_groups(run: Run) -> Measured:
    """MeritFed's groups: the target alone counts. The weights of single clients are kept of one seed, for a figure."""
    looked = Looked(run, ("target",))
    accuracy, loss = looked.over_rows("accuracy"), looked.over_rows("loss")
    weights = {group: looked.weight(group) for group in ("target", "near", "far")}
    values = {
        "accuracy of the target": last(accuracy),
        "best accuracy over rounds": best(accuracy),
        "loss of the target": last(loss),
        **{f"weight of {group}": last_half(curve) for group, curve in weights.items()},
        "effective collaborators, first round": first(
            looked.logged("effective_collaborators")
        ),
    }
    single = (
        {f"{OF_CLIENT}{client}": curve for client, curve in looked.weights().items()}
        if run.seed == 0
        else {}
    )
    grouped = {f"weight of {group}": curve for group, curve in weights.items()}
    curves = {
        "accuracy": accuracy,
        **grouped,
        "gap bound": looked.logged("gap_bound"),
        **single,
    }
    return looked.measured(values, curves)


def of_first_steps(run: Run) -> Measured:
    """MeritFed's weights while it begins: how many collaborators are effective, mean over the rounds."""
    effective = Looked(run, ("target",)).logged("effective_collaborators")
    values = {
        "effective collaborators, first steps": statistics.fmean(effective.values())
    }
    return Looked(run, ("target",)).measured(
        values, {"effective collaborators": effective}
    )


def of_x_rays(run: Run) -> Measured:
    """MeritFed with Adam: the target alone counts."""
    looked = Looked(run, ("target",))
    accuracy, area = looked.over_rows("balanced_accuracy"), looked.over_rows("auc")
    weights = {
        group: last_half(looked.weight(group))
        for group in ("target", "related", "other")
    }
    values = {
        "balanced accuracy of the target": last(accuracy),
        "best balanced accuracy over rounds": best(accuracy),
        "AUC of the target": last(area),
        **{f"weight of {group}": weight for group, weight in weights.items()},
    }
    return looked.measured(values, {"balanced accuracy": accuracy})


def of_internal(run: Run) -> Measured:
    """VaRSeL: the two internal clients count."""
    return _of_internal(Looked(run, ("client-00", "client-01")))


def of_roles(run: Run) -> Measured:
    """VaRSeL on plays: the roles of the internal play count, each position of their text."""
    return _of_internal(Looked(run, _internal(run)))


def _internal(run: Run) -> tuple[str, ...]:
    return tuple(
        {row.client: None for row in run.history if row.client.startswith("internal-")}
    )


def _of_internal(looked: Looked) -> Measured:
    accuracy, weights = looked.over_rows("accuracy"), looked.logged("sum_weights")
    values = {
        "accuracy of the internal clients": last(accuracy),
        "best accuracy over rounds": best(accuracy),
        "sum of weights, first fifth": fifth(weights, late=False),
        "sum of weights, last fifth": fifth(weights, late=True),
        "clients chosen": fifth(looked.logged("selected"), late=True),
        "Phi(w*) / Phi(0)": fifth(looked.logged("phi_ratio"), late=True),
    }
    curves = {
        "accuracy": accuracy,
        "sum of weights": weights,
        "variance": looked.logged("variance"),
    }
    return looked.measured(values, curves)


def of_sites(run: Run) -> Measured:
    """VaRSeL on membranes: the three internal clients count, which have the same test tiles."""
    looked = Looked(run, _internal(run))
    dice = looked.over_rows("dice")
    return looked.measured(
        {"Dice": last(dice), "best Dice over rounds": best(dice)}, {"Dice": dice}
    )


def of_sampling(run: Run) -> Measured:
    """ISFL: D_S is the standard test set, which every client has whole, and D_G the union of the training rows."""
    looked = Looked(
        run, tuple({row.client: None for row in run.history if row.split == "train"})
    )
    standard, own = looked.over_rows("accuracy"), looked.over_rows("accuracy", "train")
    closed, optimum = looked.logged("rho"), looked.logged("rho_optimum")
    excess = {
        number: closed[number] / optimum[number] - 1
        for number in closed
        if number in optimum
    }
    values = {
        "accuracy on D_S": last(standard),
        "best accuracy on D_S over rounds": best(standard),
        "accuracy on D_G": last(own),
        "training loss": last(looked.over_rows("loss", "train")),
        "rho, closed form, first round": first(closed),
        "rho, closed form": last(closed),
        "rho, optimum": last(optimum),
        "excess of the closed form's rho": last(excess),
        "entropy of q": last(looked.logged("q_entropy")),
        "gradients on the server's rows": last(looked.logged("lipschitz_gradients")),
    }
    curves = {
        "accuracy on D_S": standard,
        "rho, closed form": closed,
        "rho, optimum": optimum,
    }
    shares = {
        f"{shares_of(client)}{label}": looked.logged(f"q[{label}]", client)
        for client in (looked.clients[0], looked.clients[-1])
        for label in range(MOST_CLASSES)
    }
    return looked.measured(values, {**curves, **shares})


def shares_of(client: str) -> str:
    """What the curves of a client's q begin with; the class follows."""
    return f"q of {client}, class "


def of_appeal(run: Run) -> Measured:
    """MaxFL's metrics of seen and unseen clients: GM-appeal over the last half of the evaluations, since one round is noise.

    "Accuracy of the models in use", over the last half too, chooses rates: of Per-FedAvg's adapted models, else of the global one.
    """
    looked = Looked(
        run, tuple({row.client: None for row in run.history if row.split == "train"})
    )
    words = {"gm_appeal": "GM-appeal", "test_accuracy": "accuracy", "preferred_accuracy": "preferred-model accuracy",
             "gm_appeal_tuned": "GM-appeal after 5 steps",
             "preferred_accuracy_tuned": "preferred-model accuracy after 5 steps"}  # fmt: skip
    logged = {
        f"{word}, {'unseen' if suffix else 'seen'}": looked.logged(key + suffix)
        for suffix in ("", "_unseen")
        for key, word in words.items()
    }
    values = {
        name: last_half(curve) if "appeal" in name else last(curve)
        for name, curve in logged.items()
    }
    pool, losses = (
        looked.logged("pool"),
        {split: last(looked.over_rows("loss", split)) for split in ("train", "test")},
    )
    values |= {
        f"{words} loss": losses[split]
        for split, words in (("train", "training"), ("test", "test"))
    }
    used = looked.over_rows("accuracy")
    values |= {
        "clients in the pool, last round": last(pool),
        "accuracy of the models in use": last_half(used),
    }
    values["rank correlation of appeal and preferred accuracy"] = _rank_correlation(
        logged["GM-appeal, seen"], logged["preferred-model accuracy, seen"]
    )
    return looked.measured(values, {"pool": pool, **logged})


def _rank_correlation(one: Curve, other: Curve) -> float | None:
    """Return Spearman's of two curves over the rounds that both have after the first; None where one is constant."""
    rounds = sorted((one.keys() & other.keys()) - {0})
    if (
        len({one[number] for number in rounds}) < 2
        or len({other[number] for number in rounds}) < 2
    ):
        return None
    return float(
        spearmanr(
            [one[number] for number in rounds], [other[number] for number in rounds]
        ).statistic
    )


def of_clients(run: Run) -> Measured:
    """Accuracy over all clients' test rows."""
    looked = Looked(
        run, tuple({row.client: None for row in run.history if row.split == "train"})
    )
    accuracy = looked.over_rows("accuracy")
    return looked.measured({"accuracy": last(accuracy)}, {"accuracy": accuracy})


MEASURES: Mapping[str, Callable[[Run], Measured]] = {
    "first steps": of_first_steps,
    "groups": of_groups,
    "comments": of_groups,
    "x-rays": of_x_rays,
    "internal": of_internal,
    "sites": of_sites,
    "roles": of_roles,
    "sampling": of_sampling,
    "appeal": of_appeal,
    "clients": of_clients,
}

"""MaxFL: two clients, clients that opt out, clients that lie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.documents import RESULTS, Document, Row, read_json
from experiments.maxfl_landscape import TOLERANCE, TRACED
from experiments.page.claims import Claim, Place, spread
from experiments.page.drawn import Figure, Points, per_method
from experiments.page.sections import Advice, Section, Study, no_time
from experiments.page.text import table, times

TOY, LANDSCAPE, STAY = "maxfl_toy", "maxfl_landscape", "maxfl-fashion-mnist"
BY_CONSTRUCTION = (
    "A reported gap of 100 has weight 4e-44 under MaxFL, so what these attackers send is ignored by construction."
)
CLAIMED = {  # Table 1
    ("GM-appeal", "seen"): 0.37 - 0.04,
    ("GM-appeal", "unseen"): 0.39 - 0.07,
    ("accuracy", "seen"): 0.7086 - 0.4370,
    ("accuracy", "unseen"): 0.7453 - 0.4314,
}


BOUNDED = {
    ("appeal", "maxfl"): "MaxFL",
    ("bound", "maxfl"): "its lower bound",
    ("appeal", "average"): "average",
    ("bound", "average"): "its upper bound",
}
"""Curves of the two clients."""


def of_toy(result: Any) -> Document:
    """The curve of experiments/results/maxfl_toy.json; a value of gamma_G^2 takes the place of a seed."""
    rows = []
    for row in result["rows"]:
        bounds = {"average": "upper_bound_average", "maxfl": "lower_bound_maxfl"}
        for method in ("maxfl", "average", "maxfl_relu"):
            values = {"appeal": row[method]} | ({"bound": row[bounds[method]]} if method in bounds else {})
            rows.append(Row(method, int(row["gamma_G^2"]), "", "", 1, 0, values, _traced(result, method, bounds)))
    return Document(TOY, 0, (), rows)


def _traced(result: Any, method: str, bounds: Mapping[str, str]) -> dict[str, list[list[float]]]:
    """Appeal and bound over the distance."""
    keys = {"appeal": method} | ({"bound": bounds[method]} if method in bounds else {})
    distances = [row["gamma_G^2"] for row in result["rows"]]
    return {name: [distances, [row[key] for row in result["rows"]]] for name, key in keys.items()}


def _curves(document: Document) -> list[str]:
    """Appeal and bound by distance."""
    lines = [
        (f"{words}, {quantity}", *(f"{v:.3f}" for v in document.by_seed(quantity, method).values()))
        for method, words in (("maxfl", "MaxFL"), ("average", "average"), ("maxfl_relu", "MaxFL with ReLU"))
        for quantity in document.quantities
        if document.by_seed(quantity, method)
    ]
    return table(("gamma_G²", *map(str, document.seeds)), lines)


ONE_MINIMUM = 1.044
"""The midpoint of two means is a minimum below this g^2: g^2 tanh(g^2 / 2) < 1/2."""


def of_landscape(result: Any) -> Document:
    """The file experiments/results/maxfl_landscape.json; a distance of two clients takes the place of a seed."""
    peak = {"gap of the largest weight": result["gap of the largest weight"]}
    rows = [Row("two clients", 0, "", "", 1, 0, peak, result["curves"])]
    for number, row in enumerate(result["two"], 1):
        side = "near" if row["g^2"] < ONE_MINIMUM else "far"
        values = {f"minima, {side}": row["minima"]} | ({RATE: row[RATE]} if side == "far" else {})
        rows.append(Row("two clients", number, "", "", 1, 0, values))
    three: dict[tuple[str, int], dict[str, float | None]] = {}
    for row in result["three"]:
        values = {f"{key}, {row['case']}": row[key] for key in ("appeal", *SATISFIED, "distance from the average")}
        three.setdefault((row["method"], row["seed"]), {}).update(values)
    return Document(LANDSCAPE, 0, (), [*rows, *(Row(*key, "", "", 1, 0, values) for key, values in three.items())])


RATE = "rate, midpoint over minimum"
SATISFIED = ("at least one satisfied", "at least one as good", "both of the first two satisfied")


def _of_two(what: str) -> dict[tuple[str, str], str]:
    """The curves of two clients, near and far."""
    return {(f"{what}, g² = {squared:g}", "two clients"): f"g² = {squared:g}" for squared in TRACED}


def _three(document: Document) -> list[str]:
    """Shares of draws, by method and case."""
    rows = [
        (q, *(spread(list(document.by_seed(q, m).values())) for m in ("maxfl", "average", "first two")))
        for q in document.quantities
        if document.by_seed(q, "maxfl")
    ]
    head = ("share of draws", "MaxFL's optimum", "average", "average of the first two")
    two = read_json(RESULTS / f"{LANDSCAPE}.json")["two"]
    known = [(f"{row['g^2']:g}", str(row["minima"]), times(row[RATE])) for row in two]
    return [
        *table(("two clients, g²", "minima", RATE), known), "", *table(head, rows), "",
        "Mean ± standard deviation over 5 seeds.",
    ]  # fmt: skip


def _landscape_claims() -> list[Claim]:
    two, one = Place(LANDSCAPE, "minima, near", "two clients"), Place(LANDSCAPE, f"{SATISFIED[0]}, far", "maxfl")
    both = Place(LANDSCAPE, f"{SATISFIED[2]}, two near", "maxfl")
    exact: dict[str, Any] = {"direction": "alike", "margin": 0.01, "error": 0.0}
    return [
        Claim("landscape-peak", "A client's weight is largest where its gap is 0",
              two._replace(quantity="gap of the largest weight"), 0.0, "Fig. 2", **exact),
        Claim("landscape-near", "Two clients that are near: the objective has one minimum", two, 1.0, "Fig. 5b", **exact),
        Claim("landscape-far", "Two clients that are far apart: the objective has two minima",
              two._replace(quantity="minima, far"), 2.0, "Fig. 5b", **exact),
        Claim("landscape-rate", "Two clients that are far apart: the server's rate 1 / sum q is larger on the flat ridge between them "
              "than at a minimum", two._replace(quantity=RATE), 1.0, "Fig. 8", error=0.0,
              note="From g² = 2 on it is larger; just beyond the distance at which the two minima part it is not."),
        Claim("landscape-same", "Three clients that are near: MaxFL's optimum is the average (within .1 deviations, mean over draws)",
              one._replace(quantity="distance from the average, near"), 0.1, "Fig. 6a", "lower",
              note="Empirical means scatter with variance 1 about true ones that are near."),
        Claim("landscape-one", "Three clients that are far apart: MaxFL satisfies at least one more often than the average does", one,
              one._replace(method="average"), "Fig. 6b",
              note="Where all are far apart MaxFL's optimum is almost one client's own mean, which is not strictly better than itself; "
              "the average satisfies the middle client, at whose true mean it lies here."),
        Claim("landscape-ensured", f"Three clients that are far apart: MaxFL serves at least one as well as its own mean (within "
              f"{TOLERANCE:g}) more often than the average does", one._replace(quantity=f"{SATISFIED[1]}, far"),
              Place(LANDSCAPE, f"{SATISFIED[1]}, far", "average"), "Fig. 6b"),
        Claim("landscape-both", "Two near clients and a far one: MaxFL satisfies both more often than the average of all does", both,
              both._replace(method="average"), "Fig. 6c"),
        Claim("landscape-most", "Two near clients and a far one: MaxFL satisfies both as often as the average of the two (within .02)",
              both, both._replace(method="first two"), "Fig. 6c", "alike", margin=0.02),
    ]  # fmt: skip


def _staying() -> list[Claim]:
    claims = []
    for metric, who in CLAIMED:
        mine = Place(STAY, f"{metric}, {who}", "maxfl")
        best = 1.0 if metric == "GM-appeal" else mine._replace(quantity=f"preferred-model accuracy, {who}")
        text = f"All clients stay: {metric} of {who} clients is higher under MaxFL than under FedAvg"
        claims.append(Claim(f"stay-{metric}-{who}", text, mine, mine._replace(method="fedavg"), ceiling=best))
    return claims


LEAVE, CLUSTERS = "maxfl-leave", "maxfl-clusters"
SEEN_ACCURACY = {
    "fedavg": 0.437,
    "fedprox": 0.446,
    "scaffold": 0.399,
    "perfedavg": 0.466,
    "qffl": 0.299,
    "mwfed": 0.444,
}
NAMES = {
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "scaffold": "SCAFFOLD",
    "perfedavg": "Per-FedAvg",
    "qffl": "q-FFL (q = 1)",
    "qffl-10": "q-FFL (q = 10)",
    "mwfed": "MW-Fed",
}


def _leaving() -> list[Claim]:
    def claim(rival: str, metric: str, who: str, printed: float | None) -> Claim:
        mine = Place(LEAVE, f"{metric}, {who}", "maxfl")
        text = f"Clients may leave: {metric} of {who} clients is higher under MaxFL than under {NAMES[rival]}"
        best = 1.0 if metric == "GM-appeal" else mine._replace(quantity=f"preferred-model accuracy, {who}")
        key = f"leave-{rival}-{metric}-{who}"
        return Claim(key, text, mine, mine._replace(method=rival), "Table 1", printed=printed, ceiling=best)

    of_fedavg = [claim("fedavg", metric, who, printed) for (metric, who), printed in CLAIMED.items()]
    others = [
        claim(rival, "accuracy", "seen", 0.709 - SEEN_ACCURACY[rival])
        for rival in NAMES
        if rival not in ("fedavg", "qffl-10")
    ]
    loss = Place(LEAVE, "training loss", "maxfl")
    text = (
        "Clients may leave: MaxFL's mean training loss is nearly the mean test loss (a ratio between 1 / 1.1 and 1.1)"
    )
    same = Claim(
        "leave-losses", text, loss, loss._replace(quantity="test loss"), "Fig. 7", "alike", margin=1.1, ratio=True
    )
    return [*of_fedavg, *others, same]


def _in_clusters() -> list[Claim]:
    claims = []
    for rival, words in NAMES.items():
        mine = Place(CLUSTERS, "GM-appeal, seen", "maxfl")
        where, printed = ("Table 6", {"qffl": 0.52, "qffl-10": 0.55}[rival]) if "qffl" in rival else ("Fig. 3", None)
        text = f"Clusters, all stay: GM-appeal of seen clients is higher under MaxFL than under {words}"
        claims.append(
            Claim(f"clusters-{rival}", text, mine, mine._replace(method=rival), where, printed=printed, ceiling=1.0)
        )
    preferred, tuned = (
        Place(CLUSTERS, q, "maxfl") for q in ("preferred-model accuracy, seen", "GM-appeal after 5 steps, seen")
    )
    unseen = Place(CLUSTERS, "GM-appeal, unseen", "maxfl")
    return [
        *claims,
        Claim("clusters-unseen", "Clusters, all stay: GM-appeal of unseen clients is higher under MaxFL than under FedAvg",
              unseen, unseen._replace(method="fedavg"), "Fig. 4", ceiling=1.0),
        Claim("clusters-preferred", "Clusters, all stay: preferred-model accuracy of seen clients is higher under MaxFL than under "
              "FedAvg", preferred, preferred._replace(method="fedavg"), "Fig. 3"),
        Claim("clusters-tuned", "Clusters: after 5 local steps GM-appeal is higher under MaxFL with tuning than under FedAvg",
              tuned._replace(method="maxfl-tuning"), tuned._replace(method="fedavg"), "Table 3", printed=0.55 - 0.38, ceiling=1.0),
    ]  # fmt: skip


WARM_UPS = ("50", "150")


def warm_up(steps: str) -> str:
    """The experiment in clusters with so many warm-up steps."""
    return f"maxfl-warmup-{steps}"


def _warm_up_claims(steps: str) -> list[Claim]:
    mine = Place(warm_up(steps), "GM-appeal, seen", "maxfl")
    text = f"Clusters: GM-appeal under MaxFL is the same with {steps} warm-up steps as with 100"
    return [
        Claim(f"warm-up-{steps}", text, mine, mine._replace(experiment=CLUSTERS), "Table 4", "alike", margin=0.1),
        Claim(f"warm-up-{steps}-fedavg", f"Clusters, {steps} warm-up steps: GM-appeal is higher under MaxFL than under FedAvg", mine,
              mine._replace(method="fedavg"), "Table 4", ceiling=1.0),
    ]  # fmt: skip


LIARS = {
    "maxfl-liars-05": ("5 % attackers with gap 100", "Table 2", 0.706 - 0.213),
    "maxfl-liars-10": ("10 % attackers with gap 100", "Table 2", 0.694 - 0.172),
    "maxfl-liars-gap-0": ("10 % attackers with gap 0", "ours", None),
}


def _by_share() -> dict[str, dict[float, Place]]:
    """Appeal by the share of attackers, for both lies."""
    places = {
        "MaxFL, gap 100": ("maxfl", {0.05: "maxfl-liars-05", 0.1: "maxfl-liars-10"}),
        "MaxFL, gap 0": ("maxfl", {0.1: "maxfl-liars-gap-0"}),
        "MW-Fed, gap 100": ("mwfed", {0.05: "maxfl-liars-05", 0.1: "maxfl-liars-10"}),
    }
    return {
        words: {share: Place(name, "GM-appeal, seen", method) for share, name in {0.0: LEAVE, **by_share}.items()}
        for words, (method, by_share) in places.items()
    }


def _leaving_liars(name: str) -> list[Claim]:
    about, where, printed = LIARS[name]
    mine = Place(name, "accuracy, seen", "maxfl")
    best = mine._replace(quantity="preferred-model accuracy, seen")
    note = BY_CONSTRUCTION if "gap 100" in about else ""
    return [
        Claim(f"{name}-kept", f"Clients may leave, {about}: MaxFL loses at most 5 points of accuracy of seen clients", mine,
              mine._replace(experiment=LEAVE), where, margin=0.05, note=note),
        Claim(f"{name}-mwfed", f"Clients may leave, {about}: MaxFL is more accurate for seen clients than MW-Fed", mine,
              mine._replace(method="mwfed"), where, printed=printed, ceiling=best),
    ]  # fmt: skip


SHARES = ("05", "10")


def liars(share: str) -> str:
    """The experiment with so many per cent attackers, from which nobody leaves."""
    return f"maxfl-byzantine-{share}"


def _liars(share: str) -> list[Claim]:
    claims, name = [], liars(share)
    for who in ("seen", "unseen"):
        mine = Place(name, f"accuracy, {who}", "maxfl")
        text = f"{int(share)} % attackers with gap 100: MaxFL loses at most 5 points of accuracy of {who} clients"
        claims.append(
            Claim(f"liars-{share}-{who}", text, mine, mine._replace(experiment=STAY), "Table 2", margin=0.05,
                  note=BY_CONSTRUCTION)
        )  # fmt: skip
        text = f"{int(share)} % attackers with gap 100: MaxFL is more accurate for {who} clients than MW-Fed"
        rival, best = mine._replace(method="mwfed"), mine._replace(quantity=f"preferred-model accuracy, {who}")
        claims.append(Claim(f"liars-{share}-{who}-mwfed", text, mine, rival, "Table 2", ceiling=best))
    return claims


def _toy_claims() -> list[Claim]:
    appeal, bound, error = Place(TOY, "appeal", "maxfl"), Place(TOY, "bound", "maxfl"), 0.005
    average = appeal._replace(method="average")
    return [
        Claim("toy-lower", "MaxFL's appeal stays above exp(-1) / 16 at every distance", appeal, bound, "Appendix A", error=error),
        Claim("toy-upper", "Plain averaging's appeal stays below 2 exp(-gamma_G² / 5) at every distance", average,
              bound._replace(method="average"), "Appendix A", "lower", error=error),
        Claim("toy-relu", "With ReLU in place of the sigmoid MaxFL ends at the average",
              appeal._replace(method="maxfl_relu"), average, "Fig. 5a", "alike", margin=0.02, error=error),
    ]  # fmt: skip


_FLIP = (
    "Dirichlet(.5) shares of classes, labels turned round at 30 % of the clients, 24,000 images over 60 clients that train, 5 a "
    "round, and 20 that never do; 100 rounds."
)

SECTION = Section(
    heading="MaxFL",
    advice=[
        Advice(
            "Attackers who exaggerate their loss are ignored.",
            {f"liars-{share}-{who}": "confirmed" for share in SHARES for who in ("seen", "unseen")},
        ),
        Advice(
            "Attackers who claim that they have no gap are not: a tenth of them ruins the model.",
            {"maxfl-liars-gap-0-kept": "opposite"},
        ),
        Advice(
            "If clients may leave, watch the pool: whether it empties differs from seed to seed, and five seeds do not decide "
            "whether MaxFL keeps more of them than averaging.",
            {"leave-fedavg-GM-appeal-seen": "not clear"},
        ),
    ],
    notes=[
        ("Test rows are the clients' own (60/40), so that intervals are corrected for the rows that seeds share (Nadeau and "
        "Bengio). With 60/40 parts half of the interval stays above 1.6 standard deviations however many seeds there are."),
        ("Figure 5a of the paper prints no numbers. What it claims are both bounds of Appendix A, that the average's appeal "
        "decays, that MaxFL's does not, and that a convex surrogate ends at the average. Where MaxFL ends depends on "
        "where the descent starts."),
        ("Attackers who report a gap of 100 delete themselves under MaxFL, and where clients may leave they would even "
        "leave the pool. The strongest lie is a gap of 0, which has the largest weight, .25."),
        ("Under attack `run.max_norm` is lifted, so that every update arrives. With its usual 100 an update that is 100 times "
        "as long as the median is refused, under any method, and noise of deviation 1 is longer than that at rate .05 and 30 steps."),
    ],
    studies=[
        Study(
            TOY,
            "MaxFL: two clients",
            "Two clients estimate means that lie 2 gamma_G apart; 10,000 runs for each distance. The distance nearest to a "
            "bound decides, with the error of the draws. A test compares the curve with an independent Monte Carlo of ours "
            "(200,000 draws) within .01.",
            _toy_claims(),
            shown=_curves,
            figures=[
                Figure("GM-appeal", BOUNDED, across="gamma_G²"),
            ],
        ),
        Study(
            LANDSCAPE,
            "MaxFL: its objective for two and three clients",
            "The clients' true means lie at 0, .1 and .2 (near), 0, 5 and 10 (far), or 0, .1 and 10 (two near); empirical means are "
            "drawn with variance 1, 1,000 draws a seed. A client is satisfied if the model's loss at its true mean is below that "
            "of its own empirical mean. For two clients all follows from a grid; their midpoint is a minimum below g² = 1.044, and "
            "from 1.03 to there two more lie beside it.",
            _landscape_claims(),
            shown=_three,
            figures=[
                Figure("weight of a client", {("weight", "two clients"): "sigmoid'"}, across="gap"),
                Figure("objective", _of_two("objective"), across="model, two clients at ±g"),
                Figure("server's rate 1 / sum q", _of_two("rate"), across="model, two clients at ±g"),
            ],
        ),
        Study(
            LEAVE,
            "MaxFL: clients leave (Table 1)",
            "Dirichlet(.5), 40 clients that train and 10 that never do, labels turned round at 30 % of them, 5 a round, "
            "30 rounds. With 60 clients and 60 rounds one run takes 46 s of a core, and all methods and seeds half an hour. "
            "After 10 mandatory rounds (there 10 of 200; with 3 the pool was empty under every method) "
            "only clients to whom the model appeals are drawn, under every method. "
            "GM-appeal is the mean of the evaluations, every 5 rounds, in the second half.",
            _leaving(),
            kind="appeal",
            unrun=no_time(LEAVE, 15),
            paper="maxfl-fashion-mnist",
            figures=[
                Figure("clients in the pool", per_method("pool", {"maxfl": "MaxFL", **NAMES})),
                Figure("GM-appeal of seen clients", per_method("GM-appeal, seen", {"maxfl": "MaxFL", **NAMES})),
                Points("GM-appeal of seen clients, second half", "share of attackers", _by_share()),
            ],
        ),
        *(
            Study(
                name,
                f"MaxFL: {about}, clients leave{' (Table 2)' if where != 'ours' else ' (ours)'}",
                "As in Table 1. Attackers report the gap, add noise of deviation 1 to their updates and, asked whether they stay, "
                "answer that they do.",
                _leaving_liars(name),
                kind="appeal",
                unrun=no_time(name, 15),
                paper="maxfl-fashion-mnist",
            )
            for name, (about, where, _) in LIARS.items()
        ),
        Study(
            CLUSTERS,
            "MaxFL: clusters (Figs. 3 and 4)",
            "30 clients that train and 10 that never do, in 5 clusters of 2 labels each, 9,000 images, 30 rounds; all stay.",
            _in_clusters(),
            kind="appeal",
            figures=[Figure("GM-appeal of seen clients", per_method("GM-appeal, seen", {"maxfl": "MaxFL", **NAMES}))],
            unrun=no_time(CLUSTERS, 12),
            paper="maxfl-clusters",
        ),
        *(
            Study(
                warm_up(steps),
                f"MaxFL: {steps} warm-up steps (Table 4)",
                "Clusters as above, which have 100 warm-up steps. The warm-up gives the loss with which clients compare, so "
                "FedAvg's appeal may move with it.",
                _warm_up_claims(steps),
                kind="appeal",
                unrun=no_time(warm_up(steps), 12),
                paper="maxfl-clusters",
            )
            for steps in WARM_UPS
        ),
        Study(
            STAY,
            "MaxFL: Fashion-MNIST, Dirichlet(.5), all clients stay (ours)",
            _FLIP,
            _staying(),
            kind="appeal",
            unrun=no_time(STAY, 40),
            paper="maxfl-fashion-mnist",
        ),
        *(
            Study(
                liars(share),
                f"MaxFL: Fashion-MNIST, {int(share)} % attackers, all clients stay",
                _FLIP + " Attackers report a gap of 100 and add noise of deviation 1.",
                _liars(share),
                kind="appeal",
                unrun=no_time(liars(share), 40),
                paper="maxfl-fashion-mnist",
            )
            for share in SHARES
        ),
    ],
    missing=[
        Claim("maxfl-emnist", "EMNIST: GM-appeal is higher under MaxFL than under its rivals", where="Table 1",
              missing="No package was found that brings EMNIST; the loader `emnist` reads it from disk."),
        Claim("maxfl-sent140", "Sent140: GM-appeal is higher under MaxFL than under its rivals", where="Table 1",
              missing="No package brings the tweets; the loader `sent140` reads them from disk."),
    ],
)  # fmt: skip

"""MeritFed: mean estimation, attackers, groups of clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from experiments.documents import BENCHMARKS, Document, Row, read_json
from experiments.page.claims import OURS, Claim, Place
from experiments.page.drawn import Figure, HeatMap, per_method
from experiments.page.sections import Advice, Section, Study, by_method, no_time

MEAN, ATTACKS = "mean-estimation", "byzantine"
IDEAL, FULL = "SGD Ideal", "SGD Full"


def plateau(condition: object) -> str:
    """The quantity of both synthetic tasks."""
    return f"plateau, {condition}"


def of_mean_estimation(result: Any) -> Document:
    """The plateaus of benchmarks/results/mean_estimation.json."""
    rows = _rows([(run, plateau(f"mu = {run['mu']:g}")) for run in result["runs"]])
    curves: dict[tuple[str, int], dict[str, Any]] = {}
    for run in result["runs"]:
        own = {f"{name}, mu = {run['mu']:g}": curve for name, curve in run.get("curves", {}).items()}
        curves.setdefault((run["method"], run["seed"]), {}).update(own)
    return Document(MEAN, 5000, (), [row._replace(curves=curves[row.method, row.seed]) for row in rows])


def of_attacks(result: Any) -> Document:
    """The plateaus of benchmarks/results/byzantine.json; the ideal group, which knows no attack, stands under each."""
    attacks = list(dict.fromkeys(run["attack"] for run in result["runs"] if run["attack"]))
    runs = [
        (run, plateau(attack))
        for run in result["runs"]
        for attack in ([run["attack"]] if run["attack"] else attacks)
    ]  # fmt: skip
    return Document(ATTACKS, 4000, (), _rows(runs))


def _rows(runs: list[tuple[Any, str]]) -> list[Row]:
    rows: dict[tuple[str, int], Row] = {}
    for run, quantity in runs:
        key = run["method"], run["seed"]
        row = rows.setdefault(key, Row(*key, "", run["commit"], 1000, 0, {}))
        honest = {f"weight of the honest, {run['attack']}": run["honest_weight"]} if run.get("attack") else {}
        commits = ", ".join(sorted({*row.commit.split(", "), run["commit"]}))
        rows[key] = row._replace(commit=commits, values={**row.values, quantity: run["plateau"], **honest})
    return list(rows.values())


def _settled(result: Any, condition: str) -> list[str]:
    """Where the authors' code settles."""
    said: dict[str, list[str]] = {}
    for line in result["summary"]:
        if line["reference"] is not None:
            said.setdefault(line["method"], []).append(f"{line[condition]}: {line['reference']}")
    methods = "; ".join(f"{method} ({', '.join(values)})" for method, values in said.items())
    return ["", f"The authors' code settles at: {methods}."]


def _with_authors(benchmark: str, condition: str) -> Callable[[Document], list[str]]:
    path = BENCHMARKS / f"{benchmark}.json"
    return lambda document: [*by_method(document), *_settled(read_json(path), condition)]


def _cost(benchmark: str, label: str, more: str) -> str:
    """Why further runs were not made: what one took."""
    seconds = [run["seconds"] for run in read_json(BENCHMARKS / f"{benchmark}.json")["runs"] if run["method"] == label]
    return f"Not run: one run of {label} takes {sum(seconds) / len(seconds):.0f} s here, and {more}."


def _mean_claims() -> list[Claim]:
    claims = []
    dear = _cost("mean_estimation", "MeritFed", "each of the new contestants needs three values of mu and five seeds")
    for mu in ("0.001", "0.01", "0.1"):
        quantity = plateau(f"mu = {mu}")
        mine, ideal, full = (Place(MEAN, quantity, m) for m in ("MeritFed", IDEAL, FULL))
        claims.append(
            Claim(f"mean-full-{mu}", f"mu = {mu}: MeritFed settles lower than SGD Full", mine, full, "Figs. 1-3",
                  "lower", ratio=True, every_seed=True)
        )  # fmt: skip
        words, how = "settles lower than", {"direction": "lower", "every_seed": True}
        if mu == "0.1":
            words, how = "is as good as", {"direction": "alike", "margin": 2.0}
        for method in ("MeritFed", "MeritFed, stochastic", "MeritFed, losses alone"):
            key = f"mean-ideal-{mu}" if method == "MeritFed" else f"mean-ideal-{mu}-{method}"
            claims.append(
                Claim(key, f"mu = {mu}: {method} {words} SGD Ideal", mine._replace(method=method), ideal, "Figs. 1-3",
                      ratio=True, unrun=dear, **how)
            )  # fmt: skip
        claims += [
            Claim(f"mean-{rival}-{mu}", f"mu = {mu}: MeritFed settles lower than {rival}", mine, mine._replace(method=rival),
                  "Figs. 1-3" if rival in ("FedAdp", "TAWT") else OURS, "lower", ratio=True, every_seed=True, unrun=dear)
            for rival in ("FedAdp", "TAWT", "FedAvg of 5", "FedAvg of 10")
        ]  # fmt: skip
    return claims


MIRRORED = "ALIE, other direction"
PRINTED_NOISE = "added noise"


def _attack_claims() -> list[Claim]:
    dear = _cost("byzantine", "MeritFed", "each attack needs seven methods and five seeds")

    def against_ideal(attack: str, method: str, words: str, where: str, *, alike: bool) -> Claim:
        places = (Place(ATTACKS, plateau(attack), m) for m in (method, "ideal group"))
        how: dict[str, Any] = {"direction": "alike"} if alike else {}
        named = f"attack-{attack}-{method}"
        return Claim(named, f"{attack}: {words}", *places, where=where, margin=2.0, ratio=True, unrun=dear, **how)

    claims = []
    for attack in ("IPM", "ALIE", MIRRORED, "bit flipping", "random noise", PRINTED_NOISE):
        where = OURS if attack == MIRRORED else "Figs. 18-21"
        for method in ("MeritFed", "MeritFed, stochastic", "MeritFed, fresh validation", "TAWT"):
            if attack != MIRRORED or method in ("MeritFed", "MeritFed, fresh validation"):
                of = OURS if "fresh" in method else where
                claims.append(
                    against_ideal(attack, method, f"{method} is as good as the honest clients alone", of, alike=True)
                )
        far = "settles above twice the plateau of the honest clients alone"
        claims.append(against_ideal(attack, "averaging", f"averaging {far}", where, alike=False))
        if attack in ("ALIE", MIRRORED, "random noise"):
            claims.append(against_ideal(attack, "FedAdp", f"FedAdp {far}", where, alike=False))
    return claims


ALPHAS = {"50": ".5", "70": ".7", "90": ".9", "99": ".99"}
RIVALS = {
    "sgd-full": ("SGD Full", "Figs. 22-25"),
    "sgd-ideal": ("SGD Ideal, which with 20 clients is the target alone", "Figs. 22-25"),
    "fedprox": ("FedProx", "Figs. 22-25"),
    "fedadp": ("FedAdp", "Figs. 22-25"),
    "tawt": ("TAWT", "Figs. 22-25"),
    "ideal-group": ("averaging the target and the near clients, as an oracle would name them", OURS),
    "fedfomo": ("FedFomo", OURS),
}
VARIANTS = {
    "meritfed-smd": "batches of 90 validation rows",
    "meritfed-loss": "losses alone",
    "meritfed-damping": "damping",
}
DRAWN = {
    "meritfed": "MeritFed",
    "sgd-ideal": "SGD Ideal",
    "sgd-full": "SGD Full",
    "ideal-group": "ideal group (ours)",
    "fedadp": "FedAdp",
    "tawt": "TAWT",
}
WEIGHING = {method: DRAWN[method] for method in ("meritfed", "tawt", "fedadp")}
COPIES_CEILING = "meritfed-copies-ceiling"
X_RAYS, X_RAYS_CEILING = "meritfed-xrays", "meritfed-xrays-ceiling"
TARGET, NEAR, FAR = "accuracy of the target", "weight of near", "weight of far"


def groups(number: str) -> str:
    """The experiment with this alpha."""
    return f"meritfed-groups-{number}"


def _group_claims(number: str) -> list[Claim]:
    alpha, mine = ALPHAS[number], Place(groups(number), TARGET, "meritfed")
    best = Place(groups("ceiling"), TARGET, "ceiling")
    claims = [
        Claim(f"groups-{number}-{rival}", f"alpha {alpha}: MeritFed is more accurate for the target than {words}", mine,
              mine._replace(method=rival), where, ceiling=best)
        for rival, (words, where) in RIVALS.items()
    ]  # fmt: skip
    text = f"alpha {alpha}: without extra validation rows MeritFed is as good as with them"
    train = mine._replace(method="meritfed-train")
    claims.append(Claim(f"groups-{number}-train", text, train, mine, "Figs. 8-11", "alike", margin=0.01))
    text = f"alpha {alpha}: MeritFed loses at most .01 against training alone (no harm)"
    claims.append(Claim(f"groups-{number}-harm", text, mine, mine._replace(method="sgd-ideal"), margin=0.01))
    for variant, words in VARIANTS.items():
        text = f"alpha {alpha}: MeritFed with {words} is as good as with the gradient of all validation rows"
        claims.append(
            Claim(
                f"groups-{number}-{variant}", text, mine._replace(method=variant), mine, direction="alike", margin=0.01
            )
        )
    weights = Place(groups(number), FAR, "meritfed")
    text = f"alpha {alpha}: far clients have less than .05 of MeritFed's weight in the second half of the rounds"
    claims.append(Claim(f"groups-{number}-far", text, weights, 0.05, "Figs. 22-25", "lower"))
    return claims


def comments(number: str) -> str:
    """The experiment on GoEmotions with this alpha."""
    return f"meritfed-goemotions-{number}"


def _comment_claims(number: str) -> list[Claim]:
    alpha, mine = ALPHAS[number], Place(comments(number), TARGET, "meritfed")
    best = Place(comments("ceiling"), TARGET, "ceiling")
    claims = [
        Claim(f"goemotions-{number}-{rival}", f"GoEmotions, alpha {alpha}: MeritFed is more accurate for the target than {words}",
              mine, mine._replace(method=rival), where if where == OURS else "Figs. 4-7", ceiling=best)
        for rival, (words, where) in RIVALS.items()
    ]  # fmt: skip
    train = mine._replace(method="meritfed-train")
    text = f"GoEmotions, alpha {alpha}: without extra validation rows MeritFed is as good as with them"
    return [*claims, Claim(f"goemotions-{number}-train", text, train, mine, "Figs. 12-15", "alike", margin=0.01)]


def _x_ray_claims() -> list[Claim]:
    mine = Place(X_RAYS, "balanced accuracy of the target", "meritfed-a")
    rivals = {
        "adam-ideal": "Adam on the target alone (Adam Ideal)",
        "adam-related": "Adam over the target and the related clients",
        "adam-all": "Adam over all clients",
    }
    related = Place(X_RAYS, "weight of other", "meritfed-a")
    best = mine._replace(experiment=X_RAYS_CEILING, method="ceiling")
    return [
        *(
            Claim(f"x-rays-{rival}", f"X-rays: MeritFedA has a higher balanced accuracy than {words}", mine,
                  mine._replace(method=rival), "Fig. 16", ceiling=best)
            for rival, words in rivals.items()
        ),
        Claim("x-rays-weights", "X-rays: MeritFedA gives clients with clothes less than .1 of the weight", related, 0.1, "Fig. 17",
              "lower"),
    ]  # fmt: skip


def _heat_claims() -> list[Claim]:
    low, high = groups("50"), groups("99")
    near = Place(high, NEAR, "meritfed")
    return [
        Claim("heat-equal", "alpha .99: no weight of MeritFed is twice another in the first round, so that at least 17.8 of 20 "
              "collaborators are effective", near._replace(quantity="effective collaborators, first round"),
              17.8, "Figs. 22-25"),
        Claim("heat-near", "MeritFed gives the near group more weight at alpha .99 than at .5", near,
              near._replace(experiment=low), "Figs. 22-25"),
        Claim("heat-tawt", "alpha .99: TAWT ends near training alone (the target has at least .95 of the weight)",
              Place(high, "weight of target", "tawt"), 0.95, "Figs. 22-25"),
        Claim("heat-fedadp", "alpha .99: FedAdp is nearly even (far clients have .45 of the weight, within .1)",
              Place(high, FAR, "fedadp"), 0.45, "Figs. 22-25", "alike", margin=0.1),
    ]  # fmt: skip


SECTION = Section(
    heading="MeritFed",
    advice=[
        Advice(
            "MeritFed finds the clients that help a target without being told who they are: on mean estimation it is "
            "better than averaging all, and at least as good as an oracle that names the clients like the target.",
            {f"mean-{rival}-{mu}": "confirmed" for rival in ("full", "ideal") for mu in ("0.001", "0.01")},
        ),
        Advice(
            "On images it beats averaging all clients, whether many or few of them resemble the target,",
            {f"groups-{number}-sgd-full": "confirmed" for number in ("50", "99")},
        ),
        Advice(
            "and where others resemble it little it does no harm against training alone.",
            {"groups-50-harm": "confirmed", **{f"groups-{number}-sgd-full": "confirmed" for number in ("50", "99")}},
        ),
        Advice(
            "On short texts it gains over averaging all, however closely others resemble the target, and over training "
            "alone from alpha .7 on.",
            {f"goemotions-{number}-sgd-full": "confirmed" for number in ALPHAS}
            | {f"goemotions-{number}-sgd-ideal": "confirmed" for number in ("70", "90", "99")},
        ),
        Advice(
            "Attackers that send reversed updates do it no harm.",
            {f"attack-{attack}-MeritFed": "confirmed" for attack in ("IPM", "bit flipping")},
        ),
    ],
    notes=[
        ("Figures are those of the newer text, *Selective Collaboration for Robust Federated Learning*. They print no "
        "numbers, so no number of the paper stands here."),
        ("The print takes 50 steps of mirror descent a round on text, the authors' code 10. We take 10: 50 overfit the "
        "1,000 validation samples."),
        ("*ALIE, other direction* has rows of an earlier definition: attackers subtracted z deviations from their updates, "
        "and the deviation divided by n. ALIE itself adds them and divides by n - 1, as the authors' code does."),
        ("On images and text the authors' code divides the step of mirror descent by 10 after round 400; the print does "
        "not say so. `md_step` may be a schedule."),
    ],
    studies=[
        Study(
            MEAN,
            "MeritFed: mean estimation",
            "150 clients estimate a mean in 10 dimensions. 5 have the target's distribution N(0, I), 95 one whose mean lies "
            "`mu` away, 50 one whose mean lies at distance 1. Each has 1,000 samples, and the target has 1,000 more to weigh "
            "the others with. 5,000 rounds (SGD Full: 3,000) of one gradient on 100 samples, server rate .01, 10 "
            "mirror-descent steps a round; the loss is averaged over the coordinates. The numbers are ||x - x\\*||², averaged "
            "over the last fifth of the rounds. *SGD Full* averages all clients, *SGD Ideal* only the 5 with the target's "
            "distribution, *target only* is the target alone; *FedAvg of 5* draws so many of all in each round; *stochastic* weighs on "
            "batches of 100, *losses alone* asks for no gradient. Curves are those of seed 0. `make mean-estimation` "
            "runs further seeds.",
            _mean_claims(),
            shown=_with_authors("mean_estimation", "mu"),
            figures=[
                *(
                    Figure(f"||x - x*||², mu = {mu}", per_method(f"distance, mu = {mu}", {m: m for m in ("MeritFed", FULL, IDEAL)}),
                           log=True)
                    for mu in ("0.001", "0.01", "0.1")
                ),
                Figure("bound on the descent's gap", {(f"gap bound, mu = {mu}", "MeritFed"): f"mu = {mu}" for mu in
                                                      ("0.001", "0.01", "0.1")}, log=True),
            ],
        ),
        Study(
            ATTACKS,
            "MeritFed under attack",
            "The same task with 55 clients that all have the target's distribution: 5 are honest, 50 attack. 4,000 rounds, "
            "10 mirror-descent steps of 3.5; attacks with the papers' settings, their statistics over all 55 clients as in "
            "the authors' code. \"As good\" means within a factor of 2. Random noise gives mirror descent free directions: what "
            "weight attackers keep lets the model follow the mean of the target's 1,000 validation samples, beside that of "
            "the honest clients' 5,000 training samples. Fresh validation (100 new samples per step) has no such mean to "
            "follow. `make byzantine` runs further seeds.",
            _attack_claims(),
            shown=_with_authors("byzantine", "attack"),
        ),
        *(
            Study(
                groups(number),
                f"MeritFed: Fashion-MNIST, target groups, alpha {alpha}",
                f"A target has classes 0-2; ten near clients have a share {alpha} of these and the rest of 3-5; nine far ones have "
                "6-9; 750 rows each. The target validates on 900 more rows and is tested on the classes 0-2 of Fashion-MNIST's "
                "test set. Weights are sums over a group, mean over the second half of the rounds. `meritfed-train` validates "
                "on training rows, `meritfed-loss` asks for losses alone, `meritfed-smd` for batches of 90 rows.",
                [*_group_claims(number), *(_heat_claims() if number == "99" else [])],
                kind="groups",
                paper="meritfed-cifar10-target-groups",
                unrun=no_time(groups(number), 6),
                figures=[
                    Figure("accuracy of the target", per_method("accuracy", DRAWN)),
                    Figure("weight of the near group", per_method("weight of near", WEIGHING)),
                    Figure("weight of the far group", per_method("weight of far", WEIGHING)),
                    Figure("bound on the descent's gap", {("gap bound", "meritfed"): "MeritFed"}),
                    *(HeatMap(method, words) for method, words in WEIGHING.items()),
                ],
            )
            for number, alpha in ALPHAS.items()
        ),
        Study(
            groups("ceiling"),
            "MeritFed: target groups, the ceiling",
            "The near clients have the target's own distribution (alpha 1), and the target is averaged with them alone: what perfect "
            "help would reach. The test rows are those of every alpha.",
            kind="groups",
            unrun=no_time(groups("ceiling"), 6),
        ),
        *(
            Study(
                comments(number),
                f"MeritFed: GoEmotions, alpha {alpha}",
                f"The target has 300 comments of the class joy (12 labels) and validates on 150 more; ten near clients have a share "
                f"{alpha} of joy, the rest neutral; nine far ones one other class each, filled up with neutral. A hashed bag of "
                "2,048 words and `mlp [32]` in place of BERT; 400 rounds of one step of 40. Test: all joy of the official test set. "
                "Licence of the data: CC BY 4.0 (Demszky et al., 2020).",
                _comment_claims(number),
                kind="comments",
                unrun=no_time(comments(number), 20),
            )
            for number, alpha in ALPHAS.items()
        ),
        Study(
            comments("ceiling"),
            "MeritFed: GoEmotions, the ceiling",
            "The near clients have joy alone (alpha 1), and the target is averaged with them alone.",
            kind="comments",
            unrun=no_time(comments("ceiling"), 20),
        ),
        Study(
            X_RAYS,
            "MeritFed with Adam: chest X-rays (a stand-in for MedMNIST, ours)",
            "A target with 150 images of PneumoniaMNIST, two related clients that see 1,500 others turned by 90 degrees or with less "
            "contrast, and four clients with two classes of Fashion-MNIST each. A small CNN, Adam .001, 300 rounds of one batch of "
            "64. Test: the official 624 images.",
            _x_ray_claims(),
            kind="x-rays",
            paper="meritfed-medmnist",
            unrun=no_time(X_RAYS, 60),
        ),
        Study(
            X_RAYS_CEILING,
            "MeritFed with Adam: chest X-rays, the ceiling",
            "The related clients see their images as the target does, and the target is averaged with them alone.",
            kind="x-rays",
            unrun=no_time(X_RAYS_CEILING, 30),
        ),
        *(
            Study(
                f"meritfed-copies-{number}",
                f"MeritFed: 40 clients, alpha {ALPHAS[number]}",
                "The same with every client twice, so that SGD Ideal averages the target and its copy.",
                [
                    Claim(f"copies-{number}-{rival}", f"40 clients, alpha {ALPHAS[number]}: MeritFed is more accurate for the target "
                          f"than {words}", Place(f"meritfed-copies-{number}", TARGET, "meritfed"),
                          Place(f"meritfed-copies-{number}", TARGET, rival), "Figs. 26-29",
                          ceiling=Place(COPIES_CEILING, TARGET, "ceiling"))
                    for rival, words in (("sgd-full", "SGD Full"), ("sgd-ideal", "SGD Ideal"))
                ],
                kind="groups",
                paper="meritfed-cifar10-target-groups",
                unrun=no_time(f"meritfed-copies-{number}", 12),
            )
            for number in ("90", "50")
        ),
        Study(
            COPIES_CEILING,
            "MeritFed: 40 clients, the ceiling",
            "The near clients have the target's own distribution, and the target is averaged with them and its copy alone.",
            kind="groups",
            unrun=no_time(COPIES_CEILING, 5),
        ),
    ],
    missing=[
        Claim("groups-resnet", "CIFAR-10, ResNet18: MeritFed is more accurate for the target than SGD Ideal and its rivals",
              where="Figs. 22-25", missing="ResNet18 needs a GPU; `experiments/paper/meritfed-cifar10-target-groups.toml` has the "
              "settings. Fashion-MNIST with an MLP stands in for it."),
        Claim("goemotions-bert", "GoEmotions, BERT: MeritFed is more accurate for the target than SGD Full at every alpha",
              where="Figs. 4-7", missing="No pretrained BERT is at hand. Hashed words and an MLP stand in for it."),
        Claim("medmnist-all", "MedMNIST, eleven sets: MeritFedA is more accurate than Adam Ideal", where="Figs. 16-17",
              missing="Only PneumoniaMNIST is at hand; `experiments/paper/meritfed-medmnist.toml` has the settings."),
    ],
)  # fmt: skip

"""The papers' claims at laptop scale: `make papers`, or python experiments/papers.py [--only NAME] [--page].

Runs each experiment below that has no complete run directory under runs/papers yet (stop it at any time: the next call goes on), writes
experiments/results/NAME.json, and from these files alone the tables and verdicts of docs/results.md; `--page` does the last step only.

A claim says that one of two paired results is higher (or lower). Its verdict follows from the 95 % interval of `statistics.paired`:
confirmed if the interval lies on the claimed side of 0; not testable at this scale if it holds both 0 and the difference that the paper
reports, or if there are too few seeds for an interval; not confirmed otherwise.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from coterie.core.errors import CoterieError, InputError
from coterie.core.metrics import METRICS
from coterie.core.state import write_atomically
from coterie.core.workspace import Workspace
from coterie.models import build_model
from coterie.report.results import Results
from coterie.report.statistics import Difference, paired
from coterie.run.experiment import Experiment
from coterie.run.folder import is_run
from coterie.run.models import load_model_file
from coterie.run.status import Event
from coterie.run.sweep import run_experiment
from coterie.run.tables import read_experiment

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- papers -->", "<!-- /papers -->"
CONFIRMED, REFUTED, UNTESTABLE = "confirmed", "not confirmed", "not testable at this scale"

Document = Mapping[str, Any]
Values = dict[str, dict[str, list[float]]]
"""By quantity and method: one number per seed."""


# ---- what is taken from a run directory


def accuracy(results: Results, clients: Sequence[str]) -> dict[str, list[float]]:
    """Accuracy on all test rows of `clients` together, by method."""
    rows = np.array([results.size(c) for c in clients])
    found = {}
    for method in results.methods:
        table = np.stack([results.values(method, c, "accuracy") for c in clients])
        found[method] = (rows @ table / rows.sum()).tolist()
    return found


def logged(results: Results, metric: str, method: str, pick: Callable[[list[float]], float]) -> list[float]:
    """`pick` of the numbers over rounds that a method logged about itself (mean over clients where each has one); [] if none."""
    series = [v for (m, _, split, key), v in results.history.items() if (m, split, key) == (method, "", metric)]
    found = []
    for seed in results.seeds:
        own = [one[seed] for one in series if seed in one]
        rounds = sorted({r for one in own for r in one})
        if rounds:
            found.append(pick([statistics.fmean(one[r] for one in own if r in one) for r in rounds]))
    return found


def last(numbers: Sequence[float]) -> float:
    """What is logged after the last round."""
    return numbers[-1]


def early(numbers: Sequence[float]) -> float:
    """Mean over the first fifth of what is logged."""
    return statistics.fmean(numbers[: max(1, len(numbers) // 5)])


def late(numbers: Sequence[float]) -> float:
    """Mean over the last fifth."""
    return statistics.fmean(numbers[-max(1, len(numbers) // 5) :])


def _every(results: Results, names: Mapping[str, tuple[str, Callable[[list[float]], float]]]) -> Values:
    found: Values = {}
    for name, (metric, pick) in names.items():
        by_method = {m: logged(results, metric, m, pick) for m in results.methods}
        found[name] = {m: v for m, v in by_method.items() if v}
    return found


def group_weights(results: Results, method: str, prefix: str) -> list[float]:
    """The weight that `method` gives to all clients of a group, mean over the evaluations in the second half of the run."""
    by_seed: dict[int, dict[int, float]] = {}
    with open(results.folder / "weights.csv", newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["method"] == method:
                rounds = by_seed.setdefault(int(row["seed"]), {})
                here = float(row["weight"]) if row["client"].startswith(prefix) else 0.0
                rounds[int(row["round"])] = rounds.get(int(row["round"]), 0.0) + here
    half = {seed: (min(rounds) + max(rounds)) / 2 for seed, rounds in by_seed.items()}
    return [statistics.fmean(w for r, w in rounds.items() if r >= half[s]) for s, rounds in sorted(by_seed.items())]


def of_meritfed(results: Results) -> Values:
    """The target alone counts."""
    weights = {group: {"meritfed": group_weights(results, "meritfed", group)} for group in ("target", "near", "far")}
    found: Values = {"accuracy of the target": accuracy(results, ["target"])}
    found.update({f"weight of {k}": v for k, v in weights.items()})
    return found | _every(results, {"effective collaborators": ("effective_collaborators", late)})


def of_varsel(results: Results) -> Values:
    """The two internal clients count."""
    names = {
        "sum of weights, first fifth": ("sum_weights", early),
        "sum of weights, last fifth": ("sum_weights", late),
        "clients chosen": ("selected", late),
        "Phi(w*) / Phi(0)": ("phi_ratio", late),
    }
    return {"accuracy of the internal clients": accuracy(results, INTERNAL)} | _every(results, names)


def of_maxfl(results: Results) -> Values:
    """MaxFL's metrics, of seen and of unseen clients."""
    words = {"gm_appeal": "GM-appeal", "test_accuracy": "accuracy", "preferred_accuracy": "preferred-model accuracy"}
    names = {
        f"{word}, {'unseen' if suffix else 'seen'}": (key + suffix, last)
        for suffix in ("", "_unseen")
        for key, word in words.items()
    }
    return _every(results, names)


def of_isfl(results: Results) -> Values:
    """Accuracy on the standard test set (D_S) and on the clients' held-out rows (D_G), and the bound of both solutions."""
    found = on_standard_test_set(results)
    found["accuracy on D_G"] = accuracy(results, results.clients)
    found["rounds to FedAvg's accuracy on D_G"] = rounds_to(results, "fedavg")
    every = {
        "rho, closed form": ("rho", statistics.fmean),
        "rho, optimum": ("rho_optimum", statistics.fmean),
        "entropy of q": ("q_entropy", statistics.fmean),
        "||x_k - x||": ("local_distance", statistics.fmean),
    }
    found |= _every(results, every)
    closed, optimum = found["rho, closed form"], found["rho, optimum"]
    found[EXCESS] = {m: [c / o - 1 for c, o in zip(closed[m], optimum[m], strict=True)] for m in closed}
    return found


def on_standard_test_set(results: Results) -> Values:
    """Accuracy and top-5 accuracy of the saved models on the data set's own test set, without the rows that the server held."""
    experiment = read_experiment(results.folder / "experiment.toml")
    experiment = replace(experiment, split={**experiment.split, "test": "standard"})
    found: Values = {"accuracy on D_S": {}, "top-5 accuracy on D_S": {}}
    for seed in results.seeds:
        clients = experiment.load_data(seed)
        if clients.test is None:
            raise InputError(f"{results.folder}: the data set has no test set of its own")
        tested = clients.test.part(0)
        for method in results.methods:
            module = build_model(experiment.build_model(), clients, seed)
            module.load_state_dict(load_model_file(results.folder / "models" / f"{method}-{seed}.safetensors"))
            workspace = Workspace(module, "auto", clients[0])
            with torch.no_grad():
                outputs = torch.cat([module.eval()(workspace.prepare(some)) for some in tested.inputs.split(1000)])
            for quantity, metric in (
                ("accuracy on D_S", METRICS["accuracy"]),
                ("top-5 accuracy on D_S", METRICS["top5"]),
            ):
                value = metric(outputs, tested.labels, "classes")
                found[quantity].setdefault(method, []).append(math.nan if value is None else value)
    return found


def rounds_to(results: Results, rival: str) -> dict[str, list[float]]:
    """The first evaluated round in which a method's accuracy on all test rows reaches `rival`'s last one; one more if none."""
    rows = np.array([results.size(c) for c in results.clients])
    found: dict[str, list[float]] = {}
    for method in results.methods:
        for i in range(len(results.seeds)):
            mine, theirs = (
                rows @ np.stack([results.curve(m, c, "accuracy").values[i] for c in results.clients]) / rows.sum()
                for m in (method, rival)
            )
            rounds = results.curve(method, results.clients[0], "accuracy").rounds
            reached = rounds[mine >= theirs[-1]]
            found.setdefault(method, []).append(float(reached[0] if len(reached) else 2 * rounds[-1] - rounds[-2]))
    return found


INTERNAL = ("client-00", "client-01")
EXCESS = "excess of the closed form's rho"


class Study(NamedTuple):
    """One TOML file of this folder: its heading, the clients whose numbers of rows count, and what is taken from its run."""

    heading: str
    clients: tuple[str, ...] | None
    take: Callable[[Results], Values]


STUDIES: Mapping[str, Study] = {
    "meritfed-fashion-target-groups": Study(
        "MeritFed: Fashion-MNIST, target groups, alpha .5", ("target",), of_meritfed
    ),
    "meritfed-fashion-target-groups-99": Study(
        "MeritFed: Fashion-MNIST, target groups, alpha .99", ("target",), of_meritfed
    ),
    "isfl-cifar10": Study("ISFL: CIFAR-10, mixed(.95)", None, of_isfl),
    "isfl-cifar10-dirichlet": Study("ISFL: CIFAR-10, Dirichlet(.2)", None, of_isfl),
    "varsel-fashion-mnist": Study("VaRSeL: Fashion-MNIST, 60 clients of two shards", INTERNAL, of_varsel),
    "maxfl-fashion-mnist": Study("MaxFL: Fashion-MNIST, Dirichlet(.5)", None, of_maxfl),
    "maxfl-byzantine-05": Study("MaxFL: Fashion-MNIST, 5 % Byzantine clients", None, of_maxfl),
    "maxfl-byzantine-10": Study("MaxFL: Fashion-MNIST, 10 % Byzantine clients", None, of_maxfl),
}


def document(name: str, results: Results) -> dict[str, Any]:
    """All that the page needs of a run."""
    study = STUDIES[name]
    clients = study.clients or results.clients
    environment = results.environment
    return {
        "name": name,
        "rounds": results.experiment["run"]["rounds"],
        "seeds": list(results.seeds),
        "n_train": sum(results.size(c, "n_train") for c in clients),
        "n_test": sum(results.size(c) for c in clients),
        "own_test_rows": results.experiment.get("split", {}).get("test", "own") == "own",
        "seconds": {m: round(float(v.mean()), 1) for m, v in results.seconds.items()},
        "measured": str(environment.get("finished", ""))[:10],
        "versions": environment.get("versions", {}),
        "values": {
            quantity: {m: [float(f"{v:.6g}") for v in numbers] for m, numbers in methods.items()}
            for quantity, methods in study.take(results).items()
        },
    }


# ---- claims


@dataclass(frozen=True)
class Claim:
    """`a` is better than `b`, each (experiment, quantity, method), b perhaps a number, or worse by less than `margin`.

    `paper` is the paper's own difference a - b.
    """

    text: str
    a: tuple[str, str, str]
    b: tuple[str, str, str] | float
    higher: bool = True
    paper: float | None = None
    margin: float = 0.0


class Verdict(NamedTuple):
    """One of the three words, and the numbers behind it."""

    word: str
    numbers: str


def word_of(difference: Difference | None, paper: float | None) -> str:
    """The verdict on a claim from the difference in its direction."""
    if difference is None or difference.low is None or difference.high is None:
        return UNTESTABLE
    if difference.excludes_zero:
        return CONFIRMED if difference.better else REFUTED
    reported = paper is not None and difference.low <= paper <= difference.high
    return UNTESTABLE if reported else REFUTED


def judge(claim: Claim, documents: Mapping[str, Document]) -> Verdict | None:
    """The verdict on a claim; None if an experiment that it needs has no result."""
    sides: list[dict[int, float]] = []
    for place in (claim.a, claim.b):
        if isinstance(place, float):
            sides.append(dict.fromkeys(sides[0], place))
            continue
        name, quantity, method = place
        found = documents.get(name, {}).get("values", {}).get(quantity, {}).get(method)
        if not found:
            return None
        sides.append(dict(zip(documents[name]["seeds"], found, strict=False)))
    seeds = sorted(set(sides[0]) & set(sides[1]))
    a, b = ([side[s] for s in seeds] for side in sides)
    about = documents[claim.a[0]]
    # The correction is for training rows that seeds share because test rows are drawn from the same rows.
    tested = about["n_test"] if about.get("own_test_rows", True) else 0
    allowed = claim.margin if claim.higher else -claim.margin
    ratio = tested / about["n_train"]
    difference = paired(a, [v - allowed for v in b], ratio, higher_is_better=claim.higher)
    against = f"{claim.b:g}" if isinstance(claim.b, float) else spread(b)
    against += f", of which {claim.margin:g} may be lost," if claim.margin else ""
    numbers = f"{spread(a)} against {against} over {len(seeds)} seeds"
    if difference is not None:
        interval = (
            "" if difference.low is None else f" [{signed(difference.low)}, {signed(difference.high or math.nan)}]"
        )
        numbers += f"; difference {signed(difference.mean)}{interval}"
        if difference.excludes_zero and not difference.better:
            numbers += ", the opposite of the claim"
    if claim.paper is not None:
        numbers += f"; the paper: {signed(claim.paper)}"
    return Verdict(word_of(difference, claim.paper), numbers)


def _claims() -> dict[str, list[Claim]]:
    m5, m99 = "meritfed-fashion-target-groups", "meritfed-fashion-target-groups-99"
    target, near, seen = "accuracy of the target", "weight of near", "accuracy of the internal clients"
    varsel, maxfl = "varsel-fashion-mnist", "maxfl-fashion-mnist"
    first, final = "sum of weights, first fifth", "sum of weights, last fifth"
    claims: dict[str, list[Claim]] = {name: [] for name in STUDIES}
    rivals = {
        "fedavg": "averaging all (SGD Full)",
        "local": "the target's distribution only (SGD Ideal: here the target alone)",
        "ideal-group": "the ideal group (FedAvg among the target and the near clients)",
    }
    for name in (m5, m99):
        for rival, words in rivals.items():
            text = f"MeritFed's target accuracy is higher than that of {words}"
            claims[name].append(Claim(text, (name, target, "meritfed"), (name, target, rival)))
    text = "MeritFed gives the near group more weight at alpha .99 than at .5"
    claims[m99].append(Claim(text, (m99, near, "meritfed"), (m5, near, "meritfed")))
    reported = {  # Table III: D_S, D_G
        "isfl-cifar10": (0.7346 - 0.6338, 0.7933 - 0.6625),
        "isfl-cifar10-dirichlet": (0.6880 - 0.5983, 0.7444 - 0.6233),
    }
    for name, both in reported.items():
        for where, paper in zip(("D_S", "D_G"), both, strict=True):
            text = f"ISFL ({{}}) is more accurate than FedAvg on {where}"
            closed, exact, rival = ((name, f"accuracy on {where}", m) for m in ("isfl", "isfl-exact", "fedavg"))
            claims[name] += [
                Claim(text.format("closed form"), closed, rival, paper=paper),
                Claim(text.format("exact optimum, ours"), exact, rival),
                Claim(f"Exact optimum against closed form (ours): more accurate on {where}", exact, closed),
            ]
        claims[name] += [
            Claim(
                "The closed form leaves rho above its optimum, against Theorem 3 (ours)", (name, EXCESS, "isfl"), 0.0
            ),
        ]
    labels = {
        "varsel-paper": "VaRSeL",
        "varsel-debias": "VaRSeL with debias (ours)",
        "varsel-debias-smallest": "VaRSeL with debias and the nearest clients (ours)",
    }
    for label, words in labels.items():
        printed = label == "varsel-paper"
        mine = (varsel, seen, label)
        against = (
            ("internal-only", "training on the internal clients alone", 0.9688 - 0.9266),
            ("local", "each internal client alone", 0.9688 - 0.9266),
            ("fedavg", "FedAvg", 0.9688 - 0.8435),
        )
        for rival, name, paper in against:
            text = f"{words} is more accurate for the internal clients than {name}"
            claims[varsel].append(Claim(text, mine, (varsel, seen, rival), paper=paper if printed else None))
        text = f"{words}: the sum of weights decays (Fig. 2; last against first fifth of the rounds)"
        claims[varsel].append(Claim(text, (varsel, final, label), (varsel, first, label), higher=False))
    text = "Debias against the paper's mode (ours): more accurate"
    claims[varsel].append(Claim(text, (varsel, seen, "varsel-debias"), (varsel, seen, "varsel-paper")))
    table = {
        ("GM-appeal", "seen"): 0.37 - 0.04,
        ("GM-appeal", "unseen"): 0.39 - 0.07,
        ("accuracy", "seen"): 0.7086 - 0.4370,
        ("accuracy", "unseen"): 0.7453 - 0.4314,
    }
    for label, words, rival, whose in (
        ("maxfl-flexible", "MaxFL, flexible participation", "fedavg-flexible", "FedAvg's, whose clients opt out too"),
        ("maxfl", "MaxFL, everybody stays", "fedavg", "FedAvg's"),
    ):
        for (metric, who), paper in table.items():
            quantity = f"{metric}, {who}"
            text = f"{words}: {metric} of {who} clients is higher than {whose}"
            known = paper if label == "maxfl-flexible" else None
            claims[maxfl].append(Claim(text, (maxfl, quantity, label), (maxfl, quantity, rival), paper=known))
    for share in ("05", "10"):
        here = f"maxfl-byzantine-{share}"
        for who in ("seen", "unseen"):
            quantity = f"accuracy, {who}"
            mine, honest = (here, quantity, "maxfl"), (maxfl, quantity, "maxfl")
            text = f"MaxFL loses at most 5 points of accuracy of {who} clients with {int(share)} % Byzantine clients"
            claims[here].append(Claim(text, mine, honest, margin=0.05))
            text = f"MaxFL is more accurate for {who} clients than MW-Fed with {int(share)} % Byzantine clients"
            claims[here].append(Claim(text, mine, (here, quantity, "mwfed")))
    return claims


CLAIMS = _claims()


def toy_claims(toy: Mapping[str, Any]) -> list[tuple[str, Verdict]]:
    """Fig. 5a of MaxFL, and Appendix A's bounds."""
    found = []
    for method, words in (("maxfl", "MaxFL"), ("average", "plain averaging")):
        gaps = [abs(row[method] - row[f"paper_{method}"]) for row in toy["rows"]]
        word = CONFIRMED if max(gaps) <= 0.01 else REFUTED
        text = f"The two-client curve of {words} (Fig. 5a) is met within .01"
        found.append((text, Verdict(word, f"largest difference {max(gaps):.4f} over {len(gaps)} values")))
    above = min(row["maxfl"] - row["lower_bound_maxfl"] for row in toy["rows"])
    below = min(row["upper_bound_average"] - row["average"] for row in toy["rows"])
    for text, margin in (
        ("MaxFL's appeal is at least exp(-1) / 16 (Appendix A)", above),
        ("Plain averaging's appeal is at most 2 exp(-gamma_G^2 / 5) (Appendix A)", below),
    ):
        word = CONFIRMED if margin >= 0 else REFUTED
        found.append((text, Verdict(word, f"smallest margin {signed(margin)}")))
    return found


def mean_claims(result: Mapping[str, Any]) -> list[tuple[str, Verdict]]:
    """The plateaus of benchmarks/results/mean_estimation.json, paired over seeds, whose draws are independent."""
    plateaus: dict[tuple[str, float], dict[int, float]] = {}
    for run in result["runs"]:
        plateaus.setdefault((run["method"], run["mu"]), {})[run["seed"]] = run["plateau"]
    found = []
    for rival, words in (("SGD Full", "averaging all"), ("SGD Ideal", "the ideal group")):
        for mu in sorted({mu for _, mu in plateaus}):
            if rival == "SGD Ideal" and mu > 0.01:
                continue  # the papers do not claim it
            mine, other = plateaus.get(("MeritFed", mu), {}), plateaus.get((rival, mu), {})
            seeds = sorted(set(mine) & set(other))
            if not seeds:
                continue
            a, b = [mine[s] for s in seeds], [other[s] for s in seeds]
            lower = sum(x < y for x, y in zip(a, b, strict=True))
            difference = paired(a, b, 0, higher_is_better=False)
            word = word_of(difference, None)
            if lower < len(seeds):
                word = REFUTED
            numbers = f"{spread(a)} against {spread(b)}; lower in {lower} of {len(seeds)} seeds"
            found.append((f"Mean estimation, mu = {mu:g}: lower than {words} in every seed", Verdict(word, numbers)))
    return found


# ---- the page


def signed(value: float) -> str:
    """Three digits and the sign."""
    return f"{value:+.3g}"


def spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation over seeds.

    >>> spread([0.5, 0.7])
    '0.600 ± 0.141'
    """
    finite = [v for v in values if math.isfinite(v)]
    if not finite:
        return "-"
    mean = statistics.fmean(finite)
    tail = statistics.stdev(finite) if len(finite) > 1 else None
    small = 0 < abs(mean) < 0.02
    text = f"{mean:.2g}" if small else f"{mean:.3f}"
    return text if tail is None else f"{text} ± {tail:.2g}" if small else f"{text} ± {tail:.3f}"


def table(found: Document) -> list[str]:
    """Quantities by method."""
    quantities = list(found["values"])
    methods = list(dict.fromkeys(m for q in quantities for m in found["values"][q]))
    lines = ["| | " + " | ".join(methods) + " |", "| --- " * (len(methods) + 1) + "|"]
    for quantity in quantities:
        cells = [spread(found["values"][quantity].get(m, [])) for m in methods]
        lines.append("| " + " | ".join([quantity.replace("|", "\\|"), *cells]) + " |")
    return lines


def bullets(claims: Sequence[tuple[str, Verdict]]) -> list[str]:
    """A line per claim."""
    return [f"- {text}: **{verdict.word}** ({verdict.numbers})." for text, verdict in claims]


def build(documents: Mapping[str, Document], toy: Mapping[str, Any] | None, mean: Mapping[str, Any] | None) -> str:
    """The part of docs/results.md that lies between the markers."""
    parts: list[str] = []
    if mean is not None:
        parts += ["### MeritFed: mean estimation", "", *bullets(mean_claims(mean)), ""]
    if toy is not None:
        keys = [f"{row['gamma_G^2']:g}" for row in toy["rows"]]
        parts += ["### MaxFL: two clients (Fig. 5a)", "", "| gamma_G^2 | " + " | ".join(keys) + " |"]
        parts.append("| --- " * (len(keys) + 1) + "|")
        names = {"maxfl": "MaxFL", "paper_maxfl": "the paper", "average": "average", "paper_average": "the paper"}
        for key, word in names.items():
            parts.append(f"| {word} | " + " | ".join(f"{row[key]:.3f}" for row in toy["rows"]) + " |")
        parts += ["", f"{toy['runs']:,} runs.", "", *bullets(toy_claims(toy)), ""]
    for name, study in STUDIES.items():
        parts += [f"### {study.heading}", ""]
        found = documents.get(name)
        if found is None:
            parts += [f"No result yet: `python experiments/papers.py --only {name}`.", ""]
            continue
        seconds = sum(found["seconds"].values()) * len(found["seeds"])
        parts += [*table(found), ""]
        seeds = ", ".join(map(str, found["seeds"]))
        about = (
            f"Mean ± standard deviation over seeds {seeds}; {found['rounds']} rounds; {found['n_train']:,.0f} training and "
            f"{found['n_test']:,.0f} test rows; {seconds:,.0f} seconds of training in all; {found['measured']}, "
            f"`experiments/{name}.toml`."
        )
        parts += [about, ""]
        verdicts = [(claim.text, judge(claim, documents)) for claim in CLAIMS[name]]
        parts += [*bullets([(text, v) for text, v in verdicts if v is not None]), ""]
    return "\n".join(parts).rstrip()


def write_page(page: Path, text: str) -> None:
    """Replace what lies between the markers of `page`."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has no line {BEGIN} or no line {END} after it")
    made = f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"
    write_atomically(page, lambda temporary: temporary.write_text(made, encoding="utf-8"))


# ---- running


def complete(experiment: Experiment, folder: Path) -> bool:
    """Whether `folder` has every method and seed of `experiment`."""
    pairs = [f"{m.label}-{seed}" for m in experiment.methods for seed in experiment.run.seeds]
    return is_run(folder) and all((folder / "checkpoint" / p / "done.json").exists() for p in pairs)


def _tell(event: Event) -> None:
    if event.finished:
        left = "" if event.seconds_left is None else f", about {event.seconds_left:.0f} s left"
        print(f"  {event.label}, seed {event.seed} ({event.done} of {event.pairs}{left})", flush=True)


def run(name: str, runs: Path, results: Path) -> None:
    """Run what is missing of one experiment and write its JSON."""
    experiment = read_experiment(f"experiments/{name}.toml")
    folder = runs / name
    if not complete(experiment, folder):
        print(name, flush=True)
        run_experiment(experiment, folder, resume=is_run(folder), command="experiments/papers.py", notify=_tell)
    _write_json(results / f"{name}.json", document(name, Results.load(folder)))


def _write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(value, indent=1, allow_nan=False) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def read_json(path: Path) -> Any:
    """The content of a file, None if it is missing."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and write the page."""
    parser = argparse.ArgumentParser(prog="papers", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME", choices=["maxfl_toy", *STUDIES], help="one of them")
    parser.add_argument("--page", action="store_true", help="write docs/results.md from the JSON files, run nothing")
    given = parser.parse_args(arguments)
    os.chdir(ROOT)  # FILE.py:NAME of a TOML file counts from the root
    results = ROOT / "experiments" / "results"
    failed = False
    if not given.page:
        chosen = given.only or ["maxfl_toy", *STUDIES]
        for name in chosen:
            try:
                if name == "maxfl_toy":
                    _toy(results / "maxfl_toy.json")
                else:
                    run(name, ROOT / "runs" / "papers", results)
            except CoterieError as error:
                failed = True
                print(f"{name}: {error}", file=sys.stderr)
    documents = {name: found for name in STUDIES if (found := read_json(results / f"{name}.json")) is not None}
    toy = read_json(results / "maxfl_toy.json")
    mean = read_json(ROOT / "benchmarks" / "results" / "mean_estimation.json")
    write_page(ROOT / "docs" / "results.md", build(documents, toy, mean))
    return int(failed)


def _toy(path: Path) -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    from maxfl_toy import measure

    if not path.exists():
        _write_json(path, measure())


if __name__ == "__main__":
    sys.exit(main())

"""What the demo says of four hospitals, measured: `coterie compare heart-disease` again and again, each time with two repeats.

Every claim is a paired difference with its 95 % interval over patients and repeats, judged by the rule of docs/statistics.md, over
all repeats of ten runs of the demo. It must hold on both sets of ten; one that fails is printed, and its sentence leaves the page.
What the hospitals are told is counted over the runs: none may be told to join in more than one run and to stay alone in more than
one. Writes benchmarks/results/heart_disease.json, which the site shows. Runs are kept in build/claims, so that a measurement that was
stopped goes on. Settings come from src/coterie/run/presets/heart-disease.toml, which were chosen on validation rows.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from coterie.base.files import write_atomically
from coterie.report.results import Results
from coterie.report.text import number, with_sign, wrap
from coterie.report.verdicts import verdict
from coterie.report.words import headline
from coterie.run.experiment import Experiment
from coterie.run.method_tables import label_of
from coterie.run.tables import preset, trained_methods
from coterie.study.combine import combine_runs
from coterie.study.layout import is_run
from coterie.study.search import choose_settings
from coterie.study.sweep import run_experiment

ROOT = Path(__file__).resolve().parent.parent
RUNS = ROOT / "build" / "claims"
RESULTS = ROOT / "benchmarks" / "results" / "heart_disease.json"
DEMO = (0, 1)
SETS = {"seeds 2 to 21": range(2, 22), "seeds 100 to 119": range(100, 120)}
REPEATS = 2
METHODS = ("local", "fedavg", "fedavg+bias", "meritfed")
"""Those that train, whose claims these are; training alone takes steps as they do."""
JOINS, ALONE = ("join", "probably join"), ("stay alone", "probably stay alone")


class Claim(NamedTuple):
    """`method` is better or worse than `other` for a client (None: mean over clients), or is not shown to differ."""

    text: str
    method: str
    other: str
    client: str | None
    metric: str
    expected: Literal["better", "worse", "no difference"]


CLAIMS = (
    Claim("Averaging makes the log-loss of Switzerland worse", "fedavg", "local", "switzerland", "loss", "worse"),
    Claim("Tuning the bias there afterwards makes it better than averaging", "fedavg+bias", "fedavg", "switzerland", "loss",
          "better"),
    Claim("With it Switzerland is not shown to differ from training alone", "fedavg+bias", "local", "switzerland", "loss",
          "no difference"),
    Claim("MeritFed's mean log-loss is better than that of averaging", "meritfed", "fedavg", None, "loss", "better"),
    Claim("Long Beach's AUC is better under MeritFed than alone", "meritfed", "local", "long-beach", "auc", "better"),
)  # fmt: skip


class Found(NamedTuple):
    """The difference behind a claim on one set of seeds, what the rule calls it, and whether the claim holds."""

    mean: float
    low: float | None
    high: float | None
    words: str
    holds: bool


def check(claim: Claim, results: Results) -> Found:
    """Whether a claim holds for a run: its interval lies on the claimed side of 0, or for "no difference" holds 0."""
    found = results.difference(claim.method, claim.other, claim.client, claim.metric)
    if found is None or found.low is None:
        return Found(float("nan"), None, None, "no verdict", False)
    seen = (
        ("better" if found.better else "worse")
        if found.excludes_zero
        else "no difference"
    )
    return Found(
        found.mean, found.low, found.high, found.words or seen, seen == claim.expected
    )


def run_demo(seeds: Sequence[int], folder: Path) -> Results:
    """Run the demo with these repeats, or go on with what was stopped."""
    tables = preset("heart-disease")
    tables["methods"] = [
        {**entry, "local": {"lr": 0.03}, "exact": False}
        if entry["name"] == "local"
        else entry
        for entry in trained_methods("heart-disease")
        if label_of(entry) in METHODS
    ]
    tables["run"] = {**tables["run"], "seeds": [*seeds]}
    resume = is_run(folder)
    chosen, _ = choose_settings(
        Experiment.from_tables(tables, "the preset"), folder, grid=False, resume=resume
    )
    run_experiment(chosen, folder, resume=resume)
    return Results.load(folder)


def measure(seeds: range, folder: Path) -> tuple[Results, list[dict[str, str]]]:
    """Results over all these seeds, and what each client is told by every run of two of them."""
    pairs = [seeds[i : i + REPEATS] for i in range(0, len(seeds), REPEATS)]
    places = [folder / f"seeds-{pair[0]}-{pair[-1]}" for pair in pairs]
    words = []
    for pair, place in zip(pairs, places, strict=True):
        results = run_demo(pair, place)
        words.append(
            {client: str(verdict(results, client).kind) for client in results.clients}
        )
        print(f"{place.name}: {words[-1]}", flush=True)
    combine_runs(places, folder / "together")
    return Results.load(folder / "together"), words


def contradicted(words: Sequence[Mapping[str, str]]) -> list[str]:
    """Clients that are told to join, and to stay alone, in more than one run each (with *probably* or without)."""
    counts = {client: Counter(run[client] for run in words) for client in words[0]}
    return [
        client
        for client, told in counts.items()
        if min(sum(told[word] for word in side) for side in (JOINS, ALONE)) > 1
    ]


def summary(results: Results) -> dict[str, Any]:
    """Means over seeds, by metric, method and client."""
    return {
        metric: {
            method: {
                client: round(results.mean(method, client, metric), 4)
                for client in results.clients
            }
            | {"mean": round(results.mean(method, None, metric), 4)}
            for method in results.methods
        }
        for metric in ("accuracy", "auc", "loss")
    }


def page(found: Mapping[str, Any], claims: Sequence[Claim] = CLAIMS) -> str:
    """What the demo tells each hospital, what other runs of it tell, the table of the first set, and claims that hold on every set."""
    sets = [found[name] for name in found if name != "demo"]
    loss, auc = sets[0]["summary"]["loss"], sets[0]["summary"]["auc"]
    clients = [c for c in loss["local"] if c != "mean"]
    heading = " | ".join(map(_title, clients))
    lines = [
        _wrapped(f"- **{_title(client)}**: {text}")
        for client, text in found["demo"].items()
    ]
    words = [run for part in sets for run in part["words"]]
    counts = {client: Counter(run[client] for run in words) for client in clients}
    rest = sum(told.total() - max(told.values()) for told in counts.values())
    told_again = (
        f"Other folds of the same patients give other numbers. In {len(words)} other runs of the demo the hospitals read these "
        f"answers; {rest} of {len(words) * len(clients)} differ from the commonest one of their hospital:"
    )
    lines += [
        "",
        _wrapped(told_again),
        "",
        f"| answer | {heading} |",
        "| --- |" + " ---: |" * len(clients),
    ]
    for word in dict.fromkeys(
        word for told in counts.values() for word, _ in told.most_common()
    ):
        lines.append(
            f"| {word} | "
            + " | ".join(str(counts[client][word]) for client in clients)
            + " |"
        )
    names = [name for name in found if name != "demo"]
    lines += [
        "",
        f"Mean over twenty repeats of five folds ({names[0]}); lower is better:",
        "",
        f"| log-loss | {heading} | mean | mean AUC |",
        "| --- |" + " ---: |" * (len(clients) + 2),
    ]
    for method in METHODS:
        cells = [loss[method][c] for c in (*clients, "mean")] + [auc[method]["mean"]]
        lines.append(f"| {method} | " + " | ".join(number(v) for v in cells) + " |")
    holding = [
        claim
        for claim in claims
        if all(part["claims"][claim.text]["holds"] for part in sets)
    ]
    lines += (
        ["", f"Differences on these and on twenty other repeats ({names[1]}):", ""]
        if holding
        else []
    )
    for claim in holding:
        sides = [part["claims"][claim.text] for part in sets]
        intervals = " and ".join(
            f"{with_sign(s['mean'])} [{with_sign(s['low'])}, {with_sign(s['high'])}]"
            for s in sides
        )
        lines.append(_wrapped(f"- {claim.text}: {intervals}."))
    return "\n".join(lines)


def _wrapped(text: str) -> str:
    """A sentence or an item of a list, at most 100 columns wide."""
    return "\n".join(wrap(text, 100, "  " if text.startswith("- ") else ""))


def _title(client: str) -> str:
    return client.replace("-", " ").title()


def main() -> int:
    """Measure, write, and say whether every claim holds and no hospital is contradicted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=RUNS, help="where runs are kept")
    runs = parser.parse_args().runs
    demo = run_demo(DEMO, runs / "demo")
    found: dict[str, Any] = {
        "demo": {c: headline(demo, verdict(demo, c)) for c in demo.clients}
    }
    for name, seeds in SETS.items():
        results, words = measure(seeds, runs / name.replace(" ", "-"))
        claims = {claim.text: check(claim, results)._asdict() for claim in CLAIMS}
        found[name] = {"claims": claims, "summary": summary(results), "words": words}
        for text, side in claims.items():
            interval = f"{with_sign(side['mean'])} [{with_sign(side['low'])}, {with_sign(side['high'])}]"
            print(
                f"{name}: {'holds' if side['holds'] else 'FAILS'}: {text}: {interval}, {side['words']}",
                flush=True,
            )
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(
        RESULTS, lambda p: p.write_text(json.dumps(found, indent=1) + "\n")
    )
    both_ways = contradicted([run for name in SETS for run in found[name]["words"]])
    for client in both_ways:
        print(
            f"FAILS: {client} is told to join, and to stay alone, more than once each",
            flush=True,
        )
    hold = all(
        side["holds"] for name in SETS for side in found[name]["claims"].values()
    )
    return 0 if hold and not both_ways else 1


if __name__ == "__main__":
    sys.exit(main())

"""Is the answer of an example stable? `coterie compare` again and again with other folds, each time with as many repeats as its preset.

A physician runs the demo once and reads one word per client. Other folds of the same rows give other numbers, and near a
boundary another word. Here each example is run twenty times more, and the words are counted: of twenty words at most two may
differ from the commonest one of their client, on average over the clients, and no client may be told to join in more than one run
and to stay alone in more than one. The primary method takes part, and both rivals; other methods could only raise a word, where
they are shown better. Writes benchmarks/results/answers.json, which the site shows. Runs
are kept in build/claims, so that a measurement that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.base.files import write_atomically
from coterie.report.results import Results
from coterie.report.text import wrap
from coterie.report.verdicts import verdict
from coterie.report.words import headline
from coterie.run.experiment import Experiment
from coterie.run.method_tables import label_of
from coterie.run.tables import preset
from coterie.study.layout import is_run
from coterie.study.search import choose_settings
from coterie.study.sweep import run_experiment

ROOT = Path(__file__).resolve().parent.parent
RUNS = ROOT / "build" / "claims"
RESULTS = ROOT / "benchmarks" / "results" / "answers.json"
EXAMPLES = ("nhefs", "heart-disease")
METHODS = ("local", "partial")
ROUNDS = 2
"""Both methods are solved: further rounds change nothing, and cost a checkpoint each."""
RERUNS = 20
OTHERS_MOST = 0.1
"""Largest share of the words that may differ from the commonest one of their client."""
JOINS, ALONE = ("join", "probably join"), ("stay alone", "probably stay alone")


def run_example(name: str, seeds: Sequence[int], folder: Path) -> Results:
    """Run an example with these repeats and the methods that are solved, or go on with what was stopped."""
    tables = {key: table for key, table in preset(name).items() if key != "tune"}
    tables["methods"] = [
        entry for entry in tables["methods"] if label_of(entry) in METHODS
    ]
    tables["run"] = {**tables["run"], "seeds": [*seeds], "rounds": ROUNDS}
    resume = is_run(folder)
    experiment = Experiment.from_tables(tables, "the preset")
    chosen, _ = choose_settings(experiment, folder, grid=False, resume=resume)
    run_experiment(chosen, folder, resume=resume)
    return Results.load(folder)


def measure(name: str, folder: Path, reruns: int = RERUNS) -> dict[str, Any]:
    """What the demo tells each client of an example, and the words of each rerun with other folds."""
    repeats = preset(name)["run"]["seeds"]
    demo = run_example(name, range(repeats), folder / "demo")
    words = []
    for rerun in range(1, reruns + 1):
        seeds = range(rerun * repeats, (rerun + 1) * repeats)
        results = run_example(name, seeds, folder / f"rerun-{rerun}")
        words.append({c: str(verdict(results, c).kind) for c in results.clients})
        print(f"{name}, rerun {rerun}: {words[-1]}", flush=True)
    return {
        "demo": {c: headline(demo, verdict(demo, c)) for c in demo.clients},
        "words": words,
    }


def count_words(words: Sequence[Mapping[str, str]]) -> dict[str, Counter[str]]:
    """How often each client was told each word."""
    return {client: Counter(run[client] for run in words) for client in words[0]}


def share_of_others(words: Sequence[Mapping[str, str]]) -> float:
    """Share of all words that differ from the commonest one of their client, from 0 to 1."""
    counts = count_words(words).values()
    other = sum(told.total() - max(told.values()) for told in counts)
    return other / sum(told.total() for told in counts)


def contradicted(words: Sequence[Mapping[str, str]]) -> list[str]:
    """Clients that are told to join, and to stay alone, in more than one run each (with *probably* or without)."""
    clients = []
    for client, told in count_words(words).items():
        joins = sum(told[word] for word in JOINS)
        stays = sum(told[word] for word in ALONE)
        if min(joins, stays) > 1:
            clients.append(client)
    return clients


def page(found: Mapping[str, Any]) -> str:
    """For each example what the demo tells its clients, and a table of what other runs of it tell."""
    lines: list[str] = []
    for name, example in found.items():
        counts = count_words(example["words"])
        runs, share = len(example["words"]), share_of_others(example["words"])
        intro = (
            f"`coterie compare {name}`, {runs} times with other folds: {share:.0%} of "
            f"{runs * len(counts)} words differ from the commonest one of their client."
        )
        lines += ["", intro, ""]
        lines += [
            _wrapped(f"- **{_title(client)}**: {text}")
            for client, text in example["demo"].items()
        ]
        heading = " | ".join(map(_title, counts))
        lines += ["", f"| answer | {heading} |", "| --- |" + " ---: |" * len(counts)]
        total = sum(counts.values(), Counter())
        for word, _ in total.most_common():
            cells = " | ".join(str(told[word]) for told in counts.values())
            lines.append(f"| {word} | {cells} |")
    return "\n".join(lines[1:])


def _wrapped(text: str) -> str:
    """An item of a list, at most 100 columns wide."""
    return "\n".join(wrap(text, 100, "  "))


def _title(client: str) -> str:
    return client.replace("-", " ").title()


def save(name: str, measured: Mapping[str, Any]) -> None:
    """Write what was measured of an example beside what the file says of others."""
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    found[name] = measured
    text = json.dumps(found, indent=1) + "\n"
    write_atomically(RESULTS, lambda path: path.write_text(text))


def main() -> int:
    """Measure, write, and say whether every answer is stable and no client is contradicted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=RUNS, help="where runs are kept")
    parser.add_argument("--only", default="", help="one example; others stay")
    arguments = parser.parse_args()
    stable = True
    for name in EXAMPLES if not arguments.only else (arguments.only,):
        measured = measure(name, arguments.runs / name)
        save(name, measured)
        words = measured["words"]
        share = share_of_others(words)
        print(f"{name}: {share:.0%} of the words differ from the commonest", flush=True)
        for client in contradicted(words):
            print(f"FAILS: {client} is told to join, and to stay alone", flush=True)
            stable = False
        stable = stable and share <= OTHERS_MOST
    return 0 if stable else 1


if __name__ == "__main__":
    sys.exit(main())

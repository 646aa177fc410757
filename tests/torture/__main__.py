"""`make torture`: all campaigns within MINUTES. Each is a row of benchmarks/results/torture.json, which the site shows.

Campaigns are dealt slices, in as many lanes as there are cores: next is the one that lacks most of the tries that are wanted of it.

python -m torture [--minutes 60] [--seed YYYYMMDD] [--lanes 2] [--only WORD] [--first] [--no-page]
python -m torture --engines [--only WORD] [--add]
python -m torture --planted
python -m torture --unseen 2
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import torch
from benchmarks.measure import commit
from benchmarks.pages import write_csv

from coterie.config.registry import METHODS
from torture.campaigns import CAMPAIGNS, ENGINES
from torture.kills import SIGNALS
from torture.planted import hunt_each
from torture.worlds import warm_up

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "torture.json"
NEVER = (
    "traceback",
    "silently different",
    "hang",
    "data lost",
    "orphan",
    "memory above 2 GB",
)
"""What must not happen; a column each. Whatever else is wrong is counted as `other`."""


ALL = CAMPAIGNS | ENGINES


class Tally(NamedTuple):
    """Of one campaign: how many tries, by kind what was wrong, the tries that were, and how often what was covered."""

    tries: int
    kinds: Counter[str]
    wrong: list[tuple[str, str]]
    covered: Counter[str]

    def plus(self, other: Tally) -> Tally:
        """Return the sum of both."""
        return Tally(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


FAILED = "other: the campaign itself has failed"
NO_TRIES = Tally(0, Counter(), [], Counter())


def run_campaign(
    name: str,
    seed: int | str,
    until: float,
    most: float,
    *,
    met: Mapping[str, int] = {},
    first: bool = False,
) -> Tally:
    """Run one campaign; its tries follow from the seed and its name. With `first` it ends with the first try that is wrong.

    Args:
        name: Which.
        seed: From which its tries are drawn.
        until: What the clock shows when it must end.
        most: After how many tries it ends.
        met: How often each method was met before; those that were met least come first.
        first: Whether it ends with the first try that is wrong.
    """
    campaign, wrong, tries, covered = (
        ALL[name],
        list[tuple[str, str]](),
        0,
        Counter[str](),
    )
    rng = random.Random(f"{seed} {name}")
    methods = [*METHODS]
    rng.shuffle(methods)
    methods.sort(key=lambda method: met.get(method, 0))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "c").mkdir() if name not in WITHOUT_FOLDER else None
        with closing(campaign.run(rng, Path(folder) / "c", methods, until)) as drawn:
            for what, why, covers in drawn:
                tries += 1
                covered.update(covers)
                if why:
                    wrong.append((repr(what)[:600], why))
                if tries >= most or (first and wrong):
                    break
        os.chdir(ROOT)
    kinds = Counter(
        next((kind for kind in NEVER if why.startswith(kind)), "other")
        for _, why in wrong
    )
    return Tally(tries, kinds, wrong, covered)


WITHOUT_FOLDER = ("odd values of arguments", "mutated TOML", "mangled CSV folders")
"""Campaigns that make their folder themselves."""


def deal(
    names: list[str], seed: int, until: float, lanes: int, *, first: bool = False
) -> Iterator[tuple[str, Tally]]:
    """Run slices of campaigns in processes of their own, as many at once as there are lanes, and yield what each came to.

    Next is the campaign that lacks most of what is wanted of it.
    """
    sums, dealt, fork = (
        dict.fromkeys(names, NO_TRIES),
        Counter[str](),
        multiprocessing.get_context("fork"),
    )
    running: dict[Any, tuple[str, Any]] = {}
    while time.monotonic() < until or running:
        if len(running) < lanes and time.monotonic() < until:
            name = min(
                names, key=lambda name: dealt[name] * ALL[name].slice / ALL[name].wanted
            )
            dealt[name] += 1
            mine, theirs = multiprocessing.Pipe(duplex=False)
            task = (
                name,
                f"{seed} {dealt[name]}",
                until,
                ALL[name].slice // (5 if first else 1),
            )
            process = fork.Process(
                target=_run_slice, args=(theirs, task, sums[name].covered, first)
            )
            process.start()
            theirs.close()
            running[mine] = name, process
            continue
        for mine in wait([*running]):
            name, process = running.pop(mine)
            try:
                tally = mine.recv()  # type: ignore[union-attr]
            except EOFError:
                tally = Tally(1, Counter(other=1), [(name, FAILED)], Counter())
            process.join()
            sums[name] = sums[name].plus(tally)
            yield name, tally


def _run_slice(
    pipe: Connection,
    task: tuple[str, str, float, int],
    met: Mapping[str, int],
    first: bool,
) -> None:
    pipe.send(run_campaign(*task, met=met, first=first))


def row_of(name: str, seed: int, tally: Tally, minutes: float) -> dict[str, Any]:
    """The row of a campaign in the results."""
    machine = f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}, {os.cpu_count()} cores"
    return {
        "campaign": name,
        "seed": seed,
        "commit": commit(),
        "day": str(datetime.now(UTC).date()),
        "minutes": round(minutes),
        "machine": f"{machine}, torch {torch.__version__.partition('+')[0]}",
        "tries": tally.tries,
        **{kind: tally.kinds[kind] for kind in (*NEVER, "other")},
        "covered": dict(sorted(tally.covered.items())),
    }


def replace_row(
    rows: list[dict[str, Any]], new: dict[str, Any], *, add: bool = False
) -> list[dict[str, Any]]:
    """The rows with a new one, which takes the place of those of the same campaign that have its seed or another commit.

    With `add` those of another commit stay.
    """
    keep = (
        row
        for row in rows
        if add or row["campaign"] != new["campaign"] or row["commit"] == new["commit"]
    )
    return [
        row for row in keep if any(row[key] != new[key] for key in ("campaign", "seed"))
    ] + [new]


def counted(rows: list[dict[str, Any]]) -> list[list[object]]:
    """The table of tries: each campaign, and how often what must not happen happened."""
    counts = ("tries", *NEVER, "other")
    table: list[list[object]] = [["campaign", "commit", "minutes", *counts]]
    for name in ALL:
        of_campaign = [row for row in rows if row["campaign"] == name]
        commits = ", ".join(sorted({row["commit"] for row in of_campaign}))
        minutes = sum(row["minutes"] for row in of_campaign)
        sums = [sum(row.get(count, 0) for row in of_campaign) for count in counts]
        table.append([name, commits, minutes, *sums])
    return table


def met(rows: list[dict[str, Any]]) -> list[list[object]]:
    """The table of what was met, and how often."""
    covered = {name: Counter[str]() for name in ALL}
    for row in rows:
        covered[row["campaign"]].update(row.get("covered", {}))
    table: list[list[object]] = [["campaign", "of", "times"]]
    for name, counts in covered.items():
        methods = [counts[method] for method in METHODS]
        if any(methods):
            least = f"each of {len(methods)} methods at least"
            table.append([name, least, min(methods)])
        for title, prefix in (
            ("methods", "method: "),
            ("signals", "signal: "),
            ("changes", "change: "),
            ("faults", "fault: "),
            ("kinds", "class: "),
        ):
            of_kind = {
                word.removeprefix(prefix): count
                for word, count in counts.items()
                if word.startswith(prefix)
            }
            if title == "signals" and of_kind and name in CAMPAIGNS:
                of_kind = {signal: of_kind.get(signal, 0) for signal in SIGNALS}
            if of_kind:
                table.append([name, title, _listed(of_kind)])
        others = {
            word: count
            for word, count in counts.items()
            if ": " not in word and word not in METHODS and ".py:" not in word
        }
        if others:
            table.append([name, "fixtures with", _listed(others)])
    return table


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"`{word} {count}`" for word, count in sorted(counts.items()))


def planted_table(planted: list[dict[str, Any]]) -> list[list[object]]:
    """The table of planted faults."""
    table: list[list[object]] = [["planted", "how", "found", "commit"]]
    for row in planted:
        how = "drawn unseen" if row["unseen"] else "kept"
        found = f"after {row['seconds']} s" if row["found"] else "**no**"
        table.append([row["what"], how, found, row["commit"]])
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument(
        "--seed", type=int, default=int(datetime.now(UTC).strftime("%Y%m%d"))
    )
    parser.add_argument(
        "--lanes", type=int, default=os.cpu_count() or 1, help="campaigns at once"
    )
    parser.add_argument("--only", default="")
    parser.add_argument(
        "--first", action="store_true", help="end with the first try that is wrong"
    )
    parser.add_argument("--no-page", action="store_true", help="write no results")
    parser.add_argument(
        "--add",
        action="store_true",
        help="keep what campaigns counted with other commits",
    )
    parser.add_argument(
        "--engines",
        action="store_true",
        help="the campaigns on Ray and FLARE, and only these",
    )
    parser.add_argument(
        "--planted",
        action="store_true",
        help="see that the campaigns find faults that are planted in a copy",
    )
    parser.add_argument(
        "--unseen",
        type=int,
        default=0,
        help="draw so many faults that are named only after the hunt",
    )
    args = parser.parse_args()
    if args.planted or args.unseen:
        return plant(args.unseen)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    sys.stdout.write(f"seed {args.seed}, commit {commit()}\n")
    began, names = (
        time.monotonic(),
        [
            name
            for name in (ENGINES if args.engines else CAMPAIGNS)
            if args.only in name
        ],
    )
    with tempfile.TemporaryDirectory() as folder:
        warm_up(Path(folder) / "warm")
    sums = dict.fromkeys(names, NO_TRIES)
    for name, tally in deal(
        names, args.seed, began + 60 * args.minutes, args.lanes, first=args.first
    ):
        sums[name] = sums[name].plus(tally)
        minutes = (time.monotonic() - began) / 60
        sys.stdout.write(
            f"{minutes:.1f} {name}: {sums[name].tries} tries, {len(sums[name].wrong)} wrong\n"
        )
        for what, why in tally.wrong[:20]:
            sys.stdout.write(f"  {why}\n    {what}\n")
        sys.stdout.flush()
        if args.first and any(why != FAILED for _, why in tally.wrong):
            return 1
        if not args.no_page:
            results = read_results()
            row = row_of(name, args.seed, sums[name], minutes)
            write({**results, "rows": replace_row(results["rows"], row, add=args.add)})
    return int(
        any(
            why != FAILED or not args.first
            for tally in sums.values()
            for _, why in tally.wrong
        )
    )


def plant(unseen: int) -> int:
    """Hunt planted faults and write down which were found; the exit status."""
    missed = False
    before = [row["what"] for row in read_results()["planted"]] if unseen else []
    for row, text in hunt_each(unseen, before):
        found = f"found after {row['seconds']} s" if row["found"] else "NOT FOUND"
        sys.stdout.write(f"{row['what']}: {found}\n{text}")
        sys.stdout.flush()
        missed |= not row["found"]
        results = read_results()
        others = [old for old in results["planted"] if old["what"] != row["what"]]
        write(
            {
                **results,
                "planted": [
                    *others,
                    {**row, "commit": commit(), "day": str(datetime.now(UTC).date())},
                ],
            }
        )
    return int(missed)


def read_results() -> dict[str, list[dict[str, Any]]]:
    """The rows of campaigns and those of planted faults."""
    results = (
        json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    )
    return {
        "rows": [row for row in results.get("rows", []) if row["campaign"] in ALL],
        "planted": results.get("planted", []),
    }


def write(results: dict[str, list[dict[str, Any]]]) -> None:
    """Write the results, and the tables of the site from them."""
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    write_tables(results)


def write_tables(results: dict[str, list[dict[str, Any]]]) -> None:
    """Write the tables that the site shows, beside the results."""
    rows, planted = results["rows"], results["planted"]
    write_csv(RESULTS.with_name("torture.csv"), counted(rows))
    write_csv(RESULTS.with_name("torture_met.csv"), met(rows))
    write_csv(RESULTS.with_name("torture_planted.csv"), planted_table(planted))


if __name__ == "__main__":
    sys.exit(main())

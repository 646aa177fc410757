"""`make torture`: all campaigns within MINUTES. Each is a row of benchmarks/results/torture.json, which docs/reliability.md sums.

python -m torture [--minutes 60] [--seed YYYYMMDD] [--only WORD] [--first] [--no-page] [--planted]
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch

from coterie.config.registry import METHODS
from torture.campaigns import CAMPAIGNS
from torture.kills import SIGNALS
from torture.planted import hunt_all

ROOT = Path(__file__).parents[2]
PAGE, RESULTS = ROOT / "docs" / "reliability.md", ROOT / "benchmarks" / "results" / "torture.json"
NEVER = ("traceback", "silently different", "hang", "data lost", "orphan", "memory above 2 GB")
"""What must not happen; a column each. Whatever else is wrong is counted as `other`."""


class Tally(NamedTuple):
    """Of one campaign: how many tries, by kind what was wrong, the tries that were, and how often what was covered."""

    tries: int
    kinds: Counter[str]
    wrong: list[tuple[str, str]]
    covered: Counter[str]


def run_campaign(name: str, seed: int, seconds: float, most: float = float("inf"), *, first: bool = False) -> Tally:
    """Run one campaign; its tries follow from the seed and its name. With `first` it ends with the first try that is wrong."""
    campaign, wrong, tries, covered = CAMPAIGNS[name], list[tuple[str, str]](), 0, Counter[str]()
    rng = random.Random(f"{seed} {name}")
    methods = [*METHODS]
    rng.shuffle(methods)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "c").mkdir() if name not in WITHOUT_FOLDER else None
        for what, why, covers in campaign.run(rng, Path(folder) / "c", methods, time.monotonic() + seconds):
            tries += 1
            covered.update(covers)
            if why:
                wrong.append((repr(what)[:600], why))
            if tries >= most or (first and wrong):
                break
    kinds = Counter(next((kind for kind in NEVER if why.startswith(kind)), "other") for _, why in wrong)
    return Tally(tries, kinds, wrong, covered)


WITHOUT_FOLDER = ("odd values of arguments", "mutated TOML", "mangled CSV folders")
"""Campaigns that make their folder themselves."""


def row_of(name: str, seed: int, tally: Tally) -> dict[str, Any]:
    """The row of a campaign in the results."""
    machine = f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"
    return {
        "campaign": name,
        "seed": seed,
        "day": str(datetime.now(UTC).date()),
        "machine": f"{machine}, torch {torch.__version__.partition('+')[0]}",
        "tries": tally.tries,
        **{kind: tally.kinds[kind] for kind in (*NEVER, "other")},
        "covered": dict(sorted(tally.covered.items())),
    }


def replace_row(rows: list[dict[str, Any]], new: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows with a new one, which takes the place of one of the same campaign and seed."""
    return [row for row in rows if any(row[key] != new[key] for key in ("campaign", "seed"))] + [new]


def coverage_lines(rows: list[dict[str, Any]]) -> list[str]:
    """Sentences about what was met, and how often."""
    covered = {name: Counter[str]() for name in CAMPAIGNS}
    for row in rows:
        covered[row["campaign"]].update(row.get("covered", {}))
    lines = []
    for name, counts in covered.items():
        if not counts:
            continue
        methods = [counts[method] for method in METHODS]
        if any(methods):
            lines.append(f"- **{name}**: each of the {len(methods)} methods at least {min(methods)} times.")
        else:
            lines.append(f"- **{name}**:")
        for title, prefix in (
            ("signals", "signal: "),
            ("changes", "change: "),
            ("faults", "fault: "),
            ("kinds", "class: "),
        ):
            met = {word.removeprefix(prefix): count for word, count in counts.items() if word.startswith(prefix)}
            if title == "signals" and met:
                met = {signal: met.get(signal, 0) for signal in SIGNALS}
            if met:
                lines[-1] += (
                    f" {title.capitalize()}: {', '.join(f'{word} {count}' for word, count in sorted(met.items()))}."
                )
        others = {
            word: count
            for word, count in counts.items()
            if ": " not in word and word not in METHODS and ".py:" not in word
        }
        if others:
            lines[-1] += f" Fixtures with: {', '.join(f'{word} {count}' for word, count in sorted(others.items()))}."
    return lines


def page(rows: list[dict[str, Any]]) -> str:
    """docs/reliability.md."""
    counts = ("tries", *NEVER, "other")
    head = "| campaign | seeds | tries | " + " | ".join(counts[1:]) + " |"
    lines = []
    for name in CAMPAIGNS:
        of_campaign = [row for row in rows if row["campaign"] == name]
        sums = " | ".join(str(sum(row.get(count, 0) for row in of_campaign)) for count in counts)
        lines.append(f"| {name} | {len(of_campaign)} | {sums} |")
    days, machines = sorted({row["day"] for row in rows}), sorted({row["machine"] for row in rows})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    return f"""# Reliability

This page counts what coterie does when something goes wrong. Read it before you rely on a long run.
`make torture` interrupts runs, changes the world between kill and resume, damages files, mangles
settings and tables, passes odd values, lets a client's code fail, and writes this page. Each seed
draws other tries; the table sums all seeds.

{when}; {"; ".join(machines)}.

{head}
| --- |{" ---: |" * (len(counts) + 1)}
{chr(10).join(lines)}

- **interrupted runs**: a signal to all processes of a run or to its first one, at a random moment, or a power loss, after which each
  file is as it reached the disk last. `--resume` must end with the same bytes.
- **the world changes between kill and resume**: a file or what it imports, rows, rows of the server, settings, environment, switches of
  torch, another seed's or method's folder, another version's record. The result must be the old world's or the new world's, or a
  refusal that names the change. Comments, line ends, times of files, workers and jobs are free.
- **damaged files**: each file of a finished run is deleted, cut, flipped or replaced. `report`, `predict` and `--resume` must give the
  same answer as before, or name the file.
- **mutated TOML** and **mangled CSV folders**: each is read, or refused in one sentence.
- **odd values of arguments**: every argument of every public class, as declared, gets every odd value. The call works, or is refused
  in one sentence.
- **faults of a client's task**: errors of any kind, replies of any kind, and processes that end. The run must have the bits of one in
  which that client raised an error, and blame nobody else. With one worker a client's task runs in the process of the command
  itself, so that `os._exit` in it would end the command: give `--workers 2` to code that may do so.

## What was met, and how often

{chr(10).join(coverage_lines(rows))}

The fixtures are generated: four clients with tables of 24 rows, four rounds, small models, one process or two workers, one job or two.
Not covered: GPUs, models of many megabytes, disks that are full or slow, several machines. Ray and FLARE have kills of their own
(`make test-engines-slow`).

`python -m torture --planted` plants three faults in a copy of coterie; a campaign must find each within ten minutes.

"The same bytes" holds on machines of one kind: another instruction set rounds other bits. `environment.json` says which one it was.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int(datetime.now(UTC).strftime("%Y%m%d")))
    parser.add_argument("--only", default="")
    parser.add_argument("--first", action="store_true", help="end with the first try that is wrong")
    parser.add_argument("--no-page", action="store_true")
    parser.add_argument(
        "--planted", action="store_true", help="see that the campaigns find faults that are planted in a copy"
    )
    args = parser.parse_args()
    if args.planted:
        missed = False
        for line in hunt_all():
            sys.stdout.write(line)
            sys.stdout.flush()
            missed |= "NOT FOUND" in line
        return int(missed)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    sys.stdout.write(f"seed {args.seed}\n")
    chosen = {name: campaign for name, campaign in CAMPAIGNS.items() if args.only in name}
    total = sum(campaign.share for campaign in chosen.values())
    wrong = False
    for name, campaign in chosen.items():
        tally = run_campaign(name, args.seed, 60 * args.minutes * campaign.share / total, first=args.first)
        sys.stdout.write(f"{name}: {tally.tries} tries, {len(tally.wrong)} wrong\n")
        for what, why in tally.wrong[:20]:
            sys.stdout.write(f"  {why}\n    {what}\n")
        sys.stdout.flush()
        wrong |= bool(tally.wrong)
        if not args.no_page:
            write(row_of(name, args.seed, tally))
    return int(wrong)


def write(row: dict[str, Any]) -> None:
    """Keep a row, and write the page from all."""
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"] if RESULTS.exists() else []
    rows = replace_row([old for old in rows if old["campaign"] in CAMPAIGNS], row)
    RESULTS.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

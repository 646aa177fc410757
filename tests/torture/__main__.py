"""`make torture`: all campaigns within MINUTES. Each is a row of benchmarks/results/torture.json, which docs/reliability.md sums.

python -m torture [--minutes 30] [--seed YYYYMMDD] [--only WORD] [--no-page]
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

from torture.campaigns import CAMPAIGNS

ROOT = Path(__file__).parents[2]
PAGE, RESULTS = ROOT / "docs" / "reliability.md", ROOT / "benchmarks" / "results" / "torture.json"
NEVER = ("traceback", "silently different", "hang", "orphan", "memory above 2 GB")
"""What must not happen; a column each. Whatever else is wrong is counted as `other`."""


class Counted(NamedTuple):
    """Of one campaign: how many tries, and by kind what was wrong; `wrong` are the tries, with what was."""

    tries: int
    kinds: Counter[str]
    wrong: list[tuple[str, str]]


def counted(name: str, seed: int, seconds: float, most: int | None = None) -> Counted:
    """Run one campaign; its tries follow from the seed and its name."""
    campaign, wrong, tries = CAMPAIGNS[name], list[tuple[str, str]](), 0
    with tempfile.TemporaryDirectory() as folder:
        until = time.monotonic() + seconds
        for one, why in campaign.run(random.Random(f"{seed} {name}"), Path(folder) / "c", most or campaign.most, until):
            tries += 1
            if why:
                wrong.append((repr(one)[:300], why))
    kinds = Counter(next((kind for kind in NEVER if why.startswith(kind)), "other") for _, why in wrong)
    return Counted(tries, kinds, wrong)


def row_of(name: str, seed: int, found: Counted) -> dict[str, Any]:
    """What is kept of a campaign."""
    machine = f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"
    versions = f"torch {torch.__version__.partition('+')[0]}"
    day = str(datetime.now(UTC).date())
    wrong = {kind: found.kinds[kind] for kind in (*NEVER, "other")}
    return {
        "campaign": name,
        "seed": seed,
        "day": day,
        "machine": f"{machine}, {versions}",
        "tries": found.tries,
        **wrong,
    }


def kept(rows: list[dict[str, Any]], new: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows with a new one, which takes the place of one of the same campaign and seed."""
    same = ("campaign", "seed")
    return [row for row in rows if any(row[key] != new[key] for key in same)] + [new]


def page(rows: list[dict[str, Any]]) -> str:
    """docs/reliability.md."""
    counts = ("tries", *NEVER, "other")
    head = "| campaign | seeds | tries | " + " | ".join(counts[1:]) + " |"
    lines = []
    for name in CAMPAIGNS:
        of = [row for row in rows if row["campaign"] == name]
        sums = " | ".join(str(sum(row[count] for row in of)) for count in counts)
        lines.append(f"| {name} | {len(of)} | {sums} |")
    days, machines = sorted({row["day"] for row in rows}), sorted({row["machine"] for row in rows})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    return f"""# Reliability

This page counts what coterie does when something goes wrong. Read it before you rely on a long run. `make torture` kills runs,
damages files, mangles settings, tables and arguments, lets a client's code fail, and writes this page. Each seed draws other tries;
the table sums all seeds.

{when}; {"; ".join(machines)}.

{head}
| --- |{" ---: |" * (len(counts) + 1)}
{chr(10).join(lines)}

- **kills**: SIGKILL to all processes of a run with two workers, at a random moment. `--resume` must end with the same bytes.
- **damaged files**: each file of a finished run is deleted, cut, flipped or replaced. `report`, `predict` and `--resume` must give the
  same answer as before, or name the file.
- **mutated TOML** and **mangled CSV folders**: each is read, or refused in one sentence.
- **Python calls**: one argument is a value that it cannot take. The call works, or is refused in one sentence.
- **faults of a client's task**: errors of any kind, replies of any kind, and processes that end. The run must have the bits of one in
  which that client raised an error, and blame nobody else. With one worker a client's task runs in the process of the command
  itself, so that `os._exit` in it would end the command: give `--workers 2` to code that may do so.

"The same bytes" holds on machines of one kind: another instruction set rounds other bits. `environment.json` says which one it was.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=int(datetime.now(UTC).strftime("%Y%m%d")))
    parser.add_argument("--only", default="")
    parser.add_argument("--no-page", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    sys.stdout.write(f"seed {args.seed}\n")
    wrong = False
    for name, campaign in CAMPAIGNS.items():
        if args.only in name:
            found = counted(name, args.seed, 60 * args.minutes * campaign.share)
            sys.stdout.write(f"{name}: {found.tries} tries, {len(found.wrong)} wrong\n")
            for one, why in found.wrong[:20]:
                sys.stdout.write(f"  {one}: {why}\n")
            sys.stdout.flush()
            wrong |= bool(found.wrong)
            if not args.no_page:
                write(row_of(name, args.seed, found))
    return int(wrong)


def write(row: dict[str, Any]) -> None:
    """Keep a row, and write the page from all."""
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"] if RESULTS.exists() else []
    rows = kept(rows, row)
    RESULTS.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

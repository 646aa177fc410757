"""`make torture`: all campaigns within MINUTES, counted into docs/reliability.md.

python -m torture [--minutes 30] [--seed YYYYMMDD] [--only WORD] [--no-page]
"""

from __future__ import annotations

import argparse
import platform
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import torch

from torture.campaigns import CAMPAIGNS

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
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


def page(results: dict[str, Counted], seed: int, minutes: float) -> str:
    """docs/reliability.md."""
    head = "| campaign | tries | " + " | ".join(NEVER) + " | other |"
    rows = [
        f"| {name} | {found.tries} | " + " | ".join(str(found.kinds[kind]) for kind in (*NEVER, "other")) + " |"
        for name, found in results.items()
    ]
    machine = (
        f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__.partition('+')[0]}"
    )
    return f"""# Reliability

For whoever wants to know what coterie does when something goes wrong. `make torture` kills runs, damages files, mangles settings,
tables and arguments, and lets a client's code fail, and writes this page.

Seed {seed}, {minutes:g} minutes, {datetime.now(UTC).date()}, {machine}.

{head}
| --- |{" ---: |" * (len(NEVER) + 2)}
{chr(10).join(rows)}

- **kills**: SIGKILL to all processes of a run with two workers, at a random moment. `--resume` must end with the same bytes.
- **damaged files**: each file of a finished run is deleted, cut, flipped or replaced. `report`, `predict` and `--resume` must give the
  same answer as before, or name the file.
- **mutated TOML** and **mangled CSV folders**: each is read, or refused in one sentence.
- **Python calls**: one argument is a value that it cannot take. The call works, or is refused in one sentence.
- **faults of a client's task**: errors of any kind, replies of any kind, and processes that end. The run must have the bits of one in
  which that client raised an error, and blame nobody else.

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
    results: dict[str, Counted] = {}
    for name, campaign in CAMPAIGNS.items():
        if args.only in name:
            results[name] = found = counted(name, args.seed, 60 * args.minutes * campaign.share)
            sys.stdout.write(f"{name}: {found.tries} tries, {len(found.wrong)} wrong\n")
            for one, why in found.wrong[:20]:
                sys.stdout.write(f"  {one}: {why}\n")
            sys.stdout.flush()
    if not args.no_page:
        PAGE.write_text(page(results, args.seed, args.minutes), encoding="utf-8")
    return int(any(found.wrong for found in results.values()))


if __name__ == "__main__":
    sys.exit(main())

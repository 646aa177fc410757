"""Faults that are planted in a copy of coterie, to see that a campaign finds them.

`python -m torture --planted` plants each of `FAULTS` in turn. `--unseen 2` draws two of `UNSEEN`, which nobody is told before the hunt
is over, and lets all campaigns hunt.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from mutants import replaced

ROOT = Path(__file__).parents[2]
MINUTES = 10
"""Within which a campaign must find a planted fault."""


class Planted(NamedTuple):
    """A term of a file under src/coterie, what stands there instead, and a word of the campaign that is to find it; empty: any."""

    what: str
    file: str
    term: str
    instead: str
    campaign: str = ""


FAULTS = (
    Planted(
        "server rows are not in the record",
        "run/provenance.py",
        "    if clients.server is not None:\n        tree[",
        "    if False:\n        tree[",
        "world",
    ),
    Planted(
        "a field is left out of the spelling",
        "config/schema.py",
        "        table.update(option.spell(getattr(value, option.name), keep))\n",
        '        if option.name != "evaluate":\n            table.update(option.spell(getattr(value, option.name), keep))\n',
        "interrupted",
    ),
    Planted(
        "the history of a saved round is not flushed to the disk",
        "run/checkpoint.py",
        "                sync(file.fileno(), self._history)\n",
        "                pass\n",
        "interrupted",
    ),
    Planted(
        "a history keeps rows beyond its checkpoint",
        "run/checkpoint.py",
        "file.truncate(self._bytes)",
        "pass",
        "interrupted",
    ),
    Planted(
        "jobs outlive the command",
        "study/jobs.py",
        "    _die_with(parent)\n",
        "",
        "interrupted",
    ),
    Planted(
        "a site answers before its line is on the disk",
        "sites/log.py",
        "        if durable:\n            os.fsync(file.fileno())\n",
        "",
        "power losses",
    ),
    Planted(
        "a run ends where a disk knows no fsync",
        "base/system.py",
        "        if error.errno not in UNSUPPORTED:\n            raise\n        say_once(NO_SYNC, place)\n",
        "        raise\n",
        "disks",
    ),
)
"""Faults that are kept; "a history keeps rows" and "jobs outlive" were drawn unseen and not found, until the campaign was mended."""


UNSEEN = (
    Planted(
        "rows of clients are not in the record",
        "run/provenance.py",
        '"clients": dict(clients.fingerprints()),',
        '"clients": {},',
    ),
    Planted(
        "the default dtype is not in the record",
        "run/provenance.py",
        "str(torch.get_default_dtype())",
        '"torch.float32"',
    ),
    Planted(
        "files that an own file imports are not in the record",
        "run/code_hashes.py",
        "                waiting += _find_files(imported, file.parent, root)\n",
        "                pass\n",
    ),
    Planted(
        "constants of an own file are not in the record",
        "run/code_hashes.py",
        '                yield ", ".join(map(ast.unparse, statement.targets)), statement\n',
        "                continue\n",
    ),
    Planted(
        "a resumed run forgets what it has spent",
        "run/checkpoint.py",
        'session.spent.update(meta["spent"])',
        "pass",
    ),
    Planted(
        "a resumed run forgets what clients remember",
        "run/checkpoint.py",
        "engine.load_memory(saved.memory)",
        "pass",
    ),
    Planted(
        "damaged files count as whole",
        "run/hashes.py",
        "            if _hash(folder / name) != expected:\n",
        "            if False:\n",
    ),
    Planted(
        "a damaged record is read",
        "run/hashes.py",
        "record.pop(SEAL, None) == _seal(record)",
        "record.pop(SEAL, None) is not None",
    ),
    Planted(
        "a damaged checkpoint is read",
        "base/files.py",
        "header.pop(SEAL, None) != _seal(header, tensors)",
        "header.pop(SEAL, None) is None",
    ),
    Planted(
        "what a failed client remembered counts",
        "compute/cohort.py",
        "            # What a failed attempt did would depend on who shared its cohort.\n",
        "            view.commit()\n",
    ),
    Planted(
        "a copy of a pair is taken",
        "study/sweep.py",
        "            pair.refuse_copy()\n",
        "",
    ),
    Planted(
        "huge numbers are not refused",
        "config/rules.py",
        "    except OverflowError:  # an int",
        "    except ZeroDivisionError:  # an int",
    ),
    Planted(
        "text that is not UTF-8 is not refused",
        "base/files.py",
        "    except UnicodeDecodeError as error:\n",
        "    except UnboundLocalError as error:\n",
    ),
    Planted(
        "Ctrl-C reaches workers",
        "engines/workers.py",
        "    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its workers after saving\n",
        "",
    ),
)
"""Faults of which some are drawn and hunted unseen."""


def hunt(fault: Planted, campaign: str) -> tuple[bool, float, str]:
    """Plant a fault in a copy and let campaigns hunt it: whether one found something, in how many seconds, and what it said."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("src", "tests", "benchmarks"):
            shutil.copytree(
                ROOT / name,
                copy / name,
                ignore=shutil.ignore_patterns("__pycache__", "results"),
            )
        path = copy / "src" / "coterie" / fault.file
        path.write_text(
            replaced(
                path.read_text(),
                fault.term,
                fault.instead,
                f"{fault.what!r}: {fault.file}",
            )
        )
        started = time.monotonic()
        options = (
            "--only",
            campaign,
            "--minutes",
            str(MINUTES),
            "--first",
            "--no-page",
        )
        ended = subprocess.run(
            [sys.executable, "-m", "torture", *options],
            cwd=copy,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join((str(copy / "src"), str(copy / "tests"))),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        return (
            ended.returncode == 1,
            time.monotonic() - started,
            ended.stdout + ended.stderr,
        )


def hunt_each(
    unseen: int, before: Collection[str]
) -> Iterator[tuple[dict[str, Any], str]]:
    """Hunt faults; of each a row for the results, and what the campaigns said.

    Args:
        unseen: how many of `UNSEEN` are drawn; 0: all of `FAULTS`, each by its campaign.
        before: what was hunted before, which is not drawn again.
    """
    drawn = [fault for fault in UNSEEN if fault.what not in before]
    for fault in random.SystemRandom().sample(drawn, unseen) if unseen else FAULTS:
        found, seconds, text = hunt(fault, "" if unseen else fault.campaign)
        yield (
            {
                "what": fault.what,
                "unseen": bool(unseen),
                "found": found,
                "seconds": round(seconds),
            },
            text,
        )

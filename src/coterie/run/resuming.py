"""What a resumed run must have in common with what was saved, and what of it is whole."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from coterie.base.clients import Clients
from coterie.base.errors import require
from coterie.run.experiment import Experiment
from coterie.run.folder import Pair
from coterie.run.tables import read_saved

__all__ = ["is_whole", "mark_of", "refuse_other_data", "refuse_other_settings"]

FREE = frozenset({"seeds", "out", "jobs", "yardstick"})
"""Keys of [run] on which no number depends, so that they may differ when a run is resumed."""


def is_whole(pair: Pair, say: Callable[[str], None] | None) -> bool:
    """Whether a pair is complete and all of its files are as it left them; what is not is told."""
    if not pair.done.exists():
        return False
    damage = pair.damage()
    for name, what in damage.items():
        if say is not None:
            say(f"{name} {what}: it is made again from the checkpoint of {pair.entry.label}, seed {pair.seed}")
    return not damage


def refuse_other_settings(experiment: Experiment, folder: Path, first: Clients) -> None:
    """Raise `InputError` if what was saved is of other data or settings. Methods and seeds may be added."""
    saved = read_saved(folder, experiment)
    old, new = saved.tables(), experiment.tables()
    cure = "resume with the same settings, or choose another --out"
    old["engine"], new["engine"] = saved.engine.results(), experiment.engine.results()
    old["callbacks"], new["callbacks"] = {"deciding": saved.deciding()}, {"deciding": experiment.deciding()}
    for table in ("data", "split", "model", "engine", "attack", "callbacks", "run"):
        was, now = old.get(table, {}), new.get(table, {})
        for key in sorted({*was, *now} - FREE):
            require(
                was.get(key) == now.get(key),
                f"{folder} was made with {table}.{key} = {was.get(key)!r}, not {now.get(key)!r}; {cure}",
            )
    methods = {m["label"]: m for m in new["methods"]}
    for method in old["methods"]:
        label = method["label"]
        require(label in methods, f"{folder} has results of {label!r}, which is not among the methods now; {cure}")
        differ = sorted(k for k in {*method, *methods[label]} if method.get(k) != methods[label].get(k))
        require(not differ, f"{folder} was made with other settings of {label!r} ({', '.join(differ)}); {cure}")
    gone = sorted(set(saved.run.seeds) - set(experiment.run.seeds))
    require(not gone, f"{folder} has seed {gone[0] if gone else ''}, which is not among the seeds now; {cure}")
    for entry in experiment.methods:
        refuse_other_data(experiment, Pair(entry, experiment.run.seeds[0], folder), first)


def refuse_other_data(experiment: Experiment, pair: Pair, clients: Clients) -> None:
    """Raise `InputError` if a pair was saved with other rows, settings or files."""
    saved = pair.saved()
    require(
        saved is None or saved["mark"] == mark_of(experiment, pair, clients),
        f"{pair.done} was written with other data or files; resume with the same ones, or choose another --out",
    )


def mark_of(experiment: Experiment, pair: Pair, clients: Clients) -> str:
    """A hash of all that the numbers of a pair depend on: settings, rows, and files of the user's own."""
    settings = experiment.tables()
    settings["methods"] = [m for m in settings["methods"] if m["label"] == pair.entry.label]
    settings["run"] = {k: v for k, v in settings["run"].items() if k not in FREE}
    settings["engine"] = experiment.engine.results()
    settings["callbacks"] = experiment.deciding()
    for free in ("report", "tune"):
        settings.pop(free, None)
    digest = hashlib.blake2b(json.dumps(settings, sort_keys=True, default=str).encode(), digest_size=16)
    digest.update(clients.fingerprint().encode())
    for path in experiment.files(pair.entry):
        digest.update(path.read_bytes())
    return digest.hexdigest()

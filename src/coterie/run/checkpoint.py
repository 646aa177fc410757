"""Checkpoints of a run: complete rounds are saved; a run is resumed from the last one, in a world that is as its record says."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from coterie.base.errors import InputError, plain
from coterie.base.files import (
    Checkpoint,
    naming,
    read_checkpoint,
    remove_leftovers,
    write_checkpoint,
)
from coterie.base.system import sync
from coterie.contract.engine import Engine
from coterie.contract.exchange import Session
from coterie.run.contribution import ContributionRow
from coterie.run.files import WRITER, require_format
from coterie.run.history import History, Record, Timing
from coterie.run.provenance import Provenance

PATIENCE = 1.0
"""Seconds in which a checkpoint waits for the disk at most once."""


def _chain_hash(chain: bytes, line: bytes) -> bytes:
    """The hash of a file of lines, from that of all lines before the last and the last."""
    return hashlib.blake2b(chain + line, digest_size=16).digest()


def history_lines(path: Path, meta: Mapping[str, Any]) -> list[bytes]:
    """The lines of a history that the checkpoint with this `meta` knows. Raises `InputError` if they are not what it knew."""
    try:
        with open(path, "rb") as file:
            lines = file.read(meta["history_bytes"]).splitlines(keepends=True)
    except FileNotFoundError:
        lines = []
    if functools.reduce(_chain_hash, lines, b"").hex() != meta["history_hash"]:
        raise InputError(
            f"{path} is missing or damaged; delete {path.parent} and resume: this method and seed start again"
        )
    return lines


class RoundFiles:
    """The folder of one run: its record, `checkpoint.safetensors` of the last complete round, and `history.jsonl`.

    Rows go to a file of their own and are named by its length and a hash, so that a checkpoint does not grow with the history. A
    checkpoint waits for the disk at most once in `PATIENCE` seconds.
    """

    def __init__(self, folder: Path, provenance: Provenance) -> None:
        self._provenance, self._record_hash = provenance, ""
        self._path, self._history = (
            folder / "checkpoint.safetensors",
            folder / "history.jsonl",
        )
        self._bytes, self._chain = 0, b""
        self._durable_until = 0.0
        self._written = (0, 0, 0, 0)
        self._asks = 0

    def exist(self) -> bool:
        """Return True if a round was saved."""
        return self._path.exists()

    def clear(self) -> None:
        """Make the folder, and remove what another run saved there."""
        folder = self._path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:  # a name with NUL is a ValueError
            raise InputError(
                f"{plain(str(folder))} cannot be made a folder for checkpoints ({error}); choose another"
            ) from error
        remove_leftovers(folder)
        self._history.unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)
        self._record_hash = self._provenance.write()

    def save(
        self, state: Any, number: int, record: Record, session: Session, engine: Engine
    ) -> None:
        """Save round `number`: it counts from the moment when its checkpoint is renamed into place."""
        durable = time.monotonic() > self._durable_until
        length = self._append(record, session, durable=durable)
        meta = {
            **WRITER,
            "round": number,
            "provenance": self._record_hash,
            "history_bytes": length,
            "history_hash": self._chain.hex(),
            "spent": session.spent,
            "failures": session.failures,
            "weights": record.weights,
            "counted": session.counted,
        }
        write_checkpoint(self._path, state, engine.save_memory(), meta, durable=durable)
        if durable:
            self._durable_until = time.monotonic() + PATIENCE
        self._count(length, record)
        self._asks = len(session.asks)

    def _append(self, record: Record, session: Session, *, durable: bool) -> int:
        """Write what is new behind what the last checkpoint knows of; returns the length of the file.

        A checkpoint that is on the disk needs its history there: without it nothing could go on after a power loss.
        """
        content: dict[str, list[Any]] = {
            "history": record.history.columns(self._written[0]),
            "weights": record.weight_rows[self._written[1] :],
            "seconds": record.seconds[self._written[2] :],
        }
        contributions = record.contributions[self._written[3] :]
        if contributions:
            content["contributions"] = contributions
        costs = [
            [a.round, a.ask, a.task, *cost]
            for a in session.asks[self._asks :]
            for cost in a.costs
        ]
        if costs:
            content["asks"] = costs
        with naming(self._history), open(self._history, "ab") as file:
            file.truncate(self._bytes)
            file.seek(0, os.SEEK_END)
            if any(content.values()):
                line = (json.dumps(content) + "\n").encode()
                file.write(line)
                self._chain = _chain_hash(self._chain, line)
            file.flush()
            if durable:
                sync(file.fileno(), self._history)
            return file.tell()

    def read(self, rounds: int, device: torch.device) -> Checkpoint:
        """The last complete round, on `device`. Raises `InputError` if it is of another run or version, or beyond `rounds`."""
        saved = read_checkpoint(self._path, device)
        remove_leftovers(self._path.parent)
        require_format(saved.meta, self._path)
        number = saved.meta["round"]
        self._record_hash = self._provenance.compare(f"round {number}", number)
        if saved.meta["provenance"] != self._record_hash:
            raise InputError(
                f"{self._path} belongs to another run than {self._provenance.path.name} beside it; restore the folder from a copy, or "
                "delete it: this method and seed start again"
            )
        if number > rounds:
            raise InputError(
                f"{self._path} is at round {number}, beyond the {rounds} rounds asked for"
            )
        return saved

    def restore(
        self, saved: Checkpoint, record: Record, session: Session, engine: Engine
    ) -> None:
        """Put back what a fresh run does not have yet; rows of history beyond the checkpoint are left out."""
        meta = saved.meta
        lines = history_lines(self._history, meta)
        self._chain = bytes.fromhex(meta["history_hash"])
        for line in map(json.loads, lines):
            record.history.parts += History.of_columns(line["history"]).parts
            record.weight_rows += [tuple(row) for row in line["weights"]]
            record.seconds += [Timing(*row) for row in line["seconds"]]
            record.contributions += [
                ContributionRow(*row) for row in line.get("contributions", ())
            ]
        record.weights = meta["weights"]
        session.spent.update(meta["spent"])
        session.failures.update(meta["failures"])
        session.counted.update(meta["counted"])
        engine.load_memory(saved.memory)
        self._count(meta["history_bytes"], record)

    def _count(self, length: int, record: Record) -> None:
        self._bytes = length
        self._written = (
            len(record.history.parts),
            len(record.weight_rows),
            len(record.seconds),
            len(record.contributions),
        )

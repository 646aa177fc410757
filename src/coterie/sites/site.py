"""The worker half of a site: it takes messages from the server alone, one at a time, and writes each into the site's log.

What it takes goes to a child process (`sites.child`) with the rows, the model and the client's memory, where the approved plan is
obeyed. A crash of the child is this client's failure and nothing more. Nothing here knows what carries the messages.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

from coterie.base.errors import InputError, visible
from coterie.base.files import parse_json
from coterie.contract.encoding import HEAD, decode, encode, header
from coterie.contract.memory import MEMORY_LOST
from coterie.contract.wire import Ask, Context
from coterie.sites.approval import (
    approval_file,
    check_signer_of_approval,
    kit_of,
    read_approval,
    revocations_file,
)
from coterie.sites.descriptions import longest_head
from coterie.sites.log import Log, cannot_write, heads_file, last_hash
from coterie.sites.settings import SiteSettings, read_settings

SERVER = "server"
"""The server's name, under which FLARE lets it call; no site can have it."""
MEGABYTE = 2**20
MINUTE, HOUR, MOST_REFUSALS = 60.0, 3600.0, 100
RESERVE = 64 * MEGABYTE
"""Bytes of disk that are kept for lines about the server: nothing is answered that is not logged."""
LONGEST_HEAD = 1 << 16
"""Characters of a signed head with its certificate."""
_BEGINNINGS = ("open", "encode", "prepare")


class Site:
    """A site: takes messages and keeps the child process that answers them.

    Args:
        name: name of the client.
        settings_file: the site's `coterie.toml`, with the approved plan beside it. What is wrong with them is the answer to everything.
        folder: where the site's key is kept, and client memory for a run that is resumed.
        unready: why it refuses every request; "" if nothing is wrong but what its files say.
    """

    def __init__(
        self, name: str, settings_file: Path, folder: Path, *, unready: str = ""
    ) -> None:
        self.name, self.folder = name, folder
        self._settings_file = settings_file
        self._plan_file = approval_file(settings_file)
        self._settings: SiteSettings | None = None
        self._log: Log | None = None
        self._hash, self._unready, self._distrust = "", unready, ""
        self._longest_head = HEAD
        try:
            self._settings = read_settings(settings_file)
            self._log = Log(Path(self._settings.log), reserve=RESERVE)
            approved = read_approval(settings_file)
            self._hash, self._longest_head = (
                approved.hash,
                longest_head(approved.plan.deployment.descriptions),
            )
        except InputError as error:
            self._unready = unready or self._without_paths(error)
        else:
            self._look_at_signer()
        self._lock = threading.Lock()
        self._strangers = _Strangers()
        self._newest = -1
        self._journal: dict[str, bytes] = {}
        self._child: _Child | None = None
        self._is_closed = False

    @property
    def busy(self) -> bool:
        """Return True while a message is being answered."""
        return self._lock.locked()

    def is_free(self, caller: str) -> bool:
        """Return True if no message is being answered; only the server is told."""
        if caller != SERVER:
            self._refuse_stranger(b"", caller)
            return False
        return not self.busy

    def handle(self, message: Any, caller: str) -> bytes:
        """The answer to a message of `caller`, whom the transport has authenticated; what goes wrong is a sentence under `failed`."""
        is_message = isinstance(message, bytes)
        if caller != SERVER:
            # Before anything is read, and without a lock: nobody else can make the site wait.
            content = message if is_message else b""
            return self._refuse_stranger(content, caller)
        if not is_message:
            return self._refuse({}, b"", caller, "no message of coterie")
        with self._lock:  # calls come in threads, and one that timed out may still run
            settings = self._settings
            if (
                settings is not None
                and len(message) > settings.largest_message * MEGABYTE
            ):
                size, most = -(-len(message) // MEGABYTE), settings.largest_message
                why = f"a message of {size} MB is over the {most} MB of largest_message at its site"
                return self._refuse({}, message, caller, why)
            try:
                head = header(message, self._longest_head)
                serial = head["serial"]
                if type(serial) is not int or serial < 0:
                    raise InputError("a message has a serial number")
            except Exception as error:  # whatever bytes can do to a parser
                return self._refuse(
                    {},
                    message,
                    caller,
                    f"no message of coterie ({type(error).__name__})",
                )
            # An ask that its sender gave up may get here after a later one: it must not touch what the later one has seen.
            if serial <= self._newest:
                return self._refuse(head, message, caller, "a later ask came first")
            self._newest = serial
            if self._unready or settings is None:
                return self._refuse(head, message, caller, self._unready)
            return self._answer(head, message, caller, settings)

    def close(self) -> None:
        """End the child process. A message that it was answering is answered no more."""
        self._is_closed = True
        if self._child is not None:
            self._child.close()

    def _without_paths(self, error: InputError) -> str:
        """Return a sentence about a file of the site as the server may read it."""
        return (
            str(error)
            .replace(str(self._settings_file.parent), "")
            .replace(str(Path.home()), "~")
        )

    def _look_at_signer(self) -> None:
        """Note why the approved plan is obeyed no more: whoever has signed it may have lost that right since."""
        try:
            check_signer_of_approval(self._settings_file)
            self._distrust = ""
        except InputError as error:
            self._distrust = self._without_paths(error)

    def _take_list(self, head: Mapping[str, Any], message: bytes, caller: str) -> bytes:
        """Keep the list of revoked certificates that the server has sent, and look again at who has signed the plan."""
        from coterie.sites.flare.revocation import take_list

        kit = kit_of(self._settings_file)
        if kit is None:
            return self._refuse(
                head,
                message,
                caller,
                "its settings lie in no kit, so it cannot check a list",
            )
        try:
            taken = take_list(
                head.get("list"), revocations_file(self._settings_file), kit / "startup"
            )
        except InputError as error:
            return self._refuse(head, message, caller, self._without_paths(error))
        self._look_at_signer()
        why = self._write(head, message, caller, "answered", 0, {"list": taken.number})
        if why:
            return _failure(head, why)
        return encode({"serial": head["serial"]})

    def _answer(
        self,
        head: Mapping[str, Any],
        message: bytes,
        caller: str,
        settings: SiteSettings,
    ) -> bytes:
        if head.get("do") == "revoked":
            return self._take_list(head, message, caller)
        if head.get("do") in ("head", "signed"):
            return self._end_job(head, message, caller, Path(settings.log))
        if self._distrust:
            return self._refuse(head, message, caller, self._distrust)
        if self._child is None:
            self._child = self._fresh(settings)
        answer, about_answer = self._child.ask(message)
        if answer is None and self._is_closed:
            # Of a job that is aborted: an answer that the child has ended would count as a failure of this site.
            raise RuntimeError("its job has ended")
        if answer is None:
            why = f"its cohort process ended with exit code {self._child.code}; {MEMORY_LOST}"
            self._child = self._again(settings)
            answer, about_answer = _failure(head, why), {"error": why}
        outcome = "answered"
        if "refused" in about_answer:
            outcome = "refused"
        elif "error" in about_answer:
            outcome = "failed"
        elif head.get("do") in _BEGINNINGS:
            # A fresh child is told the beginnings again.
            self._journal[head["do"]] = message
        why = self._write(head, message, caller, outcome, len(answer), about_answer)
        if not why:
            return answer
        # What the log does not hold must not have happened.
        if self._child is not None:
            undo = {
                "do": "undo",
                "plan": self._hash,
                "serial": head["serial"],
                "undo": head["serial"],
            }
            self._child.ask(encode(undo))
        return _failure(head, why)

    def _end_job(
        self, head: Mapping[str, Any], message: bytes, caller: str, log: Path
    ) -> bytes:
        """Tell the server the hash of the log's last line, or keep what it has signed of that: nobody can cut the log's end then."""
        signed = head.get("signed", "")
        if (
            head.get("plan") != self._hash
            or not isinstance(signed, str)
            or len(signed) > LONGEST_HEAD
        ):
            return self._refuse(
                head, message, caller, "this message ends no job of the approved plan"
            )
        if head["do"] == "signed":
            Log(heads_file(log)).write(urgent=False, **_head_fields(signed))
        why = self._write(head, message, caller, "answered", 0, {})
        if why:
            return _failure(head, why)
        return encode({"serial": head["serial"], "head": last_hash(log)})

    def _refuse_stranger(self, message: bytes, caller: str) -> bytes:
        """Refuse anybody but the server. The log gets a line for each caller and minute, not for each call: it must not be filled."""
        why = "only the server may ask"
        calls = self._strangers.calls_to_log(caller, time.monotonic())
        if calls:
            self._write(
                {}, message, caller, "refused", 0, {"refused": why, "calls": calls}
            )
        return _failure({}, why)

    def _refuse(
        self, head: Mapping[str, Any], message: bytes, caller: str, why: str
    ) -> bytes:
        answer = _failure(head, why)
        self._write(head, message, caller, "refused", len(answer), {"refused": why})
        return answer

    def _write(
        self,
        head: Mapping[str, Any],
        message: bytes,
        caller: str,
        outcome: str,
        up: int,
        about_answer: Mapping[str, Any],
    ) -> str:
        """Log a message and what became of it; returns why that cannot be done, or ""."""
        if self._log is None:
            return ""
        # A head holds whatever its sender put there.
        ask = head.get("ask")
        what = head.get("do")
        in_round = number = None
        if isinstance(ask, Ask):
            what = ask.task
            if isinstance(ask.context, Context):
                in_round, number = ask.context.round, ask.context.ask
        entry = {
            "caller": caller,
            "plan": self._hash,
            "run": _short(head.get("run")),
            "round": _short(in_round),
            "ask": _short(number),
            "what": _short(what),
            "outcome": outcome,
            "payload": hashlib.sha256(message).hexdigest(),
            "bytes_down": len(message),
            "bytes_up": up,
        }
        try:
            self._log.write(urgent=caller == SERVER, **entry, **about_answer)
        except OSError as error:
            return cannot_write(error)
        return ""

    def _fresh(self, settings: SiteSettings) -> _Child:
        return _Child(self.name, settings, self.folder, self._plan_file, self._hash)

    def _again(self, settings: SiteSettings) -> _Child | None:
        """A new child that knows what the old one was told; but for its memory, which is lost."""
        child = self._fresh(settings)
        for kind in (k for k in _BEGINNINGS if k in self._journal):
            message = self._journal[kind]
            if kind == "prepare":
                message = encode({**decode(message), "resume": False})
            if child.ask(message)[0] is None:
                return None  # the next message tries once more
        return child


class _Strangers:
    """Counts the calls of those who may not ask."""

    def __init__(self) -> None:
        self._callers: dict[str, _Calls] = {}
        self._lock = threading.Lock()

    def calls_to_log(self, caller: str, now: float) -> int:
        """Count a call; returns how many calls of this caller a line of the log must speak of now, or 0.

        A caller that was refused `MOST_REFUSALS` times is ignored for an hour.
        """
        with self._lock:
            calls = self._callers.setdefault(caller, _Calls())
            calls.unsaid += 1
            if now < calls.ignored_until:
                return 0
            calls.refused += 1
            if calls.refused == MOST_REFUSALS:
                calls.refused, calls.ignored_until = 0, now + HOUR
            elif now < calls.said_at + MINUTE:
                return 0
            unsaid, calls.unsaid, calls.said_at = calls.unsaid, 0, now
            return unsaid


@dataclass
class _Calls:
    """The record of one caller: calls not in the log yet, time of its last line, refusals, and until when the caller is ignored."""

    unsaid: int = 0
    said_at: float = -math.inf
    refused: int = 0
    ignored_until: float = -math.inf


def _head_fields(signed: str) -> dict[str, str]:
    """Return the fields of a signed head as texts; whether they are a signature is checked by whoever reads them."""
    try:
        fields = parse_json(signed, "a signed head", dict)
    except InputError:
        fields = {}
    names = ("site", "head", "signed", "signature", "certificate")
    return {name: str(fields.get(name)) for name in names if fields}


def _failure(head: Mapping[str, Any], why: str) -> bytes:
    serial = head.get("serial")
    if type(serial) is not int:
        serial = -1
    return encode({"serial": serial, "failed": why})


def _short(value: Any) -> Any:
    """Return what a log keeps of a value that anybody may have sent."""
    if value is None or type(value) is int:
        return value
    return visible(str(value)[:100])


class _Child:
    """The child process of a site. It is started from scratch: the worker has threads, which a fork would not survive."""

    def __init__(
        self,
        name: str,
        settings: SiteSettings,
        folder: Path,
        plan: Path,
        plan_hash: str,
    ) -> None:
        self._pipe, child_end = Pipe()
        start = {
            "name": name,
            "settings": asdict(settings),
            "folder": str(folder),
            "plan": str(plan),
            "hash": plan_hash,
        }
        command = [
            sys.executable,
            "-m",
            "coterie.sites.child",
            str(child_end.fileno()),
            json.dumps(start),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command, pass_fds=[child_end.fileno()], env=environment
        )
        child_end.close()
        self.code: int | None = None

    def ask(self, message: bytes) -> tuple[bytes | None, dict[str, Any]]:
        """The child's answer and what the log should know; None if it has died, and then `code` is its exit code."""
        try:
            self._pipe.send_bytes(message)
            entry = json.loads(self._pipe.recv_bytes())
            return self._pipe.recv_bytes(), entry
        except (EOFError, OSError):
            self.close()
            return None, {}

    def close(self) -> None:
        """End the process; what it must keep is on disk."""
        self._pipe.close()
        self._process.kill()
        self.code = self._process.wait()

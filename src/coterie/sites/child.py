"""The child process of a site: it holds the rows, and answers messages that come through a pipe from the worker (`sites.site`)."""

from __future__ import annotations

import json
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from coterie.base.errors import InputError
from coterie.config.registry import METHODS
from coterie.contract.encoding import decode, encode
from coterie.sites.allowed import RefusedError
from coterie.sites.approval import Approved
from coterie.sites.rows import SiteRows
from coterie.sites.settings import SiteSettings


def _serve(pipe: Connection, rows: SiteRows) -> None:
    """Answer messages until the worker is gone: to each what the log should know, then the reply."""
    while True:
        try:
            raw = pipe.recv_bytes()
        except (EOFError, OSError):
            return
        reply, log_entry = serve_message(raw, rows)
        pipe.send_bytes(json.dumps(log_entry).encode())
        pipe.send_bytes(reply)


def serve_message(raw: bytes, rows: SiteRows) -> tuple[bytes, dict[str, Any]]:
    """Return the reply to a message, and what the log should know; whatever goes wrong is a sentence in both."""
    serial = -1
    try:
        message = decode(raw, rows.longest_head)
        serial = message["serial"]
        reply = encode({**rows.answer(message), "serial": serial})
        return reply, rows.about
    except RefusedError as refusal:
        refusal_text, log_entry = str(refusal), {**rows.about, "refused": str(refusal)}
    except Exception as error:
        # Whatever a file, a message or a task does is this client's failure.
        why = " ".join(str(error).split())[:300]
        refusal_text = f"its rows or this message do not fit the plan ({type(error).__name__}); the site's own log says more"
        log_entry = {**rows.about, "error": f"{type(error).__name__}: {why}"}
    if type(serial) is not int:
        serial = -1
    return encode({"failed": refusal_text, "serial": serial}), log_entry


def main(descriptor: str, settings: str) -> None:
    """Serve the rows of a site at the other end of a pipe until it is closed; the settings are JSON."""
    METHODS.importable()  # the plan and the settings may name their tasks
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the worker
    torch.set_num_threads(1)
    start = json.loads(settings)
    site_settings, approved = (
        SiteSettings(**start["settings"]),
        Approved.read(Path(start["plan"])),
    )
    if (
        approved.hash != start["hash"]
    ):  # the worker's lines in the log name the plan that it has read
        raise InputError(
            f"{start['plan']} is another plan than when the site started; start it again"
        )
    _serve(
        Connection(int(descriptor)),
        SiteRows(start["name"], site_settings, Path(start["folder"]), approved),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])

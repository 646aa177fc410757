"""Revoked certificates at the server: who holds one is not registered, and a site that was registered before is not asked.

FLARE knows no revocation. A component of the server reads the list at each registration and notes with which certificate each site
came; a job reads both before each ask. FLARE's TLS still lets a revoked certificate through until it ends: its holder reaches the
port, but gets no token, is sent nothing, and sites refuse whatever it sends them.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext

from coterie.base.errors import InputError
from coterie.base.files import read_json, write_atomically
from coterie.sites.flare.authority import serial_of
from coterie.sites.flare.cell_gate import end_on_failure
from coterie.sites.flare.revocation import servers_list

REGISTERED = "registered.json"
_CURE = "remove it and start the server again, so that all sites register anew"
REVOKED_WORDS = "its certificate was revoked; the operator knows why"


def barred_sites(local: Path) -> dict[str, str]:
    """Return why sites may not be asked, by name: each that was registered with a certificate which is revoked by now.

    Args:
        local: folder of the server's kit with both lists.
    """
    revoked = _revoked(local)
    return {
        name: REVOKED_WORDS
        for name, serial in _registered(local).items()
        if serial in revoked
    }


class Gate(FLComponent):  # type: ignore[misc]
    """Refuses to register holders of revoked certificates. FLARE takes in each site in a thread of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._local: Path | None = None
        self._one_by_one = threading.Lock()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Begin to look at certificates before the first registration."""
        if event_type != EventType.CLIENT_REGISTER_RECEIVED:
            return
        with self._one_by_one:
            if self._local is None:
                # FLARE swallows what an event handler raises, and would let in whoever is revoked.
                end_on_failure(lambda: self._begin(fl_ctx))

    def _begin(self, fl_ctx: FLContext) -> None:
        server = fl_ctx.get_engine().server
        self._local = Path(server.workspace) / "local"
        self._watch(server.client_manager.cred_keeper.get_id_verifier(fl_ctx))

    def _watch(self, verifier: Any) -> None:
        verify = verifier.verify_common_name

        def verify_and_look(
            *, asserted_cn: str, asserter_cert: Any, **more: Any
        ) -> Any:
            valid = verify(asserted_cn=asserted_cn, asserter_cert=asserter_cert, **more)
            self.note(asserted_cn, serial_of(asserter_cert))
            return valid

        verifier.verify_common_name = verify_and_look

    def note(self, name: str, serial: str) -> None:
        """Note with which certificate a site comes. Raises `InputError` if that is revoked."""
        local = self._local or Path()
        with self._one_by_one:
            if serial in _revoked(local):
                raise InputError(f"{name} comes with the revoked certificate {serial}")
            text = json.dumps({**_registered(local), name: serial}, indent=1)
            write_atomically(
                local / REGISTERED, lambda p: p.write_text(text, encoding="utf-8")
            )


def _revoked(local: Path) -> Mapping[str, str]:
    """Return the revoked certificates by serial number."""
    revocations = servers_list(local)
    if revocations is None:
        return {}
    return revocations.certificates


def _registered(local: Path) -> dict[str, Any]:
    """Return the serial numbers with which sites came; a list that is damaged is an error, since nobody would be refused."""
    path = local / REGISTERED
    if not path.exists():
        return {}
    return read_json(path, dict, _CURE)

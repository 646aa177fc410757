"""NVIDIA FLARE as the carrier of `sites.server` and `sites.site`: what runs in the workers of a FLARE job.

FLARE brings transport, mutual TLS, identities and scheduling; a message and its reply are one blob of bytes each, so its
serialiser sees nothing but bytes. The classes here are named in the job and must be installed at the sites: no code travels.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nvflare.collab import CollabCallError, collab
from nvflare.collab.api.exceptions import RunAborted

import coterie.compute.metrics  # noqa: F401 - settings may name its tasks
from coterie.config.registry import METHODS
from coterie.sites.flare.cell_gate import gate
from coterie.sites.flare.workspace import kit_of
from coterie.sites.settings import SETTINGS_FILE
from coterie.sites.site import Site

NO_GATE = "its kit was made before the gate was; there: coterie site check KIT, then start it again"


class SiteClient:
    """The client object of a job: one site, with the settings in its kit's `local` folder."""

    def __init__(self) -> None:
        self._site: Site | None = None

    @collab.init  # type: ignore[untyped-decorator]
    def begin(self) -> None:
        """Read the site's settings. What is wrong with them is said in reply to the first message: raising here would end the job."""
        METHODS.importable()  # settings may name their tasks
        name, kit = collab.site_name, kit_of(Path(collab.workspace.get_root_dir()))
        local = kit / "local"
        if not local.is_dir():  # a simulation has a folder for all sites
            local = Path(collab.workspace.get_site_config_dir())
        # Sites may share a folder, as in a simulation; then the file has the site's name.
        settings = local / f"{name}.{SETTINGS_FILE}"
        if not settings.exists():
            settings = local / SETTINGS_FILE
        unready = ""
        if gate() is None and (kit / "startup" / "client.key").is_file():
            # A simulation has no key, and needs no gate.
            unready = NO_GATE
        self._site = Site(name, settings, kit / "coterie", unready=unready)

    @collab.publish  # type: ignore[untyped-decorator]
    def handle(self, message: bytes) -> bytes:
        """The answer to a message of the caller that FLARE has authenticated."""
        if self._site is None:
            raise RuntimeError("the site has not begun")
        return self._site.handle(message, collab.caller)

    @collab.publish  # type: ignore[untyped-decorator]
    def is_free(self) -> bool:
        """Return True if no message is being answered."""
        return self._site is not None and self._site.is_free(collab.caller)

    @collab.publish  # type: ignore[untyped-decorator]
    def count_gate_doors(self) -> int:
        """Return how many doors of FLARE the gates of this process and of its parent close to everybody; 0 where there is no gate."""
        installed = gate()
        if installed is None:
            return 0
        return installed.count_closed_doors()

    @collab.final  # type: ignore[untyped-decorator]
    def end(self) -> None:
        """End the process with the rows."""
        if self._site is not None:
            self._site.close()


ABORT_SECONDS = 5.0
"""Between the end of a job at its sites and at the server, where FLARE aborts it at the sites first."""


class FlareLink:
    """The sites of a running job, called through their proxies. An aborted job raises FLARE's `RunAborted`, which nobody catches.

    Args:
        proxies: of the sites.
        aborted: FLARE's signal that the job is aborted; None: it cannot be.
    """

    def __init__(self, proxies: Sequence[Any], aborted: Any = None) -> None:
        self._proxies = {proxy.name: proxy for proxy in proxies}
        self.names: Sequence[str] = sorted(self._proxies)
        self._aborted = aborted

    def call(self, name: str, message: bytes, timeout: float) -> Any:
        """The reply of a site, bytes if it is honest."""
        return self._do(name, "handle", timeout, message=message)

    def ping(self, name: str, timeout: float) -> bool:
        """Return True if the site is there and not busy."""
        return self._do(name, "is_free", timeout) is True

    def count_gate_doors(self, name: str, timeout: float) -> int | None:
        """Return how many doors of FLARE the gate of a site closes, as the site says it; None if it does not say a number."""
        try:
            closed = self._do(name, "count_gate_doors", timeout)
        except (TimeoutError, ConnectionError):
            return None
        if type(closed) is not int:
            return None
        return closed

    def _do(self, name: str, method: str, timeout: float, **values: Any) -> Any:
        begun = time.monotonic()
        try:
            return getattr(self._proxies[name](timeout=timeout), method)(**values)
        except CollabCallError as error:
            # An abort looks like the failure of a site. Counted as one, a round would end without it, and be resumed so.
            if time.monotonic() - begun < timeout and self._is_aborted_soon():
                raise RunAborted("the job was aborted during a call") from error
            if error.cause_type == "TimeoutError":
                raise TimeoutError(str(error.cause)) from error
            raise ConnectionError(f"{error.cause_type}: {error.cause}") from error

    def _is_aborted_soon(self) -> bool:
        """Return True if the job is aborted, or is within `ABORT_SECONDS`."""
        deadline = time.monotonic() + ABORT_SECONDS
        while self._aborted is not None and time.monotonic() < deadline:
            if self._aborted.triggered:
                return True
            time.sleep(0.05)
        return False

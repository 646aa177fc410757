"""What a site reports or fails at is this site's failure, whatever FLARE makes of it.

FLARE ends the job of all where one site says that its process has failed, sends a return code that FLARE calls fatal, does not
answer while a job begins, or is away for a minute. Behind the gate none of these ends a job: who is asked and does not
answer has failed, and the quorum of the method decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coterie.base.errors import InputError


def spare_the_others(entry: str) -> None:
    """Let no site end a job, in the server's process (`server`) or in that of a job (`server-job`).

    Raises:
        InputError: this version of FLARE has other methods.
    """
    if entry == "server":
        _spare_in_the_server()
    if entry == "server-job":
        _spare_in_a_job()


def _spare_in_the_server() -> None:
    from nvflare.private.fed.server.fed_server import FederatedServer

    _put(FederatedServer, "process_job_failure", _without_its_code)
    _put(FederatedServer, "_resolve_missing_client_outcome", lambda _: _resolve_outcome)


def _without_its_code(process: Callable[..., Any]) -> Callable[..., Any]:
    """FLARE looks whether a report is its sender's to make, then at its code: without one it notes that this site has ended."""

    def process_job_failure(self: Any, request: Any) -> Any:
        from nvflare.private.defs import JobFailureMsgKey

        if isinstance(request.payload, dict):
            request.payload = {**request.payload, JobFailureMsgKey.CODE: None}
        return process(self, request)

    return process_job_failure


def _resolve_outcome(self: Any, client: Any, job_id: str, reason: str) -> None:
    """A site that went away, or does not name the job any more, is not waited for."""
    self.engine.job_runner.resolve_client_outcome(job_id, client.name)


def _spare_in_a_job() -> None:
    from nvflare.apis.impl.wf_comm_server import WFCommServer
    from nvflare.collab.runtime.controller import CollabController
    from nvflare.private.fed.server.server_runner import ServerRunner

    _put(ServerRunner, "ABORT_RETURN_CODES", lambda _: ())
    _put(WFCommServer, "_job_policy_violated", lambda _: lambda self: False)
    for name in ("_process_sync_reply", "_process_setup_reply"):
        _put(CollabController, name, lambda _: _take_no_notice)
    _put(CollabController, "broadcast_and_wait", _with_all_sites)


def _take_no_notice(self: Any, client_task: Any, fl_ctx: Any) -> None:
    """What a site replies while the job begins says nothing that the server does not know."""


def _with_all_sites(broadcast: Callable[..., Any]) -> Callable[..., Any]:
    """FLARE's controller asks all sites for their methods, then gives them each other's: all have those of `SiteClient`."""

    def broadcast_and_wait(self: Any, **task: Any) -> None:
        from nvflare.collab.api.app import ClientApp
        from nvflare.collab.runtime.controller import _ClientInfo

        from coterie.sites.flare.client import SiteClient

        broadcast(self, **task)
        interface = ClientApp(SiteClient()).get_collab_interface()
        for name in self.client_info:
            self.client_info[name] = _ClientInfo(interface)
            self.client_setup_status[name] = True

    return broadcast_and_wait


def _put(owner: type, name: str, make: Callable[[Any], Any]) -> None:
    """Replace an attribute of one of FLARE's classes by what `make` makes of it."""
    if not hasattr(owner, name):
        raise InputError(
            f"the gate does not fit this version of FLARE ({owner.__name__}.{name}); install the version of coterie's extra flare"
        )
    setattr(owner, name, make(getattr(owner, name)))

"""The commands of each person at the server: FLARE registers some 60 commands, half of which it gives to anybody who has logged in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from coterie.sites.flare.cell_gate import CellGate

EVERYBODY = frozenset(
    {
        "_cert_login",
        "_check_session",
        "_commands",
        "_logout",
        "check_status",
        "get_job_meta",
        "list_jobs",
    }
)
"""To log in and to look."""
BY_ROLE = {
    "lead": frozenset(
        {
            "abort_job",
            "app_command",
            "delete_job",
            "download_job",
            "submit_job",
        }
    ),
    "org_admin": frozenset({"disable_client", "enable_client", "remove_client"}),
    "project_admin": frozenset({"restart", "shutdown"}),
}
"""By FLARE's name of a role (the operator, the guard, the keeper): the commands beside those."""


def is_open(role: str, command: str) -> bool:
    """Return True if people of a role may give a command; FLARE's own authorisation comes after."""
    return command in EVERYBODY or command in BY_ROLE.get(role, ())


def install_people(guard: CellGate) -> None:
    """Let the server refuse all other commands, and drop the sessions of sites before it is shut down."""
    from nvflare.fuel.hci.server.authz import AuthzFilter

    AuthzFilter.pre_command = _check_role(AuthzFilter.pre_command, guard)


def _check_role(authorise: Callable[..., bool], guard: CellGate) -> Callable[..., bool]:
    from nvflare.fuel.hci.proto import MetaStatusValue, make_meta

    def pre_command(self: Any, conn: Any, args: Sequence[str]) -> bool:
        role, name = (
            str(conn.get_prop("_userRole", "")),
            str(conn.get_prop("_userName", "")),
        )
        command = str(conn.get_prop("_cmdEntry").name)
        if not is_open(role, command):
            guard.refusals.note(
                name or "somebody",
                command,
                f"this command is closed to the role {role!r}",
            )
            said = "not authorized: coterie's server closes this command to your role"
            conn.append_error(
                said, meta=make_meta(MetaStatusValue.NOT_AUTHORIZED, said)
            )
            return False
        if not authorise(self, conn, args):
            return False
        if command in BY_ROLE["project_admin"] and list(args[1:2]) == ["server"]:
            _drop_sessions(conn.app_ctx)
        return True

    return pre_command


def _drop_sessions(engine: Any) -> None:
    """FLARE stops no server to which sites are connected, and sites take no order to stop: the server forgets them first.

    While a job runs it forgets nobody, since FLARE refuses the command then.
    """
    if all(job.run_aborted for job in engine.job_runner.running_jobs.values()):
        engine.remove_clients([client.token for client in engine.get_clients()])

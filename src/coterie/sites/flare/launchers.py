"""Start the processes of a job behind the gate: with coterie's own entry, and a secret that only the job and its parent know.

A kit's `local/resources.json` names these classes instead of FLARE's. A job that another launcher starts has no secret, so
its parent does not take its connection.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from nvflare.apis.fl_constant import JobConstants
from nvflare.app_common.job_launcher.client_process_launcher import (
    ClientProcessJobLauncher,
)
from nvflare.app_common.job_launcher.server_process_launcher import (
    ServerProcessJobLauncher,
)

from coterie.base.errors import InputError
from coterie.sites.flare.cell_gate import SECRET, gate
from coterie.sites.flare.doors import is_job
from coterie.sites.flare.start import MODULE

_ONE_BY_ONE = threading.Lock()
"""A secret is in this process's environment while a job starts: FLARE's launcher copies that."""


class _Behind:
    """The part that both launchers add to FLARE's."""

    _entry: str

    def get_command(self, job_meta: Any, fl_ctx: Any) -> str:
        """FLARE's command, with the entry that installs the gate before FLARE's own program begins."""
        command: str = super().get_command(job_meta, fl_ctx)  # type: ignore[misc]
        interpreter, _, rest = command.partition(" -m ")
        _, _, arguments = rest.partition(" ")
        # -P: the working directory is FLARE's workspace, into which jobs are unpacked; nothing is imported from there.
        return f"{interpreter} -P -m {MODULE} {self._entry} {arguments}"

    def launch_job(self, job_meta: Any, fl_ctx: Any) -> Any:
        """Start a job's process."""
        installed, job = gate(), job_meta.get(JobConstants.JOB_ID)
        if installed is None or not is_job(job):
            raise InputError(
                "a job is started behind the gate alone, under a name that FLARE has made"
            )
        with _ONE_BY_ONE:
            os.environ[SECRET] = installed.admit(job)
            try:
                return super().launch_job(job_meta, fl_ctx)  # type: ignore[misc]
            finally:
                del os.environ[SECRET]


class SiteLauncher(_Behind, ClientProcessJobLauncher):  # type: ignore[misc]
    """Starts a job's process at a site."""

    _entry = "site-job"


class ServerLauncher(_Behind, ServerProcessJobLauncher):  # type: ignore[misc]
    """Starts a job's process at the server."""

    _entry = "server-job"

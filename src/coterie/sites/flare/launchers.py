"""Start the processes of a job behind the gate: with coterie's own entry, and a secret that only the job and its parent know.

A kit's `local/resources.json` names these classes instead of FLARE's. A job that another launcher starts has no secret, so
its parent does not take its connection.
"""

from __future__ import annotations

import os
import shlex
from typing import Any

from nvflare.apis.fl_constant import FLContextKey, JobConstants
from nvflare.app_common.job_launcher.client_process_launcher import (
    ClientProcessJobLauncher,
)
from nvflare.app_common.job_launcher.process_launcher import ProcessHandle
from nvflare.app_common.job_launcher.server_process_launcher import (
    ServerProcessJobLauncher,
)
from nvflare.utils.job_launcher_utils import get_credential_env
from nvflare.utils.process_utils import spawn_process

from coterie.base.errors import InputError
from coterie.sites.flare.cell_gate import CLOSED, SECRET, gate
from coterie.sites.flare.doors import is_job
from coterie.sites.flare.start import MODULE


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
        """Start a job's process. As FLARE does, but it imports nothing from the folder with the job's own code."""
        installed, job = gate(), job_meta.get(JobConstants.JOB_ID)
        if installed is None or not is_job(job):
            raise InputError(
                "a job is started behind the gate alone, under a name that FLARE has made"
            )
        credentials = get_credential_env(
            fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS) or {}
        )
        ours = {
            SECRET: installed.admit(job),
            CLOSED: str(installed.count_closed_doors()),
        }
        environment = {**os.environ, **credentials, **ours}
        command = shlex.split(self.get_command(job_meta, fl_ctx))
        return ProcessHandle(process_adapter=spawn_process(command, environment))


class SiteLauncher(_Behind, ClientProcessJobLauncher):  # type: ignore[misc]
    """Starts a job's process at a site."""

    _entry = "site-job"


class ServerLauncher(_Behind, ServerProcessJobLauncher):  # type: ignore[misc]
    """Starts a job's process at the server."""

    _entry = "server-job"

"""Processes of sites that need not import everything again.

They are forked from a process that holds no pipe of theirs. A copy of the tests' own process may hold the far end of another site's
pipe, which a thread has just opened; when that site is killed, nobody would ever see its pipe end."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.connection import Connection

from coterie.sites import child

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["coterie.sites.child"])


class Forked:
    """What a site does with its child process, as `subprocess.Popen` has it."""

    def __init__(self, command, pass_fds, env):
        (descriptor,) = pass_fds
        with Connection(os.dup(descriptor)) as pipe:
            self._process = FORKS.Process(
                target=serve, args=(pipe, command[-1]), daemon=True
            )
            self._process.start()
        self.pid = self._process.pid

    def kill(self):
        self._process.kill()

    def wait(self):
        self._process.join()
        return self._process.exitcode


def serve(pipe: Connection, settings: str) -> None:
    child.main(str(os.dup(pipe.fileno())), settings)

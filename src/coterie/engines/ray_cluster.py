"""The connection to a Ray cluster, and the driver's side of its actors."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from coterie.base.clients import Clients
from coterie.base.errors import InputError, RunError, explain_imports
from coterie.base.loss import RowLoss
from coterie.base.modules import source_of, user_modules
from coterie.config.optimisers import OwnOptimiser
from coterie.config.registry import METRICS
from coterie.config.schema import wire_types
from coterie.contract.memory import MEMORY_LOST
from coterie.contract.task import Task
from coterie.contract.wire import Context
from coterie.engines.ray_actor import Actor, Parcel

STARTING = 120.0
"""Seconds that an actor may take to start: it imports torch, and may wait for a CPU."""


_idle: list[tuple[Any, set[str]]] | None = None
"""Actors without clients and the modules that they know, kept between the runs of one `cluster`."""


@contextmanager
def cluster(actors: int, address: str | None = None) -> Iterator[None]:
    """Keep a connection to a Ray cluster and its actors over several runs; where there is one already, this does nothing.

    Args:
        actors: CPUs of a local cluster, and the least that a cluster must have.
        address: as for `RayEngine`.
    """
    global _idle
    ray = _ray()
    outermost = not ray.is_initialized()
    if outermost:
        _connect(ray, actors, address)
    try:
        cpus = int(ray.cluster_resources().get("CPU", 0))
        if cpus < actors:
            raise InputError(
                f"the Ray cluster has {cpus} CPUs, too few for {actors} actors; set actors = {cpus}"
            )
        if outermost:
            _idle = []
        yield
    finally:
        if outermost:
            _idle = None
            ray.shutdown()


def _ray() -> Any:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    with explain_imports("engine 'ray' needs the package ray", "ray"):
        import ray
        from ray._private import worker
    # Ray prints the death of a worker to standard output, which belongs to the command's tables and JSON; asks report it.
    worker._worker_logs_enabled = False
    return ray


def _connect(ray: Any, actors: int, address: str | None) -> None:
    from ray._private import ray_constants

    logging.getLogger("ray").setLevel(logging.ERROR)
    options: dict[str, Any] = {
        "logging_level": "error",
        "log_to_driver": False,
        "configure_logging": False,
    }
    if not address:
        options |= {
            "num_cpus": actors,
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
        }
    among_machines = ray_constants.ENABLE_RAY_CLUSTER
    # Unless it is told that there is one machine only, Ray replaces 127.0.0.1 by an address that others can reach.
    ray_constants.ENABLE_RAY_CLUSTER = among_machines and address is not None
    try:
        ray.init(address=address or "local", **options)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        why = " ".join(str(error).split())[:300]
        if address is None:
            raise RunError(f"a local Ray cluster cannot be started ({why})") from error
        raise InputError(
            f"there is no Ray cluster at {address!r} that lets this process in ({why}); start it, and give its token here "
            "(RAY_AUTH_MODE=token)"
        ) from error
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = among_machines


def _new_actor() -> Any:
    import ray

    return (
        ray.remote(Actor)
        .options(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD")
        .remote()
    )


def result_of(call: Any, deadline: float) -> Any:
    """Return what a call returned. Raises `GetTimeoutError` if it has not by the deadline, in seconds of `time.monotonic`."""
    import ray

    return ray.get(call, timeout=max(0.0, deadline - time.monotonic()))


class Host:
    """The driver's side of an actor: who lives there, and whether it can be asked."""

    def __init__(
        self,
        names: tuple[str, ...],
        clients: Clients,
        work: tuple[nn.Module, str | RowLoss, str],
    ) -> None:
        self.names = names
        self._clients, self._work = clients, work
        self.saved: dict[str, Tensor] = {}
        self.asked: Any = None
        self.late: Any = None
        self._ended: str | None = None
        self._waited = False
        self.start()

    def start(self, fresh: bool = False) -> None:
        """Take an idle actor or a new one, and place the clients there; `placed` is the promise that they are."""
        from ray import cloudpickle

        if _idle and not fresh:
            self.handle, self._known = _idle.pop()
        else:
            self.handle, self._known = _new_actor(), set()
        content = (self._clients.subset(self.names), self._work, METRICS.added)
        try:
            pickled = cloudpickle.dumps(content)
        except Exception as error:
            raise InputError(
                f"the model, the loss or the rows cannot be sent to an actor: {error}"
            ) from error
        parcel = self.parcel(set(user_modules()))
        self.placed = self.handle.place.remote(parcel, pickled)

    def parcel(self, modules: set[str], task: Task[Any] | None = None) -> Parcel | None:
        """Return what the actor does not know yet of these modules, of all payload types and of a task."""
        from ray import cloudpickle

        types = wire_types().values()
        modules = modules | {t.__module__ for t in types}
        tasks = []
        if task is not None:
            modules.add(task.function.__module__)
            if task.function.__module__ == "__main__" and task.name not in self._known:
                tasks.append((task.function, task.reply, dict(task.kinds)))
                self._known.add(task.name)
        optimisers = {
            name: function
            for name, function in OwnOptimiser.known().items()
            if name not in self._known
        }
        modules.update(function.__module__ for function in optimisers.values())
        new_modules = sorted(modules - self._known)
        if not new_modules and not tasks and not optimisers:
            return None
        self._known.update(optimisers)
        main_types = [t for t in types if t.__module__ == "__main__"]
        self._known.update(new_modules)
        sources = tuple(source_of(m) for m in new_modules if m != "__main__")
        return Parcel(
            tuple(map(os.path.abspath, sys.path)),
            sources,
            cloudpickle.dumps((tasks, main_types, optimisers)),
        )

    def excuse(self) -> str | None:
        """Return why it cannot be asked now."""
        import ray

        if self.late is not None and ray.wait([self.late], timeout=0)[0]:
            try:
                ray.get(self.late)
            except ray.exceptions.RayError:
                self.lost()
            self.late = None
        if self.late is not None:
            return "it is still busy with an ask that timed out, and is skipped until it is free"
        why, self._ended = self._ended, None
        # One ask waits for the CPU; those that follow only look whether it came.
        patience = STARTING
        if self._waited:
            patience = 0.0
        self._waited = False
        if why is None and not ray.wait([self.placed], timeout=patience)[0]:
            self._waited = True
            return f"its actor ended, and the cluster had no CPU for another within {STARTING:g} s"
        return why

    def lost(self) -> None:
        """The actor ended: start another with the same rows. `excuse` tells the next ask."""
        self._end()
        self.saved, self.asked, self.late = {}, None, None
        self.start(fresh=True)
        self._ended = f"its actor ended; {MEMORY_LOST}"

    def give_up(self, context: Context) -> None:
        """The ask took too long: skip this actor until it has undone what that ask writes."""
        self.late, self.asked = self.handle.undo.remote(context), None

    def close(self) -> None:
        """Keep the actor for the next run of this cluster if it is free, else end it."""
        is_free = self.asked is None and self.late is None
        if _idle is None or not is_free:
            self._end()
            return
        self.handle.clear.remote()
        _idle.append((self.handle, self._known))

    def _end(self) -> None:
        import ray

        ray.kill(self.handle)

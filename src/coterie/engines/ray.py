"""The engine of one organisation's cluster: cohorts of clients live in Ray actors, which keep their rows, model and memory.

Inside an actor is the same `Shard` as in process, so results are equal to the last bit. Ray sends Python pickles under one shared
token: use it inside one organisation only.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import coterie
from coterie.core.envelopes import Answer, Ask, ClientCost, Context, Refusal, Saved, answer_in
from coterie.core.errors import InputError, RunError, require
from coterie.core.loss import RowLoss
from coterie.core.memory import of_clients
from coterie.core.metrics import METRICS, register
from coterie.core.modules import Source, import_source, source_of, user_modules
from coterie.core.rows import Clients
from coterie.core.schema import POSITIVE, SIZE, TEXT, Flag, one_of, optional, options
from coterie.core.shard import Shard
from coterie.core.task import Task, adopt_task
from coterie.core.wire import PerClient, nbytes, put_together, take_apart, wire_type, wire_types
from coterie.core.workspace import Workspace
from coterie.engines.inprocess import MEMORY_LOST
from coterie.engines.spec import EngineSpec

__all__ = ["Ray", "RayEngine", "cluster"]

TIMEOUT = 600.0
"""Seconds that an ask may take."""
STARTING = 120.0
"""Seconds that an actor may take to start: it imports torch, and may wait for a CPU."""
_SHARED = 100_000
"""Bytes from which a payload for several actors is put into Ray's object store once."""

Packed = tuple[str, list[NDArray[Any]]]


class Parcel(NamedTuple):
    """What an actor must know before it can read what it is asked.

    Attributes:
        path: folders in which this process finds modules.
        sources: modules with tasks, payload types, models or metrics.
        own: pickle of the tasks and payload types of a script or notebook (`__main__`), which no other process can import.
    """

    path: tuple[str, ...]
    sources: tuple[Source, ...]
    own: bytes


class Actor:
    """The cohort of some clients, in a process of the cluster."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._shard: Shard | None = None

    def place(self, parcel: Parcel | None, pickled: bytes) -> tuple[str, int]:
        """Take clients over; returns the version of coterie and the number of this process."""
        from ray import cloudpickle

        _learn(parcel)
        clients, (model, loss, kernel), metrics = cloudpickle.loads(pickled)
        for name, metric in metrics.items():
            register(name, metric)
        self._shard = Shard(clients, Workspace(model, loss, clients[0], kernel=kernel))
        return coterie.__version__, os.getpid()

    def ask(self, parcel: Parcel | None, shared: Packed, own: Packed) -> Packed:
        """Answer an ask; `shared` is the part of its payload that all actors get."""
        shard = self._placed
        try:
            _learn(parcel)
            ask: Ask = _unpack(own)["ask"]
            ask = replace(ask, payload={**ask.payload, **_unpack(shared)})
            return _pack({"answer": shard.answer(ask)})
        except (InputError, ImportError) as error:
            return _pack({"answer": Refusal(f"{error}")})

    def undo(self, context: Context) -> None:
        """Forget what an ask wrote that came too late; answering at all says that this actor is free again."""
        self._placed.take_back(context)

    def save(self) -> Packed:
        """What the clients here remember."""
        return _pack({"saved": Saved(self._placed.memory.save())})

    def load(self, saved: Packed) -> None:
        """Give the clients here their memory."""
        self._placed.memory.load(_unpack(saved)["saved"].values, self._placed.clients.names)

    def clear(self) -> None:
        """Let the clients go."""
        self._shard = None

    @property
    def _placed(self) -> Shard:
        if self._shard is None:
            raise RunError("this actor has no clients")
        return self._shard


class Host:
    """The driver's side of an actor: who lives there, and whether it can be asked."""

    def __init__(self, names: tuple[str, ...], clients: Clients, work: tuple[nn.Module, str | RowLoss, str]) -> None:
        self.names = names
        self._clients, self._work = clients, work
        self.saved: dict[str, Tensor] = {}
        self.asked: Any = None
        self.late: Any = None
        self._ended: str | None = None
        self.start()

    def start(self, fresh: bool = False) -> None:
        """Take an idle actor or a new one, and place the clients there; `placed` is the promise that they are."""
        from ray import cloudpickle

        found = None if fresh or not _idle else _idle.pop()
        self.handle, self._known = found or (_new_actor(), set())
        own_metrics = {k: m for k, m in METRICS.items() if m.__module__ != "coterie.core.metrics"}
        content = (self._clients.subset(self.names), self._work, own_metrics)
        try:
            pickled = cloudpickle.dumps(content)
        except Exception as error:
            raise InputError(f"the model, the loss or the rows cannot be sent to an actor: {error}") from error
        parcel = self.parcel(set(user_modules()))
        self.placed = self.handle.place.remote(parcel, pickled)

    def parcel(self, modules: set[str], task: Task[Any] | None = None) -> Parcel | None:
        """What the actor does not know yet of these modules, of all payload types and of a task."""
        from ray import cloudpickle

        types = wire_types()
        modules = modules | {t.__module__ for t in types}
        tasks = []
        if task is not None:
            modules.add(task.function.__module__)
            if task.function.__module__ == "__main__" and task.name not in self._known:
                tasks.append((task.function, task.reply, dict(task.kinds)))
                self._known.add(task.name)
        new = sorted(modules - self._known)
        if not new and not tasks:
            return None
        mine = [t for t in types if t.__module__ == "__main__"]
        self._known.update(new)
        sources = tuple(source_of(m) for m in new if m != "__main__")
        return Parcel(tuple(map(os.path.abspath, sys.path)), sources, cloudpickle.dumps((tasks, mine)))

    def excuse(self) -> str | None:
        """Why it cannot be asked now."""
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
        if why is None and not ray.wait([self.placed], timeout=STARTING)[0]:
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
        if _idle is None or self.asked is not None or self.late is not None:
            self._end()
            return
        self.handle.clear.remote()
        _idle.append((self.handle, self._known))

    def _end(self) -> None:
        import ray

        ray.kill(self.handle)


@options
class Ray(EngineSpec):
    """Settings of the engine of one organisation's cluster (`pip install 'coterie[ray]'`).

    Attributes:
        actors: processes over which the clients are spread, each with one CPU and one thread.
        address: of a cluster, "host:port" or "auto" (of the cluster on this machine); None: a local one is started.
        timeout: seconds that an ask may take; a client that takes longer has failed.
        kernel: of local training: "auto" or "loop".
    """

    actors: Annotated[int, SIZE, Flag(metavar="N")] = 2
    address: Annotated[str | None, optional(TEXT._replace(allowed="host:port or auto"), "start one here")] = None
    timeout: Annotated[float, POSITIVE._replace(allowed="a number of seconds > 0")] = TIMEOUT
    kernel: Annotated[str, one_of("auto", "loop")] = "auto"

    decides = ("kernel",)

    def open(self, clients: Clients, model: nn.Module, loss: str | RowLoss) -> RayEngine:
        """An engine for these clients."""
        return RayEngine(
            clients,
            model,
            loss=loss,
            actors=self.actors,
            address=self.address,
            timeout=self.timeout,
            kernel=self.kernel,
        )

    def kept_open(self) -> AbstractContextManager[None]:
        """The cluster and its actors, which the runs of one experiment share."""
        return cluster(self.actors, self.address)


class RayEngine:
    """Clients spread over the actors of a Ray cluster; the server's rows and unseen clients stay in this process.

    Attributes:
        clients: names, sorted; dealt out to the actors in turn.
        layout: of model vectors.
        x: initial model [d + b].
        model: a private copy of the module.

    Args:
        clients: all rows; each actor gets those of its own clients, once.
        model, loss, kernel: as for `fit`.
        actors: processes, each with one CPU and one thread.
        address: of a cluster, `"host:port"` or `"auto"` (of the cluster on this machine). None: the cluster that this process is
            connected to; else a local one is started, which listens on loopback only and ends with `close`.
        timeout: seconds that an ask may take. Whoever takes longer has failed, and is skipped until free; what it does meanwhile
            is undone.

    Raises:
        InputError: model, loss and rows do not fit; ray is not installed; the cluster is not there or too small.
    """

    simulated = True
    needs_all = False

    def __init__(
        self,
        clients: Clients,
        model: nn.Module,
        *,
        loss: str | RowLoss = "auto",
        actors: int = 2,
        address: str | None = None,
        timeout: float = TIMEOUT,
        kernel: str = "auto",
    ) -> None:
        workspace = Workspace(model, loss, clients[0], kernel=kernel)
        workspace.check_labels(clients)
        self.model = workspace.model
        self.layout = workspace.layout
        self.clients = clients.names
        self.has_server = clients.server is not None
        self.unseen = clients.unseen.names if clients.unseen is not None else ()
        self.x = workspace.x.clone()
        self.timeout = timeout
        self._rows = clients
        self._shard = Shard(clients, workspace)
        self._hosts: list[Host] = []
        self._exit = ExitStack()
        self._exit.enter_context(cluster(actors, address))
        try:
            parts = [clients.names[i::actors] for i in range(min(actors, len(clients)))]
            for part in parts:
                self._hosts.append(Host(part, clients, (model, loss, kernel)))
            self._home = {name: host for host in self._hosts for name in host.names}
            self._wait_for_placement()
        except BaseException:
            self.close()
            raise

    def _wait_for_placement(self) -> None:
        import ray

        deadline = time.monotonic() + STARTING
        for host in self._hosts:
            try:
                _get(host.placed, deadline)
            except ray.exceptions.ActorDiedError:  # an idle one may have died unseen
                host.start(fresh=True)
        for done, host in enumerate(self._hosts):
            try:
                version, _ = _get(host.placed, deadline)
            except ray.exceptions.GetTimeoutError as error:
                raise InputError(
                    f"{done} of {len(self._hosts)} actors have started within {STARTING:g} s; each needs a CPU of the Ray "
                    "cluster to itself: set fewer actors, or wait for the cluster's other jobs"
                ) from error
            except ray.exceptions.RayError as error:
                cause = str(error).strip().splitlines()[-1]
                raise InputError(
                    f"an actor cannot be started ({cause}); install the same version of coterie and your modules on every node"
                ) from error
            require(
                version == coterie.__version__,
                f"a node of the Ray cluster has coterie {version}, this process {coterie.__version__}",
            )

    def processes(self) -> dict[str, int]:
        """Number of the process in which each client lives."""
        import ray

        where = [(host.names, ray.get(host.placed)[1]) for host in self._hosts]
        return {name: process for names, process in where for name in names}

    def ask(self, ask: Ask) -> Answer:
        """Run the task in the actors that its clients live in; the server and unseen clients are asked here."""
        import ray

        here = tuple(n for n in ask.names if n not in self._home)
        failed: dict[str, str] = {}
        parts: list[tuple[Host, Ask]] = []
        for host in self._hosts:
            group = tuple(n for n in ask.names if self._home.get(n) is host)
            why = host.excuse() if group else None
            failed.update(dict.fromkeys(group if why else (), why or ""))
            parts += [(host, ask.to(group))] if group and not why else []
        started = time.monotonic()
        down = nbytes(ask.payload)
        shared = self._shared(ask.payload, len(parts))
        for host, part in parts:
            each = {k: v for k, v in part.payload.items() if isinstance(v, PerClient)}
            parcel = host.parcel(set(), ask.function)
            host.asked = host.handle.ask.remote(parcel, shared, _pack({"ask": replace(part, payload=each)}))
        answers: list[Answer] = []
        costs: list[ClientCost] = []
        refused: InputError | None = None
        if here:
            try:
                answers.append(self._shard.answer(ask.to(here)))
            except InputError as error:  # raised below: no actor may be left with an ask that nobody waits for
                refused = error
        seconds = self._wait([host.asked for host, _ in parts], started)
        for host, part in parts:
            if host.asked not in seconds:
                host.give_up(ask.context)
                late = f"it did not answer within {self.timeout:g} s, and is skipped until it is free"
                failed.update(dict.fromkeys(part.names, late))
                continue
            try:
                packed = ray.get(host.asked)
                up, took = _bytes(packed) // len(part.names), seconds[host.asked]
                answers.append(answer_in(_unpack(packed)))
                costs += [ClientCost(n, down, up, took, answers[-1].failed.get(n, "")) for n in part.names]
                host.asked = None
            except InputError as error:
                host.asked, refused = None, refused or error
            except ray.exceptions.RayTaskError as error:
                host.asked = None
                failed.update(dict.fromkeys(part.names, f"{type(error.cause).__name__}: {error.cause}"))
            except ray.exceptions.RayError:
                host.lost()
                failed.update(dict.fromkeys(part.names, str(host.excuse())))
        if refused is not None:
            raise refused
        whole = Answer.joined([*answers, Answer(failed=failed)])
        known, took = {c.client for c in costs}, time.monotonic() - started
        costs += [ClientCost(n, down, 0, took, why) for n, why in whole.failed.items() if n not in known]
        return replace(whole, costs=tuple(costs))

    def _wait(self, calls: list[Any], started: float) -> dict[Any, float]:
        """Seconds after which each of the calls was answered; those that took too long are left out."""
        import ray

        seconds: dict[Any, float] = {}
        while calls:
            left = max(0.0, started + self.timeout - time.monotonic())
            done, calls = ray.wait(calls, num_returns=1, timeout=left)
            if not done:
                break
            seconds.update(dict.fromkeys(done, time.monotonic() - started))
        return seconds

    def _shared(self, payload: Mapping[str, Any], actors: int) -> Any:
        """What every actor gets: as it is if it is small, else put into the object store once."""
        import ray

        packed = _pack({k: v for k, v in payload.items() if not isinstance(v, PerClient)})
        large = _bytes(packed) > _SHARED and actors > 1
        return ray.put(packed) if large else packed

    def sizes(self, part: str) -> dict[str, int]:
        """Rows of each client, unseen ones behind the others."""
        return self._rows.sizes(part)

    def fingerprint(self) -> str:
        """A short hash of every row and name."""
        return self._rows.fingerprint()

    def save_memory(self) -> dict[str, Tensor]:
        """What all clients remember; of an actor that is still busy with an ask that timed out, what was saved last."""
        import ray

        saved = self._shard.memory.save()
        calls = [(host, host.handle.save.remote()) for host in self._hosts if host.late is None]
        deadline = time.monotonic() + self.timeout
        for host, call in calls:
            try:
                host.saved = _unpack(_get(call, deadline))["saved"].values
            except ray.exceptions.GetTimeoutError:
                continue
            except ray.exceptions.RayError:
                host.lost()
        for host in self._hosts:
            saved.update(host.saved)
        return saved

    def load_memory(self, saved: dict[str, Tensor]) -> None:
        """Undo `save_memory`."""
        self._shard.memory.load(saved, (*self.unseen, "server"))
        for host in self._hosts:
            host.saved = of_clients(saved, host.names)
            host.handle.load.remote(_pack({"saved": Saved(host.saved)}))

    def close(self) -> None:
        """End the actors, and the cluster if it was started here."""
        for host in self._hosts:
            host.close()
        self._hosts = []
        self._exit.close()


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
        require(cpus >= actors, f"the Ray cluster has {cpus} CPUs, too few for {actors} actors; set actors = {cpus}")
        if outermost:
            _idle = []
        yield
    finally:
        if outermost:
            _idle = None
            ray.shutdown()


def _ray() -> Any:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        import ray
        from ray._private import worker
    except ImportError as error:
        raise InputError("engine 'ray' needs the package ray: pip install 'coterie[ray]'") from error
    # Ray prints the death of a worker to standard output, which belongs to the command's tables and JSON; asks report it.
    worker._worker_logs_enabled = False
    return ray


def _connect(ray: Any, actors: int, address: str | None) -> None:
    from ray._private import ray_constants

    logging.getLogger("ray").setLevel(logging.ERROR)
    quiet = {"logging_level": "error", "log_to_driver": False, "configure_logging": False}
    local = {"num_cpus": actors, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    among_machines = ray_constants.ENABLE_RAY_CLUSTER
    # Unless it is told that there is one machine only, Ray replaces 127.0.0.1 by an address that others can reach.
    ray_constants.ENABLE_RAY_CLUSTER = among_machines and address is not None
    try:
        ray.init(address=address or "local", **quiet, **({} if address else local))
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

    return ray.remote(Actor).options(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD").remote()


def _get(call: Any, deadline: float) -> Any:
    import ray

    return ray.get(call, timeout=max(0.0, deadline - time.monotonic()))


def _learn(parcel: Parcel | None) -> None:
    if parcel is None:
        return
    from ray import cloudpickle

    sys.path.extend(p for p in parcel.path if p not in sys.path)
    for source in parcel.sources:
        import_source(source)
    tasks, types = cloudpickle.loads(parcel.own)
    for cls in types:
        wire_type(cls)
    for function, reply, kinds in tasks:
        adopt_task(function, reply, kinds)


def _pack(values: Mapping[str, Any]) -> Packed:
    """Values as JSON and numpy arrays, which Ray sends without a further copy; it would pickle tensors."""
    text, tensors = take_apart(values)
    kinds = [str(t.dtype).removeprefix("torch.") for t in tensors]
    return json.dumps([text, kinds]), [_array(t) for t in tensors]


def _bytes(packed: Packed) -> int:
    return len(packed[0]) + sum(array.nbytes for array in packed[1])


def _array(tensor: Tensor) -> NDArray[Any]:
    # numpy has no bfloat16: the bits travel as integers of the same width.
    odd = tensor.dtype == torch.bfloat16
    array: NDArray[Any] = (tensor.view(torch.int16) if odd else tensor).numpy()
    return array


def _unpack(packed: Packed) -> dict[str, Any]:
    text, kinds = json.loads(packed[0])
    tensors = []
    for kind, array in zip(kinds, packed[1], strict=True):
        # Copied: what Ray gives out lies read-only in its store, and a task may write into its payload. By torch: some of its sums
        # and products round by where in memory a tensor begins, and its own begin where those of a single process do.
        tensor = torch.empty(array.shape, dtype=getattr(torch, kind))
        np.copyto(_array(tensor), array)
        tensors.append(tensor)
    return put_together(text, tensors)

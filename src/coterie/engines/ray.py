"""The engine of one organisation's cluster: cohorts of clients live in Ray actors, which keep their rows, model and memory.

Inside an actor is the same `Shard` as in process, so results are equal to the last bit. Ray sends Python pickles under one shared
token: use it inside one organisation only.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

import coterie
from coterie.base.clients import Clients
from coterie.base.errors import InputError
from coterie.base.loss import RowLoss
from coterie.compute.cohort import Shard
from coterie.compute.workspace import Workspace
from coterie.contract.encoding import Saved, answer_in
from coterie.contract.memory import select_clients
from coterie.contract.wire import Answer, Ask, ClientCost, PerClient, nbytes
from coterie.engines.inprocess import LocalEngine
from coterie.engines.ray_actor import bytes_of, pack, unpack
from coterie.engines.ray_cluster import STARTING, Host, cluster, result_of

TIMEOUT = 600.0
"""Seconds that an ask may take."""
_SHARED = 100_000
"""Bytes from which a payload for several actors is put into Ray's object store once."""


class RayEngine(LocalEngine):
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
        address: address of a cluster, `"host:port"` or `"auto"` (of that on this machine). None: the cluster that this process is
            connected to; else a local one is started, which listens on loopback only and ends with `close`.
        timeout: seconds that an ask may take. A client that takes longer has failed, and is skipped until free; what it does meanwhile
            is undone.

    Raises:
        InputError: model, loss and rows do not fit; ray is not installed; the cluster is not there or too small.
    """

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
        super().__init__(clients, workspace, actors)
        self.timeout = timeout
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
                result_of(host.placed, deadline)
            except ray.exceptions.ActorDiedError:  # an idle one may have died unseen
                host.start(fresh=True)
            except ray.exceptions.GetTimeoutError:
                break  # how many have started is said below
        for number, host in enumerate(self._hosts):
            try:
                version, _ = result_of(host.placed, deadline)
            except ray.exceptions.GetTimeoutError as error:
                raise InputError(
                    f"{number} of {len(self._hosts)} actors have started within {STARTING:g} s; each needs a CPU of the Ray "
                    "cluster to itself: set fewer actors, or wait for the cluster's other jobs"
                ) from error
            except ray.exceptions.RayError as error:
                cause = str(error).strip().splitlines()[-1]
                raise InputError(
                    f"an actor cannot be started ({cause}); install the same version of coterie and your modules on every node"
                ) from error
            if version != coterie.__version__:
                raise InputError(
                    f"a node of the Ray cluster has coterie {version}, this process {coterie.__version__}"
                )

    def processes(self) -> dict[str, int]:
        """Number of the process in which each client lives."""
        import ray

        where = [(host.names, ray.get(host.placed)[1]) for host in self._hosts]
        return {name: process for names, process in where for name in names}

    def ask(self, ask: Ask) -> Answer:
        """Run the task in the actors that its clients live in; the server and unseen clients are asked here."""
        import ray

        local_names = tuple(n for n in ask.names if n not in self._home)
        failed: dict[str, str] = {}
        parts: list[tuple[Host, Ask]] = []
        for host in self._hosts:
            group = tuple(n for n in ask.names if self._home.get(n) is host)
            if not group:
                continue
            why = host.excuse()
            if why:
                failed.update(dict.fromkeys(group, why))
            else:
                parts.append((host, ask.to(group)))
        started = time.monotonic()
        bytes_down = nbytes(ask.payload)
        shared = self._share_payload(ask.payload, len(parts))
        for host, part in parts:
            per_client = {
                k: v for k, v in part.payload.items() if isinstance(v, PerClient)
            }
            parcel = host.parcel(set(), ask.function)
            host.asked = host.handle.ask.remote(
                parcel, shared, pack({"ask": replace(part, payload=per_client)})
            )
        answers: list[Answer] = []
        costs: list[ClientCost] = []
        refused: InputError | None = None
        if local_names:
            try:
                answers.append(self._shard.answer(ask.to(local_names)))
            except InputError as error:  # raised below: no actor may be left with an ask that nothing waits for
                refused = error
        seconds = self._wait([host.asked for host, _ in parts], started)
        for host, part in parts:
            if host.asked not in seconds:
                host.give_up(ask.context)
                reason = f"it did not answer within {self.timeout:g} s, and is skipped until it is free"
                failed.update(dict.fromkeys(part.names, reason))
                continue
            try:
                packed = ray.get(host.asked)
                bytes_up, took = (
                    bytes_of(packed) // len(part.names),
                    seconds[host.asked],
                )
                answers.append(answer_in(unpack(packed)))
                costs += [
                    ClientCost(
                        n, bytes_down, bytes_up, took, answers[-1].failed.get(n, "")
                    )
                    for n in part.names
                ]
                host.asked = None
            except InputError as error:
                host.asked, refused = None, refused or error
            except ray.exceptions.RayTaskError as error:
                host.asked = None
                failed.update(
                    dict.fromkeys(
                        part.names, f"{type(error.cause).__name__}: {error.cause}"
                    )
                )
            except ray.exceptions.RayError:
                host.lost()
                failed.update(dict.fromkeys(part.names, str(host.excuse())))
        if refused is not None:
            raise refused
        answer = Answer.join([*answers, Answer(failed=failed)])
        costed, took = {c.client for c in costs}, time.monotonic() - started
        costs += [
            ClientCost(n, bytes_down, 0, took, why)
            for n, why in answer.failed.items()
            if n not in costed
        ]
        return replace(answer, costs=tuple(costs))

    def _wait(self, calls: list[Any], started: float) -> dict[Any, float]:
        """Seconds after which each of the calls was answered; those that took too long are left out."""
        import ray

        seconds: dict[Any, float] = {}
        while calls:
            seconds_left = max(0.0, started + self.timeout - time.monotonic())
            finished, calls = ray.wait(calls, num_returns=1, timeout=seconds_left)
            if not finished:
                break
            seconds.update(dict.fromkeys(finished, time.monotonic() - started))
        return seconds

    def _share_payload(self, payload: Mapping[str, Any], actors: int) -> Any:
        """Return what every actor gets: as it is if it is small, else put into the object store once."""
        import ray

        packed = pack(
            {k: v for k, v in payload.items() if not isinstance(v, PerClient)}
        )
        if actors > 1 and bytes_of(packed) > _SHARED:
            return ray.put(packed)
        return packed

    def save_memory(self) -> dict[str, Tensor]:
        """Return what all clients remember; of an actor that is still busy with an ask that timed out, what was saved last."""
        import ray

        saved = self._shard.memory.save()
        calls = [
            (host, host.handle.save.remote())
            for host in self._hosts
            if host.late is None
        ]
        deadline = time.monotonic() + self.timeout
        for host, call in calls:
            try:
                host.saved = unpack(result_of(call, deadline))["saved"].values
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
            host.saved = select_clients(saved, host.names)
            host.handle.load.remote(pack({"saved": Saved(host.saved)}))

    def close(self) -> None:
        """End the actors, and the cluster if it was started here."""
        for host in self._hosts:
            host.close()
        self._hosts = []
        self._exit.close()

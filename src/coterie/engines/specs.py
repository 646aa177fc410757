"""The [engine] table of an experiment: the settings of each engine, which is imported when it is opened."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated

from coterie.base.errors import InputError
from coterie.config.rules import POSITIVE, SIZE, TEXT, one_of, optional
from coterie.config.schema import Flag, options
from coterie.contract.engine import EngineSpec

if TYPE_CHECKING:
    from torch import nn

    from coterie.base.clients import Clients
    from coterie.base.loss import RowLoss
    from coterie.engines.inprocess import InProcessEngine
    from coterie.engines.ray import RayEngine

TIMEOUT = 600.0
"""Seconds that an ask of Ray may take."""


@options
class InProcess(EngineSpec):
    """Settings of the engine of one machine.

    Attributes:
        workers: processes over which the clients are spread; results do not depend on it.
        kernel: of local training: "auto", batched where that is possible, or "loop", the plain loop over clients.
        device: of model and rows; workers are processes that share the CPU, so that a GPU has one.
        timeout: seconds after which a worker that does not answer is ended and its clients are asked one at a time; who takes longer
            alone has failed.

    >>> import coterie as ct
    >>> clients = ct.data.load("heart-disease")
    >>> ct.fit(ct.FedAvg(), clients, model="logistic", rounds=2, engine=ct.InProcess(workers=1))
    <run of FedAvg: 2 rounds, seed 0, one model for all clients>
    """

    workers: Annotated[int, SIZE, Flag(metavar="N")] = 1
    kernel: Annotated[str, one_of("auto", "loop")] = "auto"
    device: str = "cpu"
    timeout: Annotated[float | None, optional(POSITIVE, "a worker may take any time")] = None

    decides = ("kernel", "device")

    def __post_init__(self) -> None:
        if self.workers > 1 and self.device != "cpu":
            raise InputError("workers are processes that share the CPU; use workers=1 on a GPU")
        if self.timeout is not None and self.workers == 1:
            raise InputError(
                "a timeout ends worker processes, and one worker is this process itself; use workers=2, or leave out timeout"
            )

    @property
    def forks(self) -> bool:
        """Only on the CPU: a process that is forked cannot use the GPU of its parent."""
        return self.device == "cpu"

    def open(self, clients: Clients, model: nn.Module, loss: str | RowLoss) -> InProcessEngine:
        """An engine for these clients."""
        from coterie.engines.inprocess import InProcessEngine

        self.check()
        return InProcessEngine(
            clients,
            model,
            loss=loss,
            workers=self.workers,
            device=self.device,
            kernel=self.kernel,
            timeout=self.timeout,
        )

    def check(self) -> None:
        """Raise `InputError` if this machine does not have the device."""
        import torch

        try:
            torch.empty(0, device=self.device)
            if torch.device(self.device).type == "meta":
                raise InputError("device meta computes nothing; take cpu")
        except (RuntimeError, AssertionError) as error:
            why = str(error).splitlines()[0]
            raise InputError(
                f"device {self.device!r} cannot be used here ({why}); take cpu, or install torch for it"
            ) from error


@options
class Ray(EngineSpec):
    """Settings of the engine of one organisation's cluster (`pip install 'coterie[ray]'`).

    Attributes:
        actors: processes over which the clients are spread, each with one CPU and one thread.
        address: address of a cluster, "host:port" or "auto" (of the cluster on this machine); None: a local one is started.
        timeout: seconds that an ask may take; a client that takes longer has failed.
        kernel: of local training: "auto" or "loop".

    >>> import coterie as ct
    >>> ct.Ray(actors=4).timeout  # a run on it: ct.fit("fedavg", "heart-disease", engine=ct.Ray(actors=4))
    600.0
    """

    actors: Annotated[int, SIZE, Flag(metavar="N")] = 2
    address: Annotated[str | None, optional(TEXT._replace(allowed="host:port or auto"), "start one here")] = None
    timeout: Annotated[float, POSITIVE._replace(allowed="a number of seconds > 0")] = TIMEOUT
    kernel: Annotated[str, one_of("auto", "loop")] = "auto"

    decides = ("kernel",)

    def open(self, clients: Clients, model: nn.Module, loss: str | RowLoss) -> RayEngine:
        """An engine for these clients."""
        from coterie.engines.ray import RayEngine

        return RayEngine(
            clients,
            model,
            loss=loss,
            actors=self.actors,
            address=self.address,
            timeout=self.timeout,
            kernel=self.kernel,
        )

    def keep_open(self) -> AbstractContextManager[None]:
        """The cluster and its actors, which the runs of one experiment share."""
        from coterie.engines.ray_cluster import cluster

        return cluster(self.actors, self.address)

"""The settings of the engine of a Ray cluster, which is imported when it is opened."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated

from coterie.config.rules import POSITIVE, SIZE, TEXT, one_of, optional
from coterie.config.schema import Flag, options
from coterie.contract.engine import EngineSpec

if TYPE_CHECKING:
    from torch import nn

    from coterie.base.clients import Clients
    from coterie.base.loss import RowLoss
    from coterie.engines.ray import RayEngine

TIMEOUT = 600.0
"""Seconds that an ask of Ray may take."""


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
    address: Annotated[
        str | None,
        optional(TEXT._replace(allowed="host:port or auto"), "start one here"),
    ] = None
    timeout: Annotated[float, POSITIVE._replace(allowed="a number of seconds > 0")] = (
        TIMEOUT
    )
    kernel: Annotated[str, one_of("auto", "loop")] = "auto"

    decides = ("kernel",)

    def open(
        self, clients: Clients, model: nn.Module, loss: str | RowLoss
    ) -> RayEngine:
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

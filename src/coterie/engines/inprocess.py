"""The engine of one machine: all clients in this process, or sharded over worker processes."""

from __future__ import annotations

from torch import Tensor, nn

from coterie.base.clients import Clients
from coterie.base.loss import RowLoss
from coterie.compute.cohort import Shard
from coterie.compute.workspace import Workspace
from coterie.contract.engine import Engine
from coterie.contract.wire import Answer, Ask
from coterie.engines.workers import Workers


class LocalEngine(Engine):
    """An engine that is opened where all rows are, wherever its clients work.

    Args:
        clients: All rows.
        workspace: Model and loss of this process.
        serves: Number of clients that it serves at the same time.
    """

    simulated = True

    def __init__(self, clients: Clients, workspace: Workspace, serves: int) -> None:
        workspace.check_labels(clients)
        self.model = workspace.model
        self.loss = workspace.loss
        self.layout = workspace.layout
        self.clients = clients.names
        self.serves = serves
        self.has_server = clients.server is not None
        self.unseen = clients.unseen.names if clients.unseen is not None else ()
        self.x = workspace.x.clone()
        self._rows = clients
        self._sizes: dict[str, dict[str, int]] = {}

    def sizes(self, part: str) -> dict[str, int]:
        """Rows of each client, unseen ones behind the others."""
        if part not in self._sizes:
            self._sizes[part] = self._rows.sizes(part)
        return self._sizes[part]


class InProcessEngine(LocalEngine):
    """All clients on this machine.

    Attributes:
        clients: names, sorted.
        layout: of model vectors.
        x: initial model [d + b].
        model: a private copy of the module.

    Raises `InputError` if model, loss and rows do not fit.
    """

    def __init__(
        self,
        clients: Clients,
        model: nn.Module,
        *,
        loss: str | RowLoss = "auto",
        workers: int = 1,
        device: str = "cpu",
        kernel: str = "auto",
        timeout: float | None = None,
    ) -> None:
        workspace = Workspace(model, loss, clients[0], device, kernel)
        super().__init__(clients, workspace, workers)
        # Once, so that no round waits for rows; workers share those of this process.
        self._shard = Shard(clients if device == "cpu" else clients.to(workspace.device), workspace)
        local = (*self.unseen, "server")
        self._workers = Workers(self._shard, min(workers, len(clients)), local, timeout) if workers > 1 else None

    def ask(self, ask: Ask) -> Answer:
        """Run the task here, or in the workers, each client where its memory is."""
        return self._shard.answer(ask) if self._workers is None else self._workers.ask(ask)

    def save_memory(self) -> dict[str, Tensor]:
        """Return what all clients remember."""
        return self._shard.memory.save()

    def load_memory(self, saved: dict[str, Tensor]) -> None:
        """Undo `save_memory`."""
        self._shard.memory.load(saved, (*self.clients, *self.unseen, "server"))
        if self._workers is not None:
            self._workers.restart()

    def close(self) -> None:
        """End the worker processes."""
        if self._workers is not None:
            self._workers.close()
            self._workers = None

"""The engine of one machine, and its settings: all clients in this process, or sharded over worker processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from coterie.base.errors import InputError
from coterie.config.rules import POSITIVE, SIZE, one_of, optional
from coterie.config.schema import Flag, options
from coterie.contract.engine import Engine, EngineSpec

if TYPE_CHECKING:
    from torch import Tensor, nn

    from coterie.base.clients import Clients
    from coterie.base.loss import RowLoss
    from coterie.compute.workspace import Workspace
    from coterie.contract.wire import Answer, Ask


@options
class InProcess(EngineSpec):
    """Settings of the engine of one machine.

    Attributes:
        workers: processes over which the clients are spread; results do not depend on it.
        kernel: of local training: "auto", batched where that is possible; "vmap", the same, and models that no batched kernel knows
            (such as convolutions) by `torch.func.vmap`, which makes each call of a step once for some ten clients and on a CPU takes
            longer; or "loop", the plain loop over clients.
        device: of model and rows; workers are processes that share the CPU, so that a GPU has one.
        precision: of the products of a training step: "float32", or "bf16", 16 bits with the exponents of float32 (torch's autocast),
            which convolutions and transformers are trained in about twice as fast where the processor has it. Models, losses,
            evaluations and gradients of single rows stay in float32; the plain loop trains.
        timeout: seconds after which a worker that does not answer is ended and its clients are asked one at a time; who takes longer
            alone has failed.

    >>> import coterie as ct
    >>> clients = ct.data.load("heart-disease")
    >>> ct.fit(ct.FedAvg(), clients, model="logistic", rounds=2, engine=ct.InProcess(workers=1))
    <run of FedAvg: 2 rounds, seed 0, one model for all clients>
    """

    workers: Annotated[int, SIZE, Flag(metavar="N")] = 1
    kernel: Annotated[str, one_of("auto", "vmap", "loop")] = "auto"
    device: str = "cpu"
    precision: Annotated[str, one_of("float32", "bf16")] = "float32"
    timeout: Annotated[
        float | None, optional(POSITIVE, "a worker may take any time")
    ] = None

    decides = ("kernel", "device", "precision")

    def __post_init__(self) -> None:
        if self.workers > 1 and self.device != "cpu":
            raise InputError(
                "workers are processes that share the CPU; use workers=1 on a GPU"
            )
        if self.timeout is not None and self.workers == 1:
            raise InputError(
                "a timeout ends worker processes, and one worker is this process itself; use workers=2, or leave out timeout"
            )

    @property
    def forks(self) -> bool:
        """Only on the CPU: a process that is forked cannot use the GPU of its parent."""
        return self.device == "cpu"

    def open(
        self, clients: Clients, model: nn.Module, loss: str | RowLoss
    ) -> InProcessEngine:
        """An engine for these clients."""
        self.check()
        return InProcessEngine(
            clients,
            model,
            loss=loss,
            workers=self.workers,
            device=self.device,
            kernel=self.kernel,
            precision=self.precision,
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
        self._kernel = workspace.batched or workspace.mapped
        self.has_server = clients.server is not None
        self.unseen: tuple[str, ...] = ()
        if clients.unseen is not None:
            self.unseen = clients.unseen.names
        self.x = workspace.x.clone()
        self._rows = clients
        self._sizes: dict[str, dict[str, int]] = {}

    def width(self) -> int:
        """Return how many clients the kernel trains side by side at most; 0 without one."""
        if self._kernel is None:
            return 0
        return self._kernel.width(1)

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
        precision: str = "float32",
        timeout: float | None = None,
    ) -> None:
        # Here, since a command reads the settings above without torch.
        from coterie.compute.cohort import Shard
        from coterie.compute.workspace import Workspace
        from coterie.engines.workers import Workers

        workspace = Workspace(model, loss, clients[0], device, kernel, precision)
        super().__init__(clients, workspace, workers)
        # Once, so that no round waits for rows; workers share those of this process.
        if device != "cpu":
            clients = clients.to(workspace.device)
        self._shard = Shard(clients, workspace)
        self._workers: Workers | None = None
        if workers > 1:
            local = (*self.unseen, "server")
            count = min(workers, len(clients))
            self._workers = Workers(self._shard, count, local, timeout)

    def ask(self, ask: Ask) -> Answer:
        """Run the task here, or in the workers, each client where its memory is."""
        if self._workers is None:
            return self._shard.answer(ask)
        return self._workers.ask(ask)

    def borrow(self, ask: Ask) -> Answer:
        """The same, with replies that stay in the memory that workers share until the next ask."""
        if self._workers is None:
            # Not the shard: an engine that builds on this one may define `ask` anew.
            return self.ask(ask)
        return self._workers.ask(ask, keep=False)

    def save_memory(self) -> dict[str, Tensor]:
        """Return what all clients remember."""
        return self._shard.memory.save()

    def load_memory(self, saved: dict[str, Tensor]) -> None:
        """Undo `save_memory`."""
        self._shard.memory.load(saved, (*self.clients, *self.unseen, "server"))
        if self._workers is not None:
            self._workers.restart()

    def close(self) -> None:
        """End the worker processes, and forget the rows that were read."""
        # Calls know the workspace that keeps them, which would wait for the garbage collector.
        self._shard.workspace.kept_calls.clear()
        self._shard.workspace.kept_linear = None, {}
        if self._workers is not None:
            self._workers.close()
            self._workers = None

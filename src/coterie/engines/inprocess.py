"""The engine of one machine: all clients in this process, or sharded over worker processes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from coterie.core.envelopes import Answer, Ask, Refusal, Saved, answer_in
from coterie.core.errors import InputError, require
from coterie.core.loss import RowLoss
from coterie.core.memory import of_clients, owners
from coterie.core.rows import Clients
from coterie.core.schema import SIZE, Flag, one_of, options
from coterie.core.shard import Shard
from coterie.core.workspace import Workspace
from coterie.engines.arena import Arena
from coterie.engines.spec import EngineSpec

__all__ = ["MEMORY_LOST", "InProcess", "InProcessEngine"]

MEMORY_LOST = "it was restarted, and what its clients remembered is lost"
"""What a method is told of clients whose process died."""


@options
class InProcess(EngineSpec):
    """Settings of the engine of one machine.

    Attributes:
        workers: processes over which the clients are spread; results do not depend on it.
        kernel: of local training: "auto", batched where that is possible, or "loop", the plain loop over clients.
        device: of model and rows; workers are processes that share the CPU, so that a GPU has one.
    """

    workers: Annotated[int, SIZE, Flag(metavar="N")] = 1
    kernel: Annotated[str, one_of("auto", "loop")] = "auto"
    device: str = "cpu"

    decides = ("kernel", "device")

    def __post_init__(self) -> None:
        require(
            self.workers == 1 or self.device == "cpu",
            "workers are processes that share the CPU; use workers=1 on a GPU",
        )

    @property
    def forks(self) -> bool:
        """Only on the CPU: a process that is forked cannot use the GPU of its parent."""
        return self.device == "cpu"

    def open(self, clients: Clients, model: nn.Module, loss: str | RowLoss) -> InProcessEngine:
        """An engine for these clients."""
        self.check()
        return InProcessEngine(clients, model, loss=loss, workers=self.workers, device=self.device, kernel=self.kernel)

    def check(self) -> None:
        """Raise `InputError` if this machine does not have the device."""
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as error:
            why = str(error).splitlines()[0]
            raise InputError(
                f"device {self.device!r} cannot be used here ({why}); take cpu, or install torch for it"
            ) from error


class InProcessEngine:
    """All clients on this machine.

    Attributes:
        clients: names, sorted.
        layout: of model vectors.
        x: initial model [d + b].
        model: a private copy of the module.
        simulated: replies are made on this machine, so that attacks can be simulated.

    Raises `InputError` if model, loss and rows do not fit.
    """

    simulated = True
    needs_all = False

    def __init__(
        self,
        clients: Clients,
        model: nn.Module,
        *,
        loss: str | RowLoss = "auto",
        workers: int = 1,
        device: str = "cpu",
        kernel: str = "auto",
    ) -> None:
        workspace = Workspace(model, loss, clients[0], device, kernel)
        workspace.check_labels(clients)
        self.model = workspace.model
        self.loss = workspace.loss
        self.layout = workspace.layout
        self.clients = clients.names
        self.has_server = clients.server is not None
        self.unseen = clients.unseen.names if clients.unseen is not None else ()
        self.x = workspace.x.clone()
        self._rows = clients
        # Once, so that no round waits for rows; workers share those of this process.
        self._shard = Shard(clients if device == "cpu" else clients.to(workspace.device), workspace)
        self._workers: list[Worker] = []
        self._homes = Homes()
        self._down = Arena() if workers > 1 else None
        if self._down is not None:
            self._workers = [Worker(self._shard, i, self._homes, self._down) for i in range(min(workers, len(clients)))]

    def ask(self, ask: Ask) -> Answer:
        """Run the task here, or in the workers, each client where its memory is."""
        if self._down is None:
            return self._shard.answer(ask)
        self._down.clear()
        parts = {home: ask.to(group) for home, group in self._deal(ask.names, ask.context.round).items()}
        for home, part in parts.items():
            if home >= 0:
                self._workers[home].send(part)
        answers, refused = [], None
        for home, part in parts.items():
            try:
                answers.append(self._workers[home].receive(part) if home >= 0 else self._shard.answer(part))
            except InputError as error:  # raised below: every worker's answer must be taken from its pipe first
                refused = refused or error
        if refused is not None:
            raise refused
        return Answer.joined(answers)

    def _deal(self, names: tuple[str, ...], round: int) -> dict[int, tuple[str, ...]]:
        """Whom each worker serves in this ask: those whose memory it holds, and of the others as many as the next one.

        The server's rows and the unseen clients live in this process (-1), so that no worker has to be told which of them serves it.
        """
        here, homes = {"server", *self.unseen}, self._homes.of(round)
        free = [n for n in names if n not in homes and n not in here]
        groups: dict[int, list[str]] = {i: [] for i in range(-1, len(self._workers))}
        for name in names:
            if name in homes or name in here:
                groups[homes.get(name, -1)].append(name)
        for name in free:
            groups[min(range(len(self._workers)), key=lambda i: len(groups[i]))].append(name)
        return {home: tuple(sorted(group)) for home, group in groups.items() if group}

    def sizes(self, part: str) -> dict[str, int]:
        """Rows of each client, unseen ones behind the others."""
        return self._rows.sizes(part)

    def fingerprint(self) -> str:
        """A short hash of every row and name."""
        return self._rows.fingerprint()

    def save_memory(self) -> dict[str, Tensor]:
        """What all clients remember."""
        saved = self._shard.memory.save()
        for worker in self._workers:
            saved.update(worker.memory())
        return saved

    def load_memory(self, saved: dict[str, Tensor]) -> None:
        """Undo `save_memory`."""
        if not self._workers:
            self._shard.memory.load(saved, (*self.clients, *self.unseen, "server"))
            return
        self._shard.memory.load(saved, (*self.unseen, "server"))
        remembering = sorted(owners(saved) - {"server", *self.unseen})
        self._homes.settle({name: i % len(self._workers) for i, name in enumerate(remembering)})
        for i, worker in enumerate(self._workers):
            worker.load(of_clients(saved, remembering[i :: len(self._workers)]))

    def close(self) -> None:
        """End the worker processes."""
        for worker in self._workers:
            worker.close()
        self._workers = []


class Homes:
    """By client, the number of the worker that holds what it remembers: for good, or of the present round alone."""

    def __init__(self) -> None:
        self.lasting: dict[str, int] = {}
        self._passing: dict[str, int] = {}
        self._round = 0

    def of(self, round: int) -> dict[str, int]:
        """The homes in this round."""
        if round != self._round:
            self._passing, self._round = {}, round
        return {**self._passing, **self.lasting}

    def note(self, number: int, lasting: Iterable[str], passing: Iterable[str]) -> None:
        """What a worker says of the clients that it has served."""
        self.lasting.update(dict.fromkeys(lasting, number))
        self._passing.update(dict.fromkeys(passing, number))

    def settle(self, homes: Mapping[str, int]) -> None:
        """Forget all homes but these."""
        self.lasting, self._passing = dict(homes), {}

    def leave(self, number: int) -> None:
        """A worker died."""
        self.lasting, self._passing = (
            {n: home for n, home in homes.items() if home != number} for homes in (self.lasting, self._passing)
        )


class Worker:
    """A process that serves some clients. It is forked: rows are shared copy-on-write, and nothing is pickled.

    Args:
        shard: rows, model and memory as they are now.
        number: of this worker.
        homes: where clients have their memory; kept up to date here.
        down: where payloads of all workers lie; replies have a memory of their own.
    """

    def __init__(self, shard: Shard, number: int, homes: Homes, down: Arena) -> None:
        self._shard, self._number, self._homes, self._down = shard, number, homes, down
        self._up = Arena()
        self._start()

    def _start(self) -> None:
        import multiprocessing

        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(self._shard, theirs, self._pipe, self._down, self._up), daemon=True
        )
        self._process.start()
        theirs.close()

    def send(self, ask: Ask) -> None:
        """Begin a task."""
        self._post({"ask": ask})

    def receive(self, ask: Ask) -> Answer:
        """The answer to the ask that was sent; a worker that died is started again and its clients have failed."""
        try:
            message = self._received()
        except (EOFError, OSError):
            ended = f"its worker process ended with exit code {self._restart()}; {MEMORY_LOST}"
            return Answer(failed=dict.fromkeys(ask.names, ended))
        answer = answer_in(message)
        self._homes.note(self._number, message["remember"], message["notes"])
        return answer

    def memory(self) -> Mapping[str, Tensor]:
        """What the clients of this worker remember."""
        self._down.clear()
        self._post({"save": True})
        try:
            saved: Saved = self._received()["saved"]
            return saved.values
        except (EOFError, OSError):
            self._restart()
            return {}

    def load(self, saved: Mapping[str, Tensor]) -> None:
        """Give the clients of this worker their memory."""
        self._down.clear()
        self._post({"load": Saved(saved)})
        try:
            self._received()  # until it has read them, nothing else may be written to that memory
        except (EOFError, OSError):
            self._restart()

    def close(self) -> None:
        """End the process. It holds nothing that must be saved, and later workers hold copies of its pipe, so it is killed."""
        self._pipe.close()
        self._process.kill()
        self._process.join()

    def _restart(self) -> int | None:
        self._pipe.close()
        self._process.kill()
        self._process.join()
        code = self._process.exitcode
        self._homes.leave(self._number)
        self._start()
        return code

    def _post(self, message: Mapping[str, Any]) -> None:
        try:
            self._pipe.send_bytes(self._down.pack(message))
        except (BrokenPipeError, OSError):
            return  # the answer that is waited for next reports the death

    def _received(self) -> dict[str, Any]:
        # The caller may keep a reply, and its memory is written again by the next one.
        return self._up.unpack(self._pipe.recv_bytes(), keep=True)


def _serve(shard: Shard, pipe: Any, parents: Any, down: Arena, up: Arena) -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its workers after saving
    parents.close()
    torch.set_num_threads(1)
    while True:
        try:
            received = pipe.recv_bytes()
        except (EOFError, OSError):
            os._exit(0)
        up.clear()
        pipe.send_bytes(_reply(shard, received, down, up))


def _reply(shard: Shard, received: bytes, down: Arena, up: Arena) -> bytes:
    """What a worker says to one message."""
    message = down.unpack(received)
    if "save" in message:
        return up.pack({"saved": Saved(shard.memory.save())})
    if "load" in message:
        saved = {name: value.clone() for name, value in message["load"].values.items()}
        shard.memory.load(saved, owners(saved))
        return up.pack({})
    ask: Ask = message["ask"]
    try:
        answer: Answer | Refusal = shard.answer(ask)
    except InputError as error:  # an unknown task
        answer = Refusal(str(error))
    remember = tuple(n for n in ask.names if shard.memory.has(n))
    notes = tuple(n for n in ask.names if shard.memory.has_notes(n))
    try:
        return up.pack({"answer": answer, "remember": remember, "notes": notes})
    except InputError as error:  # a reply that cannot travel
        return up.pack({"answer": Refusal(str(error))})

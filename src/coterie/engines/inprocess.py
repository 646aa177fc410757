"""The engine of one machine: all clients in this process, or sharded over worker processes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.cohort import Cohort
from coterie.core.errors import InputError, RunError, require
from coterie.core.federation import Answer, Context, well_formed
from coterie.core.loss import RowLoss
from coterie.core.memory import Memory, MemoryView
from coterie.core.rows import Clients
from coterie.core.task import Task, find_task
from coterie.core.wire import PerClient
from coterie.core.workspace import Workspace
from coterie.engines.arena import Arena

__all__ = ["MEMORY_LOST", "InProcess", "Shard", "answer_of", "request", "serve", "split_payload"]

MEMORY_LOST = "it was restarted, and what its clients remembered is lost"
"""What a method is told of clients whose process died."""


class Shard:
    """Clients of this process, with the server's rows as a client of their own."""

    def __init__(self, clients: Clients, workspace: Workspace) -> None:
        self.clients = clients
        self.workspace = workspace
        self.memory = Memory()
        self.server = None if clients.server is None else Clients.of_server(clients.server)
        self.unseen = frozenset(clients.unseen.names) if clients.unseen is not None else frozenset()

    def run(self, names: tuple[str, ...], task: Task[Any], payload: Mapping[str, Any], context: Context) -> Answer:
        """Run a task for `names` as one cohort; if that fails, one by one, so that the failure has a name."""
        self.memory.begin(context.round, context.attempt)
        spent = {"row_gradients": 0, "row_losses": 0}
        shards: list[tuple[tuple[str, ...], tuple[Any, ...]]] = []
        failed: dict[str, str] = {}
        for group in self._groups(names):
            try:
                shards.append((group, self._task(group, names, task, payload, context, spent)))
            except InputError:
                raise
            except Exception as error:
                if len(group) == 1:
                    failed[group[0]] = _reason(error)
                    continue
                for name in group:
                    try:
                        shards.append(((name,), self._task((name,), names, task, payload, context, spent)))
                    except Exception as alone:
                        failed[name] = _reason(alone)
        return Answer(shards, failed, spent)

    def _groups(self, names: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Clients that train, clients that are unseen, and the server: each a cohort of its own."""
        apart = [n for n in names if n in self.unseen]
        trained = (
            tuple(n for n in names if n != "server" and n not in self.unseen) if apart or "server" in names else names
        )
        return [g for g in (trained, tuple(apart), ("server",) if "server" in names else ()) if g]

    def _task(
        self,
        group: tuple[str, ...],
        names: tuple[str, ...],
        task: Task[Any],
        payload: Mapping[str, Any],
        context: Context,
        spent: dict[str, int],
    ) -> tuple[Any, ...]:
        clients = self.clients
        if group == ("server",):
            if self.server is None:
                raise InputError("the server was asked, but it holds no rows; give server rows (server_data)")
            clients = self.server
        elif group[0] in self.unseen and clients.unseen is not None:
            clients = clients.unseen
        view = MemoryView(self.memory, group)
        index = tuple(clients.number(n) for n in group)
        done = dict.fromkeys(spent, 0)
        cohort = Cohort(group, self.workspace, clients, index, view, context.seed, context.round, done)
        reply: tuple[Any, ...] = task(cohort, **split_payload(payload, names, group))
        fields = task.reply._fields
        if not isinstance(reply, tuple) or len(reply) != len(fields):
            raise TypeError(f"the task returned a {type(reply).__name__}, not a {task.reply.__name__}")
        if len(group) > 1 and not all(
            well_formed(v, task.kinds[k], len(group), self.workspace.layout) for k, v in zip(fields, reply, strict=True)
        ):
            raise ValueError("the reply does not fit")  # asked one by one, whoever is wrong has a name
        view.commit()
        for key, count in done.items():  # what a failed attempt did would depend on who shared its cohort
            spent[key] += count
        return reply


class InProcess:
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
        require(workers >= 1, f"workers must be an int of at least 1; got {workers!r}")
        require(workers == 1 or device == "cpu", "workers are processes that share the CPU; use workers=1 on a GPU")
        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:
            why = str(error).splitlines()[0]
            raise InputError(
                f"device {device!r} cannot be used here ({why}); take cpu, or install torch for it"
            ) from error
        workspace = Workspace(model, loss, clients[0], device, kernel)
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

    def ask(self, names: tuple[str, ...], task: Task[Any], payload: Mapping[str, Any], context: Context) -> Answer:
        """Run `task` for `names` (sorted): here, or in the workers, each client where its memory is."""
        if self._down is None:
            return self._shard.run(names, task, payload, context)
        self._down.clear()
        homes = self._deal(names, context.round)
        for home, group in homes.items():
            if home >= 0:
                self._workers[home].send(group, task, split_payload(payload, names, group, keep_each=True), context)
        answers, refused = [], None
        for home, group in homes.items():
            try:
                if home >= 0:
                    answers.append(self._workers[home].receive(group, task))
                else:
                    mine = split_payload(payload, names, group, keep_each=True)
                    answers.append(self._shard.run(group, task, mine, context))
            except InputError as error:  # raised below: every worker's answer must be taken from its pipe first
                refused = refused or error
        if refused is not None:
            raise refused
        spent: dict[str, int] = {}
        for answer in answers:
            for key, count in answer.spent.items():
                spent[key] = spent.get(key, 0) + count
        failed = {n: why for a in answers for n, why in a.failed.items()}
        return Answer([s for a in answers for s in a.shards], failed, spent)

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
        elsewhere = {"server", *self.unseen}
        owners = sorted({k.split("/", 2)[2] for k in saved} - elsewhere)
        self._homes.settle({name: i % len(self._workers) for i, name in enumerate(owners)})
        for i, worker in enumerate(self._workers):
            worker.load({k: v for k, v in saved.items() if self._homes.lasting.get(k.split("/", 2)[2]) == i})

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

    def send(self, names: tuple[str, ...], task: Task[Any], payload: Mapping[str, Any], context: Context) -> None:
        """Begin a task."""
        self._post(self._down.pack(request(names, task, payload, context)))

    def receive(self, names: tuple[str, ...], task: Task[Any]) -> Answer:
        """The answer to the task that was begun; a worker that died is started again and its clients have failed."""
        try:
            message = self._up.unpack(self._pipe.recv_bytes())
        except (EOFError, OSError):
            ended = f"its worker process ended with exit code {self._restart()}; {MEMORY_LOST}"
            return Answer([], dict.fromkeys(names, ended), {})
        self._homes.note(self._number, message.pop("remember", ()), message.pop("notes", ()))
        # The caller may keep a reply, and its memory is written again by the next one.
        return answer_of({k: v.clone() if isinstance(v, Tensor) else v for k, v in message.items()}, task)

    def memory(self) -> dict[str, Tensor]:
        """What the clients of this worker remember."""
        self._down.clear()
        self._post(self._down.pack({"save": True}))
        try:
            return {k: v.clone() for k, v in self._up.unpack(self._pipe.recv_bytes()).items()}
        except (EOFError, OSError):
            self._restart()
            return {}

    def load(self, saved: Mapping[str, Tensor]) -> None:
        """Give the clients of this worker their memory."""
        self._down.clear()
        self._post(self._down.pack({"load": True, **saved}))
        try:
            self._pipe.recv_bytes()  # until it has read them, nothing else may be written to that memory
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

    def _post(self, message: bytes) -> None:
        try:
            self._pipe.send_bytes(message)
        except (BrokenPipeError, OSError):
            return  # the answer that is waited for next reports the death


def _serve(shard: Shard, pipe: Any, parents: Any, down: Arena, up: Arena) -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its workers after saving
    parents.close()
    torch.set_num_threads(1)
    while True:
        try:
            message = down.unpack(pipe.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)
        up.clear()
        if "save" in message:
            pipe.send_bytes(up.pack(shard.memory.save()))
        elif "load" in message:
            message.pop("load")
            shard.memory.load({k: v.clone() for k, v in message.items()}, {k.split("/", 2)[2] for k in message})
            pipe.send_bytes(b"loaded")
        else:
            try:
                reply = serve(shard, message)
                remember = tuple(n for n in message["names"] if shard.memory.has(n))
                notes = tuple(n for n in message["names"] if shard.memory.has_notes(n))
                pipe.send_bytes(up.pack({**reply, "remember": remember, "notes": notes}))
            except InputError as error:  # an unknown task, or a reply that cannot travel
                pipe.send_bytes(up.pack({"input_error": str(error)}))


def request(names: tuple[str, ...], task: Task[Any], payload: Mapping[str, Any], context: Context) -> dict[str, Any]:
    """An ask as one flat message for `serve` in another process."""
    header = {"names": names, "task": task.name, "context": tuple(context)}
    return {**{f"payload/{k}": v for k, v in payload.items()}, **header}


def answer_of(message: Mapping[str, Any], task: Task[Any]) -> Answer:
    """What `serve` made of a request to run `task`. Raises the `InputError` of the other process."""
    if "input_error" in message:
        raise InputError(message["input_error"])
    failed = {k.removeprefix("failed/"): v for k, v in message.items() if k.startswith("failed/")}
    spent = {k.removeprefix("spent/"): v for k, v in message.items() if k.startswith("spent/")}
    fields = task.reply._fields
    shards = [(message[f"{i}/names"], tuple(message[f"{i}/{f}"] for f in fields)) for i in range(message["shards"])]
    return Answer(shards, failed, spent)


def serve(shard: Shard, message: Mapping[str, Any]) -> dict[str, Any]:
    """Do what a `request` asks for, and answer with one flat message."""
    task = find_task(message["task"])
    payload = {k.removeprefix("payload/"): v for k, v in message.items() if k.startswith("payload/")}
    answer = shard.run(message["names"], task, payload, Context(*message["context"]))
    reply: dict[str, Any] = {"shards": len(answer.shards)}
    reply.update({f"failed/{k}": v for k, v in answer.failed.items()})
    reply.update({f"spent/{k}": v for k, v in answer.spent.items()})
    for i, (group, values) in enumerate(answer.shards):
        reply[f"{i}/names"] = group
        reply.update({f"{i}/{k}": v for k, v in zip(task.reply._fields, values, strict=True)})
    return reply


def split_payload(
    payload: Mapping[str, Any], names: tuple[str, ...], group: tuple[str, ...], keep_each: bool = False
) -> dict[str, Any]:
    """The payload of an ask to `names` for the clients of `group`, whose rows of an `PerClient` are taken out of it or stay one."""
    number = {} if group == names else {n: i for i, n in enumerate(names)}
    where = [number[n] for n in group] if number else None
    result = {}
    for key, value in payload.items():
        if isinstance(value, PerClient):
            rows = value.tensor if where is None else value.tensor[where]
            result[key] = PerClient(rows) if keep_each else rows
        else:
            result[key] = value
    return result


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def check_free_memory(vectors: int, layout_size: int, itemsize: int, available: int | None = None) -> str | None:
    """The sentence that names the memory of a method's [n, d] matrix; None below 100 MB.

    Raises `RunError` if it is more than what is free.
    """
    needed = vectors * layout_size * itemsize
    free = available if available is not None else _available()
    sentence = f"a round holds {vectors} model vectors of {layout_size} numbers: {needed / 1e9:.2f} GB"
    if free is not None and needed > free:
        raise RunError(
            f"{sentence}, but only {free / 1e9:.2f} GB are free; ask fewer clients a round or take a smaller model"
        )
    return sentence if needed > 1e8 else None


def _available() -> int | None:
    try:
        with open("/proc/meminfo") as lines:
            fields: Sequence[str] = next(line for line in lines if line.startswith("MemAvailable")).split()
    except (OSError, StopIteration):
        return None
    return int(fields[1]) * 1024

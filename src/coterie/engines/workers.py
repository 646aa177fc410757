"""Worker processes of one machine: which clients each serves, and what becomes of these when one ends or does not
answer.

Tensors travel between a process and those forked from it through one anonymous mapping instead of a pipe. The mapping
has no name and no file, so nothing is left behind when a process is killed, and the size of /dev/shm does not matter.
Pages that no process writes cost nothing.
"""

from __future__ import annotations

import gc
import json
import logging
import mmap
import multiprocessing
import os
import signal
import time
from collections.abc import Collection, Iterable, Mapping
from multiprocessing.connection import wait
from typing import Any

import torch
from torch import Tensor

from coterie.base.errors import RunError, plain
from coterie.base.interrupts import delay_interrupts
from coterie.base.system import attempt, require_children
from coterie.base.vector import lasting_copy
from coterie.compute.cohort import Shard
from coterie.config.local import LocalSGD
from coterie.contract.encoding import (
    Saved,
    answer_in,
    decode,
    encode,
    put_together,
    take_apart,
)
from coterie.contract.wire import Answer, Ask

FEWER = "use fewer workers; what was saved stays"
"""The cure where the system gives no further process."""
_LEAST = 1 << 14
"""Bytes below which the pipe is as fast."""
_DTYPES = {
    str(dtype): dtype
    for dtype in (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.uint8,
    )
}


class Arena:
    """Memory that this process and its later children share; what does not fit travels as bytes, as small values do.

    Attributes:
        size: bytes.
    """

    def __init__(self, size: int = 1 << 30) -> None:
        try:
            flags = (
                mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
            )
            self._bytes = torch.frombuffer(
                mmap.mmap(-1, size, flags=flags), dtype=torch.uint8
            )
        except OSError:
            self._bytes = torch.empty(0, dtype=torch.uint8)
        self.size = len(self._bytes)
        self._used = 0
        # With the tensors, since the address of one that is gone may be another's.
        self._placed: dict[tuple[Any, ...], tuple[list[Any], Tensor]] = {}

    def clear(self) -> None:
        """Begin anew: whatever was read from here is overwritten by the next `pack`."""
        self._used = 0
        self.release()

    def release(self) -> None:
        """Let go of the tensors that were packed; what was copied from them stays until `clear`."""
        self._placed = {}

    def pack(self, values: Mapping[str, Any]) -> bytes:
        """A message for `unpack` in another process. Until `release`, a tensor that was packed before is not copied again.

        The message is short as long as there is room here: a pipe takes it even if no process reads.
        """
        text, tensors = take_apart(values)
        places: dict[int, list[Any]] = {}
        inline: dict[str, Tensor] = {}
        for number, tensor in enumerate(tensors):
            place = self._put(tensor)
            if place is None:
                inline[str(number)] = tensor
            else:
                places[number] = place
        message = encode({"text": text, "places": json.dumps(places), **inline})
        # A long message is put there, too.
        place = self._put(torch.frombuffer(bytearray(message), dtype=torch.uint8))
        if place is None:
            return message
        return encode({"message": json.dumps(place)})

    def unpack(self, message: bytes, *, keep: bool = False) -> dict[str, Any]:
        """The values. Unless the caller may `keep` them, large tensors are views of this memory until it is written again."""
        parts = decode(message)
        if "message" in parts:
            low, high, *_ = json.loads(parts["message"])
            parts = decode(self._bytes[low:high].numpy().tobytes())
        text, places = parts.pop("text"), json.loads(parts.pop("places"))
        tensors: dict[int, Tensor] = {
            int(number): tensor for number, tensor in parts.items()
        }
        for number, (low, high, dtype, shape) in places.items():
            tensor = self._bytes[low:high].view(_DTYPES[dtype]).view(shape)
            if keep:
                tensor = tensor.clone()
            tensors[int(number)] = tensor
        return put_together(text, tensors)

    def _put(self, tensor: Tensor) -> list[Any] | None:
        count = tensor.numel() * tensor.element_size()
        low = -(-self._used // 64) * 64
        if count < _LEAST or str(tensor.dtype) not in _DTYPES:
            return None
        key = (tensor.data_ptr(), tensor.dtype, tensor.shape)
        if key in self._placed:
            return self._placed[key][0]
        if low + count > self.size:
            return None
        place = [low, low + count, str(tensor.dtype), list(tensor.shape)]
        self._bytes[low : low + count].view(tensor.dtype).view(tensor.shape).copy_(
            tensor
        )
        self._used, self._placed[key] = low + count, (place, tensor)
        return place


logger = logging.getLogger("coterie")

PATIENCE = 60.0
"""Seconds after which a worker that has not answered is named."""


class Workers:
    """The workers of an engine. Whatever their clients remember is known here too, so that a worker can be started again.

    Args:
        shard: all clients, as they are here.
        count: of workers.
        here: clients that are asked in this process, so that no worker has to be told which of them serves it.
        timeout: seconds after which a worker that does not answer is ended; None: never.
    """

    def __init__(
        self,
        shard: Shard,
        count: int,
        local_clients: Collection[str],
        timeout: float | None,
    ) -> None:
        self._shard, self._timeout = shard, timeout
        self._here = frozenset(local_clients)
        self._homes = Homes()
        self._down = Arena()
        require_children(f"workers={count}")
        self._all: list[Worker] = []
        try:
            for _ in range(count):
                self._all.append(Worker(shard, self._down))
        except RunError:
            for worker in self._all:
                worker.close()
            raise

    def ask(self, ask: Ask, *, keep: bool = True) -> Answer:
        """Run the task, each client where its memory is. Unless the caller may `keep` replies, the next ask overwrites them.

        A worker that ends, whatever the reason, has done nothing: its clients remember what they did before, and are asked again one at
        a time. Only a client that ends a worker alone has failed.
        """
        self._shard.begin(ask)
        groups = self._deal(ask.names, ask.context.round, self._work(ask))
        parts = {home: ask.to(group) for home, group in groups.items()}
        local_ask = parts.pop(-1, None)
        self._send(parts)
        answers: list[Answer] = []
        if local_ask is not None:
            answers.append(self._shard.answer(local_ask))
        for home, why in self._receive(parts, answers, keep=keep).items():
            names = _list_names(parts[home].names)
            logger.warning(
                "a worker process %s while it served %s; each is asked again, alone",
                why,
                names,
            )
            for name in parts[home].names:
                single = {home: parts[home].to((name,))}
                self._send(single)
                for retried in self._receive(single, answers).values():
                    reason = f"its worker process {retried} when it was asked alone"
                    answers.append(Answer(failed={name: reason}))
        return Answer.join(answers)

    def _deal(
        self, names: tuple[str, ...], round: int, work: Mapping[str, int]
    ) -> dict[int, tuple[str, ...]]:
        """Assign clients to workers: first those whose memory a worker holds, then the rest, so that all have about the same work.

        Some clients live in this process (-1).
        """
        homes = self._homes.of(round)
        groups: dict[int, list[str]] = {i: [] for i in range(-1, len(self._all))}
        for name in names:
            if name in homes or name in self._here:
                groups[homes.get(name, -1)].append(name)
        loads = []  # rows of each worker
        for worker in range(len(self._all)):
            loads.append(sum(work.get(name, 0) for name in groups[worker]))
        homeless = [name for name in work if name not in homes]
        # The largest first, each to the worker with the least to do.
        for name in sorted(homeless, key=work.__getitem__, reverse=True):
            least = loads.index(min(loads))
            groups[least].append(name)
            loads[least] += work[name]
        return {home: tuple(sorted(group)) for home, group in groups.items() if group}

    def _work(self, ask: Ask) -> dict[str, int]:
        """About how many rows each client goes through in a worker: in its training, or once if the task trains nothing."""
        clients = self._shard.clients
        plans = [value for value in ask.payload.values() if isinstance(value, LocalSGD)]
        offsets = clients.train.offsets
        work: dict[str, int] = {}
        for name in ask.names:
            if name in self._here:
                continue
            number = clients.number(name)
            size = int(offsets[number + 1] - offsets[number])
            work[name] = size
            if plans:
                work[name] = sum(plan.row_gradients(size) for plan in plans)
        return work

    def _send(self, parts: Mapping[int, Ask]) -> None:
        self._down.clear()
        for home, part in parts.items():
            self._all[home].send(part)
        self._down.release()

    def _receive(
        self, parts: Mapping[int, Ask], answers: list[Answer], *, keep: bool = True
    ) -> dict[int, str]:
        """Add the answers of these workers; returns why those ended that did. They are started again."""
        self._wait([self._all[home] for home in parts])
        ended: dict[int, str] = {}
        for home, part in parts.items():
            try:
                message = self._all[home].receive(keep=keep)
            except (EOFError, OSError):
                ended[home] = self._all[home].restart()
                self._homes.leave(home)
                continue
            self._remember(message["written"], message["kept"].values)
            self._homes.note(
                home, filter(self._shard.memory.has, part.names), message["notes"]
            )
            answers.append(answer_in(message))
        return ended

    def _wait(self, busy: Collection[Worker]) -> None:
        """Wait until each of these workers has answered or ended. One that takes long is named, and ended if there is a timeout."""
        started, waiting = time.monotonic(), {worker.pipe: worker for worker in busy}
        for seconds in sorted({PATIENCE, self._timeout or PATIENCE}):
            while waiting and (
                ready := wait(
                    list(waiting), max(0.0, started + seconds - time.monotonic())
                )
            ):
                waiting = {
                    pipe: worker
                    for pipe, worker in waiting.items()
                    if pipe not in ready
                }
            for worker in waiting.values():
                if seconds == self._timeout:
                    worker.end(f"did not answer within {seconds:g} s")
                else:
                    logger.warning(
                        "%s has not answered for %g s; it goes on waiting",
                        str(worker),
                        seconds,
                    )

    def _remember(self, written: Iterable[str], values: Mapping[str, Tensor]) -> None:
        """Note what clients of a worker have remembered in this round."""
        by_client: dict[str, dict[str, Tensor]] = {name: {} for name in written}
        for place, value in values.items():
            key, name = place.split("/", 1)  # a key has no '/', a client's name may
            by_client[name][key] = value
        for name, values in by_client.items():
            self._shard.memory.undo(name, values)

    def restart(self) -> None:
        """Start all workers again, since what clients remember was replaced; those that remember anything are dealt out anew."""
        remembering = filter(
            self._shard.memory.has, sorted(set(self._shard.clients.names) - self._here)
        )
        self._homes.settle(
            {name: i % len(self._all) for i, name in enumerate(remembering)}
        )
        for worker in self._all:
            worker.restart()

    def close(self) -> None:
        """End the processes."""
        for worker in self._all:
            worker.close()
        self._all = []


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
        """Note what a worker says of the clients that it has served."""
        self.lasting.update(dict.fromkeys(lasting, number))
        self._passing.update(dict.fromkeys(passing, number))

    def settle(self, homes: Mapping[str, int]) -> None:
        """Forget all homes but these."""
        self.lasting, self._passing = dict(homes), {}

    def leave(self, number: int) -> None:
        """A worker has ended: the next one has what its clients remember for good, and nothing else."""
        self._passing = {n: home for n, home in self._passing.items() if home != number}


class Worker:
    """A process that serves some clients. It is forked: rows are shared copy-on-write, and nothing is pickled.

    Args:
        shard: rows, model and memory as they are whenever the process is started.
        down: where payloads of all workers lie; replies have a memory of their own.

    Attributes:
        pipe: to the process.
    """

    def __init__(self, shard: Shard, down: Arena) -> None:
        self._shard, self._down = shard, down
        self._up = Arena()
        self._task, self._names = "", tuple[str, ...]()
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("fork")
        with attempt("open a pipe to a worker process", FEWER):
            self.pipe, child_end = context.Pipe()
        self._process = context.Process(
            target=_serve,
            args=(self._shard, child_end, self.pipe, self._down, self._up),
            daemon=True,
        )
        gc.freeze()  # else the child's collector writes to each page that holds an object, and so copies it
        try:
            with delay_interrupts(), attempt("start a worker process", FEWER):
                self._process.start()
        except RunError:
            self.pipe.close()
            child_end.close()
            raise
        finally:
            gc.unfreeze()
        self._why = ""
        child_end.close()

    def __str__(self) -> str:
        return f"worker process {self._process.pid} ({self._task} of {_list_names(self._names)})"

    def send(self, ask: Ask) -> None:
        """Begin a task."""
        self._task, self._names = ask.task.rpartition(":")[2], ask.names
        try:
            self.pipe.send_bytes(self._down.pack({"ask": ask}))
        except (BrokenPipeError, OSError):
            return  # the answer that is waited for next reports the death

    def receive(self, *, keep: bool) -> dict[str, Any]:
        """The message that answers what was sent. Raises `EOFError` or `OSError` if the process has ended.

        Unless the caller may `keep` replies, they are overwritten by the next ones. What clients remember is kept.
        """
        message = self._up.unpack(self.pipe.recv_bytes(), keep=keep)
        if not keep:
            message["kept"] = Saved(
                {
                    place: lasting_copy(value)
                    for place, value in message["kept"].values.items()
                }
            )
        return message

    def end(self, why: str) -> None:
        """Kill the process. It holds nothing that must be saved, and later workers hold copies of its pipe, so nothing else ends it."""
        self._process.kill()
        self._why = why

    def close(self) -> None:
        """End the process for good."""
        self.pipe.close()
        self._process.kill()
        self._process.join()

    def restart(self) -> str:
        """End the process and start another one; returns why the first ended."""
        self.close()
        why = self._why or f"ended with exit code {self._process.exitcode}"
        self._start()
        return why


def _list_names(names: tuple[str, ...]) -> str:
    shown = ", ".join(plain(name, 40) for name in names[:5])
    if len(names) > 5:
        shown += f" and {len(names) - 5} more"
    return shown


def _serve(shard: Shard, pipe: Any, parents: Any, down: Arena, up: Arena) -> None:
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C is for the parent, which ends its workers after saving
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parents.close()
    torch.set_num_threads(1)
    memory_news = _Told(shard)
    while True:
        try:
            received = pipe.recv_bytes()
        except (EOFError, OSError):
            os._exit(0)
        up.clear()
        ask: Ask = down.unpack(received)["ask"]
        answer = shard.answer(ask)
        notes = tuple(n for n in ask.names if shard.memory.has_notes(n))
        pipe.send_bytes(
            up.pack({"answer": answer, "notes": notes, **memory_news.news(ask)})
        )
        del (
            answer
        )  # while this process waits, its reply lies in the shared memory alone
        up.release()


class _Told:
    """The memory of clients in the present round, as a worker told it to its parent."""

    def __init__(self, shard: Shard) -> None:
        self._memory = shard.memory
        self._round = (0, 0)
        self._told: dict[str, dict[str, Tensor]] = {}

    def news(self, ask: Ask) -> dict[str, Any]:
        """Return which clients of this ask have remembered something else since, and what they have remembered in this round."""
        if self._round != (ask.context.round, ask.context.attempt):
            self._round, self._told = (ask.context.round, ask.context.attempt), {}
        values = self._memory.round_values(ask.names)
        written = tuple(
            name
            for name, now in values.items()
            if not _is_same(now, self._told.get(name, {}))
        )
        self._told.update({name: values[name] for name in written})
        named_values = {
            f"{key}/{name}": value
            for name in written
            for key, value in values[name].items()
        }
        return {"written": written, "kept": Saved(named_values)}


def _is_same(now: Mapping[str, Tensor], sent: Mapping[str, Tensor]) -> bool:
    return now.keys() == sent.keys() and all(now[key] is sent[key] for key in now)

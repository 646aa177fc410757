"""The one place where a task meets clients: every engine carries its asks to a `Shard`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from coterie.base.clients import Clients
from coterie.base.errors import InputError, is_interrupt, plain
from coterie.base.rows import check_plain
from coterie.compute.cohort import Cohort
from coterie.compute.workspace import Workspace
from coterie.contract.filters import apply_filters
from coterie.contract.memory import Memory, MemoryView
from coterie.contract.replies import has_form
from coterie.contract.wire import Answer, Ask, Block, Context, to_json


class Shard:
    """Clients of this process, with the server's rows as a client of their own.

    Attributes:
        clients: rows of the clients.
        workspace: model and loss.
        memory: what the clients remember.
    """

    def __init__(self, clients: Clients, workspace: Workspace) -> None:
        self.clients = clients
        self.workspace = workspace
        self.memory = Memory()
        self._last: tuple[Any, ...] = ()
        self._exchange: tuple[Any, ...] = ()
        self._before: dict[str, dict[str, Tensor]] = {}
        self._server = None if clients.server is None else Clients.of_server(clients.server, clients.transform)
        self._unseen = frozenset(clients.unseen.names) if clients.unseen is not None else frozenset()

    def answer(self, ask: Ask) -> Answer:
        """Run the task for `ask.names` as one cohort; if that fails, one by one, so that the failure has a name."""
        self.begin(ask)
        answers: list[Answer] = []
        for group in self._groups(ask.names):
            group_answer = self._run(ask.to(group))
            if group_answer.failed and len(group) > 1:
                answers += [self._run(ask.to((name,))) for name in group]
            else:
                answers.append(group_answer)
        return Answer.join(answers)

    def take_back(self, context: Context) -> None:
        """Forget what the last ask wrote, if it is the one that stands here in the run."""
        if self._last[:1] == (context,):
            self._restore(self._last[1])

    def begin(self, ask: Ask) -> None:
        """Note what clients remember before this ask; one that repeats begins with what they remembered before the first."""
        # What an attempt that was given up wrote must be gone before it is known what an ask begins with.
        self.memory.begin(ask.context.round, ask.context.attempt)
        if self.memory.unasked:
            self.memory.drop_late(ask.names, ask.rounds_by_client())
        exchange = (ask.context.round, ask.context.attempt, ask.task, ask.context.stream)
        if exchange != self._exchange:
            self._exchange, self._before = exchange, {}
        if ask.repeats:
            self._restore(ask.names)
        self._before.update({name: self.memory.round_values(name) for name in ask.names})
        self._last = ask.context, ask.names

    def _restore(self, names: tuple[str, ...]) -> None:
        for name in names:
            if name in self._before:
                self.memory.undo(name, self._before[name])

    def _groups(self, names: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Clients that train, clients that are unseen, and the server: each a cohort of its own."""
        unseen = tuple(n for n in names if n in self._unseen)
        server = ("server",) if "server" in names else ()
        trained = tuple(n for n in names if n != "server" and n not in self._unseen) if unseen or server else names
        return [group for group in (trained, unseen, server) if group]

    def _rows_of(self, group: tuple[str, ...]) -> Clients:
        if group == ("server",):
            if self._server is None:
                raise InputError(
                    "the server was asked and holds no rows; give it rows: from_tensors(server=...) or [data] server_file"
                )
            return self._server
        if group[0] in self._unseen and self.clients.unseen is not None:
            return self.clients.unseen
        return self.clients

    def _run(self, ask: Ask) -> Answer:
        """Run the task for one cohort; what it remembers and has spent counts only if it ends well."""
        view = MemoryView(self.memory, ask.names, ask.rounds_by_client())
        spent = {"row_gradients": 0, "row_losses": 0}
        try:
            block = self._reply(ask, view, spent)
        except BaseException as error:  # `sys.exit` in a task is a failure of this client too
            if is_interrupt(error):
                raise
            # What a failed attempt did would depend on who shared its cohort.
            return Answer(failed=dict.fromkeys(ask.names, _reason(error)), forgot=_sort_names(view.forgot))
        view.commit()
        remembered = {key: tuple(rounds.items()) for key, rounds in view.rounds().items()}
        return Answer((block,), {}, spent, (), _sort_names(view.forgot), remembered)

    def _reply(self, ask: Ask, view: MemoryView, spent: dict[str, int]) -> Block:
        clients, names, task = self._rows_of(ask.names), ask.names, ask.function
        index = tuple(map(clients.number, names))
        cohort = Cohort(names, self.workspace, clients, index, view, ask.context.seed, ask.context.round, spent)
        with torch.enable_grad():  # whatever the caller has chosen
            reply: tuple[Any, ...] = task(cohort, **ask.arguments)
        fields = task.reply._fields
        if not isinstance(reply, tuple) or len(reply) != len(fields):
            raise TypeError(f"the task returned a {type(reply).__name__}, not a {task.reply.__name__}")
        block, layout = Block(names, dict(zip(fields, reply, strict=True))), self.workspace.layout
        for key, value in block.values.items():
            # What could not be sent is refused also where nothing is sent.
            if isinstance(value, Tensor):
                check_plain(value, f"field {key!r}")
            else:
                to_json(value)
        for key, value in block.values.items():
            if len(names) > 1 and not has_form(value, task.kinds[key], len(names), layout):
                raise ValueError("the reply does not fit")  # asked one by one, whoever is wrong has a name
        return apply_filters(block, ask, task, layout, view)


def _sort_names(names: Mapping[str, Collection[str]]) -> dict[str, tuple[str, ...]]:
    return {key: tuple(sorted(clients)) for key, clients in names.items() if clients}


def _reason(error: BaseException) -> str:
    try:
        text = plain(" ".join(str(error).split()), 200)
    except Exception:  # its own code writes its text
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__

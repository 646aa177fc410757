"""Cohorts: the clients that live in this process, with their rows, the model and their memory.

A cohort of n clients is a client whose vectors have a leading dimension. Its primitives (`train`, `gradient`, `loss`, `losses`,
`evaluate`) hide how the work is done; a client's answer never depends on who else is in the cohort, because matrix products are
done per client and only gathers and elementwise work are flat. Every engine carries its asks to a `Shard`, which runs their tasks.
"""

from __future__ import annotations

from collections.abc import (
    Callable,
    Collection,
    Mapping,
    Sequence,
)
from dataclasses import replace
from typing import Any, Unpack, cast

import torch
from torch import Tensor

from coterie.base.clients import Clients
from coterie.base.errors import InputError, plain
from coterie.base.interrupts import is_interrupt
from coterie.base.rows import check_plain
from coterie.base.vector import LASTING, trim_heap
from coterie.compute.cohort_losses import CohortLosses
from coterie.compute.features import capture, captured
from coterie.compute.from_starts import updates_from
from coterie.compute.local_training import (
    LocalTraining,
    StepBatches,
    TrainOptions,
)
from coterie.compute.personal import Personal
from coterie.compute.workspace import Workspace
from coterie.config.local import LocalSGD
from coterie.contract.filters import apply_filters
from coterie.contract.memory import Memory, MemoryView
from coterie.contract.replies import has_form
from coterie.contract.wire import Answer, Ask, Block, Context, to_json


class Cohort(CohortLosses):
    """The clients that a task is run for: their rows, what they remember, their training, and gradients and losses at given models.

    >>> from typing import NamedTuple
    >>> import coterie as ct
    >>> class Steepness(NamedTuple):
    ...     steepness: torch.Tensor
    >>> @ct.task
    ... def steepness(cohort: ct.Cohort, *, x: torch.Tensor) -> Steepness:
    ...     return Steepness(cohort.gradient(x).norm(dim=1))  # a row, or a number, for each client of the cohort
    >>> engine = ct.InProcess().open(ct.data.load("heart-disease"), torch.nn.Linear(15, 1), "auto")
    >>> replies = ct.Federation(engine, engine.clients).ask(engine.clients, steepness, x=engine.x)
    >>> replies.steepness.shape
    torch.Size([4])
    >>> engine.close()
    """

    def train(
        self, x: Tensor, local: LocalSGD, **options: Unpack[TrainOptions]
    ) -> Tensor:
        """Train locally from x.

        Args:
            x: Model [d + b], or one per client [n, d + b].
            local: Settings; the learning rate is that of the present round.
            penalty: Added to the loss of every step: `Quadratic` or a function of the `Step`.
            layer: Name of the module whose outputs are the features of a `Step`; default: the inputs of the last linear layer.
            correction: Added to every step's gradient, [d] or [n, d].
            sampler: Chooses the rows of every step; `local.sampler` if None.
            gradient_rule: Replaces the plain gradient of a step.
            purpose: Name of the random stream, so that the same purpose draws the same batches; "train" if none is given.
            steps: Number of batches of each client [n], in place of `local.steps`.
            moving: Bool [d + b], the entries that training may change; None: all.
            weight_decays: Of each client [n], in place of `local.weight_decay`.

        Returns:
            Local models [n, d + b].
        """
        return LocalTraining(self, x, local, **options).models()

    def updates(
        self, x: Tensor, local: LocalSGD, **options: Unpack[TrainOptions]
    ) -> Tensor:
        """Train locally as `train` does, and return the models minus x, [n, d + b].

        A single step of plain SGD is its gradient times `-lr`, without the rounding of x.
        """
        return LocalTraining(self, x, local, **options).models(relative=True)

    def updates_from(self, starts: Tensor, local: LocalSGD) -> Tensor:
        """Train locally from each of the models [T, d + b] by the same batches; return the updates [n, T, d + b]."""
        if local.sampler is None:
            return updates_from(self, starts, local)
        return torch.stack([self.updates(start, local) for start in starts], dim=1)

    def personal(
        self,
        layers: str | tuple[str, ...],
        *,
        norms: str = "batch",
        key: str = "personal",
    ) -> Personal:
        """Choose the layers that each client keeps for itself.

        Args:
            layers: "head": the layer that a forward pass uses last; "norm": the layers that normalise; or patterns of names of tensors
                or of their modules, such as ("encoder.*",). Buffers go with their layer.
            norms: With "norm", "batch" for batch norm alone, or "all" for group and layer norm, too.
            key: Name in the client's memory; without `/`.

        Raises:
            InputError: Nothing would be personal, or nothing shared.
        """
        return Personal.of(self, layers, norms, key)

    @torch.no_grad()
    def features(
        self, x: Tensor, layer: str | None = None, *, part: str = "train"
    ) -> list[Tensor]:
        """Representations of rows by models that evaluate.

        Args:
            x: Model [d + b], or one per client [n, d + b].
            layer: Name of the module whose outputs they are; None: the inputs of the linear layer that is called last.
            part: `train`, `validation` or `test`.

        Returns:
            Of each client [rows, k], in the order of its rows, as `labels` has them.

        Raises:
            InputError: There is no such layer, or a client has no such rows.
        """
        pieces: list[list[Tensor]] = [[] for _ in self.names]
        with capture(self.workspace.model, layer) as found:
            for i, inputs, labels in self.chunks(x, part, None, "round", "eval"):
                self.workspace.model(inputs)
                pieces[i].append(captured(found).clone())
                self.spent["row_losses"] += len(labels)
        return [torch.cat(of_client) for of_client in pieces]

    def without_billing(self) -> Cohort:
        """The same clients, for work that is not counted: looking at a model is not part of a method's work."""
        return replace(self, spent=dict(self.spent))

    def recall(self, key: str, compute: Callable[[Cohort], Tensor], *of: Any) -> Tensor:
        """Return what an earlier task of this round computed from the same, [n, ...]; computed now for clients that have no such note.

        Args:
            key: key of the notes.
            compute: gives the same numbers for a cohort of some of these clients, [k, ...].
            of: as for `note`.
        """
        values = self.memory.recall(key, (self.seed, *of))
        missing = [i for i, value in enumerate(values) if value is None]
        if len(missing) == len(values):
            return compute(self)
        if missing:
            cohort = self.only(missing)
            cohort = replace(cohort, memory=self.memory.part(cohort.names))
            for i, value in zip(missing, compute(cohort), strict=True):
                values[i] = value
        return torch.stack(cast("list[Tensor]", values))

    def steps(self, local: LocalSGD) -> Tensor:
        """Number of batches that each client's training with these settings has, int64 [n]."""
        every = StepBatches(self, local, local.sampler)
        return torch.tensor(
            [every.count(i) for i in range(len(self.names))], dtype=torch.int64
        )

    def only(self, positions: Sequence[int]) -> Cohort:
        """The clients at `positions` as a cohort of their own; it reads their memory and writes none."""
        names = tuple([self.names[i] for i in positions])
        index = tuple([self.index[i] for i in positions])
        memory = self.memory.only(names)
        return Cohort(
            names,
            self.workspace,
            self.clients,
            index,
            memory,
            self.seed,
            self.round,
            self.spent,
        )


# ---- where a task meets its cohort


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
        self._server: Clients | None = None
        if clients.server is not None:
            self._server = Clients.of_server(clients.server, clients.transform)
        self._unseen: frozenset[str] = frozenset()
        if clients.unseen is not None:
            self._unseen = frozenset(clients.unseen.names)

    def answer(self, ask: Ask) -> Answer:
        """Run the task for `ask.names` as one cohort; if that fails, one by one, so that the failure has a name."""
        self.begin(ask)
        answers: list[Answer] = []
        for group in self._groups(ask.names):
            group_ask = ask
            if group != ask.names:
                group_ask = ask.to(group)
            group_answer = self._run(group_ask)
            if group_answer.failed and len(group) > 1:
                answers += [self._run(ask.to((name,))) for name in group]
            else:
                answers.append(group_answer)
        if self.workspace.x.nbytes >= LASTING:
            trim_heap()
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
        exchange = (
            ask.context.round,
            ask.context.attempt,
            ask.task,
            ask.context.stream,
        )
        if exchange != self._exchange:
            self._exchange, self._before = exchange, {}
        if ask.repeats:
            self._restore(ask.names)
        self._before.update(self.memory.round_values(ask.names))
        self._last = ask.context, ask.names

    def _restore(self, names: tuple[str, ...]) -> None:
        for name in names:
            if name in self._before:
                self.memory.undo(name, self._before[name])

    def _groups(self, names: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Clients that train, clients that are unseen, and the server: each a cohort of its own."""
        unseen = tuple(name for name in names if name in self._unseen)
        server = tuple(name for name in names if name == "server")
        trained = names
        if unseen or server:
            others = {*unseen, *server}
            trained = tuple(name for name in names if name not in others)
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
        # Also `SystemExit`: a task that calls `sys.exit` is a failure of this client.
        except BaseException as error:
            if is_interrupt(error):
                raise
            # What a failed attempt did would depend on who shared its cohort.
            return Answer(
                failed=dict.fromkeys(ask.names, _reason(error)),
                forgot=_sort_names(view.forgot),
            )
        view.commit()
        remembered = {
            key: tuple(rounds.items()) for key, rounds in view.rounds().items()
        }
        return Answer(
            (block,),
            spent=spent,
            forgot=_sort_names(view.forgot),
            remembered=remembered,
        )

    def _reply(self, ask: Ask, view: MemoryView, spent: dict[str, int]) -> Block:
        clients, names, task = self._rows_of(ask.names), ask.names, ask.function
        if names == clients.names:
            index = tuple(range(len(names)))
        else:
            index = tuple(clients.number(name) for name in names)
        cohort = Cohort(
            names,
            self.workspace,
            clients,
            index,
            view,
            ask.context.seed,
            ask.context.round,
            spent,
        )
        # Whatever the caller has chosen: a server may ask within `torch.no_grad`.
        with torch.enable_grad():
            reply: tuple[Any, ...] = task(cohort, **ask.arguments)
        fields = task.reply._fields
        if not isinstance(reply, tuple) or len(reply) != len(fields):
            raise TypeError(
                f"the task returned a {type(reply).__name__}, not a {task.reply.__name__}"
            )
        block = Block(names, dict(zip(fields, reply, strict=True)))
        layout = self.workspace.layout
        for key, value in block.values.items():
            # What could not be sent is refused also where nothing is sent.
            if isinstance(value, Tensor):
                check_plain(value, f"field {key!r}")
            else:
                to_json(value)
        # Of several clients, so that they are asked one by one and the one that is wrong has a name.
        if len(names) > 1:
            for key, value in block.values.items():
                if not has_form(value, task.kinds[key], len(names), layout):
                    raise ValueError("the reply does not fit")
        if not ask.filters:
            return block
        return apply_filters(block, ask, task, layout, view)


def _sort_names(names: Mapping[str, Collection[str]]) -> dict[str, tuple[str, ...]]:
    return {key: tuple(sorted(clients)) for key, clients in names.items() if clients}


def _reason(error: BaseException) -> str:
    try:
        text = plain(" ".join(str(error).split()), 200)
    except Exception:  # its own code writes its text
        text = ""
    if not text:
        return type(error).__name__
    return f"{type(error).__name__}: {text}"

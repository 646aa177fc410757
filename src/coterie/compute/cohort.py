"""Cohorts: the clients that live in this process, with their rows, the model and their memory.

A cohort of n clients is a client whose vectors have a leading dimension. Its primitives (`train`, `gradient`, `loss`, `losses`,
`evaluate`) hide how the work is done; a client's answer never depends on who else is in the cohort, because matrix products are
done per client and only gathers and elementwise work are flat. Every engine carries its asks to a `Shard`, which runs their tasks.
"""

from __future__ import annotations

import contextlib
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import replace
from math import nan
from typing import Any, Unpack, cast

import torch
from torch import Tensor

from coterie.base.clients import Clients
from coterie.base.errors import InputError, plain
from coterie.base.interrupts import is_interrupt
from coterie.base.loss import Kind
from coterie.base.rows import Inputs, check_plain, take
from coterie.base.vector import LASTING, trim_heap
from coterie.compute import cohort_rows
from coterie.compute.cohort_rows import CohortRows, answers_of
from coterie.compute.features import capture, captured
from coterie.compute.local_training import (
    LocalTraining,
    StepBatches,
    TrainOptions,
    of_client,
)
from coterie.compute.personal import Personal
from coterie.compute.segments import Segments
from coterie.compute.workspace import Workspace
from coterie.config.local import LocalSGD
from coterie.contract.filters import apply_filters
from coterie.contract.memory import Memory, MemoryView
from coterie.contract.replies import has_form
from coterie.contract.wire import Answer, Ask, Block, Context, to_json


class Cohort(CohortRows):
    """The clients that a task is run for: what they remember, their training, and gradients and losses at given models.

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
            return LocalTraining(self, starts[0], local).updates_from(starts)
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

    # ---- gradients and losses at given models

    def gradient(
        self,
        x: Tensor,
        *,
        part: str = "train",
        batch_size: int | None = None,
        purpose: str = "round",
        mode: str = "eval",
    ) -> Tensor:
        """Gradient of the mean loss at x, per client.

        Args:
            x: model [d + b], or one per client [n, d + b].
            part: `train`, `validation` or `test`; or `fresh`: rows that are drawn for this batch where the data can (`Clients.draw`).
            batch_size: rows of a random batch; None: all rows.
            purpose: name of the random batch: the same purpose gives the same batch in every ask of a round.
            mode: `eval`, or `train` for layers that behave differently in training.

        Returns:
            [n, d + b], 0 on the buffers.
        """
        return self._gradient(x, part, batch_size, purpose, mode, None)

    def gradients(
        self,
        x: Tensor,
        *,
        parts: int,
        part: str = "train",
        batch_size: int | None = None,
        purpose: str = "round",
        mode: str = "eval",
    ) -> Tensor:
        """Gradients of the mean losses of `parts` disjoint shares of the batch that `gradient` takes; sizes differ by at most one.

        Args:
            x: as for `gradient`, like all that follows but `parts`.
            parts: number of shares, >= 1 and at most the rows of a batch.
            part: part of the client's rows.
            batch_size: rows of all shares together; None: all rows.
            purpose: name of the random batch.
            mode: `eval` or `train`.

        Returns:
            [n, parts, d + b], 0 on the buffers.
        """
        for i, name in enumerate(self.names):
            rows = self.batch_rows(i, part, batch_size)
            if not 1 <= parts <= rows:
                raise InputError(
                    f"client {name!r}: a batch of {rows} rows cannot have {parts} parts"
                )
        # Every `parts`-th row of the batch; the whole batch is drawn and read as by `gradient`.
        shares: list[slice | None] = [None]
        if parts > 1:
            shares = [slice(k, None, parts) for k in range(parts)]
        gradients = [
            self._gradient(x, part, batch_size, purpose, mode, share)
            for share in shares
        ]
        return torch.stack(gradients, dim=1)

    def _gradient(
        self,
        x: Tensor,
        part: str,
        batch_size: int | None,
        purpose: str,
        mode: str,
        share: slice | None,
    ) -> Tensor:
        workspace, dim = self.workspace, self.layout.dim
        result = torch.empty(
            len(self.names),
            self.layout.size,
            dtype=self.layout.dtype,
            device=workspace.device,
        )
        if self.layout.size > dim:
            result[:, dim:] = 0
        kernel = workspace.batched
        if kernel is not None:
            x = x.to(workspace.x)
        mode_of_layers: contextlib.AbstractContextManager[None]
        mode_of_layers = contextlib.nullcontext()
        if mode == "train":
            mode_of_layers = workspace.training()
        # A client's batch comes in pieces: the gradient of the mean is the sum of theirs, by their shares of the rows.
        last_client = -1
        with mode_of_layers:
            for i, inputs, labels in self.chunks(
                x, part, batch_size, purpose, mode, share, load=kernel is None
            ):
                head = result[i, :dim]
                is_first = i > last_client
                count = self.batch_rows(i, part, batch_size)
                if share is not None:
                    count = len(range(count)[share])
                weight = len(labels) / count
                if share is None:
                    weight = len(labels) / self.mass(i, part, batch_size)
                if kernel is None:
                    grad = workspace.flat_gradient(inputs, labels)
                else:
                    # A kernel is found for no other inputs than a tensor; it may write straight into the result.
                    out = None
                    if is_first:
                        out = head
                    loss = workspace.loss
                    grad = kernel.gradient(
                        of_client(x, i),
                        cast("Tensor", inputs),
                        loss.plain(labels),
                        out=out,
                        weights=loss.weights(labels),
                    )
                if weight != 1:
                    grad = grad.mul_(weight)
                if not is_first:
                    head.add_(grad)
                elif grad is not head:
                    head.copy_(grad)
                last_client = i
                self.spent["row_gradients"] += len(labels)
        return result

    def sample_gradients(
        self, xs: Tensor, *, part: str = "train"
    ) -> Iterator[tuple[int, int, Tensor, Tensor]]:
        """Gradient of each row at each of several models, in eval mode.

        Args:
            xs: models [q, d + b]. Some rows come at each model in turn, so that models can be compared in little memory.
            part: `train`, `validation` or `test`.

        Yields:
            Position of the client, number of the model, labels [r] of some of the client's rows, and their gradients [r, d].
        """
        rows_at_once = max(1, cohort_rows.BLOCK // (2 * self.layout.dim))
        for i, inputs, labels in self.chunks(xs[0], part, None, "round", "eval"):
            for low in range(0, len(labels), rows_at_once):
                piece_inputs = take(inputs, slice(low, low + rows_at_once))
                piece_labels = labels[low : low + rows_at_once]
                for number, x in enumerate(xs):
                    self.workspace.load(x)
                    self.spent["row_gradients"] += len(piece_labels)
                    yield (
                        i,
                        number,
                        self.workspace.loss.plain(piece_labels),
                        self.workspace.row_gradients(piece_inputs, piece_labels),
                    )

    @torch.no_grad()
    def loss(
        self,
        x: Tensor,
        *,
        part: str = "train",
        batch_size: int | None = None,
        purpose: str = "round",
    ) -> Tensor:
        """Mean loss at x over rows, float64 [n]; arguments as for `gradient`."""
        result = torch.zeros(len(self.names), dtype=torch.float64)
        for i, inputs, labels in self.chunks(x, part, batch_size, purpose, "eval"):
            mass = self.mass(i, part, batch_size)
            result[i] += self._sum_losses(inputs, labels) / mass
        veil = self.workspace.veil
        if veil is not None:
            for i in range(len(self.names)):
                count = self.batch_rows(i, part, batch_size)
                result[i] = veil.loss(float(result[i]), count, of_client(x, i))
        return result

    def _sum_losses(self, inputs: Inputs, labels: Tensor) -> Tensor:
        """Sum of the losses of some rows at the loaded model, float64 []."""
        self.spent["row_losses"] += len(labels)
        outputs = self.workspace.model(inputs)
        losses = self.workspace.loss.rows(outputs, labels).double()
        if self.workspace.veil is not None:
            losses = self.workspace.veil.bound_losses(losses)
        return losses.sum().cpu()

    @torch.no_grad()
    def losses(
        self,
        xs: Tensor,
        *,
        part: str = "train",
        batch_size: int | None = None,
        purpose: str = "round",
    ) -> Tensor:
        """Mean losses of many candidate models, float64 [n, q]: candidates [q, d + b], or [n, q, d + b] for each client its own."""
        result = torch.zeros(len(self.names), xs.shape[-2], dtype=torch.float64)
        # Common candidates of several clients are each loaded once; else the rows of a client are each read once.
        if xs.ndim == 2 and len(self.names) > 1:
            for q, x in enumerate(xs):
                result[:, q] = self.loss(
                    x, part=part, batch_size=batch_size, purpose=purpose
                )
            return result
        own_candidates = xs.expand(len(self.names), *xs.shape[-2:])
        for i, inputs, labels in self.chunks(
            xs, part, batch_size, purpose, "eval", load=False
        ):
            mass = self.mass(i, part, batch_size)
            for q, x in enumerate(own_candidates[i]):
                self.workspace.load(x)
                result[i, q] += self._sum_losses(inputs, labels) / mass
        veil = self.workspace.veil
        if veil is not None:
            for i, candidates in enumerate(own_candidates):
                count = self.batch_rows(i, part, batch_size)
                for q, x in enumerate(candidates):
                    result[i, q] = veil.loss(float(result[i, q]), count, x)
        return result

    def evaluate(
        self,
        x: Tensor,
        metrics: Mapping[str, Callable[[Tensor, Tensor, Kind], float | None]],
        *,
        part: str = "test",
    ) -> dict[str, Tensor]:
        """Loss and metrics of x, per client.

        Losses are summed in float64. Metrics of a regression are in the unit of the label, its loss is that of the stored labels.

        Args:
            x: model [d + b], or one per client [n, d + b].
            metrics: by name, functions (outputs, labels, kind of task) -> number, or None where undefined. Their attribute `each`, if
                they have one, is a function (outputs, labels, kind, `Segments`) -> numbers [n] of many clients, NaN where undefined.
            part: `train`, `validation` or `test`. A client without such rows has n = 0 and no metric.

        Returns:
            `n` [n], `loss` [n] and one entry per metric, float64 [n]; NaN where undefined.
        """
        count, loss = len(self.names), self.workspace.loss
        scale, veil = self.clients.label_scale, self.workspace.veil
        measures = {
            name: torch.full((count,), nan, dtype=torch.float64)
            for name in ("loss", *metrics)
        }
        row_counts = torch.zeros(count, dtype=torch.float64)
        for group in self.groups(part):
            labels, segments = self.labels_of(group, part)
            outputs, losses = self.answers(group, x, part)
            rows = Segments(segments.place, segments.count)
            row_counts[group] = rows.sizes
            # Losses are multiplied by weights already.
            measures["loss"][group] = rows.sum(losses) / segments.sizes
            if loss.kind == "regression":
                outputs, labels = scale.undo(outputs), scale.undo(labels)
            outputs = loss.read(outputs)
            sizes = rows.sizes.long().tolist()
            for name, metric in metrics.items():
                by_segment = getattr(metric, "each", None)
                if by_segment is not None:
                    measured = by_segment(outputs, labels, loss.kind, segments)
                else:
                    of_clients = [outputs.split(sizes), labels.split(sizes)]
                    kinds: list[Any] = [loss.kind] * len(sizes)
                    columns = [*of_clients, kinds]
                    if segments.weights is not None:
                        columns.append(segments.weights.split(sizes))
                    measured = _as_column(
                        metric(*values) for values in zip(*columns, strict=True)
                    )
                if measured is not None:
                    measures[name][group] = measured
            if veil is None:
                continue
            for i, client_labels in zip(group, labels.split(sizes), strict=True):
                values = {name: float(column[i]) for name, column in measures.items()}
                veiled = veil.evaluation(values, client_labels, of_client(x, i))
                for name, value in veiled.items():
                    measures[name][i] = value
        return {**measures, "n": row_counts}

    @torch.no_grad()
    def answers(
        self, group: Sequence[int], x: Tensor, part: str
    ) -> tuple[Tensor, Tensor]:
        """Outputs and losses of all rows of some clients, one client behind the other, on the CPU."""
        workspace, all_rows = self.workspace, getattr(self.clients, part)
        for i in group:
            self.require_enough(i, None, part)
        # Clients of one model are read together, each of several models by itself.
        readings: list[tuple[Tensor, Sequence[int]]] = [(x, group)]
        if x.ndim > 1:
            readings = [(x[i], [i]) for i in group]
        pairs = []
        for start, readers in readings:
            workspace.load(start)
            if not workspace.always_random:
                places = [self.index[i] for i in readers]
                pairs.append(answers_of(workspace, all_rows, places))
                continue
            # Layers that draw also in evaluation draw by the client, so that it does not matter who is read before it.
            with workspace.noise():
                for i in readers:
                    self.restart_layers(i, "round")
                    pairs.append(answers_of(workspace, all_rows, [self.index[i]]))
        outputs = torch.cat([of_readers for of_readers, _ in pairs])
        losses = torch.cat([of_readers for _, of_readers in pairs])
        self.spent["row_losses"] += len(losses)
        if workspace.veil is not None:
            return outputs.nan_to_num(), workspace.veil.bound_losses(losses)
        return outputs, losses

    # ---- rows

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
        with torch.enable_grad():  # whatever the caller has chosen
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


def _as_column(values: Iterable[float | None]) -> Tensor:
    """Values of some clients as float64, NaN where undefined."""
    numbers = []
    for value in values:
        if value is None:
            value = nan
        numbers.append(value)
    return torch.tensor(numbers, dtype=torch.float64)


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

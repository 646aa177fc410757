"""The model of one process: a module whose tensors are views of one flat vector, and its loss."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coterie.base.clients import Client, Clients
from coterie.base.errors import InputError, plain, require
from coterie.base.loss import (
    Kind,
    RowLoss,
    WeightedLoss,
    are_probabilities,
    choose_loss,
)
from coterie.base.rng import Generators, fork_generators, generators_of, seed_noise
from coterie.base.rows import (
    ELEMENTS,
    Inputs,
    check_plain,
    row_size,
    rows,
    sample,
    take,
    tensors_by_name,
)
from coterie.base.vector import (
    Layout,
    copy_model,
    fits_alignment,
    flatten,
    keeps_statistics,
    unflatten,
)
from coterie.compute.columns import Columns
from coterie.compute.kernels import Batched, finite, recognise, shares_within
from coterie.contract.filters import Veil

logger = logging.getLogger("coterie")

_STEADY: dict[tuple[object, ...], bool] = {}
"""Answers of `Batched.steady` by what decides them: the runs of an experiment open the same model again and again."""
_STEADY_HEIGHTS: dict[tuple[object, ...], tuple[int, ...]] = {}
"""Answers of `Workspace.heights`, likewise, for models of which the classes of their modules say all."""
ROW_GRADIENTS = 1 << 22
"""Numbers in the gradients of rows that are held at once, where they are summed."""
HEIGHTS = {1024: 1 << 15, 256: 1 << 18, 64: 1 << 18, 16: ELEMENTS}
"""Rows of a forward pass that evaluates several clients, and the most numbers in them. A client's begin at a multiple of the least."""


def _by_keyword(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if len(args) == 1 and isinstance(args[0], dict):
        return (), {**args[0], **kwargs}
    return args, kwargs


def _logits(result: Any) -> Any:
    """Return what a model means as its outputs: a tensor, or what an object or a dict calls `logits`."""
    if isinstance(result, Tensor):
        return result
    if isinstance(result, Mapping):
        return result.get("logits")
    return getattr(result, "logits", None)


def _is_steady(batched: Batched) -> bool:
    for probe in batched.probes():
        key = (
            probe.layers,
            probe.kind,
            probe.layout.dtype,
            probe.device,
            torch.get_num_threads(),
        )
        if key not in _STEADY:
            _STEADY[key] = probe.steady()
        if not _STEADY[key]:
            return False
    return True


class Workspace:
    """A private copy of the model whose tensors are views of one flat buffer, and the loss.

    Loading a vector is one copy, and reading the trained model is one too; `torch.func.functional_call` costs a third more per step.

    Attributes:
        veil: hides what one row adds to losses and metrics (set where rows are private).
        fewest_rows: a gradient, a loss or a training step that rests on fewer different rows is an error (set where rows are private).
        secret_normal: draws N(0, 1) [count] under a key for some content (set where rows are private); None: noise is simulated.
        generators: what the model can draw from beside the global generators.
        tells_loss: whether `last_loss` is asked for, which kernels do not compute.
        last_loss: mean loss of the batch whose gradient was computed last.

    Raises `InputError` if model, loss and rows do not fit, found by one forward pass.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: str | RowLoss,
        example: Client,
        device: torch.device | str = "cpu",
        kernel: str = "auto",
        precision: str = "float32",
    ) -> None:
        self.device = torch.device(device)
        self._in_bf16 = precision == "bf16"
        self.fewest_rows = 1
        self.veil: Veil | None = None
        self.tells_loss = False
        self.last_loss = torch.tensor(torch.nan)
        self.secret_normal: Callable[[bytes, int], NDArray[np.float64]] | None = None
        self.channels_last = False
        self.layout = Layout.of(model)
        if self._in_bf16 and self.layout.dtype != torch.float32:
            raise InputError(
                f'precision = "bf16" is for models of float32, and this one has {self.layout.dtype}; leave out precision'
            )
        self.model = copy_model(model).to(self.device)
        # Counters are no part of a vector; they start anew with every training, so that nothing depends on what came before.
        carried = {name for name, _ in self.layout.buffers}
        self._counters = [
            (b, b.clone())
            for name, b in self.model.named_buffers()
            if name not in carried
        ]
        self.generators = generators_of(self.model, self.device)
        self.frozen = [m for m in self.model.modules() if keeps_statistics(m)]
        self.x = flatten(self.model, self.layout)
        self.head = self.x[: self.layout.dim]
        self.parameters = self._point_at(self.x)
        self.views = [p.data for p in self.parameters]
        self._two_rows = example.train.select(slice(0, 2))
        self._probe(loss, example)
        # A kernel makes its products in the type of the model: in bf16 it would not do what was asked.
        known: Batched | None = None
        if kernel == "auto" and not self._in_bf16:
            known = self._recognise(example)
        # One client at a time needs no company, so the sum over its rows is taken on every machine.
        self._of_rows = known
        self.batched: Batched | None = None
        if known is not None and self._is_used(known):
            self.batched = known

    @cached_property
    def columns(self) -> Columns | None:
        """What trains a linear model from several starts at once; None for other models."""
        return Columns.of(self.batched)

    def _recognise(self, example: Client) -> Batched | None:
        """The batched kernel, if it knows this model and this loss."""
        inputs = sample(example.train.inputs)
        known_loss = self.loss.own is None and self.loss.form is None
        if isinstance(inputs, dict) or not known_loss:
            return None
        layers = recognise(self.model, self.layout, inputs)
        if layers is None:
            return None
        kind: Kind = self.loss.kind
        # Several labels of a row are as many outputs with a binary cross-entropy each.
        if kind == "multilabel":
            kind = "binary"
        return Batched(layers, kind, self.layout, self.device)

    def _is_used(self, batched: Batched) -> bool:
        """Return True if the kernel gives the same bits in any company on this machine."""
        if not _is_steady(batched):
            logger.info(
                "the loop trains: on this machine a batched product depends on how many share it"
            )
            return False
        logger.info(
            "the batched kernel trains the %d layers of this model (kernel = 'loop' turns it off)",
            len(batched.layers),
        )
        return True

    def _point_at(self, flat: Tensor) -> list[nn.Parameter]:
        views = unflatten(flat, self.layout)
        named = dict(self.model.named_parameters())
        for name, _ in self.layout.parameters:
            named[name].data = views[name]
        first_names = {id(v): k for k, v in self.model.named_buffers()}
        for name, buffer in list(self.model.named_buffers(remove_duplicate=False)):
            if first_names[id(buffer)] in views:  # under each of its names
                owner, _, leaf = name.rpartition(".")
                self.model.get_submodule(owner)._buffers[leaf] = views[
                    first_names[id(buffer)]
                ]
        return [named[name] for name, _ in self.layout.parameters]

    def _probe(self, loss: str | RowLoss, example: Client) -> None:
        two_rows = self._two_rows
        inputs = self.prepare(two_rows.read())
        start = self.x.clone()
        with self.noise():
            outputs = self._first_outputs(inputs, example.name)
            self.always_random = self._draws(inputs)
        self.loss = choose_loss(loss, outputs, two_rows.labels)
        named = loss.loss if isinstance(loss, WeightedLoss) else loss
        if named == "auto" and self.loss.kind != "regression":
            self._refuse_probabilities(example)
        labels = two_rows.labels.to(self.device)
        self._logits = 2
        if self.loss.kind == "classes" and outputs.ndim > 1:
            self._logits = self.loss.align_classes(outputs).shape[1]
        self._check_loss(outputs, labels, example.name)
        # Of one logit 2, and as many as outputs where each row has one class; else 0.
        self.classes = 0
        plain_labels = self.loss.plain(two_rows.labels)
        has_class = plain_labels.ndim == 1
        has_class = has_class and not plain_labels.is_floating_point()
        if self.loss.kind == "binary":
            self.classes = 2
        elif outputs.ndim > 1 and has_class:
            self.classes = outputs.shape[1]
        convolves = any(
            isinstance(m, nn.modules.conv._ConvNd) for m in self.model.modules()
        )
        convolves_on_cpu = convolves and self.device.type == "cpu"
        # Convolutions with a kernel per row took eight times as long on a CPU as one row after the other (ResNet8, 16 rows).
        self.vectorised = not convolves_on_cpu
        self.channels_last = convolves_on_cpu and self._takes_channels_last(inputs)
        self.unused = self._has_unused_parameters(inputs, labels)
        norms = [
            m
            for m in self.model.modules()
            if isinstance(m, nn.modules.batchnorm._BatchNorm)
        ]
        self.batch_norm = any(m not in self.frozen for m in norms)
        # Whether training draws random numbers (dropout, ...) is seen rather than guessed from module types.
        with self.noise():
            self.train(True)
            self.random = self.always_random or (
                len(two_rows) >= self.smallest_batch and self._draws(inputs)
            )
        self.x.copy_(start)
        self.restart_counters()

    @torch.no_grad()
    def _refuse_probabilities(self, example: Client) -> None:
        """Raise `InputError` if the model ends in a sigmoid or a softmax, which the loss would apply once more."""
        inputs = self.prepare(example.train.select(slice(0, 8)).read())
        # Logits of large inputs leave [0, 1]; numbers of words cannot be scaled.
        tensors = tensors_by_name(inputs).values()
        scales: tuple[int, ...] = (1,)
        if all(value.is_floating_point() for value in tensors):
            scales = (1, 1000, -1000)
        outputs = []
        with self.noise():
            for scale in scales:
                scaled = each_tensor(partial(torch.mul, other=scale), inputs)
                outputs.append(self.loss.align_classes(self.model(scaled)))
        last_layer = self.model
        while isinstance(last_layer, nn.Sequential) and len(last_layer):
            last_layer = last_layer[-1]
        if isinstance(last_layer, nn.Sigmoid | nn.Softmax) or are_probabilities(
            self.loss.kind, outputs
        ):
            raise InputError(
                "the model gives probabilities, and the loss takes logits: leave out the Sigmoid or Softmax at the end of the model; "
                'if these are logits, name the loss: loss = "binary" or "classes"'
            )

    def _has_unused_parameters(self, inputs: Inputs, labels: Tensor) -> bool:
        """Return True if the loss does not depend on all parameters. Raises `InputError` if it has no gradient."""
        with self.noise(), torch.enable_grad():
            value = self.loss.mean(self.model(inputs), labels)
        try:
            gradients = torch.autograd.grad(value, self.parameters, allow_unused=True)
        except RuntimeError as error:
            raise InputError(
                f"no gradient of the loss can be computed: {plain(str(error), 120)}; look for detach(), no_grad() and changes in "
                "place in forward, and for inference_mode() around the call"
            ) from error
        return any(gradient is None for gradient in gradients)

    @torch.no_grad()
    def _draws(self, inputs: Inputs) -> bool:
        """Return True if the model draws random numbers. Raises `InputError` if it does so from a generator that cannot be seeded."""
        generators, start = Generators.now(self.generators), self.x.clone()
        outputs = self.model(inputs)
        drawn = generators.differ()
        generators.restore()
        self.load(start)
        self.restart_counters()
        require(
            torch.allclose(outputs, self.model(inputs), equal_nan=True),
            "the model gives other outputs when it reads the same rows again with the same seed, so no run could be repeated; "
            "let the module that draws hold its generator as an attribute: self.generator = torch.Generator()",
        )
        return drawn

    def noise(self, seed: int | None = None) -> AbstractContextManager[None]:
        """Within it the model may draw, first of `seed` if that is given; behind it all generators stand where they stood."""
        return fork_generators(seed, self.generators)

    def seed_noise(self, seed: int) -> None:
        """Seed all that the model can draw from; only within `noise`."""
        seed_noise(seed, self.generators)

    def _first_outputs(self, inputs: Inputs, name: str) -> Tensor:
        """The outputs of a first forward pass; from then on the model takes dicts by keyword and gives one tensor, if need be."""
        shape = each_tensor(lambda value: tuple(value.shape), inputs)
        self.model.eval()
        try:
            with torch.no_grad():
                outputs = self._forward(inputs)
        except Exception as error:
            why = str(error)
            if "Long and Float" in why:
                why = f"{why}; give inputs as floats: x.float()"
            raise InputError(
                f"the model cannot take inputs of shape {shape} of client {name!r}: {why}"
            ) from error
        if not isinstance(outputs, Tensor):
            kind, outputs = type(outputs).__name__, _logits(outputs)
            self.model.register_forward_hook(
                lambda module, given, result: _logits(result)
            )
        if not isinstance(outputs, Tensor):
            raise InputError(
                f"the model returns a {kind}; return one tensor, or an object or dict with 'logits'"
            )
        check_plain(outputs, "what the model gives")
        if len(outputs) != rows(inputs):
            raise InputError(
                f"the model gives {outputs.dtype} outputs of shape {tuple(outputs.shape)} for inputs of shape {shape}, not one for each"
            )
        return outputs

    def _forward(self, inputs: Inputs) -> Any:
        try:
            return self.model(inputs)
        except Exception:
            named = inspect.signature(self.model.forward).parameters
            if not isinstance(inputs, dict) or not set(inputs) <= set(named):
                raise
            self.model.register_forward_pre_hook(_by_keyword, with_kwargs=True)
            return self.model(inputs)

    def _check_loss(self, outputs: Tensor, labels: Tensor, name: str) -> None:
        if self.loss.is_known:
            self._refuse_unfit(name, labels)
        try:
            self.loss.rows(outputs, labels)
        except InputError:
            raise
        except Exception as error:
            # A function of the user's own may take other labels; torch's words for a class that is none name no client.
            if self.loss.kind == "classes":
                self._refuse_unfit(name, labels)
            shapes = f"outputs of shape {tuple(outputs.shape)} and {labels.dtype} labels of shape {tuple(labels.shape)}"
            raise InputError(
                f"the loss cannot take {shapes}: {type(error).__name__}: {error}"
            ) from error

    def check_labels(self, clients: Clients) -> None:
        """Raise `InputError` that names the client if a label is not a class that the model has an output for."""
        if not (self.loss.is_known and self.loss.has_classes):
            return
        all_labels = [
            self.loss.plain(group_rows.labels) for _, group_rows in clients.groups()
        ]
        if all(not bool(self._unfit(labels).any()) for labels in all_labels):
            return
        for names, group_rows in clients.groups():
            for i, name in enumerate(names):
                self._refuse_unfit(name, group_rows.part(i).labels)

    def _refuse_unfit(self, name: str, labels: Tensor) -> None:
        """Raise `InputError` that names the client if one of its labels is not a class that the model has an output for."""
        if not self.loss.has_classes:
            return
        labels = self.loss.plain(labels)
        unfit = labels[self._unfit(labels)]
        if len(unfit):
            classes = "0 and 1"
            if self._logits > 2:
                classes = f"0 to {self._logits - 1}"
            raise InputError(
                f"client {name!r} has the label {unfit[0].item()}, and the model knows the classes {classes}; "
                "number the classes 0, 1, 2, ... or give the model more outputs"
            )

    def _unfit(self, labels: Tensor) -> Tensor:
        if self.loss.kind == "classes":
            unknown = (labels < 0) | (labels >= self._logits)
            # Of rows with one label each nothing is ignored unless a module says it.
            if labels.ndim > 1 or self.loss.own is not None:
                unknown &= labels != self.loss.ignored
            return unknown
        if self.loss.own is not None and labels.is_floating_point():
            return (labels < 0) | (labels > 1)  # risks
        return (labels != 0) & (labels != 1)

    def train(self, mode: bool) -> None:
        """Let the model train or evaluate; batch norm with frozen parameters always evaluates, so that its statistics stay."""
        self.model.train(mode)
        for module in self.frozen:
            module.eval()

    @contextmanager
    def training(self) -> Iterator[None]:
        """Let the model train, and leave it afterwards as it was."""
        self.train(True)
        noise: AbstractContextManager[None] = nullcontext()
        if self.random:
            noise = self.noise()
        try:
            with noise:
                yield
        finally:
            self.model.eval()
            self.restart_counters()

    def _takes_channels_last(self, inputs: Inputs) -> bool:
        """Return True if the model takes images whose channels lie together, which convolutions of a CPU are faster with."""
        if isinstance(inputs, dict) or inputs.ndim != 4:
            return False
        try:
            with torch.enable_grad():
                outputs = self.model(
                    inputs.contiguous(memory_format=torch.channels_last)
                )
                torch.autograd.grad(outputs.sum(), self.parameters, allow_unused=True)
        except RuntimeError:  # `view` instead of `reshape` in the user's module
            return False
        return True

    @property
    def smallest_batch(self) -> int:
        """Rows that a training step needs: batch norm divides by the spread of a batch, which one row has not."""
        if self.batch_norm:
            return 2
        return 1

    def prepare(self, inputs: Inputs) -> Inputs:
        """Rows as the model takes them: on the device, uint8 images scaled to [0, 1], floats in the model's dtype."""
        if isinstance(inputs, dict):
            return {k: self._prepare(v) for k, v in inputs.items()}
        return self._prepare(inputs)

    def _prepare(self, value: Tensor) -> Tensor:
        dtype = value.dtype
        if value.is_floating_point():
            dtype = self.layout.dtype
        value = value.to(self.device, dtype)
        if self.channels_last and value.ndim == 4:
            value = value.contiguous(memory_format=torch.channels_last)
        if value.dtype == torch.uint8:
            return value.to(self.layout.dtype).div_(255)
        # Not `align`, which makes rows contiguous: a memory format is kept.
        if not fits_alignment(value):
            value = value.clone()
        return value

    def answer(self, inputs: Inputs, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs [rows, ...] and losses [rows] of the loaded model, which evaluates."""
        if self.model.training:
            self.train(False)
        # A model whose output is its parameter would give that parameter.
        outputs = self.model(inputs).detach()
        return outputs, self.loss.rows(outputs, labels)

    @cached_property
    def heights(self) -> tuple[int, ...]:
        """Rows of a forward pass that evaluates several clients, falling; none where each client is evaluated by itself.

        In blocks of all these heights what the model says of a row has the same bits, whatever rows lie beside it.
        """
        # A user's own module or loss may do what its name does not say: its answer is not kept for others.
        modules = {type(module).__module__ for module in self.model.modules()}
        known = all(name.startswith(("torch.nn.", "coterie.")) for name in modules)
        if self.loss.own is not None or not known:
            return self._steady_heights()
        inputs = tensors_by_name(self._two_rows.read()).values()
        forms = [
            (value.shape[1:], value.dtype) for value in (*inputs, self._two_rows.labels)
        ]
        key = (
            repr(self.model),
            str(forms),
            self.layout.dtype,
            self.device,
            self.loss.kind,
            self.loss.weighted,
            torch.get_num_threads(),
        )
        if key not in _STEADY_HEIGHTS:
            _STEADY_HEIGHTS[key] = self._steady_heights()
        return _STEADY_HEIGHTS[key]

    @torch.no_grad()
    def _steady_heights(self) -> tuple[int, ...]:
        """Find `heights` by trial: four blocks of the least height, each by itself, filled up, and within larger blocks."""
        row_numbers = row_size(self._two_rows.inputs)
        possible = [
            height
            for height, most_numbers in HEIGHTS.items()
            if height * row_numbers <= most_numbers
        ]
        if self.always_random or not possible:
            return ()
        units, block_rows = 4, possible[-1]
        draw, start = torch.Generator().manual_seed(0), self.x.clone()
        # A model of zeros, and equal rows, would have no bits to differ.
        self.x.add_(torch.randn(self.x.shape, generator=draw).to(self.x), alpha=0.1)
        index = torch.arange(units * block_rows) % len(self._two_rows)

        def vary(value: Tensor) -> Tensor:
            if not value.is_floating_point():
                return value
            factors = torch.rand(value.shape, generator=draw) / 2 + 0.5
            return value * factors.to(value)

        prepared = self.prepare(self._two_rows.read())
        inputs = each_tensor(vary, take(prepared, index.to(self.device)))
        labels = self._two_rows.labels[index].to(self.device)

        def answers(rows_at: Tensor) -> tuple[Tensor, Tensor]:
            rows = rows_at.to(self.device)
            chosen = each_tensor(lambda value: self._prepare(value[rows]), inputs)
            return self.answer(chosen, labels[rows])

        try:
            places = torch.arange(len(index)).view(units, block_rows)
            by_block = [answers(block) for block in places]
            expected_outputs = torch.cat([outputs for outputs, _ in by_block])
            expected_losses = torch.cat([losses for _, losses in by_block])

            def are_steady(rows_at: Tensor, count: int) -> bool:
                outputs, losses = answers(rows_at)
                rows_at = rows_at[:count]
                return torch.equal(
                    outputs[:count], expected_outputs[rows_at]
                ) and torch.equal(losses[:count], expected_losses[rows_at])

            # A client's first row fills up what its rows leave of a block.
            half = block_rows // 2
            filled = places[0] * (places[0] < half)
            if not are_steady(filled, half):
                return ()
            turned = places.roll(1, 0).view(-1)
            heights = []
            for height in possible:
                repeated = turned.repeat(height // len(index))
                if height == block_rows or are_steady(repeated, height):
                    heights.append(height)
            return tuple(heights)
        except Exception:  # these are not rows that the model was made for
            return ()
        finally:
            self.load(start)

    def load(self, x: Tensor) -> None:
        """Let the model be `x` [d + b]."""
        self.x.copy_(x)

    def restart_counters(self) -> None:
        """Set integer buffers (batches seen by batch norm) to what they were in the model that was given."""
        for counter, start in self._counters:
            counter.copy_(start)

    def gradients(
        self,
        inputs: Inputs,
        labels: Tensor,
        penalty: Callable[[Tensor], Tensor] | None = None,
    ) -> tuple[Tensor, ...]:
        """Gradient of the mean loss of a batch at the loaded model, one tensor per parameter.

        `penalty` is a function of the outputs whose scalar is added to the loss.
        """
        outputs = self._outputs_in_a_step(inputs)
        value = self.loss.mean(outputs, labels)
        if penalty is not None:
            value = value + penalty(outputs)
        if self.tells_loss:
            self.last_loss = value.detach()
        if self.unused:
            return torch.autograd.grad(
                value, self.parameters, allow_unused=True, materialize_grads=True
            )
        return torch.autograd.grad(value, self.parameters)

    def _outputs_in_a_step(self, inputs: Inputs) -> Tensor:
        """Outputs whose gradient is taken: with precision "bf16" products are of 16 bits, parameters and the loss of 32."""
        if not self._in_bf16:
            outputs: Tensor = self.model(inputs)
            return outputs
        with torch.autocast(self.device.type, torch.bfloat16):
            rounded: Tensor = self.model(inputs)
        return rounded.to(self.layout.dtype)

    def flat_gradient(
        self,
        inputs: Inputs,
        labels: Tensor,
        penalty: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """The same as one vector [d]."""
        in_kernel = penalty is None and not self.tells_loss
        if self.batched is not None and in_kernel and isinstance(inputs, Tensor):
            plain, weights = self.loss.plain(labels), self.loss.weights(labels)
            return self.batched.gradient(self.x, inputs, plain, weights=weights)
        return torch.cat(
            [g.reshape(-1) for g in self.gradients(inputs, labels, penalty)]
        )

    def row_gradients(self, inputs: Inputs, labels: Tensor) -> Tensor:
        """Gradient of the loss of each row at the loaded model [rows, d]; the model must be in eval mode.

        Vectorised over the rows where that is faster; for models that this cannot do (LSTM, control flow on values) row by row, which
        is logged once.
        """
        if self.vectorised:
            try:
                return self._gradients_by_vmap(inputs, labels)
            except Exception as error:
                self.vectorised = False
                why = f"{type(error).__name__}: {error}".splitlines()[0]
                logger.info(
                    "gradients of single rows are computed one by one, which is slower (%s)",
                    why,
                )
        slices = [slice(i, i + 1) for i in range(len(labels))]
        return torch.stack(
            [self.flat_gradient(take(inputs, row), labels[row]) for row in slices]
        )

    def clipped_sum(
        self, inputs: Inputs, labels: Tensor, bound: float | None
    ) -> Tensor:
        """Sum over rows of their gradients at the loaded model, each scaled to a length of `bound` at most (None: as it is) [d].

        Kernels make no gradient of a row; elsewhere at most `ROW_GRADIENTS` numbers of them are held at once. A row without finite
        gradient counts 0, where there is a bound.
        """
        if self._of_rows is not None and isinstance(inputs, Tensor):
            plain, weights = self.loss.plain(labels), self.loss.weights(labels)
            return self._of_rows.clipped_sum(self.head, inputs, plain, bound, weights)
        dim = self.layout.dim
        total = self.x.new_zeros(dim)
        height = max(1, ROW_GRADIENTS // dim)
        for low in range(0, len(labels), height):
            piece = slice(low, low + height)
            gradients = self.row_gradients(take(inputs, piece), labels[piece])
            if bound is None:
                total += gradients.sum(0)
                continue
            norms = torch.linalg.vector_norm(gradients, dim=1)
            if not bool(norms.isfinite().all()):
                gradients = finite(gradients)
            total += shares_within(norms, bound) @ gradients
        return total

    def _gradients_by_vmap(self, inputs: Inputs, labels: Tensor) -> Tensor:
        named = dict(self.model.named_parameters())
        names = [name for name, _ in self.layout.parameters]

        def loss_of_row(
            parameters: dict[str, Tensor], row: Inputs, label: Tensor
        ) -> Tensor:
            batch = each_tensor(lambda value: value[None], row)
            outputs = torch.func.functional_call(self.model, parameters, (batch,))
            return self.loss.rows(outputs, label[None]).sum()

        parameters = {name: named[name].detach() for name in names}
        # The same parameters for all rows; rows and labels along their first dimension.
        of_rows = torch.func.vmap(torch.func.grad(loss_of_row), in_dims=(None, 0, 0))
        gradients = of_rows(parameters, inputs, labels)
        flat = [gradients[name].reshape(len(labels), -1) for name in names]
        return torch.cat(flat, dim=1)

    def descend(
        self, inputs: Inputs, labels: Tensor, lr: float, decay: float = 0.0
    ) -> None:
        """One step of plain SGD in place; without the copy into one gradient vector, which costs a tenth of a small model's step."""
        for view, grad in zip(self.views, self.gradients(inputs, labels), strict=True):
            # Not `grad.add_`: autograd may give two parameters the same tensor.
            if decay:
                grad = grad.add(view, alpha=decay)
            view.sub_(grad, alpha=lr)


def each_tensor(change: Callable[[Tensor], Any], inputs: Inputs) -> Any:
    """Return `change` of the inputs, or of each of their tensors by name, where a row has several."""
    if isinstance(inputs, dict):
        return {name: change(value) for name, value in inputs.items()}
    return change(inputs)

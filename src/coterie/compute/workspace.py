"""The model of one process: a module whose tensors are views of one flat vector, and its loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coterie.base.clients import Client, Clients
from coterie.base.errors import InputError
from coterie.base.loss import RowLoss
from coterie.base.rng import fork_generators, generators_of, seed_noise
from coterie.base.rows import (
    Inputs,
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
from coterie.compute.discrete_gaussian import DrawWords
from coterie.compute.heights import find_heights
from coterie.compute.kernel_choice import find_mapped, is_steady, known_kernel
from coterie.compute.kernels import Batched
from coterie.compute.mapped import Mapped
from coterie.compute.probe import check_labels, probe
from coterie.contract.filters import Veil


class Workspace:
    """A private copy of the model whose tensors are views of one flat buffer, and the loss.

    Loading a vector is one copy, and reading the trained model is one too; `torch.func.functional_call` costs a third more per step.

    Attributes:
        veil: hides what one row adds to losses and metrics (set where rows are private).
        fewest_rows: a gradient, a loss or a training step that rests on fewer different rows is an error (set where rows are private).
        secret_normal: draws N(0, 1) [count] under a key for some content (set where rows are private); None: noise is simulated.
        secret_words: gives a source of random words under a key for some content (set where rows are summed behind masks).
        x: the loaded model [d + b]; `head` are its parameters [d], `views` each of them in its shape.
        generators: what the model can draw from beside the global generators.
        frozen: modules of batch norm whose parameters are frozen, which always evaluate.
        loss, classes, random, always_random, batch_norm, unused, channels_last: as `Probed` says.
        vectorised: whether gradients of rows are computed for many rows at once.
        batched: the kernel that trains; None: the plain loop does. `of_rows` is the same also where it trains no company.
        mapped: what trains several clients at once where no batched kernel does, if that is asked for.
        tells_loss: whether `last_loss` is asked for, which kernels do not compute.
        last_loss: mean loss of the batch whose gradient was computed last.
        kept_calls: by part, the rows of clients that were asked about last, as a kernel takes them (`compute/oracle.py`).
        kept_linear: rows of all clients, and of each the rows as a solver takes them (`compute/linear.py`).

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
        self.layout = Layout.of(model)
        self._in_bf16 = precision == "bf16"
        if self._in_bf16 and self.layout.dtype != torch.float32:
            raise InputError(
                f'precision = "bf16" is for models of float32, and this one has {self.layout.dtype}; leave out precision'
            )

        # A copy, so that the caller's model stays as it is.
        self.model = copy_model(model).to(self.device)
        # Counters are no part of a vector; they start anew with every training, so that nothing depends on what came before.
        carried = {name for name, _ in self.layout.buffers}
        self._counters: list[tuple[Tensor, Tensor]] = []
        for name, buffer in self.model.named_buffers():
            if name not in carried:
                self._counters.append((buffer, buffer.clone()))
        self.generators = generators_of(self.model, self.device)
        self.frozen = [m for m in self.model.modules() if keeps_statistics(m)]

        # All its tensors become views of one vector [d + b]; the parameters [d] are its head.
        self.x = flatten(self.model, self.layout)
        self.head = self.x[: self.layout.dim]
        self.parameters = self._point_at(self.x)
        self.views = [p.data for p in self.parameters]

        self.channels_last = False
        self.two_rows = example.train.select(slice(0, 2))
        found = probe(self, loss, example)
        self.loss, self.classes, self._logits = found.loss, found.classes, found.logits
        self.random, self.always_random = found.random, found.always_random
        self.batch_norm, self.unused = found.batch_norm, found.unused
        self.channels_last = found.channels_last
        # Convolutions with a kernel per row took eight times as long on a CPU as one row after the other (ResNet8, 16 rows).
        self.vectorised = not found.convolves

        # A kernel makes its products in the type of the model: in bf16 it would not do what was asked.
        known: Batched | None = None
        takes_kernels = kernel != "loop" and not self._in_bf16
        if takes_kernels:
            known = known_kernel(
                self.model, self.layout, self.loss, example, self.device
            )
        # One client at a time needs no company, so `clipped_sums` takes it on every machine.
        self.of_rows = known
        self.batched: Batched | None = None
        if known is not None and is_steady(known):
            self.batched = known
        self.mapped: Mapped | None = None
        is_mappable = not (self.random or self.unused)
        if kernel == "vmap" and takes_kernels and known is None and is_mappable:
            self.mapped = find_mapped(
                self.model,
                self.layout,
                self.loss,
                self.x.clone(),
                self.prepare(self.two_rows.read()),
                self.two_rows.labels.to(self.device),
            )

        self.fewest_rows = 1
        self.veil: Veil | None = None
        self.secret_normal: Callable[[bytes, int], NDArray[np.float64]] | None = None
        self.secret_words: Callable[[bytes], DrawWords] | None = None
        self.tells_loss = False
        self.last_loss = torch.tensor(torch.nan)
        self.kept_calls: dict[str, tuple[Any, ...]] = {}
        self.kept_linear: tuple[Any, dict[int, Any]] = None, {}

    @cached_property
    def columns(self) -> Columns | None:
        """What trains a linear model from several starts at once; None for other models."""
        return Columns.of(self.batched)

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

    def noise(self, seed: int | None = None) -> AbstractContextManager[None]:
        """Within it the model may draw, first of `seed` if that is given; behind it all generators stand where they stood."""
        return fork_generators(seed, self.generators)

    def seed_noise(self, seed: int) -> None:
        """Seed all that the model can draw from; only within `noise`."""
        seed_noise(seed, self.generators)

    def check_labels(self, clients: Clients) -> None:
        """Raise `InputError` that names the client if a label is not a class that the model has an output for."""
        check_labels(self.loss, self._logits, clients)

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
        """Rows of a forward pass that evaluates several clients, falling; none where each client is evaluated by itself."""
        return find_heights(self)

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

    def descend(
        self, inputs: Inputs, labels: Tensor, lr: float, decay: float = 0.0
    ) -> None:
        """One step of plain SGD in place; without the copy into one gradient vector, which costs a tenth of a small model's step."""
        for view, grad in zip(self.views, self.gradients(inputs, labels), strict=True):
            # Not `grad.add_`: autograd may give two parameters the same tensor.
            if decay:
                grad = grad.add(view, alpha=decay)
            view.sub_(grad, alpha=lr)

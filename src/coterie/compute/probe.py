"""Do model, loss and rows fit, and what does the model do? Forward passes of two rows say it before a run begins."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from coterie.base.clients import Client, Clients
from coterie.base.errors import InputError, plain, require
from coterie.base.loss import (
    Loss,
    RowLoss,
    WeightedLoss,
    are_probabilities,
    choose_loss,
)
from coterie.base.rng import Generator, Generators
from coterie.base.rows import Inputs, check_plain, each_tensor, rows, tensors_by_name

LOOKS = 3
"""How often a model that seems to draw is looked at: another thread may have drawn meanwhile, as sites in one process do."""


class LoadedModel(Protocol):
    """What is probed: a model whose tensors are views of one vector x [d + b]. `Workspace` says more of each."""

    device: torch.device
    model: nn.Module
    x: Tensor
    parameters: list[nn.Parameter]
    generators: tuple[Generator, ...]
    frozen: list[nn.Module]

    def prepare(self, inputs: Inputs) -> Inputs:
        """Rows as the model takes them."""

    def load(self, x: Tensor) -> None:
        """Let the model be x."""

    def train(self, mode: bool) -> None:
        """Let the model train or evaluate."""

    def noise(self) -> AbstractContextManager[None]:
        """Within it the model may draw; behind it all generators stand where they stood."""

    def restart_counters(self) -> None:
        """Set integer buffers to what they were."""


class Probed(NamedTuple):
    """What a probe has found.

    Attributes:
        loss: the loss of rows.
        logits: classes that outputs tell apart; 2 of one logit.
        classes: of one logit 2, and as many as outputs where each row has one class; else 0.
        always_random: whether the model draws random numbers, also where it evaluates.
        random: whether it draws some in training (dropout, ...).
        batch_norm: whether a batch norm is trained, whose steps need two rows.
        unused: whether the loss does not depend on all parameters.
        convolves: whether convolutions are computed on a CPU.
        channels_last: whether the model takes images whose channels lie together, which convolutions of a CPU are faster with.
    """

    loss: Loss
    logits: int
    classes: int
    always_random: bool
    random: bool
    batch_norm: bool
    unused: bool
    convolves: bool
    channels_last: bool


def probe(loaded: LoadedModel, loss: str | RowLoss, example: Client) -> Probed:
    """Run the model on two rows of a client; it is left as it was.

    From here on the model takes dicts by keyword, and gives one tensor, if need be.

    Args:
        loaded: The model.
        loss: The loss, or its name; "auto" follows from outputs and labels.
        example: Any client.

    Raises:
        InputError: Model, loss and rows do not fit, or no run with this model could be repeated.
    """
    two_rows = example.train.select(slice(0, 2))
    inputs = loaded.prepare(two_rows.read())
    labels = two_rows.labels.to(loaded.device)
    start = loaded.x.clone()

    # What the model gives.
    with loaded.noise():
        outputs = _first_outputs(loaded.model, inputs, example.name)
        always_random = _draws(loaded, inputs)

    # The loss, and the classes that it knows.
    row_loss = choose_loss(loss, outputs, two_rows.labels)
    named = loss.loss if isinstance(loss, WeightedLoss) else loss
    if named == "auto" and row_loss.kind != "regression":
        _refuse_probabilities(loaded, row_loss, example)
    logits = 2
    if row_loss.kind == "classes" and outputs.ndim > 1:
        logits = row_loss.align_classes(outputs).shape[1]
    _check_loss(row_loss, logits, outputs, labels, example.name)
    classes = 0
    plain_labels = row_loss.plain(labels)
    one_class_a_row = plain_labels.ndim == 1
    one_class_a_row = one_class_a_row and not plain_labels.is_floating_point()
    if row_loss.kind == "binary":
        classes = 2
    elif outputs.ndim > 1 and one_class_a_row:
        classes = outputs.shape[1]

    # How it computes.
    modules = list(loaded.model.modules())
    convolves = False
    if loaded.device.type == "cpu":
        convolves = any(isinstance(m, nn.modules.conv._ConvNd) for m in modules)
    channels_last = convolves and _takes_channels_last(loaded, inputs)
    unused = _has_unused_parameters(loaded, row_loss, inputs, labels)
    norms = [m for m in modules if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    batch_norm = any(norm not in loaded.frozen for norm in norms)

    # Whether training draws random numbers is seen rather than guessed from module types.
    random = always_random
    smallest_batch = 2 if batch_norm else 1
    with loaded.noise():
        loaded.train(True)
        if not random and len(two_rows) >= smallest_batch:
            random = _draws(loaded, inputs)
    loaded.x.copy_(start)
    loaded.restart_counters()
    return Probed(
        loss=row_loss,
        logits=logits,
        classes=classes,
        always_random=always_random,
        random=random,
        batch_norm=batch_norm,
        unused=unused,
        convolves=convolves,
        channels_last=channels_last,
    )


# ---- outputs


def _first_outputs(model: nn.Module, inputs: Inputs, name: str) -> Tensor:
    """The outputs of a first forward pass; from then on the model takes dicts by keyword and gives one tensor, if need be."""
    shape = each_tensor(lambda value: tuple(value.shape), inputs)
    model.eval()
    try:
        with torch.no_grad():
            outputs = _forward(model, inputs)
    except Exception as error:
        why = str(error)
        if "Long and Float" in why:
            why = f"{why}; give inputs as floats: x.float()"
        raise InputError(
            f"the model cannot take inputs of shape {shape} of client {name!r}: {why}"
        ) from error
    if not isinstance(outputs, Tensor):
        kind, outputs = type(outputs).__name__, _logits(outputs)
        model.register_forward_hook(lambda module, given, result: _logits(result))
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


def _forward(model: nn.Module, inputs: Inputs) -> Any:
    try:
        return model(inputs)
    except Exception:
        named = inspect.signature(model.forward).parameters
        if not isinstance(inputs, dict) or not set(inputs) <= set(named):
            raise
        model.register_forward_pre_hook(_by_keyword, with_kwargs=True)
        return model(inputs)


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


@torch.no_grad()
def _refuse_probabilities(loaded: LoadedModel, loss: Loss, example: Client) -> None:
    """Raise `InputError` if the model ends in a sigmoid or a softmax, which the loss would apply once more."""
    inputs = loaded.prepare(example.train.select(slice(0, 8)).read())
    # Logits of large inputs leave [0, 1]; numbers of words cannot be scaled.
    tensors = tensors_by_name(inputs).values()
    scales: tuple[int, ...] = (1,)
    if all(value.is_floating_point() for value in tensors):
        scales = (1, 1000, -1000)
    outputs = []
    with loaded.noise():
        for scale in scales:
            scaled = each_tensor(partial(torch.mul, other=scale), inputs)
            outputs.append(loss.align_classes(loaded.model(scaled)))
    last_layer = loaded.model
    while isinstance(last_layer, nn.Sequential) and len(last_layer):
        last_layer = last_layer[-1]
    ends_so = isinstance(last_layer, nn.Sigmoid | nn.Softmax)
    if ends_so or are_probabilities(loss.kind, outputs):
        raise InputError(
            "the model gives probabilities, and the loss takes logits: leave out the Sigmoid or Softmax at the end of the model; "
            'if these are logits, name the loss: loss = "binary" or "classes"'
        )


# ---- what it does


@torch.no_grad()
def _draws(loaded: LoadedModel, inputs: Inputs) -> bool:
    """Return True if the model draws random numbers, which it then does each time.

    Raises `InputError` if it does so from a generator that cannot be seeded.
    """
    start, drawn = loaded.x.clone(), True
    for _ in range(LOOKS):
        generators = Generators.now(loaded.generators)
        outputs = loaded.model(inputs)
        drawn = generators.differ()
        generators.restore()
        loaded.load(start)
        loaded.restart_counters()
        if not drawn:
            break
    require(
        torch.allclose(outputs, loaded.model(inputs), equal_nan=True),
        "the model gives other outputs when it reads the same rows again with the same seed, so no run could be repeated; "
        "let the module that draws hold its generator as an attribute: self.generator = torch.Generator()",
    )
    return drawn


def _has_unused_parameters(
    loaded: LoadedModel, loss: Loss, inputs: Inputs, labels: Tensor
) -> bool:
    """Return True if the loss does not depend on all parameters. Raises `InputError` if it has no gradient."""
    with loaded.noise(), torch.enable_grad():
        value = loss.mean(loaded.model(inputs), labels)
    try:
        gradients = torch.autograd.grad(value, loaded.parameters, allow_unused=True)
    except RuntimeError as error:
        raise InputError(
            f"no gradient of the loss can be computed: {plain(str(error), 120)}; look for detach(), no_grad() and changes in "
            "place in forward, and for inference_mode() around the call"
        ) from error
    return any(gradient is None for gradient in gradients)


def _takes_channels_last(loaded: LoadedModel, inputs: Inputs) -> bool:
    if isinstance(inputs, dict) or inputs.ndim != 4:
        return False
    try:
        with torch.enable_grad():
            images = inputs.contiguous(memory_format=torch.channels_last)
            outputs = loaded.model(images)
            torch.autograd.grad(outputs.sum(), loaded.parameters, allow_unused=True)
    except RuntimeError:  # `view` instead of `reshape` in the user's module
        return False
    return True


# ---- labels


def _check_loss(
    loss: Loss, logits: int, outputs: Tensor, labels: Tensor, name: str
) -> None:
    if loss.is_known:
        _refuse_unfit(loss, logits, name, labels)
    try:
        loss.rows(outputs, labels)
    except InputError:
        raise
    except Exception as error:
        # A function of the user's own may take other labels; torch's words for a class that is none name no client.
        if loss.kind == "classes":
            _refuse_unfit(loss, logits, name, labels)
        shapes = f"outputs of shape {tuple(outputs.shape)} and {labels.dtype} labels of shape {tuple(labels.shape)}"
        raise InputError(
            f"the loss cannot take {shapes}: {type(error).__name__}: {error}"
        ) from error


def check_labels(loss: Loss, logits: int, clients: Clients) -> None:
    """Raise `InputError` that names the client if a label is not a class that the model has an output for; `logits` as in `Probed`."""
    if not (loss.is_known and loss.has_classes):
        return
    all_labels = [loss.plain(group_rows.labels) for _, group_rows in clients.groups()]
    if all(not bool(_unfit(loss, logits, labels).any()) for labels in all_labels):
        return
    for names, group_rows in clients.groups():
        for i, name in enumerate(names):
            _refuse_unfit(loss, logits, name, group_rows.part(i).labels)


def _refuse_unfit(loss: Loss, logits: int, name: str, labels: Tensor) -> None:
    """Raise `InputError` that names the client if one of its labels is not a class that the model has an output for."""
    if not loss.has_classes:
        return
    labels = loss.plain(labels)
    unfit = labels[_unfit(loss, logits, labels)]
    if len(unfit):
        classes = "0 and 1"
        if logits > 2:
            classes = f"0 to {logits - 1}"
        raise InputError(
            f"client {name!r} has the label {unfit[0].item()}, and the model knows the classes {classes}; "
            "number the classes 0, 1, 2, ... or give the model more outputs"
        )


def _unfit(loss: Loss, logits: int, labels: Tensor) -> Tensor:
    if loss.kind == "classes":
        unknown = (labels < 0) | (labels >= logits)
        # Of rows with one label each nothing is ignored unless a module says it.
        if labels.ndim > 1 or loss.own is not None:
            unknown &= labels != loss.ignored
        return unknown
    if loss.own is not None and labels.is_floating_point():
        return (labels < 0) | (labels > 1)  # risks
    return (labels != 0) & (labels != 1)

"""Models by name: each a frozen dataclass of settings whose `build` makes an `nn.Module` for given inputs and outputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from copy import deepcopy
from fnmatch import fnmatchcase
from typing import Annotated, Any, Protocol

import torch
from torch import Tensor, nn

from coterie.core.errors import InputError, require
from coterie.core.inputs import Inputs, sample, take
from coterie.core.loss import IGNORED, is_multi_hot
from coterie.core.noise import forked
from coterie.core.rng import Rng
from coterie.core.rows import Clients
from coterie.core.schema import BELOW_ONE, SIZE, Flag, Registry, Rule, list_of, one_of, options
from coterie.core.vector import freeze_statistics

__all__ = [
    "CNN",
    "MLP",
    "MODELS",
    "CharLSTM",
    "Logistic",
    "Mean",
    "ModelSpec",
    "ResNet8",
    "ResNet9",
    "ResNet18",
    "TwoNN",
    "build_model",
    "build_shape",
    "outputs_of",
]


class ModelSpec(Protocol):
    """Settings of a model that is built once the shapes are known."""

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """A module for inputs of `shape` (without rows) and this many outputs."""
        ...


@options
class Logistic:
    """Logistic regression (linear regression for float labels), from all weights 0.

    >>> sum(p.numel() for p in Logistic().build((13,), 1).parameters())
    14
    """

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """A linear layer on flattened inputs."""
        layer = nn.Linear(_flat(shape), outputs)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        return nn.Sequential(nn.Flatten(), layer) if len(shape) > 1 else layer


@options
class MLP:
    """Multi-layer perceptron with ReLU.

    Attributes:
        hidden: widths of the hidden layers.
        dropout: probability in [0, 1) after each hidden layer.

    >>> sum(p.numel() for p in MLP().build((28, 28), 10).parameters())
    52500
    """

    hidden: Annotated[tuple[int, ...], list_of(SIZE, "a list of ints > 0")] = (64, 30)
    dropout: Annotated[float, BELOW_ONE] = 0.0

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Linear layers with ReLU (and dropout) between them."""
        layers: list[nn.Module] = [nn.Flatten()] if len(shape) > 1 else []
        width = _flat(shape)
        for size in self.hidden:
            layers += [nn.Linear(width, size), nn.ReLU(), *([nn.Dropout(self.dropout)] if self.dropout else [])]
            width = size
        return nn.Sequential(*layers, nn.Linear(width, outputs))


@options
class TwoNN:
    """2NN of McMahan et al.: two hidden layers of 200 units with ReLU.

    >>> sum(p.numel() for p in TwoNN().build((28, 28), 47).parameters())
    206647
    """

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """An `MLP` of these widths."""
        return MLP(hidden=(200, 200)).build(shape, outputs)


_TWO = Rule(lambda v: isinstance(v, tuple) and len(v) == 2 and all(map(SIZE.test, v)), "a list of two ints > 0")


@options
class CNN:
    """CNN of McMahan et al.: 5x5 convolutions to 32 and 64 channels, each with 2x2 max pooling, and 512 units.

    Attributes:
        channels: of both convolutions.
        units: of the layer behind them.

    >>> sum(p.numel() for p in CNN().build((28, 28), 10).parameters())
    1663370
    """

    channels: Annotated[tuple[int, ...], _TWO] = (32, 64)
    units: Annotated[int, SIZE] = 512

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Convolutions keep the size of the image; pooling halves it."""
        image, before, height, width = _images(self, shape, 4)
        first, second = self.channels
        return nn.Sequential(
            *image,
            *(nn.Conv2d(before, first, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(first, second, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(second * (height // 4) * (width // 4), self.units), nn.ReLU()),
            nn.Linear(self.units, outputs),
        )


class _Characters(nn.Module):
    def __init__(self, embedding: int, hidden: int, layers: int, outputs: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(outputs, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(inputs))
        logits: Tensor = self.head(states)
        return logits.transpose(1, 2)


@options
class CharLSTM:
    """LSTM that predicts the next character at every position: inputs [rows, time] of class numbers, outputs [rows, classes, time].

    Attributes:
        embedding: width of a character.
        hidden: units of a layer.
        layers: number of layers.

    >>> sum(p.numel() for p in CharLSTM().build((80,), 97).parameters())
    26025
    """

    embedding: Annotated[int, SIZE] = 8
    hidden: Annotated[int, SIZE] = 64
    layers: Annotated[int, SIZE] = 1

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """For sequences of class numbers."""
        require(len(shape) == 1, f"CharLSTM needs sequences [time] of class numbers; inputs are {shape}")
        return _Characters(self.embedding, self.hidden, self.layers, outputs)


_NORM = one_of("group", "batch")


@options
class ResNet8:
    """ResNet8 of the ISFL paper: three convolutions, two residual blocks of two each, and a linear layer.

    The paper gives 2 residual blocks, 8 trainable layers and 468,618 parameters for ten classes; this is ResNet9 less one
    convolution at half its width, pooled to 2 x 2, which has exactly that many.

    Attributes:
        norm: group (groups of 16 channels; no buffers to average) or batch (the paper).

    >>> sum(p.numel() for p in ResNet8().build((3, 32, 32), 10).parameters())
    468618
    """

    norm: Annotated[str, _NORM] = "group"

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Images of at least 8 x 8."""
        image, channels, height, width = _images(self, shape, 8)
        left = 128 * (height // 4 // (height // 8)) * (width // 4 // (width // 8))
        return nn.Sequential(
            *image,
            _block(channels, 32, self.norm),
            _block(32, 64, self.norm, pool=True),
            _Residual(_block(64, 64, self.norm), _block(64, 64, self.norm)),
            _block(64, 128, self.norm, pool=True),
            _Residual(_block(128, 128, self.norm), _block(128, 128, self.norm)),
            *(nn.MaxPool2d((height // 8, width // 8)), nn.Flatten(), nn.Linear(left, outputs)),
        )


@options
class ResNet9:
    """ResNet9: four convolutions to 512 channels, two residual blocks of two each, and a linear layer.

    Attributes:
        norm: group (groups of 16 channels; no buffers to average) or batch (the paper).

    >>> sum(p.numel() for p in ResNet9().build((3, 32, 32), 100).parameters())
    6621540
    """

    norm: Annotated[str, _NORM] = "group"

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Images of at least 8 x 8."""
        image, channels, height, width = _images(self, shape, 8)
        return nn.Sequential(
            *image,
            _block(channels, 64, self.norm),
            _block(64, 128, self.norm, pool=True),
            _Residual(_block(128, 128, self.norm), _block(128, 128, self.norm)),
            _block(128, 256, self.norm, pool=True),
            _block(256, 512, self.norm, pool=True),
            _Residual(_block(512, 512, self.norm), _block(512, 512, self.norm)),
            *(nn.MaxPool2d((height // 8, width // 8)), nn.Flatten(), nn.Linear(512, outputs)),
        )


@options
class ResNet18:
    """ResNet18 for small images: its first layer is a 3x3 convolution of stride 1 without pooling.

    Attributes:
        norm: group (groups of 16 channels; no buffers to average) or batch (the paper).

    >>> sum(p.numel() for p in ResNet18().build((3, 32, 32), 10).parameters())
    11173962
    """

    norm: Annotated[str, _NORM] = "group"

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Four stages of two basic blocks with 64, 128, 256 and 512 channels; the mean over the last image."""
        image, channels, _, _ = _images(self, shape, 8)
        stages = [
            layer
            for before, after, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2))
            for layer in (_basic(before, after, stride, self.norm), _basic(after, after, 1, self.norm))
        ]
        stem = (nn.Conv2d(channels, 64, 3, padding=1, bias=False), _norm(64, self.norm), nn.ReLU())
        return nn.Sequential(*image, *stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, outputs))


class _Residual(nn.Module):
    """The input, through `shortcut` where its shape changes, plus what the layers make of it."""

    def __init__(self, *layers: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.body = nn.Sequential(*layers)
        self.shortcut = shortcut or nn.Identity()

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.body(inputs) + self.shortcut(inputs)
        return out


def _block(before: int, after: int, norm: str, *, pool: bool = False) -> nn.Sequential:
    layers = (nn.Conv2d(before, after, 3, padding=1), _norm(after, norm), nn.ReLU())
    return nn.Sequential(*layers, *((nn.MaxPool2d(2),) if pool else ()))


def _basic(before: int, after: int, stride: int, norm: str) -> nn.Sequential:
    shortcut = None
    if before != after:
        shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), _norm(after, norm))
    first = (nn.Conv2d(before, after, 3, stride, 1, bias=False), _norm(after, norm), nn.ReLU())
    second = (nn.Conv2d(after, after, 3, padding=1, bias=False), _norm(after, norm))
    return nn.Sequential(_Residual(*first, *second, shortcut=shortcut), nn.ReLU())


def _norm(channels: int, norm: str) -> nn.Module:
    return nn.BatchNorm2d(channels) if norm == "batch" else nn.GroupNorm(channels // 16, channels)


def _images(model: object, shape: Any, smallest: int) -> tuple[list[nn.Module], int, int, int]:
    """Layers that give images a channel dimension if they have none; channels, height and width."""
    good = isinstance(shape, tuple) and len(shape) in (2, 3) and min(shape[-2:]) >= smallest
    require(
        good,
        f"{type(model).__name__} needs images [height, width] or [channels, height, width] of at least {smallest} x "
        f"{smallest}; inputs are {shape}",
    )
    grey = len(shape) == 2
    return [nn.Unflatten(1, (1, shape[0]))] if grey else [], 1 if grey else shape[0], shape[-2], shape[-1]


class _Constant(nn.Module):
    constant_output = "mean"  # by which the batched kernel knows it

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.full((dim,), dim**-0.5))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.mean.expand(inputs.shape[0], -1)


@options
class Mean:
    """The model of mean estimation: one vector, the same output for every row; starts at ones / sqrt(dim)."""

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """A module whose output is its parameter."""
        return _Constant(outputs)


def _flat(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())


MODELS = Registry(
    "model",
    {
        "logistic": Logistic,
        "mlp": MLP,
        "2nn": TwoNN,
        "cnn": CNN,
        "char-lstm": CharLSTM,
        "resnet8": ResNet8,
        "resnet9": ResNet9,
        "resnet18": ResNet18,
        "mean": Mean,
    },
    default="logistic",
    flag=Flag("--model", "NAME"),
)
"""Models by name."""


_MANY = 1000
"""Classes from which most of their numbers must occur: a model with an output for each number would fill the memory."""


def outputs_of(clients: Clients) -> int:
    """Number of outputs that `loss="auto"` expects: 1 for two classes or one float label, C for C classes, or the labels' width.

    Raises `InputError` if all labels are of one class.
    """
    labels = clients.train.labels
    if labels.is_floating_point():
        return 1 if labels.ndim == 1 else int(labels.shape[1])
    seen = [rows.labels for rows in (clients.train, clients.validation, clients.test) if rows is not None]
    if is_multi_hot(labels):
        return int(labels.shape[1])
    classes = torch.cat([v[v != IGNORED].unique() for v in seen]).unique()
    require(
        len(classes) > 0, f"all labels of {clients.name!r} are {IGNORED}, which is ignored; there is nothing to learn"
    )
    lowest, highest = int(classes[0]), int(classes[-1])
    require(lowest >= 0, f"labels must be classes 0, 1, ...; got {lowest}")
    count = max(highest + 1, len(clients.classes))
    if count > _MANY and count > 10 * len(classes):
        who = next(c.name for c in clients for _, part in c.parts() if bool((part.labels == highest).any()))
        raise InputError(
            f"client {who!r} has the label {highest}, but there are only {len(classes)} different ones; number the classes "
            "0, 1, 2, ..."
        )
    if lowest == highest:
        name = clients.classes[lowest] if clients.classes else lowest
        raise InputError(f"all labels of {clients.name!r} are of one class ({name}); there is nothing to learn")
    return 1 if count == 2 else count


def build_model(model: nn.Module | ModelSpec | Callable[..., nn.Module], clients: Clients, seed: int) -> nn.Module:
    """The module to train: a module as it is, or one built for these clients with named randomness.

    Lazy layers (`nn.LazyLinear`, ...) are made from rows.

    Args:
        model: an `nn.Module`, a `ModelSpec`, or a function (shape, outputs) -> module.
        clients: give the shape of inputs and the number of outputs.
        seed: of the run; the same for all methods.
    """
    if isinstance(model, nn.Module):
        return _materialised(model, clients, seed)
    inputs = sample(clients.train.inputs)
    shape: Any = (
        {k: tuple(v.shape[1:]) for k, v in inputs.items()} if isinstance(inputs, dict) else tuple(inputs.shape[1:])
    )
    with forked(Rng.named(seed, "model").seed()):
        module = build_shape(model, shape, outputs_of(clients))
    return _materialised(module, clients, seed)


def freeze(module: nn.Module, patterns: Sequence[str], where: str = "freeze") -> None:
    """Let what `patterns` name stay as it is: modules ("0"), parameters ("0.*"), and statistics of batch norm ("*.running_*").

    Raises `InputError` for a pattern that fits nothing of these.
    """
    names = [name for name, _ in module.named_parameters(remove_duplicate=False)]
    norms = [(name, m) for name, m in module.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    statistics = {f"{name}.{k}".lstrip("."): m for name, m in norms for k, _ in m.named_buffers(recurse=False)}
    for pattern in patterns:
        hit = [name for name in (*names, *statistics) if _fits(name, pattern)]
        require(bool(hit), f"{where} = {pattern!r} fits no parameter; there are {', '.join(names[:6])}")
        for name in hit:
            if name in statistics:
                freeze_statistics(statistics[name])
            else:
                module.get_parameter(name).requires_grad_(False)


def _fits(name: str, pattern: str) -> bool:
    """Whether a pattern names a tensor, or a module that it belongs to."""
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[:count]), pattern) for count in range(1, len(parts) + 1))


def _materialised(module: nn.Module, clients: Clients, seed: int) -> nn.Module:
    """The module; one with lazy layers is copied, and the copy's are made from two rows, with named randomness."""
    if not any(nn.parameter.is_lazy(v) for v in (*module.parameters(), *module.buffers())):
        return module
    buffer: Any = nn.UninitializedBuffer  # whose stub lacks its arguments
    lazy = [b for b in module.buffers() if nn.parameter.is_lazy(b)]
    fresh = {id(b): buffer(device=b.device, dtype=b.dtype) for b in lazy}
    materialised = deepcopy(module, fresh).eval()  # torch cannot copy such a buffer itself
    few = take(clients.train.part(0).inputs, slice(0, 2))
    with forked(Rng.named(seed, "model", "lazy").seed()), torch.no_grad():
        try:
            _forward(materialised, few)
        except Exception as error:
            raise InputError(
                f"the lazy layers of the model cannot be made from rows of client {clients.names[0]!r}: {error}"
            ) from error
    return materialised.train(module.training)


def _forward(module: nn.Module, inputs: Inputs) -> None:
    """One call on rows, as training will make it: uint8 images in [0, 1], dicts by keyword where the model takes them so."""

    def ready(value: Tensor) -> Tensor:
        return value.to(torch.get_default_dtype()) / (255 if value.dtype == torch.uint8 else 1)

    whole = (torch.int32, torch.int64, torch.bool)
    if not isinstance(inputs, dict):
        module(inputs if inputs.dtype in whole else ready(inputs))
        return
    named = {k: v if v.dtype in whole else ready(v) for k, v in inputs.items()}
    if set(named) <= set(inspect.signature(module.forward).parameters):
        module(**named)
    else:
        module(named)


def build_shape(model: Any, shape: Any, outputs: int) -> nn.Module:
    """The module that a `ModelSpec` or a function makes for inputs of `shape` and this many outputs."""
    build = getattr(model, "build", model)
    if not callable(build):
        raise InputError(f"model must be an nn.Module, or build one from (shape, outputs); got {type(model).__name__}")
    try:
        module = build(shape, outputs)
    except InputError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise InputError(f"the model cannot be built for inputs {shape} and {outputs} outputs: {why}") from error
    if not isinstance(module, nn.Module):
        raise InputError(f"the model's build returned a {type(module).__name__}, not an nn.Module")
    return module

"""From a model, its settings or a function to the module that is trained; and what of it stays as it is."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from fnmatch import fnmatchcase
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from coterie.base.clients import Clients
from coterie.base.errors import InputError
from coterie.base.heads import Hazards, Ordered
from coterie.base.label_form import LabelForm
from coterie.base.loss import IGNORED
from coterie.base.rng import Rng, fork_generators
from coterie.base.rows import Inputs, sample, take
from coterie.base.vector import copy_model, freeze_statistics


class ModelSpec(Protocol):
    """Settings of a model that is built once the shapes are known.

    >>> import coterie as ct
    >>> from torch import nn
    >>> class Wide:
    ...     def build(self, shape, outputs):
    ...         return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], 64), nn.ReLU(), nn.Linear(64, outputs))
    >>> ct.fit("fedavg", "heart-disease", Wide(), rounds=1)
    <run of FedAvg: 1 round, seed 0, one model for all clients>
    """

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """A module for inputs of `shape` (without rows) and this many outputs."""


_MANY = 1000
"""Classes from which most of their numbers must occur: a model with an output for each number would fill the memory."""


def outputs_of(clients: Clients) -> int:
    """Number of outputs that `loss="auto"` expects: 1 for two classes or one float label, C for C classes, or the labels' width; for
    time to event the number of intervals.

    Raises `InputError` if all labels are of one class.

    Args:
        clients: Clients with their labels.

    >>> import coterie as ct
    >>> ct.models.outputs_of(ct.data.load("heart-disease"))
    1
    """
    labels, form = clients.plain_labels, clients.form
    if form.has_loss:
        return form.outputs
    if labels.is_floating_point():
        if labels.ndim == 1:
            return 1
        return int(labels.shape[1])
    labels_of_parts = [
        form.unweighted(rows.labels)
        for rows in (clients.train, clients.validation, clients.test)
        if rows is not None
    ]
    if form.kind == "several":
        return int(labels.shape[1])
    classes = torch.cat([v[v != IGNORED].unique() for v in labels_of_parts]).unique()
    if not len(classes):
        raise InputError(
            f"all labels of {clients.name!r} are {IGNORED}, which is ignored; there is nothing to learn"
        )
    lowest, highest = int(classes[0]), int(classes[-1])
    if lowest < 0:
        raise InputError(f"labels must be classes 0, 1, ...; got {lowest}")
    count = max(highest + 1, len(clients.classes))
    if count > _MANY and count > 10 * len(classes):
        for client in clients:
            if any(
                bool((form.unweighted(part.labels) == highest).any())
                for _, part in client.parts()
            ):
                raise InputError(
                    f"client {client.name!r} has the label {highest}, but there are only {len(classes)} different ones; number the "
                    "classes 0, 1, 2, ..."
                )
    if lowest == highest:
        name = str(lowest)
        if clients.classes:
            name = clients.classes[lowest]
        raise InputError(
            f"all labels of {clients.name!r} are of one class ({name}); there is nothing to learn"
        )
    if count == 2:
        return 1  # one logit
    return count


def build_model(
    model: nn.Module | ModelSpec | Callable[..., nn.Module], clients: Clients, seed: int
) -> nn.Module:
    """The module to train: a module as it is, or one built for these clients with named randomness.

    Lazy layers (`nn.LazyLinear`, ...) are made from rows. What `torch.compile` wrapped, as a whole or in parts, is the module that was
    compiled: its parameters keep their names, and a run has the bits of that module.

    Args:
        model: an `nn.Module`, a `ModelSpec`, or a function (shape, outputs) -> module.
        clients: give the shape of inputs and the number of outputs.
        seed: seed of the run; the same for all methods.

    >>> import coterie as ct
    >>> clients = ct.data.load("heart-disease")
    >>> ct.models.build_model(ct.models.Logistic(), clients, seed=0)
    Linear(in_features=15, out_features=1, bias=True)
    """
    if isinstance(model, nn.Module):
        module = _unwrap_compiled(model)
        _refuse_hooks(module)
        return _make_lazy_layers(module, clients, seed)
    inputs = sample(clients.train.inputs)
    shape: Any
    if isinstance(inputs, dict):
        shape = {name: tuple(tensor.shape[1:]) for name, tensor in inputs.items()}
    else:
        shape = tuple(inputs.shape[1:])
    with fork_generators(Rng.named(seed, "model").seed()):
        built = build_for(clients.form, model, shape, outputs_of(clients))
    module = _unwrap_compiled(built)
    _refuse_hooks(module)
    return _make_lazy_layers(module, clients, seed)


def build_for(
    form: LabelForm | None, model: Any, shape: Any, outputs: int
) -> nn.Module:
    """The module that settings of a model make for labels of a form: of time to event a score, behind which `Hazards` stands, and of
    ordered classes one with `Ordered`.

    Args:
        form: The form of the labels; None: classes, or numbers.
        model: As for `build_shape`.
        shape: As for `build_shape`.
        outputs: As for `build_shape`.

    >>> form = LabelForm("hazards", cuts=(0.5, 1.0), rates=(0.2, 0.3))
    >>> build_for(form, nn.Linear, 5, 2)
    Hazards(
      (body): Linear(in_features=5, out_features=1, bias=False)
      (baseline): Baseline()
    )
    """
    if form is not None and form.kind == "ordered":
        return Ordered(build_shape(model, shape, 1), outputs)
    if form is None or form.kind != "hazards":
        return build_shape(model, shape, outputs)
    return Hazards(build_shape(model, shape, 1), form.outputs)


COMPILED = "_orig_mod"
"""The name under which the wrapper of `torch.compile` holds the module that was compiled."""


def _unwrap_compiled(module: nn.Module) -> nn.Module:
    """The module without wrappers of `torch.compile`; one with compiled parts is copied, so that the caller's stays as it is."""
    while COMPILED in module._modules:
        module = module.get_submodule(COMPILED)
    if not any(COMPILED in part._modules for part in module.modules()):
        return module
    copied = copy_model(module)
    for part in list(copied.modules()):
        for name, child in part._modules.items():
            if child is not None:
                part._modules[name] = _unwrap_compiled(child)
    return copied


def _refuse_hooks(module: nn.Module) -> None:
    """Raise `InputError` for hooks on gradients of parameters: they are not called where those of many clients are taken at once."""
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or getattr(
            parameter, "_post_accumulate_grad_hooks", None
        ):
            raise InputError(
                f"the model has a hook on the parameter {name!r}, which would not be called; take it off and change gradients in the "
                "loss, or bound them by local.clip"
            )


def freeze(module: nn.Module, patterns: Sequence[str], where: str = "freeze") -> None:
    """Let what `patterns` name stay as it is: modules ("0"), parameters ("0.*"), and statistics of batch norm ("*.running_*").

    Raises `InputError` for a pattern that fits nothing of these.

    Args:
        module: The module, changed in place.
        patterns: Names with `*`, as in the examples.
        where: What an error calls the patterns.

    >>> import coterie as ct
    >>> import torch
    >>> network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> ct.models.freeze(network, ["0"])
    >>> [parameter.requires_grad for parameter in network.parameters()]
    [False, False, True, True]
    """
    names = [name for name, _ in module.named_parameters(remove_duplicate=False)]
    norms = [
        (name, m)
        for name, m in module.named_modules()
        if isinstance(m, nn.modules.batchnorm._BatchNorm)
    ]
    statistics = {
        f"{name}.{k}".lstrip("."): m
        for name, m in norms
        for k, _ in m.named_buffers(recurse=False)
    }
    for pattern in patterns:
        hit = [name for name in (*names, *statistics) if _fits(name, pattern)]
        if not hit:
            raise InputError(
                f"{where} = {pattern!r} fits no parameter; there are {', '.join(names[:6])}"
            )
        for name in hit:
            if name in statistics:
                freeze_statistics(statistics[name])
            else:
                module.get_parameter(name).requires_grad_(False)


def _fits(name: str, pattern: str) -> bool:
    """Return True if a pattern names a tensor, or a module that it belongs to."""
    parts = name.split(".")
    return any(
        fnmatchcase(".".join(parts[:count]), pattern)
        for count in range(1, len(parts) + 1)
    )


def _make_lazy_layers(module: nn.Module, clients: Clients, seed: int) -> nn.Module:
    """The module; one with lazy layers is copied, and the copy's are made from two rows, with named randomness."""
    if not any(
        nn.parameter.is_lazy(v) for v in (*module.parameters(), *module.buffers())
    ):
        return module
    buffer: Any = nn.UninitializedBuffer  # whose stub lacks its arguments
    lazy = [b for b in module.buffers() if nn.parameter.is_lazy(b)]
    new_buffers = {id(b): buffer(device=b.device, dtype=b.dtype) for b in lazy}
    materialised = deepcopy(
        module, new_buffers
    ).eval()  # torch cannot copy such a buffer itself
    rows = take(clients.train.part(0).inputs, slice(0, 2))
    with fork_generators(Rng.named(seed, "model", "lazy").seed()), torch.no_grad():
        try:
            _forward(materialised, rows)
        except Exception as error:
            raise InputError(
                f"the lazy layers of the model cannot be made from rows of client {clients.names[0]!r}: {error}"
            ) from error
    return materialised.train(module.training)


def _forward(module: nn.Module, inputs: Inputs) -> None:
    """One call on rows, as training will make it: uint8 images in [0, 1], dicts by keyword where the model takes them so."""

    def ready(value: Tensor) -> Tensor:
        if value.dtype in (torch.int32, torch.int64, torch.bool):
            return value
        highest = 1
        if value.dtype == torch.uint8:
            highest = 255
        return value.to(torch.get_default_dtype()) / highest

    if not isinstance(inputs, dict):
        module(ready(inputs))
        return
    named = {name: ready(value) for name, value in inputs.items()}
    if set(named) <= set(inspect.signature(module.forward).parameters):
        module(**named)
    else:
        module(named)


def _takes_shapes(build: Callable[..., Any]) -> bool:
    """Return False for a class or function of a model that is called without arguments."""
    try:
        signature = inspect.signature(build)
    except ValueError:
        return True
    for arguments, shapes in (((0, 0), True), ((), False)):
        with suppress(TypeError):
            signature.bind(*arguments)
            return shapes
    return True


def build_shape(model: Any, shape: Any, outputs: int) -> nn.Module:
    """The module that a `ModelSpec`, or a class or function of (shape, outputs) or of nothing, makes for inputs of `shape`.

    Args:
        model: A `ModelSpec`, a class or a function.
        shape: Shape of a row of inputs, or a dict of such shapes.
        outputs: Number of outputs.

    >>> import coterie as ct
    >>> import torch
    >>> ct.models.build_shape(lambda shape, outputs: torch.nn.Linear(*shape, outputs), (8,), 3)
    Linear(in_features=8, out_features=3, bias=True)
    """
    build = getattr(model, "build", model)
    if isinstance(model, type) and build is not model:
        raise InputError(
            f"the model is the class {model.__name__}; call it, say {model.__name__}()"
        )
    if not callable(build):
        raise InputError(
            f"model must be an nn.Module, or build one from (shape, outputs); got {type(model).__name__}"
        )
    try:
        if _takes_shapes(build):
            module = build(shape, outputs)
        else:
            module = build()
    except InputError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise InputError(
            f"the model cannot be built for inputs {shape} and {outputs} outputs: {why}"
        ) from error
    if not isinstance(module, nn.Module):
        raise InputError(
            f"the model's build returned a {type(module).__name__}, not an nn.Module"
        )
    return module

"""Tasks: functions that run where the data is."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property
from math import inf
from typing import (
    Annotated,
    Any,
    Generic,
    NamedTuple,
    ParamSpec,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import torch
from torch import Tensor

from coterie.base.errors import InputError
from coterie.base.vector import Layout

Payload = Mapping[str, Any]
Bound = float | Tensor


class Form(NamedTuple):
    """The form that a field of a reply must have. A reply of another form is refused.

    Attributes:
        shape: of each client's row, or how it follows from the payload of the ask and the layout of model vectors.
        dtype: None: that of the model.
        within: the lowest and the highest value, or how they follow from the payload.
        facts: whether it says how many rows of the part that is asked (`part` of the payload, else "train") the client has.
        layout: layout of the vectors of an update or a gradient, from the payload and the layout of models; None: the latter.
        most: the highest value of a client, from the payload and its training rows, as its facts say.
        of_model: whether an update or a gradient is of a model or some of its layers; False: of what is no model, as mean features.

    >>> from typing import Annotated, NamedTuple
    >>> class Sizes(NamedTuple):
    ...     share: Annotated[torch.Tensor, "other", Form(within=(0.0, 1.0))]  # one number for each client, from 0 to 1
    >>> Sizes._fields
    ('share',)
    """

    shape: tuple[int, ...] | Callable[[Payload, Layout], tuple[int, ...]] = ()
    dtype: torch.dtype | None = torch.float64
    within: tuple[Bound, Bound] | Callable[[Payload], tuple[Bound, Bound]] = (-inf, inf)
    facts: bool = False
    layout: Callable[[Payload, Layout], Layout] | None = None
    most: Callable[[Payload, int], float] | None = None
    of_model: bool = True


def is_exact_fact(form: Form | None) -> bool:
    """Return True for a field that says how many rows there are, yes or no, or always the same."""
    if form is None:
        return False
    if form.facts or form.dtype is torch.bool:
        return True
    # A field whose lowest and highest value are one says nothing of a client.
    return isinstance(form.within, tuple) and bool(form.within[0] == form.within[1])


Dimension = str | int | tuple[str | int, ...]


class Holds(NamedTuple):
    """The form of a tensor that a server sends; a site refuses another one, and a task with a tensor that has no such annotation.

    A dimension is a number, or `model` (d + b), `parameters` (d), `classes`, `features` (inputs of the last layer), `clients` (1 to as
    many as the plan has), `models` (1 to as many as the method's declaration has), or a tuple of alternatives.

    Attributes:
        shape: of what one client is sent, without the client dimension of a `PerClient`.
        dtype: None: that of the model.
        within: the lowest and the highest value.
        each: whether it comes as a `PerClient`; None: either way.
        model: whether it holds models about which the reply says something. Where the first dimension is `models`, each of them counts.
            Models may be rounded on their way (`contract.down`), all else is sent whole.
        finite: whether NaN and Inf are refused.
        own: whether None stands for the client's own model, which a client that keeps it to itself puts in its place.
    """

    shape: tuple[Dimension, ...] = ()
    dtype: torch.dtype | None = None
    within: tuple[float, float] = (-inf, inf)
    each: bool | None = False
    model: bool = False
    finite: bool = True
    own: bool = False


OneModel = Annotated[Tensor, Holds(("model",), model=True)]
"""[d + b]: one model for all clients."""
ModelOfEach = Annotated[Tensor, Holds(("model",), each=None, model=True)]
"""[d + b], or [n, d + b] of a `PerClient`: one model for all clients, or one for each client."""
ModelOrOwn = Annotated[Tensor, Holds(("model",), each=None, model=True, own=True)]
"""As `ModelOfEach`, or None for the model that each client has made for itself and keeps to itself."""
Models = Annotated[Tensor, Holds(("models", "model"), model=True)]
"""[T, d + b]: several models for all clients."""

Update = Annotated[Tensor, "update"]
"""[n, ..., d + b]: local model minus received model; the server adds it.

>>> from typing import NamedTuple
>>> import coterie as ct
>>> import torch
>>> class Reply(NamedTuple):
...     delta: ct.Update
>>> @ct.task
... def update(cohort, *, x: torch.Tensor, local: ct.LocalSGD) -> Reply:
...     return Reply(cohort.updates(x, local))
>>> update.kinds
{'delta': 'update'}
"""
Gradient = Annotated[Tensor, "gradient"]
"""[n, ..., d + b]: points uphill; the server subtracts it.

>>> from typing import NamedTuple
>>> import coterie as ct
>>> import torch
>>> class Reply(NamedTuple):
...     g: ct.Gradient
>>> @ct.task
... def gradient(cohort, *, x: torch.Tensor) -> Reply:
...     return Reply(cohort.gradient(x))
>>> gradient.kinds
{'g': 'gradient'}
"""
OneUpdate = Annotated[
    Tensor, "update", Form(lambda payload, layout: (layout.size,), None)
]
"""[n, d + b]: an update of one model."""
OneGradient = Annotated[
    Tensor, "gradient", Form(lambda payload, layout: (layout.size,), None)
]
"""[n, d + b]: a gradient at one model."""
Point = Annotated[
    Tensor, "curvature", Form(lambda payload, layout: (layout.dim,), torch.float64)
]
"""float64 [n, d]: where a client's log likelihood has a curvature, or its gradient there (uphill); of the kind of `Curvature`."""
Curvature = Annotated[
    Tensor,
    "curvature",
    Form(lambda payload, layout: (layout.dim * (layout.dim + 1) // 2,), torch.float64),
]
"""float64 [n, d (d + 1) / 2]: minus the second derivative of a log likelihood, its upper triangle row by row.

No filter changes it, since what is clipped or left out is no curvature any more: filters and attacks on replies refuse methods that ask
for it. Nor is it rounded to the model's numbers.
"""
Gap = Annotated[Tensor, "gap"]
"""[n]: a loss minus what the client requires; positive means not good enough.

>>> from typing import NamedTuple
>>> import coterie as ct
>>> import torch
>>> class Reply(NamedTuple):
...     gap: ct.Gap
>>> @ct.task
... def gap(cohort, *, x: torch.Tensor, requirement: float) -> Reply:
...     return Reply(cohort.loss(x) - requirement)
>>> gap.kinds
{'gap': 'gap'}
"""
Count = Annotated[Tensor, "count"]
"""[n, ...]: numbers of rows, or what follows from such and from nothing else."""
SentModel = Annotated[
    Tensor, "model", Form(lambda payload, layout: (layout.size,), None)
]
"""[n, d + b]: a local model as it is, which no filter changes; so plans for sites refuse it beside filters."""
OwnModel = Annotated[Tensor, "own", Form(lambda payload, layout: (layout.size,), None)]
"""[n, d + b]: a client's own model. Where clients are other parties it stays with them (`Federation.own_models`).

>>> from typing import NamedTuple
>>> import coterie as ct
>>> class Own(NamedTuple):
...     model: ct.OwnModel
>>> @ct.task
... def own_model(cohort, *, x, layers) -> Own:
...     return Own(cohort.personal(layers).models(x))
"""
Integers = Annotated[
    Tensor, "words", Form(lambda payload, layout: (layout.dim,), torch.int64)
]
"""int64 [n, d]: what a client adds to a sum behind masks, modulo 2^64."""
Rows = Annotated[Tensor, "other", Form(facts=True)]
"""float64 [n]: rows of the part that is asked, else training rows; those of the client's facts."""
Number = Annotated[Tensor, "other", Form()]
"""float64 [n]."""
Size = Annotated[Tensor, "other", Form(within=(0.0, inf))]
"""float64 [n], not negative: a norm, a distance."""
MeanLoss = Annotated[Tensor, "loss", Form()]
"""float64 [n]: a mean loss over rows; at a site behind noise where its plan has secret noise, as metrics are."""
Flag = Annotated[Tensor, "other", Form(dtype=torch.bool)]
"""bool [n]."""


P = ParamSpec("P")
R = TypeVar("R", bound=tuple[Any, ...])
_TASKS: dict[str, Task[Any]] = {}
"""Tasks by name: a name travels to a client, and no code does."""


class Task(Generic[R]):
    """A function `(cohort, *, payload) -> NamedTuple of tensors [n, ...]`, known by name on every engine.

    Attributes:
        name: `module:function`.
        reply: the NamedTuple that it returns.
        kinds: for each field of the reply `update`, `gradient`, `curvature`, `loss`, `gap`, `stay`, `choice`, `count`, `own`, `model`,
            `words` or `other`.
        forms: what fields must look like, where that is declared.
        texts: fields that are no tensors.
        row_sum: what is asked in place of this task where the sum of clients alone has noise by row (`contract.noisy_sum`); None: its
            reply follows from no sum over rows.
    """

    row_sum: Task[Any] | None = None

    def __init__(self, function: Callable[..., R]) -> None:
        self.function = function
        self.name = f"{function.__module__}:{function.__qualname__}"
        self.__doc__ = function.__doc__
        parameters = list(inspect.signature(function).parameters.values())
        if not parameters or any(p.kind is not p.KEYWORD_ONLY for p in parameters[1:]):
            raise InputError(
                f"task {self.name} must take the cohort first and its payload by keyword: def f(cohort, *, x)"
            )

    def __call__(self, cohort: Any, /, **payload: Any) -> R:
        """Run the task here, on `cohort`."""
        return self.function(cohort, **payload)

    def __repr__(self) -> str:
        return f"<task {self.name}>"

    def __reduce__(self) -> tuple[Callable[[str], Task[Any]], tuple[str]]:
        return find_task, (self.name,)

    @cached_property
    def reply(self) -> type[R]:
        """The NamedTuple in the task's return annotation."""
        reply = get_type_hints(self.function).get("return")
        if not (
            isinstance(reply, type)
            and issubclass(reply, tuple)
            and hasattr(reply, "_fields")
        ):
            raise InputError(
                f"task {self.name} must declare the NamedTuple that it returns: def f(cohort, *, x) -> Reply"
            )
        return cast("type[R]", reply)

    @cached_property
    def kinds(self) -> Mapping[str, str]:
        """What each field of the reply is, by name: see the attribute of `Task`."""
        hints = get_type_hints(self.reply, include_extras=True)
        kinds = dict.fromkeys(hints, "other")
        for key, hint in hints.items():
            if get_origin(hint) is Annotated:
                kinds[key] = get_args(hint)[1]
        return kinds

    @cached_property
    def forms(self) -> Mapping[str, Form]:
        """Return what fields must look like, where that is declared."""
        hints = get_type_hints(self.reply, include_extras=True)
        forms: dict[str, Form] = {}
        for key, hint in hints.items():
            for note in get_args(hint)[2:]:
                if isinstance(note, Form):
                    forms[key] = note
        return forms

    def layout_of(self, field: str, payload: Payload, layout: Layout) -> Layout:
        """The layout of the vectors of a field of the reply, where models have this one."""
        form = self.forms.get(field)
        if form is None or form.layout is None:
            return layout
        return form.layout(payload, layout)

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """Fields that are no tensors."""
        return tuple(
            k for k, v in get_type_hints(self.reply).items() if v is not Tensor
        )


def task(function: Callable[..., R]) -> Task[R]:
    """Register a function as a task.

    Args:
        function: The function: the cohort first, its payload by keyword, and a NamedTuple as annotated return.

    >>> from typing import NamedTuple
    >>> class Size(NamedTuple):
    ...     rows: Tensor
    >>> @task
    ... def size(cohort, *, scale: float) -> Size:
    ...     return Size(cohort.sizes * scale)
    >>> size.kinds
    {'rows': 'other'}
    """
    registered = Task(function)
    _TASKS[registered.name] = registered
    return registered


def adopt_task(
    function: Callable[..., R], reply: type[R], kinds: Mapping[str, str]
) -> None:
    """Register a task of another process whose annotations cannot be looked up here."""
    adopted = task(function)
    adopted.reply, adopted.kinds = reply, kinds


def find_task(name: str) -> Task[Any]:
    """The task registered under `module:function`."""
    if name not in _TASKS:
        raise InputError(
            f"there is no task {name!r} here; import its module, or install the same version of coterie everywhere"
        )
    return _TASKS[name]


def task_names() -> tuple[str, ...]:
    """Names of all tasks whose modules are imported, sorted."""
    return tuple(sorted(_TASKS))

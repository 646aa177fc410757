"""Check that a plug-in keeps what coterie promises of its kind, as scikit-learn's `check_estimator` does.

    from coterie.testing import check_method
    check_method(PFedGraph(k=3))

Each check runs the plug-in on small problems and holds it to the laws of its kind. A class that cannot keep a law says so with the
reason, and the check then shows that the law does fail:

    exempt = {"names": "random directions over the clients have no meaning of their own"}
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from coterie.algorithms.fedavg import FedAvg
from coterie.base.errors import CoterieError, nearest
from coterie.config.local import LocalSGD, Steps
from coterie.config.registry import (
    ATTACKS,
    CALLBACKS,
    DATASETS,
    ENGINES,
    FILTERS,
    METHODS,
    METRICS,
    MODELS,
    SAMPLERS,
    Registry,
)
from coterie.data.sets import Dataset
from coterie.testing import runs, values
from coterie.testing.runs import Law, LawError, Trial

__all__ = [
    "LawError", "check_attack", "check_callback", "check_dataset", "check_engine", "check_filter", "check_method", "check_metric",
    "check_model", "check_sampler",
]  # fmt: skip

# ---- checks

_OF_RUNS: tuple[Law, ...] = (
    runs.seed,
    runs.wire,
    runs.workers,
    runs.order,
    runs.resume,
    runs.spelling,
)
_OF_METHODS: tuple[Law, ...] = (
    runs.value, runs.names, runs.starts, runs.learns, runs.diverges, runs.numbers, runs.alone, runs.participants, runs.failures,
    runs.newcomers, runs.sends,
)  # fmt: skip


def check_method(method: Any) -> Mapping[str, str]:
    """Hold a method to the laws of methods, on a linear model, or on two layers with a batch norm if it refuses that.

    Args:
        method: A method, its class, its name, or FILE.py:NAME.

    Returns:
        The laws by name: an empty text for one that it keeps, and the declared reason for one that it is exempt from.

    Raises:
        LawError: A law is broken, or kept by a class that declares itself exempt from it.

    >>> check_method("fedavg")["seed"]
    ''
    """
    subject = _subject(method, METHODS)
    trial = Trial(subject, METHODS, subject)
    return _hold(subject, trial, (*_OF_RUNS, *_OF_METHODS))


def check_filter(filter: Any) -> Mapping[str, str]:
    """Hold a filter to the laws of filters.

    Args:
        filter: A filter, its class, its name, or FILE.py:NAME.

    Returns:
        The laws by name, as for `check_method`.

    Raises:
        LawError: A law is broken, or kept by a class that declares itself exempt from it.

    >>> sorted(check_filter("top-k"))
    ['lossless', 'order', 'resume', 'seed', 'spelling', 'unpacks', 'wire', 'workers']
    """
    subject = _subject(filter, FILTERS)
    trial = Trial(
        subject, FILTERS, FedAvg(LocalSGD(steps=Steps(2), batch_size=4)), (subject,)
    )
    return _hold(subject, trial, (*_OF_RUNS, runs.lossless, runs.unpacks))


def check_sampler(sampler: Any) -> Mapping[str, str]:
    """Hold a sampler to the laws of samplers.

    Args:
        sampler: A sampler, its class, its name, or FILE.py:NAME.

    Returns:
        The laws by name, as for `check_method`.

    Raises:
        LawError: A law is broken, or kept by a class that declares itself exempt from it.

    >>> sorted(check_sampler("uniform-classes"))
    ['learns', 'order', 'resume', 'seed', 'spelling', 'wire', 'workers']
    """
    subject = _subject(sampler, SAMPLERS)
    trial = Trial(
        subject,
        SAMPLERS,
        FedAvg(LocalSGD(steps=Steps(2), batch_size=4, sampler=subject)),
    )
    return _hold(subject, trial, (*_OF_RUNS, runs.learns))


def check_engine(engine: Any) -> Mapping[str, str]:
    """Hold an engine to the laws of engines.

    Args:
        engine: Settings of an engine, their class, name, or FILE.py:NAME.

    Returns:
        The laws by name, as for `check_method`.

    Raises:
        LawError: A law is broken, or kept by a class that declares itself exempt from it.

    >>> sorted(check_engine("inprocess"))
    ['bits', 'closes', 'order', 'resume', 'seed', 'spelling', 'wire']
    """
    subject = _subject(engine, ENGINES)
    trial = Trial(
        subject, ENGINES, FedAvg(LocalSGD(steps=Steps(2), batch_size=4)), engine=subject
    )
    return _hold(
        subject,
        trial,
        (
            runs.seed,
            runs.wire,
            runs.order,
            runs.resume,
            runs.spelling,
            runs.bits,
            runs.closes,
        ),
    )


def check_attack(attack: Any) -> Mapping[str, str]:
    """Hold an attack to the laws of attacks.

    Args:
        attack: An attack, its class, its name, or FILE.py:NAME; client `a` attacks.

    Returns:
        The laws by name, as for `check_method`.

    Raises:
        LawError: A law is broken, or kept by a class that declares itself exempt from it.

    >>> check_attack("sign-flip")["shows"]
    ''
    """
    subject = _subject(attack, ATTACKS)
    attacking = dataclasses.replace(subject, on=("a",))
    trial = Trial(
        subject,
        ATTACKS,
        FedAvg(LocalSGD(steps=Steps(2), batch_size=4)),
        attack=attacking,
    )
    return _hold(
        subject, trial, (runs.seed, runs.wire, runs.resume, runs.spelling, runs.shows)
    )


def check_callback(callback: Any) -> Mapping[str, str]:
    """Hold a callback to the laws of callbacks.

    Args:
        callback: A callback, its class, its name, or FILE.py:NAME.

    Returns:
        The laws by name, as for `check_method`.

    Raises:
        LawError: A law is broken, or kept by a class that declares itself exempt from it.

    >>> check_callback("early-stopping")["only-looks"]
    ''
    """
    subject = _subject(callback, CALLBACKS)
    trial = Trial(
        subject,
        CALLBACKS,
        FedAvg(LocalSGD(steps=Steps(2), batch_size=4)),
        callbacks=(subject,),
    )
    return _hold(
        subject, trial, (runs.seed, runs.resume, runs.spelling, runs.only_looks)
    )


def check_model(
    model: Any, shape: tuple[int, ...] = (3,), outputs: int = 2
) -> Mapping[str, str]:
    """Hold a model to the laws of models.

    Args:
        model: Settings of a model, their class, name, or FILE.py:NAME; or a function (shape, outputs) -> module.
        shape: Shape of a row.
        outputs: Number of outputs.

    Returns:
        The laws by name, as for `check_method`.

    Raises:
        LawError: A law is broken, or kept by a class that declares itself exempt from it.

    >>> check_model("logistic")["copies"]
    ''
    """
    subject = _subject(model, MODELS)
    return _hold(
        subject,
        values.Built(subject, shape, outputs),
        (values.same_start, values.one_answer_each, values.copies),
    )


def check_dataset(dataset: Any) -> Mapping[str, str]:
    """Hold a data set to the laws of data sets.

    Args:
        dataset: A `Dataset`, its name, or FILE.py:NAME.

    Returns:
        The laws by name, as for `check_method`.

    Raises:
        LawError: A law is broken, or kept by a class that declares itself exempt from it.

    >>> sorted(check_dataset("heart-disease"))
    ['descriptions', 'options', 'same-rows', 'trainable']
    """
    subject = dataset
    if isinstance(dataset, str):
        subject = DATASETS.find(dataset)
    if not isinstance(subject, Dataset):
        raise LawError(
            f"{dataset!r} is a {type(subject).__name__}; a data set is a coterie.data.Dataset"
        )
    return _hold(
        subject,
        subject,
        (values.descriptions, values.same_rows, values.trainable, values.options),
    )


def check_metric(metric: Any) -> Mapping[str, str]:
    """Hold a metric to the laws of metrics.

    Args:
        metric: A function (outputs, labels, kind), its name, or FILE.py:NAME.

    Returns:
        The laws by name, as for `check_method`.

    Raises:
        LawError: A law is broken, or kept by a class that declares itself exempt from it.

    >>> sorted(check_metric("auc"))
    ['inputs', 'number', 'rows']
    """
    subject = metric
    if isinstance(metric, str):
        subject = METRICS.find(metric)
    return _hold(subject, subject, (values.number, values.rows, values.inputs))


def _subject(candidate: Any, registry: Registry) -> Any:
    if isinstance(candidate, str):
        candidate = registry.find(candidate)
    if isinstance(candidate, type):
        candidate = candidate()
    if registry.base is None:
        return candidate
    return registry.check_value(candidate, "")


def _hold(subject: Any, trial: Any, laws: Sequence[Law]) -> Mapping[str, str]:
    called = getattr(subject, "__name__", type(subject).__name__)
    by_name = {law.__name__.replace("_", "-"): law for law in laws}
    exempt: Mapping[str, str] = dict(getattr(subject, "exempt", {}))
    for name in exempt:
        if name not in by_name:
            raise LawError(
                f"{called} is exempt from {name!r}, which is not a law of its kind; {nearest(name, by_name)}"
            )
    for name, law in by_name.items():
        try:
            law(trial)
        except LawError as error:
            problem = str(error)
        except (
            CoterieError,
            ArithmeticError,
            LookupError,
            TypeError,
            ValueError,
            RuntimeError,
        ) as error:
            problem = f"{type(error).__name__}: {error}"
        else:
            problem = ""
        if problem and name not in exempt:
            raise LawError(
                f"{called} breaks the law {name!r} ({(law.__doc__ or '').partition('.')[0].lower()}): {problem}"
            )
        if not problem and name in exempt:
            raise LawError(
                f"{called} declares itself exempt from {name!r} ({exempt[name]}), but keeps it; drop that line"
            )
    return {name: exempt.get(name, "") for name in by_name}

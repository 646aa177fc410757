"""What every method must do beside the laws of `coterie.testing`. A method that is added to `METHODS` is tested here without new code.

Runs that several tests look at are made once (`plain`, `watched`). What depends on the engine and not on the method, such as the
reasons for which a reply is refused, meets each method in its first setting only; what a method draws, in all that draw.
"""

from __future__ import annotations

import dataclasses
import gc
import math
import random
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.base.errors import InputError, RunError
from coterie.base.files import read_checkpoint, write_checkpoint
from coterie.base.rng import Rng
from coterie.base.rows import Part
from coterie.cli.show import fields_of
from coterie.compute.metrics import DEFAULT_METRICS
from coterie.compute.workspace import Workspace
from coterie.config.local import LocalSGD, Steps
from coterie.config.registry import METHODS
from coterie.contract.federation import QuorumError
from coterie.contract.task import Task
from coterie.run.result import Run
from coterie.samplers.isfedavg import GradientNormSampler
from coterie.samplers.weighted import Preset
from federations import (
    HELD,
    PROBLEMS,
    SIZES,
    Problem,
    assert_same_bits,
    federation_of,
    fit,
    logistic,
    regression,
    subset,
)

LOCAL = LocalSGD(lr=0.1, steps=Steps(2), batch_size=4)
FULL = LocalSGD(lr=0.1, steps=Steps(2), batch_size=None)

ARGUMENTS: dict[str, list[dict[str, Any]]] = {
    "fedadp": [{}, {"reference": "b", "by_size": False, "running_mean": False}],
    "fedprox": [{"mu": 0.5}],
    "isfedavg": [{}, {"sample_ratio": 0.5}],
    "isfl": [
        {},
        {"exact": True, "sample_ratio": 0.5},
        {"where": "client", "floor": 0.5},
    ],
    "maxfl": [
        {"warmup_steps": 5},
        {"requirements": "validation", "warmup_steps": 3, "tuning_steps": 2},
        {"warmup_steps": 3, "surrogate": "log"},
        {"warmup_steps": 1, "flexible": True},
    ],
    "meritfed": [
        {},
        {
            "targets": "b",
            "oracle": "delegated",
            "oracle_batch_size": 4,
            "damping": True,
        },
        {"targets": ("a", "c"), "oracle": "loss", "directions": 2},
        {"targets": ("a", "c"), "md_step": "line-search", "md_steps": 2},
        {"validation": "server"},
        {"targets": ("a", "c"), "server_optimiser": "adam", "lr": 0.1},
        {
            "targets": ("a", "c"),
            "uploads": "anchored",
            "oracle_steps": "one",
            "oracle_every": 2,
        },
    ],
    "centralised": [{"exact": False}, {}],
    "local": [{"exact": False}, {}],
    "moon": [{}],
    "mwfed": [{"rate": 2.0, "warmup_steps": 1}],
    "partial": [{}, {"sends": "sums"}],
    "perfedavg": [{"alpha": 0.1}, {"alpha": 0.1, "variant": "hf"}],
    "power-of-choice": [{}, {"loss_batch_size": 4}],
    "qffl": [{}, {"q": 0.0}],
    "multi-krum": [{}, {"byzantine": 0}],
    "apfl": [{}, {"alpha": 0.3, "adaptive": False}],
    "cfl": [{}, {"eps1": 10.0, "eps2": 0.0}],
    "fedper": [{"personal": ("*bias",)}],
    "fedrep": [{"personal": ("*bias",), "head_steps": 2}],
    "fedbabu": [{"personal": ("*bias",), "tune_steps": 2}],
    "fedbn": [{"personal": ("*bias",)}],
    "fednova": [{}, {"mu": 0.5}],
    "fedala": [{}, {"passes": 2, "sample": 0.5}],
    "dpfl": [{}, {"budget": 2, "solver": "exhaustive"}],
    "ifca": [{}, {"clusters": 3, "weighting": "size"}],
    "pfedme": [{"lam": 2.0, "inner_steps": 2, "inner_lr": 0.3}],
    "pj-is": [{}, {"sample_ratio": 0.5}],
    "selective": [{"internal": ("a", "b")}, {"internal": "d"}],
    "sgd-full": [{}, {"server_optimiser": "adam", "lr": 0.1}],
    "sgd-ideal": [
        {"members": tuple("abcde")},
        {"members": "*", "server_optimiser": "adam", "lr": 0.1},
    ],
    "target-only": [{"target": "c"}],
    "tawt": [{}, {"targets": "b"}, {"targets": ("a", "c"), "step": 0.3}],
    "trimmed-mean": [{}, {"trim": 0.4}],
    "uniform-is": [{}, {"sample_ratio": 0.5}],
    "varsel": [
        {"internal": ("a", "b"), "preselect": "smallest"},
        {"internal": ("a", "c", "d"), "internal_splits": 2, "unbiased_variance": True},
        {
            "internal": "c",
            "internal_splits": 2,
            "debias": True,
            "preselect": "smallest",
        },
    ],
}
"""Constructor arguments to test a method with; none: its defaults."""

Case = tuple[str, dict[str, Any]]
CASES: list[Case] = [
    (name, arguments) for name in METHODS for arguments in ARGUMENTS.get(name, [{}])
]


def label(case: Case) -> str:
    return "-".join([case[0], *(str(v) for v in case[1].values())])


FIRST: list[Case] = [(name, ARGUMENTS.get(name, [{}])[0]) for name in METHODS]
"""Each method in its first setting."""
FAMILIES = (
    "centralised",  # rows in one place
    "local",  # nobody else
    "fedavg",  # an average
    "scaffold",  # control variates, which clients keep
    "ditto",  # a second model at each client
    "fedper",  # layers of one's own
    "ifca",  # clusters
    "meritfed",  # weights by held-out gradients
    "varsel",  # some are asked by others' updates
    "isfl",  # rows are drawn
    "partial",  # solved, from curvature
)
"""A method of each way to train together. What depends on the engine and not on the method meets these; the others are in turn."""
FEW = ("fedavg", "ditto", "meritfed", "partial")
"""An average, a model beside it that clients keep, weights, and one that is solved: for laws that take a second each."""


def in_turn(cases: Iterable[Any], always: Callable[[Any], bool]) -> list[Any]:
    """The cases, those marked in_turn that need not run every time."""
    waits = pytest.mark.in_turn
    return [
        pytest.param(case, marks=() if always(case) else waits, id=label(case))
        for case in cases
    ]


def is_first(case: Case) -> bool:
    return case in FIRST


def is_of_a_family(case: Case) -> bool:
    return case in FIRST and case[0] in FAMILIES


def is_of_few(case: Case) -> bool:
    return case in FIRST and case[0] in FEW


each_setting_in_turn = pytest.mark.parametrize("case", in_turn(CASES, is_first))
each_family = pytest.mark.parametrize("case", in_turn(CASES, is_of_a_family))
first_of_a_family = pytest.mark.parametrize("case", in_turn(FIRST, is_of_a_family))
FEW_PROBLEMS = ("batch-norm", "regression", "tokens")
AS_OTHERS = ("ocs", "qffl", "mwfed", "selective", "power-of-choice", "pj-is")
"""Methods whose own tasks take of rows what those of others take."""


def has_own_tasks(method: type) -> bool:
    """Whether the file of a method defines tasks."""
    tasks = (
        value
        for value in vars(sys.modules[method.__module__]).values()
        if isinstance(value, Task)
    )
    return any(task.function.__module__ == method.__module__ for task in tasks)


LOOK_AT_ROWS = (
    "fedavg",
    "isfedavg",
    *(
        name
        for name, method in METHODS.items()
        if has_own_tasks(method) and name not in AS_OTHERS
    ),
)
"""Methods with tasks of their own that take gradients, losses or inputs, and two for those that use tasks of everybody."""
EVERY_PROBLEM = [
    (case, problem)
    for case in CASES
    for problem in (
        (PROBLEMS if case[0] in LOOK_AT_ROWS else FEW_PROBLEMS)
        if case in FIRST
        else ("batch-norm",)
    )
]
"""A method meets kinds of problems in its first setting, all if it looks at rows, and batch norm in the others."""


def meets_always(case: Case, problem: str) -> bool:
    """A method of each family meets batch norm, and FedAvg every problem."""
    return case == ("fedavg", {}) or (is_of_a_family(case) and problem == "batch-norm")


def pairs_in_turn(
    pairs: Iterable[tuple[Case, str]], always: Callable[[Case, str], bool]
) -> list[Any]:
    """The pairs of a method and something that it meets, those marked in_turn that need not run every time."""
    waits = pytest.mark.in_turn
    return [
        pytest.param(
            case,
            what,
            marks=() if always(case, what) else waits,
            id=f"{label(case)}-{what}",
        )
        for case, what in pairs
    ]


ON_WORKERS = ("fedavg", "scaffold", "meritfed")
"""Methods that resume from the start and on two workers, and meet clients that fail there."""
EVERY_REASON = ("centralised", *ON_WORKERS, "varsel")
"""Methods whose client fails in every way: one client, anybody, and who cannot be done without. The engine judges the replies."""


GRADIENTS = {"ditto": 2, "apfl": 2, "pfedme": 2, "fedrep": 2}
"""Gradients in each local step of methods that train a second model, or layers one after the other."""


def method_of(
    case: Case, local: LocalSGD = LOCAL, names: Mapping[str, str] | None = None
) -> Any:
    """The method; clients that its arguments name are called by `names`."""
    name, arguments = case
    if names is not None:
        called = {
            k: names.get(v, v) if isinstance(v, str) else v
            for k, v in arguments.items()
        }
        arguments = {
            k: tuple(names.get(n, n) for n in v) if isinstance(v, tuple) else v
            for k, v in called.items()
        }
    fields = {f.name for f in dataclasses.fields(METHODS[name])}
    return METHODS[name](**({"local": local} if "local" in fields else {}), **arguments)


def server_rows(problem: Problem) -> Part:
    return problem.clients["a"].part("validation")


def run(
    case: Case, problem: Problem | None = None, rounds: int = 3, **options: Any
) -> Run:
    problem = problem or logistic()
    method = options.pop("method", None) or method_of(case, options.pop("local", LOCAL))
    clients = options.pop("clients", problem.clients)
    options = {"evaluate": rounds or 1, "server": server_rows(problem), **options}
    return fit(method, clients, problem.model, rounds, **options)


def quick(case: Case, *args: Any, **options: Any) -> Run:
    """A run that encodes nothing, which others do."""
    return run(case, *args, **{"strict_wire": False, **options})


@cache
def _plain(at: int) -> Run:
    return run(CASES[at])


@cache
def _watched(at: int) -> Run:
    return quick(CASES[at], local=FULL, evaluate=1, metrics=DEFAULT_METRICS)


def plain(case: Case) -> Run:
    """Three rounds of the logistic problem, all of it encoded and decoded as if sent."""
    return _plain(CASES.index(case))


def watched(case: Case) -> Run:
    """The same with all rows in every step, evaluated in every round."""
    return _watched(CASES.index(case))


def is_exempt(case: Case, law: str) -> bool:
    """Return True if the class declares that it does not keep a law of `coterie.testing`, which is checked there."""
    return law in getattr(method_of(case), "exempt", {})


def needs_all(case: Case) -> bool:
    """Return True if certain clients cannot be done without."""
    return is_exempt(case, "failures") and not is_pooled(case)


def draws_rows(case: Case) -> bool:
    """Return True if rows are drawn with replacement by the name of the client."""
    return issubclass(METHODS[case[0]], Preset)


def samples_by_class(case: Case) -> bool:
    """Return True if a method needs rows with one class each."""
    return draws_rows(case) and not isinstance(
        method_of(case).sampler, GradientNormSampler
    )


def is_solved(case: Case) -> bool:
    """Return True if a method solves linear models: it has no seed, no rate, and refuses all others."""
    return bool(method_of(case).linear_only)


def problem_of(case: Case, kind: str) -> Problem:
    """A problem of this kind; the logistic one for methods that solve linear models alone."""
    return logistic() if is_solved(case) else PROBLEMS[kind]()


def is_pooled(case: Case) -> bool:
    return (
        getattr(METHODS[case[0]], "pooled", False) is True
    )  # elsewhere it is a property of the base


def mean_loss(found: Run, round: int, split: str = "train") -> float:
    values = [
        r.value
        for r in found.history
        if (r.round, r.split, r.metric) == (round, split, "loss")
    ]
    return sum(values) / len(values)


# ---- it learns, and nothing but the seed matters


@each_family
def test_same_seed_gives_the_same_bits_encoded_or_not_and_another_seed_others(case):
    first = plain(case)
    assert_same_bits(first, quick(case))
    other = quick(case, seed=1)
    if is_solved(case) or case == ("centralised", {}):
        for name, x in first.models.items():
            assert torch.equal(x, other.models[name])
        return
    if case == ("local", {}):
        return  # the seed deals inner folds, which may choose the same ridge
    assert any(not torch.equal(x, other.models[k]) for k, x in first.models.items())


@pytest.mark.parametrize(
    ("case", "problem"), pairs_in_turn(EVERY_PROBLEM, meets_always)
)
def test_any_problem_is_trained_and_gives_the_same_bits_on_any_number_of_workers(
    case, problem
):
    made = PROBLEMS[problem]()
    if samples_by_class(case) and problem in ("regression", "segmentation"):
        with pytest.raises(InputError, match="samples by class"):
            run(case, made)
        return
    if case[0] == "fedproto" and problem in ("regression", "segmentation"):
        with pytest.raises(InputError, match="fedproto takes"):
            run(case, made)
        return
    if case[0] == "cox" and problem == "regression":
        with pytest.raises(InputError, match="cox takes a time to event"):
            run(case, made)
        return
    if case[0] == "moon" and problem == "segmentation":
        with pytest.raises(
            InputError,
            match=r"this model calls none; name a layer, or end it with torch\.nn\.Linear",
        ):
            run(case, made)
        return
    if is_solved(case) and problem not in ("logistic", "regression"):
        with pytest.raises(InputError, match="not one linear layer with bias"):
            run(case, made)
        return
    before = {k: v.clone() for k, v in made.model.state_dict().items()}
    rows_before = made.clients.fingerprint()
    train = partial(run, metrics=DEFAULT_METRICS) if case[0] == "fedavg" else quick
    rounds = (
        2 if problem == "batch-norm" else 1
    )  # what is kept from round to round does not depend on the rows
    one = train(case, made, rounds=rounds)
    if case in FIRST and (
        case[0] == "fedavg" or problem == "batch-norm"
    ):  # rows travel alike, whatever the method
        assert_same_bits(one, train(case, made, rounds=rounds, workers=2))
    assert mean_loss(one, rounds) != mean_loss(one, 0)

    # Nothing that was given has changed, and what was trained is a state dict of the same model.
    assert made.clients.fingerprint() == rows_before
    assert all(torch.equal(v, before[k]) for k, v in made.model.state_dict().items())
    for client in one.models:
        trained = one.state_dict(client)
        made.model.load_state_dict(trained, strict=True)
        trainable = {k for k, p in made.model.named_parameters() if p.requires_grad}
        for key, value in trained.items():
            if key in trainable or (value.is_floating_point() and "running" in key):
                assert torch.isfinite(value).all()
            else:  # frozen parameters and counters of batches
                assert torch.equal(value, before[key])
    assert any(
        not torch.equal(v, before[k])
        for k, v in one.state_dict(next(iter(one.models))).items()
    )


def legacy_numpy_state() -> np.ndarray:
    return np.random.get_state()[1].copy()  # noqa: NPY002 - the generator that must not be touched


@pytest.mark.parametrize(
    "case",
    in_turn(
        [c for c in CASES if c in FIRST or c[0] in ("meritfed", "varsel")],
        is_of_a_family,
    ),
)
def test_global_generators_and_threads_are_neither_used_nor_changed(case):
    states = torch.get_rng_state(), legacy_numpy_state(), random.getstate()
    first = quick(case, problem_of(case, "dropout"), rounds=2)
    assert torch.equal(states[0], torch.get_rng_state())
    assert np.array_equal(states[1], legacy_numpy_state())
    assert states[2] == random.getstate()
    torch.default_generator.manual_seed(12345)
    torch.set_num_threads(2)
    try:
        assert_same_bits(first, quick(case, problem_of(case, "dropout"), rounds=2))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("before", "within"), [(700, 50_000), (60_000, 60_000), (0, 0)]
)
def test_garbage_is_looked_for_rarely_within_a_run_alone(before, within):
    usual, seen = gc.get_threshold(), []
    gc.set_threshold(before)
    try:
        quick(
            CASES[0],
            rounds=1,
            callbacks=(lambda number: seen.append(gc.get_threshold()[0]),),
        )
        assert (gc.get_threshold()[0], *seen) == (before, within, within)
    finally:
        gc.set_threshold(*usual)


@pytest.mark.parametrize("case", in_turn(CASES, is_of_few))
def test_nothing_of_a_run_waits_until_garbage_is_looked_for(case):
    def models() -> int:
        return sum(type(thing) is Workspace for thing in gc.get_objects())

    plain(
        case
    )  # what torch imports when it is first needed keeps the frames that led there
    gc.collect()
    gc.disable()
    try:
        before = models()
        quick(case, rounds=1)
        assert models() == before
    finally:
        gc.enable()


# ---- a method is a value


@each_family
def test_nothing_on_the_method_changes(case):
    method = plain(case).method
    assert method == method_of(case)
    assert set(vars(method)) == {f.name for f in dataclasses.fields(method)}
    field = dataclasses.fields(method)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(method, field, getattr(method, field))


@each_family
def test_saving_and_loading_the_state_changes_no_bit_of_the_next_round(case, tmp_path):
    problem = logistic()
    with_server = problem.with_clients(
        problem.clients.with_server(
            problem.clients.pool_training_rows()
            if is_pooled(case)
            else problem.clients["a"].validation
        )
    )
    method = method_of(case)
    with federation_of(with_server) as federation:
        state = method.init(
            federation.engine.x.clone(), federation.view(federation.clients, 0, 0)
        )
        for number in (1, 2):
            state, _ = method.round(
                state, federation.view("abd", number, 0), Rng.named(0, "server", number)
            )
        before = tuple(v.clone() if isinstance(v, Tensor) else v for v in state)
        write_checkpoint(tmp_path / "state.safetensors", state, {}, {})
        loaded = type(state)(**read_checkpoint(tmp_path / "state.safetensors").values)
        first, again = (
            federation.view("bcde", 3, attempt) for attempt in (0, 1)
        )  # the second forgets the first one's memory
        rng = Rng.named(0, "server", 3)
        (plain, log), (other, other_log) = (
            method.round(state, first, rng),
            method.round(loaded, again, rng),
        )
    assert type(loaded) is type(state)
    assert log == other_log
    for a, b, old, new in zip(plain, other, before, state, strict=True):
        assert torch.equal(a, b) if isinstance(a, Tensor) else a == b
        assert (
            torch.equal(old, new) if isinstance(old, Tensor) else old == new
        )  # a round leaves its state alone


class StoppedError(Exception):
    pass


@first_of_a_family  # what other settings keep in their states is saved and loaded above
def test_resuming_gives_the_bits_of_an_undisturbed_run(case, tmp_path):
    options = {
        "rounds": 3,
        "evaluate": 2,
        "clients_per_round": 3,
        "problem": problem_of(case, "batch-norm"),
    }
    whole = quick(case, **options)
    for stop, workers in ((0, 1), (2, 2)) if case[0] in ON_WORKERS else ((2, 1),):
        resumed = cut_and_resumed(case, tmp_path / str(stop), stop, workers, options)
        assert_same_bits(resumed, whole)
        assert [clock.round for clock in resumed.seconds] == [1, 2, 3]


def cut_and_resumed(
    case: Case, folder: Path, stop: int, workers: int, options: dict[str, Any]
) -> Run:
    """A run that ends after a round, and goes on from its checkpoint."""

    def interrupt(number: int) -> None:
        if number == stop:
            raise StoppedError

    with pytest.raises(StoppedError):
        quick(case, checkpoint=folder, callbacks=(interrupt,), **options)
    return quick(case, checkpoint=folder, resume=True, workers=workers, **options)


# ---- clients that fail


def sabotage(
    monkeypatch: pytest.MonkeyPatch, victims: tuple[str, ...], how: str
) -> None:
    """Let the updates of some clients go wrong, wherever they are computed; who trains alone and sends none fails."""
    honest = Task.__call__

    def call(self: Task[Any], cohort: Any, /, **payload: Any) -> Any:
        updates = [
            k for k, kind in self.kinds.items() if kind in ("update", "curvature")
        ]
        hit = [i for i, n in enumerate(cohort.names) if n in victims]
        alone = self.name.endswith(":train_alone")
        if not ((updates or alone) and hit):
            return honest(self, cohort, **payload)
        if how == "raise" or alone:
            raise ValueError("the disk is\nfull")
        reply = honest(self, cohort, **payload)
        value = getattr(reply, updates[0]).clone()
        if how == "nan":
            value[hit, ..., -1] = math.nan
        elif how == "shape":
            value = value[..., :-1]
        elif how == "dtype":
            value = value.half()
        else:
            value[hit] = 1e30
        return reply._replace(**{updates[0]: value})

    monkeypatch.setattr(Task, "__call__", call)


REASONS = {
    "raise": "ValueError: the disk is full",
    "nan": "has NaN or Inf",
    "shape": "has shape",
    "dtype": "torch.float16",
    "huge": "times the median",
}


@pytest.mark.parametrize(
    ("case", "how"),
    pairs_in_turn(
        [
            (case, how)
            for case in CASES
            for how in (
                REASONS if case in FIRST and case[0] in EVERY_REASON else ("raise",)
            )
        ],
        lambda case, how: case in FIRST,
    ),
)
def test_a_failing_client_is_named_and_the_run_goes_on_or_says_why_not(
    case, how, monkeypatch
):
    if is_pooled(case):
        if how != "huge":  # with one client there is nobody to compare it with
            sabotage(monkeypatch, ("server",), how)
            with pytest.raises(
                QuorumError, match=r"round 1, .*0 of 1 .*server \(.*" + REASONS[how]
            ):
                quick(case)
        return
    sabotage(monkeypatch, ("c",), how)
    if needs_all(case):
        if how != "huge" or case[1].get("internal", "c") != "c":
            with pytest.raises(
                QuorumError,
                match=r"round 1, .* all of them are needed.* c \(.*" + REASONS[how],
            ):
                quick(case)
        return
    one = quick(case, rounds=2)
    if how == "raise" and case in FIRST and case[0] in ON_WORKERS:
        assert_same_bits(one, quick(case, rounds=2, workers=2))
    assert list(one.failures) == ["c"]
    assert REASONS[how] in one.failures["c"]
    # Who failed in the first pass of `partial` is asked no more.
    last = 1 if case == ("partial", {}) else 2
    assert re.search(
        rf"round {last}, coterie[.](algorithms[.]|compute[.]tasks:|samplers[.])",
        one.failures["c"],
    )
    assert all("c" not in weights for target, weights in one.weights.items())
    assert all(torch.isfinite(x).all() for x in one.models.values())
    assert max(float(x.abs().max()) for x in one.models.values()) < 1e3


@each_family
def test_a_client_that_does_not_fail_would_have_had_an_effect(case, monkeypatch):
    if needs_all(case):
        return
    whole = quick(case, rounds=1) if is_pooled(case) else plain(case)
    # A line search gives all weight to the best client of so few, and to c none that a bit would show.
    victim = (
        "server"
        if is_pooled(case)
        else "b"
        if "line-search" in case[1].values()
        else "c"
    )
    sabotage(monkeypatch, (victim,), "huge")
    damaged = quick(case, rounds=1) if is_pooled(case) else quick(case)
    assert any(not torch.equal(x, damaged.models[k]) for k, x in whole.models.items())


@first_of_a_family
def test_below_quorum_the_run_ends_with_a_sentence_that_names_everybody(
    case, monkeypatch
):
    if is_pooled(case) or needs_all(case):
        return
    sabotage(monkeypatch, ("a", "c", "d"), "raise")
    with pytest.raises(QuorumError) as caught:
        quick(case, rounds=2)
    sentence = str(caught.value)
    assert re.match(
        r"round [01], task 'coterie[.](algorithms[.]|compute[.]tasks:|samplers[.])",
        sentence,
    )
    assert "2 of 5 clients replied, at least 50% are needed" in sentence
    for name in "acd":
        assert f"{name} (ValueError: the disk is full)" in sentence
    assert "then resume" in sentence


# ---- few clients


@each_family
def test_one_client_is_enough(case):
    problem = logistic()
    alone = dict.fromkeys(SIZES, "b")
    workers = 2 if case in FIRST and case[0] in ON_WORKERS else 1
    options = {
        "clients": subset(problem.clients, "b"),
        "method": method_of(case, LOCAL, alone),
        "workers": workers,
    }
    if is_exempt(case, "alone"):
        with pytest.raises(
            InputError,
            match=r"take at most 1|set internal_splits = 2|with one take uploads",
        ):
            quick(case, problem, **options)
        return
    found = quick(case, problem, **options)
    assert mean_loss(found, 3) < mean_loss(found, 0)
    assert found.weights in ({}, {"*": {"b": 1.0}}, {"b": {"b": 1.0}})


@each_family
def test_only_the_clients_of_a_round_take_part(case):
    one = quick(case, clients_per_round=2, rounds=5, evaluate=1)
    updates = [r for r in one.asks if r.round and "update" in r.task]
    # A target or a reference that is not drawn is asked for its own update all the same, where the others send another one.
    asked = [r.clients for r in updates if not r.task.endswith(":own_update")] or [
        r.clients for r in updates
    ]
    if case[0] == "selective":
        assert asked == [2] * 5
        return
    if case[0] == "ocs":  # 2 are expected
        assert len(set(asked)) > 1
        assert 5 <= sum(asked) <= 15
        return
    if (
        needs_all(case) or case[0] == "local" or is_solved(case)
    ):  # a client that works alone need not wait to be drawn
        assert_same_bits(one, quick(case, rounds=5, evaluate=1))
        return
    by_round: dict[int, set[str]] = {}
    for number, _, client, _ in one.weight_rows:
        by_round.setdefault(number, set()).add(client)
    if by_round:
        assert set(by_round) == set(range(1, 6))
        assert all(len(clients) == 2 for clients in by_round.values())
        assert len({frozenset(clients) for clients in by_round.values()}) > 2
    if "anchored" in case[1].values():  # visits beside them
        assert max(asked) == 2
        return
    if case == ("centralised", {}):
        assert asked == []  # it solves
        return
    assert asked == [1 if is_pooled(case) else 2] * 5


# ---- numbers


def expected_row_gradients(case: Case, found: Run, rounds: int, local: LocalSGD) -> int:
    """Rows through gradients: of local training (twice with two models), and of the oracle of targets."""
    method = found.method
    kept = (
        method.keeps_validation(tuple(SIZES))
        if hasattr(method, "keeps_validation")
        else ()
    )
    training = local.steps.count * sum(
        n + (0 if k in kept else HELD) for k, n in SIZES.items()
    )
    rows = training // local.steps.count
    if case == ("centralised", {}):
        return rows
    if case == ("local", {}):  # six ridges, on four fifths of the rows five times
        return (6 * 4 + 1) * rows
    if case[0] == "maxfl":
        per_step = training // local.steps.count
        return (
            rounds * (training + method.tuning_steps * per_step)
            + method.warmup_steps * per_step
        )
    if case[0] == "mwfed":
        steps = [
            (n, int(s)) for n in SIZES for _, s in found.history.select("steps", n)
        ]
        assert len(steps) == rounds * len(SIZES)
        assert len({s for _, s in steps}) > 1
        return (
            sum(s * (SIZES[n] + HELD) for n, s in steps)
            + method.warmup_steps * training // local.steps.count
        )
    if case[0] == "fedbabu":  # one tuning of each client, before the first round
        return rounds * training + method.tune_steps * training // local.steps.count
    if case[0] == "fedala":  # each client has a last model from the second round on
        return (
            rounds * training
            + ((method.passes or 10) + rounds - 2) * training // local.steps.count
        )
    if case[0] == "fedcollab":
        halves = [(n + HELD) // 2 for n in SIZES.values()]
        shown = sum(
            min(a, b)
            for i, a in enumerate(halves)
            for j, b in enumerate(halves)
            if i != j
        )
        return rounds * training + 21 * 20 * 2 * shown
    if case[0] == "perfedavg":
        return rounds * training * {"fo": 2, "hf": 4}[method.variant]
    if case[0] in GRADIENTS:
        return rounds * training * GRADIENTS[case[0]]
    if draws_rows(
        case
    ):  # ISFL: the average and the local models at the server's rows; ISFedAvg: all rows once more
        drawn = sum(math.ceil(method.sample_ratio * (n + HELD)) for n in SIZES.values())
        more = {
            "isfl": (len(SIZES) + 1) * HELD,
            "isfedavg": training // local.steps.count,
        }.get(case[0], 0)
        return rounds * (local.steps.count * drawn + more)
    if case[0] == "target-only":
        return rounds * local.steps.count * (SIZES[method.target] + HELD)
    if case[0] == "tawt":
        return (1 + (rounds - 1) * len(method.target_names(tuple(SIZES)))) * training
    if case[0] != "meritfed":
        return rounds * training
    targets = (
        1 if method.validation == "server" else len(method.target_names(tuple(SIZES)))
    )
    oracle = {
        "loss": 0,
        "delegated": rounds
        * targets
        * method.md_steps
        * min(method.oracle_batch_size or HELD, HELD),
        "gradient": HELD
        * sum(r.clients for r in found.asks if r.task.endswith(":target_gradient")),
    }[method.oracle]
    if method.oracle == "gradient" and method.md_step != "line-search":
        descents = -(-rounds // method.oracle_every)
        assert (
            oracle
            == descents
            * targets
            * (1 if method.oracle_steps == "one" else method.md_steps)
            * HELD
        )
    if method.uploads == "anchored":
        pytest.skip(
            "which clients are visited depends on models: counted in tests/methods/test_meritfed.py"
        )
    trainings = 1 + (rounds - 1) * targets
    return trainings * training + oracle


@each_setting_in_turn
def test_row_gradients_are_counted_exactly(case):
    if is_solved(case):
        pytest.skip("as many as Newton's method takes: counted in tests/methods")
    found = watched(case)
    expected = expected_row_gradients(case, found, 3, FULL)
    assert found.history.select("row_gradients")[-1] == (3, expected)
    assert {row["row_gradients"] for row in found.summary} == {expected}


@each_family
def test_summary_has_a_row_per_client_and_split_with_the_models_own_numbers(case):
    problem, found = logistic(), watched(case)
    covered = set(SIZES) if "*" in found.models else set(found.models)
    assert {
        (r["client"], r["split"]) for r in found.summary if r["split"] != "validation"
    } == {(c, s) for c in covered for s in ("train", "test")}
    for row in found.summary:
        if row["split"] == "test":
            part = problem.clients[row["client"]].part("test")
            x = found.models.get(row["client"], found.models.get("*"))
            logits = part.inputs @ x[:3] + x[3]
            loss = torch.nn.functional.softplus(-logits * (2 * part.labels - 1)).mean()
            assert row["loss"] == pytest.approx(float(loss), rel=1e-12)
            assert row["accuracy"] == pytest.approx(
                float(((logits > 0) == part.labels).double().mean()), rel=1e-12
            )
            assert (row["n"], row["own_model"]) == (HELD, row["client"] in found.models)


@first_of_a_family
def test_a_diverging_run_ends_with_a_sentence_and_keeps_the_last_round(case, tmp_path):
    if is_exempt(case, "diverges"):
        pytest.skip(f"the method declares: {method_of(case).exempt['diverges']}")
    problem, done = regression(torch.float32), []
    local = LocalSGD(lr=1e15, steps=Steps(1), batch_size=None)
    with pytest.raises(RunError, match=r"^round \d") as caught:
        fit(
            method_of(case, local), problem.clients, problem.model, 6,
            server=server_rows(problem), checkpoint=tmp_path, callbacks=(done.append,),
        )  # fmt: skip
    number = int(
        str(caught.value)[6]
    )  # 0 if it learns of divergence before the first round
    assert done[-1:] == [number - 1] * (number > 0)
    assert (tmp_path / "checkpoint.safetensors").exists() == (number > 0)


# ---- every field is explained


@pytest.mark.parametrize("name", METHODS)
def test_every_field_is_explained(name):
    rows = fields_of(METHODS[name])
    assert [row[0] for row in rows] == [
        f.name for f in dataclasses.fields(METHODS[name])
    ]
    for field, _, _, explanation in rows:
        assert len(explanation.split()) >= 3, (
            f"{name}.{field}: explain it under Attributes"
        )


@pytest.mark.parametrize(
    "name", ["meritfed", "varsel", "maxfl", "isfl", "fedprox", "fedavg"]
)
def test_every_field_says_where_the_paper_has_it(name):
    place = r"\b(Eqs?\.|Algorithm \d|lines? \d|Section|Tables? \d|Theorem|appendix|papers?'?|authors'|ours)"
    for field, _, _, explanation in fields_of(METHODS[name]):
        assert re.search(place, explanation), f"{name}.{field}: {explanation}"


def test_one_explanation_may_serve_several_fields():
    @dataclasses.dataclass
    class Pair:
        """Two numbers.

        Attributes:
            low, high: ends of the range,
                both included.
        """

        low: float = 0.0
        high: float = 1.0

    assert [row[3] for row in fields_of(Pair)] == [
        "ends of the range, both included."
    ] * 2

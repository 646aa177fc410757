"""The contract suites: whatever is registered keeps the laws of its kind, and what breaks one is told which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from test_methods import CASES, in_turn, is_of_few, method_of

import coterie as ct
from coterie import testing
from coterie.base.errors import InputError
from coterie.compute.tasks import local_update
from coterie.config.registry import (
    ATTACKS,
    DATASETS,
    FILTERS,
    METRICS,
    MODELS,
    SAMPLERS,
)
from coterie.config.schema import options, wire_type

HERE = ("heart-disease", "digits", "mean-estimation")
"""Data sets that need no files from elsewhere."""


@pytest.mark.parametrize("case", in_turn(CASES, is_of_few))
def test_every_method_keeps_the_laws_of_methods(case):
    laws = testing.check_method(method_of(case))
    assert {"seed", "resume", "names", "sends"} < set(laws)


@pytest.mark.in_turn
@pytest.mark.parametrize("name", ["fedper", "fedrep", "fedbabu", "fedbn"])
def test_methods_whose_clients_keep_layers_have_a_model_with_layers(name):
    assert set(testing.check_method(name).values()) == {""}


@pytest.mark.in_turn(but=("clip", "int8"))
@pytest.mark.parametrize("name", FILTERS)
def test_every_filter_keeps_the_laws_of_filters(name):
    assert set(testing.check_filter(name).values()) == {""}


@pytest.mark.in_turn(but="class-shares")
@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_keeps_the_laws_of_samplers(name):
    assert set(testing.check_sampler(name).values()) == {""}


@pytest.mark.parametrize(
    "engine",
    [ct.InProcess(), ct.InProcess(workers=3), ct.InProcess(kernel="loop")],
    ids=str,
)
def test_every_engine_of_one_machine_keeps_the_laws_of_engines(engine):
    assert set(testing.check_engine(engine).values()) == {""}


@pytest.mark.engines
@pytest.mark.usefixtures("ray_cluster")
def test_ray_keeps_the_laws_of_engines():
    assert set(testing.check_engine(ct.Ray(actors=3)).values()) == {""}


@pytest.mark.parametrize("name", [name for name in DATASETS if name in HERE])
def test_every_data_set_keeps_the_laws_of_data_sets(name):
    assert set(testing.check_dataset(name).values()) == {""}


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_keeps_the_laws_of_metrics(name):
    assert set(testing.check_metric(name).values()) == {""}


@pytest.mark.in_turn(but=("ipm", "label-flip", "dropout"))
@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_keeps_the_laws_of_attacks(name):
    attack = ATTACKS[name](p=1.0) if name in ("dropout", "straggler") else name
    assert set(testing.check_attack(attack).values()) == {""}


def test_early_stopping_keeps_the_laws_of_callbacks():
    assert set(testing.check_callback("early-stopping").values()) == {""}


SHAPES = {
    "char-lstm": (80,),
    "mean": (3,),
    "logistic": (3,),
    "mlp": (3,),
    "2nn": (28, 28),
    "cnn": (28, 28),
}
"""Shapes of a row that models take; residual networks take images in colour."""


@pytest.mark.in_turn(but=("logistic", "char-lstm", "cnn"))
@pytest.mark.parametrize("name", MODELS)
def test_every_model_keeps_the_laws_of_models(name):
    shape = SHAPES.get(name, (3, 32, 32))
    assert set(
        testing.check_model(name, shape, 3 if name == "mean" else 10).values()
    ) == {""}


class Meddler(ct.Callback):
    """Ends the run although it says that it decides nothing."""

    decides = False

    def on_evaluation(self, round, metrics):
        return True


def whispers(shape, outputs):
    return torch.nn.Linear(shape[0], outputs + 1)


@pytest.mark.parametrize(
    ("check", "breaks", "law"),
    [
        (
            testing.check_attack,
            ct.attacks.Noise(sigma=1e-300, mode="add"),
            "'shows'.*ends as an honest one does",
        ),
        (
            testing.check_callback,
            Meddler,
            "'only-looks'.*declares decides = False, but a run that it follows",
        ),
        (
            testing.check_model,
            whispers,
            r"'one-answer-each'.*outputs of shape \[4, 3\] for 4 rows and 2 outputs",
        ),
    ],
)
def test_attacks_callbacks_and_models_that_break_a_law_are_told_which(
    check, breaks, law
):
    with pytest.raises(testing.LawError, match=law):
        check(breaks)


class Kept(NamedTuple):
    x: torch.Tensor


@options
class Plain(ct.Method[Kept]):
    """Average.

    Sends: d + 1 up, d down (local_update).
    """

    local: ct.LocalSGD = ct.LocalSGD(lr=0.3, steps=ct.Steps(4))

    def init(self, x, federation):
        return Kept(x)

    def round(self, state, federation, rng):
        return Kept(state.x + self.moved(federation, state.x, rng)), {}

    def moved(self, federation, x, rng):
        return federation.ask(
            federation.clients, local_update, x=x, local=self.local
        ).delta.mean(dim=0)

    def models(self, state):
        return state.x


class Forgetful(Plain):
    def moved(self, federation, x, rng):
        return super().moved(federation, x, rng) * torch.rand(1).item()


class Storing(Plain):
    def moved(self, federation, x, rng):
        object.__setattr__(self, "last", x.tolist())
        return super().moved(federation, x, rng)


class Favours(Plain):
    def moved(self, federation, x, rng):
        return federation.ask(("a",), local_update, x=x, local=self.local).delta.mean(
            dim=0
        )


class Uphill(Plain):
    def moved(self, federation, x, rng):
        return -super().moved(federation, x, rng)


class Talks(Plain):
    """Average.

    Sends: 2 d up, d down (local_update).
    """


class Gathers(Plain):
    def moved(self, federation, x, rng):
        return federation.ask(
            federation.everyone, local_update, x=x, local=self.local
        ).delta.mean(dim=0)


class Strict(Plain):
    def moved(self, federation, x, rng):
        replies = federation.ask(
            federation.clients, local_update, need="all", x=x, local=self.local
        )
        return replies.delta.mean(dim=0)


class Pairs(Plain):
    def check(self, everyone):
        if len(everyone) < 2:
            raise InputError("clients come in pairs")


class Excused(Plain):
    exempt = {"names": "it likes the first client"}  # noqa: RUF012


class Misspelt(Plain):
    exempt = {"nmaes": "it likes the first client"}  # noqa: RUF012


class Admits(Favours):
    exempt = dict.fromkeys(
        ("names", "alone", "failures"), "it trains on client a alone"
    )


def test_a_plain_method_keeps_every_law_and_exceptions_show_their_reason():
    assert set(testing.check_method(Plain).values()) == {""}
    assert testing.check_method(Admits())["names"] == "it trains on client a alone"


@pytest.mark.in_turn(
    but=("Forgetful-*", "Storing-*", "Talks-*", "Pairs-*", "Excused-*", "Misspelt-*")
)
@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (
            Forgetful,
            "Forgetful breaks the law 'seed' .*: a second run with the same seed ends at another model of",
        ),
        (
            Storing,
            "Storing breaks the law 'value' .*: it keeps last on itself; what it learns belongs to its state",
        ),
        (
            Favours,
            "Favours breaks the law 'names' .* gets another model; names may decide ties only",
        ),
        (
            Uphill,
            "Uphill breaks the law 'learns' .*: the mean loss on training rows was",
        ),
        (
            Gathers,
            "Gathers breaks the law 'participants' .*local_update is asked of 5 clients in round 1, drawn were 2",
        ),
        (
            Strict,
            "Strict breaks the law 'failures' .*: QuorumError: round 1, .* all of them are needed",
        ),
        (Pairs, "Pairs breaks the law 'alone' .*: InputError: clients come in pairs"),
        (
            Talks,
            "Talks breaks the law 'sends' .*: declares 2 d = 8 numbers up for coterie.*local_update, sent 5",
        ),
        (
            Excused,
            "Excused declares itself exempt from 'names' .it likes the first client., but keeps it; drop that line",
        ),
        (
            Misspelt,
            "Misspelt is exempt from 'nmaes', which is not a law of its kind; did you mean 'names'",
        ),
    ],
)
def test_a_method_that_breaks_a_law_is_told_which_and_which_side_it_declared(
    method, sentence
):
    with pytest.raises(testing.LawError, match=sentence):
        testing.check_method(method)


@wire_type
@dataclass(frozen=True)
class Rounded(ct.Filter):
    """Send half of an update, and call that no loss."""

    lossy = False

    def apply(self, rows, passage):
        return rows / 2


@wire_type
@dataclass(frozen=True)
class Together(ct.Filter):
    """Send what depends on who shares the cohort."""

    def apply(self, rows, passage):
        return rows - rows.mean(dim=0)


@dataclass(frozen=True)
class Slower(ct.InProcess):
    """An engine with other rows than it is given."""

    def open(self, clients, model, loss):
        return super().open(clients.subset(clients.names[1:]), model, loss)


def first(outputs, labels, kind):
    return float(outputs[0, 0])


def never(outputs, labels, kind):
    return None


def spoils(outputs, labels, kind):
    return float(outputs.zero_().sum())


@pytest.mark.parametrize(
    ("check", "subject", "sentence"),
    [
        (
            testing.check_filter,
            Rounded,
            "Rounded breaks the law 'lossless' .*: declares lossy = False, but a run with this",
        ),
        (
            testing.check_filter,
            Together,
            "Together breaks the law 'workers' .*: a run on two workers ends at another",
        ),
        (testing.check_engine, Slower, "Slower breaks the law"),
        (
            testing.check_metric,
            first,
            "first breaks the law 'rows' .* for the same rows in another order",
        ),
        (
            testing.check_metric,
            never,
            "never breaks the law 'number' .*: gives None for every kind of task",
        ),
        (
            testing.check_metric,
            spoils,
            "spoils breaks the law 'inputs' .*: changed the outputs or labels of binary",
        ),
        (
            testing.check_dataset,
            len,
            "is a builtin_function_or_method; a data set is a coterie.data.Dataset",
        ),
    ],
)
def test_what_breaks_a_law_of_its_kind_is_told_which(check, subject, sentence):
    with pytest.raises(testing.LawError, match=sentence):
        check(subject)


def test_what_is_no_plug_in_of_the_kind_is_refused():
    with pytest.raises(
        InputError, match="there is no filter 'clop'; did you mean 'clip'"
    ):
        testing.check_filter("clop")
    with pytest.raises(InputError, match="is not a filter; give one such as TopK"):
        testing.check_filter(ct.FedAvg())

"""What a method, an attack, a callback or a sampler of the user's own is told when one of its hooks returns the wrong thing."""

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.attacks import Attack
from coterie.config.schema import options
from federations import fit, logistic

PROBLEM = logistic()


class Mine(ct.Method):
    """A method whose model stays as it is."""

    def init(self, x, federation):
        return x

    def round(self, state, federation, rng):
        return state, {}

    def models(self, state):
        return state


def method(**hooks):
    """`Mine` with other hooks."""
    return type("Other", (Mine,), hooks)()


def attack(**hooks):
    """An attack on `a` with these hooks."""
    return type("Lie", (Attack,), hooks)(on=("a",))


@ct.wire_type
class Narrow(Attack):
    def corrupt(self, kind, rows, rngs):
        return rows[..., :1]


@ct.wire_type
@options
class Shortened(ct.Filter):
    count: int

    def apply(self, rows, passage):
        return rows[..., : self.count] if self.count else None


@ct.wire_type
@options
class FixedRow(ct.Sampler):
    row: float = 0.0

    def rows(self, cohort, client, rng, steps, batch_size):
        return np.full((steps, batch_size), self.row if self.row % 1 else int(self.row))


def logs(log):
    return method(round=lambda self, state, federation, rng: (state, log))


METHODS = {
    "nothing": (
        method(round=lambda self, s, federation, rng: None),
        "Other.round must return (state, log); got None",
    ),
    "no log": (
        method(round=lambda self, s, federation, rng: s),
        "Other.round must return (state, log); got a Tensor of shape [4]",
    ),
    "a log of None": (
        logs(None),
        "Other.round must return numbers by name as its log; got None",
    ),
    "a text": (
        logs({"note": "text"}),
        "Other.round: 'note' of its log must be a number, or numbers by client; got 'text'",
    ),
    "two numbers": (
        logs({"loss": torch.ones(2)}),
        "Other.round: 'loss' of its log must be a number, or numbers by client",
    ),
    "weights in a list": (
        logs({"weights": [1.0]}),
        "Other.round: 'weights' of its log must be numbers by client; got [1.0]",
    ),
    "weights of nobody": (
        logs({"weights": {"a": {"f": 1.0}}}),
        "Other.round: 'weights' of its log names 'f', which is not a client; allowed: a, b, c, d, e",
    ),
    "a measure of None": (
        method(measure=lambda self, state, federation: None),
        "Other.measure must return numbers by name as its log; got None",
    ),
    "no model": (
        method(models=lambda self, state: None),
        "Other.models must return a model of 4 numbers, or such models",
    ),
    "a short model": (
        method(models=lambda self, state: state[:2]),
        "Other.models must return a model of 4 numbers, or such models by client; got a Tensor of shape [2]",
    ),
    "a model of nobody": (
        method(models=lambda self, state: {"bb": state}),
        "Other.models has a model of 'bb', which is not a client; did you mean 'b'?",
    ),
    "a personal model of nobody": (
        method(personalised=lambda self, state, federation: {"bb": state}),
        "Other.personalised has a model of 'bb', which is not a client",
    ),
    "validation rows of nobody": (
        method(keeps_validation=lambda self, names: ["bb"]),
        "Other.keeps_validation names 'bb', which is not a client; did you mean 'b'?",
    ),
}


@pytest.mark.parametrize("what", METHODS)
def test_what_a_method_returns_is_named(what):
    one, sentence = METHODS[what]
    with pytest.raises(ct.InputError) as caught:
        fit(one, *PROBLEM, 1)
    assert sentence in str(caught.value)
    assert len(str(caught.value)) <= 300


def test_numbers_of_every_kind_are_a_log():
    log = {
        "one": torch.tensor(1.0),
        "two": np.float32(2),
        "three": True,
        "by": {"a": 1},
        "weights": {"a": {"b": 1.0}},
    }
    assert fit(logs(log), *PROBLEM, 1).weights == {"a": {"b": 1.0}}


ATTACKS = {
    "a narrow lie": (
        Narrow(on=("a",)),
        "Narrow.corrupt must return a tensor of shape [1, 4]; got one of shape [1, 1]",
    ),
    "a lie for everybody": (
        attack(rewrite=lambda self, kind, rows, attackers, rngs: rows),
        "Lie.rewrite must return a tensor of shape [1, 4]; got one of shape [5, 4]",
    ),
    "no lie": (
        attack(rewrite=lambda self, kind, rows, attackers, rngs: None),
        "Lie.rewrite must return a tensor of shape [1, 4]; got None",
    ),
    "no rows": (
        attack(on_rows=lambda self, clients, names: None),
        "Lie.on_rows must return the clients that it was given, with other rows; got None",
    ),
}


@pytest.mark.parametrize("what", ATTACKS)
def test_what_an_attack_returns_is_named(what):
    one, sentence = ATTACKS[what]
    with pytest.raises(ct.InputError) as caught:
        fit(ct.FedAvg(), *PROBLEM, 1, attack=one)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(("sent", "got"), [(1, "one of shape [1, 1]"), (0, "None")])
def test_what_a_filter_returns_is_named(sent, got):
    with pytest.raises(ct.InputError) as caught:
        fit(ct.FedAvg(), *PROBLEM, 1, filters=[Shortened(sent)])
    assert f"Shortened.apply must return a tensor of shape [1, 4]; got {got}" in str(
        caught.value
    )


def test_what_a_callback_begins_with_is_named():
    begins = type(
        "Begins", (ct.Callback,), {"begin": lambda self, label, seed, rounds: None}
    )()
    with pytest.raises(
        ct.InputError,
        match=r"Begins.begin must return a callback, such as itself; got None",
    ):
        fit(ct.FedAvg(), *PROBLEM, 1, callbacks=(begins,))


@pytest.mark.parametrize("rows", [-1, 10**6, 0.5])
def test_rows_that_a_client_does_not_have_are_refused(rows):
    sampler = FixedRow(float(rows))
    with pytest.raises(
        ct.InputError,
        match=r"FixedRow.rows must return row numbers \[steps, batch_size\] from 0 to \d+",
    ):
        fit(ct.FedAvg(ct.LocalSGD(sampler=sampler)), *PROBLEM, 1)


@pytest.mark.parametrize(
    ("hooks", "sentence"),
    [
        (
            {"packs": True, "apply": lambda self, rows, passage: rows},
            "Packs.packs is true; define pack and unpack",
        ),
        (
            {"pack": lambda self, rows: {"rows": rows}},
            "Packs.pack and Packs.unpack are used where Packs.packs is true; set it",
        ),
    ],
)
def test_a_filter_that_packs_has_both_halves(hooks, sentence):
    one = type("Packs", (ct.Filter,), hooks)()
    with pytest.raises(ct.InputError, match=sentence):
        fit(ct.FedAvg(), *PROBLEM, 1, filters=[one])


def test_settings_of_a_model_are_called():
    with pytest.raises(
        ct.InputError, match=r"the model is the class MLP; call it, say MLP\(\)"
    ):
        ct.fit(ct.FedAvg(), PROBLEM.clients, ct.models.MLP, 1)

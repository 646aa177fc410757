"""`fit` takes names of methods, data sets and models, and says in a sentence what it cannot take."""

from __future__ import annotations

import pytest

import coterie as ct
from federations import assert_same_bits, logistic


def test_names_stand_for_values():
    named = ct.fit("fedprox", "heart-disease", "mlp", rounds=2, seed=3)
    clients = ct.data.load("heart-disease", seed=3)
    assert_same_bits(named, ct.fit(ct.FedProx(), clients, ct.models.MLP(), 2, 3))


def test_the_model_may_be_left_out():
    named = ct.fit("fedavg", "heart-disease", rounds=1)
    assert_same_bits(named, ct.fit(ct.FedAvg(), ct.data.load("heart-disease"), ct.models.Logistic(), 1))


WRONG = {
    "a method": (("fedagv", "heart-disease"), {}, "there is no method 'fedagv'; did you mean 'fedavg'"),
    "a data set": (("fedavg", "haert-disease"), {}, "did you mean 'heart-disease'"),
    "a model": (("fedavg", "heart-disease", "logistc"), {}, "there is no model 'logistc'; did you mean 'logistic'"),
    "a method that needs more": (("varsel", "heart-disease"), {}, "method 'varsel': VaRSeL.internal must be"),
    "clients": (("fedavg", [1, 2]), {}, "clients must be Clients, as data.from_tensors makes them"),
    "an engine": ((), {"engine": "ray"}, "engine must be an engine such as InProcess(workers=2); got 'ray'"),
    "local": ((), {"local": {"lr": 0.1}}, "local must be None or LocalSGD(...); got {'lr': 0.1}"),
    "init": ((), {"init": 3}, "init must be None, a state dict or a safetensors file; got 3"),
    "settings": ((), {"settings": {"evaluate": 3}}, "settings must be RunSettings(...); got {'evaluate': 3}"),
    "filters": ((), {"filters": ct.TopK(0.1)}, "filters must be a list of filters such as [TopK(0.01)]; got TopK"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_it_cannot_take_is_one_sentence(what):
    arguments, options, sentence = WRONG[what]
    problem = logistic()
    with pytest.raises(ct.InputError) as caught:
        ct.fit(*(arguments or (ct.FedAvg(), problem.clients, problem.model)), rounds=1, **options)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: ct.RunSettings(metrics="auc"), "RunSettings.metrics must be a list of names; got 'auc'"),
        (lambda: ct.RunSettings(metrics=3), "RunSettings.metrics must be a list of names; got 3"),
        (lambda: ct.InProcess(workers="2"), "InProcess.workers must be an int > 0; got '2'"),
        (
            lambda: ct.RunSettings(loss="binry"),
            "RunSettings.loss must be auto | binary | classes | classes-last | squared",
        ),
        (lambda: ct.RunSettings(loss=3), "got 3"),
    ],
)
def test_values_say_what_they_cannot_hold(make, sentence):
    with pytest.raises(ct.InputError) as caught:
        make()
    assert sentence in str(caught.value)

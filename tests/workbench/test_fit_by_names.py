"""`fit` takes names of methods, data sets and models, and says in a sentence what it cannot take."""

from __future__ import annotations

import pytest

import coterie as ct
from coterie.base.modules import load_object
from federations import assert_same_bits, logistic


def test_names_stand_for_values():
    named = ct.fit("fedprox", "heart-disease", "mlp", rounds=2, seed=3)
    clients = ct.data.load("heart-disease", seed=3)
    assert_same_bits(named, ct.fit(ct.FedProx(), clients, ct.models.MLP(), 2, 3))


def test_the_model_may_be_left_out():
    named = ct.fit("fedavg", "heart-disease", rounds=1)
    assert_same_bits(
        named,
        ct.fit(ct.FedAvg(), ct.data.load("heart-disease"), ct.models.Logistic(), 1),
    )


OWN = """
import torch
import coterie as ct

def towns(seed):
    generator = torch.Generator().manual_seed(seed)
    return ct.data.from_tensors(
        {name: (torch.randn(12, 3, generator=generator), torch.arange(12) % 2) for name in "abc"}, seed=seed
    )

class Mine(ct.FedAvg):
    pass

def linear(shape, outputs):
    return torch.nn.Linear(shape[0], outputs)

def share(outputs, labels, kind):
    return float(labels.float().mean())
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "own_parts.py"
    path.write_text(OWN)
    return str(path)


def test_objects_of_a_file_stand_for_values(own):
    settings = ct.RunSettings(metrics=(f"{own}:share", "accuracy"))
    named = ct.fit(
        f"{own}:Mine", f"{own}:towns", f"{own}:linear", 1, 3, settings=settings
    )
    towns, linear = load_object(f"{own}:towns"), load_object(f"{own}:linear")
    metrics = ct.RunSettings(metrics=("share", "accuracy"))
    assert_same_bits(
        named, ct.fit(ct.FedAvg(), towns(3), linear, 1, 3, settings=metrics)
    )
    assert {row["share"] for row in named.summary if row["split"] == "test"} == {0.5}
    tuned = ct.personalise(
        ct.fit(
            "fedavg",
            towns(3),
            linear,
            1,
            settings=ct.RunSettings(merge_validation=False),
        ),
        towns(3),
        steps=(0,),
        settings=settings,
    )
    assert all("share" in row for row in tuned.summary)


def test_a_function_gives_the_clients_of_the_seed(own):
    towns = load_object(f"{own}:towns")
    assert_same_bits(
        ct.fit("fedavg", towns, rounds=1, seed=3),
        ct.fit("fedavg", towns(3), rounds=1, seed=3),
    )


def fails(*, seed):
    return [][seed]


WRONG = {
    "tuning": (
        ("fedavg+bias", "heart-disease"),
        {},
        "'fedavg+bias' tunes after training; give fit 'fedavg', with RunSett",
    ),
    "a class of models": (
        ("fedavg", "heart-disease", ct.models.MLP),
        {},
        "the model is the class MLP; call it, say MLP()",
    ),
    "a function that takes no seed": (
        ("fedavg", len),
        {},
        "len has no parameter seed; write def len(*, seed):",
    ),
    "a function that fails": (
        ("fedavg", fails),
        {},
        "fails failed: IndexError: list index out of range",
    ),
    "a method": (
        ("fedagv", "heart-disease"),
        {},
        "there is no method 'fedagv'; did you mean 'fedavg'",
    ),
    "a data set": (("fedavg", "haert-disease"), {}, "did you mean 'heart-disease'"),
    "a model": (
        ("fedavg", "heart-disease", "logistc"),
        {},
        "there is no model 'logistc'; did you mean 'logistic'",
    ),
    "a method that needs more": (
        ("varsel", "heart-disease"),
        {},
        "method 'varsel': VaRSeL.internal must be",
    ),
    "clients": (
        ("fedavg", [1, 2]),
        {},
        "client 'client-0' is int; give (inputs, labels)",
    ),
    "an engine": (
        (),
        {"engine": "rya"},
        "engine: there is no engine 'rya'; did you mean 'ray'",
    ),
    "an attack": ((), {"attack": "ipm"}, "no client attacks"),
    "a filter": (
        (),
        {"filters": ["topk"]},
        "filters: there is no filter 'topk'; did you mean 'top-k'",
    ),
    "filters as one name": (
        (),
        {"filters": "top-k"},
        "filters must be a list of filters such as [TopK(0.01)]; got 'top-k'",
    ),
    "local": (
        (),
        {"local": {"lr": 0.1}},
        "local must be None or LocalSGD(...); got {'lr': 0.1}",
    ),
    "init": (
        (),
        {"init": 3},
        "init must be None, a state dict or a safetensors file; got 3",
    ),
    "settings": (
        (),
        {"settings": {"evaluate": 3}},
        "settings must be RunSettings(...); got {'evaluate': 3}",
    ),
    "filters": (
        (),
        {"filters": ct.TopK(0.1)},
        "filters must be a list of filters such as [TopK(0.01)]; got TopK",
    ),
}


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("f1", "there is a metric 'f1' already"),
        ("n", "'n' is a column of summary.json"),
        ("THREE", "got 3"),
    ],
)
def test_a_metric_of_a_file_takes_no_other_name(name, sentence, tmp_path):
    (tmp_path / "odd.py").write_text(
        "THREE = 3\n\n\ndef f1(*given):\n    return 0.1\n\n\nn = f1\n"
    )
    problem = logistic()
    settings = ct.RunSettings(metrics=(f"{tmp_path}/odd.py:{name}",))
    with pytest.raises(ct.InputError, match=sentence):
        ct.fit(ct.FedAvg(), problem.clients, problem.model, 1, settings=settings)


@pytest.mark.parametrize("what", WRONG)
def test_what_it_cannot_take_is_one_sentence(what):
    arguments, options, sentence = WRONG[what]
    problem = logistic()
    with pytest.raises(ct.InputError) as caught:
        ct.fit(
            *(arguments or (ct.FedAvg(), problem.clients, problem.model)),
            rounds=1,
            **options,
        )
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: ct.RunSettings(metrics="auc"),
            "RunSettings.metrics must be a list of names, each once",
        ),
        (lambda: ct.RunSettings(metrics=3), "got 3"),
        (
            lambda: ct.RunSettings(metrics=("accuracy,auc", "rmse")),
            "got ('accuracy,auc', 'rmse')",
        ),
        (lambda: ct.RunSettings(metrics=("auc", " auc")), "got ('auc', ' auc')"),
        (lambda: ct.RunSettings(metrics=("auc", "auc")), "got ('auc', 'auc')"),
        (
            lambda: ct.RunSettings(metrics=("a.py:f", "b.py:f")),
            "got ('a.py:f', 'b.py:f')",
        ),
        (
            lambda: ct.InProcess(workers="2"),
            "InProcess.workers must be an int > 0; got '2'",
        ),
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

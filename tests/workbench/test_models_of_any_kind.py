"""Modules that people have: with noise, masks, frozen parts, keyword inputs, outputs that are no tensor."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import coterie as ct
from coterie.base.rng import Generators, fork_generators, seed_noise
from coterie.config.run import RunSettings
from coterie.engines.inprocess import InProcess
from coterie.study.row_outcomes import outcomes


def rows(count=24, width=4, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(count, width, generator=draw), torch.randint(
        0, 2, (count,), generator=draw
    )


def numbers():
    return random.random(), np.random.normal(), float(torch.rand(1))  # noqa: NPY002


def clients():
    return ct.data.from_tensors([rows(seed=i) for i in range(3)])


def fitted(model, **options):
    return ct.fit(
        ct.FedAvg(ct.LocalSGD(steps=ct.Steps(3))),
        options.pop("data", None) or clients(),
        model,
        2,
        **options,
    )


class Noisy(nn.Module):
    """Noise from a generator that is not torch's own, in training or always."""

    def __init__(self, draw, always=False):
        super().__init__()
        self.layer, self.draw, self.always = nn.Linear(4, 1), draw, always

    def forward(self, inputs):
        return self.layer(
            inputs + self.draw() if self.training or self.always else inputs
        )


@pytest.mark.in_turn(but=("numpy-False", "torch-True"))
@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize(
    "draw",
    [lambda: numbers()[1], lambda: random.random(), lambda: torch.randn(1)],
    ids=["numpy", "python", "torch"],
)
def test_noise_of_any_library_has_the_bits_of_the_seed(draw, always):
    torch.manual_seed(0)
    model = Noisy(draw, always)
    seed_noise(5)
    before = Generators.now()
    first = fitted(model)
    assert not before.differ()  # nobody else's numbers change
    seed_noise(7)
    second = fitted(model, engine=InProcess(workers=2))
    assert torch.equal(first.x, second.x)
    assert first.history == second.history
    assert not torch.equal(first.x, fitted(model, seed=1).x)


OWN = {
    "torch": (torch.Generator, lambda generator: torch.randn(1, generator=generator)),
    "numpy": (np.random.default_rng, lambda generator: generator.normal()),
    "legacy numpy": (np.random.RandomState, lambda generator: generator.normal()),
    "python": (random.Random, lambda generator: generator.random()),
}


class OwnNoise(nn.Module):
    """Noise from a generator that the module holds, or hides."""

    def __init__(self, kind, hidden=False):
        super().__init__()
        make, self.draw = OWN[kind]
        self.layer, self.generator = nn.Linear(4, 1), [make()] if hidden else make()

    def forward(self, inputs):
        own = self.generator[0] if isinstance(self.generator, list) else self.generator
        return self.layer(inputs + self.draw(own) if self.training else inputs)


@pytest.mark.in_turn(but=("torch", "numpy"))
@pytest.mark.parametrize("kind", OWN)
def test_a_generator_that_a_module_holds_is_seeded_by_name(kind, tmp_path):
    model = OwnNoise(kind)
    whole = fitted(model)
    assert torch.equal(whole.x, fitted(model).x)
    assert torch.equal(whole.x, fitted(model, engine=InProcess(workers=2)).x)
    half = ct.FedAvg(ct.LocalSGD(steps=ct.Steps(3)))
    ct.fit(half, clients(), model, 1, checkpoint=tmp_path)
    resumed = fitted(model, checkpoint=tmp_path, settings=RunSettings(resume=True))
    assert torch.equal(whole.x, resumed.x)
    assert not torch.equal(whole.x, fitted(model, seed=1).x)


def test_noise_that_cannot_be_seeded_is_refused():
    with pytest.raises(
        ct.InputError,
        match="the model gives other outputs when it reads the same rows again",
    ) as caught:
        fitted(OwnNoise("torch", hidden=True))
    assert len(str(caught.value)) <= 300


def test_what_a_noisy_model_says_of_each_row_is_what_its_summary_says():
    run = fitted(Noisy(lambda: torch.randn(1), always=True))
    before = Generators.now()
    names, tensors = outcomes(run, clients())
    assert not before.differ()
    means = [
        float(loss.mean())
        for loss in tensors["loss"].tensor_split(tensors["offsets"][1:-1])
    ]
    expected = {
        row["client"]: row["loss"] for row in run.summary if row["split"] == "test"
    }
    assert dict(zip(names, means, strict=True)) == pytest.approx(expected, rel=1e-6)


def test_forked_generators_stand_where_they_stood():
    before = Generators.now()
    with fork_generators(3):
        drawn = numbers()
        assert before.differ()
    assert not before.differ()
    with fork_generators(3):
        assert drawn == numbers()
    with fork_generators():
        assert not before.differ()
        random.random()
        assert before.differ()


class Masked(nn.Module):
    """A causal mask with -inf as a float buffer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.register_buffer("mask", torch.full((4, 4), -torch.inf).triu(1))

    def forward(self, inputs):
        scores = inputs[:, :, None] * inputs[:, None, :] + self.mask
        return self.layer((scores.softmax(-1) * inputs[:, None, :]).sum(-1))


def test_a_mask_with_infinity_is_no_divergence():
    run = fitted(Masked())
    assert torch.equal(run.state_dict()["mask"], Masked().mask)
    assert len(run.x) == 5


class Frozen(nn.Module):
    def __init__(self, frozen):
        super().__init__()
        self.norm, self.layer = nn.BatchNorm1d(4), nn.Linear(4, 1)
        self.norm.requires_grad_(not frozen)

    def forward(self, inputs):
        return self.layer(self.norm(inputs))


@pytest.mark.parametrize("method", [ct.FedAvg(), ct.MOON(mu=1)], ids=["fedavg", "moon"])
def test_frozen_batch_norm_keeps_its_statistics(method):
    run = ct.fit(method, clients(), Frozen(True), 2)
    assert torch.equal(run.state_dict()["norm.running_mean"], torch.zeros(4))
    assert torch.equal(run.module.norm.running_var, torch.ones(4))
    assert len(run.x) == 5  # they do not travel
    moved = ct.fit(method, clients(), Frozen(False), 2)
    assert not torch.equal(moved.state_dict()["norm.running_mean"], torch.zeros(4))


@pytest.mark.parametrize(
    ("pattern", "trained"),
    [
        ("1.*", {"0.weight", "0.bias", "2.weight", "2.bias"}),
        ("1", {"0.weight", "0.bias", "2.weight", "2.bias"}),
        ("*.running_*", {"0.weight", "0.bias", "2.weight", "2.bias"}),
        ("0", {"1.running_mean", "1.running_var", "2.weight", "2.bias"}),
    ],
)
def test_a_pattern_freezes_the_statistics_of_batch_norm_without_parameters(
    pattern, trained
):
    model = nn.Sequential(
        nn.Linear(4, 3), nn.BatchNorm1d(3, affine=False), nn.Linear(3, 1)
    )
    run = ct.fit(
        "fedavg", clients(), model, 1, settings=ct.RunSettings(freeze=[pattern])
    )
    before, after = model.state_dict(), run.state_dict()
    assert set(run.state_dict(trained_only=True)) == trained
    assert {
        name for name in after if not torch.equal(after[name], before[name])
    } == trained
    assert len(run.x) == sum(
        before[name].numel() for name in trained
    )  # the others do not travel


class Keywords(nn.Module):
    """Inputs by keyword, and an output that is not a tensor, in the manner of Hugging Face."""

    def __init__(self, wrap):
        super().__init__()
        self.embed, self.layer, self.wrap = nn.Embedding(5, 4), nn.Linear(4, 1), wrap

    def forward(self, input_ids, attention_mask=None):
        states = self.embed(input_ids) * attention_mask[:, :, None]
        return self.wrap(self.layer(states.mean(1)))


@pytest.mark.parametrize(
    "wrap", [lambda t: t, lambda t: {"logits": t}, lambda t: SimpleNamespace(logits=t)]
)
def test_inputs_by_keyword_and_outputs_with_logits(wrap):
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 5, (24, 6), generator=draw)
    data = ct.data.from_tensors(
        [({"input_ids": tokens, "attention_mask": torch.ones(24, 6)}, tokens[:, 0] % 2)]
        * 2
    )
    torch.manual_seed(0)
    run = fitted(Keywords(wrap), data=data)
    torch.manual_seed(0)
    assert torch.equal(run.x, fitted(Keywords(lambda t: t), data=data).x)
    assert set(run.state_dict()) == set(Keywords(wrap).state_dict())
    assert all(row["accuracy"] is not None for row in run.summary)


def with_buffer(value):
    model = nn.Linear(4, 1)
    model.register_buffer("extra", value)
    return model


class Detached(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs).detach()


class ManyZeros(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs).to_sparse()


class Overwritten(nn.Linear):
    def forward(self, inputs):
        squared = super().forward(inputs).exp()
        outputs = squared * squared
        squared.add_(1)
        return outputs


def pruned():
    return prune.random_unstructured(nn.Linear(4, 1), "weight", 0.5)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (
            lambda: Detached(4, 1),
            "no gradient of the loss can be computed: element 0 of tensors does not require grad",
        ),
        (
            lambda: ManyZeros(4, 1),
            "what the model gives is a tensor that is sparse; give a dense one [rows, ...]",
        ),
        (
            lambda: Overwritten(4, 1),
            "no gradient of the loss can be computed: one of the variables needed for gradient",
        ),
        (
            pruned,
            "the model cannot be copied: it holds a computed tensor, as torch.nn.utils.weight_norm and pruning do",
        ),
        (
            lambda: with_buffer(
                torch.nested.nested_tensor(
                    [torch.ones(2), torch.ones(3)], layout=torch.jagged
                )
            ),
            "'extra' of the model is torch.float32, torch.jagged, on cpu; train dense",
        ),
        (
            lambda: with_buffer(torch.eye(3).to_sparse()),
            "'extra' of the model is torch.float32, torch.sparse_coo, on cpu; train",
        ),
        (
            lambda: nn.Sequential(nn.LazyLinear(3), nn.Linear(4, 1)),
            "the lazy layers of the model cannot be made from rows of client",
        ),
        (
            lambda: nn.Linear(4, 1, device="meta"),
            "'weight' of the model is torch.float32, torch.strided, on meta; train dense",
        ),
        (
            lambda: nn.Linear(4, 1, dtype=torch.complex64),
            "'weight' of the model is torch.complex64, torch.strided, on cpu; train",
        ),
        (
            lambda: nn.LSTM(4, 1),
            "the model returns a tuple; return one tensor, or an object or dict with 'logits'",
        ),
        (
            lambda: nn.Sequential(
                nn.Linear(4, 1), nn.Flatten(0), nn.Unflatten(0, (1, -1))
            ),
            "the model gives torch.float32 outputs of shape",
        ),
    ],
    ids=[
        "detached",
        "many zeros",
        "overwritten",
        "computed",
        "nested",
        "sparse",
        "lazy",
        "meta",
        "complex",
        "tuple",
        "rows",
    ],
)
def test_a_model_that_cannot_be_trained_is_refused_in_a_sentence(model, sentence):
    model = model()  # made here, since torch imports half of itself for a nested tensor
    with pytest.raises(ct.InputError) as caught:
        fitted(model)
    assert str(caught.value).startswith(sentence)
    assert len(str(caught.value)) <= 300
    with pytest.raises(ct.InputError) as compared:
        ct.compare(["local"], clients(), model, 1, 1)
    assert str(compared.value) == str(caught.value)


@pytest.mark.parametrize(
    "run",
    [
        lambda: fitted(nn.Linear(4, 1)),
        lambda: ct.compare(["local"], clients(), nn.Linear(4, 1), 1, 1),
    ],
)
def test_autocast_around_a_run_is_refused(run):
    with (
        torch.autocast("cpu"),
        pytest.raises(
            ct.InputError, match="autocast around a run would change its bits"
        ),
    ):
        run()
    run()


def test_parametrised_modules_train():
    def model():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), nn.Linear(4, 1)
        )

    run = fitted(model())
    assert "0.parametrizations.weight.original0" in run.state_dict()
    loaded = model()
    loaded.load_state_dict(run.state_dict())
    inputs = rows()[0]
    torch.testing.assert_close(
        torch.sigmoid(loaded(inputs)[:, 0]).double(),
        run.predict(inputs).values[:, 1].double(),
    )


def test_a_buffer_of_8_bit_floats_stays_as_it_is():
    run = fitted(with_buffer(torch.ones(2).to(torch.float8_e4m3fn)))
    assert len(run.x) == 5


def test_a_loss_that_fails_is_named():
    def alone(outputs):
        return outputs

    alone.kind = "binary"
    with pytest.raises(
        ct.InputError,
        match=r"the loss cannot take outputs of shape \(2, 1\) and torch.int64 labels.*TypeError",
    ):
        fitted(nn.Linear(4, 1), settings=RunSettings(loss=alone))


def test_a_bfloat16_model_is_saved_and_goes_on(tmp_path):
    model = nn.Linear(4, 1, dtype=torch.bfloat16)
    whole = fitted(model, checkpoint=tmp_path / "whole")
    half = ct.fit(
        ct.FedAvg(ct.LocalSGD(steps=ct.Steps(3))),
        clients(),
        model,
        1,
        checkpoint=tmp_path / "half",
    )
    on = fitted(model, checkpoint=tmp_path / "half", settings=RunSettings(resume=True))
    assert half.x.dtype == torch.bfloat16
    assert torch.equal(on.x, whole.x)


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(5, 4), nn.LazyLinear(1)

    def forward(self, input_ids):
        return SimpleNamespace(logits=self.head(self.embedding(input_ids).flatten(1)))


def test_lazy_layers_are_made_from_rows():
    images = [
        (
            torch.randint(0, 255, (12, 1, 6, 6), dtype=torch.uint8),
            torch.tensor([0, 1] * 6),
        )
        for _ in range(2)
    ]
    model = nn.Sequential(
        nn.LazyConv2d(2, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(1)
    )
    data = ct.data.from_tensors(images)
    run = fitted(model, data=data)
    assert {
        k: tuple(v.shape)
        for k, v in run.state_dict().items()
        if k in ("0.weight", "3.weight")
    } == {
        "0.weight": (2, 1, 3, 3),
        "3.weight": (1, 32),
    }
    assert nn.parameter.is_lazy(model[0].weight)  # the one that was given stays
    torch.rand(3)
    assert torch.equal(fitted(model, data=data).x, run.x)
    assert not torch.equal(fitted(model, data=data, seed=1).x, run.x)
    made = ct.compare(["local"], data, model, rounds=1, seeds=2)
    assert "python:Sequential:" in (made.folder / "experiment.toml").read_text()


def test_lazy_layers_behind_keywords_are_made_too():
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 5, (24, 6), generator=draw)
    data = ct.data.from_tensors([({"input_ids": tokens}, tokens[:, 0] % 2)] * 2)
    assert fitted(Tokens(), data=data).state_dict()["head.weight"].shape == (1, 24)

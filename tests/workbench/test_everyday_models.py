"""Models that people bring, in small: each trains, and its loss on training rows falls."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import coterie as ct

DRAW = torch.Generator().manual_seed(0)


def falls(model, parts, *, lr=0.1, clip=None, optimiser="sgd", rounds=4, **options):
    """The run of a model whose mean loss over clients' training rows is lower after it than before."""
    clients = ct.data.from_tensors(
        {name: {"train": part} for name, part in zip("ab", parts, strict=True)}
    )
    clients = (
        clients
        if "transform" not in options
        else clients.with_transform(options.pop("transform"))
    )
    local = ct.LocalSGD(lr, ct.Steps(4), batch_size=8, clip=clip, optimiser=optimiser)
    run = ct.fit(
        ct.FedAvg(local),
        clients,
        model,
        rounds,
        settings=ct.RunSettings(metrics=(), **options),
    )
    losses = [
        sum(run.history.select("loss", name, "train")[at][1] for name in "ab")
        for at in (0, -1)
    ]
    assert losses[1] < 0.97 * losses[0]
    return run


def images(count=24, channels=1, size=8):
    """Images whose left or right half is brighter."""
    labels = torch.arange(count) % 2
    noise = 0.3 * torch.randn(count, channels, size, size, generator=DRAW)
    halves = torch.stack(
        [torch.arange(size) < size // 2, torch.arange(size) >= size // 2]
    ).float()
    return noise + halves[labels][:, None, None, :], labels


def flipped_up_and_down(inputs: Tensor, rng: ct.Rng) -> Tensor:
    return inputs.flip(-2) if rng.uniform(1)[0] < 0.5 else inputs


def test_a_cnn_with_batch_norm_and_augmentation():
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 1),
    )
    run = falls(model, [images(), images()], transform=flipped_up_and_down)
    assert run.state_dict()["1.running_mean"].abs().sum() > 0


@pytest.mark.in_turn
def test_a_resnet():
    falls(
        ct.models.ResNet8(norm="batch"),
        [images(12, 3), images(12, 3)],
        lr=0.02,
        rounds=1,
    )


class Characters(nn.Module):
    """The next character at every place: outputs [rows, time, classes]."""

    def __init__(self):
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(5, 6), nn.LSTM(6, 8, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, tokens):
        return self.head(self.lstm(self.embedding(tokens))[0])


def test_a_character_lstm():
    texts = [
        (torch.arange(10)[None, :] + torch.arange(16)[:, None]) % 5 for _ in range(2)
    ]
    falls(
        Characters(),
        [(text[:, :-1], text[:, 1:]) for text in texts],
        lr=1.0,
        clip=1.0,
        loss="classes-last",
    )


class Bert(nn.Module):
    """A small encoder with keyword inputs, and outputs with logits."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(8, 2)

    def forward(self, input_ids, attention_mask):
        hidden = self.encoder(
            self.embedding(input_ids), src_key_padding_mask=attention_mask == 0
        )
        return {"logits": self.head(hidden[:, 0]), "hidden": hidden}


def test_a_small_bert_with_keyword_inputs():
    def sentences():
        tokens = torch.randint(0, 7, (24, 6), generator=DRAW)
        mask = torch.ones(24, 6, dtype=torch.long)
        mask[:, 5] = 0
        return {"input_ids": tokens, "attention_mask": mask}, (tokens[:, 0] > 3).long()

    falls(Bert(), [sentences(), sentences()], lr=0.01, optimiser="adamw", rounds=6)


@pytest.mark.extras
def test_a_small_bert_of_transformers():
    transformers = pytest.importorskip("transformers")
    settings = transformers.BertConfig(
        vocab_size=12,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=2,
    )
    model = transformers.BertForSequenceClassification(settings)

    def sentences():
        tokens = torch.randint(1, 12, (24, 6), generator=DRAW)
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}, (
            tokens[:, 0] > 6
        ).long()

    falls(
        model,
        [sentences(), sentences()],
        lr=0.01,
        optimiser="adamw",
        rounds=6,
        loss="classes",
    )


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.inner, self.up = (
            nn.Conv2d(1, 4, 3, padding=1),
            nn.Conv2d(4, 8, 3, padding=1),
            nn.Conv2d(12, 1, 1),
        )

    def forward(self, inputs):
        whole = F.relu(self.down(inputs))
        half = F.relu(self.inner(F.max_pool2d(whole, 2)))
        return self.up(torch.cat([whole, F.interpolate(half, scale_factor=2)], dim=1))


def dice(outputs: Tensor, labels: Tensor) -> Tensor:
    predicted, truth = (
        torch.sigmoid(outputs).flatten(1),
        labels.flatten(1).to(outputs.dtype),
    )
    return 1 - (2 * (predicted * truth).sum(1) + 1) / (
        predicted.sum(1) + truth.sum(1) + 1
    )


dice.kind = "binary"


def test_a_unet_with_dice():
    def masks():
        inputs = images()[0]
        return inputs, (inputs > 0.5).long()

    falls(UNet(), [masks(), masks()], lr=0.5, loss=dice)
    with pytest.raises(
        ct.InputError, match="does not say how metrics read the outputs"
    ):
        falls(
            UNet(),
            [masks(), masks()],
            loss=lambda outputs, labels: dice(outputs, labels),
        )


class LoRA(nn.Module):
    """A frozen linear layer, and a trained update of rank 1."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.a = nn.Parameter(0.1 * torch.randn(1, layer.in_features, generator=DRAW))
        self.b = nn.Parameter(torch.zeros(layer.out_features, 1))

    def forward(self, inputs):
        return self.layer(inputs) + inputs @ self.a.T @ self.b.T


def test_lora_on_a_frozen_backbone():
    inputs, labels = images()
    backbone = nn.Linear(64, 8)
    model = nn.Sequential(nn.Flatten(), LoRA(backbone), nn.ReLU(), nn.Linear(8, 1))
    run = falls(model, [(inputs, labels)] * 2, lr=0.3)
    assert torch.equal(run.state_dict()["1.layer.weight"], backbone.weight)
    assert set(run.state_dict(trained_only=True)) == {
        "1.a",
        "1.b",
        "3.weight",
        "3.bias",
    }


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(8, 6), nn.Linear(6, 1)

    def forward(self, inputs):
        return self.head(torch.relu(self.layer(inputs)))


@pytest.mark.extras
def test_lora_by_peft():
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(
        r=2, target_modules=["layer"], modules_to_save=["head"], init_lora_weights=True
    )
    model = peft.get_peft_model(Backbone(), settings)
    inputs = torch.randn(24, 8, generator=DRAW)
    run = falls(model, [(inputs, (inputs[:, 0] > 0).long())] * 2, lr=0.3)
    trained = run.state_dict(trained_only=True)
    assert {name.partition(".default")[0].rpartition(".")[2] for name in trained} == {
        "lora_A",
        "lora_B",
        "modules_to_save",
    }
    model.load_state_dict(run.state_dict())
    torch.testing.assert_close(
        torch.sigmoid(model(inputs)[:, 0]).double(),
        run.predict(inputs).values[:, 1].double(),
    )


def test_parameters_are_frozen_by_pattern():
    model, (inputs, labels) = Backbone(), images(size=4)
    clients = ct.data.from_tensors([(inputs.flatten(1)[:, :8], labels)] * 2)
    run = ct.fit(
        "fedavg", clients, model, 1, settings=ct.RunSettings(freeze=["layer.*"])
    )
    assert set(run.state_dict(trained_only=True)) == {"head.weight", "head.bias"}
    assert torch.equal(run.state_dict()["layer.weight"], model.layer.weight)
    assert all(parameter.requires_grad for parameter in model.parameters())
    with pytest.raises(
        ct.InputError,
        match=r"freeze = 'lair' fits no parameter; there are layer\.weight, layer\.bias",
    ):
        ct.fit("fedavg", clients, model, 1, settings=ct.RunSettings(freeze=["lair"]))
    with pytest.raises(ct.InputError, match="freeze must be a list of patterns"):
        ct.RunSettings(freeze="layer.*")


def test_divergence_is_named_once_after_the_first_round_in_which_it_shows(caplog):
    inputs = 3 * torch.randn(24, 8, generator=DRAW)
    clients = ct.data.from_tensors(
        {name: (inputs * k, inputs[:, 0] * k) for k, name in ((1, "a"), (2, "b"))}
    )
    local = ct.LocalSGD(lr=0.05, steps=ct.Steps(3))
    ct.fit(
        ct.FedAvg(local), clients, "logistic", 4, settings=ct.RunSettings(evaluate=1)
    )
    (said,) = [
        record.getMessage()
        for record in caplog.records
        if "diverges" in record.getMessage()
    ]
    assert said.startswith(
        "round 1: training diverges: the mean loss on training rows is "
    )
    assert "largest for client 'b'" in said
    assert said.endswith("lower the learning rate (local lr)")


def test_several_labels_of_a_row():
    inputs = torch.randn(24, 5, generator=DRAW)
    run = falls("mlp", [(inputs, (inputs[:, :3] > 0).float())] * 2)
    assert run.predict(inputs).values.shape == (24, 3)


def test_rates_fall_along_a_cosine():
    inputs, labels = images()
    run = falls(
        "logistic",
        [(inputs, labels)] * 2,
        lr=ct.Schedule(0.1, cosine=3, warmup=1),
        rounds=4,
    )
    assert math.isfinite(float(run.x.sum()))

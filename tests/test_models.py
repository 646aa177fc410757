"""Models: parameter counts of the papers, what shapes they take, and that their gradients are per row."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call, grad, vmap

from coterie.base.errors import InputError
from coterie.config.registry import MODELS
from coterie.data import from_tensors
from coterie.models import MLP, ResNet8, ResNet18, build_model, build_shape

IMAGES = ["cnn", "resnet8", "resnet9", "resnet18"]
RESNETS = IMAGES[1:]


def built(name, shape, outputs, **fields):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return MODELS[name](**fields).build(shape, outputs)


def count(module):
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("name", "fields", "shape", "outputs", "parameters"),
    [
        ("logistic", {}, (28, 28), 10, 7850),
        ("logistic", {}, (13,), 1, 14),
        ("mlp", {}, (28, 28), 10, 784 * 64 + 64 + 64 * 30 + 30 + 30 * 10 + 10),
        (
            "mlp",
            {"hidden": (128, 86, 30), "dropout": 0.5},
            (200,),
            1,
            25728 + 11094 + 2610 + 31,
        ),
        ("2nn", {}, (28, 28), 47, 206_647),
        ("2nn", {}, (28, 28), 10, 199_210),  # McMahan et al., section 3
        ("cnn", {}, (28, 28), 10, 1_663_370),  # McMahan et al., section 3
        ("cnn", {}, (3, 32, 32), 10, 2_156_490),
        (
            "cnn",
            {"channels": (8, 16), "units": 32},
            (28, 28),
            1,
            208 + 3216 + 25_120 + 33,
        ),
        (
            "char-lstm",
            {"embedding": 8, "hidden": 256, "layers": 2},
            (80,),
            90,
            720 + 272_384 + 526_336 + 23_130,
        ),
        ("resnet8", {}, (3, 32, 32), 10, 468_618),  # ISFL
        ("resnet8", {"norm": "batch"}, (3, 32, 32), 10, 468_618),
        ("resnet9", {}, (3, 32, 32), 10, 6_575_370),
        ("resnet9", {"norm": "batch"}, (3, 32, 32), 100, 6_621_540),
        ("resnet18", {}, (3, 32, 32), 10, 11_173_962),
        ("resnet18", {"norm": "batch"}, (3, 32, 32), 10, 11_173_962),
        ("mean", {}, (10,), 10, 10),
    ],
)
def test_parameters(name, fields, shape, outputs, parameters):
    assert count(built(name, shape, outputs, **fields)) == parameters


def test_every_model_is_counted_above():
    assert set(MODELS) == {
        "logistic",
        "mlp",
        "2nn",
        "cnn",
        "char-lstm",
        "resnet8",
        "resnet9",
        "resnet18",
        "mean",
    }


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("shape", [(28, 28), (1, 28, 28), (3, 15, 35), (3, 8, 8)])
def test_images_of_any_size_with_and_without_channels(name, shape):
    model = built(name, shape, 7).eval()
    rows = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        out = model(rows)
        assert out.shape == (2, 7)
        assert torch.allclose(
            model(rows[:1]), out[:1], atol=1e-5
        )  # rows do not see each other
    if len(shape) == 2:
        again = built(name, (1, *shape), 7).eval()
        assert torch.equal(again(rows[:, None]), out)


@pytest.mark.parametrize("name", RESNETS)
def test_group_norm_has_no_buffers_and_batch_norm_has(name):
    assert not list(built(name, (3, 8, 8), 2).buffers())
    buffers = dict(built(name, (3, 8, 8), 2, norm="batch").named_buffers())
    assert any(k.endswith("running_mean") for k in buffers)
    norms = [
        m
        for m in built(name, (3, 8, 8), 2).modules()
        if isinstance(m, torch.nn.GroupNorm)
    ]
    assert all(m.num_channels == 16 * m.num_groups for m in norms)
    with pytest.raises(InputError, match=r"norm must be group \| batch; got 'layer'"):
        MODELS[name](norm="layer")


def test_resnet8_has_eight_trainable_layers_and_two_residual_blocks():
    modules = list(built("resnet8", (3, 32, 32), 10).modules())
    assert sum(isinstance(m, torch.nn.Conv2d | torch.nn.Linear) for m in modules) == 8
    assert sum(type(m).__name__ == "_Residual" for m in modules) == 2


@pytest.mark.in_turn(but="batch-resnet8")
@pytest.mark.parametrize("name", ["cnn", "resnet8"])
@pytest.mark.parametrize("norm", ["group", "batch"])
def test_gradients_per_row_are_those_of_the_rows_alone(name, norm):
    fields = {} if name == "cnn" else {"norm": norm}
    model = built(name, (12, 12), 3, **fields).eval()
    parameters = {k: p.detach() for k, p in model.named_parameters()}
    rows = torch.rand(3, 12, 12, generator=torch.Generator().manual_seed(1))

    def loss(p, row):
        return functional_call(model, p, (row[None],)).square().sum()

    per_row = vmap(grad(loss), (None, 0))(parameters, rows)
    alone = grad(loss)(parameters, rows[1])
    assert all(torch.allclose(per_row[k][1], alone[k], atol=1e-4) for k in alone)


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("shape", [(13,), (3, 3), (3, 2, 40), (1, 2, 3, 4)])
def test_what_is_no_image_is_refused(name, shape):
    with pytest.raises(
        InputError,
        match=r"needs images \[height, width\] or .* of at least [48] x [48]; inputs are",
    ):
        MODELS[name]().build(shape, 2)


def test_a_dict_of_inputs_is_refused_too():
    with pytest.raises(InputError, match="ResNet8 needs images"):
        build_shape(ResNet8(), {"a": (3, 32, 32)}, 2)


def test_building_is_named_by_the_seed_and_leaves_the_global_generator_alone():
    images = torch.zeros(6, 8, 8, dtype=torch.uint8)
    clients = from_tensors([(images, [0, 1, 2] * 2)] * 2)
    before = torch.get_rng_state()
    one, same, other = (build_model(ResNet8(), clients, seed) for seed in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    first = [next(iter(m.parameters())) for m in (one, same, other)]
    assert torch.equal(first[0], first[1])
    assert not torch.equal(first[0], first[2])


def test_dropout_is_between_layers():
    kinds = [type(m).__name__ for m in MLP(hidden=(4, 3), dropout=0.2).build((5,), 2)]
    assert kinds == ["Linear", "ReLU", "Dropout", "Linear", "ReLU", "Dropout", "Linear"]


def test_resnet18_halves_the_image_three_times():
    shapes = []
    model = ResNet18().build((3, 32, 32), 10).eval()
    for layer in model:
        layer.register_forward_hook(lambda m, i, o: shapes.append(tuple(o.shape[1:])))
    with torch.no_grad():
        model(torch.zeros(1, 3, 32, 32))
    assert (512, 4, 4) in shapes
    assert shapes[-1] == (10,)

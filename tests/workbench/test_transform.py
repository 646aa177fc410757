"""A transform changes rows at random whenever training reads them, with the same bits wherever and however often a run is begun."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import coterie as ct
from federations import assert_same_bits


def clients(inputs=lambda x: x):
    draw = torch.Generator().manual_seed(0)
    rows = [
        (torch.randn(18, 4, generator=draw), torch.randint(0, 2, (18,), generator=draw))
        for _ in range(3)
    ]
    return ct.data.from_tensors([(inputs(x), y) for x, y in rows])


def jittered(inputs, rng):
    return inputs + torch.randn(inputs.shape, generator=rng.generator())


def constant(inputs, rng):
    return torch.full_like(inputs, 0.5)


def fitted(data, method=None, **options):
    method = method or ct.FedAvg(ct.LocalSGD(steps=ct.Steps(3), batch_size=5))
    return ct.fit(
        method,
        data,
        options.pop("model", ct.models.Logistic()),
        options.pop("rounds", 3),
        **options,
    )


def test_training_reads_what_the_transform_gives_and_evaluation_does_not():
    whole = clients().map_tensors(
        lambda value, name: value if name is None else torch.full_like(value, 0.5)
    )
    trained = fitted(
        clients().with_transform(constant), engine=ct.InProcess(kernel="loop")
    )
    expected = fitted(whole, engine=ct.InProcess(kernel="loop"))
    assert torch.equal(trained.x, expected.x)
    assert trained.summary != expected.summary
    plain, same = clients(), clients().with_transform(lambda inputs, rng: inputs)
    assert_same_bits(fitted(plain, engine=ct.InProcess(kernel="loop")), fitted(same))


METHODS = {
    "scaffold": ct.SCAFFOLD(local=ct.LocalSGD(steps=ct.Steps(2), batch_size=5)),
    "perfedavg": ct.PerFedAvg(local=ct.LocalSGD(steps=ct.Steps(2), batch_size=5)),
    "centralised": ct.Centralised(local=ct.LocalSGD(steps=ct.Steps(2), batch_size=5)),
}


@pytest.mark.parametrize("name", METHODS)
def test_every_training_reads_it(name):
    data = clients()
    assert not torch.equal(
        fitted(data.with_transform(jittered), METHODS[name]).x,
        fitted(data, METHODS[name]).x,
    )


def test_workers_and_resuming_change_no_bit(tmp_path):
    data = clients().with_transform(jittered)
    whole = fitted(data)
    assert_same_bits(whole, fitted(data, engine=ct.InProcess(workers=2)))
    assert not torch.equal(whole.x, fitted(data, seed=1).x)

    def stop(number):
        if number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fitted(data, checkpoint=tmp_path, settings=ct.RunSettings(callbacks=(stop,)))
    again = {"checkpoint": tmp_path, "settings": ct.RunSettings(resume=True)}
    with pytest.raises(
        ct.InputError, match=r"test_transform.py has changed since round 2 \(function"
    ):
        fitted(clients().with_transform(constant), **again)
    assert_same_bits(whole, fitted(data, **again))


def test_each_row_has_a_stream_of_its_own():
    keys = []

    def noted(inputs, rng):
        keys.append(rng.key)
        return inputs

    fitted(
        clients().with_transform(noted),
        ct.FedAvg(ct.LocalSGD(steps=ct.Steps(4), batch_size=3)),
        rounds=2,
    )
    assert len(keys) == len(set(keys)) == 2 * 3 * 4 * 3


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, left, right):
        return self.layer(left + right)


def test_a_transform_of_named_inputs_changes_each():
    data = clients(lambda x: {"left": x, "right": 2 * x})
    torch.manual_seed(0)
    model = Both()
    swapped = data.with_transform(
        lambda inputs, rng: {"left": inputs["right"], "right": inputs["left"]}
    )
    assert torch.equal(fitted(swapped, model=model).x, fitted(data, model=model).x)
    emptied = data.with_transform(
        lambda inputs, rng: {**inputs, "right": torch.zeros(4)}
    )
    assert not torch.equal(fitted(emptied, model=model).x, fitted(data, model=model).x)


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        (
            lambda inputs, rng: inputs[:2],
            r"gave \(2,\) and torch.float32; it must keep \(4,\)",
        ),
        (lambda i, rng: 3, "gave int"),
    ],
)
def test_a_transform_that_gives_another_shape_is_named(transform, said):
    with pytest.raises(ct.CoterieError, match=f"the transform of rows {said}"):
        fitted(clients().with_transform(transform))

"""Clipping and noise, under methods with updates and gradients and on every engine."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from test_catalogue import FIRST
from test_methods import StoppedError, run
from torch import Tensor

import coterie as ct
from coterie import task
from coterie.base.errors import InputError
from coterie.config.registry import ENGINES
from coterie.contract.task import Gradient, Update
from federations import PROBLEMS, assert_same_bits, batch_norm, federation_of, quadratic


class Told(NamedTuple):
    delta: Update
    gradient: Gradient
    other: Tensor


@task
def told(cohort, *, rows: Tensor) -> Told:
    """Every client sends the rows that it is given in each field."""
    return Told(rows, rows.clone(), rows.clone())


def sent(filters, rows, names="ab", problem=None, **about):
    """What the server gets, by field."""
    problem = problem or quadratic({n: [0.0] * rows.shape[-1] for n in "abc"})
    with federation_of(problem) as federation:
        view = replace(federation, filters=tuple(filters), **about)
        return view.ask(names, told, rows=ct.PerClient(rows)).fields


# ---- clipping


def test_clipping_bounds_long_vectors_and_leaves_short_ones():
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4]], dtype=torch.float64)
    fields = sent([ct.Clip(1.0)], rows)
    for key in ("delta", "gradient"):
        assert torch.allclose(
            fields[key],
            torch.tensor([[0.6, 0.8], [0.3, 0.4]], dtype=torch.float64),
            atol=1e-15,
        )
        assert torch.equal(fields[key][1], rows[1])
    assert torch.equal(fields["other"], rows)


def test_each_model_of_a_reply_is_clipped_alone_and_zeros_stay():
    rows = torch.tensor(
        [[[3.0, 4.0], [0.0, 0.0]], [[0.0, 2.0], [0.1, 0.0]]], dtype=torch.float64
    )
    lengths = torch.linalg.vector_norm(sent([ct.Clip(1.0)], rows)["delta"], dim=-1)
    assert torch.allclose(
        lengths, torch.tensor([[1.0, 0.0], [1.0, 0.1]], dtype=torch.float64)
    )


def test_buffers_are_neither_clipped_nor_drowned():
    problem = batch_norm()
    with federation_of(problem) as federation:
        layout = federation.layout
    rows = torch.full((2, layout.size), 9.0, dtype=layout.dtype)
    fields = sent([ct.Clip(1.0), ct.GaussianNoise(1.0)], rows, problem=problem)
    assert torch.equal(fields["delta"][:, layout.dim :], rows[:, layout.dim :])
    assert not torch.equal(fields["delta"][:, : layout.dim], rows[:, : layout.dim])


def test_a_broken_update_is_refused_and_not_clipped_to_a_good_one():
    problem = quadratic({n: [0.0, 0.0] for n in "abc"})
    with federation_of(problem) as federation:
        view = replace(federation, filters=(ct.Clip(1.0),))
        replies = view.ask(
            "ab",
            told,
            rows=ct.PerClient(torch.tensor([[float("nan"), 1.0], [3.0, 4.0]]).double()),
        )
    assert replies.clients == ("b",)
    assert replies.failed == {"a": "field 'delta' has NaN or Inf"}


# ---- noise


def test_noise_has_its_deviation_and_a_stream_for_each_use():
    rows = torch.zeros(2, 4000, dtype=torch.float64)
    noise = sent([ct.GaussianNoise(3.0)], rows)
    assert noise["delta"].std(dim=1).tolist() == pytest.approx([3.0, 3.0], rel=0.05)
    assert noise["delta"].mean().abs() < 0.2
    others = [
        noise["delta"][1], noise["gradient"][0],
        sent([ct.GaussianNoise(3.0)], rows, round=2)["delta"][0],
        sent([ct.GaussianNoise(3.0)], rows, label="other")["delta"][0],
        sent([ct.GaussianNoise(3.0)], rows, seed=1)["delta"][0],
    ]  # fmt: skip
    assert not any(torch.equal(noise["delta"][0], other) for other in others)
    assert torch.equal(noise["other"], rows)


def test_noise_of_a_client_does_not_depend_on_its_company():
    rows = torch.zeros(3, 5, dtype=torch.float64)
    together = sent([ct.GaussianNoise(1.0)], rows, "abc")["delta"]
    assert torch.equal(
        together[1:2], sent([ct.GaussianNoise(1.0)], rows[:1], "b")["delta"]
    )


def test_clipping_comes_before_noise_and_noise_before_compression():
    filters = [ct.TopK(0.5), ct.GaussianNoise(5.0), ct.Clip(1e-6)]
    found = run(FIRST["fedavg"], rounds=1, filters=filters)
    assert (
        float((found.x - run(FIRST["fedavg"], rounds=0).x).abs().max()) > 0.1
    )  # noise is not clipped
    assert (
        max(a.bytes_up for a in found.asks if "local_update" in a.task)
        == 2 * (8 + 2) + 8
    )  # 2 of 4 entries, rows


# ---- runs


BOTH = [ct.Clip(0.05), ct.GaussianNoise(0.01)]


@pytest.mark.parametrize("where", [2, pytest.param("ray", marks=pytest.mark.engines)])
@pytest.mark.parametrize("name", ["fedavg", "meritfed"])
def test_the_bits_are_the_same_on_every_engine(name, where, request):
    options = {"rounds": 2, "filters": BOTH, "problem": PROBLEMS["batch-norm"]()}
    if where == "ray":
        request.getfixturevalue("ray_cluster")
        other = {"engine": ENGINES.build({"name": "ray"}, "")}
    else:
        other = {"workers": where}
    assert_same_bits(run(FIRST[name], **options), run(FIRST[name], **options, **other))


def test_a_run_that_was_stopped_goes_on_with_the_same_noise(tmp_path):
    options = {"rounds": 4, "evaluate": 2, "filters": BOTH}
    whole = run(FIRST["fedavg"], **options)

    def stop(number):
        if number == 2:
            raise StoppedError

    with pytest.raises(StoppedError):
        run(FIRST["fedavg"], checkpoint=tmp_path, callbacks=(stop,), **options)
    assert_same_bits(
        whole, run(FIRST["fedavg"], checkpoint=tmp_path, resume=True, **options)
    )


def test_updates_take_the_bytes_that_they_took():
    plain, filtered = (
        run(FIRST["fedavg"], rounds=2, filters=filters) for filters in ([], BOTH)
    )
    assert [a.bytes_up for a in plain.asks] == [a.bytes_up for a in filtered.asks]
    assert not torch.equal(plain.x, filtered.x)


@pytest.mark.parametrize(
    "one", [ct.Clip(), ct.GaussianNoise()], ids=lambda f: type(f).__name__
)
def test_methods_that_need_exact_uploads_refuse_them_and_references_are_left_alone(one):
    with pytest.raises(
        InputError,
        match=f"SCAFFOLD needs exact uploads.*leave out the filter {type(one).__name__}",
    ):
        run(FIRST["scaffold"], filters=[one])
    assert_same_bits(run(FIRST["local"]), run(FIRST["local"], filters=[one]))


def test_wrong_settings_are_refused():
    with pytest.raises(InputError, match=r"Clip\.bound must be"):
        ct.Clip(0)
    with pytest.raises(InputError, match=r"GaussianNoise\.sigma must be"):
        ct.GaussianNoise(-1)

"""Updates in fewer bits with error feedback: what arrives is what was sent, nothing is lost, and it costs what its page says."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_catalogue import wide
from test_top_k import ask
from torch import Tensor

import coterie as ct
from coterie.base.errors import InputError
from federations import assert_same_bits, federation_of, fit, quadratic

FILTERS = {"bf16": ct.BF16(), "int8": ct.Int8(), "int8, small": ct.Int8(block=3)}
BITS = {"bf16": 2, "int8": 1}
each = pytest.mark.parametrize("rounding", FILTERS.values(), ids=FILTERS)
LOCAL = ct.LocalSGD(lr=0.1, steps=ct.Steps(3), batch_size=8)


def updates(seed: int, spread: float, dtype: torch.dtype) -> Tensor:
    """[2, 3, 11]: entries of many sizes, and one row of zeros."""
    draw = torch.Generator().manual_seed(seed)
    values, sizes = (torch.randn(2, 3, 11, generator=draw) for _ in range(2))
    rows = values * 10 ** (spread * sizes)
    rows[0, 1] = 0
    return rows.to(dtype)


@each
@given(
    seed=st.integers(0, 999),
    spread=st.sampled_from([0.0, 1.0, 8.0]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_what_arrives_is_what_was_sent(rounding, seed, spread, dtype):
    rows = updates(seed, spread, dtype)
    sent = rounding.nearest(rows)
    arrived = rounding.unpack(rounding.pack(sent), 11)
    assert arrived.dtype == dtype
    assert torch.equal(arrived, sent)
    # Error feedback converges where what is left out is a share of what there is (Karimireddy et al., Definition A).
    assert bool(((rows - sent).norm(dim=-1) <= 0.1 * rows.norm(dim=-1)).all())


@each
def test_what_was_sent_and_what_is_kept_are_together_all_updates(rounding):
    with federation_of(quadratic({n: [0.0] * 11 for n in "ab"})) as opened:
        federation = replace(opened, filters=(rounding,))
        rows = [updates(n, 1.0, torch.float64)[:, 0] for n in range(6)]
        # What is left over goes with later replies, in each a hundredth of it stays.
        rows += [torch.zeros(2, 11, dtype=torch.float64)] * 8
        arrived = [ask(federation, row, number) for number, row in enumerate(rows, 1)]
    assert torch.allclose(sum(arrived), sum(rows), rtol=1e-11, atol=0)


@each
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_stays_so_and_is_refused(rounding, bad):
    rows = torch.ones(1, 11)
    rows[0, 4] = bad
    arrived = rounding.unpack(rounding.pack(rounding.nearest(rows)), 11)
    assert not bool(arrived.isfinite().all())


@each
def test_parts_of_another_form_cannot_be_unpacked(rounding):
    whole = rounding.pack(torch.ones(2, 11))
    for name in whole:
        without = {k: v for k, v in whole.items() if k != name}
        shorter = {**whole, name: whole[name][..., :-1]}
        for parts in (without, *([shorter] if name != "like" else [])):
            with pytest.raises((ValueError, RuntimeError, KeyError)):
                rounding.unpack(parts, 11)


@pytest.mark.parametrize("name", BITS)
def test_a_run_sends_fewer_bytes_and_has_the_same_bits_with_any_workers(name):
    problem, method = wide(300), ct.FedAvg(LOCAL)
    exact = fit(method, *problem, rounds=12)
    rounded, again = (
        fit(method, *problem, rounds=12, filters=[name], workers=workers)
        for workers in (1, 2)
    )
    assert_same_bits(rounded, again)
    up = [
        max(a.bytes_up for a in run.asks if "update" in a.task)
        for run in (exact, rounded)
    ]
    numbers = up[0] // exact.x.element_size()
    assert up[1] <= 1.05 * BITS[name] * numbers + 40
    assert not torch.equal(rounded.x, exact.x)
    assert torch.allclose(rounded.x, exact.x, atol=0.02 * float(exact.x.abs().max()))


@pytest.mark.parametrize("name", BITS)
def test_where_exact_uploads_are_needed_it_is_refused(name):
    with pytest.raises(InputError, match="needs exact uploads"):
        fit(ct.SCAFFOLD(LOCAL), *wide(20), rounds=1, filters=[name])
    with pytest.raises(InputError, match="leave out the filter"):
        fit(ct.Partial(), *wide(20), rounds=1, filters=[name])

"""Models in 16 bits on their way down: clients train from what was sent, wherever they are, and the server's own models stay whole."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import coterie as ct
from coterie.base.errors import InputError
from coterie.config.secure import SecureSums
from coterie.contract.down import as_sent
from coterie.contract.task import Holds, ModelOfEach, OneModel, task
from coterie.contract.wire import PerClient
from federations import (
    assert_same_bits,
    batch_norm,
    federation_of,
    fit,
    logistic,
    quadratic,
)

LOCAL = ct.LocalSGD(lr=0.1, steps=ct.Steps(3), batch_size=8)
HALF = {"down": "bf16"}


class Told(NamedTuple):
    model: Tensor
    control: Tensor


@task
def tell(
    cohort,
    *,
    x: OneModel,
    each: ModelOfEach | None = None,
    control: Annotated[Tensor, Holds(("parameters",))],
) -> Told:
    """What a client was sent, as it has it."""
    count = len(cohort.names)
    models = x.expand(count, -1) if each is None else each
    return Told(models.clone(), control.expand(count, -1).clone())


def numbers(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


def three(**options):
    return federation_of(
        quadratic({n: [0.0] * 11 for n in "abc"}, dtype=torch.float32), **options
    )


# ---- what is sent


@given(seed=st.integers(0, 999), exponent=st.integers(-30, 30))
def test_a_number_is_rounded_to_the_nearest_one_of_eight_bits(seed, exponent):
    x = numbers(50, seed) * 2.0**exponent
    sent = as_sent(x, "bf16")
    assert sent.dtype == x.dtype
    assert bool(((sent - x).abs() <= 2.0**-8 * x.abs()).all())
    mantissa, _ = torch.frexp(sent)
    assert torch.equal((mantissa * 256).round(), mantissa * 256)
    assert as_sent(x, "float32") is x


def test_halfway_between_two_numbers_the_even_one_is_sent():
    x = torch.tensor([1 + 2.0**-8, 1 + 3 * 2.0**-8])
    assert as_sent(x, "bf16").tolist() == [1.0, 1 + 2 * 2.0**-7]


@pytest.mark.parametrize("strict_wire", [False, True])
@pytest.mark.parametrize("where", [1, 2])
def test_clients_have_the_rounded_model_and_all_else_whole(where, strict_wire):
    x, each, control = numbers(11), numbers(33, 1).reshape(3, 11), numbers(11, 2)
    with three(where=where, strict_wire=strict_wire, **HALF) as federation:
        told = federation.ask("abc", tell, x=x, control=control)
        apart = federation.ask("cab", tell, x=x, each=PerClient(each), control=control)
        down = [ask.bytes_down for ask in federation.session.asks]
    assert torch.equal(told.model, as_sent(x, "bf16").expand(3, -1))
    assert torch.equal(apart.model, as_sent(each, "bf16")[[1, 2, 0]])
    assert torch.equal(told.control, control.expand(3, -1))
    assert down == [11 * 2 + 11 * 4, 11 * 2 + 11 * 2 + 11 * 4]


def test_a_model_of_16_bits_is_sent_as_it_is():
    problem = quadratic({n: [0.0] * 5 for n in "ab"}, dtype=torch.bfloat16)
    x = numbers(5).to(torch.bfloat16)
    with federation_of(problem) as federation:
        told = federation.ask("ab", tell, x=x, control=x)
    assert told.model.dtype == torch.bfloat16


# ---- runs


def test_off_is_what_it_was():
    problem = logistic(torch.float32)
    plain = fit(ct.FedAvg(LOCAL), *problem, rounds=3)
    named = fit(ct.FedAvg(LOCAL), *problem, rounds=3, down="float32")
    assert_same_bits(plain, named)
    assert [a[:7] for a in plain.asks] == [a[:7] for a in named.asks]


METHODS = {
    "fedavg": ct.FedAvg(LOCAL),
    "scaffold": ct.SCAFFOLD(LOCAL),
    "feddyn": ct.FedDyn(LOCAL),
    "meritfed": ct.MeritFed(targets="all", local=LOCAL),
    "ditto": ct.Ditto(LOCAL),
    "ifca": ct.IFCA(local=LOCAL),
}


@pytest.mark.in_turn(but=("fedavg", "ditto"))
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_run_has_the_same_bits_with_any_workers_and_over_the_wire(method):
    problem = batch_norm(torch.float32)
    runs = [
        fit(method, *problem, rounds=3, workers=workers, strict_wire=wire, **HALF)
        for workers, wire in ((1, False), (1, True), (2, False))
    ]
    assert_same_bits(runs[0], runs[1])
    assert_same_bits(runs[0], runs[2])
    whole = fit(method, *problem, rounds=3)
    assert any(not torch.equal(whole.models[n], x) for n, x in runs[0].models.items())


@pytest.mark.in_turn(but=("fedavg", "scaffold"))
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_rounding_moves_a_model_by_little(method):
    problem = logistic(torch.float32)
    whole, rounded = (
        fit(method, *problem, rounds=20, down=down) for down in ("float32", "bf16")
    )
    for name, x in whole.models.items():
        error = (rounded.models[name] - x).norm()
        assert float(error) <= 0.02 * float(x.norm())


def test_a_round_costs_half_of_the_bytes_down_and_as_many_up():
    whole, rounded = (
        fit(ct.FedAvg(LOCAL), *logistic(torch.float32), rounds=2, down=down)
        for down in ("float32", "bf16")
    )
    numbers_sent = len(whole.x)
    for before, now in zip(whole.asks, rounded.asks, strict=True):
        if "baselines" in before.task:  # it holds no model
            assert now.bytes_down == before.bytes_down
            continue
        assert before.bytes_down - now.bytes_down == 2 * numbers_sent
        assert now.bytes_up == before.bytes_up


def test_steps_below_the_rounding_add_up_at_the_server():
    # Near 100 neighbours of 16 bits are .5 apart, and a round moves the model by less than .01.
    clients = quadratic({"a": [100.5], "b": [100.5]}, dtype=torch.float32)
    start = {"value": torch.tensor([100.0])}
    local = ct.LocalSGD(lr=0.005, steps=ct.Steps(1), batch_size=None)
    run = fit(ct.FedAvg(local), *clients, rounds=60, init=start, **HALF)
    assert float(run.state.x) > 100.2
    assert run.x.tolist() == [as_sent(run.state.x, "bf16").item()]


def test_what_is_evaluated_and_saved_is_what_clients_got():
    problem = logistic(torch.float32)
    run = fit(ct.FedAvg(LOCAL), *problem, rounds=3, **HALF)
    assert torch.equal(run.x, as_sent(run.state.x, "bf16"))
    assert not torch.equal(run.x, run.state.x)
    served = fit(ct.FedAvg(LOCAL), *problem, rounds=0, init=run.state_dict())
    assert [row["loss"] for row in served.summary] == [
        row["loss"] for row in run.summary
    ]


def test_what_a_client_has_made_for_itself_is_not_rounded():
    problem = logistic(torch.float32)
    run = fit(ct.Ditto(LOCAL), *problem, rounds=3, **HALF)
    made_at_home = {name: x for name, x in run.models.items() if name != "*"}
    assert made_at_home
    for x in made_at_home.values():
        assert not torch.equal(x, as_sent(x, "bf16"))


@pytest.mark.parametrize("method", [ct.Local(), ct.Local(LOCAL, exact=False)])
def test_references_get_whole_models(method):
    problem = logistic(torch.float32)
    assert_same_bits(
        fit(method, *problem, rounds=2), fit(method, *problem, rounds=2, **HALF)
    )


# ---- resumed, and refused


def test_a_resumed_run_has_the_same_bits_and_another_encoding_is_refused(tmp_path):
    problem, method = logistic(torch.float32), ct.SCAFFOLD(LOCAL)
    options = {"checkpoint": tmp_path, "save_every": 1}
    fit(method, *problem, rounds=2, **options, **HALF)
    with pytest.raises(InputError, match="setting down"):
        fit(method, *problem, rounds=4, resume=True, **options)
    assert_same_bits(
        fit(method, *problem, rounds=4, resume=True, **options, **HALF),
        fit(method, *problem, rounds=4, **HALF),
    )


PRIVATE = ct.LocalSGD(
    steps=ct.Steps(1), batch_size=None, private=ct.RowNoise(1.0, clip=1.0)
)
REFUSED = {
    "partial": (ct.Partial(), {}, "solves for its model"),
    "fixed effects": (ct.FixedEffects(), {}, "solves for its model"),
    "privacy": (ct.FedAvg(PRIVATE), {}, r"\[privacy\]"),
    "secure": (ct.FedAvg(LOCAL), {"secure": SecureSums()}, r"\[secure\]"),
    "contribution": (
        ct.FedAvg(LOCAL),
        {"contribution": ct.Contribution()},
        "contribution",
    ),
}


@pytest.mark.parametrize(("method", "settings", "named"), REFUSED.values(), ids=REFUSED)
def test_what_needs_the_exact_model_is_refused(method, settings, named):
    with pytest.raises(InputError, match=f"{named}.*leave out"):
        fit(method, *logistic(torch.float32), rounds=1, **settings, **HALF)


def test_a_model_of_other_numbers_is_refused():
    with pytest.raises(InputError, match=r"float64; leave out run.down"):
        fit(ct.FedAvg(LOCAL), *logistic(torch.float64), rounds=1, **HALF)
    with pytest.raises(InputError, match="down must be"):
        fit(ct.FedAvg(LOCAL), *logistic(torch.float32), rounds=1, down="half")

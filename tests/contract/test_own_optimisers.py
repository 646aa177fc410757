"""Optimisers of a user's own, the state that clients keep, several batches a step, and server rates by round."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch
from torch import nn

import coterie as ct
from coterie.cli.main import main
from coterie.config.optimisers import OPTIMISERS
from coterie.config.registry import METHODS


class Lion(torch.optim.Optimizer):
    """As on the page of its paper: signs of an average of gradients (Chen et al., NeurIPS 2023)."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99)):
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                p.add_((first * mean + (1 - first) * p.grad).sign(), alpha=-group["lr"])
                mean.mul_(second).add_(p.grad, alpha=1 - second)


class SAM(torch.optim.Optimizer):
    """As users copy it: it ascends, asks the closure for gradients there, and descends from where it was (Foret et al., ICLR 2021)."""

    def __init__(self, params, base, rho=0.05, **kwargs):
        super().__init__(params, {"rho": rho, **kwargs})
        self.base = base(self.param_groups, **kwargs)

    @torch.no_grad()
    def step(self, closure=None):
        assert closure is not None
        closure = torch.enable_grad()(closure)
        parameters = [p for group in self.param_groups for p in group["params"]]
        norm = torch.stack([p.grad.norm() for p in parameters]).norm()
        steps = [p.grad * (0.05 / (norm + 1e-12)) for p in parameters]
        for p, ascent in zip(parameters, steps, strict=True):
            p.add_(ascent)
        self.zero_grad()
        closure()
        for p, ascent in zip(parameters, steps, strict=True):
            p.sub_(ascent)
        self.base.step()


class Moved(torch.optim.Optimizer):
    """Puts new tensors in the place of the old ones, and remembers a list, which nobody can keep."""

    def __init__(self, params):
        super().__init__(params, {})

    def step(self):
        for p in self.param_groups[0]["params"]:
            seen = self.state[p].setdefault("seen", [])
            seen.append(float(p.grad.norm()))
            p.data = p.data - 0.1 / len(seen) * p.grad


def clients(count=2, rows=32):
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, rows, 3, generator=draw)
    labels = (inputs.sum(2) + torch.randn(count, rows, generator=draw) > 0).long()
    parts = {f"c{i}": (inputs[i], labels[i]) for i in range(count)}
    split = {"parts": {"train": 1.0}}
    return ct.data.from_tensors(parts, split=split, server=parts["c0"])


@functools.cache
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def trained(local, rounds=2, count=2, **options):
    return ct.fit(ct.FedAvg(local), clients(count), model(), rounds=rounds, **options).x


WHOLE = {"batch_size": None, "steps": ct.Steps(3)}
CLASSES = {c.__name__.lower(): c for c in vars(torch.optim).values() if isinstance(c, type)}  # fmt: skip


@pytest.mark.in_turn(but=("sgd", "adam", "rmsprop"))
@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_function_makes_what_the_name_makes(name):
    make = CLASSES[name]
    own = ct.LocalSGD(
        optimiser=lambda parameters: make(parameters, lr=0.01, weight_decay=0)
    )
    named = ct.LocalSGD(optimiser=name, lr=0.01)
    torch.testing.assert_close(trained(own), trained(named), atol=1e-6, rtol=1e-5)


def test_a_class_is_given_the_rate_of_the_round():
    class Twice(torch.optim.SGD):
        """Not torch's own, so that it is no name."""

    rates = ct.Schedule(0.2, at=(2,))
    own, named = ct.LocalSGD(optimiser=Twice, lr=rates), ct.LocalSGD(lr=rates)
    torch.testing.assert_close(trained(own), trained(named))
    bound = ct.LocalSGD(optimiser=functools.partial(Twice, lr=0.05), lr=rates)
    torch.testing.assert_close(trained(bound), trained(ct.LocalSGD(lr=0.05)))


def test_sam_is_its_formula():
    local = ct.LocalSGD(
        optimiser=lambda p: SAM(p, torch.optim.SGD, lr=0.1),
        steps=ct.Steps(1),
        batch_size=None,
    )
    found = trained(local, rounds=1, count=1)
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    module.load_state_dict(model().state_dict())
    part = clients(1).train
    parameters = list(module.parameters())

    def gradient():
        outputs = module(part.inputs).flatten()
        loss = nn.functional.binary_cross_entropy_with_logits(
            outputs, part.labels.float()
        )
        return torch.autograd.grad(loss, parameters)

    start = [p.detach().clone() for p in parameters]
    first = gradient()
    norm = torch.cat([g.flatten() for g in first]).norm()
    with torch.no_grad():
        for p, g in zip(parameters, first, strict=True):
            p.add_(g, alpha=0.05 / float(norm))
    second = gradient()
    expected = [x - 0.1 * g for x, g in zip(start, second, strict=True)]
    torch.testing.assert_close(found, torch.cat([x.flatten() for x in expected]))


def test_a_closure_tells_the_loss():
    """LBFGS looks for a step that lowers it."""
    searched = ct.LocalSGD(
        optimiser=lambda p: torch.optim.LBFGS(
            p, max_iter=20, line_search_fn="strong_wolfe"
        ),
        steps=ct.Steps(1),
        batch_size=None,
    )
    run = ct.fit(ct.FedAvg(searched), clients(1), nn.Linear(3, 1), rounds=1)
    steepest = ct.fit(
        ct.FedAvg(ct.LocalSGD(batch_size=None, steps=ct.Steps(500), lr=1.0)),
        clients(1),
        nn.Linear(3, 1),
        rounds=1,
    )
    assert run.summary[0]["loss"] == pytest.approx(steepest.summary[0]["loss"], rel=0.2)
    assert run.summary[0]["loss"] <= steepest.summary[0]["loss"] + 1e-6


STATES = {
    "adam": "adam",
    "rmsprop": "rmsprop",
    "lion": lambda parameters: Lion(parameters, lr=0.01),
}


@pytest.mark.parametrize("optimiser", STATES.values(), ids=STATES)
def test_a_kept_state_makes_two_rounds_of_one_client_one(optimiser):
    short = ct.LocalSGD(lr=0.01, **WHOLE, optimiser=optimiser, keep_state=True)
    long = dataclasses.replace(short, steps=ct.Steps(6))
    twice, once = trained(short, 2, count=1), trained(long, 1, count=1)
    torch.testing.assert_close(twice, once)
    anew = trained(dataclasses.replace(short, keep_state=False), 2, count=1)
    assert not torch.allclose(anew, once, atol=1e-5)


@pytest.mark.in_turn(but=("adam",))
@pytest.mark.parametrize("optimiser", STATES.values(), ids=STATES)
def test_states_are_kept_wherever_clients_are_and_when_a_run_goes_on(
    optimiser, tmp_path
):
    local = ct.LocalSGD(lr=0.01, optimiser=optimiser, keep_state=True)
    whole = trained(local, 3, count=3)
    two = trained(local, 3, count=3, engine=ct.InProcess(workers=2))
    assert torch.equal(whole, two)

    def stop(number):
        if number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(local, 3, count=3, checkpoint=tmp_path, settings=ct.RunSettings(callbacks=(stop,)))  # fmt: skip
    settings = ct.RunSettings(resume=True, callbacks=(lambda number: None,))
    again = trained(local, 3, count=3, checkpoint=tmp_path, settings=settings)
    assert torch.equal(whole, again)


def test_a_state_that_cannot_be_kept_begins_again():
    local = ct.LocalSGD(**WHOLE, optimiser=Moved)
    kept = dataclasses.replace(local, keep_state=True)
    assert torch.equal(trained(local), trained(kept))
    assert not torch.equal(trained(local), trained(local, rounds=0))


def test_one_training_in_two_batches_a_step_is_that_of_larger_batches():
    for clip in (None, 0.05):
        small = ct.LocalSGD(
            batch_size=4, accumulate=4, steps=ct.Epochs(2), clip=clip, optimiser="adam"
        )
        large = ct.LocalSGD(
            batch_size=16, steps=ct.Epochs(2), clip=clip, optimiser="adam"
        )
        torch.testing.assert_close(trained(small), trained(large), atol=1e-5, rtol=1e-4)
    steps = ct.LocalSGD(batch_size=4, accumulate=4, steps=ct.Steps(4))
    whole = ct.LocalSGD(batch_size=16, steps=ct.Steps(4))
    torch.testing.assert_close(trained(steps), trained(whole), atol=1e-6, rtol=1e-5)
    assert steps.row_gradients(100) == whole.row_gradients(100)


def test_functions_with_other_values_around_them_are_two():
    def lion(rate):
        return ct.LocalSGD(optimiser=lambda parameters: Lion(parameters, lr=rate))

    assert lion(0.1) == lion(0.1)
    assert lion(0.1) != lion(0.2)
    assert not torch.equal(trained(lion(0.1)), trained(lion(0.2)))


def test_a_wrong_function_has_one_sentence():
    with pytest.raises(ct.CoterieError, match="must make an optimiser with a method"):
        trained(ct.LocalSGD(optimiser=lambda parameters: 3))
    with pytest.raises(ct.InputError, match="weight_decay belongs to optimisers by"):
        ct.LocalSGD(optimiser=Lion, weight_decay=0.1)
    with pytest.raises(ct.InputError, match=r"optimiser must be sgd \| adam"):
        ct.LocalSGD(optimiser="lion")


PLAN = """
[data]
name = "heart-disease"
[local]
optimiser = "python:Lion:0f"
[[methods]]
name = "fedavg"
"""


def test_a_plan_takes_optimisers_by_name_alone(tmp_path, capsys):
    (tmp_path / "plan.toml").write_text(PLAN)
    assert main(["run", str(tmp_path / "plan.toml")]) == 2
    assert "an object of a Python program" in capsys.readouterr().err
    (tmp_path / "plan.toml").write_text(PLAN.replace("python:Lion:0f", "lion"))
    assert main(["run", str(tmp_path / "plan.toml")]) == 2
    assert "in Python a function of parameters" in capsys.readouterr().err


# ---- the server's rate

RATED = [
    name
    for name, cls in METHODS.items()
    if any(f.name == "lr" and f.default == 1.0 for f in dataclasses.fields(cls))
]


def with_rate(name, lr):
    fields = {f.name for f in dataclasses.fields(METHODS[name])}
    named = {
        "targets": ("c0",),
        "target": "c0",
        "members": ("c0", "c1"),
        "internal": ("c0", "c1"),
    }
    needed = {key: value for key, value in named.items() if key in fields}
    return METHODS[name](lr=lr, **needed)


@pytest.mark.in_turn(but=("fedavg", "scaffold", "meritfed"))
@pytest.mark.parametrize("name", RATED)
def test_a_function_of_the_round_is_a_schedule(name):
    def fit(lr, rounds=3):
        return ct.fit(with_rate(name, lr), clients(4), model(), rounds=rounds)

    constant, function = fit(0.5), fit(lambda number: 0.5)
    rising = fit(lambda number: 0.1 * number)
    for client, x in constant.models.items():
        assert torch.equal(x, function.models[client])
        assert not torch.equal(x, rising.models[client])
    steps = ct.Schedule(0.4, at=(3,), factor=0.5)
    stepped = fit(steps).models
    by_round = fit(lambda number: 0.4 if number < 3 else 0.2).models
    assert all(torch.equal(x, by_round[client]) for client, x in stepped.items())


def test_a_rate_that_is_none_names_its_round():
    with pytest.raises(ct.InputError, match=r"lr\(2\) must be a number >= 0; got None"):
        ct.fit(ct.FedAvg(lr=lambda number: None if number == 2 else 1.0), clients(), model(), rounds=2)  # fmt: skip

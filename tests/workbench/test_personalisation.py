"""Personalisation after training: what cannot change, and an independent computation of what does."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch.nn import functional as F

import coterie as ct
from coterie.base.clients import Client, Clients
from coterie.base.errors import InputError
from coterie.base.rows import Part
from coterie.base.vector import Layout
from coterie.compute.metrics import DEFAULT_METRICS
from coterie.config.run import PARTS, Tuning
from coterie.run.personalisation import tunable
from coterie.run.personalise import personalise
from coterie.run.result import Run
from federations import (
    PROBLEMS,
    Problem,
    assert_same_bits,
    fit,
    logistic,
    quadratic,
    seeded,
    subset,
)

LOCAL = ct.LocalSGD(lr=0.1, steps=ct.Steps(2), batch_size=4)


def trained(problem: Problem, method=None, **options) -> Run:
    options = {
        "rounds": 3,
        "evaluate": 3,
        "merge_validation": False,
        "metrics": DEFAULT_METRICS,
        **options,
    }
    return fit(method or ct.FedAvg(LOCAL), problem.clients, problem.model, **options)


def rows(run, split="test"):
    return {row["client"]: row for row in run.summary if row["split"] == split}


def chosen(run, metric):
    return {r.client: r.value for r in run.history if r.metric == metric}


@pytest.mark.in_turn(but=("all-batch-norm", "last-dropout", "all-tokens"))
@pytest.mark.parametrize("name", [n for n in PROBLEMS if n != "segmentation"])
@pytest.mark.parametrize("part", ["all", "last"])
def test_no_step_is_the_untuned_model_bit_for_bit(name, part):
    problem = PROBLEMS[name]()
    run = trained(problem)
    tuned = personalise(run, problem.clients, part, steps=(0,))
    assert list(tuned.models) == list("abcde")
    assert all(torch.equal(x, run.x) for x in tuned.models.values())
    for one, two in zip(run.summary, tuned.summary, strict=True):
        assert {**two, "own_model": False} == one
    assert set(chosen(tuned, "tuning_steps").values()) == {0.0}


@pytest.mark.in_turn(but=("all-batch-norm", "last-dict-inputs", "last-batch-norm"))
@pytest.mark.parametrize(
    "name", ["batch-norm", "dropout", "frozen", "dict-inputs", "tokens"]
)
@pytest.mark.parametrize("part", PARTS)
def test_only_the_part_that_is_named_moves(name, part):
    problem = PROBLEMS[name]()
    run = trained(problem)
    tuned = personalise(run, problem.clients, part, steps=(0, 5), lr=(0.5,))
    layout = Layout.of(problem.model)
    mask = tunable(layout, part)
    names = [n for n, p in problem.model.named_parameters() if p.requires_grad]
    sizes = {n: p.numel() for n, p in problem.model.named_parameters()}
    last = names[-1].rpartition(".")[0]
    expected = {
        "all": names,
        "last": [f"{last}.weight", f"{last}.bias"],
        "bias": [f"{last}.bias"],
    }[part]
    assert int(mask.sum()) == sum(sizes[n] for n in expected)
    moved = [x != run.x for x in tuned.models.values()]
    assert any(m.any() for m in moved)
    assert not any((m & ~mask).any() for m in moved)


def test_the_bias_of_one_logit_changes_no_ranking():
    problem = skewed()
    run = trained(problem)
    tuned = personalise(run, problem.clients, "bias")
    before, after = rows(run), rows(tuned)
    assert {c: r["auc"] for c, r in before.items()} == {
        c: r["auc"] for c, r in after.items()
    }
    assert any(after[c]["loss"] != before[c]["loss"] for c in before)


def skewed() -> Problem:
    """One logit; client a has nearly all rows of class 1, client b nearly all of class 0."""
    clients = []
    for name, share in (("a", 0.9), ("b", 0.1)):
        g = torch.Generator().manual_seed(ord(name))
        parts = []
        for count in (60, 40, 40):
            y = (torch.arange(count) < share * count).long()
            x = (
                torch.randn(count, 2, generator=g, dtype=torch.float64)
                + 0.3 * y[:, None]
            )
            parts.append(Part(x, y))
        clients.append(Client(name, *parts))
    return Problem(
        Clients(clients), seeded(lambda: torch.nn.Linear(2, 1), torch.float64)
    )


def test_a_bias_corrects_the_prevalence_of_a_client():
    problem = skewed()
    run = trained(problem, rounds=20)
    tuned = personalise(run, problem.clients, "bias", steps=(0, 400), lr=(1.0,))
    for client, row in rows(tuned).items():
        assert row["loss"] < rows(run)[client]["loss"] - 0.05
        part = problem.clients[client].train
        x = tuned.models[client]
        predicted = torch.sigmoid(part.inputs @ x[:2] + x[2]).mean()
        assert float(predicted) == pytest.approx(
            float(part.labels.double().mean()), abs=1e-3
        )


def test_steps_and_choice_follow_an_independent_computation():
    problem = skewed()
    run = trained(problem)
    rates, counts = (0.05, 5.0), (0, 1, 4)
    tuned = personalise(run, problem.clients, "last", steps=counts, lr=rates)
    for client in "ab":
        train, held = (problem.clients[client].part(k) for k in ("train", "validation"))

        def loss(x, part):
            logits = part.inputs @ x[:2] + x[2]
            return F.softplus(-(2 * part.labels - 1) * logits).mean()

        tried = {(0, 0.0): run.x}
        for rate in rates:
            y = run.x.clone()
            for step in range(1, max(counts) + 1):
                error = torch.sigmoid(train.inputs @ y[:2] + y[2]) - train.labels
                gradient = torch.cat([train.inputs.T @ error, error.sum()[None]]) / len(
                    error
                )
                y = y - rate * gradient
                tried[step, rate] = y
        offered = {k: v for k, v in tried.items() if k[0] in counts}
        best = min(offered, key=lambda k: float(loss(offered[k], held)))
        assert (
            chosen(tuned, "tuning_steps")[client],
            chosen(tuned, "tuning_lr")[client],
        ) == best
        torch.testing.assert_close(
            tuned.models[client], offered[best], rtol=1e-12, atol=1e-12
        )
        assert rows(tuned, "validation")[client]["loss"] == pytest.approx(
            float(loss(offered[best], held)), rel=1e-12
        )


def test_validation_never_gets_worse_and_a_rate_that_diverges_is_not_chosen():
    problem = PROBLEMS["batch-norm"]()
    run = trained(problem)
    tuned = personalise(
        run, problem.clients, "all", steps=(0, 50), lr=(1e30, 0.01), batch_size=4
    )
    before, after = rows(run, "validation"), rows(tuned, "validation")
    assert all(after[c]["loss"] <= before[c]["loss"] for c in before)
    assert 1e30 not in chosen(tuned, "tuning_lr").values()


@pytest.mark.in_turn(but="batch-norm")
@pytest.mark.parametrize("name", ["batch-norm", "dropout"])
def test_workers_change_no_bit_and_encoding_neither(name):
    problem = PROBLEMS[name]()
    run = trained(problem)
    options = {"steps": (0, 3), "lr": (0.3,), "batch_size": 4}
    one = personalise(run, problem.clients, "all", **options)
    assert_same_bits(
        one,
        personalise(
            run, problem.clients, "all", engine=ct.InProcess(workers=2), **options
        ),
    )
    assert_same_bits(
        one,
        personalise(
            run,
            problem.clients,
            "all",
            settings=ct.RunSettings(strict_wire=True),
            **options,
        ),
    )


@pytest.mark.in_turn
def test_a_clients_tuning_does_not_depend_on_the_others():
    problem = logistic()
    run = trained(problem)
    whole = personalise(run, problem.clients, "all", batch_size=4)
    alone = personalise(run, subset(problem.clients, "c"), "all", batch_size=4)
    assert torch.equal(whole.models["c"], alone.models["c"])


def test_what_was_given_does_not_change_and_the_work_is_counted():
    problem = logistic()
    run = trained(problem)
    before, summary = run.x.clone(), [dict(r) for r in run.summary]
    tuned = personalise(run, problem.clients, "bias", steps=(0, 2, 7), lr=(0.1, 1.0))
    assert torch.equal(run.x, before)
    assert run.summary == summary
    train = sum(len(c.train) for c in problem.clients)
    assert (
        tuned.summary[0]["row_gradients"]
        == run.summary[0]["row_gradients"] + 2 * 7 * train
    )
    assert tuned.seed == run.seed
    assert tuned.state_dict("a").keys() == run.state_dict().keys()


def test_models_of_their_own_are_tuned_from_where_they_are():
    problem = logistic()
    run = trained(problem, ct.Local(LOCAL))
    tuned = personalise(run, problem.clients, "all", steps=(0, 20), lr=(0.5,))
    for client in "abcde":
        assert torch.equal(tuned.models[client], run.models[client]) == (
            chosen(tuned, "tuning_steps")[client] == 0
        )
    one_target = trained(problem, ct.MeritFed(targets="b", local=LOCAL))
    assert set(personalise(one_target, problem.clients, "all").models) == set(
        one_target.models
    ) - {"*"} | (set("abcde") if "*" in one_target.models else set())


def test_unseen_clients_are_tuned_too():
    seen, unseen = subset(logistic().clients, "abc"), subset(logistic().clients, "de")
    clients = Clients(list(seen), unseen=unseen)
    problem = Problem(clients, logistic().model)
    run = trained(problem)
    tuned = personalise(run, clients, "all", steps=(0, 20), lr=(0.5,))
    assert set(tuned.models) == set("abcde")
    assert any(not torch.equal(tuned.models[c], run.x) for c in "de")
    assert {r["client"] for r in tuned.summary if r.get("unseen")} == {"d", "e"}


def test_a_client_without_validation_rows_keeps_its_model():
    given = list(logistic().clients)
    given[0] = Client("a", given[0].train, None, given[0].test)
    problem = Problem(Clients(given), logistic().model)
    run = trained(problem)
    tuned = personalise(run, problem.clients, "all", steps=(0, 20), lr=(0.5,))
    assert torch.equal(tuned.models["a"], run.x)
    assert chosen(tuned, "tuning_steps")["a"] == 0
    assert any(not torch.equal(x, run.x) for x in tuned.models.values())


# ---- refused


def test_validation_rows_that_were_trained_on_cannot_choose():
    problem = logistic()
    with pytest.raises(
        InputError,
        match=r"client 'a' was trained on its validation rows.*fit with merge_validation=False",
    ):
        personalise(trained(problem, merge_validation=True), problem.clients)


def test_without_validation_rows_there_is_nothing_to_choose_by():
    problem = quadratic({"a": [1.0], "b": [2.0]})
    with pytest.raises(
        InputError, match=r"there are none; give split.parts a share for validation"
    ):
        personalise(trained(problem), problem.clients, "all")


def test_a_last_layer_without_a_bias_is_named():
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 2, dtype=torch.float64),
        torch.nn.Linear(2, 1, bias=False, dtype=torch.float64),
    )
    problem = logistic()._replace(model=model)
    with pytest.raises(
        InputError, match=r"the last layer '1' has no bias.*part = last or all"
    ):
        personalise(trained(problem), problem.clients, "bias")


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"part": "head"}, "part"), ({"steps": (1, 2)}, "steps"), ({"steps": ()}, "steps"), ({"steps": (0, 1.5)}, "steps"),
        ({"steps": (0, -1)}, "steps"), ({"lr": ()}, "lr"), ({"lr": (0.1, 0.0)}, "lr"), ({"lr": (math.nan,)}, "lr"),
        ({"batch_size": 0}, "batch_size"),
    ],
)  # fmt: skip
def test_wrong_settings_are_refused(settings, field):
    with pytest.raises(InputError, match=f"Tuning.{field} must be"):
        Tuning(**settings)


def alike(spread: float, rows: int) -> Clients:
    """Clients with one logit, whose slopes differ from (2, -1) by so much."""
    clients = []
    for number, name in enumerate("abcd"):
        g = torch.Generator().manual_seed(number)
        slopes = torch.tensor([2.0, -1.0], dtype=torch.float64)
        slopes = slopes + spread * torch.randn(2, generator=g, dtype=torch.float64)
        parts = []
        for count in (rows, 40, 4000):
            x = torch.randn(count, 2, generator=g, dtype=torch.float64)
            risk = torch.sigmoid(x @ slopes + number - 1.5)
            labels = torch.rand(count, generator=g, dtype=torch.float64) < risk
            parts.append(Part(x, labels.long()))
        clients.append(Client(name, *parts))
    return Clients(clients)


def pooled_of(problem: Problem, slopes: list[float]) -> Run:
    """A run whose model has these slopes, pooled at home."""
    x = torch.tensor([*slopes, 0.0], dtype=torch.float64)
    run = dataclasses.replace(trained(problem), models={"*": x})
    return personalise(run, problem.clients, "pool")


@pytest.mark.parametrize(("spread", "near"), [(0.0, True), (3.0, False)])
def test_pooling_at_home_goes_as_far_as_the_rows_of_a_client_say(spread, near):
    clients = alike(spread, 300)
    problem = Problem(clients, seeded(lambda: torch.nn.Linear(2, 1), torch.float64))
    tuned = pooled_of(problem, [2.0, -1.0])
    # Each of 300 rows and 40 validation rows of four clients is looked at once.
    spent = tuned.summary[0]["row_gradients"]
    assert spent - trained(problem).summary[0]["row_gradients"] == 4 * (300 + 40)
    variances = chosen(tuned, "tuning_variance")
    assert all((variance < 0.1) == near for variance in variances.values())


@pytest.mark.in_turn
def test_slopes_of_noise_do_no_harm_to_whoever_pools_at_home():
    """A common model that is far off costs a client with enough rows next to nothing; good slopes help one with few."""
    model = seeded(lambda: torch.nn.Linear(2, 1), torch.float64)
    many = Problem(alike(0.0, 300), model)
    good, bad = (rows(pooled_of(many, slopes)) for slopes in ([2, -1], [-9, 9]))
    assert all(bad[c]["loss"] < good[c]["loss"] + 0.02 for c in good)
    few = Problem(alike(0.0, 8), model)
    good, none = (rows(pooled_of(few, slopes)) for slopes in ([2, -1], [0, 0]))
    assert sum(r["loss"] for r in good.values()) < sum(r["loss"] for r in none.values())


def test_pooling_at_home_needs_no_validation_rows_and_trains_on_them():
    clients = alike(0.0, 60)
    problem = Problem(clients, seeded(lambda: torch.nn.Linear(2, 1), torch.float64))
    without = Problem(clients.merge_validation(), problem.model)
    one, two = (pooled_of(p, [2.0, -1.0]).models for p in (problem, without))
    assert all(torch.equal(one[name], two[name]) for name in "abcd")


@pytest.mark.parametrize(
    "wrong", [{"clients_per_round": 99}, {"metrics": ("acuracy",)}]
)
def test_settings_that_no_run_could_have_are_refused_before_any_tuning(wrong):
    problem = logistic()
    run, settings = trained(problem), ct.RunSettings(**wrong)
    with pytest.raises(InputError, match=r"must be between 1 and|did you mean"):
        personalise(run, problem.clients, "bias", settings=settings)


def test_pooling_at_home_is_for_linear_models():
    problem = PROBLEMS["dropout"]()
    with pytest.raises(InputError, match="not one linear layer with bias"):
        personalise(trained(problem), problem.clients, "pool")

"""What must hold of clients that train alone: by steps, and where a linear model is solved for under a ridge that folds choose."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest
import torch
from short_runs import MINI, ONE, trained
from sklearn.linear_model import LogisticRegression, Ridge
from torch import nn

import coterie as ct
from coterie import FedAvg, InProcess, Local
from coterie.algorithms.local import train_alone
from coterie.base.clients import Client, Clients
from coterie.base.errors import InputError
from coterie.base.folds import deal_folds
from coterie.base.rows import Part
from coterie.compute import ridge
from coterie.compute.cohort import Shard
from coterie.compute.ridge import find_linear
from coterie.compute.workspace import Workspace
from coterie.config.local import Steps
from coterie.contract.encoding import decode, encode
from coterie.contract.federation import Federation
from coterie.contract.requests import Limits, check_payload, declarations
from coterie.data.parts import with_fold
from coterie.solvers.ridge import INTERCEPT, PENALTIES, Problem
from federations import (
    SIZES,
    assert_close,
    batch_norm,
    dropout,
    logistic,
    subset,
)

MUTANTS = {
    "local": [
        (
            "algorithms/local.py",
            "own_models = own_models + update",
            "own_models = own_models + update.mean(0)",
        ),
        (
            "compute/side_by_side.py",
            "for decay in weight_decay]",
            "for decay in sorted(weight_decay)]",
        ),
        (
            "algorithms/local.py",
            "cohort.keep(OWN, own_models)",
            "cohort.keep(OWN, own_models.mean(0).expand_as(own_models))",
        ),
        ("algorithms/local.py", 'participation = "own"', 'participation = "run"'),
        (
            "compute/ridge.py",
            'problem, of_row = _read(cohort, client, linear, ("train", "test"), tags)',
            'problem, of_row = _read(cohort, client, linear, ("test", "train"), tags)',
        ),
        (
            "solvers/ridge.py",
            "total[numbers.index(j)] += of_pair[:, folds == k].sum(-1)",
            "total[numbers.index(j)] += of_pair[:, folds == j].sum(-1)",
        ),
        ("solvers/ridge.py", "INTERCEPT = 0.001", "INTERCEPT = 1.0"),
    ],
}


@pytest.mark.in_turn(but=("batch_norm-True", "dropout-False"))
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("make", [logistic, batch_norm, dropout])
def test_local_models_do_not_depend_on_other_clients(make, exact):
    problem, method = make(), Local(MINI, exact=exact)
    many = trained(method, problem)
    few = trained(method, problem.with_clients(subset(problem.clients, "bd")))
    for name in "bd":
        assert torch.equal(many.models[name], few.models[name])
    assert not torch.equal(many.models["b"], many.models["d"])


@pytest.mark.parametrize("make", [logistic, batch_norm, dropout])
def test_fedavg_with_one_client_is_local(make):
    problem = make()
    alone = problem.with_clients(subset(problem.clients, "c"))
    assert_close(
        trained(FedAvg(MINI), alone).x,
        trained(Local(MINI, exact=False), alone).models["c"],
        1e-14,
    )


def test_local_rounds_of_steps_are_one_long_training():
    problem = logistic()
    local = replace(ONE, steps=Steps(2))
    short, long = (
        trained(Local(local, exact=False), problem, 3),
        trained(Local(replace(local, steps=Steps(6)), exact=False), problem, 1),
    )
    for name in SIZES:
        assert_close(short.models[name], long.models[name])


def test_clients_that_work_alone_need_not_wait_to_be_drawn():
    problem = logistic()
    few, everybody = (
        trained(Local(MINI, exact=False), problem, 3, clients_per_round=m)
        for m in (2, None)
    )
    start = trained(Local(MINI, exact=False), problem, 1)
    for name in SIZES:
        assert torch.equal(few.models[name], everybody.models[name])
        assert not torch.equal(few.models[name], start.models[name])


@pytest.mark.in_turn(but=("logistic-auto-3", "batch_norm-loop-1"))
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("kernel", ["auto", "loop"])
@pytest.mark.parametrize("make", [logistic, batch_norm])
def test_a_weight_decay_of_its_own_is_that_of_a_run_with_it(make, kernel, steps):
    problem, local = make(), replace(MINI, steps=Steps(steps))
    engine = InProcess(kernel=kernel)
    mixed = trained(Local(local, {"b": 0.5}, exact=False), problem, 2, engine=engine)
    decayed, free = (
        trained(
            Local(replace(local, weight_decay=decay), exact=False),
            problem,
            2,
            engine=engine,
        )
        for decay in (0.5, 0.0)
    )
    for name, model in mixed.models.items():
        assert torch.equal(model, (decayed if name == "b" else free).models[name])
    assert not torch.equal(decayed.models["b"], free.models["b"])


def test_clients_with_weight_decays_of_their_own_train_in_one_ask(monkeypatch):
    asked = []
    ask = Federation.ask
    monkeypatch.setattr(
        Federation,
        "ask",
        lambda self, *a, **k: asked.append(a[1].name) or ask(self, *a, **k),
    )
    problem = logistic()
    decays = {name: i / 10 for i, name in enumerate(problem.clients.names)}
    trained(Local(MINI, decays, exact=False), problem, 2)
    assert asked.count(train_alone.name) == 2


def test_a_site_takes_the_weight_decays_of_its_plan_and_no_others():
    method = Local(MINI, {"b": 0.5, "a": 0.1})
    declaration, owner = declarations(method)[train_alone.name]
    limits = Limits(3, 3, 2, 4, torch.float32, 5)
    sent = {"x": torch.zeros(3), "local": method.local}
    planned = {**sent, "decays": method.decays, "exact": True}
    check_payload(declaration, owner, decode(encode(planned)), limits)
    with pytest.raises(InputError, match="does not allow this 'exact'"):
        check_payload(declaration, owner, {**planned, "exact": False}, limits)
    with pytest.raises(InputError, match="does not allow this 'decays'"):
        check_payload(
            declaration, owner, {**sent, "decays": (("a", 0.1), ("b", 9.0))}, limits
        )


def test_a_weight_decay_of_nobody_is_refused():
    with pytest.raises(InputError, match=r"weight_decays names 'nobody'"):
        trained(Local(MINI, {"nobody": 0.1}), logistic())
    with pytest.raises(
        InputError, match=r"weight_decays must be numbers >= 0 by client"
    ):
        Local(MINI, {"b": -1.0})


# ---- one linear layer is solved for

D = 3
ROWS = {"a": 40, "b": 23, "c": 61}


def rows(n: int, kind: str, seed: int) -> Part:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n, D, generator=generator)
    score = inputs @ torch.tensor([1.0, -0.5, 0.0]) + 0.3
    noise = torch.randn(n, generator=generator)
    if kind == "numbers":
        return Part(inputs, score + noise)
    if kind == "classes":
        return Part(inputs, (score + noise).clamp(-0.9, 1.9).add(1).floor().long())
    return Part(inputs, (score + noise > 0).long())


def clients(kind: str = "binary", **changed: Part) -> Clients:
    parts = {name: rows(n, kind, n) for name, n in ROWS.items()} | changed
    return Clients([Client(name, part) for name, part in parts.items()])


def model(kind: str) -> nn.Module:
    return nn.Linear(D, 3 if kind == "classes" else 1)


def models(data: Clients, kind: str = "binary", seed: int = 0, **settings):
    run = ct.fit(Local(), data, model(kind), rounds=1, seed=seed, **settings)
    return run.models


def oracle(part: Part, kind: str, penalty: float) -> np.ndarray:
    """Scikit-learn's model, whose intercept is the slope of a column on which the same ridge holds it as little as ours is held."""
    column = np.sqrt(penalty / INTERCEPT)
    x = np.column_stack([part.inputs.double(), np.full(len(part), column)])
    if kind == "numbers":
        fit = Ridge(alpha=penalty, fit_intercept=False).fit(x, part.labels.double())
    else:
        fit = LogisticRegression(
            C=1 / penalty, fit_intercept=False, tol=1e-12, max_iter=10_000
        ).fit(x, part.labels)
    table = np.atleast_2d(fit.coef_)
    return np.concatenate([table[:, :-1].ravel(), table[:, -1] * column])


def losses(table: np.ndarray, part: Part, kind: str) -> float:
    """The summed loss of a model on rows, in plain NumPy."""
    outputs = 3 if kind == "classes" else 1
    slopes, intercepts = table[: outputs * D].reshape(outputs, D), table[outputs * D :]
    z = part.inputs.double().numpy() @ slopes.T + intercepts
    y = part.labels.numpy()
    if kind == "numbers":
        return float(((y - z[:, 0]) ** 2).sum() / 2)
    if kind == "classes":
        return float((np.log(np.exp(z).sum(1)) - z[np.arange(len(y)), y]).sum())
    return float((np.log1p(np.exp(z[:, 0])) - y * z[:, 0]).sum())


def nested_choice(part: Part, folds: np.ndarray, kind: str) -> float:
    """The ridge of least loss over these folds of training rows, each by models without it, spelled out with scikit-learn."""
    totals = [
        sum(
            losses(
                oracle(select(part, folds != k), kind, penalty),
                select(part, folds == k),
                kind,
            )
            for k in np.unique(folds)
        )
        for penalty in PENALTIES
    ]
    return PENALTIES[int(np.argmin(totals))]


def select(part: Part, mask: np.ndarray) -> Part:
    return part.select(torch.from_numpy(np.flatnonzero(mask)))


@pytest.mark.parametrize("kind", ["binary", "classes", "numbers"])
def test_the_model_is_that_of_scikit_learn_at_the_chosen_ridge(kind):
    whole = clients(kind)
    view = with_fold(whole, 5, 1, 0)
    found = models(view, kind)
    chosen = set()
    for name in ("a", "b"):
        part = whole[name].train
        dealt = deal_folds(part.labels.numpy(), 5, seed=0, name=name)
        training = select(part, dealt != 1)
        penalty = nested_choice(training, dealt[dealt != 1], kind)
        chosen.add(penalty)
        want = oracle(training, kind, penalty)
        np.testing.assert_allclose(found[name], want, atol=1e-6)
    assert chosen <= {*PENALTIES}


@pytest.mark.parametrize("kind", ["binary", "numbers"])
def test_without_a_tested_fold_inner_folds_choose(kind):
    whole = clients(kind)
    everything = with_fold(whole, 5, None, 0)
    found, joined = models(everything, kind), models(whole, kind)
    for name in ROWS:
        assert torch.equal(found[name], joined[name])  # validation rows join
        part = whole[name].train
        distances = [
            np.abs(found[name].numpy() - oracle(part, kind, penalty)).max()
            for penalty in PENALTIES
        ]
        assert min(distances) < 1e-6


def test_inner_folds_are_drawn_by_the_seed():
    noisy = {name: rows(30, "binary", n) for n, name in enumerate("defghij")}
    found = [models(clients(**noisy), seed=seed) for seed in (0, 0, 1)]
    assert all(torch.equal(found[0][name], found[1][name]) for name in noisy)
    assert not all(torch.equal(found[0][name], found[2][name]) for name in noisy)


def test_the_ridge_of_a_tested_fold_does_not_see_its_labels():
    whole = clients()
    labels = whole.train.labels.clone()
    for fold in range(5):
        view = with_fold(whole, 5, fold, 0)
        before = models(view)
        changed = labels.clone()
        for i in range(len(whole)):
            changed[view.test.numbers(i)] = 1 - changed[view.test.numbers(i)]
        lied = whole.map_tensors(lambda t, name, c=changed: t if name else c)
        seen = view.map_tensors(lambda t, name, c=changed: t if name else c)
        after = models(seen)
        for name in ROWS:
            assert torch.equal(before[name], after[name])
        # Labels of rows that train do matter.
        other = with_fold(lied, 5, (fold + 1) % 5, 0)
        assert not torch.equal(models(other)["a"], before["a"])


def test_order_of_rows_and_what_was_solved_before_change_no_bit():
    whole = clients()
    cold = []
    for fold in (2, 0):
        ridge._solutions.clear()
        cold.append(models(with_fold(whole, 5, fold, 0)))
    warm = models(with_fold(whole, 5, 2, 0))
    turned = {n: whole[n].train.select(torch.arange(ROWS[n] - 1, -1, -1)) for n in ROWS}
    for name in ROWS:
        assert torch.equal(cold[0][name], warm[name])
    mirrored = models(clients(**turned))
    assert all(torch.equal(models(whole)[n], mirrored[n]) for n in ROWS)


def test_the_solution_that_was_found_first_is_forgotten_first(monkeypatch):
    monkeypatch.setattr(ridge, "_solutions", OrderedDict())
    monkeypatch.setattr(ridge, "MOST_KEPT", 2)
    solved = []

    def solve(problem, folds):
        solved.append(float(problem.inputs[0]))
        return problem

    labels, folds = torch.tensor([0, 1]), torch.tensor([0, 1])
    for value in (1.0, 2.0, 3.0, 3.0, 2.0, 1.0):
        inputs = torch.full((2, 1), value, dtype=torch.float64)
        problem = Problem(inputs, labels, "binary", 1)
        found = ridge._solve_once(solve, problem, folds)
        assert torch.equal(found.inputs, inputs)
    assert solved == [1.0, 2.0, 3.0, 1.0]


def test_workers_give_the_same_bits():
    view = with_fold(clients(), 5, 3, 0)
    alone, shared = models(view), models(view, engine=InProcess(workers=2))
    few = models(view.subset(["b"]))
    for name in ROWS:
        assert torch.equal(alone[name], shared[name])
    assert torch.equal(few["b"], alone["b"])


def test_patients_stay_together_in_inner_folds():
    # Each patient has 6 equal rows: a choice that parted them would think that noise can be learned.
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(20, D, generator=generator).repeat_interleave(6, 0)
    labels = torch.randint(2, (20,), generator=generator).repeat_interleave(6)
    patients = {"train": np.repeat(np.arange(20), 6)}
    part = Part(inputs, labels)
    grouped = Clients([Client("a", part, row_groups=patients)])
    apart = Clients([Client("a", part)])
    slopes = [models(data)["a"][:D].norm() for data in (grouped, apart)]
    assert slopes[0] < 0.5 * slopes[1]


def test_too_few_rows_or_one_class_have_ridge_ten():
    few = rows(4, "binary", 2)
    one_class = rows(30, "binary", 5)
    one_class = Part(one_class.inputs, torch.ones(30, dtype=torch.int64))
    data = clients(d=few, e=one_class)
    for view in (data, with_fold(data, 5, 0, 0)):
        found = models(view)
        want = oracle(few, "binary", 10.0)
        np.testing.assert_allclose(found["d"], want, atol=1e-5)
        assert torch.isfinite(found["e"]).all()
        slopes, intercept = found["e"][:D].double(), float(found["e"][D])
        rows_of_e = view.merge_validation()["e"].train.inputs.double()
        z = rows_of_e @ slopes + intercept
        gradient = rows_of_e.T @ torch.sigmoid(-z) - 10 * slopes
        assert gradient.abs().max() < 1e-4
        assert abs(float(torch.sigmoid(-z).sum()) - INTERCEPT * intercept) < 1e-4


def test_several_labels_are_several_models_with_one_ridge():
    part = rows(50, "binary", 1)
    both = torch.stack([part.labels, 1 - part.labels], 1)
    data = Clients([Client("a", Part(part.inputs, both))])
    found = ct.fit(Local(), data, nn.Linear(D, 2), rounds=1).models["a"]
    np.testing.assert_allclose(found[:D], -found[D : 2 * D], atol=1e-6)
    assert (
        min(
            np.abs(found[[*range(D), 2 * D]].numpy() - oracle(part, "binary", p)).max()
            for p in PENALTIES
        )
        < 1e-6
    )


def test_rounds_and_local_settings_change_nothing():
    data = clients()
    once = models(data)
    hasty = ct.fit(
        Local(ct.LocalSGD(lr=9.0, steps=ct.Steps(7)), {"a": 3.0}),
        data,
        model("binary"),
        rounds=3,
    ).models
    assert all(torch.equal(once[name], hasty[name]) for name in ROWS)


def own_loss(outputs, labels):
    return (outputs[:, 0] - labels) ** 2


own_loss.kind = "binary"


@pytest.mark.parametrize(
    "case", ["exact", "loss", "attack", "frozen", "bias", "layers", "augmented"]
)
def test_where_a_model_is_not_solved_for_it_takes_steps(case):
    data, settings = clients(), {}
    network = {
        "bias": nn.Linear(D, 1, bias=False),
        "layers": nn.Sequential(nn.Linear(D, 2), nn.ReLU(), nn.Linear(2, 1)),
    }.get(case, model("binary"))
    if case == "loss":
        settings["settings"] = ct.RunSettings(loss=own_loss)
    if case == "attack":
        settings["attack"] = ct.attacks.SignFlip(on=("b",))
    if case == "frozen":
        settings["settings"] = ct.RunSettings(freeze=["weight"])
    if case == "augmented":
        data = data.with_transform(lambda inputs, rng: inputs)
    exact = case != "exact"
    short, long = (
        ct.fit(Local(exact=exact), data, network, rounds=r, **settings).models
        for r in (1, 2)
    )
    assert not any(torch.equal(short[name], long[name]) for name in ROWS)
    stepped = ct.fit(Local(exact=False), data, network, rounds=2, **settings).models
    assert all(torch.equal(stepped[name], long[name]) for name in ROWS)


def test_each_row_counts_once_for_each_model_that_is_fitted_to_it():
    """Of every ridge one without each inner fold, and the one that is kept."""
    run = ct.fit(Local(), clients(), model("binary"), rounds=1)
    fits = len(PENALTIES) * (ridge.INNER_FOLDS - 1) + 1
    assert run.summary[0]["row_gradients"] == sum(ROWS.values()) * fits


def test_clients_that_end_together_need_not_be_neighbours():
    """In a kernel models that have made their last step are written at once; here every second client has."""
    sizes = dict(zip("abcd", (10, 25, 10, 25), strict=True))
    data = Clients([Client(n, rows(size, "binary", 1)) for n, size in sizes.items()])
    local = ct.LocalSGD(lr=0.1, steps=ct.Epochs(1), batch_size=5)
    one, two = (
        ct.fit(
            Local(local, exact=False), data, "logistic", rounds=1, engine=engine
        ).models
        for engine in (InProcess(kernel="loop"), InProcess())
    )
    for name in sizes:
        torch.testing.assert_close(one[name], two[name])


def test_a_model_of_many_parameters_takes_steps():
    wide = Clients([Client("a", Part(torch.randn(20, 600), torch.arange(20) % 2))])
    for columns, outputs, known in ((600, 1, False), (D, 1, True)):
        data = clients() if known else wide
        space = Workspace(nn.Linear(columns, outputs), "auto", data[0])
        assert (find_linear(space, data) is not None) is known


@pytest.mark.parametrize("make", [logistic, batch_norm])
def test_problems_of_the_tests_are_known_for_what_they_are(make):
    problem = make()
    space = Workspace(problem.model, "auto", problem.clients[0])
    assert (find_linear(space, problem.clients) is None) is (make is batch_norm)


def test_a_client_that_lost_its_model_is_served_the_same_one(monkeypatch):
    """As a process that is killed after the round in which it solved, when nobody asks for training again."""
    data = clients()
    kept = models(data)
    lost = next(iter(ROWS))
    honest = Shard.answer

    def answer(self, ask):
        if ask.task.endswith(":model_alone") and ask.context.round > 0:
            self.memory.forget(lost)
        return honest(self, ask)

    monkeypatch.setattr(Shard, "answer", answer)
    run = ct.fit(Local(), data, model("binary"), rounds=2)
    assert all(torch.equal(kept[name], run.models[name]) for name in ROWS)


def test_models_that_stand_are_evaluated_once_and_written_down_each_time():
    view = with_fold(clients(), 5, 0, 0)
    settings = ct.RunSettings(evaluate=1)
    run = ct.fit(Local(), view, model("binary"), rounds=4, settings=settings)
    for split in ("train", "test"):
        for name in ROWS:
            told = run.history.select("loss", name, split)
            assert [number for number, _ in told] == [0, 1, 2, 3, 4]
            assert len({value for _, value in told}) == 2  # before, and after
            part = getattr(view.merge_validation()[name], split)
            x = run.models[name].double().numpy()
            assert told[-1][1] == pytest.approx(losses(x, part, "binary") / len(part))
    asked = [r for r in run.asks if r.task.endswith(":evaluate")]
    assert {r.round for r in asked} == {0, 1}
    stepped = ct.fit(
        Local(exact=False), view, model("binary"), rounds=4, settings=settings
    )
    asked = [r for r in stepped.asks if r.task.endswith(":evaluate")]
    assert {r.round for r in asked} == {0, 1, 2, 3, 4}

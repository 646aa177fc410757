"""What must hold for ISFL and its sampler under any method, what is refused, and rounds recomputed apart from the library."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from short_runs import MINI, run_with_server
from torch import nn

import coterie as ct
from coterie import ISFL, FedAvg, Local, MeritFed, PjIS
from coterie.base.clients import Client, Clients
from coterie.base.errors import InputError, RunError
from coterie.base.rng import Rng
from coterie.base.rows import Part
from coterie.compute.cohort import Cohort
from coterie.compute.workspace import Workspace
from coterie.config.local import Epochs, LocalSGD, Steps
from coterie.contract.memory import Memory, MemoryView
from coterie.run.experiment import Experiment
from coterie.samplers.isfl import SHARES, LipschitzSampler, _solve, compare
from coterie.solvers.waterfill import bound, closed_form, exact
from federations import (
    PROBLEMS,
    SIZES,
    Problem,
    assert_close,
    assert_same_bits,
    batch_norm,
    cohort_of,
    dict_inputs,
    fit,
    logistic,
    loss_of,
    model_at,
    seeded,
    start,
)

MUTANTS = {
    "isfl": [
        ("samplers/isfl.py", "_norm(gradients - average)", "_norm(gradients)"),
        ("samplers/isfl.py", "lipschitz / distance[:, None], 0.0", "lipschitz, 0.0"),
        (
            "samplers/isfl.py",
            'labels.long(), difference, "amax")',
            'labels.long(), difference, "sum")',
        ),
        (
            "samplers/isfl.py",
            "torch.stack(optima if self.exact else closed_forms)",
            "torch.stack(closed_forms)",
        ),
        ("samplers/isfl.py", "if name in preferred:", "if False:"),
        ("samplers/isfl.py", "cohort.keep(AVERAGE, new_average[None])", "pass"),
        ("samplers/isfl.py", "if before:", "if False:"),
        (
            "samplers/isfl.py",
            "return shares_in_memory(cohort, client, SHARES)",
            "return shares_in_memory(cohort, client, SHARES)[:0]",
        ),
        (
            "samplers/isfl.py",
            "_solve(*row, floor)[0][exact]",
            "_solve(*row, floor)[0][0]",
        ),
        (
            "samplers/isfl.py",
            'if self.where != "client":',
            "if True:",
        ),
    ],
}


def skewed(classes: int = 4, rows: int = 24, odd: tuple[int, ...] = (0,)) -> Problem:
    """Clients a to d; a lacks the classes of `odd`, the others have all."""
    g = torch.Generator().manual_seed(3)
    clients = []
    for name in "abcd":
        y = torch.arange(rows) % classes
        if name == "a":
            y = torch.tensor([c for c in range(classes) if c not in odd]).repeat(rows)[
                :rows
            ]
        x = torch.randn(rows, 3, generator=g, dtype=torch.float64)
        x[:, :2] += torch.stack([y == 1, y == 2], 1)
        clients.append(Client(name, Part(x, y)))
    return Problem(
        Clients(clients), seeded(lambda: torch.nn.Linear(3, classes), torch.float64)
    )


def q_of(found, client, classes=4):
    return torch.tensor(
        [found.history.select(f"q[{i}]", client)[-1][1] for i in range(classes)],
        dtype=torch.float64,
    )


def shares(problem, client, classes=4):
    return torch.bincount(
        problem.clients[client].train.labels, minlength=classes
    ).double() / len(problem.clients[client].train)


# ---- laws


def test_isfl_is_fedavg_with_its_sampler_bit_by_bit():
    problem = skewed()
    sampler = LipschitzSampler(floor=0.1, exact=True, sample_ratio=0.5)
    local = replace(MINI, steps=Epochs(2))
    one = run_with_server(ISFL(local, floor=0.1, exact=True, sample_ratio=0.5), problem)
    other = run_with_server(FedAvg(replace(local, sampler=sampler)), problem)
    assert torch.equal(one.x, other.x)
    assert one.history == other.history
    assert not torch.equal(one.x, run_with_server(FedAvg(local), problem).x)


@pytest.mark.parametrize("best", [False, True])
def test_equal_constants_give_the_global_shares(best):
    p, own = (
        torch.tensor([0.5, 0.3, 0.2]).double(),
        torch.tensor([0.0, 0.0, 1.0]).double(),
    )
    for constants in (
        torch.full((3,), 2.0),
        torch.zeros(3),
        torch.tensor([1.0, 1 + 1e-9, 1 - 1e-9]),
    ):
        pair, gamma = _solve(p, own, constants.double(), 0.05)
        assert gamma == 0
        assert_close(pair[best], p, 1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_client_whose_model_is_the_average_samples_by_the_global_shares(dtype):
    problem = skewed()
    single = Clients(
        [
            Client(
                "a",
                Part(
                    problem.clients["a"].train.inputs.to(dtype),
                    problem.clients["a"].train.labels,
                ),
            )
        ]
    )
    held = problem.clients.pool_training_rows()
    for local in (MINI, replace(MINI, lr=20.0)):
        found = fit(
            ISFL(local),
            single,
            problem.model.to(dtype),
            2,
            server=Part(held.inputs.to(dtype), held.labels),
        )
        assert_close(q_of(found, "a"), shares(problem, "a"))
        assert found.history.select("gamma", "a")[-1][1] == 0


def test_clients_with_one_class_distribution_and_one_model_keep_sampling_by_it():
    part = skewed().clients["b"].train
    problem = Problem(Clients([Client(n, part) for n in "ab"]), skewed().model)
    found = run_with_server(ISFL(replace(MINI, batch_size=None, lr=1e-9)), problem, 1)
    assert_close(sum(q_of(found, "a")), torch.tensor(1.0).double())
    # Rows that move nothing leave x_k = x up to rounding.
    still = run_with_server(ISFL(replace(MINI, lr=1e-300)), problem, 2)
    for name in "ab":
        assert_close(q_of(still, name), shares(problem, name))


def test_permuting_the_classes_permutes_q():
    problem = skewed()
    order = torch.tensor([2, 0, 3, 1])  # class c is called order[c]
    other = Problem(
        Clients(
            [
                Client(c.name, Part(c.train.inputs, order[c.train.labels]))
                for c in problem.clients
            ]
        ),
        skewed().model,
    )
    for name in ("weight", "bias"):
        tensor = getattr(other.model, name)
        tensor.data[order] = tensor.data.clone()
    local = replace(MINI, batch_size=3)
    one, two = (
        run_with_server(ISFL(local), problem),
        run_with_server(ISFL(local), other),
    )
    for name in "abcd":
        assert_close(q_of(one, name), q_of(two, name)[order], 1e-9)
        assert float((q_of(one, name) - shares(problem, name)).abs().max()) > 0.01


def test_q_keeps_its_floor_and_sums_to_one():
    problem = skewed()
    for options in ({}, {"exact": True}):
        found = run_with_server(ISFL(MINI, floor=0.4, **options), problem)
        for name in "abcd":
            q = q_of(found, name)
            assert float(q.sum()) == pytest.approx(1, abs=1e-9)
            assert bool(
                (
                    q
                    >= torch.minimum(0.4 * shares(problem, name), q.new_tensor(1.0))
                    * (1 - 1e-9)
                ).all()
            )


def test_the_exact_optimum_is_no_worse_and_both_are_logged():
    found = run_with_server(ISFL(MINI), skewed(), 4)
    pairs = [
        (
            dict(found.history.select("rho", n)),
            dict(found.history.select("rho_optimum", n)),
        )
        for n in "abcd"
    ]
    for closed, best in pairs:
        assert set(closed) == {1, 2, 3, 4}
        assert all(best[r] <= closed[r] * (1 + 1e-12) for r in closed)
    assert any(best[4] < 0.99 * closed[4] for closed, best in pairs)
    assert all(v > 0 for _, v in found.history.select("local_distance"))
    held = len(skewed().clients.pool_training_rows())
    assert found.history.select("lipschitz_gradients") == [
        (r, 5 * held) for r in (1, 2, 3, 4)
    ]


def test_before_the_first_comparison_rows_are_drawn_evenly():
    cohort = cohort_of(skewed())
    drawn = torch.from_numpy(
        LipschitzSampler().rows(cohort, 1, cohort.rng(1, "train"), 100, 240)
    ).flatten()
    assert_close(
        torch.bincount(drawn, minlength=24) / 24000, torch.full((24,), 1 / 24), 0.005
    )


def test_a_class_that_the_client_lacks_is_left_out_in_proportion():
    cohort = cohort_of(skewed())
    q = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    cohort.memory.put(SHARES, q.expand(4, -1))
    cohort.memory.commit()
    drawn = torch.from_numpy(
        LipschitzSampler().rows(cohort, 0, cohort.rng(0, "train"), 1000, 30)
    ).flatten()
    seen = torch.bincount(cohort.labels(0)[drawn], minlength=4) / 30000
    assert_close(
        seen.double(), torch.tensor([0, 0.5, 1 / 3, 1 / 6], dtype=torch.float64), 0.01
    )


def test_a_client_without_any_class_that_it_should_sample_draws_evenly():
    cohort = cohort_of(skewed())
    cohort.memory.put(
        SHARES, torch.tensor([1.0, 0, 0, 0], dtype=torch.float64).expand(4, -1)
    )
    cohort.memory.commit()
    drawn = LipschitzSampler().rows(cohort, 0, cohort.rng(0, "train"), 100, 24)
    assert set(drawn.ravel()) == set(range(24))


@pytest.mark.parametrize("best", [False, True])
def test_the_clients_find_q_themselves_and_tell_nobody(best):
    problem = skewed()
    found = run_with_server(ISFL(MINI, where="client", exact=best), problem)
    logged = {r.metric for r in found.history if r.client == "*" or r.split == ""}
    assert logged == {"row_gradients", "local_distance", "lipschitz_gradients"}
    assert not any("class_counts" in a.task for a in found.asks)
    assert [a.task.rpartition(":")[2] for a in found.asks if a.round == 1][1:4] == [
        "local_models",
        "compare",
        "solve",
    ]
    # The server holds the rows of all clients here, so p is the same, and so is everything else.
    assert torch.equal(found.x, run_with_server(ISFL(MINI, exact=best), problem).x)


def test_each_client_tells_its_classes_once():
    found = run_with_server(ISFL(MINI), skewed(), 4, clients_per_round=2)
    assert [
        (a.round, a.clients) for a in found.asks if a.task.endswith(":class_counts")
    ] == [(1, 4)]


@pytest.mark.in_turn
def test_a_preference_replaces_the_global_shares():
    wanted = (0.1, 0.2, 0.3, 0.4)
    preference = {"b": wanted}
    still = run_with_server(
        ISFL(replace(MINI, lr=1e-300), preference=preference), skewed(), 1
    )
    assert_close(q_of(still, "b"), torch.tensor(wanted).double(), 1e-6)
    assert not torch.equal(q_of(still, "c"), q_of(still, "b"))
    assert_same_bits(
        run_with_server(ISFL(MINI, preference=preference), skewed()),
        run_with_server(ISFL(MINI, preference=preference), skewed(), workers=2),
    )


# ---- under any method


METHODS = {
    "fedavg": lambda local: FedAvg(local),
    "meritfed": lambda local: MeritFed("all", local, validation="train"),
    "meritfed-server": lambda local: MeritFed("a", local, validation="server"),
    "local": lambda local: Local(local, exact=False),
}


@pytest.mark.in_turn(but="meritfed-server")
@pytest.mark.parametrize(
    ("name", "where"), [*((name, "server") for name in METHODS), ("fedavg", "client")]
)
def test_it_works_under_any_method_on_any_number_of_workers_and_resumes(
    name, where, tmp_path
):
    problem = skewed()
    method = METHODS[name](replace(MINI, sampler=LipschitzSampler(where=where)))
    options = {"rounds": 3, "evaluate": 3}
    one = run_with_server(method, problem, **options)
    plain = run_with_server(METHODS[name](MINI), problem, **options)
    assert any(not torch.equal(x, plain.models[k]) for k, x in one.models.items())

    class Stop(Exception):  # noqa: N818
        pass

    def interrupt(number):
        if number == 2:
            raise Stop

    with pytest.raises(Stop):
        run_with_server(
            method, problem, checkpoint=tmp_path, callbacks=(interrupt,), **options
        )
    assert_same_bits(
        one,
        run_with_server(
            method, problem, checkpoint=tmp_path, resume=True, workers=2, **options
        ),
    )


def test_the_sampler_matters_to_meritfed_from_the_second_round_on():
    problem = skewed()
    sampled = replace(MINI, sampler=LipschitzSampler())
    even = run_with_server(MeritFed("a", sampled, validation="train"), problem, 1)
    other = run_with_server(
        MeritFed(
            "a", replace(MINI, sampler=LipschitzSampler(floor=1.0)), validation="train"
        ),
        problem,
        1,
    )
    assert torch.equal(even.models["a"], other.models["a"])
    q = q_of(even, "b")
    assert float((q - shares(problem, "b")).abs().max()) > 0.01


def test_a_round_without_training_at_some_clients_goes_on(monkeypatch):
    problem = batch_norm()
    local = replace(MINI, sampler=LipschitzSampler())
    honest = LipschitzSampler.rows

    def rows(self, cohort, client, *arguments):
        if cohort.names[client] == "c":
            raise ValueError("no rows today")
        return honest(self, cohort, client, *arguments)

    monkeypatch.setattr(LipschitzSampler, "rows", rows)
    found = run_with_server(FedAvg(local), problem)
    assert list(found.failures) == ["c"]
    assert ("c", "rho") not in {(row.client, row.metric) for row in found.history}
    assert len(found.history.select("rho", "a")) == 3


def test_divergence_is_named():
    problem = Problem(logistic(torch.float32).clients, logistic(torch.float32).model)
    with pytest.raises(RunError):
        run_with_server(ISFL(replace(MINI, lr=1e30, weight_decay=1.0)), problem, 5)


# ---- what is refused


FIELDS = [
    ("floor", 0, "a number in (0, 1]"),
    ("floor", 1.5, "a number in (0, 1]"),
    ("sample_ratio", 0.0, "a number in (0, 1]"),
    ("sample_ratio", "all", "a number in (0, 1]"),
    ("exact", 1, "true or false"),
    ("where", "cloud", "server | client"),
    ("preference", {"a": [0.5, 0.4]}, "sum 1 by client"),
    ("preference", {"a": [1.5, -0.5]}, "sum 1 by client"),
    ("preference", {"a": []}, "sum 1 by client"),
    ("preference", {}, "sum 1 by client"),
    ("preference", "a", "sum 1 by client"),
    ("preference", {1: [1.0]}, "sum 1 by client"),
]


@pytest.mark.parametrize(("field", "value", "allowed"), FIELDS)
@pytest.mark.parametrize("owner", [ISFL, LipschitzSampler])
def test_bad_fields_are_named(owner, field, value, allowed):
    with pytest.raises(InputError) as caught:
        owner(**{field: value})
    assert str(caught.value).startswith(f"{owner.__name__}.{field} must be ")
    assert allowed in str(caught.value)


def test_other_bad_settings_of_isfl():
    with pytest.raises(InputError, match=r"ISFL\.lr must be a number > 0"):
        ISFL(lr=0)
    with pytest.raises(InputError, match="ISFL brings its own"):
        ISFL(LocalSGD(sampler=LipschitzSampler()))


@pytest.mark.parametrize(
    "method",
    [ISFL(MINI), FedAvg(replace(MINI, sampler=LipschitzSampler()))],
    ids=["isfl", "fedavg"],
)
class TestBeforeAnyTraining:
    def refused(self, method, problem, **options):
        done = []
        with pytest.raises(InputError) as caught:
            run_with_server(method, problem, callbacks=(done.append,), **options)
        assert done == []
        return str(caught.value)

    def test_no_rows_at_the_server(self, method):
        assert "give it rows: from_tensors(server=...)" in self.refused(
            method, skewed(), server=None
        )

    def test_a_class_without_a_row_at_the_server(self, method):
        held = skewed().clients["a"].train  # has no class 0
        assert "the server holds no row of class 0;" in self.refused(
            method, skewed(), server=held
        )

    def test_labels_that_are_no_classes(self, method):
        problem = Problem(
            Clients(
                [
                    Client(c.name, Part(c.train.inputs, c.train.inputs[:, 0]))
                    for c in skewed().clients
                ]
            ),
            torch.nn.Linear(3, 1).double(),
        )
        assert "samples by class" in self.refused(method, problem)


def test_a_preference_that_fits_nobody():
    with pytest.raises(
        InputError,
        match="preference names 'bb', which is not a client; did you mean 'b'",
    ):
        run_with_server(ISFL(MINI, preference={"bb": [0.25] * 4}), skewed())
    with pytest.raises(
        InputError, match="preference of 'b' has 2 shares for 4 classes"
    ):
        run_with_server(ISFL(MINI, preference={"b": [0.5, 0.5]}), skewed())


# ---- TOML


TABLES = {
    "data": {"name": "digits"},
    "methods": [{"name": "fedavg"}, {"name": "isfl", "preference": {"a": [0.5, 0.5]}}],
}


def test_a_sampler_in_toml_there_and_back():
    sampler = {
        "name": "lipschitz",
        "floor": 0.01,
        "exact": True,
        "preference": {"a": [0.5, 0.5]},
    }
    methods = [{"name": "fedavg", "local": {"sampler": sampler}}, TABLES["methods"][1]]
    read = Experiment.from_tables({**TABLES, "methods": methods}, "x.toml")
    built = [read.build_method(m) for m in read.methods]
    assert built[0].local.sampler == LipschitzSampler(
        floor=0.01, exact=True, preference={"a": [0.5, 0.5]}
    )
    assert built[1].preference == (("a", (0.5, 0.5)),)
    again = Experiment.from_tables(read.tables(), "y.toml")
    assert [again.build_method(m) for m in again.methods] == built


@pytest.mark.parametrize(
    ("sampler", "said"),
    [
        ("lipshitz", "did you mean 'lipschitz'?"),
        ({"floor": 0.1}, "sampler must be a table with a name"),
        ({"name": "lipshitz"}, "did you mean 'lipschitz'?"),
        (
            {"name": "lipschitz", "flor": 0.1},
            "unknown key 'flor'; did you mean 'floor'?",
        ),
        (
            {"name": "lipschitz", "floor": -1},
            "LipschitzSampler.floor must be a number in (0, 1]",
        ),
    ],
)
def test_a_bad_sampler_in_toml_is_named(sampler, said):
    with pytest.raises(InputError) as caught:
        Experiment.from_tables({**TABLES, "local": {"sampler": sampler}}, "x.toml")
    assert "x.toml, [local]" in str(caught.value)
    assert said in str(caught.value)


KINDS = ["logistic", "batch-norm", "dropout", "frozen", "tokens", "dict-inputs"]


def held_rows(problem: Problem) -> Part:
    """Rows of all clients, so that each class is among them."""
    return problem.clients.pool_training_rows()


def server_of(problem: Problem) -> Cohort:
    clients = Clients.of_server(held_rows(problem))
    workspace = Workspace(problem.model, "auto", clients[0])
    spent = {"row_gradients": 0, "row_losses": 0}
    return Cohort(
        ("server",),
        workspace,
        clients,
        (0,),
        MemoryView(Memory(), ("server",)),
        0,
        1,
        spent,
    )


def row_gradient(
    problem: Problem, x: torch.Tensor, inputs: object, label: torch.Tensor
) -> torch.Tensor:
    model = model_at(problem, x).eval()
    trained = [p for p in model.parameters() if p.requires_grad]
    grads = torch.autograd.grad(loss_of(model(inputs), label), trained)
    return torch.cat([g.reshape(-1) for g in grads])


def one_row(part: Part, i: int) -> tuple[object, torch.Tensor]:
    single = part.select(slice(i, i + 1))
    return single.inputs, single.labels


def plain_lipschitz(problem, x, models, classes):
    """Eq. 8 with loops."""
    part, dim = (
        held_rows(problem),
        sum(p.numel() for p in problem.model.parameters() if p.requires_grad),
    )
    found = torch.zeros(len(models), classes, dtype=torch.float64)
    for i in range(len(part)):
        average = row_gradient(problem, x, *one_row(part, i))
        for k, own in enumerate(models):
            change = (row_gradient(problem, own, *one_row(part, i)) - average).norm()
            c = int(part.labels[i])
            found[k, c] = max(
                float(found[k, c]), float(change / (own - x)[:dim].norm())
            )
    return found


def nearby(problem, count=3, seed=0):
    x = start(problem)
    g = torch.Generator().manual_seed(seed)
    return x, x + 0.3 * torch.rand(count, len(x), generator=g, dtype=x.dtype)


@pytest.mark.in_turn(but=("batch-norm", "tokens"))
@pytest.mark.parametrize("kind", KINDS)
def test_lipschitz_constants_agree_with_plain_autograd_row_by_row(kind):
    problem = PROBLEMS[kind]()
    x, models = nearby(problem)
    server = server_of(problem)
    got = compare(server, x=x, models=models, clients=5)
    expected = plain_lipschitz(problem, x, models, got.held.shape[1])
    assert_close(got.lipschitz[0], expected, 1e-10)
    assert float(expected.std()) > 1e-3
    dim = server.layout.dim
    assert_close(got.distance[0], (models - x)[:, :dim].norm(dim=1))
    assert got.held[0].tolist() == torch.bincount(held_rows(problem).labels).tolist()
    assert server.spent["row_gradients"] == 4 * len(held_rows(problem))
    assert server.workspace.vectorised


@pytest.mark.parametrize("kind", KINDS)
def test_vectorised_gradients_are_those_of_the_loop(kind):
    problem = PROBLEMS[kind]()
    fast, slow = server_of(problem), server_of(problem)
    slow.workspace.vectorised = False
    xs = torch.stack([start(problem), start(problem) + 0.1])
    for a, b in zip(fast.sample_gradients(xs), slow.sample_gradients(xs), strict=True):
        assert a[:2] == b[:2]
        assert torch.equal(a[2], b[2])
        assert_close(a[3], b[3])
        assert a[3].shape == (len(a[2]), fast.layout.dim)


def test_chunks_of_rows_do_not_matter(monkeypatch):
    problem = batch_norm()
    x, models = nearby(problem)
    whole = compare(server_of(problem), x=x, models=models, clients=5)
    monkeypatch.setattr(
        "coterie.compute.cohort_rows.BLOCK", 7 * 2 * server_of(problem).layout.dim
    )
    pieces = compare(server_of(problem), x=x, models=models, clients=5)
    assert_close(whole.lipschitz, pieces.lipschitz)


class Branches(nn.Module):
    """Looks at a value, which cannot be vectorised."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(3, 1)

    def forward(self, x):
        return (
            self.out(x) * (2.0 if float(x.detach().sum()) > 0 else 1.0)
            if len(x) == 1
            else self.out(x)
        )


def test_a_model_that_cannot_be_vectorised_goes_row_by_row_and_says_so_once(caplog):
    problem = Problem(logistic().clients, seeded(Branches, torch.float64))
    x, models = nearby(problem)
    server = server_of(problem)
    with caplog.at_level(logging.INFO, logger="coterie"):
        got = compare(server, x=x, models=models, clients=5)
    assert_close(got.lipschitz[0], plain_lipschitz(problem, x, models, 2), 1e-10)
    said = [r.getMessage() for r in caplog.records if "one by one" in r.getMessage()]
    assert len(said) == 1


@pytest.mark.in_turn(but=("logistic-False-paper", "dict_inputs-True-code"))
@pytest.mark.parametrize("reading", ["paper", "code"])
@pytest.mark.parametrize("best", [False, True])
@pytest.mark.parametrize("make", [logistic, dict_inputs])
def test_two_rounds_recomputed(make, best, reading):
    problem = make()
    held = held_rows(problem)
    clients = Clients([Client(c.name, c.train) for c in problem.clients])
    alone = Problem(clients, problem.model)
    local = LocalSGD(lr=0.2, steps=Steps(3), batch_size=5)
    run = fit(
        ISFL(local, exact=best, floor=0.1, reading=reading),
        clients,
        problem.model,
        2,
        seed=4,
        server=held,
    )

    classes = 2 if make is logistic else 3
    counts = {
        c.name: torch.bincount(c.train.labels, minlength=classes).double()
        for c in clients
    }
    p = sum(counts.values()) / sum(SIZES.values())
    x, q = start(alone), {}
    if reading == "code":
        q = dict.fromkeys(counts, p)
    for number in (1, 2):
        models, before = [], x
        for c in clients:
            rng, labels = Rng.named(4, number, c.name, "train"), c.train.labels
            share = np.full(len(labels), 1 / len(labels))
            if c.name in q:
                own = torch.where(counts[c.name] > 0, q[c.name], 0.0)
                share = (own / own.sum() / counts[c.name].clamp(min=1))[labels].numpy()
            drawn = np.array(
                [np.flatnonzero(u < np.cumsum(share))[0] for u in rng.uniform(15)]
            ).reshape(3, 5)
            model = model_at(alone, x)
            for batch in drawn:
                part = c.train.select(torch.from_numpy(batch))
                grads = torch.autograd.grad(
                    loss_of(model(part.inputs), part.labels), list(model.parameters())
                )
                for w, g in zip(model.parameters(), grads, strict=True):
                    w.data -= 0.2 * g
            models.append(
                torch.cat([w.detach().reshape(-1) for w in model.parameters()])
            )
        x = sum(
            SIZES[c.name] * own for c, own in zip(clients, models, strict=True)
        ) / sum(SIZES.values())
        about = before if reading == "code" else x
        constants = plain_lipschitz(problem, about, models, classes)
        for k, c in enumerate(clients):
            arguments = p, counts[c.name] / counts[c.name].sum(), constants[k], 0.1
            pair = closed_form(*arguments)[0], exact(*arguments)
            q[c.name] = pair[best]
            logged = {
                key: dict(run.history.select(key, c.name))[number]
                for key in ("rho", "rho_optimum", "gamma")
            }
            assert logged["gamma"] == pytest.approx(
                closed_form(*arguments)[1], abs=1e-9
            )
            assert logged["rho"] == pytest.approx(
                float(bound(pair[0], p, constants[k])), rel=1e-9
            )
            assert logged["rho_optimum"] == pytest.approx(
                float(bound(pair[1], p, constants[k])), rel=1e-9
            )
            assert logged["rho_optimum"] <= logged["rho"] * (1 + 1e-12)
            for i in range(classes):
                assert dict(run.history.select(f"q[{i}]", c.name))[
                    number
                ] == pytest.approx(float(q[c.name][i]), abs=1e-9)
    assert_close(run.x, x, 1e-9)


def test_the_rows_of_a_client_follow_its_q():
    problem = dict_inputs()
    cohort = cohort_of(problem, "abcde")
    cohort.memory.put(SHARES, torch.tensor([[0.7, 0.2, 0.1]] * 5, dtype=torch.float64))
    cohort.memory.commit()
    labels = problem.clients["c"].train.labels
    drawn = ISFL().sampler.rows(cohort, 2, cohort.rng(2, "train"), 400, 100)
    assert drawn.shape == (400, 100)
    frequencies = (
        torch.bincount(labels[torch.from_numpy(drawn).flatten()], minlength=3) / 40000
    )
    assert_close(
        frequencies.double(), torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64), 0.01
    )
    inside = (
        np.bincount(drawn.ravel(), minlength=len(labels))[(labels == 0).numpy()] / 40000
    )
    assert np.allclose(inside, 0.7 / (labels == 0).sum(), atol=0.01)


def images_and_labels(rows):
    labels = torch.arange(rows) % 3
    return torch.randn(rows, 4) + 2 * torch.eye(3, 4)[labels], labels


@pytest.mark.parametrize(
    "method",
    [ISFL, lambda local: MeritFed(targets="a", local=local, validation="server"), PjIS],
)
def test_a_reply_has_its_declared_dtype_whatever_torchs_default_is(method):
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        parts = {
            name: {part: images_and_labels(24) for part in ("train", "validation")}
            for name in "ab"
        }
        clients = ct.data.from_tensors(parts, server=images_and_labels(12))
        local = LocalSGD(lr=0.1, steps=Steps(2), batch_size=8)
        assert ct.fit(method(local), clients, ct.models.Logistic(), 2, 0).rounds == 2
    finally:
        torch.set_default_dtype(usual)


@pytest.mark.in_turn
@pytest.mark.parametrize("where", ["server", "client"])
def test_the_reading_of_the_code_keeps_the_laws_of_methods(where):
    ct.testing.check_method(ISFL(where=where, reading="code"))

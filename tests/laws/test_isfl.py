"""What must hold for ISFL and its sampler under any method, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from coterie.algorithms import ISFL, FedAvg, Local, MeritFed
from coterie.core.errors import InputError, RunError
from coterie.core.rows import Client, Clients, Part
from coterie.core.training import Epochs, LocalSGD, Steps
from coterie.run.experiment import Experiment
from coterie.samplers.isfl import SHARES, LipschitzSampler, _solved
from federations import Problem, assert_close, assert_same_bits, batch_norm, cohort_of, fit, logistic, seeded

MINI = LocalSGD(lr=0.2, steps=Steps(3), batch_size=4)


def skewed(classes: int = 4, rows: int = 24, odd: tuple[int, ...] = (0,)) -> Problem:
    """Clients a to d; a lacks the classes of `odd`, the others have all."""
    g = torch.Generator().manual_seed(3)
    clients = []
    for name in "abcd":
        y = torch.arange(rows) % classes
        if name == "a":
            y = torch.tensor([c for c in range(classes) if c not in odd]).repeat(rows)[:rows]
        x = torch.randn(rows, 3, generator=g, dtype=torch.float64)
        x[:, :2] += torch.stack([y == 1, y == 2], 1)
        clients.append(Client(name, Part(x, y)))
    return Problem(Clients(clients), seeded(lambda: torch.nn.Linear(3, classes), torch.float64))


def run(method, problem, rounds=3, **options):
    held = problem.clients.pooled()
    options = {"server": held, "evaluate": 1, "merge_validation": False, **options}
    return fit(method, problem.clients, problem.model, rounds, **options)


def q_of(found, client, classes=4):
    return torch.tensor([found.history.select(f"q[{i}]", client)[-1][1] for i in range(classes)], dtype=torch.float64)


def shares(problem, client, classes=4):
    return torch.bincount(problem.clients[client].train.labels, minlength=classes).double() / len(
        problem.clients[client].train
    )


# ---- laws


def test_isfl_is_fedavg_with_its_sampler_bit_by_bit():
    problem = skewed()
    sampler = LipschitzSampler(floor=0.1, exact=True, sample_ratio=0.5)
    local = replace(MINI, steps=Epochs(2))
    one = run(ISFL(local, floor=0.1, exact=True, sample_ratio=0.5), problem)
    other = run(FedAvg(replace(local, sampler=sampler)), problem)
    assert torch.equal(one.x, other.x)
    assert one.history == other.history
    assert not torch.equal(one.x, run(FedAvg(local), problem).x)


@pytest.mark.parametrize("best", [False, True])
def test_equal_constants_give_the_global_shares(best):
    p, own = torch.tensor([0.5, 0.3, 0.2]).double(), torch.tensor([0.0, 0.0, 1.0]).double()
    for constants in (torch.full((3,), 2.0), torch.zeros(3), torch.tensor([1.0, 1 + 1e-9, 1 - 1e-9])):
        pair, gamma = _solved(p, own, constants.double(), 0.05)
        assert gamma == 0
        assert_close(pair[best], p, 1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_client_whose_model_is_the_average_samples_by_the_global_shares(dtype):
    problem = skewed()
    single = Clients(
        [Client("a", Part(problem.clients["a"].train.inputs.to(dtype), problem.clients["a"].train.labels))]
    )
    held = problem.clients.pooled()
    for local in (MINI, replace(MINI, lr=20.0)):
        found = fit(ISFL(local), single, problem.model.to(dtype), 2, server=Part(held.inputs.to(dtype), held.labels))
        assert_close(q_of(found, "a"), shares(problem, "a"))
        assert found.history.select("gamma", "a")[-1][1] == 0


def test_clients_with_one_class_distribution_and_one_model_keep_sampling_by_it():
    part = skewed().clients["b"].train
    problem = Problem(Clients([Client(n, part) for n in "ab"]), skewed().model)
    found = run(ISFL(replace(MINI, batch_size=None, lr=1e-9)), problem, 1)
    assert_close(sum(q_of(found, "a")), torch.tensor(1.0).double())
    # Rows that move nothing leave x_k = x up to rounding.
    still = run(ISFL(replace(MINI, lr=1e-300)), problem, 2)
    for name in "ab":
        assert_close(q_of(still, name), shares(problem, name))


def test_permuting_the_classes_permutes_q():
    problem = skewed()
    order = torch.tensor([2, 0, 3, 1])  # class c is called order[c]
    other = Problem(
        Clients([Client(c.name, Part(c.train.inputs, order[c.train.labels])) for c in problem.clients]), skewed().model
    )
    for name in ("weight", "bias"):
        tensor = getattr(other.model, name)
        tensor.data[order] = tensor.data.clone()
    local = replace(MINI, batch_size=3)
    one, two = run(ISFL(local), problem), run(ISFL(local), other)
    for name in "abcd":
        assert_close(q_of(one, name), q_of(two, name)[order], 1e-9)
        assert float((q_of(one, name) - shares(problem, name)).abs().max()) > 0.01


def test_q_keeps_its_floor_and_sums_to_one():
    problem = skewed()
    for options in ({}, {"exact": True}):
        found = run(ISFL(MINI, floor=0.4, **options), problem)
        for name in "abcd":
            q = q_of(found, name)
            assert float(q.sum()) == pytest.approx(1, abs=1e-9)
            assert bool((q >= torch.minimum(0.4 * shares(problem, name), q.new_tensor(1.0)) * (1 - 1e-9)).all())


def test_the_exact_optimum_is_no_worse_and_both_are_logged():
    found = run(ISFL(MINI), skewed(), 4)
    pairs = [(dict(found.history.select("rho", n)), dict(found.history.select("rho_optimum", n))) for n in "abcd"]
    for closed, best in pairs:
        assert set(closed) == {1, 2, 3, 4}
        assert all(best[r] <= closed[r] * (1 + 1e-12) for r in closed)
    assert any(best[4] < 0.99 * closed[4] for closed, best in pairs)
    assert all(v > 0 for _, v in found.history.select("local_distance"))
    held = len(skewed().clients.pooled())
    assert found.history.select("lipschitz_gradients") == [(r, 5 * held) for r in (1, 2, 3, 4)]


def test_before_the_first_comparison_rows_are_drawn_evenly():
    cohort = cohort_of(skewed())
    drawn = torch.from_numpy(LipschitzSampler().rows(cohort, 1, cohort.rng(1, "train"), 100, 240)).flatten()
    assert_close(torch.bincount(drawn, minlength=24) / 24000, torch.full((24,), 1 / 24), 0.005)


def test_a_class_that_the_client_lacks_is_left_out_and_the_others_keep_their_proportions():
    cohort = cohort_of(skewed())
    q = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    cohort.memory.put(SHARES, q.expand(4, -1))
    cohort.memory.commit()
    drawn = torch.from_numpy(LipschitzSampler().rows(cohort, 0, cohort.rng(0, "train"), 1000, 30)).flatten()
    seen = torch.bincount(cohort.labels(0)[drawn], minlength=4) / 30000
    assert_close(seen.double(), torch.tensor([0, 0.5, 1 / 3, 1 / 6], dtype=torch.float64), 0.01)


def test_a_client_without_any_class_that_it_should_sample_draws_evenly():
    cohort = cohort_of(skewed())
    cohort.memory.put(SHARES, torch.tensor([1.0, 0, 0, 0], dtype=torch.float64).expand(4, -1))
    cohort.memory.commit()
    drawn = LipschitzSampler().rows(cohort, 0, cohort.rng(0, "train"), 100, 24)
    assert set(drawn.ravel()) == set(range(24))


def test_the_clients_find_q_themselves_and_tell_nobody():
    problem = skewed()
    found = run(ISFL(MINI, where="client"), problem)
    logged = {r.metric for r in found.history if r.client == "*" or r.split == ""}
    assert logged == {"row_gradients", "local_distance", "lipschitz_gradients"}
    assert not any("class_counts" in a.task for a in found.asks)
    assert [a.task.rpartition(":")[2] for a in found.asks if a.round == 1][1:4] == ["local_models", "compare", "solve"]
    # The server holds the rows of all clients here, so p is the same, and so is everything else.
    assert torch.equal(found.x, run(ISFL(MINI), problem).x)


def test_each_client_tells_its_classes_once():
    found = run(ISFL(MINI), skewed(), 4, clients_per_round=2)
    assert [(a.round, a.clients) for a in found.asks if a.task.endswith(":class_counts")] == [(1, 4)]


def test_a_preference_replaces_the_global_shares():
    wanted = (0.1, 0.2, 0.3, 0.4)
    preference = {"b": wanted}
    still = run(ISFL(replace(MINI, lr=1e-300), preference=preference), skewed(), 1)
    assert_close(q_of(still, "b"), torch.tensor(wanted).double(), 1e-6)
    assert not torch.equal(q_of(still, "c"), q_of(still, "b"))
    assert_same_bits(
        run(ISFL(MINI, preference=preference), skewed()), run(ISFL(MINI, preference=preference), skewed(), workers=2)
    )


# ---- under any method

METHODS = {
    "fedavg": lambda local: FedAvg(local),
    "meritfed": lambda local: MeritFed("all", local, validation="train"),
    "meritfed-one": lambda local: MeritFed("a", local, validation="train"),
    "meritfed-server": lambda local: MeritFed("a", local, validation="server"),
    "local": lambda local: Local(local),
}


@pytest.mark.parametrize("where", ["server", "client"])
@pytest.mark.parametrize("name", list(METHODS))
def test_it_works_under_any_method_on_any_number_of_workers_and_resumes(name, where, tmp_path):
    problem = skewed()
    method = METHODS[name](replace(MINI, sampler=LipschitzSampler(where=where)))
    one = run(method, problem, 4)
    assert_same_bits(one, run(method, problem, 4, workers=2, strict_wire=True))
    assert_same_bits(one, run(METHODS[name](replace(MINI, sampler=LipschitzSampler(where=where))), problem, 4))
    plain = run(METHODS[name](MINI), problem, 4)
    assert any(not torch.equal(x, plain.models[k]) for k, x in one.models.items())

    class Stop(Exception):  # noqa: N818
        pass

    def interrupt(number):
        if number == 2:
            raise Stop

    with pytest.raises(Stop):
        run(method, problem, 4, checkpoint=tmp_path, callbacks=(interrupt,))
    assert_same_bits(one, run(method, problem, 4, checkpoint=tmp_path, resume=True, workers=2))


def test_the_sampler_matters_to_meritfed_from_the_second_round_on():
    problem = skewed()
    sampled = replace(MINI, sampler=LipschitzSampler())
    even = run(MeritFed("a", sampled, validation="train"), problem, 1)
    other = run(MeritFed("a", replace(MINI, sampler=LipschitzSampler(floor=1.0)), validation="train"), problem, 1)
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
    found = run(FedAvg(local), problem)
    assert list(found.failures) == ["c"]
    assert not found.history.select("rho", "c")
    assert len(found.history.select("rho", "a")) == 3


def test_divergence_is_named():
    problem = Problem(logistic(torch.float32).clients, logistic(torch.float32).model)
    with pytest.raises(RunError):
        run(ISFL(replace(MINI, lr=1e30, weight_decay=1.0)), problem, 5)


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
    "method", [ISFL(MINI), FedAvg(replace(MINI, sampler=LipschitzSampler()))], ids=["isfl", "fedavg"]
)
class TestBeforeAnyTraining:
    def refused(self, method, problem, **options):
        done = []
        with pytest.raises(InputError) as caught:
            run(method, problem, callbacks=(done.append,), **options)
        assert done == []
        return str(caught.value)

    def test_no_rows_at_the_server(self, method):
        assert "give it rows: from_tensors(server=...)" in self.refused(method, skewed(), server=None)

    def test_a_class_without_a_row_at_the_server(self, method):
        held = skewed().clients["a"].train  # has no class 0
        assert "the server holds no row of class 0;" in self.refused(method, skewed(), server=held)

    def test_labels_that_are_no_classes(self, method):
        problem = Problem(
            Clients([Client(c.name, Part(c.train.inputs, c.train.inputs[:, 0])) for c in skewed().clients]),
            torch.nn.Linear(3, 1).double(),
        )
        assert "samples by class" in self.refused(method, problem)


def test_a_preference_that_fits_nobody():
    with pytest.raises(InputError, match="preference names 'bb', which is not a client; did you mean 'b'"):
        run(ISFL(MINI, preference={"bb": [0.25] * 4}), skewed())
    with pytest.raises(InputError, match="preference of 'b' has 2 shares for 4 classes"):
        run(ISFL(MINI, preference={"b": [0.5, 0.5]}), skewed())


# ---- TOML

TABLES = {
    "data": {"name": "digits"},
    "methods": [{"name": "fedavg"}, {"name": "isfl", "preference": {"a": [0.5, 0.5]}}],
}


def test_a_sampler_in_toml_there_and_back():
    sampler = {"name": "lipschitz", "floor": 0.01, "exact": True, "preference": {"a": [0.5, 0.5]}}
    methods = [{"name": "fedavg", "local": {"sampler": sampler}}, TABLES["methods"][1]]
    read = Experiment.from_tables({**TABLES, "methods": methods}, "x.toml")
    built = [read.build_method(m) for m in read.methods]
    assert built[0].local.sampler == LipschitzSampler(0.01, exact=True, preference={"a": [0.5, 0.5]})
    assert built[1].preference == (("a", (0.5, 0.5)),)
    again = Experiment.from_tables(read.tables(), "y.toml")
    assert [again.build_method(m) for m in again.methods] == built


@pytest.mark.parametrize(
    ("sampler", "said"),
    [
        ("lipschitz", "sampler must be a table with a name"),
        ({"floor": 0.1}, "sampler must be a table with a name"),
        ({"name": "lipshitz"}, "did you mean 'lipschitz'?"),
        ({"name": "lipschitz", "flor": 0.1}, "unknown key 'flor'; did you mean 'floor'?"),
        ({"name": "lipschitz", "floor": -1}, "LipschitzSampler.floor must be a number in (0, 1]"),
    ],
)
def test_a_bad_sampler_in_toml_is_named(sampler, said):
    with pytest.raises(InputError) as caught:
        Experiment.from_tables({**TABLES, "local": {"sampler": sampler}}, "x.toml")
    assert "x.toml, [local]" in str(caught.value)
    assert said in str(caught.value)

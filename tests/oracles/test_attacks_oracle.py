"""What attackers say, against formulas written apart; and what an attack must leave alone."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.attacks import (
    ALIE,
    IPM,
    Attacked,
    Dropout,
    LabelFlip,
    LossInflation,
    NaN,
    Noise,
    SignFlip,
    Straggler,
    choose_attackers,
)
from coterie.base.errors import InputError
from coterie.compute.cohort import Cohort
from coterie.config.registry import ATTACKS
from coterie.contract.engine import Engine
from coterie.contract.federation import Federation
from coterie.contract.task import Gap, Gradient, Update, task
from coterie.contract.wire import PerClient
from coterie.data import from_dataset
from federations import SIZES, batch_norm, federation_of, logistic, regression

BAD = ("b", "e")
GOOD = ("a", "c", "d")
TARGETS = 2


class Said(NamedTuple):
    """One field of each kind; the update is for two models."""

    delta: Update
    gradient: Gradient
    gap: Gap
    other: Tensor


@task
def say(cohort: Cohort, *, scale: float) -> Said:
    """Rows that are known outside: see `honest`."""
    rows = [honest(name, cohort.layout.size, scale) for name in cohort.names]
    cohort.memory.put("asked", torch.ones(len(rows)) * scale)
    return Said(
        *(torch.stack([torch.as_tensor(row[k]) for row in rows]) for k in range(4))
    )


class Echo(NamedTuple):
    """What was sent, and what is remembered."""

    sent: Tensor
    kept: Tensor


@task
def echo(cohort: Cohort, *, own: Tensor) -> Echo:
    """The client's row of an `PerClient`."""
    return Echo(own, cohort.memory.get("asked", torch.tensor(0.0)))


def honest(name: str, size: int, scale: float) -> tuple[np.ndarray, ...]:
    draw = np.random.default_rng(sum(map(ord, name)))
    return (
        draw.normal(1, 2, (TARGETS, size)) * scale,
        draw.normal(-1, 3, size) * scale,
        np.float64(draw.normal()),
        np.float64(5),
    )


def ask(attack, problem=None, *, workers=1, attackers=BAD, round=1, seed=0, **options):
    problem = problem or logistic()
    with federation_of(problem, workers, round=round, seed=seed) as federation:
        attacked = replace(
            federation, engine=Attacked(federation.engine, attack, attackers), **options
        )
        got = attacked.ask(attacked.clients, say, scale=1.0)
    return got, federation.layout


def rows(names, field, size):
    return np.stack([honest(n, size, 1.0)[field] for n in names])


def of(got, field, names):
    return getattr(got, ("delta", "gradient", "gap")[field])[
        [got.clients.index(n) for n in names]
    ].numpy()


@pytest.mark.parametrize("statistics", ["honest", "all"])
@pytest.mark.parametrize("field", [0, 1])
def test_ipm_and_alie_follow_their_formulas(statistics, field):
    attacks = [
        ALIE(z=1.5, statistics=statistics, correction=correction)
        for correction in (0, 1)
    ]
    for attack in (IPM(eps=0.3, statistics=statistics), *attacks):
        got, layout = ask(attack)
        seen = rows(
            GOOD if statistics == "honest" else sorted(SIZES), field, layout.size
        )
        mean = sum(seen) / len(seen)
        sign = 1 if field == 0 else -1  # an update points the other way than a gradient
        expected = -0.3 * mean
        if isinstance(attack, ALIE):
            deviation = np.sqrt(
                sum((row - mean) ** 2 for row in seen) / (len(seen) - attack.correction)
            )
            expected = mean + sign * 1.5 * deviation
        for name in BAD:
            np.testing.assert_allclose(of(got, field, [name])[0], expected, rtol=1e-12)
        assert np.array_equal(of(got, field, GOOD), rows(GOOD, field, layout.size))


def test_alie_of_one_row_has_no_deviation():
    row = torch.tensor([[1.0, 2.0]])
    assert torch.equal(
        ALIE(correction=1).rewrite("update", row, torch.tensor([True]), []), row
    )


@pytest.mark.parametrize("field", [0, 1])
def test_sign_flip_sends_the_own_row_with_the_other_sign(field):
    got, layout = ask(SignFlip(scale=2.0))
    np.testing.assert_allclose(
        of(got, field, BAD), -2 * rows(BAD, field, layout.size), rtol=1e-15
    )
    assert np.array_equal(of(got, field, GOOD), rows(GOOD, field, layout.size))


@pytest.mark.parametrize("field", [0, 1])
def test_noise_replaces_or_is_added_and_has_its_deviation(field):
    replaced, layout = ask(Noise(sigma=7.0), logistic_of(400))
    added, _ = ask(Noise(sigma=7.0, mode="add"), logistic_of(400))
    noise = of(replaced, field, BAD)
    np.testing.assert_allclose(
        of(added, field, BAD), noise + rows(BAD, field, layout.size), rtol=1e-12
    )
    assert noise.std() == pytest.approx(7.0, rel=0.1)
    assert abs(noise.mean()) < 1
    assert not np.array_equal(noise[0], noise[1])


def logistic_of(width):
    problem = logistic()
    model = torch.nn.Linear(3, 1, dtype=torch.float64)
    model.extra = torch.nn.Parameter(torch.zeros(width, dtype=torch.float64))
    return problem._replace(model=model)


def test_loss_inflation_reports_its_gap_and_adds_noise():
    got, layout = ask(LossInflation(gap=50.0, sigma=3.0), logistic_of(400))
    assert of(got, 2, BAD).tolist() == [50.0, 50.0]
    assert np.array_equal(of(got, 2, GOOD), rows(GOOD, 2, layout.size))
    noise = of(got, 0, BAD) - rows(BAD, 0, layout.size)
    assert noise.std() == pytest.approx(3.0, rel=0.1)
    silent, _ = ask(LossInflation(sigma=0.0))
    assert np.array_equal(of(silent, 1, BAD), rows(BAD, 1, 4))


@pytest.mark.parametrize(
    "attack", [IPM(), ALIE(), SignFlip(), Noise()], ids=lambda a: type(a).__name__
)
def test_gaps_and_what_is_not_declared_are_left_alone_by_attacks_on_vectors(attack):
    got, layout = ask(attack)
    assert np.array_equal(of(got, 2, BAD), rows(BAD, 2, layout.size))
    assert got.other.tolist() == [5.0] * 5


def test_nan_is_refused_by_name_in_every_kind_of_field():
    got, _ = ask(NaN())
    assert got.clients == GOOD
    assert got.failed == dict.fromkeys(BAD, "field 'delta' has NaN or Inf")


def test_a_huge_lie_is_seen_by_the_check_of_norms():
    got, _ = ask(Noise(sigma=1e9))
    assert got.clients == GOOD
    assert "times the median" in got.failed["b"]


@pytest.mark.parametrize(
    "attack", [IPM(), ALIE(), SignFlip(), Noise()], ids=lambda a: type(a).__name__
)
def test_buffers_are_not_attacked(attack):
    got, layout = ask(attack, batch_norm())
    assert layout.size > layout.dim
    for field in (0, 1):
        assert np.array_equal(
            of(got, field, BAD)[..., layout.dim :],
            rows(BAD, field, layout.size)[..., layout.dim :],
        )
        assert not np.array_equal(
            of(got, field, BAD)[..., : layout.dim],
            rows(BAD, field, layout.size)[..., : layout.dim],
        )


def test_where_nobody_honest_replied_the_attackers_rows_are_all_there_is():
    got, layout = ask(IPM(eps=1.0), attackers=tuple(SIZES))
    np.testing.assert_allclose(
        of(got, 1, ["a"])[0],
        -rows(sorted(SIZES), 1, layout.size).mean(axis=0),
        rtol=1e-12,
    )


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_depends_neither_on_workers_nor_on_the_attempt(name):
    one, two = ask(ATTACKS[name]())[0], ask(ATTACKS[name](), workers=2, attempt=77)[0]
    assert one.clients == two.clients
    assert one.failed == two.failed
    for field in ("delta", "gradient", "gap"):
        assert torch.equal(getattr(one, field), getattr(two, field))


@pytest.mark.parametrize("options", [{"round": 2}, {"seed": 1}])
def test_noise_is_another_in_another_round_and_seed(options):
    assert not torch.equal(
        ask(Noise())[0].delta[1], ask(Noise(), **options)[0].delta[1]
    )


def test_noise_is_new_in_each_ask_and_the_same_if_the_round_begins_anew():
    with federation_of(logistic()) as federation:
        attacked = replace(federation, engine=Attacked(federation.engine, Noise(), BAD))
        first, second = (
            attacked.ask(attacked.clients, say, scale=1.0).delta for _ in range(2)
        )
        again = replace(attacked, attempt=5).ask(attacked.clients, say, scale=1.0).delta
    assert not torch.equal(first[1], second[1])
    assert torch.equal(first, again)


# ---- faults


def asks(attack, count=200):
    """Names that failed in each of many asks, the reply of an echo, and the federation's counts."""
    with federation_of(logistic()) as federation:
        attacked = replace(federation, engine=Attacked(federation.engine, attack, BAD))
        gone = [
            frozenset(attacked.ask(attacked.clients, say, scale=1.0).failed)
            for _ in range(count)
        ]
        own = PerClient(torch.arange(5.0))
        kept = (
            federation.view(federation.clients, 2, 0)
            .ask(federation.clients, echo, own=own)
            .kept
        )
    return gone, kept.tolist()


@pytest.mark.in_turn(but="Dropout")
@pytest.mark.parametrize(
    "attack", [Dropout(p=0.3), Straggler(p=0.3)], ids=lambda a: type(a).__name__
)
def test_each_of_the_faulty_fails_by_itself_with_probability_p(attack):
    gone, _ = asks(attack)
    for name in BAD:
        assert sum(name in g for g in gone) / len(gone) == pytest.approx(0.3, abs=0.1)
    both = sum(len(g) == 2 for g in gone) / len(gone)
    assert both == pytest.approx(0.09, abs=0.06)


def test_who_drops_out_has_done_nothing_and_who_is_late_remembers_its_work():
    dropped, kept = asks(Dropout(p=1.0), 1)
    assert dropped == [frozenset(BAD)]
    assert kept == [1, 0, 1, 1, 0]
    late, kept = asks(Straggler(p=1.0), 1)
    assert late == [frozenset(BAD)]
    assert kept == [1, 1, 1, 1, 1]


def test_rows_of_an_each_reach_the_right_clients_when_others_drop_out():
    with federation_of(logistic()) as federation:
        attacked = replace(
            federation, engine=Attacked(federation.engine, Dropout(p=1.0), BAD)
        )
        got = attacked.ask(
            ("e", "d", "c", "b", "a"), echo, own=PerClient(torch.arange(5.0))
        )
    assert got.clients == GOOD
    assert got.sent.tolist() == [4.0, 2.0, 1.0]
    assert got.failed == dict.fromkeys(BAD, "dropped out")


def test_if_everybody_drops_out_the_quorum_says_so():
    with federation_of(logistic()) as federation:
        attacked = replace(
            federation,
            engine=Attacked(federation.engine, Straggler(p=1.0), tuple(SIZES)),
        )
        with pytest.raises(
            Exception, match=r"0 of 5 clients replied.*a \(answered too late\)"
        ):
            attacked.ask(attacked.clients, say, scale=1.0)


# ---- labels


def test_labels_of_the_attackers_are_turned_round_on_what_they_train_on():
    clients = logistic().clients
    made = LabelFlip().on_rows(clients, BAD)
    for name in SIZES:
        for part in ("train", "validation", "test"):
            before, after = clients[name].part(part), made[name].part(part)
            turned = name in BAD and part != "test"
            assert torch.equal(
                after.labels, 1 - before.labels if turned else before.labels
            )
            assert torch.equal(after.inputs, before.inputs)


@pytest.mark.parametrize("fold", [True, False])
def test_labels_in_a_shared_data_set_are_turned_for_the_attackers_alone(fold):
    inputs, labels = torch.randn(30, 2), torch.arange(30) % 3
    lists = {"a": range(10), "b": range(10, 20), "c": range(20, 30)}
    clients = from_dataset(
        torch.utils.data.TensorDataset(inputs, labels),
        {k: list(v) for k, v in lists.items()},
        seed=0,
    )
    made = LabelFlip().on_rows(clients, ("b",))
    one, two = (c.merge_validation() if fold else c for c in (clients, made))
    for name in lists:
        mine = one[name].train.labels
        assert torch.equal(two[name].train.labels, 2 - mine if name == "b" else mine)


def test_labels_that_are_no_classes_cannot_be_turned():
    with pytest.raises(InputError, match="these labels are not classes"):
        LabelFlip().on_rows(regression().clients, BAD)


# ---- who attacks


def test_a_share_is_rounded_and_drawn_from_the_seed():
    names = [f"c{i:02d}" for i in range(20)]
    drawn = {choose_attackers(0.1, names, seed) for seed in range(30)}
    assert {len(d) for d in drawn} == {2}
    assert len(drawn) > 20
    assert {n for d in drawn for n in d} == set(names)
    assert choose_attackers(0.1, names[::-1], 3) == choose_attackers(0.1, names, 3)


@pytest.mark.parametrize(
    ("attackers", "sentence"),
    [
        (0.05, "is less than one client"), (("x",), "there is no client 'x' to attack"), (("b", "b"), "attackers repeat"),
        ((), "no client attacks"),
    ],
)  # fmt: skip
def test_wrong_attackers_are_refused(attackers, sentence):
    with pytest.raises(InputError, match=sentence):
        choose_attackers(attackers, sorted(SIZES), 0)


@pytest.mark.parametrize(
    ("made", "field"),
    [
        (lambda: IPM(eps=0), "IPM.eps"), (lambda: IPM(statistics="some"), "IPM.statistics"), (lambda: ALIE(z=-1), "ALIE.z"),
        (lambda: ALIE(statistics="some"), "ALIE.statistics"), (lambda: ALIE(correction=2), "ALIE.correction"),
        (lambda: SignFlip(scale=0), "SignFlip.scale"),
        (lambda: Noise(sigma=0), "Noise.sigma"), (lambda: Noise(mode="both"), "Noise.mode"),
        (lambda: LossInflation(gap=math.inf), "LossInflation.gap"), (lambda: LossInflation(sigma=-1), "LossInflation.sigma"),
        (lambda: IPM(on=0.0), "IPM.on"), (lambda: IPM(on=1.5), "IPM.on"), (lambda: IPM(on=math.nan), "IPM.on"),
        (lambda: IPM(on="b"), "IPM.on"), (lambda: IPM(on=(1,)), "IPM.on"),
        (lambda: Dropout(p=1.1), "Dropout.p"), (lambda: Straggler(p=-0.1), "Straggler.p"),
    ],
)  # fmt: skip
def test_wrong_fields_are_refused(made, field):
    with pytest.raises(InputError, match=f"{field} must be"):
        made()


def test_engines_of_real_machines_cannot_be_attacked():
    class Remote(Engine):
        clients = ("a",)

    with pytest.raises(InputError, match="in process or on Ray, not on Remote"):
        Attacked(Remote(), IPM(), ("a",))


def test_the_engine_beneath_is_untouched():
    with federation_of(logistic()) as federation:
        attacked = Attacked(federation.engine, IPM(), BAD)
        assert attacked.sizes("train") == federation.engine.sizes("train")
        plain = Federation(federation.engine, federation.clients, round=1).ask(
            federation.clients, say, scale=1.0
        )
    assert np.array_equal(of(plain, 0, BAD), rows(BAD, 0, 4))

"""Named randomness: streams, permutations and batches, against properties that a stream by order would not have."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from coterie.base.rng import MANY, Rng, batches
from coterie.compute.local_training import StepBatches
from coterie.config.local import Epochs, LocalSGD, Steps
from federations import cohort_of, logistic, regression, subset

quick = settings(derandomize=True, deadline=None)


def test_a_stream_is_its_name_whatever_was_drawn_before():
    first = Rng.named(0, "a", 3).uniform(5).tolist()
    for _ in range(3):
        Rng.named(0, "b").uniform(100)
        Rng.named(0, "a", 3).permutation(10)
    assert Rng.named(0, "a", 3).uniform(5).tolist() == first
    assert Rng.named(0).child("a").child(3).uniform(5).tolist() == first
    assert Rng.named(0, "a").child(3) == Rng.named(0, "a", 3)


def test_different_names_are_different_streams():
    names = [
        (),
        ("a",),
        ("b",),
        ("a", "b"),
        ("b", "a"),
        ("ab",),
        ("a", 0),
        ("a", 1),
        (0, "a"),
        ("a", "0"),
        ("", "a"),
        (0,),
        (-1,),
    ]
    keys = {
        Rng.named(seed, *name).key for seed in (0, 1, 2**63, 12345) for name in names
    }
    assert len(keys) == 4 * len(names)


def test_numbers_are_the_same_on_every_machine():
    # SplitMix64 with seed 0, from the reference implementation of Vigna (prng.di.unimi.it/splitmix64.c).
    assert [int(v) for v in Rng(0).integers(3)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]
    assert Rng(0).child(0).key == 0xE220A8397B1DCDAF


@quick
@given(st.integers(0, 2**64 - 1), st.integers(0, 40), st.integers(0, 40))
def test_a_longer_draw_begins_with_the_shorter(key, short, more):
    rng = Rng(key)
    assert rng.integers(short + more)[:short].tolist() == rng.integers(short).tolist()
    assert rng.uniform(short + more)[:short].tolist() == rng.uniform(short).tolist()
    assert all(0 <= u < 1 for u in rng.uniform(short))


@quick
@given(st.integers(0, 2**64 - 1), st.integers(0, 60), st.integers(0, 70))
def test_first_of_a_permutation_is_its_prefix(key, count, first):
    whole = Rng(key).permutation(count)
    assert sorted(whole.tolist()) == list(range(count))
    assert Rng(key).permutation(count, first).tolist() == whole[:first].tolist()


def test_numbers_are_uniform():
    u = Rng.named(1, "uniformity").uniform(20000)
    assert stats.kstest(u, "uniform").pvalue > 0.01
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 0.03
    counts = np.bincount((u * 16).astype(int), minlength=16)
    assert stats.chisquare(counts).pvalue > 0.01


def test_streams_of_neighbouring_names_are_independent():
    a, b = (
        np.array([Rng.named(0, r, c, "train").uniform(1)[0] for r in range(2000)])
        for c in "ab"
    )
    assert stats.kstest(a, "uniform").pvalue > 0.01
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.07
    assert abs(np.corrcoef(a[:-1], a[1:])[0, 1]) < 0.07


def test_all_permutations_are_equally_likely():
    counts = np.zeros(24)
    lookup: dict[tuple[int, ...], int] = {}
    for i in range(4800):
        order = tuple(Rng.named(3, i).permutation(4).tolist())
        counts[lookup.setdefault(order, len(lookup))] += 1
    assert len(lookup) == 24
    assert stats.chisquare(counts).pvalue > 0.01


@quick
@given(st.integers(0, 2**64 - 1), st.integers(1, 60), st.integers(1, 60))
def test_a_sample_of_few_numbers_is_the_first_of_their_permutation(key, count, size):
    size = min(count, size)
    drawn = Rng(key).sample(count, size).tolist()
    assert drawn == sorted(Rng(key).permutation(count, size).tolist())


@quick
@given(st.integers(0, 2**64 - 1), st.integers(MANY + 1, 10**7), st.floats(0, 0.3))
def test_a_sample_of_many_has_so_many_different_numbers_in_order(key, count, share):
    size = min(int(count * share), 4000)
    drawn = Rng(key).sample(count, size)
    assert len(drawn) == size
    assert (np.diff(drawn) > 0).all()
    assert size == 0 or 0 <= drawn[0] <= drawn[-1] < count


def test_each_of_many_numbers_is_drawn_as_often():
    count = MANY + 40
    drawn = np.concatenate([Rng.named(5, i).sample(count, 500) for i in range(400)])
    counts = np.histogram(drawn, bins=40, range=(0, count))[0]
    assert stats.chisquare(counts).pvalue > 0.01


def test_a_sample_of_many_hashes_no_more_numbers_where_there_are_more(monkeypatch):
    hashed = []
    real = Rng.integers
    monkeypatch.setattr(
        Rng, "integers", lambda rng, count: hashed.append(count) or real(rng, count)
    )
    for count in (10**5, 10**7):
        Rng.named(0, "a").sample(count, 10)
    assert hashed[: len(hashed) // 2] == hashed[len(hashed) // 2 :]
    assert sum(hashed) < 200


def test_generators_of_a_name_repeat():
    import torch

    one, two = Rng.named(0, "x").generator(), Rng.named(0, "x").generator()
    assert torch.equal(torch.randn(3, generator=one), torch.randn(3, generator=two))
    assert 0 <= Rng(2**64 - 1).seed() < 2**63


# ---- batches


@quick
@given(st.integers(1, 30), st.none() | st.integers(1, 35), st.integers(1, 4))
def test_an_epoch_has_each_row_once_and_a_short_last_batch(count, size, epochs):
    found = batches(Rng.named(0, count), count, size, epochs=epochs)
    per_epoch = -(-count // min(size or count, count))
    assert len(found) == epochs * per_epoch
    for e in range(epochs):
        epoch = found[e * per_epoch : (e + 1) * per_epoch]
        assert sorted(np.concatenate(epoch).tolist()) == list(range(count))
        assert {len(b) for b in epoch[:-1]} <= {min(size or count, count)}
        assert len(epoch[-1]) == (count - 1) % min(size or count, count) + 1


@quick
@given(st.integers(2, 30), st.integers(2, 9), st.integers(1, 20))
def test_steps_walk_through_epochs(count, size, steps):
    rng = Rng.named(5, count)
    walked = [b.tolist() for b in batches(rng, count, size, steps=steps)]
    long_enough = [b.tolist() for b in batches(rng, count, size, epochs=steps)]
    assert walked == long_enough[:steps]
    for smallest in (1, 2):
        epochs = [
            b.tolist() for b in batches(rng, count, size, epochs=3, smallest=smallest)
        ]
        assert all(len(b) >= smallest for b in epochs)
        kept = sum(map(len, epochs))
        assert kept == 3 * (
            count - (smallest == 2 and count % size == 1 and count > size)
        )


def test_epochs_differ():
    first, second = [b.tolist() for b in batches(Rng.named(0), 20, 20, epochs=2)]
    assert sorted(first) == sorted(second)
    assert first != second


def drawn(problem, names, round=1, seed=0, local=None):
    """The rows that each client of a cohort trains on, by client."""
    cohort = cohort_of(problem, names, round=round, seed=seed)
    local = local or LocalSGD(steps=Epochs(2), batch_size=5)
    labels = {}
    for i, name in enumerate(cohort.names):
        labels[name] = [b[1].tolist() for b in StepBatches(cohort, local, None).read(i)]
    return labels


def test_adding_a_client_changes_nobody_elses_batches():
    problem = regression()
    few, all_of_them = drawn(problem, "bd"), drawn(problem, "abcde")
    assert few == {n: all_of_them[n] for n in "bd"}
    alone = problem.with_clients(subset(problem.clients, "bd"))
    assert drawn(alone, "bd") == few


def test_batches_depend_on_seed_round_and_client_and_nothing_else():
    problem = regression()
    same = [drawn(problem, "b"), drawn(problem, "b")]
    assert same[0] == same[1]
    assert drawn(problem, "b", round=2) != same[0]
    assert drawn(problem, "b", seed=1) != same[0]


@pytest.mark.parametrize("count", [1, 2, 7])
def test_the_number_of_rows_gathered_at_once_changes_no_batch(monkeypatch, count):
    from coterie.compute import cohort_rows

    problem = logistic()
    before = drawn(problem, "abc", local=LocalSGD(steps=Steps(9), batch_size=5))
    monkeypatch.setattr(cohort_rows, "BLOCK", count)
    assert drawn(problem, "abc", local=LocalSGD(steps=Steps(9), batch_size=5)) == before

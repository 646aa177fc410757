"""Splits: each row once, by name, stratified; and every sentence about a wrong [split] table."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core.errors import InputError
from coterie.data.splits import DEFAULT_PARTS, Split, dirichlet, generator, iid, numbered, shards, stratified

quick = settings(derandomize=True, deadline=None, max_examples=60)
labels_of = st.lists(st.integers(0, 4), min_size=12, max_size=80)


def once(lists, n):
    assert np.array_equal(np.sort(np.concatenate(lists)), np.arange(n))


@quick
@given(labels_of, st.integers(1, 8), st.integers(0, 3))
def test_every_row_goes_to_exactly_one_client(labels, n, seed):
    once(iid(labels, n, seed=seed), len(labels))
    once(dirichlet(labels, n, 5.0, seed=seed), len(labels))
    once(shards(labels, n, shards_per_client=1, seed=seed), len(labels))


@quick
@given(st.lists(st.integers(0, 6), min_size=1, max_size=90), st.integers(0, 5))
def test_parts_have_each_row_once_the_right_sizes_and_every_class_in_training(labels, seed):
    parts = stratified(labels, DEFAULT_PARTS, seed=seed, name="a")
    once(list(parts.values()), len(labels))
    assert len(parts["train"]) >= 1
    for key, share in DEFAULT_PARTS.items():
        assert abs(len(parts[key]) - share * len(labels)) < 1
    seen = len({labels[i] for i in parts["train"]})
    assert seen == min(len(set(labels)), len(parts["train"]))


@quick
@given(st.integers(0, 20))
def test_stratified_parts_keep_the_share_of_a_rare_class(seed):
    labels = np.array([0] * 8 + [1] * 115)  # the Swiss hospital
    parts = stratified(labels, DEFAULT_PARTS, seed=seed, name="switzerland")
    rare = {key: int((labels[at] == 0).sum()) for key, at in parts.items()}
    assert rare["test"] in (2, 3)
    assert rare["train"] in (4, 5)
    assert rare["validation"] in (0, 1, 2)


def test_every_row_of_a_class_is_equally_likely_to_be_tested():
    hits = np.zeros(30)
    for seed in range(600):
        hits[stratified([0] * 20 + [1] * 10, DEFAULT_PARTS, seed=seed, name="a")["test"]] += 1
    assert np.abs(hits / 600 - 1 / 3).max() < 5 * np.sqrt(2 / 9 / 600)


def test_a_split_belongs_to_its_client_and_gives_a_rare_class_no_fixed_place():
    labels = [0] * 7 + [1] * 4 + [2] * 21
    splits = [stratified(labels, DEFAULT_PARTS, seed=0, name=name)["test"].tolist() for name in "abcdefghijkl"]
    assert len({tuple(at) for at in splits}) == 12
    assert {sum(7 <= i < 11 for i in at) for at in splits} == {1, 2}


def test_a_client_always_trains_on_something():
    parts = stratified([0, 1], {"train": 0.1, "test": 0.9}, seed=0, name="a")
    assert [len(at) for at in parts.values()] == [1, 1]


def test_strata_of_texts_and_labels_that_are_no_classes():
    words = stratified(["b", "a", "b", "a", "b", "a"], {"train": 0.5, "test": 0.5}, seed=0, name="a")
    assert [len(v) for v in words.values()] == [3, 3]
    assert len(stratified(None, DEFAULT_PARTS, seed=0, name="a", n=9)["test"]) == 3
    assert len(stratified(np.zeros((9, 4, 4)), DEFAULT_PARTS, seed=0, name="a")["test"]) == 3
    assert stratified([], DEFAULT_PARTS, seed=0, name="a")["train"].size == 0


def test_randomness_has_a_name():
    assert generator(0, "a", "b").random() == generator(0, "a", "b").random()
    draws = {generator(*key).random() for key in [(0, "a", "b"), (1, "a", "b"), (0, "ab"), (0, "b", "a"), (0,)]}
    assert len(draws) == 5
    assert numbered(3, "hospital") == ["hospital-0", "hospital-1", "hospital-2"]


def test_alpha_says_how_unlike_clients_are():
    labels = np.repeat(np.arange(10), 300)

    def spread(alpha):
        lists = dirichlet(labels, 10, alpha, seed=3, minimum=0)
        return np.std([np.bincount(labels[at], minlength=10) for at in lists], axis=0).mean()

    assert spread(0.1) > 2 * spread(1.0) > 8 * spread(1000.0)
    assert len(iid(labels, 7)) == 7
    assert {len(at) for at in iid(labels, 7)} == {428, 429}


def test_dirichlet_reaches_the_minimum_or_says_so():
    labels = np.repeat(np.arange(10), 60)
    assert min(map(len, dirichlet(labels, 20, 0.1, seed=0, minimum=5))) >= 5
    with pytest.raises(InputError, match=r"alpha = 0.001 gives each of 40 clients 3 rows; raise alpha, or lower"):
        dirichlet(labels, 40, 0.001, minimum=3)
    with pytest.raises(InputError, match="20 clients with 50 rows each need more than 600 rows"):
        dirichlet(labels, 20, 1.0, minimum=50)


def test_shards_have_few_classes_and_a_size():
    labels = np.repeat(np.arange(10), 120)
    by_client = shards(labels, 60, seed=1)
    assert all(len(set(labels[at])) <= 2 for at in by_client)
    sized = shards(labels, 5, shards_per_client=3, shard_size=50, seed=1)
    assert {len(at) for at in sized} == {150}
    assert len(np.unique(np.concatenate(sized))) == 750
    with pytest.raises(InputError, match="are 30 shards, but 1200 rows give only 24 of 50 rows"):
        shards(labels, 10, shards_per_client=3, shard_size=50)
    with pytest.raises(InputError, match="need at least 2000 rows"):
        shards(labels, 1000, shards_per_client=2)
    with pytest.raises(InputError, match="shards_per_client = 0 must be at least 1"):
        shards(labels, 5, shards_per_client=0)
    with pytest.raises(InputError, match="shard_size = 0 must be at least 1"):
        shards(labels, 5, shard_size=0)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: iid([0, 1], 3), "2 rows cannot be split over 3 clients"),
        (lambda: iid([0, 1], 0), "clients = 0 must be at least 1"),
        (lambda: dirichlet([0.5, 1.5], 1, 1.0), "'dirichlet' needs one class per row, but labels are float64"),
        (lambda: shards(np.zeros((4, 2), int), 1), "'shards' needs one class per row"),
        (lambda: dirichlet([0, 1], 1, 0.0), "alpha = 0.0 must be a number above 0"),
    ],
)
def test_refusals(call, sentence):
    with pytest.raises(InputError, match=sentence):
        call()


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"client": 5}, r"\[split\] has no key 'client'; did you mean 'clients'\?"),
        ({"kind": "dirichlett"}, r"kind = 'dirichlett' must be iid, dirichlet or shards; did you mean 'dirichlet'\?"),
        ({"kind": 3}, "kind = 3 must be iid, dirichlet or shards"),
        ({"clients": 0}, "clients = 0 must be a whole number of at least 1"),
        ({"clients": True}, "clients = True must be a whole number"),
        ({"clients": 2.5}, "clients = 2.5 must be a whole number"),
        ({"alpha": -1}, "alpha = -1 must be a number above 0"),
        ({"alpha": float("nan")}, "alpha = nan must be a number above 0"),
        ({"seed": -1}, "seed = -1 must be a whole number of at least 0"),
        ({"minimum": "3"}, "minimum = '3' must be a whole number"),
        ({"parts": {"train": 0.5, "tset": 0.5}}, "must be a table of train, validation and test"),
        ({"parts": {"train": 1.5, "test": -0.5}}, "fractions from 0 to 1"),
        ({"parts": {"train": 0.5, "test": 0.4}}, "parts add up to 0.9"),
        ({"parts": {"test": 1}}, "parts need train above 0"),
        ({"kind": "iid", "alpha": 0.5}, "alpha belongs to kind = 'dirichlet', but kind is 'iid'"),
        ({"shard_size": 5}, "shard_size belongs to kind = 'shards', but kind is 'dirichlet'"),
    ],
)
def test_a_wrong_split_table_is_refused(table, sentence):
    with pytest.raises(InputError, match=sentence):
        Split.parse(table, kind="dirichlet")


def test_natural_clients_take_seed_and_parts_only():
    with pytest.raises(InputError, match="clients does not apply to heart-disease, which has its own clients"):
        Split.parse({"clients": 5}, natural="heart-disease")
    rule = Split.parse({"seed": 7, "parts": {"test": 0.5, "train": 0.5, "validation": 0}}, natural="heart-disease")
    assert rule.seeded(0) == 7
    assert list(rule.parts) == ["train", "test"]
    assert Split.parse(None).seeded(3) == 3
    assert Split.parse({"parts": dict(DEFAULT_PARTS)}).parts == DEFAULT_PARTS


@pytest.mark.parametrize("table", [{"kind": "iid"}, {"kind": "shards", "shards_per_client": 1}, {"alpha": 2.0}])
def test_a_split_table_does_what_its_function_does(table):
    labels = np.arange(60) % 3
    rule = Split.parse({**table, "clients": 4}, kind="dirichlet")
    got = rule.over(labels, seed=2)
    want = {
        "iid": lambda: iid(labels, 4, seed=2),
        "shards": lambda: shards(labels, 4, shards_per_client=1, seed=2),
        "dirichlet": lambda: dirichlet(labels, 4, 2.0, seed=2, minimum=3),
    }[str(rule.kind)]()
    assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))

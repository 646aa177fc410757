"""Splits: each row once, by name, stratified; and every sentence about a wrong [split] table."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.base.errors import InputError
from coterie.base.rng import generator, numpy_generators
from coterie.config.data import DEFAULT_PARTS, Split
from coterie.data.dealing import deal
from coterie.data.parts import stratified, stratify
from coterie.data.splits import (
    clusters,
    dirichlet,
    iid,
    mixed,
    number_names,
    shards,
    subset,
    target_groups,
)
from coterie.data.tensors import split_over

quick = settings(derandomize=True, deadline=None)
labels_of = st.lists(st.integers(0, 4), min_size=12, max_size=80)


def once(lists, n):
    return np.array_equal(np.sort(np.concatenate(lists)), np.arange(n))


@quick
@given(labels_of, st.integers(1, 8), st.integers(0, 3))
def test_every_row_goes_to_exactly_one_client(labels, n, seed):
    assert once(iid(labels, n, seed=seed), len(labels))
    assert once(dirichlet(labels, n, 5.0, seed=seed), len(labels))
    assert once(shards(labels, n, shards_per_client=1, seed=seed), len(labels))


@quick
@given(st.lists(st.integers(0, 6), min_size=1, max_size=90), st.integers(0, 5))
def test_parts_have_each_row_once_the_right_sizes_and_every_class_in_training(
    labels, seed
):
    parts = stratified(labels, DEFAULT_PARTS, seed=seed, name="a")
    assert once(list(parts.values()), len(labels))
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
        hits[
            stratified([0] * 20 + [1] * 10, DEFAULT_PARTS, seed=seed, name="a")["test"]
        ] += 1
    assert np.abs(hits / 600 - 1 / 3).max() < 5 * np.sqrt(2 / 9 / 600)


def test_a_split_belongs_to_its_client_and_gives_a_rare_class_no_fixed_place():
    labels = [0] * 7 + [1] * 4 + [2] * 21
    splits = [
        stratified(labels, DEFAULT_PARTS, seed=0, name=name)["test"].tolist()
        for name in "abcdefghijkl"
    ]
    assert len({tuple(at) for at in splits}) == 12
    assert {sum(7 <= i < 11 for i in at) for at in splits} == {1, 2}


def test_a_client_always_trains_on_something():
    parts = stratified([0, 1], {"train": 0.1, "test": 0.9}, seed=0, name="a")
    assert [len(at) for at in parts.values()] == [1, 1]


def test_strata_of_texts_and_labels_that_are_no_classes():
    words = stratified(
        ["b", "a", "b", "a", "b", "a"], {"train": 0.5, "test": 0.5}, seed=0, name="a"
    )
    assert [len(v) for v in words.values()] == [3, 3]
    assert len(stratified(None, DEFAULT_PARTS, seed=0, name="a", n=9)["test"]) == 3
    assert (
        len(stratified(np.zeros((9, 4, 4)), DEFAULT_PARTS, seed=0, name="a")["test"])
        == 3
    )
    assert stratified([], DEFAULT_PARTS, seed=0, name="a")["train"].size == 0


def test_randomness_has_a_name():
    assert generator(0, "a", "b").random() == generator(0, "a", "b").random()
    draws = {
        generator(*key).random()
        for key in [(0, "a", "b"), (1, "a", "b"), (0, "ab"), (0, "b", "a"), (0,)]
    }
    assert len(draws) == 5
    assert number_names(3, "hospital") == ["hospital-0", "hospital-1", "hospital-2"]


def test_alpha_says_how_unlike_clients_are():
    labels = np.repeat(np.arange(10), 300)

    def spread(alpha):
        lists = dirichlet(labels, 10, alpha, seed=3, minimum=0)
        return np.std(
            [np.bincount(labels[at], minlength=10) for at in lists], axis=0
        ).mean()

    assert spread(0.1) > 2 * spread(1.0) > 8 * spread(1000.0)
    assert len(iid(labels, 7)) == 7
    assert {len(at) for at in iid(labels, 7)} == {428, 429}


def test_dirichlet_reaches_the_minimum_or_says_so():
    labels = np.repeat(np.arange(10), 60)
    assert min(map(len, dirichlet(labels, 20, 0.1, seed=0, minimum=5))) >= 5
    with pytest.raises(
        InputError,
        match=r"alpha = 0.001 gives each of 40 clients 3 rows; raise alpha, or lower",
    ):
        dirichlet(labels, 40, 0.001, minimum=3)
    with pytest.raises(
        InputError, match="20 clients with 50 rows each need more than 600 rows"
    ):
        dirichlet(labels, 20, 1.0, minimum=50)


def test_shards_have_few_classes_and_a_size():
    labels = np.repeat(np.arange(10), 120)
    by_client = shards(labels, 60, seed=1)
    assert all(len(set(labels[at])) <= 2 for at in by_client)
    sized = shards(labels, 5, shards_per_client=3, shard_size=50, seed=1)
    assert {len(at) for at in sized} == {150}
    assert len(np.unique(np.concatenate(sized))) == 750
    with pytest.raises(
        InputError, match="are 30 shards, but 1200 rows give only 24 of 50 rows"
    ):
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
        (
            lambda: dirichlet([0.5, 1.5], 1, 1.0),
            "'dirichlet' needs one class per row, but labels are float64",
        ),
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
        ({"client": 5}, r"\[split\]: unknown key 'client'; did you mean 'clients'\?"),
        (
            {"kind": "dirichlett"},
            r"split.kind must be .*iid \| .* \| counts; got 'dirichlett'; did you mean 'dirichlet'\?",
        ),
        (
            {"kind": 3},
            r"must be \"default\" or iid \| dirichlet \| shards .* \| column .* \| counts; got 3",
        ),
        ({"clients": 0}, "split.clients must be an int > 0; got 0"),
        (
            {"clients": True},
            r"split.clients must be \"default\" \(that of the kind\) or an int >= 0; got True",
        ),
        (
            {"clients": 2.5},
            r"split.clients must be \"default\" \(that of the kind\) or an int >= 0; got 2.5",
        ),
        ({"alpha": -1}, "split.alpha must be a number > 0; got -1"),
        ({"alpha": float("nan")}, "split.alpha must be a number > 0; got nan"),
        (
            {"seed": -1},
            'split.seed must be "default" .that of the run. or an int >= 0; got -1',
        ),
        ({"minimum": "3"}, "split.minimum must be an int >= 0; got '3'"),
        (
            {"parts": {"train": 0.5, "tset": 0.5}},
            "must be a table of train, validation and test",
        ),
        ({"parts": {"train": 1.5, "test": -0.5}}, "fractions from 0 to 1"),
        ({"parts": {"train": 0.5, "test": 0.4}}, "parts add up to 0.9"),
        ({"parts": {"test": 1}}, "parts need train above 0"),
        (
            {"kind": "iid", "alpha": 0.5},
            "alpha belongs to kind = 'dirichlet' or 'target-groups', but kind is 'iid'",
        ),
        (
            {"shard_size": 5},
            "shard_size belongs to kind = 'shards' or 'mixed', but kind is 'dirichlet'",
        ),
    ],
)
def test_a_wrong_split_table_is_refused(table, sentence):
    with pytest.raises(InputError, match=sentence):
        Split.parse(table, kind="dirichlet")


def test_natural_clients_take_seed_and_parts_only():
    with pytest.raises(
        InputError,
        match="clients does not apply to heart-disease, which has its own clients",
    ):
        Split.parse({"clients": 5}, natural="heart-disease")
    rule = Split.parse(
        {"seed": 7, "parts": {"test": 0.5, "train": 0.5, "validation": 0}},
        natural="heart-disease",
    )
    assert rule.seed_for(0) == 7
    assert list(rule.parts) == ["train", "test"]
    assert Split.parse(None).seed_for(3) == 3
    assert Split.parse({"parts": dict(DEFAULT_PARTS)}).parts == DEFAULT_PARTS


@pytest.mark.parametrize(
    "table",
    [{"kind": "iid"}, {"kind": "shards", "shards_per_client": 1}, {"alpha": 2.0}],
)
def test_a_split_table_does_what_its_function_does(table):
    labels = np.arange(60) % 3
    rule = Split.parse({**table, "clients": 4}, kind="dirichlet")
    got = list(deal(rule, labels, seed=2).clients.values())
    want = {
        "iid": lambda: iid(labels, 4, seed=2),
        "shards": lambda: shards(labels, 4, shards_per_client=1, seed=2),
        "dirichlet": lambda: dirichlet(labels, 4, 2.0, seed=2, minimum=3),
    }[str(rule.kind)]()
    assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))


# ---- clusters, mixed, target-groups, subset


@quick
@given(st.integers(5, 12), st.integers(0, 3))
def test_clusters_share_no_class_and_use_each_row_once(n, seed):
    labels = np.arange(200) % 10
    lists = clusters(labels, n, seed=seed)
    assert once(lists, 200)
    own = [frozenset(labels[at].tolist()) for at in lists]
    assert {len(classes) for classes in own} == {2}
    kinds = set(own)
    assert len(kinds) == 5
    assert sum(map(len, kinds)) == 10  # no class in two clusters
    members = [own.count(kind) for kind in kinds]
    assert max(members) - min(members) <= 1


def test_twins_have_shards_of_the_same_classes_and_no_row_twice():
    labels = np.arange(400) % 10
    for seed in range(5):
        lists = shards(labels, 8, shard_size=20, twins=2, seed=seed)
        first, second = (np.unique(labels[own]).tolist() for own in lists[:2])
        assert first == second
        assert len(first) == 2
        assert len(np.unique(np.concatenate(lists))) == 8 * 40
    dealt = by_table(kind="shards", clients=4, shard_size=10, twins=2)
    assert (
        dealt[0].train.labels.unique().tolist()
        == dealt[1].train.labels.unique().tolist()
    )
    with pytest.raises(
        InputError,
        match="twins = 3 need 2 classes with as many whole shards each, and there are 0",
    ):
        shards(labels, 8, shard_size=20, twins=3)


def test_clusters_of_other_sizes_and_refusals():
    labels = np.arange(90) % 9
    lists = clusters(labels, 4, clusters=2, labels_per_cluster=3, seed=1)
    assert sum(map(len, lists)) == 60  # the rows of six classes
    assert len(np.unique(np.concatenate(lists))) == 60
    for call, sentence in [
        (
            lambda: clusters(labels, 10),
            "5 clusters x 2 labels need 10 classes, but there are 9",
        ),
        (
            lambda: clusters(labels, 4, labels_per_cluster=1),
            "4 clients cannot fill 5 clusters",
        ),
        (
            lambda: clusters([0, 1, 1, 1, 1, 1], 6, clusters=2, labels_per_cluster=1),
            "rows cannot be split over the 3",
        ),
    ]:
        with pytest.raises(InputError, match=sentence):
            call()


@pytest.mark.parametrize(
    ("nr", "shared"), [(0.95, 25), (0.98, 10), (1.0, 0), (0.0, 500)]
)
def test_mixed_shards_have_the_promised_share_of_all_classes(nr, shared):
    labels = np.repeat(np.arange(10), 2000)
    lists = mixed(labels, 20, nr, seed=4)
    assert {len(at) for at in lists} == {1000}
    assert once(lists, 20000)  # 40 shards of 500 are all rows
    # The rest of a shard is of one class here: 2000 - 40 * shared / 10 rows of each are 4 shards.
    for at in lists:
        count = np.sort(np.bincount(labels[at], minlength=10))
        assert count[:8].sum() <= 2 * shared
        if nr == 1:
            assert set(count) <= {0, 500, 1000}
    per_class = sum(np.bincount(labels[at], minlength=10) for at in lists)
    assert set(per_class) == {2000}


def test_mixed_draws_the_shared_rows_evenly_by_class_even_if_classes_are_not():
    labels = np.array([0] * 900 + [1] * 90 + [2] * 10)
    lists = mixed(labels, 5, 0.8, shard_size=100, seed=0)
    assert once(lists, 1000)
    assert min((labels[at] == 1).sum() for at in lists) >= 2
    sorted_only = mixed(labels, 5, 1.0, shard_size=100, seed=0)
    assert sum((labels[at] == 1).any() for at in sorted_only) == 1
    for call, sentence in [
        (lambda: mixed(labels, 5, 1.5), "nr = 1.5 must be a number from 0 to 1"),
        (
            lambda: mixed(labels, 5, 0.9),
            "5 clients x 2 shards are 10 shards, but 1000 rows give only 2 of 500 rows",
        ),
    ]:
        with pytest.raises(InputError, match=sentence):
            call()


@pytest.mark.parametrize("alpha", [0.5, 0.7, 0.9, 0.99, 1.0])
def test_target_groups_have_their_classes_and_their_share(alpha):
    labels = np.repeat(np.arange(10), 500)
    lists, held = target_groups(
        labels, alpha, held_out=30, rows_per_client="most", seed=2
    )
    assert sorted(lists) == [
        *(f"far-{i:02d}" for i in range(9)),
        *(f"near-{i:02d}" for i in range(10)),
        "target",
    ]
    size = len(lists["target"])
    every = np.concatenate([*lists.values(), held])
    assert len(np.unique(every)) == len(every) == 20 * size + 90  # each row once
    assert np.array_equal(np.bincount(labels[held]), [30] * 3)
    for name, own in lists.items():
        count = np.bincount(labels[own], minlength=10)
        groups = [count[:3], count[3:6], count[6:]]
        shared = round(alpha * size)
        want = {"t": [size, 0, 0], "n": [shared, size - shared, 0], "f": [0, 0, size]}[
            name[0]
        ]
        assert [g.sum() for g in groups] == want
        assert all(g.max() - g.min() <= 1 for g in groups)
    # No larger size fits: 1410 rows of classes 0-2, 1500 of 3-5, 2000 of 6-9.
    more, shared = size + 1, round(alpha * (size + 1))
    assert more + 10 * shared > 1410 or 10 * (more - shared) > 1500 or 9 * more > 2000


@pytest.mark.parametrize("alpha", [0.5, 0.99])
def test_target_groups_have_as_many_rows_whatever_alpha_is(alpha):
    lists, _ = target_groups(
        np.repeat(np.arange(10), 500), alpha, held_out=30, rows_per_client=90, seed=2
    )
    assert {len(own) for own in lists.values()} == {90}


def test_target_groups_refuse_what_they_cannot_deal():
    labels = np.repeat(np.arange(10), 100)
    for given_labels, alpha, held, sentence in [
        (
            labels[labels != 7],
            0.5,
            3,
            "needs rows of the classes 0 to 9, but there are",
        ),
        (
            labels,
            0.5,
            100,
            "held_out = 100 rows of class 0 leave nothing of its 100 to train on; lower held_out",
        ),
        (labels, 0.5, 95, "1000 rows are too few for 20 clients of 3 classes"),
        (labels, 1.5, 0, "alpha = 1.5 must be a share"),
    ]:
        with pytest.raises(InputError, match=sentence):
            target_groups(given_labels, alpha, held_out=held, rows_per_client="most")
    with pytest.raises(
        InputError,
        match=r'rows_per_client = 750 is more than the 4. that the classes allow; .* or take "most"',
    ):
        target_groups(labels, 0.5, held_out=3)


@quick
@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=90), st.integers(0, 5), st.data()
)
def test_a_subset_has_its_size_and_every_class_in_its_share(labels, seed, data):
    rows = data.draw(st.integers(1, len(labels)))
    chosen = subset(labels, rows, seed=seed)
    assert len(np.unique(chosen)) == rows
    got, whole = (
        np.bincount(np.array(labels)[chosen], minlength=7),
        np.bincount(labels, minlength=7),
    )
    assert np.abs(got - whole * rows / len(labels)).max() <= 1


# ---- the table


TEN = np.repeat(np.arange(10), 120)


def by_table(seed=3, labels=TEN, **table):
    rule = Split.parse(table, kind="dirichlet")
    inputs = torch.arange(len(labels))[:, None].float()
    return split_over(
        inputs, labels, rule, seed=seed, name="ten", classes=[str(c) for c in range(10)]
    )


def numbers(clients):
    """Row numbers by client and part: the inputs are their own numbers."""
    return {
        c.name: {key: part.inputs[:, 0].int().tolist() for key, part in c.parts()}
        for c in clients
    }


KINDS = [
    {"kind": "iid", "clients": 7},
    {
        "kind": "dirichlet",
        "clients": 6,
        "minimum": 20,
        "parts": {"train": 0.6, "test": 0.4},
    },
    {"kind": "shards", "clients": 6, "shard_size": 50},
    {"kind": "clusters", "clients": 10},
    {"kind": "mixed", "clients": 5, "shard_size": 60, "nr": 0.9},
    {"kind": "target-groups", "held_out": 20, "rows_per_client": "most"},
    {"kind": "sizes", "sizes": [300, 40, 7, 90, 12, 60, 33]},
    {"kind": "power-law", "clients": 8, "exponent": 1.5, "minimum": 5},
    {"kind": "counts", "counts": [[30, 0, 5], [0, 60], [1] * 10, *[[2, 3]] * 4]},
]


@pytest.mark.parametrize("table", KINDS, ids=lambda t: t["kind"])
def test_every_kind_uses_a_row_once_and_is_a_function_of_its_seed(table):
    clients = by_table(**table)
    rows = [
        row
        for parts in numbers(clients).values()
        for part in parts.values()
        for row in part
    ]
    assert len(set(rows)) == len(rows)
    assert numbers(by_table(**table)) == numbers(clients)
    assert numbers(by_table(**table, seed=4)) != numbers(clients)
    assert numbers(by_table(**table, unseen=0)) == numbers(clients)
    if "parts" in table:
        assert clients.validation is None
        for client in clients:
            assert (
                abs(len(client.train) - 0.6 * (len(client.train) + len(client.test)))
                < 1
            )


@pytest.mark.parametrize(
    "table",
    [t for t in KINDS if "clients" in t and t["kind"] != "power-law"],
    ids=lambda t: t["kind"],
)
def test_unseen_clients_come_from_the_same_split_and_share_no_row(table):
    clients = by_table(**table, unseen=5)
    assert clients.unseen.names == tuple(f"unseen-{i}" for i in range(5))
    assert len(clients) == table["clients"]
    everybody = by_table(**{**table, "clients": table["clients"] + 5})
    seen, unseen, all_rows = (
        numbers(clients),
        numbers(clients.unseen),
        numbers(everybody),
    )

    def together(*groups):
        return sorted(
            sorted(r for p in parts.values() for r in p)
            for group in groups
            for parts in group.values()
        )

    assert together(seen, unseen) == together(all_rows)
    assert clients.train.inputs is clients.unseen.train.inputs
    assert "5 clients of the same split never train" in clients.notes[0]
    assert clients.unseen["unseen-0"].test is not None


def rows_of(clients):
    return [
        sorted(row for part in parts.values() for row in part)
        for parts in numbers(clients).values()
    ]


@quick
@given(st.lists(st.integers(1, 150), min_size=1, max_size=8), st.integers(0, 3))
def test_sizes_are_as_they_are_said(sizes, seed):
    clients = by_table(kind="sizes", sizes=sizes, seed=seed)
    assert list(map(len, rows_of(clients))) == sizes
    unseen = len(sizes) // 2
    some = by_table(kind="sizes", sizes=sizes, seed=seed, unseen=unseen)
    groups = rows_of(some) + (rows_of(some.unseen) if unseen else [])
    assert groups == rows_of(clients)  # unseen clients have the last sizes


@quick
@given(st.integers(1, 12), st.floats(0.01, 1.4), st.integers(0, 3))
def test_sizes_fall_by_a_power_of_the_place(n, exponent, seed):
    clients = by_table(kind="power-law", clients=n, exponent=exponent, seed=seed)
    sizes = np.array(list(map(len, rows_of(clients))))
    shares = np.arange(1.0, n + 1) ** -exponent
    assert sizes.sum() == len(TEN)
    assert np.abs(sizes - len(TEN) * shares / shares.sum()).max() < 1


counts_of = st.lists(
    st.lists(st.integers(0, 14), min_size=1, max_size=10).filter(any),
    min_size=1,
    max_size=8,
)


@quick
@given(counts_of, st.integers(0, 3))
def test_counts_by_class_are_as_they_are_said(counts, seed):
    clients = by_table(kind="counts", counts=counts, seed=seed)
    for asked, rows in zip(counts, rows_of(clients), strict=True):
        found = np.bincount(TEN[rows], minlength=10)
        assert found.tolist() == asked + [0] * (10 - len(asked))


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"kind": "sizes"}, r"needs sizes, .* for example sizes = \["),
        ({"kind": "counts"}, r"needs counts, .* for example counts = \["),
        ({"kind": "sizes", "sizes": []}, "sizes must be .* a list of ints > 0"),
        ({"kind": "sizes", "sizes": [3, 0]}, "sizes must be .* a list of ints > 0"),
        ({"kind": "sizes", "sizes": [1000, 201]}, "1201 rows, but there are 1200"),
        ({"kind": "sizes", "sizes": [9, 9], "clients": 3}, "leave out clients"),
        ({"kind": "sizes", "sizes": [9, 9], "unseen": 2}, "2 sizes .* unseen = 2"),
        ({"kind": "counts", "counts": [[1], [121]]}, "122 rows of class 0.* are 120"),
        ({"kind": "counts", "counts": [[0] * 10 + [1]]}, "1 rows of class 10.* are 0"),
        ({"kind": "counts", "counts": [[3], [0, 0]]}, "client 1 no row"),
        ({"kind": "counts", "counts": [3, 3]}, "counts must be .* a list of lists"),
        ({"kind": "power-law", "exponent": 0}, "exponent must be a number > 0"),
        ({"kind": "power-law", "clients": 30, "exponent": 3}, "lower exponent"),
        ({"kind": "iid", "sizes": [3]}, "sizes belongs to kind = 'sizes'"),
    ],
)
def test_what_sizes_and_counts_cannot_be_is_refused(table, sentence):
    with pytest.raises(InputError, match=sentence) as told:
        by_table(**table)
    assert len(str(told.value)) <= 300


def test_flipped_clients_have_their_labels_turned_round_in_all_parts():
    plain, flipped = (
        by_table(kind="iid", clients=10, unseen=4),
        by_table(kind="iid", clients=10, unseen=4, flip=0.3),
    )
    (note,) = [n for n in flipped.notes if "C - 1 - y" in n]
    named = note.split(" at ")[1].split(", ")
    assert sum(n.startswith("client") for n in named) == 3
    assert sum(n.startswith("unseen") for n in named) == 1
    for before, after in ((plain, flipped), (plain.unseen, flipped.unseen)):
        for name in before.names:
            parts = [(p.inputs, p.labels) for _, p in after[name].parts()]
            for inputs, labels in parts:
                true = torch.from_numpy(TEN)[inputs[:, 0].long()]
                assert torch.equal(labels, 9 - true if name in named else true)
        assert numbers(before) == numbers(after)  # nothing but labels


def test_more_flips_flip_the_same_clients_and_others():
    few, many = (
        by_table(kind="iid", clients=10, flip=f).notes[0].split(" at ")[1]
        for f in (0.2, 0.5)
    )
    assert set(few.split(", ")) < set(many.split(", "))


def test_the_target_validates_on_its_own_rows_and_copies_share_their_parts():
    clients = by_table(
        kind="target-groups", clients=40, held_out=20, rows_per_client="most"
    )
    assert len(clients) == 40
    assert clients.names[0] == "far-00"
    assert clients.names[-2:] == ("target", "twin")
    rows = numbers(clients)
    assert len(rows["target"]["validation"]) == 60
    assert "validation" not in rows["twin"]
    for copy, name in (
        ("twin", "target"),
        ("near-10", "near-00"),
        ("near-19", "near-09"),
        ("far-17", "far-08"),
    ):
        assert rows[copy]["train"] == rows[name]["train"]
        assert rows[copy]["test"] == rows[name]["test"]
    size = len(rows["target"]["train"]) + len(rows["target"]["test"])
    assert abs(len(rows["target"]["test"]) - size * (1 / 3) / (13 / 15)) < 1
    assert (
        f"clients have {size} rows each; the target validates on 60 more"
        in clients.notes[0]
    )
    assert "copies of the others" in clients.notes[1]
    own_rows = by_table(kind="target-groups", held_out=0, rows_per_client="most")
    assert len(own_rows["target"].validation) > 0  # of its own rows then


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (
            {"kind": "target-groups", "clients": 30},
            "clients = 30 must be 20 or 40 for kind = 'target-groups'",
        ),
        (
            {"kind": "target-groups", "alpha": 2},
            "alpha = 2 must be at most 1 for kind = 'target-groups': it is a share",
        ),
        (
            {"kind": "target-groups", "unseen": 3},
            "unseen does not apply to kind = 'target-groups'",
        ),
        (
            {"kind": "target-groups", "flip": 0.3},
            "flip does not apply to kind = 'target-groups'",
        ),
        (
            {"kind": "mixed", "nr": 1.2},
            "split.nr must be a number from 0 to 1; got 1.2",
        ),
        ({"nr": 0.9}, "nr belongs to kind = 'mixed', but kind is 'dirichlet'"),
        (
            {"kind": "iid", "clusters": 2},
            "clusters belongs to kind = 'clusters', but kind is 'iid'",
        ),
        ({"held_out": 3}, "held_out belongs to kind = 'target-groups'"),
        (
            {"kind": "target-groups", "rows_per_client": "all"},
            "rows_per_client must be an int > 0 or \"most\"; got 'all'",
        ),
        ({"labels_per_cluster": 3}, "labels_per_cluster belongs to kind = 'clusters'"),
        ({"unseen": -1}, "split.unseen must be an int >= 0; got -1"),
        ({"flip": 2}, "split.flip must be a number from 0 to 1; got 2"),
        ({"kind": "clustres"}, "did you mean 'clusters'"),
    ],
)
def test_keys_of_other_kinds_and_wrong_values_are_refused(table, sentence):
    with pytest.raises(InputError, match=sentence):
        Split.parse(table, kind="dirichlet")


def test_inputs_that_are_read_on_demand_are_read_once_for_used_rows():
    asked = []

    def read(index):
        asked.append(index)
        return torch.from_numpy(index)[:, None].float()

    rule = Split.parse({"kind": "mixed", "clients": 5, "shard_size": 60})
    clients = split_over(read, TEN, rule, seed=3)
    assert len(asked) == 1
    assert len(asked[0]) == 600 == len(clients.train.inputs)
    eager = split_over(torch.arange(1200)[:, None].float(), TEN, rule, seed=3)
    assert numbers(clients) == numbers(eager)
    assert torch.equal(
        clients.pool_training_rows().labels, eager.pool_training_rows().labels
    )


def test_streams_of_many_names_are_those_of_default_rng():
    digests = [
        bytes(16),
        b"\x01" + bytes(15),
        bytes(15) + b"\xff",
        *(hashlib.md5(bytes([i])).digest() for i in range(40)),
    ]
    for digest, stream in zip(digests, numpy_generators(digests), strict=True):
        expected = np.random.default_rng(int.from_bytes(digest, "little"))
        assert stream.random(5).tolist() == expected.random(5).tolist()
        assert stream.permutation(9).tolist() == expected.permutation(9).tolist()


def test_many_clients_are_dealt_as_each_alone():
    draw = np.random.default_rng(0)
    sizes = [1, 2, 3, 40, 1, 7, 100, 5]
    names = [f"c{i}" for i in range(len(sizes))]
    classes = draw.integers(0, 5, sum(sizes)) * 10
    part = stratify(classes, sizes, DEFAULT_PARTS, seed=3, names=names)
    pairs = zip(
        np.split(classes, np.cumsum(sizes)[:-1]),
        np.split(part, np.cumsum(sizes)[:-1]),
        strict=True,
    )
    for name, (own, dealt) in zip(names, pairs, strict=True):
        alone = stratified(own, DEFAULT_PARTS, seed=3, name=name)
        assert {
            k: np.flatnonzero(dealt == i).tolist() for i, k in enumerate(DEFAULT_PARTS)
        } == {k: at.tolist() for k, at in alone.items()}


def test_a_clients_rows_are_dealt_as_they_always_were():
    dealt = stratified(
        [0, 0, 1, 1, 1, 2, 0, 1], DEFAULT_PARTS, seed=1, name="cleveland"
    )
    assert {k: at.tolist() for k, at in dealt.items()} == {
        "train": [0, 2, 5, 7],
        "validation": [4],
        "test": [1, 3, 6],
    }

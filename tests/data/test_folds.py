"""Folds: how each client's rows are dealt, and what the clients look like while one fold is tested."""

import numpy as np
import pytest
import torch

from coterie.base.clients import Client, Clients
from coterie.base.errors import InputError
from coterie.base.folds import deal_folds
from coterie.base.rows import Part
from coterie.config.data import Split
from coterie.data import load
from coterie.data.parts import refuse_split, with_fold


@pytest.mark.parametrize("size", [5, 6, 13, 100, 101])
def test_folds_differ_by_one_row_at_most(size: int) -> None:
    labels = np.sort(np.random.default_rng(size).integers(0, 3, size))
    fold = deal_folds(labels, 5, seed=0, name="a")
    counts = np.bincount(fold, minlength=5)
    assert counts.max() - counts.min() <= 1


def test_classes_have_no_part_in_the_deal() -> None:
    # A fold that had its share of each class would leave training rows with the opposite error: held-out losses would be too high.
    labels = np.repeat([0, 1], 50)
    folds = [deal_folds(labels, 5, seed=s, name="a") for s in range(200)]
    cases = [np.bincount(fold, weights=labels, minlength=5) for fold in folds]
    # Hypergeometric: 20 of 100 rows, 50 cases: 20 x .5 x .5 x 80 / 99.
    assert np.var(cases, ddof=1) == pytest.approx(20 * 0.25 * 80 / 99, rel=0.15)
    renamed = deal_folds(1 - labels, 5, seed=0, name="a")
    assert folds[0].tolist() == renamed.tolist()
    numbers = deal_folds(labels.astype(np.float32), 5, seed=0, name="a")
    assert folds[0].tolist() == numbers.tolist()


@pytest.mark.parametrize("rare", [1, 2, 3, 4])
def test_a_class_of_fewer_than_five_rows_is_dealt_one_row_a_fold(rare: int) -> None:
    labels = np.repeat([0, 1, 2], [31, rare, 4])
    places = set[int]()
    for seed in range(60):
        fold = deal_folds(labels, 5, seed=seed, name="a")
        counts = np.bincount(fold, minlength=5)
        assert counts.max() - counts.min() <= 1
        for label in (1, 2):
            assert np.bincount(fold[labels == label], minlength=5).max() == 1
        places |= {*fold[labels == 1].tolist()}
    assert places == set(range(5))


def test_patients_with_a_rare_class_are_dealt_one_a_fold() -> None:
    patients = np.repeat(np.arange(20), 3)
    labels = np.where(np.isin(np.arange(60), [1, 10, 19, 22]), 1, 0)  # never commonest
    for seed in range(20):
        fold = deal_folds(labels, 5, seed=seed, name="a", groups=patients)
        assert np.bincount(fold[labels == 1], minlength=5).max() == 1
        assert np.bincount(fold).tolist() == [12] * 5


def test_a_client_with_under_five_rows_trains_and_tests_nothing() -> None:
    assert deal_folds([0, 1, 0, 1], 5, seed=0, name="a").tolist() == [-1] * 4


def test_patients_stay_together() -> None:
    patients = np.repeat(np.arange(20), 3)
    fold = deal_folds(
        np.repeat(np.arange(20) % 2, 3), 5, seed=0, name="a", groups=patients
    )
    assert all(len(set(fold[patients == p])) == 1 for p in range(20))
    assert np.bincount(fold).tolist() == [12] * 5


def test_the_deal_depends_on_repeat_and_name_alone() -> None:
    labels = [0, 1] * 20
    first = deal_folds(labels, 5, seed=0, name="a")
    assert first.tolist() == deal_folds(labels, 5, seed=0, name="a").tolist()
    assert first.tolist() != deal_folds(labels, 5, seed=1, name="a").tolist()
    assert first.tolist() != deal_folds(labels, 5, seed=0, name="b").tolist()


def clients() -> Clients:
    return load("heart-disease", seed=0, split={"folds": 5})


def test_every_row_is_tested_once_and_never_by_a_model_that_saw_it() -> None:
    whole = clients()
    assert whole.test is None
    assert whole.validation is None
    views = [with_fold(whole, 5, fold, 0) for fold in range(5)]
    for i, name in enumerate(whole.names):
        tested = np.concatenate([view[name].test_numbers for view in views])
        assert sorted(tested) == list(range(len(whole[name].train)))
        for view in views:
            parts = [
                rows.numbers(i) for rows in (view.train, view.validation, view.test)
            ]
            assert sorted(np.concatenate(parts)) == sorted(whole.train.numbers(i))
            assert len(parts[1]) == pytest.approx(
                (len(parts[0]) + len(parts[1])) / 5, abs=1
            )


def test_on_all_rows_nothing_is_tested() -> None:
    whole = clients()
    view = with_fold(whole, 5, None, 0)
    assert view.test is None
    assert (
        view.train.sizes + view.validation.sizes
    ).tolist() == whole.train.sizes.tolist()


def test_training_rows_know_in_which_fold_they_are_tested() -> None:
    whole = clients()
    tested = {}  # by client and row, in which fold
    for fold in range(5):
        view = with_fold(whole, 5, fold, 0)
        for i, name in enumerate(whole.names):
            tested |= {(name, n): fold for n in view.test.numbers(i).tolist()}
    view = with_fold(whole, 5, 2, 0)
    shared = view.reserve_validation(whole.names[:1])
    for part in (view, view.merge_validation(), shared, shared.merge_validation()):
        for i, name in enumerate(whole.names):
            for kind, folds in part.row_folds[name].items():
                numbers = getattr(part, kind).numbers(i).tolist()
                assert folds.tolist() == [tested[name, n] for n in numbers]
                assert (2 in folds) == (kind == "test")
    assert not with_fold(whole, 5, None, 0).row_folds
    assert not whole.row_folds


@pytest.mark.parametrize("label", ["y", "dose"])
def test_the_rows_of_a_patient_stay_together_in_every_fold(
    tmp_path, label: str
) -> None:
    rng = np.random.default_rng(0)
    lines = [
        "patient,x,y,dose",
        *(
            f"p{i // 3},{rng.normal():.3f},{i // 7 % 2},{rng.normal():.4f}"
            for i in range(90)
        ),
    ]
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    whole = load(
        str(tmp_path), label=label, group="patient", seed=0, split={"folds": 5}
    )
    patients = whole.row_groups["a"]["train"]
    for fold in range(5):
        view = with_fold(whole, 5, fold, 0)["a"]
        assert view.row_groups is not None
        for key, part in view.parts():
            assert len(view.row_groups[key]) == len(part)
        sets = [
            {*view.row_groups[key].tolist()} for key in ("train", "validation", "test")
        ]
        assert not (sets[0] & sets[1] | sets[0] & sets[2] | sets[1] & sets[2])
        assert sorted(patients[view.test_numbers]) == sorted(view.row_groups["test"])
    everything = with_fold(whole, 5, None, 0).merge_validation()
    assert sorted(everything.row_groups["a"]["train"]) == sorted(patients)


def test_scales_come_from_all_rows_once() -> None:
    whole = clients()
    assert all(with_fold(whole, 5, fold, 0).recipe is whole.recipe for fold in range(5))


@pytest.mark.parametrize(
    ("table", "word"),
    [
        ({"folds": 5, "parts": {"train": 0.5, "test": 0.5}}, "parts"),
        ({"folds": 5, "kind": "iid", "unseen": 2}, "unseen"),
        ({"folds": 5, "kind": "iid", "test": "standard"}, "test"),
        ({"folds": 5, "kind": "target-groups"}, "target-groups"),
        ({"folds": 1}, "folds"),
    ],
)
def test_what_says_which_rows_are_tested_is_refused_beside_folds(
    table: dict, word: str
) -> None:
    with pytest.raises(InputError, match=word):
        Split.parse(table)


def test_clients_that_are_split_already_are_refused() -> None:
    part = Part(torch.zeros(6, 2), torch.tensor([0, 1] * 3))
    with pytest.raises(InputError, match="split already"):
        refuse_split(Clients([Client("a", part, test=part)]))
    refuse_split(Clients([Client("a", part)]))

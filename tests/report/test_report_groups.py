"""Groups of clients: found where there are some, not found where clients are alike."""

from __future__ import annotations

from pathlib import Path

import fake_run
import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from coterie.report.groups import groups, groups_in_words, order_of, split_of
from coterie.report.results import Results
from coterie.report.words import takes

RNG = np.random.default_rng(5)
HIDDEN = RNG.permutation(np.arange(50) % 4)


def simplex(raw: np.ndarray) -> np.ndarray:
    return np.asarray(raw / raw.sum(axis=1, keepdims=True))


def hidden_groups(strength: float, own: float = 0.2) -> np.ndarray:
    """Weights of 50 clients in 4 groups: friends get `strength` times what strangers get, with much noise."""
    same = HIDDEN[:, None] == HIDDEN[None]
    return simplex(RNG.gamma(2, 1, (50, 50)) * np.where(same, strength, 1.0)) * (
        1 - own
    ) + own * np.eye(50)


def runs_of(base: np.ndarray, noise: float, count: int = 10) -> np.ndarray:
    """What each of `count` runs gives whose mean is about `base`."""
    return np.stack(
        [
            simplex(np.abs(base + noise * RNG.standard_normal(base.shape)))
            for _ in range(count)
        ]
    )


def blocks(sizes: tuple[int, ...], inside: float = 0.8, own: float = 0.3) -> np.ndarray:
    """Weights of groups whose members take `inside` of what they do not give themselves from their own group."""
    group = np.repeat(np.arange(len(sizes)), sizes)
    same = (group[:, None] == group[None]) & ~np.eye(len(group), dtype=bool)
    other = group[:, None] != group[None]
    friends = same / np.maximum(same.sum(axis=1, keepdims=True), 1)
    strangers = other / np.maximum(other.sum(axis=1, keepdims=True), 1)
    return np.asarray(
        (1 - own) * (inside * friends + (1 - inside) * strangers)
        + own * np.eye(len(group))
    )


@pytest.mark.in_turn(but="sizes1")
@pytest.mark.parametrize("sizes", [(2, 2), (3, 3), (4, 3, 3), (12, 12, 13, 13)])
def test_hidden_groups_are_found(sizes: tuple[int, ...]) -> None:
    runs = runs_of(blocks(sizes), 0.1 / sum(sizes))
    cut = split_of(runs.mean(axis=0), runs, folds=5)
    assert cut is not None
    assert adjusted_rand_score(np.repeat(np.arange(len(sizes)), sizes), cut) == 1


@pytest.mark.parametrize("members", [3, 4, 6, 12])
def test_no_groups_among_equal_clients(members: int) -> None:
    even = blocks((members,), inside=1.0)
    found = 0
    for _ in range(30):
        runs = runs_of(even, 0.1 / members)
        found += split_of(runs.mean(axis=0), runs, folds=5) is not None
    assert found <= 1


def test_no_groups_among_clients_that_give_each_other_nothing() -> None:
    runs = runs_of(np.eye(6), 0.005)
    assert split_of(runs.mean(axis=0), runs, folds=5) is None


def test_one_run_shows_no_groups() -> None:
    runs = runs_of(blocks((3, 3)), 0.01, count=1)
    assert split_of(runs[0], runs) is None


def test_the_order_puts_friends_beside_each_other() -> None:
    ordered = HIDDEN[order_of(hidden_groups(20))]
    assert (np.diff(ordered) != 0).sum() == 3
    assert order_of(np.eye(5)) == [0, 1, 2, 3, 4]


def test_a_group_is_named_with_its_share_of_the_weight(tmp_path: Path) -> None:
    names = [f"c{i}" for i in range(8)]
    rows = {
        c: tuple(0.2 if (i < 4) == (j < 4) else 0.05 for j in range(8))
        for i, c in enumerate(names)
    }
    truth = {
        m: dict.fromkeys(names, (0.8, 0.8, 0.8, 0.4)) for m in ("local", "meritfed")
    }
    results = Results.load(fake_run.write(tmp_path, truth, weights={"meritfed": rows}))
    found = groups(results, "meritfed")
    assert found is not None
    assert found.members == (tuple(names[:4]), tuple(names[4:]))
    assert found.shares == pytest.approx((0.8, 0.8), abs=0.01)
    assert groups_in_words(results, "meritfed", found) == (
        "meritfed finds 2 groups: c0, c1 and 2 others (80 % of their weight stays within); c4, c5 and 2 others (80 %)."
    )
    assert found.friends("c5") == ("c4", "c6", "c7")
    assert takes(results, "c5", "meritfed", found) == "60 % from c4 and 2 others"
    assert groups(results, "local") is None


@pytest.mark.in_turn
def test_one_friend_among_many_equal_clients_is_not_named(tmp_path: Path) -> None:
    names = [f"c{i:02d}" for i in range(30)]
    truth = {
        m: dict.fromkeys(names, (0.8, 0.8, 0.8, 0.4)) for m in ("local", "meritfed")
    }
    rows = dict(zip(names, map(tuple, simplex(RNG.gamma(9, 1, (30, 30)))), strict=True))
    results = Results.load(fake_run.write(tmp_path, truth, weights={"meritfed": rows}))
    assert takes(results, "c05", "meritfed", groups(results, "meritfed")) == ""

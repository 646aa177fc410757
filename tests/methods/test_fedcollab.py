"""What must hold of FedCollab, its partition beside all others, and divergences recomputed with numpy alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from short_runs import MINI, assert_refused_by_the_command, rows, run, trained, unplug

from coterie import FedAvg, FedCollab, Local
from coterie.algorithms.fedcollab import (
    FEATURES,
    MOMENTUM,
    RATE,
    ROUNDS,
    STEPS,
    divergences,
)
from coterie.base.errors import InputError
from coterie.base.rng import Rng
from coterie.solvers.coalitions import objective, partition
from federations import (
    SIZES,
    assert_close,
    batch_norm,
    build,
    dict_inputs,
    federation_of,
    logistic,
    regression,
    seeded,
    tokens,
)

MUTANTS = {
    "fedcollab": [
        ("algorithms/fedcollab.py", "test_rows = halves[half], halves[1 - half]", "test_rows = halves[half], halves[half]"),
        ("algorithms/fedcollab.py", "MOMENTUM * velocity + error @ train_rows", "MOMENTUM * velocity - error @ train_rows"),
        ("algorithms/fedcollab.py", "torch.minimum(halves[:, None], halves[None, :])", "halves[:, None].expand(n, n).clone()"),
        ("algorithms/fedcollab.py", "+ 2 * stream_sum(labels, stream.child(\"labels\"))", ""),
        ("algorithms/fedcollab.py", "best.mean(2) - 1", "best.mean(2) / 2"),
        ("algorithms/fedcollab.py", "(change + change.transpose(0, 1)) / 2", "change"),
        ("algorithms/fedcollab.py", "estimate[failed], estimate[:, failed] = 1.0, 1.0", "pass"),
        ("solvers/coalitions.py", "complexity / of_coalition.sqrt()", "complexity / of_coalition"),
        ("solvers/coalitions.py", "(same_coalition * distances) @ rows / of_coalition", "(same_coalition * distances).sum(1)"),
        ("solvers/coalitions.py", "(*sorted(other_labels), unused)", "sorted(other_labels)"),
    ],
}  # fmt: skip


@pytest.mark.in_turn(but="logistic")
@pytest.mark.parametrize("make", [logistic, batch_norm])
def test_one_coalition_is_fedavg_and_coalitions_of_one_are_training_alone(make):
    together, average = (
        trained(FedCollab(MINI, complexity=1e6), make()),
        trained(FedAvg(MINI), make()).x,
    )
    assert all(torch.equal(x, average) for x in together.models.values())
    apart, alone = (
        trained(FedCollab(MINI, complexity=0.0), make()),
        trained(Local(MINI, exact=False), make()),
    )
    for name, x in alone.models.items():
        assert_close(apart.models[name], x)


def doubles():
    """Clients a and b draw from one distribution, c has the labels of the other class, and d other inputs."""

    def make(name):
        def draw(count, g):
            x = torch.randn(count, 4, generator=g) + (1.5 if name == "d" else 0.0)
            y = (x.sum(1) + 0.3 * torch.randn(count, generator=g) > 0).long()
            return x, 1 - y if name == "c" else y

        return draw

    return build(make, dict.fromkeys("abcd", 300), held=0)


@pytest.mark.in_turn
def test_divergences_tell_who_differs():
    problem = logistic()._replace(
        clients=doubles(), model=seeded(lambda: torch.nn.Linear(4, 1))
    )
    with federation_of(problem) as federation:
        apart = divergences(federation)
    assert torch.equal(apart, apart.T)
    assert apart[0, 1] < 0.15
    assert apart[0, 2] > 0.6
    assert apart[1, 2] > 0.6
    assert apart[:3, 3].min() > 0.5
    sizes = torch.full((4,), 300.0)
    stream = torch.Generator().manual_seed(0)
    assert partition(sizes, apart, 10.0, stream).tolist() == [0, 0, 1, 2]


@pytest.mark.in_turn(but="tokens")
@pytest.mark.parametrize("make", [regression, tokens, dict_inputs])
def test_every_kind_of_rows_has_divergences(make):
    with federation_of(make()) as federation:
        apart = divergences(federation)
    assert bool(((apart >= 0) & (apart <= 1)).all())
    assert bool((apart > 0).any())


@pytest.mark.in_turn
def test_a_client_that_fails_stays_alone(monkeypatch):
    unplug(monkeypatch, "b")
    with federation_of(logistic()) as federation:
        apart = divergences(federation)
    assert apart[1].tolist() == apart[:, 1].tolist() == [1.0, 0.0, 1.0, 1.0, 1.0]


def test_divergences_written_in_numpy():
    problem = logistic(torch.float64)
    with federation_of(problem, seed=3) as federation:
        apart = divergences(federation)
    stream = Rng.named(3, "fedcollab")
    directions = torch.randn(
        3, FEATURES, generator=stream.child("inputs").generator(), dtype=torch.float64
    ).numpy()
    angles = stream.child("labels").generator()
    angle, phase = (
        2 * np.pi * torch.rand(FEATURES, generator=angles, dtype=torch.float64).numpy()
        for _ in range(2)
    )

    def halves(name):
        order = Rng.named(3, 1, name, "fedcollab").permutation(SIZES[name])
        x, y = rows(problem, name)
        total = x @ directions / np.sqrt(3) + 2 * np.sqrt(2) * np.cos(
            y[:, None] * angle + phase
        )
        features = np.column_stack(
            [np.maximum(total, 0) * np.sqrt(2 / FEATURES), np.ones(len(y))]
        )[order]
        return features[: -(-len(y) // 2)], features[-(-len(y) // 2) :]

    names = sorted(SIZES)
    for i, first in enumerate(names):
        for j, second in enumerate(names[:i]):
            both, count = (
                (halves(second), halves(first)),
                min(SIZES[first], SIZES[second]) // 2,
            )
            told = []
            for half in (0, 1):
                shared, best = np.zeros(FEATURES + 1), 0.0
                for _ in range(ROUNDS + 1):
                    scores = [
                        side * (rows_of[1 - half] @ shared)
                        for rows_of, side in zip(both, (1, -1), strict=True)
                    ]
                    best = max(
                        best, sum(np.mean((s > 0) + 0.5 * (s == 0)) for s in scores)
                    )
                    ends = []
                    for rows_of, side in zip(both, (1, -1), strict=True):
                        w, velocity, seen = shared, 0.0, rows_of[half][:count]
                        for _ in range(STEPS):
                            error = side / (1 + np.exp(side * (seen @ w)))
                            velocity = MOMENTUM * velocity + error @ seen / count
                            w = w + RATE * velocity
                        ends.append(w)
                    shared = np.mean(ends, 0)
                told.append(best)
            assert float(apart[i, j]) == pytest.approx(
                max(0.0, np.mean(told) - 1), abs=1e-9
            )


# ---- the partition


def every_partition(n):
    """Labels of all partitions of n clients, each once."""
    if n == 0:
        yield []
        return
    for smaller in every_partition(n - 1):
        for label in range(max(smaller, default=-1) + 2):
            yield [*smaller, label]


@pytest.mark.in_turn(but=("2", "4"))
@pytest.mark.parametrize("n", [2, 4, 7])
def test_the_search_finds_the_best_of_all_partitions(n):
    stream = torch.Generator().manual_seed(n)
    for _ in range(10):
        sizes = torch.randint(20, 500, (n,), generator=stream).double()
        apart = torch.rand(n, n, generator=stream, dtype=torch.float64).square() / 5
        apart = ((apart + apart.T) / 2).fill_diagonal_(0.0)
        least = min(
            objective(torch.tensor(labels), sizes, apart)
            for labels in every_partition(n)
        )
        found = objective(partition(sizes, apart, 1.0, stream), sizes, apart)
        assert found == pytest.approx(least, rel=1e-12)


def test_partitions_by_hand():
    stream = torch.Generator().manual_seed(0)
    sizes, apart = [100.0] * 3, [[0, 0.04, 1], [0.04, 0, 1], [1, 1, 0]]
    assert partition(sizes, apart, 1.0, stream).tolist() == [0, 0, 1]
    assert objective(torch.tensor([0, 0, 1]), sizes, apart) == pytest.approx(
        0.28142, abs=5e-6
    )
    assert objective(torch.tensor([0, 1, 2]), sizes, apart) == pytest.approx(0.3)
    for distance, together in (
        (0.058, [0, 0]),
        (0.059, [0, 1]),
    ):  # 2 (1 / sqrt(100) - 1 / sqrt(200)) = .0586
        pair = [[0, distance], [distance, 0]]
        assert partition([100.0, 100.0], pair, 1.0, stream).tolist() == together
    assert partition(sizes, torch.zeros(3, 3), 1.0, stream).tolist() == [0, 0, 0]
    assert partition(sizes, apart, 0.0, stream).tolist() == [0, 1, 2]


def test_a_client_that_joined_too_early_leaves_for_a_coalition_of_its_own():
    """From all clients alone; in some orders the two large ones meet before the small one comes."""
    apart = [[0, 0.02, 0.1], [0.02, 0, 0.2], [0.1, 0.2, 0]]
    for seed in range(6):
        stream = torch.Generator().manual_seed(seed)
        assert partition(
            [400.0, 10.0, 400.0], apart, 1.0, stream, restarts=1
        ).tolist() == [0, 0, 1]


@pytest.mark.parametrize(("sizes", "apart", "sentence"), [
    ([1.0, 0.0], [[0, 1], [1, 0]], "sizes must be > 0"),
    ([1.0, 2.0], [[0, 1]], r"divergences must be \[2, 2\]"),
    ([1.0, 2.0], [[1, 1], [1, 0]], "0 on the diagonal"),
])  # fmt: skip
def test_bad_numbers_are_refused(sizes, apart, sentence):
    with pytest.raises(ValueError, match=sentence):
        objective(torch.tensor([0, 1]), sizes, apart)


def test_bad_settings_are_refused_with_the_reason(capsys, tmp_path):
    sentence = "FedCollab.complexity must be a number >= 0; got -1"
    with pytest.raises(InputError, match=sentence):
        FedCollab(complexity=-1)
    assert_refused_by_the_command(
        "fedcollab", "fedcollab.complexity=-1", sentence, capsys, tmp_path
    )


@pytest.mark.in_turn
def test_a_coalition_averages_its_clients_alone():
    problem = logistic()
    found = run(FedCollab(MINI, complexity=0.9), problem, 2)
    cluster = found.state.cluster
    assert 1 < len(cluster.unique()) < 5
    for group in cluster.unique().tolist():
        members = [
            n
            for n, c in zip(found.state.names, cluster.tolist(), strict=True)
            if c == group
        ]
        alone = run(
            FedAvg(MINI),
            problem.with_clients(
                type(problem.clients)([problem.clients[n] for n in members])
            ),
            2,
        )
        assert all(torch.equal(found.models[n], alone.x) for n in members)

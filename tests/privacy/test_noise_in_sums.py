"""Noise by row under [secure]: each client adds a part of it as integers, and the sum alone has the whole."""

from __future__ import annotations

import math
from statistics import NormalDist, fmean

import numpy as np
import pytest
import torch
from test_the_audit import bound
from torch import nn

import coterie as ct
from coterie.base.errors import InputError
from coterie.base.privacy import epsilon_of, noise_multiplier
from coterie.compute import row_noise
from coterie.compute.discrete_gaussian import discrete_gaussian
from coterie.compute.tasks import local_update, own_update, row_sum
from coterie.contract.federation import Federation
from coterie.contract.fixed_point import NOISE_BITS, NoisyGrid
from coterie.contract.wire import PerClient
from coterie.run.experiment import Experiment

pytest.importorskip(
    "cryptography",
    reason="secure sums need cryptography: pip install 'coterie[secure]'",
)
ROWS = {"a": 30, "b": 20, "c": 50, "d": 7, "e": 13}
NOISE = ct.RowNoise(3.0, clip=0.5)
ONE_STEP = ct.LocalSGD(
    lr=0.5, batch_size=None, steps=ct.Steps(1), weight_decay=0.01, private=NOISE
)


def words_of(seed=0):
    generator = np.random.default_rng(seed)
    return lambda count: generator.integers(0, 2**64, count, dtype=np.uint64)


def clients_of(features, rows=ROWS, seed=0):
    draw = torch.Generator().manual_seed(seed)
    made = {}
    for name, count in rows.items():
        inputs = torch.randn(count, features, generator=draw)
        made[name] = {"train": (inputs, (inputs[:, 0] > 0).long())}
    return ct.data.from_tensors(made)


def opened(features=4, rows=ROWS):
    module = nn.Linear(features, 1)
    nn.init.constant_(module.weight, 0.1)
    nn.init.constant_(module.bias, -0.5)
    return ct.InProcess().open(clients_of(features, rows), module, "binary")


def federation_of(engine, threshold=None):
    secure = None if threshold is None else ct.SecureSums(threshold)
    return Federation(engine, engine.clients, round=1, secure=secure)


# ---- the noise


@pytest.mark.parametrize("bits", [0, 1, 3])
def test_integers_have_the_probabilities_of_the_discrete_normal_distribution(bits):
    count, sigma = 200_000, 2**bits
    drawn = discrete_gaussian(count, bits, words_of())
    values = np.arange(-8 * sigma, 8 * sigma + 1)
    shares = np.exp(-(values**2) / (2 * sigma**2))
    expected = count * shares / shares.sum()
    found = np.array([(drawn == value).sum() for value in values])
    common = expected > 20
    chi_square = ((found - expected) ** 2 / expected)[common].sum()
    freedom = common.sum() - 1
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom)


def test_fine_integers_are_normal():
    drawn = discrete_gaussian(100_000, NOISE_BITS, words_of()) / 2**NOISE_BITS
    below = np.array([NormalDist().cdf(value) for value in np.sort(drawn)])
    places = (np.arange(len(below)) + 0.5) / len(below)
    # Kolmogorov and Smirnov: beyond 2 / sqrt(n) once in 1,500 samples.
    assert np.abs(below - places).max() < 2 / math.sqrt(len(below))


@pytest.mark.promise("secure sums")
def test_one_row_moves_the_integers_no_further_than_the_grid_says():
    """Over every row of a client, at a clip that each row exceeds; the noise of both tables is the same, and goes."""
    grid = NoisyGrid(NOISE, parties=3, dim=5)
    draw = torch.Generator().manual_seed(3)
    inputs = 9 * torch.randn(12, 4, generator=draw)
    labels = (inputs[:, 1] > 0).long()

    def told(rows):
        tables = {name: {"train": (inputs[rows], labels[rows])} for name in "abc"}
        engine = ct.InProcess().open(
            ct.data.from_tensors(tables), nn.Linear(4, 1), "binary"
        )
        replies = federation_of(engine).ask(
            "a",
            row_sum,
            x=torch.full((5,), 0.1),
            noise=NOISE,
            parties=3,
            factors=PerClient(torch.ones(1, dtype=torch.float64)),
        )
        engine.close()
        return replies.words[0].double()

    everybody = told(list(range(12)))
    reaches = []
    for left_out in range(12):
        others = told([row for row in range(12) if row != left_out])
        reaches.append(float((everybody - others).norm()))
    limit = NOISE.clip / grid.step + math.sqrt(grid.dim)
    assert max(reaches) <= limit
    assert max(reaches) > 0.9 * limit


# ---- the sum


@pytest.mark.promise("secure sums")
@pytest.mark.parametrize("by", ["rows", "clients"])
def test_a_step_is_made_of_the_sum_of_what_clients_send_bit_for_bit(by):
    engine, threshold = opened(), 3
    names, sizes = engine.clients, engine.sizes("train")
    weights = {name: float(sizes[name]) for name in names}
    task, asked = local_update, None
    if by == "clients":
        weights, task, asked = dict.fromkeys(names, 1.0), own_update, torch.ones(5)
    per_row = torch.tensor(
        [weights[name] / sizes[name] for name in names], dtype=torch.float64
    )
    sent = federation_of(engine).ask(
        names,
        row_sum,
        x=engine.x,
        noise=NOISE,
        parties=threshold,
        factors=PerClient(per_row / per_row.max()),
    )
    grid = NoisyGrid(NOISE, threshold, len(engine.x))
    total = sent.words.numpy().view(np.uint64).sum(0, dtype=np.uint64)
    gradient = grid.decode(total) * per_row.max() / sum(weights.values())
    expected = -0.5 * (gradient + 0.01 * engine.x.double())
    average = federation_of(engine, threshold).average(
        names, task, weights=asked, x=engine.x, local=ONE_STEP
    )
    assert torch.equal(average.delta, expected.to(engine.x))
    assert average.fields.keys() == task.kinds.keys()
    engine.close()


@pytest.mark.promise("secure sums")
def test_the_sum_has_the_noise_once_and_a_client_a_part_of_it():
    """On 4,001 numbers: without clients that fail, and with as many as may fail, when the least noise is left."""
    engine, threshold = opened(4000), 3
    names = engine.clients
    plain = ct.LocalSGD(
        lr=1.0, batch_size=None, steps=ct.Steps(1), private=ct.RowNoise(0.0, NOISE.clip)
    )
    noisy = ct.LocalSGD(lr=1.0, batch_size=None, steps=ct.Steps(1), private=NOISE)
    whole = NOISE.noise_multiplier * NOISE.clip
    for present in (names, names[:3]):
        rows = sum(engine.sizes("train")[name] for name in present)
        exact = federation_of(engine).average(
            present, local_update, x=engine.x, local=plain
        )
        masked = federation_of(engine, threshold).average(
            present, local_update, x=engine.x, local=noisy
        )
        deviation = float(rows * (masked.delta - exact.delta).std())
        expected = whole * math.sqrt(len(present) / threshold)
        assert deviation == pytest.approx(expected, rel=0.05)
    engine.close()


def site_rows(rng, count, slopes):
    inputs = rng.normal(size=(count, len(slopes)))
    labels = rng.random(count) < 1 / (1 + np.exp(-inputs @ slopes))
    return inputs.astype(np.float32), labels.astype(np.int64)


@pytest.mark.in_turn
def test_a_masked_run_of_epsilon_1_is_as_good_as_one_with_central_noise():
    """Each site adding the whole noise is worse. Means over seeds, on rows of nobody."""
    rng = np.random.default_rng(0)
    slopes = rng.normal(0, 2 / math.sqrt(8), 8)
    sites = {f"site-{k}": {"train": site_rows(rng, 150, slopes)} for k in range(6)}
    inputs, labels = site_rows(rng, 4000, slopes)
    parts = [site["train"] for site in sites.values()]
    pooled = tuple(np.concatenate(column) for column in zip(*parts, strict=True))
    rounds = 20
    z = noise_multiplier(1.0, 1e-4, rounds)

    def loss(tables, secure, multiplier):
        local = ct.LocalSGD(
            lr=1.0,
            batch_size=None,
            steps=ct.Steps(1),
            private=ct.RowNoise(multiplier, clip=1.0),
        )
        losses = []
        for seed in range(8):
            run = ct.fit(
                ct.FedAvg(local),
                ct.data.from_tensors(tables),
                "logistic",
                rounds=rounds,
                seed=seed,
                settings=ct.RunSettings(secure=secure, evaluate=rounds),
            )
            score = torch.from_numpy(inputs) @ run.x[:-1] + run.x[-1]
            target = torch.from_numpy(labels).float()
            losses.append(
                float(nn.functional.binary_cross_entropy_with_logits(score, target))
            )
        return fmean(losses)

    secure = ct.SecureSums(threshold=6)
    central = loss({"all": {"train": pooled}}, None, z)
    masked = loss(sites, secure, z / secure.hidden_noise)
    each = loss(sites, None, z)
    assert abs(masked - central) < 0.005
    assert each > central + 0.005


# ---- the account


def experiment(method="fedavg", **changed):
    tables = {
        "data": {"name": "heart-disease"},
        "run": {"rounds": 10},
        "local": {"steps": 1, "batch_size": "all"},
        "privacy": {"epsilon": 2.0, "delta": 1e-4},
        "secure": {"threshold": 4},
        "methods": [{"name": "local"}, {"name": method}],
        **changed,
    }
    return Experiment.from_tables(tables, "x.toml")


@pytest.mark.parametrize("curious", [1, 3])
def test_an_epsilon_counts_the_noise_that_curious_clients_do_not_know(curious):
    made = experiment(secure={"threshold": 4, "curious": curious})
    noise = made.build_method(made.methods[1]).local.private
    kept = math.sqrt((4 - curious) / 4)
    alone = noise_multiplier(2.0, 1e-4, 10)
    assert noise.noise_multiplier == pytest.approx(alone / kept)
    assert any("epsilon 2 for fedavg" in note for note in made.notes)


def test_the_table_and_the_masks_run_together(tmp_path):
    run = ct.compare(
        ["local", ct.FedAvg(ONE_STEP)],
        clients_of(4),
        rounds=2,
        seeds=1,
        settings=ct.StudySettings(secure=ct.SecureSums(3)),
        folder=tmp_path,
    )
    assert run is not None
    first, second = (
        ct.fit(
            ct.FedAvg(ONE_STEP),
            clients_of(4),
            "logistic",
            rounds=2,
            settings=ct.RunSettings(secure=ct.SecureSums(3)),
        ).x
        for _ in range(2)
    )
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"secure": {}}, "threshold = 3"),
        ({"secure": {"threshold": 4, "curious": 4}}, "below threshold = 4"),
        ({"local": {"steps": 2, "batch_size": "all"}}, "set steps = 1"),
        (
            {"local": {"steps": 1, "batch_size": "all", "momentum": 0.9}},
            "no momentum",
        ),
        (
            {"local": {"steps": 1, "batch_size": "all", "optimiser": "adam"}},
            "optimiser = 'sgd'",
        ),
        ({"method": "fedprox"}, "proximal_update is no sum over rows"),
    ],
)
def test_what_is_no_sum_over_rows_is_refused_with_the_cure(changed, why):
    with pytest.raises(InputError, match=why):
        experiment(**changed)


def fit(local=ONE_STEP, **options):
    settings = ct.RunSettings(secure=ct.SecureSums(3))
    return ct.fit(
        ct.FedAvg(local), clients_of(4), "logistic", settings=settings, **options
    )


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"filters": [ct.Clip(1.0)]}, "no filter changes"),
        ({"attack": ct.attacks.SignFlip(on=("a",))}, "SignFlip changes updates"),
        (
            {
                "local": ct.LocalSGD(
                    batch_size=None,
                    steps=ct.Steps(1),
                    private=ct.RowNoise(1e-15, clip=1.0),
                )
            },
            "no room for noise_multiplier",
        ),
        (
            {
                "local": ct.LocalSGD(
                    batch_size=None, steps=ct.Steps(1), private=ct.RowNoise(1e6)
                )
            },
            "too much for a sum behind masks",
        ),
    ],
)
def test_what_sums_of_integers_do_not_have_is_refused(options, why):
    with pytest.raises(InputError, match=why):
        fit(rounds=1, **options)


def test_who_drops_out_is_left_out():
    """An attack that makes a client fail changes no reply, and is taken."""
    run = fit(rounds=3, attack=ct.attacks.Dropout(on=("d",), p=1.0))
    assert run.failures.keys() == {"d"}
    assert bool(torch.isfinite(run.x).all())


# ---- an audit: whoever knows all other rows guesses from the sum of three clients whether a canary was among them


def sums_of_three(federations, noise):
    """What the sums [n] of as many federations say along the canary, which every second has; and the noise of their last client."""
    canary, other = torch.tensor([1e3, 0.0]), torch.tensor([0.0, 1.0])
    tables = {}
    for number in range(3 * federations):
        federation, member = divmod(number, 3)
        has_it = member == 0 and federation % 2 == 1
        inputs = torch.stack([canary if has_it else 0 * canary, other])
        tables[f"{number:06}"] = {"train": (inputs, torch.tensor([1, 0]))}
    module = nn.Linear(2, 1, bias=False)
    engine = ct.InProcess().open(ct.data.from_tensors(tables), module, "binary")
    names = engine.clients
    factors = PerClient(torch.ones(len(names), dtype=torch.float64))
    sent = federation_of(engine).ask(
        names, row_sum, x=torch.zeros(2), noise=noise, parties=3, factors=factors
    )
    engine.close()
    grid = NoisyGrid(noise, parties=3, dim=2)
    words = sent.words[:, 0].double().reshape(federations, 3) * grid.step
    # The canary has label 1, and its gradient points downhill.
    return -words.sum(1), -words[:, 2]


def audited(sums):
    without, with_canary = sums[0::2], sums[1::2]
    alarms = bound(int((without > 0.5).sum()), len(without))
    misses = bound(int((with_canary <= 0.5).sum()), len(with_canary))
    mu = -NormalDist().inv_cdf(alarms) - NormalDist().inv_cdf(misses)
    return epsilon_of(max(0.0, mu), 1e-5)


@pytest.mark.in_turn
@pytest.mark.promise("secure sums")
def test_no_guess_from_a_sum_is_better_than_claimed_and_the_best_is_near():
    secure = ct.SecureSums(threshold=3)
    z = noise_multiplier(8.0, 1e-5, 1) / secure.hidden_noise
    sums, of_curious = sums_of_three(800, ct.RowNoise(z, clip=1.0))
    assert 4.0 < audited(sums - of_curious) <= 8.0
    assert audited(sums) < audited(sums - of_curious)


def test_a_client_that_adds_less_noise_than_its_part_is_found(monkeypatch):
    whole = row_noise.discrete_gaussian
    monkeypatch.setattr(
        row_noise,
        "discrete_gaussian",
        lambda count, bits, draw: whole(count, bits, draw) // 3,
    )
    z = noise_multiplier(8.0, 1e-5, 1)
    sums, _ = sums_of_three(800, ct.RowNoise(z, clip=1.0))
    assert audited(sums) > 8.0

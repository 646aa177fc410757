"""Mean estimation, the synthetic task of the MeritFed papers (section 4.1 and appendix D.2).

A client has samples xi of its own distribution; the loss of a vector x [d] is ||x - xi||^2 averaged over d. The target
wants the mean of D1 = N(0, I), which 5 clients share; 95 have D2 = N(m2, I) close by, 50 have D3 = N(m3, I) far away.

The papers print m2 = mu * (1, ..., 1) and a random unit vector m3: `printed = true`. Otherwise the means are those of the authors'
code, on which the reference numbers rest: |m2| = mu, so m2 = mu * (1, ..., 1) / sqrt d, and m3 = (0, 1, 0, 1, ...) of norm 1.

`centres` makes the toy of the MaxFL paper (appendix A) instead: two or three clients (or more), each with one sample of
N(centre, 1), which stands for its empirical mean and is what its local training ends with. Its one test row is the true
mean: the squared error of a model there is its true loss up to a constant, so that GM-appeal on test rows is the quantity of
Fig. 5 and 6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.base.clients import Clients
from coterie.base.errors import InputError, require
from coterie.base.rng import Rng, generator
from coterie.base.rows import Part, Rows, offsets_from_sizes
from coterie.config.data import Split, table_of
from coterie.config.rules import COUNT, is_number
from coterie.data.sets import Dataset
from coterie.data.splits import number_names

TARGET = "d1-000"
"""The client whose mean is wanted, and the only one with validation rows."""


def means(mu: float, dim: int = 10) -> NDArray[np.float64]:
    """The means of D1, D2 and D3 in the authors' code, [3, dim].

    >>> [round(float(np.linalg.norm(m)), 3) for m in means(.01)]
    [0.0, 0.01, 1.0]
    """
    ones, alternating = np.ones(dim), np.arange(dim) % 2
    return np.stack(
        [
            np.zeros(dim),
            mu * ones / np.sqrt(dim),
            alternating / np.linalg.norm(alternating),
        ]
    )


def printed_means(mu: float, dim: int, seed: int) -> NDArray[np.float64]:
    """The means of D1, D2 and D3 as section 4.1 prints them, [3, dim]; the third is uniform on the sphere.

    >>> [round(float(np.linalg.norm(m)), 3) for m in printed_means(.01, 10, 0)]
    [0.0, 0.032, 1.0]
    """
    far = generator(seed, "mean-estimation", "third mean").standard_normal(dim)
    return np.stack([np.zeros(dim), mu * np.ones(dim), far / np.linalg.norm(far)])


def mean_estimation(
    *,
    seed: int = 0,
    split: Split | Mapping[str, Any] | None = None,
    mu: float = 0.01,
    groups: Sequence[int] = (5, 95, 50),
    samples: int = 1000,
    validation: int = 1000,
    test: int = 1000,
    dim: int = 10,
    printed: bool = False,
    centres: Sequence[float] | None = None,
) -> Clients:
    """Clients d1-000 (the target), d1-001, ..., d2-000, ..., d3-000, ...; inputs and labels are both the samples.

    Fresh samples of any client can be drawn while a run goes on (`Clients.draw`), apart from all that are stored.

    Args:
        seed: seed of the samples; a client's samples depend on nothing but seed and name.
        split: only its key `seed` applies.
        mu: norm of the mean of D2, or, with `printed`, each of its coordinates.
        groups: number of clients with D1, D2 and D3.
        samples: training rows per client.
        validation: more rows of the target, for choosing weights.
        test: more rows per client, for evaluation; 0 for none.
        dim: dimension d of a sample, at least 2.
        printed: take the means of D2 and D3 as the papers print them, not as in the authors' code.
        centres: true means of clients with one scalar sample each (client-0, ...); the other options do not apply.
    """
    rule = Split.parse(split, natural="mean-estimation")
    require(
        set(table_of(split)) <= {"seed"},
        "[split] parts does not apply to mean-estimation; set samples and test",
    )
    if centres is not None:
        return _scalars(centres, rule.seed_for(seed))
    _check(
        mu,
        groups,
        {
            "samples": (samples, 1),
            "validation": (validation, 0),
            "test": (test, 0),
            "dim": (dim, 2),
        },
    )
    if not isinstance(printed, bool):
        raise InputError(f"printed = {printed!r} must be true or false")
    split_seed = rule.seed_for(seed)
    three_means = printed_means(mu, dim, split_seed) if printed else means(mu, dim)
    centre = three_means.astype(np.float32)
    names = [f"d{g + 1}-{i:03d}" for g, size in enumerate(groups) for i in range(size)]
    if max(groups) > 1000:
        names.sort()

    def draw(part: str, sizes: Sequence[int]) -> Rows | None:
        if not sum(sizes):
            return None
        rows = []
        for name, size in zip(names, sizes, strict=True):
            rng = generator(split_seed, "mean-estimation", part, name)
            noise = rng.standard_normal((size, dim), dtype=np.float32)
            rows.append(noise + centre[int(name[1]) - 1])
        xi = torch.from_numpy(np.concatenate(rows))
        return Rows(xi, xi, offsets_from_sizes(sizes))

    def fresh(name: str, count: int, rng: Rng) -> Part:
        noise = torch.randn(count, dim, generator=rng.generator())
        xi = noise + torch.from_numpy(centre[int(name[1]) - 1])
        return Part(xi, xi)

    # `samples` and `groups[0]` are at least 1, so that there are training rows.
    train = cast("Rows", draw("train", [samples] * len(names)))
    validation_sizes = [validation if name == TARGET else 0 for name in names]
    clients = Clients.from_indices(
        names,
        train,
        draw("validation", validation_sizes),
        draw("test", [test] * len(names)),
        name="mean-estimation",
        notes=[f"the target is {TARGET}; the mean that it looks for is 0"],
    )
    return clients.with_draw(fresh)


def _scalars(centres: Any, seed: int) -> Clients:
    if (
        not isinstance(centres, list | tuple)
        or len(centres) < 2
        or not all(map(is_number, centres))
    ):
        raise InputError(
            f"centres = {centres!r} must be a list of at least two numbers, the true means of the clients"
        )
    names = number_names(len(centres))
    drawn = [
        c + generator(seed, "centres", n).standard_normal()
        for n, c in zip(names, centres, strict=True)
    ]
    train, test = (
        torch.tensor(rows, dtype=torch.float32)[:, None]
        for rows in (drawn, list(centres))
    )
    offsets = np.arange(len(names) + 1)
    note = "one sample per client, its empirical mean; the test row is its true mean"
    rows = Rows(train, train, offsets), None, Rows(test, test, offsets)
    return Clients.from_indices(names, *rows, name="mean-estimation", notes=[note])


def _check(mu: Any, groups: Any, sizes: Mapping[str, tuple[Any, int]]) -> None:
    if not is_number(mu) or mu < 0:
        raise InputError(f"mu = {mu!r} must be a number of at least 0")
    if (
        not isinstance(groups, list | tuple)
        or len(groups) != 3
        or not all(map(COUNT.test, groups))
        or groups[0] < 1
    ):
        raise InputError(
            f"groups = {groups!r} must be three whole numbers of clients, the first at least 1"
        )
    for key, (value, low) in sizes.items():
        if not COUNT.test(value) or value < low:
            raise InputError(
                f"{key} = {value!r} must be a whole number of at least {low}"
            )


DATASET = Dataset(
    "MeritFed's synthetic task: whose samples have my mean?",
    "150 in groups of 5, 95 and 50; the target is d1-000",
    "the mean of 10-dimensional normal samples",
    "none needed (drawn from the seed)",
    mean_estimation,
    {
        "mu": 0.01,
        "groups": [5, 95, 50],
        "samples": 1000,
        "validation": 1000,
        "test": 1000,
        "dim": 10,
        "printed": False,
        "centres": None,
    },
)

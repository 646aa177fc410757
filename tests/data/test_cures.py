"""Every cure that is printed is accepted when it is typed, and leads to the same federation as folder, as table and as frames."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from defects import DEFECTS, draw, federation, follow, ways

import coterie as ct
from coterie.base.cures import Cure
from coterie.base.errors import InputError
from coterie.config.data import Tables

FEW, MANY = range(30), range(30, 530)


def follow_all_ways(seed, folder):
    names, cells = draw(seed)
    endings = {
        way: follow(load, seed, cells) for way, load in ways(cells, folder).items()
    }
    reference = endings["folder"]
    for way, ending in endings.items():
        said = f"seed {seed} ({', '.join(names)}) as {way}"
        assert ending.answers == reference.answers, said
        assert (ending.clients is None) == (reference.clients is None), said
        assert ending.sentence == reference.sentence, said
        if ending.clients is not None:
            assert ending.clients.names == reference.clients.names, said
            for ours, theirs in zip(ending.clients, reference.clients, strict=True):
                for (part, mine), (_, its) in zip(
                    ours.parts(), theirs.parts(), strict=True
                ):
                    assert torch.equal(mine.inputs, its.inputs), (said, part)
                    assert torch.equal(mine.labels, its.labels), (said, part)


@pytest.mark.parametrize("seed", FEW)
def test_every_cure_is_accepted_in_all_ways(seed, tmp_path):
    pytest.importorskip("pandas")
    follow_all_ways(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", MANY)
def test_every_cure_of_many_defects_is_accepted_in_all_ways(seed, tmp_path):
    pytest.importorskip("pandas")
    follow_all_ways(seed, tmp_path)


@pytest.mark.parametrize("way", ["folder", "table", "frames"])
def test_a_comparison_asks_in_every_way(way, tmp_path):
    pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    cells = federation(rng)
    DEFECTS["zeros"](cells, rng)
    clients = ways(cells, tmp_path)[way](Tables(label="y"))
    with pytest.raises(InputError, match="zeros in front; are they codes") as caught:
        ct.compare(["local"], clients, rounds=1, seeds=1)
    cure, other = caught.value.cures
    assert (cure, other) == (Cure("categorical", ["extra"]), Cure("keep", ["extra"]))
    clients = ways(cells, tmp_path / "again")[way](Tables(**cure.merge({"label": "y"})))
    assert clients.questions == ()

"""`coterie attack`: a dishonest server of our own, which must find rows where checks are off and where a plan lets it."""

from __future__ import annotations

import pytest
from hospital import FEDAVG, Hospital

from coterie.sites.attack import attack

CLIP, NOISE = {"name": "clip", "bound": 1.0}, {"name": "gaussian-noise", "sigma": 0.1, "secret": True}
LOCAL = FEDAVG["local"]
WIDE = {"model": {"name": "mlp", "hidden": [32]}}
MERITFED = {"name": "meritfed", "local": LOCAL}
FOUR = {"deploy": {"sites": ["hungary", "a", "b", "c"]}}


def found(folder, method=FEDAVG, settings=None, **plan):
    hospital = Hospital(folder, methods=[method], rounds=10, settings=settings, **plan)
    return list(attack(hospital.approved, hospital.settings, "hungary"))


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "median"])
def test_behind_clip_and_secret_noise_it_finds_no_row_in_the_whole_budget(tmp_path, name):
    every = found(tmp_path, {"name": name, "local": LOCAL}, filters=[CLIP, NOISE])
    assert [one.rows for one in every] == [0, 0]
    assert every[1].requests == 30  # three runs of ten rounds, one model each


def test_with_a_budget_of_requests_and_not_of_models_it_finds_most_rows(tmp_path, monkeypatch):
    """As before models were counted: noise for each request, as many models as fit into it."""
    from coterie.contract.requests import Asks
    from coterie.sites.rows import SiteRows

    few = found(tmp_path, MERITFED, **FOUR)
    monkeypatch.setattr(SiteRows, "_spend", lambda *about: None)
    monkeypatch.setattr(Asks, "most_models", lambda self, clients: 40)
    (tmp_path / "many").mkdir()
    many = found(tmp_path / "many", MERITFED, **FOUR)
    rows = [max(one.rows for one in every if "local_updates" in one.way) for every in (few, many)]
    assert rows[1] > 2 * rows[0]
    assert rows[1] > 80
    assert max(one.luck for one in (*few, *many)) == 0


def test_a_hidden_layer_shows_rows_and_is_refused_without_secret_noise(tmp_path):
    from coterie.sites.allowed import RefusedError

    folders = [tmp_path / name for name in ("refused", "lifted", "noisy")]
    for folder in folders:
        folder.mkdir()
    with pytest.raises(RefusedError, match="a hidden layer of 32 units, in whose updates rows can be read"):
        found(folders[0], **WIDE)
    lifted = found(folders[1], settings={"largest_layer": 32}, **WIDE)
    assert lifted[1].rows >= 8
    assert lifted[1].luck == 0
    assert found(folders[2], filters=[CLIP, NOISE], **WIDE)[1].rows == 0


def test_recipes_that_break_above_a_value_are_found_where_nothing_is_checked(tmp_path, monkeypatch):
    import coterie.sites.rows

    (tmp_path / "off").mkdir()
    assert found(tmp_path)[0].rows == 0
    monkeypatch.setattr(coterie.sites.rows, "recipe_fits", lambda *about: None)
    monkeypatch.setattr(coterie.sites.rows, "within_reach", lambda table, recipe: table)
    assert found(tmp_path / "off")[0].rows > 3  # columns whose extremes a bisection would tell


def test_the_command_says_it_for_a_kit_and_an_approval_ends_with_it(tmp_path, capsys):
    from coterie.cli.main import main

    hospital = Hospital(tmp_path, rounds=3)
    where = [str(hospital.plan), "--settings", str(hospital.settings_file)]
    assert main(["attack", *where]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[-1].startswith("danger    a dishonest server could find ")
    assert main(["site", "approve", *where]) == 0
    assert lines[-1] in capsys.readouterr().out.splitlines()
    assert not (tmp_path / "kept" / "key").exists()  # nothing of the site's own was touched

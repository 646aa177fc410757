"""Rows that are split by time: the newest of each client are tested; a share that moves over the years is noted."""

from __future__ import annotations

import numpy as np
import pytest
from csv_files import folder, notes, rows

import coterie as ct
from coterie.base.errors import InputError
from coterie.config.data import Tables
from coterie.data import from_folder
from coterie.data.tables.check import check_folder

N = 150


def years(seed, change):
    """Rows of ten years in any order, and an outcome whose share changes by so much over them."""
    rng = np.random.default_rng(seed)
    year = rng.integers(2010, 2020, N)
    share = 0.3 + change * (year - 2010) / 9
    y = (rng.random(N) < share).astype(int)
    return {"year": year, "x": rng.normal(size=N).round(3), "y": y}


@pytest.fixture
def moving(tmp_path):
    tables = {name: rows(**years(i, 0.6)) for i, name in enumerate("abc")}
    return folder(tmp_path, **tables)


def test_the_newest_rows_are_tested(moving):
    clients = from_folder(moving, label="y", tables=Tables(split_time="year"))
    assert clients.recipe["features"] == ["x"]
    for i, client in enumerate(clients):
        year = years(i, 0.6)["year"]
        tested = np.zeros(N, dtype=bool)
        tested[client.test_numbers] = True
        assert tested.sum() == N / 3
        assert year[tested].min() >= year[~tested].max()


@pytest.mark.parametrize(
    "write",
    [
        lambda year: f"{year}-03-01",
        lambda year: f"1.3.{year}",
        lambda year: f"{year}0301",
        lambda year: f"{year}-03-01 12:30",
    ],
)
def test_dates_say_the_same_as_years(tmp_path, write):
    def load(to_cell):
        for i, name in enumerate("ab"):
            columns = years(i, 0)
            columns["year"] = [to_cell(year) for year in columns["year"]]
            folder(tmp_path, **{name: rows(**columns)})
        return from_folder(tmp_path, label="y", tables=Tables(split_time="year"))

    assert load(write).fingerprint() == load(str).fingerprint()


def test_dates_of_frames_and_parquet_say_the_same(tmp_path):
    pd = pytest.importorskip("pandas")
    frame, tables = pd.DataFrame(years(0, 0)), Tables(label="y", split_time="year")
    expected = ct.data.from_frames({"a": frame}, tables=tables)
    dated = frame.assign(year=pd.to_datetime(frame["year"].astype(str)))
    found = ct.data.from_frames({"a": dated}, tables=tables)
    assert found.fingerprint() == expected.fingerprint()
    dated.to_parquet(tmp_path / "a.parquet")
    found = from_folder(tmp_path, tables=tables)
    assert found.fingerprint() == expected.fingerprint()


def test_a_share_that_moves_within_clients_is_noted(moving, tmp_path):
    said = "to test on the newest rows, say split_time = "
    assert f'{said}"year"' in notes(from_folder(moving, label="y"))
    assert f'{said}"year"' in "; ".join(check_folder(moving, label="y").notes)


@pytest.mark.parametrize("seed", range(10))
def test_clients_of_other_years_and_shares_have_no_trend(tmp_path, seed):
    """Each client has its own share and its own years; within a client nothing moves."""
    for i, name in enumerate("abc"):
        rng = np.random.default_rng([seed, i])
        year = rng.integers(2000 + 6 * i, 2006 + 6 * i, N)
        y = (rng.random(N) < 0.2 + 0.25 * i).astype(int)
        folder(tmp_path, **{name: rows(year=year, x=rng.normal(size=N), y=y)})
    assert "newest" not in notes(from_folder(tmp_path, label="y"))


@pytest.mark.parametrize(
    ("change", "settings", "sentence"),
    [
        ({"year": ["1/2/2013"] * N}, {}, r"must hold numbers, or dates with the year"),
        (
            {"year": ["", *["2013"] * (N - 1)]},
            {},
            r"is missing in data row 1; say when",
        ),
        ({"year": ["old"] * N}, {}, r"must hold numbers, or dates"),
        ({}, {"split_time": "yaer"}, r"no column 'yaer' \(split_time\); did you mean"),
        ({}, {"split_column": "x"}, r"split_time and split_column both say"),
        ({}, {"group": "x"}, r"split_time and group both say"),
        ({}, {"split": {"folds": 3}}, r"set folds = 0, or drop split_time"),
    ],
)
def test_times_that_say_nothing_are_refused(tmp_path, change, settings, sentence):
    folder(tmp_path, a=rows(**{**years(0, 0), **change}))
    with pytest.raises(InputError, match=sentence):
        ct.data.load(tmp_path, **{"label": "y", "split_time": "year", **settings})

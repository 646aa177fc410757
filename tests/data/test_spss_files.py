"""Tables of SPSS, Stata and packed CSV say the same as those of plain CSV."""

from __future__ import annotations

import importlib.util

import numpy as np
import pandas as pd
import pytest
import torch

import coterie as ct


def table(seed, n=60):
    rng = np.random.default_rng(seed)
    age = rng.normal(60, 9, n).round(1)
    sex = np.where(rng.random(n) < 0.5, "f", "m")
    died = (rng.random(n) < 1 / (1 + np.exp(-(age - 60) / 6))).astype(float)
    return pd.DataFrame({"age": age, "sex": sex, "died": died})


def write(folder, suffix):
    folder.mkdir()
    for i, name in enumerate(("east", "north")):
        path = folder / f"{name}{suffix}"
        if suffix == ".dta":
            table(i).to_stata(path, write_index=False)
        elif suffix == ".sav":
            import pyreadstat

            pyreadstat.write_sav(table(i), str(path))
        else:
            table(i).to_csv(path, index=False)
    return ct.data.from_folder(folder, label="died")


@pytest.mark.parametrize("suffix", [".csv.gz", ".dta", ".sav"])
def test_every_form_of_a_file_gives_the_same_rows(tmp_path, suffix):
    if suffix == ".sav" and importlib.util.find_spec("pyreadstat") is None:
        (tmp_path / "t").mkdir()
        (tmp_path / "t" / "east.sav").write_bytes(b"$FL2")
        with pytest.raises(ct.InputError, match="pyreadstat") as refused:
            ct.data.from_folder(tmp_path / "t", label="died")
        assert "coterie[data]" in str(refused.value)
        return
    found, plain = write(tmp_path / "t", suffix), write(tmp_path / "c", ".csv")
    assert found.recipe["features"] == plain.recipe["features"]
    assert torch.equal(found.train.inputs, plain.train.inputs)
    assert torch.equal(found.train.labels, plain.train.labels)


def test_a_broken_file_of_spss_is_refused_in_a_sentence(tmp_path):
    (tmp_path / "east.sav").write_bytes(b"$FL2@(#) nothing")
    with pytest.raises(ct.InputError, match=r"SPSS"):
        ct.data.from_folder(tmp_path, label="died")

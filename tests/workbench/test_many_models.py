"""More models than sixteen of one method and seed lie in one file, and each client is predicted for with its own."""

from __future__ import annotations

import numpy as np
import pytest

import coterie as ct
from coterie.base.errors import InputError
from coterie.cli.main import main
from coterie.run.model_files import load_model_file, open_model_file


def test_many_models_of_a_method_lie_in_one_file(tmp_path):
    rng, tables = np.random.default_rng(0), tmp_path / "tables"
    tables.mkdir()
    for number in range(17):
        rows = rng.normal(size=(20, 2)).round(3)
        lines = ["a,b,y", *(f"{a},{b},{int(a * (-1) ** number > 0)}" for a, b in rows)]
        (tables / f"h{number:02d}.csv").write_text("\n".join(lines) + "\n")
    run = tmp_path / "run"
    ct.compare(["local"], {"folder": str(tables), "label": "y"}, "logistic", 2, 1, folder=run)
    (path,) = (run / "models").glob("*.safetensors")
    first, last = (open_model_file(path, client)[0] for client in ("h00", "h16"))
    assert first.keys() == last.keys()
    assert any(not first[name].equal(last[name]) for name in first)
    with pytest.raises(InputError, match="holds the models of 17 clients"):
        load_model_file(path)
    told = []
    for client in ("h00", "h01"):
        assert (
            main(["predict", str(run), str(tables / "h00.csv"), "--client", client, "--out", str(tmp_path / client)])
            == 0
        )
        told.append((tmp_path / client).read_text())
    assert told[0] != told[1]

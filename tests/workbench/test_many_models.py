"""More models than sixteen of one method and seed lie in one file, and each client is predicted for with its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.base.errors import InputError
from coterie.cli.main import main
from coterie.run.model_files import load_model_file, open_model_file, save_models


def test_many_models_of_a_method_lie_in_one_file(tmp_path):
    rng, tables = np.random.default_rng(0), tmp_path / "tables"
    tables.mkdir()
    for number in range(17):
        rows = rng.normal(size=(20, 2)).round(3)
        lines = ["a,b,y", *(f"{a},{b},{int(a * (-1) ** number > 0)}" for a, b in rows)]
        (tables / f"h{number:02d}.csv").write_text("\n".join(lines) + "\n")
    run = tmp_path / "run"
    ct.compare(
        ["local"], {"folder": str(tables), "label": "y"}, "logistic", 2, 1, folder=run
    )
    (path,) = (run / "models").glob("*.safetensors")
    first, last = (open_model_file(path, client)[0] for client in ("h00", "h16"))
    assert first.keys() == last.keys()
    assert any(not first[name].equal(last[name]) for name in first)
    with pytest.raises(InputError, match="holds the models of 17 clients"):
        load_model_file(path)
    told = []
    for client in ("h00", "h01"):
        assert (
            main(
                [
                    "predict",
                    str(run),
                    str(tables / "h00.csv"),
                    "--client",
                    client,
                    "--out",
                    str(tmp_path / client),
                ]
            )
            == 0
        )
        told.append((tmp_path / client).read_text())
    assert told[0] != told[1]


class Slashed(torch.nn.Module):
    """A linear model whose one parameter has a slash in its name."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterDict(
            {"in/out": torch.nn.Parameter(torch.zeros(2, 1))}
        )

    def forward(self, x):
        return x @ self.weights["in/out"]


def test_names_of_clients_and_of_entries_may_have_slashes(tmp_path):
    rows = {
        f"town/{k:02d}": (torch.randn(8, 2), torch.arange(8) % 2) for k in range(17)
    }
    clients = ct.data.from_tensors(rows)
    run = ct.fit(ct.Local(), clients, Slashed(), rounds=1)
    (path,) = save_models(tmp_path, "local", run, clients)
    for client in ("town/00", "town/16"):
        state, _ = open_model_file(path, client)
        assert state.keys() == run.module.state_dict().keys()
        assert all(
            value.equal(state[name]) for name, value in run.state_dict(client).items()
        )

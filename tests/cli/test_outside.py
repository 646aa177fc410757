"""A hospital that took no part: it is served the mean of the clients, and solves its own model at home under what they share."""

from __future__ import annotations

import html
import json
import re

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from coterie.base.errors import InputError
from coterie.cli.main import main
from coterie.data import apply_recipe
from coterie.data.sets.heart_disease import FOLDER
from coterie.report.html import write
from coterie.solvers import glm, pooling
from coterie.study.outside import own_mode, solve_own


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of four hospitals, and the model of one outside."""
    place = tmp_path_factory.mktemp("outside")
    options = [
        "--methods",
        "local,partial",
        "--rounds",
        "2",
        "--seeds",
        "1",
        "--folds",
        "2",
    ]
    run = place / "run"
    assert main(["compare", "heart-disease", *options, "--out", str(run)]) == 0
    outside = place / "outside"
    words = ["finalise", str(run), "--client", "outside", "--out", str(outside)]
    assert main(words) == 0
    return run, outside


def test_what_clients_share_lies_beside_the_models(finished):
    run, _ = finished
    path = run / "models" / "prior" / "partial-0-kall.safetensors"
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["coterie"])
    assert about["clients"] == ["cleveland", "hungary", "long-beach", "switzerland"]
    assert set(about["weights"]) == set(about["clients"])
    shapes = {name: tuple(value.shape) for name, value in tensors.items()}
    assert shapes["curvature"] == (4, 16, 16)
    assert shapes["shares"] == shapes["distance"] == (4, 4)
    assert shapes["mu"] == shapes["t"] == (15,)
    served = load_file(run / "models" / "partial-0-kall.safetensors")
    torch.testing.assert_close(served["weight"][0], tensors["mu"].float())
    torch.testing.assert_close(served["bias"], tensors["m0"].float())


def test_a_hospital_outside_is_predicted_by_the_mean(finished, capsys):
    run, outside = finished
    file = str(FOLDER / "hungary.csv")
    assert main(["predict", str(run), file, "--client", "outside"]) == 0
    by_run = capsys.readouterr()
    assert "partial for outside" in by_run.err
    assert main(["predict", str(outside), file]) == 0
    # The run's last training is on all rows, as that of `finalise` is.
    assert capsys.readouterr().out == by_run.out
    card = (outside / "card.md").read_text()
    assert "a hospital that took no part" in card
    assert "A hospital outside is served the mean of the models" in card
    assert "4 left out in turn" in card
    assert "| age |" in card
    assert "switzerland" in card


def test_the_report_says_what_a_hospital_outside_may_expect(finished, tmp_path):
    pytest.importorskip("jinja2")
    run, outside = finished
    page = html.unescape(write(run).read_text(encoding="utf-8"))
    page = page.replace("\u00a0", " ")  # where no line is to be broken
    card = (outside / "card.md").read_text()
    (said,) = re.findall(r"A hospital outside is served .* left out in turn\)", card)
    assert said in page


def test_own_rows_give_the_mode_under_the_prior(finished, tmp_path):
    _, outside = finished
    lines = (FOLDER / "hungary.csv").read_text().splitlines()
    own = tmp_path / "own.csv"
    own.write_text("\n".join(lines[:80]) + "\n")
    out = tmp_path / "mine"
    words = ["finalise", str(outside), "--client", "st-mary", "--own", str(own)]
    assert main([*words, "--out", str(out)]) == 0
    recipe = json.loads((outside / "preprocess.json").read_text())
    rows = apply_recipe(recipe, own)
    shared = load_file(outside / "prior.safetensors")
    precision = torch.cat([1 / shared["t"], (1 / shared["q0"]).reshape(1)])
    centre = torch.cat([shared["mu"], shared["m0"]])
    model = load_file(out / "model.safetensors")
    theta = torch.cat([model["weight"][0], model["bias"]]).double()
    moments = glm.moments(theta, rows.inputs, rows.labels, glm.FAMILIES["binary"])
    pull = precision * (theta - centre)
    torch.testing.assert_close(moments.gradient, pull, rtol=0, atol=1e-3)
    # A model of its own predicts for it.
    assert main(["predict", str(out), str(own)]) == 0


def test_rows_without_a_prior_or_a_label_are_refused(finished, tmp_path):
    run, outside = finished
    words = ["finalise", str(run), "--client", "cleveland", "--method", "local"]
    alone = tmp_path / "alone"
    assert main([*words, "--out", str(alone)]) == 0
    with pytest.raises(
        InputError, match=r"holds no prior\.safetensors.*--method partial"
    ):
        solve_own(alone, FOLDER / "hungary.csv", tmp_path / "x", client="new")
    bare = tmp_path / "bare.csv"
    header, *rest = (FOLDER / "hungary.csv").read_text().splitlines()
    cells = [line.rpartition(",")[0] for line in (header, *rest[:9])]
    bare.write_text("\n".join(cells) + "\n")
    with pytest.raises(InputError, match="num"):
        solve_own(outside, bare, tmp_path / "x", client="new")
    assert not (tmp_path / "x").exists()


def test_a_method_that_serves_nobody_outside_is_refused_before_training(
    finished, capsys
):
    run, _ = finished
    words = ["finalise", str(run), "--client", "outside", "--method", "local"]
    assert main(words) == 2
    assert "no model of 'local' for 'outside'" in capsys.readouterr().err
    assert (
        main(["predict", str(run), str(FOLDER / "hungary.csv"), "--client", "x"]) == 2
    )


def test_many_rows_outweigh_the_prior_and_none_leave_it():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(4000, 2, generator=generator).double()
    labels = inputs @ torch.tensor([2.0, -1.0]).double() + 0.5
    labels = labels + 0.1 * torch.randn(4000, generator=generator)
    tenth = torch.tensor(0.1, dtype=torch.float64)
    prior = pooling.Prior(
        torch.zeros(2).double(), tenth.expand(2), torch.zeros(1).double(), tenth, tenth
    )
    theta = own_mode(inputs, labels, "regression", 1, prior)
    np.testing.assert_allclose(theta, [2.0, -1.0, 0.5], atol=0.01)
    few = own_mode(inputs[:3], labels[:3], "regression", 1, prior)
    assert float(few.abs().sum()) < float(theta.abs().sum())

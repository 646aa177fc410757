"""A run directory holds what is frozen once for each method and seed, and everything that reads models still reads whole ones."""

from __future__ import annotations

import shutil
import sys

import pytest
import torch

import coterie as ct
from cli.commands import contents
from coterie.data.sets.heart_disease import export
from coterie.run.model_files import load_model_file
from coterie.study.finalise import finalise
from coterie.study.predict import predict
from coterie.study.tables import verify

WIDE = 400


@pytest.fixture(scope="module")
def arguments():
    return {
        "methods": ["local", "fedavg"],
        "clients": "heart-disease",
        "model": ct.models.MLP(hidden=(WIDE,)),
        "rounds": 1,
        "seeds": 1,
        "settings": ct.RunSettings(freeze=["0.*"]),
    }


@pytest.fixture(scope="module")
def run(arguments, tmp_path_factory):
    return ct.compare(
        **arguments, folder=tmp_path_factory.mktemp("frozen") / "run"
    ).folder


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables") / "hospitals"
    export(folder)
    return folder / "hungary.csv"


@pytest.fixture(scope="module")
def fitted(arguments):
    return ct.fit(
        "local", "heart-disease", arguments["model"], 1, settings=arguments["settings"]
    )


def test_what_is_frozen_is_written_once(run):
    sizes = {
        path.relative_to(run / "models").as_posix(): path.stat().st_size
        for path in (run / "models").rglob("*.*")
    }
    own = [size for name, size in sizes.items() if name.startswith("local-0-")]
    assert len(own) == 4
    trained = 4 * (WIDE + 1)
    assert max(own) < trained + 1000  # bytes: a header, and no row of the frozen layer
    assert sizes["frozen/local-0.safetensors"] > 10 * trained
    assert set(sizes) == {
        "fedavg-0.safetensors",  # one model alone stays whole
        "frozen/local-0.safetensors",
        *(
            f"local-0-{name}.safetensors"
            for name in ct.data.load("heart-disease").names
        ),
    }


def test_whole_models_are_read(run, fitted):
    for client in fitted.models:
        read, expected = (
            load_model_file(run / "models" / f"local-0-{client}.safetensors"),
            fitted.state_dict(client),
        )
        assert set(read) == set(expected)
        assert all(torch.equal(read[name], expected[name]) for name in expected)


def test_such_a_model_predicts(run, fitted, table):
    answer = predict(run, table, client="hungary", method="local")
    assert torch.equal(answer.values, fitted.predict(table, "hungary").values)


def test_a_damaged_frozen_part_is_found_and_made_again(run, arguments, table, tmp_path):
    copied = tmp_path / "run"
    shutil.copytree(run, copied)
    before = contents(copied)
    (copied / "models" / "frozen" / "local-0.safetensors").write_bytes(b"not a model")
    assert [
        said
        for said in verify(copied).problems
        if "frozen/local-0.safetensors is damaged" in said
    ]
    with pytest.raises(
        ct.InputError,
        match=r"frozen/local-0\.safetensors is damaged; continue with: .* --resume",
    ):
        predict(copied, table, client="hungary", method="local")
    ct.compare(
        **{**arguments, "settings": ct.StudySettings(freeze=["0.*"], resume=True)},
        folder=copied,
    )
    assert not verify(copied).problems
    assert contents(copied) == before


@pytest.mark.in_turn
def test_such_a_method_is_finalised_as_one_file(run, table, tmp_path, monkeypatch):
    monkeypatch.setitem(
        sys.modules, "onnx", None
    )  # tests/cli/test_finalise.py has it; it takes long to import
    finalise(run, tmp_path / "out", client="hungary", method="local")
    assert (
        load_model_file(tmp_path / "out" / "model.safetensors")["0.weight"].shape[0]
        == WIDE
    )
    assert predict(tmp_path / "out", table).values.shape == (
        len(table.read_text().splitlines()) - 1,
        2,
    )


def test_a_run_goes_on_with_the_same_frozen_part_only(tmp_path):
    draw = torch.Generator().manual_seed(0)
    clients = ct.data.from_tensors(
        [(torch.randn(12, 3, generator=draw), torch.arange(12) % 2)] * 2
    )
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))
    ct.fit(
        "fedavg",
        clients,
        model,
        1,
        settings=ct.RunSettings(freeze=["0"]),
        checkpoint=tmp_path,
    )
    again = {
        "checkpoint": tmp_path,
        "settings": ct.RunSettings(freeze=["0"], resume=True),
    }
    assert ct.fit("fedavg", clients, model, 2, **again).rounds == 2
    model[0].weight.data.add_(1)
    with pytest.raises(
        ct.InputError, match="the initial model has changed since round 2"
    ):
        ct.fit("fedavg", clients, model, 3, **again)

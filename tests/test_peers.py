"""Other frameworks are measured on the work that coterie does; scripts of our own stand in for them here."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import coterie as ct

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "benchmarks" / "peer_scripts"

FIXED = """
import sys
sys.path.insert(0, {scripts!r})
from work import main
def run(work, clock):
    clock.wall, clock.cpu = [[9.0, *[5.0] * (work.rounds - 2), 9.0]] * 2
    return work.layers
main("fixed", run, ["numpy"])
"""
BROKEN = "import sys; print('starting'); sys.exit('no such luck')"
SLOW = "import time; time.sleep(60)"


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.syspath_prepend(str(SCRIPTS))


@pytest.fixture
def scripts(tmp_path):
    """Scripts by name, and a folder of virtual environments with one that can run them."""
    python = tmp_path / "venvs" / "here" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    for name, text in {
        "fixed": FIXED.format(scripts=str(SCRIPTS)),
        "broken": BROKEN,
        "slow": SLOW,
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def tiny(sizes, w1, **changes):
    return sizes(w1.Work(6, 2, 8, 8), 1, 2, 2, 60.0)._replace(**changes)


def turn(seconds, cpu, accuracy):
    return {
        "seconds": seconds,
        "cpu_seconds": cpu,
        "accuracy": accuracy,
        "versions": {"numpy": "2"},
    }


def test_the_file_holds_rows_participants_and_initial_weights_of_fit(tmp_path):
    import coterie_work
    from benchmarks import peers, w1
    from work import Clock, Work

    sizes = tiny(peers.Sizes, w1)
    clients, test, source = w1.synthetic(sizes.work, 240)
    assert peers.export(tmp_path / "w1.npz", sizes, clients, test, source) == source
    work, clock = Work(tmp_path / "w1.npz", 1), Clock()
    assert work.epochs == 2
    layers = coterie_work.run(work, clock)
    method = ct.FedAvg(ct.LocalSGD(lr=w1.LR, steps=ct.Steps(8), batch_size=8))
    run = ct.fit(
        method,
        clients,
        ct.models.MLP(),
        sizes.rounds,
        w1.SEED,
        settings=ct.RunSettings(2, metrics=()),
    )
    assert torch.equal(torch.cat([layer.flatten() for layer in layers]), run.x)
    assert len(clock.wall) == len(clock.cpu) == sizes.rounds
    with torch.no_grad():
        run.module.load_state_dict(run.state_dict())
        right = (
            (run.module(test.inputs.float() / 255).argmax(1) == test.labels)
            .double()
            .mean()
        )
    assert peers.accuracy(work, layers) == pytest.approx(float(right), abs=1e-9)


@pytest.mark.parametrize(
    ("name", "parameters"), [("cnn", 6), ("lstm", 6), ("small", 2)]
)
def test_every_work_is_read_and_trained(tmp_path, name, parameters):
    import coterie_work
    from benchmarks import peers, w1
    from work import Clock, Work

    sizes = peers.tiny(peers.WORKS[name])
    peers.export(tmp_path / "work.npz", sizes, *w1.synthetic(sizes.work, 240))
    work, clock = Work(tmp_path / "work.npz", 1), Clock()
    layers = coterie_work.run(work, clock)
    assert len(layers) == len(work.layers) == parameters
    assert all(
        np.abs(layer.numpy() - start).max() > 0
        for layer, start in zip(layers, work.layers, strict=True)
    )
    assert 0 <= peers.accuracy(work, layers) <= 1
    assert len(clock.wall) == sizes.rounds


def test_participants_are_the_same_clients_for_all(tmp_path):
    """Among 1,001 clients, where names that are too short would be sorted into another order."""
    import coterie_work
    from benchmarks import peers, w1
    from work import Clock, Work

    sizes = peers.tiny(peers.WORKS["small"])._replace(
        work=w1.Work(1001, 5, 1, 2, model="logistic"), first=1, counted=1
    )
    peers.export(
        tmp_path / "work.npz", sizes, *w1.synthetic(sizes.work, 2002, {"train": 1})
    )
    work = Work(tmp_path / "work.npz", 1)
    w, b = (layer.astype(np.float64) for layer in work.layers)
    for chosen in work.participants:
        inputs, labels = (
            work.images[chosen].astype(np.float64) / 255,
            np.eye(10)[work.labels[chosen]],
        )
        scores = np.exp(inputs @ w.T + b)
        gradient = (scores / scores.sum(-1, keepdims=True) - labels) / work.batch_size
        moved = [
            np.einsum("kro,kri->koi", gradient, inputs).mean(0),
            gradient.sum(1).mean(0),
        ]
        w, b = (
            layer - work.lr * move for layer, move in zip((w, b), moved, strict=True)
        )
    for found, expected in zip(coterie_work.run(work, Clock()), (w, b), strict=True):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-6)


def test_work_that_is_not_whole_epochs_is_refused(tmp_path):
    from benchmarks import peers, w1

    sizes = tiny(peers.Sizes, w1, work=w1.Work(6, 2, 9, 8))
    with pytest.raises(ValueError, match="whole epochs"):
        peers.export(tmp_path / "w1.npz", sizes, *w1.synthetic(sizes.work, 240))


@pytest.mark.programs
def test_peers_with_a_number_and_without_stand_in_the_result_and_in_the_table(
    scripts, monkeypatch
):
    from benchmarks import peers

    monkeypatch.setattr(
        peers, "WORKS", {"w1": peers.WORKS["w1"]._replace(tolerance=1.0)}
    )
    monkeypatch.setattr(
        peers,
        "PEERS",
        {
            "fixed": peers.Peer(
                "Fixed", str(scripts / "fixed.py"), "numpy", "here", (), 2.0, 4.0
            ),
            "broken": peers.Peer(
                "Broken", str(scripts / "broken.py"), "numpy", "here", (), 2.0, 4.0
            ),
            "missing": peers.Peer(
                "Missing", "missing.py", "numpy", "nowhere", (), 2.0, 4.0
            ),
        },
    )
    arguments = [
        "--quick",
        "--venvs",
        str(scripts / "venvs"),
        "--out",
        str(scripts),
        "--work",
        "w1",
    ]
    assert peers.main(arguments) == 0
    result = json.loads((scripts / "peers.json").read_text())
    found = result["peers"]["w1 fixed"]
    assert found["reference_seconds"] == 5.0
    assert found["ratio"] > 4.0
    assert found["cpu_ratio"] > 4.0
    assert (
        result["peers"]["w1 broken"]["absent"] == "it ended with status 1: no such luck"
    )
    assert result["peers"]["w1 missing"]["absent"] == "it is not installed"
    text = peers.table(result)
    assert f"| W1 | Fixed, numpy {np.__version__} |" in text
    assert (
        "| W1 | Broken | not measured: it ended with status 1: no such luck |" in text
    )
    assert peers.main(["missing", *arguments]) == 0
    assert set(json.loads((scripts / "peers.json").read_text())["peers"]) == {
        "w1 fixed",
        "w1 broken",
        "w1 missing",
    }


def test_a_peer_that_takes_too_long_is_ended(scripts):
    from benchmarks import peers, w1

    slow = peers.Peer("Slow", str(scripts / "slow.py"))
    with pytest.raises(peers.NotMeasuredError, match="more than 0 s"):
        peers.compare(
            slow,
            Path(sys.executable),
            scripts / "w1.npz",
            tiny(peers.Sizes, w1, seconds=0.3),
        )


def test_only_rounds_between_the_first_and_the_last_count():
    from benchmarks import peers, w1

    sizes = tiny(peers.Sizes, w1)
    ours = [turn([9.0, 1.0, 3.0, 9.0], [8.0, 1.0, 1.0, 8.0], 0.80)] * 2
    theirs = [turn([7.0, 4.0, 8.0, 7.0], [6.0, 2.0, 4.0, 6.0], 0.81)] * 2
    found = peers.judge(ours, theirs, sizes)
    assert (
        found["seconds"],
        found["reference_seconds"],
        found["ratio"],
        found["cpu_ratio"],
    ) == (2.0, 6.0, 3.0, 3.0)
    elsewhere = [{**t, "cpu_seconds": None} for t in theirs]
    assert peers.judge(ours, elsewhere, sizes)["cpu_ratio"] is None
    with pytest.raises(
        peers.NotMeasuredError, match=r"accuracy of 0\.780, coterie of 0\.800"
    ):
        peers.judge(ours, [{**t, "accuracy": 0.78} for t in theirs], sizes)


def test_a_virtual_environment_is_made_once_for_the_same_versions(
    tmp_path, monkeypatch
):
    from benchmarks import peers

    called = []

    def run(command, **_):
        called.append(command)
        tmp_path.joinpath("venv").mkdir(exist_ok=True)
        return subprocess.CompletedProcess(
            command, int("bad==1" in command), "", "looking\nno bad==1 anywhere\n"
        )

    monkeypatch.setattr(peers.subprocess, "run", run)
    peer = peers.Peer("P", "p.py", installs=(("a==1",), ("--no-deps", "b==2")))
    peers.install(peer, tmp_path / "venv")
    assert [c[-1] for c in called] == [str(tmp_path / "venv"), "a==1", "b==2"]
    peers.install(peer, tmp_path / "venv")
    assert len(called) == 3
    with pytest.raises(
        peers.NotMeasuredError, match="cannot be installed: no bad==1 anywhere"
    ):
        peers.install(peer._replace(installs=(("bad==1",),)), tmp_path / "venv")
    peers.install(peer._replace(installs=(("a==2",),)), tmp_path / "venv")
    assert called[-1][-1] == "a==2"


def test_unknown_peers_and_quick_results_are_refused(capsys):
    from benchmarks import peers

    for arguments in (["pfllib"], ["pfl", "--quick"]):
        with pytest.raises(SystemExit):
            peers.main(arguments)
    said = capsys.readouterr().err
    assert "there is no peer pfllib" in said
    assert "numbers of --quick are no results" in said

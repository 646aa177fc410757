"""A new engine is one file: `fit`, TOML and the command line take it by its path, and nothing else names it."""

from __future__ import annotations

import json

import coterie as ct
from coterie.base.files import read_toml
from coterie.base.modules import load_object
from federations import assert_same_bits, logistic

TOY = '''
from dataclasses import dataclass
from contextlib import contextmanager
from pathlib import Path

from coterie.engines.inprocess import InProcessEngine
from coterie.contract.engine import EngineSpec

@dataclass(frozen=True)
class Engine(EngineSpec):
    """Writes down what it is asked."""
    diary: str = "diary.txt"

    def open(self, clients, model, loss):
        return Writing(clients, model, loss, self.diary)

    @contextmanager
    def keep_open(self):
        Path("kept.txt").write_text("open")
        yield
        Path("kept.txt").write_text("closed")

class Writing(InProcessEngine):
    def __init__(self, clients, model, loss, diary):
        super().__init__(clients, model, loss=loss)
        self.diary = Path(diary)

    def ask(self, ask):
        with open(self.diary, "a") as file:
            file.write(ask.task + chr(10))
        return super().ask(ask)
'''
RUN = ("--methods", "fedavg", "--rounds", "2", "--seeds", "1", "--no-report", "--json")


def test_fit_takes_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy.py").write_text(TOY)
    engine, problem = load_object("toy.py:Engine")(diary="mine.txt"), logistic()
    run = ct.fit(ct.FedAvg(), problem.clients, problem.model, 2, engine=engine)
    assert_same_bits(run, ct.fit(ct.FedAvg(), problem.clients, problem.model, 2))
    assert ":local_update\n" in (tmp_path / "mine.txt").read_text()


def test_the_command_line_and_toml_take_it(driver, tmp_path):
    (tmp_path / "toy.py").write_text(TOY)
    own = ("--engine", "toy.py:Engine", "--set", "engine.diary=ours.txt")
    plain = driver(tmp_path, "compare", "heart-disease", *RUN, "--out", "plain")
    typed = driver(tmp_path, "compare", "heart-disease", *RUN, *own, "--out", "typed")
    assert typed.status == 0, typed.err
    asks = (tmp_path / "ours.txt").read_text().splitlines()
    assert asks
    assert (tmp_path / "kept.txt").read_text() == "closed"
    tables = read_toml(tmp_path / "typed" / "experiment.toml")
    assert tables["engine"] == {"name": "toy.py:Engine", "diary": "ours.txt"}
    again = driver(
        tmp_path,
        "run",
        "typed/experiment.toml",
        "--out",
        "again",
        "--no-report",
        "--json",
    )
    assert again.status == 0, again.err
    assert (tmp_path / "ours.txt").read_text().splitlines() == asks * 2
    rows = [json.loads(ended.out)["rows"] for ended in (plain, typed, again)]
    assert rows[0] == rows[1] == rows[2]

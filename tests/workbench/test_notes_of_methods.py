"""A method's own sentences stand in the notes of a run."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

import coterie as ct
from coterie.base.errors import InputError
from coterie.run.tables import preset
from federations import quadratic


@dataclass(frozen=True)
class Talkative(ct.FedAvg):
    said: object = ("these clients are few",)

    def notes(self, everyone):
        return self.said


def compare(methods, folder):
    problem = quadratic({name: [float(i)] for i, name in enumerate("abc")})
    ct.compare(
        methods, problem.clients, problem.model, rounds=1, seeds=1, folder=folder
    )
    return json.loads((folder / "notes.json").read_text())


def test_the_presets_of_folders_take_the_cheap_form_above_twelve_targets():
    (merit,) = [
        table for table in preset("folder")["methods"] if table["name"] == "meritfed"
    ]
    assert merit["cheap_above"] == 12
    build = ct.MeritFed(
        validation=merit["validation"], cheap_above=merit["cheap_above"]
    )
    assert [len(build.notes(tuple(map(str, range(count))))) for count in (12, 13)] == [
        0,
        1,
    ]


def test_notes_of_a_method_bear_its_label(tmp_path):
    notes = compare({"mine": Talkative(), "plain": ct.FedAvg()}, tmp_path / "run")
    assert [note for note in notes if note.startswith(("mine", "plain"))] == [
        "mine: these clients are few"
    ]


def test_notes_that_are_no_sentences_are_refused(tmp_path):
    with pytest.raises(
        InputError, match=r"mine: notes must return a list of sentences; got 'one text'"
    ):
        compare({"mine": Talkative(said="one text")}, tmp_path / "run")

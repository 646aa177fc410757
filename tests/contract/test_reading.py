"""Every reader of JSON and of safetensors goes through a door: whatever a file holds, it is read or refused in one sentence."""

from __future__ import annotations

import json
import math
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from coterie.base.errors import InputError
from coterie.base.files import json_text, read_checkpoint, write_checkpoint
from coterie.contract.encoding import decode, encode
from coterie.report.files import summary_rows
from coterie.report.outcomes import Outcomes
from coterie.report.results import Results
from coterie.run.files import WRITER, require_readable, write_json
from coterie.run.hashes import read_record, write_record
from coterie.run.model_files import load_model_file, open_model_file
from coterie.run.result import Run

HOSTILE = {
    "nothing": "",
    "a number": "1",
    "null": "null",
    "a text": '"coterie"',
    "a list": "[]",
    "an object": "{}",
    "rows of numbers": "[1, 2]",
    "wrong keys": '[{"method": 1}]',
    "deep": "[" * 100_000,
    "deep and closed": "[" * 500 + "]" * 500,
    "5,000 digits": "9" * 5000,
    "no end": '{"a": ',
    "a control": '"\x00"',
    "infinite": '{"method": "m", "seed": Infinity, "clients": NaN, "format": 2}',
}
READERS = {
    "record_or_none": read_record,
    "summary": summary_rows,
    "notes": lambda path: Results(**{**EMPTY, "folder": path.parent}).failures,
}
EMPTY = dict.fromkeys(Results.__dataclass_fields__, ())
TENSORS = {
    "checkpoint": read_checkpoint,
    "run": lambda path: Run.load(path, nn.Linear(1, 1)),
    "outcomes": lambda path: Outcomes(path.parent.parent, (0,)).of("m", 0),
}


def read_or_refused(reader, path):
    said = ""
    try:
        reader(path)
    except InputError as error:
        said = str(error)
    assert not said or path.name in said
    assert len(said.replace(str(path), "")) < 250
    assert "\n" not in said


@pytest.mark.parametrize("reader", READERS)
def test_any_json_is_read_or_refused_in_a_sentence(reader, tmp_path):
    path = tmp_path / "failures.json"
    for text in HOSTILE.values():
        path.write_text(text)
        read_or_refused(READERS[reader], path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"failures\.json"):
        READERS[reader](path)


@pytest.mark.parametrize("reader", TENSORS)
def test_any_safetensors_file_is_read_or_refused_in_a_sentence(reader, tmp_path):
    path = tmp_path / "outcomes" / "x.safetensors"
    path.parent.mkdir()
    for text in HOSTILE.values():
        save_file(
            {"x": torch.zeros(2), "offsets": torch.zeros(3)},
            path,
            metadata={"coterie": text},
        )
        read_or_refused(TENSORS[reader], path)
    for raw in (
        b"",
        b"\xff" * 64,
        (2**62).to_bytes(8, "little") + b"{}",
        path.read_bytes()[:-4],
    ):
        path.write_bytes(raw)
        with pytest.raises(InputError, match=r"x\.safetensors"):
            TENSORS[reader](path)


def test_a_model_whose_notes_are_hostile_is_refused(tmp_path):
    path = tmp_path / "x.safetensors"
    for text in HOSTILE.values():
        save_file({"x": torch.zeros(2)}, path, metadata={"coterie": text})
        read_or_refused(open_model_file, path)
    save_file({"x": torch.zeros(2)}, path)
    assert list(load_model_file(path)) == ["x"]


def test_a_damaged_format_is_known_from_the_seals_of_what_is_complete(tmp_path):
    for damaged in ("", "[" * 100_000):
        (tmp_path / "format.json").write_text(damaged)
        with pytest.raises(InputError, match=r"format\.json is damaged"):
            require_readable(tmp_path)
    write_record(tmp_path / "checkpoint" / "local-0" / "done.json", {"files": {}})
    require_readable(tmp_path)
    write_json(tmp_path / "format.json", {**WRITER, "format": 1})
    with pytest.raises(
        InputError, match="in format 1, but this version reads format 4"
    ):
        require_readable(tmp_path)


class State(NamedTuple):
    x: torch.Tensor


def test_numbers_that_are_read_lie_as_torch_lays_them(tmp_path):
    """Else products round otherwise than in a run that was not killed, and at a site otherwise than in one process."""
    numbers = torch.randn(48)
    for length in range(0, 64, 4):
        write_checkpoint(
            tmp_path / "file",
            State(numbers),
            {"key/a": numbers},
            {"text": "y" * length},
        )
        saved, sent = (
            read_checkpoint(tmp_path / "file"),
            decode(encode({"text": "y" * length, "x": numbers, "y": numbers[:3]})),
        )
        for tensor in (saved.values["x"], saved.memory["key/a"], sent["x"], sent["y"]):
            assert tensor.data_ptr() % 64 == 0
        assert torch.equal(saved.values["x"], numbers)


LEAVES = st.none() | st.booleans() | st.integers() | st.text() | st.floats(-9, 9)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


@given(VALUES)
def test_a_table_in_lines_is_the_same_value(value: object) -> None:
    assert json.loads(json_text(value)) == value


@pytest.mark.parametrize("value", [math.nan, [math.inf], {"a": [{"b": math.nan}]}])
def test_a_number_that_json_has_not_is_not_written(value: object) -> None:
    with pytest.raises(ValueError, match="JSON"):
        json_text(value)

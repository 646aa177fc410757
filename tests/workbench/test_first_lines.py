"""What people write before they have read a page either works or ends in one sentence that says what to write."""

from __future__ import annotations

import re

import pytest
from first_lines import FRAMES, LINES, Line, frames, names

import coterie as ct


@pytest.mark.parametrize(
    "line",
    [pytest.param(line, id=line.name) for line in LINES],
)
def test_a_first_line_works_or_says_what_to_write(line: Line):
    within = names() | ({"frames": frames()} if line in FRAMES else {})
    if line.cure is None:
        eval(line.code, within)
        return
    with pytest.raises((ct.InputError, AttributeError)) as raised:
        eval(line.code, within)
    sentence = str(raised.value)
    assert re.search(line.cure, sentence)
    assert len(sentence) <= 300
    assert not re.search(r"\n|tensor\(\[|array\(\[", sentence)
    assert raised.value.__suppress_context__ or raised.value.__context__ is None


def test_every_line_is_listed_once_and_there_are_at_least_fifty():
    listed = [line.name for line in LINES]
    assert len(set(listed)) == len(listed)
    assert len(listed) >= 50

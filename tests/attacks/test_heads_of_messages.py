"""The head of a message, all that comes before its tensors, is bounded before any parser sees it: at a site and at the server."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import safetensors.torch
from hospital import Hospital

from coterie.base.errors import InputError
from coterie.contract import encoding
from coterie.contract.encoding import decode, encode
from coterie.sites.child import serve_message
from coterie.sites.descriptions import HEAD_OF_A_COLUMN, SiteDescription, longest_head
from coterie.sites.replies import read_reply
from coterie.sites.site import SERVER, Site


def bombs():
    """Heads that cost far more than their bytes: wide, deep, of many tensors, and one that says that it is longer than it is."""
    empty = json.dumps([{}] * 20_000)
    yield (
        "wide",
        json.dumps(
            {"__metadata__": {"coterie": json.dumps({"serial": 1, "x": "x" * 2**22})}}
        ),
    )
    yield "lists", json.dumps({"__metadata__": {"coterie": empty * 20}})
    tensors = {
        f"{n}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
        for n in range(40_000)
    }
    yield "tensors", json.dumps({"__metadata__": {"coterie": "{}"}, **tensors})
    yield "another length", "{}"


def message_of(name, head):
    length = 2**62 if name == "another length" else len(head)
    return length.to_bytes(8, "little") + head.encode()


@pytest.fixture(params=list(bombs()), ids=lambda bomb: bomb[0])
def bomb(request, monkeypatch):
    """A message with a head that no parser may see."""

    def parsed(*about):
        raise AssertionError("a parser has seen it")

    made = message_of(*request.param)
    assert len(made) > encoding.HEAD or request.param[0] == "another length"
    monkeypatch.setattr(safetensors.torch, "load", parsed)
    monkeypatch.setattr(
        encoding, "json", SimpleNamespace(loads=parsed, dumps=json.dumps)
    )
    monkeypatch.setattr(encoding, "_shallow", parsed)
    return made


STATED = {
    "hungary": SiteDescription((157,), ("0", "1"), {"age": "number", "sex": ("0", "1")})
}


@pytest.fixture
def hospital(tmp_path):
    made = Hospital(tmp_path)
    made.rows.longest_head = longest_head(STATED)
    return made


@pytest.fixture
def site(hospital):
    made = Site("hungary", hospital.settings_file, hospital.folder / "kept")
    made._longest_head = longest_head(STATED)
    return made


@pytest.mark.promise("bounded messages")
def test_a_site_parses_no_head_that_is_longer_than_its_plan_needs(site, bomb):
    """As it was: 18 MB of JSON were half a gigabyte of objects and seven seconds, before the plan was compared."""
    reply = site.handle(bomb, SERVER)
    assert b"no message of coterie" in reply
    assert site._child is None


def test_its_child_parses_none_either(hospital, bomb):
    _, about = serve_message(bomb, hospital.rows)
    assert "a head of " in about["error"]


@pytest.mark.promise("bounded messages")
def test_the_server_parses_none_of_a_site(bomb):
    with pytest.raises(InputError, match="its reply cannot be read"):
        read_reply(bomb, 1, 2**30, longest_head(STATED))


def test_a_head_has_room_for_each_column_and_each_category_that_the_plan_states():
    """A recipe of a table names every category twice: in its column and among the features."""
    categories = tuple(f"category {number:03} of a long name" for number in range(100))
    stated = {
        "a": SiteDescription(
            (100,), "number", {f"column {j}": categories for j in range(300)}
        )
    }
    columns = [
        {"name": f"column {j}", "kind": "category", "categories": list(categories)}
        for j in range(300)
    ]
    features = [f"column {j}={category}" for j in range(300) for category in categories]
    message = encode(
        {
            "do": "encode",
            "serial": 1,
            "recipe": json.dumps({"columns": columns, "features": features}),
        }
    )
    assert decode(message, longest_head(stated))["serial"] == 1
    assert longest_head(STATED) < encoding.HEAD + 3 * HEAD_OF_A_COLUMN


@pytest.mark.promise("bounded messages")
@pytest.mark.parametrize("signed", ["[" * 60000, '{"a":' * 9000, "7", "", "{"])
def test_no_signed_head_fails_where_it_is_parsed(signed):
    """As it was: brackets within brackets raised what nobody caught."""
    from coterie.sites.site import _head_fields

    assert _head_fields(signed) == {}

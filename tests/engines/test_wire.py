"""Payloads come back as they were, and what is no payload is refused."""

from __future__ import annotations

from dataclasses import dataclass, field, make_dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.base.errors import InputError
from coterie.config import schema
from coterie.config.local import Epochs, LocalSGD, Schedule, Steps
from coterie.config.schema import wire_type, wire_types
from coterie.contract.encoding import decode, encode, from_json, header
from coterie.contract.wire import (
    Answer,
    Ask,
    Block,
    ClientCost,
    Context,
    PerClient,
    nbytes,
    to_json,
)
from coterie.filters.top_k import TopK

quick = settings(derandomize=True, deadline=None)


@wire_type
@dataclass(frozen=True)
class Inner:
    words: tuple[str, ...] = ("ü", "北京\n", "")
    number: float = -0.0


@wire_type
@dataclass(frozen=True)
class Outer:
    inner: Inner = field(default_factory=Inner)
    many: tuple[Inner, ...] = (Inner(("x",), 1e-320), Inner((), 5.0))
    nothing: None = None
    flag: bool = True


def same(a, b):
    if isinstance(a, PerClient):
        return isinstance(b, PerClient) and same(a.tensor, b.tensor)
    if isinstance(a, torch.Tensor):
        same_bits = (
            torch.equal(a.contiguous().view(torch.uint8), b.view(torch.uint8))
            if a.numel() and a.ndim
            else a == b
        )
        return (a.dtype, a.shape) == (b.dtype, b.shape) and bool(
            torch.as_tensor(same_bits).all()
        )
    return type(a) is type(b) and a == b


shared = torch.arange(12, dtype=torch.float32).view(3, 4)
TENSORS = {
    "float64": torch.tensor([[1.0, -0.0], [1e-320, 3.0]], dtype=torch.float64),
    "nan and inf": torch.tensor([float("nan"), float("inf"), -float("inf")]),
    "bfloat16": torch.tensor([1.5, -2.25], dtype=torch.bfloat16),
    "half": torch.tensor([[0.5]], dtype=torch.float16),
    "0-d": torch.tensor(3.25),
    "0-d int": torch.tensor(-7),
    "empty": torch.zeros(0),
    "empty rows": torch.zeros(3, 0, 2, dtype=torch.int64),
    "bool": torch.tensor([True, False, True]),
    "uint8": torch.arange(256, dtype=torch.uint8),
    "int32": torch.tensor([-1, 2], dtype=torch.int32),
    "transposed": shared.t(),
    "strided": shared[:, ::2],
    "expanded": torch.tensor([2.0]).expand(5),
    "PerClient": PerClient(torch.eye(2, dtype=torch.bfloat16)),
}


@pytest.mark.parametrize("name", list(TENSORS))
def test_tensors_come_back_bit_by_bit(name):
    assert same(TENSORS[name], decode(encode({name: TENSORS[name]}))[name])


def test_a_whole_payload_comes_back_in_order_and_shares_nothing():
    values = {
        "z": shared, "one storage": shared[0], "same": shared, "x/ü\n": PerClient(shared), "a": None, "b": True, "i": 2**80,
        "f": 0.1, "text": 'quote " and \\', "outer": Outer(), "local": LocalSGD(Schedule(0.1, (3, 5), 0.5), Epochs(2), None),
    }  # fmt: skip
    got = decode(encode(values))
    assert list(got) == list(values)
    assert all(same(v, got[k]) for k, v in values.items())
    got["z"].fill_(-1)
    assert (
        got["same"].tolist()
        == shared.tolist()
        == torch.arange(12.0).view(3, 4).tolist()
    )


def test_gradients_stay_where_they_are():
    x = torch.ones(2, requires_grad=True)
    assert not decode(encode({"x": x * 2}))["x"].requires_grad


simple = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
)
nested = st.recursive(simple | st.builds(Inner, st.lists(st.text()).map(tuple), st.floats(allow_nan=False)),
                      lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=8)  # fmt: skip


@settings(quick)  # to draw such values takes longer than to send them
@given(st.dictionaries(st.text(), nested, max_size=4))
def test_anything_made_of_simple_values_comes_back(values):
    got = decode(encode(values))
    assert got == values
    assert list(got) == list(values)


@quick
@given(
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bool]),
)
def test_tensors_of_any_shape_come_back(shape, dtype):
    tensor = torch.arange(torch.Size(shape).numel()).view(shape).to(dtype)
    assert same(tensor, decode(encode({"t": tensor}))["t"])


@dataclass(frozen=True)
class Unregistered:
    x: int = 0


class Named(Inner):
    pass


class OwnSampler:
    def rows(self): ...


@pytest.mark.parametrize(
    "value",
    [
        Unregistered(),
        Named(),
        object(),
        {"a": 1},
        [torch.ones(1)],
        LocalSGD(sampler=OwnSampler()),
    ],
)
def test_what_cannot_travel_is_refused_with_the_list_of_what_can(value):
    with pytest.raises(
        InputError,
        match=r"cannot travel; a payload holds tensors, numbers, strings, None, PerClient",
    ):
        encode({"x": value})


def test_an_unknown_type_is_named():
    with pytest.raises(
        InputError,
        match="unknown type 'Elsewhere'; import the module that registers it",
    ):
        from_json({"type": "Elsewhere", "fields": {}})


def test_values_of_a_received_type_are_checked_as_if_made_here():
    message = to_json(LocalSGD(lr=0.5))
    message["fields"]["lr"] = -1
    with pytest.raises(InputError, match=r"LocalSGD\.lr must be a number > 0; got -1"):
        from_json(message)
    message = to_json(Steps(3))
    message["fields"]["count"] = 0
    with pytest.raises(InputError, match="Steps must be at least 1"):
        from_json(message)


@quick
@given(st.binary(max_size=40) | st.binary(max_size=30).map(lambda b: len(b).to_bytes(8, "little") + b)
       | st.sampled_from([b"[]", b"3", b'"x"', b"{}", b'{"__metadata__":{}}', b'{"__metadata__":{"coterie":"[]"}}',
                          b'{"__metadata__":3}', b'{"__metadata__":{"coterie":"{\\"order\\":[\\"a\\"],\\"each\\":[],\\"rest\\":{}}"}}',
                          b'{"__metadata__":{"coterie":"3"}}'])
       .map(lambda b: len(b).to_bytes(8, "little") + b))  # fmt: skip
def test_bytes_that_are_no_message_are_refused(message):
    with pytest.raises(InputError, match="bytes is not a coterie payload"):
        decode(message)


@pytest.mark.parametrize("cut", [1, 9, -1])
def test_a_message_cut_short_is_refused(cut):
    with pytest.raises(InputError, match="is not a coterie payload"):
        decode(encode({"x": torch.ones(3), "y": 2})[:cut])


def test_bytes_are_those_of_the_values():
    assert nbytes({}) == 0
    assert nbytes({"x": torch.zeros(5, 2)}) == 40
    assert (
        nbytes(
            {
                "x": torch.zeros(3, dtype=torch.float64),
                "b": torch.zeros(3, dtype=torch.bool),
            }
        )
        == 27
    )
    assert (
        nbytes(
            {"x": torch.zeros(2, 3, 4)[0], "h": torch.zeros((), dtype=torch.bfloat16)}
        )
        == 50
    )
    assert nbytes({"x": PerClient(torch.zeros(9, 5))}) == 20  # what one client receives
    assert nbytes({"i": 3, "f": 0.5, "b": False}) == 24
    assert nbytes({"s": "abc", "n": None}) == 5 + 4
    assert nbytes({"steps": Steps(12)}) == len(
        '{"type": "Steps", "fields": {"count": 12}}'
    )


# ---- envelopes


def test_an_ask_and_its_answer_come_back_whole():
    payload = {
        "x": torch.arange(3.0),
        "own": PerClient(torch.eye(2)),
        "local": LocalSGD(lr=0.5),
        "none": None,
    }
    ask = Ask(("a", "b"), "module:task", payload, Context(1, 2, 3, 4))
    block = Block(("a", "b"), {"delta": torch.ones(2, 3), "text": ("one", "two")})
    answer = Answer(
        (block,),
        {"c": "it is gone"},
        {"row_gradients": 7},
        (ClientCost("c", 1, 2, 0.5, "it is gone"),),
    )
    message = decode(encode({"ask": ask, "answer": answer}))
    assert (message["ask"].names, message["ask"].task, message["ask"].context) == (
        ask.names,
        ask.task,
        ask.context,
    )
    assert all(
        same(value, message["ask"].payload[key]) for key, value in payload.items()
    )
    assert (message["answer"].failed, message["answer"].spent) == (
        answer.failed,
        answer.spent,
    )
    assert message["answer"].costs == answer.costs  # as plain tuples
    assert message["answer"].blocks[0].names == block.names
    assert all(
        same(value, message["answer"].blocks[0].values[key])
        for key, value in block.values.items()
    )


def test_a_header_tells_everything_but_the_tensors():
    ask = Ask(
        ("a",), "module:task", {"x": torch.ones(2), "lr": 0.5}, Context(1, 2, 3, 4)
    )
    about = header(encode({"do": "task", "ask": ask, "tensor": torch.ones(1)}))
    assert about == {
        "do": "task",
        "ask": replace(ask, payload={"x": None, "lr": 0.5}),
        "tensor": None,
    }


def test_an_ask_to_some_has_their_rows():
    ask = Ask(
        ("a", "b", "c"),
        "module:task",
        {"own": PerClient(torch.arange(3.0)), "x": 1},
        Context(1, 2, 3, 4),
    )
    assert ask.to(("c", "a")).arguments["own"].tolist() == [2, 0]
    assert ask.to(ask.names) is ask


@pytest.mark.parametrize(
    "parts",
    [
        {"blocks": 3},
        {"blocks": ({"names": ()},)},
        {"blocks": (Block((1,), {}),)},
        {"failed": {"a": 1}},
        {"spent": {"rows": 1.5}},
        {"spent": {"rows": True}},
    ],
)
def test_an_answer_of_other_parts_is_refused(parts):
    with pytest.raises(
        InputError,
        match="an answer must hold replies, reasons of failures and counts of rows",
    ):
        Answer(**parts)


def test_answers_are_joined():
    one, two = Block(("a",), {}), Block(("b",), {})
    joined = Answer.join(
        [Answer((one,), {}, {"rows": 1}), Answer((two,), {"c": "gone"}, {"rows": 2})]
    )
    assert joined == Answer((one, two), {"c": "gone"}, {"rows": 3})


def test_a_message_of_quotes_without_end_is_refused_at_once():
    """A scan that begins anew at each quote would take days."""
    from safetensors.torch import save

    for text in ('"' + '\\"' * 500_000, '"' + "\\\n" * 500_000, '"\\"' * 500_000):
        with pytest.raises(InputError):
            decode(save({}, {"coterie": text}))


def test_two_classes_do_not_travel_by_one_name():
    """The second would be what a site reads where the first was sent."""
    theirs = make_dataclass("TopK", [("share", float)], frozen=True)
    with pytest.raises(
        InputError,
        match=r"coterie.filters.top_k:TopK travels by the name 'TopK' already; give .*:TopK another",
    ):
        wire_type(theirs)
    assert wire_types()["TopK"] is TopK


def test_a_class_that_is_defined_anew_replaces_itself():
    """As a cell of a notebook does that is run again."""
    classes = [
        make_dataclass("WrittenTwice", [("share", float)], frozen=True)
        for _ in range(2)
    ]
    try:
        assert [wire_type(cls) for cls in classes] == classes
        assert wire_types()["WrittenTwice"] is classes[1]
    finally:
        del schema._TRAVEL["WrittenTwice"]

"""Options are values: checked when made, built from tables, spelled back to the same tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import pytest
import torch

import coterie as ct
from coterie.base.errors import InputError
from coterie.base.identity import identity
from coterie.config.registry import Registry
from coterie.config.rules import NOT_NEGATIVE, POSITIVE, SIZE, list_of, one_of, optional
from coterie.config.schema import InFiles, Units, build, options, options_of, spell


@options
class Hours:
    count: Annotated[int, SIZE]


@options
class Days:
    count: Annotated[int, SIZE]


@options
class Boat:
    sails: Annotated[int, SIZE] = 2


@options
class Rocket:
    fuel: str
    stages: Annotated[int, SIZE] = 3


@options
class Lamp:
    word: Annotated[str, one_of("red", "green")] = "red"


VEHICLES = Registry("vehicle", "vehicles", {})
VEHICLES.update({"boat": Boat, "rocket": Rocket})


@options
class Fare:
    price: Annotated[float, POSITIVE]
    discount: Annotated[float, NOT_NEGATIVE] = 0.0


@options
class Journey:
    start: str
    stops: Annotated[
        tuple[str, ...], list_of(one_of("a", "b", "c"), "a list of a, b, c", empty=True)
    ] = ()
    lasts: Annotated[Hours | Days, Units({"hours": Hours, "days": Days})] = Hours(3)
    speed: Annotated[float, POSITIVE] = 5.0
    crew: Annotated[
        int | None, optional(SIZE, "everybody"), InFiles(none="everybody")
    ] = 4
    note: str | None = None
    insured: bool = False
    fare: float | Fare = 1.0
    vehicle: Annotated[Any, VEHICLES] = Boat()
    told: Annotated[tuple[Any, ...], InFiles(said=False)] = ()


def test_a_value_is_checked_when_it_is_made():
    for values, sentence in (
        ({"speed": 0}, "Journey.speed must be a number > 0; got 0"),
        ({"speed": True}, "Journey.speed must be a number > 0; got True"),
        ({"speed": float("nan")}, "Journey.speed must be a number > 0; got nan"),
        ({"crew": 0}, r"Journey.crew must be None \(everybody\) or an int > 0; got 0"),
        ({"insured": 1}, "Journey.insured must be true or false; got 1"),
        ({"start": 3}, "Journey.start must be a text; got 3"),
        ({"note": 3}, "Journey.note must be None or a text; got 3"),
        ({"stops": ["d"]}, r"Journey.stops must be a list of a, b, c; got \('d',\)"),
    ):
        with pytest.raises(InputError, match=f"^{sentence}$"):
            Journey(**{"start": "x", **values})


def test_lists_become_tuples_and_values_are_frozen():
    journey = Journey("x", stops=["a", "b"])
    assert journey.stops == ("a", "b")
    assert journey == Journey("x", ("a", "b"))
    with pytest.raises(AttributeError):
        journey.speed = 3.0


def test_own_checks_come_after_the_rules_and_are_inherited():
    @options
    class Range:
        low: Annotated[float, POSITIVE] = 1.0
        high: Annotated[float, POSITIVE] = 2.0

        def __post_init__(self) -> None:
            if self.low > self.high:
                raise InputError(f"low = {self.low} is above high = {self.high}")

    @options
    class Wider(Range):
        margin: Annotated[float, POSITIVE] = 1.0

    for cls in (Range, Wider):
        with pytest.raises(InputError, match=r"low = 3 is above high = 2\.0"):
            cls(low=3)
        with pytest.raises(
            InputError, match=f"{cls.__name__}.low must be a number > 0; got 'x'"
        ):
            cls(low="x")
    with pytest.raises(InputError, match=r"Wider\.margin must be a number > 0; got 0"):
        Wider(margin=0)


def test_what_is_long_is_cut():
    with pytest.raises(InputError) as caught:
        Journey("x", speed="y" * 1000)
    assert len(str(caught.value)) < 200


FULL = {
    "start": "x",
    "stops": ["a", "c"],
    "days": 2,
    "speed": 7.5,
    "crew": "everybody",
    "note": "late",
    "insured": True,
    "fare": {"price": 3.0, "discount": 0.5},
    "vehicle": {"name": "rocket", "fuel": "h2", "stages": 2},
}


def test_build_and_spell_undo_each_other():
    journey = build(Journey, FULL, "x.toml, [journey]")
    assert journey == Journey(
        "x",
        ("a", "c"),
        Days(2),
        7.5,
        None,
        "late",
        True,
        Fare(3.0, 0.5),
        Rocket("h2", 2),
    )
    assert spell(journey) == FULL


def test_a_name_alone_is_a_table_with_that_name():
    assert build(Journey, {"start": "x", "vehicle": "boat"}, "t").vehicle == Boat()
    with pytest.raises(
        InputError, match="there is no vehicle 'boot'; did you mean 'boat'"
    ):
        build(Journey, {"start": "x", "vehicle": "boot"}, "t")


def test_defaults_are_spelled_out_and_none_is_left_out():
    assert spell(Journey("x")) == {
        "start": "x", "stops": [], "hours": 3, "speed": 5.0, "crew": 4, "insured": False, "fare": 1.0,
        "vehicle": {"name": "boat", "sails": 2},
    }  # fmt: skip
    assert build(Journey, spell(Journey("x")), "") == Journey("x")


TABLES = {
    "an unknown key": (
        {"start": "x", "sped": 1},
        "t: unknown key 'sped'; did you mean 'speed'?",
    ),
    "a key of Python only": ({"start": "x", "told": []}, "t: unknown key 'told'"),
    "a missing key": ({}, "t: start is missing; give a text"),
    "a value": (
        {"start": "x", "speed": -1},
        "t: Journey.speed must be a number > 0; got -1",
    ),
    "two units": (
        {"start": "x", "hours": 1, "days": 1},
        "t: hours and days exclude each other; give one",
    ),
    "half a unit": ({"start": "x", "days": 0.5}, "t: days must be an int > 0; got 0.5"),
    "a nested key": (
        {"start": "x", "fare": {"prize": 1}},
        "t: fare: unknown key 'prize'; did you mean 'price'?",
    ),
    "a nested value": (
        {"start": "x", "fare": {"price": 0}},
        "t: fare: Fare.price must be a number > 0; got 0",
    ),
    "no name": (
        {"start": "x", "vehicle": {}},
        't: vehicle must be a table with a name, say {name = "boat"}; got {}',
    ),
    "no table": (
        {"start": "x", "vehicle": 3},
        "t: vehicle must be a table with a name",
    ),
    "a name": (
        {"start": "x", "vehicle": {"name": "boot"}},
        "there is no vehicle 'boot'; did you mean 'boat'?",
    ),
    "a named one's key": (
        {"start": "x", "vehicle": {"name": "boat", "stages": 1}},
        "t: vehicle: unknown key 'stages'; did you mean 'sails'?",
    ),
}


@pytest.mark.parametrize("case", TABLES)
def test_a_table_that_says_nothing_good(case):
    table, sentence = TABLES[case]
    with pytest.raises(InputError) as caught:
        build(Journey, table, "t")
    assert sentence in str(caught.value)


def test_errors_can_use_the_word_of_the_file():
    with pytest.raises(
        InputError, match=r"^t: trip\.speed must be a number > 0; got -1$"
    ):
        build(Journey, {"start": "x", "speed": -1}, "t", named="trip")


def test_no_table():
    with pytest.raises(InputError, match=r"^t must be a table; got 3$"):
        build(Boat, 3, "t")


def test_dataclasses_and_functions_of_a_user_are_built_too():
    @dataclass
    class Own:
        speed: float = 1.0
        names: list[str] = field(default_factory=list)

    assert build(Own, {"speed": "fast", "names": ["a"]}, "t") == Own("fast", ("a",))
    assert build(lambda width=3: width, {"width": 4}, "t") == 4
    assert build(lambda **anything: anything, {"x": [1]}, "t") == {"x": (1,)}
    with pytest.raises(
        InputError, match="t: unknown key 'spede'; did you mean 'speed'"
    ):
        build(Own, {"spede": 1}, "t")
    with pytest.raises(InputError, match=r"t: unknown key 'x'; it has none"):
        build(lambda: None, {"x": 1}, "t")
    with pytest.raises(
        InputError, match=r"t: .*missing 1 required positional argument: 'width'"
    ):
        build(lambda width: width, {}, "t")


def test_a_registry_finds_by_name_file_and_place(tmp_path):
    (tmp_path / "own.py").write_text(
        "from dataclasses import dataclass\n@dataclass\nclass Raft:\n    logs: int = 9\n"
    )
    place = f"{tmp_path / 'own.py'}:Raft"
    raft = VEHICLES.build({"name": place, "logs": 4}, "t")
    assert raft.logs == 4
    assert VEHICLES.spell(raft) == {"name": place, "logs": 4}
    with pytest.raises(InputError, match=r"own.py has no 'Rafd'; did you mean 'Raft'"):
        VEHICLES.build({"name": f"{tmp_path / 'own.py'}:Rafd"}, "t")
    lazy = Registry(
        "schema",
        "schemas",
        {"rule": "coterie.config.schema:Rule", "flag": "coterie.config.schema:Flag"},
        default="flag",
    )
    assert lazy.find("rule").__name__ == "Rule"
    assert type(lazy.build({}, "t")) is lazy["flag"]
    with pytest.raises(
        InputError, match="a vehicle of class Fare has no name in files"
    ):
        VEHICLES.spell(Fare(1.0))


def test_the_identity_of_a_setting_is_what_it_holds_and_not_where_it_lies():
    class Plain:
        def __init__(self, speed):
            self.speed, self.me = speed, self

    class Told(Plain):
        def __repr__(self):
            return "always the same"

    assert identity(Plain(1)) == identity(Plain(1)) != identity(Plain(2))
    assert identity(Told(1)) != identity(Told(2))
    assert identity(Journey("x", told=(Plain(1),))) != identity(
        Journey("x", told=(Plain(2),))
    )
    long = torch.arange(2000.0)
    other = long.clone()
    other[1000] = 0  # repr() leaves the middle out
    assert repr(long) == repr(other)
    assert identity(long) == identity(long.clone()) != identity(other)
    assert identity(partial(max, 1)) != identity(partial(max, 2))
    assert identity({"b", "a"}) == identity({"a", "b"})
    assert identity(Boat) != identity(Rocket)


def test_options_know_their_keys():
    keys = [key for option in options_of(Journey) for key in option.keys]
    assert keys == [
        "start",
        "stops",
        "hours",
        "days",
        "speed",
        "crew",
        "note",
        "insured",
        "fare",
        "vehicle",
    ]


class NoComparison:
    def __eq__(self, other):
        raise LookupError("compared")

    __hash__ = None

    def __repr__(self):
        return "no comparison"


def list_within_itself():
    ring = ["a"]
    ring.append(ring)
    return ring


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Boat(sails=10**30), r"Boat.sails must be below 2\*\*63; got 1000"),
        (lambda: Boat(sails=-(2**63)), r"Boat.sails must be below 2\*\*63; got -9223"),
        (
            lambda: build(Boat, {"sails": 2**63}, "t"),
            r"t: Boat.sails must be below 2\*\*63; got 9223",
        ),
        (
            lambda: Journey("x", stops=(NoComparison(),)),
            r"Journey.stops must be a list of a, b, c; got \(no comparison,\)",
        ),
        (
            lambda: Lamp(word=torch.zeros(3)),
            r"Lamp.word must be red \| green; got a Tensor of shape \[3\]",
        ),
        (
            lambda: Lamp(word=NoComparison()),
            r"Lamp.word must be red \| green; got no comparison",
        ),
        (
            lambda: Journey("x", stops=list_within_itself()),
            r"Journey.stops holds itself; give values",
        ),
        (
            lambda: build(Journey, {"start": "x", "stops": list_within_itself()}, "t"),
            r"t: a list holds itself; give values",
        ),
    ],
)
def test_values_that_never_end_or_cannot_be_compared_are_refused(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()


def test_the_largest_int_is_taken():
    assert Boat(sails=2**63 - 1).sails == 2**63 - 1


@pytest.mark.parametrize("method", [ct.ISFL, ct.ISFedAvg, ct.UniformIS])
@pytest.mark.parametrize("local", ["x", 3, None, ct.LocalSGD, {"lr": 0.1}])
def test_local_training_of_a_sampler_s_method_is_an_object(method, local):
    with pytest.raises(
        InputError, match=rf"^{method.__name__}\.local must be LocalSGD\(\.\.\.\); got "
    ):
        method(local=local)

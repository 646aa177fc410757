"""Generated lies of one site: its replies, and what it says before the first round, each changed in a place or two.

No job ends without its name, and none ends because of it once the rounds have begun. `make attacks-generated` makes 1,000 of each.
"""

from __future__ import annotations

import json
import random

import pytest
import torch
from test_a_malicious_client import METHODS, block
from three_sites import LIAR, SITES, ThreeSites, altered

from coterie.base.errors import InputError, RunError

ODD = (
    [],
    {},
    None,
    0,
    -1,
    1.5,
    1e300,
    10**30,
    "",
    "age",
    True,
    ["a"],
    ["a", 1],
    {"a": 1},
    "number",
    "text",
    "\x1b[2J",
    "x" * 5000,
)
COUNTS = [60, pytest.param(1000, marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    made = ThreeSites(tmp_path_factory.mktemp("generated"), METHODS)
    made.open()
    return made


def places(value, path=()):
    """Yield the way to each value in a JSON document."""
    yield path
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, part in inner:
        yield from places(part, (*path, key))


def with_another_value(document, drawn):
    """Return a JSON document with another value, one less or one more, in one place."""
    path = drawn.choice([path for path in places(document) if path])
    owner = document
    for key in path[:-1]:
        owner = owner[key]
    kind = drawn.random()
    if kind < 0.7:
        owner[path[-1]] = drawn.choice(ODD)
    elif kind < 0.85:
        del owner[path[-1]]
    elif isinstance(owner, list):
        owner.append(drawn.choice(ODD))
    else:
        owner[drawn.choice(["more", "\x1b[2J", "x" * 5000, "age"])] = drawn.choice(ODD)
    return document


def other_text(text, drawn):
    document = with_another_value(json.loads(text), drawn)
    return (
        json.dumps(document)
        if drawn.random() < 0.95
        else json.dumps(document)[: drawn.randint(0, len(text))]
    )


def other_tensor(value, drawn):
    """Return another tensor: of another form, or with other numbers."""
    made = [
        lambda v: v * 1e30, lambda v: v - 1e9, lambda v: v * 0, lambda v: v * float("nan"), lambda v: v.double() + 1e308,
        lambda v: v[:0], lambda v: torch.cat([v, v]), lambda v: v[..., None], lambda v: v.reshape(-1), lambda v: v.half(),
        lambda v: v.to(torch.int64), lambda v: v.to(torch.complex64), lambda v: "words", lambda v: None, lambda v: (1.0,),
    ]  # fmt: skip
    return drawn.choice(made)(value)


def generated_lie(drawn, asked):
    """Return a lie about one kind of message."""
    where = drawn.choice(asked)

    def lie(values):
        if "answer" in values and values["answer"].blocks:
            fields = block(values["answer"]).values
            key = drawn.choice(sorted(fields)) if fields else ""
            if not fields or drawn.random() < 0.1:
                fields["more"] = torch.ones(1)
            elif isinstance(fields[key], torch.Tensor):
                fields[key] = other_tensor(fields[key], drawn)
            else:
                fields[key] = (other_text(fields[key][0], drawn),)
            return values
        if "facts" in values and drawn.random() < 0.8:
            return {**values, "facts": other_text(values["facts"], drawn)}
        return {
            **values,
            drawn.choice(sorted(values)): drawn.choice(
                [3, "words", None, ("a",), (1,), True]
            ),
        }

    def what_is_sent(what, reply):
        if what != where:
            return reply
        if drawn.random() < 0.1:
            cut = drawn.randint(0, len(reply) - 1)
            return (
                reply[:cut]
                if drawn.random() < 0.5
                else reply[:cut] + bytes([reply[cut] ^ 255]) + reply[cut + 1 :]
            )
        return altered(lie)(what, reply)

    return where, what_is_sent


def can_be_said(send):
    """Wrap a lie that no message can hold: it is no lie."""

    def say(what, reply):
        try:
            return send(what, reply)
        except (InputError, TypeError, ValueError, RuntimeError):
            return reply

    return say


@pytest.mark.in_turn
@pytest.mark.promise("a start without one site")
@pytest.mark.parametrize("goes_on", [False, True], ids=["end", "continue"])
@pytest.mark.parametrize("count", COUNTS)
def test_no_generated_beginning_ends_a_job_without_a_name(sites, count, goes_on):
    sites.goes_on = goes_on
    drawn, ended, unnamed = random.Random(count), [], []
    sites.lie = None
    sites.asked.clear()
    honest = sites.open()
    asked = list(dict.fromkeys(sites.asked))
    assert len(asked) >= 4
    for _ in range(count):
        where, send = generated_lie(drawn, asked)
        sites.lie = can_be_said(send)
        try:
            engine = sites.open()
            assert set(engine.clients) >= set(SITES) - {LIAR}
        except (InputError, RunError) as error:
            ended.append(f"{where}: {error}")
            if LIAR not in str(error):
                unnamed.append(f"{where}: {error}")
        except Exception as error:
            unnamed.append(f"{where}: {type(error).__name__}: {error}")
        finally:
            sites.lie = None
    assert not unnamed, "\n".join(unnamed)
    assert len(ended) < (1 if goes_on else count), "\n".join(ended)
    assert honest.clients == SITES


@pytest.mark.promise("replies as declared")
@pytest.mark.parametrize("count", COUNTS)
def test_no_generated_reply_ends_a_job_in_its_rounds(sites, count):
    drawn, wrong = random.Random(count), []
    sites.lie = None
    sites.open()
    for number, method in enumerate(METHODS):
        play = sites.begin(number)
        play(0)
        sites.asked.clear()
        sites.said.clear()
        play(1)
        sites.replay = True
        asked = list(dict.fromkeys(sites.asked))
        for attempt in range(count // len(METHODS)):
            where, send = generated_lie(drawn, asked)
            sites.lie = can_be_said(send)
            try:
                after = play(2 + attempt)
                models = (
                    after.models
                    if isinstance(after.models, torch.Tensor)
                    else torch.stack(list(after.models.values()))
                )
                if not models.isfinite().all():
                    wrong.append(f"{method['name']}, {where}: the model is not finite")
                wrong += [
                    f"{method['name']}, {where}: {name} failed"
                    for name in after.failures
                    if name != LIAR
                ]
            except Exception as error:
                wrong.append(
                    f"{method['name']}, {where}: {type(error).__name__}: {error}"
                )
            finally:
                sites.lie = None
        sites.replay = False
    assert not wrong, "\n".join(wrong)

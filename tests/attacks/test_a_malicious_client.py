"""One site answers what nobody asked for: its reply is refused with its name, the others' count, and the round goes on."""

from __future__ import annotations

import json
from itertools import cycle, islice
from types import SimpleNamespace

import pytest
import torch
from three_sites import LIAR, SITES, ThreeSites, altered, put, told

from coterie.base.errors import InputError, RunError
from coterie.compute.metrics import evaluate
from coterie.compute.tasks import local_update
from coterie.contract.encoding import decode
from coterie.contract.federation import Federation
from coterie.contract.wire import Block, Packed, PerClient
from coterie.sites.replies import moments_apart

SGD = {"steps": 2, "batch_size": 16, "minimum_batch": 8}
METHODS = [
    {"name": "fedavg", "local": SGD},
    {"name": "scaffold", "local": SGD},
    {"name": "moon", "local": SGD},
    {"name": "median", "local": SGD},
    {
        "name": "meritfed",
        "targets": "all",
        "oracle": "loss",
        "md_steps": 1,
        "validation": "train",
        "local": SGD,
    },
]


@pytest.fixture(scope="module")
def three_sites(tmp_path_factory):
    made = ThreeSites(tmp_path_factory.mktemp("three_sites"), METHODS)
    made.open()
    return made


@pytest.fixture
def quiet(three_sites):
    """The sites, whose liar tells the truth again when a test ends."""
    yield three_sites
    three_sites.lie, three_sites.replay = None, False


# ---- two hundred lies


def block(answer):
    return answer.blocks[0]


def fields(change):
    """A lie about every field of a reply."""

    def lie(values):
        answer = values["answer"]
        put(
            block(answer),
            "values",
            {k: change(v) for k, v in block(answer).values.items()},
        )

    return lie


def tensors(change):
    return fields(lambda v: change(v) if isinstance(v, torch.Tensor) else v)


def answer(field, value):
    def lie(values):
        honest = getattr(values["answer"], field)
        put(
            values["answer"],
            field,
            value(values["answer"]) if callable(value) else value,
        )
        assert honest != getattr(values["answer"], field)

    return lie


def deep(reply):
    text = json.dumps({"__metadata__": {"coterie": "[" * 100_000}}).encode()
    return len(text).to_bytes(8, "little") + text


def deeper(reply):
    text = b'{"__metadata__": {"coterie": "{}"}, "a": ' + b"[" * 200_000
    return len(text).to_bytes(8, "little") + text


def again(answer, times=1000):
    one = block(answer)
    values = {k: v.repeat(times, *[1] * (v.ndim - 1)) for k, v in one.values.items()}
    return (Block((LIAR,) * times, values),)


def whole(change):
    return lambda what, reply: change(reply)


LIES = {
    "its name a thousand times": altered(answer("blocks", again)),
    "two blocks": altered(answer("blocks", lambda a: a.blocks * 2)),
    "another's name": altered(
        answer("blocks", lambda a: (Block(("cleveland",), block(a).values),))
    ),
    "another's name beside its own": altered(
        answer("blocks", lambda a: (*a.blocks, Block(("cleveland",), block(a).values)))
    ),
    "nobody's name": altered(
        answer("blocks", lambda a: (Block(("nobody",), block(a).values),))
    ),
    "no names": altered(answer("blocks", lambda a: (Block((), block(a).values),))),
    "names that are none": altered(
        answer("blocks", lambda a: (Block(None, block(a).values),))
    ),
    "no block": altered(answer("blocks", ())),
    "blocks that are a number": altered(answer("blocks", 3)),
    "no values": altered(answer("blocks", lambda a: (Block((LIAR,), {}),))),
    "values that are none": altered(
        answer("blocks", lambda a: (Block((LIAR,), None),))
    ),
    "a field more": altered(
        answer(
            "blocks",
            lambda a: (Block((LIAR,), {"a": torch.ones(1), **block(a).values}),),
        )
    ),
    "fields that are None": altered(fields(lambda v: None)),
    "fields that are words": altered(fields(lambda v: "hello")),
    "fields that are numbers": altered(fields(lambda v: 10**400)),
    "fields that are lists": altered(fields(lambda v: ("a",))),
    "fields per client": altered(tensors(PerClient)),
    "packed fields": altered(
        tensors(lambda v: Packed({"values": v, "indices": v.long()}))
    ),
    "packed nothing": altered(tensors(lambda v: Packed({}))),
    "NaN": altered(tensors(lambda v: v.double() * float("nan"))),
    "integers": altered(
        tensors(lambda v: v.to(torch.int64) + (1 if v.dtype == torch.int64 else 0))
    ),
    "half precision": altered(tensors(lambda v: v.half())),
    "complex numbers": altered(tensors(lambda v: v.to(torch.complex64))),
    "a row more": altered(tensors(lambda v: torch.cat([v, v]))),
    "no row": altered(tensors(lambda v: v[:0])),
    "a dimension more": altered(
        tensors(lambda v: v[:, None].expand(1, 7, *v.shape[1:]))
    ),
    "an entry more": altered(tensors(lambda v: torch.cat([v.reshape(1, -1)] * 2, 1))),
    "a single number": altered(tensors(lambda v: v.double().sum())),
    "far too large": altered(
        tensors(lambda v: v.double().mul(1e8).add(1e20).to(v.dtype))
    ),
    "infinity": altered(
        tensors(lambda v: (v.double() + 1e39).to(torch.float32).to(v.dtype))
    ),
    "work without end": altered(answer("spent", {"row_gradients": 10**400})),
    "work below nothing": altered(answer("spent", {"row_gradients": -1})),
    "work of another kind": altered(answer("spent", {"x" * 1000: 1})),
    "work that is a word": altered(answer("spent", {"row_gradients": "all"})),
    "what others forgot": altered(answer("forgot", {"control": ("cleveland",)})),
    "what others remember": altered(
        answer("remembered", {"control": (("cleveland", 0),)})
    ),
    "a round that was not": altered(
        answer("remembered", {"control": ((LIAR, 10**9),)})
    ),
    "a thousand memories": altered(
        answer("remembered", {str(i): ((LIAR, 0),) for i in range(1000)})
    ),
    "a failure of others": altered(answer("failed", {"cleveland": "it is slow"})),
    "a failure and a reply": altered(answer("failed", {LIAR: "I changed my mind"})),
    "no answer": altered(lambda values: {"serial": values["serial"]}),
    "a reply to another ask": altered(lambda values: {**values, "serial": 3}),
    "a serial number that is a tensor": altered(
        lambda values: {**values, "serial": torch.ones(2)}
    ),
    "a serial number that is none": altered(lambda values: {**values, "serial": None}),
    "a failure that is no sentence": altered(lambda values: {**values, "failed": 3}),
    "a very long failure": altered(
        lambda values: {**values, "failed": "no\x1b[2J\n" * 10_000}
    ),
    "deep lists": whole(deep),
    "deeper lists": whole(deeper),
    "half of it": whole(lambda reply: reply[: len(reply) // 2]),
    "noise": whole(lambda reply: bytes(range(256)) * 40),
    "nothing": whole(lambda reply: b""),
    "no bytes": whole(lambda reply: {"delta": 1}),
}


@pytest.mark.in_turn
@pytest.mark.promise("replies as declared")
def test_two_hundred_malformed_replies_end_nothing_and_name_who_sent_them(quiet):
    ended, unnamed, others, told_badly, count = [], [], [], [], 0
    for number, method in enumerate(METHODS):
        play = quiet.begin(number)
        play(0)
        quiet.asked.clear()
        quiet.said.clear()
        play(1)
        quiet.replay = True
        kinds = list(dict.fromkeys(quiet.asked))
        lies = islice(cycle(LIES.items()), len(LIES))
        for at, (kind, lie) in enumerate(lies):
            where = kinds[at % len(kinds)]
            quiet.lie = lambda what, reply, lie=lie, where=where: (
                lie(what, reply) if what == where else reply
            )
            said = f"{method['name']}, {where}, {kind}"
            count += 1
            try:
                after = play(2 + at)
            except Exception as error:
                ended.append(f"{said}: {type(error).__name__}: {error}")
                continue
            if LIAR not in after.failures:
                unnamed.append(said)
            others += [f"{said}: {n}" for n in after.failures if n != LIAR]
            told_badly += [
                said
                for why in after.failures.values()
                if not why.isprintable() or len(why) > 400
            ]
            models = (
                after.models
                if isinstance(after.models, torch.Tensor)
                else torch.stack(list(after.models.values()))
            )
            assert models.isfinite().all(), said
        quiet.lie, quiet.replay = None, False
    assert count >= 200
    assert (ended, unnamed, others, told_badly) == ([], [], [], [])


# ---- each lie by itself


def ask(three_sites, task=local_update, names=SITES, **payload):
    view = Federation(three_sites.engine, names, 0, round=1, attempt=1)
    return view.ask(names, task, x=three_sites.engine.x, **payload)


def trained(three_sites, **options):
    local = three_sites.experiment.build_method(three_sites.experiment.methods[0]).local
    return ask(three_sites, local=local, **options)


def test_of_two_clients_the_liar_is_refused_whatever_form_its_numbers_have(quiet):
    quiet.begin(0)
    for kind in (
        "integers",
        "a dimension more",
        "an entry more",
        "half precision",
        "fields that are lists",
    ):
        quiet.lie = LIES[kind]
        replies = trained(quiet, names=(LIAR, "long-beach"))
        assert (replies.clients, list(replies.failed)) == (("long-beach",), [LIAR]), (
            kind
        )


def test_a_name_that_is_said_a_thousand_times_is_no_majority(quiet):
    play = quiet.begin(3)
    honest = play(0).models
    quiet.lie = lambda what, reply: altered(answer("blocks", lambda a: again(a)))(
        what, altered(tensors(lambda v: v * 1e3))(what, reply)
    )
    moved = play(1).models
    assert float((moved - quiet.engine.x).norm()) < 3 * float(
        (honest - quiet.engine.x).norm()
    )


def sizes(value):
    def lie(values):
        block(values["answer"]).values["sizes"] = torch.tensor(
            [value], dtype=torch.float64
        )

    return altered(lie)


@pytest.mark.promise("replies as declared")
@pytest.mark.parametrize("value", [1e9, -1.0, 0.0])
def test_sizes_are_those_of_the_facts(quiet, value):
    quiet.begin(0)
    quiet.lie = sizes(value)
    replies = trained(quiet)
    assert list(replies.failed) == [LIAR]
    assert "but the facts of this client" in replies.failed[LIAR]


@pytest.mark.parametrize(
    ("field", "value"), [("values", 1.5), ("values", -0.5), ("rows", 1e9)]
)
def test_metrics_lie_in_their_range_and_rows_are_those_of_the_facts(
    quiet, field, value
):
    def lie(values):
        fields = block(values["answer"]).values
        fields[field] = torch.full_like(fields[field], value)

    quiet.begin(0)
    quiet.lie = altered(lie)
    replies = ask(quiet, evaluate, part="test", metrics=("accuracy", "auc"))
    assert list(replies.failed) == [LIAR]


@pytest.mark.promise("replies as declared")
def test_one_update_cannot_be_far_longer_than_the_others(quiet):
    play = quiet.begin(0)
    honest = play(0).models - quiet.engine.x
    quiet.lie = altered(
        lambda values: block(values["answer"]).values.update(
            delta=block(values["answer"]).values["delta"] * 1e4
        )
    )
    assert float((play(1).models - quiet.engine.x).norm()) < 30 * float(honest.norm())


def test_one_control_cannot_be_far_longer_than_the_others(quiet):
    play = quiet.begin(1)
    play(0)
    quiet.lie = altered(
        lambda values: block(values["answer"]).values.update(
            change=block(values["answer"]).values["change"] * 1e9
        )
    )
    assert list(play(1).failures) == [LIAR]


@pytest.mark.promise("replies as declared")
def test_a_reply_is_not_read_if_it_is_longer_than_its_task_declares(quiet, monkeypatch):
    quiet.begin(0)
    read = []
    import coterie.sites.replies as replies

    monkeypatch.setattr(
        replies,
        "decode",
        lambda message, head: read.append(len(message)) or decode(message, head),
    )
    quiet.lie = lambda what, reply: bytes(2**26)
    got = trained(quiet)
    assert got.failed == {
        LIAR: "its reply has 64 MB, more than the 16 MB that were asked for"
    }
    assert len(read) == len(SITES) - 1


def test_a_sentence_of_a_client_is_one_short_line_without_control_characters(quiet):
    quiet.begin(0)
    quiet.lie = LIES["a very long failure"]
    why = trained(quiet).failed[LIAR]
    assert len(why) <= 300
    assert why.isprintable()
    assert why.startswith(r"no\x1b[2J\nno\x1b[2J\n")


# ---- before the first round


def of(kind, change):
    return lambda what, reply: altered(change)(what, reply) if what == kind else reply


def facts(change):
    return of("encode", lambda values: told(values, "facts", change))


def about(change):
    """A lie about the description of its table."""

    def lie(values):
        one = block(values["answer"])
        table = json.loads(one.values["text"][0])
        changed = change(table)
        one.values["text"] = (json.dumps(table if changed is None else changed),)

    return of("coterie.data.tables.recipe:describe", lie)


def moments(field, value):
    def lie(values):
        fields = block(values["answer"]).values
        fields[field] = value(fields[field]) if callable(value) else value

    return of("coterie.data.tables.recipe:moments", lie)


WORDS = [str(i) for i in range(500)]


def texts(distinct, categories=WORDS):
    told = {
        "kind": "text",
        "signs": [],
        "unknown": [],
        "pooled": False,
        "identifier": False,
        "unique": False,
    }
    return {**told, "categories": categories, "distinct": distinct}


BEGINNINGS = {
    "notes that are a number": of("open", lambda v: {**v, "notes": 3}),
    "notes that are numbers": of("open", lambda v: {**v, "notes": (1, 2)}),
    "no notes": of("encode", lambda v: {k: w for k, w in v.items() if k != "notes"}),
    "noise": lambda what, reply: b"noise",
    "deep lists": lambda what, reply: deep(reply),
    "no facts": of("encode", lambda v: {k: w for k, w in v.items() if k != "facts"}),
    "facts that are a list": of("encode", lambda v: {**v, "facts": "[1]"}),
    "facts that are no JSON": of("encode", lambda v: {**v, "facts": "{"}),
    "deep facts": of("encode", lambda v: {**v, "facts": "[" * 100_000}),
    "a class that is not there": facts(lambda t: t.update(highest=10**9)),
    "a class below none": facts(lambda t: t.update(lowest=-1)),
    "rows below none": facts(lambda t: t["sizes"].update(train=-5)),
    "rows without end": facts(lambda t: t["sizes"].update(train=10**400)),
    "rows that are words": facts(lambda t: t["sizes"].update(train="many")),
    "no fingerprint": facts(lambda t: t.update(fingerprint=None)),
    "more rows than it has described": facts(lambda t: t["sizes"].update(train=10**12)),
    "a fact more": facts(lambda t: t.update(more=1)),
    "a description that is a list": about(lambda t: [t]),
    "a description without columns": about(lambda t: t.pop("columns") and None),
    "a description without a label": about(lambda t: t.pop("label") and None),
    "columns that are a list": about(lambda t: t.update(columns=[])),
    "a column that is none": about(lambda t: t["columns"].update(age=None)),
    "a column of no kind": about(lambda t: t["columns"]["age"].update(kind="rows")),
    "a column with signs of its own": about(
        lambda t: t["columns"]["age"].update(signs=[["%"]])
    ),
    "a column with a terminal's words": about(
        lambda t: t["columns"].update({"\x1b[2J": t["columns"]["age"]})
    ),
    "a label of numbers that are none": about(
        lambda t: t["label"].update(kind="number", values=["many"])
    ),
    "more categories than it counts": about(
        lambda t: t["columns"].update(ward=texts(3))
    ),
    "more categories than any column may have": about(
        lambda t: t["columns"].update(ward=texts(500))
    ),
    "more categories than rows": about(
        lambda t: t["columns"].update(cp={**t["columns"]["cp"], **texts(500)})
    ),
    "more classes than it counts": about(
        lambda t: t["label"].update(distinct=1, values=WORDS[:9])
    ),
    "rows described as a word": about(lambda t: t.update(rows="many")),
    "counts below none": moments("counts", lambda v: v - 1e6),
    "sums that are not": moments("means", lambda v: v * float("nan")),
    "sums of other columns": moments("squares", lambda v: torch.cat([v, v], 1)),
    "sums that are words": moments("counts", "many"),
    "sums without end": moments("squares", lambda v: v + 1e308),
    "counts of more rows than it has": moments("counts", lambda v: v + 1e12),
}


@pytest.mark.in_turn(
    but=(
        "notes that are a number",
        "deep lists",
        "facts that are a list",
        "no facts",
        "noise",
    )
)
@pytest.mark.promise("a start without one site")
@pytest.mark.parametrize("kind", BEGINNINGS)
def test_a_site_whose_beginning_is_malformed_takes_no_part_and_the_others_begin(
    fresh, kind
):
    fresh.lie = BEGINNINGS[kind]
    engine = fresh.open()
    assert engine.clients == tuple(n for n in SITES if n != LIAR)
    note = next(n for n in fresh.clients.notes if LIAR in n)
    assert note.startswith(f"{LIAR} takes no part: its reply to ")
    assert note.isprintable()
    assert len(note) <= 400
    assert max(fresh.clients.train.labels) == 1


@pytest.fixture
def fresh(three_sites):
    engine, clients = three_sites.engine, three_sites.clients
    yield three_sites
    three_sites.engine, three_sites.clients, three_sites.lie, three_sites.accept = (
        engine,
        clients,
        None,
        (),
    )
    three_sites.goes_on = False


@pytest.mark.promise("a start without one site")
def test_a_site_whose_model_is_refused_fails_in_every_round(fresh):
    fresh.open()
    fresh.lie = of("prepare", lambda values: {**values, "facts": "{}"})
    after = fresh.begin(0)(1)
    assert list(after.failures) == [LIAR]
    assert "its reply to prepare is refused" in after.failures[LIAR]


@pytest.mark.promise("a start without one site")
def test_a_site_that_fails_before_a_later_method_is_left_out_of_it(fresh):
    fresh.open()
    assert not fresh.begin(0)(1).failures
    fresh.lie = of("prepare", lambda values: {**values, "failed": "not this one"})
    failures = fresh.begin(1)(1).failures
    assert list(failures) == [LIAR]
    assert failures[LIAR].endswith(": not this one")
    fresh.lie = None
    assert not fresh.begin(2)(1).failures


def test_what_a_site_says_in_words_is_for_a_person_to_mend(fresh):
    fresh.lie = of("open", lambda values: {**values, "failed": "its disk is full"})
    with pytest.raises(
        RunError, match=r"the run cannot begin \(open\): hungary \(its disk is full\)"
    ):
        fresh.open()


def described_otherwise(values):
    fields = block(values["answer"]).values
    table = json.loads(fields["text"][0])
    del table["columns"]["age"], table["label"]
    fields["text"] = (json.dumps(table),)


CONTINUED = {
    "rows it cannot read": of(
        "open", lambda values: {**values, "failed": "its disk is full"}
    ),
    "no recipe for it": of(
        "encode", lambda values: {**values, "failed": "the recipe does not fit"}
    ),
    "no model for it": of(
        "prepare", lambda values: {**values, "failed": "not this one"}
    ),
    "a description of another content": of(
        "coterie.data.tables.recipe:describe", described_otherwise
    ),
    "facts of more rows": of(
        "encode",
        lambda values: told(values, "facts", lambda f: f["sizes"].update(train=10**12)),
    ),
    "moments far from the others'": moments("means", lambda v: v + 1e4),
    "a task that fails": of(
        "coterie.data.tables.recipe:moments",
        lambda values: put(values["answer"], "failed", {LIAR: "no memory"}),
    ),
}


@pytest.mark.parametrize("kind", CONTINUED)
def test_a_plan_that_goes_on_begins_without_the_site_and_names_it(fresh, kind):
    fresh.lie, fresh.goes_on = CONTINUED[kind], True
    fresh.open()
    after = fresh.begin(0)(1)
    assert LIAR in fresh.engine.refused
    assert set(after.failures) <= {LIAR}
    assert set(fresh.engine.clients) >= set(SITES) - {LIAR}
    assert torch.isfinite(after.models).all()


@pytest.mark.promise("a start without one site")
@pytest.mark.parametrize(
    ("field", "value"), [("means", lambda v: v + 1e4), ("squares", lambda v: v * 1e6)]
)
def test_moments_far_from_the_others_are_asked_of_the_operator_and_not_averaged_in(
    fresh, field, value
):
    """Moments of one site moved the model of all by 30,300 times the honest amount."""
    fresh.lie = moments(field, value)
    with pytest.raises(
        RunError,
        match=rf"column '\w+' of {LIAR} has the mean .* submit with --accept {LIAR}:",
    ):
        fresh.open()
    fresh.accept = [f"{LIAR}:{column}" for column in fresh.clients.recipe["features"]]
    assert LIAR in fresh.open().clients


@pytest.mark.parametrize("low", [0, 1])
def test_columns_of_two_values_are_averaged_in_whatever_a_mean_says(low):
    """One site that has women alone has a deviation of 0, and a mean far from the others'."""
    share = torch.tensor([[0.5], [0.52], [0.999]], dtype=torch.float64)
    count = torch.full_like(share, 1000)
    spread = (share * (1 - share)) * count
    replies = SimpleNamespace(
        clients=SITES, counts=count, means=share + low, squares=spread
    )
    assert not list(moments_apart(replies, ["sex"]))
    lie = SimpleNamespace(
        **{**vars(replies), "means": share + low + torch.tensor([[0.0], [0.0], [9.0]])}
    )
    assert [apart.key for apart in moments_apart(lie, ["sex"])] == [f"{SITES[2]}:sex"]


@pytest.mark.in_turn
@pytest.mark.promise("a start without one site")
def test_descriptions_of_another_content_end_no_job_without_a_name(fresh):
    """Well-formed descriptions of another content ended the job with a KeyError or a TypeError, and named nobody."""
    import random

    drawn, unnamed = random.Random(0), []
    true = {}
    fresh.lie = about(lambda t: true.update(json.loads(json.dumps(t))))
    fresh.open()
    parts = [
        [],
        {},
        None,
        0,
        -1,
        1.5,
        "",
        "age",
        True,
        ["a"],
        ["a", 1],
        {"a": 1},
        "number",
        "text",
        "empty",
        "date",
        "boolean",
    ]

    def change(table):
        place = (
            table["columns"][drawn.choice(sorted(table["columns"]))]
            if drawn.random() < 0.7
            else table["label"]
        )
        key = drawn.choice(
            [
                *place,
                "categories",
                "problem",
                "example",
                "distinct",
                "values",
                "identifier",
            ]
        )
        place[key] = drawn.choice(parts)
        if drawn.random() < 0.3:
            place.pop(drawn.choice(sorted(place)))

    for _ in range(60):
        fresh.lie = about(change)
        try:
            engine = fresh.open()
            assert LIAR in engine.clients or any(
                LIAR in note for note in fresh.clients.notes
            )
        except (InputError, RunError) as error:
            if (
                LIAR not in str(error)
                and "column" not in str(error)
                and "label" not in str(error)
            ):
                unnamed.append(str(error))
    assert not unnamed


def test_too_few_readable_sites_are_no_beginning(tmp_path):
    three_sites = ThreeSites(tmp_path, METHODS[:1], names=(LIAR,))
    three_sites.lie = BEGINNINGS["noise"]
    with pytest.raises(RunError, match=r"hungary .*cannot be read"):
        three_sites.open()


BENDING = {
    "qffl": ("loss", -1e300),
    "fednova": ("steps", 1.7e308),
    "fednova with a pull": ("length", 1e12),
    "dpfl": ("members", 0.0),
}


@pytest.mark.in_turn(but=("qffl", "dpfl"))
@pytest.mark.parametrize("name", BENDING)
def test_a_number_that_no_client_can_have_is_its_failure_and_bends_no_model(
    tmp_path, name
):
    """As it was: q-FFL ended with the job, FedNova's model was infinite for everybody, and DPFL's for who had chosen nobody."""
    field, number = BENDING[name]
    more = {"mu": 0.1} if "pull" in name else {}
    town = ThreeSites(
        tmp_path / "town", [{"name": name.split()[0], "local": SGD, **more}]
    )
    town.open()
    play = town.begin()
    honest = play(0)

    def lie(values):
        told_fields = block(values["answer"]).values
        if field in told_fields:
            told_fields = {
                **told_fields,
                field: torch.full_like(told_fields[field], number),
            }
        put(block(values["answer"]), "values", told_fields)

    town.lie = altered(lie)
    bent = play(1)
    before, after = (
        list(r.models.values()) if isinstance(r.models, dict) else [r.models]
        for r in (honest, bent)
    )
    assert all(bool(torch.isfinite(model).all()) for model in after)
    assert max(float(m.norm()) for m in after) < 3 * max(
        float(m.norm()) for m in before
    )
    assert (LIAR in bent.failures) is (name != "dpfl")

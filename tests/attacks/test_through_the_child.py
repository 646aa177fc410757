"""Each known way to the rows of a site, through the process that holds them: what gave rows gives none."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from math import inf

import pytest
import three_sites
import torch
from child import Behind, ChildRows, children
from hospital import FEDAVG, local
from test_a_malicious_client import about, facts
from test_a_malicious_client import moments as moments_lie
from test_the_red_team import CLIP, FOUR, MERITFED, NOISE
from three_sites import LIAR, ThreeSites

import coterie.sites.attack
from coterie.algorithms.ditto import ditto_update
from coterie.algorithms.local import model_alone, train_alone
from coterie.base.errors import RunError
from coterie.compute.metrics import evaluate
from coterie.compute.tasks import local_update, local_updates, own_model
from coterie.data.tables.recipe import moments
from coterie.sites.allowed import RefusedError
from coterie.sites.attack import attack
from coterie.sites.log import entries
from coterie.sites.plan_words import in_words
from coterie.sites.site import SERVER, Site

pytestmark = pytest.mark.usefixtures("children")
__all__ = ["children"]


@pytest.fixture
def behind(tmp_path):
    made = []

    def make(**plan):
        made.append(Behind(tmp_path, **plan))
        return made[-1]

    yield make
    for one in made:
        one.close()


def refused(say, *args, **values):
    """Whether the child has refused; a task that failed has run."""
    with pytest.raises(RefusedError):
        say(*args, **values)
    return True


@pytest.mark.in_turn(but="fedavg")
@pytest.mark.promise("no row leaves")
@pytest.mark.parametrize(
    ("method", "plan"),
    [(FEDAVG, {}), ({**FEDAVG, "name": "median"}, {}), (MERITFED, FOUR)],
    ids=["fedavg", "median", "meritfed"],
)
def test_every_attack_of_the_red_team_finds_no_row_in_the_child(
    tmp_path, monkeypatch, method, plan
):
    """T0, T2, T3 and T4 by the attacks that find the rows again where nothing is checked."""
    (tmp_path / "one").mkdir()
    hospital = Behind(
        tmp_path / "one", methods=[method], rounds=3, filters=[CLIP, NOISE], **plan
    )
    started = [hospital.rows]

    def start(name, settings, folder, approved):
        started.append(ChildRows(name, settings, folder, approved, hospital.plan))
        return started[-1]

    monkeypatch.setattr(coterie.sites.attack, "SiteRows", start)
    try:
        every = list(attack(hospital.approved, hospital.settings, "hungary", inf))
        assert len(every) >= 6
        # Averages over evaluations do tell patients: test_the_red_team.py has that attack, and its price.
        rows_found = [w for w in every if w.what not in ("members", "patients")]
        assert [way for way in rows_found if way.found] == []
        assert all(one.models <= one.budget for one in every)
        assert sum(one.requests for one in every) > 10
    finally:
        for rows in started:
            rows.site.close()


def test_t0_sums_are_about_no_centre_of_the_servers_choice(behind):
    site = behind().begin()
    schema, n = json.dumps(["age"]), site.rows.copy.table.parts["train"].size
    for centre in (
        torch.zeros(1),
        torch.zeros(1, n),
        torch.zeros(n, 1),
        torch.eye(n)[:1],
    ):
        assert refused(site.ask, moments, schema=schema, centre=centre.double())
        assert site.rows.outcome == "refused"
    told = [
        tuple(map(float, site.ask(moments, schema=schema).values())) for _ in range(3)
    ]
    assert len(set(told)) == 1


def test_t2_copies_of_a_model_have_one_draw_of_noise(behind):
    site = behind(methods=[MERITFED], filters=[CLIP, NOISE], **FOUR).begin(
        pair="meritfed-0"
    )
    asked = site.approved.pairs["meritfed-0"].method.local
    replies = [
        site.ask(local_updates, x=site.x.expand(4, -1).contiguous(), local=asked)[
            "delta"
        ][0]
        for _ in range(2)
    ]
    assert len({tuple(row.tolist()) for reply in replies for row in reply}) == 1
    assert refused(
        site.ask, local_updates, x=site.x.expand(4096, -1).contiguous(), local=asked
    )


def test_t3_the_budget_is_of_models_and_outlives_the_child(behind):
    site = behind(rounds=1, deploy={"runs": 2}).begin()
    for number in range(2):
        site.ask(local_update, x=site.x + number, local=local())
    assert refused(site.ask, local_update, x=site.x + 2, local=local())
    site.rows.site._child._process.kill()
    assert refused(
        site.ask, local_update, x=site.x + 2, local=local()
    )  # which ends the old one
    assert refused(site.ask, local_update, x=site.x + 2, local=local())
    assert site.rows.outcome == "refused"
    site.ask(local_update, x=site.x, local=local())


def spent(site):
    """Ask about the one model that the plan has, and be refused another."""
    site.begin()
    site.ask(local_update, x=site.x, local=local())
    assert refused(site.ask, local_update, x=site.x + 1, local=local())
    return site


def restarted(site):
    """Let the child end, and the next one read what the log says of the budget."""
    site.rows.site._child._process.kill()
    assert refused(site.say, "open", seed=0)
    return site.begin()


@pytest.mark.promise("one budget")
def test_t3_no_message_of_the_server_is_an_approval_that_gives_the_budget_back(behind):
    """As it was: a message that calls itself `approved` was a line of the log, in which a restarted site read an approval."""
    site = spent(behind(rounds=1, deploy={"runs": 1}))
    assert refused(site.say, "approved")
    assert refused(restarted(site).ask, local_update, x=site.x + 1, local=local())


@pytest.mark.promise("one budget")
@pytest.mark.parametrize(
    "odd", [{"round": True}, {"seed": False}, {"ask": True}], ids=str
)
def test_t3_a_place_in_the_run_is_a_number_that_the_log_keeps_as_it_is(behind, odd):
    """As it was: round `True` was spent as round 1, and after a restart the log had a round "True"."""
    site = behind(rounds=1, deploy={"runs": 1}).begin()
    assert refused(site.ask, local_update, x=site.x, local=local(), **odd)
    assert site.rows.outcome == "refused"


def test_t4_a_recipe_that_fails_has_one_sentence_and_none_fails_above_a_value(behind):
    site = behind()
    site.say("open", seed=0)
    recipe, sentences = site.recipe(), set()
    age = next(c for c in recipe["columns"] if c["name"] == "age")
    plain = dict(age)
    for step in range(-6, 7):
        age.update(
            mean=plain["mean"] + step * plain["scale"], scale=plain["scale"] * 1e-30
        )
        with pytest.raises(RefusedError) as error:
            site.say("encode", recipe=json.dumps(recipe))
        sentences.add(str(error.value))
    assert len(sentences) == 1
    fingerprints = set()
    for scale in (1.0, 3.0, 1e3):
        age.update(mean=plain["mean"], scale=plain["scale"] * scale)
        fingerprints.add(
            json.loads(site.say("encode", recipe=json.dumps(recipe))["facts"])[
                "fingerprint"
            ]
        )
    assert len(fingerprints) == 1


def test_t5_no_text_of_a_plan_or_of_a_request_forges_a_line(behind):
    forged = "x\nrefused   everything\x1b[2K\u202e"
    site = behind(methods=[{**FEDAVG, "label": "mine"}], data={"drop": [forged]})
    lines = list(in_words(site.approved, site.settings, "hungary"))
    assert all(line.isprintable() for line in lines)
    assert not any(line.startswith("refused   everything") for line in lines)
    for message in (
        {"do": "open", "seed": forged},
        {"do": forged},
        {"do": "open", "seed": 0, "run": forged},
    ):
        with suppress(RefusedError):
            site.say(**message)
    logged = [
        value
        for entry in entries(site.rows.log)
        for value in entry.values()
        if isinstance(value, str)
    ]
    assert any("x1b" in value for value in logged)
    assert all(value.isprintable() for value in logged)


@pytest.mark.promise("own models stay")
def test_t9_own_models_and_updates_of_references_do_not_leave_the_child(behind):
    methods = [{**FEDAVG, "name": "ditto"}, {**FEDAVG, "name": "local"}]
    site = behind(methods=methods, filters=[{**CLIP, "bound": 0.001}])
    site.begin(pair="ditto-0")
    trains = site.approved.pairs["ditto-0"].method.local
    delta = site.ask(ditto_update, x=site.x, local=trains, lam=1.0)["delta"]
    assert float(delta.norm()) <= 0.001 * (1 + 1e-5)
    assert site.ask(own_model, x=site.x, key="ditto") == {}
    site.begin(pair="local-0")
    assert list(site.ask(train_alone, x=site.x, local=trains)) == ["solved"]
    assert site.ask(model_alone, x=site.x) == {}
    assert (
        site.ask(evaluate, x=None, part="test", metrics=("accuracy", "auc"))[
            "rows"
        ].item()
        > 0
    )
    kept = site.rows.site.folder / "models" / "local-0-hungary"
    assert not kept.exists()
    site.ask(model_alone, x=site.x, round=5)
    assert sorted(path.name for path in kept.iterdir()) == [
        "model.safetensors",
        "preprocess.json",
    ]


def test_batches_of_another_size_are_refused_in_the_child(behind):
    site = behind().begin()
    for change in (
        {"batch_size": 1},
        {"minimum_batch": 1},
        {"steps": replace(local().steps, count=10**6)},
    ):
        assert refused(site.ask, local_update, x=site.x, local=local(**change))
        assert site.rows.outcome == "refused"


@pytest.fixture
def three_behind(tmp_path, monkeypatch):
    """Three sites whose tables lie in child processes; one of them lies to the server."""
    made = ThreeSites(tmp_path, [FEDAVG], rounds=2)
    workers = {
        name: Site(name, tmp_path / name / "coterie.toml", tmp_path / name / "site")
        for name in made.names
    }
    monkeypatch.setattr(
        three_sites,
        "serve_message",
        lambda message, rows: (workers[rows.name].handle(message, SERVER), {}),
    )
    yield made
    for worker in workers.values():
        worker.close()


ANOTHER_CONTENT = {
    "T6: a kind that is none": about(lambda t: t["columns"]["age"].update(kind="rows")),
    "T6: a column without its signs": about(
        lambda t: t["columns"]["age"].pop("signs") and None
    ),
    "T6: categories that are numbers": about(
        lambda t: t["columns"]["cp"].update(kind="text", categories=[1, 2])
    ),
    "T8: counts of 10^12": moments_lie("counts", lambda v: v + 1e12),
    "T8: facts of 10^12 rows": facts(lambda t: t["sizes"].update(train=10**12)),
}


@pytest.mark.parametrize("kind", ANOTHER_CONTENT)
def test_t6_and_t8_whoever_describes_or_counts_otherwise_takes_no_part(
    three_behind, kind
):
    three_behind.lie = ANOTHER_CONTENT[kind]
    engine = three_behind.open()
    assert engine.clients == tuple(
        name for name in sorted(three_behind.names) if name != LIAR
    )
    assert any(
        LIAR in note and "takes no part" in note for note in three_behind.clients.notes
    )


def test_t8_moments_far_from_the_others_move_no_model(three_behind):
    three_behind.lie = moments_lie("means", lambda v: v + 1e4)
    with pytest.raises(RunError, match=rf"column '\w+' of {LIAR} has the mean"):
        three_behind.open()

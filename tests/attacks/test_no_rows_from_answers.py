"""Ways from answers to rows, which all worked once: identifiers, single cells, sums of many splits, batches and parts of one."""

from __future__ import annotations

import csv
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
import torch
from hospital import FEDAVG, Hospital, local
from test_a_site_obeys_its_plan import refused

from coterie.base.errors import InputError
from coterie.base.rng import Rng, batches
from coterie.compute.metrics import baselines, evaluate
from coterie.compute.tasks import local_update
from coterie.config.local import Steps
from coterie.data.sets.heart_disease import FOLDER
from coterie.data.tables.recipe import describe, moments
from coterie.sites.allowed import RefusedError
from coterie.sites.ledger import Account


def description_options(options):
    from coterie.sites.tables import description_options

    return description_options(options)


ROWS = list(csv.DictReader((FOLDER / "hungary.csv").read_text().splitlines()))


def table(folder, rows, **columns):
    """Write rows with more columns, each a function of the row's number; the settings that name the file."""
    path = folder / "own.csv"
    made = [
        {**row, **{k: f(i) for k, f in columns.items()}} for i, row in enumerate(rows)
    ]
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, made[0])
        writer.writeheader()
        writer.writerows(made)
    return {"data": str(path)}


def described(hospital):
    return json.loads(
        hospital.ask(describe, **description_options(hospital.rows.options))["text"][0]
    )


@pytest.mark.promise("no row leaves")
def test_identifiers_never_leave_chosen_or_not(tmp_path):
    names = table(
        tmp_path, ROWS, name=lambda i: f"Kovács {i}", record_number=lambda i: 10_000 + i
    )
    chosen = {"categorical": ["cp", "restecg", "name", "record_number"]}
    hospital = Hospital(tmp_path, names, data=chosen)
    hospital.say("open", seed=0)
    said = hospital.ask(describe, **description_options(hospital.rows.options))["text"][
        0
    ]
    assert "Kov" not in said
    assert "1000" not in said
    assert not {"name", "record_number"} & set(json.loads(said)["columns"])


@pytest.mark.promise("no row leaves")
def test_rare_categories_stay_at_the_site_and_leave_no_trace_in_its_features(tmp_path):
    rare = table(
        tmp_path,
        ROWS,
        ward=lambda i: "isolation" if i < 9 else "general" if i % 2 else "surgery",
    )
    hospital = Hospital(tmp_path, rare)
    hospital.say("open", seed=0)
    assert described(hospital)["columns"]["ward"]["categories"] == [
        "general",
        "surgery",
    ]
    recipe = hospital.recipe()
    ward = next(c for c in recipe["columns"] if c["name"] == "ward")
    ward["categories"] = ["isolation"]  # a server that has guessed the word
    recipe["features"] = [f for f in recipe["features"] if "ward=" not in f] + [
        "ward=isolation"
    ]
    recipe["columns"] = [c for c in recipe["columns"] if c["name"] != "ward"] + [ward]
    hospital.say("encode", recipe=json.dumps(recipe))
    assert not hospital.rows.clients.train.inputs[:, -1].any()


def test_a_column_that_few_rows_have_has_no_sum(tmp_path):
    few = table(tmp_path, ROWS, viral_load=lambda i: 777 if i < 5 else "")
    hospital = Hospital(tmp_path, few)
    hospital.say("open", seed=0)
    assert described(hospital)["columns"]["viral_load"]["kind"] == "empty"
    got = hospital.ask(moments, schema='["viral_load"]')
    assert not any(got[field].any() for field in ("counts", "means", "squares"))


def test_a_class_of_few_rows_is_not_spoken_of(tmp_path):
    few = table(tmp_path, ROWS)
    text = (tmp_path / "own.csv").read_text().splitlines()
    lines = [
        text[0],
        *(
            f"{line.rpartition(',')[0]},{9 if i < 4 else i % 2}"
            for i, line in enumerate(text[1:])
        ),
    ]
    (tmp_path / "own.csv").write_text("\n".join(lines))
    hospital = Hospital(
        tmp_path,
        few,
        data={"name": None, "folder": "x", "label": "num", "categorical": ["cp"]},
    )
    refused(
        "one of its classes has fewer than the 10 rows", hospital.say, "open", seed=0
    )
    assert hospital.rows.table is None


def test_the_values_of_a_label_of_numbers_stay_at_the_site(tmp_path):
    hospital = Hospital(tmp_path)
    hospital.say("open", seed=0)
    assert described(hospital)["label"]["values"] == []  # cut at 0: nobody needs them


def test_a_label_to_regress_on_is_summed_and_its_values_stay(tmp_path):
    hospital = Hospital(
        tmp_path,
        data={"name": None, "folder": "x", "label": "age", "task": "regression"},
    )
    hospital.begin()
    assert hospital.rows.clients.train.labels.is_floating_point()
    told = json.loads(
        hospital.ask(describe, **description_options(hospital.rows.options))["text"][0]
    )
    assert told["label"]["values"] == []


def test_a_split_is_the_same_whenever_it_is_opened_and_many_seeds_are_refused(tmp_path):
    hospital = Hospital(tmp_path, seeds=3)
    first = [
        hospital.say("open", seed=seed) and hospital.rows.table.parts["train"]
        for seed in (0, 1)
    ]
    again = [
        hospital.say("open", seed=seed) and hospital.rows.table.parts["train"]
        for seed in (0, 1)
    ]
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert (first[0] != first[1]).any()
    (tmp_path / "many").mkdir()
    many = Hospital(tmp_path / "many", seeds=104)
    refused("the plan has 104 seeds", many.say, "open", seed=0)


@pytest.mark.promise("one budget")
def test_sums_of_all_seeds_do_not_solve_for_rows(tmp_path):
    """Three sums of each allowed seed are far fewer equations than rows; asking again adds none."""
    hospital = Hospital(tmp_path, seeds=5)
    equations = []
    for seed in range(5):
        hospital.say("open", seed=seed)
        member = torch.zeros(len(ROWS), dtype=torch.float64)
        member[hospital.rows.table.parts["train"]] = 1
        equations.append(member)
        one, two = (
            hospital.ask(moments, schema=schema)
            for schema in ('["age"]', '["age", "age"]')
        )
        assert all(torch.equal(one[field].expand(1, 2), two[field]) for field in one)
    assert torch.linalg.matrix_rank(torch.stack(equations)) <= 5 < len(ROWS) / 10


@pytest.mark.promise("no row leaves")
def test_moments_have_no_centre_about_which_a_server_could_solve_for_rows(tmp_path):
    """About a centre of shape [rows] a sum of squares is one equation a row: as many asks as rows gave every row."""
    hospital = Hospital(tmp_path)
    hospital.say("open", seed=0)
    rows = len(hospital.rows.table.parts["train"])
    sums = []
    for shape in ([1], [1, 1], [1, rows], [rows]):
        centre = torch.arange(
            float(torch.tensor(shape).prod()), dtype=torch.float64
        ).reshape(shape)
        with pytest.raises(RefusedError):
            sums.append(hospital.ask(moments, schema='["age"]', centre=centre))
    assert not sums


@pytest.mark.promise("minima")
def test_a_batch_of_few_rows_is_refused_even_if_the_plan_allows_it(tmp_path):
    one = {"name": "fedavg", "local": {"steps": 1, "batch_size": 1, "minimum_batch": 1}}
    hospital = Hospital(tmp_path, methods=[one]).begin()
    with pytest.raises(AssertionError, match="its task failed"):
        hospital.ask(
            local_update,
            x=hospital.x,
            local=local(steps=Steps(1), batch_size=1, minimum_batch=1),
        )
    assert (
        "computes nothing of fewer than 8 different rows"
        in hospital.rows.about["error"]
    )


def test_a_sampler_cannot_draw_one_row_many_times(tmp_path):
    import numpy as np

    from coterie.contract.method import Sampler

    class Same(Sampler):
        def rows(self, cohort, client, rng, steps, batch_size):
            return np.zeros((steps, batch_size), dtype=np.int64)

    hospital, same = Hospital(tmp_path).begin(), Same()
    from coterie.compute.cohort import Cohort
    from coterie.contract.memory import MemoryView

    shard = hospital.rows.shard
    view = MemoryView(shard.memory, ("hungary",))
    spent = {"row_gradients": 0, "row_losses": 0}
    cohort = Cohort(
        ("hungary",), shard.workspace, shard.clients, (0,), view, 0, 1, spent
    )
    with pytest.raises(ValueError, match="fewer than 8 different rows"):
        cohort.train(hospital.x, local(), sampler=same)


def test_a_small_last_batch_is_left_out_as_in_one_process(tmp_path):
    long = {
        "name": "fedavg",
        "local": {"steps": 30, "batch_size": 16, "minimum_batch": 8},
    }
    hospital = Hospital(tmp_path, methods=[long]).begin()
    rows = hospital.rows.shard.clients.sizes("train")["hungary"]
    assert 0 < rows % 16 < 8
    reply = hospital.ask(
        local_update, x=hospital.x, local=local(steps=Steps(30))
    )  # more than two epochs
    assert torch.isfinite(reply["delta"]).all()
    assert hospital.rows.about["rows"] == 30 * 16
    sizes = [len(b) for b in batches(Rng.named(0, "a"), rows, 16, epochs=1, smallest=8)]
    assert set(sizes) == {16}


@pytest.mark.promise("minima")
def test_few_validation_rows_do_not_train_one_method_alone(tmp_path):
    """As it was: the loss of training rows with them less that without them was the loss of five rows."""
    chooses = {
        "name": "meritfed",
        "targets": ["hungary"],
        "validation": "validation",
        "local": FEDAVG["local"],
    }
    for share, few in ((0.017, True), (0.1, False)):
        (folder := tmp_path / str(share)).mkdir()
        parts = {"parts": {"train": 0.8 - share, "validation": share, "test": 0.2}}
        plan = {
            "methods": [FEDAVG, chooses],
            "run": {"merge_validation": True},
            "split": parts,
        }
        hospital = Hospital(folder, **plan).begin(pair="meritfed-0")
        assert (0 < hospital.rows.clients.sizes("validation")["hungary"] < 8) is few
        if few:
            refused(
                "one method of the plan trains on its few validation rows",
                hospital.begin,
            )
        else:
            hospital.begin()


@pytest.mark.promise("minima")
def test_a_part_of_few_rows_has_no_loss_no_metric_and_no_size(tmp_path):
    parts = {"train": 280 / 294, "test": 14 / 294}
    hospital = Hospital(tmp_path, {"minimum_cell": 20}, run={"evaluate": 1})
    hospital.rows.experiment.split.update(parts=parts)
    hospital.begin()
    assert hospital.rows._facts(hospital.rows.clients).sizes["test"] == 0
    got = hospital.ask(evaluate, x=hospital.x, part="test", metrics=("accuracy", "auc"))
    assert (got["rows"].item(), got["loss"].item(), got["defined"].tolist()) == (
        0,
        0,
        [[False, False]],
    )


def test_a_metric_that_rests_on_a_class_of_few_rows_is_undefined(tmp_path):
    hospital = Hospital(tmp_path, {"minimum_cell": 10}).begin()
    labels = hospital.rows.shard.clients.test.labels
    labels[:] = 0
    labels[:5] = 1
    got = hospital.ask(evaluate, x=hospital.x, part="test", metrics=("accuracy", "auc"))
    assert got["defined"].tolist() == [[True, False]]
    assert got["values"][0, 1] == 0
    got = hospital.ask(baselines, part="test", round=5)
    assert [got[key].item() for key in ("majority", "majority_loss", "defined")] == [
        0,
        0,
        False,
    ]


def test_too_few_training_rows_refuse_everything_whatever_failed_before(tmp_path):
    hospital = Hospital(tmp_path, {"minimum_rows": 500})
    refused("fewer than the 500 training rows", hospital.say, "open", seed=0)
    refused("were not read yet", described, hospital)
    refused("were not read yet", hospital.ask, moments, schema='["age"]')
    refused("were not read yet", hospital.say, "encode", recipe="{}")


@pytest.mark.promise("minima")
def test_an_open_that_fails_leaves_no_rows_behind(tmp_path):
    hospital = Hospital(tmp_path, deploy={"columns": ["age", "pulse"]})
    refused("has no column pulse", hospital.say, "open", seed=0)
    refused("were not read yet", described, hospital)


@pytest.mark.promise("keyed fingerprints")
def test_a_fingerprint_says_nothing_to_whoever_lacks_the_sites_key(tmp_path):
    from coterie.sites.secret_noise import site_key
    from coterie.sites.tables import fingerprint_of

    hospital = Hospital(tmp_path).begin()
    plain = fingerprint_of(hospital.rows.table)
    keyed = hospital.rows._facts(hospital.rows.clients).fingerprint
    assert keyed != plain
    assert (
        hospital.rows._facts(hospital.rows.clients).fingerprint == keyed
    )  # resume knows the rows again
    (tmp_path / "other").mkdir()
    other = Hospital(tmp_path / "other").begin()
    assert other.rows._facts(other.rows.clients).fingerprint != keyed
    assert hospital.key_file.stat().st_mode & 0o077 == 0
    assert site_key(Path(hospital.settings.log)) == hospital.key_file.read_bytes()


def test_a_site_has_one_key_also_where_two_ask_at_once(tmp_path, monkeypatch):
    from coterie.base import files
    from coterie.sites import secret_noise

    both, really = Barrier(2), files.os.urandom  # each has looked, none has written
    monkeypatch.setattr(
        secret_noise.os, "urandom", lambda n: [really(n), both.wait(10)][0]
    )
    with ThreadPoolExecutor(2) as pool:
        keys = list(pool.map(secret_noise.site_key, [tmp_path / "kept" / "log"] * 2))
    assert keys == [(tmp_path / "kept" / "log.key").read_bytes()] * 2
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["log.key"]


@pytest.mark.parametrize("content", [b"", b"short", bytes(33)], ids=len)
def test_a_damaged_key_is_named_and_not_used(tmp_path, content):
    from coterie.sites.secret_noise import site_key

    (tmp_path / "log.key").write_bytes(content)
    with pytest.raises(
        InputError,
        match=f"key has {len(content)} bytes, and a site's key has 32; restore it",
    ):
        site_key(tmp_path / "log")
    assert (tmp_path / "log.key").read_bytes() == content


@pytest.mark.promise("no row leaves")
def test_a_recipe_is_no_oracle_for_cells(tmp_path):
    """A recipe that fails above a value gave the extremes of each column, and its fingerprint which cells are equal."""
    odd = table(
        tmp_path, ROWS, age=lambda i: 300 if i == 17 else float(ROWS[i]["age"])
    )  # an extreme, in whichever part
    hospital = Hospital(tmp_path, odd)
    hospital.say("open", seed=0)
    recipe, told = hospital.recipe(), []

    def fails(mean, scale):
        age = next(c for c in recipe["columns"] if c["name"] == "age")
        age.update(mean=mean, scale=scale)
        try:
            told.append(hospital.say("encode", recipe=json.dumps(recipe))["facts"])
        except RefusedError as error:
            return str(error)
        return ""

    assert {fails(mean, 1e-30) for mean in range(0, 400, 5)} == {
        "the recipe scales column 'age' otherwise than its values"
    }
    assert {fails(mean, 1e-2) for mean in range(0, 400, 5)} == {""}
    assert (
        len(set(told)) == 1
    )  # sizes, classes and the keyed hash of the rows are the same under any recipe


def test_no_row_breaks_a_recipe_whatever_part_it_is_in(tmp_path):
    reached = []
    for number in range(
        6
    ):  # 10**40 of one of the first rows; some are training rows, and then its site tells no finite moment
        folder = tmp_path / str(number)
        folder.mkdir()
        odd = table(
            folder,
            ROWS,
            age=lambda i, n=number: 1e40 if i == n else float(ROWS[i]["age"]),
        )
        hospital = Hospital(folder, odd)
        hospital.say("open", seed=0)
        if number not in hospital.rows.table.parts["train"]:
            hospital.say("encode", recipe=json.dumps(hospital.recipe()))
            reached.append(
                max(
                    float(part.inputs.abs().max())
                    for _, part in hospital.rows.clients[0].parts()
                )
            )
    assert reached
    assert set(reached) <= {1e6}


def test_a_changed_cell_is_another_fingerprint(tmp_path):
    marks = set()
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        Account(folder / "asks.jsonl").seal()  # as a site does before it has a key
        (folder / "asks.jsonl.key").write_bytes(b"1" * 32)
        changed = table(
            folder,
            ROWS,
            age=lambda i, n=number: float(ROWS[i]["age"]) + (n == 2 and i == 5),
        )
        marks.add(Hospital(folder, changed).begin().rows._fingerprint)
    assert len(marks) == 2


@pytest.mark.promise("no row leaves")
def test_sentences_of_errors_quote_no_cell(tmp_path):
    from coterie.sites.child import serve_message

    odd = table(tmp_path, ROWS)
    text = (tmp_path / "own.csv").read_text().splitlines()
    text[7] = ",".join([*text[7].split(",")[:-1], ""])
    (tmp_path / "own.csv").write_text("\n".join(text))
    hospital = Hospital(tmp_path, odd)
    from coterie.contract.encoding import decode, encode

    message = encode(
        {
            "do": "open",
            "seed": 0,
            "plan": hospital.approved.hash,
            "run": "r",
            "serial": 1,
        }
    )
    reply, about = serve_message(message, hospital.rows)
    assert "data row 7" in about["error"]
    assert (
        decode(reply)["failed"]
        == "its rows or this message do not fit the plan (InputError); the site's own log says more"
    )


def test_plans_that_train_on_small_batches_are_not_approved(tmp_path):
    from coterie.base.errors import InputError
    from coterie.sites.approval import fits
    from coterie.sites.plan_words import model_of

    small = {**FEDAVG, "local": {"steps": 2, "batch_size": 16, "minimum_batch": 1}}
    hospital = Hospital(tmp_path, methods=[small])
    with pytest.raises(InputError, match="set \\[local\\] minimum_batch in the plan"):
        fits(
            hospital.approved,
            hospital.settings,
            model_of(hospital.approved, hospital.settings, "hungary"),
        )

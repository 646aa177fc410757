"""What a person reads before a site approves a plan: all of it, in letters that cannot be forged; and what is refused as nonsense."""

from __future__ import annotations

import json

import pytest
import torch
from hospital import FEDAVG, Hospital, plan_file

from coterie.base.errors import InputError
from coterie.config.schema import options_of, spell
from coterie.contract.wire import PerClient
from coterie.run.contribution import candidate_losses
from coterie.sites.plan import read_plan
from coterie.sites.plan_words import in_words

CLIP, NOISE = (
    {"name": "clip", "bound": 1.0},
    {"name": "gaussian-noise", "sigma": 0.1, "secret": True},
)
FORGED = "budget    1 model\x1b[2K\nrefused   everything\u202eyllaer"


def leaves(value):
    """Every number and word of a table."""
    if isinstance(value, dict):
        for part in value.values():
            yield from leaves(part)
    elif isinstance(value, list):
        for part in value:
            yield from leaves(part)
    else:
        yield value


def test_every_value_of_a_plan_is_in_the_words(tmp_path):
    methods = [
        {**FEDAVG, "label": "the first of them"},
        {"name": "fedprox", "mu": 0.123, "local": FEDAVG["local"]},
    ]
    hospital = Hospital(
        tmp_path, methods=methods, data={"drop": ["thal"]}, filters=[CLIP, NOISE], model={"name": "mlp", "hidden": [7, 5]},
        split={"parts": {"train": 0.6, "validation": 0.1, "test": 0.3}}, deploy={"runs": 2, "columns": ["age", "sex"]},
    )  # fmt: skip
    words = "\n".join(in_words(hospital.approved, hospital.settings, "hungary"))
    plan = hospital.approved.plan
    tables = {**plan.experiment.tables(), "deploy": spell(plan.deployment)}
    missing = [
        value
        for value in leaves(tables)
        if json.dumps(value).strip('"') not in words and str(value) not in words
    ]
    assert not missing
    assert all(
        f"[{table}" in words
        for table in (
            "data",
            "split",
            "model",
            "local",
            "run",
            "filters.1",
            "methods.1",
            "deploy",
        )
    )


def test_models_in_16_bits_are_said(tmp_path):
    hospital = Hospital(tmp_path, run={"down": "bf16"})
    words = "\n".join(in_words(hospital.approved, hospital.settings, "hungary"))
    assert "16 bits" in words


@pytest.mark.promise("what was read is approved")
def test_every_field_of_a_plans_tables_is_in_the_words(tmp_path):
    """A field that is added to a table, and that a person would not read, fails here."""
    hospital = Hospital(
        tmp_path,
        filters=[CLIP, NOISE],
        model={"name": "mlp", "hidden": [7]},
        deploy={"columns": ["age"]},
    )
    words = "\n".join(in_words(hospital.approved, hospital.settings, "hungary"))
    plan = hospital.approved.plan
    filters = {
        f"filters.{number}": step for number, step in enumerate(plan.experiment.filters)
    }
    missing = [
        f"[{table}] {key}"
        for table, values in {
            "deploy": plan.deployment,
            "run": plan.experiment.run,
            **filters,
        }.items()
        for option in options_of(type(values))
        for key in option.spell(getattr(values, option.name))
        if f"[{table}] {key} = " not in words
    ]
    assert not missing
    assert len(words.splitlines()) > 40


@pytest.mark.promise("what was read is approved")
def test_no_text_of_a_plan_forges_or_erases_a_line(tmp_path, capsys):
    from coterie.cli.main import main

    hospital = Hospital(
        tmp_path, data={"drop": [FORGED]}, methods=[{**FEDAVG, "label": "mine"}]
    )
    lines = list(in_words(hospital.approved, hospital.settings, "hungary"))
    assert all(line.isprintable() for line in lines)
    assert not any(line.startswith("refused   everything") for line in lines)
    assert any("\\x1b[2K" in line and "\\u202e" in line for line in lines)
    assert (
        main(
            [
                "site",
                "approve",
                str(hospital.plan),
                "--settings",
                str(hospital.settings_file),
            ]
        )
        == 0
    )
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "\nrefused   everything" not in said


NONSENSE = {
    "many runs": ({"deploy": {"runs": 101}}, "a number of runs from 1 to 100"),
    "noise without a bound": ({"filters": [NOISE]}, "give the filter clip beside it"),
    "noise that hides nothing": ({"filters": [CLIP, {**NOISE, "sigma": 1e-6}]}, "a sigma of at least 0.0001"),
    "models beside the filters": (
        {"filters": [CLIP], "methods": [{"name": "isfl"}], "data": {"server_file": "s.csv"}}, "sends 'models' of isfl:local_models",
    ),
}  # fmt: skip


@pytest.mark.promise("secret noise")
@pytest.mark.parametrize("plan", NONSENSE)
def test_a_plan_that_hides_nothing_is_refused(tmp_path, plan):
    tables, reason = NONSENSE[plan]
    with pytest.raises(InputError, match=reason):
        read_plan(plan_file(tmp_path, **tables))


def test_what_no_filter_changes_is_named_as_it_is(tmp_path):
    qffl = {"name": "qffl", "local": FEDAVG["local"]}
    hospital = Hospital(tmp_path, methods=[qffl], filters=[CLIP, NOISE])
    words = "\n".join(in_words(hospital.approved, hospital.settings, "hungary"))
    hidden = (
        "loss (losses and metrics, behind noise as large as what one row can move them)"
    )
    assert f"delta (a local model minus the one received), {hidden}" in words
    hospital = Hospital(
        tmp_path,
        methods=[{"name": "ocs", "local": FEDAVG["local"]}],
        filters=[CLIP, NOISE],
    )
    words = "\n".join(in_words(hospital.approved, hospital.settings, "hungary"))
    assert "norms leaves: norms (as it is, through no filter)" in words


CHOOSING = {
    "ifca": ("cluster_update", "cluster"),
    "dpfl": ("choose_partners", "members"),
}


@pytest.mark.promise("secret noise")
@pytest.mark.parametrize("name", CHOOSING)
def test_a_choice_among_models_is_named_and_made_of_losses_behind_the_plans_noise(
    tmp_path, name
):
    """Which model fits best is a function of losses. It is told as it is, and so is refused by default where losses are exact."""
    task, field = CHOOSING[name]
    chosen = "which of the models it is sent fit best, by losses"
    noise = ", behind noise as large as what one row can move them"
    for filters, said in (
        ([], f"{field} ({chosen})"),
        ([CLIP, NOISE], f"{field} ({chosen}{noise})"),
    ):
        (folder := tmp_path / str(len(filters))).mkdir()
        about = {
            "methods": [{"name": name, "local": FEDAVG["local"]}],
            "deploy": {"sites": ["hungary", "a", "b", "c"]},
        }
        hospital = Hospital(folder, filters=filters, **about)
        lines = list(in_words(hospital.approved, hospital.settings, "hungary"))
        assert any(f"{task} leaves:" in line and said in line for line in lines)
        allowed = hospital.approved.pairs[f"{name}-0"]
        assert bool(allowed.exposure) is not bool(filters)


MEASURED = {
    "methods": [FEDAVG],
    "deploy": {"sites": ["hungary", "a", "b"]},
    "run": {"contribution": {"every": 1}},
}


def test_contributions_show_updates_and_are_asked_as_planned(tmp_path):
    (tmp_path / "other").mkdir()
    hospital, other = (
        Hospital(tmp_path, **MEASURED),
        Hospital(tmp_path / "other", **{**MEASURED, "run": {}}),
    )
    words = "\n".join(in_words(hospital.approved, hospital.settings, "hungary"))
    assert (
        "sees      combinations of the other sites' updates, each update alone among them, in up to 24 models in each round"
        in words
    )
    assert "sees  " not in "\n".join(
        in_words(other.approved, other.settings, "hungary")
    )
    assert len(asked_for_losses(hospital.begin(), 8)) == 8
    with pytest.raises(InputError, match="its shape is"):
        asked_for_losses(hospital, 9)
    with pytest.raises(
        InputError, match="does not ask 'contribution:candidate_losses'"
    ):
        asked_for_losses(other.begin(), 1)


def test_losses_for_contributions_are_behind_secret_noise(tmp_path):
    (tmp_path / "plain").mkdir()
    plain, noisy = (
        Hospital(tmp_path / "plain", **MEASURED),
        Hospital(tmp_path, **MEASURED, filters=[CLIP, NOISE]),
    )
    exact, told = asked_for_losses(plain.begin(), 4), asked_for_losses(noisy.begin(), 4)
    assert float((exact - told).abs().min()) > 0
    assert torch.equal(told, asked_for_losses(noisy, 4))


def asked_for_losses(hospital, count):
    """What the site tells of the losses of some models."""
    models = torch.stack([hospital.x + 0.1 * i for i in range(count)])
    return hospital.ask(candidate_losses, xs=PerClient(models[None]))["losses"][0]

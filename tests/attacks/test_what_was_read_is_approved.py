"""What is approved is what a person has read: not what the file has become since, and nothing that nobody has signed."""

from __future__ import annotations

import pytest
from hospital import plan_file, settings_file

from coterie.cli.main import main
from coterie.sites import attack as red_team
from coterie.sites.approval import approval_file, plan_hash, read_approval
from coterie.sites.attack_findings import Finding
from coterie.sites.log import entries


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A plan, the settings of a site, and the command that shows the one to a person at the other; attacks find nothing at once."""
    nothing = Finding("an attack", "rows", 0, 1, 0, 1, 1, 0)
    monkeypatch.setattr(red_team, "attack", lambda *about: iter([nothing]))
    plan, settings = plan_file(tmp_path, rounds=1), settings_file(tmp_path)
    return plan, settings, ["site", "approve", str(plan), "--settings", str(settings)]


@pytest.mark.promise("what was read is approved")
def test_a_plan_that_changes_while_it_is_tried_is_approved_as_it_was_shown(
    site, monkeypatch, capsys
):
    """As it was: the file was read four times, and the attacks between took two minutes."""
    plan, settings, command = site
    shown, other = (
        plan.read_bytes(),
        plan.read_text().replace("rounds = 1", "rounds = 500"),
    )

    def attack(*about):
        plan.write_text(other)
        return honest(*about)

    honest = red_team.attack
    monkeypatch.setattr(red_team, "attack", attack)
    assert main([*command, "--yes", plan_hash(plan), "--unsigned"]) == 0
    assert approval_file(settings).read_bytes() == shown
    approved = read_approval(settings)
    assert approved.plan.experiment.run.rounds == 1
    assert f"plan      SHA-256 {approved.hash}" in capsys.readouterr().out
    logged = entries(settings.with_name("asks.jsonl"))
    assert [entry["plan"] for entry in logged if "plan" in entry] == [approved.hash]


def test_a_hash_that_was_not_shown_approves_nothing(site, capsys):
    plan, settings, command = site
    before = plan_hash(plan)
    plan.write_text(plan.read_text().replace("rounds = 1", "rounds = 500"))
    assert main([*command, "--yes", before, "--unsigned"]) == 2
    assert (
        f"not that of --yes; read what it asks: {' '.join(['coterie', *command])}"
        in capsys.readouterr().err
    )
    assert not approval_file(settings).exists()


def test_the_command_that_is_shown_approves(site, capsys):
    _, settings, command = site
    assert main(command) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert main([*command, *last.partition("with ")[2].split()]) == 0
    assert approval_file(settings).exists()


@pytest.mark.promise("what was read is approved")
def test_outside_a_kit_nothing_unsigned_is_approved_unless_somebody_says_so(
    site, capsys
):
    """As it was: without a kit no signature was looked at, and nobody was asked."""
    plan, settings, command = site
    assert main([*command, "--yes", plan_hash(plan)]) == 2
    said = capsys.readouterr()
    assert "who has signed the plan cannot be checked" in said.err
    assert "--unsigned" in said.err
    assert not approval_file(settings).exists()

"""What a finished run leaves at a site and at the server is listed and removed; logs, settings, approvals and data stay."""

from __future__ import annotations

import os

import pytest
from hospital import Hospital

from coterie.cli.main import main

JOB = "7c2cbbd4-18e0-4a5f-9a3a-02a0b1f2f0aa"


@pytest.fixture
def kit(tmp_path):
    """A kit after a run: client memory, the site's key, FLARE's folder of the job, and what must stay."""
    kit = tmp_path / "hungary"
    for folder in (
        "startup",
        "local",
        f"coterie/{'ab' * 12}",
        f"{JOB}/app_hungary",
        "transfer",
    ):
        (kit / folder).mkdir(parents=True)
    for file in (
        "startup/client.key", "local/coterie.toml", "local/approved.toml", "local/asks.jsonl", "local/data.csv", "coterie/key",
        f"coterie/{'ab' * 12}/cd.safetensors", f"{JOB}/app_hungary/log.txt", "transfer/x",
    ):  # fmt: skip
        (kit / file).write_text("something")
    return kit


def test_purge_lists_first_and_removes_only_what_runs_leave(kit, capsys):
    assert main(["purge", str(kit)]) == 0
    said = capsys.readouterr().out
    for left in ("cd.safetensors", "log.txt", "transfer/x"):
        assert left in said
    assert "coterie/key" not in said  # site check moves it: what was told stays told
    assert "--yes" in said
    assert (kit / "coterie" / "key").exists()
    assert main(["purge", str(kit), "--yes"]) == 0
    assert "cd.safetensors" in capsys.readouterr().out
    kept = {str(p.relative_to(kit)) for p in kit.rglob("*") if p.is_file()}
    assert kept == {
        "startup/client.key", "local/coterie.toml", "local/approved.toml", "local/asks.jsonl", "local/data.csv", "coterie/key",
    }  # fmt: skip
    assert main(["purge", str(kit)]) == 0
    assert "nothing" in capsys.readouterr().out


def test_purge_empties_the_servers_kit_and_follows_no_link(kit, tmp_path, capsys):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    os.symlink(outside, kit / "coterie" / "link")
    (kit / "storage" / "jobs").mkdir(parents=True)
    (kit / "storage" / "jobs" / "data").write_text("x")
    assert main(["purge", str(kit), "--yes"]) == 0
    assert "storage/jobs/data" in capsys.readouterr().out
    assert (outside / "precious").exists()
    assert [path.name for path in (kit / "coterie").iterdir()] == ["key"]
    assert not (kit / "storage").exists()


def test_purge_refuses_what_is_no_kit_and_one_that_runs(kit, tmp_path, capsys):
    assert main(["purge", str(tmp_path)]) == 2
    assert "is not a kit" in capsys.readouterr().err
    (kit / "daemon_pid.fl").write_text(str(os.getpid()))
    assert main(["purge", str(kit), "--yes"]) == 2
    assert "is running" in capsys.readouterr().err
    assert (kit / "coterie" / "key").exists()


def test_purge_finds_what_a_site_has_written(tmp_path):
    from coterie.sites.purge import leftovers

    hospital = Hospital(
        tmp_path,
        methods=[{"name": "scaffold", "local": {"steps": 2, "minimum_batch": 8}}],
    )
    kit = tmp_path / "kit"
    (kit / "startup").mkdir(parents=True)
    hospital.rows.folder = kit / "coterie"
    hospital.begin(pair="scaffold-0")
    import torch
    from hospital import local

    from coterie.algorithms.scaffold import scaffold_update

    control = torch.zeros(hospital.rows.shard.workspace.layout.dim)
    hospital.ask(scaffold_update, x=hospital.x, local=local(), control=control)
    names = {path.name for path in leftovers(kit)}
    assert "key" not in names  # it lies beside the log, with what was told under it
    assert any(name.endswith(".safetensors") for name in names)

"""Checkpoints every so many rounds: fewer are written, and a run that is resumed from one has the numbers of an undisturbed one."""

from __future__ import annotations

from pathlib import Path

import pytest

import coterie as ct
from coterie.cli.main import main
from coterie.run import loop
from coterie.run.checkpoint import RoundFiles

METHOD = ct.SCAFFOLD(ct.LocalSGD(lr=0.05, steps=ct.Steps(2), batch_size=8))


def fitted(folder: Path | None, **settings) -> ct.Run:
    return ct.fit(
        METHOD,
        "heart-disease",
        "logistic",
        8,
        checkpoint=folder,
        settings=ct.RunSettings(**settings),
    )


@pytest.mark.in_turn
def test_a_run_goes_on_from_the_last_of_its_rare_checkpoints(tmp_path, monkeypatch):
    saved = []
    save = RoundFiles.save
    monkeypatch.setattr(
        RoundFiles,
        "save",
        lambda self, *given: saved.append(given[1]) or save(self, *given),
    )

    def end(number: int) -> None:
        if number == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fitted(tmp_path, save_every=3, callbacks=(end,))
    resumed = fitted(tmp_path, save_every=3, resume=True)
    assert saved == [0, 3, 6, 8]
    whole = fitted(None)
    assert resumed.x.equal(whole.x)
    assert resumed.history == whole.history


class Clock:
    """A clock that only the rounds of a run move."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    perf_counter = monotonic


@pytest.mark.in_turn(but=("0.15", "0.7"))
@pytest.mark.parametrize("seconds", [0.01, 0.15, 0.4, 0.7])
def test_by_default_half_a_second_of_rounds_may_be_lost(tmp_path, monkeypatch, seconds):
    """Whenever the process is killed, complete rounds that are not saved took half a second at most; few are saved one by one."""
    clock, saved_at = Clock(), [0.0]

    class Slow(ct.FedAvg):
        def round(self, state, federation, rng):
            clock.now += seconds
            unsaved = clock.now - seconds - saved_at[-1]
            assert unsaved <= 0.5
            return super().round(state, federation, rng)

    def save(self, *given):
        saved_at.append(clock.now)

    monkeypatch.setattr(loop, "MOST_LOST", 0.5)
    monkeypatch.setattr(loop, "time", clock)
    monkeypatch.setattr(RoundFiles, "save", save)
    rounds = 20
    ct.fit(Slow(), "heart-disease", "logistic", rounds, checkpoint=tmp_path)
    in_between = int(0.5 / seconds)
    assert len(saved_at) - 1 <= rounds // max(in_between, 1) + 1


class End(ct.Callback):
    """Ends a run after its fifth round."""

    def on_evaluation(self, round, metrics):
        return round == 5


def test_a_run_that_a_callback_ends_is_saved_as_it_ended(tmp_path):
    run = fitted(tmp_path, evaluate=1, save_every=3, callbacks=(End(),))
    assert run.rounds == 5
    assert fitted(
        tmp_path, evaluate=1, save_every=3, resume=True, callbacks=(End(),)
    ).x.equal(run.x)


def test_a_stopped_command_says_which_rounds_are_saved(tmp_path, monkeypatch, capsys):
    flags = ("--methods", "fedavg", "--rounds", "5", "--seeds", "1", "--no-report")
    command = ["compare", "heart-disease", *flags, "--out", str(tmp_path / "run")]
    save = RoundFiles.save

    def stop(self, *given):
        save(self, *given)
        if given[1] == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RoundFiles, "save", stop)
        assert main([*command, "--set", "run.save_every=2"]) == 130
    assert "stopped; one round in 2 is saved. Go on" in capsys.readouterr().err
    assert main([*command, "--set", "run.save_every=3", "--resume"]) == 0


SOLVED = (ct.Local(), ct.FixedEffects(), ct.Partial())


@pytest.mark.in_turn(but=("Local-1", "Partial-3"))
@pytest.mark.parametrize("evaluate", [1, 3])
@pytest.mark.parametrize("method", SOLVED, ids=lambda m: type(m).__name__)
def test_a_run_goes_on_among_rounds_that_change_nothing(tmp_path, method, evaluate):
    """Those rounds are not saved one by one, and a run that is stopped among them ends as if it had not been."""

    def solved(folder: Path | None, **more) -> ct.Run:
        settings = ct.RunSettings(evaluate=evaluate, **more)
        return ct.fit(
            method,
            "heart-disease",
            "logistic",
            14,
            checkpoint=folder,
            settings=settings,
        )

    def end(number: int) -> None:
        if number == 11:
            raise KeyboardInterrupt

    whole = solved(None)
    with pytest.raises(KeyboardInterrupt):
        solved(tmp_path, callbacks=(end,))
    resumed = solved(tmp_path, resume=True)
    assert resumed.history == whole.history
    assert resumed.weight_rows == whole.weight_rows
    assert resumed.weights == whole.weights
    for name, model in whole.models.items():
        assert resumed.models[name].equal(model)
    asked = {record.round for record in whole.asks}
    assert max(asked - {14}) < 11

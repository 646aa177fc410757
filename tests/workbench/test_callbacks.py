"""Callbacks follow a run and may end it; loggers see what is measured, and change nothing."""

from __future__ import annotations

import json
import sys
from types import ModuleType, SimpleNamespace

import pytest

import coterie as ct
from cli.commands import contents
from coterie.config.registry import CALLBACKS
from coterie.report.card import card
from coterie.report.results import Results
from coterie.run.callbacks import Metrics
from coterie.run.history import History, Row
from coterie.run.model_files import open_model_file
from coterie.run.trackers.tracker import Sink, Tracker
from coterie.study import preflight, search
from coterie.study.finalise import finalise
from coterie.study.predict import MODEL
from coterie.study.track import track
from federations import assert_same_bits, logistic


class Follows(ct.Callback):
    def __init__(self, ends=None):
        self.seen, self.ends = [], ends

    def begin(self, label, seed, rounds):
        self.seen.append((label, seed, rounds))
        return self

    def on_round(self, round):
        self.seen.append(round)

    def on_evaluation(self, round, metrics):
        self.seen.append(sorted(metrics.history.select("loss", "a", "test"))[-1][0])
        return round == self.ends

    def on_end(self):
        self.seen.append("end")


def fitted(*callbacks, rounds=5, method=None, **options):
    problem = logistic()
    settings = ct.RunSettings(evaluate=2, callbacks=callbacks)
    return ct.fit(
        method or ct.FedAvg(),
        problem.clients,
        problem.model,
        rounds,
        settings=settings,
        **options,
    )


def test_a_callback_follows_a_run_and_changes_nothing():
    follows, numbers = Follows(), []
    assert_same_bits(fitted(), fitted(follows, numbers.append))
    assert follows.seen == [("FedAvg", 0, 5), 0, 0, 1, 2, 2, 3, 4, 4, 5, 5, "end"]
    assert numbers == [0, 1, 2, 3, 4, 5]


def test_a_callback_ends_a_run_after_a_round_that_is_evaluated():
    ended = fitted(Follows(ends=2))
    assert ended.rounds == 2
    assert {row["rounds"] for row in ended.summary} == {2}
    assert_same_bits(ended, fitted(rounds=2))


def test_a_run_that_fails_tells_its_end():
    follows = Follows()

    def fails(number):
        if number == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fitted(follows, fails)
    assert follows.seen == [("FedAvg", 0, 5), 0, 0, 1, "end"]


def metrics(*losses):
    rows = [
        Row(i, c, "validation", "loss", v + d)
        for i, v in enumerate(losses)
        for c, d in (("a", -0.1), ("b", 0.1))
    ]
    return Metrics(History(rows), len(losses) - 1)


@pytest.mark.parametrize(
    ("losses", "smallest", "ends"),
    [
        ([0.5], 0.0, False),
        ([0.5, 0.4, 0.4], 0.0, False),
        ([0.5, 0.4, 0.4, 0.41], 0.0, True),
        ([0.5, 0.4, 0.41, 0.39], 0.0, False),
        ([0.5, 0.45, 0.44], 0.1, True),
        ([0.5, 0.45, 0.39], 0.1, False),
    ],
)
def test_early_stopping_waits_for_an_improvement(losses, smallest, ends):
    assert (
        ct.EarlyStopping(patience=2, smallest=smallest).on_evaluation(
            0, metrics(*losses)
        )
        == ends
    )


def test_more_of_a_metric_that_is_no_loss_is_an_improvement():
    rows = [Row(i, "a", "validation", "auc", v) for i, v in enumerate((0.5, 0.6, 0.5))]
    for metric, ends in (("auc", False), ("my_loss", True)):
        renamed = [row._replace(metric=metric) for row in rows]
        assert (
            ct.EarlyStopping(patience=2, metric=metric).on_evaluation(
                2, Metrics(History(renamed), 2)
            )
            == ends
        )


FAST = ct.FedAvg(local=ct.LocalSGD(lr=3.0, steps=ct.Steps(20)))


def test_early_stopping_keeps_validation_rows_and_resumes_to_the_same_end(tmp_path):
    stopping = ct.EarlyStopping(patience=2)
    settings = {"evaluate": 1, "metrics": ("auc",)}
    whole = ct.fit(
        FAST,
        "heart-disease",
        rounds=40,
        settings=ct.RunSettings(callbacks=(stopping,), **settings),
    )
    losses = Metrics(whole.history, whole.rounds).means("loss", "validation")
    assert len(losses) == whole.rounds + 1 < 41
    assert min(losses[:-2]) == min(losses)
    seen = [0]

    def stop(number):
        seen.append(number)
        if number == whole.rounds:
            raise KeyboardInterrupt

    first = ct.RunSettings(callbacks=(stopping, stop), **settings)
    with pytest.raises(KeyboardInterrupt):
        ct.fit(FAST, "heart-disease", rounds=40, checkpoint=tmp_path, settings=first)
    again = ct.RunSettings(callbacks=(stopping,), resume=True, **settings)
    resumed = ct.fit(
        FAST, "heart-disease", rounds=40, checkpoint=tmp_path, settings=again
    )
    assert resumed.rounds == whole.rounds
    assert_same_bits(whole, resumed)


def test_tuning_and_the_final_model_stop_where_the_run_stops(tmp_path, monkeypatch):
    tuned = []

    def train(*given):
        tuned.append(preflight.train(*given))
        return tuned[-1]

    monkeypatch.setattr(search, "train", train)
    stopping = ct.StudySettings(
        callbacks=(ct.EarlyStopping(patience=2, metric="auc"),),
        evaluate=1,
        metrics=("auc",),
        local=FAST.local,
        tune={"local.lr": [3.0]},
    )
    options = {"seeds": 1, "settings": stopping}
    run = ct.compare(
        ["fedavg"], "heart-disease", "logistic", 40, folder=tmp_path / "run", **options
    )
    ends = {row["rounds"] for row in run.to_pandas().to_dict("records")}
    assert {trial.rounds for trial in tuned} == ends
    assert max(ends) < 40
    monkeypatch.setitem(sys.modules, "onnx", None)
    final = finalise(
        tmp_path / "run", tmp_path / "final", client="hungary", method="fedavg"
    )
    assert {final.rounds} == ends
    assert open_model_file(tmp_path / "final" / MODEL)[1]["rounds"] == final.rounds
    text = card(
        Results.load(tmp_path / "run"),
        "hungary",
        "fedavg",
        final.rows,
        rounds=final.rounds,
    )
    assert (
        f", {final.rounds} rounds, after which the run `run` stopped early, with its settings, on all rows of "
        in text
    )


def test_early_stopping_without_validation_rows_is_a_sentence():
    with pytest.raises(
        ct.InputError,
        match="early stopping needs f1 on validation rows, and there is none",
    ):
        ct.fit(
            "fedavg",
            "heart-disease",
            rounds=1,
            settings=ct.RunSettings(callbacks=(ct.EarlyStopping(metric="f1"),)),
        )


def test_what_is_no_callback_is_refused():
    for wrong in (3, Follows):
        with pytest.raises(
            ct.InputError,
            match=r"RunSettings.callbacks must be a list of callbacks, or of functions",
        ):
            ct.RunSettings(callbacks=(wrong,))


TOML = """
[data]
name = "heart-disease"
[local]
lr = 3.0
steps = 20
[[methods]]
name = "fedavg"
[[callbacks]]
name = "early-stopping"
patience = 2
[[callbacks]]
name = "tensorboard"
to = "LOGS"
[run]
rounds = 40
seeds = 1
evaluate = 1
"""


def test_callbacks_by_name_in_files_and_the_loggers_change_nothing(tmp_path, capsys):
    pytest.importorskip("tensorboard")
    from coterie.cli.main import main

    (tmp_path / "plan.toml").write_text(TOML.replace("LOGS", str(tmp_path / "logs")))
    run = ["run", str(tmp_path / "plan.toml"), "--no-report", "--json", "--out"]
    assert main([*run, str(tmp_path / "logged")]) == 0
    local = ct.LocalSGD(lr=3.0, steps=ct.Steps(20))
    settings = ct.StudySettings(
        evaluate=1, callbacks=(ct.EarlyStopping(patience=2),), local=local
    )
    python = ct.compare(
        ["fedavg"], "heart-disease", rounds=40, seeds=1, settings=settings
    )
    logged, plain = contents(tmp_path / "logged"), contents(python.folder)
    assert [name for name in plain if logged[name] != plain[name]] == [
        "experiment.toml"
    ]
    rows = json.loads((tmp_path / "logged" / "summary.json").read_text())
    assert rows[0]["rounds"] < 40
    assert 'name = "early-stopping", patience = 2' in plain["experiment.toml"].decode()
    again = [
        *run[:2],
        "--no-report",
        "--json",
        "--resume",
        "--out",
        str(tmp_path / "logged"),
    ]
    text = (tmp_path / "plan.toml").read_text()
    (tmp_path / "plan.toml").write_text(text.replace("patience = 2", "patience = 3"))
    assert main(again) == 2
    assert "was made with callbacks.deciding" in capsys.readouterr().err
    (tmp_path / "plan.toml").write_text(
        text[: text.index('[[callbacks]]\nname = "tens')] + text[text.index("[run]") :]
    )
    assert main(again) == 0  # without the logger it is the same run
    events = read_events(tmp_path / "logs" / "fedavg-0")
    history = python.to_pandas("history").query(
        "split == 'test' and client == 'hungary' and metric == 'auc'"
    )
    assert events["test/hungary/auc"] == pytest.approx(
        dict(zip(history["round"], history["value"], strict=True))
    )


def read_events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: {e.step: e.value for e in events.Scalars(tag)}
        for tag in events.Tags()["scalars"]
    }


@pytest.mark.in_turn
def test_a_finished_run_is_exported(tmp_path, capsys):
    pytest.importorskip("tensorboard")
    from coterie.cli.main import main

    ct.compare(
        ["local", "fedavg"], "heart-disease", rounds=1, seeds=1, folder=tmp_path / "run"
    )
    assert (
        main(
            [
                "track",
                str(tmp_path / "run"),
                "--to",
                "tensorboard",
                "--at",
                str(tmp_path / "logs"),
            ]
        )
        == 0
    )
    assert "2 runs" in capsys.readouterr().out
    values = read_events(tmp_path / "logs" / "local-0")["test/hungary/loss"]
    frame = ct.Comparison(tmp_path / "run").to_pandas("history")
    expected = frame.query(
        "method == 'local' and client == 'hungary' and split == 'test' and metric == 'loss'"
    )
    assert values == pytest.approx(
        dict(zip(expected["round"], expected["value"], strict=True))
    )
    assert main(["track", str(tmp_path / "run"), "--to", "tensorbord"]) == 2
    assert (
        "there is no logger 'tensorbord'; did you mean 'tensorboard'"
        in capsys.readouterr().err
    )


@pytest.mark.extras
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # of the database, whose newest version MLflow does not know
def test_mlflow_has_a_run_for_each_method_and_seed(tmp_path):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    to = f"sqlite:///{tmp_path / 'mlflow.db'}"
    fitted(ct.MLflow(experiment="mine", to=to), seed=3)
    client = mlflow.MlflowClient(tracking_uri=to)
    (run,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert run.info.run_name == "FedAvg-3"
    assert run.info.status == "FINISHED"
    assert run.data.params == {"method": "FedAvg", "seed": "3", "rounds": "5"}
    steps = [
        point.step
        for point in client.get_metric_history(run.info.run_id, "test/a/loss")
    ]
    assert steps == [0, 2, 4, 5]


@pytest.mark.extras
@pytest.mark.parametrize("to", ["flow", "file:flow"])
def test_a_folder_that_mlflow_no_longer_writes_is_a_sentence_with_the_cure(
    tmp_path, monkeypatch, to
):
    pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ct.InputError,
        match=r'name a database, to = "sqlite:///mlflow\.db", or a tracking server',
    ) as said:
        fitted(ct.MLflow(to=to))
    assert len(str(said.value)) <= 300


LOGGERS = ("mlflow", "tensorboard", "wandb")


@pytest.mark.parametrize("name", LOGGERS)
def test_a_logger_that_is_not_installed_is_a_sentence(monkeypatch, tmp_path, name):
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(
        ct.InputError, match=rf"needs {name}: pip install \"coterie\[{name}\]\""
    ):
        fitted(CALLBACKS[name]())
    settings = ct.RunSettings(callbacks=(CALLBACKS[name](),))
    with pytest.raises(ct.InputError, match=f"needs {name}"):
        ct.compare(
            ["local"],
            "heart-disease",
            rounds=1,
            seeds=1,
            folder=tmp_path / "run",
            settings=settings,
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", LOGGERS)
def test_a_logger_that_is_installed_and_fails_to_import_says_why(
    monkeypatch, tmp_path, name
):
    (tmp_path / f"{name}.py").write_text("from json import no_such_name\n")
    monkeypatch.syspath_prepend(tmp_path)
    for module in (name, "torch.utils.tensorboard"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(
        ct.InputError,
        match=r"is installed and fails to import \(cannot import name 'no_such_name'",
    ):
        fitted(CALLBACKS[name]())


def test_weights_and_biases_has_a_run_for_each_method_and_seed(tmp_path, monkeypatch):
    """Its interface by a stand-in; the test below has wandb itself, where it is installed."""
    begun, logged = [], []
    stand_in = ModuleType("wandb")
    stand_in.Error, stand_in.Settings = RuntimeError, lambda **settings: settings
    stand_in.login = lambda prompt: False
    run = SimpleNamespace(
        log=lambda values, step: logged.append((step, values)),
        finish=lambda: begun.append("end"),
    )
    stand_in.init = lambda **arguments: begun.append(arguments) or run
    monkeypatch.setitem(sys.modules, "wandb", stand_in)
    with pytest.raises(ct.InputError, match='wandb login, or mode = "offline"'):
        fitted(ct.WandB())
    assert begun == []
    fitted(ct.WandB(project="mine", to=str(tmp_path), mode="offline"), seed=3)
    assert (begun[0]["project"], begun[0]["name"], begun[0]["mode"]) == (
        "mine",
        "FedAvg-3",
        "offline",
    )
    assert begun[1] == "end"
    assert sorted({step for step, _ in logged}) == [0, 2, 4, 5]


@pytest.mark.extras
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_weights_and_biases_writes_offline_files(tmp_path):
    pytest.importorskip("wandb")
    ct.compare(
        ["local", "fedavg"], "heart-disease", rounds=3, seeds=1, folder=tmp_path / "run"
    )
    settings = ct.RunSettings(
        callbacks=(ct.WandB(to=str(tmp_path / "logs"), mode="offline"),)
    )
    ct.compare(
        ["local"],
        "heart-disease",
        rounds=1,
        seeds=1,
        folder=tmp_path / "live",
        settings=settings,
    )
    assert len(list((tmp_path / "logs" / "wandb").glob("offline-run-*"))) == 1


@pytest.mark.parametrize(
    "name", [name for name in CALLBACKS if issubclass(CALLBACKS[name], Tracker)]
)
def test_a_finished_run_is_sent_in_the_order_of_rounds(tmp_path, monkeypatch, name):
    sent = {}

    def open_list(self, label, seed, rounds):
        return Sink(
            lambda _, value, at: sent.setdefault(label, []).append(at), lambda: None
        )

    monkeypatch.setattr(CALLBACKS[name], "open", open_list)
    ct.compare(
        ["local", "fedavg"], "heart-disease", rounds=3, seeds=1, folder=tmp_path / "run"
    )
    assert track(tmp_path / "run", name) == 2
    assert set(sent) == {"local", "fedavg"}
    assert all(
        rounds == sorted(rounds) and len(set(rounds)) > 1 for rounds in sent.values()
    )


def test_every_logger_sends_each_number_of_an_evaluation_once():
    sent, closed = [], []

    class Mine(Tracker):
        def open(self, label, seed, rounds):
            return Sink(
                lambda *number: sent.append(number), lambda: closed.append(label)
            )

    run = fitted(Mine())
    assert closed == ["FedAvg"]
    evaluated = {
        "/".join(
            p for p in (r.split, r.client, r.metric) if p not in ("", "*")
        ): r.value
        for r in run.history
        if r.round == 4
    }
    assert {name: value for name, value, number in sent if number == 4} == evaluated
    assert len(sent) == len(set(sent))

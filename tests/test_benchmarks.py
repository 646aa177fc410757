"""The benchmarks run, at sizes at which their numbers mean nothing."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


NAMES = (
    "w1",
    "w2",
    "w3",
    "w4",
    "w5",
    "start",
    "tables",
    "heart",
    "engines",
    "row_costs",
    "gpu",
    "scale",
    "growth",
    "mean_estimation",
    "mean_printed",
    "byzantine",
    "contribution",
    "many_targets",
)
CELLS = ("| heart-disease", "| Switzerland | Switzerland |", "| ResNet9 |")


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """All benchmarks at tiny sizes: the folder with their results and pages."""
    folder = tmp_path_factory.mktemp("benchmarks")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        from benchmarks.run import main

        assert main([*NAMES, "--quick", "--out", str(folder)]) == 0
    return folder


@pytest.mark.programs
def test_every_benchmark_writes_its_result_and_nothing_else(written):
    files = {str(p.relative_to(written)) for p in written.rglob("*") if p.is_file()}
    assert files == {f"{n}.json" for n in NAMES}
    for name in NAMES:
        result = json.loads((written / f"{name}.json").read_text())
        assert result["name"] == name
        assert {"what", "measured", "machine", "versions", "commit", "load"} <= set(
            result
        )


@pytest.mark.programs
@pytest.mark.parametrize("name", ["w1", "w2"])
def test_equal_batches_give_l0_and_the_library_the_same_model(written, name):
    result = json.loads((written / f"{name}.json").read_text())
    assert result["largest_difference_with_equal_batches"] < 1e-12


@pytest.mark.programs
def test_the_page_of_the_site_has_a_table_of_each_result(written):
    from benchmarks import measured

    page = measured.page(written)
    for cell in CELLS:
        assert page.count(cell) == 1, cell


def test_the_page_of_speed_has_the_table_of_the_results():
    from benchmarks import pages

    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert f"<!-- speed -->\n\n{pages.summary()}\n\n<!-- /speed -->" in page


def test_every_section_of_the_site_has_numbers():
    from benchmarks import measured

    page = measured.page()
    titles = [section.title for section in measured.sections()]
    assert [title for title in titles if f"## {title}\n" not in page] == []
    assert len(titles) > 10


@pytest.mark.programs
def test_the_summary_of_attacks_is_a_mean_unless_a_seed_diverged(written):
    from benchmarks.byzantine import ATTACKS, IDEAL, METHODS, summary

    runs = json.loads((written / "byzantine.json").read_text())["runs"]
    assert {(r["method"], r["attack"]) for r in runs} == {
        (IDEAL, None),
        *((m, a) for m in METHODS for a in ATTACKS),
    }
    settled = [{**r, "plateau": float(r["seed"])} for r in runs]
    assert {line["mean"] for line in summary(settled)} == {0.5}
    diverged = [
        {**r, "plateau": None if (r["method"], r["seed"]) == ("averaging", 1) else 1.0}
        for r in runs
    ]
    assert {line["method"] for line in summary(diverged) if line["mean"] is None} == {
        "averaging"
    }


@pytest.mark.programs
def test_a_long_benchmark_keeps_the_runs_that_it_finished(written, tmp_path, capsys):
    from benchmarks import byzantine, measure

    earlier = json.loads((written / "byzantine.json").read_text())["runs"]
    without = [
        run
        for run in earlier
        if (run["method"], run["attack"], run["seed"]) != ("averaging", "IPM", 1)
    ]
    *_, found = byzantine.run(measure.Settings(quick=True, earlier=without))
    again = [
        {k: v for k, v in run.items() if k not in ("seconds", "commit")}
        for run in found["runs"][len(without) :]
    ]
    assert found["runs"][: len(without)] == without
    assert again == [
        {k: run[k] for k in again[0]} for run in earlier if run not in without
    ]


def test_ratios_are_medians_over_pairs_without_the_first_turn():
    from benchmarks.measure import Pair, Seconds, Turns, ratio

    pairs = [
        Pair(Seconds(2, 4), Seconds(1, 1)),
        Pair(Seconds(1, 2), Seconds(1, 1)),
        Pair(Seconds(4, 8), Seconds(1, 1)),
    ]
    assert ratio(pairs)["ratio"] == 0.5
    assert ratio(pairs)["cpu_ratio"] == 0.25
    called = []
    turns = Turns(called.append, rounds=2)
    for number in range(8):  # 0, ..., 7: the run has one round more than whole turns
        turns(number)
    assert called == [1, 2, 3, 4, 5, 6]
    assert len(turns.pairs) == 2


def test_a_busy_machine_is_measured_again_and_said_so(monkeypatch):
    from benchmarks import measure

    loads = iter([5.0, 4.0, 3.0, 2.0, 9.0, 9.0])  # before and after each attempt
    monkeypatch.setattr(measure.os, "getloadavg", lambda: (next(loads), 0.0, 0.0))
    values = iter([{"ratio": 0.5}, {"ratio": 0.7}, {"ratio": 0.1}])
    found = measure.on_a_quiet_machine(
        lambda: next(values), measure.Settings(attempts=3, patience=0)
    )
    assert found == {"ratio": 0.7, "load": [3.0, 2.0], "busy": True, "attempts": 3}
    assert measure.decisive({**found, "cpu_ratio": 0.6}) == 0.6


@pytest.fixture
def check(monkeypatch):
    """The check on a machine of the kind `here`, where starting is fast."""
    from benchmarks import check

    monkeypatch.setattr(check, "slow_starts", lambda: 0)
    monkeypatch.setattr(check, "machine", lambda: {"cpu": "here"})
    return check


def recorded(folder, name, cpu="here", **values):
    record = {
        "ratio": 2.0,
        "cpu_ratio": 1.0,
        "busy": False,
        "machine": {"cpu": cpu},
        "commit": "0123abc",
        **values,
    }
    (folder / f"{name}.json").write_text(json.dumps(record))


def measured(monkeypatch, name, ratio, cpu_ratio, busy=False):
    found = {"ratio": ratio, "cpu_ratio": cpu_ratio, "busy": busy}
    monkeypatch.setattr(f"benchmarks.{name}.run", lambda settings: found)


def test_the_check_fails_if_a_ratio_fell_by_more_than_the_tolerance(
    check, tmp_path, monkeypatch, capsys
):
    for name, ratio in {"w1": 1.8, "w2": 1.6, "w3": 2.0}.items():
        recorded(tmp_path, name)
        measured(monkeypatch, name, ratio, 0.1)
    assert check.main(tmp_path) == 1
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if "SLOWER" in line] == [
        "w2: 1.60 of L0 on the wall, was 2.00: SLOWER"
    ] * 2
    assert "w5: no committed result" in out


@pytest.mark.parametrize(
    "busy", [{"now": True, "then": False}, {"now": False, "then": True}]
)
def test_on_a_machine_that_was_busy_at_either_time_cpu_time_decides(
    check, tmp_path, monkeypatch, capsys, busy
):
    recorded(tmp_path, "w2", busy=busy["then"])
    measured(monkeypatch, "w2", 0.1, 0.9, busy["now"])
    assert check.main(tmp_path) == 0
    assert "w2: 0.90 of L0 in CPU time, was 1.00\n" in capsys.readouterr().out


def test_two_processors_that_a_virtual_machine_calls_alike_are_two():
    from benchmarks import measure

    text = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n\nprocessor\t: 1\n"
    newer, older = measure.cpu_of(text), measure.cpu_of(text.replace(": 26", ": 25"))
    assert newer == "AMD EPYC (family 26, model 2)"
    assert older == "AMD EPYC (family 25, model 2)"
    assert measure.cpu_of("processor\t: 0\nBogoMIPS\t: 50.00\n") is None


def test_a_result_of_another_machine_is_compared_with_its_commit_here(
    check, tmp_path, monkeypatch, capsys
):
    for name in ("w1", "w2"):
        recorded(tmp_path, name, cpu="elsewhere", ratio=9.0)
        measured(monkeypatch, name, 1.8, 1.0)
    asked = []

    def at_commit(commit, name, settings):
        asked.append((commit, name, settings.short))
        return {"ratio": {"w1": 2.0, "w2": 2.2}[name], "cpu_ratio": 1.0, "busy": False}

    monkeypatch.setattr(check, "at_commit", at_commit)
    monkeypatch.setattr(check, "commit_of", lambda name: name)
    assert check.main(tmp_path) == 1
    assert asked == [("0123abc", "w1", True), *[("0123abc", "w2", True)] * 2]
    assert [
        line
        for line in capsys.readouterr().out.splitlines()
        if line[:2] in ("w1", "w2")
    ] == [
        "w1: 1.80 of L0 on the wall, at commit 0123abc on this machine 2.00",
        *["w2: 1.80 of L0 on the wall, at commit 0123abc on this machine 2.20: SLOWER"]
        * 2,
    ]


def test_a_fall_that_is_not_seen_again_does_not_count(
    check, tmp_path, monkeypatch, capsys
):
    recorded(tmp_path, "w2")
    ratios = iter([1.6, 1.9])
    monkeypatch.setattr(
        "benchmarks.w2.run",
        lambda settings: {"ratio": next(ratios), "cpu_ratio": 1.0, "busy": False},
    )
    assert check.main(tmp_path) == 0
    assert capsys.readouterr().out.count("SLOWER") == 1


def test_a_cost_that_grew_twice_fails_the_check(check, tmp_path, monkeypatch, capsys):
    cases = [
        {"case": "evaluation", "rounds": 20.0},
        {"case": "loop", "models": 8.0},
        {"case": "kernel", "models": 9.0},
    ]
    (tmp_path / "scale.json").write_text(json.dumps({"runs": cases}))
    now = {
        "evaluation": iter([24.0, 22.0]),
        "loop": iter([9.5, 9.3]),
        "kernel": iter([10.0]),
    }
    monkeypatch.setattr(
        check,
        "measure_case",
        lambda case: dict.fromkeys(("rounds", "models"), next(now[case])),
    )
    assert check.main(tmp_path) == 1
    assert [line for line in capsys.readouterr().out.splitlines() if "was" in line] == [
        *(
            "evaluation: 24.0 rounds, was 20.0: MORE",
            "evaluation: 22.0 rounds, was 20.0",
        ),
        *("loop: 9.5 models, was 8.0: MORE", "loop: 9.3 models, was 8.0: MORE"),
        "kernel: 10.0 models, was 9.0",
    ]


def test_what_must_hold_fails_the_check_if_it_is_missed_twice(
    check, tmp_path, monkeypatch, capsys
):
    cases = [{"case": "names"}, {"case": "cheap"}, {"case": "precision"}]
    (tmp_path / "scale.json").write_text(json.dumps({"runs": cases}))
    now = {
        "names": iter([{"times": 1.5}, {"times": 1.1}]),
        "cheap": iter([{"times": 4.4}]),
        "precision": iter([{"share": 0.8, "gain": 1.6}, {"share": 0.7, "gain": 1.6}]),
    }
    monkeypatch.setattr(check, "measure_case", lambda case: next(now[case]))
    assert check.main(tmp_path) == 1
    said = [line for line in capsys.readouterr().out.splitlines() if "must" in line]
    missed = [line.split(":")[0] for line in said if "MISSED" in line]
    assert missed == ["names times", "precision share", "precision share"]
    assert len(said) == 7


def test_a_curve_leaves_out_what_was_too_large_to_run():
    from benchmarks.curves import curve

    fedavg = {"axis": "clients", "method": "fedavg"}
    runs = [
        {**fedavg, "size": 1000, "seconds": 0.5},
        {**fedavg, "size": 10, "seconds": 0.2},
        {**fedavg, "size": 10**6, "forecast": 1e12},
        {"axis": "targets", "method": "fedavg", "size": 30, "seconds": 9.0},
    ]
    assert curve({"runs": runs}, "clients", "fedavg") == ([10, 1000], [0.2, 0.5])


def test_the_page_of_speed_shows_a_curve_for_each_axis():
    from benchmarks.growth import SIZES

    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    for axis in SIZES:
        assert f"images/growth-{axis}.svg" in page
        assert (ROOT / "docs" / "images" / f"growth-{axis}.svg").exists()


def test_without_the_commit_of_another_machines_result_nothing_is_measured(
    check, tmp_path, capsys
):
    for name in ("w1", "w2"):
        recorded(
            tmp_path,
            name,
            cpu={"w1": "here", "w2": "elsewhere"}[name],
            commit=f"{name}+",
        )
    assert check.main(tmp_path) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert (
        "w2 was recorded on another kind of machine (elsewhere) at commit w2+, which this clone does not have"
        in said
    )


@pytest.mark.programs
def test_a_benchmark_runs_at_another_commit(tmp_path):
    from benchmarks.check import at_commit
    from benchmarks.measure import Settings

    found = at_commit("HEAD", "w3", Settings(quick=True, attempts=1, patience=0))
    assert {"ratio", "cpu_ratio", "busy"} <= found.keys()


def test_unknown_names_and_quick_results_are_refused(capsys):
    from benchmarks.run import main

    for arguments in (["w9"], ["w1", "--quick"]):
        with pytest.raises(SystemExit):
            main(arguments)
    assert "there is no benchmark w9" in capsys.readouterr().err


def test_same_bits_finds_other_bits_and_missing_values(capsys):
    from benchmarks.same_bits import compare, show
    from benchmarks.same_bits_cases import Recording

    def recorded(rows):
        made = Recording()
        for value, place, method, column in rows:
            made.add(value, "case", place, method, 0, "a", "test", 1, column)
        return made

    same = [
        (0.1, "history", "avg", "loss"),
        (3, "summary", "avg", "n"),
        ("digest", "model", "avg", "weight"),
    ]
    base = recorded(same)
    assert compare(base, recorded([*same, (1.0, "history", "avg", "auc")])) == (
        {},
        2,
        1,
        1,
    )
    found = compare(base, recorded([(0.1 + 2**-56, *same[0][1:]), *same[2:]]))
    assert (found.values, found.tensors, found.new) == (0, 1, 0)
    show(found)
    out = capsys.readouterr().out
    assert (
        "column loss: 0x1.999999999999ap-4 (0.10000000000000001) became 0x1.999999999999bp-4"
        in out
    )
    assert "column n: MISSING, was 3" in out
    assert "MISSING or different: 2" in out

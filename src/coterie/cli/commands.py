"""Functions that run the commands. Each imports what is heavy where it needs it."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.base.errors import InputError, require
from coterie.base.interrupts import raise_interrupts
from coterie.cli.entry import site_commands
from coterie.cli.flags import optional_path
from coterie.cli.present import MENDED, goes_on, mend, present, rounds_on_disk
from coterie.cli.show import list_data, list_methods, say, show_one

if TYPE_CHECKING:
    from coterie.cli.progress import Progress
    from coterie.report.results import Results
    from coterie.run.experiment import Experiment


def _compare(args: argparse.Namespace) -> int:
    from coterie.cli.settings import tables_of_command
    from coterie.compute.linear import NotLinearError
    from coterie.run.experiment import Experiment

    tables = tables_of_command(args)
    if args.methods == "all":
        tables["methods"] = _fitting(tables)
    where = "the command line"
    try:
        return _execute(Experiment.from_tables(tables, where), args)
    except NotLinearError as error:
        if args.methods is not None:
            raise
        # Its cure is for who named the method; the usual ones change by themselves.
        why = str(error).partition(";")[0]
        sys.stderr.write(
            f"note: {why}; methods that are trained are compared instead\n"
        )
    tables = tables_of_command(args, solvable=False)
    return _execute(Experiment.from_tables(tables, where), args)


def _run(args: argparse.Namespace) -> int:
    from coterie.cli.settings import override
    from coterie.run.experiment import Experiment
    from coterie.run.hashes import refuse_change
    from coterie.run.tables import read_experiment
    from coterie.study.layout import is_run

    path = Path(args.experiment)
    _say_imports(path, args.trust)
    tables = read_experiment(path).tables()
    if args.resume and path.name == "experiment.toml" and is_run(path.parent):
        refuse_change(path.parent, path.name)
        tables["run"]["out"] = str(path.parent)
    override(tables, args)
    return _execute(Experiment.from_tables(tables, args.experiment), args)


def _say_imports(path: Path, trusted: list[str]) -> None:
    """Say which Python files an experiment will import. Raises `InputError` for one that came with a run directory."""
    from coterie.base.files import read_toml
    from coterie.run.files import own_files
    from coterie.study.layout import is_run

    files = own_files(read_toml(path))
    folder = path.resolve().parent
    if path.name == "experiment.toml" or is_run(folder):
        trusted_files = {Path(name).resolve() for name in trusted}
        for name in files:
            if (
                folder in Path(name).resolve().parents
                and Path(name).resolve() not in trusted_files
            ):
                raise InputError(
                    f"{name} lies in the run directory {path.parent}, so whoever made that wrote it; look at it, then say "
                    f"--trust {name}"
                )
    for name in files:
        sys.stderr.write(f"imports {name}\n")


def _fitting(tables: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the methods that run on these clients with what is known; the others are named with the reason."""
    from coterie.run.experiment import Experiment
    from coterie.study.preflight import check_method

    fitting: list[dict[str, Any]] = []
    clients = None
    for table in tables["methods"]:
        try:
            one_method = Experiment.from_tables(
                {**tables, "methods": [table], "tune": {}}, "the command line"
            )
            if clients is None:
                clients = one_method.load_data(one_method.run.seeds[0])
            check_method(one_method, one_method.methods[0], clients)
        except InputError as error:
            sys.stderr.write(f"left out {table['name']}: {error}\n")
            continue
        fitting.append(table)
    return fitting


def _execute(experiment: Experiment, args: argparse.Namespace) -> int:
    from coterie.cli.progress import Progress
    from coterie.study.layout import choose_folder, is_run
    from coterie.study.sweep import run_experiment

    folder = choose_folder(experiment, args.resume)
    with raise_interrupts(), Progress(quiet=args.json) as progress:
        try:
            experiment = _choose_settings(experiment, folder, args, progress)
            run_experiment(
                experiment,
                folder,
                resume=args.resume,
                accept_change=args.accept_change,
                command=shlex.join(args.typed),
                notify=progress.event,
                say=progress.say,
            )
        except KeyboardInterrupt:
            progress.stop()
            farewell = "stopped before the first round; nothing was saved"
            if is_run(folder):
                saved = rounds_on_disk(experiment.run.save_every)
                farewell = f"stopped; {saved}. Go on {goes_on(folder)}"
            sys.stderr.write(farewell + "\n")
            return 130
        except Exception as error:
            if is_run(folder) and not isinstance(error, InputError | OSError):
                args.run = folder
                error.add_note(
                    f"{rounds_on_disk(experiment.run.save_every)}; {MENDED} {goes_on(folder)}"
                )
            raise
    return present(folder, args, html=not args.no_report)


def _choose_settings(
    experiment: Experiment, folder: Path, args: argparse.Namespace, progress: Progress
) -> Experiment:
    from coterie.study.search import choose_settings

    chosen, trials = choose_settings(
        experiment, folder, grid=args.tune, resume=args.resume, notify=progress.tuning
    )
    for trial in trials:
        if args.tune and trial.chosen and trial.setting:
            progress.say(
                f"tuned {trial.label}: {', '.join(f'{k} = {v}' for k, v in trial.setting.items())}"
            )
    return chosen


# ---- what a run left


def _report(args: argparse.Namespace) -> int:
    runs = [Path(name) for name in args.folders]
    folder = runs[0]
    if len(runs) > 1:
        from coterie.study.combine import combine_runs, default_folder

        for run in runs:
            mend(run)
        folder = optional_path(args.out) or default_folder(runs)
        combine_runs(runs, folder, new_rows=args.new_rows)
    elif args.out is not None or args.new_rows:
        raise InputError(
            "--out and --new-rows are for several runs; name them behind each other"
        )
    return present(
        folder,
        args,
        html=not args.no_html,
        insist=True,
        threshold=args.threshold,
        smallest=args.smallest,
    )


def _plan_rows(args: argparse.Namespace) -> int:
    from coterie.config.rules import SIZE
    from coterie.report.planning import plan_lines, plan_rows
    from coterie.report.results import Results

    results = Results.load(args.folder)
    client = results.find_client(args.client)
    texts = [text for text in (args.rows or "").split(",") if text]
    for text in texts:
        if not (text.isdecimal() and SIZE.test(int(text))):
            raise InputError(
                f"--rows must be numbers of rows, such as 100,500; got {text!r}"
            )
    numbers = [int(text) for text in texts]
    plan = plan_rows(results, client, numbers)
    if args.json:
        say(
            json.dumps(
                {
                    "client": client,
                    "today": plan.verdict._asdict(),
                    "own": plan.own,
                    "everybody": plan.everybody,
                }
            )
        )
    else:
        say("\n".join(plan_lines(results, client, plan)))
    return 0


def _verify(args: argparse.Namespace) -> int:
    from coterie.study.tables import explain_run, verify

    checked = verify(Path(args.folder))
    if args.explain:
        for line in explain_run(Path(args.folder)):
            say(line)
    for problem in checked.problems:
        say(problem)
    found = f"{checked.whole} files are as the run recorded them"
    if not checked.problems:
        say(found)
        return 0
    say(f"{found}; {len(checked.problems)} are not")
    return 2


def _finalise(args: argparse.Namespace) -> int:
    from coterie.base.files import write_atomically
    from coterie.report.card import card
    from coterie.report.outside import outside_words
    from coterie.report.results import Results
    from coterie.report.verdicts import fit_yourself
    from coterie.run.files import safe_name
    from coterie.study.finalise import finalise
    from coterie.study.outside import outside_card, prior_words, solve_own
    from coterie.study.predict import is_final

    run = Path(args.folder)
    if args.own is not None and is_final(run):
        return _solve_own(args, run)
    mend(run)
    results = Results.load(run, args.threshold)
    args.client = results.called(args.client)
    took_part = args.client in results.names
    method = args.method or _default_method(results, args.client)
    # A client outside the run has no validation rows by which a threshold could be chosen.
    threshold: float | None = None
    if took_part:
        threshold = _threshold(args, results, method)
    target = optional_path(args.out)
    if target is None:
        target = Path("final") / safe_name(f"{results.title}-{args.client}")
    final = finalise(
        run,
        target,
        client=args.client,
        method=method,
        threshold=threshold,
        accept_change=args.accept_change,
    )
    expectation = outside_words(results, method)
    text = outside_card(results.title, method, final.rows, expectation)
    if took_part:
        text = card(
            results, args.client, method, final.rows, threshold, rounds=final.rounds
        )
    shared = prior_words(target)
    if shared:
        text = f"{text}\n{shared}"
    write_atomically(target / "card.md", lambda p: p.write_text(text, encoding="utf-8"))
    if args.own is not None:
        solve_own(target, Path(args.own), target, client=args.client)
    except_tuning = ""
    if results.keeps_rows_to_tune(method):
        except_tuning = " but those that choose how it is tuned"
    say(
        f"model of {method} for {args.client}, trained on all rows{except_tuning}: {target}"
    )
    say(f"what to expect of it: {target / 'card.md'}")
    notes = [*final.notes]
    if took_part:
        notes.append(fit_yourself(results, args.client))
    for note in filter(None, notes):
        sys.stderr.write(f"note: {note}\n")
    return 0


def _default_method(results: Results, client: str) -> str:
    """The method that a run recommends to a client; to a hospital outside the one that learns what clients share."""
    from coterie.report.verdicts import recommend
    from coterie.study.predict import OUTSIDE

    if client in results.names or client != OUTSIDE:
        return recommend(results, client)
    for label, name in results.algorithms.items():
        if name == "partial":
            return label
    raise InputError(
        f"say with --method whose model a hospital outside is served; the run has {', '.join(results.methods)}"
    )


def _solve_own(args: argparse.Namespace, folder: Path) -> int:
    """Write the model of a new hospital from a finalised one and the hospital's rows."""
    from coterie.run.files import safe_name
    from coterie.study.outside import solve_own

    out = optional_path(args.out)
    if out is None:
        out = folder.with_name(safe_name(f"{folder.name}-{args.client}"))
    if out.exists() and any(out.iterdir()):
        raise InputError(f"{out} holds something already; choose another --out")
    rows = solve_own(folder, Path(args.own), out, client=args.client)
    say(f"model of {args.client} from {rows} rows of its own: {out}")
    return 0


def _threshold(
    args: argparse.Namespace, results: Results, method: str, seed: int | None = None
) -> float | None:
    """From which risk the client's model calls a row positive; None, which nobody may ask for, unless there are two classes."""
    from coterie.report.diagnosis import operating_point

    threshold = operating_point(results, method, args.client, seed)
    require(
        args.threshold is None or threshold is not None,
        "a threshold needs two classes; leave it out",
    )
    return threshold


def _predict(args: argparse.Namespace) -> int:
    from coterie.base.outputs import write_output
    from coterie.report.results import Results
    from coterie.report.scores import threshold_of
    from coterie.report.verdicts import fit_yourself
    from coterie.study.layout import refuse_run_directory
    from coterie.study.predict import is_final, predict

    folder, method, threshold = Path(args.folder), args.method, args.threshold
    better = ""
    if is_final(folder):
        if threshold in ("validation", "prevalence"):
            raise InputError(
                f"{folder} holds one model and its threshold; give a risk, say 0.3"
            )
        if threshold is not None:
            threshold = float(threshold_of(threshold))
    else:
        mend(folder)
        results = Results.load(folder, threshold)
        if args.client is None:
            raise InputError(f"say whose model of {folder} answers, with --client")
        args.client = results.called(args.client)
        method = method or _default_method(results, args.client)
        seed = args.seed
        if seed is None:
            seed = results.experiment["run"]["seeds"][0]
        threshold = None
        if args.client in results.names:
            better = fit_yourself(results, args.client)
            threshold = _threshold(args, results, method, seed)
    trust = optional_path(args.trust)
    chosen = {"client": args.client, "method": method, "seed": args.seed}
    prediction = predict(
        folder, Path(args.file), **chosen, threshold=threshold, trust=trust
    )
    table = prediction.table()
    if args.out:
        refuse_run_directory(Path(args.out))
        write_output(Path(args.out), table, inputs=[Path(args.file)])
    else:
        sys.stdout.write(table)
    cut = ""
    if len(prediction.classes) == 2:
        cut = f", {prediction.classes[1]} from {prediction.threshold:g} on"
    sys.stderr.write(f"model: {prediction.method} for {prediction.client}{cut}\n")
    for note in filter(None, [*prediction.notes, better]):
        sys.stderr.write(f"note: {note}\n")
    accuracy = prediction.accuracy()
    if accuracy is not None:
        sys.stderr.write(
            f"the file has labels: accuracy {accuracy:.3f} on {len(prediction.values)} rows\n"
        )
    errors = prediction.errors()
    if errors is not None:
        sizes = "MAE {:.4g}, RMSE {:.4g} in the unit of the label".format(*errors)
        sys.stderr.write(
            f"the file has labels: {sizes} on {len(prediction.values)} rows\n"
        )
    return 0


def _check(args: argparse.Namespace) -> int:
    from coterie.cli.check import lines, partner_lines
    from coterie.cli.settings import override
    from coterie.config.data import Tables
    from coterie.config.registry import DATASETS
    from coterie.config.schema import build
    from coterie.data.tables.check import check_folder

    tables: dict[str, Any] = {"data": {}}
    override(tables, args)
    printed: list[str] = []
    answer: dict[str, Any] = {}
    problems: tuple[str, ...] = ()
    is_known = args.data in DATASETS and not Path(args.data).exists()
    if is_known and not args.partners:
        raise InputError(
            f"{args.data} is a data set by name, whose tables need no check: coterie compare {args.data}"
        )
    if not is_known:
        settings = build(Tables, tables["data"], "[data]", named="data")
        checked = check_folder(args.data, tables=settings, split=tables.get("split"))
        printed = [*lines(checked), ""]
        answer = checked.to_json()
        problems = checked.problems
    if args.partners and not problems:
        from coterie.data.registry import load
        from coterie.study.partners import forecast_partners

        forecast = forecast_partners(
            load(args.data, split=tables.get("split"), **tables["data"])
        )
        printed += partner_lines(forecast)
        answer = {**answer, "partners": forecast.to_json()}
    if args.json:
        say(json.dumps(answer, indent=1))
    else:
        say("\n".join(printed).rstrip())
    if problems:
        return 2
    return 0


def _track(args: argparse.Namespace) -> int:
    from coterie.study.track import track

    runs = track(args.folder, args.to, args.at)
    say(f"{runs} runs of {args.folder} sent to {args.to}")
    return 0


COMMANDS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "compare": _compare,
    "run": _run,
    "check": _check,
    "methods": list_methods,
    "data": list_data,
    "show": show_one,
    **site_commands().COMMANDS,
    "report": _report,
    "plan-rows": _plan_rows,
    "verify": _verify,
    "finalise": _finalise,
    "predict": _predict,
    "track": _track,
}
"""Functions that run a command, given its options, and return the exit status."""

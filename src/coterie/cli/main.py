"""The command `coterie`. Nothing heavy is imported before a command needs it: `--help` imports neither torch nor a method."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from coterie import __version__
from coterie.core.errors import CoterieError, InputError, nearest, require

if TYPE_CHECKING:
    from coterie.cli.progress import Progress
    from coterie.run.experiment import Experiment

__all__ = ["main"]

EPILOG = """examples:
  coterie compare heart-disease                     does federating help four real hospitals, and with whom?
  coterie compare my-clients/ --label outcome       the same for a folder with one CSV per client
  coterie compare heart-disease --methods local,fedavg,meritfed --seeds 5 --out runs/heart
  coterie run experiment.toml --resume              full control; goes on where it was stopped
  coterie predict runs/heart --client switzerland new.csv

exit status: 0 done, 1 the run failed (what was saved stays), 2 bad input, 130 stopped with Ctrl-C"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    # OpenMP reads this once, when torch is imported; two threads that share cores with worker processes are far slower than one.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        parser = _parser()
        args = parser.parse_args(arguments)
        args.typed = ["coterie", *(sys.argv[1:] if arguments is None else arguments)]
        if not hasattr(args, "command"):
            parser.print_help()
            return 0
        status: int = args.command(args)
        sys.stdout.flush()
    except InputError as error:
        return _fail(str(error), 2)
    except CoterieError as error:
        return _fail(str(error), 1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk, a folder that may not be written
        return _fail(f"{error.filename or 'a file'}: {error.strerror}; what was saved before stays", 1)
    except KeyboardInterrupt:
        return _fail("stopped", 130)
    return status


def _fail(sentence: str, status: int) -> int:
    sys.stderr.write(f"coterie: {' '.join(sentence.split())}\n")
    return status


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence, as all others are, and that takes no `--seed` for `--seeds`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        found, left = super().parse_known_args(args, namespace)
        for word in left:
            flag = word.partition("=")[0]
            hint = nearest(flag, {a.option_strings[-1] for a in self._actions if a.option_strings})
            self.error(
                f"there is no option {flag}; {hint}" if flag[:1] == "-" else f"{word!r} is one argument too many"
            )
        return found, left

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see {self.prog} --help")


def _say(text: str = "") -> None:
    sys.stdout.write(text + "\n")


def _parser() -> _Parser:
    parser = _Parser(
        prog="coterie",
        description="Federated learning among partners who are not alike: who helps whom, and whether joining pays.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"coterie {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    compare = commands.add_parser("compare", help="several methods on the same clients: table and report")
    compare.add_argument("data", help="a data set (see: coterie data), or a folder with one file per client")
    compare.add_argument(
        "--methods", metavar="A,B", help="names or FILE.py:NAME, separated by commas; all: every method"
    )
    _add_data_flags(compare)
    _add_run_flags(compare)
    compare.add_argument("--tune", action="store_true", help="first choose each method's settings on validation rows")
    compare.set_defaults(command=_compare)

    run = commands.add_parser("run", help="an experiment from a TOML file")
    run.add_argument("experiment", help="the TOML file (a run directory's experiment.toml repeats that run)")
    _add_run_flags(run)
    run.add_argument("--tune", action="store_true", help="first choose each method's settings on validation rows")
    run.set_defaults(command=_run)

    for name, text, command in (
        ("methods", "the methods there are", _methods),
        ("data", "the data sets there are", _data),
    ):
        listing = commands.add_parser(name, help=text)
        listing.add_argument("--json", action="store_true", help="print JSON")
        if name == "data":
            listing.add_argument("name", nargs="?", help="a data set to export")
            listing.add_argument("--export", metavar="FOLDER", help="write its files there, one CSV per client")
            listing.add_argument(
                "--server-rows",
                type=int,
                default=0,
                metavar="N",
                help="take N rows out for a server: FOLDER/../server.csv",
            )
        listing.set_defaults(command=command)
    show = commands.add_parser("show", help="a method (fields, defaults, paper), a data set, a model or an attack")
    show.add_argument("name")
    show.add_argument("--json", action="store_true", help="print JSON")
    show.set_defaults(command=_show)

    _add_site_commands(commands)
    report = commands.add_parser("report", help="rebuild table and HTML report of a run directory")
    report.add_argument("folder")
    report.add_argument("--json", action="store_true", help="print the rows and verdicts as JSON")
    report.add_argument("--no-html", action="store_true", help="print the table only")
    report.set_defaults(command=_report)

    predict = commands.add_parser("predict", help="predict new rows with a client's model of a finished run")
    predict.add_argument("folder", help="the run directory")
    predict.add_argument("file", help="CSV, Parquet or npz file with the client's columns")
    predict.add_argument("--client", required=True, help="whose model")
    predict.add_argument("--method", help="whose label; left out: what the run recommends to this client")
    predict.add_argument("--seed", type=int, help="of the model; left out: the first")
    predict.add_argument("--out", help="write the CSV there instead of on the screen")
    predict.set_defaults(command=_predict)
    return parser


def _add_site_commands(commands: Any) -> None:
    deploy = commands.add_parser("deploy", help="make the kits with which sites elsewhere join a plan (NVIDIA FLARE)")
    deploy.add_argument("plan", help="an experiment's TOML file with a [deploy] table")
    deploy.add_argument("--kits", metavar="FOLDER", help="where to write them; left out: as [deploy] kits says")
    deploy.set_defaults(command=_deploy)

    site = commands.add_parser("site", help="for a site: does its data fit a plan?")
    jobs = site.add_subparsers(title="commands", metavar="COMMAND", required=True)
    check = jobs.add_parser("check", help="read the site's file as the plan would, without sending anything")
    check.add_argument("place", help="the site's kit, or a plan")
    check.add_argument("--site", metavar="NAME", help="which site of the plan; left out: the kit's")
    check.add_argument("--settings", metavar="FILE", help="the site's coterie.toml; left out: the kit's")
    check.set_defaults(command=_site_check)

    submit = commands.add_parser("submit", help="run a plan on its sites and bring the run directory back")
    submit.add_argument("plan")
    submit.add_argument("--kits", metavar="FOLDER", help="left out: as [deploy] kits says")
    submit.add_argument("--out", help="run directory; left out: runs/NAME")
    submit.add_argument("--resume", action="store_true", help="go on where this run was stopped")
    submit.add_argument("--json", action="store_true", help="print the rows and verdicts as JSON, and nothing else")
    submit.add_argument("--no-report", action="store_true", help="write no HTML report")
    submit.set_defaults(command=_submit)


def _add_data_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("data and model")
    group.add_argument("--label", help="column to predict (folders)")
    group.add_argument("--split", metavar="KIND", help="iid, dirichlet or shards (data without clients of its own)")
    group.add_argument("--clients", type=int, help="number of clients of the split")
    group.add_argument("--alpha", type=float, help="of the Dirichlet split")
    group.add_argument("--model", help="a model's name, or FILE.py:NAME")
    group.add_argument("--init", metavar="FILE", help="start from this safetensors file")
    group.add_argument(
        "--freeze", metavar="PATTERN", action="append", help="leave these parameters as they are, e.g. '0.*'"
    )


def _add_run_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("run")
    group.add_argument("--attack", metavar="NAME", help="let some clients lie or fail: ipm, alie, noise, dropout, ...")
    group.add_argument("--attackers", metavar="WHO", help="their names (a,b), or a share of all clients (0.1)")
    group.add_argument(
        "--personalise",
        metavar="PART",
        help="also tune each client's model after training: all, last (layer) or bias (of the last layer)",
    )
    group.add_argument("--seeds", help="5 means 0..4; 3,7 means these two")
    group.add_argument("--rounds", type=int)
    group.add_argument("--clients-per-round", type=int, metavar="M")
    group.add_argument("--workers", type=int, help="processes; results do not depend on it")
    group.add_argument("--engine", help="inprocess or ray; results do not depend on it")
    group.add_argument("--actors", type=int, help="processes of --engine ray")
    group.add_argument("--lr", type=float, help="learning rate of local training")
    group.add_argument("--steps", type=int, help="batches of local training per round")
    group.add_argument("--batch-size", type=int)
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help="any key: meritfed.md_step=.3, run.evaluate=5",
    )
    group.add_argument("--metrics", metavar="A,B", help="names, or FILE.py:NAME")
    group.add_argument("--out", help="run directory; left out: runs/NAME")
    group.add_argument("--resume", action="store_true", help="go on where this run was stopped")
    group.add_argument("--json", action="store_true", help="print the rows and verdicts as JSON, and nothing else")
    group.add_argument("--no-report", action="store_true", help="write no HTML report")


# ---- compare and run


def _compare(args: argparse.Namespace) -> int:
    from coterie.data import DATASETS
    from coterie.run.experiment import Experiment, preset, preset_methods

    start = args.data if args.data in DATASETS else "folder"
    tables = preset(start)
    known = args.data in DATASETS or ".py:" in args.data or args.data.startswith("hf:")
    if not known and not Path(args.data).exists():
        raise InputError(
            f"there is no data set or folder {args.data!r}; {nearest(args.data, DATASETS)}; a folder path works too"
        )
    data = tables.setdefault("data", {})
    data.update({"name": args.data} if known else {"folder": args.data})
    for table, key, value in (
        ("data", "label", args.label),
        ("split", "kind", args.split),
        ("split", "clients", args.clients),
        ("split", "alpha", args.alpha),
        ("model", "init", args.init),
        ("model", "freeze", args.freeze),
    ):
        if value is not None:
            tables.setdefault(table, {})[key] = value
    if args.model is not None:
        kept = {k: v for k, v in tables.get("model", {}).items() if k in ("init", "freeze")}
        tables["model"] = {**kept, "name": args.model}
    if args.methods is not None:
        tables["methods"] = _chosen(args.methods, preset_methods(start))
        names = {"local"} | {m["name"] for m in tables["methods"]}
        tables["tune"] = {k: v for k, v in tables.get("tune", {}).items() if k.partition(".")[0] in names}
    _override(tables, args)
    if args.methods == "all":
        tables["methods"] = _fitting(tables)
    return _execute(Experiment.from_tables(tables, "the command line"), args)


def _fitting(tables: dict[str, Any]) -> list[dict[str, Any]]:
    """Of all methods those that run on these clients with what is known; the others are named with the reason."""
    from coterie.run.experiment import Experiment
    from coterie.run.sweep import check_method

    fitting: list[dict[str, Any]] = []
    clients = None
    for table in tables["methods"]:
        try:
            alone = Experiment.from_tables({**tables, "methods": [table], "tune": {}}, "the command line")
            if clients is None:
                clients = alone.load_data(alone.run.seeds[0])
            check_method(alone, alone.methods[0], clients)
        except InputError as error:
            sys.stderr.write(f"left out {table['name']}: {error}\n")
            continue
        fitting.append(table)
    return fitting


def _run(args: argparse.Namespace) -> int:
    from coterie.run.experiment import Experiment, read_experiment
    from coterie.run.sweep import is_run

    path = Path(args.experiment)
    tables = read_experiment(path).tables()
    if args.resume and path.name == "experiment.toml" and is_run(path.parent):
        tables["run"]["out"] = str(path.parent)
    _override(tables, args)
    return _execute(Experiment.from_tables(tables, args.experiment), args)


def _chosen(methods: str, presets: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    from coterie.algorithms import ALGORITHMS
    from coterie.run.experiment import label_of

    names = list(ALGORITHMS) if methods == "all" else [m for m in methods.split(",") if m]
    require(bool(names), "--methods names no method; give names separated by commas")
    by_label = {label_of(m): dict(m) for m in presets}
    return [by_label.get(name, {"name": name}) for name in names]


def _override(tables: dict[str, Any], args: argparse.Namespace) -> None:
    run = tables.setdefault("run", {})
    local = tables.setdefault("local", {})
    for key in ("rounds", "clients_per_round", "workers", "engine", "actors", "out"):
        value = getattr(args, key)
        if value is not None:
            run[key] = value
    if args.seeds is not None:
        run["seeds"] = _seeds(args.seeds)
    if args.metrics is not None:
        run["metrics"] = [m for m in args.metrics.split(",") if m]
    if args.attack is not None:
        kept = {k: v for k, v in tables.get("attack", {}).items() if k in ("clients", "share")}
        tables["attack"] = {**kept, "name": args.attack}
    if args.attackers is not None:
        who = _value(args.attackers)
        named = (
            {"share": who} if isinstance(who, int | float) else {"clients": [n for n in args.attackers.split(",") if n]}
        )
        kept = {k: v for k, v in tables.get("attack", {}).items() if k not in ("clients", "share")}
        tables["attack"] = {**kept, **named}
    if args.personalise is not None:
        tables.setdefault("personalise", {})["part"] = args.personalise
    flags = {"lr": args.lr, "steps": args.steps, "batch_size": args.batch_size}
    for key, value in flags.items():
        if value is not None:
            _set_local(tables, local, key, value)
    for setting in args.settings:
        _set(tables, setting)


def _set_local(tables: Mapping[str, Any], local: dict[str, Any], key: str, value: Any) -> None:
    unit = {"steps": "epochs", "epochs": "steps"}.get(key)
    for table in (local, *(m["local"] for m in tables["methods"] if isinstance(m.get("local"), dict))):
        if table is local or key in table or unit in table:
            table.pop(unit or "", None)
            table[key] = value


def _set(tables: dict[str, Any], setting: str) -> None:
    from coterie.run.experiment import label_of

    key, equals, text = setting.partition("=")
    head, _, rest = key.partition(".")
    require(bool(equals and rest), f"--set {setting!r} must look like meritfed.md_step=.3 or run.evaluate=5")
    value = _value(text)
    labels = {label_of(m): m for m in tables.get("methods", [])}
    if head == "local" and not rest.startswith("local."):
        _set_local(tables, tables["local"], rest, value)
    elif head in labels:
        target = labels[head]
        if rest.startswith("local."):
            _set_local({"methods": []}, target.setdefault("local", {}), rest.removeprefix("local."), value)
        else:
            target[rest] = value
    elif head in ("data", "split", "model", "run", "attack", "personalise"):
        tables.setdefault(head, {})[rest] = value
    elif head == "tune":
        tables.setdefault("tune", {})[rest] = value
    else:
        allowed = {*labels, "data", "split", "model", "local", "attack", "personalise", "run", "tune"}
        raise InputError(f"--set {setting!r} names no method of this run and no table; {nearest(head, allowed)}")


def _value(text: str) -> Any:
    import tomllib

    for parse in (int, float):
        try:
            return parse(text)
        except ValueError:
            continue
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError as error:
        listed = text[:1] in "[{"
        require(not listed, f"{text!r} is no TOML value ({error}); write 0.5 for .5, and texts in quotes")
        return text


def _seeds(text: str) -> int | list[int]:
    try:
        return [int(s) for s in text.split(",") if s] if "," in text else int(text)
    except ValueError:
        raise InputError(f"--seeds must be a number of seeds (5) or a list of them (3,7); got {text!r}") from None


def _execute(experiment: Experiment, args: argparse.Namespace) -> int:
    import shlex

    from coterie.cli.progress import Progress
    from coterie.run.sweep import choose_folder, is_run, run_experiment

    folder = choose_folder(experiment, args.resume)
    with Progress(quiet=args.json) as progress:
        try:
            if args.tune:
                experiment = _tuned(experiment, folder, args.resume, progress)
            run_experiment(
                experiment, folder, resume=args.resume, command=shlex.join(args.typed), notify=progress.event
            )
        except KeyboardInterrupt:
            progress.stop()
            if is_run(folder):
                again = shlex.join(["coterie", "run", str(folder / "experiment.toml"), "--resume"])
                sys.stderr.write(f"stopped; every complete round is saved. Go on with:\n  {again}\n")
            else:
                sys.stderr.write("stopped before the first round; nothing was saved\n")
            return 130
    return _present(folder, args.json, html=not args.no_report)


def _tuned(experiment: Experiment, folder: Path, resume: bool, progress: Progress) -> Experiment:
    from coterie.run.experiment import read_experiment
    from coterie.run.search import tune, write_trials
    from coterie.run.sweep import is_run

    if resume and is_run(folder):
        saved = read_experiment(folder / "experiment.toml").methods
        same = [m.label for m in saved] == [m.label for m in experiment.methods]
        require(same, f"{folder} was tuned for {', '.join(m.label for m in saved)}; resume with the same methods")
        return experiment.with_methods(saved)
    chosen, trials = tune(experiment, progress.tuning)
    write_trials(folder, trials)
    for trial in trials:
        if trial.chosen and trial.setting:
            progress.say(f"tuned {trial.label}: {', '.join(f'{k} = {v}' for k, v in trial.setting.items())}")
    return chosen


def _present(folder: Path, as_json: bool, html: bool, insist: bool = False) -> int:
    from coterie.report.results import Results
    from coterie.report.table import describe_lines, render
    from coterie.report.verdicts import verdict

    results = Results.load(folder)
    page: Path | None = None
    missing = ""
    if html:
        from coterie.report.html import write

        try:
            page = write(folder)
        except InputError as error:  # after hours of training, a report that cannot be made is no failure
            if insist:
                raise
            missing = str(error)
    if as_json:
        rows = json.loads((folder / "summary.json").read_text())
        verdicts = {client: verdict(results, client)._asdict() for client in results.clients}
        _say(json.dumps({"folder": str(folder), "rows": rows, "verdicts": verdicts}, indent=1))
        return 0
    _say()
    _say(render(results).rstrip())
    _say()
    for line in describe_lines(results):
        _say(line)
    _say()
    _say(f"run directory  {folder}")
    if page is not None:
        _say(f"report         {page}")
    elif missing:
        _say(f"no HTML report: {missing}")
    return 0


# ---- sites elsewhere


def _deploy(args: argparse.Namespace) -> int:
    from coterie.sites.plan import provision, read_plan

    path = Path(args.plan)
    deployment = read_plan(path).deployment
    kits = provision(path, None if args.kits is None else Path(args.kits))
    _say(f"kits in {kits}: hand each site its folder over a private channel; it holds a private key")
    _say(f"  server   {deployment.server}: {kits / deployment.server}/startup/start.sh, port {deployment.port}")
    for name in deployment.sites:
        kit = kits / name
        _say(f"  site     {name}: edit local/coterie.toml, coterie site check {kit}, then {kit}/startup/start.sh")
    _say(f"  operator {deployment.admin}: coterie submit {path}")
    return 0


def _site_check(args: argparse.Namespace) -> int:
    from coterie.sites.plan import check_site

    settings = None if args.settings is None else Path(args.settings)
    for line in check_site(Path(args.place), site=args.site, settings_file=settings):
        _say(line)
    return 0


def _submit(args: argparse.Namespace) -> int:
    import dataclasses
    import shlex

    from coterie.cli.progress import Progress
    from coterie.run.sweep import choose_folder
    from coterie.sites.plan import read_plan, submit

    path = Path(args.plan)
    experiment = read_plan(path).experiment
    if args.out is not None:
        experiment = dataclasses.replace(experiment, run=dataclasses.replace(experiment.run, out=args.out))
    folder = choose_folder(experiment, args.resume)
    with Progress(quiet=args.json) as progress:
        submit(
            path,
            folder,
            resume=args.resume,
            kits=None if args.kits is None else Path(args.kits),
            command=shlex.join(args.typed),
            watch=progress.watched,
            say=progress.say,
        )
    return _present(folder, args.json, html=not args.no_report)


# ---- listings


def _methods(args: argparse.Namespace) -> int:
    from coterie.algorithms import ALGORITHMS
    from coterie.cli.show import describe_method

    rows = [describe_method(name, method) for name, method in ALGORITHMS.items()]
    if args.json:
        _say(json.dumps(rows, indent=1))
        return 0
    width = max(12, *(len(row["name"]) for row in rows))
    for row in rows:
        _say(f"{row['name']:<{width}} {row['summary']}")
        about = (row["paper"], *(f"{k}: {row[k]}" for k in ("optimises", "sends", "memory")))
        for line in (line for text in about for line in _folded(text, width + 1)):
            _say(line)
    _say("\nd: numbers in a model; sent: floats of one client in a round, settings aside; memory: what a client keeps")
    _say("coterie show NAME explains a method's fields; FILE.py:NAME is a method of your own")
    return 0


def _folded(text: str, indent: int) -> list[str]:
    import shutil
    import textwrap

    width = min(100, shutil.get_terminal_size((80, 24)).columns)
    return textwrap.wrap(text, width, initial_indent=" " * indent, subsequent_indent=" " * indent)


def _data(args: argparse.Namespace) -> int:
    from coterie.data import DATASETS

    if args.name is not None or args.export is not None:
        from coterie.data.sets.heart_disease import export

        require(args.name == "heart-disease", f"only heart-disease can be exported, with a name; got {args.name!r}")
        require(args.export is not None, "say where to with --export FOLDER")
        for file in export(Path(args.export), server_rows=args.server_rows):
            _say(str(file))
        return 0
    if args.json:
        keys = ("name", "summary", "clients", "task", "licence")
        _say(json.dumps([{k: getattr(d, k) for k in keys} for d in DATASETS.values()], indent=1))
        return 0
    for dataset in DATASETS.values():
        _say(f"{dataset.name:<16} {dataset.summary}")
        for line in _folded(f"clients: {dataset.clients}; {dataset.task}; {dataset.licence}", 17):
            _say(line)
    _say("\na folder with one CSV, Parquet or npz file per client works too: coterie compare FOLDER --label COLUMN")
    return 0


def _show(args: argparse.Namespace) -> int:
    from coterie.cli.show import describe, show

    _say(json.dumps(describe(args.name), indent=1) if args.json else show(args.name))
    return 0


def _report(args: argparse.Namespace) -> int:
    return _present(Path(args.folder), args.json, html=not args.no_html, insist=True)


def _predict(args: argparse.Namespace) -> int:
    from coterie.core.state import write_atomically
    from coterie.run.predict import predict

    got = predict(Path(args.folder), Path(args.file), client=args.client, method=args.method, seed=args.seed)
    table = got.table()
    if args.out:
        write_atomically(Path(args.out), lambda p: p.write_text(table, encoding="utf-8"))
    else:
        sys.stdout.write(table)
    sys.stderr.write(f"model: {got.method} for {args.client}\n")
    for note in got.notes:
        sys.stderr.write(f"note: {note}\n")
    accuracy = got.accuracy()
    if accuracy is not None:
        sys.stderr.write(f"the file has labels: accuracy {accuracy:.3f} on {len(got.values)} rows\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

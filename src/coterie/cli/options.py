"""The parser of all commands; nothing here knows what a command does. Flags of settings come from the fields that declare them."""

from __future__ import annotations

import argparse
import re
from typing import Any, NoReturn

from coterie import __version__
from coterie.base.errors import InputError, nearest
from coterie.cli.entry import site_commands
from coterie.cli.flags import (
    add_accept_change,
    add_command,
    add_flags,
    add_printing,
    add_resume,
    add_tables_flag,
)

EPILOG = """examples:
  coterie compare heart-disease                     does federating help four real hospitals, and with whom?
  coterie compare my-clients/ --label outcome       the same for a folder with one CSV per client
  coterie check my-clients/ --label outcome         what is wrong with these files? nothing is trained
  coterie compare heart-disease --methods local,fedavg,meritfed --seeds 5 --out runs/heart
  coterie run experiment.toml --resume              full control; resumes where it stopped
  coterie predict runs/heart --client switzerland new.csv

exit status: 0 done, 1 the run failed (what was saved stays), 2 bad input, 130 stopped with Ctrl-C"""


def build_parser() -> argparse.ArgumentParser:
    """The parser; `command` of what it returns is a key of `commands.COMMANDS`, and is absent where none was given."""
    parser = _Parser(
        prog="coterie",
        description="Federated learning among partners who are not alike: who helps whom, and whether joining pays.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"coterie {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_experiments(commands)
    _add_listings(commands)
    site_commands().add_commands(commands)
    _add_results(commands)
    _add_track(commands)
    return parser


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence, as all others are, and that takes no `--seed` for `--seeds`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def parse_known_args(
        self, args: Any = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        parsed, unknown = super().parse_known_args(args, namespace)
        for word in unknown:
            flag = word.partition("=")[0]
            if flag[:1] != "-":
                self.error(
                    f"{word!r} is one argument too many: name one folder, and separate methods by commas without blanks"
                )
            flags = {a.option_strings[-1] for a in self._actions if a.option_strings}
            self.error(f"there is no option {flag}; {nearest(flag, flags)}")
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        unknown = re.match(r"argument COMMAND: invalid choice: '([^']*)'", message)
        if unknown is not None:
            commands = next(
                action.choices
                for action in self._actions
                if action.metavar == "COMMAND"
            )
            message = f"there is no command {unknown[1]!r}; {nearest(unknown[1], commands or ())}"
        raise InputError(f"{message}; see {self.prog} --help")


def _add_experiments(commands: Any) -> None:
    compare = add_command(
        commands,
        "compare",
        "compare methods on the same clients: who gains by joining, and with whom",
    )
    compare.add_argument(
        "data",
        help="a data set (see: coterie data), a folder with one file per client, or one table",
    )
    compare.add_argument(
        "--methods",
        metavar="A,B",
        help="names or FILE.py:NAME, separated by commas; all: every method; fedavg+bias: "
        "each client tunes that part of its model after training (all, last or bias; pool: a linear model)",
    )
    compare.add_argument(
        "--privacy",
        metavar="E,E",
        help="does joining still pay behind noise that hides each row? epsilons to try, such as inf,8,4,2,1",
    )
    run = add_command(commands, "run", "run an experiment from a TOML file")
    run.add_argument(
        "experiment",
        help="the TOML file (a run directory's experiment.toml repeats that run)",
    )
    run.add_argument(
        "--trust",
        metavar="FILE",
        action="append",
        default=[],
        help="import this Python file although it lies in the run directory",
    )
    for parser in (compare, run):
        parser.add_argument(
            "--tune",
            action="store_true",
            help="first choose each method's settings on validation rows",
        )
        _add_set(parser, "any key: meritfed.md_step=.3, run.evaluate=5")
        add_resume(parser)
        add_accept_change(parser)
        add_printing(parser)
        add_flags(parser)

    check = add_command(
        commands,
        "check",
        "check a folder of tables: what is wrong, and how alike its clients are; nothing is trained",
    )
    check.add_argument(
        "data",
        help="a folder with one file per client, or one table, which --split deals to clients",
    )
    check.add_argument(
        "--partners",
        action="store_true",
        help="also forecast who belongs together, by training a small classifier for each pair of clients (FedCollab)",
    )
    _add_set(check, "any key of [data] or [split], such as data.missing.chol=[0]")
    check.add_argument("--json", action="store_true", help="print JSON")
    add_flags(check, "data", "split")


def _add_set(parser: argparse.ArgumentParser, explanation: str) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help=explanation,
    )


def _add_listings(commands: Any) -> None:
    methods = add_command(commands, "methods", "list the methods")
    methods.add_argument("--json", action="store_true", help="print JSON")

    data = add_command(
        commands, "data", "list the data sets, or write one as CSV files"
    )
    data.add_argument("--json", action="store_true", help="print JSON")
    data.add_argument("name", nargs="?", help="a data set to export")
    data.add_argument(
        "--export", metavar="FOLDER", help="write its files there, one CSV per client"
    )
    data.add_argument(
        "--server-rows",
        type=int,
        default=0,
        metavar="N",
        help="take N rows out for a server: FOLDER/../server.csv",
    )

    show = add_command(
        commands,
        "show",
        "explain a method (fields, defaults, paper), a data set, a model, an engine, an attack, ... or a table of settings",
    )
    show.add_argument(
        "name",
        help="such as meritfed, heart-disease, mlp, ray, ipm, run or FILE.py:NAME",
    )
    show.add_argument("--json", action="store_true", help="print JSON")


def _add_results(commands: Any) -> None:
    report = add_command(
        commands,
        "report",
        "print the answer of a run again and rebuild its HTML report, or those of several runs together",
    )
    report.add_argument(
        "folders",
        nargs="+",
        metavar="folder",
        help="the run directory; several are combined",
    )
    report.add_argument(
        "--new-rows",
        action="store_true",
        help="no patient is in two of the runs, whose tables may then differ",
    )
    report.add_argument(
        "--out",
        metavar="FOLDER",
        help="where several runs are combined; default: their names, joined by +",
    )
    report.add_argument(
        "--json",
        action="store_true",
        help="print rows, verdicts, differences and notes as JSON",
    )
    report.add_argument("--no-html", action="store_true", help="print the answer only")
    _add_threshold(report)
    report.add_argument(
        "--smallest",
        metavar="D",
        help="the smallest effect of interest, instead of that of the run: .01, or what you type (no training)",
    )
    add_tables_flag(report)

    plan = add_command(
        commands,
        "plan-rows",
        "say what further rows would probably settle for one client of a finished run",
    )
    plan.add_argument("folder", help="the run directory")
    plan.add_argument(
        "--for",
        dest="client",
        metavar="CLIENT",
        required=True,
        help="the client that asks",
    )
    plan.add_argument(
        "--rows",
        metavar="N,N",
        help="numbers of further rows; default: half, 1, 2, 4 and 8 times those that it has",
    )
    plan.add_argument(
        "--json",
        action="store_true",
        help="print the verdict and the probabilities as JSON",
    )

    verify = add_command(
        commands,
        "verify",
        "compare every file of a run directory with the hash that the run recorded",
    )
    verify.add_argument("folder", help="the run directory")
    verify.add_argument(
        "--explain",
        action="store_true",
        help="print what the numbers of each method and seed depend on",
    )

    finalise = add_command(
        commands,
        "finalise",
        "train a finished run's method again on all rows, and write a model with its card",
    )
    finalise.add_argument("folder", help="the run directory")
    finalise.add_argument(
        "--client",
        required=True,
        help="the client whose model is written; outside: a hospital that took no part",
    )
    finalise.add_argument(
        "--method",
        help="label of the method; default: the one that the run recommends to this client",
    )
    finalise.add_argument("--out", metavar="FOLDER", help="default: final/RUN-CLIENT")
    finalise.add_argument(
        "--own",
        metavar="FILE",
        help="a new hospital's rows: its own model under what the clients share; FOLDER may be a finalised model",
    )
    add_accept_change(finalise)
    _add_threshold(finalise)

    predict = add_command(
        commands,
        "predict",
        "predict new rows with a client's model of a finished run, or with a finalised model",
    )
    predict.add_argument("folder", help="the run directory, or what finalise wrote")
    predict.add_argument(
        "file", help="CSV, Excel, Parquet, Stata or npz file with the client's columns"
    )
    predict.add_argument(
        "--client",
        help="the client whose model of a run predicts; outside: a hospital that took no part",
    )
    predict.add_argument(
        "--method",
        help="label of the method; default: the one that the run recommends to this client",
    )
    predict.add_argument(
        "--seed", type=int, help="seed of the model; default: the first of the run"
    )
    predict.add_argument(
        "--trust",
        metavar="FILE",
        help="import this file for a model of your own; nothing else that the run names is imported",
    )
    predict.add_argument("--out", help="write the CSV there instead of on the screen")
    _add_threshold(predict)


def _add_track(commands: Any) -> None:
    track = add_command(
        commands,
        "track",
        "send what a finished run measured to MLflow, TensorBoard or Weights & Biases",
    )
    track.add_argument("folder", help="the run directory")
    track.add_argument(
        "--to", required=True, metavar="LOGGER", help="mlflow, tensorboard or wandb"
    )
    track.add_argument(
        "--at",
        metavar="WHERE",
        help="tracking URI or folder; default: the logger's default",
    )


def _add_threshold(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--threshold",
        metavar="P",
        help="treat from this risk on; prevalence: the share of cases of each client; validation: what suits validation rows best",
    )

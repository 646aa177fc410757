"""The parser of all commands; nothing here knows what a command does. Flags of settings come from the fields that declare them."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from coterie import __version__
from coterie.cli.flags import add_flags
from coterie.cli.site import add_operator_commands, add_purge, add_site_commands, add_wheels
from coterie.core.errors import InputError, nearest

__all__ = ["build_parser"]

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
    _add_site_commands(commands)
    _add_results(commands)
    _add_track(commands)
    return parser


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


def _add(commands: Any, name: str, about: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=about)
    parser.set_defaults(command=name)
    return parser


def _add_experiments(commands: Any) -> None:
    compare = _add(commands, "compare", "several methods on the same clients: the answer and a report")
    compare.add_argument("data", help="a data set (see: coterie data), a folder with one file per client, or one table")
    compare.add_argument(
        "--methods",
        metavar="A,B",
        help="names or FILE.py:NAME, separated by commas; all: every method; fedavg+bias: "
        "each client tunes that part of its model after training (all, last or bias)",
    )
    run = _add(commands, "run", "an experiment from a TOML file")
    run.add_argument("experiment", help="the TOML file (a run directory's experiment.toml repeats that run)")
    run.add_argument(
        "--trust",
        metavar="FILE",
        action="append",
        default=[],
        help="import this Python file although it lies in the run directory",
    )
    for parser in (compare, run):
        parser.add_argument(
            "--tune", action="store_true", help="first choose each method's settings on validation rows"
        )
        _add_set(parser, "any key: meritfed.md_step=.3, run.evaluate=5")
        _add_resume(parser)
        _add_printing(parser)
        add_flags(parser)

    check = _add(commands, "check", "what is wrong with a folder of tables, and how alike its clients are")
    check.add_argument("data", help="a folder with one file per client")
    _add_set(check, "say, data.missing.chol=[0]")
    check.add_argument("--json", action="store_true", help="print JSON")
    add_flags(check, "data")


def _add_set(parser: argparse.ArgumentParser, about: str) -> None:
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings", help=about)


def _add_resume(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--resume", action="store_true", help="resume where this run stopped")


def _add_printing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the rows and verdicts as JSON, and nothing else")
    parser.add_argument("--no-report", action="store_true", help="write no HTML report")
    _add_tables_flag(parser)


def _add_tables_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tables", action="store_true", help="print the tables of all metrics before the answer")


def _add_listings(commands: Any) -> None:
    methods = _add(commands, "methods", "the methods there are")
    methods.add_argument("--json", action="store_true", help="print JSON")

    data = _add(commands, "data", "the data sets there are")
    data.add_argument("--json", action="store_true", help="print JSON")
    data.add_argument("name", nargs="?", help="a data set to export")
    data.add_argument("--export", metavar="FOLDER", help="write its files there, one CSV per client")
    data.add_argument(
        "--server-rows",
        type=int,
        default=0,
        metavar="N",
        help="take N rows out for a server: FOLDER/../server.csv",
    )

    show = _add(
        commands, "show", "a method (fields, defaults, paper), a data set, a model, an attack or a table of settings"
    )
    show.add_argument("name")
    show.add_argument("--json", action="store_true", help="print JSON")


def _add_site_commands(commands: Any) -> None:
    deploy = _add(commands, "deploy", "make the kits with which sites elsewhere join a plan (NVIDIA FLARE)")
    deploy.add_argument("plan", help="an experiment's TOML file with a [deploy] table")
    deploy.add_argument("--kits", metavar="FOLDER", help="where to write them; default: as [deploy] kits says")
    deploy.add_argument(
        "--keys-at-sites",
        action="store_true",
        help="make no kits of sites: each makes its own key (coterie site request)",
    )
    add_wheels(deploy)

    site = commands.add_parser("site", help="for a site: check, approve and audit what a plan asks of it")
    add_site_commands(site.add_subparsers(title="commands", metavar="COMMAND", required=True))

    add_operator_commands(commands)
    add_purge(commands)

    submit = _add(commands, "submit", "run a plan on its sites and bring the run directory back")
    submit.add_argument("plan")
    submit.add_argument("--kits", metavar="FOLDER", help="default: as [deploy] kits says")
    submit.add_argument("--out", help="run directory; default: runs/NAME")
    _add_resume(submit)
    _add_printing(submit)


def _add_results(commands: Any) -> None:
    report = _add(commands, "report", "print the answer of a run directory again, and rebuild its HTML report")
    report.add_argument("folder")
    report.add_argument("--json", action="store_true", help="print the rows and verdicts as JSON")
    report.add_argument("--no-html", action="store_true", help="print the answer only")
    _add_threshold(report)
    _add_tables_flag(report)

    verify = _add(commands, "verify", "compare every file of a run directory with the hash that the run recorded")
    verify.add_argument("folder")

    finalise = _add(
        commands, "finalise", "fit a finished run's method again on all rows: a model to use, with its card"
    )
    finalise.add_argument("folder", help="the run directory")
    finalise.add_argument("--client", required=True, help="whose model")
    finalise.add_argument("--method", help="whose label; default: what the run recommends to this client")
    finalise.add_argument("--out", metavar="FOLDER", help="default: final/RUN-CLIENT")
    _add_threshold(finalise)

    predict = _add(commands, "predict", "predict new rows with a client's model of a finished run, or a finalised one")
    predict.add_argument("folder", help="the run directory, or what finalise wrote")
    predict.add_argument("file", help="CSV, Excel, Parquet or npz file with the client's columns")
    predict.add_argument("--client", help="whose model of a run")
    predict.add_argument("--method", help="whose label; default: what the run recommends to this client")
    predict.add_argument("--seed", type=int, help="of the model; default: the first")
    predict.add_argument(
        "--trust",
        metavar="FILE",
        help="import this file for a model of your own; nothing else that the run names is imported",
    )
    predict.add_argument("--out", help="write the CSV there instead of on the screen")
    _add_threshold(predict)


def _add_track(commands: Any) -> None:
    track = _add(commands, "track", "send what a finished run measured to MLflow or TensorBoard")
    track.add_argument("folder", help="the run directory")
    track.add_argument("--to", required=True, metavar="LOGGER", help="mlflow or tensorboard")
    track.add_argument("--at", metavar="WHERE", help="tracking URI or folder; default: the logger's default")


def _add_threshold(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--threshold",
        metavar="P",
        help="call a row positive from this risk on; validation: as the validation rows suit",
    )

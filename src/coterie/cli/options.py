"""The options of the command: one parser for all commands. Nothing here knows what a command does."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from coterie import __version__
from coterie.cli.site import add_operator_commands, add_purge, add_site_commands
from coterie.core.errors import InputError, nearest

__all__ = ["build_parser"]

EPILOG = """examples:
  coterie compare heart-disease                     does federating help four real hospitals, and with whom?
  coterie compare my-clients/ --label outcome       the same for a folder with one CSV per client
  coterie check my-clients/ --label outcome         what is wrong with these files? nothing is trained
  coterie compare heart-disease --methods local,fedavg,meritfed --seeds 5 --out runs/heart
  coterie run experiment.toml --resume              full control; goes on where it was stopped
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

    compare = commands.add_parser("compare", help="several methods on the same clients: the answer and a report")
    compare.add_argument("data", help="a data set (see: coterie data), a folder with one file per client, or one table")
    compare.add_argument(
        "--methods", metavar="A,B", help="names or FILE.py:NAME, separated by commas; all: every method"
    )
    _add_data_flags(compare)
    _add_run_flags(compare)
    compare.add_argument("--tune", action="store_true", help="first choose each method's settings on validation rows")
    compare.set_defaults(command="compare")

    run = commands.add_parser("run", help="an experiment from a TOML file")
    run.add_argument("experiment", help="the TOML file (a run directory's experiment.toml repeats that run)")
    _add_run_flags(run)
    run.add_argument("--tune", action="store_true", help="first choose each method's settings on validation rows")
    run.set_defaults(command="run")

    check = commands.add_parser("check", help="what is wrong with a folder of tables, and how alike its clients are")
    check.add_argument("data", help="a folder with one file per client")
    check.add_argument("--label", help="column to predict")
    check.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="settings", help="say, data.missing.chol=[0]"
    )
    check.add_argument("--json", action="store_true", help="print JSON")
    check.set_defaults(command="check")

    methods = commands.add_parser("methods", help="the methods there are")
    methods.add_argument("--json", action="store_true", help="print JSON")
    methods.set_defaults(command="methods")

    data = commands.add_parser("data", help="the data sets there are")
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
    data.set_defaults(command="data")

    show = commands.add_parser("show", help="a method (fields, defaults, paper), a data set, a model or an attack")
    show.add_argument("name")
    show.add_argument("--json", action="store_true", help="print JSON")
    show.set_defaults(command="show")

    _add_site_commands(commands)
    report = commands.add_parser(
        "report", help="print the answer of a run directory again, and rebuild its HTML report"
    )
    report.add_argument("folder")
    report.add_argument("--json", action="store_true", help="print the rows and verdicts as JSON")
    report.add_argument("--no-html", action="store_true", help="print the answer only")
    _add_tables_flag(report)
    report.set_defaults(command="report")

    predict = commands.add_parser("predict", help="predict new rows with a client's model of a finished run")
    predict.add_argument("folder", help="the run directory")
    predict.add_argument("file", help="CSV, Parquet or npz file with the client's columns")
    predict.add_argument("--client", required=True, help="whose model")
    predict.add_argument("--method", help="whose label; left out: what the run recommends to this client")
    predict.add_argument("--seed", type=int, help="of the model; left out: the first")
    predict.add_argument("--out", help="write the CSV there instead of on the screen")
    predict.set_defaults(command="predict")
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


def _add_site_commands(commands: Any) -> None:
    deploy = commands.add_parser("deploy", help="make the kits with which sites elsewhere join a plan (NVIDIA FLARE)")
    deploy.add_argument("plan", help="an experiment's TOML file with a [deploy] table")
    deploy.add_argument("--kits", metavar="FOLDER", help="where to write them; left out: as [deploy] kits says")
    deploy.add_argument(
        "--keys-at-sites",
        action="store_true",
        help="make no kits of sites: each makes its own key (coterie site request)",
    )
    deploy.set_defaults(command="deploy")

    site = commands.add_parser("site", help="for a site: check, approve and audit what a plan asks of it")
    add_site_commands(site.add_subparsers(title="commands", metavar="COMMAND", required=True))

    add_operator_commands(commands)
    add_purge(commands)

    submit = commands.add_parser("submit", help="run a plan on its sites and bring the run directory back")
    submit.add_argument("plan")
    submit.add_argument("--kits", metavar="FOLDER", help="left out: as [deploy] kits says")
    submit.add_argument("--out", help="run directory; left out: runs/NAME")
    submit.add_argument("--resume", action="store_true", help="go on where this run was stopped")
    submit.add_argument("--json", action="store_true", help="print the rows and verdicts as JSON, and nothing else")
    submit.add_argument("--no-report", action="store_true", help="write no HTML report")
    _add_tables_flag(submit)
    submit.set_defaults(command="submit")


def _add_tables_flag(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--tables", action="store_true", help="print the tables of all metrics before the answer")


def _add_data_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("data and model")
    group.add_argument("--label", help="column to predict (folders)")
    group.add_argument(
        "--split",
        metavar="KIND",
        help="how one data set is dealt to clients: iid, dirichlet, shards, clusters, mixed, target-groups or column",
    )
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
    group.add_argument("--attack-on", metavar="WHO", help="their names (a,b), or a share of all clients (0.1)")
    group.add_argument(
        "--personalise",
        metavar="PART",
        help="also tune each client's model after training: all, last (layer) or bias (of the last layer)",
    )
    group.add_argument("--seeds", help="5 means 0..4; 3,7 means these two")
    group.add_argument("--rounds", type=int)
    group.add_argument("--clients-per-round", type=int, metavar="M")
    group.add_argument("--workers", type=int, help="processes; results do not depend on it")
    group.add_argument("--engine", help="inprocess, ray or FILE.py:NAME; results do not depend on it")
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
    _add_tables_flag(group)

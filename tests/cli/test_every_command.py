"""Laws of all commands: each option is explained, and no argument that names nothing is more than one sentence."""

from __future__ import annotations

import argparse
from pathlib import Path
from types import SimpleNamespace

import pytest

from coterie.base.errors import InputError
from coterie.cli.commands import COMMANDS as FUNCTIONS
from coterie.cli.options import build_parser
from coterie.sites.commands import _site_of


def all_parsers(parser, words=()):
    """Each command with the words that call it, such as ("site", "join")."""
    yield words, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield from all_parsers(child, (*words, name))


PARSERS = {" ".join(words): parser for words, parser in all_parsers(build_parser())}
COMMANDS = {
    words: parser
    for words, parser in PARSERS.items()
    if words and parser._subparsers is None
}


def test_every_option_and_argument_is_explained():
    unexplained = []
    for words, parser in PARSERS.items():
        for action in parser._actions:
            is_command = isinstance(action, argparse._SubParsersAction)
            if not is_command and not action.help:
                unexplained.append((words, action.option_strings or action.dest))
    assert unexplained == []


def test_what_can_be_typed_is_what_can_be_run():
    typed = {parser.get_default("command") for parser in COMMANDS.values()}
    assert typed == {*FUNCTIONS}


def required(parser):
    """What has to be typed behind the words of a command, each a name of nothing."""
    typed = []
    for action in parser._actions:
        optional = action.nargs in ("?", "*")
        if not action.required or optional:
            continue
        typed += action.option_strings[-1:]
        typed.append(next(iter(action.choices or ()), f"no-{action.dest}"))
    return typed


@pytest.mark.parametrize("words", [w for w in COMMANDS if required(COMMANDS[w])])
def test_names_of_nothing_are_refused_in_one_sentence(words, coterie, tmp_path):
    typed = required(COMMANDS[words])
    ended = coterie(*words.split(), *typed)
    assert ended.status == 2, ended
    assert ended.err.count("\n") == 1, ended
    assert [*tmp_path.iterdir()] == []
    # Packages that are not installed may be named first.
    assert "no-" in ended.err or "FLARE" in ended.err, ended


@pytest.mark.parametrize("option", [("--out", "there"), ("--new-rows",)])
def test_options_of_several_runs_are_refused_for_one(option, coterie):
    ended = coterie("report", "run", *option)
    assert ended.status == 2
    assert "--out and --new-rows are for several runs" in ended.err


def test_track_sends_the_run_that_was_typed_and_says_how_much(coterie, monkeypatch):
    given = []

    def track(*arguments):
        given.append(arguments)
        return 3

    monkeypatch.setattr("coterie.study.track.track", track)
    ended = coterie("track", "run", "--to", "csv", "--at", "logs")
    assert given == [("run", "csv", "logs")]
    assert (ended.status, ended.out) == (0, "3 runs of run sent to csv\n")


# ---- commands of sites, whose parts that need FLARE are replaced


def test_join_gives_what_was_typed(coterie, monkeypatch):
    given = []
    monkeypatch.setattr(
        "coterie.sites.flare.join.join", lambda *args: given.append(args)
    )
    typed = ("a/north.signed.zip", "--fingerprint", "12:34", "--plan", "p.toml")
    ended = coterie("site", "join", *typed)
    assert ended.status == 0
    assert "coterie site approve north" in ended.out
    paths = Path("a/north.signed.zip"), Path("p.toml"), Path("north-key"), Path("north")
    signed, plan, key, kit = paths
    assert given == [(signed, "12:34", plan, key, kit, None)]


PLAN = """
[data]
folder = "hospitals"
label = "num"
above = 0
[[methods]]
name = "fedavg"
[deploy]
sites = ["north", "south"]
"""


@pytest.mark.parametrize("at_sites", [False, True])
def test_deploy_says_what_each_site_does_next(coterie, tmp_path, monkeypatch, at_sites):
    (tmp_path / "plan.toml").write_text(PLAN)
    kits = Path("kits")
    monkeypatch.setattr("coterie.sites.flare.kits.provision", lambda *_, **__: kits)
    ended = coterie("deploy", "plan.toml", *(["--keys-at-sites"] if at_sites else []))
    assert (ended.status, ended.err) == (0, "")
    for name in ("north", "south"):
        command = f"coterie site approve {kits / name}"
        if at_sites:
            command = f"coterie site request plan.toml --site {name}"
        assert command in ended.out


@pytest.mark.parametrize(
    ("sites", "kit", "named", "found"),
    [
        (("north", "south"), "north", None, "north"),
        (("north", "south"), "north", "south", "south"),
        (("north",), "elsewhere", None, "north"),
        (("north", "south"), "elsewhere", None, None),
        (("north", "south"), "north", "west", None),
    ],
)
def test_a_site_is_the_named_one_or_that_of_its_kit_or_the_only_one(
    tmp_path, sites, kit, named, found
):
    deployment = SimpleNamespace(sites=sites)
    approved = SimpleNamespace(plan=SimpleNamespace(deployment=deployment))
    args = SimpleNamespace(site=named)
    settings = tmp_path / kit / "local" / "coterie.toml"
    if found is None:
        with pytest.raises(InputError, match="Give --site NAME, one of north, south"):
            _site_of(args, approved, settings)
    else:
        assert _site_of(args, approved, settings) == found

"""Laws of all commands: each option is explained, and no argument that names nothing is more than one sentence."""

from __future__ import annotations

import argparse

import pytest

from coterie.cli.options import build_parser


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


@pytest.mark.parametrize("words", PARSERS)
def test_every_option_and_argument_is_explained(words):
    unexplained = [
        action.option_strings or action.dest
        for action in PARSERS[words]._actions
        if not isinstance(action, argparse._SubParsersAction) and not action.help
    ]
    assert unexplained == []


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

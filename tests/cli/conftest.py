from __future__ import annotations

import sys

import pytest
from commands import Driver, Ended, one_split


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    made = Driver(tmp_path_factory.mktemp("driver"))
    yield made
    made.close()


@pytest.fixture
def coterie(monkeypatch, capsys, tmp_path):
    """The command in this process, in an empty folder; what a file of the user's own registers is forgotten afterwards."""
    from coterie.cli.main import main
    from coterie.config.registry import METRICS

    monkeypatch.chdir(tmp_path)

    def run(*argv):
        try:
            status = main(one_split(argv))
        except SystemExit as ended:  # --help and --version
            status = ended.code
        out, err = capsys.readouterr()
        return Ended(status, out, err, 0.0)

    yield run
    for name in [n for n in sys.modules if n.startswith("coterie_user_")]:
        del sys.modules[name]
    for name in [*METRICS.added]:
        del METRICS[name]

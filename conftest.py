"""What holds for every test."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import tomllib
import zlib
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
# Containers often ask for no bytecode: then each process that a test starts would spend seconds on compiling everything again.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    sys.dont_write_bytecode = False

collect_ignore = [
    "src/coterie/sites/flare/certificates.py",  # these need FLARE, which loads all of them but the first
    "src/coterie/sites/flare/client.py",
    "src/coterie/sites/flare/gate.py",
    "src/coterie/sites/flare/launchers.py",
    "src/coterie/sites/flare/server.py",
    "tests/engines/flare_job.py",
]


@pytest.fixture(autouse=True, scope="session")
def _every_round_is_saved():
    """Tests end runs in named rounds and go on from there; by the clock, rounds that short would not be saved."""
    from coterie.run import loop

    loop.MOST_LOST = 0.0


SHARES = 7  # one for each day of a week


def pytest_addoption(parser):
    """Let `--in-turn` say which of the tests in turn run."""
    parser.addoption(
        "--in-turn",
        default="none",
        metavar="none|all|TEXT",
        help="tests marked in_turn: none, all, or the seventh that a text draws, such as the commit",
    )


FEW_EXAMPLES = 20
"""Of a law of Hypothesis; where all tests in turn run, a hundred."""


def pytest_configure(config):
    """Say how many examples are drawn, before files of tests make settings of their own from it."""
    from hypothesis import settings

    looks_further = config.getoption("--in-turn") == "all"
    # Every run but that draws the same ones, so that a change alone decides whether it passes.
    settings.register_profile(
        "coterie",
        max_examples=100 if looks_further else FEW_EXAMPLES,
        derandomize=not looks_further,
    )
    settings.load_profile("coterie")
    # Thousands of tests are found in three quarters of the time where nobody looks for garbage among them.
    gc.disable()


def pytest_collection_finish():
    """Look for garbage again, but not among the tests that were found."""
    gc.freeze()
    gc.enable()


def share_of(text):
    """A number below `SHARES`, the same on every machine for the same text."""
    return zlib.crc32(text.encode()) % SHARES


def stays(item):
    """Patterns of cases of this test that run every time; None where all do."""
    mark = item.get_closest_marker("in_turn")
    if mark is None:
        return None
    but = mark.kwargs.get("but", ())
    return [but] if isinstance(but, str) else list(but)


def case_of(item):
    """The id of a case, as in `test_a[this]`; of a test without cases an empty text."""
    return item.callspec.id if hasattr(item, "callspec") else ""


def waits(item):
    """Whether a test runs only when it is drawn."""
    patterns = stays(item)
    if patterns is None:
        return False
    return not any(fnmatchcase(case_of(item), pattern) for pattern in patterns)


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(collector, name):
    """Refuse a pattern of `in_turn(but=...)` that fits no case: its law would be in turn, and nobody would know."""
    made = yield
    cases = made if isinstance(made, list) else []
    functions = [item for item in cases if isinstance(item, pytest.Function)]
    patterns = {p for item in functions for p in stays(item) or ()}
    for pattern in patterns:
        if not any(fnmatchcase(case_of(item), pattern) for item in functions):
            raise collector.CollectError(f"{name} has no case {pattern!r} to stay")
    return made


def pytest_collection_modifyitems(config, items):
    """Leave out what is not in turn: cases of a law that others of the fast tests hold, too."""
    asked = config.getoption("--in-turn")
    # Whoever names a test wants to see it.
    is_named = any("::" in argument for argument in config.args)
    if asked == "all" or is_named:
        return
    drawn = None if asked == "none" else share_of(asked)
    kept, left = [], []
    for item in items:
        runs = not waits(item) or share_of(item.nodeid) == drawn
        (kept if runs else left).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left)


MOST_SECOND_TRIES = 2  # of tests of engines, whose processes share a busy machine
ALLOWED_SKIPS = Path(__file__).parent / "tests" / "skips.toml"


def is_allowed(skipped, rules):
    """Whether a rule of `tests/skips.toml` names the place and the reason of a skipped test."""
    place = skipped.nodeid.partition("::")[0]
    _, _, reason = skipped.longrepr
    return any(
        re.match(rule["where"], place) and re.search(rule["reason"], reason)
        for rule in rules
    )


def faults_of_the_run(reporter):
    """What CI does not accept of a run whose tests passed: skips of other reasons, too many second tries."""
    rules = tomllib.loads(ALLOWED_SKIPS.read_text(encoding="utf-8"))["skip"]
    skipped = reporter.stats.get("skipped", [])
    unknown = [s for s in skipped if not is_allowed(s, rules)]
    faults = [f"{s.nodeid} was skipped: {s.longrepr[2]}" for s in unknown]
    tried_again = [r.nodeid for r in reporter.stats.get("rerun", [])]
    if len(tried_again) > MOST_SECOND_TRIES:
        faults.append(
            f"{len(tried_again)} tests were tried twice, more than {MOST_SECOND_TRIES}"
        )
    return faults


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session, exitstatus):
    """In CI, let the run fail by what its skips and second tries say."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not os.environ.get("COTERIE_CI") or reporter is None or exitstatus:
        return
    if faults_of_the_run(reporter):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    """Name the share in turn, second tries, and what CI does not accept."""
    asked = config.getoption("--in-turn")
    if asked not in ("none", "all"):
        share = f"share {share_of(asked) + 1} of {SHARES}"
        terminalreporter.write_line(f"tests in turn: {share}, drawn by {asked}")
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.write_line(f"second try: {report.nodeid}")
    if os.environ.get("COTERIE_CI"):
        for fault in faults_of_the_run(terminalreporter):
            terminalreporter.write_line(f"CI: {fault}", red=True)


@pytest.fixture(scope="session", autouse=True)
def interruptible():
    """A shell starts background jobs with SIGINT ignored, which children inherit; then Ctrl-C would mean nothing to them."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def same_random_numbers_in_any_order():
    """A model that a test builds itself must not depend on which tests ran before."""
    import torch  # here, since the process that hands out tests to others needs none

    torch.default_generator.manual_seed(0)


@pytest.fixture(scope="session")
def ray_cluster():
    """One Ray cluster and its actors for all tests that need one."""
    pytest.importorskip(
        "ray",
        reason="engine ray is not installed: pip install 'coterie[ray]', or make test-engines",
    )
    from coterie.engines import ray, ray_cluster

    with pytest.MonkeyPatch.context() as patch, ray_cluster.cluster(3):
        for module in (ray, ray_cluster):
            patch.setattr(
                module, "STARTING", 600.0
            )  # on a busy machine two actors took more than two minutes to start
        yield

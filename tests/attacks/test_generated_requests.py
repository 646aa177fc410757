"""Requests that are generated from what an honest run asks, to the process that holds the table.

Each differs in one place from a request of the run: nothing of it runs. What the run asked is answered however often it comes.
`make attacks-generated` sends 10,000, and `make test` a few hundred.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from child import Behind, children
from hospital import FEDAVG

from coterie.contract.encoding import decode, encode
from coterie.contract.payload import payload_fields
from coterie.contract.requests import declarations
from coterie.contract.task import task_names
from coterie.contract.wire import Context, PerClient
from coterie.run.experiment import Experiment
from coterie.sites.allowed import RefusedError
from coterie.sites.attack_requests import probes
from coterie.sites.backend import Sites
from coterie.sites.server import Remote
from coterie.study.sweep import run_experiment

pytestmark = pytest.mark.usefixtures("children")
__all__ = ["children"]

LOCAL = FEDAVG["local"]
NAMES = (
    "fedavg",
    "scaffold",
    "moon",
    "ditto",
    "maxfl",
    "local",
    "apfl",
    "qffl",
    "fedproto",
)
METHODS = [
    *({"name": name, "local": LOCAL} for name in NAMES),
    {"name": "meritfed", "targets": "all", "md_steps": 1, "local": LOCAL},
    {"name": "ifca", "clusters": 1, "local": LOCAL},
]
ROUNDS, RUNS = 2, 60
SPENT = ("fedavg-0", "meritfed-0", "ditto-0")


class Listening:
    """A link to one site that keeps the messages of a run, by method and seed."""

    names = ("hungary",)

    def __init__(self, site):
        self.site, self.begun, self.prepared, self.asked = site, [], {}, []
        self._pair = ""

    def call(self, name, message, timeout):
        values = decode(message)
        if values["do"] in ("open", "encode"):
            self.begun.append(values)
        elif values["do"] == "prepare":
            self._pair = values["pair"]
            self.prepared[self._pair] = values
        elif values["do"] == "task" and self._pair:
            self.asked.append((self._pair, values["ask"]))
        return self.site.rows.site.handle(message, "server")

    def ping(self, name, timeout):
        return True


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A site behind a child process, and what an honest run has asked it."""
    folder = tmp_path_factory.mktemp("generated")
    plan = {
        "methods": METHODS,
        "rounds": ROUNDS,
        "deploy": {"runs": RUNS},
        "run": {"metrics": ["auc"], "merge_validation": True},
    }
    site = Behind(folder, settings={"minimum_cell": 1, "minimum_rows": 1}, **plan)
    link = Listening(site)
    experiment: Experiment = site.approved.plan.experiment
    run_experiment(
        experiment,
        folder / "run",
        backend=Sites(Remote(link, "run", plan=site.approved.hash)),
    )
    site.serial = 10**6
    for message in link.begun:
        send(site, message)
    yield site, link
    site.close()


def send(site, message):
    """Say again what a run has said."""
    site.say(
        message["do"],
        **{
            k: v
            for k, v in message.items()
            if k not in ("do", "plan", "serial", "undo", "run")
        },
    )


def prepare(site, link, pair):
    """Let the site have the model of a method and seed, as in the run."""
    send(site, link.prepared[pair])
    return site.rows.copy._limits(site.rows.copy.shard)


def elsewhere(ask, drawn):
    """The ask in another place of the run, or about somebody else."""
    where = ask.context
    return drawn.choice([
        replace(ask, context=Context(where.seed + drawn.randint(1, 9), where.round, where.attempt, where.ask)),
        replace(ask, context=Context(where.seed, drawn.choice([-1, ROUNDS + 1, 10**9]), where.attempt, where.ask)),
        replace(ask, names=("cleveland",)),
        replace(ask, names=("hungary", "hungary")),
        replace(ask, names=()),
        replace(ask, rounded=drawn.choice([("x",), ("nothing",), (0,), "x", None])),
    ])  # fmt: skip


def another_task(ask, allowed, drawn):
    """The ask of a task that this method does not ask, some with the payload that the task would have."""
    others = [
        name
        for name in task_names()
        if name not in allowed.tasks and not name.startswith("coterie.data.tables")
    ]
    others = [
        name for name in others if name != "coterie.sites.comparisons:paired_errors"
    ]
    return replace(
        ask, task=drawn.choice([*others, f"{ask.task}x", "builtins:eval", ""])
    )


def other_models(ask, drawn):
    """The ask about models that the run has not asked about, one for each that a budget has."""
    for key, about in payload_fields(ask.function).items():
        if (
            about.holds is not None
            and about.holds.model
            and isinstance(ask.payload.get(key), torch.Tensor | PerClient)
        ):
            value, moved = ask.payload[key], drawn.uniform(0.1, 2.0)
            other = (
                PerClient(value.tensor + moved)
                if isinstance(value, PerClient)
                else value + moved
            )
            return replace(ask, payload={**ask.payload, key: other})
    return None


def generated(link, site, count, drawn):
    """Yield (the method and seed, what was changed, the ask, whether it is one of the run)."""
    by_pair = {}
    for pair, ask in link.asked:
        by_pair.setdefault(pair, []).append(ask)
    each = -(-count // len(by_pair))
    for pair, asks in by_pair.items():
        allowed, limits = site.approved.pairs[pair], prepare(site, link, pair)
        declared = {**declarations(allowed.method), **allowed.tasks}
        own = next((ask for ask in asks if "own" in ask.function.kinds.values()), None)
        if own is not None:  # which is evaluated later
            yield pair, "as in the run", own, True
        for _ in range(each):
            ask = drawn.choice(asks)
            kind = drawn.random()
            if kind < 0.15:
                # None stands for what the client remembers, which is gone with the model that was sent again.
                if not any(ask.payload.get(key, "") is None for key in ("x", "start")):
                    yield pair, "as in the run", ask, True
            elif kind < 0.3:
                yield pair, "elsewhere", elsewhere(ask, drawn), False
            elif kind < 0.45:
                yield pair, "another task", another_task(ask, allowed, drawn), False
            elif ask.task in declared:
                made = list(probes(*declared[ask.task], limits, ask.payload))
                probe = drawn.choice(made)
                yield (
                    pair,
                    f"{probe.field}: {probe.how}",
                    replace(ask, payload=probe.payload),
                    False,
                )


def sent(site, ask):
    """What became of an ask: answered, refused or failed, as the log of the site says."""
    try:
        encode({"ask": ask})
    except Exception:
        return None  # no message can say that
    with suppress(RefusedError):
        site.say("task", ask=ask)
    return site.rows.outcome


@pytest.mark.promise("the plan and nothing else")
@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_nothing_beside_the_declarations_runs_and_what_a_run_asks_does(run, count):
    site, link = run
    wrong, outcomes = [], Counter()
    for pair, how, ask, honest in generated(link, site, count, random.Random(count)):
        outcome = sent(site, ask)
        outcomes[honest, outcome] += outcome is not None
        if outcome is not None and outcome != ("answered" if honest else "refused"):
            wrong.append(f"{pair}, {ask.task}, {how}: {outcome}")
    assert not wrong, "\n".join(wrong)
    assert outcomes[True, "answered"] > count / 15
    assert outcomes[False, "refused"] > count / 2


@pytest.mark.in_turn
def test_a_run_asks_within_the_budget_and_the_models_beyond_it_are_refused(run):
    site, link = run
    drawn, refused = random.Random(0), Counter()
    firsts = {
        (pair, ask.task): ask
        for pair, ask in reversed(link.asked)
        if ask.context.round == 1 and pair in SPENT
    }
    prepared = ""
    for (pair, name), ask in sorted(firsts.items(), key=lambda one: one[0]):
        if pair != prepared:
            prepare(site, link, pair)
            prepared = pair
        budget = site.approved.pairs[pair].tasks[name][0].most_models(1) * RUNS
        for _ in range(budget + 1):
            other = other_models(ask, drawn)
            if other is not None:
                refused[pair, name] += sent(site, other) == "refused"
        if other is not None:
            assert refused[pair, name] >= 1, (pair, name)
    assert len(refused) > 5

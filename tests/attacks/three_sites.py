"""Three sites in this process and a server that asks them over the wire; any of them may lie."""

from __future__ import annotations

import json
from types import SimpleNamespace

from hospital import plan_file, settings_file

import coterie.algorithms
import coterie.compute.metrics  # noqa: F401 - both register their tasks
from coterie.base.rng import Rng
from coterie.contract.encoding import decode, encode, header
from coterie.contract.federation import Federation
from coterie.data.sets.heart_disease import FOLDER
from coterie.models import build_model
from coterie.sites.approval import approve
from coterie.sites.child import serve_message
from coterie.sites.rows import SiteRows
from coterie.sites.server import Remote
from coterie.sites.settings import read_settings

SITES = ("cleveland", "hungary", "long-beach")
"""As few as a norm is compared among."""
LIAR = "hungary"


class ThreeSites:
    """A link to sites that have approved one plan.

    Attributes:
        lie: what the liar sends in place of its true reply, from what it was asked and that reply; None: the reply itself.
        asked: what each message to the liar was about.
        replay: whether sites say again what they said to an ask of the same form.
    """

    def __init__(
        self,
        folder,
        methods,
        names=SITES,
        rounds=5,
        seeds=1,
        local=None,
        deploy=None,
        **more,
    ):
        self.names, self.lie, self.asked = names, None, []
        self.replay, self.said, self.accept = False, {}, ()
        self.goes_on = False
        self.sites = {}
        for name in names:
            own = folder / name
            own.mkdir(parents=True)
            least = {
                **dict.fromkeys(("minimum_rows", "minimum_cell", "minimum_batch"), 1),
                "largest_layer": 100,
            }
            settings = settings_file(own, data=str(FOLDER / f"{name}.csv"), **least)
            sites = {"sites": list(names), **(deploy or {})}
            plan = plan_file(
                own,
                methods=methods,
                rounds=rounds,
                seeds=seeds,
                local=local,
                deploy=sites,
                **more,
            )
            approved = approve(plan, settings, unsigned=True)
            self.sites[name] = SiteRows(
                name, read_settings(settings), own / "kept", approved
            )
        self.experiment, self.plan = approved.plan.experiment, approved.hash
        self.descriptions, self.differs = (
            approved.plan.deployment.descriptions,
            lambda site, description, seed: "",
        )

    def call(self, name, message, timeout):
        about = header(message)
        what = about["ask"].task if about["do"] == "task" else about["do"]
        reply = (
            self._replayed(name, about, message)
            if self.replay and about["do"] == "task"
            else None
        )
        reply = reply or serve_message(message, self.sites[name])[0]
        if name != LIAR:
            return reply
        self.asked.append(what)
        return reply if self.lie is None else self.lie(what, reply)

    def _replayed(self, name, about, message):
        """What the site said to such an ask before: the server cannot tell, and no site computes it again."""
        ask = about["ask"]
        length = int.from_bytes(message[:8], "little")
        named = json.loads(message[8 : 8 + length])
        key = (
            name,
            ask.task,
            ask.context.number,
            str([v["shape"] for k, v in named.items() if k != "__metadata__"]),
        )
        if key not in self.said:
            self.said[key] = decode(serve_message(message, self.sites[name])[0])
        return encode({**self.said[key], "serial": about["serial"]})

    def ping(self, name, timeout):
        return True

    def open(self):
        """An engine whose sites have read and encoded their rows."""
        self.engine = Remote(
            self,
            "run",
            plan=self.plan,
            accept=self.accept,
            differs=self.differs,
            goes_on=self.goes_on,
        )
        self.clients = self.engine.open(self.experiment.data, 0)
        return self.engine

    def begin(self, number=0):
        """A method of the plan, prepared, its state before the first round, and a function that plays a round."""
        entry = self.experiment.methods[number]
        method = self.experiment.build_method(entry)
        module = build_model(self.experiment.build_model(), self.clients, 0)
        self.engine.prepare(module, self.clients, pair=f"{entry.label}-0")
        everybody = self.engine.clients
        start = Federation(self.engine, everybody, 0, label=type(method).__name__)
        state = method.init(self.engine.x.clone(), start)

        def play(attempt):
            view = start.view(everybody, 1, attempt)
            view.session.failures.clear()
            after, _ = method.round(state, view, Rng.named(0, "server", 1))
            return SimpleNamespace(
                models=method.models(after),
                failures=dict(view.session.failures),
                view=view,
            )

        return play


def altered(change):
    """A lie: the true reply, whose values `change` has altered in place."""

    def lie(what, reply):
        values = decode(reply)
        changed = change(values)
        return encode(values if changed is None else changed)

    return lie


def put(owner, field, value):
    """Change a field of a frozen dataclass, as nobody can who uses its constructor."""
    object.__setattr__(owner, field, value)


def told(values, key, change):
    """A reply whose JSON text under `key` was changed."""
    table = json.loads(values[key])
    change(table)
    return {**values, key: json.dumps(table)}

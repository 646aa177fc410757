"""One site to attack: its half of the protocol without processes or transport, and a server that says whatever a test wants."""

from __future__ import annotations

import json
from pathlib import Path

import tomli_w
import torch

import coterie.algorithms
import coterie.compute.metrics  # noqa: F401 - both register their tasks
from coterie.config.local import LocalSGD, Steps
from coterie.contract.encoding import decode, encode
from coterie.contract.wire import Ask, Context
from coterie.data.sets.heart_disease import FOLDER
from coterie.data.tables.agreement import agree
from coterie.models import build_shape, outputs_of
from coterie.run.tables import preset
from coterie.sites.secret_noise import key_file

FEDAVG = {"name": "fedavg", "local": {"steps": 2, "batch_size": 16, "minimum_batch": 8}}


def local(**changed):
    """The local settings of the plan, some of them changed."""
    plain = {
        "lr": 0.1,
        "steps": Steps(2),
        "batch_size": 16,
        "weight_decay": 1e-3,
        "minimum_batch": 8,
    }
    return LocalSGD(**{**plain, **changed})


def plan_file(
    folder,
    *,
    methods=(FEDAVG,),
    seeds=1,
    rounds=5,
    data=None,
    run=None,
    local=None,
    deploy=None,
    **more,
):
    """Write a plan for hungary alone; `more` are other tables."""
    tables = preset("heart-disease")
    for key in ("tune", "split"):
        tables.pop(key, None)
    tables["data"] = {
        k: v for k, v in {**tables["data"], **(data or {})}.items() if v is not None
    }
    tables["local"] = {**tables.get("local", {}), "minimum_batch": 8, **(local or {})}
    tables["methods"] = list(methods)
    tables |= more
    tables["run"] = {
        "rounds": rounds,
        "seeds": seeds,
        "metrics": ["accuracy", "auc"],
        **(run or {}),
    }
    tables["deploy"] = {"sites": ["hungary"], **(deploy or {})}
    path = Path(folder) / "plan.toml"
    path.write_text(tomli_w.dumps(tables))
    return path


def settings_file(folder, **settings):
    """Write the site's own settings; updates of a logistic model may leave without noise, and with little of it."""
    path = Path(folder) / "coterie.toml"
    allowed = {
        "data": str(FOLDER / "hungary.csv"),
        "largest_layer": 1,
        "largest_mu": 1e9,
    }
    path.write_text(tomli_w.dumps({"site": {**allowed, **settings}}))
    return path


class Hospital:
    """A site that has approved a plan, and the server's half of a conversation with it."""

    def __init__(self, folder, settings=None, **plan):
        from coterie.sites.approval import approve
        from coterie.sites.rows import SiteRows
        from coterie.sites.settings import read_settings

        self.folder, self.plan = Path(folder), plan_file(folder, **plan)
        self.settings_file = settings_file(folder, **(settings or {}))
        self.settings = read_settings(self.settings_file)
        self.approved = approve(self.plan, self.settings_file, unsigned=True)
        self.rows = SiteRows(
            "hungary", self.settings, self.folder / "kept", self.approved
        )
        self.serial, self.run = 0, "run"

    @property
    def key_file(self):
        """Where the site's key lies."""
        return key_file(Path(self.settings.log))

    def say(self, do, **values):
        """One message over the wire, and the reply."""
        self.serial += 1
        message = {
            "do": do,
            "plan": self.approved.hash,
            "run": self.run,
            "serial": self.serial,
            "undo": None,
            **values,
        }
        return decode(encode(self.rows.answer(decode(encode(message)))))

    def ask(self, task, *, seed=0, round=None, ask=None, rounded=(), **payload):
        """One task, by default of the first round where it belongs to rounds; the fields of the reply."""
        before = task.name.startswith(
            ("coterie.data.tables.", "coterie.sites.comparisons:paired_")
        )
        number = round if round is not None else 0 if before else 1
        where = Context(seed, number, 1, self.serial + 1 if ask is None else ask)
        asked = Ask(("hungary",), task.name, payload, where, rounded=rounded)
        answer = self.say("task", ask=asked)["answer"]
        assert not answer.failed, answer.failed
        return answer.blocks[0].values

    def restart(self, **begin):
        """Start the site's process anew, and begin as `begin` does."""
        from coterie.sites.rows import SiteRows

        self.rows = SiteRows(
            "hungary", self.settings, self.folder / "kept", self.approved
        )
        return self.begin(**begin)

    def recipe(self, **settings):
        """What an honest server makes of the site's statistics."""
        from coterie.sites.tables import table_settings

        class Told:
            def __init__(self, fields):
                self.__dict__.update(fields)

        settings = table_settings({**self.rows.options, **settings})
        return agree(
            ("hungary",),
            settings,
            lambda task, **payload: Told(self.ask(task, **payload)),
        )

    def begin(self, seed=0, pair="fedavg-0", recipe=None, fill=0.0, **prepare):
        """What an honest server does before the first round; the model is full of one number."""
        self.say("open", seed=seed)
        self.say("encode", recipe=json.dumps(recipe or self.recipe()))
        spec, inputs = (
            self.rows.experiment.build_model(),
            self.rows.clients.train.inputs,
        )
        outputs = outputs_of(self.rows.clients)
        module = build_shape(spec, tuple(inputs.shape[1:]), outputs)
        state = {
            f"state/{k}": torch.full_like(v, fill)
            for k, v in module.state_dict().items()
        }
        self.say("prepare", pair=pair, **{"resume": False, **prepare}, **state)
        self.x = torch.zeros(self.rows.shard.workspace.layout.size)
        return self

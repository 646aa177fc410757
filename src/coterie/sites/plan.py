"""Plans: an experiment's TOML file with one more table, [deploy].

`coterie run plan.toml` runs it on one machine, so that a plan can be tried before anybody joins.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from coterie.core.errors import InputError, check_field, is_number, nearest, require
from coterie.models import MODELS
from coterie.run.experiment import Experiment, read_tables
from coterie.sites.tables import table_options

__all__ = ["PLAN_FILE", "Deployment", "Plan", "read_plan"]

PLAN_FILE = "plan.toml"
_SITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")
_ORGANISATION = re.compile(r"[A-Za-z0-9_]+")


@dataclass(frozen=True)
class Deployment:
    """The [deploy] table of a plan.

    Attributes:
        sites: names of the sites; each becomes a client of that name.
        server: name of the server's machine, as sites reach it; `localhost` binds loopback only.
        port: of the server, the only one that must be reachable.
        organisation: of the operator and the server.
        kits: folder for the kits, one per site, one for the server and one for the operator.
        timeout: seconds that a site has to answer an ask.
        columns: columns that every site must have; left out: those that all share are used.
    """

    sites: tuple[str, ...]
    server: str = "localhost"
    port: int = 8002
    organisation: str = "coterie"
    kits: str = "kits"
    timeout: float = 600.0
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        good = isinstance(self.sites, tuple) and bool(self.sites)
        good = good and all(isinstance(s, str) and bool(_SITE.fullmatch(s)) for s in self.sites)
        check_field(self, "sites", self.sites, good, "a list of names of letters, digits, - and _")
        twice = [s for s in self.sites if self.sites.count(s) > 1]
        require(not twice, f"Deployment.sites names {twice[0] if twice else ''!r} twice; name each site once")
        reserved = {"server", self.server}
        taken = next((s for s in self.sites if s in reserved), None)
        require(taken is None, f"Deployment.sites names {taken!r}, which is the server's own name; rename that site")
        for name, pattern in (("server", _HOST), ("organisation", _ORGANISATION)):
            value = getattr(self, name)
            good = isinstance(value, str) and bool(pattern.fullmatch(value))
            check_field(
                self, name, value, good, "a name of letters, digits and _" if name != "server" else "a host name"
            )
        check_field(self, "port", self.port, type(self.port) is int and 0 < self.port < 65536, "a port from 1 to 65535")
        check_field(self, "kits", self.kits, isinstance(self.kits, str) and bool(self.kits), "a folder")
        check_field(
            self, "timeout", self.timeout, is_number(self.timeout) and self.timeout > 0, "a number of seconds > 0"
        )
        good = isinstance(self.columns, tuple) and all(isinstance(c, str) for c in self.columns)
        check_field(self, "columns", self.columns, good, "a list of names of columns")

    @property
    def admin(self) -> str:
        """The name of the operator, under which jobs are submitted."""
        return f"operator@{self.organisation.lower().replace('_', '-')}.org"


@dataclass(frozen=True)
class Plan:
    """An experiment and where it is to run.

    Attributes:
        experiment: the tables but [deploy].
        deployment: the [deploy] table.
    """

    experiment: Experiment
    deployment: Deployment


def read_plan(path: Path) -> Plan:
    """The plan in a TOML file. Raises `InputError` that names file, key and cure."""
    tables = read_tables(path)
    table = tables.pop("deploy", None)
    if not isinstance(table, dict):
        raise InputError(f"{path}: there is no [deploy] table; give it at least sites = [NAMES]")
    known = [f.name for f in fields(Deployment)]
    for key in table:
        require(key in known, f"{path}, [deploy]: unknown key {key!r}; {nearest(key, known)}")
    require("sites" in table, f"{path}, [deploy]: sites is missing; give a list of names")
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}
    try:
        deployment = Deployment(**values)
    except InputError as error:
        raise InputError(f"{path}, [deploy]: {str(error).removeprefix('Deployment.')}") from error
    return Plan(_deployable(Experiment.from_tables(tables, str(path)), path), deployment)


def _deployable(experiment: Experiment, path: Path) -> Experiment:
    """`experiment`, if sites can run it: their tables, and only code that they have installed."""
    table_options(experiment.data)
    named = [*(m.name for m in experiment.methods), experiment.model.get("name", ""), *experiment.run.metrics]
    own = next((n for n in named if ".py:" in n), None)
    require(own is None, f"{path}: {own} is code of your own, and no code travels to sites; name what coterie brings")
    name = experiment.model.get("name", "logistic")
    require(name in MODELS, f"{path}, [model]: there is no model {name!r}; {nearest(name, MODELS)}")
    for table in ("attack", "personalise"):
        require(not getattr(experiment, table, None), f"{path}: [{table}] is for one machine; drop it from a plan")
    engine = experiment.run.engine
    require(engine == "inprocess", f"{path}: run.engine = {engine!r} does not go with [deploy]; drop it")
    return experiment

"""Plans: an experiment's TOML file with one more table, [deploy].

`coterie run plan.toml` runs it on one machine, so that a plan can be tried before anybody joins.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from coterie.base.errors import InputError, nearest
from coterie.base.files import parse_toml, read_text
from coterie.base.spelling import quote_toml
from coterie.config.registry import FILTERS, MODELS
from coterie.config.rules import POSITIVE, TEXT, Rule, list_of, one_of
from coterie.config.run import MethodEntry
from coterie.config.schema import build, options
from coterie.contract.requests import declarations
from coterie.engines.inprocess import InProcess
from coterie.filters.clip import Clip
from coterie.filters.gaussian_noise import GaussianNoise
from coterie.run.experiment import Experiment
from coterie.run.files import own_files
from coterie.run.private_methods import noise_by_row
from coterie.run.secure_methods import check_participants
from coterie.sites.descriptions import SiteDescription, parse_descriptions
from coterie.sites.followup import TASKS
from coterie.sites.settings import short
from coterie.sites.signed_sum import check_threshold
from coterie.sites.tables import table_options

PLAN_FILE = "plan.toml"
LEAST_NOISE = 1e-4
"""The least deviation of secret noise, as a share of the bound of updates."""
ROBUST = ("median", "trimmed-mean", "geometric-median", "multi-krum")
MANY_SITES = 4
"""From so many sites on a robust rule has enough of them."""
_SITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")
_ORGANISATION = re.compile(r"[A-Za-z0-9_]+")


def _like(pattern: re.Pattern[str], allowed: str) -> Rule:
    return Rule(lambda v: isinstance(v, str) and bool(pattern.fullmatch(v)), allowed)


def _is_table(value: Any) -> bool:
    return value is None or (
        isinstance(value, Mapping)
        and all(isinstance(entry, Mapping) for entry in value.values())
    )


_SITES = list_of(_like(_SITE, ""), "a list of names of letters, digits, - and _")
_COLUMNS = list_of(
    Rule(lambda v: isinstance(v, str), ""), "a list of names of columns", empty=True
)


@options
class Deployment:
    """The [deploy] table of a plan.

    Attributes:
        sites: names of the sites; each becomes a client of that name.
        server: name of the server's machine, as sites reach it; `localhost` binds loopback only.
        port: port of the server, the only one that must be reachable.
        organisation: organisation of the operator and the server.
        kits: folder for the kits, one per site, one for the server and one for the operator.
        timeout: seconds that a site has to answer an ask.
        columns: columns that every site must have; default: those that all share.
        accept: `SITE:COLUMN` whose mean or deviation is far from the others' and right; the operator is asked, and asks that site.
        described: columns, categories and rows of each site, as `coterie site describe` writes them; what a site tells otherwise is
            refused. Default: they are not stated.
        missing_site: "end": a site that cannot take part ends the run before its first round, and is named; "continue": the run
            begins without it, as long as half of the sites are there.
        runs: how often the plan may be run from its beginning, 1 to 100; sites count the models that they are asked about.
    """

    sites: Annotated[tuple[str, ...], _SITES]
    server: Annotated[str, _like(_HOST, "a host name")] = "localhost"
    port: Annotated[
        int, Rule(lambda v: type(v) is int and 0 < v < 65536, "a port from 1 to 65535")
    ] = 8002
    organisation: Annotated[
        str, _like(_ORGANISATION, "a name of letters, digits and _")
    ] = "coterie"
    kits: Annotated[str, Rule(TEXT.test, "a folder")] = "kits"
    timeout: Annotated[float, Rule(POSITIVE.test, "a number of seconds > 0")] = 600.0
    columns: Annotated[tuple[str, ...], _COLUMNS] = ()
    accept: Annotated[tuple[str, ...], _COLUMNS] = ()
    runs: Annotated[
        int,
        Rule(
            lambda v: type(v) is int and 0 < v <= 100, "a number of runs from 1 to 100"
        ),
    ] = 3
    missing_site: Annotated[str, one_of("end", "continue")] = "end"
    described: Annotated[
        Mapping[str, Any] | None, Rule(_is_table, "tables of coterie site describe")
    ] = None

    def __post_init__(self) -> None:
        repeated = [s for s in self.sites if self.sites.count(s) > 1]
        if repeated:
            raise InputError(
                f"sites names {repeated[0] if repeated else ''!r} twice; name each site once"
            )
        clash = next((s for s in self.sites if s in {"server", self.server}), None)
        if clash is not None:
            raise InputError(
                f"sites names {clash!r}, which is the server's own name; rename that site"
            )
        _ = self.descriptions

    @property
    def descriptions(self) -> dict[str, SiteDescription]:
        """Return the statements about each site."""
        return parse_descriptions(
            self.described or {}, self.sites if self.described else ()
        )

    @property
    def admins(self) -> dict[str, str]:
        """The names of those who may command the server, by what they may do: `submit` jobs, `disable` sites, `shutdown` it."""
        domain = f"{self.organisation.lower().replace('_', '-')}.org"
        return {
            "submit": f"operator@{domain}",
            "disable": f"guard@{domain}",
            "shutdown": f"keeper@{domain}",
        }

    @property
    def admin(self) -> str:
        """The name of the operator, under which jobs are submitted."""
        return self.admins["submit"]


@dataclass(frozen=True)
class Plan:
    """An experiment and where it is to run.

    Attributes:
        experiment: the tables but [deploy].
        deployment: the [deploy] table.
    """

    experiment: Experiment
    deployment: Deployment


def signature_file(plan_file: Path) -> Path:
    """Return where the operator's signature of a plan lies: beside it."""
    return plan_file.with_name(f"{plan_file.name}.sig")


def read_plan(path: Path) -> Plan:
    """The plan in a TOML file. Raises `InputError` that names file, key and cure."""
    return parse_plan(read_text(path), path)


def parse_plan(text: str, path: Path) -> Plan:
    """The plan in the text of a TOML file. Raises `InputError` that names file, key and cure."""
    tables = parse_toml(text, str(path))
    table = tables.pop("deploy", None)
    if not isinstance(table, dict):
        raise InputError(
            f"{path}: there is no [deploy] table; give it at least sites = [NAMES]"
        )
    own_file = next(iter(own_files(tables)), None)
    if own_file is not None:
        raise InputError(
            f"{path}: {own_file} is code of your own, and no code travels to sites; name what coterie brings"
        )
    deployment = build(Deployment, table, f"{path}, [deploy]", named="deploy")
    experiment = _deployable(Experiment.from_tables(tables, str(path)), path)
    _check_secure(experiment, deployment, path)
    return Plan(experiment, deployment)


def robustness_note(plan: Plan) -> str:
    """Return a sentence about plain averages over several sites, any of which may send what it likes, or ""."""
    methods = [
        entry.name
        for entry in plan.experiment.methods
        if not plan.experiment.build_method(entry).is_reference
    ]
    plain_ones = [name for name in methods if name not in ROBUST]
    if len(plan.deployment.sites) < MANY_SITES or not plain_ones:
        return ""
    return (
        f"{', '.join(plain_ones)} average what {len(plan.deployment.sites)} sites send, and one faulty site moves that as far as it "
        f"likes; robust rules: {', '.join(ROBUST)}"
    )


def _deployable(experiment: Experiment, path: Path) -> Experiment:
    """`experiment`, if sites can run it: their tables, and only code that they have installed."""
    table_options(experiment.data)
    name = experiment.model.get("name", "logistic")
    if name not in MODELS:
        raise InputError(
            f"{path}, [model]: there is no model {name!r}; {nearest(name, MODELS)}"
        )
    if experiment.attack is not None:
        raise InputError(f"{path}: [attack] is for one machine; drop it from a plan")
    for step in experiment.filters:
        if step.stage == "attack":
            lie = FILTERS.name_of(type(step)) or type(step).__name__
            raise InputError(
                f"{path}, filters: {lie} is an attack, which is for one machine; drop it from a plan"
            )
    if experiment.run.save_every not in (None, 1):
        raise InputError(
            f"{path}, [run]: sites keep what they remember of two rounds, so save_every is for one machine; drop it"
        )
    tuned = next(
        (m.label for m in experiment.methods if m.personalise is not None), None
    )
    if tuned is not None:
        raise InputError(
            f"{path}: personalise of method {tuned!r} is for one machine; drop it from a plan"
        )
    shorter = next((m.label for m in experiment.methods if m.seeds is not None), None)
    if shorter is not None:
        raise InputError(
            f"{path}: seeds of method {shorter!r} is for one machine; drop it from a plan, where [run] seeds are those of all methods"
        )
    _check_filters(experiment, path)
    _check_privacy(experiment, path)
    _check_form(experiment, path)
    if type(experiment.engine) is not InProcess:
        raise InputError(f"{path}: [engine] does not go with [deploy]; drop it")
    if experiment.engine.precision != "float32":
        raise InputError(
            f"{path}, [engine]: precision is for one machine, whose processor decides its bits; drop it"
        )
    return experiment


def _check_secure(experiment: Experiment, deployment: Deployment, path: Path) -> None:
    """Raise `InputError` for sums behind masks that sites would not open, or beside which single updates are shown."""
    run, secure = experiment.run, experiment.run.secure
    if secure is None:
        return
    asked = run.per_round(len(deployment.sites))
    try:
        check_participants(secure, asked)
        check_threshold(secure.survivors(asked), asked, secure.curious)
    except InputError as error:
        raise InputError(f"{path}, [secure]: {error}") from error
    if run.contribution is not None:
        raise InputError(
            f"{path}: run.contribution looks at the update of each site, and [secure] shows their sums alone; leave out one of them"
        )


def _check_form(experiment: Experiment, path: Path) -> None:
    """Raise `InputError` for noise that would not hide a row of time to event or of counts, whose losses have no bound, or one that
    weighs more than others, which moves losses and gradients further than noise allows for.
    """
    declared = [key for key in TASKS if experiment.data.get(key) is not None]
    weights = experiment.data.get("weights")
    secret = any(
        isinstance(step, GaussianNoise) and step.secret for step in experiment.filters
    )
    if declared and (secret or experiment.privacy is not None):
        noise = "[privacy]" if experiment.privacy is not None else "secret noise"
        raise InputError(
            f"{path}: {noise} does not hide what is told of [data] {declared[0]}, its events by time or their sum; leave out the "
            f"noise, or leave out {declared[0]} and say label, a column of classes"
        )
    if weights is not None and (secret or experiment.privacy is not None):
        noise = "[privacy]" if experiment.privacy is not None else "secret noise"
        raise InputError(
            f"{path}: {noise} is as large as what a row of weight 1 can move, and [data] weights let one row move more; leave out the "
            f"noise, or leave out weights and drop = [{quote_toml(str(weights))}]"
        )


def _check_privacy(experiment: Experiment, path: Path) -> None:
    """Raise `InputError` for what a plan with [privacy] would tell beside its noise."""
    if experiment.privacy is None:
        _check_no_simulated_noise(experiment, path)
        return
    for entry in experiment.methods:
        method = experiment.build_method(entry)
        if method.is_reference and entry.name != "local":
            raise InputError(
                f"{path}: method {entry.label!r} is a yardstick that trains without noise; leave it out beside [privacy]"
            )
        if method.is_reference and noise_by_row(method) is not None:
            raise InputError(
                f"{path}: private of method {entry.label!r} hides nothing, since its models stay at home; leave it out"
            )
        if experiment.privacy.tell and _makes_own_model(experiment, entry):
            raise InputError(
                f"{path}, [privacy] tell: under {entry.label!r} each site makes its own model, whose evaluation tells more of a row "
                "than noise allows for; leave out tell, or take fedavg"
            )
    if not experiment.privacy.row_noise(1).noise_multiplier:
        raise InputError(
            f"{path}, [privacy]: without noise it hides nothing at sites; give epsilon, such as epsilon = 2"
        )
    if experiment.filters or experiment.run.contribution is not None:
        raise InputError(
            f"{path}: [privacy] hides rows in training alone; leave out filters and run.contribution"
        )
    if not experiment.data.get("bounds"):
        raise InputError(
            f"{path}, [data]: [privacy] tells no sums of columns; say bounds = {{ age = [0, 120], ... }}, the least and the largest "
            "value that each column of numbers can have"
        )


def _makes_own_model(experiment: Experiment, entry: MethodEntry) -> bool:
    """Return True for a method that serves sites models which they make for themselves; references tell nothing."""
    method = experiment.build_method(entry)
    if method.is_reference:
        return False
    tasks = [declaration.task for declaration, _ in declarations(method).values()]
    return any("own" in task.kinds.values() for task in tasks)


def _check_no_simulated_noise(experiment: Experiment, path: Path) -> None:
    """Raise `InputError` for row noise that no site would draw under its key."""
    for entry in experiment.methods:
        if noise_by_row(experiment.build_method(entry)) is not None:
            raise InputError(
                f"{path}: private of method {entry.label!r} is for one machine; at sites write [privacy] with epsilon and delta"
            )


def _check_filters(experiment: Experiment, path: Path) -> None:
    """Raise `InputError` for noise that hides nothing, and for methods that send beside the filters what these are to hide."""
    noise = [
        step
        for step in experiment.filters
        if isinstance(step, GaussianNoise) and step.secret
    ]
    bounds = [step.bound for step in experiment.filters if isinstance(step, Clip)]
    if noise and not bounds:
        raise InputError(
            f"{path}, filters: secret noise hides a row only behind a bound; give the filter clip beside it"
        )
    if noise and noise[0].sigma < LEAST_NOISE * min(bounds):
        raise InputError(
            f"{path}, filters: noise of deviation {noise[0].sigma} hides nothing of updates of length {min(bounds)}; give "
            f"gaussian-noise a sigma of at least {LEAST_NOISE * min(bounds):g}"
        )
    for entry in experiment.methods if experiment.filters else ():
        for declaration, _ in declarations(experiment.build_method(entry)).values():
            bare = next(
                (
                    field
                    for field, kind in declaration.task.kinds.items()
                    if kind == "model"
                ),
                None,
            )
            if bare is not None:
                raise InputError(
                    f"{path}: method {entry.label!r} sends {bare!r} of {short(declaration.task.name)} as it is, beside the filters; "
                    "leave out the method or the filters"
                )

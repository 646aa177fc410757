"""Checks of a site before it joins: its file, its settings and its certificate against the plan, and the way to its server."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coterie.base.errors import InputError, nearest
from coterie.base.files import read_json
from coterie.base.spelling import alike, quote_toml
from coterie.base.vector import Layout
from coterie.config.registry import METHODS
from coterie.data.tables.check import check_tables
from coterie.data.tables.read import read, reading_of
from coterie.sites.approval import (
    Approved,
    approval_file,
    check_signer_of_approval,
    fits,
    kit_of,
    plan_hash,
    revocations_file,
)
from coterie.sites.descriptions import check_file
from coterie.sites.effective import batches_fit, count_training_rows
from coterie.sites.flare.authority import (
    FEW_DAYS,
    ROOT_CERTIFICATE,
    certificate_of,
    common_name,
    days_left,
    issued_by,
)
from coterie.sites.flare.kits import add_gate, need_flare
from coterie.sites.flare.renewal import check_key, kits_certificate
from coterie.sites.flare.revocation import servers_list, sites_list
from coterie.sites.flare.trial import try_gate
from coterie.sites.flare.workspace import check_place, tighten
from coterie.sites.followup import events_of, times_withheld
from coterie.sites.minima import curvature_fits, moments_fit, table_withheld
from coterie.sites.plan import PLAN_FILE, Plan
from coterie.sites.plan_words import model_of
from coterie.sites.secret_noise import move_key
from coterie.sites.settings import SETTINGS_FILE, SiteSettings, read_settings, short
from coterie.sites.software import VERSIONS_FILE, compare_versions
from coterie.sites.tables import (
    lacking,
    read_site,
    settings_of_file,
    table_options,
    table_settings,
)

SERVERS_CONFIGURATION = "fed_server.json"
"""File of `startup` that the server's kit alone has."""


def check_site(
    place: Path, *, site: str | None = None, settings_file: Path | None = None
) -> list[str]:
    """Sentences about what fits; nothing is sent. A kit that was made before the gate gets it.

    Args:
        place: the site's kit, or a plan (then `site` and `settings_file` are needed). Of the server's kit see `check_server`.
        site: name of the site.
        settings_file: the site's own `coterie.toml`.

    Raises:
        InputError: what does not fit, with the cure.
    """
    need_flare()
    if is_servers(place):
        return check_server(place)
    certificate_lines: list[str] = []
    is_kit = place.is_dir()
    if is_kit:
        plan_file = place / "local" / PLAN_FILE
        if not plan_file.is_file():
            raise InputError(
                f"{place} is not a kit of a site: it has no local/{PLAN_FILE}"
            )
        site, settings_file = (
            site or place.resolve().name,
            settings_file or place / "local" / SETTINGS_FILE,
        )
        certificate_lines = _check_certificate(place, "client", site)
    else:
        plan_file = place
    approved = Approved.read(plan_file)
    plan = approved.plan
    if site is None or settings_file is None:
        raise InputError(
            f"{place} is a plan: say which site with --site NAME and its settings with --settings FILE"
        )
    if site not in plan.deployment.sites:
        raise InputError(
            f"the plan has no site {site!r}; {nearest(site, plan.deployment.sites)}"
        )
    import coterie.compute.metrics  # noqa: F401 - the settings may name its tasks

    METHODS.importable()  # and those of all methods

    settings = read_settings(settings_file)
    mended: list[str] = []
    if is_kit:
        check_place(place, Path(settings.data), "data")
        check_place(place, Path(settings.log), "log")
        # The key comes first: with the gate in, a site could begin under a new one.
        if move_key(place, Path(settings.log)):
            mended.append(
                f"key       moved from {place}/coterie to its log, which says what was told under it"
            )
        mended += mend_kit(place)
    options = table_options(plan.experiment.data)
    _check_label(settings, options, settings_file)
    problems = _file_problems(Path(settings.data), site, plan)
    lines = [
        f"plan      {plan_file}: {', '.join(m.label for m in plan.experiment.methods)}; predicts {options['label']}"
    ]
    counts = []
    for seed in plan.experiment.split_seeds:
        table, notes = read_site(
            settings.data, site, options, seed=seed, split=plan.experiment.split or None
        )
        missing = lacking(table, plan.deployment.columns, options)
        if missing:
            raise InputError(
                f"{settings.data} has no column {', '.join(missing)}, which the plan needs; add it (its cells may be empty)"
            )
        counts.append(count_training_rows(table))
        pairs = approved.pairs.values()
        batches_fit(table, pairs, settings.minimum_batch, at_home=True)
    fewest = min(counts)
    effective = "effective " if options.get("weights") else ""
    if fewest < settings.minimum_rows:
        raise InputError(
            f"{settings.data} gives {fewest} {effective}training rows, fewer than minimum_rows = {settings.minimum_rows} of "
            f"{settings_file}: this site would not answer; lower that, or stay out"
        )
    moments_fit(len(plan.experiment.split_seeds), fewest)
    least = settings.minimum_cell
    times_withheld(table_withheld(table, options, least), options, least)
    check_file(plan.deployment.descriptions, plan.experiment, settings, site)
    module = model_of(approved, settings, site)
    fits(approved, settings, module)
    columns = next(module.parameters()).shape[-1]
    events = events_of(table, options)
    curvature_fits(approved.pairs.values(), Layout.of(module), columns, fewest, events)
    lines.append(
        f"data      {settings.data}: {len(table)} rows, {len(table.columns)} columns, {fewest} {effective}rows to train on"
    )
    lines += [f"note      {note}" for note in notes]
    lines += [f"look at   {problem}" for problem in problems]
    lines.append(
        f"refuses   {', '.join(short(t) for t in settings.refuse) or 'no task'}"
    )
    lines += [
        f"versions  {line}"
        for line in compare_versions(plan_file.with_name(VERSIONS_FILE))
    ]
    lines += mended
    if is_kit:
        trial = try_gate()
        if trial.read or trial.opened:
            raise InputError(
                f"the gate is {trial.line.partition('gate')[2].strip()}; do not start this kit, and tell the operator"
            )
        lines.append(trial.line)
    path = approval_file(settings_file)
    lines += certificate_lines
    lines += _revocation_lines(settings_file)
    agreed = path.is_file() and plan_hash(path) == approved.hash
    if agreed:
        check_signer_of_approval(settings_file)
    lines.append(
        "approved  yes"
        if agreed
        else f"approved  no: read what it asks with coterie site approve {place}"
    )
    lines.append(
        "this site can join"
        if agreed
        else "this site can join once it has approved the plan"
    )
    return lines


def is_servers(place: Path) -> bool:
    """Return True for the kit of the server."""
    return (place / "startup" / SERVERS_CONFIGURATION).is_file()


def check_server(kit: Path) -> list[str]:
    """Sentences about the server's kit, which gets the gate if it was made before.

    Raises:
        InputError: its certificate or its list of revoked certificates does not fit, with the cure.
    """
    need_flare()
    configuration = read_json(
        kit / "startup" / SERVERS_CONFIGURATION, dict, "get a new kit from the operator"
    )
    name = str(configuration["servers"][0]["admin_server"])
    lines = _check_certificate(kit, "server", name)
    lines += mend_kit(kit)
    lines.append("gate      the server and its jobs start behind it")
    revocations = servers_list(kit / "local")
    if revocations is not None:
        lines.append(f"revoked   {revocations.words(datetime.now(UTC))}")
    lines.append("this server can start")
    return lines


def mend_kit(kit: Path) -> list[str]:
    """Put the gate into a kit that was made before it, and close its files to others; returns sentences about that.

    Raises `InputError` for a kit whose scripts start something else than FLARE's programs.
    """
    lines = []
    if add_gate(kit):
        lines.append(
            f"gate      put into this kit, which was made before it; start it again ({kit}/startup/start.sh)"
        )
    closed = tighten(kit)
    if closed:
        lines.append(
            f"files     {closed} files and folders of this kit were open to others on this machine; they are closed"
        )
    return lines


def _file_problems(file: Path, site: str, plan: Plan) -> tuple[str, ...]:
    """Return what `coterie check` says of the site's file alone. Raises `InputError` for a column that the plan spells otherwise."""
    options = table_options(plan.experiment.data)
    settings = table_settings(options)
    table = read(file, reading_of(settings, site), name=site)
    for column in plan.deployment.columns:
        spelled = next(
            (
                name
                for name in table.columns
                if column not in table.columns and alike(name, column)
            ),
            None,
        )
        if spelled is not None:
            raise InputError(
                f"{file} has a column {spelled!r} where the plan has {column!r}; are they the same? Then rename it in the file, or "
                f"let the plan say rename = {{{quote_toml(str(spelled))} = {quote_toml(column)}}}"
            )
    return check_tables(
        {site: table},
        settings_of_file(settings, table, site),
        split=plan.experiment.split or None,
    ).problems


_RENEWAL = {
    "client": "coterie site renew {kit}",
    "server": "make new kits with coterie deploy PLAN --kits NEW",
}
"""How the certificate of a site and of the server is renewed."""


def _check_certificate(kit: Path, end: str, name: str) -> list[str]:
    """Return sentences about how long the kit's certificate is valid.

    Args:
        kit: the folder.
        end: `client` for a site, `server` for the server.
        name: who holds it.

    Raises:
        InputError: it is not there, not of its own authority, not of this holder, not of the kit's key, or has ended.
    """
    startup = kit / "startup"
    certificate = kits_certificate(kit, end)
    try:
        authority = certificate_of((startup / ROOT_CERTIFICATE).read_bytes())
        is_signed = issued_by(certificate, authority)
    except ValueError:  # the authority's certificate is damaged
        is_signed = False
    if not is_signed:
        raise InputError(
            f"{startup / f'{end}.crt'} is not signed by {startup / ROOT_CERTIFICATE}; get a new kit"
        )
    named = common_name(certificate)
    if named != name:
        raise InputError(
            f"the certificate in {startup} is that of {named!r}, not of {name!r}, and the others compare; use its kit"
        )
    check_key(kit, certificate, end)
    days, last_day = days_left(certificate), certificate.not_valid_after_utc.date()
    renewal = _RENEWAL[end].format(kit=kit)
    if days < 0:
        by_telephone = ", and tell the operator the SHA-256 of the new key by telephone"
        cure = f"{renewal}{by_telephone if end == 'client' else ''}"
        raise InputError(
            f"the certificate in {startup} ended on {last_day}, and it is refused: {cure}"
        )
    lines = [f"key       its certificate ends in {days} days, on {last_day}"]
    if days < FEW_DAYS:
        lines.append(f"look at   the certificate ends soon: {renewal}")
    return lines


def _revocation_lines(settings_file: Path) -> list[str]:
    """Return a sentence about the list of revoked certificates that a site holds. Raises `InputError` if it is damaged."""
    kit = kit_of(settings_file)
    if kit is None:
        return []
    current = sites_list(revocations_file(settings_file), kit / "startup")
    words = (
        "no list yet; the server sends it when a run begins"
        if current is None
        else current.words(datetime.now(UTC))
    )
    return [f"revoked   {words}"]


def _check_label(
    settings: SiteSettings, options: Mapping[str, Any], file: Path
) -> None:
    if settings.label not in (None, options["label"]):
        raise InputError(
            f"the plan predicts {options['label']!r}, but {file} offers only {settings.label!r}; agree on one label"
        )


SECONDS = 10.0


def connect(startup: Path) -> str:
    """A sentence that the server answers, and as whom.

    Args:
        startup: the folder of a site's kit with its certificate.

    Raises:
        InputError: this is not a site's kit, the port cannot be reached, or a certificate is refused, with the cure.
    """
    configuration = startup / "fed_client.json"
    if not configuration.is_file():
        raise InputError(
            f"{configuration} is missing: only a site's kit connects; leave out --connect, or give a site's kit"
        )
    server = json.loads(configuration.read_text(encoding="utf-8"))["servers"][0]
    host, _, port = server["service"]["target"].rpartition(":")
    context = ssl.create_default_context(cafile=str(startup / "rootCA.pem"))
    context.load_cert_chain(startup / "client.crt", startup / "client.key")
    try:
        plain = socket.create_connection((host, int(port)), timeout=SECONDS)
    except OSError as error:
        raise InputError(
            f"{host}:{port} cannot be reached ({error.strerror or error}); is the server running, and may this machine reach the port?"
        ) from error
    with plain:
        try:
            with context.wrap_socket(
                plain, server_hostname=server["identity"]
            ) as secure:
                secure.settimeout(SECONDS)
                _await_refusal(secure)
                return f"{host}:{port} answers as {server['identity']} over {secure.version()}"
        except (ssl.SSLError, TimeoutError, ConnectionError) as error:
            raise InputError(
                f"{host}:{port} and this kit do not accept each other's certificates ({error}); use the kits of one deployment"
            ) from error


def _await_refusal(secure: ssl.SSLSocket) -> None:
    """Let a server refuse: in TLS 1.3 it looks at the certificate of a client when the client has finished."""
    secure.settimeout(1.0)
    try:
        if secure.recv(1) == b"":
            raise ConnectionError("the server hung up")
    except TimeoutError:
        return

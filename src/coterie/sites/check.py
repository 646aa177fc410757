"""Checks of a site before it joins: its file, its settings and its certificate against the plan, and the way to its server."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.base.errors import InputError, nearest
from coterie.base.spelling import alike, quote_toml
from coterie.base.vector import Layout
from coterie.config.registry import METHODS
from coterie.data.tables.check import check_tables
from coterie.data.tables.read import read, reading_of
from coterie.sites.approval import Approved, approval_file, fits, plan_hash
from coterie.sites.descriptions import check_file
from coterie.sites.flare.kits import need_flare
from coterie.sites.minima import curvature_fits, moments_fit, table_withheld
from coterie.sites.plan import PLAN_FILE, Plan
from coterie.sites.plan_words import model_of
from coterie.sites.settings import SETTINGS_FILE, SiteSettings, read_settings, short
from coterie.sites.software import VERSIONS_FILE, compare_versions
from coterie.sites.tables import (
    read_site,
    settings_of_file,
    table_options,
    table_settings,
)


def check_site(
    place: Path, *, site: str | None = None, settings_file: Path | None = None
) -> list[str]:
    """Sentences about what fits; nothing is sent.

    Args:
        place: the site's kit, or a plan (then `site` and `settings_file` are needed).
        site: name of the site.
        settings_file: the site's own `coterie.toml`.

    Raises:
        InputError: what does not fit, with the cure.
    """
    need_flare()
    if place.is_dir():
        plan_file = place / "local" / PLAN_FILE
        if not plan_file.is_file():
            raise InputError(
                f"{place} is not a kit of a site: it has no local/{PLAN_FILE}"
            )
        site, settings_file = (
            site or place.resolve().name,
            settings_file or place / "local" / SETTINGS_FILE,
        )
        _check_certificate(place / "startup", site)
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
        missing = sorted(set(plan.deployment.columns) - set(table.columns))
        if missing:
            raise InputError(
                f"{settings.data} has no column {', '.join(missing)}, which the plan needs; add it (its cells may be empty)"
            )
        counts.append(len(table.parts["train"]))
    fewest = min(counts)
    if fewest < settings.minimum_rows:
        raise InputError(
            f"{settings.data} gives {fewest} training rows, fewer than minimum_rows = {settings.minimum_rows} of {settings_file}: "
            "this site would not answer; lower that, or stay out"
        )
    moments_fit(len(plan.experiment.split_seeds), fewest)
    table_withheld(table, options, settings.minimum_cell)
    check_file(plan.deployment.descriptions, plan.experiment, settings, site)
    module = model_of(approved, settings, site)
    fits(approved, settings, module)
    columns = next(module.parameters()).shape[-1]
    curvature_fits(approved.pairs.values(), Layout.of(module), columns, fewest)
    lines.append(
        f"data      {settings.data}: {len(table)} rows, {len(table.columns)} columns, {fewest} rows to train on"
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
    path = approval_file(settings_file)
    agreed = path.is_file() and plan_hash(path) == approved.hash
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


def _check_certificate(startup: Path, site: str) -> None:
    """The kit's certificate is there, of its own certification authority, and of this site."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    for name in ("client.crt", "client.key", "rootCA.pem"):
        if not (startup / name).is_file():
            raise InputError(
                f"{startup} has no {name}: the server refuses connections without it; get a new kit"
            )
    certificate, root = (
        x509.load_pem_x509_certificate((startup / n).read_bytes())
        for n in ("client.crt", "rootCA.pem")
    )
    try:
        certificate.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise InputError(
            f"{startup / 'client.crt'} is not signed by {startup / 'rootCA.pem'}; get a new kit"
        ) from error
    named = str(
        certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value
    )
    if named != site:
        raise InputError(
            f"the certificate in {startup} is that of {named!r}, not of {site!r}, and the server compares; use its kit"
        )


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
        InputError: the port cannot be reached, or a certificate is refused, with the cure.
    """
    server = json.loads((startup / "fed_client.json").read_text(encoding="utf-8"))[
        "servers"
    ][0]
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

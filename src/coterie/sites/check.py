"""What a site checks before it joins: its file, its settings and its certificate against the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie.base.errors import InputError, nearest, require
from coterie.base.spelling import alike, quote_toml
from coterie.config.data import EVERY_FILE
from coterie.config.registry import METHODS
from coterie.data.tables.check import check_tables
from coterie.data.tables.folder import fit_to
from coterie.data.tables.read import read, reading_of
from coterie.sites.approval import Approved, approved_file, fits, plan_hash
from coterie.sites.flare.kits import need_flare
from coterie.sites.minima import moments_fit, table_withheld
from coterie.sites.plan import PLAN_FILE, Plan
from coterie.sites.settings import SETTINGS_FILE, SiteSettings, read_settings, short
from coterie.sites.tables import read_site, table_options, table_settings
from coterie.sites.versions import VERSIONS_FILE, compared

__all__ = ["check_site"]


def check_site(place: Path, *, site: str | None = None, settings_file: Path | None = None) -> list[str]:
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
        require(plan_file.is_file(), f"{place} is not a kit of a site: it has no local/{PLAN_FILE}")
        site, settings_file = site or place.resolve().name, settings_file or place / "local" / SETTINGS_FILE
        _check_certificate(place / "startup", site)
    else:
        plan_file = place
    approved = Approved.read(plan_file)
    plan = approved.plan
    if site is None or settings_file is None:
        raise InputError(f"{place} is a plan: say which site with --site NAME and its settings with --settings FILE")
    require(site in plan.deployment.sites, f"the plan has no site {site!r}; {nearest(site, plan.deployment.sites)}")
    import coterie.compute.metrics  # noqa: F401 - the settings may name its tasks

    METHODS.importable()  # and those of all methods

    settings = read_settings(settings_file)
    options = table_options(plan.experiment.data)
    _check_label(settings, options, settings_file)
    problems = _looked_at(Path(settings.data), site, plan)
    said = [
        f"plan      {plan_file}: {', '.join(m.label for m in plan.experiment.methods)}; predicts {options['label']}"
    ]
    counts = []
    for seed in plan.experiment.run.seeds:
        table, notes = read_site(settings.data, site, options, seed=seed, split=plan.experiment.split or None)
        missing = sorted(set(plan.deployment.columns) - set(table.columns))
        require(
            not missing,
            f"{settings.data} has no column {', '.join(missing)}, which the plan needs; add it (its cells may be empty)",
        )
        counts.append(len(table.parts["train"]))
    least = min(counts)
    require(
        least >= settings.minimum_rows,
        f"{settings.data} gives {least} training rows, fewer than minimum_rows = {settings.minimum_rows} of {settings_file}: "
        "this site would not answer; lower that, or stay out",
    )
    moments_fit(len(plan.experiment.run.seeds), least)
    table_withheld(table, options, settings.minimum_cell)
    fits(approved, settings)
    said.append(f"data      {settings.data}: {len(table)} rows, {len(table.columns)} columns, {least} rows to train on")
    said += [f"note      {note}" for note in notes]
    said += [f"look at   {problem}" for problem in problems]
    said.append(f"refuses   {', '.join(short(t) for t in settings.refuse) or 'no task'}")
    said += [f"versions  {line}" for line in compared(plan_file.with_name(VERSIONS_FILE))]
    path = approved_file(settings_file)
    agreed = path.is_file() and plan_hash(path) == approved.hash
    said.append("approved  yes" if agreed else f"approved  no: read what it asks with coterie site approve {place}")
    said.append("this site can join" if agreed else "this site can join once it has approved the plan")
    return said


def _looked_at(file: Path, site: str, plan: Plan) -> tuple[str, ...]:
    """What `coterie check` says of the site's file alone. Raises `InputError` for a column that the plan spells otherwise."""
    options = table_options(plan.experiment.data)
    settings = table_settings(options)
    table = read(file, reading_of(settings, site), name=site)
    for column in plan.deployment.columns:
        other = next((name for name in table.columns if column not in table.columns and alike(name, column)), None)
        require(
            other is None,
            f"{file} has a column {other!r} where the plan has {column!r}; are they the same? Then rename it in the file, or let the "
            f"plan say rename = {{{quote_toml(str(other))} = {quote_toml(column)}}}",
        )
    fitted = fit_to(settings, {site: table})
    own = replace(  # what the plan says of columns and files of other sites is not about this file
        fitted,
        rename={},
        drop={EVERY_FILE: tuple(c for c in fitted.columns_to_drop() if c in table.columns)},
        categorical=tuple(c for c in fitted.categorical if c in table.columns),
        missing={c: codes for c, codes in fitted.missing.items() if c in table.columns},
    )
    return check_tables({site: table}, own, split=plan.experiment.split or None).problems


def _check_certificate(startup: Path, site: str) -> None:
    """The kit's certificate is there, of its own certification authority, and of this site."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    for name in ("client.crt", "client.key", "rootCA.pem"):
        require(
            (startup / name).is_file(),
            f"{startup} has no {name}: the server refuses connections without it; get a new kit",
        )
    own, root = (x509.load_pem_x509_certificate((startup / n).read_bytes()) for n in ("client.crt", "rootCA.pem"))
    try:
        own.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise InputError(
            f"{startup / 'client.crt'} is not signed by {startup / 'rootCA.pem'}; get a new kit"
        ) from error
    named = str(own.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)
    require(
        named == site,
        f"the certificate in {startup} is that of {named!r}, not of {site!r}, and the server compares; use its kit",
    )


def _check_label(settings: SiteSettings, options: Mapping[str, Any], file: Path) -> None:
    require(
        settings.label in (None, options["label"]),
        f"the plan predicts {options['label']!r}, but {file} offers only {settings.label!r}; agree on one label",
    )

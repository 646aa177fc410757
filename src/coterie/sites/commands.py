"""The commands of sites: the kits that an operator makes, the runs that go there, and what a person at a site approves, checks, reads
and removes. Each imports what is heavy where it needs it.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from coterie.base.errors import RunError
from coterie.base.interrupts import raise_interrupts
from coterie.cli.flags import optional_path
from coterie.sites.parsers import add_commands

__all__ = ["COMMANDS", "add_commands"]


def _check(args: argparse.Namespace) -> int:
    from coterie.sites.check import check_site, connect

    place = Path(args.place)
    settings = optional_path(args.settings)
    for line in check_site(place, site=args.site, settings_file=settings):
        _say(line)
    if args.connect:
        _say(f"server    {connect(place / 'startup')}")
    return 0


def _approve(args: argparse.Namespace) -> int:
    from coterie.base.errors import InputError
    from coterie.sites.approval import Approved, fits, keep_approval, signature_words
    from coterie.sites.descriptions import check_file
    from coterie.sites.flare.kits import remember_interpreter
    from coterie.sites.plan_words import check_what_is_left, in_words, model_of
    from coterie.sites.settings import read_settings

    _register()
    plan, settings_file = _plan_and_settings(args)
    settings, approved = read_settings(settings_file), Approved.read(plan)
    if args.yes not in (None, approved.hash):
        raise InputError(
            f"{plan} has the SHA-256 {approved.hash}, not that of --yes; read what it asks: {_same(args)}"
        )
    site = _site_of(args, approved, settings_file)
    signed = signature_words(approved, settings_file)
    _say(
        f"signed    {signed or 'not checked, since these settings lie in no kit with the certificate of an authority'}"
    )
    for line in in_words(approved, settings, site):
        _say(line)
    check_file(
        approved.plan.deployment.descriptions, approved.plan.experiment, settings, site
    )
    said, rows = _danger(site, approved, settings, 120.0)
    _say(said[-1])
    fits(approved, settings, model_of(approved, settings, site))
    check_what_is_left(approved, settings, site)
    if rows and not settings.largest_layer:
        where, cure = "without", "the plan clip and gaussian-noise with secret = true"
        if approved.secret:
            where, cure = "behind", "the filter gaussian-noise a larger sigma"
        raise InputError(
            f"our attacks find {rows} rows of this site {where} secret noise, and it takes none "
            f"(largest_layer = 0); the operator can give {cure}"
        )
    if args.yes is None:
        flags = f"--yes {approved.hash}"
        if not signed:
            flags += " --unsigned"
        _say(
            f"nothing is approved yet; if you agree, give the same command with {flags}"
        )
        return 0
    keep_approval(approved, settings_file, unsigned=args.unsigned)
    kit = settings_file.parent.parent
    if (kit / "startup").is_dir():
        remember_interpreter(kit)
    _say("approved: the site answers this plan, and refuses whatever else it is asked")
    return 0


def _same(args: argparse.Namespace) -> str:
    """Return the command that shows what a plan asks."""
    options = {"--kit": args.kit, "--settings": args.settings, "--site": args.site}
    given = [f"{flag} {value}" for flag, value in options.items() if value is not None]
    return " ".join(["coterie site approve", args.plan, *given])


def _describe(args: argparse.Namespace) -> int:
    from coterie.sites.descriptions import write_description
    from coterie.sites.plan import read_plan
    from coterie.sites.settings import read_settings

    _register()
    file = Path(args.out or f"{args.site}.described.toml")
    text = write_description(
        read_plan(Path(args.plan)).experiment,
        read_settings(Path(args.settings)),
        args.site,
        file,
    )
    for line in text.splitlines():
        _say(line)
    _say(
        f"{file} has these lines; read them, and send the file to the operator, who appends it to the plan"
    )
    return 0


def _attack(args: argparse.Namespace) -> int:
    from coterie.sites.approval import Approved
    from coterie.sites.flare.kits import need_flare
    from coterie.sites.flare.trial import try_gate
    from coterie.sites.settings import read_settings

    _register()
    plan, settings_file = _plan_and_settings(args)
    approved = Approved.read(plan)
    said, _ = _danger(
        _site_of(args, approved, settings_file),
        approved,
        read_settings(settings_file),
        args.seconds,
    )
    for line in said:
        _say(line)
    if (
        settings_file.parent.parent / "startup"
    ).is_dir():  # a kit, whose site FLARE runs
        need_flare()
        _say(try_gate().line)
    return 0


def _site_of(args: argparse.Namespace, approved: Any, settings_file: Path) -> str:
    """Return which site of a plan these settings are about."""
    from coterie.base.errors import InputError

    sites = approved.plan.deployment.sites
    # The settings of a kit lie in KIT/local, and a kit has the name of its site.
    kit = settings_file.resolve().parent.parent.name
    name = args.site
    if not name and kit in sites:
        name = kit
    elif not name and len(sites) == 1:
        name = sites[0]
    if name not in sites:
        raise InputError(
            f"which site of the plan is this? Give --site NAME, one of {', '.join(sites)}"
        )
    return str(name)


def _danger(
    site: str, approved: Any, settings: Any, seconds: float
) -> tuple[list[str], int]:
    """Say what a dishonest server finds in this site's table, attack by attack, the worst of it at the end, and how many rows that is.

    Also of a plan that the site refuses for its `largest_layer`, so that whoever thinks of lifting that reads the number before.
    """
    import time
    from dataclasses import replace

    from coterie.base.errors import InputError
    from coterie.sites.attack import attack

    begun = time.monotonic()
    try:
        attempts = list(
            attack(approved, replace(settings, largest_layer=2**62), site, seconds)
        )
    except InputError as error:
        return [f"danger    not tried: {error}"], 0
    worst = max(attempts, key=lambda attempt: attempt.rows)
    requests = worst.requests
    if not worst.rows:
        requests = sum(attempt.requests for attempt in attempts)
    caveat = "others may know better attacks"
    if time.monotonic() - begun >= seconds:
        caveat += f"; {seconds:g} s were over before all attacks had ended"
    danger = f"danger    a dishonest server could find {worst.rows} of {worst.of} rows in {requests} requests ({caveat})"
    return [*map(str, attempts), danger], worst.rows


def _plan_and_settings(args: argparse.Namespace) -> tuple[Path, Path]:
    from coterie.base.errors import InputError
    from coterie.sites.plan import PLAN_FILE
    from coterie.sites.settings import SETTINGS_FILE

    plan = Path(args.plan)
    local: Path | None = None
    if args.kit is not None:
        local = Path(args.kit) / "local"
    if plan.is_dir():
        local = plan / "local"
        plan = plan / "local" / PLAN_FILE
    elif local is None and plan.parent.name == "local":
        local = plan.parent
    if args.settings is not None:
        return plan, Path(args.settings)
    if local is None:
        raise InputError(
            f"whose site approves {plan}? Give its kit with --kit FOLDER, or its settings with --settings FILE"
        )
    return plan, local / SETTINGS_FILE


def _verdict(args: argparse.Namespace) -> int:
    from coterie.sites.approval import read_approval
    from coterie.sites.home_verdict import verdict_lines
    from coterie.sites.settings import SETTINGS_FILE, read_settings

    _register()
    kit = Path(args.kit)
    settings_file = kit / "local" / SETTINGS_FILE
    settings, approved = read_settings(settings_file), read_approval(settings_file)
    for line in verdict_lines(approved, settings, kit / "coterie"):
        _say(line)
    return 0


def _log(args: argparse.Namespace) -> int:
    from coterie.sites.approval import heads_in_words
    from coterie.sites.ledger import check_index
    from coterie.sites.log import entries, verify_log
    from coterie.sites.settings import SETTINGS_FILE

    path = Path(_settings_of(args.place).log)
    if args.check:
        log = verify_log(path)
        check_index(path)
        kit = Path(args.place)
        if kit.is_dir():
            for line in heads_in_words(path, kit / "local" / SETTINGS_FILE):
                _say(line)
        for number, size in log.torn:
            _say(
                f"line {number} is torn: {size} bytes without an end, as a power cut leaves them; it is kept apart"
            )
        _say(
            f"{path}: {log.entries} entries, none changed, removed or added in between; the last hash is {log.last}"
        )
        return 0
    shown = (
        "time",
        "caller",
        "what",
        "pair",
        "round",
        "outcome",
        "rows",
        "bytes_up",
        "numbers",
        "mu",
        "refused",
        "error",
    )
    for entry in list(entries(path))[-args.last :]:
        _say(
            "  ".join(
                f"{entry[key]}" for key in shown if entry.get(key) not in (None, "")
            )
        )
    return 0


def _request(args: argparse.Namespace) -> int:
    from coterie.sites.flare.join import request

    folder = Path(args.out or f"{args.site}-key")
    archive, details = request(Path(args.plan), args.site, folder)
    _say(f"send {archive} to the operator; the key in {folder} stays here")
    _say(
        f"it asks for a certificate of {details.subject}; tell the operator over another channel, say by telephone, that your key is"
    )
    _say(details.key)
    return 0


def _sign(args: argparse.Namespace) -> int:
    from coterie.sites.flare.join import sign
    from coterie.sites.flare.signature import sign_plan
    from coterie.sites.plan import read_plan

    plan, (kits, authority) = Path(args.plan), _authority_of(args)
    if args.request is None:
        deployment = read_plan(plan).deployment
        signature = sign_plan(
            plan, (kits or plan.parent / deployment.kits) / deployment.admin
        )
        _say(
            f"signed for {deployment.admin}: send {signature} with the plan to the sites"
        )
        return 0
    signed, request_details, fingerprint = sign(
        plan, Path(args.request), args.fingerprint, kits, authority
    )
    _say(f"signed for {request_details.subject}, with the key {request_details.key}")
    if Path(args.request).name.endswith(".renewal.zip"):
        _say(f"send {signed} back; the site gives coterie site renew KIT {signed.name}")
        return 0
    _say(
        f"send {signed} back, and tell the site this fingerprint over another channel, say by telephone:"
    )
    _say(fingerprint)
    return 0


def _revoke(args: argparse.Namespace) -> int:
    from coterie.sites.flare.join import revoke

    listed, copied = revoke(Path(args.plan), args.name, *_authority_of(args))
    number = json.loads(listed.read_text(encoding="utf-8"))["number"]
    if args.name is None:
        _say(f"list {number}, signed with today's date: {listed}")
    else:
        _say(
            f"list {number}, revoked: all certificates of {args.name} are on it: {listed}"
        )
    reads = "reads it at each registration and before each ask, and sends it to the sites when a run begins"
    if copied:
        _say(f"{copied}: the server {reads}")
    else:
        _say(f"copy {listed} into local/ of the server's kit, which {reads}")
    return 0


def _deploy(args: argparse.Namespace) -> int:
    from coterie.sites.descriptions import state_sites
    from coterie.sites.flare.kits import provision
    from coterie.sites.plan import read_plan, robustness_note

    path = Path(args.plan)
    if args.described:
        state_sites(path, [Path(file) for file in args.described])
    plan = read_plan(path)
    deployment = plan.deployment
    kits = provision(
        path,
        optional_path(args.kits),
        keys_at_sites=args.keys_at_sites,
        wheels=optional_path(args.wheels),
        authority=optional_path(args.authority),
    )
    private = "the operator's and the server's" if args.keys_at_sites else "each"
    _say(
        f"kits in {kits}: {private} holds a private key; hand it over a private channel"
    )
    _say(
        f"  server   {deployment.server}: {kits / deployment.server}/startup/start.sh, port {deployment.port}"
    )
    for name in deployment.sites:
        kit = kits / name
        if args.keys_at_sites:
            _say(
                f"  site     {name}: there, coterie site request {path.name} --site {name};"
            )
            _say(f"           here, coterie sign {path} FILE --fingerprint KEY")
        else:
            _say(
                f"  site     {name}: edit local/coterie.toml, coterie site check {kit}, coterie site approve {kit},"
            )
            _say(f"           then {kit}/startup/start.sh")
    _say(f"  operator {deployment.admin}: coterie submit {path}")
    _say(
        f"  others   {deployment.admins['disable']} may disable sites, {deployment.admins['shutdown']} may stop the server"
    )
    if note := robustness_note(plan):
        _say(f"  note     {note}")
    return 0


def _authority_of(args: argparse.Namespace) -> tuple[Path | None, Path | None]:
    """Return the folders of the kits and of the authority that were given."""
    return optional_path(args.kits), optional_path(args.authority)


def _status(args: argparse.Namespace) -> int:
    from coterie.sites.flare.status import status

    for line in status(Path(args.plan), *_authority_of(args)):
        _say(line)
    return 0


def _join(args: argparse.Namespace) -> int:
    from coterie.sites.flare.join import join

    name = Path(args.signed).name.removesuffix(".signed.zip")
    kit = Path(args.kit or name)
    key, wheels = (
        Path(args.key or f"{name}-key"),
        optional_path(args.wheels),
    )
    join(Path(args.signed), args.fingerprint, Path(args.plan), key, kit, wheels)
    _say(
        f"the kit is {kit}: edit local/coterie.toml, then coterie site check {kit} and coterie site approve {kit}"
    )
    return 0


def _renew(args: argparse.Namespace) -> int:
    from coterie.sites.flare.authority import days_left
    from coterie.sites.flare.renewal import install, request_renewal

    kit = Path(args.kit)
    if args.signed is not None:
        certificate = install(kit, Path(args.signed))
        _say(
            f"{kit} has its new key and a certificate that ends in {days_left(certificate)} days; all else is as before"
        )
        _say(
            f"if the site runs, let it take them: {kit}/startup/stop_fl.sh, then {kit}/startup/start.sh"
        )
        return 0
    archive, request_details = request_renewal(kit)
    _say(f"send {archive} to the operator, who gives coterie sign PLAN {archive.name}")
    _say(
        f"and put what comes back into the kit: coterie site renew {kit} {request_details.site}.signed.zip"
    )
    _say(
        "only if the operator asks for it, tell over another channel, say by telephone, that your new key is"
    )
    _say(request_details.key)
    return 0


def _purge(args: argparse.Namespace) -> int:
    from coterie.sites.purge import leftovers, purge

    kit = Path(args.kit)
    files = leftovers(kit)
    for path in files:
        _say(f"{path.lstat().st_size:>12}  {path}")
    if not files:
        _say(f"{kit}: nothing is left of any run")
    elif args.yes:
        purge(kit)
        _say(
            f"{len(files)} files removed; the log, the settings and the approved plan stay"
        )
    else:
        _say(
            "nothing is removed yet; with --yes these files are, and these runs can then not be resumed"
        )
    return 0


def _submit(args: argparse.Namespace) -> int:
    import dataclasses

    from coterie.cli.present import MENDED, goes_on, present, rounds_on_disk
    from coterie.cli.progress import Progress
    from coterie.sites.flare.submit import submit
    from coterie.sites.plan import read_plan
    from coterie.study.layout import choose_folder, is_run

    path = Path(args.plan)
    experiment = read_plan(path).experiment
    if args.out is not None:
        experiment = dataclasses.replace(
            experiment, run=dataclasses.replace(experiment.run, out=args.out)
        )
    folder = choose_folder(experiment, args.resume)
    with raise_interrupts(), Progress(quiet=args.json) as progress:
        try:
            submit(
                path,
                folder,
                resume=args.resume,
                accept_change=args.accept_change,
                accept=args.accept,
                kits=optional_path(args.kits),
                command=shlex.join(args.typed),
                watch=progress.show_sites,
                say=progress.say,
            )
        except RunError as error:
            if is_run(folder):
                error.add_note(
                    f"{rounds_on_disk(1)}; {MENDED} {goes_on(folder, 'submit', args.plan, '--out', str(folder))}"
                )
            raise
    return present(folder, args, html=not args.no_report)


def _settings_of(place: str) -> Any:
    from coterie.sites.settings import SETTINGS_FILE, read_settings

    _register()
    path = Path(place)
    if path.is_dir():
        path = path / "local" / SETTINGS_FILE
    return read_settings(path)


def _register() -> None:
    """Make the tasks known that a site's settings may name."""
    import coterie.compute.metrics  # noqa: F401
    from coterie.config.registry import METHODS

    METHODS.importable()


def _say(text: str) -> None:
    from coterie.base.errors import visible

    sys.stdout.write(
        visible(text) + "\n"
    )  # plans and other parties write parts of what is said


COMMANDS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "deploy": _deploy,
    "site check": _check,
    "site approve": _approve,
    "site describe": _describe,
    "site log": _log,
    "site verdict": _verdict,
    "site request": _request,
    "site join": _join,
    "site renew": _renew,
    "revoke": _revoke,
    "sign": _sign,
    "attack": _attack,
    "status": _status,
    "purge": _purge,
    "submit": _submit,
}
"""Functions that run a command of a site, given its options, and return the exit status."""

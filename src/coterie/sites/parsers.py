"""What can be typed of the commands of sites; nothing here knows what a command does."""

from __future__ import annotations

from typing import Any

from coterie.cli.flags import (
    add_accept_change,
    add_command,
    add_printing,
    add_resume,
)


def add_commands(commands: Any) -> None:
    """Add all commands of sites to the parser."""
    deploy = add_command(
        commands, "deploy", "make the kits with which sites join a plan (NVIDIA FLARE)"
    )
    deploy.add_argument("plan", help="an experiment's TOML file with a [deploy] table")
    deploy.add_argument(
        "--kits",
        metavar="FOLDER",
        help="where to write them; default: kits of [deploy]",
    )
    deploy.add_argument(
        "--keys-at-sites",
        action="store_true",
        help="make no kits of sites: each makes its own key (coterie site request)",
    )
    deploy.add_argument(
        "--authority",
        metavar="FOLDER",
        help="where to keep the key that signs certificates; default: ca of the kits",
    )
    deploy.add_argument(
        "--described",
        nargs="+",
        default=[],
        metavar="FILE",
        help="what the sites have written with `coterie site describe`, to be stated in the plan before kits are made",
    )
    _add_wheels(deploy)

    site = commands.add_parser(
        "site", help="at a site: check, approve and audit what a plan asks of it"
    )
    _add_jobs_at_sites(
        site.add_subparsers(title="commands", metavar="COMMAND", required=True)
    )

    _add_operator_commands(commands)
    _add_purge(commands)

    submit = add_command(
        commands, "submit", "run a plan on its sites and bring the run directory back"
    )
    submit.add_argument("plan", help="the TOML file with the [deploy] table")
    submit.add_argument(
        "--kits",
        metavar="FOLDER",
        help="the folder of the kits; default: kits of [deploy]",
    )
    submit.add_argument("--out", help="run directory; default: runs/NAME")
    add_resume(submit)
    add_accept_change(submit)
    submit.add_argument(
        "--accept",
        metavar="SITE:COLUMN",
        action="append",
        default=[],
        help="take the mean and deviation of this column although they are far from the others': you have asked that site",
    )
    add_printing(submit)


def _add_jobs_at_sites(jobs: Any) -> None:
    """Add `coterie site ...` to the parser."""
    check = add_command(
        jobs,
        "check",
        "read the site's file as the plan would, without sending anything",
        "site check",
    )
    check.add_argument("place", help="the site's kit, a plan, or the server's kit")
    check.add_argument(
        "--site", metavar="NAME", help="which site of the plan; default: the kit's"
    )
    check.add_argument(
        "--settings", metavar="FILE", help="the site's coterie.toml; default: the kit's"
    )
    check.add_argument(
        "--connect",
        action="store_true",
        help="also try the server's port and both certificates",
    )

    describe = add_command(
        jobs,
        "describe",
        "write what the plan should state of this site's columns, for a person to read and send",
        "site describe",
    )
    describe.add_argument("plan", help="the TOML file with the [deploy] table")
    describe.add_argument(
        "--site", metavar="NAME", required=True, help="which site of the plan"
    )
    describe.add_argument(
        "--settings", metavar="FILE", required=True, help="the site's coterie.toml"
    )
    describe.add_argument(
        "--out", metavar="FILE", help="where to write it; default: NAME.described.toml"
    )

    approve = add_command(
        jobs,
        "approve",
        "say in words what a plan asks and what leaves; with --yes, allow it",
        "site approve",
    )
    approve.add_argument("plan", help="the plan, or the kit that holds it")
    approve.add_argument(
        "--kit",
        metavar="FOLDER",
        help="whose site approves; default: the kit that holds the plan",
    )
    approve.add_argument(
        "--settings", metavar="FILE", help="the site's coterie.toml; default: the kit's"
    )
    approve.add_argument(
        "--site", metavar="NAME", help="which site of the plan; default: the kit's"
    )
    approve.add_argument(
        "--yes",
        metavar="SHA256",
        help="approve the plan whose SHA-256 was shown: the site answers it, and no other",
    )
    approve.add_argument(
        "--unsigned",
        action="store_true",
        help="approve a plan that nobody has signed, for settings that lie in no kit",
    )

    verdict = add_command(
        jobs,
        "verdict",
        "say at the site whether joining has paid, on its own test rows; nothing leaves",
        "site verdict",
    )
    verdict.add_argument("kit", help="the site's kit")

    log = add_command(
        jobs,
        "log",
        "show what the site was asked, by whom, and what became of it",
        "site log",
    )
    log.add_argument("place", help="the site's kit, or its coterie.toml")
    log.add_argument(
        "--check",
        action="store_true",
        help="verify that no line was changed, removed or added",
    )
    log.add_argument(
        "--last",
        type=int,
        default=20,
        metavar="N",
        help="how many lines to show (default: 20)",
    )

    ask = add_command(
        jobs,
        "request",
        "make the site's key here, and a request that the operator signs",
        "site request",
    )
    ask.add_argument("plan", help="the TOML file with the [deploy] table")
    ask.add_argument(
        "--site", metavar="NAME", required=True, help="which site of the plan"
    )
    ask.add_argument(
        "--out",
        metavar="FOLDER",
        help="where to write the key and the request; default: NAME-key",
    )

    join = add_command(
        jobs,
        "join",
        "build the site's kit from what the operator has signed",
        "site join",
    )
    join.add_argument("signed", help="the file NAME.signed.zip")
    join.add_argument(
        "--fingerprint",
        required=True,
        help="the fingerprint of the operator's authority, told over another channel",
    )
    join.add_argument("--plan", required=True, help="the plan")
    join.add_argument(
        "--key",
        metavar="FOLDER",
        help="what `coterie site request` made; default: NAME-key",
    )
    join.add_argument("--kit", metavar="FOLDER", help="the new kit; default: NAME")
    _add_wheels(join)

    renew = add_command(
        jobs,
        "renew",
        "ask for a successor of the kit's certificate, or put the signed one into the kit",
        "site renew",
    )
    renew.add_argument("kit", help="the site's kit")
    renew.add_argument(
        "signed",
        nargs="?",
        help="the file NAME.signed.zip of the operator; without it the request is made",
    )


def _add_wheels(parser: Any) -> None:
    """Add `--wheels` to the parser of a command that makes kits."""
    words = "wheels that a kit carries, pinned by hash (pip wheel -w FOLDER 'coterie[flare]')"
    parser.add_argument("--wheels", metavar="FOLDER", help=words)


def _add_operator_commands(commands: Any) -> None:
    """Add `coterie sign`, `coterie revoke`, `coterie attack` and `coterie status` to the parser."""
    sign = add_command(
        commands,
        "sign",
        "sign a plan, a site's request with its own key, or its renewal",
    )
    sign.add_argument("plan", help="the TOML file with the [deploy] table")
    sign.add_argument(
        "request",
        nargs="?",
        help="the file NAME.request.zip or NAME.renewal.zip; without it the plan is signed",
    )
    sign.add_argument(
        "--fingerprint",
        help="SHA-256 of the site's key, as a person there says it over another channel; a renewal needs none",
    )
    _add_authority(sign)

    revoke = add_command(
        commands,
        "revoke",
        "revoke the certificates of a site or a person, and sign the list of those that are revoked",
    )
    revoke.add_argument("plan", help="the TOML file with the [deploy] table")
    revoke.add_argument(
        "name", nargs="?", help="whose; without it the list is dated and signed again"
    )
    _add_authority(revoke)

    attack = add_command(
        commands,
        "attack",
        "try how many rows of a site's table a dishonest server could find under a plan; nothing is sent",
    )
    attack.add_argument("plan", help="the plan, or the kit that holds it")
    attack.add_argument(
        "--kit",
        metavar="FOLDER",
        help="whose table; default: the kit that holds the plan",
    )
    attack.add_argument(
        "--settings", metavar="FILE", help="the site's coterie.toml; default: the kit's"
    )
    attack.add_argument(
        "--site", metavar="NAME", help="which site of the plan; default: the kit's"
    )
    attack.add_argument(
        "--seconds",
        type=float,
        default=120.0,
        metavar="S",
        help="after which nothing more is asked (default: 120)",
    )

    status = add_command(
        commands,
        "status",
        "show which sites are connected, what runs, and when each site last answered",
    )
    status.add_argument("plan", help="the TOML file with the [deploy] table")
    _add_authority(status)


def _add_authority(parser: Any) -> None:
    parser.add_argument(
        "--kits",
        metavar="FOLDER",
        help="the folder of the kits; default: kits of [deploy]",
    )
    parser.add_argument(
        "--authority",
        metavar="FOLDER",
        help="what `coterie deploy --authority` made; default: ca of the kits",
    )


def _add_purge(commands: Any) -> None:
    """Add `coterie purge` to the parser."""
    purge = add_command(
        commands,
        "purge",
        "list what finished runs left in a site's or the server's kit, or remove it",
    )
    purge.add_argument("kit", help="the folder of the site or of the server")
    purge.add_argument(
        "--yes",
        action="store_true",
        help="remove it; these runs can then not be resumed",
    )

"""A site whose table lies in a process of its own, as at a hospital; what a test must know of it, a copy in this process tells."""

from __future__ import annotations

import dataclasses
import shutil
from types import SimpleNamespace

import pytest
import tomli_w
from hospital import Hospital

from coterie.contract.encoding import decode, encode
from coterie.sites import site as site_module
from coterie.sites.allowed import RefusedError
from coterie.sites.approval import approval_file
from coterie.sites.log import entry_of
from coterie.sites.rows import SiteRows
from coterie.sites.site import SERVER, Site
from engines.site_forks import Forked

BEGINNINGS = ("open", "encode", "prepare")


class ChildRows:
    """The interface of `SiteRows`, whose answers are those of the child process of a site.

    Attributes:
        site: the worker half, which has started the child.
        copy: the same rows in this process; only beginnings get there.
    """

    def __init__(self, name, settings, folder, approved, plan):
        own = folder / "site"
        own.mkdir(parents=True)
        file = own / "coterie.toml"
        values = {
            k: v for k, v in dataclasses.asdict(settings).items() if v is not None
        }
        file.write_text(
            tomli_w.dumps({"site": {**values, "log": str(own / "asks.jsonl")}})
        )
        shutil.copy(plan, approval_file(file))
        self.file, self.site, self.log = (
            file,
            Site(name, file, own / "kept"),
            own / "asks.jsonl",
        )
        self.copy = SiteRows(
            name,
            dataclasses.replace(settings, log=str(folder / "copy.jsonl")),
            folder / "copy",
            approved,
        )

    def of_another_job(self):
        """The same site in another job: a worker and a child of its own, with the files of this one."""
        other = object.__new__(ChildRows)
        other.site, other.log, other.copy = (
            Site(self.site.name, self.file, self.log.parent / "kept"),
            self.log,
            self.copy,
        )
        other.file = self.file
        return other

    def answer(self, message):
        """The answer of the child; a refusal or a failure is raised."""
        reply = decode(self.site.handle(encode(message), SERVER))
        if "failed" in reply:
            raise RefusedError(reply["failed"])
        if message["do"] in BEGINNINGS:
            self.copy.answer(message)
        return reply

    @property
    def outcome(self):
        """What became of the last message, as the log says it."""
        with open(self.log, "rb") as lines:
            lines.seek(max(0, self.log.stat().st_size - 2**16))
            return entry_of(lines.readlines()[-1])["outcome"]

    def __getattr__(self, name):
        return getattr(self.copy, name)


class Behind(Hospital):
    """A hospital whose table lies in a child process."""

    def __init__(self, folder, settings=None, **plan):
        super().__init__(folder, settings, **plan)
        self.rows = ChildRows(
            "hungary", self.settings, self.folder, self.approved, self.plan
        )

    def close(self):
        """End the child."""
        self.rows.site.close()


@pytest.fixture(scope="module")
def children():
    """Let the child processes of this module be forked from one that has imported all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site_module, "subprocess", SimpleNamespace(Popen=Forked))
        yield

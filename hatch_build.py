"""Metadata that follow from two settings: the addresses of the package, and a README whose links work outside the repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#|mailto:)([^)]+)\)")


class Addresses(MetadataHookInterface):
    """Fills the addresses, the maintainers and the README; while the settings are empty, nothing is claimed."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the dynamic fields."""
        address, contact = self.config["address"].rstrip("/"), self.config["contact"]
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        if address:
            metadata["urls"] = {
                "Repository": address,
                "Documentation": f"{address}/tree/main/docs",
                "Issues": f"{address}/issues",
                "Changelog": f"{address}/blob/main/CHANGELOG.md",
            }
            text = LINK.sub(lambda m: f"{m[1]}[{m[2]}]({address}/{'raw' if m[1] else 'blob'}/main/{m[3]})", text)
        if contact:
            metadata["maintainers"] = [{"name": "The coterie developers", "email": contact}]
        metadata["readme"] = {"content-type": "text/markdown", "text": text}

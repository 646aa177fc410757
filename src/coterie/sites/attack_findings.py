"""Findings of the red team at a site, in words."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """The rows that one attack has found.

    Attributes:
        way: how the site was asked, and about which method, seed and task.
        what: "rows", "columns" of which cells are told, "requests" beside the plan that were answered, "members": rows that are told
            apart from rows like them, or "patients": chosen ones whose presence and class are told.
        found: how many.
        of: of how many: for rows those that are trained on.
        luck: how many of as many that nobody has; for members that were not trained on.
        luck_of: of how many.
        requests: that the site answered.
        refused: requests that it refused.
        models: about which it answered.
        budget: models that the plan's runs may ask there; 0: the way is not counted.
    """

    way: str
    what: str
    found: int
    of: int
    luck: int
    luck_of: int
    requests: int
    refused: int
    models: int = 0
    budget: int = 0

    @property
    def rows(self) -> int:
        """Rows that were found."""
        if self.what != "rows":
            return 0
        return self.found

    def __str__(self) -> str:
        nobody = {
            "rows": "that nobody has",
            "members": "that were not trained on",
            "patients": "that nobody has, called there",
        }.get(self.what)
        luck = ""
        if nobody:
            luck = f" ({self.luck} of {self.luck_of} {nobody})"
        effort = f"{self.requests} requests answered, {self.refused} refused"
        if self.budget:
            effort += f", {self.models} of {self.budget} models of the budget"
        words = {
            "rows": "rows found",
            "columns": "columns told",
            "requests": "answered",
            "members": "rows called members",
            "patients": "chosen patients called there and rightly ill or healthy",
        }
        return (
            f"{self.way}: {self.found} of {self.of} {words[self.what]}{luck}; {effort}"
        )

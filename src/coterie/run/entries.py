"""What tables of an experiment hold beside methods, data and models: [run], [report], [model], and an entry of [[methods]]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from coterie.base.errors import is_number, require
from coterie.config.rules import COUNT, SIZE, Rule, one_of, optional
from coterie.config.schema import Flag, options
from coterie.run.personalisation import Tuning
from coterie.run.settings import PATTERNS, ROUNDS, RunSettings

__all__ = ["MethodEntry", "ModelTable", "ReportTable", "RunTable"]

MOST_SEEDS = 10_000


def _are_seeds(value: Any) -> bool:
    listed = isinstance(value, tuple) and bool(value) and all(map(COUNT.test, value))
    return listed or (type(value) is int and 1 <= value <= MOST_SEEDS)


SEEDS = Rule(_are_seeds, f"an int >= 1 or a list of ints >= 0, at most {MOST_SEEDS:,} seeds")


@options
class RunTable(RunSettings):
    """The [run] table.

    Attributes:
        rounds: number of rounds.
        seeds: seeds of the runs; 5 means 0 to 4, and a list names them.
        jobs: runs at once, each in a process of its own; no result depends on it.
        yardstick: trees: show gradient-boosted trees of each client alone and of all rows beside the methods; None: nothing.
        out: the run directory; None: runs/NAME.
    """

    rounds: Annotated[int, ROUNDS, Flag(metavar="N")] = 50
    seeds: Annotated[tuple[int, ...], SEEDS, Flag(metavar="N")] = (0, 1, 2, 3, 4)
    jobs: Annotated[int, SIZE, Flag(metavar="N")] = 1
    yardstick: Annotated[str | None, optional(one_of("trees")), Flag(metavar="NAME")] = None
    out: Annotated[str | None, Rule(lambda v: v is None or isinstance(v, str), "a folder"), Flag(metavar="FOLDER")] = (
        None
    )

    def __post_init__(self) -> None:
        given: Any = self.seeds
        if _are_seeds(given) and isinstance(given, int):
            object.__setattr__(self, "seeds", tuple(range(given)))
        if isinstance(self.seeds, tuple):
            repeat = len(set(self.seeds)) < len(self.seeds)
            require(not repeat, f"run.seeds repeat: {list(self.seeds)}; name each once")


_THRESHOLD = Rule(
    lambda v: v == "validation" or (is_number(v) and 0 < v < 1),
    'a number between 0 and 1, or "validation"',
    ("validation",),
)


@options
class ReportTable:
    """The [report] table: how results are shown. No number of a run depends on it.

    Attributes:
        threshold: call a row positive from this predicted risk on; validation: from the one that suits each client's validation rows
            best, where a method did not train on them.
    """

    threshold: Annotated[float | str, _THRESHOLD, Flag(metavar="P")] = 0.5


@options
class ModelTable:
    """What the [model] table says beside the fields of a model.

    Attributes:
        init: a safetensors file to start from.
        freeze: patterns of the modules and parameters that stay as they are, such as "0.*"; statistics of batch norm belong to them.
    """

    init: Annotated[str | None, Flag(metavar="FILE")] = None
    freeze: Annotated[tuple[str, ...], PATTERNS, Flag(metavar="A,B")] = ()


@dataclass(frozen=True)
class MethodEntry:
    """One of [[methods]].

    Attributes:
        name: of the method.
        label: what it is called here.
        fields: of the method.
        local: what differs from [local].
        personalise: how each client tunes its model after training; None: it does not.
    """

    name: str
    label: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    local: Mapping[str, Any] = field(default_factory=dict)
    personalise: Tuning | None = None

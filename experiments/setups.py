"""The table of constants, experiments/constants.toml: what the papers print, what the authors' code does where we have read it, ours.

Each row is one number or choice of a set-up. `disagreements` compares it with the files that are run, in both directions: a row whose
value is not the file's, and a value of a file that has no row. So a set-up cannot change without this table, and only the table says
where a paper has the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from coterie.base.files import read_toml
from coterie.base.loss import choose_loss
from experiments.documents import ROOT

FILE = ROOT / "experiments" / "constants.toml"
ABSENT = "none"
"""What a row says of a key that the file of an experiment lacks."""


IMAGES = ("fashion-mnist", "cifar10")
"""Data sets whose pixels are divided by 255 and nothing else."""
READINGS_OF_ISFL = {
    "paper": {"constants against": "the new average", "first weights": 1},
    "code": {"constants against": "the old global model", "first weights": "p / p_k"},
}
"""What ISFL's setting `reading` chooses (`samplers/isfl.py`)."""


class Constant(NamedTuple):
    """One row of the table.

    Attributes:
        paper: key of the paper.
        key: where the value stands in the file of an experiment: its tables and keys, joined by dots; methods by label.
        what: it in words.
        experiments: of which it is said.
        ours: the value in each of their files.
        printed: the paper's value, or a list of several that it has; None where the paper does not state one.
        place: where the paper prints it.
        code: the value in the authors' code; None where we have not read it there.
    """

    paper: str
    key: str
    what: str
    experiments: Sequence[str]
    ours: Any
    printed: Any = None
    place: str = ""
    code: Any = None

    @property
    def is_stated(self) -> bool:
        """Return True if the paper prints a value."""
        return self.printed is not None

    @property
    def is_same(self) -> bool:
        """Return True if the paper prints our value, perhaps among others."""
        if isinstance(self.printed, list):
            return self.ours in self.printed
        return self.is_stated and bool(self.ours == self.printed)


def load() -> list[Constant]:
    """Read the table."""
    return [Constant(**row) for row in read_toml(FILE)["constants"]]


def flatten(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a file by key; those of a method stand under its label.

    >>> flatten({"local": {"lr": 0.1}, "methods": [{"name": "isfl", "label": "one", "local": {"lr": 0.2}}]})
    {'local.lr': 0.1, 'methods.one.name': 'isfl', 'methods.one.local.lr': 0.2}
    """
    values: dict[str, Any] = {}
    for key, value in tables.items():
        if key == "methods":
            for method in value:
                label = method.get("label", method["name"])
                fields = {k: v for k, v in method.items() if k != "label"}
                inner = flatten(fields)
                values |= {f"methods.{label}.{k}": v for k, v in inner.items()}
        elif isinstance(value, dict):
            values |= {f"{key}.{k}": v for k, v in flatten(value).items()}
        else:
            values[key] = value
    return values


def values_of(experiment: str) -> dict[str, Any]:
    """Return the constants that an experiment runs with, by key."""
    if experiment in DRAWN:
        return DRAWN[experiment]()
    values = flatten(read_toml(ROOT / "experiments" / f"{experiment}.toml"))
    if values["data.name"] in IMAGES:
        values["pixels"] = "from 0 to 1"
    if experiment.startswith("isfl-"):
        reading = values.get("methods.isfl.reading", "paper")
        values |= READINGS_OF_ISFL[reading]
    return values


def plain(value: Any) -> str:
    """Return a constant as a reader writes it.

    >>> plain([0.95, 0.98]), plain(0.5), plain("experiments/xrays.py:xrays")
    ('.95, .98', '.5', 'xrays')
    """
    if isinstance(value, list):
        return ", ".join(map(plain, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}".removeprefix("0") or "0"
    path, _, name = str(value).rpartition(".py:")
    return name if path else str(value)


def disagreements(
    constants: Sequence[Constant], values: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Return a sentence for each row that a file contradicts, and for each value of a file that has no row or several.

    Args:
        constants: the table.
        values: of each experiment by key.
    """
    found = []
    rows: dict[tuple[str, str], int] = {}
    for constant in constants:
        for experiment in constant.experiments:
            key = experiment, constant.key
            rows[key] = rows.get(key, 0) + 1
            value = values[experiment].get(constant.key, ABSENT)
            if value != constant.ours:
                found.append(
                    f"{experiment}: {constant.key} is {value!r}, and the table of constants says {constant.ours!r}"
                )
    for experiment, own in values.items():
        for key in own:
            count = rows.get((experiment, key), 0)
            if count != 1:
                found.append(
                    f"{experiment}: {key} has {count} rows in the table of constants, and needs one"
                )
    return found


def _of_mean_estimation() -> dict[str, Any]:
    from benchmarks import mean_estimation as m

    outputs, labels = torch.ones(1, 10), torch.zeros(1, 10)
    loss = choose_loss("auto", outputs, labels)
    return {
        **_of_means(m.EVERYBODY, m.LR, m.MD_STEP),
        "loss of an error of 1 in each of 10 coordinates": float(
            loss.mean(outputs, labels)
        ),
        "batch": m.LOCAL.batch_size,
        "steps": m.MERITFED.md_steps,
        "rounds": m.CONTESTANTS["MeritFed"].rounds,
        "rounds of averaging": m.CONTESTANTS["SGD Full"].rounds,
        "samples": m.Job("", 0.0, 0, 0).samples,
        "third mean": "(0, 1, 0, 1, ...) of length 1",
        "second mean": "of length mu",
        "drawn clients": sorted(c.drawn for c in m.CONTESTANTS.values() if c.drawn),
    }


def _of_means(
    groups: Sequence[int], rate: float, steps: Mapping[float, float]
) -> dict[str, Any]:
    return {
        "groups": list(groups),
        "rate": rate,
        "step at mu = .001, .01, .1": list(steps.values()),
    }


def _of_mean_printed() -> dict[str, Any]:
    from experiments.independent import plateaus as p

    one = torch.ones(p.DIM)
    gradient = p.gradient(one, torch.zeros(p.DIM), p.SUMMED)
    return {
        **_of_means(p.GROUPS, p.SERVER_RATE, p.STEP),
        # The loss is a square, so it is half of the gradient's product with the error.
        "loss of an error of 1 in each of 10 coordinates": float(gradient @ one) / 2,
        "batch": p.BATCH,
        "steps": p.PRINTED_DESCENTS,
        "rounds": p.ROUNDS[p.PRINTED],
        "samples": p.SAMPLES,
        "third mean": "uniform on the unit sphere",
        "second mean": "mu in each coordinate",
    }


def _of_byzantine() -> dict[str, Any]:
    from benchmarks import byzantine as b

    noise = b.ATTACKS["random noise"]
    return {
        "honest": b.HONEST,
        "malicious": b.MALICIOUS,
        "rate": b.MERITFED.lr,
        "steps": b.MERITFED.md_steps,
        "step": b.MD_STEP,
        "rounds": b.ROUNDS,
        "IPM's epsilon": b.ATTACKS["IPM"].eps,
        "ALIE's z": b.ATTACKS["ALIE"].z,
        "ALIE divides by n minus": b.ATTACKS["ALIE"].correction,
        "random noise": f"{noise.mode}, {noise.sigma:g}",
        "added noise": b.ATTACKS["added noise"].sigma,
    }


DRAWN = {
    "mean-estimation": _of_mean_estimation,
    "independent/mean-printed": _of_mean_printed,
    "byzantine": _of_byzantine,
}
"""Experiments on samples that are drawn, which have no TOML file."""

"""The picture of a method, from a real run: who gets what weight among four clients in two groups, and their losses by round.

All methods get the same clients, rounds and shape. A run takes about a second, and its numbers are kept under build/pictures until
the method's file or this one changes.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch

import coterie as ct
from coterie.cli.catalogue import Entry

KEPT = Path(__file__).parent.parent / "build" / "pictures"
NAMES = "abcd"
ROUNDS = 8
LOCAL = ct.LocalSGD(lr=0.3, steps=ct.Steps(5), batch_size=16)
NEEDED: dict[str, dict[str, Any]] = {
    "varsel": {"internal": ("a", "b")},
    "selective": {"internal": ("a", "b")},
    "sgd-ideal": {"members": ("a", "b")},
    "target-only": {"target": "a"},
}
"""Fields without a default."""
CAPTION = (
    "Four clients with 60 rows each, eight rounds. Clients a and b agree; c and d see the opposite labels. First: the mean weight "
    "of each client's update in the model that a row's client receives. Second: the loss of each client's model on its test rows; "
    "clients for which a method makes no model have no curve."
)


def picture(entry: Entry) -> str:
    """The picture as HTML."""
    numbers = measured(entry)
    return f'<figure class="method-picture">{_svg(entry.name, **numbers)}<figcaption>{CAPTION}</figcaption></figure>'


def measured(entry: Entry) -> dict[str, Any]:
    """Weights {receiver: {giver: weight}}, empty where the method has none, and losses {client: by round}."""
    module = (
        Path(ct.__file__)
        .parents[1]
        .joinpath(*entry.module.split("."))
        .with_suffix(".py")
    )
    state = hashlib.sha256(
        module.read_bytes() + Path(__file__).read_bytes()
    ).hexdigest()
    file = KEPT / f"{entry.name}.json"
    if (
        file.exists()
        and (kept := json.loads(file.read_text(encoding="utf-8")))["state"] == state
    ):
        return dict(kept["numbers"])
    model = _layers if hasattr(entry.cls, "personal") else "logistic"
    run = ct.fit(
        _method(entry), _clients(), model, ROUNDS, settings=ct.RunSettings(evaluate=1)
    )
    tested = [row for row in run.history if (row.metric, row.split) == ("loss", "test")]
    losses = {
        name: [row.value for row in tested if row.client == name] for name in NAMES
    }
    weights = {
        str(who): {name: float(row.get(name, 0.0)) for name in NAMES}
        for who, row in run.weights.items()
    }
    numbers = {"weights": weights, "losses": losses}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"state": state, "numbers": numbers}), encoding="utf-8")
    return numbers


def _method(entry: Entry) -> Any:
    cls = entry.cls
    local = (
        {"local": LOCAL} if "local" in getattr(cls, "__dataclass_fields__", {}) else {}
    )
    return cls(**local, **NEEDED.get(entry.name, {}))


def _layers() -> torch.nn.Module:
    """A model for methods that keep a layer at each client."""
    body = torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU()
    return torch.nn.Sequential(*body, torch.nn.Linear(8, 2))


def _clients() -> ct.Clients:
    stream = torch.Generator().manual_seed(0)

    def rows(opposite: bool) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = torch.randn(60, 3, generator=stream)
        score = inputs[:, 0] + 0.3 * torch.randn(60, generator=stream)
        return inputs, ((score > 0) ^ opposite).long()

    held = {name: rows(opposite=name in "cd") for name in NAMES}
    return ct.data.from_tensors(held, server=rows(opposite=False))


def _svg(
    name: str, weights: dict[str, dict[str, float]], losses: dict[str, list[float]]
) -> str:
    parts = (
        (
            f"{name}: weights of four clients",
            f"50 0 230 {48 + 38 * max(1, len(weights))}",
            _grid(weights),
        ),
        (
            f"{name}: their test losses over {ROUNDS} rounds",
            "290 0 330 220",
            _curves(losses),
        ),
    )
    return "".join(
        f'<svg viewBox="{box}" role="img" aria-label="{label}" font-size="13" fill="currentColor">{drawn}</svg>'
        for label, box, drawn in parts
    )


def _grid(weights: dict[str, dict[str, float]]) -> str:
    if not weights:
        return '<text x="56" y="40">This method has no weights by client.</text>'
    side = 38
    pieces = [
        f'<text x="{90 + side * (i + 0.5)}" y="34" text-anchor="middle">{n}</text>'
        for i, n in enumerate(NAMES)
    ]
    for row, (who, given) in enumerate(weights.items()):
        top = 42 + row * side
        receiver = "all" if who == "*" else who
        pieces.append(
            f'<text x="80" y="{top + 24}" text-anchor="end">{receiver}</text>'
        )
        for column, giver in enumerate(NAMES):
            weight, left = given[giver], 90 + column * side
            shade = min(max(weight, 0.0), 1.0) * 0.6
            pieces.append(
                f'<rect x="{left}" y="{top}" width="{side - 2}" height="{side - 2}" class="mark-one" '
                f'fill-opacity="{shade:.2f}" stroke-opacity=".4"/>'
                f'<text x="{left + side / 2 - 1}" y="{top + 23}" text-anchor="middle" font-size="11">{weight:.2f}</text>'
            )
    return "".join(pieces)


def _curves(losses: dict[str, list[float]]) -> str:
    left, right, top, bottom = 330.0, 590.0, 20.0, 180.0
    finite = [value for values in losses.values() for value in values]
    high = max(1.0, *finite)
    pieces = [
        f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="currentColor"/>',
        f'<text x="{left - 6}" y="{top + 8}" text-anchor="end">{high:.1f}</text>',
        f'<text x="{left - 6}" y="{bottom}" text-anchor="end">0</text>',
        f'<text x="{(left + right) / 2}" y="{bottom + 26}" text-anchor="middle">test loss by round</text>',
    ]
    ends = []
    for name, values in ((name, values) for name, values in losses.items() if values):
        step = (right - left) / max(1, len(values) - 1)
        points = [
            (left + i * step, bottom - (bottom - top) * value / high)
            for i, value in enumerate(values)
        ]
        kind = "mark-two" if name in "cd" else "mark-one"
        dashes = ' stroke-dasharray="5 4"' if name in "cd" else ""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        pieces.append(
            f'<polyline points="{path}" fill="none" class="{kind}" stroke-width="2"{dashes}/>'
        )
        ends.append((points[-1][1] + 4, name))
    below = bottom + 20
    for height, name in sorted(
        ends, reverse=True
    ):  # upwards, so that no name lies on another
        below = min(height, below - 12)
        pieces.append(f'<text x="{right + 6}" y="{below:.1f}">{name}</text>')
    return "".join(pieces)

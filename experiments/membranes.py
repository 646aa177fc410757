"""Cell membranes in place of brain tumours: `experiments/membranes.py:sites`, a small U-Net and Dice.

A site is one section of a stack of electron micrographs, whose tiles are dealt to three internal clients. Nine further sections are
external clients, each seen through one of four maps of intensity, as a scan differs between modalities. The test rows of each internal
client are the tiles of six other sections, as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

import coterie as ct
from coterie.base.clients import Clients
from coterie.base.errors import InputError
from coterie.base.loss import Kind
from coterie.data.sets import find_folder
from coterie.data.splits import generator

INTERNAL, EXTERNAL, TESTED = 3, 9, 6
MODALITIES: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: x,
    lambda x: x.square(),
    lambda x: x.sqrt(),
    lambda x: 1 - x,
)
MEMBRANE = 1


def sites(
    *, seed: int, folder: str | None = None, size: int = 256, tile: int = 64
) -> Clients:
    """Inputs float32 [tiles, 1, tile, tile] in [0, 1], labels int64 [tiles, tile, tile], 1 = membrane; the seed chooses the sections.

    Args:
        seed: of the sections and of their modalities.
        folder: with `image/*.png` and `label/*.png`; None looks below COTERIE_DATA.
        size: of a section, to which it is scaled.
        tile: of the squares that it is cut into.
    """
    draw = generator(seed, "membranes")
    own, others, test = _sections(draw, folder, size, tile)
    dealt = torch.from_numpy(draw.permutation(len(own[0]))).chunk(INTERNAL)
    clients = {
        f"internal-{i}": {"train": (own[0][rows], own[1][rows]), "test": test}
        for i, rows in enumerate(dealt)
    }
    for i, (seen, truth) in enumerate(others):
        clients[f"external-{i}"] = {
            "train": (MODALITIES[draw.integers(len(MODALITIES))](seen), truth)
        }
    return _named(clients)


def ceiling(
    *, seed: int, folder: str | None = None, size: int = 256, tile: int = 64
) -> Clients:
    """The internal clients, each with the tiles of all ten sections as they are."""
    own, others, test = _sections(generator(seed, "membranes"), folder, size, tile)
    everything = _joined([own, *others])
    return _named(
        {f"internal-{i}": {"train": everything, "test": test} for i in range(INTERNAL)}
    )


def _named(clients: dict[str, Any]) -> Clients:
    return ct.data.from_tensors(
        clients, name="membranes", classes=("inside", "membrane")
    )


Tiles = tuple[Tensor, Tensor]
"""Images [tiles, 1, tile, tile] and masks [tiles, tile, tile]."""


def _sections(
    draw: np.random.Generator, folder: str | None, size: int, tile: int
) -> tuple[Tiles, list[Tiles], Tiles]:
    """The tiles of the internal section, of each external one, and of all that test, as drawn."""
    place = find_folder("membrane", ("image/*.png",), folder)
    files = sorted((place / "image").glob("*.png"))
    if len(files) < 1 + EXTERNAL + TESTED:
        raise InputError(
            f"{place}/image has {len(files)} sections; {1 + EXTERNAL + TESTED} are needed"
        )
    order = [files[i] for i in draw.permutation(len(files))][: 1 + EXTERNAL + TESTED]
    own, *others = (_section(file, size, tile) for file in order)
    return own, others[:EXTERNAL], _joined(others[EXTERNAL:])


def _joined(several: Sequence[Tiles]) -> Tiles:
    images, masks = (torch.cat(tensors) for tensors in zip(*several, strict=True))
    return images, masks


def _section(file: Path, size: int, tile: int) -> Tiles:
    """Tiles of a section and of its mask, in which a membrane is black."""
    image, mask = (
        np.asarray(Image.open(path).convert("L").resize((size, size), how))
        for path, how in (
            (file, Image.Resampling.BILINEAR),
            (file.parent.parent / "label" / file.name, Image.Resampling.NEAREST),
        )
    )
    seen, truth = (
        torch.from_numpy(image.copy()).float() / 255,
        torch.from_numpy((mask < 128).astype(np.int64)),
    )
    cut = [
        x.unfold(0, tile, tile).unfold(1, tile, tile).reshape(-1, tile, tile)
        for x in (seen, truth)
    ]
    return cut[0].unsqueeze(1).contiguous(), cut[1].contiguous()


@dataclass(frozen=True)
class UNet:
    """A U-Net of three levels: inputs [rows, 1, h, w], outputs [rows, classes, h, w]; h and w are multiples of 4.

    Source: O. Ronneberger, P. Fischer, T. Brox, "U-Net: Convolutional Networks for Biomedical Image Segmentation", 2015.

    Attributes:
        channels: of the levels.
    """

    channels: tuple[int, int, int] = (8, 16, 32)

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """For images [channels, h, w]."""
        return _Levels(shape[0], self.channels, outputs)


class _Levels(nn.Module):
    def __init__(
        self, inputs: int, channels: tuple[int, int, int], outputs: int
    ) -> None:
        super().__init__()
        one, two, three = channels
        self.down = nn.ModuleList(
            [_block(inputs, one), _block(one, two), _block(two, three)]
        )
        self.up = nn.ModuleList([_block(three + two, two), _block(two + one, one)])
        self.last = nn.Conv2d(one, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of each pixel."""
        high = self.down[0](x)
        middle = self.down[1](nn.functional.max_pool2d(high, 2))
        low = self.down[2](nn.functional.max_pool2d(middle, 2))
        for block, skipped in zip(self.up, (middle, high), strict=True):
            low = block(
                torch.cat(
                    [nn.functional.interpolate(low, scale_factor=2.0), skipped], dim=1
                )
            )
        return self.last(low)


def _block(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(after, after), nn.ReLU(),
        nn.Conv2d(after, after, 3, padding=1), nn.GroupNorm(after, after), nn.ReLU(),
    )  # fmt: skip


def dice(outputs: Tensor, labels: Tensor, kind: Kind) -> float | None:
    """Mean over tiles of 2 |A and B| / (|A| + |B|), where A and B are the pixels that are predicted, and are, membrane.

    >>> dice(torch.tensor([[[[2.0, 0.0]], [[0.0, 1.0]]]]), torch.tensor([[[1, 1]]]), "classes")
    0.6666666865348816
    """
    found = (
        outputs.squeeze(1) > 0 if kind == "binary" else outputs.argmax(1) == MEMBRANE
    )
    truth = labels == MEMBRANE
    both = (found & truth).sum((1, 2)).float()
    return float(
        (2 * both / (found.sum((1, 2)) + truth.sum((1, 2))).clamp(min=1)).mean()
    )

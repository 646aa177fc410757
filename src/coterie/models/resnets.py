"""Residual networks for small images, with group or batch norm."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor, nn

from coterie.config.rules import one_of
from coterie.config.schema import options
from coterie.models.specs import images

_NORM = one_of("group", "batch")


@options
class ResNet8:
    """ResNet8 of the ISFL paper: three convolutions, two residual blocks of two each, and a linear layer.

    The paper gives 2 residual blocks, 8 trainable layers and 468,618 parameters for ten classes; this is ResNet9 less one
    convolution at half its width, pooled to 2 x 2, which has exactly that many.

    Attributes:
        norm: group (groups of 16 channels; no buffers to average) or batch (the paper).

    >>> sum(p.numel() for p in ResNet8().build((3, 32, 32), 10).parameters())
    468618
    """

    norm: Annotated[str, _NORM] = "group"

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Images of at least 8 x 8."""
        image, channels, height, width = images(self, shape, 8)
        # Two poolings leave a quarter of height and width, and the last pools them to two or three rows and columns.
        rows = height // 4 // (height // 8)
        columns = width // 4 // (width // 8)
        features = 128 * rows * columns
        return nn.Sequential(
            *image,
            _block(channels, 32, self.norm),
            _block(32, 64, self.norm, pool=True),
            _Residual(_block(64, 64, self.norm), _block(64, 64, self.norm)),
            _block(64, 128, self.norm, pool=True),
            _Residual(_block(128, 128, self.norm), _block(128, 128, self.norm)),
            nn.MaxPool2d((height // 8, width // 8)),
            nn.Flatten(),
            nn.Linear(features, outputs),
        )


@options
class ResNet9:
    """ResNet9: four convolutions to 512 channels, two residual blocks of two each, and a linear layer.

    Attributes:
        norm: group (groups of 16 channels; no buffers to average) or batch (the paper).

    >>> sum(p.numel() for p in ResNet9().build((3, 32, 32), 100).parameters())
    6621540
    """

    norm: Annotated[str, _NORM] = "group"

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Images of at least 8 x 8."""
        image, channels, height, width = images(self, shape, 8)
        return nn.Sequential(
            *image,
            _block(channels, 64, self.norm),
            _block(64, 128, self.norm, pool=True),
            _Residual(_block(128, 128, self.norm), _block(128, 128, self.norm)),
            _block(128, 256, self.norm, pool=True),
            _block(256, 512, self.norm, pool=True),
            _Residual(_block(512, 512, self.norm), _block(512, 512, self.norm)),
            nn.MaxPool2d((height // 8, width // 8)),
            nn.Flatten(),
            nn.Linear(512, outputs),
        )


@options
class ResNet18:
    """ResNet18 for small images: its first layer is a 3x3 convolution of stride 1 without pooling.

    Attributes:
        norm: group (groups of 16 channels; no buffers to average) or batch (the paper).

    >>> sum(p.numel() for p in ResNet18().build((3, 32, 32), 10).parameters())
    11173962
    """

    norm: Annotated[str, _NORM] = "group"

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Four stages of two basic blocks with 64, 128, 256 and 512 channels; the mean over the last image."""
        image, channels, _, _ = images(self, shape, 8)
        # Layers draw their first weights as they are made: in another order the same seed would give another model.
        stages: list[nn.Module] = []
        width = 64
        for wide, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            stages.append(_basic(width, wide, stride, self.norm))
            stages.append(_basic(wide, wide, 1, self.norm))
            width = wide
        stem = (
            nn.Conv2d(channels, 64, 3, padding=1, bias=False),
            _norm(64, self.norm),
            nn.ReLU(),
        )
        return nn.Sequential(
            *image,
            *stem,
            *stages,
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(512, outputs),
        )


class _Residual(nn.Module):
    """The input, through `shortcut` where its shape changes, plus what the layers make of it."""

    def __init__(self, *layers: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.body = nn.Sequential(*layers)
        self.shortcut = shortcut or nn.Identity()

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.body(inputs) + self.shortcut(inputs)
        return out


def _block(
    inputs: int, outputs: int, norm: str, *, pool: bool = False
) -> nn.Sequential:
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, 3, padding=1),
        _norm(outputs, norm),
        nn.ReLU(),
    ]
    if pool:
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers)


def _basic(inputs: int, outputs: int, stride: int, norm: str) -> nn.Sequential:
    shortcut = None
    if inputs != outputs:
        shortcut = nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride, bias=False), _norm(outputs, norm)
        )
    conv1 = (
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
        _norm(outputs, norm),
        nn.ReLU(),
    )
    conv2 = (
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        _norm(outputs, norm),
    )
    return nn.Sequential(_Residual(*conv1, *conv2, shortcut=shortcut), nn.ReLU())


def _norm(channels: int, norm: str) -> nn.Module:
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    return nn.GroupNorm(channels // 16, channels)  # 16 channels a group

"""Models by name: each a frozen dataclass of settings whose `build` makes an `nn.Module` for given inputs and outputs."""

from coterie.base.heads import Hazards, Ordered
from coterie.models.building import (
    ModelSpec,
    build_for,
    build_model,
    build_shape,
    freeze,
    outputs_of,
)
from coterie.models.resnets import ResNet8, ResNet9, ResNet18
from coterie.models.specs import CNN, MLP, CharLSTM, Logistic, Mean, TwoNN

__all__ = [
    "CNN",
    "MLP",
    "CharLSTM",
    "Hazards",
    "Logistic",
    "Mean",
    "ModelSpec",
    "Ordered",
    "ResNet8",
    "ResNet9",
    "ResNet18",
    "TwoNN",
    "build_for",
    "build_model",
    "build_shape",
    "freeze",
    "outputs_of",
]

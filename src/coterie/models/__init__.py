"""Models by name: each a frozen dataclass of settings whose `build` makes an `nn.Module` for given inputs and outputs."""

from coterie.config.schema import Flag, Registry
from coterie.models.building import ModelSpec, build_model, build_shape, freeze, outputs_of
from coterie.models.resnets import ResNet8, ResNet9, ResNet18
from coterie.models.specs import CNN, MLP, CharLSTM, Logistic, Mean, TwoNN

__all__ = [
    "CNN",
    "MLP",
    "MODELS",
    "CharLSTM",
    "Logistic",
    "Mean",
    "ModelSpec",
    "ResNet8",
    "ResNet9",
    "ResNet18",
    "TwoNN",
    "build_model",
    "build_shape",
    "freeze",
    "outputs_of",
]

MODELS = Registry(
    "model",
    {
        "logistic": Logistic,
        "mlp": MLP,
        "2nn": TwoNN,
        "cnn": CNN,
        "char-lstm": CharLSTM,
        "resnet8": ResNet8,
        "resnet9": ResNet9,
        "resnet18": ResNet18,
        "mean": Mean,
    },
    default="logistic",
    flag=Flag("--model", "NAME"),
)
"""Models by name."""

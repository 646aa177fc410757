"""A model of your own: a function of the inputs' shape and the number of outputs that makes any `nn.Module`.

    coterie compare heart-disease --model examples/own_model.py:make
    coterie compare heart-disease --model examples/own_model.py:make --set model.width=32

From Python: ct.fit(ct.FedAvg(), clients, model=make). A ready-made module, or a class that takes (shape, outputs), does as well. Random
initial weights belong to the seed of the run: all methods start from the same ones.
"""

from torch import nn


# Of 15 features the shape is (15,); two classes need one output, C classes C, a number one.
def make(shape: tuple[int, ...], outputs: int, width: int = 8) -> nn.Module:
    hidden = nn.Sequential(nn.Linear(shape[0], width), nn.LayerNorm(width), nn.GELU())
    return nn.Sequential(hidden, nn.Linear(width, outputs))

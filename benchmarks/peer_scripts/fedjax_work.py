"""The work with fedjax, as in its examples: `algorithms.fed_avg` over `InMemoryFederatedData`, with the default `jit` backend.

A Haiku model, compiled steps, float32 rows as NumPy arrays in memory, batches by `shuffle_repeat_batch`. A round ends when
its parameters are there (`block_until_ready`). XLA is told to use one thread.
"""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
os.environ["JAX_PLATFORMS"] = "cpu"

from collections.abc import Sequence
from typing import Any

import fedjax
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from work import Clock, Work, main


def mlp(work: Work) -> tuple[Any, list[str]]:
    """The model, and the names of its layers."""
    widths = [len(bias) for bias in work.layers[1::2]]
    return lambda x: hk.nets.MLP(widths, name="mlp")(x), [
        f"mlp/~/linear_{k}" for k in range(len(widths))
    ]


def cnn(work: Work) -> tuple[Any, list[str]]:
    """Two convolutions and a linear layer; Haiku has channels last."""

    def forward(x: Any) -> Any:
        x = x.reshape(-1, 28, 28, 1)
        for channels in (16, 32):
            x = jax.nn.relu(hk.Conv2D(channels, 5, padding="VALID")(x))
            x = hk.max_pool(x, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return hk.Linear(10)(x.transpose(0, 3, 1, 2).reshape(len(x), -1))

    return forward, ["conv2_d", "conv2_d_1", "linear"]


def lstm(work: Work) -> tuple[Any, list[str]]:
    """An LSTM over the 28 lines of an image, as in fedjax's own models."""

    def forward(x: Any) -> Any:
        core = hk.LSTM(64)
        outputs, _ = hk.dynamic_unroll(
            core, x.reshape(-1, 28, 28).transpose(1, 0, 2), core.initial_state(len(x))
        )
        return hk.Linear(10)(outputs[-1])

    return forward, ["lstm/linear", "linear"]


MODELS = {"mlp": mlp, "cnn": cnn, "lstm": lstm}
GATES = (0, 2, 1, 3)
"""PyTorch's input, forget, cell and output gate in Haiku's order; Haiku adds 1 to the forget gate."""


def to_haiku(layers: Sequence[Any], model: str) -> list[tuple[Any, Any]]:
    """The weight and bias of each layer from PyTorch's parameters."""
    if model == "lstm":
        inner, outer, one, other, *last = layers
        weight = np.concatenate(
            [np.concatenate([inner, outer], 1).reshape(4, 64, -1)[g] for g in GATES]
        )
        bias = np.concatenate(
            [(one + other).reshape(4, 64)[g] - (g == 1) for g in GATES]
        )
        return [(weight.T, bias), *to_haiku(last, "mlp")]
    pairs = zip(layers[::2], layers[1::2], strict=True)
    return [(w.transpose(2, 3, 1, 0) if w.ndim == 4 else w.T, b) for w, b in pairs]


def to_torch(layers: Sequence[tuple[Any, Any]], model: str) -> list[Any]:
    """PyTorch's parameters from the weight and bias of each layer."""
    if model == "lstm":
        (weight, bias), *last = layers
        weight = np.concatenate([weight.T.reshape(4, 64, -1)[g] for g in GATES])
        bias = np.concatenate(
            [(bias.reshape(4, 64) + np.eye(4)[:, 2:3])[g] for g in GATES]
        )
        return [weight[:, :28], weight[:, 28:], bias, 0 * bias, *to_torch(last, "mlp")]
    return [
        part
        for w, b in layers
        for part in (w.transpose(3, 2, 0, 1) if w.ndim == 4 else w.T, b)
    ]


def run(work: Work, clock: Clock) -> Sequence[Any]:
    """Train, and return the final layers."""
    forward, names = MODELS[work.model](work)
    images = work.floats()
    data = fedjax.InMemoryFederatedData(
        {
            f"client-{i:03d}": {"x": images[i], "y": work.labels[i]}
            for i in range(len(images))
        }
    )
    model = fedjax.create_model_from_haiku(
        hk.transform(lambda batch: forward(batch["x"])),
        {"x": images[0, :1], "y": work.labels[0, :1]},
        lambda batch, outputs: fedjax.metrics.unreduced_cross_entropy_loss(
            batch["y"], outputs
        ),
    )
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.model_grad(model),
        fedjax.optimizers.sgd(work.lr),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(
            batch_size=work.batch_size, num_epochs=work.epochs
        ),
    )
    start = to_haiku(work.layers, work.model)
    state = algorithm.init(
        {
            name: {"w": jnp.asarray(w), "b": jnp.asarray(b)}
            for name, (w, b) in zip(names, start, strict=True)
        }
    )
    clock.start()
    for number, chosen in enumerate(work.participants):
        keys = jax.random.split(jax.random.PRNGKey(number), len(chosen))
        ids = [f"client-{i:03d}" for i in chosen]
        clients = [
            (id_, rows, key)
            for (id_, rows), key in zip(data.get_clients(ids), keys, strict=True)
        ]
        state, _ = algorithm.apply(state, clients)
        jax.block_until_ready(state.params)
        clock.round()
    return to_torch(
        [
            (np.asarray(state.params[name]["w"]), np.asarray(state.params[name]["b"]))
            for name in names
        ],
        work.model,
    )


if __name__ == "__main__":
    main("fedjax", run, ["fedjax", "jax", "jaxlib", "numpy"])

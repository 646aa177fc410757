"""W1 with fedjax, as in its examples: `algorithms.fed_avg` over `InMemoryFederatedData`, with the default `jit` backend.

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
from work import Clock, Work, main


def run(work: Work, clock: Clock) -> Sequence[Any]:
    """Train, and return the final layers."""
    widths = [len(bias) for bias in work.layers[1::2]]
    images = work.floats()
    data = fedjax.InMemoryFederatedData(
        {f"client-{i:03d}": {"x": images[i], "y": work.labels[i]} for i in range(len(images))}
    )
    model = fedjax.create_model_from_haiku(
        hk.transform(lambda batch: hk.nets.MLP(widths, name="mlp")(batch["x"])),
        {"x": images[0, :1], "y": work.labels[0, :1]},
        lambda batch, outputs: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], outputs),
    )
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.model_grad(model),
        fedjax.optimizers.sgd(work.lr),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=work.batch_size, num_epochs=work.epochs),
    )
    names = [f"mlp/~/linear_{k}" for k in range(len(widths))]
    state = algorithm.init(
        {
            name: {"w": jnp.asarray(weight.T), "b": jnp.asarray(bias)}
            for name, weight, bias in zip(names, work.layers[::2], work.layers[1::2], strict=True)
        }
    )
    clock.start()
    for number, chosen in enumerate(work.participants):
        keys = jax.random.split(jax.random.PRNGKey(number), len(chosen))
        ids = [f"client-{i:03d}" for i in chosen]
        clients = [(id_, rows, key) for (id_, rows), key in zip(data.get_clients(ids), keys, strict=True)]
        state, _ = algorithm.apply(state, clients)
        jax.block_until_ready(state.params)
        clock.round()
    return [state.params[name][part].T for name in names for part in ("w", "b")]


if __name__ == "__main__":
    main("fedjax", run, ["fedjax", "jax", "jaxlib", "numpy"])

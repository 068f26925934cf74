# SPDX-License-Identifier: Apache-2.0
"""Prints how far float32 is from float64 after 100,000 positions of a causal layer, step by step and at once.

One line for each normalization of the keys: its name, the largest difference of `step` within one compiled
loop, of chunks, and of the parallel form, relative to the largest output. Run with `KERAS_BACKEND=jax`.
"""

import jax
import numpy as np
from naive_layers import randomize, weights_of

import lambdanet

LENGTH = 100_000
CHUNK = 5_000


def exact(layer, x):
    """The outputs for a sequence [n, c] in float64, by sums over all positions so far."""
    weights = {
        name: value.astype("float64") for name, value in weights_of(layer).items()
    }
    n = len(x)
    h, k = layer.num_heads, layer.key_dim
    x = x.astype("float64")
    queries = (x @ weights["queries/kernel"]).reshape(n, h, k)
    keys = x @ weights["keys/kernel"]
    values = x @ weights["values/kernel"]
    divisors = np.ones([n, k])
    if layer.key_normalization == "softmax":
        keys = np.exp(keys)
        divisors = np.cumsum(keys, axis=0)
    elif layer.key_normalization == "l2":
        divisors = np.sqrt(np.cumsum(keys**2, axis=0))
    lambdas = np.cumsum(keys[:, :, None] * values[:, None], axis=0)
    lambdas /= divisors[:, :, None]
    for offset, embedding in enumerate(reversed(weights["position/table"])):
        lambdas[offset:] += embedding[:, None] * values[: n - offset, None]
    return np.einsum("nhk,nkv->nhv", queries, lambdas).reshape(n, -1)


def main():
    x = np.random.default_rng(0).normal(size=[LENGTH, 6]).astype("float32")
    x[:, :2] += 1  # of another mean than zero, which sums have to keep
    for normalization in ("softmax", "l2", None):
        layer = lambdanet.LambdaLayer(
            8,
            scope=5,
            causal=True,
            key_normalization=normalization,
            use_batch_norm=False,
        )
        layer.build([1, None, 6])
        randomize(layer)
        expected = exact(layer, x)

        def step(state, frame, layer=layer):
            outputs, state = layer.step(frame[None], state)
            return state, outputs[0]

        state, steps = jax.lax.scan(step, layer.initial_state(1), x)
        chunks = []
        state = layer.initial_state(1)
        for start in range(0, LENGTH, CHUNK):
            chunk = x[None, start : start + CHUNK]
            y, state = layer(chunk, initial_state=state, return_state=True)
            chunks.append(y[0])
        scale = np.abs(expected).max()
        differences = [
            np.abs(outputs - expected).max() / scale
            for outputs in (steps, np.concatenate(chunks), layer(x[None])[0])
        ]
        print(normalization, *(f"{difference:.1e}" for difference in differences))


if __name__ == "__main__":
    main()

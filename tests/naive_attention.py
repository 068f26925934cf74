# SPDX-License-Identifier: Apache-2.0
"""Attention one query at a time in float64, the oracle of the attention layers."""

import itertools

import numpy as np


def images(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def weights_of(layer):
    """The layer's variables in float64, by the part of their names below the layer's."""
    return {w.name.split("/", 1)[1].removesuffix(":0"): w.numpy().astype(np.float64) for w in layer.weights}


def projected(layer, x, prefix=""):
    """Queries, keys and values [b, height, width, heads, depth] in float64."""
    weights = weights_of(layer)
    return [
        (x @ weights[f"{prefix}{name}/kernel"]).reshape([*x.shape[:3], layer.num_heads, -1])
        for name in ("queries", "keys", "values")
    ]


def naive_attention(queries, keys, values, embedding, sees, padding=0, place=lambda n: n):
    """Softmax attention one query at a time.

    `embedding` takes the offset m - n along both axes, `sees` the two positions; `padding` rows and columns
    of zero keys and values surround the map; `place` maps a query to the position from which offsets count.
    """
    b, height, width, h, k = queries.shape
    surround = [(0, 0), (padding, padding), (padding, padding), (0, 0), (0, 0)]
    keys, values = np.pad(keys, surround), np.pad(values, surround)
    places = list(itertools.product(range(-padding, height + padding), range(-padding, width + padding)))
    outputs = np.zeros([b, height, width, h, values.shape[-1]])
    for n in itertools.product(range(height), range(width)):
        context = [m for m in places if sees(n, m)]
        logits, seen = [], []
        row, column = place(n)
        for y, x in context:
            key = keys[:, y + padding, x + padding] + embedding(y - row, x - column)
            logits.append(np.einsum("bhk,bhk->bh", queries[:, n[0], n[1]], key) / np.sqrt(k))
            seen.append(values[:, y + padding, x + padding])
        weights = np.exp(np.array(logits) - np.max(logits, axis=0))
        outputs[:, n[0], n[1]] = np.einsum("mbh,mbhv->bhv", weights / weights.sum(axis=0), seen)
    return outputs.reshape([b, height, width, -1])


def halves(layer):
    """The embedding of an offset: one half for height, one for width."""
    rows, columns = weights_of(layer)["height_table"], weights_of(layer)["width_table"]
    center = len(rows) // 2
    return lambda dy, dx: np.concatenate([rows[dy + center], columns[dx + center]])


def sums(layer):
    """The embedding of an offset: one for height plus one for width."""
    rows, columns = weights_of(layer)["height_table"], weights_of(layer)["width_table"]
    center = len(rows) // 2
    return lambda dy, dx: rows[dy + center] + columns[dx + center]


def naive_halo_attention(layer, x):
    """Computes every query, and keeps those of the layer's strides."""
    block, halo, strides = layer.block_size, layer.halo_size, layer.strides

    def sees(n, m):
        first = [i // block * block for i in n]
        return all(-halo <= j - start < block + halo for j, start in zip(m, first, strict=True))

    def place(n):  # compact offsets count a block's second query to be next to its first
        return [i // block * block + i % block // strides for i in n] if layer.compact_offsets else n

    padding = 0 if layer.mask_padding else block + halo
    embedding = sums(layer) if layer.positions == "added" else halves(layer)
    outputs = naive_attention(*projected(layer, x), embedding, sees, padding, place)
    return outputs[:, ::strides, ::strides]

# SPDX-License-Identifier: Apache-2.0
"""Sizes of the position lambdas that tests compute, and their values by the equations of the paper."""

import numpy as np
import tensorflow as tf

from lambdanet.ops import reference


def random_case(seed, spatial, scope, b=2, h=2, k=3, v=4, u=None, context=None):
    rng = np.random.default_rng(seed)
    depth = [] if u is None else [u]
    return (
        rng.normal(size=[b, *spatial, h, k]),
        rng.normal(size=[b, *(context or spatial), v, *depth]),
        rng.normal(size=[*scope, k, *depth]),
    )


CASES = {
    "image": {"spatial": [5, 4], "scope": [3, 3]},
    "scope larger than the map": {"spatial": [3, 4], "scope": [9, 11]},
    "scope of one": {"spatial": [3, 4], "scope": [1, 1]},
    "one row": {"spatial": [1, 5], "scope": [3, 3]},
    "intra-depth": {"spatial": [4, 3], "scope": [3, 5], "u": 2},
    "sequence": {"spatial": [7], "scope": [5]},
    "video": {"spatial": [2, 3, 2], "scope": [3, 3, 3], "u": 2},
    "another context": {"spatial": [3, 4], "scope": [5, 5], "context": [5, 2]},
    "strides": {"spatial": [2, 3], "scope": [3, 5], "context": [4, 5], "strides": 2},
    "dilation": {"spatial": [5, 6], "scope": [3, 3], "dilation": 2},
    "axes of their own": {
        "spatial": [4, 2, 5],
        "scope": [1, 3, 5],
        "context": [4, 4, 8],
        "strides": (1, 2, 2),
        "dilation": (1, 1, 2),
    },
    "image with axes of its own": {
        "spatial": [4, 3],
        "scope": [3, 5],
        "context": [4, 6],
        "strides": (1, 2),
        "dilation": (2, 1),
        "u": 2,
    },
    "both": {
        "spatial": [4],
        "scope": [3],
        "context": [8],
        "strides": 2,
        "dilation": 3,
        "u": 2,
    },
}


def average_pool(x, windows):
    """Averages float64 maps [b, *spatial, ...] over windows: (pool_size, strides) of each axis."""
    for axis, (pool_size, strides) in enumerate(windows, start=1):
        rows = tf.eye(x.shape[axis], dtype=tf.float64)[tf.newaxis]
        means = tf.nn.avg_pool1d(rows, pool_size, strides, "SAME")[0]
        x = tf.experimental.numpy.moveaxis(
            tf.tensordot(means, x, [[1], [axis]]), 0, axis
        )
    return x


def flat(x, rank):
    return tf.reshape(x, [x.shape[0], -1, *x.shape[rank + 1 :]])


def reference_term(
    queries, values, table, strides=1, dilation=1, keys=None, mask=None, axis=None
):
    """`reference.apply_lambdas`, or its position term alone, on maps; [b, *query_size, h, v]."""
    rank = queries.ndim - 3
    if values.ndim == rank + 2:
        values, table = values[..., tf.newaxis], table[..., tf.newaxis]
    size = queries.shape[1 : rank + 1], values.shape[1 : rank + 1]
    embeddings = reference.gather_embeddings(table, *size, strides, dilation, axis)
    if axis is not None:
        pairs = reference.causal_mask(*size, axis, strides)
        mask = pairs if mask is None else pairs & mask.astype(bool)
    if keys is None:
        outputs = reference.apply_position_lambdas(
            flat(queries, rank), flat(values, rank), embeddings
        )
    else:
        outputs = reference.apply_lambdas(
            flat(queries, rank), keys, flat(values, rank), embeddings, mask
        )
    return tf.reshape(outputs, [*queries.shape[:-1], -1])


def with_content(queries, values, table, content, **geometry):
    return reference_term(queries, values, table, **geometry) + tf.einsum(
        "b...hk,bkv->b...hv", queries, content
    )

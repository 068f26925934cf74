# SPDX-License-Identifier: Apache-2.0
"""Sizes of the position lambdas that tests compute."""

import numpy as np
import tensorflow as tf


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


def average_pool(x, rank, pool_size, strides):
    """Averages float64 maps [b, *spatial, ...] over windows, along one of `rank` axes after the other."""
    for axis in range(1, rank + 1):
        rows = tf.eye(x.shape[axis], dtype=tf.float64)[tf.newaxis]
        means = tf.nn.avg_pool1d(rows, pool_size, strides, "SAME")[0]
        x = tf.experimental.numpy.moveaxis(
            tf.tensordot(means, x, [[1], [axis]]), 0, axis
        )
    return x

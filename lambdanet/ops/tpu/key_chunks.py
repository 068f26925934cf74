# SPDX-License-Identifier: Apache-2.0
"""The position lambda with the context contracted first, a few keys at a time, as suits a TPU.

A TPU keeps arrays in tiles of 8 x 128 numbers and multiplies 128 x 128 matrices. A product with the 4 x 16
queries of one position leaves its matrix unit idle, and where two steps disagree on the axis along the 128
lanes, all is copied between them. So only the context is contracted by matrix products, wide ones. Queries
are multiplied elementwise, with h and v as outer axes and positions last, and the sum over the groups of keys
and then within a group is one pass over memory. The compiler lays examples or positions along the lanes,
whichever fill them.
"""

import math

import tensorflow as tf

from lambdanet.tensors import Size, at_least_float32, pad, sizes

_GROUPS = 4


def lambda_first(
    queries: tf.Tensor,
    values: tf.Tensor,
    embeddings: tf.Tensor,
    blocks: Size,
    content: tf.Tensor | None = None,
) -> tf.Tensor:
    """Contracts with the embeddings of all pairs (n, m), summing over m first.

    Args:
      queries: [b * blocks, n, h, k].
      values: [b * blocks, m, v].
      embeddings: [n, k, m].
      blocks: how many blocks of queries an example has; kept apart, so that examples can fill the lanes.
      content: [b, k, v], to add to the lambdas of all positions.

    Returns:
      [b * blocks, n, h, v].
    """
    _, n, h, k = sizes(queries)
    _, m, v = sizes(values)
    rest = -n % 8 if isinstance(n, int) else 0  # else the compiler pads, and copies every product
    groups = math.gcd(k, _GROUPS)
    queries = tf.reshape(pad(queries, 1, 0, rest), [-1, blocks, n + rest, h, groups, k // groups])
    embeddings = tf.reshape(pad(embeddings, 0, 0, rest), [n + rest, groups, k // groups, m])
    values = tf.reshape(values, [-1, blocks, m, v])
    if content is not None:
        contents = tf.transpose(tf.reshape(content, [-1, groups, k // groups, v]), [0, 1, 3, 2])
    terms = []
    for group in range(groups):
        lambdas = tf.einsum("nkm,bcmv->bcvkn", embeddings[:, group], values)
        if content is not None:
            lambdas += contents[:, group, tf.newaxis, ..., tf.newaxis]
        by_head = tf.transpose(queries[..., group, :], [0, 1, 3, 4, 2])[:, :, :, tf.newaxis]
        terms.append(at_least_float32(by_head * lambdas[:, :, tf.newaxis]))  # [b, c, h, v, k, n]
    outputs = tf.cast(tf.reduce_sum(tf.add_n(terms), axis=4), queries.dtype)
    return tf.reshape(tf.transpose(outputs[..., :n], [0, 1, 4, 2, 3]), [-1, n, h, v])

# SPDX-License-Identifier: Apache-2.0
"""Products of queries, values and the embeddings of pairs of positions, in either order (Figure 3).

Matrix products and transpositions are written out instead of left to einsum, so that the backward pass
transposes the large intermediate once for both of its gradients.
"""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from lambdanet import tensors
from lambdanet.ops.recompute import in_chunks
from lambdanet.tensors import Size


@dataclasses.dataclass(frozen=True, eq=False)
class Operands:
    """Blocks of queries and the context of each, which share one table of pairs.

    Attributes:
      queries: [b * blocks, n, h, k].
      values: [b * blocks, m, v], where m runs over positions and intra-depth.
      embeddings: [n, k, m].
      content: a content lambda to add to all position lambdas, [b, k, v], or None.
      blocks: blocks per example.
    """

    queries: tf.Tensor
    values: tf.Tensor
    embeddings: tf.Tensor
    content: tf.Tensor | None = None
    blocks: Size = 1


Product = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]


def contract(multiply: Product, operands: Operands, chunk: int | None = None) -> tf.Tensor:
    """Contracts operands, with their content lambda as k more context positions: [b * blocks, n, h, v].

    Args:
      multiply: `query_first`, `lambda_first` or a function like them.
      operands: blocks of queries and their context.
      chunk: blocks of the batch to compute at a time; None for all at once.
    """
    values, embeddings = operands.values, operands.embeddings
    if operands.content is not None:
        values, embeddings = _with_content(values, embeddings, operands.content, operands.blocks)
    if chunk is None:
        return multiply(operands.queries, values, embeddings)
    shape = [*tensors.sizes(operands.queries)[1:3], tensors.sizes(values)[2]]
    return in_chunks(multiply, operands.queries, values, embeddings, chunk, shape)


def query_first(queries: tf.Tensor, values: tf.Tensor, embeddings: tf.Tensor) -> tf.Tensor:
    """Contracts k first, n h m (k + v) multiply-adds per example.

    The shapes are [b, n, h, k], [b, m, v], [n, k, m] -> [b, n, h, v].
    """
    b, n, h, k = tensors.sizes(queries)
    _, m, v = tensors.sizes(values)
    similarity = tf.matmul(tf.reshape(tf.transpose(queries, [1, 0, 2, 3]), [n, b * h, k]), embeddings)
    similarity = tf.transpose(tf.reshape(similarity, [n, b, h, m]), [1, 0, 2, 3])  # [b, n, h, m]
    outputs = tf.matmul(tf.reshape(similarity, [b, n * h, m]), values)
    return tf.reshape(outputs, [b, n, h, v])


def lambda_first(queries: tf.Tensor, values: tf.Tensor, embeddings: tf.Tensor) -> tf.Tensor:
    """Contracts m first, n k v (m + h) multiply-adds per example; shapes as in `query_first`."""
    b, n, _, k = tensors.sizes(queries)
    _, m, v = tensors.sizes(values)
    context = tf.reshape(tf.transpose(values, [1, 0, 2]), [m, b * v])
    lambdas = tf.matmul(tf.reshape(embeddings, [n * k, m]), context)
    lambdas = tf.transpose(tf.reshape(lambdas, [n, k, b, v]), [2, 0, 1, 3])  # [b, n, k, v]
    return tf.matmul(queries, lambdas)


def _with_content(values, embeddings, content, blocks):
    """Joins a content lambda [b, k, v] to the context, as k more positions with the columns of the identity.

    Embeddings [n, p * k, m] may be for queries of p positions side by side.
    """
    n, depth, _ = tensors.sizes(embeddings)
    k = content.shape[1]
    columns = tf.tile(tf.eye(k, dtype=embeddings.dtype), [depth // k, 1])
    embeddings = tf.concat([embeddings, tf.broadcast_to(columns, [n, depth, k])], axis=2)
    return tf.concat([values, tf.repeat(content, blocks, axis=0)], axis=1), embeddings

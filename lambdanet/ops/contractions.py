# SPDX-License-Identifier: Apache-2.0
"""Products of queries, values and the embeddings of pairs of positions, in either order."""

import tensorflow as tf

from lambdanet import device, tensors


def apply_embeddings(
    queries: tf.Tensor, values: tf.Tensor, embeddings: tf.Tensor, query_first: bool = True
) -> tf.Tensor:
    """Contracts with the embeddings of all pairs (n, m), in either order (Figure 3 of the paper).

    Args:
      queries: [b, n, h, k].
      values: [b, m, v].
      embeddings: [n, k, m]. For u > 1, let m run over positions and intra-depth together.
      query_first: contract k first, n h m (k + v) multiply-adds an example, and not m first,
        n k v (m + h).

    Returns:
      [b, n, h, v].
    """
    b, n, h, k = tensors.sizes(queries)
    _, m, v = tensors.sizes(values)
    if query_first and device.kind() == "TPU":  # whose compiler knows best where to transpose
        similarity = tf.einsum("bnhk,nkm->bhnm", queries, embeddings)
        return tf.einsum("bhnm,bmv->bnhv", similarity, values)
    # Matrix products and transpositions are written out, and not left to einsum, so that the backward pass
    # transposes the large intermediate once for both of its gradients.
    if query_first:
        similarity = tf.matmul(tf.reshape(tf.transpose(queries, [1, 0, 2, 3]), [n, b * h, k]), embeddings)
        similarity = tf.transpose(tf.reshape(similarity, [n, b, h, m]), [1, 0, 2, 3])
        outputs = tf.matmul(tf.reshape(similarity, [b, n * h, m]), values)
        return tf.reshape(outputs, [b, n, h, v])
    lambdas = tf.matmul(
        tf.reshape(embeddings, [n * k, m]), tf.reshape(tf.transpose(values, [1, 0, 2]), [m, b * v])
    )
    return tf.matmul(queries, tf.transpose(tf.reshape(lambdas, [n, k, b, v]), [2, 0, 1, 3]))


def with_content(values: tf.Tensor, embeddings: tf.Tensor, content: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Joins a content lambda to the context, as k more positions whose embeddings are those of an identity.

    Args:
      values: [b * blocks, m, v].
      embeddings: [n, p * k, m], for queries of p positions side by side.
      content: [b, k, v].

    Returns:
      values [b * blocks, m + k, v] and embeddings [n, p * k, m + k].
    """
    n, depth, _ = tensors.sizes(embeddings)
    k = content.shape[1]
    columns = tf.tile(tf.eye(k, dtype=embeddings.dtype), [depth // k, 1])
    embeddings = tf.concat([embeddings, tf.broadcast_to(columns, [n, depth, k])], axis=2)
    num_blocks = tensors.sizes(values)[0] // tensors.sizes(content)[0]
    return tf.concat([values, tf.repeat(content, num_blocks, axis=0)], axis=1), embeddings

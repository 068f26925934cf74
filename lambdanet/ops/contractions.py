# SPDX-License-Identifier: Apache-2.0
"""Products of queries, values and the embeddings of pairs of positions, in either order (Figure 3).

Matrix products and transpositions are written out instead of left to einsum, so that the backward pass
transposes the large intermediate once for both of its gradients.
"""

import dataclasses
from collections.abc import Callable

from lambdanet import backend as K
from lambdanet.backend import tensors
from lambdanet.backend.tensors import Size
from lambdanet.ops.recompute import in_chunks


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

    queries: K.Tensor
    values: K.Tensor
    embeddings: K.Tensor
    content: K.Tensor | None = None
    blocks: Size = 1


Product = Callable[[K.Tensor, K.Tensor, K.Tensor], K.Tensor]


def contract(multiply: Product, operands: Operands, chunk: int | None = None) -> K.Tensor:
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


def query_first(queries: K.Tensor, values: K.Tensor, embeddings: K.Tensor) -> K.Tensor:
    """Contracts k first, n h m (k + v) multiply-adds per example.

    The shapes are [b, n, h, k], [b, m, v], [n, k, m] -> [b, n, h, v].
    """
    b, n, h, k = tensors.sizes(queries)
    _, m, v = tensors.sizes(values)
    similarity = K.matmul(K.reshape(K.transpose(queries, [1, 0, 2, 3]), [n, b * h, k]), embeddings)
    similarity = K.transpose(K.reshape(similarity, [n, b, h, m]), [1, 0, 2, 3])  # [b, n, h, m]
    outputs = K.matmul(K.reshape(similarity, [b, n * h, m]), values)
    return K.reshape(outputs, [b, n, h, v])


def lambda_first(queries: K.Tensor, values: K.Tensor, embeddings: K.Tensor) -> K.Tensor:
    """Contracts m first, n k v (m + h) multiply-adds per example; shapes as in `query_first`."""
    b, n, _, k = tensors.sizes(queries)
    _, m, v = tensors.sizes(values)
    context = K.reshape(K.transpose(values, [1, 0, 2]), [m, b * v])
    lambdas = K.matmul(K.reshape(embeddings, [n * k, m]), context)
    lambdas = K.transpose(K.reshape(lambdas, [n, k, b, v]), [2, 0, 1, 3])  # [b, n, k, v]
    return K.matmul(queries, lambdas)


def _with_content(values, embeddings, content, blocks):
    """Joins a content lambda [b, k, v] to the context, as k more positions with the columns of the identity.

    Embeddings [n, p * k, m] may be for queries of p positions side by side.
    """
    n, depth, _ = tensors.sizes(embeddings)
    k = content.shape[1]
    columns = K.tile(K.eye(k, dtype=embeddings.dtype), [depth // k, 1])
    embeddings = K.concatenate([embeddings, K.broadcast_to(columns, [n, depth, k])], axis=2)
    return K.concatenate([values, K.repeat(content, blocks, axis=0)], axis=1), embeddings

# SPDX-License-Identifier: Apache-2.0
"""Relative position embeddings: from a small table of offsets to one embedding per pair of positions.

A table has one row per offset `m - n` from a query position n to a context position m, so interactions are
translation equivariant (Bello 2021, section 3.3). Along an axis of length r it holds the offsets
-(r // 2) ... r // 2; beyond them the embedding is zero (section 3.4).
"""

import dataclasses
from collections.abc import Callable, Sequence

from lambdanet import backend as K
from lambdanet.backend import Tensor, tensors
from lambdanet.backend.tensors import Size

_LARGEST_ONE_HOT = 2**22


@dataclasses.dataclass(frozen=True)
class PairAxis:
    """The queries and the context positions along one axis, every pair of which has an embedding.

    Attributes:
      num_queries: the number of queries; query i is at position `strides * i`.
      num_context: the number of context positions.
      first_context: the first context position, relative to the first query.
      strides: the distance between queries.
      dilation: the distance between offsets; positions between them have the embedding zero.
      pool_size: the positions that each query covers, its own and the following ones.
    """

    num_queries: Size
    num_context: Size
    first_context: Size = 0
    strides: int = 1
    dilation: int = 1
    pool_size: int = 1


Read = Callable[[Tensor, PairAxis], Tensor]


@tensors.cache_by_size
def offset_rows(axis: PairAxis, r: Size) -> Tensor:
    """Returns the row of a table of length r for each pair of positions along an axis; -1 if out of scope.

    The shape is [num_queries * pool_size, num_context].
    """
    context = axis.first_context + K.arange(axis.num_context)
    queries = axis.strides * K.arange(axis.num_queries)[:, K.newaxis] + K.arange(
        axis.pool_size
    )
    offsets = context[K.newaxis] - K.reshape(queries, [-1])[:, K.newaxis]
    rows = offsets // axis.dilation + r // 2
    return K.where((offsets % axis.dilation == 0) & (rows >= 0) & (rows < r), rows, -1)


def read_rows(table: Tensor, axis: PairAxis) -> Tensor:
    """Reads the rows of all pairs along an axis, zeros out of scope: [b, r, p, q] -> [b, n, p, m, q].

    Uses a product with one-hot rows, whose gradient is another product: many times faster than a gather,
    whose gradient is a scatter-add. Long axes, with large one-hot rows, use a gather all the same.
    """
    r = tensors.sizes(table)[1]
    rows = offset_rows(axis, r)  # [n, m]
    n, m = tensors.sizes(rows)
    if (
        all(isinstance(size, int) for size in (n, m, r))
        and n * m * r <= _LARGEST_ONE_HOT
    ):
        return K.einsum("nmr,brpq->bnpmq", K.one_hot(rows, r, dtype=table.dtype), table)
    b, _, p, q = tensors.sizes(table)
    padded = K.pad(K.reshape(table, [b, r, p * q]), [[0, 0], [1, 0], [0, 0]])
    pairs = K.reshape(K.take(padded, rows + 1, axis=1), [b * n, m, p, q])
    return K.reshape(K.transpose(pairs, [0, 2, 1, 3]), [b, n, p, m, q])


@tensors.constant_folding
def expand_table(
    table: Tensor, axes: Sequence[PairAxis], read_first: Read = read_rows
) -> Tensor:
    """Expands a relative table into embeddings for every pair of query and context positions.

    Args:
      table: [r, ..., k] or [r, ..., k, u], one axis of offsets per spatial axis.
      axes: the pairs along each spatial axis.
      read_first: reads the first of several axes, after the others, which `read_rows` reads.

    Returns:
      [n, k, m] (or [n, k, m * u]): n and m run over the flattened query and context positions, and k over
      the positions of a pool and the depth.
    """
    rank = len(axes)
    pools = [axis.pool_size for axis in axes]
    *scope, k, u = [*tensors.sizes(table, has_batch=False), 1][: rank + 2]
    # From the last axis to the first: [..., r, p, q] -> [..., n * p, m * q], where p ends in k and q in u.
    p = k
    q = u
    for number, axis in reversed(list(enumerate(axes))):
        table = K.reshape(table, [tensors.product(scope[:number]), scope[number], p, q])
        table = (read_rows if number or rank == 1 else read_first)(table, axis)
        p = axis.num_queries * axis.pool_size * p
        q = axis.num_context * q
    query_size = [axis.num_queries for axis in axes]
    if max(pools) > 1:  # positions of a pool next to the depth
        by_pool = [size for axis in axes for size in (axis.num_queries, axis.pool_size)]
        table = K.reshape(table, [*by_pool, k, q])
        table = K.transpose(
            table,
            [*range(0, 2 * rank, 2), *range(1, 2 * rank, 2), 2 * rank, 2 * rank + 1],
        )
    return K.reshape(
        table, [tensors.product(query_size), tensors.product(pools) * k, q]
    )


@tensors.constant_folding
def complete_causal_table(table: Tensor, axis: int, has_past: bool) -> Tensor:
    """Adds zeros for the positions that a query does not see, so that every form can use a causal table.

    Args:
      table: [..., r, ..., k, u], which ends with the offset 0 along its causal axis.
      axis: the number of that axis.
      has_past: whether the context begins before the first query, with the first position that it sees. Its
        offsets, counted from there, are 0 and more, so that the zeros are those of the offsets below.

    Returns:
      [..., 2 r - 1, ..., k, u].
    """
    zeros = tensors.sizes(table, has_batch=False)[axis] - 1
    if has_past:
        return tensors.pad(table, axis, zeros, 0)
    return tensors.pad(table, axis, 0, zeros)


@tensors.constant_folding
def resize_table(table: Tensor, lengths: Sequence[Size]) -> Tensor:
    """Interpolates a table linearly to other odd lengths, keeping offset 0 and both ends in place.

    Args:
      table: [r, ..., k] or [r, ..., k, u].
      lengths: the new length along each axis of offsets.
    """
    # Each axis has a letter: with an ellipsis, TensorFlow 2.20 returns wrong gradients in half precision, by
    # oneDNN on processors with AMX or AVX512-FP16 instructions.
    axes = "abcde"[: len(table.shape)]
    for axis, length, r in zip(axes, lengths, list(table.shape), strict=False):
        step = (r - 1) / K.cast(K.maximum(length - 1, 1), "float32")
        positions = K.arange(length, dtype="float32") * step
        distances = K.abs(positions[:, K.newaxis] - K.arange(r, dtype="float32"))
        weights = K.cast(K.maximum(1.0 - distances, 0.0), table.dtype)  # [length, r]
        table = K.einsum(f"{axes},l{axis}->{axes.replace(axis, 'l')}", table, weights)
    return table

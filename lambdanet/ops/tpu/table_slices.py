# SPDX-License-Identifier: Apache-2.0
"""Reading a relative table as slices along the lanes."""

from collections.abc import Sequence

from lambdanet import backend as K
from lambdanet.backend.tensors import sizes
from lambdanet.ops.relative_positions import PairAxis, read_rows


def read_slices(table: K.Tensor, axis: PairAxis) -> K.Tensor:
    """Reads the first of several axes of a table: [1, r, p, q] -> [n, p, m, q], or as `read_rows` does.

    Slices are for known sizes, a dilation of 1 and more axes inside.
    """
    inner, r, p, q = sizes(table)
    known = all(isinstance(size, int) for size in (axis.num_queries, axis.num_context, axis.first_context, r))
    if not known or axis.dilation > 1:
        return read_rows(table, axis)
    queries = [axis.strides * i + o for i in range(axis.num_queries) for o in range(axis.pool_size)]
    return shifted_slices(table[0], [n - axis.first_context for n in queries], axis.num_context)


def shifted_slices(table: K.Tensor, positions: Sequence[int], num_context: int) -> K.Tensor:
    """Reads the rows of a table that queries at these positions use for the context positions from 0 on.

    Neighboring context positions use neighboring rows, so with the rows of the table side by side, those of a
    query are one slice.

    Args:
      table: [r, p, q], for the offsets -(r // 2) ... r // 2.
      positions: the positions of the queries.
      num_context: m.

    Returns:
      [n, p, m, q].
    """
    r, p, q = sizes(table)
    before, after = max(*positions, r // 2) - r // 2, max(num_context - 1 - min(positions) - r // 2, 0)
    table = K.pad(K.transpose(table, [1, 0, 2]), [[0, 0], [before, after], [0, 0]])
    table = K.reshape(table, [p, (before + r + after) * q])
    starts = [(before + r // 2 - position) * q for position in positions]
    slices = [table[:, start : start + num_context * q] for start in starts]
    return K.reshape(K.stack(slices), [len(positions), p, num_context, q])

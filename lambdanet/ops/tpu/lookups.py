# SPDX-License-Identifier: Apache-2.0
"""Reads windows of maps and rows of relative tables without gathers."""

from collections.abc import Sequence

from lambdanet import backend as K
from lambdanet.backend import Tensor
from lambdanet.backend.tensors import product, sizes
from lambdanet.ops.blocking import BlockAxis, num_blocks, window_positions
from lambdanet.ops.relative_positions import PairAxis, read_rows


def read_slices(table: Tensor, axis: PairAxis) -> Tensor:
    """Reads the first of several axes of a table: [1, r, p, q] -> [n, p, m, q], or as `read_rows` does.

    Slices are for known sizes, a dilation of 1 and more axes inside. Neighboring context positions use
    neighboring rows, so with the rows of the table side by side, the rows of a query are one slice.
    """
    _, r, p, q = sizes(table)
    known = all(
        isinstance(size, int)
        for size in (axis.num_queries, axis.num_context, axis.first_context, r)
    )
    if not known or axis.dilation > 1:
        return read_rows(table, axis)
    queries = [
        axis.strides * i + o
        for i in range(axis.num_queries)
        for o in range(axis.pool_size)
    ]
    positions = [n - axis.first_context for n in queries]
    num_context = axis.num_context
    before = max(*positions, r // 2) - r // 2
    after = max(num_context - 1 - min(positions) - r // 2, 0)
    rows = K.pad(K.transpose(table[0], [1, 0, 2]), [[0, 0], [before, after], [0, 0]])
    rows = K.reshape(rows, [p, (before + r + after) * q])
    starts = [(before + r // 2 - position) * q for position in positions]
    slices = [rows[:, start : start + num_context * q] for start in starts]
    return K.reshape(K.stack(slices), [len(positions), p, num_context, q])


def multiply_windows(x: Tensor, axes: Sequence[BlockAxis]) -> Tensor:
    """Collects windows along one axis after the other, in the precision of products: as `gather_windows`.

    Letters: i, j, k blocks, p, q, r places in a window and x, y, z positions along each axis.
    """
    blocks = "ijk"
    windows = "pqr"
    positions = "xyz"
    b, *size, c = sizes(x)
    with K.name_scope("windows"):  # what a profile calls it
        for n, axis in enumerate(axes):
            rows = K.one_hot(window_positions(axis, size[n]), size[n], dtype=x.dtype)
            # [b, count, window, size]: one per example, so that the compiler needs no copy.
            rows = K.broadcast_to(rows, [b, *sizes(rows)])
            before = blocks[:n][::-1] + windows[:n] + positions[n : len(axes)]
            after = (
                blocks[: n + 1][::-1] + windows[: n + 1] + positions[n + 1 : len(axes)]
            )
            x = K.einsum(
                f"b{blocks[n]}{windows[n]}{positions[n]},b{before}c->b{after}c", rows, x
            )
        return K.reshape(
            x, [b * num_blocks(axes), product([axis.num_context for axis in axes]), c]
        )

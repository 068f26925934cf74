# SPDX-License-Identifier: Apache-2.0
"""Extracting windows by products with one-hot rows, which transpose in the matrix unit."""

from collections.abc import Sequence

from lambdanet import backend as K
from lambdanet.backend.tensors import product, sizes
from lambdanet.ops.blocking import BlockAxis, num_blocks, window_positions


def multiply_windows(x: K.Tensor, axes: Sequence[BlockAxis]) -> K.Tensor:
    """Collects windows along one axis after the other, in the precision of products: as `gather_windows`.

    Letters: i, j, k blocks, p, q, r places in a window and x, y, z positions along each axis.
    """
    blocks, windows, positions = "ijk", "pqr", "xyz"
    b, *size, c = sizes(x)
    with K.name_scope("windows"):  # what a profile calls it
        for n, axis in enumerate(axes):
            rows = K.one_hot(window_positions(axis, size[n]), size[n], dtype=x.dtype)
            # [b, count, window, size]: one per example, so that the compiler needs no copy.
            rows = K.broadcast_to(rows, [b, *sizes(rows)])
            before = blocks[:n][::-1] + windows[:n] + positions[n : len(axes)]
            after = blocks[: n + 1][::-1] + windows[: n + 1] + positions[n + 1 : len(axes)]
            x = K.einsum(f"b{blocks[n]}{windows[n]}{positions[n]},b{before}c->b{after}c", rows, x)
        return K.reshape(x, [b * num_blocks(axes), product([axis.num_context for axis in axes]), c])

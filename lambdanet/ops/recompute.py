# SPDX-License-Identifier: Apache-2.0
"""Applying a function to a batch in chunks, so that its intermediate results never all exist at once."""

from collections.abc import Callable, Sequence

from lambdanet import backend as K
from lambdanet.backend.tensors import Size, ceil_div, pad, sizes


def in_chunks(
    function: Callable[[K.Tensor, K.Tensor, K.Tensor], K.Tensor],
    x: K.Tensor,
    y: K.Tensor,
    shared: K.Tensor,
    chunk: int,
    shape: Sequence[Size],
) -> K.Tensor:
    """Computes `function(x, y, shared)` for `chunk` examples at a time, and again in the backward pass.

    Only inputs and outputs are kept between the two passes (Chen et al. 2016), so the largest intermediate is
    that of one chunk; chunks that fit into a cache can make up for computing them twice.

    Args:
      function: maps x [chunk, ...], y [chunk, ...] and `shared` to [chunk, ...], each example by itself.
      x, y: [b, ...].
      shared: the input that all examples use; its gradient is the sum over them.
      chunk: examples per call; b is padded with zeros to a multiple of it.
      shape: the shape of one example's result; that of all is [b, *shape].
    """
    b = sizes(x)[0]
    count = ceil_div(b, chunk)

    def split(z):
        return K.reshape(pad(z, 0, 0, count * chunk - b), [count, chunk, *sizes(z)[1:]])

    outputs = K.map_recomputed(function, split(x), split(y), shared, count)
    return K.reshape(outputs, [count * chunk, *shape])[:b]

# SPDX-License-Identifier: Apache-2.0
"""Position lambdas of small maps, with the queries of eight positions as one block-diagonal matrix.

The queries of a position are a matrix of h x k, 4 x 16, which leaves the matrix unit idle. The queries of
eight positions, each in its own columns and zero elsewhere, are 32 x 128 and need no more of its time. The
compiler then computes lambdas and outputs in one pass, and the lambdas never reach memory.

Letters: g positions of a group, j groups, r = h * g rows, c = g * k columns; else as in `ops.reference`.
"""

import dataclasses

from lambdanet import backend as K
from lambdanet.backend import Tensor
from lambdanet.backend.device import Device, Speed
from lambdanet.backend.tensors import at_least_float32, pad, product, sizes
from lambdanet.ops.position_term import Form, PositionTerm, Sizes, cut_axes
from lambdanet.ops.relative_positions import expand_table
from lambdanet.ops.tpu import LANES
from lambdanet.ops.tpu.lookups import read_slices

GROUP = 8  # positions: their rows of one head fill a tile
# 10 x 10 to 28 x 28; the cost model's forms are faster outside
POSITIONS = range(100, 785)
# On smaller maps, and with a gradient, pools are first.
POOLED_POSITIONS = range(576, 785)
# Of the map; with less, most of the products with all positions are zero.
MIN_SCOPE = 0.8
MAX_HEADS = 8
MAX_FILTERS = 512  # h * v; the products that move numbers grow with the square


@dataclasses.dataclass(frozen=True)
class BlockDiagonal(Form):
    """Computes lambdas and outputs of eight positions in one pass, with the content and the pool."""

    def seconds(self, sizes: Sizes, speed: Speed) -> float:
        return 0.0  # the fastest wherever it is a candidate

    def apply(self, term: PositionTerm, device: Device) -> Tensor:
        return _apply(term)


def candidates(sizes: Sizes) -> list[Form]:
    """Applicable where the map is about as large as the scope and eight queries fill a tile."""
    is_pooled = sizes.geometry.has_pool
    n = product(sizes.query_size)
    if sizes.query_size != sizes.context_size or not sizes.known:
        return []
    # The gradient of the padding takes what is saved.
    if sizes.needs_gradient and (is_pooled or n % GROUP):
        return []
    axes = sizes.geometry.along(len(sizes.scope))
    sides = zip(sizes.scope, sizes.query_size, axes, strict=True)
    reach = min(axis.dilation * r / side for r, side, axis in sides)
    fits = (
        GROUP * sizes.k == LANES
        and sizes.h <= MAX_HEADS
        and sizes.h * sizes.v <= MAX_FILTERS
    )
    fits = fits and sizes.v <= LANES and reach >= MIN_SCOPE
    return (
        [BlockDiagonal()]
        if fits and n in (POOLED_POSITIONS if is_pooled else POSITIONS)
        else []
    )


def _apply(term: PositionTerm) -> Tensor:
    """Applies the position lambdas to their queries: [b, *output_size, h, v]."""
    b, *query_size, h, k = sizes(term.queries)
    n = product(query_size)
    v = term.values.shape[-2]
    # [n, k, m * u]
    embeddings = expand_table(term.table, cut_axes(term, None), read_slices)
    values = K.reshape(term.values_by_depth(), [b, embeddings.shape[2], v])
    embeddings = K.reshape(
        pad(embeddings, 0, 0, -n % GROUP), [-1, GROUP * k, embeddings.shape[2]]
    )
    content = K.zeros([b, k, v], values.dtype) if term.content is None else term.content
    queries = _spread(K.reshape(term.queries, [b, n, h, k]))  # [j, b, h, c]
    # [j, b, h, g, v]
    outputs = _multiply(queries, values, embeddings, K.tile(content, [1, GROUP, 1]))
    identity = K.reshape(K.eye(h * v, dtype=outputs.dtype), [h, v, h * v])
    # A product: faster than a copy.
    outputs = K.einsum("jbhgv,hvd->bjgd", outputs, identity)
    outputs = K.reshape(
        K.reshape(outputs, [b, -1, h * v])[:, :n], [b, *query_size, h, v]
    )
    return term.geometry.pool(outputs)


def _spread(queries: Tensor) -> Tensor:
    """[b, n, h, k] -> [j, b, h, c], by a product with ones and zeros, which is faster than a copy."""
    b, n, h, k = sizes(queries)
    columns = GROUP * k
    identity = K.reshape(
        K.eye(columns * h, dtype=queries.dtype), [GROUP, h, k, columns * h]
    )
    identity = K.reshape(
        K.transpose(identity, [3, 1, 0, 2]), [GROUP * h * k, h, columns]
    )
    queries = K.reshape(pad(queries, 1, 0, -n % GROUP), [b, -1, columns * h])
    return K.einsum("bjq,qhc->jbhc", queries, identity)


@K.custom_gradient
def _multiply(
    queries: Tensor, values: Tensor, embeddings: Tensor, content: Tensor
) -> tuple[Tensor, K.Gradient]:
    """[j, b, h, c], [b, m, v], [j, c, m] and [b, c, v] -> [j, b, h, g, v].

    The gradient computes the lambdas again, with their axes in another order: of two equal products the
    compiler would keep the first in memory, which takes longer.
    """
    j, b, h, columns = sizes(queries)
    v = sizes(values)[2]
    # [g, c]
    mask = K.repeat(K.eye(GROUP, dtype=queries.dtype), columns // GROUP, axis=1)
    blocks = K.reshape(queries[:, :, :, K.newaxis] * mask, [j, b, h * GROUP, columns])
    lambdas = K.einsum("jcm,bmv->jbvc", embeddings, values) + K.transpose(
        content, [0, 2, 1]
    )
    outputs = K.einsum("jbrc,jbvc->jbrv", blocks, lambdas)

    def grad(upstream: Tensor) -> tuple[Tensor, ...]:
        upstream = K.reshape(upstream, [j, b, h * GROUP, v])
        lambdas = K.einsum("bmv,jcm->jbcv", values, embeddings) + content
        by_blocks = K.reshape(
            K.einsum("jbrv,jbcv->jbrc", upstream, lambdas), [j, b, h, GROUP, columns]
        )
        by_lambdas = K.einsum("jbrc,jbrv->jbvc", blocks, upstream)
        by_values = K.einsum("jcm,jbvc->bmv", embeddings, by_lambdas)
        by_embeddings = K.einsum("jbvc,bmv->jcm", by_lambdas, values)
        by_content = K.cast(K.sum(at_least_float32(by_lambdas), axis=0), content.dtype)
        by_queries = K.sum(by_blocks * mask, axis=3)
        return by_queries, by_values, by_embeddings, K.transpose(by_content, [0, 2, 1])

    return K.reshape(outputs, [j, b, h, GROUP, v]), grad

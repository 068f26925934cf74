# SPDX-License-Identifier: Apache-2.0
"""Matrix products of queries, values and embeddings of pairs of positions, in either order.

The same forms as in `lambdanet.ops.products`, in other steps. The content lambda fits into tiles that are
padded anyway. The mean over a pool is linear in its queries, so they and their embeddings can be contracted
together, over positions of the pool and depth: once per output instead of once per position.
"""

import dataclasses
import math

from lambdanet import backend as K
from lambdanet.backend import Tensor
from lambdanet.backend.device import Device, Speed
from lambdanet.backend.tensors import at_least_float32, ceil_div, pad, product, sizes
from lambdanet.ops import pooling, products
from lambdanet.ops.blocking import num_blocks
from lambdanet.ops.position_term import Form, PositionTerm, Sizes, cut_axes
from lambdanet.ops.products import Product, in_chunks
from lambdanet.ops.relative_positions import PairAxis, expand_table
from lambdanet.ops.tpu.lookups import multiply_windows, read_slices

_GROUPS = 4


@dataclasses.dataclass(frozen=True)
class TpuProduct(Product):
    """A `Product` with the same estimate, in other steps, and with the content."""

    gather = staticmethod(multiply_windows)
    read_first = staticmethod(read_slices)

    def apply(self, term: PositionTerm, device: Device) -> Tensor:
        axes = cut_axes(term, self.block)
        operands = (*self.operands(term, axes), term.content, num_blocks(axes))
        if self.query_first:
            outputs = query_first(*operands, self.chunk(term.sizes, device))
        else:
            outputs = lambda_first(*operands)
        return term.geometry.pool(self.merge(outputs, term, axes))


@dataclasses.dataclass(frozen=True)
class PooledQueries(Form):
    """Contracts the queries of a pool first, on maps of known size."""

    def seconds(self, sizes: Sizes, speed: Speed) -> float:
        axes = sizes.geometry.along(len(sizes.query_size))
        pairs = zip(sizes.query_size, axes, strict=True)
        counts = tuple(ceil_div(n, axis.pool_strides) for n, axis in pairs)
        positions = product([axis.pool_size for axis in axes])
        pooled = dataclasses.replace(sizes, query_size=counts, k=sizes.k * positions)
        return Product(query_first=True).seconds(pooled, speed)

    def apply(self, term: PositionTerm, device: Device) -> Tensor:
        b, *size, h, k = sizes(term.queries)
        v = term.values.shape[-2]
        pools = []
        axes = []
        spacings = term.geometry.along(len(size))
        for n, m, spacing in zip(size, term.context_size, spacings, strict=True):
            pool = pooling.windows_along(n, spacing.pool_size, spacing.pool_strides)
            pools.append(pool)
            axes.append(
                PairAxis(
                    pool.count,
                    m,
                    -pool.first_context,
                    spacing.strides,
                    spacing.dilation,
                    spacing.pool_size,
                )
            )
        counts = [pool.count for pool in pools]
        positions = product([spacing.pool_size for spacing in spacings])
        # [n, positions * k, m * u]
        embeddings = expand_table(term.table, axes, read_slices)
        # Slices with strides abort the compiler for TPU7x.
        queries = multiply_windows(K.reshape(term.queries, [b, *size, h * k]), pools)
        queries = K.reshape(queries, [b, *counts[::-1], positions, h, k])
        rank = len(counts)
        order = [*range(rank, 0, -1), rank + 2, rank + 1, rank + 3]
        queries = K.reshape(
            K.transpose(queries, [0, *order]), [b, product(counts), h, positions * k]
        )
        values = K.reshape(term.values_by_depth(), [b, sizes(embeddings)[2], v])
        outputs = query_first(queries, values, embeddings, term.content)
        return pooling.divide_by_count(
            K.reshape(outputs, [b, *counts, h, v]), pools, size
        )


def pooled_candidates(sizes: Sizes) -> list[Form]:
    """Returns `PooledQueries` for maps of known size with a pool."""
    return [PooledQueries()] if sizes.geometry.has_pool and sizes.known else []


def candidates(sizes: Sizes) -> list[Form]:
    """Returns the candidates of `lambdanet.ops.products`."""
    return [
        TpuProduct(form.query_first, form.block) for form in products.candidates(sizes)
    ]


def query_first(
    queries: Tensor,
    values: Tensor,
    embeddings: Tensor,
    content: Tensor | None = None,
    blocks: int = 1,
    chunk: int | None = None,
) -> Tensor:
    """Contracts k first; the compiler chooses what to transpose.

    The content lambda [b, k, v] is k more positions of the context, with the columns of the identity as
    embeddings, which may be for queries of several positions side by side.

    The shapes are [b * blocks, n, h, k], [b * blocks, m, v], [n, k, m] -> [b * blocks, n, h, v].
    """
    if content is not None:
        n, depth, _ = sizes(embeddings)
        k = content.shape[1]
        columns = K.tile(K.eye(k, dtype=embeddings.dtype), [depth // k, 1])
        embeddings = K.concatenate(
            [embeddings, K.broadcast_to(columns, [n, depth, k])], axis=2
        )
        values = K.concatenate([values, K.repeat(content, blocks, axis=0)], axis=1)
    return in_chunks(_query_first, queries, values, embeddings, chunk)


def _query_first(queries: Tensor, values: Tensor, embeddings: Tensor) -> Tensor:
    similarity = K.einsum("bnhk,nkm->bhnm", queries, embeddings)
    return K.einsum("bhnm,bmv->bnhv", similarity, values)


def lambda_first(
    queries: Tensor,
    values: Tensor,
    embeddings: Tensor,
    content: Tensor | None,
    blocks: int,
) -> Tensor:
    """Contracts m first by matrix products, a few keys at a time, and k by elementwise products.

    With h and v as outer axes and positions inside, the sum over the groups of keys and then within a group
    is one pass over memory, so no chunks are needed. The compiler lays examples or positions along the
    lanes, whichever fill them. Shapes as in `query_first`.
    """
    _, n, h, k = sizes(queries)
    _, m, v = sizes(values)
    # Else the compiler pads, and copies every product.
    rest = -n % 8 if isinstance(n, int) else 0
    groups = math.gcd(k, _GROUPS)
    split = [groups, k // groups]
    dtype = queries.dtype
    queries = K.reshape(pad(queries, 1, 0, rest), [-1, blocks, n + rest, h, *split])
    embeddings = K.reshape(pad(embeddings, 0, 0, rest), [n + rest, *split, m])
    values = K.reshape(values, [-1, blocks, m, v])
    if content is not None:
        content = K.transpose(K.reshape(content, [-1, *split, v]), [0, 1, 3, 2])
    terms = []
    for group in range(groups):
        lambdas = K.einsum("nkm,bcmv->bcvkn", embeddings[:, group], values)  # c blocks
        if content is not None:
            lambdas += content[:, group, K.newaxis, ..., K.newaxis]
        # [b, c, h, k, n]
        by_head = K.transpose(queries[..., group, :], [0, 1, 3, 4, 2])
        # [b, c, h, v, k, n]
        products = by_head[:, :, :, K.newaxis] * lambdas[:, :, K.newaxis]
        terms.append(at_least_float32(products))
    outputs = K.cast(K.sum(K.add_n(terms), axis=4), dtype)  # [b, c, h, v, n]
    return K.reshape(K.transpose(outputs[..., :n], [0, 1, 4, 2, 3]), [-1, n, h, v])

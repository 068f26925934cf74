# SPDX-License-Identifier: Apache-2.0
"""The queries of whole pools, contracted before the context.

The mean over a pool is linear in its queries, so they and their embeddings can be contracted together, over
positions of the pool and depth: once per output instead of once per position.
"""

import dataclasses

from lambdanet import backend as K
from lambdanet.backend.tensors import ceil_div, product, sizes
from lambdanet.ops import pooling
from lambdanet.ops.position_term import Form
from lambdanet.ops.products import Product
from lambdanet.ops.relative_positions import PairAxis, expand_table
from lambdanet.ops.tpu.lookups import read_slices
from lambdanet.ops.tpu.products import query_first


@dataclasses.dataclass(frozen=True)
class PooledQueries(Form):
    """Contracts the queries of a pool first, on maps of known size."""

    def seconds(self, sizes, speed):
        strides, pool_size = sizes.geometry.strides, sizes.geometry.pool_size
        counts = tuple(ceil_div(n, strides) for n in sizes.query_size)
        pooled = dataclasses.replace(sizes, query_size=counts, k=sizes.k * pool_size ** len(counts))
        return Product(query_first=True).seconds(pooled, speed)

    def apply(self, term, device):
        b, *size, h, k = sizes(term.queries)
        v, geometry = term.values.shape[-2], term.geometry
        pools = [pooling.Windows.with_same_padding(n, geometry.pool_size, geometry.strides) for n in size]
        counts, positions = [pool.count for pool in pools], geometry.pool_size ** len(pools)
        axes = [
            PairAxis(pool.count, m, -pool.first, geometry.strides, geometry.dilation, geometry.pool_size)
            for pool, m in zip(pools, term.context_size, strict=True)
        ]
        embeddings = expand_table(term.table, axes, read_slices)  # [n, positions * k, m * u]
        n = product(counts)
        queries = K.reshape(pooling.gather(term.queries, pools), [b, n, positions, h, k])
        queries = K.reshape(K.transpose(queries, [0, 1, 3, 2, 4]), [b, n, h, positions * k])
        values = K.reshape(term.values_by_depth(), [b, sizes(embeddings)[2], v])
        outputs = query_first(queries, values, embeddings, term.content)
        return pooling.divide_by_count(K.reshape(outputs, [b, *counts, h, v]), pools)


def candidates(sizes):
    """Returns the form for maps of known size with a pool."""
    return [PooledQueries()] if sizes.geometry.pool_size > 1 and sizes.known else []

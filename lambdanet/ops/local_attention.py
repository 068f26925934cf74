# SPDX-License-Identifier: Apache-2.0
"""Attention of blocks of queries to the window around each block, with relative positions."""

import dataclasses
from collections.abc import Sequence

from lambdanet import backend as K
from lambdanet.backend import Tensor
from lambdanet.backend.tensors import Size, cache_by_size, ceil_div, sizes
from lambdanet.ops import attention, blocking
from lambdanet.ops.blocking import BlockAxis


@dataclasses.dataclass(frozen=True)
class LocalGeometry:
    """The blocks of a map, and what their queries see.

    Attributes:
      block_size: the side of a block, in positions of the map.
      halo_size: how far the window reaches beyond its block on each side.
      strides: the distance between queries.
      offset_strides: the distance between queries by which offsets are counted: `strides`, or 1 as if the
        queries of a block were side by side.
      mask_padding: whether positions outside the map are masked; otherwise they are zero-padded.
    """

    block_size: int
    halo_size: int
    strides: int = 1
    offset_strides: int = 1
    mask_padding: bool = True

    def axis(self, num_queries: Size, size: Size) -> BlockAxis:
        """Cuts an axis into blocks; into one without a halo where that is known to see the same."""
        if self.mask_padding and isinstance(size, int) and size <= self.block_size:
            return BlockAxis(num_queries, size, 0, self.offset_strides, step=size)
        return BlockAxis(
            self.block_size // self.strides,
            self.block_size + 2 * self.halo_size,
            -self.halo_size,
            self.offset_strides,
            count=ceil_div(size, self.block_size),
            step=self.block_size,
        )

    @cache_by_size
    def visibility(self, axis: BlockAxis, size: Size, reach: int) -> Tensor:
        """Whether a query sees a context position of its window along an axis: [blocks, queries, context].

        It sees those on the map and within reach; without `mask_padding`, all.
        """
        if not self.mask_padding:
            return K.ones([axis.count, axis.num_queries, axis.num_context], "bool")
        context = axis.first_context + K.arange(axis.num_context)
        positions = context + axis.step * K.arange(axis.count)[:, K.newaxis, K.newaxis]
        distances = K.abs(
            context - axis.strides * K.arange(axis.num_queries)[:, K.newaxis]
        )
        return (positions >= 0) & (positions < size) & (distances <= reach)

    def views(
        self, queries: Tensor, keys: Tensor, tables: Sequence[Tensor]
    ) -> list[tuple[BlockAxis, Size, int]]:
        """Returns the arguments of `visibility` for height and width; arguments as in `attend_by_head`."""
        map_size = sizes(keys)[1:3]
        reaches = [sizes(table, has_batch=False)[0] // 2 for table in tables]
        axes = map(self.axis, sizes(queries)[1:3], map_size)
        return list(zip(axes, map_size, reaches, strict=True))


def chosen_axis(
    places: Tensor, size: int, r: int, geometry: LocalGeometry
) -> attention.ChosenAxis:
    """Returns what some queries see along an axis of a map, as `LocalGeometry.visibility` has it for blocks.

    Args:
      places: the places of the queries along the axis, in positions of the map, [c].
      size: the positions of the map along it.
      r: the length of the table of offsets along it.
      geometry: the blocks.
    """
    block_size = geometry.block_size
    halo = geometry.halo_size
    places = places[:, K.newaxis]
    start = places // block_size * block_size
    within = (places - start) // geometry.strides * geometry.offset_strides
    context = K.arange(-halo, ceil_div(size, block_size) * block_size + halo)
    offsets = context - start - within
    visible = (context >= start - halo) & (context < start + block_size + halo)
    if geometry.mask_padding:
        is_on_map = (context >= 0) & (context < size)
        visible = visible & is_on_map & (K.abs(offsets) <= r // 2)
    rows = K.where(visible, offsets + r // 2, 0)
    return attention.ChosenAxis(rows, visible, size, halo)


def attend_by_head(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: Sequence[Tensor],
    geometry: LocalGeometry,
    num_heads: int,
    hidden: float | None = None,
) -> Tensor:
    """Attends in blocks, each head by itself.

    Args:
      queries: [b, height / strides, width / strides, heads * k], of any size, known or not.
      keys: [b, height, width, heads * k].
      values: [b, height, width, heads * v].
      tables: the tables of the offsets in height and in width, [r, k] each with r odd, shared by the heads;
        with `mask_padding`, pairs further apart than r // 2 along either axis do not see each other.
      geometry: the blocks.
      num_heads: the number of heads.
      hidden: the bias of a row or column that a query does not see; None: far below any logit.

    Returns:
      [b, height / strides, width / strides, heads * v].
    """
    queries, keys, values = (
        attention.split_heads(x, num_heads) for x in (queries, keys, values)
    )
    queries *= queries.shape[-1] ** -0.5
    query_size = sizes(queries)[1:3]
    views = geometry.views(queries, keys, tables)
    axes = [axis for axis, *_ in views]
    queries = blocking.split(queries, axes)  # [g blocks, n, k]
    # [g blocks, m, k or v]
    keys, values = (blocking.extract_windows(x, axes) for x in (keys, values))
    logits = attention.map_logits(queries, tables, axes)  # [g blocks, n, e]
    if geometry.mask_padding:
        by_pair = _visible_pairs(geometry, *views)
        by_block = K.reshape(logits, [-1, *sizes(by_pair)])
        logits = K.reshape(
            by_block + attention.mask_to_bias(by_pair, logits.dtype, hidden),
            sizes(logits),
        )
    bias = attention.map_bias(logits, [axis.num_context for axis in axes])
    outputs = blocking.merge(
        attention.attend(queries, keys, values, bias), axes, query_size
    )
    return attention.merge_heads(outputs, num_heads)


@cache_by_size
def _visible_pairs(
    geometry: LocalGeometry, *views: tuple[BlockAxis, Size, int]
) -> Tensor:
    """Joins the row and the column visibility of each query in its window: [blocks, n, e]."""
    in_rows, in_columns = (geometry.visibility(*view) for view in views)
    a, height, rows = sizes(in_rows)
    b, width, columns = sizes(in_columns)
    shape = [b, a, height, width]
    in_rows = K.broadcast_to(in_rows[:, :, K.newaxis], [*shape, rows])
    in_columns = K.broadcast_to(in_columns[:, K.newaxis, K.newaxis], [*shape, columns])
    return K.reshape(
        K.concatenate([in_rows, in_columns], axis=-1),
        [a * b, height * width, rows + columns],
    )

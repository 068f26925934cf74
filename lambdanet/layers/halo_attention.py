# SPDX-License-Identifier: Apache-2.0
"""Self-attention to a neighbourhood: HaloAttention, and local self-attention as a baseline."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_keras as keras

from lambdanet import device
from lambdanet.errors import InputError, check_count, check_counts, check_scope, is_integer, unknown
from lambdanet.layers.attention_base import Attention
from lambdanet.ops import attention, blocking
from lambdanet.ops.blocking import Axis
from lambdanet.ops.tpu import packed_heads
from lambdanet.tensors import Size, sizes

POSITIONS = ("concatenated", "added")
TILE_ROWS = 16  # of a TPU's tile of bfloat16


class _BlockAttention(Attention):
    """Attention in blocks; an embedding is made of one for the offset in height and one for that in width."""

    mask_padding = True
    strides = 1
    compact_offsets = False
    positions = "concatenated"

    def _geometry(self) -> tuple[int, int, int]:
        """Returns the side of a block, how far its window reaches beyond it, and the length of the tables."""
        raise NotImplementedError

    def _build(self, input_shape):
        depth = self._key_dim
        if self.positions == "concatenated":
            _check_even(depth)
            depth //= 2
        self._qkv = self._projections(input_shape[-1])
        *_, length = self._geometry()
        self.height_table = self._table("height_table", length, depth)
        self.width_table = self._table("width_table", length, depth)

    def call(self, inputs):
        block_size, halo_size, _ = self._geometry()
        together = 1
        if device.kind() == "TPU":
            together = packed_heads.most(self.num_heads, max(self._key_dim, self._value_dim))
        strides = self.strides if block_size % self.strides == 0 else 1  # of the queries that are computed
        queries, keys, values = self._project(inputs, self._qkv, strides=strides, together=together)
        outputs = attend_in_blocks(
            queries,
            keys,
            values,
            self._tables(),
            block_size,
            halo_size,
            self.mask_padding,
            strides,
            offset_strides=1 if self.compact_offsets else strides,
            together=together,
        )
        outputs = self._joined(outputs, together)
        return outputs if strides == self.strides else outputs[:, :: self.strides, :: self.strides]

    def _tables(self) -> list[tf.Tensor]:
        """The embeddings for the offsets in height and in width, [length, k] each."""
        height, width = (
            tf.cast(table, self.compute_dtype) for table in (self.height_table, self.width_table)
        )
        if self.positions == "concatenated":  # the half of the other axis is zero
            half = self._key_dim // 2
            return [tf.pad(height, [[0, 0], [0, half]]), tf.pad(width, [[0, 0], [half, 0]])]
        return [height, width]


@keras.saving.register_keras_serializable(package="lambdanet")
class HaloAttention(_BlockAttention):
    """Self-attention of blocks of queries to the block and a halo around it (Vaswani et al. 2021).

    The map is cut into blocks of b x b; the queries of a block see the (b + 2 halo)^2 positions of its
    window. With m - n = (dy, dx) for a query n and a context position m,

      y_n = sum over m in the window of softmax_m(q_n . (k_m + r_(dy, dx)) / sqrt(k)) v_m,

    where r is the concatenation of height_table[dy] and width_table[dx], k / 2 each, shared by the heads. The
    paper writes no division by sqrt(k). With strides, only every second query along each axis, say, attends,
    to the same window as without. Maps that do not divide into blocks are padded, and the weights of
    positions outside the map are zero. The output is equivariant under shifts by whole blocks.

    The tables have the 2 (b + 2 halo) - 1 offsets that the paper's sizes count; the `halo` outermost ones on
    either side occur for no pair.

    Input: [b, h, w, c]. Output: [b, h / strides, w / strides, value_ratio * filters], rounded up.

    Args:
      filters: the width of queries and keys, and with `value_ratio` the number of output channels; divisible
        by `num_heads`. Default: the channels of the input.
      num_heads: the number of heads.
      block_size: b, the side of a block in positions.
      halo_size: how far the window reaches beyond its block on each side, in positions; 0 is allowed.
      value_ratio: r_v, of the width of values and output to `filters`.
      key_dim: k, the depth of a query and a key, even. Default: filters / num_heads.
      mask_padding: False keeps the zero keys and values outside the map, which then take a share of the
        softmax, as in timm's networks.
      strides: the distance of two queries along each axis. Where it divides `block_size`, no others are
        computed.
      positions: "concatenated", or "added": r is height_table[dy] + width_table[dx], of depth k each, and k
        may be odd.
      compact_offsets: with strides, count offsets as if the queries of a block stood side by side, as timm's
        networks do: query i along an axis of a block as if at position i, not strides * i. `strides` then
        divides `block_size`.
      kernel_regularizer: regularizer of the three projections; the tables have none.
      **kwargs: `name`, `dtype` and what else a Keras layer takes.

    Raises:
      InputError: for arguments outside these ranges, an input of another rank or with an unknown number of
        channels, or a Keras 3 tensor.

    Example:
      >>> layer = HaloAttention(filters=64, block_size=8, halo_size=3)
      >>> layer(tf.zeros([2, 28, 20, 32])).shape
      TensorShape([2, 28, 20, 64])
    """

    def __init__(
        self,
        filters: int | None = None,
        num_heads: int = 8,
        block_size: int = 8,
        halo_size: int = 3,
        value_ratio: float = 1.0,
        key_dim: int | None = None,
        mask_padding: bool = True,
        strides: int = 1,
        positions: str = "concatenated",
        compact_offsets: bool = False,
        kernel_regularizer: Any = None,
        **kwargs: Any,
    ):
        super().__init__(filters, num_heads, key_dim, kernel_regularizer, **kwargs)
        block_size, strides = check_counts(block_size=block_size, strides=strides)
        if compact_offsets and block_size % strides:
            raise InputError(
                "with compact_offsets, strides must divide block_size, "
                f"got strides={strides} and block_size={block_size}"
            )
        if positions not in POSITIONS:
            raise unknown("positions", positions, POSITIONS)
        if key_dim is not None and positions == "concatenated":
            _check_even(key_dim)
        if not is_integer(halo_size) or halo_size < 0:
            raise InputError(f"halo_size must be an integer of at least 0, got {halo_size!r}")
        if not isinstance(value_ratio, int | float) or not value_ratio > 0:
            raise InputError(f"value_ratio must be a positive number, got {value_ratio!r}")
        self.value_ratio = value_ratio
        if self.filters is not None:
            self._output_filters(self.filters)
        self.block_size = block_size
        self.halo_size = int(halo_size)
        self.mask_padding = mask_padding
        self.strides = strides
        self.positions = positions
        self.compact_offsets = compact_offsets

    def compute_output_shape(self, input_shape):
        b, *spatial, filters = super().compute_output_shape(input_shape)
        spatial = [None if n is None else -(-n // self.strides) for n in spatial]
        return tf.TensorShape([b, *spatial, filters])

    def get_config(self):
        return {
            **super().get_config(),
            "block_size": self.block_size,
            "halo_size": self.halo_size,
            "value_ratio": self.value_ratio,
            "mask_padding": self.mask_padding,
            "strides": self.strides,
            "positions": self.positions,
            "compact_offsets": self.compact_offsets,
        }

    def _geometry(self):
        return self.block_size, self.halo_size, 2 * (self.block_size + 2 * self.halo_size) - 1

    def _output_filters(self, filters):
        outputs = round(self.value_ratio * filters)
        if outputs != self.value_ratio * filters or outputs % self.num_heads:
            raise InputError(
                f"value_ratio * filters must be a multiple of num_heads, got value_ratio={self.value_ratio}, "
                f"filters={filters} and num_heads={self.num_heads}"
            )
        return outputs


@keras.saving.register_keras_serializable(package="lambdanet")
class LocalAttention(_BlockAttention):
    """Self-attention of every position to the r x r positions around it (Ramachandran et al. 2019).

    With m - n = (dy, dx) for a query n and a context position m,

      y_n = sum over |dy|, |dx| <= r // 2 of softmax_m(q_n . (k_m + r_(dy, dx)) / sqrt(k)) v_m,

    where r_(dy, dx) is the concatenation of height_table[dy] and width_table[dx], k / 2 each, shared by the
    heads. The paper writes no division by sqrt(k). Positions outside the map take no part.

    Input: [b, h, w, c]. Output: the same shape with `filters` channels.

    Args:
      filters: d, the number of output channels; divisible by `num_heads`. Default: those of the input.
      num_heads: h. The value depth is v = d / h.
      scope: r, odd.
      key_dim: k, the depth of a query and a key, even. Default: d / h.
      block_size: the side of the blocks of queries for which context is gathered at once. It changes the
        speed, not the result: (block_size + r - 1)^2 logits a query are computed and r^2 used.
      kernel_regularizer: regularizer of the three projections; the tables have none.
      **kwargs: `name`, `dtype` and what else a Keras layer takes.

    Raises:
      InputError: for arguments outside these ranges, an input of another rank or with an unknown number of
        channels, or a Keras 3 tensor.

    Example:
      >>> layer = LocalAttention(filters=64, scope=7)
      >>> layer(tf.zeros([2, 28, 20, 32])).shape
      TensorShape([2, 28, 20, 64])
    """

    def __init__(
        self,
        filters: int | None = None,
        num_heads: int = 8,
        scope: int = 7,
        key_dim: int | None = None,
        block_size: int = 8,
        kernel_regularizer: Any = None,
        **kwargs: Any,
    ):
        super().__init__(filters, num_heads, key_dim, kernel_regularizer, **kwargs)
        if key_dim is not None:
            _check_even(key_dim)
        self.scope = check_scope(scope)
        self.block_size = check_count("block_size", block_size)

    def get_config(self):
        return {**super().get_config(), "scope": self.scope, "block_size": self.block_size}

    def _geometry(self):
        return self.block_size, self.scope // 2, self.scope


def attend_in_blocks(
    queries: tf.Tensor,
    keys: tf.Tensor,
    values: tf.Tensor,
    tables: Sequence[tf.Tensor],
    block_size: int,
    halo_size: int,
    mask_padding: bool = True,
    strides: int = 1,
    offset_strides: int = 1,
    together: int = 1,
) -> tf.Tensor:
    """Attention of blocks of queries to the window around each block, with relative positions.

    Args:
      queries: [g, height / strides, width / strides, k], scaled; of any size, known or not.
      keys: [g, height, width, k].
      values: [g, height, width, v].
      tables: for the offsets in height and in width, [r, k] each with r odd; pairs further apart than
        r // 2 along either axis do not see each other.
      block_size: the side of a block, in positions of the map.
      halo_size: how far the window reaches beyond its block on each side.
      mask_padding: whether positions outside the map take no part; else they are zero keys and values.
      strides: the distance of two queries.
      offset_strides: the distance of two queries by which offsets are counted; `strides`, or 1 as if the
        queries of a block stood side by side.
      together: how many heads lie side by side in the depth of queries, keys and values; several on a TPU
        only.

    Returns:
      [g, height / strides, width / strides, v].
    """
    query_size, map_size = sizes(queries)[1:3], sizes(keys)[1:3]
    axes = [
        _axis(*of_axis, block_size, halo_size, mask_padding, strides)
        for of_axis in zip(query_size, map_size, strict=True)
    ]
    on_tpu = device.kind() == "TPU"
    visible = [  # along each axis
        _visible(axis, size, table.shape[0] // 2, offset_strides, mask_padding)
        for axis, size, table in zip(axes, map_size, tables, strict=True)
    ]
    if on_tpu:
        axes, visible = _in_whole_tiles(axes, visible)
    block, window, first = zip(*((axis.length, axis.window, axis.first) for axis in axes), strict=True)
    queries = blocking.cut(queries, axes)  # [g blocks, n, k]
    keys, values = (
        blocking.windows(x, axes, by_products=on_tpu) for x in (keys, values)
    )  # [g blocks, m, k or v]
    if on_tpu:
        queries = packed_heads.spread(queries, together)
        bias = packed_heads.bias(queries, tables, block, window, visible, first, offset_strides, together)
        outputs = packed_heads.collect(attention.attend(queries, keys, values, bias), together)
        return blocking.join(outputs, axes, query_size)
    logits = attention.map_logits(queries, tables, block, window, first, offset_strides)
    if mask_padding:
        of_blocks = _of_blocks(*visible)
        by_block = tf.reshape(logits, [-1, *sizes(of_blocks)])
        logits = tf.reshape(by_block + attention.hidden(of_blocks, logits.dtype), sizes(logits))
    outputs = attention.attend(queries, keys, values, attention.map_bias(logits, window))
    return blocking.join(outputs, axes, query_size)


def _axis(
    num_queries: Size, size: Size, block_size: int, halo_size: int, mask_padding: bool, strides: int
) -> Axis:
    """Cuts an axis into blocks; into one without a halo where that is known to see the same."""
    if mask_padding and isinstance(size, int) and size <= block_size:
        return Axis(1, num_queries, size, size, 0)
    window = block_size + 2 * halo_size
    return Axis(-(-size // block_size), block_size // strides, block_size, window, -halo_size)


def _in_whole_tiles(axes: list[Axis], visible: list[tf.Tensor]) -> tuple[list[Axis], list[tf.Tensor]]:
    """Widens windows to whole rows of a TPU's tiles, where the logits take no more of these for it.

    Rows of a window then follow each other in memory as they are, and need not be copied together. No query
    sees what is added.
    """
    (rows, columns), (in_rows, in_columns) = axes, visible
    width = device.tiled(columns.window, TILE_ROWS)
    fits = device.tiled(rows.window * width) == device.tiled(rows.window * columns.window)
    if columns.first == 0 or not fits:
        return axes, visible
    in_columns = tf.pad(in_columns, [[0, 0], [0, 0], [0, width - columns.window]])
    return [rows, dataclasses.replace(columns, window=width)], [in_rows, in_columns]


def _visible(axis: Axis, size: Size, reach: int, strides: int, mask_padding: bool) -> tf.Tensor:
    """Which context positions of its window a query sees along an axis, [blocks, queries, context]: those on
    the map and within reach; all without `mask_padding`."""
    if not mask_padding:
        return tf.ones([axis.count, axis.length, axis.window], tf.bool)
    context = axis.first + tf.range(axis.window)
    places = context + axis.step * tf.range(axis.count)[:, tf.newaxis, tf.newaxis]
    distances = tf.abs(context - strides * tf.range(axis.length)[:, tf.newaxis])
    return (places >= 0) & (places < size) & (distances <= reach)


def _of_blocks(in_rows: tf.Tensor, in_columns: tf.Tensor) -> tf.Tensor:
    """Both axes together, for each query first the rows and then the columns: [blocks, n, e]."""
    (a, height, rows), (b, width, columns) = sizes(in_rows), sizes(in_columns)
    shape = [b, a, height, width]
    in_rows = tf.broadcast_to(in_rows[:, :, tf.newaxis], [*shape, rows])
    in_columns = tf.broadcast_to(in_columns[:, tf.newaxis, tf.newaxis], [*shape, columns])
    return tf.reshape(tf.concat([in_rows, in_columns], axis=-1), [a * b, height * width, rows + columns])


def _check_even(key_dim: int) -> None:
    if key_dim % 2:
        raise InputError(
            f"key_dim must be even, one half for height and one for width, got {key_dim} "
            "(without key_dim=, it is filters / num_heads)"
        )

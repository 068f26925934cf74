# SPDX-License-Identifier: Apache-2.0
"""Self-attention to a neighborhood: HaloAttention, and local self-attention as a baseline."""

from typing import Any

from lambdanet import backend as K
from lambdanet.backend import Shape, Tensor, keras, tensors
from lambdanet.backend.tensors import ceil_div, sizes
from lambdanet.core.errors import (
    InputError,
    check_count,
    check_counts,
    check_flags,
    check_known,
    check_natural,
    invalid,
)
from lambdanet.layers.argument_checks import check_scope
from lambdanet.layers.attention import Attention
from lambdanet.layers.layer import strided_shape
from lambdanet.ops import kernels
from lambdanet.ops.local_attention import LocalGeometry

TABLE_COMBINATIONS = ("concatenated", "added")


class _BlockAttention(Attention):
    """Attention in blocks, with an embedding of the offset in height and one of the offset in width."""

    mask_padding = True
    strides = 1
    compact_offsets = False
    positions = "concatenated"

    def _sizes(self) -> tuple[int, int, int]:
        """Returns the side of a block, the reach of its window beyond it, and the length of the tables."""
        raise NotImplementedError

    def _build(self, input_shape: Shape) -> None:
        depth = self._key_dim
        if self.positions == "concatenated":
            _check_even(depth)
            depth //= 2
        super()._build(input_shape)
        *_, length = self._sizes()
        self.height_table = self._table("height_table", length, depth)
        self.width_table = self._table("width_table", length, depth)

    def call(self, inputs: Tensor) -> Tensor:
        geometry = self._geometry()
        strides = geometry.strides
        qkv = self._project(inputs, self._qkv, strides)
        attend = kernels.kernels_for_device().local_attention
        outputs = self._compute_by_tables(
            lambda *tables: attend(
                *qkv, self._widened(*tables), geometry, self.num_heads
            ),
            [self.height_table, self.width_table],
            self.compute_dtype,
        )
        return (
            outputs
            if strides == self.strides
            else outputs[:, :: self.strides, :: self.strides]
        )

    def chosen_weights(self, inputs: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        width = ceil_div(sizes(inputs)[2], self.strides)
        places = chosen // width * self.strides, chosen % width * self.strides
        qkv = self._project_heads(inputs, self._qkv)
        blocks = [self._geometry()] * 2
        tables = self._widened(self.height_table, self.width_table)
        return self._chosen_weights(qkv, places, tables, blocks)

    def _geometry(self) -> LocalGeometry:
        block_size, halo_size, _ = self._sizes()
        # Of the queries that are computed.
        strides = self.strides if block_size % self.strides == 0 else 1
        offset_strides = 1 if self.compact_offsets else strides
        return LocalGeometry(
            block_size, halo_size, strides, offset_strides, self.mask_padding
        )

    def _widened(self, in_height: Any, in_width: Any) -> list[Tensor]:
        """Returns the embeddings for the offsets in height and in width, [length, k] each."""
        if self.positions == "concatenated":  # the half of the other axis is zero
            half = self._key_dim // 2
            return [_widened(in_height, 0, half), _widened(in_width, half, 0)]
        return [in_height, in_width]


@keras.saving.register_keras_serializable(package="lambdanet")
class HaloAttention(_BlockAttention):
    """Self-attention of blocks of queries to the block and a halo around it (Vaswani et al. 2021).

    The map is cut into blocks of b x b; the queries of a block see the (b + 2 halo)^2 positions of its
    window. With m - n = (dy, dx) for a query n and a context position m,

      y_n = sum over m in the window of softmax_m(q_n . (k_m + r_(dy, dx)) / sqrt(k)) v_m,

    where r is the concatenation of height_table[dy] and width_table[dx], k / 2 each, shared by the heads. The
    paper has no division by sqrt(k). With strides, the remaining queries see the same window as without. Maps
    that do not divide into blocks are padded, and the weights of positions outside the map are zero. The
    output is equivariant under shifts by whole blocks.

    The tables have 2 (b + 2 halo) - 1 offsets, as in the paper's parameter counts; no pair has the outermost
    `halo` ones on either side.

    Input: [b, h, w, c]. Output: [b, h / strides, w / strides, value_ratio * filters], rounded up.

    Args:
      filters: the width of queries and keys, and with `value_ratio` the number of output channels; divisible
        by `num_heads`. Default: the channels of the input.
      num_heads: the number of heads.
      block_size: b, the side of a block in positions.
      halo_size: how far the window reaches beyond its block on each side, in positions; 0 is allowed.
      value_ratio: r_v, the ratio of the width of values and output to `filters`.
      key_dim: k, the depth of a query and a key, even. Default: filters / num_heads.
      mask_padding: False keeps the zero keys and values outside the map, which then take a share of the
        softmax, as in timm's networks.
      strides: the distance between queries along each axis. Where it divides `block_size`, no others are
        computed.
      positions: "concatenated", or "added": r is height_table[dy] + width_table[dx], of depth k each, and k
        may be odd.
      compact_offsets: with strides, count offsets as if the queries of a block were side by side, as timm's
        networks do: query i along an axis of a block is at position i instead of strides * i. `strides` must
        divide `block_size` then.
      kernel_regularizer: regularizer of the three projections; the tables have none.
      **kwargs: `name`, `dtype` and other arguments of a Keras layer.

    Call arguments:

    * inputs: [b, h, w, c], of any size, with c known when the layer is built.

    Raises:
      InputError: for arguments outside these ranges, an input of another rank or with an unknown number of
        channels, or a tensor of tf_keras.

    Example:
      >>> layer = HaloAttention(filters=64, block_size=8, halo_size=3)
      >>> tuple(layer(keras.ops.zeros([2, 28, 20, 32])).shape)
      (2, 28, 20, 64)
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
        check_flags(mask_padding=mask_padding, compact_offsets=compact_offsets)
        check_known("positions", positions, TABLE_COMBINATIONS)
        if key_dim is not None and positions == "concatenated":
            _check_even(key_dim)
        if not isinstance(value_ratio, int | float) or not value_ratio > 0:
            raise invalid("value_ratio", "a positive number", value_ratio)
        self.value_ratio = value_ratio
        if self.filters is not None:
            self._output_filters(self.filters)
        self.block_size = block_size
        self.halo_size = check_natural("halo_size", halo_size)
        self.mask_padding = mask_padding
        self.strides = strides
        self.positions = positions
        self.compact_offsets = compact_offsets

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return strided_shape(super().compute_output_shape(input_shape), self.strides)

    def _sizes(self) -> tuple[int, int, int]:
        return (
            self.block_size,
            self.halo_size,
            2 * (self.block_size + 2 * self.halo_size) - 1,
        )

    def _output_filters(self, filters: int) -> int:
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
    heads. The paper has no division by sqrt(k). Positions outside the map take no part.

    Input: [b, h, w, c]. Output: the same shape with `filters` channels.

    Args:
      filters: d, the number of output channels; divisible by `num_heads`. Default: the input's.
      num_heads: the number of heads, h; the value depth is v = d / h.
      scope: r, odd.
      key_dim: k, the depth of a query and a key, even. Default: d / h.
      block_size: the side of the blocks of queries for which context is gathered at once. It changes the
        speed, not the result: of (block_size + r - 1)^2 logits per query, r^2 are used.
      kernel_regularizer: regularizer of the three projections; the tables have none.
      **kwargs: `name`, `dtype` and other arguments of a Keras layer.

    Call arguments:

    * inputs: [b, h, w, c], of any size, with c known when the layer is built.

    Raises:
      InputError: for arguments outside these ranges, an input of another rank or with an unknown number of
        channels, or a tensor of tf_keras.

    Example:
      >>> layer = LocalAttention(filters=64, scope=7)
      >>> tuple(layer(keras.ops.zeros([2, 28, 20, 32])).shape)
      (2, 28, 20, 64)
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

    def _sizes(self) -> tuple[int, int, int]:
        return self.block_size, self.scope // 2, self.scope


@tensors.constant_folding
def _widened(table: Tensor, before: int, after: int) -> Tensor:
    """Adds zeros before and after the depth of a table, [length, k]."""
    return K.pad(table, [[0, 0], [before, after]])


def _check_even(key_dim: int) -> None:
    if key_dim % 2:
        raise invalid(
            "key_dim",
            "even, one half for height and one for width",
            key_dim,
            "the default is filters / num_heads",
        )

# SPDX-License-Identifier: Apache-2.0
"""Self-attention to compare with the lambda layer (Bello 2021, Tables 3 and 4): global, axial, linear.

Local self-attention and HaloAttention, which work on blocks of the map, are in `halo_attention`.
"""

from collections.abc import Sequence
from typing import Any

from lambdanet import backend as K
from lambdanet.backend import Shape, Tensor, compat, keras, tensors
from lambdanet.backend.tensors import Size, at_least_float32, per_axis, sizes
from lambdanet.core.errors import check_count, check_known, invalid
from lambdanet.layers.argument_checks import (
    OF_ZOO,
    check_divisible,
    check_optional_count,
    check_per_axis,
)
from lambdanet.layers.layer import TableLayer, build_projection
from lambdanet.ops import attention, kernels
from lambdanet.ops.local_attention import LocalGeometry, chosen_axis
from lambdanet.ops.relative_positions import PairAxis


class Attention(TableLayer):
    """Projections to the queries, keys and values of several heads.

    Projections have no bias, and none follows the heads: the 1x1 convolution of the bottleneck is next. All
    attention layers have these arguments.
    """

    def __init__(
        self,
        filters: int | None = None,
        num_heads: int = 8,
        key_dim: int | None = None,
        kernel_regularizer: Any = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.num_heads = check_count("num_heads", num_heads)
        self.filters = check_optional_count("filters", filters)
        self.key_dim = check_optional_count("key_dim", key_dim)
        if self.filters is not None:
            check_divisible(self.filters, self.num_heads)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)

    takes_maps = True

    def build(self, input_shape: Shape) -> None:
        input_shape = tuple(input_shape)
        if len(input_shape) != 4 or input_shape[-1] is None:
            raise invalid(
                f"the shape of the input of {type(self).__name__}",
                "[b, h, w, c] with a known number of channels",
                input_shape,
            )
        filters = self.filters or input_shape[-1]
        check_divisible(filters, self.num_heads)
        self._key_dim = self.key_dim or filters // self.num_heads
        self._value_dim = self._output_filters(filters) // self.num_heads
        self._build(input_shape)
        super().build(input_shape)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        *leading, channels = input_shape
        return (*leading, self._output_filters(self.filters or channels))

    def chosen_weights(self, inputs: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the weights of some outputs, and the values that they weigh.

        Args:
          inputs: [b, h, w, c].
          chosen: the numbers of the outputs among the flattened ones, [c].

        Returns:
          [b, num_heads, c, m] and [b, num_heads, m, v].
        """
        raise NotImplementedError

    def _chosen_weights(
        self,
        qkv: Sequence[Tensor],
        places: Sequence[Tensor],
        tables: Sequence[Tensor],
        blocks: Sequence[LocalGeometry],
    ) -> tuple[Tensor, Tensor]:
        """Returns the weights of queries at places in height and width of a map, and the values.

        `qkv` are as of `_project_heads`, and what a query sees along an axis is its block with the halo.
        """
        map_size = height, width = sizes(qkv[1])[1:3]
        tables = [tensors.cast(table, self.compute_dtype) for table in tables]
        axes = []
        for place, size, table, block in zip(
            places, map_size, tables, blocks, strict=True
        ):
            axes.append(chosen_axis(place, size, table.shape[0], block))
        # [b * heads, h, w, depth] -> [b, heads, n, depth]
        queries, keys, values = (
            K.reshape(x, [-1, self.num_heads, height * width, x.shape[-1]]) for x in qkv
        )
        rows, columns = places
        queries = K.take(queries, rows * width + columns, axis=2)
        keys = K.reshape(keys, [*sizes(keys)[:2], height, width, self._key_dim])
        return attention.chosen_weights(queries, keys, tables, axes), values

    def _build(self, input_shape: Shape) -> None:
        """Creates the layer's variables for an input of a valid shape, a tuple."""
        self._qkv = self._projections(input_shape[-1])

    def _output_filters(self, filters: int) -> int:
        return filters

    def _projections(self, channels: int, prefix: str = "") -> list[keras.layers.Dense]:
        """Creates the projections to queries, keys and values."""
        depths = {
            "queries": self._key_dim,
            "keys": self._key_dim,
            "values": self._value_dim,
        }
        return [
            build_projection(
                self, prefix + name, channels, self.num_heads * depth, channels**-0.5
            )
            for name, depth in depths.items()
        ]

    def _table(self, name: str, length: int, depth: int) -> K.Variable:
        """Creates a table of relative embeddings, shared by the heads."""
        initializer = compat.RandomNormal(stddev=self._key_dim**-0.5)
        return self.add_weight(
            name=name, shape=[length, depth], initializer=initializer
        )

    def _project(
        self, x: Tensor, projections: Sequence[keras.layers.Dense], strides: int = 1
    ) -> list[Tensor]:
        """Returns queries, keys and values, [b, h, w, num_heads * depth]; with strides, of fewer queries."""
        inputs = (x if strides == 1 else x[:, ::strides, ::strides], x, x)
        return [
            projection(y) for projection, y in zip(projections, inputs, strict=True)
        ]

    def _project_heads(
        self, x: Tensor, projections: Sequence[keras.layers.Dense], scale: bool = True
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns queries, divided by the root of their depth, keys and values: [b * heads, h, w, depth]."""
        qkv = self._project(x, projections)
        queries, keys, values = (attention.split_heads(y, self.num_heads) for y in qkv)
        return queries * self._key_dim**-0.5 if scale else queries, keys, values


FEATURE_MAPS = ("softmax", "elu")


class _MapAttention(Attention):
    """Attention with a table of the offsets within a map along each axis."""

    def __init__(
        self,
        filters: int | None = None,
        num_heads: int = 8,
        key_dim: int | None = None,
        map_size: int | Sequence[int] | None = None,
        kernel_regularizer: Any = None,
        **kwargs: Any,
    ):
        super().__init__(filters, num_heads, key_dim, kernel_regularizer, **kwargs)
        if map_size is not None:
            sides = check_per_axis("map_size", map_size, check_count)
            map_size = per_axis(sides, 2, "map_size")
        self.map_size = map_size

    def _build(self, input_shape: Shape) -> None:
        if self.map_size is None:
            if None in input_shape[1:3]:
                hint = f"or set map_size of {type(self).__name__}, the largest map that its tables are for"
                raise invalid("the map", "of known height and width", input_shape, hint)
            self.map_size = tuple(input_shape[1:3])
        height, width = self.map_size
        self.height_table = self._table("height_table", 2 * height - 1, self._key_dim)
        self.width_table = self._table("width_table", 2 * width - 1, self._key_dim)

    def _tables(self, query_size: Sequence[Size]) -> list[K.Variable]:
        """Both tables, checked to be long enough for the map."""
        tables = [self.height_table, self.width_table]
        for name, size, table in zip(
            ("height", "width"), query_size, tables, strict=True
        ):
            largest = table.shape[0] // 2 + 1
            if not isinstance(size, int):
                K.check_at_most(
                    size, largest, f"the map's {name} is larger than in map_size"
                )
            elif size > largest:
                accepted = f"at most {largest}, that of map_size={self.map_size} in {type(self).__name__}"
                raise invalid(f"the {name} of the map", accepted, size, OF_ZOO)
        return tables


@keras.saving.register_keras_serializable(package="lambdanet")
class GlobalAttention(_MapAttention):
    """Self-attention over the whole map with relative positions in height and width (Bello et al. 2019).

    With m - n = (dy, dx) for a query n and a context position m,

      y_n = sum over m of softmax_m(q_n . (k_m + height_table[dy] + width_table[dx]) / sqrt(k)) v_m.

    It needs memory for heads * n^2 weights per image.

    Input: [b, h, w, c]. Output: the same shape with `filters` channels.

    Args:
      filters: d, the number of output channels; divisible by `num_heads`. Default: the input's.
      num_heads: the number of heads, h; the value depth is v = d / h.
      key_dim: k, the depth of a query and a key. Default: d / h.
      map_size: the height and width (or the side) of the largest map; the tables have 2 * size - 1 offsets.
        Default: the first input's, which must be known then.
      kernel_regularizer: regularizer of the three projections; the tables have none.
      **kwargs: `name`, `dtype` and other arguments of a Keras layer.

    Call arguments:

    * inputs: [b, h, w, c], with h and w at most those of `map_size`, and c known when the layer is built.

    Raises:
      InputError: for arguments outside these ranges, an input of another rank or with an unknown number of
        channels, an unknown size without `map_size`, a larger map, or a tensor of tf_keras.

    Example:
      >>> layer = GlobalAttention(filters=64, map_size=14)
      >>> tuple(layer(keras.ops.zeros([2, 14, 10, 32])).shape)
      (2, 14, 10, 64)
    """

    def _build(self, input_shape: Shape) -> None:
        super()._build(input_shape)
        self._qkv = self._projections(input_shape[-1])

    def call(self, inputs: Tensor) -> Tensor:
        map_size = sizes(inputs)[1:3]
        # [b * heads, n, depth]
        queries, keys, values = map(_flat, self._project_heads(inputs, self._qkv))
        axes = [PairAxis(n, n) for n in map_size]
        logits = self._compute_by_tables(
            lambda *tables: attention.map_logits(queries, tables, axes),
            self._tables(map_size),
            self.compute_dtype,
        )
        bias = attention.map_bias(logits, map_size)  # [b * heads, n, n]
        # [b * heads, n, v]
        outputs = kernels.kernels_for_device().attend(queries, keys, values, bias)
        return attention.merge_heads(
            K.reshape(outputs, [-1, *map_size, self._value_dim]), self.num_heads
        )

    def chosen_weights(self, inputs: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        map_size = sizes(inputs)[1:3]
        tables = self._tables(map_size)
        places = chosen // map_size[1], chosen % map_size[1]
        whole = [LocalGeometry(block_size=size, halo_size=0) for size in map_size]
        qkv = self._project_heads(inputs, self._qkv)
        return self._chosen_weights(qkv, places, tables, whole)


@keras.saving.register_keras_serializable(package="lambdanet")
class AxialAttention(_MapAttention):
    """Self-attention along the height, then along the width (Ho et al. 2019; Wang et al. 2020).

    Each of the two has its own queries, keys, values and table of relative positions; together they cover the
    whole map, with heads * n * (height + width) weights per image. For a query n and a context position m at
    the offset d = m - n along the axis the logit is q_n . (k_m + table[d]) / sqrt(k).

    Input: [b, h, w, c]. Output: the same shape with `filters` channels.

    Arguments and errors as in `GlobalAttention`, with six projections instead of three.

    Call arguments:

    * inputs: as in `GlobalAttention`.

    Example:
      >>> layer = AxialAttention(filters=64, map_size=56)
      >>> tuple(layer(keras.ops.zeros([2, 56, 40, 32])).shape)
      (2, 56, 40, 64)
    """

    def _build(self, input_shape: Shape) -> None:
        super()._build(input_shape)
        self._along_height = self._projections(input_shape[-1], "height_")
        self._along_width = self._projections(
            self._value_dim * self.num_heads, "width_"
        )

    def call(self, inputs: Tensor) -> Tensor:
        height_table, width_table = self._tables(sizes(inputs)[1:3])
        x = self._attend_in_columns(inputs, height_table)
        return self._attend_in_rows(x, self._along_width, width_table)

    def chosen_weights(self, inputs: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """As in `Attention`, of the attention along the width, to what that along the height returns."""
        map_size = _, width = sizes(inputs)[1:3]
        height_table, width_table = self._tables(map_size)
        places = chosen // width, chosen % width
        x = self._attend_in_columns(inputs, height_table)
        qkv = self._project_heads(x, self._along_width)
        # Along the width, a query sees its own row, without an embedding.
        tables = 0 * height_table, width_table
        rows = LocalGeometry(block_size=1, halo_size=0)
        columns = LocalGeometry(block_size=width, halo_size=0)
        return self._chosen_weights(qkv, places, tables, [rows, columns])

    def _attend_in_columns(self, x: Tensor, table: K.Variable) -> Tensor:
        """Attends within every column of [b, h, w, c]."""
        columns = K.transpose(x, [0, 2, 1, 3])
        columns = self._attend_in_rows(columns, self._along_height, table)
        return K.transpose(columns, [0, 2, 1, 3])

    def _attend_in_rows(
        self, x: Tensor, projections: Sequence[keras.layers.Dense], table: K.Variable
    ) -> Tensor:
        """Attends within every row of [b, rows, n, c]."""
        rows, n = sizes(x)[1:3]
        queries, keys, values = (  # [b * heads * rows, n, depth]
            K.reshape(part, [-1, n, part.shape[-1]])
            for part in self._project_heads(x, projections)
        )
        axis = PairAxis(n, n)
        bias = self._compute_by_tables(
            lambda table: attention.relative_logits(
                queries, attention.axis_embeddings(table, axis)
            ),
            [table],
            self.compute_dtype,
        )
        outputs = kernels.kernels_for_device().attend(queries, keys, values, bias)
        return attention.merge_heads(
            K.reshape(outputs, [-1, rows, n, self._value_dim]), self.num_heads
        )


@keras.saving.register_keras_serializable(package="lambdanet")
class LinearAttention(Attention):
    """Self-attention through a feature map f in place of the softmax, linear in the number of positions.

      y_n = sum over m of f(q_n) . f(k_m) v_m, over the same sum without v_m,

    computed as the product of f(q_n) with one k x v matrix per head: the content lambda of a multi-head
    lambda layer (Bello 2021, appendix D.3). Two feature maps:

    * "softmax": of queries over their depth and of keys over the map (Shen et al. 2018), so that the weights
      of every query add up to 1 without a division;
    * "elu": elu(x) + 1 (Katharopoulos et al. 2020). The division is split into a softmax of the keys over the
      map and one of the queries over their depth, with logarithms of elu(x) + 1 in the exponents, so that
      neither large nor small features leave the range of a float.

    It ignores positions: a permutation of the map permutes the output.

    Input: [b, h, w, c]. Output: the same shape with `filters` channels.

    Args:
      filters, num_heads, key_dim, kernel_regularizer, **kwargs: as in `GlobalAttention`.
      feature_map: "softmax" or "elu".

    Call arguments:

    * inputs: [b, h, w, c], of any size, with c known when the layer is built.

    Raises:
      InputError: for arguments outside these ranges, an input of another rank or with an unknown number of
        channels, or a tensor of tf_keras.

    Example:
      >>> layer = LinearAttention(filters=64, feature_map="elu")
      >>> tuple(layer(keras.ops.zeros([2, 14, 10, 32])).shape)
      (2, 14, 10, 64)
    """

    def __init__(
        self,
        filters: int | None = None,
        num_heads: int = 8,
        key_dim: int | None = None,
        feature_map: str = "softmax",
        kernel_regularizer: Any = None,
        **kwargs: Any,
    ):
        super().__init__(filters, num_heads, key_dim, kernel_regularizer, **kwargs)
        check_known("feature map", feature_map, FEATURE_MAPS)
        self.feature_map = feature_map

    def call(self, inputs: Tensor) -> Tensor:
        map_size = sizes(inputs)[1:3]
        queries, keys, values = self._features(inputs)
        lambdas = K.matmul(keys, values, transpose_a=True)  # [b * heads, k, v]
        outputs = K.reshape(
            K.matmul(queries, lambdas), [-1, *map_size, self._value_dim]
        )
        return attention.merge_heads(outputs, self.num_heads)

    def chosen_weights(self, inputs: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """As in `Attention`: f(q_n) . f(k_m), over the sum of that over m."""
        queries, keys, values = (
            K.reshape(x, [-1, self.num_heads, *x.shape[1:]])
            for x in self._features(inputs)
        )
        queries = K.take(queries, chosen, axis=2)
        return K.matmul(queries, keys, transpose_b=True), values

    def _features(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns f(q), f(k) and values, normalized over depth and context, [b * heads, n, depth]."""
        queries, keys, values = map(
            _flat, self._project_heads(inputs, self._qkv, scale=False)
        )
        queries = at_least_float32(queries)
        keys = at_least_float32(keys)
        if self.feature_map == "elu":
            queries = _log_elu_plus_one(queries)
            keys = _log_elu_plus_one(keys)
            queries += K.logsumexp(keys, axis=1, keepdims=True)
        queries = K.cast(K.softmax(queries), values.dtype)
        keys = K.cast(K.softmax(keys, axis=1), values.dtype)
        return queries, keys, values


def _flat(x: Tensor) -> Tensor:
    """[g, h, w, depth] -> [g, n, depth]."""
    g, height, width, depth = sizes(x)
    return K.reshape(x, [g, height * width, depth])


def _log_elu_plus_one(x: Tensor) -> Tensor:
    return K.minimum(x, 0.0) + K.log(1.0 + K.relu(x))

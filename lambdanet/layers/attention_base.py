# SPDX-License-Identifier: Apache-2.0
"""Base class of the attention layers."""

from collections.abc import Sequence
from typing import Any

from lambdanet import backend as K
from lambdanet.backend import compat, keras
from lambdanet.errors import check_count, check_divisible, invalid
from lambdanet.layers.layer import TableLayer
from lambdanet.layers.sublayers import build_projection
from lambdanet.ops import attention


class Attention(TableLayer):
    """Projections to the queries, keys and values of several heads.

    Projections have no bias, and none follows the heads: the 1x1 convolution of the bottleneck is next. The
    arguments are those of every attention layer.
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
        self.filters = None if filters is None else check_count("filters", filters)
        self.key_dim = None if key_dim is None else check_count("key_dim", key_dim)
        if self.filters is not None:
            check_divisible(self.filters, self.num_heads)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)

    def build(self, input_shape):
        input_shape = compat.Shape(input_shape)
        if len(input_shape) != 4 or input_shape[-1] is None:
            accepted = "[b, h, w, c] with a known number of channels"
            raise invalid(f"the shape of the input of {type(self).__name__}", accepted, tuple(input_shape))
        filters = self.filters or input_shape[-1]
        check_divisible(filters, self.num_heads)
        self._key_dim = self.key_dim or filters // self.num_heads
        self._value_dim = self._output_filters(filters) // self.num_heads
        self._build(input_shape)
        super().build(input_shape)

    def compute_output_shape(self, input_shape):
        input_shape = compat.Shape(input_shape)
        return compat.Shape([*input_shape[:-1], self._output_filters(self.filters or input_shape[-1])])

    def _build(self, input_shape: compat.Shape) -> None:
        """Creates the layer's variables for an input of a valid shape."""
        raise NotImplementedError

    def _output_filters(self, filters: int) -> int:
        return filters

    def _projections(self, channels: int, prefix: str = "") -> list[keras.layers.Dense]:
        """Creates the projections to queries, keys and values."""
        depths = {"queries": self._key_dim, "keys": self._key_dim, "values": self._value_dim}
        return [
            build_projection(self, prefix + name, channels, self.num_heads * depth, channels**-0.5)
            for name, depth in depths.items()
        ]

    def _table(self, name: str, length: int, depth: int) -> K.Variable:
        """Creates a table of relative embeddings, shared by the heads."""
        initializer = keras.initializers.RandomNormal(stddev=self._key_dim**-0.5)
        return self.add_weight(name=name, shape=[length, depth], initializer=initializer)

    def _project(
        self, x: K.Tensor, projections: Sequence[keras.layers.Dense], strides: int = 1
    ) -> list[K.Tensor]:
        """Returns queries, keys and values, [b, h, w, num_heads * depth]; with strides, of fewer queries."""
        inputs = (x if strides == 1 else x[:, ::strides, ::strides], x, x)
        return [projection(y) for projection, y in zip(projections, inputs, strict=True)]

    def _project_heads(
        self, x: K.Tensor, projections: Sequence[keras.layers.Dense], scale: bool = True
    ) -> tuple[K.Tensor, K.Tensor, K.Tensor]:
        """Returns queries, divided by the root of their depth, keys and values: [b * heads, h, w, depth]."""
        qkv = self._project(x, projections)
        queries, keys, values = (attention.split_heads(y, self.num_heads) for y in qkv)
        return queries * self._key_dim**-0.5 if scale else queries, keys, values

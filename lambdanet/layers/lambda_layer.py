# SPDX-License-Identifier: Apache-2.0
"""The lambda layer (Bello 2021, section 3)."""

from collections.abc import Mapping, Sequence
from typing import Any

from lambdanet import backend as K
from lambdanet import which_keras
from lambdanet.backend import compat, keras
from lambdanet.backend.tensors import at_least_float32, ceil_div, product, sizes
from lambdanet.errors import (
    InputError,
    check_count,
    check_counts,
    check_divisible,
    invalid,
    unknown,
)
from lambdanet.layers.batch_norm_folding import folded_weights
from lambdanet.layers.layer import Layer, rebuilt
from lambdanet.layers.pooled_batch_norm import BatchNormalization
from lambdanet.layers.position_embedding import (
    PositionEmbedding,
    RelativePositionEmbedding,
    UnstructuredPositionEmbedding,
    restored,
)
from lambdanet.layers.sublayers import BATCH_NORM, build_projection, build_sublayer
from lambdanet.ops import content_lambdas, kernels, pooling
from lambdanet.ops.position_term import Geometry

POSITION_KINDS = ("relative", "unstructured", None)
# The arguments of the layer that are those of its relative embedding.
RELATIVE = ("scope", "dilation", "map_size", "resize", "position_bias", "implementation")


@keras.saving.register_keras_serializable(package="lambdanet")
class LambdaLayer(Layer):
    """Maps every position to a linear function of its context, a lambda, and applies it to its queries.

    With queries q, normalized keys K, values V and relative position embeddings E,

      lambda_n = sum over m of (softmax(K)_m + E_nm) V_m^T,    y_n = concat over heads of lambda_n^T q_n.

    `lambdanet.ops.reference` is these equations as four einsums.

    The layer follows the paper's defaults (appendix F.2): multi-query, a local scope for the position
    lambdas and the whole map for the content lambda, batch normalization of queries and values, no biases
    and no output projection. Keep the BN and ReLU that follow the convolution it replaces. To reduce the
    resolution as the paper does, by a 3x3 average-pool of stride 2, set `strides=2` and `pool_size=3`.

    Input: images [b, h, w, c], sequences [b, n, c], or volumes [b, t, h, w, c]. The spatial sizes may be
    unknown and may change from call to call. Output: the same shape with `filters` channels.

    Args:
      filters: d, the number of output channels; divisible by `num_heads`. Default: those of the input.
      num_heads: h, the queries per position that share a lambda. The value depth is v = d / h.
      key_dim: k, the depth of a query.
      intra_depth: u, the depth summed over inside keys and values (appendix C.4). The paper pairs
        u > 1 with a scope of 7.
      scope: r, odd: the position lambda of n sees the r positions around it along each axis; None: all.
      position: "relative", "unstructured" (one embedding for each pair of positions), None (content only),
        or an embedding layer, which several lambda layers may share, and which has the arguments from `scope`
        on that follow.
      content: whether there is a content lambda.
      key_normalization: the normalization of keys over the context: "softmax", "l2" or None (Table 11).
      query_normalization: the normalization of queries over their depth: None or "softmax" (Table 11).
      use_batch_norm: whether queries and values are batch normalized (Table 11).
      multi_head: whether every head has its own keys, values and embeddings (appendix C.3), at h times the
        cost.
      strides: the distance between queries along each axis; the output has 1 / strides of the positions.
      pool_size: with strides, the side of the windows over which outputs are averaged, as by an average-pool
        with "same" padding, at a fraction of the cost.
      dilation: the distance between positions within the scope; 1 for the scope None.
      map_size: for the scope None, the size of the map that the table is for; default: that of the first
        input.
      resize: for the scope None and other sizes, "slice" (no larger than `map_size`) or "interpolate".
      position_bias: whether to add a vector to the position lambdas, as timm's networks do.
      implementation: the form of `lambdanet.ops.apply_position_lambdas`. A mask [n, m] and unstructured
        positions have a form of their own.
      batch_norm: arguments of the batch normalizations, instead of momentum 0.9 and epsilon 1e-5.
      kernel_regularizer: regularizer of the three projections; position embeddings have none.
      use_bias: whether the projections of queries and values have biases, as batch normalizations become
        that `lambdanet.for_inference` folds into them.
      **kwargs: `name`, `dtype` and other arguments of a Keras layer.

    Raises:
      InputError: for arguments outside these ranges, an input of another rank or with an unknown number
        of channels, or a Keras 3 tensor.

    Example:
      >>> layer = LambdaLayer(filters=64, scope=7)
      >>> layer(tf.zeros([2, 14, 10, 32])).shape
      TensorShape([2, 14, 10, 64])
    """

    def __init__(
        self,
        filters: int | None = None,
        num_heads: int = 4,
        key_dim: int = 16,
        intra_depth: int = 1,
        scope: int | None = 23,
        position: str | PositionEmbedding | None = "relative",
        content: bool = True,
        key_normalization: str | None = "softmax",
        query_normalization: str | None = None,
        use_batch_norm: bool = True,
        multi_head: bool = False,
        strides: int = 1,
        pool_size: int = 1,
        dilation: int = 1,
        map_size: int | Sequence[int] | None = None,
        resize: str = "slice",
        position_bias: bool = False,
        implementation: str = "auto",
        batch_norm: Mapping[str, Any] | None = None,
        kernel_regularizer: Any = None,
        use_bias: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        num_heads, key_dim, intra_depth, strides, pool_size = check_counts(
            num_heads=num_heads,
            key_dim=key_dim,
            intra_depth=intra_depth,
            strides=strides,
            pool_size=pool_size,
        )
        if filters is not None:
            filters = check_count("filters", filters)
            check_divisible(filters, num_heads)
        if key_normalization not in content_lambdas.KEY_NORMALIZATIONS:
            accepted = f"one of {content_lambdas.KEY_NORMALIZATIONS}"
            raise invalid("key_normalization", accepted, key_normalization)
        if query_normalization not in ("softmax", None):
            raise invalid("query_normalization", "'softmax' or None", query_normalization)
        if position is None and not content:
            raise InputError(
                "a lambda layer needs content, positions or both, got content=False and position=None"
            )
        self.filters = filters
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.intra_depth = intra_depth
        self.content = content
        self.key_normalization = key_normalization
        self.query_normalization = query_normalization
        self.use_batch_norm = use_batch_norm
        self.use_bias = use_bias
        self.multi_head = multi_head
        self.strides = strides
        self.pool_size = pool_size
        self.resize = resize
        self.position_bias = position_bias
        self.implementation = implementation
        self.batch_norm = {**BATCH_NORM, **(batch_norm or {})}
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self._num_lambdas = num_heads if multi_head else 1
        self._geometry = Geometry(strides, pool_size=pool_size)
        arguments = (scope, dilation, map_size, resize, position_bias, implementation)
        self.position = self._position_embedding(position, *arguments)
        self._context_shape: compat.Shape | None = None

    def __call__(self, inputs, context=None, mask=None, **kwargs):
        if not self.built and context is not None:
            self._context_shape = compat.Shape(context.shape)
        # Passed even where it is None, so that Keras does not replace it by a padding mask.
        return super().__call__(inputs, context=context, mask=mask, **kwargs)

    def build(self, input_shape):
        input_shape = _checked_shape(input_shape, "input")
        context_shape = _checked_shape(self._context_shape or input_shape, "context")
        if len(context_shape) != len(input_shape):
            raise InputError(f"input and context must have the same rank, got {input_shape}, {context_shape}")
        channels, context_channels = input_shape[-1], context_shape[-1]
        filters = self.filters or channels
        check_divisible(filters, self.num_heads)
        self._value_dim = filters // self.num_heads
        k = self.key_dim
        keys, values = (self._num_lambdas * depth * self.intra_depth for depth in (k, self._value_dim))
        queries, stddev = self.num_heads * k, context_channels**-0.5
        self._queries = build_projection(
            self, "queries", channels, queries, (k * channels) ** -0.5, self.use_bias
        )
        if self.content:
            self._keys = build_projection(self, "keys", context_channels, keys, stddev)
        self._values = build_projection(self, "values", context_channels, values, stddev, self.use_bias)
        self._queries_norm = self._norm("queries_norm", queries)
        self._values_norm = self._norm("values_norm", values)
        if self.position is not None:
            with compat.naming(self.position):
                strides = self._geometry.query_strides
                query_size = [None if n is None else ceil_div(n, strides) for n in input_shape[1:-1]]
                self.position.build_for(query_size, list(context_shape[1:-1]))
        super().build(input_shape)

    def call(self, inputs, context=None, mask=None, training=None):
        """Computes the layer.

        Args:
          inputs: [b, *query_size, c].
          context: the source of keys and values, [b, *context_size, c'], of the same rank; default: the
            inputs.
          mask: the context positions m that a query n sees, for the whole batch: "causal" for those up to n
            in raster order, or 0 and 1 as [n, m].
          training: whether batch normalizations use the statistics of the batch; False also chooses forms
            that are fast without a gradient.

        Returns:
          [b, *query_size, d]; with strides, of the positions that they keep.
        """
        mask = self._checked_mask(mask, context)
        context = inputs if context is None else context
        if self._geometry.query_strides > 1:
            every = slice(None, None, self.strides)
            inputs = inputs[(slice(None), *[every] * (len(inputs.shape) - 2))]
        queries = self._project_queries(inputs, training)  # [b, *query_size, l, h, k]
        values = self._project(context, self._values, self._values_norm, training)
        depth = [self._num_lambdas, self._value_dim, self.intra_depth]
        values = K.reshape(values, [*sizes(context)[:-1], *depth])  # [b, *context_size, l, v, u]
        outputs, joined, pooled = [], None, queries
        if self.pool_size > 1:
            pooled = pooling.mean(queries, len(inputs.shape) - 2, self.pool_size, self.strides)
        if self.content:
            keys = self._project(context, self._keys)
            keys = K.reshape(keys, [*sizes(keys)[:2], self._num_lambdas, self.key_dim, self.intra_depth])
            position = self.position if mask is None else None
            if position is not None and kernels.current(position.implementation).joins_content:
                joined = self._content_lambdas(keys, values)
            else:
                outputs.append(self._apply_content(pooled, keys, values, mask))
        if self.position is not None:
            arguments = {"strides": self.strides, "mask": mask, "pool_size": self.pool_size}
            outputs.append(self.position(queries, values, **arguments, content=joined, training=training))
        shape = [*sizes(pooled)[:-3], self.num_heads * self._value_dim]
        return sum(K.reshape(output, shape) for output in outputs)

    def for_inference(self):
        """Returns a copy with folded normalizations and position embeddings of its own, as constants."""
        others = {name: value for name, value in self.get_config().items() if name not in RELATIVE}
        copy = rebuilt(
            self,
            {
                **others,
                "use_batch_norm": False,
                "use_bias": self.use_bias or self.use_batch_norm,
                "position": self.position and self.position.with_constant_tables(),
            },
        )
        for name in ("_queries", "_keys", "_values", "position"):
            part, norm = getattr(self, name, None), getattr(self, f"{name}_norm", None)
            if part is not None:
                weights = folded_weights(part, norm) if norm else part.get_weights()
                getattr(copy, name).set_weights(weights)
        return copy

    def get_build_config(self):
        context_shape = self._context_shape
        return {
            **super().get_build_config(),
            "context_shape": None if context_shape is None else list(context_shape),
        }

    def build_from_config(self, config):
        if config.get("context_shape") is not None:
            self._context_shape = compat.Shape(config["context_shape"])
        super().build_from_config(config)

    def compute_output_shape(self, input_shape):
        b, *spatial, channels = compat.Shape(input_shape)
        spatial = [None if n is None else ceil_div(n, self.strides) for n in spatial]
        return compat.Shape([b, *spatial, self.filters or channels])

    def get_config(self):
        config, position = super().get_config(), self.position
        if not self._owns_position:
            config["position"] = None if position is None else position.serialized()
        elif isinstance(position, RelativePositionEmbedding):
            config["map_size"] = position.map_size  # that of the first input by now, if it was None
            config["position"] = "relative"
        else:
            config["position"] = "unstructured"
        return {**config, "batch_norm": dict(self.batch_norm)}

    @classmethod
    def from_config(cls, config):
        if isinstance(config.get("position"), Mapping):
            others = {name: value for name, value in config.items() if name not in RELATIVE}
            config = {**others, "position": restored(config["position"])}
        return super().from_config(config)

    def _position_embedding(
        self, position: str | PositionEmbedding | None, *arguments: Any
    ) -> PositionEmbedding | None:
        """Returns the embedding that `position` names or is; `arguments` are those of a relative one."""
        self._owns_position = isinstance(position, str)
        depth = {"key_dim": self.key_dim, "intra_depth": self.intra_depth, "num_lambdas": self._num_lambdas}
        options: dict[str, Any] = {"dtype": self.dtype_policy, "name": "position"}
        relative = RelativePositionEmbedding(
            self.key_dim, self.intra_depth, self._num_lambdas, *arguments, **options
        )
        self.scope, self.dilation, self.map_size = relative.scope, relative.dilation, relative.map_size
        if position == "relative":
            return relative
        if position == "unstructured":
            return UnstructuredPositionEmbedding(**depth, **options)
        if isinstance(position, str):
            raise unknown("position", position, [name for name in POSITION_KINDS if name])
        if position is None:
            return None
        which_keras.check_same(position, "position")
        if not isinstance(position, PositionEmbedding):
            raise invalid("position", f"one of {POSITION_KINDS} or a PositionEmbedding", position)
        for name, value in depth.items():
            if (given := getattr(position, name)) != value:
                raise invalid(f"{name} of the position embedding", f"{value} as in the layer", given)
        default = RelativePositionEmbedding()
        for name in RELATIVE:
            attribute = name.replace("position_", "use_")
            given, unset = getattr(relative, attribute), getattr(default, attribute)
            own = getattr(position, attribute, unset)
            sides = (given,) * len(own) if isinstance(own, tuple) else given  # of a map
            if given != unset and own not in (given, sides):
                raise invalid(f"{name} beside a position embedding", f"{own!r}, as in the embedding", given)
        position.num_users += 1
        return position

    def _norm(self, name: str, channels: int) -> keras.layers.BatchNormalization | None:
        if not self.use_batch_norm:
            return None
        layer = BatchNormalization(**self.batch_norm, dtype=self.dtype_policy, name=name)
        return build_sublayer(layer, [None, None, 1, channels])

    def _project(self, x, projection, norm=None, training=None):
        """Projects and normalizes: [b, *size, c] -> [b, n, 1, units].

        One spatial axis serves every kind of input, and the axis of size 1 allows the fused batch
        normalization.
        """
        b, *size, channels = sizes(x)
        x = projection(K.reshape(x, [b, product(size), 1, channels]))
        return x if norm is None else norm(x, training=training)

    def _project_queries(self, inputs, training):
        """[b, *query_size, c] -> [b, *query_size, l, h, k], l lambdas per position and h heads per lambda."""
        size, lambdas, k = sizes(inputs)[:-1], self._num_lambdas, self.key_dim
        queries = self._project(inputs, self._queries, self._queries_norm, training)
        if self.query_normalization == "softmax":
            queries = K.reshape(queries, [*sizes(queries)[:2], self.num_heads, k])
            queries = K.cast(K.softmax(at_least_float32(queries)), self.compute_dtype)
        return K.reshape(queries, [*size, lambdas, self.num_heads // lambdas, k])

    def _content_lambdas(self, keys, values):
        """Keys [b, m, l, k, u] and values [b, *size, l, v, u] -> content lambdas [b, l, k, v]."""
        values = _flat(values)
        lambdas = [
            content_lambdas.content_lambda(keys[:, :, i], values[:, :, i], self.key_normalization)
            for i in range(self._num_lambdas)
        ]
        return K.stack(lambdas, axis=1)

    def _apply_content(self, queries, keys, values, mask):
        """Applies the content lambdas one by one: queries [b, *query_size, l, h, k] -> [b, n, l, h, v]."""
        queries, values = _flat(queries), _flat(values)
        outputs = [
            content_lambdas.apply_content_lambda(
                queries[:, :, i], keys[:, :, i], values[:, :, i], self.key_normalization, mask
            )
            for i in range(self._num_lambdas)
        ]
        return K.stack(outputs, axis=2)

    def _checked_mask(self, mask, context):
        if isinstance(mask, str):
            if mask != "causal":
                raise unknown("mask", mask, ["causal"])
            if context is not None or self.strides > 1 or self.pool_size > 1:
                raise InputError(
                    "a causal mask needs the inputs as context and strides of 1; give mask as [n, m] instead"
                )
        elif mask is not None:
            if self.pool_size > 1:
                raise invalid("pool_size", "1 with a mask [n, m]", self.pool_size)
            mask = K.convert_to_tensor(mask)
            if len(mask.shape) != 2:
                raise invalid("mask", "'causal' or of the shape [n, m]", tuple(mask.shape))
        return mask


def _flat(x: K.Tensor) -> K.Tensor:
    """[b, *size, l, h, k] -> [b, n, l, h, k]."""
    b, *size = sizes(x)[:-3]
    return K.reshape(x, [b, product(size), *x.shape[-3:]])


def _checked_shape(shape, what: str) -> compat.Shape:
    shape = compat.Shape(shape)
    if getattr(shape, "rank", 3) is None or len(shape) not in (3, 4, 5):
        raise invalid(f"the shape of the {what}", "[b, n, c], [b, h, w, c] or [b, t, h, w, c]", tuple(shape))
    if shape[-1] is None:
        raise invalid(f"the shape of the {what}", "one with a known number of channels", tuple(shape))
    return shape

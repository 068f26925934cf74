# SPDX-License-Identifier: Apache-2.0
"""The lambda layer (Bello 2021, section 3)."""

from collections.abc import Mapping, Sequence
from typing import Any

from lambdanet import backend as K
from lambdanet.backend import Shape, Tensor, keras
from lambdanet.backend.tensors import PerAxis, is_numpy, per_axis, sizes
from lambdanet.core import errors
from lambdanet.layers import argument_checks as checks
from lambdanet.layers import call_arguments, lambda_state, old_arguments
from lambdanet.layers import position_argument as positions
from lambdanet.layers.batch_norm import build_norm, copy_folded
from lambdanet.layers.lambda_state import State
from lambdanet.layers.layer import (
    Layer,
    build_projection,
    copied_config,
    rebuild_layer,
    strided_shape,
)
from lambdanet.layers.own_lambdas import apply_by_reference, apply_own_lambdas
from lambdanet.layers.position_embedding import PositionEmbedding
from lambdanet.layers.projections import project
from lambdanet.ops import content_lambdas
from lambdanet.ops.kernels import OF_LAYERS
from lambdanet.ops.position_term import Geometry


@keras.saving.register_keras_serializable(package="lambdanet")
class LambdaLayer(Layer):
    """Maps every position to a linear function of its context, a lambda, and applies it to its queries.

    With queries q, normalized keys K, values V and relative position embeddings E,

      lambda_n = sum over m of (softmax(K)_m + E_nm) V_m^T,    y_n = concat over heads of lambda_n^T q_n,

    which are the four einsums of `lambdanet.ops.reference`. Defaults are the paper's (appendix F.2), with no
    output projection: keep the BN and ReLU that follow the convolution it replaces. To reduce the resolution
    as by a 3x3 average-pool of stride 2, set `strides=2` and `pool_size=3`.

    Input: images [b, h, w, c], sequences [b, n, c], or volumes [b, t, h, w, c], of any spatial sizes, which
    may change from call to call. Output: the same shape with `filters` channels.

    Letters, as in the paper: b examples, n query positions, m context positions, h heads, k the depth of
    queries and keys, u the intra-depth, v the depth of values, r the scope, d = h v output channels.

    Args:
      filters: d, the number of output channels; divisible by `num_heads`. Default: the input's.
      num_heads: h, the queries per position that share a lambda. The value depth is v = d / h.
      key_dim: k, the depth of a query.
      intra_depth: u, the depth summed over inside keys and values (appendix C.4).
      scope: r, odd: the position lambda of n sees the r positions around it along each axis; None: all. As
        `strides` and `pool_size`, one value for all axes or one for each: `scope=(3, 7, 7)` and
        `strides=(1, 2, 2)` for videos, `scope=(None, 5)` for all of the first axis.
      position: "relative", "unstructured" (one embedding for each pair of positions), None (content only),
        or an embedding layer, which several lambda layers may share, such as
        `RelativePositionEmbedding(scope=7, dilation=2)`, and which has its own scope.
      content: whether there is a content lambda.
      key_normalization: the normalization of keys over the context: "softmax", "l2" or None (Table 11).
      query_normalization: the normalization of queries over their depth: None or "softmax" (Table 11).
      batch_norm: whether queries and values are batch normalized, or a dict of arguments for that, over
        momentum 0.9 and epsilon 1e-5.
      multi_head: whether every head has its own keys, values and embeddings (appendix C.3).
      strides: the distance between queries along each axis; the output has 1 / strides of the positions.
      pool_size: with strides, the side of the windows over which outputs are averaged, as by an average-pool
        with "same" padding, at a fraction of the cost.
      causal: whether a query sees only the positions up to its own: True on sequences; on images and volumes,
        "time" or the number of the axis, 1 for the first spatial one. Tables have the offsets up to 0.
      implementation: as in `RelativePositionEmbedding`, or "reference": the whole layer by the equations of
        `lambdanet.ops.reference`, without a state, on maps whose embeddings [n, m, k, u] take 64 MiB or less.
      kernel_regularizer: regularizer of the three projections; position embeddings have none.
      use_bias: whether the projections of queries and values have biases, as batch normalizations become
        that `lambdanet.for_inference` folds into them.
      embeddings_initializer: the initializer of the position embeddings. None: the paper's, normal with a
        standard deviation of 1. Small networks learn recall with 0.02 to 0.1 (docs/results/arena.md).
      **kwargs: `name`, `dtype` and other arguments of a Keras layer.

    Call arguments:

    * inputs: [b, *query_size, c].
    * context: the source of keys and values, [b, *context_size, c'], of the same rank. Default: the inputs.
    * attention_mask: what each query sees of the context, true or 1, [n, m] or [b, n, m]. Default: all of it.
    * padding_mask: the context positions that are no padding, [b, m], for sequences of different lengths.
      Padding is in no lambda, in no statistics of a batch normalization and, with the inputs as context, in
      no average of a pool. It costs hardly anything, where an attention_mask takes a slower form.
    * mask: Keras's own padding mask of a sequence, [b, m], as of `Masking` or `Embedding(mask_zero=True)`,
      which Keras hands on by itself. Padding is what it or `padding_mask` hides.
    * training: whether batch normalizations use the statistics of the batch.
    * initial_state: the state of a causal layer after earlier positions, which the inputs continue.
    * return_state: whether to return the state after the inputs, too.

    Raises:
      InputError: for arguments outside these ranges, an input of another rank or with an unknown number
        of channels, or a tensor of tf_keras.

    Example:
      >>> layer = LambdaLayer(filters=64, scope=7)
      >>> tuple(layer(keras.ops.zeros([2, 14, 10, 32])).shape)
      (2, 14, 10, 64)
    """

    masked_ranks = (3,)
    # The attributes with weights.
    PARTS: tuple[str, ...] = ("_queries", "_keys", "_values", "position")
    # Methods that are in files of their own: the arguments of a call, and the state of a causal layer.
    check_call = call_arguments.check_call
    compute_mask = call_arguments.compute_mask
    initial_state = lambda_state.initial_state
    step = lambda_state.step

    def __init__(
        self,
        filters: int | None = None,
        num_heads: int = 4,
        key_dim: int = 16,
        intra_depth: int = 1,
        scope: int | Sequence[int | None] | None = 23,
        position: str | PositionEmbedding | None = "relative",
        content: bool = True,
        key_normalization: str | None = "softmax",
        query_normalization: str | None = None,
        batch_norm: bool | Mapping[str, Any] = True,
        multi_head: bool = False,
        strides: PerAxis = 1,
        pool_size: PerAxis = 1,
        causal: bool | int | str = False,
        implementation: str = "auto",
        kernel_regularizer: Any = None,
        use_bias: bool = False,
        embeddings_initializer: Any = None,
        **kwargs: Any,
    ):
        old_arguments.refuse_old(kwargs)
        # A state keeps its precision: `project` casts the inputs alone.
        super().__init__(autocast=False, **kwargs)
        self.num_heads, self.key_dim, self.intra_depth = errors.check_counts(
            num_heads=num_heads, key_dim=key_dim, intra_depth=intra_depth
        )
        self.scope = checks.check_per_axis("scope", scope, checks.check_scope_or_none)
        self.strides = checks.check_per_axis("strides", strides, errors.check_count)
        self.pool_size = checks.check_per_axis(
            "pool_size", pool_size, errors.check_count
        )
        self.filters = checks.check_optional_count("filters", filters)
        if self.filters is not None:
            checks.check_divisible(self.filters, self.num_heads)
        errors.check_flags(content=content, multi_head=multi_head, use_bias=use_bias)
        checks.check_normalizations(key_normalization, query_normalization, batch_norm)
        errors.check_known("implementation", implementation, OF_LAYERS)
        self.causal = checks.check_causal(causal)
        self.content = content
        self.multi_head = multi_head
        self.key_normalization = key_normalization
        self.query_normalization = query_normalization
        self.batch_norm = batch_norm
        self.use_bias = use_bias
        self.implementation = implementation
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.num_lambdas = self.num_heads if multi_head else 1
        self.geometry = Geometry(self.strides, pool_size=self.pool_size)
        self.position_kind = position if isinstance(position, str) else None
        self.position: Any = positions.embedding_of(
            self, position, embeddings_initializer
        )
        self.context_shape: Shape | None = None
        self._is_of_old_file = False

    def build(self, input_shape: Shape) -> None:
        input_shape = checks.checked_shape(input_shape, "input")
        context_shape = checks.checked_shape(
            self.context_shape or input_shape, "context"
        )
        channels = input_shape[-1]
        context_channels = context_shape[-1]
        filters = self.filters or channels
        checks.check_divisible(filters, self.num_heads)
        self.value_dim = filters // self.num_heads
        k = self.key_dim
        queries = self.num_heads * k
        keys = self.num_lambdas * k * self.intra_depth
        values = self.num_lambdas * self.value_dim * self.intra_depth
        stddev = context_channels**-0.5
        self._queries = build_projection(
            self, "queries", channels, queries, (k * channels) ** -0.5, self.use_bias
        )
        if self.content:
            self._keys = build_projection(self, "keys", context_channels, keys, stddev)
        self._values = build_projection(
            self, "values", context_channels, values, stddev, self.use_bias
        )
        self._queries_norm = build_norm(self, "queries_norm", queries)
        self._values_norm = build_norm(self, "values_norm", values)
        self.rank = len(input_shape) - 2
        self.map_size = input_shape[1:-1]
        self.input_rank = len(input_shape)
        pool_sizes = per_axis(self.pool_size, self.rank, "pool_size")
        per_axis(self.strides, self.rank, "strides")
        self.causal_axis = checks.axis_of_causal(self.causal, self.rank)
        if self.causal_axis is not None and pool_sizes[self.causal_axis] > 1:
            raise errors.invalid("pool_size", "1 along the causal axis", self.pool_size)
        if self.position is not None:
            steps = [axis.query_strides for axis in self.geometry.along(self.rank)]
            queries_shape = strided_shape(input_shape, tuple(steps))
            self.position.build_for(
                queries_shape[1:-1], context_shape[1:-1], self.causal_axis
            )
        super().build(input_shape)

    def call(
        self,
        inputs: Tensor,
        context: Tensor | None = None,
        attention_mask: Tensor | None = None,
        padding_mask: Tensor | None = None,
        mask: Tensor | None = None,
        training: bool | None = None,
        initial_state: State | None = None,
        return_state: bool = False,
    ) -> Any:
        """Computes the layer, of the arguments that the class describes."""
        parts = project(
            self, inputs, context, attention_mask, padding_mask, mask, training
        )
        past: list[Any] = [None] * self.num_lambdas
        if initial_state:
            past = initial_state
        elif return_state:
            past = lambda_state.zero_state(self, sizes(inputs))
        depth = self.num_heads // self.num_lambdas * self.value_dim
        outputs = []
        state: State = []
        for index in range(self.num_lambdas):
            if self.implementation == "reference":
                y = apply_by_reference(self, index, parts)
            elif attention_mask is not None or self.causal_axis is not None:
                y, new = apply_own_lambdas(self, index, parts, past[index], training)
                state.append(new)
            else:
                queries, keys, values = parts.of_lambda(index)
                content = self._content_lambda(keys, values, parts.padding_mask)
                options = {"index": index, "training": training}
                y = self._apply_lambdas(queries, values, content, **options)
            outputs.append(K.reshape(y, [*sizes(y)[:-2], depth]))
        y = K.concatenate(outputs, axis=-1)  # [b, *query_size, d]
        shares = parts.visible_shares(self.geometry, y.dtype)
        if shares is not None:
            # Averages over all positions of windows become those over what is no padding.
            y = K.divide_no_nan(y, shares)
        return (y, state) if return_state else y

    def _content_lambda(
        self, keys: Tensor | None, values: Tensor, padding_mask: Tensor | None
    ) -> Tensor | None:
        """Returns the content lambda of all queries, [b, k, v]; None without content."""
        if keys is None:
            return None
        return content_lambdas.content_lambda(
            keys, values, self.key_normalization, padding_mask
        )

    def _apply_lambdas(
        self, queries: Tensor, values: Tensor, content: Any, **options: Any
    ) -> Tensor:
        """Applies content and position lambdas to all queries: [b, *output_size, h, v]."""
        if self.position is None:
            return content_lambdas.apply(self.geometry.pool(queries), content)
        options |= {"geometry": self.geometry, "content": content}
        return self.position(queries, values, **options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_of_old_file:
            kwargs = old_arguments.rename_mask(kwargs)
        for name in ("attention_mask", "padding_mask"):
            # A tensor of its numbers 0 and 1 has unknown values where JAX compiles the call.
            if is_numpy(kwargs.get(name)):
                kwargs[name] = content_lambdas.as_boolean(kwargs[name], name)
        # Without any, Keras keeps the mask that it fills in with the call, and no graph can be cut before it.
        kwargs = kwargs or {"return_state": False}
        return super().__call__(*args, **kwargs)

    def compute_output_spec(self, inputs: Tensor, **kwargs: Any) -> Any:
        outputs = super().compute_output_spec(inputs, **kwargs)
        if not kwargs.get("return_state"):
            return outputs
        return outputs, lambda_state.symbolic_state(self, inputs.shape)

    def for_inference(self) -> "LambdaLayer":
        """Returns a copy with folded normalizations and its own position embeddings, as constants."""
        config = self.get_config()
        if self.position is not None:
            constant = copied_config(self.position) | {"constant_tables": True}
            own = type(self.position).from_config(constant)
            config = positions.with_position(config, own)
        config["use_bias"] = self.use_bias or self.batch_norm is not False
        config["batch_norm"] = False
        copy = rebuild_layer(self, config)
        copy_folded(self, copy, self.PARTS)
        return copy

    def get_build_config(self) -> dict[str, Any] | None:
        config = super().get_build_config()
        if config is None:
            return None
        return {**config, "context_shape": self.context_shape}

    def build_from_config(self, config: dict[str, Any]) -> None:
        self.context_shape = config.get("context_shape")
        super().build_from_config(config)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        *leading, channels = strided_shape(input_shape, self.strides)
        return (*leading, self.filters or channels)

    def get_config(self) -> dict[str, Any]:
        initializer = getattr(self.position, "embeddings_initializer", None)
        config = {
            **super(Layer, self).get_config(),
            "filters": self.filters,
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "intra_depth": self.intra_depth,
            "scope": self.scope,
            "position": self.position_kind,
            "content": self.content,
            "key_normalization": self.key_normalization,
            "query_normalization": self.query_normalization,
            "batch_norm": self.batch_norm,
            "multi_head": self.multi_head,
            "strides": self.strides,
            "pool_size": self.pool_size,
            "causal": self.causal,
            "implementation": self.implementation,
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
            "use_bias": self.use_bias,
            "embeddings_initializer": keras.initializers.serialize(initializer),
        }
        if positions.is_named(self):
            return config
        return positions.with_position(config, self.position.serialize())

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "LambdaLayer":
        is_old = not old_arguments.OLD_ARGUMENTS.isdisjoint(config)
        if is_old:
            config = old_arguments.translate(config)
        if isinstance(config.get("position"), Mapping):
            embedding = positions.deserialize_position(config["position"])
            config = {**config, "position": embedding}
        layer = super().from_config(config)
        layer._is_of_old_file = is_old
        return layer

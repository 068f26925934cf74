# SPDX-License-Identifier: Apache-2.0
"""The lambda layer (Bello 2021, section 3)."""

from collections.abc import Mapping, Sequence
from typing import Any

from lambdanet import backend as K
from lambdanet.backend import Shape, Tensor, compat, keras
from lambdanet.backend.tensors import (
    PerAxis,
    per_axis,
    sizes,
)
from lambdanet.errors import (
    InputError,
    check_count,
    check_counts,
    check_flags,
    invalid,
)
from lambdanet.layers.argument_checks import (
    axis_of_causal,
    check_causal,
    check_divisible,
    check_optional_count,
    check_per_axis,
    checked_shape,
)
from lambdanet.layers.batch_norm import BATCH_NORM, build_norm, copy_folded
from lambdanet.layers.causal_layer import LambdaState, State
from lambdanet.layers.layer import (
    build_projection,
    copied_config,
    rebuild_layer,
    strided_shape,
)
from lambdanet.layers.position_argument import (
    deserialize_position,
    embedding_of,
    without_relative,
)
from lambdanet.layers.position_embedding import (
    PositionEmbedding,
    RelativePositionEmbedding,
)
from lambdanet.layers.projections import Masks, ProjectedLayer
from lambdanet.ops import content_lambdas
from lambdanet.ops.position_term import Geometry


@keras.saving.register_keras_serializable(package="lambdanet")
class LambdaLayer(ProjectedLayer):
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

    Letters, as in the paper: b examples, n query positions, m context positions, h heads, k the depth of
    queries and keys, u the intra-depth, v the depth of values, r the scope, d = h v output channels.

    Args:
      filters: d, the number of output channels; divisible by `num_heads`. Default: the input's.
      num_heads: h, the queries per position that share a lambda. The value depth is v = d / h.
      key_dim: k, the depth of a query.
      intra_depth: u, the depth summed over inside keys and values (appendix C.4). The paper pairs
        u > 1 with a scope of 7.
      scope: r, odd: the position lambda of n sees the r positions around it along each axis; None: all. As
        `strides`, `pool_size` and `dilation`, one value for all axes or one for each: `scope=(3, 7, 7)` and
        `strides=(1, 2, 2)` for videos, `scope=(None, 5)` for all of the first axis.
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
      dilation, map_size, resize, implementation: as in `RelativePositionEmbedding`.
      causal: whether a query sees only the positions up to its own: True on sequences; on images and volumes,
        "time" or the number of the axis along which it does, as Keras counts axes: 1 is the first spatial
        axis, "time". Content is that of all positions up to the query's; position tables have only the
        offsets up to 0, (r + 1) / 2 of them along the axis. A batch normalization in training still averages
        over whole sequences.
      position_bias: its `use_bias`: whether to add a vector to the position lambdas, as timm's networks do.
      batch_norm: arguments of the batch normalizations, instead of momentum 0.9 and epsilon 1e-5.
      kernel_regularizer: regularizer of the three projections; position embeddings have none.
      use_bias: whether the projections of queries and values have biases, as batch normalizations become
        that `lambdanet.for_inference` folds into them.
      embeddings_initializer: the initializer of the position embeddings, an initializer of Keras or its name.
        None: normal with a standard deviation of 1, as in the paper. The position lambda then begins as a sum
        with weights of size 1, beside a content lambda that is a mean: small networks hardly learn recall.
        0.02 to 0.1 avoid that, but make in-context recall less certain (measured in docs/results/arena.md).
      **kwargs: `name`, `dtype` and other arguments of a Keras layer.

    Call arguments:

    * inputs: [b, *query_size, c].
    * context: the source of keys and values, [b, *context_size, c'], of the same rank. Default: the inputs.
    * mask: what each query sees of the context, [n, m], or [b, n, m] for each example. Default: everything.
    * padding_mask: the context positions that are no padding, [b, m], for sequences of different lengths.
      For sequences, Keras's own mask of the context, as of `Masking` or `Embedding(mask_zero=True)`, is one
      too: padding is what either hides. It is in no lambda, and in no statistics of a batch normalization;
      with the inputs as context, it is also in no average of a pool. Costs hardly anything, where a mask
      [b, n, m] takes a slower form.
    * training: whether batch normalizations use the statistics of the batch.
    * initial_state: of a causal layer, the state after earlier positions, which the inputs continue; see
      `initial_state`.
    * return_state: whether to return the state after the inputs, too.

    Both masks have true or 1 where a query sees a position.

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
        use_batch_norm: bool = True,
        multi_head: bool = False,
        strides: PerAxis = 1,
        pool_size: PerAxis = 1,
        dilation: PerAxis = 1,
        map_size: int | Sequence[int | None] | None = None,
        resize: str = "slice",
        causal: bool | int | str = False,
        position_bias: bool = False,
        implementation: str = "auto",
        batch_norm: Mapping[str, Any] | None = None,
        kernel_regularizer: Any = None,
        use_bias: bool = False,
        embeddings_initializer: Any = None,
        **kwargs: Any,
    ):
        # A state keeps its precision: `call` casts the inputs alone.
        super().__init__(autocast=False, **kwargs)
        self.num_heads, self.key_dim, self.intra_depth = check_counts(
            num_heads=num_heads, key_dim=key_dim, intra_depth=intra_depth
        )
        self.strides = check_per_axis("strides", strides, check_count)
        self.pool_size = check_per_axis("pool_size", pool_size, check_count)
        self.filters = check_optional_count("filters", filters)
        if self.filters is not None:
            check_divisible(self.filters, self.num_heads)
        check_flags(
            content=content,
            use_batch_norm=use_batch_norm,
            multi_head=multi_head,
            position_bias=position_bias,
            use_bias=use_bias,
        )
        if key_normalization not in content_lambdas.KEY_NORMALIZATIONS:
            raise invalid(
                "key_normalization",
                f"one of {content_lambdas.KEY_NORMALIZATIONS}",
                key_normalization,
            )
        if query_normalization not in ("softmax", None):
            raise invalid(
                "query_normalization", "'softmax' or None", query_normalization
            )
        if position is None and not content:
            raise InputError(
                "a lambda layer needs content, positions or both, got content=False and position=None"
            )
        self.causal = check_causal(causal)
        self.content = content
        self.multi_head = multi_head
        self.key_normalization = key_normalization
        self.query_normalization = query_normalization
        self.use_batch_norm = use_batch_norm
        self.use_bias = use_bias
        self.batch_norm = {**BATCH_NORM, **(batch_norm or {})}
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self._num_lambdas = self.num_heads if multi_head else 1
        self.geometry = Geometry(self.strides, pool_size=self.pool_size)
        relative = RelativePositionEmbedding(
            self.key_dim,
            self.intra_depth,
            self._num_lambdas,
            scope=scope,
            dilation=dilation,
            map_size=map_size,
            resize=resize,
            use_bias=position_bias,
            implementation=implementation,
            embeddings_initializer=embeddings_initializer,
            dtype=self.dtype_policy,
            name="position",
        )
        self.scope = relative.scope  # an integer of NumPy as Python's
        self.dilation = relative.dilation
        self.map_size = relative.map_size
        self.resize = resize
        self.position_bias = position_bias
        self.implementation = implementation
        self._position_kind = position if isinstance(position, str) else None
        self.position: Any = embedding_of(position, relative, embeddings_initializer)
        self.embeddings_initializer = getattr(
            self.position, "embeddings_initializer", None
        )
        self._context_shape: Shape | None = None

    def build(self, input_shape: Shape) -> None:
        input_shape = checked_shape(input_shape, "input")
        context_shape = checked_shape(self._context_shape or input_shape, "context")
        if len(context_shape) != len(input_shape):
            raise InputError(
                f"input and context must have the same rank, got {input_shape}, {context_shape}"
            )
        channels = input_shape[-1]
        context_channels = context_shape[-1]
        filters = self.filters or channels
        check_divisible(filters, self.num_heads)
        self._value_dim = filters // self.num_heads
        k = self.key_dim
        queries = self.num_heads * k
        keys = self._num_lambdas * k * self.intra_depth
        values = self._num_lambdas * self._value_dim * self.intra_depth
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
        rank = len(input_shape) - 2
        pool_sizes = per_axis(self.pool_size, rank, "pool_size")
        per_axis(self.strides, rank, "strides")
        self._map_size = input_shape[1:-1]
        self._input_rank = len(input_shape)
        self.causal_axis = axis_of_causal(self.causal, rank)
        if self.causal_axis is not None and pool_sizes[self.causal_axis] > 1:
            raise invalid("pool_size", "1 along the causal axis", self.pool_size)
        if self.position is not None:
            steps = [axis.query_strides for axis in self.geometry.along(rank)]
            queries_shape = strided_shape(input_shape, tuple(steps))
            self.position.build_for(
                queries_shape[1:-1], context_shape[1:-1], self.causal_axis
            )
        super().build(input_shape)

    def call(
        self,
        inputs: Tensor,
        context: Tensor | None = None,
        mask: Tensor | None = None,
        padding_mask: Tensor | None = None,
        training: bool | None = None,
        initial_state: State | None = None,
        return_state: bool = False,
    ) -> Any:
        """Computes the layer, of the arguments that the class describes.

        Here and in `stateless_call`, a mask with two axes is Keras's, [b, m]; [n, m] is [1, n, m].
        """
        state = initial_state
        if state is None and return_state:
            state = self._zero_state(sizes(inputs))
        parts = self.project(inputs, context, mask, padding_mask, training)
        masks = parts.mask, parts.padding_mask
        query_mask = parts.query_mask
        by_lambda = zip(parts.queries, parts.keys, parts.values, strict=True)
        outputs = []
        new_state = []
        states = [None] * self._num_lambdas if state is None else state
        for index, qkv in enumerate(by_lambda):
            output, new = self._apply_lambda(index, qkv, masks, states[index], training)
            outputs.append(output)
            new_state.append(new)
        depth = self.num_heads // self._num_lambdas * self._value_dim
        outputs = [K.reshape(x, [*sizes(x)[:-2], depth]) for x in outputs]
        y = K.concatenate(outputs, axis=-1)  # [b, *query_size, d]
        if query_mask is not None and self.geometry.has_pool:
            # Averages over all positions of windows become those over what is no padding.
            shares = self.visible_shares(query_mask, y.dtype)
            y = K.divide_no_nan(y, shares[..., 0])
        return (y, new_state) if return_state else y

    def compute_mask(
        self, inputs: Tensor, previous_mask: Tensor | None = None
    ) -> Tensor | None:
        """Returns Keras's mask of the outputs, [b, n]: with strides, of windows that are not all padding."""
        mask = compat.mask_of(inputs)
        if mask is None:
            return None
        (axis,) = self.geometry.along(1)
        if not self.geometry.has_pool:
            return mask[:, :: axis.strides]
        # Keras's own operations, as it may be a symbol.
        visible = keras.ops.expand_dims(keras.ops.cast(mask, "float32"), -1)
        pooled = keras.ops.max_pool(
            visible, axis.pool_size, axis.strides, "same", "channels_last"
        )
        return keras.ops.squeeze(pooled, -1) > 0

    def for_inference(self) -> "LambdaLayer":
        """Returns a copy with folded normalizations and its own position embeddings, as constants."""
        config = without_relative(self.get_config())
        config["use_batch_norm"] = False
        config["use_bias"] = self.use_bias or self.use_batch_norm
        if self.position is not None:
            constant = copied_config(self.position) | {"constant_tables": True}
            config["position"] = type(self.position).from_config(constant)
        copy = rebuild_layer(self, config)
        copy_folded(self, copy, self.PARTS)
        return copy

    def get_build_config(self) -> dict[str, Any] | None:
        config = super().get_build_config()
        if config:
            shape = self._context_shape
            config["context_shape"] = None if shape is None else list(shape)
        return config

    def build_from_config(self, config: dict[str, Any]) -> None:
        if config.get("context_shape") is not None:
            self._context_shape = tuple(config["context_shape"])
        super().build_from_config(config)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        *leading, channels = strided_shape(input_shape, self.strides)
        return (*leading, self.filters or channels)

    def get_config(self) -> dict[str, Any]:
        config = {**super().get_config(), "batch_norm": dict(self.batch_norm)}
        config["position"] = self._position_kind
        if self.position is None:
            return config
        if self._position_kind is None or self.position.num_users > 1:
            # It was given, or another layer has taken it from this one.
            config["position"] = self.position.serialize()
        elif self._position_kind == "relative":
            # The first input's by now, if it was None.
            config["map_size"] = self.position.map_size
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "LambdaLayer":
        if isinstance(config.get("position"), Mapping):
            config = {
                **without_relative(config),
                "position": deserialize_position(config["position"]),
            }
        return super().from_config(config)

    def _apply_lambda(
        self,
        index: int,
        qkv: Sequence[Any],
        masks: Masks,
        state: LambdaState | None,
        training: bool | None,
    ) -> tuple[Tensor, LambdaState]:
        """Applies lambda number `index`, the sum of content and positions.

        Args:
          index: the number of the lambda.
          qkv: its queries, keys and values.
          masks: the mask and the padding mask.
          state: that after earlier positions, which these continue; None: there is none.
          training: as in `call`.

        Returns:
          [b, *query_size, h, v], and the state after these positions, of a layer with one.
        """
        mask, padding_mask = masks
        has_own_lambdas = mask is not None or self.causal_axis is not None
        if has_own_lambdas or self.position is None:
            return self._apply_apart(index, qkv, masks, state, training)
        queries, keys, values = qkv
        content = None
        if self.content:
            content = content_lambdas.content_lambda(
                keys, values, self.key_normalization, padding_mask
            )
        outputs = self.position(
            queries,
            values,
            index=index,
            geometry=self.geometry,
            content=content,
            training=training,
        )
        return outputs, {}

    def _apply_apart(
        self,
        index: int,
        qkv: Sequence[Any],
        masks: Masks,
        state: LambdaState | None,
        training: bool | None,
    ) -> tuple[Tensor, LambdaState]:
        """Adds the outputs of content and positions: masked and causal queries have their own lambdas."""
        mask, _ = masks
        outputs = []
        new_state = {}
        queries, keys, values = qkv
        if self.position is not None:
            context = values
            if state is not None and "values" in state:
                context, new_state["values"] = self._after_past(values, state)
            outputs.append(
                self.position(
                    queries,
                    context,
                    index=index,
                    geometry=self.geometry,
                    mask=mask,
                    training=training,
                    has_past=state is not None,
                )
            )
        if self.content:
            qkv = self.geometry.pool(queries), keys, values
            output, sums = self._apply_content(*qkv, masks, state)
            outputs.append(output)
            new_state |= sums
        shape = sizes(outputs[0])
        total = K.add_n([content_lambdas.flatten_map(x) for x in outputs])
        return K.reshape(total, shape), new_state

    def _apply_content(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        masks: Masks,
        state: LambdaState | None,
    ) -> tuple[Tensor, LambdaState]:
        """Applies content lambdas: one for all queries, those of a mask, or those of what came before."""
        mask, padding_mask = masks
        if mask is None and self.causal_axis is not None:
            return self._apply_past_content(queries, keys, values, padding_mask, state)
        outputs = content_lambdas.apply_content_lambda(
            queries, keys, values, self.key_normalization, mask, padding_mask
        )
        return outputs, {}

# SPDX-License-Identifier: Apache-2.0
"""Queries, keys and values of a lambda layer, and the masks of a call."""

from typing import Any, NamedTuple, TypeAlias

from lambdanet import backend as K
from lambdanet.backend import Shape, Tensor, compat
from lambdanet.backend.tensors import (
    at_least_float32,
    product,
    sizes,
)
from lambdanet.errors import InputError, invalid
from lambdanet.layers.argument_checks import (
    check_mask,
    check_padding_mask,
    shapes_agree,
)
from lambdanet.layers.causal_layer import CausalLayer, State
from lambdanet.layers.layer import check_rank
from lambdanet.ops import content_lambdas, relative_positions
from lambdanet.ops.content_lambdas import as_boolean

Masks: TypeAlias = tuple[Tensor | None, Tensor | None]  # the mask and the padding mask


class Projections(NamedTuple):
    """What the lambdas of a layer are made of and applied to, one tensor for each lambda, and its masks.

    Attributes:
      queries: [b, *query_size, h, k], of all positions where outputs are averages over windows.
      keys: [b, *context_size, k, u], not yet normalized; None without content.
      values: [b, *context_size, v, u], zero in padding.
      mask: what each query sees of the context, [n, m] or [b, n, m], also along a causal axis; None: no mask
        was given.
      padding_mask: the context positions that are no padding, [b, m]; None: all.
      query_mask: the queries that are no padding, [b, *query_size]; None: all.
    """

    queries: list[Tensor]
    keys: list[Tensor | None]
    values: list[Tensor]
    mask: Tensor | None
    padding_mask: Tensor | None
    query_mask: Tensor | None


class ProjectedLayer(CausalLayer):
    """The part of a lambda layer that reads masks, and computes queries, keys and values.

    Attributes:
      num_heads, query_normalization: as in `LambdaLayer`.
    """

    num_heads: int
    query_normalization: str | None
    _context_shape: Shape | None
    _input_rank: int
    _queries: Any
    _keys: Any
    _values: Any
    _queries_norm: Any
    _values_norm: Any

    def check_call(
        self,
        inputs: Tensor,
        context: Tensor | None = None,
        mask: Tensor | None = None,
        padding_mask: Tensor | None = None,
        initial_state: State | None = None,
        return_state: bool = False,
        **kwargs: Any,
    ) -> tuple[Any, dict[str, Any]]:
        """Checks the arguments of a call; a mask becomes [1 or b, n, m], as Keras's own has two axes.

        Raises:
          InputError: an argument does not fit the inputs or the layer.
        """
        if self.built:
            check_rank(self, inputs.shape, self._input_rank)
        if context is not None and not shapes_agree(
            context.shape[:1], inputs.shape[:1]
        ):
            name = "the number of examples of the context"
            raise invalid(
                name, f"{inputs.shape[0]}, those of the inputs", context.shape[0]
            )
        if self.causal is not False and context is not None:
            raise InputError(
                f"causal={self.causal!r} needs the inputs as context; give mask as [n, m] instead"
            )
        if mask is compat.mask_of(inputs):
            mask = None  # or Keras's padding mask, which `project` reads
        if mask is not None:
            mask = check_mask(self, mask, inputs, context)
        if padding_mask is not None:
            padding_mask = check_padding_mask(padding_mask, inputs, context)
        if return_state or initial_state is not None:
            self._check_state(initial_state, inputs, mask)
        if not self.built and context is not None:
            self._context_shape = tuple(context.shape)
        kwargs.update(
            context=context,
            mask=mask,
            padding_mask=padding_mask,
            initial_state=initial_state,
            return_state=return_state,
        )
        return (inputs,), kwargs

    def project(
        self,
        inputs: Tensor,
        context: Tensor | None = None,
        mask: Tensor | None = None,
        padding_mask: Tensor | None = None,
        training: bool | None = None,
    ) -> Projections:
        """Computes the queries, keys and values; arguments as in `call`, and checked."""
        mask, padding_mask = self._read_masks(inputs, context, mask, padding_mask)
        inputs = K.cast(inputs, self.compute_dtype)
        if context is not None:
            context = K.cast(context, self.compute_dtype)
        query_mask = None  # [b, *query_size]
        if padding_mask is not None and context is None:
            query_mask = K.reshape(padding_mask, sizes(inputs)[:-1])
        context = inputs if context is None else context
        axes = self.geometry.along(len(inputs.shape) - 2)
        if any(axis.query_strides > 1 for axis in axes):
            every = [slice(None, None, axis.query_strides) for axis in axes]
            every_query = (slice(None), *every)
            inputs = inputs[every_query]
            query_mask = None if query_mask is None else query_mask[every_query]
        if mask is not None and self.causal_axis is not None:
            mask = mask & relative_positions.causal_pairs(
                sizes(inputs)[1:-1],
                sizes(context)[1:-1],
                self.causal_axis,
                axes[self.causal_axis].query_strides,
            )
        # One map for each lambda: [b, *query_size, h, k], [b, *context_size, k, u], [b, *context_size, v, u].
        h = self.num_heads // self._num_lambdas
        k = self.key_dim
        v = self._value_dim
        u = self.intra_depth
        queries = self._project(
            inputs, self._queries, [h, k], self._queries_norm, training, query_mask
        )
        values = self._project(
            context, self._values, [v, u], self._values_norm, training, padding_mask
        )
        keys = (
            self._project(context, self._keys, [k, u])
            if self.content
            else [None] * self._num_lambdas
        )
        if self.query_normalization == "softmax":
            queries = [self._softmax(x) for x in queries]
        if padding_mask is not None:
            values = [_without_padding(x, padding_mask) for x in values]
        if query_mask is not None and self.geometry.has_pool:
            queries = [_without_padding(x, query_mask) for x in queries]
        return Projections(queries, keys, values, mask, padding_mask, query_mask)

    def _read_masks(
        self,
        inputs: Tensor,
        context: Tensor | None,
        mask: Tensor | None,
        padding_mask: Tensor | None,
    ) -> Masks:
        """Returns the mask, [n, m] or [b, n, m], and the padding mask, [b, m], as booleans.

        Keras's padding mask, which it keeps with a tensor or, as `TimeDistributed`, passes to `call`, joins
        that of the caller.
        """
        keras_mask = compat.mask_of(inputs if context is None else context)
        if mask is not None and len(mask.shape) != 3:
            keras_mask = mask
            mask = None
        if mask is not None:
            mask = as_boolean(check_mask(self, mask, inputs, context))
            mask = mask[0] if mask.shape[0] == 1 else mask
        if padding_mask is not None:
            padding_mask = as_boolean(
                check_padding_mask(padding_mask, inputs, context), "padding_mask"
            )
        if keras_mask is not None:
            keras_mask = as_boolean(check_padding_mask(keras_mask, inputs, context))
            if padding_mask is not None:
                keras_mask = keras_mask & padding_mask
            padding_mask = keras_mask
        source = inputs if context is None else context
        if padding_mask is not None and None in (*padding_mask.shape, *source.shape):
            b, *size, _ = sizes(source)
            # Another shape with the same number of values, [m, b], does not broadcast: an error when it runs.
            padding_mask = padding_mask & K.reshape(padding_mask, [b, product(size)])
        return mask, padding_mask

    def visible_shares(self, query_mask: Tensor, dtype: K.DType) -> Tensor:
        """Returns the share of each window that is no padding, [b, *output_size, 1, 1]."""
        visible = K.cast(query_mask, dtype)
        return self.geometry.pool(visible[..., K.newaxis, K.newaxis])

    def _project(
        self,
        x: Tensor,
        projection: Any,
        depth: list[int],
        norm: Any = None,
        training: bool | None = None,
        mask: Tensor | None = None,
    ) -> list[Tensor]:
        """Projects and normalizes: [b, *size, c] -> a list of one [b, *size, *depth] per lambda.

        One spatial axis serves every kind of input, and the axis of size 1 allows the fused batch
        normalization.
        """
        b, *size, channels = sizes(x)
        y = projection(K.reshape(x, [b, product(size), 1, channels]))
        if norm is not None:
            if mask is not None:  # of the positions that count in the statistics
                mask = K.reshape(mask, [b, product(size), 1])
            y = norm(y, training=training, mask=mask)
        # The bias may be a normalization that was folded.
        if self.compute_dtype == "float16" and (norm or projection.use_bias):
            # Below 2^16 for the product of a query and a content lambda, also where the moving variance is
            # almost 0 and what is not the mean becomes large.
            bound = (2**15 / (self.key_dim * self.intra_depth)) ** 0.5
            y = K.minimum(K.maximum(y, -bound), bound)
        # Separated on one axis of positions, so that no tensor of an exported model has more than four axes.
        maps = [y]
        if self._num_lambdas > 1:
            y = K.reshape(y, [b, product(size), self._num_lambdas, product(depth)])
            maps = K.unstack(y, self._num_lambdas, axis=2)
        return [K.reshape(x, [b, *size, *depth]) for x in maps]

    def _softmax(self, queries: Tensor) -> Tensor:
        """Normalizes queries [b, *query_size, h, k] over their depth."""
        flat = at_least_float32(content_lambdas.flatten_map(queries))
        return K.reshape(K.cast(K.softmax(flat), self.compute_dtype), sizes(queries))


def _without_padding(x: Tensor, mask: Tensor) -> Tensor:
    """Replaces padding by zeros: [b, *size, x, y], under a mask [b, *size] or [b, m]."""
    mask = K.reshape(mask, [*sizes(x)[:-2], 1, 1])
    return K.where(mask, x, K.zeros([], x.dtype))

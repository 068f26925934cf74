# SPDX-License-Identifier: Apache-2.0
"""Implied attention maps of one layer, and its position embeddings as pictures.

Letters as in `lambdanet.ops.reference`, with q outputs that were asked for.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lambdanet import backend as K
from lambdanet.backend import keras
from lambdanet.backend.tensors import product
from lambdanet.core.errors import InputError, invalid, is_integer
from lambdanet.explain import lambda_maps
from lambdanet.layers.attention import Attention
from lambdanet.layers.lambda_layer import LambdaLayer
from lambdanet.layers.position_embedding import RelativePositionEmbedding
from lambdanet.layers.projections import project
from lambdanet.layers.slice_lambda_layer import SliceLambdaLayer


class ImpliedAttention(NamedTuple):
    """What some outputs of a layer read: y_n = sum over m (and u) of A_nm V_m, and what is outside of that.

    The maps of a lambda layer are signed and not normalized: no softmax has made them. `content,
    position, *_ =` takes both, and what is beside them gives the outputs.

    Attributes:
      content: q_n . softmax(K)_m, [b, h, q, m]; with an intra-depth, [b, h, q, m, u]. The weights of an
        attention layer, whose softmax joins content and positions. None: the layer has no content.
      position: q_n . E_nm, of the same shape. None: the layer has no positions of its own.
      values: V, [b, 1 or h, m, v]; with an intra-depth, [b, 1 or h, m, u, v].
      outside: what the layer adds to A V, by name, [b, q, h v]: "position_bias", of timm's networks, and
        "state", what a causal layer reads from earlier positions, whose keys its state does not hold.
    """

    content: Any
    position: Any
    values: Any
    outside: dict[str, Any]

    @property
    def total(self) -> Any:
        """A: content and position added, [b, h, q, m] or [b, h, q, m, u]."""
        parts = [x for x in (self.content, self.position) if x is not None]
        return K.add_n(parts)

    def outputs(self) -> Any:
        """Returns the layer's outputs for the queries, A V and what is outside of it: [b, q, h v]."""
        a = self.total
        b, h, q = a.shape[:3]
        *groups, v = self.values.shape
        a = K.reshape(a, [b, h, q, -1])
        values = K.reshape(self.values, [*groups[:2], a.shape[-1], v])
        y = K.transpose(K.matmul(a, values), [0, 2, 1, 3])  # [b, q, h, v]
        return K.add_n([K.reshape(y, [b, q, h * v]), *self.outside.values()])


def implied_attention(
    layer: keras.layers.Layer,
    inputs: Any,
    queries: Sequence[Any] | None = None,
    context: Any = None,
    attention_mask: Any = None,
    padding_mask: Any = None,
    mask: Any = None,
    initial_state: Any = None,
) -> ImpliedAttention:
    """Returns the attention map that a layer implies at inference, which it never computes itself.

    A lambda layer computes y_n = q_n^T (sum over m of (softmax(K)_m + E_nm) V_m^T): query n reads position m
    with the weight A_nm = q_n . softmax(K)_m + q_n . E_nm. Attention layers have weights of their own, those
    of AxialAttention along the width alone, to what the attention along the height returns.

    Args:
      layer: a LambdaLayer or an attention layer.
      inputs: [b, *size, c], as in a call of the layer.
      queries: the outputs to explain, as numbers of the flattened ones or as coordinates, (row, column); with
        strides, counted in outputs. None: all of them. Memory grows with their number.
      context, attention_mask, padding_mask, mask, initial_state: as in a call of a LambdaLayer.

    Returns:
      Its maps for these outputs; where windows are averaged, those of the window.

    Raises:
      InputError: the layer has no map, a query is out of range, or the layer rejects an argument.

    Example:
      >>> layer = lambdanet.LambdaLayer(filters=64, scope=7)
      >>> content, position, *_ = implied_attention(layer, np.ones([1, 14, 10, 32]), [(7, 5)])
      >>> tuple(content.shape)
      (1, 4, 1, 140)
    """
    if not has_map(layer):
        kind = f"{type(layer).__name__} {getattr(layer, 'name', layer)!r}"
        raise InputError(
            f"layer must be a LambdaLayer or an attention layer, got {kind}, which has no map"
        )
    # A cast would lose Keras's masks.
    inputs = K.convert_to_tensor(inputs)
    others = {
        "context": context,
        "attention_mask": attention_mask,
        "padding_mask": padding_mask,
        "initial_state": initial_state,
    }
    if isinstance(layer, Attention):
        for name, value in {**others, "mask": mask}.items():
            if value is not None:
                raise InputError(f"{type(layer).__name__} has no argument {name}")
        others = {}
    if not layer.built:
        layer(inputs, **others)
    size = layer.compute_output_shape(tuple(inputs.shape))[1:-1]
    chosen = _checked_queries(queries, size)
    if isinstance(layer, Attention):
        inputs = K.cast(inputs, layer.compute_dtype)
        weights, values = layer.chosen_weights(inputs, K.convert_to_tensor(chosen))
        return ImpliedAttention(weights, None, K.cast(values, weights.dtype), {})
    layer.check_call(inputs, **others)
    given = context, attention_mask, padding_mask, mask
    parts = project(layer, inputs, *given, training=False)
    return ImpliedAttention(*lambda_maps.maps(layer, parts, chosen, initial_state))


def has_map(layer: Any) -> bool:
    """Returns whether a layer has an attention map, of its own or implied.

    A `SliceLambdaLayer` has two, within a slice and across slices, which are not computed.
    """
    is_known = isinstance(layer, LambdaLayer | Attention)
    return is_known and not isinstance(layer, SliceLambdaLayer)


def position_pictures(layer: Any) -> np.ndarray:
    """Returns the position embeddings of a layer as pictures, one for each key.

    Args:
      layer: a built LambdaLayer with relative positions, or a RelativePositionEmbedding.

    Returns:
      [k, r, ...], with one axis for each spatial axis of the table: entry `i` is for the offset `i - r // 2`
      from the query, along a causal axis `i - (r - 1)`. With several lambdas or an intra-depth,
      [lambdas * k * u, r, ...].

    Raises:
      InputError: the layer has no table of offsets.

    Example:
      >>> layer = lambdanet.LambdaLayer(filters=64, scope=7)
      >>> layer.build([None, 14, 14, 64])
      >>> position_pictures(layer).shape
      (16, 7, 7)
    """
    embedding = layer.position if isinstance(layer, LambdaLayer) else layer
    if not isinstance(embedding, RelativePositionEmbedding) or embedding.table is None:
        kind = f"{type(layer).__name__} {getattr(layer, 'name', layer)!r}"
        raise InputError(
            f"layer must be built and have relative positions, got {kind}, which has no table of offsets"
        )
    table = K.convert_to_numpy(embedding.table)
    if embedding.num_lambdas == 1:
        table = table[np.newaxis]
    if embedding.intra_depth == 1:
        table = table[..., np.newaxis]
    rank = table.ndim - 3
    order = [0, rank + 1, rank + 2, *range(1, rank + 1)]
    return table.transpose(order).reshape([-1, *table.shape[1 : rank + 1]])


def _checked_queries(queries: Any, size: Sequence[int]) -> np.ndarray:
    """Returns the numbers of the flattened outputs of a map; `InputError` for others."""
    n = product(size)
    if queries is None:
        return np.arange(n, dtype=np.int32)
    accepted = f"outputs from 0 to {n - 1}, or coordinates below {tuple(size)}"
    chosen = []
    if not isinstance(queries, Sequence | np.ndarray):
        raise invalid("queries", accepted, queries)
    for query in queries:
        chosen.append(_flat_number(query, size, accepted))
    if not chosen:
        raise invalid("queries", accepted, queries)
    return np.array(chosen, np.int32)


def _flat_number(query: Any, size: Sequence[int], accepted: str) -> int:
    """Returns the number of an output among the flattened ones, of its coordinates or the number itself."""
    coordinates = [query] if is_integer(query) else query
    sides = [product(size)] if is_integer(query) else size
    is_sequence = isinstance(coordinates, Sequence | np.ndarray)
    if not is_sequence or len(coordinates) != len(sides):
        raise invalid("queries", accepted, query)
    number = 0
    for place, side in zip(coordinates, sides, strict=True):
        if not is_integer(place) or not 0 <= place < side:
            raise invalid("queries", accepted, query)
        number = number * side + int(place)
    return number

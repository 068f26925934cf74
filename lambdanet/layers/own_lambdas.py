# SPDX-License-Identifier: Apache-2.0
"""Lambdas that each query has of its own: masked and causal ones, and all of them by the reference."""

from typing import Any

from lambdanet import backend as K
from lambdanet.backend import Tensor
from lambdanet.backend.tensors import sizes
from lambdanet.layers.lambda_state import LambdaState
from lambdanet.layers.projections import Projections
from lambdanet.ops import causal_content, content_lambdas, reference


def apply_own_lambdas(
    layer: Any,
    index: int,
    parts: Projections,
    state: LambdaState | None,
    training: bool | None,
) -> tuple[Tensor, LambdaState]:
    """Adds what content and positions give each query of a mask or of a causal layer.

    Args:
      layer: the lambda layer.
      index: the number of the lambda.
      parts: the projections, and the masks.
      state: that after earlier positions, which these continue; None: there is none.
      training: as in a call of the layer.

    Returns:
      [b, *query_size, h, v], and the state after these positions, of a layer with one.
    """
    queries = parts.queries[index]
    values = parts.values[index]
    outputs = []
    new_state = {}
    if layer.position is not None:
        context = values
        if state is not None and "values" in state:
            axis = layer.causal_axis + 1
            context = K.concatenate([state["values"], values], axis=axis)
            last = slice(sizes(values)[axis], None)
            new_state["values"] = context[(slice(None),) * axis + (last,)]
        outputs.append(
            layer.position(
                queries,
                context,
                index=index,
                geometry=layer.geometry,
                mask=parts.attention_mask,
                training=training,
                has_past=state is not None,
            )
        )
    if layer.content:
        output, sums = _apply_content(layer, index, parts, state)
        outputs.append(output)
        new_state |= sums
    shape = sizes(outputs[0])
    total = K.add_n([content_lambdas.flatten_map(x) for x in outputs])
    return K.reshape(total, shape), new_state


def _apply_content(
    layer: Any, index: int, parts: Projections, state: LambdaState | None
) -> tuple[Tensor, LambdaState]:
    """Applies to each query the content that its mask shows, or that of the positions up to its own."""
    queries, keys, values = parts.of_lambda(index)
    queries = layer.geometry.pool(queries)
    normalization = layer.key_normalization
    if parts.attention_mask is not None:
        outputs = content_lambdas.apply_content_lambda(
            queries,
            keys,
            values,
            normalization,
            parts.attention_mask,
            parts.padding_mask,
        )
        return outputs, {}
    sums = None
    if state is not None:
        sums = causal_content.State(state["maximum"], state["total"], state["error"])
    axis = layer.causal_axis
    outputs, sums = causal_content.apply(
        queries,
        keys,
        values,
        normalization,
        axis,
        layer.geometry.along(layer.rank)[axis].strides,
        parts.padding_mask,
        sums,
    )
    return outputs, sums._asdict()


def apply_by_reference(layer: Any, index: int, parts: Projections) -> Tensor:
    """Applies the lambdas by the equations of `lambdanet.ops.reference`, with an embedding for each pair.

    Without content, keys are zeros that no softmax normalizes; without positions, embeddings are zeros.

    Args:
      layer: the lambda layer.
      index: the number of the lambda.
      parts: the projections, and the masks, with the causal one.

    Returns:
      [b, *output_size, h, v].
    """
    queries, keys, values = parts.of_lambda(index)
    flat = content_lambdas.flatten_map(queries)
    context = content_lambdas.flatten_map(values)
    b, n, _, k = sizes(flat)
    _, m, v, u = sizes(context)
    embeddings = K.zeros([n, m, k, u], flat.dtype)
    if layer.position is not None:
        embeddings = layer.position.pair_embeddings(
            queries, values, index, layer.geometry, K.arange(n), False
        )
    normalization = layer.key_normalization
    if keys is None:
        keys = K.zeros([b, m, k, u], flat.dtype)
        normalization = None
    y = reference.apply_lambdas(
        flat,
        content_lambdas.flatten_map(keys),
        context,
        embeddings,
        parts.attention_mask,
        parts.padding_mask,
        normalization,
    )
    if getattr(layer.position, "use_bias", False):
        bias = K.cast(layer.position.bias, flat.dtype)
        y += K.matmul(flat, bias[:, K.newaxis])
    return layer.geometry.pool(K.reshape(y, [*sizes(queries)[:-1], v]))

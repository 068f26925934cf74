# SPDX-License-Identifier: Apache-2.0
"""The arguments of a lambda layer's call: its masks, by Keras's names, and checks of all."""

from collections.abc import Sequence
from typing import Any

from lambdanet import backend as K
from lambdanet.backend import Shape, Tensor, compat, keras
from lambdanet.backend.tensors import product, sizes
from lambdanet.core.errors import InputError, invalid
from lambdanet.layers.argument_checks import (
    batch_and_positions,
    checked_shape,
    num_positions,
    shapes_agree,
)
from lambdanet.layers.lambda_state import check_state
from lambdanet.layers.layer import check_rank
from lambdanet.ops.content_lambdas import as_boolean

# The numbers of all embeddings by the reference, which is for comparisons: 64 MiB in float32.
LARGEST = 2**24


def read_masks(
    layer: Any,
    inputs: Tensor,
    context: Tensor | None,
    attention_mask: Tensor | None,
    padding_mask: Tensor | None,
    mask: Tensor | None,
) -> tuple[Tensor | None, Tensor | None]:
    """Returns what each query sees, [n, m] or [b, n, m], and what is no padding, [b, m], as booleans.

    Padding is what `padding_mask` or Keras's own mask hides. Keras passes its mask as `mask` where a call has
    one tensor; else it is that of the context, or of the inputs, which Keras keeps with the tensor.

    Args:
      layer: the lambda layer.
      inputs, context, attention_mask, padding_mask, mask: as in a call of the layer.
    """
    source = inputs if context is None else context
    if attention_mask is not None:
        attention_mask = _check_attention_mask(layer, attention_mask, inputs, source)
        attention_mask = as_boolean(attention_mask, "attention_mask")
        if len(attention_mask.shape) == 3 and attention_mask.shape[0] == 1:
            attention_mask = attention_mask[0]
    if mask is None:
        mask = compat.mask_of(source)
    hidden = None
    for name, given in (("mask", mask), ("padding_mask", padding_mask)):
        if given is not None:
            visible = as_boolean(_check_padding_mask(given, source, name), name)
            hidden = visible if hidden is None else hidden & visible
    if hidden is not None and None in (*hidden.shape, *source.shape):
        b, *size, _ = sizes(source)
        # Another shape with the same number of values, [m, b], does not broadcast: an error when it runs.
        hidden = hidden & K.reshape(hidden, [b, product(size)])
    return attention_mask, hidden


def compute_mask(
    layer: Any, inputs: Tensor, previous_mask: Tensor | None = None
) -> Tensor | None:
    """Returns Keras's mask of the outputs, [b, n]: with strides, of windows that are not all padding."""
    mask = compat.mask_of(inputs)
    if mask is None:
        return None
    (axis,) = layer.geometry.along(1)
    if not layer.geometry.has_pool:
        return mask[:, :: axis.strides]
    # Keras's own operations, as it may be a symbol.
    visible = keras.ops.expand_dims(keras.ops.cast(mask, "float32"), -1)
    pooled = keras.ops.max_pool(
        visible, axis.pool_size, axis.strides, "same", "channels_last"
    )
    return keras.ops.squeeze(pooled, -1) > 0


def check_call(
    layer: Any,
    inputs: Tensor,
    context: Tensor | None = None,
    attention_mask: Any = None,
    padding_mask: Any = None,
    mask: Any = None,
    training: bool | None = None,
    initial_state: Any = None,
    return_state: bool = False,
) -> None:
    """Checks the arguments of a call of a lambda layer, and keeps the shape of the context for `build`.

    Raises:
      InputError: an argument does not fit the inputs or the layer.
    """
    if layer.built:
        check_rank(layer, inputs.shape, layer.input_rank)
    source = inputs if context is None else context
    if len(source.shape) != len(inputs.shape):
        shapes = f"{tuple(inputs.shape)}, {tuple(source.shape)}"
        raise InputError(f"input and context must have the same rank, got {shapes}")
    if not shapes_agree(source.shape[:1], inputs.shape[:1]):
        name = "the number of examples of the context"
        accepted = f"{inputs.shape[0]}, those of the inputs"
        raise invalid(name, accepted, source.shape[0])
    if layer.implementation == "reference":
        counts = [num_positions(x.shape) for x in (inputs, source)]  # without strides
        pairs = [*counts, layer.key_dim, layer.intra_depth]
        if product(n or 0 for n in pairs) > LARGEST:
            name = "the embeddings [n, m, k, u] of implementation='reference'"
            raise invalid(name, "at most 64 MiB in float32", pairs)
    if layer.causal is not False and context is not None:
        raise InputError(
            f"causal={layer.causal!r} needs the inputs as context; give attention_mask as [n, m] instead"
        )
    if attention_mask is not None:
        attention_mask = _check_attention_mask(layer, attention_mask, inputs, source)
    if padding_mask is not None:
        _check_padding_mask(padding_mask, source, "padding_mask")
    if mask is not None and mask is not compat.mask_of(source):
        _check_keras_mask(layer, mask, inputs, source)
    if return_state or initial_state is not None:
        check_state(layer, initial_state, inputs, attention_mask)
    if not layer.built and context is not None:
        layer.context_shape = tuple(context.shape)


def _check_attention_mask(
    layer: Any, attention_mask: Any, inputs: Tensor, source: Tensor
) -> Tensor:
    """Returns what each query sees, [n, m] or [b, n, m], as a tensor."""
    name = "attention_mask"
    if isinstance(attention_mask, str):
        hint = "causal=True or 'time' of the layer hides what comes after a query"
        raise invalid(name, "of the shape [n, m] or [b, n, m]", attention_mask, hint)
    if layer.geometry.has_pool:
        raise invalid("pool_size", "1 with an attention_mask", layer.pool_size)
    n = _num_queries(layer, inputs)
    b, m = batch_and_positions(source)
    accepted = f"of the shape [n, m] = {[n, m]} or [b, n, m] = {[b, n, m]}"
    shapes = [n, m], [1, n, m], [b, n, m]
    values = _as_tensor(attention_mask, name, shapes, accepted)
    given = tuple(values.shape)
    if len(given) == 2 and given[0] is None and not K.is_tensor(values):
        hint = "an Input has its first axis for the batch, and [b, m] is a padding_mask"
        raise invalid(name, accepted, given, hint)
    return values


def _check_padding_mask(padding_mask: Any, source: Tensor, name: str) -> Tensor:
    """Returns what is no padding, [b, m], as a tensor; `name` is the argument that it was given as."""
    shape = batch_and_positions(source)
    accepted = f"of the shape [b, m] = {shape}"
    hint = ""
    if name == "mask":
        hint = "attention_mask is what each query sees, [n, m] or [b, n, m]"
    return _as_tensor(padding_mask, name, [shape], accepted, hint)


def _check_keras_mask(layer: Any, mask: Any, inputs: Tensor, source: Tensor) -> None:
    """Checks a mask that a caller gives as Keras's own, [b, m].

    One whose first axis has the length of both n and b can be of what each query sees. Within models and
    other layers, which hand Keras's masks on, it is not.
    """
    values = _check_padding_mask(mask, source, "mask")
    n = _num_queries(layer, inputs)
    if n is None or values.shape[0] != n or compat.is_within_call():
        return
    accepted = f"Keras's own, [b, m], where n = b = {n}"
    hint = "attention_mask is what each query sees, and padding_mask what is no padding"
    raise invalid("mask", accepted, tuple(values.shape), hint)


def _num_queries(layer: Any, inputs: Tensor) -> int | None:
    shape = checked_shape(inputs.shape, "input")
    return num_positions(layer.compute_output_shape(shape))


def _as_tensor(
    mask: Any, name: str, shapes: Sequence[Shape], accepted: str, hint: str = ""
) -> Tensor:
    """Returns a mask of one of the shapes, with two values, as a tensor."""
    values = mask if hasattr(mask, "shape") else K.convert_to_tensor(mask)
    given = tuple(values.shape)
    if not any(shapes_agree(given, shape) for shape in shapes):
        raise invalid(name, accepted, given, hint)
    is_float = "float" in K.dtype_name(values.dtype)
    return as_boolean(values, name) if is_float else values

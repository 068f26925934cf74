# SPDX-License-Identifier: Apache-2.0
"""The state of a causal lambda layer, with which it computes one position or chunk after the other."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from lambdanet import backend as K
from lambdanet.backend import Tensor, keras
from lambdanet.core.errors import InputError, check_count, invalid
from lambdanet.layers.argument_checks import check_state_shapes

# The tensors of each lambda by name; see `LambdaLayer.initial_state`.
LambdaState: TypeAlias = dict[str, Tensor]
State: TypeAlias = list[LambdaState]


def initial_state(
    layer: Any, batch_size: int, size: Sequence[int] | None = None
) -> State:
    """Returns the state of a causal layer before the first position, of constant size.

    Args:
      layer: the lambda layer.
      batch_size: b.
      size: the spatial size of the inputs, of which the number along the causal axis does not matter;
        default: that of the input for which the layer was built.

    Returns:
      One dict of tensors for each lambda, in `call`, `step` and a loop of any engine; see `state_specs`.

    Raises:
      InputError: the layer is not built or not causal, or has positions over the whole causal axis.
    """
    axis = state_axis(layer)
    map_size = layer.map_size
    size = map_size if size is None else tuple(size)
    frame = [n for number, n in enumerate(size) if number != axis]
    if len(size) != len(map_size) or None in frame:
        accepted = f"{len(map_size)} numbers, one for each axis"
        raise invalid("size", accepted, size)
    return zero_state(layer, [check_count("batch_size", batch_size), *size])


def step(
    layer: Any, inputs: Tensor, state: State, training: bool | None = None
) -> tuple[Tensor, State]:
    """Computes one position of a sequence, or one frame of a volume, after those of the state.

    Args:
      layer: a causal lambda layer.
      inputs: [b, c], or [b, *frame_size, c] without the causal axis.
      state: as of `initial_state`, or of the step before.
      training: as in a call of the layer.

    Returns:
      outputs: [b, d] or [b, *frame_size, d], those of `call` for all positions so far, at the last.
      state: that of the next step.

    Raises:
      InputError: for a state of another batch or layer, or strides along the causal axis.
    """
    axis = 1 + state_axis(layer)
    outputs, state = layer(
        K.expand_dims(inputs, axis),
        training=training,
        initial_state=state,
        return_state=True,
    )
    return outputs[(slice(None),) * axis + (0,)], state


def symbolic_state(layer: Any, shape: Sequence[Any]) -> Any:
    """Returns the state after inputs [b, *size, ...] of a functional model."""
    specs = state_specs(layer, shape)
    state = []
    for _ in range(layer.num_lambdas):
        state.append({name: keras.KerasTensor(*specs[name]) for name in specs})
    return state


def state_axis(layer: Any) -> int:
    """Returns the causal axis of a layer that can have a state; `InputError` for another layer."""
    if not layer.built:
        raise InputError(f"{layer.name} has no state before it is built: call it once")
    if layer.causal_axis is None:
        raise invalid("causal", "True, 'time' or an axis, for a state", layer.causal)
    return layer.causal_axis


def state_specs(layer: Any, shape: Sequence[Any]) -> dict[str, tuple[Any, str]]:
    """Returns the shapes and types of the state of a lambda, for inputs [b, *size, ...].

    "maximum", [b, u * k, 1], "total" and "error", [b, u * k, v + 1], are sums of content
    (`lambdanet.ops.causal_content`), and "values", [b, *size, v, u], are those that a scope still sees.

    Raises:
      InputError: the layer is not built or not causal, or has positions over the whole causal axis.
    """
    axis = state_axis(layer)
    b, *size = shape[: layer.rank + 1]
    v = layer.value_dim
    u = layer.intra_depth
    specs: dict[str, tuple[Any, str]] = {}
    if layer.content:
        dtype = "float64" if layer.compute_dtype == "float64" else "float32"
        channels = layer.key_dim * u
        specs["maximum"] = (b, channels, 1), dtype
        specs["total"] = (b, channels, v + 1), dtype
        specs["error"] = specs["total"]
    if layer.position is not None and layer.position.num_past():
        size[axis] = layer.position.num_past()
        specs["values"] = (b, *size, v, u), layer.compute_dtype
    return specs


def zero_state(layer: Any, shape: Sequence[Any]) -> State:
    """Returns the state before the first position of inputs [b, *size, ...]."""
    specs = state_specs(layer, shape)
    zeros = {name: K.zeros(*spec) for name, spec in specs.items()}
    if layer.content:
        lowest = K.dtype_min(zeros["maximum"].dtype)
        zeros["maximum"] = zeros["maximum"] + lowest
    return [dict(zeros) for _ in range(layer.num_lambdas)]


def check_state(layer: Any, state: Any, inputs: Tensor, attention_mask: Any) -> None:
    """Checks a call with a state, or with None for one that returns its first."""
    if layer.causal is False:
        raise invalid("causal", "True, 'time' or an axis, for a state", False)
    if layer.implementation == "reference":
        raise invalid("implementation", "'auto' or a form, for a state", "reference")
    if attention_mask is not None:
        accepted = "None with a state, which a padding_mask may have"
        raise invalid("attention_mask", accepted, tuple(attention_mask.shape[-2:]))
    if state is None and not layer.built:
        return
    axis = state_axis(layer)
    specs = state_specs(layer, inputs.shape)
    if state is not None:
        shapes = {name: shape for name, (shape, _) in specs.items()}
        check_state_shapes(state, shapes, layer.num_lambdas)
    strides = layer.geometry.along(layer.rank)[axis].strides
    length = inputs.shape[axis + 1]
    if length is not None and length % strides:
        accepted = f"divisible by {strides}, the strides, for a state"
        raise invalid("the length of the inputs", accepted, length)

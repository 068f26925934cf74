# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments of lambda layers and position embeddings, and of a lambda layer's inputs.

All raise `InputError`.
"""

from collections.abc import Sequence
from typing import Any

from lambdanet import backend as K
from lambdanet import which_keras
from lambdanet.backend import keras
from lambdanet.backend.tensors import product
from lambdanet.errors import (
    InputError,
    check_count,
    check_known,
    check_scope,
    invalid,
    unknown,
)
from lambdanet.ops import position_lambdas
from lambdanet.ops.content_lambdas import Mask, as_boolean

RESIZES = ("slice", "interpolate")
# What an error about a map adds.
OF_ZOO = "in a model of the zoo, input_size of create_model sets it"


def own_initializer(initializer: Any) -> Any:
    """Returns the initializer of one table: a copy, so that no two tables get the same random values."""
    which_keras.check_keras_3(initializer, "embeddings_initializer")
    try:
        found = keras.initializers.get(initializer)
    except (ValueError, TypeError):
        accepted = "a Keras initializer or the name of one"
        raise invalid("embeddings_initializer", accepted, initializer) from None
    return (
        found.from_config(found.get_config())
        if hasattr(found, "from_config")
        else found
    )


def relative_arguments(
    scope: int | None = 23,
    dilation: int = 1,
    map_size: int | Sequence[int] | None = None,
    resize: str = "slice",
    use_bias: bool = False,
    implementation: str = "auto",
) -> dict[str, Any]:
    """Returns the arguments of a `RelativePositionEmbedding` by name, checked, which has their meaning."""
    dilation = check_count("dilation", dilation)
    scope = None if scope is None else check_scope(scope)
    if scope is None and dilation > 1:
        raise invalid("dilation", "1 with scope=None, the whole map", dilation)
    check_known("resize", resize, RESIZES)
    check_known(
        "implementation", implementation, ("auto", *position_lambdas.IMPLEMENTATIONS)
    )
    if isinstance(map_size, Sequence):
        map_size = tuple(check_count("map_size", size) for size in map_size)
    elif map_size is not None:
        map_size = check_count("map_size", map_size)
    arguments = {
        "scope": scope,
        "dilation": dilation,
        "map_size": map_size,
        "resize": resize,
    }
    return {**arguments, "use_bias": use_bias, "implementation": implementation}


def checked_shape(shape: Sequence[int | None], what: str) -> K.Shape:
    """Returns the shape of an input, whose rank and number of channels a lambda layer accepts."""
    shape = tuple(shape)
    if getattr(shape, "rank", 3) is None or len(shape) not in (3, 4, 5):
        raise invalid(
            f"the shape of the {what}",
            "[b, n, c], [b, h, w, c] or [b, t, h, w, c]",
            tuple(shape),
        )
    if shape[-1] is None:
        raise invalid(
            f"the shape of the {what}",
            "one with a known number of channels",
            tuple(shape),
        )
    return shape


def check_mask(
    layer: Any, mask: Mask, inputs: K.Tensor, context: K.Tensor | None
) -> Mask:
    """Checks the mask with which a lambda layer is called, and returns one of booleans or integers."""
    if isinstance(mask, str):
        if mask != "causal":
            raise unknown("mask", mask, ["causal"])
        if context is not None or layer.strides > 1 or layer.pool_size > 1:
            raise InputError(
                "a causal mask needs the inputs as context and strides of 1; give mask as [n, m] instead"
            )
    elif mask is not None:
        if layer.pool_size > 1:
            raise invalid("pool_size", "1 with a mask [n, m]", layer.pool_size)
        context_map = checked_shape(
            (inputs if context is None else context).shape, "context"
        )
        query_map = layer.compute_output_shape(checked_shape(inputs.shape, "input"))
        expected = [
            None if None in size else product(size)
            for _, *size, _ in (query_map, context_map)
        ]
        values: K.Tensor = mask if hasattr(mask, "shape") else K.convert_to_tensor(mask)
        shape = values.shape
        if len(shape) != 2 or any(
            n != m for n, m in zip(shape, expected, strict=True) if n and m
        ):
            raise invalid(
                "mask", f"'causal' or of the shape [n, m] = {expected}", tuple(shape)
            )
        if shape[0] is None and not K.is_tensor(values):
            accepted = (
                f"'causal' or one for the whole batch, of the shape [n, m] = {expected}"
            )
            raise invalid(
                "mask",
                accepted,
                tuple(shape),
                "an Input has its first axis for the batch",
            )
        return as_boolean(values) if "float" in K.dtype_name(values.dtype) else values
    return mask

# SPDX-License-Identifier: Apache-2.0
"""Mends layers and initializers of Keras, and reads what Keras has no public functions for."""

import contextlib
import functools
import operator
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import keras
import numpy as np
from keras.src.backend.common import global_state
from keras.src.backend.common.masking import get_keras_mask
from keras.src.backend.common.stateless_scope import in_stateless_scope
from keras.src.initializers.random_initializers import compute_fans

from lambdanet.backend.keras_functions import average_pool
from lambdanet.core.errors import invalid


def mask_of(x: Any) -> Any:
    """Returns the mask that Keras keeps with a tensor, as of `Masking`; None where there is none.

    It is no attribute of tensors that cannot have any, such as those of a function that JAX compiles.
    """
    return get_keras_mask(x)


@keras.saving.register_keras_serializable(package="lambdanet")
class Add(keras.layers.Add):
    """The layer of Keras; on TensorFlow, that one takes a map of one position for a bias (Keras 3.15).

    tf2onnx makes it the bias of the convolution before, which ONNX Runtime rejects.
    """

    def _merge_function(self, inputs: Any) -> Any:
        return functools.reduce(operator.add, inputs)


@keras.saving.register_keras_serializable(package="lambdanet")
class AveragePooling2D(keras.layers.AveragePooling2D):
    """The layer of Keras; on torch, that one counts the padding of "same" (Keras 3.15)."""

    def call(self, inputs: Any) -> Any:
        return average_pool(inputs, self.pool_size[0], self.strides[0], self.padding)


@keras.saving.register_keras_serializable(package="lambdanet")
class RandomNormal(keras.initializers.RandomNormal):
    """The initializer of Keras with numbers from NumPy: for a seed, the same ones on every backend.

    JAX would compile a program for each new shape, which takes 15 seconds for the shapes of a network.
    """

    def __call__(self, shape: Any, dtype: Any = None) -> Any:
        return _draw(self, shape, dtype, self.stddev, self.mean)


@keras.saving.register_keras_serializable(package="lambdanet")
class VarianceScaling(keras.initializers.VarianceScaling):
    """The initializer of Keras with normal numbers from NumPy, as in `RandomNormal`."""

    def __call__(self, shape: Any, dtype: Any = None) -> Any:
        if self.distribution == "uniform" or getattr(self, "input_axes", None):
            return super().__call__(shape, dtype)
        fans = dict(zip(("fan_in", "fan_out"), compute_fans(shape), strict=True))
        fan = fans.get(self.mode, sum(fans.values()) / 2)
        return _draw(self, shape, dtype, (self.scale / max(1, fan)) ** 0.5)


# The deviation of a standard normal distribution without what is beyond 2.
STDDEV_WITHIN_TWO = 0.87962566103423978


def _draw(
    initializer: Any, shape: Any, dtype: Any, stddev: float, mean: float = 0.0
) -> Any:
    """Returns normal numbers for the seed of an initializer, and of its distribution."""
    seed = initializer.seed
    dtype = keras.backend.standardize_dtype(dtype)
    state = (
        [seed, 0] if isinstance(seed, int) else keras.ops.convert_to_numpy(seed.next())
    )
    random = np.random.Generator(
        np.random.Philox([int(word) % 2**32 for word in state])
    )
    real: Any = np.float64 if dtype == "float64" else np.float32
    values = random.standard_normal(tuple(shape), real)
    if getattr(initializer, "distribution", None) == "truncated_normal":
        while (beyond := np.abs(values) > 2).any():
            values[beyond] = random.standard_normal(np.count_nonzero(beyond), real)
        stddev /= STDDEV_WITHIN_TWO
    return keras.ops.convert_to_tensor(values * real(stddev) + real(mean), dtype)


def variable_name(variable: Any) -> str:
    """Returns the name of a variable within its model, as files have it."""
    return re.sub(r"(depthwise|dwconv)/kernel$", r"\1/depthwise_kernel", variable.path)


def sublayers(model: keras.Model) -> Iterator[keras.layers.Layer]:
    """Yields the layers of a model and the layers within them."""
    return iter(model._flatten_layers(include_self=False))


def is_within_call() -> bool:
    """Returns whether a layer is being called."""
    # As in the steps of JAX, which call models by `call`.
    is_stateless = in_stateless_scope()
    return (
        is_stateless
        or global_state.get_global_attribute("current_call_ctx") is not None
    )


def functional_graph(model: Any) -> Any:
    """Returns the graph of layers of a functional or Sequential model; None for one that computes by code."""
    graph = getattr(model, "_functional", None) or model
    is_graph = hasattr(graph, "_nodes_by_depth")
    module = type(model).call.__module__
    return graph if is_graph and module.startswith(("keras.", "lambdanet.")) else None


def graph_of(model: Any) -> Any:
    """Returns the graph of layers of a functional or Sequential model; `InputError` where it has none."""
    graph = functional_graph(model) if isinstance(model, keras.Model) else None
    if graph is None:
        accepted = "a functional model, or a Sequential one with an Input"
        raise invalid("model", accepted, model)
    return graph


class Call(NamedTuple):
    """A call of a layer in a functional model."""

    layer: Any
    args: Any
    kwargs: Any
    results: Any


def layer_calls(model: keras.Model) -> Iterator[Call]:
    """Yields each call of a layer in a functional model, in order."""
    for depth in sorted(model._nodes_by_depth, reverse=True):
        for node in model._nodes_by_depth[depth]:
            if not node.is_input:
                given = node.arguments
                yield Call(node.operation, given.args, given.kwargs, node.outputs)


def rebuild(
    calls: Iterable[Any], tensors: dict[int, Any], replace: Callable[..., Any]
) -> None:
    """Builds another functional model, call by call.

    Args:
      calls: the calls of the first model, as of `layer_calls`.
      tensors: the new tensor of each old one, by the identity of the old; at first of the inputs.
      replace: `replace(call, args, kwargs)` returns the new outputs, for the arguments with new tensors.
    """
    for call in calls:
        args, kwargs = keras.tree.map_structure(
            lambda x: tensors.get(id(x), x), (call.args, call.kwargs)
        )
        outputs = keras.tree.flatten(replace(call, args, kwargs))
        old = map(id, keras.tree.flatten(call.results))
        tensors.update(zip(old, outputs, strict=True))


@contextlib.contextmanager
def dtype_policy(name: Any, library: Any = keras) -> Iterator[None]:
    """Builds layers with a precision policy, such as "mixed_bfloat16", and restores the previous one.

    Args:
      name: the policy.
      library: the Keras of the layers: Keras 3 or, for models of Model Garden, tf_keras.
    """
    before = library.mixed_precision.global_policy()
    library.mixed_precision.set_global_policy(name)
    try:
        yield
    finally:
        library.mixed_precision.set_global_policy(before)


@contextlib.contextmanager
def channels_last() -> Iterator[None]:
    """Builds layers with the channels last, also where Keras's global setting is another."""
    before = keras.config.image_data_format()
    keras.config.set_image_data_format("channels_last")
    try:
        yield
    finally:
        keras.config.set_image_data_format(before)


def without_values() -> AbstractContextManager[Any]:
    """Returns a context in which layers get variables without values, which take most of the time."""
    return keras.StatelessScope(initialize_variables=False)

# SPDX-License-Identifier: Apache-2.0
"""The functions of `lambdanet.backend` on JAX and torch: `keras.ops`, and a few more."""

import functools
import operator
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import keras
import ml_dtypes
import numpy as np
from keras import name_scope, ops  # noqa: F401
from keras.ops import *  # noqa: F403  abs, all, cast and most of the others
from keras.tree import flatten, map_structure  # noqa: F401

from lambdanet.core.errors import invalid

ENGINE = keras.config.backend()
Tensor: TypeAlias = Any
DType: TypeAlias = Any
Variable: TypeAlias = Any
# Which a function with `custom_gradient` also returns.
Gradient: TypeAlias = Callable[..., Any]

resize = functools.partial(ops.image.resize, data_format="channels_last")


def sum(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    return ops.sum(x, _axes(axis), keepdims)


def add_n(terms: Sequence[Tensor]) -> Tensor:
    return functools.reduce(operator.add, terms)


def mean(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    if ops.is_tensor(x) and dtype_name(x.dtype) == "float64":  # Keras: in float32
        return x.mean(_axes(axis), keepdims=keepdims)
    return ops.mean(x, _axes(axis), keepdims)


def matmul(
    a: Tensor, b: Tensor, transpose_a: bool = False, transpose_b: bool = False
) -> Tensor:
    a = ops.swapaxes(a, -1, -2) if transpose_a else a
    return ops.matmul(a, ops.swapaxes(b, -1, -2) if transpose_b else b)


def l2_normalize(x: Tensor, axis: Any) -> Tensor:
    return x * ops.rsqrt(
        ops.maximum(ops.sum(ops.square(x), axis, keepdims=True), 1e-12)
    )


def conv(
    images: Tensor, kernel: Tensor, strides: Any, padding: str, dilations: Any = 1
) -> Tensor:
    return ops.conv(
        images, kernel, strides, padding.lower(), "channels_last", dilations
    )


def depthwise_conv(
    images: Tensor, kernel: Tensor, strides: Any, padding: str, dilations: Any
) -> Tensor:
    """Has the strides of all four axes, as TensorFlow's."""
    return ops.depthwise_conv(
        images,
        kernel,
        tuple(strides[1:3]),
        padding.lower(),
        "channels_last",
        tuple(dilations),
    )


def average_pool(x: Tensor, size: Any, strides: Any, padding: str) -> Tensor:
    """Averages over what is on the map; on torch, `keras.ops.average_pool` counts the padding of "same"."""
    size, strides = (
        (value, value) if isinstance(value, int) else tuple(value)
        for value in (size, strides)
    )
    if ENGINE != "torch" or padding.lower() != "same":
        is_half = dtype_name(x.dtype) == "float16"  # TensorFlow adds in float16
        wide = ops.cast(x, "float32") if is_half else x
        means = ops.average_pool(wide, size, strides, padding.lower(), "channels_last")
        return ops.cast(means, x.dtype)
    axes = zip(x.shape[1:3], size, strides, strict=True)
    around = [[0, 0], *(_same_padding(*axis) for axis in axes), [0, 0]]
    totals, counts = (
        ops.average_pool(ops.pad(y, around), size, strides, "valid", "channels_last")
        for y in (x, ops.ones_like(x[:1]))
    )
    return totals / counts


def softmax_cross_entropy(targets: Tensor, logits: Tensor) -> Tensor:
    return ops.categorical_crossentropy(targets, logits, from_logits=True)


def one_hot(indices: Any, count: int, dtype: DType = "float32") -> Tensor:
    """Like `keras.ops.one_hot`, but for torch's check of values, which LiteRT cannot convert."""
    if ENGINE != "torch":
        return ops.one_hot(indices, count, dtype=dtype)
    return ops.cast(ops.expand_dims(indices, -1) == ops.arange(count), dtype)


def take(x: Tensor, indices: Any, axis: int) -> Tensor:
    """Like `keras.ops.take` for indices from 0, which torch cannot export to ONNX."""
    if ENGINE != "torch":
        return ops.take(x, indices, axis)
    indices = ops.convert_to_tensor(indices)
    rows = x.index_select(axis, ops.reshape(indices, [-1]))
    shape = [*x.shape]
    return ops.reshape(rows, [*shape[:axis], *indices.shape, *shape[axis + 1 :]])


def max_pool(x: Tensor, size: int, strides: int, padding: str) -> Tensor:
    return ops.max_pool(x, size, strides, padding.lower(), "channels_last")


def custom_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """Like `tf.custom_gradient`; on torch, autograd is used."""
    if ENGINE == "torch":
        return lambda *inputs: function(*inputs)[0]

    def run(*inputs: Any) -> Any:
        outputs, gradient = function(*inputs)
        if isinstance(outputs, tuple):
            return outputs, lambda upstream: gradient(*upstream)
        return outputs, gradient

    return ops.custom_gradient(run)


def associative_scan(
    merge: Callable[..., tuple[Tensor, ...]], elements: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Like `keras.ops.associative_scan` along axis 1."""
    if ENGINE == "jax":
        return ops.associative_scan(merge, elements, axis=1)
    return scan_by_doubling(merge, elements)


def scan_by_doubling(
    merge: Callable[..., tuple[Tensor, ...]], elements: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """An associative scan along axis 1, of known size, that traces and exports as few simple operations.

    Keras's own is unrolled into many on TensorFlow, which ONNX Runtime does not load, and is in float32 on
    torch, where an export to ONNX loses it.
    """
    count = elements[0].shape[1]
    distance = 1
    sums = elements
    # Each sum is over `distance` positions, or over all from the first on.
    while distance < count:
        earlier = tuple(x[:, : count - distance] for x in sums)
        later = tuple(x[:, distance:] for x in sums)
        merged = merge(earlier, later)
        sums = tuple(
            ops.concatenate([x[:, :distance], both], axis=1)
            for x, both in zip(sums, merged, strict=True)
        )
        distance *= 2
    return sums


def batch_norm(
    x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float, groups: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalizes the channels of x [b, ..., c], in float32 or float64, each group of examples by itself.

    Args:
      x: [b, ..., c].
      gamma: the scale, [c].
      beta: the offset, [c].
      epsilon: added to the variance.
      groups: the number of groups of b / groups examples, each with its own mean and variance.

    Returns:
      The normalized x; the mean and the biased variance of x, [c] each, averaged over the groups.
    """
    wide = x if dtype_name(x.dtype) == "float64" else ops.cast(x, "float32")
    gamma, beta = (ops.cast(parameter, wide.dtype) for parameter in (gamma, beta))
    wide = ops.reshape(wide, [groups, -1, *x.shape[1:]])
    axes = list(range(1, len(x.shape)))
    means = mean(wide, axes, keepdims=True)
    variance = mean(ops.square(wide - means), axes, keepdims=True)
    outputs = ops.reshape(
        (wide - means) * (ops.rsqrt(variance + epsilon) * gamma) + beta, x.shape
    )
    axes = [0, *axes]
    return ops.cast(outputs, x.dtype), mean(means, axes), mean(variance, axes)


def scale_channels(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    gamma: Tensor,
    beta: Tensor,
    epsilon: float,
) -> Tensor:
    """Normalizes the channels of x [b, ..., c] by a given mean and variance, [c] each, as gamma and beta are.

    Returns:
      `(x - mean) / sqrt(variance + epsilon) * gamma + beta`, [b, ..., c].
    """
    return (x - mean) * (ops.rsqrt(variance + epsilon) * gamma) + beta


def dtype_min(dtype: Any) -> float:
    """Returns the smallest finite number of a type."""
    return float(ml_dtypes.finfo(dtype_name(dtype)).min)


def dtype_max(dtype: Any) -> float:
    """Returns the largest finite number of a type."""
    return float(ml_dtypes.finfo(dtype_name(dtype)).max)


def itemsize(dtype: Any) -> int:
    """Returns the bytes of a number of a type."""
    return int(
        np.dtype(getattr(ml_dtypes, dtype_name(dtype), dtype_name(dtype))).itemsize
    )


def dtype_name(dtype: Any) -> str:
    """Returns the name of a type, such as "float32"."""
    return keras.backend.standardize_dtype(dtype)


def static_sizes(shape: Sequence[Any], has_batch: bool = True) -> list[Any]:
    """Returns a shape with integers where the export to ONNX by torch has tensors.

    Args:
      shape: the shape of a tensor.
      has_batch: whether its first axis is the batch, whose size the export leaves open.
    """
    static = [*shape]
    if _is_traced_by_torch():
        first = int(has_batch)
        static[first:] = [int(size) for size in static[first:]]
    return static


def _is_traced_by_torch() -> bool:
    if ENGINE != "torch":
        return False
    import torch

    return torch.jit.is_tracing()


def is_symbolic(x: Any) -> bool:
    """Returns whether `x` is a tensor, or a size that an export leaves open."""
    if ENGINE == "jax":
        import jax.export

        return ops.is_tensor(x) or jax.export.is_symbolic_dim(x)
    import torch

    return isinstance(x, torch.Tensor | torch.SymInt)


def larger_size(a: Any, b: Any) -> Any:
    """Returns the larger of two sizes, of which an export may leave one open."""
    if ENGINE == "jax":
        import jax.core

        return jax.core.max_dim(a, b)
    return max(a, b)


def check_at_most(x: Any, largest: int, message: str) -> None:
    """Rejects a size that an export leaves open: only TensorFlow can compare it when the function runs."""
    raise invalid(
        "the size of the map",
        f"fixed by input_signature, in an export on {ENGINE}",
        str(x),
        f"the exported function could not report {message!r}",
    )


def as_constant(compute: Callable[..., Tensor], *args: Any) -> np.ndarray:
    """Returns the value of `compute(*args)` as a NumPy array, also while a function is traced."""
    if ENGINE == "jax":
        import jax

        # One compilation, instead of one for each operation.
        with jax.core.eval_context():
            return ops.convert_to_numpy(jax.jit(lambda: compute(*args))())
    # Torch traces one thread.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: ops.convert_to_numpy(compute(*args))).result()


def constants_of(variables: Sequence[Variable]) -> Sequence[Any]:
    """Returns the variables themselves: compiled functions have them as arguments, not as constants."""
    return variables


def compute_by_constants(
    compute: Callable[..., Tensor], variables: Sequence[Variable]
) -> Tensor:
    """Returns `compute(*variables)`."""
    return compute(*variables)


def accelerators() -> list[str]:
    """Returns the kinds of accelerators that this process can see, "TPU" and "GPU"."""
    if ENGINE == "jax":
        import jax

        return [
            kind for kind in ("TPU", "GPU") if jax.default_backend().upper() == kind
        ]
    import torch

    return ["GPU"] if torch.cuda.is_available() else []


def is_compiled_by_xla() -> bool:
    """Returns whether XLA may compile what is computed; True on torch, too, which always uses one form."""
    return True


def with_gradient_of(
    backward: Callable[..., Tensor], forward: Callable[..., Tensor], *inputs: Tensor
) -> Tensor:
    """Returns `backward(*inputs)`: one form for both passes."""
    return backward(*inputs)


def map_recomputed(
    function: Callable[..., Tensor], x: Tensor, y: Tensor, shared: Tensor, count: int
) -> Tensor:
    """Applies a function to each of several parts, and computes it again in the backward pass.

    Args:
      function: a function of a part of x, the part of y with the same index, and `shared`.
      x: the parts of the first argument, [count, ...].
      y: the parts of the second argument, [count, ...].
      shared: the third argument, the same for all parts.
      count: the number of parts.

    Returns:
      The stack of `function(x[i], y[i], shared)`, [count, ...].
    """
    again = keras.remat(lambda x, y, shared: function(x, y, shared))
    return ops.map(lambda pair: again(*pair, shared), (x, y))


def _axes(axis: Any) -> Any:
    return tuple(axis) if isinstance(axis, list) else axis


def _same_padding(length: int, size: int, strides: int) -> list[int]:
    last = (-(-length // strides) - 1) * strides
    padding = np.clip(last + size - length, 0, None).item()
    return [padding // 2, padding - padding // 2]

# SPDX-License-Identifier: Apache-2.0
"""Sizes that may be unknown, tables that depend on sizes alone, padding, and precision."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from lambdanet import backend as K
from lambdanet.backend import Tensor
from lambdanet.core.errors import invalid

Size: TypeAlias = "int | Tensor"
PerAxis: TypeAlias = "int | Sequence[int]"  # one number for all axes, or one for each
product: Callable[[Iterable[Size]], Size] = math.prod


def sizes(x: Tensor, has_batch: bool = True) -> list[Size]:
    """Returns the shape of `x`, as integers where they are known.

    Others are scalar tensors on TensorFlow; elsewhere symbols, with which an export of Keras traces a model.
    `has_batch` is false for a table, whose first axis is not the batch.
    """
    shape = K.static_sizes(x.shape, has_batch)
    if None in shape:
        dynamic = K.unstack(K.shape(x))  # one operation; an index is four
        shape = [dynamic[i] if size is None else size for i, size in enumerate(shape)]
    return shape


def is_numpy(x: object) -> bool:
    """Returns whether x is an array of NumPy, whose values are known also where a backend compiles a call."""
    return isinstance(x, np.ndarray)


def per_axis(
    value: Any, rank: int, name: str = "a setting per axis"
) -> tuple[Any, ...]:
    """Returns one value for each of `rank` axes: the value itself for all of them, or those of a sequence.

    `InputError` for a sequence of another length; `name` is that of the argument in the message.
    """
    if not isinstance(value, tuple | list):
        return (value,) * rank
    if len(value) != rank:
        raise invalid(name, f"one value, or one per spatial axis, {rank} here", value)
    return tuple(value)


def largest(a: Size, b: Size) -> Size:
    """Returns the larger of two sizes."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    return K.larger_size(a, b)


def ceil_div(size: Size, divisor: Size) -> Size:
    """Returns `size / divisor`, rounded up."""
    return (size + divisor - 1) // divisor


def round_up(size: Size, multiple: int) -> Size:
    """Returns the smallest multiple that is not below `size`."""
    return ceil_div(size, multiple) * multiple


def cache_by_size(compute: Callable[..., Tensor]) -> Callable[..., Any]:
    """Decorates a function of sizes, whose result for known sizes is computed once, as a NumPy array.

    In a graph it is then a constant instead of a dozen operations, which take most of the time of tracing.
    Arguments are hashable: numbers, and tuples and frozen dataclasses of them. With a tensor or an open size
    of an export among them, the result is a tensor.
    """

    @functools.lru_cache(maxsize=1024)
    def compute_once(*args: Any) -> Any:
        return K.as_constant(compute, *args)

    @functools.wraps(compute)
    def compute_or_look_up(*args: Any) -> Any:
        return compute(*args) if _has_symbol(args) else compute_once(*args)

    return compute_or_look_up


def constant_folding(compute: Callable[..., Tensor]) -> Callable[..., Any]:
    """Decorates a function of a table, whose result for a NumPy array is another, computed at the trace.

    In a graph it is then a constant. With a tensor among the other arguments, such as an unknown size, the
    graph computes it all the same.
    """

    @functools.wraps(compute)
    def fold_or_compute(table: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(table, np.ndarray) and not _has_symbol(args):
            return K.as_constant(functools.partial(compute, **kwargs), table, *args)
        return compute(table, *args, **kwargs)

    return fold_or_compute


@constant_folding
def cast(table: Tensor, dtype: K.DType) -> Tensor:
    """`K.cast`, folded for NumPy tables."""
    return K.cast(table, dtype)


def pad(x: Tensor, axis: int, before: Size, after: Size) -> Tensor:
    """Pads an axis with zeros.

    Args:
      x: the tensor.
      axis: the number of the axis, from 0.
      before: the zeros before its first entry, at least 0.
      after: the zeros after its last entry; a negative number crops its end.

    Returns:
      A tensor with `before + n + after` entries along the axis instead of n.
    """
    if all(isinstance(n, int) and n == 0 for n in (before, after)):
        return x
    after_positive = largest(after, 0)
    paddings = [[0, 0] for _ in x.shape]
    paddings[axis] = [before, after_positive]
    size = before + sizes(x)[axis] + after
    return K.pad(x, paddings)[(slice(None),) * axis + (slice(0, size),)]


def at_least_float32(x: Tensor) -> Tensor:
    """Casts half precision to float32, in which sums and exponentials keep their range."""
    return (
        K.cast(x, "float32") if K.dtype_name(x.dtype) in ("float16", "bfloat16") else x
    )


def _has_symbol(args: Sequence[Any]) -> bool:
    """Whether an argument, or a field of one, is a tensor or a size that an export leaves open."""
    for arg in K.flatten(args):
        if dataclasses.is_dataclass(arg):
            if _has_symbol([*vars(arg).values()]):
                return True
        elif K.is_symbolic(arg):
            return True
    return False

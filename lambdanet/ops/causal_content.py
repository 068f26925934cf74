# SPDX-License-Identifier: Apache-2.0
"""Content lambdas of all positions up to a query's own, along one axis, and the state from which they go on.

The positions of a map at one place of the causal axis are a frame: one position of a sequence, or one image
of a video. A query sees the frames up to its own. Its content lambda is a quotient of two sums over them,

    sum of exp(K_m) V_m^T / sum of exp(K_m)   over all positions m of these frames,

which are computed for each frame, and then added up along the axis by an associative scan. Its sums are
trees, whose rounding errors grow with the logarithm of the length alone. Each pair of sums is in units of
exp(maximum), its largest key, so that keys of any size neither overflow nor vanish.

A state has the sums over all earlier frames, of any number, in constant memory: a maximum, the sums, and the
rounding error of the sums (as in Knuth's "two-sum"), which keeps them exact over any number of steps.
"""

from typing import NamedTuple

from lambdanet import backend as K
from lambdanet.backend import Tensor
from lambdanet.backend.tensors import at_least_float32, product, sizes
from lambdanet.ops import content_lambdas


class State(NamedTuple):
    """The sums over all frames so far, of weighted values and, in the last column, of what divides them.

    Attributes:
      maximum: the units of the sums, as the largest key, [b, u * k, 1].
      total: the sums, [b, u * k, v + 1].
      error: what rounding has cut off from the sums, of the same shape.
    """

    maximum: Tensor
    total: Tensor
    error: Tensor


def apply(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    normalization: str | None = "softmax",
    axis: int = 0,
    strides: int = 1,
    padding_mask: Tensor | None = None,
    state: State | None = None,
) -> tuple[Tensor, State]:
    """Applies the content lambdas of the frames up to each query's.

    Args:
      queries: [b, *query_size, h, k]; those of number i along the axis are at the frame `strides * i`.
      keys: [b, *context_size, k, u], not yet normalized.
      values: [b, *context_size, v, u], zero in padding.
      normalization: the normalization of the keys over what a query sees, one of `KEY_NORMALIZATIONS`.
      axis: the number of the causal axis, from 0 for the first spatial axis.
      strides: the distance between queries along the causal axis, in frames.
      padding_mask: the context positions that are no padding, [b, m], booleans; None: all.
      state: the sums over the frames before; None: there were none.

    Returns:
      outputs: [b, *query_size, h, v].
      state: the sums over all frames so far.
    """
    dtype = values.dtype
    keys = at_least_float32(keys)
    values = at_least_float32(values)
    if padding_mask is not None:
        keys = content_lambdas.without_padding(keys, normalization, padding_mask)
    k, u = keys.shape[-2:]
    maxima = []
    sums = []
    for kv in zip(_frames(keys, axis), _frames(values, axis), strict=True):
        maximum, total = _sums_of_frames(*kv, normalization)
        maxima.append(maximum)
        sums.append(total)
    elements = K.concatenate(maxima, axis=2), K.concatenate(sums, axis=2)
    maximum, total = K.associative_scan(_merge_sums, elements)
    error = K.zeros_like(total)
    if state is not None:
        maximum, total, error = _add_to_state(state, maximum, total)
    state = State(maximum[:, -1], total[:, -1], error[:, -1])
    means = _normalized(total[:, ::strides], normalization)  # [b, t, u * k, v]
    lambdas = K.add_n([means[:, :, i * k : (i + 1) * k] for i in range(u)])
    *query_shape, h, _ = sizes(queries)
    v = values.shape[-2]
    queries = K.reshape(at_least_float32(queries), [*query_shape, h * k])
    queries = _move_axis(queries, axis + 1, 1)
    b, t, *positions, _ = sizes(queries)
    queries = K.reshape(queries, [b, t, product([*positions, h]), k])
    outputs = K.cast(K.matmul(queries, lambdas), dtype)
    outputs = K.reshape(outputs, [b, t, *positions, h * v])
    outputs = _move_axis(outputs, 1, axis + 1)
    return K.reshape(outputs, [*query_shape, h, v]), state


def _frames(x: Tensor, axis: int) -> list[Tensor]:
    """[b, *size, x, u] -> one [b, t, positions, x] for each u, the positions of each frame along `axis`."""
    b, *size, depth, u = sizes(x)
    flat = content_lambdas.flatten_map(x)
    frames = []
    for i in range(u):
        part = K.reshape(flat[..., i], [b, *size, depth])
        part = _move_axis(part, axis + 1, 1)
        _, t, *positions, _ = sizes(part)
        frames.append(K.reshape(part, [b, t, product(positions), depth]))
    return frames


def _move_axis(x: Tensor, source: int, destination: int) -> Tensor:
    if source == destination:
        return x
    order = [number for number in range(len(x.shape)) if number != source]
    order.insert(destination, source)
    return K.transpose(x, order)


def _sums_of_frames(
    keys: Tensor, values: Tensor, normalization: str | None
) -> tuple[Tensor, Tensor]:
    """Sums over each frame: [b, t, positions, k], [b, t, positions, v] -> [b, t, k, 1], [b, t, k, v + 1].

    The sums are those of weighted values and, in the last column, of what `_normalized` divides by.
    """
    if normalization == "softmax":
        # Any units give the same quotients, so that no gradient passes through them.
        maximum = K.stop_gradient(K.amax(keys, axis=2, keepdims=True))
        weights = K.exp(keys - maximum)
        divisors = weights
        maximum = K.transpose(maximum, [0, 1, 3, 2])
    else:
        weights = keys
        divisors = K.square(keys)
        maximum = K.zeros_like(K.transpose(keys[:, :, :1], [0, 1, 3, 2]))
    weights = K.transpose(weights, [0, 1, 3, 2])  # [b, t, k, positions]
    is_sequence = values.shape[2] == 1
    sums = weights * values if is_sequence else K.matmul(weights, values)
    divisor = K.sum(divisors, axis=2)[..., K.newaxis]
    return maximum, K.concatenate([sums, divisor], axis=-1)


def _merge_sums(
    first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Joins the sums over two parts of a sequence: the largest keys [..., 1], and the sums in their units."""
    maximum = K.maximum(first[0], second[0])
    in_units_of_first = first[1] * K.exp(first[0] - maximum)
    in_units_of_second = second[1] * K.exp(second[0] - maximum)
    return maximum, in_units_of_first + in_units_of_second


def _add_to_state(
    state: State, maximum: Tensor, total: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Adds the sums of a state to those up to each frame after it, with the rounding error of that."""
    earlier_maximum, earlier, earlier_error = (x[:, K.newaxis] for x in state)
    units = K.maximum(earlier_maximum, maximum)
    earlier_units = K.exp(earlier_maximum - units)
    earlier = earlier * earlier_units
    added = total * K.exp(maximum - units)
    total, error = add_exactly(earlier, earlier_error * earlier_units, added)
    return units, total, error


def add_exactly(total: Tensor, error: Tensor, added: Tensor) -> tuple[Tensor, Tensor]:
    """Adds to a sum whose rounding error is kept, so that any number of additions is exact.

    Args:
      total: the sum.
      error: what rounding has cut off from it.
      added: what to add.

    Returns:
      The new total, and what rounding has cut off from that.
    """
    added = added + error
    new = total + added
    rest = new - total
    return new, (total - (new - rest)) + (added - rest)


def _normalized(total: Tensor, normalization: str | None) -> Tensor:
    """Divides sums [..., v + 1] by their last column, as the normalization of the keys has it: [..., v]."""
    sums = total[..., :-1]
    divisor = total[..., -1:]
    if normalization == "softmax":
        return K.divide_no_nan(sums, divisor)
    if normalization == "l2":
        return sums * K.rsqrt(K.maximum(divisor, 1e-12))
    return sums

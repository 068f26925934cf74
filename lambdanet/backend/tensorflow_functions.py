# SPDX-License-Identifier: Apache-2.0
"""The functions of `lambdanet.backend` on TensorFlow."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from tensorflow import (  # noqa: F401
    abs,
    add_n,
    argmax,
    broadcast_to,
    cast,
    convert_to_tensor,
    cos,
    custom_gradient,
    einsum,
    exp,
    expand_dims,
    eye,
    floor,
    is_tensor,
    maximum,
    meshgrid,
    minimum,
    name_scope,
    one_hot,
    ones,
    ones_like,
    pad,
    repeat,
    sigmoid,
    sqrt,
    square,
    stack,
    stop_gradient,
    tile,
    transpose,
    unstack,
    where,
    zeros,
    zeros_like,
)
from tensorflow.math import divide_no_nan, l2_normalize, log, rsqrt  # noqa: F401
from tensorflow.nest import flatten, map_structure  # noqa: F401
from tensorflow.nn import relu, softmax  # noqa: F401
from tensorflow.python.eager import record
from tensorflow.python.ops import control_flow_util

from lambdanet.backend.keras_functions import (
    Gradient,
    dtype_max,  # noqa: F401
    dtype_min,  # noqa: F401
    dtype_name,  # noqa: F401
    itemsize,  # noqa: F401
    scan_by_doubling,
    static_sizes,  # noqa: F401
)

DType: TypeAlias = tf.DType
Tensor: TypeAlias = tf.Tensor
Variable: TypeAlias = tf.Variable
Size: TypeAlias = "int | Tensor"

amax = tf.reduce_max
arange = tf.range
check_at_most = tf.debugging.assert_less_equal
concatenate = tf.concat
convert_to_numpy = np.asarray
depthwise_conv = tf.nn.depthwise_conv2d
is_symbolic = is_tensor
larger_size = maximum
logsumexp = tf.reduce_logsumexp
max_pool = tf.nn.max_pool2d
resize = tf.image.resize
softmax_cross_entropy = tf.nn.softmax_cross_entropy_with_logits
shape = tf.shape
take = tf.gather


def _in_float32(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns a function that adds half precision in float32; TensorFlow adds float16 in float16 on a CPU."""

    def compute(x: Any, *args: Any, **kwargs: Any) -> Tensor:
        x = convert_to_tensor(x)
        wide = cast(x, tf.float32) if x.dtype.size == 2 and x.dtype.is_floating else x
        return cast(function(wide, *args, **kwargs), x.dtype)

    return compute


average_pool = _in_float32(tf.nn.avg_pool)
mean = _in_float32(tf.reduce_mean)
sum = _in_float32(tf.reduce_sum)


def conv(
    images: Tensor, kernel: Tensor, strides: Any, padding: str, dilations: Any = 1
) -> Tensor:
    """`tf.nn.convolution`, whose second derivatives need the format of the data."""
    data_format = {3: "NWC", 4: "NHWC", 5: "NDHWC"}[len(images.shape)]
    return tf.nn.convolution(images, kernel, strides, padding, data_format, dilations)


def reshape(x: Tensor, shape: Any) -> Tensor:
    """`tf.reshape`, where one unknown size among known ones, such as the batch, makes no operations."""
    if isinstance(shape, list):
        unknown = [number for number, size in enumerate(shape) if is_tensor(size)]
        if len(unknown) == 1 and -1 not in [x for x in shape if isinstance(x, int)]:
            shape = [*shape]
            shape[unknown[0]] = -1
    return tf.reshape(x, shape)


def matmul(
    a: Tensor, b: Tensor, transpose_a: bool = False, transpose_b: bool = False
) -> Tensor:
    """`tf.matmul`, where one matrix for all of a is multiplied with its rows.

    TensorFlow 2.20 with oneDNN, given [b, 1, n, k] and [k, m], writes outside of its memory.
    """
    a = convert_to_tensor(a)
    b = convert_to_tensor(b)
    if len(a.shape) < 4 or b.shape[:-2].num_elements() != 1:
        return tf.matmul(a, b, transpose_a, transpose_b)
    a = tf.linalg.matrix_transpose(a) if transpose_a else a
    matrix = tf.reshape(b, tf.shape(b)[-2:])
    return tf.tensordot(a, transpose(matrix) if transpose_b else matrix, 1)


def associative_scan(
    merge: Callable[..., tuple[Tensor, ...]],
    elements: tuple[Tensor, ...],
) -> tuple[Tensor, ...]:
    """Like `keras.ops.associative_scan` along axis 1, and also where its size is unknown."""
    if elements[0].shape[1] is not None:
        return scan_by_doubling(merge, elements)
    count = tf.shape(elements[0])[1]

    def double(distance: Tensor, *sums: Tensor) -> tuple[Tensor, ...]:
        # Each sum is over `distance` positions, or over all from the first on.
        here = arange(count)
        earlier = tuple(take(x, maximum(here - distance, 0), axis=1) for x in sums)
        merged = merge(earlier, sums)
        results = []
        for x, both in zip(sums, merged, strict=True):
            shape = [1] * len(x.shape)
            shape[1] = count
            x = where(tf.reshape(here >= distance, shape), both, x)
            results.append(tf.ensure_shape(x, both.shape))
        return (2 * distance, *results)

    _, *sums = tf.while_loop(
        lambda distance, *_: distance < count,
        double,
        (1, *elements),
        maximum_iterations=31,
    )
    return tuple(sums)


def batch_norm(
    x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalizes the channels of x [b, h, w, c], float32 or half, by TensorFlow's kernel.

    Returns:
      the normalized x; the mean and the biased variance of x, float32 [c] each, which pass no gradient on.
    """
    gamma, beta = (cast(parameter, tf.float32) for parameter in (gamma, beta))
    outputs, mean, unbiased, *_ = tf.raw_ops.FusedBatchNormV3(
        x=x,
        scale=gamma,
        offset=beta,
        mean=[],
        variance=[],
        epsilon=epsilon,
        is_training=True,
    )
    count = x.shape[:-1].num_elements()
    if count is None:
        count = cast(tf.reduce_prod(tf.shape(x)[:-1]), tf.float32)
    return outputs, mean, unbiased * ((count - 1) / count)


def scale_channels(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    gamma: Tensor,
    beta: Tensor,
    epsilon: float,
) -> Tensor:
    """Normalizes the channels of x [b, h, w, c] by a given mean and variance, with the same kernel."""
    parameters = {"scale": gamma, "offset": beta, "mean": mean, "variance": variance}
    wide = {name: cast(value, tf.float32) for name, value in parameters.items()}
    return tf.raw_ops.FusedBatchNormV3(x=x, **wide, epsilon=epsilon, is_training=False)[
        0
    ]


def as_constant(compute: Callable[..., Tensor], *args: Any) -> Any:
    """Returns the value of `compute(*args)` as a NumPy array, also while a function is traced."""
    with tf.init_scope(), tf.device("CPU"):
        return np.asarray(compute(*args))


def constants_of(variables: Sequence[Variable]) -> list[Any]:
    """Returns the values of variables as NumPy arrays, also while a function is traced."""
    return [as_constant(convert_to_tensor, x) for x in variables]


def compute_by_constants(
    compute: Callable[..., Tensor], variables: Sequence[Variable]
) -> Tensor:
    """Returns `compute(*variables)`; in a graph, with constants while the variables have their values.

    The graph compares them at each call, so that new weights hold at once: the faster branch has what
    depends on constants alone as a constant, the other computes it.
    """
    tensors = [convert_to_tensor(variable) for variable in variables]
    if tf.executing_eagerly():
        return compute(*tensors)
    constants = constants_of(variables)
    are_equal = [tf.reduce_all(x) for x in map(tf.equal, tensors, constants)]
    return tf.cond(
        tf.reduce_all(are_equal),
        lambda: compute(*constants),
        lambda: compute(*tensors),
    )


def accelerators() -> list[str]:
    """Returns the kinds of accelerators that this process can see, "TPU" and "GPU"."""
    return [kind for kind in ("TPU", "GPU") if tf.config.list_logical_devices(kind)]


def is_compiled_by_xla() -> bool:
    """Returns whether the function that is being traced is one with `jit_compile`."""
    return control_flow_util.GraphOrParentsInXlaContext(
        tf.compat.v1.get_default_graph()
    )


def with_gradient_of(
    backward: Callable[..., Tensor],
    forward: Callable[..., Tensor],
    *inputs: Tensor,
) -> Tensor:
    """Returns `forward(*inputs)` with the gradient of `backward`, which has the same value.

    Where a tape records the inputs, it is `backward` alone, which the gradient would have to compute as well.
    """
    if record.should_record_backprop([convert_to_tensor(x) for x in inputs]):
        return backward(*inputs)

    @custom_gradient
    def run(*inputs: Tensor) -> tuple[Tensor, Gradient]:
        def grad(upstream: Tensor) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                outputs = backward(*inputs)
            return tape.gradient(outputs, inputs, output_gradients=upstream)

        return forward(*inputs), grad

    return run(*inputs)


def map_recomputed(
    function: Callable[[Tensor, Tensor, Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    shared: Tensor,
    count: Size,
) -> Tensor:
    """Stacks function(x[i], y[i], shared) for i < count, one by one, and again in the backward pass."""

    @custom_gradient
    def run(x: Tensor, y: Tensor, shared: Tensor) -> tuple[Tensor, Gradient]:
        def forward(
            i: Tensor, outputs: tf.TensorArray
        ) -> tuple[Tensor, tf.TensorArray]:
            return i + 1, outputs.write(i, function(x[i], y[i], shared))

        def grad(upstream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            def backward(
                i: Tensor, x_gradients: Any, y_gradients: Any, shared_gradient: Any
            ) -> tuple[Any, ...]:
                inputs = (x[i], y[i], shared)
                with tf.GradientTape() as tape:
                    tape.watch(inputs)
                    outputs = function(*inputs)
                gradients = tape.gradient(outputs, inputs, output_gradients=upstream[i])
                x_gradients = x_gradients.write(i, gradients[0])
                return (
                    i + 1,
                    x_gradients,
                    y_gradients.write(i, gradients[1]),
                    shared_gradient + gradients[2],
                )

            start = (_array(x, count), _array(y, count), zeros_like(shared))
            x_gradients, y_gradients, shared_gradient = _repeat(count, backward, *start)
            return x_gradients.stack(), y_gradients.stack(), shared_gradient

        (outputs,) = _repeat(count, forward, tf.TensorArray(x.dtype, count))
        return outputs.stack(), grad

    return run(x, y, shared)


def _array(like: Tensor, count: Size) -> tf.TensorArray:
    return tf.TensorArray(like.dtype, count, element_shape=like.shape[1:])


def _repeat(count: Size, body: Callable[..., Any], *state: Any) -> Sequence[Any]:
    """Runs `body(i, *state)` for i = 0 ... count - 1, one after the other; returns the state."""
    state = (tf.constant(0), *state)
    loop = tf.while_loop(
        lambda i, *_: i < count,
        body,
        state,
        parallel_iterations=1,
        maximum_iterations=count,
    )
    return loop[1:]

# SPDX-License-Identifier: Apache-2.0
"""Applying a function to a batch in chunks, so that its intermediate results never all exist at once."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from lambdanet.tensors import Size, ceil_div, pad, sizes


def in_chunks(
    function: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor],
    x: tf.Tensor,
    y: tf.Tensor,
    shared: tf.Tensor,
    chunk: int,
    shape: Sequence[Size],
) -> tf.Tensor:
    """Computes `function(x, y, shared)` for `chunk` examples at a time, and again in the backward pass.

    Only inputs and outputs are kept between the two passes (Chen et al. 2016), so the largest intermediate is
    that of one chunk; chunks that fit into a cache can make up for computing them twice.

    Args:
      function: maps x [chunk, ...], y [chunk, ...] and `shared` to [chunk, ...], each example by itself.
      x, y: [b, ...].
      shared: the input that all examples use; its gradient is the sum over them.
      chunk: examples per call; b is padded with zeros to a multiple of it.
      shape: the shape of one example's result; that of all is [b, *shape].
    """
    b = sizes(x)[0]
    count = ceil_div(b, chunk)

    @tf.custom_gradient
    def run(x, y, shared):
        def forward(i, outputs):
            return i + 1, outputs.write(i, function(x[i], y[i], shared))

        def grad(upstream):
            def backward(i, x_gradients, y_gradients, shared_gradient):
                inputs = (x[i], y[i], shared)
                with tf.GradientTape() as tape:
                    tape.watch(inputs)
                    outputs = function(*inputs)
                gradients = tape.gradient(outputs, inputs, output_gradients=upstream[i])
                x_gradients = x_gradients.write(i, gradients[0])
                return i + 1, x_gradients, y_gradients.write(i, gradients[1]), shared_gradient + gradients[2]

            start = (_array(x, count), _array(y, count), tf.zeros_like(shared))
            x_gradients, y_gradients, shared_gradient = _repeat(count, backward, *start)
            return x_gradients.stack(), y_gradients.stack(), shared_gradient

        (outputs,) = _repeat(count, forward, tf.TensorArray(x.dtype, count))
        return outputs.stack(), grad

    def split(z):
        return tf.reshape(pad(z, 0, 0, count * chunk - b), [count, chunk, *sizes(z)[1:]])

    return tf.reshape(run(split(x), split(y), shared), [count * chunk, *shape])[:b]


def _array(like: tf.Tensor, count: Size) -> tf.TensorArray:
    return tf.TensorArray(like.dtype, count, element_shape=like.shape[1:])


def _repeat(count: Size, body: Callable, *state):
    """Runs `body(i, *state)` for i = 0 ... count - 1, one after the other; returns the state."""
    state = (tf.constant(0), *state)
    loop = tf.while_loop(
        lambda i, *_: i < count, body, state, parallel_iterations=1, maximum_iterations=count
    )
    return loop[1:]

# SPDX-License-Identifier: Apache-2.0
"""Where half precision does not suffice."""

import tensorflow as tf


def at_least_float32(x: tf.Tensor) -> tf.Tensor:
    """Casts half precision to float32, where sums and exponentials keep their range."""
    return tf.cast(x, tf.float32) if x.dtype in (tf.float16, tf.bfloat16) else x

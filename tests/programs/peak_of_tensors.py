# SPDX-License-Identifier: Apache-2.0
"""Prints the peak memory of a TensorFlow function: 16 MiB."""

import tensorflow as tf

from benchmarks.interleaved.memory import peak_bytes

x = tf.ones([1024, 2048])  # 8 MiB


@tf.function
def run():
    y = tf.exp(x)
    # Y, the sum, and one of them reused.
    return y + tf.math.unsorted_segment_sum(y, tf.range(1024), 1024)


run()
print(peak_bytes(run, 3))

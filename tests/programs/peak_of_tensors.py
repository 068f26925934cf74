# SPDX-License-Identifier: Apache-2.0
"""Prints the peak memory of a function with two arrays, divided by that of one with its result alone."""

import tensorflow as tf

from benchmarks.interleaved.memory import peak_bytes

x = tf.ones([1024, 8192])  # 32 MiB


@tf.function
def one():
    return tf.exp(x)


@tf.function
def two():
    y = tf.exp(x)
    # Y, the sum, and one of them reused.
    return y + tf.math.unsorted_segment_sum(y, tf.range(1024), 1024)


peaks = []
for run in (one, two):
    run()
    peaks.append(peak_bytes(run, 3))
print(peaks[1] / peaks[0])

# SPDX-License-Identifier: Apache-2.0
"""Prints the peak memory of the maps of ten queries of 64 x 64."""

import tensorflow as tf

import lambdanet
from benchmarks.interleaved.memory import peak_bytes

layer = lambdanet.LambdaLayer(16, scope=7)
x = tf.ones([1, 64, 64, 8])


def run():
    return lambdanet.explain.implied_attention(layer, x, range(10))


run()
print(peak_bytes(run, 3))

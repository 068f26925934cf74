# SPDX-License-Identifier: Apache-2.0
"""What the layers share in how they build their parts."""

from collections.abc import Sequence

import tensorflow as tf
import tf_keras as keras

# The momentum and epsilon of the TPU ResNet code that the paper builds on.
BATCH_NORM = {"momentum": 0.9, "epsilon": 1e-5}


def built(layer: keras.layers.Layer, input_shape: Sequence[int | None]) -> keras.layers.Layer:
    """Creates the variables of a part now, under the part's own name.

    A layer that builds its parts in its own `build` has all its variables as soon as its input shape is
    known, with names that say which part they belong to.
    """
    with tf.name_scope(layer.name):
        layer.build(input_shape)
    return layer

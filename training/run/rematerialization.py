# SPDX-License-Identifier: Apache-2.0
"""Rematerialization: activations within a block are computed again in the backward pass, instead of kept.

Only the maps between the blocks stay in memory (Chen et al. 2016), for about a third more computation.
"""

import itertools

import tensorflow as tf
import tf_keras as keras

from lambdanet.errors import invalid
from lambdanet.training.run.optimizers import layer_group
from lambdanet.training.run.train_step import Forward


def rematerialize(model: keras.Model) -> Forward:
    """Returns the forward pass of a model in training that keeps only what is between its blocks.

    Gradients equal the model's. Batch statistics also move in the backward pass: see `train_step`.

    Args:
      model: a functional model, in which blocks follow each other.

    Raises:
      InputError: a layer reads something else than its own block and the output of the one before.
    """
    pairs = [(layer_group(layer.name), layer) for layer in model.layers[1:]]
    ends = [list(group)[-1][1].output for _, group in itertools.groupby(pairs, key=lambda pair: pair[0])]
    try:
        segments = [keras.Model(*pair) for pair in zip([model.input, *ends[:-1]], ends, strict=True)]
    except ValueError:  # of Keras: the graph is disconnected
        accepted = f"false for {model.name}, whose blocks do not follow each other"
        raise invalid("remat", accepted, True) from None
    recomputed = [tf.recompute_grad(lambda x, s=segment: s(x, training=True)) for segment in segments]

    def forward(images: tf.Tensor) -> tf.Tensor:
        for segment in recomputed:
            images = segment(images)
        return images

    return forward

# SPDX-License-Identifier: Apache-2.0
"""Stateless dropout: masks depend on (seed, layer, step) only, so a resumed run draws the same masks.

With gradient accumulation, they also depend on the part of the batch.

The random generators of Keras have a state, which is in no checkpoint.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
import tf_keras as keras

_parts: list[tf.Tensor] = []  # the part of the step that is traced, if it has parts


@contextlib.contextmanager
def part_of_step(number: tf.Tensor) -> Iterator[None]:
    """Gives the layers called within other masks for each number, an int32 scalar."""
    _parts.append(number)
    try:
        yield
    finally:
        _parts.pop()


class StatelessDropoutRng:
    """Replaces the random generator of a Keras layer.

    Args:
      seed: the seed of the run.
      number: the number of the layer in its model.
      step: the number of steps completed, int64.
    """

    def __init__(self, seed: int, number: int, step: tf.Variable):
        self._seed, self._number = seed, number
        self._step = lambda: step  # Keras would track a variable as a weight of the layer

    def dropout(self, inputs: tf.Tensor, rate: float, noise_shape: Any = None) -> tf.Tensor:
        """Sets a fraction `rate` of the inputs to zero, and scales the others by 1 / (1 - rate)."""
        seed = tf.random.fold_in(tf.constant([self._seed, self._number], tf.int64), self._step())
        for part in _parts:
            seed = tf.random.fold_in(seed, part)
        replica = tf.distribute.get_replica_context()
        if replica is not None and replica.num_replicas_in_sync > 1:  # another mask on each device
            seed = tf.random.fold_in(seed, replica.replica_id_in_sync_group)
        return tf.nn.experimental.stateless_dropout(inputs, rate, seed, noise_shape=noise_shape)


def make_dropout_stateless(model: keras.Model, step: tf.Variable, seed: int) -> None:
    """Makes the dropout layers of an untrained model stateless.

    Args:
      model: the model.
      step: the step counter of its optimizer.
      seed: the seed of the run.
    """
    layers = [layer for layer in model.submodules if isinstance(layer, keras.layers.Dropout)]
    places = {id(layer): place for place, layer in enumerate(model._flatten_layers())}
    layers.sort(key=lambda layer: places.get(id(layer), len(places)))  # `submodules` has no fixed order
    for number, layer in enumerate(layers):
        layer._random_generator = StatelessDropoutRng(seed, number, step)

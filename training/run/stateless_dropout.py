# SPDX-License-Identifier: Apache-2.0
"""What dropout drops at a step of training: a function of seed, layer and step, and of nothing before.

Keras draws it from generators that keep a state of their own, which no checkpoint holds.
"""

from typing import Any

import tensorflow as tf
import tf_keras as keras


class StatelessDropoutRng:
    """Stands in a layer of Keras for its random generator.

    Args:
      seed: of the run.
      number: of the layer in its model.
      step: the steps completed, int64.
    """

    def __init__(self, seed: int, number: int, step: tf.Variable):
        self._seed, self._number = seed, number
        self._step = lambda: step  # a variable of its own, a layer would take for a weight

    def dropout(self, inputs: tf.Tensor, rate: float, noise_shape: Any = None) -> tf.Tensor:
        """Sets a part of the inputs to zero, and scales the others by 1 / (1 - rate)."""
        seed = tf.random.fold_in(tf.constant([self._seed, self._number], tf.int64), self._step())
        replica = tf.distribute.get_replica_context()
        if replica is not None and replica.num_replicas_in_sync > 1:  # each device drops others
            seed = tf.random.fold_in(seed, replica.replica_id_in_sync_group)
        return tf.nn.experimental.stateless_dropout(inputs, rate, seed, noise_shape=noise_shape)


def make_dropout_stateless(model: keras.Model, step: tf.Variable, seed: int) -> None:
    """Makes what the layers of a model drop depend on the step, so that a run goes on as it would have gone.

    Args:
      model: before it is trained.
      step: of its optimizer.
      seed: of the run.
    """
    layers = [layer for layer in model.submodules if isinstance(layer, keras.layers.Dropout)]
    for number, layer in enumerate(sorted(layers, key=_place(model))):
        layer._random_generator = StatelessDropoutRng(seed, number, step)


def _place(model: keras.Model) -> Any:
    """Returns what sorts the layers as the model has them, which `submodules` need not do."""
    places = {id(layer): place for place, layer in enumerate(model._flatten_layers())}
    return lambda layer: places.get(id(layer), len(places))

# SPDX-License-Identifier: Apache-2.0
"""Holds a Keras 3 network in a model of tf_keras, for trainings and libraries such as TF Model Garden.

This module and `detection` are the only ones that import tf_keras; `lambdanet.as_tf_keras` is the way here.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras

from lambdanet.backend import compat, keras
from lambdanet.backend.strategies import draw_different_numbers
from lambdanet.core import which_keras

# In the keys of checkpoints; the states are those of random numbers.
WEIGHT = "weight-"
STATE = "state-"


@tf_keras.utils.register_keras_serializable(package="lambdanet")
class TfKerasModel(tf_keras.Model):
    """A Keras 3 network as a model of tf_keras, with the network's own TensorFlow variables.

    Outputs, losses, weights and their names are those of the network. To tf_keras it is one layer: `network`
    has its layers.

    Args:
      network: a built Keras 3 model on TensorFlow.
      **kwargs: `name` and other arguments of a model of tf_keras.

    Attributes:
      network: the Keras 3 model.
    """

    def __init__(self, network: keras.Model, **kwargs: Any):
        super().__init__(**{"name": network.name, **kwargs})
        self._hold(network)
        self.draw_different_numbers()

    @tf.__internal__.tracking.no_automatic_dependency_tracking
    def _hold(self, network: keras.Model) -> None:
        """Keeps the network out of sight of tf_keras, which takes weights for TensorFlow's variables."""
        self.network = network
        self._frozen = [
            layer for layer in compat.sublayers(network) if not layer.trainable
        ]
        # By number, as names of layers may have counters of the process. Checkpoints have these keys.
        for number, variable in enumerate(network.weights):
            self._track_trackable(variable.value, f"{WEIGHT}{number}")
        weights = {id(variable) for variable in network.weights}
        for number, variable in enumerate(
            v for v in network.variables if id(v) not in weights
        ):
            self._track_trackable(variable.value, f"{STATE}{number}")
        self._callable_losses = [
            _loss_of(variable)
            for variable in network.weights
            if variable.regularizer is not None
        ]
        self.built = True

    @property
    def _trainable(self) -> bool:
        """The attribute that tf_keras also sets when a model around this one is frozen."""
        return bool(self.__dict__["_is_trainable"])

    @_trainable.setter
    def _trainable(self, value: bool) -> None:
        self.__dict__["_is_trainable"] = value
        network = self.__dict__.get("network")
        if network is not None:
            network.trainable = value
            for layer in self._frozen:
                layer.trainable = False

    @property
    def trainable_weights(self) -> list[tf.Variable]:
        return [variable.value for variable in self.network.trainable_weights]

    @property
    def non_trainable_weights(self) -> list[tf.Variable]:
        return [variable.value for variable in self.network.non_trainable_weights]

    @property
    def weights(self) -> list[tf.Variable]:
        """The weights in the order of the layers, without the states of random numbers."""
        return [variable.value for variable in self.network.weights]

    @tf.autograph.experimental.do_not_convert
    def call(self, inputs: Any, training: bool | None = None) -> Any:
        with which_keras.held_in_tf_keras():
            outputs = self.network(inputs, training=training)
        layers = (self.network, *compat.sublayers(self.network))
        self.add_loss([loss for layer in layers for loss in layer._get_own_losses()])
        return outputs

    def _infer_output_signature(self, inputs: Any, *_: Any) -> Any:
        """Declares the outputs; a trace would take seconds."""
        symbolic = keras.tree.map_structure(
            lambda x: keras.KerasTensor(tuple(x.shape), x.dtype.name), inputs
        )
        return keras.tree.map_structure(
            lambda x: tf_keras.__internal__.KerasTensor(
                tf.TensorSpec(x.shape, x.dtype)
            ),
            self.network.compute_output_spec(symbolic),
        )

    def draw_different_numbers(self) -> None:
        """Gives each device of the current strategy seeds of its own; call it again after a restore.

        A checkpoint has the seeds of the first device.
        """
        if tf.distribute.has_strategy():
            draw_different_numbers(self.network, tf.distribute.get_strategy())

    def save_own_variables(self, store: Any) -> None:
        """Writes the weights into a file of tf_keras, by their numbers."""
        for number, weight in enumerate(self.weights):
            store[str(number)] = weight.numpy()

    def load_own_variables(self, store: Any) -> None:
        """Reads the weights that `save_own_variables` wrote; `ValueError` where their number differs."""
        weights = self.weights
        if len(store.keys()) != len(weights):
            raise ValueError(
                f"{self.name!r} has {len(weights)} weights, and the file {len(store.keys())}"
            )
        for number, weight in enumerate(weights):
            weight.assign(store[str(number)])

    def get_config(self) -> dict[str, Any]:
        return {"network": keras.saving.serialize_keras_object(self.network)}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: Any = None
    ) -> "TfKerasModel":
        return cls(
            keras.saving.deserialize_keras_object(config["network"], custom_objects)
        )


def _loss_of(variable: keras.Variable) -> Callable[[], tf.Tensor]:
    """Returns a function for the loss of a regularizer; tf_keras cannot save a partial one."""
    return lambda: variable.regularizer(variable)

# SPDX-License-Identifier: Apache-2.0
"""Makes a Keras 3 network a model of tf_keras, without importing tf_keras before."""

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING

from lambdanet.backend import keras
from lambdanet.core import which_keras
from lambdanet.core.errors import InputError, invalid

if TYPE_CHECKING:
    from lambdanet.models.tf_keras_model import TfKerasModel


def as_tf_keras(model: keras.Model | Callable[[], keras.Model]) -> "TfKerasModel":
    """Returns a Keras 3 model as a model of tf_keras that shares its variables, for a training of tf_keras.

    It can be compiled, fitted, saved and exported by tf_keras, be a layer of other models of tf_keras, and
    train in a distribution strategy of TensorFlow.

    Args:
      model: a built Keras 3 model on TensorFlow, or a function without arguments that returns one. Within the
        scope of a strategy it must be a function, which is called there: the moving averages of batch
        normalization then are variables that differ by device.

    Raises:
      InputError: it is no built model of Keras 3, Keras is not on TensorFlow, tf_keras is not installed, or a
        strategy needs a function.

    Example:
      >>> import tf_keras
      >>> model = as_tf_keras(lambdanet.create_model("lambda_resnet_tiny", num_classes=10))
      >>> model.compile("sgd", tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    """
    which_keras.check_backend("as_tf_keras", ("tensorflow",))
    if importlib.util.find_spec("tf_keras") is None:
        raise InputError("as_tf_keras needs tf_keras: pip install tf_keras")
    import tensorflow as tf

    from lambdanet.backend.strategies import average_on_read
    from lambdanet.models.tf_keras_model import TfKerasModel

    distributed = (
        tf.distribute.has_strategy()
        and tf.distribute.get_strategy().num_replicas_in_sync > 1
    )
    which_keras.check_keras_3(model, "the model")
    if callable(model) and not isinstance(model, keras.layers.Layer):
        with tf.variable_creator_scope(average_on_read):
            model = model()
    elif distributed:
        raise InputError(
            "within a strategy, as_tf_keras needs a function that builds the model, such as "
            "as_tf_keras(lambda: create_model('lambda_resnet_50'))"
        )
    if not isinstance(model, keras.Model) or not model.built:
        raise invalid(
            "model", "a built Keras 3 model, or a function that returns one", model
        )
    return TfKerasModel(model)

# SPDX-License-Identifier: Apache-2.0
"""The Keras that layers and models are built with, and functions on tensors, spelled as in `keras.ops`.

`lambdanet.which_keras` says which Keras that is. With TensorFlow under it the functions are TensorFlow's own,
so that nothing stands between a layer and its kernels; elsewhere they are those of `keras.ops`. No other
module of `ops`, `layers` and `models` imports TensorFlow or a Keras.

By convention `from lambdanet import backend as K`.
"""

from typing import TYPE_CHECKING

from lambdanet import which_keras

KERAS = which_keras.chosen()

if TYPE_CHECKING or KERAS == "tf_keras":
    from lambdanet.backend.tf_keras_layers import *  # noqa: F403
else:
    from lambdanet.backend.keras_3_layers import *  # noqa: F403

ENGINE = "tensorflow" if KERAS == "tf_keras" else keras.config.backend()  # noqa: F405

if TYPE_CHECKING or ENGINE == "tensorflow":
    from lambdanet.backend.tensorflow_functions import *  # noqa: F403
else:
    from lambdanet.backend.keras_functions import *  # noqa: F403

newaxis = None

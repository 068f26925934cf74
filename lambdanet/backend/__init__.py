# SPDX-License-Identifier: Apache-2.0
"""Keras 3, and functions on tensors, spelled as in `keras.ops`.

On TensorFlow the functions are TensorFlow's own, so that a layer calls its kernels directly; elsewhere they
are `keras.ops`. `compat` mends and extends Keras. `ops` and `layers` import neither TensorFlow nor Keras, and
of `models` only what is for TensorFlow, tf_keras or KerasHub alone.

By convention `from lambdanet import backend as K`, and `from lambdanet.backend import compat, keras`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from lambdanet.core import which_keras

if TYPE_CHECKING:
    import keras as keras
else:
    keras = which_keras.import_keras_3()

from lambdanet.backend import compat as compat

ENGINE = keras.config.backend()

if TYPE_CHECKING or ENGINE == "tensorflow":
    from lambdanet.backend.tensorflow_functions import *  # noqa: F403
else:
    from lambdanet.backend.keras_functions import *  # noqa: F403

Shape: TypeAlias = Sequence[Any]  # integers, and None where a size is not known
newaxis = None

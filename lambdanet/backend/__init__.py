# SPDX-License-Identifier: Apache-2.0
"""The Keras that layers and models are built with, and functions on tensors, spelled as in `keras.ops`.

`lambdanet.which_keras` chooses the Keras. With TensorFlow under it the functions are TensorFlow's own, so
that a layer calls its kernels directly; elsewhere they are `keras.ops`. `compat` has what differs between
the two Kerases. No other module of `ops`, `layers` and `models` imports TensorFlow or a Keras.

By convention `from lambdanet import backend as K`, and `from lambdanet.backend import compat, keras`.
"""

from typing import TYPE_CHECKING

from lambdanet import which_keras

KERAS = which_keras.chosen()

if TYPE_CHECKING or KERAS == "tf_keras":
    import tf_keras as keras

    from lambdanet.backend import tf_keras_compat as compat
else:
    keras = which_keras.import_keras_3()

    from lambdanet.backend import keras_3_compat as compat

ENGINE = "tensorflow" if KERAS == "tf_keras" else keras.config.backend()

if TYPE_CHECKING or ENGINE == "tensorflow":
    from lambdanet.backend.tensorflow_functions import *  # noqa: F403
else:
    from lambdanet.backend.keras_functions import *  # noqa: F403

newaxis = None

# fmt: off
__all__ = [  # noqa: F405, RUF022
    "abs", "accelerators", "add_n", "all", "amax", "arange", "argmax", "as_constant", "average_pool",
    "batch_norm", "broadcast_to", "cast", "check_at_most", "clip", "compat", "concatenate", "constant_of",
    "conv", "convert_to_numpy", "convert_to_tensor", "cos", "cumsum", "custom_gradient", "depthwise_conv",
    "divide_no_nan", "DType", "dtype_max", "dtype_min", "dtype_name", "einsum", "ENGINE", "exp",
    "expand_dims", "eye", "flatten", "floor", "Gradient", "is_compiled_by_xla", "is_tensor", "itemsize",
    "KERAS", "keras", "l2_normalize", "log1p", "logsumexp", "lower_triangle", "map_recomputed",
    "map_structure", "matmul", "max_pool", "maximum", "mean", "meshgrid", "minimum", "name_scope",
    "newaxis", "one_hot", "ones", "ones_like", "pad", "relu", "repeat", "reshape", "rsqrt", "shape",
    "sigmoid", "softmax", "softmax_cross_entropy", "sqrt", "square", "stack", "sum", "take", "Tensor",
    "tile", "transpose", "unstack", "Variable", "where", "with_gradient_of", "zeros", "zeros_like",
]
# fmt: on

# SPDX-License-Identifier: Apache-2.0
"""Keras 3, and functions on tensors, spelled as in `keras.ops`.

On TensorFlow the functions are TensorFlow's own, so that a layer calls its kernels directly; elsewhere they
are `keras.ops`. `compat` mends and extends Keras. No other module of `ops`, `layers` and `models` imports
TensorFlow or Keras, but for `models.tf_keras_model`.

By convention `from lambdanet import backend as K`, and `from lambdanet.backend import compat, keras`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from lambdanet import which_keras

if TYPE_CHECKING:
    import keras
else:
    keras = which_keras.import_keras_3()

from lambdanet.backend import compat

ENGINE = keras.config.backend()

if TYPE_CHECKING or ENGINE == "tensorflow":
    from lambdanet.backend.tensorflow_functions import *  # noqa: F403
else:
    from lambdanet.backend.keras_functions import *  # noqa: F403

Shape: TypeAlias = Sequence[Any]  # integers, and None where a size is not known
newaxis = None

# fmt: off
__all__ = [  # noqa: F405, RUF022
    "abs", "accelerators", "add_n", "all", "amax", "arange", "argmax", "as_constant", "average_pool",
    "batch_norm", "broadcast_to", "cast", "check_at_most", "clip", "compat", "concatenate",
    "constant_of", "conv", "convert_to_numpy", "convert_to_tensor", "cos", "cumsum", "custom_gradient",
    "depthwise_conv", "divide_no_nan", "DType", "dtype_max", "dtype_min", "dtype_name", "einsum",
    "ENGINE", "exp", "expand_dims", "eye", "flatten", "floor", "Gradient", "is_compiled_by_xla",
    "is_tensor", "itemsize", "keras", "l2_normalize", "log1p", "logsumexp", "lower_triangle",
    "map_recomputed", "map_structure", "matmul", "max_pool", "maximum", "mean", "meshgrid", "minimum",
    "name_scope", "newaxis", "one_hot", "ones", "ones_like", "pad", "relu", "repeat", "reshape",
    "rsqrt", "scale_channels", "Shape", "shape", "sigmoid", "softmax", "softmax_cross_entropy", "sqrt",
    "square", "stack", "sum", "take", "Tensor", "tile", "transpose", "unstack", "Variable", "where",
    "with_gradient_of", "zeros", "zeros_like",
]
# fmt: on

# SPDX-License-Identifier: Apache-2.0
"""Max-pooling in windows that are centered on the positions that strides keep."""

from typing import Any

from lambdanet import backend as K
from lambdanet.backend import Shape, Tensor, keras
from lambdanet.core.errors import check_count
from lambdanet.layers.argument_checks import check_scope
from lambdanet.layers.layer import Layer, strided_shape
from lambdanet.ops import kernels


# The name under which it is saved keeps the spelling of the first files.
@keras.saving.register_keras_serializable(
    package="lambdanet", name="CentredMaxPooling2D"
)
class CenteredMaxPooling2D(Layer):
    """The maximum of the window around every position that the strides keep, as PyTorch pads it.

    Output (i, j) is the maximum over what is on the map of the window centered on (strides * i, strides * j).
    TensorFlow's padding "same" begins its first window at the edge where the side of the map is even.

    Input: [b, h, w, c]. Output: [b, h / strides, w / strides, c], rounded up.

    Args:
      pool_size: the side of the window, odd.
      strides: the distance between windows.
      **kwargs: `name`, `dtype` and other arguments of a Keras layer.

    Call arguments:

    * inputs: [b, h, w, c], of any size.

    Raises:
      InputError: for an even window, strides that are not a positive integer, or an input of another rank.

    Example:
      >>> tuple(CenteredMaxPooling2D(3, 2)(keras.ops.zeros([2, 8, 7, 16])).shape)
      (2, 4, 4, 16)
    """

    takes_maps = True

    def __init__(self, pool_size: int = 3, strides: int = 2, **kwargs: Any):
        super().__init__(**kwargs)
        self.pool_size = check_scope(pool_size, "pool_size")
        self.strides = check_count("strides", strides)

    def call(self, inputs: Tensor) -> Tensor:
        reach = self.pool_size // 2
        if kernels.kernels_for_device().repeats_edges:
            surrounded = _repeat_edges(_repeat_edges(inputs, 1, reach), 2, reach)
        else:
            paddings = [[0, 0], [reach, reach], [reach, reach], [0, 0]]
            lowest = K.dtype_min(inputs.dtype)
            surrounded = K.pad(inputs, paddings, constant_values=lowest)
        return K.max_pool(surrounded, self.pool_size, self.strides, "VALID")

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return strided_shape(input_shape, self.strides)


def _repeat_edges(x: Tensor, axis: int, count: int) -> Tensor:
    """Returns a map with its first and last positions along an axis repeated.

    Maxima are the same as with the lowest number around the map: a window centered on the map contains the
    edge whose copies it contains. The range of the numbers is the map's, which 8-bit models need.
    """
    before = x[:, :1] if axis == 1 else x[:, :, :1]
    after = x[:, -1:] if axis == 1 else x[:, :, -1:]
    return K.concatenate([*[before] * count, x, *[after] * count], axis)

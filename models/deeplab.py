# SPDX-License-Identifier: Apache-2.0
"""DeepLabV3+ (Chen et al. 2018) on any network of the zoo, for segmentation."""

from collections.abc import Mapping, Sequence
from typing import Any

from lambdanet import backend as K
from lambdanet.backend import Shape, Tensor, compat, keras
from lambdanet.backend.tensors import sizes
from lambdanet.core.errors import check_count, check_counts, invalid, is_integer
from lambdanet.layers.layer import Layer
from lambdanet.models import names, zoo
from lambdanet.models.layer_builder import LayerBuilder

# The beginning of the names of its own layers, but for the classifier.
HEAD = "deeplab_"
# Of `create_model`, which it sets.
OWN_OPTIONS = {"features_only", "out_levels", "pooling"}


@keras.saving.register_keras_serializable(package="lambdanet")
class ResizeToMatch(Layer):
    """Bilinear interpolation of a map to the size of another: [b, h, w, c] -> [b, h', w', c].

    Input: the list of the map and the other one, [b, h', w', d].
    """

    def call(self, inputs: Sequence[Tensor]) -> Tensor:
        x, other = inputs
        _, height, width, _ = sizes(other)
        return K.cast(K.resize(x, (height, width)), x.dtype)

    def compute_output_shape(self, input_shape: Sequence[Shape]) -> Shape:
        (batch, *_, channels), (_, height, width, _) = input_shape
        return (batch, height, width, channels)


@compat.channels_last()
def create_deeplab(
    backbone: str,
    num_classes: int,
    input_size: int | tuple[int, int] | None = None,
    in_channels: int = 3,
    filters: int = 256,
    low_level_filters: int = 48,
    dilation_rates: Sequence[int] = (6, 12, 18),
    output_stride: int = 16,
    dropout_rate: float = 0.0,
    kernel_regularizer: Any = None,
    batch_norm: Mapping[str, Any] | None = None,
    **options: Any,
) -> keras.Model:
    """Builds a DeepLabV3+: the last map of a backbone at several dilations, and its map at stride 4.

    Args:
      backbone: one of `list_models()`.
      num_classes: the number of logits of a pixel.
      input_size: the side of the images, or (height, width), in pixels; None leaves both open.
      in_channels: the number of channels of the images.
      filters: the channels of the maps of the head.
      low_level_filters: the channels that the map at stride 4 is projected to.
      dilation_rates: the dilations of the 3x3 convolutions on the last map, for `output_stride` 16; the paper
        doubles them for 8.
      output_stride: the stride of the last map, 8, 16 or 32.
      dropout_rate: the rate of dropout before the logits, in [0, 1).
      kernel_regularizer, batch_norm: of every convolution and normalization, as in `create_model`.
      **options: further arguments of `create_model`, such as `weights`, `stochastic_depth_rate`, or `scope`
        of lambda layers.

    Returns:
      A functional model with the name of the backbone: normalized float32 images [b, h, w, in_channels] of
      any size -> float32 logits [b, h, w, num_classes].

    Raises:
      InputError: as `create_model`, a number is not positive, a dilation is there twice, or one of `options`
        is not for it.

    Example:
      >>> model = create_deeplab("lambda_resnet_tiny", num_classes=21)
      >>> tuple(model(keras.ops.zeros([1, 60, 90, 3])).shape)
      (1, 60, 90, 21)
    """
    names.check_model(backbone, "classification")
    num_classes = check_count("num_classes", num_classes)
    check_counts(filters=filters, low_level_filters=low_level_filters)
    for own in OWN_OPTIONS & options.keys():
        raise invalid("an option of create_deeplab", "none that it sets itself", own)
    accepted = "different positive integers, one for each branch"
    rates = dilation_rates if isinstance(dilation_rates, Sequence) else [None]
    are_positive = all(is_integer(rate) and rate > 0 for rate in rates)
    if not are_positive or len({*rates}) != len(rates):
        raise invalid("dilation_rates", accepted, dilation_rates)
    trunk = zoo.create_model(
        backbone,
        input_size=input_size,
        in_channels=in_channels,
        features_only=True,
        output_stride=output_stride,
        kernel_regularizer=kernel_regularizer,
        batch_norm=batch_norm,
        **options,
    )
    builder = LayerBuilder(kernel_regularizer, batch_norm or {}, "relu")

    def convolve(x: Tensor, filters: int, size: int, name: str, rate: int = 1) -> Any:
        name = f"{HEAD}{name}"
        x = builder.convolution(x, filters, size, 1, f"{name}_conv", dilation_rate=rate)
        return builder.norm_act(x, name)

    last = trunk.output["5"]
    branches = [convolve(last, filters, 1, "point")]
    for rate in dilation_rates:
        branches.append(convolve(last, filters, 3, f"dilated{rate}", rate))
    pooled = keras.layers.GlobalAveragePooling2D(keepdims=True, name=f"{HEAD}pool")(
        last
    )
    pooled = convolve(pooled, filters, 1, "pooled")
    branches.append(ResizeToMatch(name=f"{HEAD}pooled_resized")([pooled, last]))
    x = keras.layers.Concatenate(name=f"{HEAD}branches")(branches)
    x = convolve(x, filters, 1, "joined")
    low = trunk.output["2"]
    x = ResizeToMatch(name=f"{HEAD}joined_resized")([x, low])
    low = convolve(low, low_level_filters, 1, "low")
    x = keras.layers.Concatenate(name=f"{HEAD}maps")([x, low])
    x = convolve(x, filters, 3, "refined1")
    x = convolve(x, filters, 3, "refined2")
    logits = builder.classifier(x, num_classes, dropout_rate)
    resize = ResizeToMatch(name="resized", dtype=logits.dtype)
    logits = resize([logits, trunk.input])
    return keras.Model(trunk.input, logits, name=trunk.name)

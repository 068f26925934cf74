# SPDX-License-Identifier: Apache-2.0
"""U-Nets for segmentation (Ronneberger et al. 2015), with any spatial operation at any level.

A network is data: for each level a string with one letter per operation, and for each letter an operation of
`lambdanet.models.spatial_ops`. `("CC", "LL")` is two convolutions, a maximum over 2x2 and two lambda layers.
The pools pad maps whose sides they do not divide, which are cropped on the way up, so images have any size.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from lambdanet import backend as K
from lambdanet.backend import Shape, Tensor, compat, keras
from lambdanet.backend.tensors import ceil_div, per_axis, sizes
from lambdanet.core.errors import InputError, check_count, check_known, invalid
from lambdanet.layers.layer import Layer
from lambdanet.layers.slice_lambda_layer import SliceLambdaLayer
from lambdanet.models.layer_builder import CLASSIFIER, Architecture, LayerBuilder
from lambdanet.models.output_stride import NATIVE
from lambdanet.models.spatial_ops import (
    BlockContext,
    Convolution,
    LambdaOperation,
    PerBlock,
    SpatialOperation,
)

POOLS = {2: keras.layers.MaxPooling2D, 3: keras.layers.MaxPooling3D}
EXPANSIONS = {2: keras.layers.Conv2DTranspose, 3: keras.layers.Conv3DTranspose}


@keras.saving.register_keras_serializable(package="lambdanet")
class CropAndConcatenate(Layer):
    """Joins the channels of a map with those of a larger one, of which the end is left out.

    Input: the list of a map [b, *size, c] and one that is at least as large. Output: [b, *size, c + c'].
    """

    def call(self, inputs: Sequence[Tensor]) -> Tensor:
        x, larger = inputs
        every = [slice(0, n) for n in sizes(x)[1:-1]]
        return K.concatenate([x, larger[(slice(None), *every)]], axis=-1)

    def compute_output_shape(self, input_shape: Sequence[Shape]) -> Shape:
        (*leading, channels), (*_, others) = input_shape
        return (*leading, channels + others)


@dataclasses.dataclass(frozen=True)
class UNet(Architecture):
    """A U-Net as data. Levels are counted from the finest one, number 0.

    Attributes:
      filters: the channels of each level.
      down: for each level a string with one letter per operation on the way down.
      up: the same on the way up, for all levels but the last.
      operations: the operation of each letter; each is followed by a normalization and an activation.
      strides: the factor between two levels along each spatial axis.
      input_size: the side of the images that position tables for a whole map are for, where theirs is open.
      source: the paper that gives the network.
    """

    filters: tuple[int, ...] = (64, 128, 256, 512, 1024)
    down: tuple[str, ...] = ("CC",) * 5
    up: tuple[str, ...] = ("CC",) * 4
    operations: Mapping[str, SpatialOperation] = dataclasses.field(
        default_factory=lambda: {"C": Convolution()}
    )
    strides: tuple[int, ...] = (2, 2)
    input_size: int = 128
    source: str = ""
    task = "segmentation"
    num_classes = 1

    def __post_init__(self) -> None:
        counts = len(self.filters), len(self.down), len(self.up)
        levels = counts[0]
        if counts != (levels, levels, levels - 1):
            accepted = "of one length, but up, which has one less"
            raise invalid("filters, down and up", accepted, counts)
        if len(self.strides) not in POOLS:
            raise invalid("strides", "of two or three axes", self.strides)
        for letter in "".join(self.down + self.up):
            check_known("operation", letter, self.operations)

    @property
    def rank(self) -> int:  # type: ignore[override]
        """The number of spatial axes of its images."""
        return len(self.strides)

    def option_names(self) -> set[str]:
        """The names of the options that a caller may override, as in `ResNet`."""
        letters = set("".join(self.down + self.up))
        names = [self.operations[letter].option_names() for letter in letters]
        return set().union(*names)

    def endpoints(
        self,
        images: Tensor,
        builder: LayerBuilder,
        stochastic_depth_rate: float = 0.0,
        **overrides: Any,
    ) -> dict[str, Any]:
        """Builds the network: [b, *size, c] -> the last map of each level, [b, *size / strides**level, d].

        The levels are "0", "1", and so on. Raises `InputError` for settings that need residual blocks.
        """
        if stochastic_depth_rate or builder.output_stride != NATIVE:
            raise InputError(
                "a U-Net, without residual blocks, takes no stochastic_depth_rate and no output_stride"
            )
        builder = builder.for_network("relu")
        operations = {
            letter: operation.with_options(overrides)
            for letter, operation in self.operations.items()
        }

        def operate(x: Tensor, level: int, way: str, letters: str) -> Tensor:
            filters = self.filters[level]
            for index, letter in enumerate(letters, start=1):
                context = BlockContext(
                    name=f"{way}{level}_{index}",
                    stage=level,
                    index=index,
                    filters=filters,
                    output_filters=filters,
                    strides=1,
                    map_size=ceil_div(self.input_size, max(self.strides) ** level),
                )
                x = operations[letter](builder, x, context)
                x = builder.norm_act(x, f"{context.name}_spatial")
            return x

        maps = [operate(images, 0, "down", self.down[0])]
        for level in range(1, len(self.filters)):
            pool = POOLS[self.rank](self.strides, padding="same", name=f"pool{level}")
            maps.append(operate(pool(maps[-1]), level, "down", self.down[level]))
        for level in reversed(range(len(self.filters) - 1)):
            expand = EXPANSIONS[self.rank](
                self.filters[level],
                self.strides,
                self.strides,
                kernel_regularizer=builder.kernel_regularizer,
                name=f"up{level}_expand",
            )
            join = CropAndConcatenate(name=f"up{level}_join")
            x = join([maps[level], expand(maps[level + 1])])
            maps[level] = operate(x, level, "up", self.up[level])
        return {str(level): x for level, x in enumerate(maps)}

    def embedding(
        self,
        endpoints: dict[str, Any],
        builder: LayerBuilder,
        pooling: str | None = "avg",
    ) -> Tensor:
        """Returns what the logits are made of, the map of the finest level, which is never pooled."""
        if pooling != "avg":
            raise invalid("pooling", "left out with a U-Net", pooling)
        return endpoints["0"]


# Of LambdaUNet: values of depth 32, and one embedding for each of the nearest positions.
HEADS = PerBlock(lambda context: context.filters // 32)
OPTIONS = {"num_heads": HEADS, "intra_depth": 4, "scope": 3, "position_bias": True}
LAMBDA = LambdaOperation(options=OPTIONS)
LAMBDA_LEVELS = ("CC", "LL", "LL", "LL", "LL")

MODELS = {
    # Ronneberger et al. 2015 with normalizations, and with LambdaUNet's layers for one slice.
    "unet_2d": UNet(source="Ronneberger et al. 2015, normalized"),
    "lambda_unet_2d": UNet(
        down=LAMBDA_LEVELS,
        operations={"C": Convolution(), "L": LAMBDA},
        source="Ou et al. 2021, for one slice",
    ),
    # Half as wide, for volumes.
    "unet_3d": UNet(
        (32, 64, 128, 256),
        ("CC",) * 4,
        ("CC",) * 3,
        strides=(2, 2, 2),
        source="Ronneberger et al. 2015, for volumes",
    ),
    "lambda_unet_3d": UNet(
        (32, 64, 128, 256),
        LAMBDA_LEVELS[:4],
        ("CC",) * 3,
        {"C": Convolution(), "L": LAMBDA},
        (2, 2, 2),
        source="Ou et al. 2021, for volumes",
    ),
    # LambdaUNet (Ou et al. 2021): stacks of slices.
    "lambda_unet_2_5d": UNet(
        down=LAMBDA_LEVELS,
        operations={
            "C": Convolution(kernel_size=(1, 3, 3)),
            "L": LambdaOperation(SliceLambdaLayer, OPTIONS),
        },
        strides=(1, 2, 2),
        source="Ou et al. 2021",
    ),
}


@compat.channels_last()
def create_unet(
    network: str | UNet,
    num_classes: int = 1,
    in_channels: int = 3,
    input_size: int | Sequence[int | None] | None = None,
    deep_supervision: bool = False,
    kernel_regularizer: Any = None,
    batch_norm: Mapping[str, Any] | None = None,
    layer_name: str | None = None,
    **overrides: Any,
) -> keras.Model:
    """Builds a U-Net.

    Those with a name are rows of the zoo, which `create_model` builds, too.

    Args:
      network: "unet_2d", "lambda_unet_2d", "unet_3d", "lambda_unet_3d" or "lambda_unet_2_5d" (LambdaUNet, for
        stacks of slices), or a `UNet`.
      num_classes: the number of logits of a position.
      in_channels: the channels of the input.
      input_size: the size of the input, a number for all spatial axes or one for each, in pixels; None: open.
      deep_supervision: whether to return logits of every level on the way up, each at its own resolution.
      kernel_regularizer: the regularizer of every kernel.
      batch_norm: arguments of every batch normalization, over momentum 0.9 and epsilon 1e-5.
      layer_name: the name of the model as a layer of another one, in which names differ; None: that of the
        network, or "unet".
      **overrides: options of the network's layers, such as `scope=(3, 7, 7)` for lambda layers on volumes.

    Returns:
      A functional model: [b, *size, in_channels] -> float32 logits [b, *size, num_classes]; with
      `deep_supervision` {"0": these, "1": [b, *size / strides, num_classes], ...}, sizes rounded up.

    Raises:
      InputError: the network or an override is unknown, a value is out of range, or a stack has fewer slices
        than its lambda layers need.

    Example:
      >>> model = create_unet("lambda_unet_2_5d", num_classes=1, in_channels=2)
      >>> tuple(model(keras.ops.zeros([1, 6, 30, 50, 2])).shape)
      (1, 6, 30, 50, 1)
    """
    name = "unet"
    if not isinstance(network, UNet):
        check_known("U-Net", network, MODELS)
        name, network = network, MODELS[network]
    for override in overrides:
        check_known(f"option of {name}", override, network.option_names())
    if not isinstance(deep_supervision, bool):
        raise invalid("deep_supervision", "True or False", deep_supervision)
    num_classes = check_count("num_classes", num_classes)
    size = per_axis(input_size, network.rank, "input_size")
    for side in size:
        if side is not None:
            check_count("input_size", side)
    inputs = keras.Input(
        [*size, check_count("in_channels", in_channels)], name="images"
    )
    builder = LayerBuilder(kernel_regularizer, batch_norm or {})
    maps = network.endpoints(inputs, builder, **overrides)
    logits = {"0": builder.classifier(maps["0"], num_classes)}
    name = layer_name or name
    if not deep_supervision:
        return keras.Model(inputs, logits["0"], name=name)
    for level in [*maps][1:-1]:
        head = f"{CLASSIFIER}_{level}"
        logits[level] = builder.classifier(maps[level], num_classes, name=head)
    return keras.Model(inputs, logits, name=name)

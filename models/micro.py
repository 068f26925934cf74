# SPDX-License-Identifier: Apache-2.0
"""Networks for pictures of MNIST's size, in which one kind of layer differs.

A convolution with a stride of 4 and six blocks, of which four have the layer that is compared: a
convolution, a lambda layer or attention. The widths of c4 and c5 are chosen such that the networks have equal
parameters within 1 %. Maps have a quarter of the side in c2, so pictures of 28 pixels are for an `input_size`
of 56.
"""

from collections.abc import Mapping
from typing import Any

from lambdanet.layers.halo_attention import HaloAttention, LocalAttention
from lambdanet.models.layer_builder import LayerBuilder
from lambdanet.models.resnet import Bottleneck, ResNet, Stem
from lambdanet.models.spatial_ops import (
    LambdaOperation,
    LayerOperation,
    SpatialOperation,
)

SCOPE: Mapping[str, Any] = {"scope": 7}
HALO: Mapping[str, Any] = {"num_heads": 4, "block_size": 4, "halo_size": 3}
FILTERS = (16, 32, 72, 96)  # of convolutions


def overlapping_patches(
    builder: LayerBuilder, x: Any, filters: int
) -> tuple[None, Any]:
    """A 7x7 convolution with a stride of 4."""
    return None, builder.conv_norm_act(x, filters, 7, 4, "stem")


def _micro(operation: SpatialOperation | None, layer: str, c4: int, c5: int) -> ResNet:
    """Returns a network with an operation in four blocks, or with convolutions alone."""
    blocks = {"C": Bottleneck()}
    stages = "C", "CC", "CC", "C"
    if operation is not None:
        blocks["O"] = Bottleneck(operation)
        stages = "C", "CO", "OO", "O"
    return ResNet(
        stages,
        f"for pictures of MNIST's size, {layer}",
        56,
        blocks,
        Stem(overlapping_patches, 32),
        filters=(*FILTERS[:2], c4, c5),
        output_filters=(32, 64, 128, 256),
    )


MODELS = {
    "resnet_micro": _micro(None, "convolution", *FILTERS[2:]),
    "lambda_resnet_micro": _micro(
        LambdaOperation(options=SCOPE), "lambda layer", 168, 248
    ),
    "lambda_resnet_micro_content": _micro(
        LambdaOperation(options={"position": None}), "content lambdas", 160, 264
    ),
    "lambda_resnet_micro_position": _micro(
        LambdaOperation(options={**SCOPE, "content": False}),
        "position lambdas",
        168,
        264,
    ),
    "halo_resnet_micro": _micro(
        LayerOperation(HaloAttention, HALO, pool_size=0), "halo attention", 104, 160
    ),
    "resnet_micro_local_attention": _micro(
        LayerOperation(LocalAttention, {"num_heads": 4}), "local attention", 104, 160
    ),
}

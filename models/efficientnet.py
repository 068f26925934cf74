# SPDX-License-Identifier: Apache-2.0
"""EfficientNet (Tan & Le 2019) of keras.applications, to compare with.

Its first layer scales images by 1/255, because that library's networks take pixels in 0..255.
"""

import dataclasses
import sys
from typing import Any

from lambdanet.backend import Tensor, keras
from lambdanet.core.errors import InputError
from lambdanet.models.layer_builder import Architecture, LayerBuilder

# The input size, and the width and depth of each stage relative to B0's, as in that library.
VARIANTS = {
    "b0": (224, 1.0, 1.0),
    "b1": (240, 1.0, 1.1),
    "b2": (260, 1.1, 1.2),
    "b3": (300, 1.2, 1.4),
    "b4": (380, 1.4, 1.8),
    "b5": (456, 1.6, 2.2),
    "b6": (528, 1.8, 2.6),
    "b7": (600, 2.0, 3.1),
}

# The layers whose inputs are the endpoints at strides 2, 4, 8 and 16.
ENDPOINT_READERS = {
    "1": "block2a_expand_conv",
    "2": "block3a_expand_conv",
    "3": "block4a_expand_conv",
    "4": "block6a_expand_conv",
}


@dataclasses.dataclass(frozen=True)
class EfficientNet(Architecture):
    """A network of keras.applications."""

    variant: str  # "b0" to "b7"
    input_size: int
    width: float
    depth: float
    source: str = "keras.applications, for comparison"

    def endpoints(
        self,
        images: Tensor,
        builder: LayerBuilder,
        stochastic_depth_rate: float = 0.0,
        **overrides: Any,
    ) -> dict[str, Any]:
        """Builds the trunk; raises `InputError` for a builder with settings, which it cannot apply."""
        if builder != LayerBuilder():
            raise InputError(
                f"efficientnet_{self.variant} is there for comparison as keras.applications makes it: "
                "it takes no kernel_regularizer, batch_norm, activation or output_stride"
            )
        library = sys.modules[keras.applications.EfficientNetB0.__module__]
        trunk = library.EfficientNet(
            self.width,
            self.depth,
            self.input_size,
            include_top=False,
            weights=None,
            input_tensor=images,
            drop_connect_rate=stochastic_depth_rate,
        )
        endpoints = {
            level: trunk.get_layer(name).input
            for level, name in ENDPOINT_READERS.items()
        }
        return {**endpoints, "5": trunk.output}


MODELS = {
    f"efficientnet_{variant}": EfficientNet(variant, *row)
    for variant, row in VARIANTS.items()
}

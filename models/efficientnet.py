# SPDX-License-Identifier: Apache-2.0
"""EfficientNet (Tan & Le 2019), to compare with: the networks are those of tf_keras.applications.

They scale images by 1/255 in their first layer, as that library means them to take pixels.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import tf_keras as keras

from lambdanet.errors import InputError
from lambdanet.models.layer_builder import Parts

INPUT_SIZES = {"b0": 224, "b1": 240, "b2": 260, "b3": 300, "b4": 380, "b5": 456, "b6": 528, "b7": 600}

# The layers that read what is left at strides 4, 8 and 16.
READERS = {"2": "block3a_expand_conv", "3": "block4a_expand_conv", "4": "block6a_expand_conv"}


@dataclasses.dataclass(frozen=True)
class EfficientNet:
    """A network of tf_keras.applications.

    Attributes:
      variant: "b0" to "b7".
      source: where it comes from.
    """

    variant: str
    source: str = "tf_keras.applications, for comparison"

    @property
    def input_size(self) -> int:
        """The side of the square images that it is made for, in pixels."""
        return INPUT_SIZES[self.variant]

    def overrides(self) -> set[str]:
        """No options."""
        return set()

    def endpoints(
        self, images, parts: Parts, stochastic_depth_rate: float = 0.0, **overrides: Any
    ) -> dict[str, Any]:
        """Builds the trunk: images [b, h, w, c] -> {"2": ..., "5": ...} at strides 4, 8, 16 and 32.

        Raises:
          InputError: for a regularizer, arguments of batch normalisation or an activation: it takes none.
        """
        if parts != Parts():
            raise InputError(
                f"efficientnet_{self.variant} is there for comparison as tf_keras.applications makes it: "
                "it takes no kernel_regularizer, no batch_norm and no activation"
            )
        build = getattr(keras.applications, f"EfficientNet{self.variant.upper()}")
        trunk = build(
            include_top=False, weights=None, input_tensor=images, drop_connect_rate=stochastic_depth_rate
        )
        return {**{level: trunk.get_layer(name).input for level, name in READERS.items()}, "5": trunk.output}

    def logits(self, endpoints: Mapping[str, Any], parts: Parts, num_classes: int, dropout_rate: float = 0.0):
        """The classifier: mean over the map, dropout, projection -> float32 [b, num_classes]."""
        return parts.classifier(endpoints["5"], num_classes, dropout_rate)

    def abridged(self) -> tuple["EfficientNet", dict[str, int]]:
        """Returns the network itself; see `ResNet.abridged`."""
        return self, {}


MODELS = {f"efficientnet_{variant}": EfficientNet(variant) for variant in INPUT_SIZES}

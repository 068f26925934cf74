# SPDX-License-Identifier: Apache-2.0
"""The interface between the zoo and its families of networks."""

from collections.abc import Mapping
from typing import Any

from lambdanet.models.layer_builder import LayerBuilder


class Architecture:
    """A network as data, which a `LayerBuilder` turns into layers.

    Attributes:
      source: the table or section that gives the architecture and its size.
      input_size: the side of the square images it is measured at, in pixels.
    """

    source: str
    input_size: int

    def option_names(self) -> set[str]:
        """The names of the layer options that a caller may override."""
        return set()

    def endpoints(
        self, images, builder: LayerBuilder, stochastic_depth_rate: float = 0.0, **overrides: Any
    ) -> dict[str, Any]:
        """Builds the trunk: images [b, h, w, c] -> {"1": ..., "5": ...} at strides 2, 4, 8, 16 and 32.

        Each is the last map at its stride. A network without a map at stride 2 has no "1".
        """
        raise NotImplementedError

    def embedding(self, endpoints: Mapping[str, Any], builder: LayerBuilder, pooling: str | None = "avg"):
        """Builds what the classifier reads: the pooled last map [b, d], or without pooling [b, h, w, d]."""
        return builder.pool(endpoints["5"], pooling)

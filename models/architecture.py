# SPDX-License-Identifier: Apache-2.0
"""What the zoo asks of an architecture, whatever its family."""

from collections.abc import Mapping
from typing import Any, Protocol

from lambdanet.models.layer_builder import Parts


class Architecture(Protocol):
    """A network as data, which builds itself of `Parts`.

    Attributes:
      source: where the architecture and its size come from.
      input_size: the side of the square images it is measured at, in pixels.
    """

    @property
    def source(self) -> str: ...

    @property
    def input_size(self) -> int: ...

    def overrides(self) -> set[str]:
        """The names of the options that a caller may override."""

    def endpoints(
        self, images, parts: Parts, stochastic_depth_rate: float = 0.0, **overrides: Any
    ) -> dict[str, Any]:
        """Builds the trunk: images [b, h, w, c] -> {"2": ..., "5": ...} at strides 4, 8, 16 and 32."""

    def logits(self, endpoints: Mapping[str, Any], parts: Parts, num_classes: int, dropout_rate: float = 0.0):
        """Builds the classifier on the endpoints: float32 [b, num_classes]."""

    def abridged(self) -> tuple["Architecture", dict[str, int]]:
        """Returns a network on which this one can be counted, as `ResNet.abridged` does."""

# SPDX-License-Identifier: Apache-2.0
"""Explanations of trained layers and networks: implied attention maps, Grad-CAM and integrated gradients.

`lambdanet explain` draws them for pictures.
"""

from lambdanet.explain.implied_attention import (
    ImpliedAttention,
    implied_attention,
    position_pictures,
)
from lambdanet.explain.networks import (
    grad_cam,
    implied_attentions,
    integrated_gradients,
)

__all__ = [
    "ImpliedAttention",
    "grad_cam",
    "implied_attention",
    "implied_attentions",
    "integrated_gradients",
    "position_pictures",
]

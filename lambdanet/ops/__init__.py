# SPDX-License-Identifier: Apache-2.0
"""Functions that the layers are made of: position and content lambdas, and softmax attention.

`reference` is the definition of a lambda layer, as the paper writes it; everything else here computes the
same at less cost.
"""

from lambdanet.ops.content_lambdas import KEY_NORMALIZATIONS, apply_content_lambda, content_lambda
from lambdanet.ops.position_lambdas import IMPLEMENTATIONS, apply_position_lambdas

__all__ = [
    "IMPLEMENTATIONS",
    "KEY_NORMALIZATIONS",
    "apply_content_lambda",
    "apply_position_lambdas",
    "content_lambda",
]

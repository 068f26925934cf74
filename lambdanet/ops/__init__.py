# SPDX-License-Identifier: Apache-2.0
"""Operations of the layers: position and content lambdas, and softmax attention.

`reference` defines a lambda layer by the equations of the paper; everything else computes the same at a lower
cost. `kernels` lists the forms of each kind of device.
"""

from lambdanet.ops import reference
from lambdanet.ops.content_lambdas import (
    KEY_NORMALIZATIONS,
    apply_content_lambda,
    content_lambda,
)
from lambdanet.ops.kernels import (
    IMPLEMENTATIONS,
    apply_position_lambdas,
    form_table,
)

__all__ = [
    "IMPLEMENTATIONS",
    "KEY_NORMALIZATIONS",
    "apply_content_lambda",
    "apply_position_lambdas",
    "content_lambda",
    "form_table",
    "reference",
]

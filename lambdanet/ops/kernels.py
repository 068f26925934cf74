# SPDX-License-Identifier: Apache-2.0
"""One table of the operations whose fastest form depends on the device; no other code chooses by device.

`kernels_for_device` returns the row of the device that this process computes on (see
`lambdanet.backend.device`). All forms of an operation have equal values and gradients.
"""

import dataclasses
import operator
from collections.abc import Callable, Sequence
from functools import partial

from lambdanet.backend import Tensor, device
from lambdanet.backend.device import DEVICES, Device
from lambdanet.ops import attention, convolution, local_attention, products
from lambdanet.ops.position_term import Form, Sizes
from lambdanet.ops.tpu import block_diagonal, joint_logits, one_pass, row_convolution
from lambdanet.ops.tpu import products as tpu_products

Candidates = Callable[[Sizes], Sequence[Form]]


@dataclasses.dataclass(frozen=True)
class Kernels:
    """The forms in which one kind of device computes the operations.

    Attributes:
      device: the speed of the device.
      position_lambdas: the functions that return the forms to choose from, by their estimated time.
      attend: softmax attention.
      local_attention: attention in blocks.
      scale_channels: multiplies maps by channel gates.
      normalize: batch normalization that also returns the means of maps; None for two steps.
      repeats_edges: whether max pooling surrounds a map by its edges, instead of the lowest number.
    """

    device: Device
    position_lambdas: tuple[Candidates, ...] = (
        products.candidates,
        convolution.candidates,
    )
    attend: Callable[..., Tensor] = attention.attend
    local_attention: Callable[..., Tensor] = local_attention.attend_by_head
    scale_channels: Callable[[Tensor, Tensor], Tensor] = operator.mul
    normalize: Callable[..., tuple[Tensor, ...]] | None = None
    repeats_edges: bool = False


KERNELS = {
    "CPU": Kernels(DEVICES["CPU"]),
    "RUNTIME": Kernels(DEVICES["RUNTIME"]),
    "RUNTIME_INT8": Kernels(
        device=DEVICES["RUNTIME_INT8"],
        # 8 bits have 256 steps from it to the largest logit; the weight is 1e-13 of another.
        local_attention=partial(local_attention.attend_by_head, hidden=-30.0),
        repeats_edges=True,
    ),
    "GPU": Kernels(DEVICES["GPU"]),
    "TPU": Kernels(
        device=DEVICES["TPU"],
        position_lambdas=(
            block_diagonal.candidates,
            row_convolution.candidates,
            tpu_products.pooled_candidates,
            tpu_products.candidates,
        ),
        attend=partial(attention.attend, fold_means=False),  # the compiler folds them
        local_attention=joint_logits.attend,
        scale_channels=one_pass.scale_channels,
        normalize=one_pass.normalize,
    ),
}


def kernels_for_device() -> Kernels:
    """Returns the kernels of this process's device."""
    return KERNELS[device.kind()]

# SPDX-License-Identifier: Apache-2.0
"""One table of the operations whose fastest form depends on the device; no other code chooses by device.

`current` returns the row of the device that this process computes on (see `lambdanet.backend.device`). All
forms of an operation have equal values and gradients. An `implementation` that is given by name runs the
generic forms on every device.
"""

import dataclasses
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from lambdanet import backend as K
from lambdanet.backend import device
from lambdanet.backend.device import DEVICES, Device
from lambdanet.ops import attention, blocking, contractions, local_attention, relative_positions
from lambdanet.ops.blocking import BlockAxis
from lambdanet.ops.position_term import PositionTerm
from lambdanet.ops.relative_positions import PairAxis
from lambdanet.ops.tpu import block_diagonal, joint_logits, one_pass, row_convolution
from lambdanet.ops.tpu.contractions import lambda_first, query_first
from lambdanet.ops.tpu.table_slices import read_slices
from lambdanet.ops.tpu.windows import multiply_windows


class MapForm(Protocol):
    """A form of the position lambdas of certain maps, which replaces the choice of the cost model there."""

    def is_applicable(self, term: PositionTerm, device: Device) -> bool:
        """Whether the form computes this term, and on this device faster than blocks."""

    def apply(self, term: PositionTerm) -> K.Tensor:
        """Applies the position lambdas and the content of the term: [b, *output_size, h, v]."""


@dataclasses.dataclass(frozen=True)
class Kernels:
    """The forms in which one kind of device computes the operations.

    Attributes:
      device: the speed of the device, for the cost model.
      extract_windows: cuts a map into the windows of its blocks.
      expand_table: turns a relative table into the embeddings of pairs.
      query_first, lambda_first: contract queries, values and embeddings, a chunk of blocks at a time.
      map_forms: forms for certain maps, the first of which that is applicable is taken.
      joins_content: whether position lambdas take the content lambda, at no extra cost.
      attend: softmax attention.
      local_attention: attention in blocks.
      scale_channels: multiplies maps by channel gates.
      normalize: batch normalization that also returns the means of maps; None for two steps.
    """

    device: Device
    extract_windows: Callable[[K.Tensor, Sequence[BlockAxis]], K.Tensor] = blocking.extract_windows
    expand_table: Callable[[K.Tensor, Sequence[PairAxis]], K.Tensor] = relative_positions.expand_table
    query_first: Callable[..., K.Tensor] = partial(contractions.contract, contractions.query_first)
    lambda_first: Callable[..., K.Tensor] = partial(contractions.contract, contractions.lambda_first)
    map_forms: tuple[MapForm, ...] = ()
    joins_content: bool = False
    attend: Callable[..., K.Tensor] = attention.attend
    local_attention: Callable[..., K.Tensor] = local_attention.attend_by_head
    scale_channels: Callable[[K.Tensor, K.Tensor], K.Tensor] = operator.mul
    normalize: Callable[..., tuple[K.Tensor, ...]] | None = None

    def map_form(self, term: PositionTerm) -> MapForm | None:
        """Returns the form for a term; None where the cost model chooses."""
        return next((form for form in self.map_forms if form.is_applicable(term, self.device)), None)


# What a named implementation runs on every device; the device's speed is set in `current`.
GENERIC = Kernels(DEVICES["CPU"])

KERNELS = {
    "CPU": GENERIC,
    "GPU": dataclasses.replace(GENERIC, device=DEVICES["GPU"]),
    "TPU": Kernels(
        device=DEVICES["TPU"],
        extract_windows=partial(blocking.extract_windows, gather=multiply_windows),
        expand_table=partial(relative_positions.expand_table, read_first=read_slices),
        query_first=partial(contractions.contract, query_first),
        lambda_first=lambda_first,
        map_forms=(block_diagonal, row_convolution),
        joins_content=True,  # it fits into tiles that are padded anyway
        attend=partial(attention.attend, fold_means=False),  # the compiler folds them
        local_attention=joint_logits.attend,
        scale_channels=one_pass.scale_channels,
        normalize=one_pass.normalize,
    ),
}


def current(implementation: str = "auto") -> Kernels:
    """Returns the kernels of this process's device.

    Args:
      implementation: with any other than "auto", the generic kernels at the speed of the device, so that a
        form that is asked for by name is the same everywhere.
    """
    kernels = KERNELS[device.kind()]
    return kernels if implementation == "auto" else dataclasses.replace(GENERIC, device=kernels.device)

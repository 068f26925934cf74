# SPDX-License-Identifier: Apache-2.0
"""The form in which each operation is computed on a device; no other code chooses by device.

`kernels_for_device` returns the row of the device that this process computes on (see
`lambdanet.backend.device`). All forms of an operation have equal values and gradients.
`apply_position_lambdas` applies the position lambdas to their queries (Bello 2021, equations 1 and 2): it
chooses one of the forms of the row, by its estimated time, and calls it.
"""

import dataclasses
import functools
import itertools
import logging
import operator
from collections.abc import Callable, Sequence
from typing import Any

from lambdanet import backend as K
from lambdanet.backend import Tensor, device
from lambdanet.backend.device import DEVICES, Device, Speed
from lambdanet.backend.tensors import PerAxis
from lambdanet.core.errors import check_known
from lambdanet.ops import attention, convolution, local_attention, products
from lambdanet.ops.position_term import Form, Geometry, PositionTerm, Sizes, TwoForms
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
        local_attention=functools.partial(local_attention.attend_by_head, hidden=-30.0),
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
        attend=functools.partial(
            attention.attend, fold_means=False
        ),  # the compiler folds them
        local_attention=joint_logits.attend,
        scale_channels=one_pass.scale_channels,
        normalize=one_pass.normalize,
    ),
}


def kernels_for_device() -> Kernels:
    """Returns the kernels of this process's device."""
    return KERNELS[device.kind()]


# Each name -> the forms to choose from for a term of these sizes.
FORMS: dict[str, Callable[[Sizes], Sequence[Form]]] = {
    "einsum": lambda sizes: [products.Product(query_first=False)],
    "query_first": lambda sizes: [products.Product(query_first=True)],
    "blocked": lambda sizes: [
        products.Product(False, block) for block in products.blocks(sizes)
    ],
    "blocked_query_first": lambda sizes: [
        products.Product(True, block) for block in products.blocks(sizes)
    ],
    "conv": lambda sizes: [convolution.Convolution()],
    "depthwise_conv": lambda sizes: [convolution.Convolution(depthwise=True)],
}
IMPLEMENTATIONS = tuple(FORMS)
OF_LAYERS = ("auto", "reference", *IMPLEMENTATIONS)
# Why "auto" chooses its form, and why it does not compare others with it.
REASONS = {
    "auto": "chosen: the least memory of those within the slack of the device",
    "einsum": "not compared: needs a map and a table of known size, and no TPU",
    "query_first": "not compared: needs a map and a table of known size, and no TPU",
    "blocked": "not compared: needs a table of known size, and no TPU",
    "blocked_query_first": "not compared: needs a table of known size, and no TPU",
    "conv": "not compared: needs an image of known size, u = 1, no strides, dilation or pool, and no TPU",
    "depthwise_conv": "not compared: was never the fastest",
}


def apply_position_lambdas(
    queries: Tensor,
    values: Tensor,
    table: Tensor,
    implementation: str = "auto",
    strides: PerAxis = 1,
    dilation: PerAxis = 1,
    block: Sequence[int] | None = None,
    pool_size: PerAxis = 1,
    content: Tensor | None = None,
    training: bool | None = None,
) -> Tensor:
    """Applies the position lambdas of every query position to its queries.

    Args:
      queries: [b, *query_size, h, k], with one to three spatial axes of any size, known or not. Query i
        along an axis is at position `strides * i` of the context.
      values: [b, *context_size, v], or [b, *context_size, v, u].
      table: relative embeddings [r, ..., k], or [r, ..., k, u]: one axis of odd length r per spatial
        axis, for the offsets -(r // 2) ... r // 2 from query to context, in steps of `dilation`.
      implementation: one of `IMPLEMENTATIONS`, which is then the form on every device, or "auto" for the
        one that is fastest on this process's device (see `lambdanet.ops.kernels`).
      strides: the distance between queries, a number or one per axis.
      dilation: the distance between offsets, a number or one per axis.
      block: for the blocked forms, the queries per block along each axis; default: by cost.
      pool_size: the side of the windows over which outputs are averaged, `strides` apart, with "same"
        padding, a number or one per axis. Along an axis with more than 1, there must be a query for every
        position of the context.
      content: a content lambda, [b, k, v], to add to all position lambdas.
      training: False if no gradient is needed, to choose by the time of the forward pass alone.

    Returns:
      [b, *query_size, h, v]; with a pool, one position per window.

    Raises:
      InputError: for an unknown implementation, or a depthwise convolution over three axes.
    """
    check_known("implementation", implementation, ("auto", *IMPLEMENTATIONS))
    if len(values.shape) == len(queries.shape) - 1:  # u = 1 without an axis
        values = values[..., K.newaxis]
        table = table[..., K.newaxis]
    geometry = Geometry(strides, dilation, pool_size)
    term = PositionTerm(
        queries, values, table, geometry, content, training is not False
    )
    return apply_term(term, implementation, block)


def apply_term(
    term: PositionTerm,
    implementation: str = "auto",
    block: Sequence[int] | None = None,
) -> Tensor:
    """Applies position lambdas by the fastest of the forms that `implementation` names.

    Args:
      term: the tensors, and how they are aligned.
      implementation: as in `apply_position_lambdas`, but not checked.
      block: as in `apply_position_lambdas`.

    Returns:
      [b, *output_size, h, v], one position per query or, with a pool, per window.
    """
    kernel = kernels_for_device()
    form = choose_form(term.sizes, implementation, kernel, K.is_compiled_by_xla())
    if (
        block is not None
        and isinstance(form, products.Product)
        and form.block is not None
    ):
        form = dataclasses.replace(form, block=tuple(block))
    return form.apply(term, kernel.device)


@functools.lru_cache(maxsize=4096)
def choose_form(
    sizes: Sizes, implementation: str, kernel: Kernels, by_xla: bool
) -> Form:
    """Returns one of the forms that `implementation` names, by its estimated time and memory.

    Of those whose time is within the slack of the device, it is the one with the least memory.
    """
    speed = kernel.device.speed(sizes.needs_gradient, by_xla)
    candidates = (
        [FORMS[implementation]] if implementation in FORMS else kernel.position_lambdas
    )
    forms = itertools.chain.from_iterable(
        applicable(sizes) for applicable in candidates
    )
    form = choose_fastest(list(forms), sizes, speed, kernel.device)
    logging.getLogger("lambdanet").debug("position lambdas by %s for %s", form, sizes)
    if form.has_fast_gradient or implementation in FORMS:
        return form
    # A gradient may be taken all the same, as by fine-tuning with `training=False`.
    sizes = dataclasses.replace(sizes, needs_gradient=True)
    return TwoForms(form, choose_form(sizes, implementation, kernel, by_xla))


def choose_fastest(
    forms: Sequence[Form], sizes: Sizes, speed: Speed, device: Device
) -> Form:
    """Returns the form with the least memory of those whose time is within the slack of the device."""
    seconds = {form: form.seconds(sizes, speed) for form in forms}
    shortest = min(seconds.values())
    if device.slack == 1.0:
        return next(form for form in forms if seconds[form] == shortest)
    fast = [form for form in forms if seconds[form] <= device.slack * shortest]
    return min(fast, key=lambda form: (form.memory(sizes, device), seconds[form]))


def form_table(**sizes: Any) -> str:
    """Returns a table of the forms of position lambdas: their estimated cost, and why "auto" chooses one.

    Args:
      **sizes: those of `lambdanet.ops.position_term.Sizes`: batch, query_size, context_size, scope, h, k, v,
        and others that differ from its defaults, such as needs_gradient=False.

    Returns:
      A line for each implementation, with its best block. Times are for comparisons, on this process's
      device, or on the one that `lambdanet.backend.device.assume` sets.

    Example:
      >>> size = (28, 28)
      >>> print(form_table(batch=8, query_size=size, context_size=size, scope=(23, 23), h=4, k=16, v=32))
    """
    given = Sizes(**sizes)
    kernel = kernels_for_device()
    by_xla = K.is_compiled_by_xla()
    speed = kernel.device.speed(given.needs_gradient, by_xla)
    compared = [form for forms in kernel.position_lambdas for form in forms(given)]
    lines = []
    for name, reason in REASONS.items():
        form = choose_form(given, name, kernel, by_xla)
        form = getattr(form, "forward", form)  # of `TwoForms`
        if name != "auto" and form in compared:
            reason = "takes longer, or more memory"
        time = 1e3 * form.seconds(given, speed)
        memory = form.memory(given, kernel.device) / 1e6
        lines.append(f"{name:19} {time:9.3g} ms {memory:9.3g} MB  {form}: {reason}")
    return "\n".join(lines)

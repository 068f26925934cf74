# SPDX-License-Identifier: Apache-2.0
"""The kinds of device, their speed, and the kind that this process uses."""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator

from lambdanet import backend as K
from lambdanet.errors import unknown


@dataclasses.dataclass(frozen=True)
class Device:
    """The speed and memory of a kind of device, as the cost model uses them.

    Attributes:
      rate: multiply-adds per second in the matrix products of a forward pass.
      elementwise_rate: numbers per second that products with a sum over k alone can write.
      bandwidth: bytes per second of arrays that a forward pass stores.
      max_intermediate_bytes: the size above which an intermediate result is computed in chunks.
      chunk_bytes: the size of such a chunk.
      tile: the last axis of an array is padded to a multiple of this.
      pools_queries: whether collecting the queries of a pool may take less time than the products it saves.
    """

    rate: float
    elementwise_rate: float
    bandwidth: float
    max_intermediate_bytes: float
    chunk_bytes: float
    tile: int = 1
    pools_queries: bool = False


# CPU: two cores with AVX-512, a least-squares fit to 44 measured forms and blocks on maps of 7 to 64.
# TPU: a v3 core, from its memory bandwidth and the 128 x 128 tiles of its arrays and matrix unit; the choices
# agree with the TPU compiler's own estimates. GPU: in the proportions of an A100, not measured.
DEVICES = {
    "CPU": Device(
        rate=8.5e10, elementwise_rate=1.2e9, bandwidth=2.2e9, max_intermediate_bytes=1.2e8, chunk_bytes=1.2e7
    ),
    "GPU": Device(
        rate=1e13, elementwise_rate=1.5e11, bandwidth=2.5e11, max_intermediate_bytes=1e9, chunk_bytes=2.5e8
    ),
    "TPU": Device(
        rate=1e13,
        elementwise_rate=6e10,
        bandwidth=1.5e11,
        max_intermediate_bytes=1e9,
        chunk_bytes=2.5e8,
        tile=128,
        pools_queries=True,
    ),
}


_assumed: contextvars.ContextVar[str | None] = contextvars.ContextVar("assumed_device_kind", default=None)


def kind() -> str:
    """Returns "TPU", "GPU" or "CPU": the kind in `assume`, or else the fastest that this process can see.

    It is the same for the whole process, also for a layer that is placed on another device.
    """
    if assumed := _assumed.get():
        return assumed
    return next(iter(K.accelerators()), "CPU")


@contextlib.contextmanager
def assume(kind: str) -> Iterator[None]:
    """Makes layers that are traced inside choose the fastest forms on another kind of device, of `DEVICES`.

    Raises:
      InputError: there is no such kind.

    Example:
      >>> with device.assume("TPU"):
      ...     graph = tf.function(model).get_concrete_function(images)
    """
    if kind not in DEVICES:
        raise unknown("kind of device", kind, DEVICES)
    token = _assumed.set(kind)
    try:
        yield
    finally:
        _assumed.reset(token)

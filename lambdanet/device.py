# SPDX-License-Identifier: Apache-2.0
"""The kinds of device, their speed, and the kind that this process computes on."""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator

import tensorflow as tf

from lambdanet.errors import unknown


@dataclasses.dataclass(frozen=True)
class Device:
    """What a forward and backward pass gets out of a kind of device.

    Attributes:
      rate: multiply-adds a second of the forward pass in matrix products.
      results: numbers a second of the forward pass that products which sum over k alone can yield and move.
      bandwidth: bytes of the forward pass a second, for arrays that are stored.
      largest: bytes that an intermediate result may take before it is computed in pieces.
      piece: bytes that it then takes at a time.
      tile: how many numbers the last axis of an array is padded to a multiple of.
    """

    rate: float
    results: float
    bandwidth: float
    largest: float
    piece: float
    tile: int = 1


# CPU: two cores with AVX-512, fitted by least squares to 44 measured forms and blocks on maps of 7 to 64.
# TPU: a v3 core, from its memory bandwidth and the 128 x 128 tiles of its arrays and matrix unit; it makes
# the choices that the TPU compiler's own estimates favour. GPU: in the proportions of an A100, not measured.
DEVICES = {
    "CPU": Device(rate=8.5e10, results=1.2e9, bandwidth=2.2e9, largest=1.2e8, piece=1.2e7),
    "GPU": Device(rate=1e13, results=1.5e11, bandwidth=2.5e11, largest=1e9, piece=2.5e8),
    "TPU": Device(rate=1e13, results=6e10, bandwidth=1.5e11, largest=1e9, piece=2.5e8, tile=128),
}


def tiled(size: int, tile: int = DEVICES["TPU"].tile) -> int:
    """Returns how many numbers the last axis of an array takes in whole tiles; by default those of a TPU."""
    return -(-size // tile) * tile


_assumed: contextvars.ContextVar[str | None] = contextvars.ContextVar("assumed_device_kind", default=None)


def device_kind() -> str:
    """Returns "TPU", "GPU" or "CPU": the kind assumed, or else the fastest that this process can see."""
    if assumed := _assumed.get():
        return assumed
    return next((kind for kind in ("TPU", "GPU") if tf.config.list_logical_devices(kind)), "CPU")


@contextlib.contextmanager
def assume_device(kind: str) -> Iterator[None]:
    """Makes the layers that are traced inside choose what is fastest on a kind of device not at hand.

    Args:
      kind: a key of `DEVICES`.

    Raises:
      InputError: for another kind.

    Example:
      >>> with assume_device("TPU"):
      ...     graph = tf.function(model).get_concrete_function(images)
    """
    if kind not in DEVICES:
        raise unknown("kind of device", kind, DEVICES)
    token = _assumed.set(kind)
    try:
        yield
    finally:
        _assumed.reset(token)

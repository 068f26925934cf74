# SPDX-License-Identifier: Apache-2.0
"""The kinds of device, their speed, and the kind that this process uses."""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator

from lambdanet import backend as K
from lambdanet.errors import check_known


@dataclasses.dataclass(frozen=True)
class Speed:
    """The speed of a kind of device, as forms of an operation estimate their time by it.

    Attributes:
      rate: multiply-adds per second in matrix products.
      elementwise_rate: numbers per second that products with a sum over k alone can write.
      bandwidth: bytes per second of arrays that are stored.
      convolution_rate: multiply-adds per second in convolutions with a large kernel; 1: never chosen.
      tile: the last axis of an array is padded to a multiple of this.
    """

    rate: float
    elementwise_rate: float
    bandwidth: float
    convolution_rate: float = 1.0
    tile: int = 1


@dataclasses.dataclass(frozen=True)
class Device:
    """The speed and memory of a kind of device.

    Attributes:
      training: the speed of a forward and a backward pass, per forward pass.
      inference: the speed of a forward pass alone.
      max_intermediate_bytes: the size above which an intermediate result is computed in chunks.
      chunk_bytes: the size of such a chunk.
    """

    training: Speed
    inference: Speed
    max_intermediate_bytes: float
    chunk_bytes: float

    def speed(self, needs_gradient: bool, by_xla: bool) -> Speed:
        """Returns the speed of the forward pass where it was measured: alone, and not compiled by XLA."""
        return self.training if needs_gradient or by_xla else self.inference

    def chunk(self, count: int, bytes_each: int) -> int | None:
        """Returns how many of `count` intermediate results to compute at a time; None for all."""
        if count == 1 or count * bytes_each <= self.max_intermediate_bytes:
            return None
        return max(1, int(self.chunk_bytes / bytes_each))


# CPU: two cores with AVX-512, least-squares fits to 44 measured forms and blocks on maps of 7 to 64, and 200
# of the forward pass alone on maps of 7 to 96. TPU: a v3 core, from its memory bandwidth and the 128 x 128
# tiles of its arrays and matrix unit; the choices agree with the TPU compiler's own estimates. GPU: in the
# proportions of an A100, not measured. RUNTIME: LiteRT and ONNX Runtime on a CPU, where the convolution took
# 1.3 to 3.4 times as long as products.
_CPU = Speed(rate=8.5e10, elementwise_rate=1.2e9, bandwidth=2.2e9)
_CPU_FORWARD = Speed(rate=1.3e11, elementwise_rate=1.8e9, bandwidth=6.6e9, convolution_rate=1e11)
_GPU = Speed(rate=1e13, elementwise_rate=1.5e11, bandwidth=2.5e11)
_TPU = Speed(rate=1e13, elementwise_rate=6e10, bandwidth=1.5e11, tile=128)
DEVICES = {
    "CPU": Device(_CPU, _CPU_FORWARD, max_intermediate_bytes=1.2e8, chunk_bytes=1.2e7),
    "RUNTIME": Device(_CPU, dataclasses.replace(_CPU_FORWARD, convolution_rate=1.0), 1.2e8, 1.2e7),
    "GPU": Device(_GPU, _GPU, max_intermediate_bytes=1e9, chunk_bytes=2.5e8),
    "TPU": Device(_TPU, _TPU, max_intermediate_bytes=1e9, chunk_bytes=2.5e8),
}


_assumed: contextvars.ContextVar[str | None] = contextvars.ContextVar("assumed_device_kind", default=None)


def kind() -> str:
    """Returns the kind in `assume`, or else the fastest of "TPU", "GPU" and "CPU" that this process can see.

    It is the same for the whole process, also for a layer that is placed on another device.
    """
    return _assumed.get() or next(iter(K.accelerators()), "CPU")


@contextlib.contextmanager
def assume(kind: str) -> Iterator[None]:
    """Makes layers that are traced inside choose the fastest forms on another kind of device, of `DEVICES`.

    "RUNTIME" means the runtimes of exported models on a CPU.

    Raises:
      InputError: there is no such kind.

    Example:
      >>> with device.assume("TPU"):
      ...     graph = tf.function(model).get_concrete_function(images)
    """
    check_known("kind of device", kind, DEVICES)
    token = _assumed.set(kind)
    try:
        yield
    finally:
        _assumed.reset(token)

# SPDX-License-Identifier: Apache-2.0
"""The kinds of device, their speed, and the kind that this process uses."""

import contextlib
import contextvars
import dataclasses
import math
import os
from collections.abc import Iterator

from lambdanet import backend as K
from lambdanet.core import onednn
from lambdanet.core.errors import check_known, invalid


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
      max_lambda_bytes: the size above which position lambdas are computed in chunks.
      max_similarity_bytes: the size above which products of queries and embeddings are computed in chunks.
      chunk_bytes: the size of such a chunk, which should fit into a cache.
      slack: of the forms whose estimated time is at most this many times the shortest, the one with the
        least memory is chosen.
      has_constant_weights: whether graphs for it contain all weights as constants.
    """

    training: Speed
    inference: Speed
    max_lambda_bytes: float
    max_similarity_bytes: float
    chunk_bytes: float
    slack: float = 1.0
    has_constant_weights: bool = False

    def speed(self, needs_gradient: bool, by_xla: bool) -> Speed:
        """Returns the speed of the forward pass where it was measured: alone, and not compiled by XLA."""
        return self.training if needs_gradient or by_xla else self.inference

    def chunk(self, count: int, bytes_each: int, max_bytes: float) -> int | None:
        """Returns how many of `count` intermediate results to compute at a time; None for all.

        All chunks but the last have the same size: 10 results of which 4 fit are computed as 4, 4 and 2.

        Args:
          count: the number of intermediate results.
          bytes_each: the size of one of them.
          max_bytes: the size of all of them that needs no chunks.
        """
        if count == 1 or count * bytes_each <= max_bytes:
            return None
        largest = max(1, int(self.chunk_bytes / bytes_each))
        num_chunks = -(-count // largest)
        return -(-count // num_chunks)


# The rates of a CPU in both passes and in a forward pass, by `python -m benchmarks.rates` on two cores with
# AVX-512 and oneDNN.
_CPU = (
    Speed(rate=5.6e10, elementwise_rate=5.5e8, bandwidth=1.7e9),
    Speed(
        rate=1.6e11, elementwise_rate=1.2e9, bandwidth=5.2e9, convolution_rate=1.3e11
    ),
)
# The same where TensorFlow does not use oneDNN: from the times of an EPYC 7003, which has no AVX-512, and of
# the processor above with TF_ENABLE_ONEDNN_OPTS=0. On both, the choices take at most 1.14 times the shortest
# time.
_CPU_WITHOUT_ONEDNN = (
    Speed(rate=4e10, elementwise_rate=2.4e8, bandwidth=7e8),
    Speed(
        rate=1.1e11, elementwise_rate=3.8e8, bandwidth=1.7e9, convolution_rate=2.8e10
    ),
)
# The same with oneDNN and without AVX-512: from the times of an EPYC 7003 with TF_ENABLE_ONEDNN_OPTS=1. Only
# their ratios are fitted.
_CPU_WITHOUT_AVX512 = (
    Speed(rate=5.6e10, elementwise_rate=1e9, bandwidth=2.6e9),
    Speed(rate=1.6e11, elementwise_rate=1.6e9, bandwidth=8e9, convolution_rate=2e10),
)
# Replaces these rates: those of both passes, and those of a forward pass, in the order of `Speed`.
RATES = "LAMBDANET_CPU_RATES"


def cpu_speeds() -> tuple[Speed, Speed]:
    """Returns the speed of both passes and of a forward pass on this CPU.

    They are those of the environment variable LAMBDANET_CPU_RATES, or else a measured row, chosen by the
    instructions of the processor alone, so that a run can be repeated to the bit.

    Raises:
      InputError: the variable is not eight positive numbers with commas between them.
    """
    text = os.environ.get(RATES)
    if text:
        try:
            rates = [float(number) for number in text.split(",")]
        except ValueError:
            rates = []
        if len(rates) != 8 or min(rates) <= 0:
            raise invalid(
                RATES,
                "eight positive numbers, as `python -m benchmarks.rates` prints them",
                text,
            )
        return _speed(rates[:4]), _speed(rates[4:])
    if K.ENGINE != "tensorflow":
        return _CPU
    if not onednn.is_used():
        return _CPU_WITHOUT_ONEDNN
    instructions = onednn.processor_flags()
    if instructions and "avx512f" not in instructions:
        return _CPU_WITHOUT_AVX512
    return _CPU


def _speed(rates: list[float]) -> Speed:
    rate, elementwise_rate, bandwidth, convolution_rate = rates
    return Speed(rate, elementwise_rate, bandwidth, convolution_rate)


# TPU: a v3 core, from its memory bandwidth and the 128 x 128 tiles of its arrays and matrix unit; the choices
# agree with the TPU compiler's own estimates. GPU: from the times of an H200 on JAX, where the choices take
# at most 1.3 times the shortest time; on torch, the convolution took 1.8 to 5.8 times as long as the choice
# in both passes. RUNTIME: LiteRT and ONNX Runtime on a CPU, where the convolution took 1.3 to 3.4 times as
# long as products.
_RUNTIME = Speed(rate=8.5e10, elementwise_rate=1.2e9, bandwidth=2.2e9)
_RUNTIME_FORWARD = Speed(rate=1.3e11, elementwise_rate=1.8e9, bandwidth=6.6e9)
_GPU = Speed(rate=6e13, elementwise_rate=2.4e11, bandwidth=3e11)
_TPU = Speed(rate=1e13, elementwise_rate=6e10, bandwidth=1.5e11, tile=128)
DEVICES = {
    "CPU": Device(
        *cpu_speeds(), 1.2e8, max_similarity_bytes=6e6, chunk_bytes=6e6, slack=1.05
    ),
    "RUNTIME": Device(
        _RUNTIME,
        _RUNTIME_FORWARD,
        max_lambda_bytes=math.inf,  # LiteRT has no loop over the chunks of an open batch
        max_similarity_bytes=math.inf,
        chunk_bytes=math.inf,
        has_constant_weights=True,
    ),
    "GPU": Device(_GPU, _GPU, 1e9, max_similarity_bytes=1e9, chunk_bytes=2.5e8),
    "TPU": Device(_TPU, _TPU, 1e9, max_similarity_bytes=1e9, chunk_bytes=2.5e8),
}
# The same forms, in which no number is so far from the others that 8 bits lose these.
DEVICES["RUNTIME_INT8"] = DEVICES["RUNTIME"]


_assumed: contextvars.ContextVar[str | None] = contextvars.ContextVar(
    "assumed_device_kind", default=None
)


def kind() -> str:
    """Returns the kind in `assume`, or else the fastest of "TPU", "GPU" and "CPU" that this process can see.

    It is the same for the whole process, also for a layer that is placed on another device.
    """
    return _assumed.get() or next(iter(K.accelerators()), "CPU")


def num_devices() -> int:
    """Returns the number of devices that each batch is divided between, by data parallelism on JAX."""
    parallel = K.keras.distribution
    distribution = parallel.distribution() if K.ENGINE == "jax" else None
    if not isinstance(distribution, parallel.DataParallel):
        return 1
    return distribution.device_mesh.devices.size


@contextlib.contextmanager
def assume(kind: str) -> Iterator[None]:
    """Makes layers that are traced inside choose the fastest forms on another kind of device, of `DEVICES`.

    "RUNTIME" means the runtimes of exported models on a CPU, "RUNTIME_INT8" these with 8-bit activations.

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

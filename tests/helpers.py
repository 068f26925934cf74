# SPDX-License-Identifier: Apache-2.0
"""Helpers shared by tests: random arrays, and programs run in subprocesses."""

import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from engines import ENGINES, xla_flags  # noqa: F401
from numpy.random import default_rng
from numpy.testing import assert_allclose
from PIL import Image
from processes import program  # noqa: F401
from source_tree import ROOT  # noqa: F401


def images(*shape: int, seed: int = 0) -> tf.Tensor:
    """Returns normally distributed float32 values."""
    return tf.constant(default_rng(seed).normal(size=shape), tf.float32)


def noise(*shape: int) -> np.ndarray:
    """Returns uniformly distributed uint8 values."""
    return default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def with_gradients(
    function: Callable[..., Any],
    inputs: Sequence[tf.Tensor],
    loss: Callable[..., tf.Tensor] = tf.sin,
) -> list[tf.Tensor]:
    """Returns the outputs of a function, and the gradients of the sum of their losses by the inputs."""
    with tf.GradientTape() as tape:
        # Variables are watched anyway.
        tape.watch([x for x in inputs if isinstance(x, tf.Tensor)])
        outputs = tf.nest.flatten(function(*inputs))
        total = tf.add_n([tf.reduce_sum(loss(output)) for output in outputs])
    return [*outputs, *tape.gradient(total, inputs)]


def assert_equal_with_gradients(
    function: Callable[..., Any],
    expected: Callable[..., Any],
    inputs: Sequence[tf.Tensor],
    tolerance: float,
) -> None:
    """Asserts that two functions have equal outputs and gradients."""
    found = with_gradients(function, inputs)
    assert_equal_arrays(found, with_gradients(expected, inputs), tolerance, tolerance)


def assert_equal_arrays(
    arrays: Iterable[Any], expected: Iterable[Any], rtol: float = 0, atol: float = 0
) -> None:
    """Asserts that two sequences of arrays are equal, array by array and exactly."""
    for number, (a, b) in enumerate(zip(arrays, expected, strict=True)):
        assert_allclose(a, b, rtol, atol, err_msg=f"array {number}")


def assert_equal_batches(batches: Iterable[Any], expected: Iterable[Any]) -> None:
    """Asserts that two sequences of batches have the same arrays."""
    for batch, other in zip(batches, expected, strict=True):
        assert_equal_arrays(batch, other)


def assert_close(found: Any, expected: Any, tolerance: float) -> None:
    """Asserts that numbers differ by at most a tolerance, and the same share of the expected ones."""
    assert_allclose(found, expected, tolerance, tolerance)


def assert_near(found: Any, expected: Any, tolerance: float) -> None:
    """Asserts that numbers differ by at most a share of the largest one."""
    atol = tolerance * np.abs(expected).max()
    assert_allclose(found, expected, rtol=0, atol=atol)


def reloaded(model: Any, folder: Path, x: Any = None) -> Any:
    """Saves a model, and returns what Keras loads; asserts that it has the same outputs of `x`, if given."""
    model.save(folder / "model.keras")
    loaded = keras.models.load_model(folder / "model.keras")
    if x is not None:
        np.testing.assert_array_equal(loaded(x), model(x))
    return loaded


def relative_error(x: Any, expected: Any) -> float:
    """Returns the norm of the difference, relative to the norm of the expected values, in float64."""
    x, expected = (np.asarray(tf.cast(array, tf.float64)) for array in (x, expected))
    return float(np.linalg.norm(x - expected) / np.linalg.norm(expected))


def product_error(dtype: str) -> float:
    """Returns the error of a plain product of matrices in a precision, which depends on the processor.

    In bfloat16 it is 0.0017 where the processor has instructions for it, and 0.0033 where TensorFlow drops
    the last bits of sums instead of rounding them.
    """
    random = default_rng(0)
    a, b = (tf.constant(random.normal(size=[64, 64]), dtype) for _ in range(2))
    return relative_error(
        tf.matmul(a, b), tf.matmul(tf.cast(a, "float64"), tf.cast(b, "float64"))
    )


def randomize_normalizations(model: Any) -> Any:
    """Draws scales, shifts and statistics, so that no branch is zero and the outputs depend on the images.

    Returns:
      The model.
    """
    random = default_rng(0)
    limits = {
        "gamma": (0.5, 1.5),
        "beta": (-0.1, 0.1),
        "mean": (-0.1, 0.1),
        "variance": (0.5, 1.5),
    }
    for variable in model.variables:
        for kind, (low, high) in limits.items():
            if variable.name.removesuffix(":0").endswith(kind):
                variable.assign(random.uniform(low, high, variable.shape))
    return model


def damage_record(path: Path, number: int, byte: int = 12) -> None:
    """Inverts a byte of a record in a TFRecord file: 0 to 7 are its length, 8 to 11 a checksum, then data."""
    contents, begin = bytearray(path.read_bytes()), 0
    for _ in range(number):
        begin += 8 + 4 + int.from_bytes(contents[begin : begin + 8], "little") + 4
    contents[begin + byte] ^= 0xFF
    path.write_bytes(contents)


def smooth_picture(height: int, width: int, channels: int) -> np.ndarray:
    """Returns a picture without symmetry that JPEG and lossy WebP roughly preserve."""
    y, x = np.mgrid[:height, :width] / height
    planes = [
        127 + 100 * np.sin(2 * (y + k) + (3 + k) * x * x) for k in range(channels)
    ]
    return np.stack(planes, -1).astype(np.uint8)


def write_picture(path: Path, pixels: Any) -> Path:
    """Writes a picture, and the folders above it, and returns its path.

    Args:
      path: the file; its ending is the format.
      pixels: values [h, w, 3], or a color for a picture of 8x8 pixels.
    """
    pixels = np.asarray(pixels, np.uint8)
    if pixels.ndim == 1:
        pixels = np.tile(pixels, (8, 8, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def idx(array: np.ndarray) -> bytes:
    """Returns the bytes of a file of an array, as the format is described on MNIST's page."""
    head = struct.pack(">HBB", 0, 8, array.ndim)
    return head + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()

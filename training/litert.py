# SPDX-License-Identifier: Apache-2.0
"""Writes a classifier for LiteRT, the runtime of phones and small devices, and checks what it gives there."""

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf
import tf_keras as keras

from lambdanet.errors import InputError
from lambdanet.training import data, staging
from lambdanet.training import model_dir as model_dirs
from lambdanet.training.assemble import build_model

MODEL, CLASSES = "model.tflite", "class_names.txt"
TRIALS = 4  # images on which the two are compared
TOLERANCE = 1e-3  # of the spread of the logits, in float32

Logits = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Check:
    """How a LiteRT model stands to the Keras model, on images of noise.

    Attributes:
      difference: the largest between two logits.
      spread: the standard deviation of the Keras model's logits.
      same: images, of `images`, for which both have the same first class.
    """

    difference: float
    spread: float
    same: int
    images: int

    def __str__(self) -> str:
        return (
            f"largest difference from the Keras model: {self.difference:.2g} in logits that spread by "
            f"{self.spread:.2g}; the first class is the same for {self.same} of {self.images} images"
        )


def export(model_dir: str | Path, out: str | Path, data_dir: str | None = None, int8: bool = False) -> Check:
    """Exports the model trained in `model_dir` for LiteRT, to a folder with what `write` writes.

    Args:
      model_dir: a folder that `lambdanet train` has written, with at least one checkpoint.
      out: the folder to write; it must not exist yet, or be empty.
      data_dir: as training had it; needed only where `model_dir` does not hold the names of the classes.
      int8: whether weights become 8-bit integers.

    Returns:
      How the model stands to the Keras model.

    Raises:
      InputError: there is no trained model in `model_dir`, it cannot be converted, or `out` is taken or
        cannot be written.

    Example:
      >>> export("runs/digits", "exported/digits_litert").difference
    """
    staging.refuse_taken(out)
    model, recipe = model_dirs.load_trained_model(model_dir)
    names = model_dirs.class_names(model_dir) or data.class_names(recipe, data_dir)
    if recipe.mixed_precision:
        weights = model.get_weights()
        model = build_model(dataclasses.replace(recipe, mixed_precision=False))
        model.set_weights(weights)
    with staging.staged(staging.absolute(out)) as folder:
        check = write(model, folder, recipe.input_size, recipe.mean, recipe.std, names, int8)
    print(f"exported {recipe.model} ({len(names)} classes, {recipe.input_size} px) to {Path(out, MODEL)}")
    print(check)
    return check


def write(
    model: keras.Model,
    out: str | Path,
    input_size: int,
    mean: Sequence[float],
    std: Sequence[float],
    class_names: Sequence[str],
    int8: bool = False,
) -> Check:
    """Writes `model.tflite` and `class_names.txt`, once LiteRT's interpreter has run the first.

    The model takes `images`, uint8 [1, input_size, input_size, 3], RGB, cropped and resized before, and gives
    `logits` and `probabilities`, float32 [1, num_classes].

    Args:
      model: float32 images [b, input_size, input_size, c], normalised -> logits [b, num_classes].
      out: a folder that exists.
      input_size: side of the square the model sees, in pixels.
      mean: mean of each channel, of pixels in 0..1; with a single one, pictures become grey.
      std: standard deviation of each channel, of pixels in 0..1.
      class_names: one name per class, in the order of the logits.
      int8: whether the weights of convolutions and matrix products become 8-bit integers: a quarter of the
        size; activations stay in float32.

    Raises:
      InputError: the model has operations that LiteRT lacks, or gives something else there than in Keras.
    """

    @tf.function(
        input_signature=[tf.TensorSpec([1, input_size, input_size, 3], tf.uint8, name="images")],
        autograph=False,
    )
    def classify(images: tf.Tensor) -> dict[str, tf.Tensor]:
        pixels = tf.cast(images, tf.float32) / 255.0
        if len(mean) == 1:
            pixels = tf.reduce_sum(pixels * tf.constant([0.2989, 0.587, 0.114]), axis=-1, keepdims=True)
        normal = (pixels - tf.constant(mean, tf.float32)) / tf.constant(std, tf.float32)
        logits = tf.cast(model(normal, training=False), tf.float32)
        return {"logits": logits, "probabilities": tf.nn.softmax(logits)}

    content = _convert(classify, model, int8)
    check = _compare(lambda images: classify(tf.constant(images))["logits"].numpy(), content, input_size)
    if not int8 and not check.difference <= TOLERANCE * check.spread:
        raise InputError(f"model {model.name!r} cannot be written for LiteRT: {check}")
    Path(out, MODEL).write_bytes(content)
    Path(out, CLASSES).write_text("".join(f"{name}\n" for name in class_names), encoding="utf-8")
    return check


def _convert(function: tf.types.experimental.PolymorphicFunction, model: keras.Model, int8: bool) -> bytes:
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function.get_concrete_function()], model)
    if int8:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    with _hidden_stderr():
        try:
            return converter.convert()
        except Exception as error:  # the converter's own, and what MLIR raises
            reason = " ".join(str(error).split())
    raise InputError(f"model {model.name!r} cannot be written for LiteRT: {reason[:300]}")


def _compare(in_keras: Logits, content: bytes, input_size: int) -> Check:
    """Runs both on the same images."""
    with _hidden_stderr():
        from ai_edge_litert.interpreter import Interpreter

        run = Interpreter(model_content=content).get_signature_runner()
    random = np.random.default_rng(0)
    shape = (TRIALS, 1, input_size, input_size, 3)
    images = random.integers(0, 256, shape, dtype=np.uint8)
    expected = np.concatenate([in_keras(image) for image in images])
    found = np.concatenate([run(images=image)["logits"] for image in images])
    return Check(
        float(np.abs(expected - found).max()),
        float(expected.std()),
        int(np.sum(expected.argmax(-1) == found.argmax(-1))),
        TRIALS,
    )


@contextlib.contextmanager
def _hidden_stderr() -> Iterator[None]:
    """Keeps off the screen what the converter and the interpreter write past Python."""
    with tempfile.TemporaryFile() as sink:
        before = os.dup(2)
        os.dup2(sink.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(before, 2)
            os.close(before)

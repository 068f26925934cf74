# SPDX-License-Identifier: Apache-2.0
"""Writes a classifier for runtimes other than TensorFlow, LiteRT and ONNX, and checks what it gives there."""

import contextlib
import dataclasses
import functools
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from lambdanet.errors import InputError, unknown
from lambdanet.models.preprocessing import Preprocessing
from lambdanet.training import data, staging
from lambdanet.training import model_dir as model_dirs
from lambdanet.training.export import in_float32

CLASSES = "class_names.txt"
TRIALS = 4  # images on which the two are compared
TOLERANCE = 1e-3  # of the spread of the logits, in float32
OPSET = 17  # of ONNX

Function = Any  # what `tf.function` returns
Logits = Callable[[np.ndarray], np.ndarray]  # uint8 [1, h, w, 3] -> [1, num_classes]


@dataclasses.dataclass(frozen=True)
class Check:
    """How a converted model stands to the Keras model, on images of noise.

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


def export(
    model_dir: str | Path, out: str | Path, data_dir: str | None = None, format: str = "litert"
) -> Check:
    """Exports the model trained in `model_dir`, to a folder with what `write` writes.

    Args:
      model_dir: a folder that `lambdanet train` has written, with at least one checkpoint.
      out: the folder to write; it must not exist yet, or be empty.
      data_dir: as training had it; needed only where `model_dir` does not hold the names of the classes.
      format: of `FORMATS`.

    Returns:
      How the model stands to the Keras model.

    Raises:
      InputError: there is no trained model in `model_dir`, it cannot be converted, or `out` is taken or
        cannot be written.

    Example:
      >>> export("runs/digits", "exported/digits_litert").difference
    """
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    staging.refuse_taken(out)
    model, recipe = model_dirs.load_trained_model(model_dir)
    names = model_dirs.class_names(model_dir) or data.class_names(recipe, data_dir)
    model = in_float32(model)
    with staging.staged(staging.absolute(out)) as folder:
        check = write(model, folder, recipe.input_size, recipe.mean, recipe.std, names, format)
    file = Path(out, FORMATS[format].file)
    print(f"exported {recipe.model} ({len(names)} classes, {recipe.input_size} px) to {file}")
    print(check)
    return check


def write(
    model: keras.Model,
    out: str | Path,
    input_size: int,
    mean: Sequence[float],
    std: Sequence[float],
    class_names: Sequence[str],
    format: str = "litert",
) -> Check:
    """Writes the model and `class_names.txt`, once the other runtime has run the first.

    The model takes `images`, uint8 [1, input_size, input_size, 3], RGB, cropped and resized before, and gives
    `logits` and `probabilities`, float32 [1, num_classes].

    Args:
      model: float32 images [b, input_size, input_size, c], normalised -> logits [b, num_classes].
      out: a folder that exists.
      input_size: side of the square the model sees, in pixels.
      mean: mean of each channel, of pixels in 0..1; with a single one, pictures become grey.
      std: standard deviation of each channel, of pixels in 0..1.
      class_names: one name per class, in the order of the logits.
      format: "litert"; "litert_int8", in which the weights of convolutions and matrix products are 8-bit
        integers: a quarter of the size; or "onnx".

    Raises:
      InputError: the model has operations that the runtime lacks, or gives something else there than in
        Keras; or the runtime is not installed.
    """
    chosen = FORMATS[format]
    classify = _classifier(model, input_size, mean, std)
    try:
        with _quiet():
            content = chosen.convert(classify, model)
            check = _compare(classify, chosen.load(content), input_size)
    except ModuleNotFoundError as error:
        raise InputError(f"format {format!r} needs {error.name}; pip install {chosen.packages!r}") from None
    except Exception as error:  # whatever a converter or a runtime raises
        reason = " ".join(str(error).split())
        raise InputError(f"model {model.name!r} cannot be written as {format}: {reason[:300]}") from None
    if chosen.exact and not check.difference <= TOLERANCE * check.spread:
        raise InputError(f"model {model.name!r} cannot be written as {format}: {check}")
    Path(out, chosen.file).write_bytes(content)
    Path(out, CLASSES).write_text("".join(f"{name}\n" for name in class_names), encoding="utf-8")
    return check


def _classifier(model: keras.Model, input_size: int, mean: Sequence[float], std: Sequence[float]) -> Function:
    normalise = Preprocessing(input_size, tuple(mean), tuple(std)).normalise

    @tf.function(
        input_signature=[tf.TensorSpec([1, input_size, input_size, 3], tf.uint8, name="images")],
        autograph=False,
    )
    def classify(images: tf.Tensor) -> dict[str, tf.Tensor]:
        pixels = tf.cast(images, tf.float32) / 255.0
        if len(mean) == 1:
            pixels = tf.reduce_sum(pixels * tf.constant([0.2989, 0.587, 0.114]), axis=-1, keepdims=True)
        logits = tf.cast(model(normalise(pixels), training=False), tf.float32)
        return {"logits": logits, "probabilities": tf.nn.softmax(logits)}

    return classify


def _compare(classify: Function, run: Logits, input_size: int) -> Check:
    """Runs both on the same images."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (TRIALS, 1, input_size, input_size, 3), dtype=np.uint8)
    expected = np.concatenate([classify(tf.constant(image))["logits"].numpy() for image in images])
    found = np.concatenate([run(image) for image in images])
    return Check(
        float(np.abs(expected - found).max()),
        float(expected.std()),
        int(np.sum(expected.argmax(-1) == found.argmax(-1))),
        TRIALS,
    )


def _to_litert(function: Function, model: keras.Model, int8: bool) -> bytes:
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function.get_concrete_function()], model)
    if int8:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    return converter.convert()


def _in_litert(content: bytes) -> Logits:
    from ai_edge_litert.interpreter import Interpreter

    run = Interpreter(model_content=content).get_signature_runner()
    return lambda image: run(images=image)["logits"]


def _to_onnx(function: Function, model: keras.Model) -> bytes:
    import tf2onnx

    del model  # the function has its weights
    converted, _ = tf2onnx.convert.from_function(function, function.input_signature, opset=OPSET)
    return converted.SerializeToString()


def _in_onnx(content: bytes) -> Logits:
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return lambda image: session.run(["logits"], {"images": image})[0]


@dataclasses.dataclass(frozen=True)
class Format:
    """A file of another runtime.

    Attributes:
      file: its name.
      exact: whether it computes what Keras does, but for rounding.
      packages: what pip installs for it.
      convert: from the function, and the model that holds its variables, makes the content of the file.
      load: from the content, makes what gives logits.
    """

    file: str
    exact: bool
    packages: str
    convert: Callable[[Function, keras.Model], bytes]
    load: Callable[[bytes], Logits]


FORMATS = {
    "litert": Format(
        "model.tflite", True, "ai-edge-litert", functools.partial(_to_litert, int8=False), _in_litert
    ),
    "litert_int8": Format(
        "model.tflite", False, "ai-edge-litert", functools.partial(_to_litert, int8=True), _in_litert
    ),
    "onnx": Format("model.onnx", True, "lambdanet[onnx]", _to_onnx, _in_onnx),
}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps off the screen what converters and runtimes log, and what they write past Python."""
    with tempfile.TemporaryFile() as sink:
        before = os.dup(2)
        os.dup2(sink.fileno(), 2)
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
            os.dup2(before, 2)
            os.close(before)

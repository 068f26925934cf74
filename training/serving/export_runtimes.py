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
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tf_keras as keras
from tqdm import tqdm

from lambdanet import files
from lambdanet.configs.recipe import Recipe
from lambdanet.errors import InputError, one_line, unknown
from lambdanet.models.preprocessing.preprocessing import Preprocessing
from lambdanet.training.data import folder, preprocess, records, sources
from lambdanet.training.data.bad_records import drop_unreadable
from lambdanet.training.data.dataset import Dataset
from lambdanet.training.data.shards import Shard
from lambdanet.training.run import model_dir as model_dirs
from lambdanet.training.serving.export import in_float32

CLASSES = "class_names.txt"
NUM_PICTURES = 64  # on which the two are compared
NUM_PARTS = 8  # of the evaluation split, from which they are taken
TOLERANCE = 1e-3  # of the spread of the logits, in float32
OPSET = 17  # of ONNX

Function = Any  # what `tf.function` returns
# uint8 [1, h, w, 3] -> "logits" and "probabilities", [1, num_classes].
Runner = Callable[[np.ndarray], dict[str, np.ndarray]]


class Pictures(NamedTuple):
    """Pictures on which two models are compared.

    Attributes:
      images: uint8 [n, input_size, input_size, 3].
      name: what they are, such as "pictures of digits test".
    """

    images: np.ndarray
    name: str


@dataclasses.dataclass(frozen=True)
class Check:
    """A comparison of a converted model with the Keras model.

    Attributes:
      pictures: the name of the pictures on which they were compared.
      images: how many there are.
      same: how many of them have the same first class in both models.
      probability_difference: the largest between two probabilities.
      difference: the largest between two logits.
      spread: the standard deviation of the Keras model's logits.
    """

    pictures: str
    images: int
    same: int
    probability_difference: float
    difference: float
    spread: float

    def __str__(self) -> str:
        return (
            f"compared with Keras on {self.images} {self.pictures}: the first class is the same for "
            f"{self.same}, the largest difference is {self.probability_difference:.2g} in probabilities and "
            f"{self.difference:.2g} in logits that spread by {self.spread:.2g}"
        )


def export(
    model_dir: str | Path, out: str | Path, data_dir: str | None = None, format: str = "litert"
) -> Check:
    """Exports the model trained in `model_dir`, to a folder with what `write` writes.

    The two models are compared on `NUM_PICTURES` pictures, spread over the recipe's `eval_split`. Where these
    are not on disk, random ones do instead, and a line says why.

    Args:
      model_dir: a folder that `lambdanet train` has written, with at least one checkpoint.
      out: the folder to write; it must not exist yet, or be empty.
      data_dir: where TFDS keeps its datasets, or the pictures of dataset `folder`; None: as in training. If
        given, the pictures must be there.
      format: of `FORMATS`.

    Returns:
      The comparison with the Keras model.

    Raises:
      InputError: there is no trained model in `model_dir`, it cannot be converted, the pictures are not in
        the `data_dir` given, or `out` is taken or cannot be written.

    Example:
      >>> export("runs/digits", "exported/digits_litert").difference
    """
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    files.check_output_dir(out)
    model, recipe = model_dirs.load_trained_model(model_dir)
    names = model_dirs.class_names(model_dir) or Dataset.open(recipe, data_dir).class_names
    model = in_float32(model)
    pictures = _find_pictures(model_dir, recipe, data_dir)
    with files.atomic_dir(files.absolute(out)) as partial:
        check = write(model, partial, recipe.input_size, recipe.mean, recipe.std, names, format, pictures)
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
    pictures: Pictures | None = None,
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
        integers: a quarter of the size (what lies between stays in float32, so that no pictures are needed to
        calibrate it); or "onnx".
      pictures: on which the two models are compared; default: random ones.

    Returns:
      The comparison with the Keras model.

    Raises:
      InputError: the model has operations that the runtime lacks, or gives something else there than in
        Keras; or the runtime is not installed.
    """
    chosen = FORMATS[format]
    classify = _classifier(model, input_size, mean, std)
    pictures = pictures or _random_pictures(input_size)
    try:
        with _quiet():
            content = chosen.convert(classify, model)
            run = chosen.load(content)
            run(pictures.images[:1])  # runtimes log when they first run
        check = _compare(classify, run, pictures)
    except ModuleNotFoundError as error:
        raise InputError(f"format {format!r} needs {error.name}; pip install {chosen.packages!r}") from None
    except Exception as error:  # whatever a converter or a runtime raises
        reason = one_line(error)
        raise InputError(f"model {model.name!r} cannot be written as {format}: {reason[:300]}") from None
    if chosen.exact and not check.difference <= TOLERANCE * check.spread:
        raise InputError(f"model {model.name!r} cannot be written as {format}: {check}")
    Path(out, chosen.file).write_bytes(content)
    Path(out, CLASSES).write_text("".join(f"{name}\n" for name in class_names), encoding="utf-8")
    return check


def _classifier(model: keras.Model, input_size: int, mean: Sequence[float], std: Sequence[float]) -> Function:
    normalise = Preprocessing(input_size, tuple(mean), tuple(std)).normalize

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


def _find_pictures(model_dir: str | Path, recipe: Recipe, data_dir: str | None) -> Pictures:
    """Returns pictures of the evaluation; without a `data_dir`, random ones where they cannot be read."""
    try:
        return evaluation_pictures(recipe, model_dirs.find_data_dir(model_dir, data_dir))
    except (InputError, OSError) as error:
        if data_dir is not None:
            raise
        print(f"no pictures of {recipe.dataset} {recipe.eval_split} to compare on: {error}")
        return _random_pictures(recipe.input_size)


def evaluation_pictures(recipe: Recipe, data_dir: str | None) -> Pictures:
    """Reads pictures from several parts of the evaluation split, which may be in the order of its classes.

    Args:
      recipe: names the dataset and the split, and the size of the pictures.
      data_dir: as `data.load` takes it; nothing is downloaded.

    Returns:
      `NUM_PICTURES` pictures, fewer where the split has fewer, without those that cannot be decoded.

    Raises:
      InputError: they are not on disk, or cannot be read.
    """
    split, name = recipe.eval_split, f"pictures of {recipe.dataset} {recipe.eval_split}"
    if recipe.dataset not in (folder.NAME, records.NAME):
        path = sources.open_tfds(recipe.dataset, data_dir).data_path
        if not path.exists():  # reading it would first download it
            raise InputError(f"dataset {recipe.dataset} is not on disk: {str(path)!r} does not exist")
    source = Dataset.open(recipe, data_dir).source
    square = preprocess.of_recipe(recipe).square

    def prepare(example: sources.Example) -> tf.Tensor:
        pixels = square(source.image(example).whole())
        return tf.cast(tf.round(255.0 * pixels), tf.uint8)

    num_shares = max(1, source.num_examples(split) * NUM_PARTS // NUM_PICTURES)
    chosen = sorted({num_shares * part // NUM_PARTS for part in range(NUM_PARTS)})
    parts = [source.examples(split, None, Shard(index, num_shares)) for index in chosen]
    examples = drop_unreadable(functools.reduce(tf.data.Dataset.concatenate, parts))
    images = list(examples.map(prepare).ignore_errors().take(NUM_PICTURES).as_numpy_iterator())
    if not images:
        raise InputError(f"none of the {name} can be read")
    shape = (len(images), recipe.input_size, recipe.input_size, 3)
    return Pictures(np.broadcast_to(images, shape), name)  # gray becomes RGB


def _random_pictures(input_size: int) -> Pictures:
    random = np.random.default_rng(0)
    shape = (NUM_PICTURES, input_size, input_size, 3)
    return Pictures(random.integers(0, 256, shape, dtype=np.uint8), "random pictures")


def _compare(classify: Function, run: Runner, pictures: Pictures) -> Check:
    """Runs both models on the same pictures."""
    expected, found = [], []
    for image in tqdm(pictures.images[:, np.newaxis], "comparing with Keras", disable=None, leave=False):
        expected.append(classify(tf.constant(image)))
        found.append(run(image))
    logits, probabilities = (
        [np.concatenate([one[name] for one in outputs]) for outputs in (expected, found)]
        for name in ("logits", "probabilities")
    )
    return Check(
        pictures.name,
        len(pictures.images),
        int(np.sum(logits[0].argmax(-1) == logits[1].argmax(-1))),
        float(np.abs(probabilities[0] - probabilities[1]).max()),
        float(np.abs(logits[0] - logits[1]).max()),
        float(logits[0].std()),
    )


def _to_litert(function: Function, model: keras.Model, int8: bool) -> bytes:
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function.get_concrete_function()], model)
    if int8:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    return converter.convert()


def _in_litert(content: bytes) -> Runner:
    from ai_edge_litert.interpreter import Interpreter

    run = Interpreter(model_content=content).get_signature_runner()
    return lambda image: run(images=image)


def _to_onnx(function: Function, model: keras.Model) -> bytes:
    import tf2onnx

    del model  # the function has its weights
    converted, _ = tf2onnx.convert.from_function(function, function.input_signature, opset=OPSET)
    return converted.SerializeToString()


def _in_onnx(content: bytes) -> Runner:
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda image: dict(zip(names, session.run(names, {"images": image}), strict=True))


@dataclasses.dataclass(frozen=True)
class Format:
    """A file of another runtime.

    Attributes:
      file: its name.
      exact: whether it computes what Keras does, but for rounding.
      packages: what pip installs for it.
      convert: from the function, and the model that holds its variables, makes the content of the file.
      load: from the content, makes what runs it.
    """

    file: str
    exact: bool
    packages: str
    convert: Callable[[Function, keras.Model], bytes]
    load: Callable[[bytes], Runner]


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

# SPDX-License-Identifier: Apache-2.0
"""Exports classifiers to LiteRT and ONNX, and compares their outputs there with Keras."""

import contextlib
import dataclasses
import functools
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from lambdanet.backend import device, keras
from lambdanet.core import files
from lambdanet.core.errors import (
    InputError,
    check_count,
    check_known,
    invalid,
    one_line,
)
from lambdanet.models.preprocessing import Preprocessing
from lambdanet.training.data.class_names import write_names
from lambdanet.training.run.model_dir import load_recipe
from lambdanet.training.serving import comparison, trained_weights
from lambdanet.training.serving.comparison import Parity, Pictures, Runner
from lambdanet.training.serving.export import check_classifier, in_float32, serving_form
from lambdanet.training.serving.saved_model import Outputs, to_probabilities
from lambdanet.training.serving.trained_weights import TrainedModel

CLASSES = "class_names.txt"
THRESHOLDS = "thresholds.txt"  # in the order of the classes
TEMPERATURE = "temperature.txt"
# Largest difference of float32 logits, relative to their standard deviation.
TOLERANCE = 1e-3
# Smallest part of the pictures whose top class must remain with 8-bit activations; with less, their ranges
# were calibrated on other pictures, or the model does not compute in 8 bits.
MIN_EQUAL = 0.8
NUM_MASKS = 8  # pictures to compare masks on, pixel by pixel
OPSET = 17  # of ONNX
OPSETS = range(14, 19)  # that tf2onnx writes

Function = Any  # the result of `tf.function`


def export(
    model_dir: str | Path,
    out: str | Path,
    data_dir: str | None = None,
    format: str = "litert",
    opset: int | None = None,
    any_size: bool = False,
    batch_size: int | None = None,
    calibrate: bool = False,
) -> Parity:
    """Exports the model trained in `model_dir` with `write`, and returns its comparison with Keras.

    The models are compared on `NUM_PICTURES` pictures spread over the recipe's `eval_split`, or on random
    ones, with a message, if these are not on disk. "litert_int8_full" is calibrated on pictures of
    `train_split`, and the accuracies of both models on `eval_split` are printed; the pictures must be on
    disk.

    Args:
      model_dir, out: as in `serving.export.export`.
      data_dir: the `data_dir` of training, the default. An explicit folder must have the pictures.
      format: a key of `FORMATS`.
      opset, any_size, batch_size: as in `write`.
      calibrate: as in `serving.export.export`; the temperature is written as `temperature.txt`.

    Raises:
      InputError: as `serving.export.export` and `write`, or the pictures are missing: those of an explicit
        `data_dir`, or those to calibrate on.

    Example:
      >>> export("runs/digits", "exported/digits_litert").logit_difference
    """
    _check_options(format, opset, any_size)
    files.check_output_dir(out)
    trained = trained_weights.load_run(model_dir, data_dir, calibrate)
    recipe = load_recipe(model_dir)
    calibration = None
    if FORMATS[format].calibrated:
        calibration, pictures = comparison.labeled_pictures(model_dir, recipe, data_dir)
    else:
        pictures = comparison.find_pictures(model_dir, recipe, data_dir)
    return _export(
        trained, out, format, opset, pictures, calibration, any_size, batch_size
    )


def export_weights(
    model_name: str,
    weights: str | Path,
    out: str | Path,
    class_names: str | Path | None = None,
    format: str = "litert",
    opset: int | None = None,
    calibration: str | Path | None = None,
    any_size: bool = False,
    batch_size: int | None = None,
) -> Parity:
    """Exports a model of the zoo, and returns its comparison with Keras on random pictures.

    The arguments and errors are those of `serving.export.export_weights`, and also:

    Args:
      format: a key of `FORMATS`.
      opset, any_size, batch_size: as in `write`.
      calibration: a folder of pictures such as the model is for, for the format "litert_int8_full": it is
        calibrated on half of them, and compared on the others.

    Raises:
      InputError: `calibration` is missing, or is no folder with 64 or more pictures that differ.

    Example:
      >>> export_weights("lambda_resnet50ts", "imagenet", "exported", format="onnx").num_equal
    """
    _check_options(format, opset, any_size)
    _check_calibration(format, calibration)
    files.check_output_dir(out)
    trained = trained_weights.build_classifier(model_name, weights, class_names)
    found = None
    if calibration is not None:
        found = comparison.folder_pictures(calibration, trained.preprocessing)
    return _export(trained, out, format, opset, None, found, any_size, batch_size)


def _export(
    trained: TrainedModel,
    out: str | Path,
    format: str,
    opset: int | None,
    pictures: Pictures | None,
    calibration: Pictures | None,
    any_size: bool,
    batch_size: int | None,
) -> Parity:
    """Writes the folder of a converted model, completely or not at all, and prints what was found."""
    chosen = FORMATS[format]
    model = in_float32(trained.model)
    pre = trained.preprocessing
    names = trained.class_names
    with files.atomic_dir(files.absolute(out)) as partial:
        parity = write(
            model,
            partial,
            pre.input_size,
            pre.mean,
            pre.std,
            names,
            format,
            pictures,
            opset,
            calibration,
            any_size,
            trained.thresholds,
            batch_size,
        )
        if trained.temperature != 1:
            write_names(Path(partial, TEMPERATURE), [f"{trained.temperature:g}"])
    file = files.local_path(out, "out") / chosen.file
    print(f"exported {trained} to {file}")
    print(f"oldest runtime: {chosen.oldest_runtime(file.read_bytes())}")
    print(parity)
    if parity.accuracies is not None:
        before, after = parity.accuracies
        print(
            f"top-1 on {parity.num_images} {parity.pictures}: "
            f"float32 {100 * before:.2f} %, {format} {100 * after:.2f} %"
        )
    return parity


def write(
    model: keras.Model,
    out: str | Path,
    input_size: int,
    mean: Sequence[float],
    std: Sequence[float],
    class_names: Sequence[str],
    format: str = "litert",
    pictures: Pictures | None = None,
    opset: int | None = None,
    calibration: Pictures | None = None,
    any_size: bool = False,
    thresholds: Sequence[float] = (),
    batch_size: int | None = None,
) -> Parity:
    """Converts a model, writes it with `class_names.txt`, and returns its comparison with Keras.

    The converted model takes `images`, uint8 RGB [b, input_size, input_size, 3] of any number from 1
    on, already cropped and resized, and returns `logits` and `probabilities`, float32 [b, num_classes]; for
    masks [b, input_size, input_size, num_classes], and `classes`, their numbers [b, input_size, input_size].

    Args:
      model: a model from normalized float32 images [b, input_size, input_size, c] to logits [b, num_classes].
      out: an existing folder.
      input_size, mean, std, class_names: as in `serving.export.export_saved_model`.
      format: "litert"; "litert_int8", a quarter of the size, with 8-bit weights of convolutions and matrix
        products (activations stay in float32, so no pictures are needed for calibration);
        "litert_int8_full", with 8-bit weights and activations, and no operator in float32; or "onnx".
      pictures: the pictures to compare the models on; default: every other one of `calibration`, or random
        ones.
      opset: the version of ONNX's operators, one of `OPSETS`, for the format "onnx"; default: 17.
      calibration: pictures such as the model is for, cropped and resized, for the format
        "litert_int8_full": the ranges of its activations are those that they have on these pictures, 32 or
        more that differ.
      any_size: whether it takes `images` of any height and width, [b, h, w, 3], in all formats but
        "litert_int8_full"; it is also compared on pictures of another size.
      thresholds: the probability from which on each class is present, of a model with any number of classes
        for a picture, whose probabilities are sigmoids; they are written as `thresholds.txt`.
      batch_size: the number of pictures that it takes at a time, so that all shapes in the file are fixed;
        default: any.

    Raises:
      InputError: the format is unknown, has no such opset or needs pictures to calibrate on, the model is no
        classifier or has layers of a fixed size, a name is blank or repeated, or the runtime lacks an
        operation of the model, computes other outputs than Keras, or is not installed.
    """
    _check_options(format, opset, any_size)
    _check_calibration(format, calibration and calibration.name)
    check_classifier(model, class_names)
    if batch_size is not None:
        check_count("batch_size", batch_size)
    chosen = FORMATS[format]
    if calibration is not None:
        calibration, pictures = comparison.separate(calibration, pictures)
    pictures = pictures or comparison.random_pictures(input_size)
    if len(getattr(model, "output_shape", ())) == 4:
        pictures = pictures._replace(images=pictures.images[:NUM_MASKS])
    compared = [pictures]
    size: int | None = input_size
    try:
        if any_size:
            others = comparison.random_pictures(
                input_size * 5 // 4, input_size * 3 // 2
            )
            compared.append(others)
            size = None
            model = _of_any_size(model, others.images)
        several = bool(thresholds)
        classify = _classifier(model, size, mean, std, is_multilabel=several)
        form = serving_form(model)
        served = _classifier(
            form, size, mean, std, chosen.calibrated, several, batch_size
        )
        with _quiet():
            content = chosen.convert(served, opset, calibration)
            run = chosen.load(content)
            # Runtimes write log lines in the first call.
            shape = [batch_size or 1, *pictures.images.shape[1:]]
            run(np.zeros(shape, np.uint8))
        parities = [
            comparison.compare(classify, run, each, batch_size) for each in compared
        ]
    except ModuleNotFoundError as error:
        raise InputError(
            f"format {format!r} needs {error.name}; pip install {chosen.packages!r}"
        ) from None
    except Exception as error:  # converters and runtimes raise exceptions of many kinds
        reason = one_line(error)
        raise InputError(
            f"model {model.name!r} cannot be written as {format}: {reason[:300]}"
        ) from None
    for found in parities:
        is_close = True
        if chosen.exact:
            is_close = found.logit_difference <= TOLERANCE * found.logit_std
        elif chosen.calibrated:
            is_close = found.num_equal >= MIN_EQUAL * found.num_images
        if not is_close:
            raise InputError(
                f"model {model.name!r} cannot be written as {format}: {found}"
            )
    Path(out, chosen.file).write_bytes(content)
    write_names(Path(out, CLASSES), class_names)
    if thresholds:
        write_names(Path(out, THRESHOLDS), [f"{x:g}" for x in thresholds])
    return parities[0]


def _of_any_size(model: keras.Model, examples: np.ndarray) -> keras.Model:
    """Returns a copy of a functional model that takes images of any size; layers that do not raise errors."""
    channels = model.input_shape[-1]
    images = keras.Input([None, None, channels])
    copy = keras.models.clone_model(model, input_tensors=images)
    copy.set_weights(model.get_weights())
    copy(tf.cast(examples[:1, ..., :channels], tf.float32))
    return copy


def _check_options(format: str, opset: int | None, any_size: bool) -> None:
    """Raises `InputError` for an unknown format, or an option that it does not have."""
    check_known("format", format, FORMATS)
    if any_size and FORMATS[format].calibrated:
        raise invalid("any_size", f"False for the format {format!r}", any_size)
    if opset is None:
        return
    if format != "onnx":
        raise invalid("opset", f"left out for the format {format!r}", opset)
    if opset not in OPSETS:
        raise invalid("opset", f"from {OPSETS[0]} to {OPSETS[-1]}", opset)


def _check_calibration(format: str, calibration: str | Path | None) -> None:
    """Raises `InputError` for pictures, by their name, that a format does not take, or that it lacks."""
    is_given = calibration is not None
    if is_given != FORMATS[format].calibrated:
        accepted = "left out" if is_given else "pictures to calibrate on"
        raise invalid(
            "calibration", f"{accepted} for the format {format!r}", calibration
        )


def _classifier(
    model: keras.Model,
    input_size: int | None,
    mean: Sequence[float],
    std: Sequence[float],
    in_8_bits: bool = False,
    is_multilabel: bool = False,
    batch_size: int | None = None,
) -> Function:
    """Returns a function from images in 0..255 to logits and probabilities.

    The images are uint8 or, for the converter to 8 bits, float32; without an `input_size`, of any size.
    """
    normalize = Preprocessing(input_size or 1, tuple(mean), tuple(std)).normalize
    dtype = tf.float32 if in_8_bits else tf.uint8
    spec = tf.TensorSpec([batch_size, input_size, input_size, 3], dtype, "images")

    @tf.function(input_signature=[spec], autograph=False)
    def classify(images: tf.Tensor) -> Outputs:
        pixels = tf.cast(images, tf.float32) / 255.0
        if len(mean) == 1:
            pixels = tf.reduce_sum(
                pixels * tf.constant([0.2989, 0.587, 0.114]), axis=-1, keepdims=True
            )
        with device.assume("RUNTIME_INT8" if in_8_bits else "RUNTIME"):
            logits = tf.cast(model(normalize(pixels), training=False), tf.float32)
        probabilities = to_probabilities(logits, is_multilabel)
        outputs = {"logits": logits, "probabilities": probabilities}
        if len(logits.shape) == 4:  # masks
            outputs["classes"] = tf.argmax(logits, axis=-1, output_type=tf.int32)
        return outputs

    return classify


def _to_litert(
    function: Function,
    opset: int | None = None,
    calibration: Pictures | None = None,
    int8: bool = False,
) -> bytes:
    concrete = function.get_concrete_function()
    # Instead of the model, whose layers the converter would trace one by one.
    weights = tf.Module()
    weights.tracked = concrete.variables
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], weights)
    if int8:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if calibration is not None:
        size = concrete.inputs[0].shape[0] or 1
        batches = np.repeat(calibration.images[:, np.newaxis], size, axis=1)
        converter.representative_dataset = functools.partial(_examples, batches)
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = tf.uint8
    content: bytes = converter.convert()
    if calibration is not None:
        _check_in_8_bits(content)
    return content


def _check_in_8_bits(content: bytes) -> None:
    """Raises `InputError` for operations that the converter left in float32, before the outputs."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=content)
    outputs = [x["index"] for x in interpreter.get_output_details()]
    left = []
    for tensor in interpreter.get_tensor_details():
        if tensor["dtype"] == np.float32 and tensor["index"] not in outputs:
            left.append(tensor["name"])
    if left:
        raise InputError(f"these operations have no 8-bit form: {', '.join(left)}")


def _examples(batches: np.ndarray) -> Iterator[dict[str, np.ndarray]]:
    """Yields pictures to calibrate on, [n, batch, h, w, c], a batch of copies of each.

    The first has a black and a white corner, so that the range of the input is 0..255 and a byte is a pixel.
    """
    first = batches[0].astype(np.float32)
    first[:, 0, 0] = 0
    first[:, -1, -1] = 255
    yield {"images": first}
    for images in batches[1:]:
        yield {"images": images.astype(np.float32)}


def _oldest_litert(content: bytes) -> str:
    """Returns the oldest runtime that has the operators of a file, by its metadata."""
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(content))
    places = {entry.name: entry.buffer for entry in model.metadata}
    version = bytes(model.buffers[places[b"min_runtime_version"]].data).decode()
    return f"that of TensorFlow {version.rstrip(chr(0))}"


def _litert_runner(content: bytes) -> Runner:
    from ai_edge_litert.interpreter import Interpreter

    run = Interpreter(model_content=content).get_signature_runner()
    return lambda images: run(images=images)


def _to_onnx(
    function: Function, opset: int | None = None, calibration: Pictures | None = None
) -> bytes:
    import tf2onnx

    # Keras compiles convolutions of groups by XLA, as functions that ONNX does not have.
    tf.config.run_functions_eagerly(True)
    try:
        converted, _ = tf2onnx.convert.from_function(
            function, function.input_signature, opset=opset or OPSET
        )
    finally:
        tf.config.run_functions_eagerly(False)
    _join_reshapes(converted.graph)
    return converted.SerializeToString()


def _join_reshapes(graph: Any) -> None:
    """Removes reshapes of which only reshapes read, as to maps of heads, [b, h, w, heads, c]."""
    reshapes = {
        node.output[0]: node for node in graph.node if node.op_type == "Reshape"
    }
    for node in reshapes.values():
        while node.input[0] in reshapes:
            node.input[0] = reshapes[node.input[0]].input[0]
    read = {name for node in graph.node for name in node.input}
    read |= {output.name for output in graph.output}
    for name, node in reshapes.items():
        if name not in read:
            graph.node.remove(node)
    read = {name for node in graph.node for name in node.input}
    for tensor in list(graph.initializer):
        if tensor.name not in read:
            graph.initializer.remove(tensor)


def _oldest_onnx(content: bytes) -> str:
    """Returns what the oldest runtime of a file has to know."""
    import onnx

    model = onnx.load_from_string(content)
    opset = model.opset_import[0].version  # the first set is ONNX's own
    return f"one with ONNX opset {opset} and IR version {model.ir_version}"


def _onnx_runner(content: bytes) -> Runner:
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda images: dict(
        zip(names, session.run(names, {"images": images}), strict=True)
    )


@dataclasses.dataclass(frozen=True)
class Format:
    """The file format of another runtime."""

    file: str
    exact: bool  # whether outputs equal Keras's up to rounding
    # Whether it is made with pictures, which give the ranges of its activations.
    calibrated: bool
    packages: str  # of pip, with the converter and the runtime
    # A function with its variables, the opset of ONNX, and pictures to calibrate on -> the content of the
    # file.
    convert: Callable[[Function, int | None, Pictures | None], bytes]
    load: Callable[[bytes], Runner]  # the content -> a function that runs it
    oldest_runtime: Callable[[bytes], str]  # the content -> the oldest that runs it


LITERT = "ai-edge-litert"
_to_int8 = functools.partial(_to_litert, int8=True)
FORMATS = {
    "litert": Format(
        "model.tflite", True, False, LITERT, _to_litert, _litert_runner, _oldest_litert
    ),
    "litert_int8": Format(
        "model.tflite", False, False, LITERT, _to_int8, _litert_runner, _oldest_litert
    ),
    "litert_int8_full": Format(
        "model.tflite", False, True, LITERT, _to_int8, _litert_runner, _oldest_litert
    ),
    "onnx": Format(
        "model.onnx",
        True,
        False,
        "lambdanet[onnx]",
        _to_onnx,
        _onnx_runner,
        _oldest_onnx,
    ),
}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides the log lines of converters and runtimes, also those that bypass Python."""
    with tempfile.TemporaryFile() as sink:
        before = os.dup(2)
        os.dup2(sink.fileno(), 2)
        logging.disable(logging.WARNING)
        try:
            with warnings.catch_warnings():
                # That `tf.lite.Interpreter` moved; the converter calibrates with it.
                warnings.simplefilter("ignore", UserWarning)
                yield
        finally:
            logging.disable(logging.NOTSET)
            os.dup2(before, 2)
            os.close(before)

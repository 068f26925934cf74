# SPDX-License-Identifier: Apache-2.0
"""Converts networks for LiteRT and ONNX, and compares their outputs there with Keras."""

import contextlib
import dataclasses
import functools
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
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
from lambdanet.training.data.class_names import write_names
from lambdanet.training.serving import comparison
from lambdanet.training.serving.comparison import Parity, Pictures, Runner
from lambdanet.training.serving.export import (
    Options,
    check_classifier,
    in_float32,
    serving_form,
)
from lambdanet.training.serving.saved_model import Outputs
from lambdanet.training.serving.trained_weights import TrainedModel

CLASSES = "class_names.txt"
THRESHOLDS = "thresholds.txt"  # in the order of the classes
TEMPERATURE = "temperature.txt"
# Largest difference of float32 logits, relative to their standard deviation.
TOLERANCE = 1e-3
OPSET = 17  # of ONNX
OPSETS = range(14, 19)  # that tf2onnx writes

Function = Any  # the result of `tf.function`


def save(
    trained: TrainedModel,
    out: str | Path,
    options: Options,
    pictures: Pictures | None = None,
    calibration: Pictures | None = None,
) -> Parity:
    """Writes the folder of a converted model, completely or not at all, and prints what was found.

    The arguments, the result and the errors are those of `write`, but for `out`, a folder to create.
    """
    chosen = FORMATS[options.format]
    trained = trained._replace(model=in_float32(trained.model))
    with files.atomic_dir(files.absolute(out)) as partial:
        parity = write(trained, partial, options, pictures, calibration)
    file = files.local_path(out, "out") / chosen.file
    print(f"exported {trained} to {file}")
    print(f"oldest runtime: {chosen.oldest_runtime(file.read_bytes())}")
    print(parity)
    if parity.accuracies is not None:
        before, after = parity.accuracies
        print(
            f"top-1 on {parity.num_images} {parity.pictures}: "
            f"float32 {100 * before:.2f} %, {options.format} {100 * after:.2f} %"
        )
    return parity


def write(
    trained: TrainedModel,
    out: str | Path,
    options: Options,
    pictures: Pictures | None = None,
    calibration: Pictures | None = None,
) -> Parity:
    """Converts a model, writes it with `class_names.txt`, and returns its comparison with Keras.

    The converted model takes `images`, uint8 RGB [b, input_size, input_size, 3] of any number from 1
    on, already cropped and resized, and returns `logits` and `probabilities`, float32 [b, num_classes]; for
    masks [b, input_size, input_size, num_classes], and `classes`, their numbers [b, input_size, input_size].
    With `any_size` it is also compared on pictures of another size. Thresholds, from which on classes are
    present, are written as `thresholds.txt`, and a temperature as `temperature.txt`.

    Args:
      trained: a model from normalized float32 images [b, input_size, input_size, c] to logits
        [b, num_classes], with its preprocessing and the names of its classes.
      out: an existing folder.
      options: the form of the export, for a runtime, that passes `check_options`.
      pictures: the pictures to compare the models on; default: every other one of `calibration`, or random
        ones.
      calibration: pictures such as the model is for, cropped and resized, for the format
        "litert_int8_full" and no other: the ranges of its activations are those that they have on these
        pictures, 32 or more that differ.

    Raises:
      InputError: the model is no classifier or has layers of a fixed size, a name is blank or repeated, or
        the runtime lacks an operation of the model, computes other outputs than Keras, or is not installed.
    """
    format = options.format
    chosen = FORMATS[format]
    model = trained.model
    check_classifier(model, trained.class_names)
    pre = trained.preprocessing
    if calibration is not None:
        calibration, pictures = comparison.separate(calibration, pictures)
    size: int | None = pre.input_size
    pictures = pictures or comparison.random_pictures(pre.input_size)
    outputs = trained.task_outputs
    pictures = pictures._replace(images=pictures.images[: outputs.max_compared])
    compared = [pictures]
    try:
        if options.any_size:
            others = comparison.random_pictures(
                pre.input_size * 5 // 4, pre.input_size * 3 // 2
            )
            compared.append(others)
            size = None
            model = _of_any_size(model, others.images)
        classify = _classifier(trained._replace(model=model), size)
        form = trained._replace(model=serving_form(model))
        served = _classifier(form, size, chosen.calibrated, options.batch_size)
        with _quiet():
            content = chosen.convert(served, options.opset, calibration)
            run = chosen.load(content)
            # Runtimes write log lines in the first call.
            shape = [options.batch_size or 1, *pictures.images.shape[1:]]
            run(np.zeros(shape, np.uint8))
        parities = [
            comparison.compare(outputs, classify, run, each, options.batch_size)
            for each in compared
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
            is_close = found.is_alike
        if not is_close:
            raise InputError(
                f"model {model.name!r} cannot be written as {format}: {found}"
            )
    Path(out, chosen.file).write_bytes(content)
    write_names(Path(out, CLASSES), trained.class_names)
    for name, values in outputs.settings.items():
        write_names(Path(out, f"{name}.txt"), [f"{x:g}" for x in values])
    if trained.temperature != 1:
        write_names(Path(out, TEMPERATURE), [f"{trained.temperature:g}"])
    return parities[0]


def _of_any_size(model: keras.Model, examples: np.ndarray) -> keras.Model:
    """Returns a copy of a functional model that takes images of any size; layers that do not raise errors."""
    channels = model.input_shape[-1]
    images = keras.Input([None, None, channels])
    copy = keras.models.clone_model(model, input_tensors=images)
    copy.set_weights(model.get_weights())
    copy(tf.cast(examples[:1, ..., :channels], tf.float32))
    return copy


def check_out(out: str | Path, format: str, overwrite: bool) -> None:
    """Raises `InputError` for a folder that may not be written."""
    names = (FORMATS[format].file, CLASSES, THRESHOLDS, TEMPERATURE)
    files.check_output_dir(out, files=names, overwrite=overwrite)


def check_calibration(format: str, pictures: str | Path | None) -> None:
    """Raises `InputError` for pictures, by their name, that a format does not take, or that it lacks."""
    is_given = pictures is not None
    if is_given != FORMATS[format].calibrated:
        accepted = "left out" if is_given else "pictures to calibrate on"
        raise invalid("calibration", f"{accepted} for the format {format!r}", pictures)


def check_options(options: Options) -> None:
    """Raises `InputError` for an unknown format, or an option that it does not have."""
    format = options.format
    check_known("format", format, FORMATS)
    if options.any_size and FORMATS[format].calibrated:
        raise invalid("any_size", f"False for the format {format!r}", options.any_size)
    if options.batch_size is not None:
        check_count("batch_size", options.batch_size)
    if options.opset is None:
        return
    if format != "onnx":
        raise invalid("opset", f"left out for the format {format!r}", options.opset)
    if options.opset not in OPSETS:
        raise invalid("opset", f"from {OPSETS[0]} to {OPSETS[-1]}", options.opset)


def _classifier(
    trained: TrainedModel,
    input_size: int | None,
    in_8_bits: bool = False,
    batch_size: int | None = None,
) -> Function:
    """Returns a function from images in 0..255 to logits and the outputs of the task.

    The images are uint8 or, for the converter to 8 bits, float32; without an `input_size`, of any size.
    """
    normalize = trained.preprocessing.normalize
    convert = trained.task_outputs.convert
    dtype = tf.float32 if in_8_bits else tf.uint8
    spec = tf.TensorSpec([batch_size, input_size, input_size, 3], dtype, "images")

    @tf.function(input_signature=[spec], autograph=False)
    def classify(images: tf.Tensor) -> Outputs:
        pixels = tf.cast(images, tf.float32) / 255.0
        if len(trained.preprocessing.mean) == 1:
            pixels = tf.reduce_sum(
                pixels * tf.constant([0.2989, 0.587, 0.114]), axis=-1, keepdims=True
            )
        with device.assume("RUNTIME_INT8" if in_8_bits else "RUNTIME"):
            logits = tf.cast(
                trained.model(normalize(pixels), training=False), tf.float32
            )
        return convert(logits)

    return classify


def _to_litert(
    function: Function,
    opset: int | None,
    calibration: Pictures | None,
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
    function: Function, opset: int | None, calibration: Pictures | None
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
    graph = converted.graph
    _join_reshapes(graph)
    # tf2onnx numbers the axes of unknown size ("unk__12").
    for tensor in (*graph.input, *graph.output):
        for i, axis in enumerate(tensor.type.tensor_type.shape.dim[:3]):
            if axis.dim_param:
                axis.dim_param = ("batch", "height", "width")[i]
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

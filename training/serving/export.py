# SPDX-License-Identifier: Apache-2.0
"""Exports trained networks: writes a SavedModel that needs only TensorFlow, or a file for LiteRT or ONNX."""

import contextlib
import dataclasses
import functools
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from lambdanet.backend import compat, keras
from lambdanet.core import which_keras
from lambdanet.core.errors import InputError, invalid, one_line
from lambdanet.core.files import (
    absolute,
    atomic_dir,
    check_output_dir,
    write_atomic,
)
from lambdanet.models.inference import for_inference
from lambdanet.models.names import list_models
from lambdanet.models.preprocessing import BILINEAR, Preprocessing
from lambdanet.training.data import class_names as classes
from lambdanet.training.serving import trained_weights
from lambdanet.training.serving.saved_model import (
    CLASS_NAMES,
    FILES,
    NETWORK,
    PictureModule,
)
from lambdanet.training.serving.trained_weights import TrainedModel

which_keras.check_backend("export", ("tensorflow",))

REDUCED_PRECISION = ("mixed_bfloat16", "mixed_float16", "bfloat16", "float16")


@dataclasses.dataclass(frozen=True)
class Options:
    """The form of an export.

    Attributes:
      format: "saved_model"; or a key of `export_runtimes.FORMATS`: "litert"; "litert_int8", a quarter of the
        size, with 8-bit weights of convolutions and matrix products (activations stay in float32, so no
        pictures are needed for calibration); "litert_int8_full", with 8-bit weights and activations, and no
        operator in float32; or "onnx".
      opset: the version of ONNX's operators, for the format "onnx"; default: 17.
      any_size: whether a runtime takes pictures of any height and width, in all formats but
        "litert_int8_full".
      batch_size: the number of pictures that a runtime takes at a time, so that all shapes in the file are
        fixed; default: any.
    """

    format: str = "saved_model"
    opset: int | None = None
    any_size: bool = False
    batch_size: int | None = None


SAVED_MODEL = Options()


def export(
    model_dir: str | Path,
    out: str | Path,
    data_dir: str | None = None,
    options: Options = SAVED_MODEL,
    calibrate: bool = False,
    overwrite: bool = False,
) -> Any:
    """Exports the model trained in `model_dir`: to a SavedModel, or for LiteRT or ONNX.

    The models of runtimes are compared with Keras on `NUM_PICTURES` pictures spread over the recipe's
    `eval_split`, or on random ones, with a message, if these are not on disk. "litert_int8_full" is
    calibrated on pictures of `train_split`, and the accuracies of both models on `eval_split` are printed;
    the pictures must be on disk.

    Args:
      model_dir: a folder written by `lambdanet train`, with at least one checkpoint.
      out: the folder to write, which must not exist or be empty, unless `overwrite`.
      data_dir: the `data_dir` of training, the default. For a SavedModel it is needed only if `model_dir`
        lacks the class names, or to calibrate on pictures in another place; for runtimes, it must have the
        pictures.
      options: the form of the export.
      calibrate: whether to divide the logits by a temperature, as `trained_weights.load_run` does. For
        runtimes it is written as `temperature.txt`.
      overwrite: whether an export in `out` is replaced.

    Returns:
      The comparison with Keras, a `comparison.Parity`; for a SavedModel, None.

    Raises:
      InputError: `model_dir` has no trained model, or needs no `data_dir`, or `out` cannot be written, or the
        model cannot be calibrated; or as `export_runtimes.write`; or pictures are missing: those of an
        explicit `data_dir`, or those to calibrate on.

    Example:
      >>> export("runs/digits", "exported/digits")
      >>> served = tf.saved_model.load("exported/digits")
      >>> export("runs/digits", "exported/litert", options=Options("litert")).logit_difference
    """
    # Here, so that `export_weights` does not need the dependencies of training.
    from lambdanet.training.evaluate import open_split
    from lambdanet.training.run import model_dir as model_dirs

    _check(out, options, overwrite)
    is_needed = calibrate or not model_dirs.class_names(model_dir)
    if options == SAVED_MODEL and data_dir is not None and not is_needed:
        accepted = "left out, as the run has its class names"
        raise invalid("data_dir", accepted, data_dir)
    recipe = model_dirs.load_recipe(model_dir)
    open_data = functools.cache(
        functools.partial(open_split, model_dir, recipe, data_dir)
    )
    trained = trained_weights.load_run(model_dir, open_data, calibrate)
    if options == SAVED_MODEL:
        _save(trained, out)
        return None

    # Here, so that a SavedModel does not need them.
    from lambdanet.training.serving import comparison, export_runtimes

    if export_runtimes.FORMATS[options.format].calibrated:
        calibration, pictures = comparison.labeled_pictures(open_data())
        return export_runtimes.save(trained, out, options, pictures, calibration)
    pictures = comparison.find_pictures(recipe, open_data, data_dir is not None)
    return export_runtimes.save(trained, out, options, pictures)


def export_weights(
    model_name: str,
    weights: str | Path,
    out: str | Path,
    class_names: str | Path | None = None,
    options: Options = SAVED_MODEL,
    calibration: str | Path | None = None,
    overwrite: bool = False,
) -> Any:
    """Exports a model of the zoo with trained weights; one of a runtime is compared on random pictures.

    Args:
      model_name, weights, class_names: as for `trained_weights.build_classifier`, with its errors.
      out: the folder to write, which must not exist or be empty, unless `overwrite`.
      options: the form of the export.
      calibration: a folder of pictures such as the model is for, for the format "litert_int8_full": it is
        calibrated on half of them, and compared on the others.
      overwrite: whether an export in `out` is replaced.

    Returns:
      As `export`.

    Raises:
      InputError: `out` is not empty or cannot be written; or as `export_runtimes.write`; or `calibration` is
        missing, or is no folder with 64 or more pictures that differ.

    Example:
      >>> export_weights("lambda_resnet50ts", "imagenet", "exported")
      >>> export_weights("lambda_resnet50ts", "imagenet", "onnx", options=Options("onnx")).num_equal
    """
    _check(out, options, overwrite)
    if options != SAVED_MODEL:
        # Here, so that a SavedModel does not need it.
        from lambdanet.training.serving import comparison, export_runtimes

        export_runtimes.check_calibration(options.format, calibration)
    trained = trained_weights.build_classifier(model_name, weights, class_names)
    if options == SAVED_MODEL:
        _save(trained, out)
        return None
    pictures = None
    if calibration is not None:
        pictures = comparison.folder_pictures(calibration, trained.preprocessing)
    return export_runtimes.save(trained, out, options, calibration=pictures)


def export_saved_model(
    model: keras.Model,
    out: str | Path,
    input_size: int,
    mean: Sequence[float],
    std: Sequence[float],
    class_names: Sequence[str],
    crop_fraction: float = 1.0,
    interpolation: str = BILINEAR,
    overwrite: bool = False,
) -> str:
    """Writes a Keras classifier as a SavedModel that takes raw pictures.

    The signature `serving_default` takes `images`, uint8 [b, h, w, 3] of any size; `serving_bytes` takes
    `image_bytes`, JPEG, PNG or WebP files [b] of any sizes. Both resize, crop and normalize as in evaluation,
    and return `probabilities` [b, num_classes], `top_names` and `top_probabilities` [b, 5] (or the number of
    classes, if smaller). The model computes in float32, regardless of its training policy. The names of all
    classes are in `assets/class_names.txt` and in `class_names()` of the loaded object.

    Args:
      model: a Keras model from normalized float32 images [b, input_size, input_size, c] to logits
        [b, num_classes] (not probabilities).
      out: the folder to write, which must not exist or be empty, unless `overwrite`.
      input_size: the side of the model's images, in pixels.
      mean: the mean per channel, of pixels in 0..1; a single value makes pictures gray.
      std: the standard deviation per channel, of pixels in 0..1.
      class_names: one name per class, in the order of the logits.
      crop_fraction: the fraction of the picture's shorter side in the central crop.
      interpolation: "bilinear", or "bicubic" as in Pillow and timm.
      overwrite: whether a SavedModel in `out` is replaced.

    Returns:
      The path of the SavedModel.

    Raises:
      InputError: the model is of tf_keras, ends in a softmax, has no classifier, or has other inputs or
        outputs; a name is blank or repeated; or `out` is not empty or cannot be written.

    Example:
      >>> model = lambdanet.create_model("lambda_resnet_tiny", num_classes=2)
      >>> export_saved_model(model, "exported", 32, [0.5] * 3, [0.5] * 3, ["cat", "dog"])
    """
    _check(out, SAVED_MODEL, overwrite)
    check_classifier(model, class_names)
    preprocessing = Preprocessing(
        input_size, tuple(mean), tuple(std), crop_fraction, interpolation
    )
    return _save(TrainedModel(model, preprocessing, list(class_names)), out)


def _check(out: str | Path, options: Options, overwrite: bool) -> None:
    """Raises `InputError` for a folder that may not be written, or options that a format does not have."""
    if options != SAVED_MODEL:
        # Here, so that a SavedModel does not need the packages of training.
        from lambdanet.training.serving import export_runtimes

        export_runtimes.check_options(options)
        export_runtimes.check_out(out, options.format, overwrite)
        return
    check_output_dir(out, True, FILES, overwrite)
    # TensorFlow cannot load from such a path.
    if any(sign in absolute(out) for sign in "*?["):
        raise invalid(
            "out", "a path without *, ? and [, a pattern for TensorFlow", str(out)
        )


def check_classifier(model: keras.Model, class_names: Sequence[str]) -> None:
    """Raises `InputError` for what is no classifier of Keras 3, and for names that cannot be its classes."""
    which_keras.check_keras_3(model, "the model")
    if not isinstance(model, keras.Model):
        raise invalid("model", "a Keras model", model)
    if model.name in list_models() and not any(
        isinstance(x, keras.layers.Dense) for x in model.layers
    ):
        raise InputError(
            f"the model must have a classifier, got {model.name!r} with num_classes=0"
        )
    classes.check_names(class_names, "the model")


def _save(trained: TrainedModel, out: str | Path) -> str:
    """Writes a SavedModel, completely or not at all, prints what reads it, and returns its path."""
    path = absolute(out)
    with tempfile.TemporaryDirectory() as folder:
        names_file = os.path.join(folder, CLASS_NAMES)
        classes.write_names(names_file, trained.class_names)
        model = serving_form(trained.model)
        outputs = trained.task_outputs
        module = PictureModule(
            model, trained.preprocessing, outputs, names_file, trained.record
        )
        signatures = module.signatures()
        with atomic_dir(path) as staging:
            tf.saved_model.save(module, staging, signatures=signatures)
            if not outputs.any_size:
                _record_network(model, trained, staging)
    print(f"exported {trained} to {path}")
    print(f"oldest runtime: TensorFlow {tf.__version__}, which wrote it")
    return path


def _record_network(model: keras.Model, trained: TrainedModel, folder: str) -> None:
    """Writes what `lambdanet explain` needs beside the weights; nothing where Keras has no configuration."""
    try:
        config = model.to_json()
    except (NotImplementedError, TypeError, ValueError):
        return
    network = {
        "model": config,
        "preprocessing": dataclasses.asdict(trained.preprocessing),
        "record": trained.record,
        "temperature": trained.temperature,
    }
    file = os.path.join(folder, NETWORK)
    tf.io.gfile.makedirs(os.path.dirname(file))
    write_atomic(file, json.dumps(network))


def serving_form(model: keras.Model) -> keras.Model:
    """Returns a model in float32, in its form for inference if it has one (see `for_inference`)."""
    model = in_float32(model)
    # A subclassed model, which is served unchanged.
    with contextlib.suppress(InputError):
        model = for_inference(model)
    return model


def in_float32(model: keras.Model) -> keras.Model:
    """Returns the model if all its layers compute in float32, or else a copy of which they do."""
    layers = [model, *compat.sublayers(model)]
    if not any(layer.dtype_policy.name in REDUCED_PRECISION for layer in layers):
        return model
    classes = {type(layer).__name__: type(layer) for layer in layers}
    try:
        config = json.loads(model.to_json(), object_hook=_with_float32)
        copy = keras.saving.deserialize_keras_object(config, classes)
        copy.set_weights(model.get_weights())
    except (NotImplementedError, TypeError, ValueError) as error:
        raise InputError(
            f"the model {model.name!r} computes in {model.dtype_policy.name} and cannot be rebuilt in "
            f"float32 ({one_line(error)}); build it under the float32 policy and load its weights"
        ) from error
    return copy


def _with_float32(config: dict[str, Any]) -> dict[str, Any]:
    """Returns an object of a Keras config; a policy of reduced precision becomes float32."""
    is_reduced = config.get("name") in REDUCED_PRECISION and len(config) == 1
    return {"name": "float32"} if is_reduced else config

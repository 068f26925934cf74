# SPDX-License-Identifier: Apache-2.0
"""What LiteRT and ONNX give beside Keras, in float32 and with 8-bit weights; and what is refused."""

import dataclasses
import sys

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from ai_edge_litert.interpreter import Interpreter

from lambdanet import HaloAttention, LambdaLayer, configs
from lambdanet.errors import InputError
from lambdanet.training import data, portable
from lambdanet.training import model_dir as model_dirs
from lambdanet.training.assemble import build_model, build_optimizer
from lambdanet.training.checkpoints import Checkpoints

MEAN, STD = (0.3, 0.4, 0.5), (0.2, 0.25, 0.3)


@pytest.fixture(scope="module")
def model():
    """Both kinds of layers, with norms and strides, on maps that blocks do not divide."""
    keras.utils.set_random_seed(0)
    x = images = keras.Input([20, 20, 3])
    x = keras.layers.Conv2D(32, 3, strides=2, activation="relu")(x)
    x = keras.layers.ReLU()(keras.layers.BatchNormalization()(LambdaLayer(32, scope=5)(x)))
    x = keras.layers.ReLU()(
        keras.layers.BatchNormalization()(HaloAttention(32, block_size=4, halo_size=1)(x))
    )
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(images, keras.layers.Dense(7)(x), name="both")


def _run(folder, images):
    run = Interpreter(str(folder / "model.tflite")).get_signature_runner()
    return [run(images=image[np.newaxis]) for image in images]


def _run_onnx(folder, images):
    session = pytest.importorskip("onnxruntime").InferenceSession(str(folder / "model.onnx"))
    names = [output.name for output in session.get_outputs()]
    return [dict(zip(names, session.run(None, {"images": image[None]}), strict=True)) for image in images]


@pytest.mark.parametrize(("format", "run"), [("litert", _run), ("onnx", _run_onnx)])
def test_lambda_and_halo_layers_give_there_what_they_give_in_keras(model, tmp_path, format, run):
    names = [f"class {index}" for index in range(7)]
    check = portable.write(model, tmp_path, 20, MEAN, STD, names, format)
    images = np.random.default_rng(1).integers(0, 256, [3, 20, 20, 3], np.uint8)
    logits = model((images / 255.0 - np.array(MEAN)) / np.array(STD)).numpy()
    for found, expected in zip(run(tmp_path, images), logits, strict=True):
        np.testing.assert_allclose(found["logits"][0], expected, atol=1e-4 * logits.std())
        np.testing.assert_allclose(found["probabilities"][0], tf.nn.softmax(expected), atol=1e-5)
    assert check.same == check.images == 4 and check.difference < 1e-4 * check.spread
    assert (tmp_path / "class_names.txt").read_text() == "".join(f"{name}\n" for name in names)


def test_weights_of_8_bits_are_smaller_and_near(model, tmp_path):
    sizes, checks = [], []
    for format in ("litert", "litert_int8"):
        (tmp_path / format).mkdir()
        checks.append(portable.write(model, tmp_path / format, 20, MEAN, STD, list("abcdefg"), format))
        sizes.append((tmp_path / format / "model.tflite").stat().st_size)
    assert sizes[1] < 0.9 * sizes[0]
    assert checks[0].difference < checks[1].difference < 0.5 * checks[1].spread
    assert "largest difference from the Keras model: " in str(checks[1])


def test_a_grey_model_takes_pictures_in_colour(tmp_path):
    images = keras.Input([4, 4, 1])
    flat = keras.Model(images, keras.layers.Dense(2)(keras.layers.Flatten()(images)))
    portable.write(flat, tmp_path, 4, (0.0,), (1.0,), ["a", "b"])
    picture = np.random.default_rng(0).integers(0, 256, [1, 4, 4, 3], np.uint8)
    grey = tf.image.rgb_to_grayscale(tf.constant(picture, tf.float32) / 255.0)
    np.testing.assert_allclose(_run(tmp_path, picture)[0]["logits"], flat(grey), atol=1e-4)


def test_an_operation_that_litert_lacks_is_named_in_one_line(tmp_path):
    images = keras.Input([4, 4, 3])
    spectrum = keras.layers.Lambda(lambda x: tf.math.bessel_i0(x))(images)
    odd = keras.Model(images, keras.layers.Dense(2)(keras.layers.Flatten()(spectrum)), name="odd")
    with pytest.raises(InputError, match="model 'odd' cannot be written as litert: .*BesselI0") as error:
        portable.write(odd, tmp_path, 4, MEAN, STD, ["a", "b"])
    assert "\n" not in str(error.value) and not list(tmp_path.iterdir())


def test_a_run_in_bfloat16_is_exported_in_float32_with_its_averages(tmp_path, monkeypatch, capsys):
    recipe = dataclasses.replace(
        configs.get_recipe("digits"),
        **{"mixed_precision": True, "ema_decay": 0.5, "input_size": 32},
    )

    def create(*_, **__):  # in the precision of the moment
        layers = [keras.Input([32, 32, 3]), keras.layers.Flatten(), keras.layers.Dense(10)]
        return keras.Sequential(layers)

    monkeypatch.setattr("lambdanet.training.assemble.zoo.create_model", create)
    path = model_dirs.claim(tmp_path / "run", recipe, [str(digit) for digit in range(10)])
    model = build_model(recipe)
    checkpoints = Checkpoints(path / model_dirs.CHECKPOINTS, model, build_optimizer(recipe, 1))
    assert model.layers[-1].compute_dtype == "bfloat16"
    checkpoints.save(1)
    monkeypatch.setattr(data, "class_names", None)  # those of the run will do
    check = portable.export(tmp_path / "run", tmp_path / "out")
    assert check.difference < 1e-4 * check.spread
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["class_names.txt", "model.tflite"]
    assert capsys.readouterr().out.endswith(f"{check}\n")
    with pytest.raises(InputError, match="is not empty"):
        portable.export(tmp_path / "run", tmp_path / "out")


def test_a_converter_that_is_not_installed_is_named(model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tf2onnx", None)
    with pytest.raises(InputError, match=r"format 'onnx' needs tf2onnx; pip install 'lambdanet\[onnx\]'"):
        portable.write(model, tmp_path, 20, MEAN, STD, list("abcdefg"), "onnx")

# SPDX-License-Identifier: Apache-2.0
"""Tests of the export to LiteRT and ONNX: outputs, pictures of the comparison, and errors."""

import dataclasses
import functools
import itertools
import shutil
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import noise, write_picture
from keras import layers
from numpy.testing import assert_allclose
from refusals import refused
from refused_commands import assert_refused
from small_models import linear_model
from training_runs import (
    MEAN,
    STD,
    open_dataset,
    recipe_with,
    run_exported,
    write_run,
    write_runtime,
)

from lambdanet import GlobalAttention, HaloAttention, LambdaLayer, cli
from lambdanet.models.preprocessing import Preprocessing
from lambdanet.training.run import model_dir as model_dirs
from lambdanet.training.serving import comparison, export_runtimes
from lambdanet.training.serving.export import Options, export, export_weights
from lambdanet.training.serving.trained_weights import TrainedModel

SHAPE = (4, 4, 3)
NAMES = [f"class {index}" for index in range(7)]

pytestmark = pytest.mark.usefixtures("two_blocks")


@pytest.fixture(scope="module")
def model():
    """A model with both kinds of layers, on maps that blocks do not divide."""
    keras.utils.set_random_seed(0)
    x = images = keras.Input([20, 20, 3])
    x = layers.Conv2D(32, 3, strides=2, activation="relu")(x)
    halo = HaloAttention(32, block_size=4, halo_size=1)
    for layer in (LambdaLayer(32, scope=5), halo):
        x = layers.ReLU()(layers.BatchNormalization()(layer(x)))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(images, layers.Dense(7)(x), name="both")


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    """A function from a format to the folder of its export, and the comparison with Keras."""

    @functools.cache
    def export(format):
        out = tmp_path_factory.mktemp(format)
        return out, write_runtime(model, out, NAMES, format)

    return export


def _logits(model, images):
    """Returns the logits of Keras for the pixels of pictures."""
    pixels = (images / 255.0 - np.array(MEAN)) / np.array(STD)
    return model(pixels.astype("float32")).numpy()


@pytest.mark.usefixtures("measured_cpu")
def test_runtimes_get_no_large_convolution():
    """TensorFlow's is the fastest form of this layer; those of the runtimes are slower than products."""
    images = keras.Input([28, 28, 3])
    x = LambdaLayer(64)(layers.Conv2D(64, 1)(images))
    model = keras.Model(images, layers.Dense(2)(layers.GlobalAveragePooling2D()(x)))
    classify = export_runtimes._classifier(
        TrainedModel(model, Preprocessing(28, MEAN, STD), NAMES), 28
    ).get_concrete_function()
    call = tf.function(lambda x: model(x, training=False)).get_concrete_function(
        tf.zeros([1, 28, 28, 3])
    )
    large = [
        sum(
            op.type == "Conv2D" and op.inputs[1].shape[0] == 23
            for op in traced.graph.get_operations()
        )
        for traced in (classify, call)
    ]
    assert large == [0, 1]


@pytest.mark.parametrize("format", ["litert", "onnx"])
def test_lambda_and_halo_layers_equal_keras(model, exported, format):
    out, parity = exported(format)
    for number in (7, 1, 2):
        images = noise(number, 20, 20, 3)
        found = run_exported(out, images, format)
        logits = _logits(model, images)
        assert_allclose(found["logits"], logits, atol=1e-4 * logits.std())
        expected = tf.nn.softmax(logits)
        assert_allclose(found["probabilities"], expected, atol=1e-5)
    assert parity.num_equal == parity.num_images == 64
    assert parity.logit_difference < 1e-4 * parity.logit_std
    assert (out / "class_names.txt").read_text().splitlines() == NAMES


@pytest.mark.slow
@pytest.mark.parametrize(
    "format",
    [pytest.param("litert", marks=pytest.mark.weekly), "litert_int8", "onnx"],
)
def test_pictures_of_any_size_equal_keras(model, tmp_path, format):
    write_runtime(model, tmp_path, NAMES, format, any_size=True)
    any_size = keras.models.clone_model(
        model, input_tensors=keras.Input([None, None, 3])
    )
    any_size.set_weights(model.get_weights())
    tolerance = 0.1 if format == "litert_int8" else 1e-4
    for shape in ([1, 20, 20], [2, 33, 17], [3, 64, 45]):
        pictures = noise(*shape, 3)
        logits = _logits(any_size, pictures)
        found = run_exported(tmp_path, pictures, format)["logits"]
        assert_allclose(found, logits, atol=tolerance * logits.std())


def test_axes_of_onnx_have_names(tmp_path):
    onnx = pytest.importorskip("onnx")
    images = keras.Input([20, 20, 3])
    model = keras.Model(images, layers.GlobalAveragePooling2D()(images))
    write_runtime(model, tmp_path, "rgb", "onnx", any_size=True)
    graph = onnx.load(tmp_path / "model.onnx").graph
    for tensor in (*graph.input, *graph.output):
        names = [axis.dim_param for axis in tensor.type.tensor_type.shape.dim[:-1]]
        assert names == ["batch", "height", "width"][: len(names)]


def test_size_of_a_table_is_fixed(tmp_path):
    images = keras.Input([20, 20, 3])
    x = layers.GlobalAveragePooling2D()(GlobalAttention(16)(images))
    model = keras.Model(images, layers.Dense(7)(x), name="attending")
    with refused("'attending' cannot be .* at most 20"):
        write_runtime(model, tmp_path, NAMES, "onnx", any_size=True)
    assert not any(tmp_path.iterdir())


def test_subclassed_model_is_written(tmp_path):
    class Mean(keras.Model):
        def call(self, x):
            return keras.ops.mean(x, [1, 2])

    found = write_runtime(Mean(), tmp_path, list("rgb"))
    assert found.num_equal == 64


def test_opset_is_that_of_the_file(model, tmp_path):
    onnx = pytest.importorskip("onnx")
    write_runtime(model, tmp_path, NAMES, "onnx", opset=14)
    written = onnx.load(tmp_path / "model.onnx")
    assert [x.version for x in written.opset_import if not x.domain] == [14]


def test_8_bit_weights_are_smaller_and_close(exported):
    (large, exact), (small, rounded) = map(exported, ("litert", "litert_int8"))
    sizes = [(out / "model.tflite").stat().st_size for out in (large, small)]
    assert sizes[1] < 0.9 * sizes[0]
    assert exact.logit_difference < rounded.logit_difference < 0.5 * rounded.logit_std


def test_gray_model_takes_rgb_pictures(tmp_path):
    flat = linear_model((4, 4, 1), 2)
    write_runtime(flat, tmp_path, "ab", input_size=4, mean=(0.0,), std=(1.0,))
    pictures = noise(2, 4, 4, 3)
    gray = tf.image.rgb_to_grayscale(tf.constant(pictures, tf.float32) / 255.0)
    found = run_exported(tmp_path, pictures)["logits"]
    assert_allclose(found, flat(gray), atol=1e-4)


@pytest.mark.parametrize(
    ("function", "message"),
    [(tf.math.bessel_i0, "BesselI0"), (lambda x: x / 0.0 * 0.0, "not numbers")],
)
def test_what_litert_does_not_compute_is_named(tmp_path, function, message):
    odd = linear_model(SHAPE, 2, layers.Lambda(function, output_shape=SHAPE))
    with refused(f"model 'linear' cannot be written as litert_int8: .*{message}"):
        write_runtime(odd, tmp_path, "ab", "litert_int8", input_size=4)
    assert not list(tmp_path.iterdir())


def test_other_logits_than_of_keras_are_refused(tmp_path, monkeypatch):
    """A converter shifts them by two thousandths of their deviation."""
    flat = linear_model(SHAPE, 2)
    shift = 2e-3 * _logits(flat, comparison.random_pictures(4).images).std()
    sizes = set()

    def run(images):
        sizes.add(len(images))
        logits = _logits(flat, images) + shift
        return {"logits": logits, "probabilities": tf.nn.softmax(logits)}

    changes = {"convert": lambda *_: b"content", "load": lambda content: run}
    chosen = dataclasses.replace(export_runtimes.FORMATS["onnx"], **changes)
    monkeypatch.setitem(export_runtimes.FORMATS, "onnx", chosen)
    with refused("cannot be written as onnx: compared with Keras on 64 random"):
        write_runtime(flat, tmp_path, "ab", "onnx", input_size=4)
    assert not list(tmp_path.iterdir())
    assert sizes == {1, 2, 7}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "litret"}, "unknown format 'litret'; did you mean litert"),
        ({"format": "onnx", "opset": 3}, "opset must be from 14 to 18, got 3"),
        (
            {"format": "onnx", "batch_size": 0},
            "batch_size must be a positive integer, got 0",
        ),
        (
            {"format": "litert", "opset": 17},
            "opset must be left out for the format 'litert', got 17",
        ),
        (
            {"format": "litert_int8_full", "any_size": True},
            "any_size must be False for the format",
        ),
    ],
)
def test_wrong_arguments_are_refused(tmp_path, options, message):
    with refused(message):
        export_weights("any", "none", tmp_path, options=Options(**options))


def test_bfloat16_run_is_exported_in_float32(tmp_path, monkeypatch, capsys):
    recipe = recipe_with("digits", mixed_precision=True, ema_decay=0.5)

    def create(*_, **__):  # under the current policy
        x = keras.Input([32, 32, 3])
        return keras.Model(x, layers.Dense(10, name="logits")(layers.Flatten()(x)))

    monkeypatch.setattr("lambdanet.models.zoo.create_model", create)
    (tmp_path / "datasets").mkdir()  # digits are not in it
    data_dir = str(tmp_path / "datasets")
    model = write_run(tmp_path / "run", recipe, list("9876543210"), data_dir)
    assert model.layers[-1].compute_dtype == "bfloat16"
    parity = export(tmp_path / "run", tmp_path / "out", options=Options("litert"))
    assert parity.logit_difference < 1e-4 * parity.logit_std
    names = sorted(file.name for file in (tmp_path / "out").iterdir())
    assert names == ["class_names.txt", "model.tflite"]
    # The class names of the run are enough.
    text = (tmp_path / "out/class_names.txt").read_text()
    assert "".join(text.split()) == "9876543210"
    said = capsys.readouterr().out
    assert "to compare on: dataset digits is not on disk: " in said
    assert not list((tmp_path / "datasets").iterdir())


def test_missing_converter_is_named(model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tf2onnx", None)
    with refused(r"format 'onnx' needs tf2onnx; pip install 'lambdanet\[onnx\]'"):
        write_runtime(model, tmp_path, NAMES, "onnx")


TWO_CLASSES = recipe_with("folder", num_classes=2, input_size=8)


def _write_folder(root, count):
    """Writes pictures of one gray value each; the first half is of class 0."""
    for split, label in itertools.product(("train", "validation"), range(2)):
        (root / split / str(label)).mkdir(parents=True)
    for value in range(count):
        name = f"{2 * value // count}/{value:03d}.png"
        write_picture(root / "validation" / name, [value] * 3)


def _pictures(root, recipe=TWO_CLASSES):
    """Returns the pictures of the comparison."""
    return comparison.evaluation_pictures(open_dataset(recipe, root))


@pytest.mark.parametrize("count", [3, 64, 75, 200])
def test_pictures_are_spread_over_the_split(tmp_path, count):
    _write_folder(tmp_path, count)
    images, name, _ = _pictures(tmp_path)
    assert images.shape == (min(count, 64), 8, 8, 3) and images.dtype == np.uint8
    values = np.unique(images)  # the positions of the pictures in the split
    assert len(values) == len(images) and (images == images[:, :1, :1, :1]).all()
    assert np.diff([-1, *values, count]).max() <= count // 5 + 1
    assert name == "pictures of folder validation"


def test_unreadable_pictures_are_left_out(tmp_path):
    _write_folder(tmp_path, 3)
    for value in range(3):
        images, *_ = _pictures(tmp_path)
        assert len(images) == 3 - value
        folder = tmp_path / "validation" / str(2 * value // 3)
        (folder / f"{value:03d}.png").write_bytes(b"no picture")
    with refused("none of the pictures of folder validation can be read"):
        _pictures(tmp_path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run, and its 70 pictures for evaluation."""
    root = tmp_path_factory.mktemp("trained")
    _write_folder(root / "pictures", 70)
    recipe = dataclasses.replace(
        TWO_CLASSES,
        model="lambda_resnet_tiny",
        input_size=16,
        crop_fraction=1.0,
        mean=MEAN,
        std=STD,
    )
    write_run(root / "run", recipe, ["0", "1"], str(root / "pictures"))
    return root


@pytest.mark.slow
def test_run_is_compared_on_its_evaluation_pictures(trained, tmp_path, capsys):
    parity = export(trained / "run", tmp_path / "out", options=Options("litert_int8"))
    assert capsys.readouterr().out.endswith(f"{parity}\n")
    assert str(parity).startswith(
        "compared with Keras on 64 pictures of folder validation: the top class "
    )

    recipe = model_dirs.load_recipe(trained / "run")
    images, *_ = _pictures(trained / "pictures", recipe)
    model, _ = model_dirs.load_trained_model(trained / "run")
    logits = _logits(model, images)
    found = run_exported(tmp_path / "out", images)
    differences = np.abs(tf.nn.softmax(logits) - found["probabilities"])
    # Those of the comparison are of pictures one by one.
    assert parity.probability_difference == pytest.approx(differences.max(), rel=0.01)
    firsts = found["logits"].argmax(-1)
    assert parity.num_equal == np.sum(firsts == logits.argmax(-1))


def test_run_without_pictures_is_compared_on_random_ones(trained, tmp_path, capsys):
    shutil.copytree(trained / "run", tmp_path / "run")
    gone = tmp_path / "gone"
    (tmp_path / "run" / model_dirs.DATA_DIR).write_text(f"{gone}\n")
    parity = export(tmp_path / "run", tmp_path / "out", options=Options("litert"))
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith(
        "no pictures of folder validation to compare on: data_dir must be given: "
    )
    assert (
        last == str(parity)
        and "on 64 random pictures: the top class is the same for 64, by " in last
    )

    words = [
        f"--model_dir={tmp_path / 'run'}",
        f"--data_dir={gone}",
        f"--out={tmp_path / 'other'}",
    ]
    status = cli.main(["export", "--format=litert", *words])
    message = f"data_dir must be the folder of the pictures, with .*, got '{gone}'"
    assert_refused(status, message, capsys)
    assert not (tmp_path / "other").exists()

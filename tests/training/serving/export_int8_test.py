# SPDX-License-Identifier: Apache-2.0
"""Tests of LiteRT with 8-bit activations: types, accuracy, the pictures to calibrate on, and errors."""

import contextlib
import functools
import io

import keras
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.compiled_model import CompiledModel
from ai_edge_litert.interpreter import Interpreter
from helpers import assert_close, noise, write_picture
from keras import layers
from refusals import refused
from small_models import linear_model
from tiny_weights import export_words, write_tiny_weights
from training_runs import open_dataset, recipe_with, run_exported, write_runtime

from lambdanet import (
    CenteredMaxPooling2D,
    HaloAttention,
    LambdaLayer,
    LocalAttention,
    cli,
)
from lambdanet.training.evaluate import evaluate, open_split
from lambdanet.training.run import model_dir as model_dirs
from lambdanet.training.serving import comparison, export_runtimes
from lambdanet.training.serving.comparison import Pictures
from lambdanet.training.serving.export import Options, export
from lambdanet.training.serving.trained_weights import load_run
from lambdanet.training.tasks.classification import ClassOutputs
from lambdanet.training.train import train

FORMAT = "litert_int8_full"
RECIPE = recipe_with("digits", input_size=16, epochs=6, augmentation="none")

pytestmark = pytest.mark.usefixtures("two_blocks")


@pytest.fixture(scope="module")
def run(tmp_path_factory, data_dir, two_blocks):
    """The folder of a run on digits."""
    path = tmp_path_factory.mktemp("run")
    train(RECIPE, path, data_dir)
    return path


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    """The folder of its export, the comparison with Keras, and what was printed."""
    out = tmp_path_factory.mktemp("exported") / "digits"
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        parity = export(run, out, options=Options(FORMAT))
    return out, parity, shown.getvalue()


def _noise(count, size=16):
    return Pictures(noise(count, size, size, 3), "noise")


@pytest.mark.slow
def test_only_outputs_are_floats(exported):
    """The input has bytes as they are in pictures, and the sizes of an open batch are int32."""
    interpreter = Interpreter(str(exported[0] / "model.tflite"))
    (images,) = interpreter.get_input_details()
    assert images["dtype"] == np.uint8
    assert images["quantization"] == (1.0, 0)
    assert [*images["shape_signature"]] == [-1, 16, 16, 3]
    outputs = {x["index"] for x in interpreter.get_output_details()}
    tensors = interpreter.get_tensor_details()
    assert {x["index"] for x in tensors if x["dtype"] == np.float32} == outputs
    types = {x["dtype"] for x in tensors}
    assert types == {np.float32, np.int8, np.int32, np.uint8}


@pytest.mark.slow
def test_accuracies_are_those_of_both_models(run, exported, data_dir):
    out, parity, said = exported
    *_, comparison_line, accuracies = said.splitlines()
    assert comparison_line.startswith("compared with Keras on 355 pictures of digits")
    assert accuracies.startswith("top-1 on 355 pictures of digits test: float32 ")
    assert f" %, {FORMAT} " in accuracies
    before, after = parity.accuracies
    count = parity.num_images
    assert before > 0.8
    assert parity.num_equal >= 0.95 * count
    assert abs(before - after) <= 1 - parity.num_equal / count

    dataset = open_dataset(RECIPE, data_dir)
    source = dataset.source
    assert count == dataset.num_examples(RECIPE.eval_split)
    runner = Interpreter(str(out / "model.tflite")).get_signature_runner()
    num_correct = num_unsure = 0
    for example in source.examples(RECIPE.eval_split, None):
        pixels = source.image(example).pixels()  # uint8 [8, 8, 1]
        gray = tf.round(tf.image.resize(tf.cast(pixels, tf.float32), [16, 16]))
        picture = np.repeat(gray.numpy().astype(np.uint8), 3, axis=-1)
        logits = runner(images=picture[np.newaxis])["logits"][0]
        num_correct += logits.argmax() == source.label(example).numpy()
        second, first = np.sort(logits)[-2:]
        num_unsure += first - second < 0.1 * parity.logit_std
    # A pixel that is rounded otherwise can change the class of these alone.
    assert abs(after * count - num_correct) <= num_unsure
    assert abs(before - evaluate(run)["top_1"]) * count <= num_unsure


@pytest.mark.slow
def test_calibrated_batches_equal_keras(run, tmp_path):
    _, (images, _, labels) = comparison.labeled_pictures(open_split(run, RECIPE, None))
    classify = export_runtimes._classifier(load_run(run), 16)
    logits = classify(images)["logits"]
    loss = keras.losses.SparseCategoricalCrossentropy(True)
    best = min(np.arange(0.2, 2, 0.002), key=lambda x: loss(labels, logits / x))
    images = images[:3]
    expected = tf.nn.softmax(logits[:3] / best)
    for format, *words in (
        ["saved_model"],
        ["litert", "--batch_size=3"],
        ["onnx", "--batch_size=3"],
    ):
        words += [f"--model_dir={run}", f"--out={tmp_path / format}"]
        assert cli.main(["export", f"--format={format}", "--calibrate", *words]) == 0
        found = run_exported(tmp_path / format, images, format)["probabilities"]
        assert_close(found, expected, 0.005)
    temperature = (tmp_path / "onnx/temperature.txt").read_text()
    assert float(temperature) == pytest.approx(best, abs=0.004)

    file = str(tmp_path / "litert/model.tflite")
    compiled = CompiledModel.from_file(file)
    inputs = compiled.create_input_buffers(0)
    outputs = compiled.create_output_buffers(0)
    inputs[0].write(images)
    compiled.run_by_index(0, inputs, outputs)
    found = outputs[1].read(30, np.float32).reshape(3, 10)
    assert_close(found, expected, 0.005)
    shapes = [x["shape_signature"] for x in Interpreter(file).get_tensor_details()]
    assert -1 not in np.concatenate(shapes)


def test_calibration_pictures_are_of_training(run, data_dir, tmp_path):
    """Their labels are numbers of the classes of the run."""
    calibration, labeled = comparison.labeled_pictures(
        open_split(run, RECIPE, data_dir)
    )
    assert calibration.images.shape == (comparison.NUM_CALIBRATION, 16, 16, 3)
    assert calibration.name == "pictures of digits train"
    assert len(set(calibration.labels)) == 10
    assert labeled.name == "pictures of digits test"
    again, _ = comparison.labeled_pictures(open_split(run, RECIPE, data_dir))
    np.testing.assert_array_equal(again.images, calibration.images)
    own = {image.tobytes() for image in calibration.images}
    assert not own & {image.tobytes() for image in labeled.images}
    other = model_dirs.claim(tmp_path / "run", RECIPE, list("9876543210"))
    for before, after in zip(
        (calibration, labeled),
        comparison.labeled_pictures(open_split(other, RECIPE, data_dir)),
        strict=True,
    ):
        np.testing.assert_array_equal(after.labels, 9 - before.labels)


def test_run_without_pictures_is_refused(run, tmp_path):
    with refused("dataset digits is not on disk: "):
        export(run, tmp_path / "out", str(tmp_path), options=Options(FORMAT))
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def weights(tmp_path_factory, two_blocks):
    """The folder of a file of weights with metadata, its class names, and a folder of 64 pictures."""
    root = tmp_path_factory.mktemp("weights")
    keras.utils.set_random_seed(0)
    write_tiny_weights(root)
    (root / "pictures").mkdir()
    for number, image in enumerate(noise(64, 20, 20, 3)):
        write_picture(root / f"pictures/{number}.png", image)
    (root / "pictures/none.png").write_bytes(b"no picture")
    return root


def test_weights_are_calibrated_on_a_folder(weights, tmp_path, capsys):
    words = export_words(weights, tmp_path / "out")
    folder = weights / "pictures"
    assert cli.main([*words, f"--format={FORMAT}", f"--calibration={folder}"]) == 0
    printed = capsys.readouterr()
    *_, last = printed.out.splitlines()
    assert last.startswith(f"compared with Keras on 32 pictures of {folder}: the top ")
    assert printed.err.startswith("skipped: image must be a complete ")
    outputs = run_exported(tmp_path / "out", np.zeros([3, 16, 16, 3], np.uint8))
    assert outputs["probabilities"].shape == (3, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([f"--format={FORMAT}"], f"pictures to calibrate on for the format '{FORMAT}'"),
        (
            ["--format=litert", "--calibration={folder}"],
            f"--calibration needs --format={FORMAT}",
        ),
        (
            [f"--format={FORMAT}", "--calibration={folder}/one"],
            "pictures of {folder}/one to calibrate on must be 32 or more that differ",
        ),
    ],
)
def test_wrong_calibration_is_refused(weights, tmp_path, capsys, options, message):
    for number in range(40):
        write_picture(tmp_path / f"one/{number}.png", (0, 0, 0))
    words = [option.format(folder=tmp_path) for option in options]
    assert cli.main([*export_words(weights, tmp_path / "out"), *words]) == 2
    assert message.format(folder=tmp_path) in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_comparison_reads_logits_and_probabilities():
    """The probabilities of 8 bits tie, and the first one counts."""

    def run(images, scale=1):
        logits = np.float32(images)[:, 0, 0]
        return {"logits": logits, "probabilities": scale * logits}

    pictures = Pictures(np.tile(np.uint8([0, 0, 9]), [7, 1, 1, 1]), "blue pictures")
    outputs = ClassOutputs(list("rgb"))
    partial = functools.partial(run, scale=0)
    parity = comparison.compare(outputs, run, partial, pictures)
    assert (parity.num_equal, parity.num_equal_probabilities) == (7, 0)
    assert str(parity).endswith("; too few pictures, or of one class, to say much")
    outputs.has_one_class = False
    labeled = pictures._replace(labels=np.zeros([7, 3]))
    assert comparison.compare(outputs, run, run, labeled).accuracies is None


@pytest.mark.parametrize(
    "layer",
    [
        LambdaLayer(16, scope=5),
        HaloAttention(16, block_size=4, halo_size=1),
        LocalAttention(16, scope=3, block_size=4),
        CenteredMaxPooling2D(),
    ],
    ids=lambda layer: layer.name,
)
def test_layers_keep_the_range_of_8_bits(layer, tmp_path):
    """What surrounds a map, or is masked, is not so far from the other numbers that 8 bits lose these."""
    keras.utils.set_random_seed(0)
    images = keras.Input([20, 20, 3])
    x = layer(layers.Conv2D(8, 3, strides=2, padding="same")(images))
    x = layers.GlobalAveragePooling2D()(layers.ReLU()(x))
    model = keras.Model(images, layers.Dense(5)(x))
    parity = write_runtime(
        *(model, tmp_path, "abcde", FORMAT),
        pictures=_noise(16, size=20),
        calibration=_noise(64, size=20),
        batch_size=3,
    )
    assert parity.logit_difference < 0.3 * parity.logit_std


@pytest.fixture
def linear_export(tmp_path):
    """A function that exports a model of 4 by 4 pictures, with a layer before its classifier."""

    def export(layer):
        model = linear_model((4, 4, 3), 2, layer)
        calibration = _noise(64, size=4)
        write_runtime(
            model, tmp_path, "ab", FORMAT, calibration=calibration, input_size=4
        )

    yield export
    assert not list(tmp_path.iterdir())


def test_operator_without_8_bits_is_named(linear_export):
    layer = layers.Lambda(lambda x: tf.math.floormod(x, 0.3))
    with refused(
        f"'linear' cannot be written as {FORMAT}: these operations have no 8-bit form: .*FloorMod"
    ):
        linear_export(layer)


def test_model_that_is_another_in_8_bits_is_refused(linear_export):
    """The range of the large numbers leaves nothing of the small ones, which decide."""

    def pad_and_cut(x):
        padded = tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]], constant_values=-1e4)
        return padded[:, 1:-1, 1:-1]

    keras.utils.set_random_seed(0)
    layer = layers.Lambda(pad_and_cut)
    with refused(f"'linear' cannot be written as {FORMAT}: compared with Keras"):
        linear_export(layer)

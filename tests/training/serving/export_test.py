# SPDX-License-Identifier: Apache-2.0
"""An exported model in a process without lambdanet computes the same as the Keras model."""

import contextlib
import io
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_equal_arrays, noise, randomize_normalizations
from keras import layers
from numpy.testing import assert_allclose
from processes import output_of
from refusals import refused
from small_models import linear_model
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import saved_model_pb2
from tiny_weights import export_words, write_tiny_weights
from training_runs import run_exported

import lambdanet
from lambdanet import cli
from lambdanet.core.errors import InputError
from lambdanet.models.preprocessing import BICUBIC, Preprocessing
from lambdanet.models.weights import weight_files
from lambdanet.training.serving.export import (
    _save,
    export_saved_model,
    export_weights,
    in_float32,
)
from lambdanet.training.serving.exported_model import load_classifier
from lambdanet.training.serving.trained_weights import TrainedModel

SIZE, MEAN, STD, CROP = 24, (0.3, 0.4, 0.5), (0.2, 0.25, 0.3), 0.9
NAMES = [f"class {index}" for index in range(7)]

pytestmark = pytest.mark.usefixtures("two_blocks")


def small_model(num_classes=7, last=None):
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input([None, None, 3]),
            layers.Conv2D(8, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.GlobalAveragePooling2D(),
            layers.Dense(num_classes, activation=last, dtype="float32"),
        ]
    )


def lambda_model(num_classes=7):
    return lambdanet.create_model("lambda_resnet_tiny", num_classes=num_classes)


def export_small(out, model=None, class_names=NAMES, **options):
    model = small_model() if model is None else model
    return export_saved_model(model, out, SIZE, MEAN, STD, class_names, **options)


def dtypes_computed(saved_model):
    """Returns the types of all attributes of all operations of a SavedModel."""
    proto = saved_model_pb2.SavedModel()
    proto.ParseFromString((saved_model / "saved_model.pb").read_bytes())
    graph = proto.meta_graphs[0].graph_def
    nodes = [
        *graph.node,
        *(node for function in graph.library.function for node in function.node_def),
    ]
    return {attr.type for node in nodes for attr in node.attr.values()}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A model with random weights, and its loaded SavedModel."""
    model = small_model()
    model.set_weights(
        [abs(noise(*weight.shape) / 255.0) for weight in model.get_weights()]
    )
    out = tmp_path_factory.mktemp("served") / "model"
    assert export_small(out, model, crop_fraction=CROP) == str(out)
    return model, tf.saved_model.load(str(out))


@pytest.fixture(scope="module")
def tiny_weights(tmp_path_factory):
    """A model, and the folder of its weights, like those of `lambdanet convert`."""
    folder = tmp_path_factory.mktemp("tiny")
    keras.utils.set_random_seed(1)
    model = write_tiny_weights(
        folder,
        NAMES,
        input_size=str(SIZE),
        interpolation="bicubic",
        crop_fraction="0.9",
    )
    return model, folder


@pytest.fixture(scope="module")
def tiny_served(tiny_weights):
    """The same folder, with `served`, the export of these weights."""
    folder = tiny_weights[1]
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        assert cli.main(export_words(folder, folder / "served")) == 0
    assert "exported lambda_resnet_tiny (7 classes, 24 px) to" in shown.getvalue()
    return folder


@pytest.mark.slow
def test_process_without_lambdanet_computes_the_same(
    tiny_weights, tiny_served, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    images = {
        "one": noise(1, 24, 24, 3),
        "dark": noise(2, 300, 200, 3) // 4,
    }
    np.savez(tiny_served / "images.npz", **images)
    shown = output_of("serve_without_keras.py", tiny_served)

    results = np.load(tiny_served / "results.npz")
    prepare, expected = Preprocessing(SIZE, MEAN, STD, CROP, BICUBIC), {}
    for name, batch in images.items():
        expected[name] = tf.nn.softmax(
            tiny_weights[0](prepare(tf.constant(batch)), training=False)
        ).numpy()
        assert_allclose(results[name], expected[name], atol=1e-5)
    firsts = np.stack([batch[0] for batch in expected.values()])
    assert np.ptp(firsts, axis=0).max() > 0.01  # the outputs depend on the images
    assert_allclose(results["files"], firsts, atol=1e-5)
    assert_allclose(results["top_probabilities"], -np.sort(-firsts)[:, :5], atol=1e-5)
    assert [names[0] for names in json.loads(shown)] == [
        NAMES[index] for index in firsts.argmax(-1)
    ]


# All kinds are in `picture_table`.
FILE = tf.io.encode_png(noise(9, 12, 3)).numpy()


def test_empty_batch_is_rejected(served):
    signatures = served[1].signatures
    for name, empty in {
        "serving_default": {"images": tf.zeros([0, 9, 9, 3], tf.uint8)},
        "serving_bytes": {"image_bytes": tf.zeros([0], tf.string)},
    }.items():
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="at least one image, got none"
        ):
            signatures[name](**empty)


@pytest.mark.parametrize("file", [b"", b"not an image", FILE[:50]])
def test_bytes_that_are_not_an_image_raise(served, file):
    with pytest.raises(tf.errors.InvalidArgumentError):
        served[1].signatures["serving_bytes"](image_bytes=tf.constant([FILE, file]))


@pytest.mark.parametrize(
    ("build", "policy"),
    [
        (small_model, "bfloat16"),
        (lambda_model, "mixed_float16"),
    ],
)
def test_export_in_float32_for_all_policies(tmp_path, build, policy):
    keras.config.set_dtype_policy(policy)
    try:
        model = build()
        randomize_normalizations(model)
        export_small(tmp_path / "served", model)
        assert keras.config.dtype_policy().name == policy
    finally:
        keras.config.set_dtype_policy("float32")
    same = build()
    same.set_weights([np.asarray(weight, np.float32) for weight in model.get_weights()])

    assert not {types_pb2.DT_BFLOAT16, types_pb2.DT_HALF} & dtypes_computed(
        tmp_path / "served"
    )
    images = noise(2, SIZE, SIZE, 3)
    outputs = run_exported(tmp_path / "served", images, "saved_model")
    prepared = Preprocessing(SIZE, MEAN, STD, 1.0)(tf.constant(images))
    expected = tf.nn.softmax(same(prepared, training=False))
    assert_allclose(outputs["probabilities"], expected, atol=1e-5)


def test_float32_keeps_partly_frozen_layers():
    layer = layers.Bidirectional(layers.SimpleRNN(3, dtype="mixed_bfloat16"))
    model = keras.Sequential([keras.Input([4, 3]), layer])
    layer.forward_layer.trainable = False
    copies = in_float32(model).layers[0].forward_layer.weights
    assert_equal_arrays(layer.forward_layer.weights, copies)


def test_model_of_gray_images(tmp_path):
    model = linear_model((8, 8, 1), 3)
    out = export_saved_model(
        model, tmp_path / "served", 8, (0.5,), (0.25,), ["a", "b", "c"]
    )
    served = tf.saved_model.load(out).signatures["serving_default"]
    gray = noise(4, 8, 8, 1)
    blue = np.full([4, 8, 8, 3], [0, 0, 255], np.uint8)
    dark = np.full_like(gray, 29)  # 0.114 of 255
    for images, levels in ((gray, gray), (gray.repeat(3, -1), gray), (blue, dark)):
        expected = tf.nn.softmax(model((levels / 255 - 0.5) / 0.25))
        outputs = served(images=tf.constant(images))
        assert_allclose(outputs["probabilities"], expected, atol=1e-6)


def test_pictures_of_other_channels_are_refused(served):
    signature = served[1].signatures["serving_default"]
    gray = tf.constant(noise(2, 9, 9, 1))
    expected = signature(images=tf.repeat(gray, 3, axis=-1))["probabilities"]
    np.testing.assert_array_equal(signature(images=gray)["probabilities"], expected)
    for count in (0, 2, 4):
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match="images must have 3 channels, or 1 if they",
        ):
            signature(images=tf.zeros([1, 9, 9, count], tf.uint8))


def test_class_names_are_in_an_asset(tmp_path):
    names = ["cat, tabby", "Straße", "日本", "x" * 300]
    export_small(tmp_path / "served", small_model(len(names)), names)
    lines = (
        (tmp_path / "served/assets/class_names.txt")
        .read_text(encoding="utf-8")
        .splitlines()
    )
    assert lines == names
    loaded = tf.saved_model.load(str(tmp_path / "served"))
    assert [name.decode() for name in loaded.class_names().numpy()] == names


def test_thresholds_are_served_and_recorded(tmp_path):
    """Classes are present from them on."""
    model = small_model()
    model.set_weights([0 * weight for weight in model.get_weights()])
    record = {"task": "multilabel", "thresholds": [0.5] * 7}
    trained = TrainedModel(model, Preprocessing(SIZE, MEAN, STD), NAMES, record)
    found = load_classifier(_save(trained, tmp_path / "served"))
    assert found.record == record
    outputs = found.signatures["serving_default"](images=noise(1, 9, 9, 3))
    assert np.all(outputs["is_present"])
    assert (tmp_path / "served/assets.extra/network.json").exists()


def test_existing_folder_must_be_empty(tmp_path):
    (tmp_path / "empty").mkdir()
    export_small(tmp_path / "empty")
    before = sorted(tmp_path.rglob("*"))
    with refused("saved_model.pb' exists; --overwrite"):
        export_small(tmp_path / "empty")
    (tmp_path / "file").write_text("mine")
    with refused("is a file"):
        export_small(tmp_path / "file")
    with refused("cannot be written"):
        export_small(tmp_path / "file/below")
    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "file"])
    (tmp_path / "empty/variables/old").touch()
    export_small(tmp_path / "empty", overwrite=True)
    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "file"])


@pytest.mark.parametrize(
    ("error", "raised"),
    [(OSError(28, "disk full"), InputError), (KeyboardInterrupt(), KeyboardInterrupt)],
)
def test_failed_export_leaves_nothing(tmp_path, monkeypatch, error, raised):
    def save(module, path, signatures):
        (tmp_path.joinpath(path) / "saved_model.pb").write_text("half")
        raise error

    monkeypatch.setattr(tf.saved_model, "save", save)
    with pytest.raises(raised):
        export_small(tmp_path / "served")
    assert list(tmp_path.iterdir()) == []


def tf_keras_model():
    tf_keras = pytest.importorskip("tf_keras")
    return tf_keras.Sequential([tf_keras.Input([None, None, 3])])


def head_of(*shape):
    return keras.Sequential([keras.Input([*shape, 3]), layers.ReLU()])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(tf_keras_model, "tf_keras Sequential", marks=pytest.mark.rest),
        (lambda: layers.Dense(7), "model must be a Keras model, got <"),
        (lambda: small_model(last="softmax"), "must be logits, got probabilities"),
        (lambda: small_model(6), r"logits \[b, 7\] for 7 class names, got \(None, 6\)"),
        (lambda: head_of(9, 9), "must accept images"),
        (lambda: head_of(None, None), "must be logits"),
        (
            lambda: lambda_model(0),
            "must have a classifier, got 'lambda_resnet_tiny' with num_cl",
        ),
    ],
)
def test_other_models_are_refused(tmp_path, make, message):
    with refused(message) as error:
        export_small(tmp_path / "served", make())
    assert "File" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["two\nlines"] * 7, r"a name of one line in UTF-8, got 'two\\nlines'"),
        (["alone"], "class_names must be two or more, got"),
    ],
)
def test_wrong_class_names_are_refused(tmp_path, names, message):
    with refused(message):
        export_small(tmp_path / "served", small_model(len(names)), names)
    assert list(tmp_path.iterdir()) == []


def test_weights_without_metadata_are_rejected(tiny_weights, tmp_path):
    model, folder = tiny_weights
    path = folder / "tiny.safetensors"
    two = tmp_path / "two.txt"
    two.write_text("a\nb\n")
    plain = tmp_path / "plain.safetensors"
    weight_files.save(model, plain)
    for file, names, message in (
        (path, None, "class_names must be a file with .* one per line, got None"),
        (path, two, "number of lines in '.*two.txt' must be 7, one per class, got 2"),
        (path, tmp_path / "none.txt", "none.txt' does not exist"),
        (plain, None, "weights must be a file whose metadata has input_size, mean and"),
        ("nothing", None, "weights must be an existing"),
    ):
        with refused(message):
            export_weights("lambda_resnet_tiny", file, tmp_path / "served", names)
    assert not (tmp_path / "served").exists()

# SPDX-License-Identifier: Apache-2.0
"""Weight files: round trips, and errors that change nothing."""

import json
import re
from functools import partial

import keras
import numpy as np
import pytest
import refusals
from helpers import assert_close, assert_equal_arrays, images
from refusals import unchanged

import lambdanet
from lambdanet import create_model
from lambdanet.models.unet import UNet
from lambdanet.models.weights import tensor_files, weight_files

NAME = "lambda_resnet_tiny"
create = partial(create_model, NAME, num_classes=10)


@pytest.fixture(scope="module")
def model():
    return create()


@pytest.fixture
def file(model, tmp_path):
    weight_files.save(
        model, tmp_path / "tiny.safetensors", {"mean": "0.5", "license": "Apache-2.0"}
    )
    return tmp_path / "tiny.safetensors"


def save(model, path):
    weight_files.save(model, path)
    return path


def refused(path, **arguments):
    with refusals.refused(".") as error:
        create(weights=path, **arguments)
    return str(error.value)


def test_file_has_weights_and_metadata(model, file):
    x = images(2, 32, 32, 3)
    for path in (file, str(file)):
        same = create(weights=path)
        assert_close(same(x), model(x), 1e-6)
    metadata = tensor_files.metadata_of(file)
    assert len(metadata.pop("sha256")) == 64
    assert metadata == {"model": NAME, "mean": "0.5", "license": "Apache-2.0"}
    with refusals.refused("must be a .safetensors file, got 'x.bin'"):
        weight_files.save(model, "x.bin")
    same.weights[0].assign(same.weights[0] * np.nan)
    with refusals.refused("has NaN or infinity"):
        weight_files.save(same, file)


def test_file_that_does_not_fit(model, tmp_path):
    path = save(model, tmp_path / "tiny.safetensors")
    message = (
        "does not fit 'lambda_resnet_tiny': logits/bias has the shape (10,), not (11,); "
        "logits/kernel has"
    )
    assert message in refused(path, num_classes=11)
    assert "position/table has the shape (7, 7, 16), not (5, 5, 16)" in refused(
        path, scope=5
    )
    arrays, metadata = tensor_files.read_safetensors(path)
    arrays["stranger"] = arrays.pop("logits/bias")
    tensor_files.write_safetensors(path, arrays, metadata)
    with unchanged(model, "logits/bias is missing; stranger has no variable"):
        weight_files.load_weights(model, path)


def test_keras_weights_are_refused_and_read_by_keras(model, tmp_path):
    path = tmp_path / "tiny.weights.h5"
    model.save_weights(path)
    message = refused(path)
    assert "weights must be an existing .safetensors file" in message
    assert "load it by model.load_weights into a model of the same arch" in message
    same = create()
    same.load_weights(path)
    assert_equal_arrays(model.get_weights(), same.get_weights())


def test_a_backbone_takes_the_weights_of_a_classifier(model, file, tmp_path):
    x = images(2, 32, 32, 3)
    expected = keras.Model(model.input, model.get_layer("pool").input)(x)
    # For 1000 classes.
    backbone = create_model(NAME, features_only=True, weights=file)
    assert_close(backbone(x)["5"], expected, 1e-6)
    message = refused(file, num_classes=None, features_only=True, scope=5)
    assert "position/table has the shape" in message
    for other in (model, backbone):
        path = save(other, tmp_path / "other.safetensors")
        again = create_model(NAME, features_only=True, weights=path)
        assert_close(again(x)["5"], expected, 1e-6)
    assert "logits/bias is missing; logits/kernel is missing" in refused(path)


def test_named_weights_in_the_cache(model, file, tmp_path, monkeypatch):
    monkeypatch.setenv("LAMBDANET_HOME", str(tmp_path / "home"))
    assert "or the name of a set in" in refused("mine")
    (tmp_path / "home").mkdir(exist_ok=True)
    cached = file.rename(tmp_path / f"home/{NAME}.mine.safetensors")
    same = create(weights="mine")
    np.testing.assert_array_equal(same.get_weights()[0], model.get_weights()[0])
    assert "got '../mine'" in refused("../mine")
    message = (
        "none are published for lambda_resnet_tiny: see `lambdanet list --pretrained`"
    )
    assert refused("imagenet").endswith(message)
    arrays = tensor_files.read_tensors(cached)  # equal names and shapes
    tensor_files.write_safetensors(cached, arrays, {"model": "resnet_50"})
    assert refused("mine").endswith(
        "does not fit 'lambda_resnet_tiny': it has the weights of 'resnet_50'"
    )
    cached.write_bytes(cached.read_bytes()[:-1])
    assert refused("mine").endswith(
        f"; remove '{cached}': weights of the hub are fetched again"
    )
    file.write_bytes(b"")
    assert "remove" not in refused(file)


def test_damaged_files(model, file):
    content = file.read_bytes()
    length = 8 + int.from_bytes(content[:8], "little")
    data, bias = content[length:], "logits/bias"
    header = json.loads(content[8:length])
    header.pop("__metadata__")
    text = json.dumps(header)[:-1]
    for damaged, message in (
        (content[:-4], "file not fully covered"),
        (content[:-1] + bytes([content[-1] ^ 1]), "its sha256 is"),
        ("[" * 100_000, "invalid JSON in header"),
        (
            f'{text}, "{bias}": {json.dumps(header[bias])}}}',
            "the name 'logits/bias' occurs 2 times",
        ),
        (f"{text}}}".replace(bias, "logits\\nbias"), r"the name 'logits\nbias'"),
        (
            text + ', "__metadata__": {"a": "b", "a": "c"}}',
            "the name 'a' occurs 2 times",
        ),
    ):
        if isinstance(damaged, str):
            damaged = len(damaged).to_bytes(8, "little") + damaged.encode() + data
        file.write_bytes(damaged)
        with unchanged(model, re.escape(message)):
            weight_files.load_weights(model, file)


def test_arrays_of_every_type(tmp_path):
    dtypes = (*tensor_files.FLOATS, np.dtype(np.int64), np.dtype(np.int8))
    arrays = {dtype.name: np.arange(6).reshape(2, 3).astype(dtype) for dtype in dtypes}
    arrays["transposed"] = np.arange(6.0).reshape(2, 3).T
    arrays["empty"] = np.zeros([0, 2], np.float32)
    arrays["scalar"] = np.float32(3.0).reshape([])
    tensor_files.write_safetensors(tmp_path / "x.safetensors", arrays, {})
    read, _ = tensor_files.read_safetensors(tmp_path / "x.safetensors")
    for name, array in arrays.items():
        assert read[name].dtype == array.dtype
        np.testing.assert_array_equal(read[name], array)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.full([10], 1e300), "logits/bias has NaN or infinity"),
        (
            np.arange(10, dtype=np.int32),
            "logits/bias has int32, not floating-point numbers",
        ),
    ],
)
def test_values_that_are_not_weights(model, tmp_path, value, message):
    path = save(model, tmp_path / "bad.safetensors")
    arrays, metadata = tensor_files.read_safetensors(path)
    tensor_files.write_safetensors(path, {**arrays, "logits/bias": value}, metadata)
    with unchanged(model, message):
        weight_files.load_weights(model, path)


@pytest.mark.parametrize("name", ["x" * 5000, "~nobody-here/x", "a\0b"])
def test_weights_that_name_no_file(name):
    message = refused(name)
    assert "weights must be an existing .safetensors file" in message
    assert len(message) < 600


def test_keras_file_as_weights_names_the_remedy():
    message = refused("network.keras")
    assert "; load it by keras.models.load_model, and write its weights by" in message


@pytest.mark.parametrize("variable", ["LAMBDANET_HOME", "HOME"])
def test_a_home_that_is_a_file_is_refused(file, monkeypatch, variable):
    monkeypatch.delenv("LAMBDANET_HOME", raising=False)
    monkeypatch.setenv(variable, str(file))
    message = "LAMBDANET_HOME must be a folder, got '.*tiny.safetensors.*is a file"
    with refusals.refused(message):
        create_model("lambda_resnet26t", weights="imagenet")


def test_global_tables_are_resized(tmp_path):
    """Offset 0 and both ends keep their values; local tables are unchanged."""
    small = create_model(NAME, input_size=32, scope=None)
    path = save(small, tmp_path / "small.safetensors")
    large = create_model(NAME, input_size=64, scope=None, weights=path)
    name = "c4_block1_spatial"
    old, new = (net.get_layer(name).position.table.numpy() for net in (small, large))
    assert (old.shape, new.shape) == ((7, 7, 16), (15, 15, 16))
    assert_close(new[::7, ::7], old[::3, ::3], 1e-6)


def test_other_channels_take_weights_for_rgb(model, file):
    """A gray picture has the logits of three equal channels."""
    x = images(2, 32, 32, 3)
    gray = create(in_channels=1, weights=file)
    assert_close(gray(x[..., :1]), model(np.repeat(x[..., :1], 3, -1)), 1e-5)


@pytest.mark.parametrize(
    "build",
    [
        partial(create, features_only=True),
        partial(lambdanet.create_unet, UNet((4, 8), ("C", "C"), ("C",))),
        partial(lambdanet.create_sequence_model, "lambda_resnet18_1d"),
    ],
)
def test_two_copies_in_one_model_have_own_names(tmp_path, build):
    """Each by itself is saved, and loaded into a network of any name; both together are refused."""
    networks = build(), build(layer_name="other")
    inputs = keras.Input(networks[0].input_shape[1:])
    outputs = [network(inputs) for network in networks]
    both = keras.Model(inputs, outputs, name="both")
    assert [layer.name for layer in both.layers[1:]] == [networks[0].name, "other"]
    path = tmp_path / "weights.safetensors"
    message = (
        r"the \d+ names of the weights of 'both' must be different, got '\d+ names"
    )
    with refusals.refused(message):
        save(both, path)
    assert not path.exists()
    weight_files.load_weights(networks[0], save(networks[1], path))
    with refusals.refused(message):
        weight_files.load_weights(both, path)


@pytest.mark.parametrize("in_channels", [2, 3, 4, 7])
def test_kernel_for_other_channels_is_repeated_and_scaled(in_channels):
    """As timm does it."""
    kernel = np.random.default_rng(0).normal(size=[3, 3, 3, 5])
    found = weight_files.for_channels(kernel, in_channels)
    for channel in range(in_channels):
        expected = kernel[:, :, channel % 3] * 3 / in_channels
        assert_close(found[:, :, channel], expected, 1e-6)


def test_weights_for_other_channels_than_rgb_do_not_fit(tmp_path):
    four = create(in_channels=4)
    message = "stem1_conv/kernel has the shape (3, 3, 4, 8), not (3, 3, 3, 8)"
    path = save(four, tmp_path / "four.safetensors")
    assert message in refused(path)
    weight_files.save(four, path, {"in_channels": "four"})
    assert "four.safetensors' must be a number, got 'four'" in refused(path)

# SPDX-License-Identifier: Apache-2.0
"""Weight files: round trips, and errors that change nothing."""

import json

import h5py
import numpy as np
import pytest
import tf_keras as keras
from helpers import images

import lambdanet
from lambdanet.errors import InputError
from lambdanet.models.weights import keras_h5, tensor_files, weight_files

NAME = "lambda_resnet_tiny"


@pytest.fixture(scope="module")
def model():
    return lambdanet.create_model(NAME, num_classes=10)


@pytest.fixture
def file(model, tmp_path):
    weight_files.save(model, tmp_path / "tiny.safetensors", {"mean": "0.5", "license": "Apache-2.0"})
    return tmp_path / "tiny.safetensors"


def refused(path, **arguments):
    with pytest.raises(InputError) as error:
        lambdanet.create_model(NAME, weights=path, **{"num_classes": 10, **arguments})
    return str(error.value)


def test_both_kinds_of_files(model, file, tmp_path):
    model.save_weights(tmp_path / "tiny.weights.h5")
    x = images(2, 32, 32, 3)
    for path in (file, str(file), tmp_path / "tiny.weights.h5"):
        same = lambdanet.create_model(NAME, num_classes=10, weights=path)
        np.testing.assert_allclose(same(x), model(x), atol=1e-6)


def test_keras_file_that_does_not_fit(model, tmp_path):
    path = tmp_path / "tiny.weights.h5"
    model.save_weights(path)
    message = refused(path, num_classes=11)
    assert "does not fit 'lambda_resnet_tiny': logits/bias has the shape (10,), not (11,); " in (message)
    assert "\n" not in message
    assert "position/table has the shape (7, 7, 16), not (5, 5, 16)" in refused(path, scope=5)
    with h5py.File(path, "a") as file:
        file["layers/stranger/vars/0"] = np.zeros(3)
        del file["layers/dense/vars/1"]
        file["layers/dense/vars/1"] = "text"
    other = lambdanet.create_model(NAME, num_classes=10)
    before = other.get_weights()
    with pytest.raises(
        InputError, match="layers/stranger/vars/0 has no variable; logits/bias has .*, not floating-point"
    ):
        weight_files.load_weights(other, path)
    for old, new in zip(before, other.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_a_keras_file_of_a_compiled_model(tmp_path):
    """Variables of the optimizer are ignored."""
    layers = [keras.layers.Dense(4, name="one"), keras.layers.BatchNormalization(name="two")]
    model = keras.Sequential([keras.Input([3]), *layers])
    model.compile("adam", "mse")
    model.fit(images(2, 3), images(2, 4), verbose=0)
    model.save_weights(tmp_path / "compiled.weights.h5")
    with keras_h5.open_arrays(tmp_path / "compiled.weights.h5", model) as found:
        assert found.keys() == {variable.name.removesuffix(":0") for variable in model.weights}
        for variable in model.weights:
            np.testing.assert_array_equal(found[variable.name.removesuffix(":0")], variable)


def test_a_backbone_takes_the_weights_of_a_classifier(model, file, tmp_path):
    x = images(2, 32, 32, 3)
    expected = keras.Model(model.input, model.get_layer("pool").input)(x)
    backbone = lambdanet.create_model(NAME, features_only=True, weights=file)  # for 1000 classes
    np.testing.assert_allclose(backbone(x)["5"], expected, atol=1e-6)
    with pytest.raises(InputError, match="position/table has the shape"):
        lambdanet.create_model(NAME, features_only=True, weights=file, scope=5)
    model.save_weights(tmp_path / "whole.weights.h5")
    backbone.save_weights(tmp_path / "features.weights.h5")
    for other in ("whole", "features"):
        path = tmp_path / f"{other}.weights.h5"
        again = lambdanet.create_model(NAME, features_only=True, weights=path)
        np.testing.assert_allclose(again(x)["5"], expected, atol=1e-6)
    assert "logits/bias is missing; logits/kernel is missing" in refused(path)


def test_metadata(file):
    metadata = tensor_files.metadata_of(file)
    assert {**metadata, "sha256": ""} == {
        "model": NAME,
        "mean": "0.5",
        "license": "Apache-2.0",
        "sha256": "",
    }
    assert len(metadata["sha256"]) == 64


def test_weights_of_another_network_are_refused(model, file):
    """Also where names and shapes are the same."""
    tensor_files.write_safetensors(file, tensor_files.read_tensors(file), {"model": "resnet_50"})
    assert refused(file).endswith("does not fit 'lambda_resnet_tiny': it has the weights of 'resnet_50'")


def test_a_damaged_file_of_the_cache_can_be_removed(file, tmp_path, monkeypatch):
    monkeypatch.setenv("LAMBDANET_HOME", str(tmp_path / "home"))
    cached = tmp_path / "home" / f"{NAME}.mine.safetensors"
    cached.parent.mkdir()
    cached.write_bytes(file.read_bytes()[:-1])
    assert refused("mine").endswith(f"; remove '{cached}': weights of the hub are fetched again")
    file.write_bytes(b"")
    assert "remove" not in refused(file)


def test_named_weights_in_the_cache(model, file, tmp_path, monkeypatch):
    monkeypatch.setenv("LAMBDANET_HOME", str(tmp_path))
    assert "or the name of a set in" in refused("mine")
    file.rename(tmp_path / f"{NAME}.mine.safetensors")
    same = lambdanet.create_model(NAME, num_classes=10, weights="mine")
    np.testing.assert_array_equal(same.get_weights()[0], model.get_weights()[0])
    assert "got '../mine'" in refused("../mine")


def test_safetensors_that_do_not_fit(model, file):
    message = refused(file, num_classes=11)
    assert "logits/bias has the shape (10,), not (11,); logits/kernel has the shape (512, 10)" in message
    assert "position/table has the shape (7, 7, 16), not (5, 5, 16)" in refused(file, scope=5)
    arrays, metadata = tensor_files.read_safetensors(file)
    arrays["stranger"] = arrays.pop("logits/bias")
    tensor_files.write_safetensors(file, arrays, metadata)
    other = lambdanet.create_model(NAME, num_classes=10)
    before = other.get_weights()
    with pytest.raises(InputError, match="logits/bias is missing; stranger has no variable"):
        weight_files.load_weights(other, file)
    for old, new in zip(before, other.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_damaged_files(model, file, tmp_path):
    content = file.read_bytes()
    length = 8 + int.from_bytes(content[:8], "little")
    changed = bytearray(content)
    changed[-1] ^= 1
    header = json.loads(content[8:length])
    header["logits/bias"]["data_offsets"] = [0, 10**9]
    header["__metadata__"] = {}
    moved = json.dumps(header).encode()
    for damaged, message in (
        (content[:-4], "file not fully covered"),
        (content + b"junk", "file not fully covered"),
        (bytes(changed), "its sha256 is"),
        (content[:100], "invalid header length"),
        (b"", "header too small"),
        (bytes([160, 134, 1]) + bytes(5) + b"[" * 100_000, "invalid JSON in header"),
        (b"\x02" + b"\0" * 7 + b"[]", "invalid JSON in header: invalid type: sequence"),
        (
            len(moved).to_bytes(8, "little") + moved + content[length:],
            "invalid offset for tensor `logits/bias`",
        ),
    ):
        file.write_bytes(damaged)
        with pytest.raises(InputError) as error:
            weight_files.load_weights(model, file)
        assert message in str(error.value)
    assert "existing .weights.h5 or .safetensors file, got 'nowhere.weights.h5'" in refused(
        "nowhere.weights.h5"
    )
    (tmp_path / "broken.weights.h5").write_bytes(b"no")
    assert "is damaged or not a .weights.h5 file" in refused(tmp_path / "broken.weights.h5")


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


def test_entries_that_overlap_or_share_a_name(model, file, tmp_path):
    content = file.read_bytes()
    length = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:length])
    header.pop("__metadata__")
    bias = json.dumps(header["logits/bias"])
    overlapping = {**header, "logits/bias": {**header["logits/bias"], "data_offsets": [4, 44]}}
    metadata = '"__metadata__": {"mean": 3}'
    for text, message in (
        (json.dumps(header)[:-1] + f', "logits/bias": {bias}}}', "the name 'logits/bias' occurs 2 times"),
        (json.dumps(overlapping), "invalid offset for tensor"),
        (json.dumps(header).replace("logits/bias", "logits\\nbias"), r"the name 'logits\\nbias'"),
        (json.dumps(header)[:-1] + f", {metadata}}}", "expected a string"),
        (json.dumps(header)[:-1] + ', "__metadata__": {"a": "b", "a": "c"}}', "the name 'a' occurs 2 times"),
    ):
        encoded = text.encode()
        file.write_bytes(len(encoded).to_bytes(8, "little") + encoded + content[length:])
        with pytest.raises(InputError, match=message):
            weight_files.load_weights(model, file)


@pytest.mark.parametrize("form", ["safetensors", "weights.h5"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.full([10], np.nan, np.float32), "logits/bias has NaN or infinity"),
        (np.full([10], np.inf, np.float16), "logits/bias has NaN or infinity"),
        (np.full([10], 1e300), "logits/bias has NaN or infinity"),
        (np.arange(10, dtype=np.int32), "logits/bias has int32, not floating-point numbers"),
        (np.arange(10, dtype=np.int8), "logits/bias has int8, not floating-point numbers"),
    ],
)
def test_values_that_are_not_weights(model, file, tmp_path, form, value, message):
    path = tmp_path / f"bad.{form}"
    if form == "safetensors":
        arrays, metadata = tensor_files.read_safetensors(file)
        tensor_files.write_safetensors(path, {**arrays, "logits/bias": value}, metadata)
    else:
        model.save_weights(path)
        with h5py.File(path, "a") as h5:
            del h5["layers/dense/vars/1"]
            h5["layers/dense/vars/1"] = value
    before = model.get_weights()
    with pytest.raises(InputError, match=message):
        weight_files.load_weights(model, path)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("shape", [[20_000_000_000], [200_001, 100_001, 16]])
def test_a_small_file_of_a_large_array_is_not_read(model, tmp_path, shape, monkeypatch):
    path = tmp_path / "bomb.weights.h5"
    globally = lambdanet.create_model(NAME, input_size=32, scope=None)
    globally.save_weights(path)
    with h5py.File(path, "a") as file:
        place = next(name for name, data in keras_h5._datasets(file) if data.shape == (7, 7, 16))
        del file[place]
        chunks = (2**20,) if len(shape) == 1 else (255, 255, 16)
        file.create_dataset(place, shape, "f4", chunks=chunks, compression="gzip", fillvalue=1.0)
    assert path.stat().st_size < 100_000_000
    with pytest.raises(InputError, match=r"position/table has the shape \(20"):
        weight_files.load_weights(globally, path)


def test_imagenet_where_no_weights_are_published():
    assert refused("imagenet").endswith(
        "none are published for lambda_resnet_tiny: see `lambdanet list --pretrained`"
    )


@pytest.mark.parametrize("name", ["x" * 5000, "~nobody-here/x", "a\0b", "x" * 5000 + ".safetensors"])
def test_weights_that_name_no_file(name):
    message = refused(name)
    assert "weights must be an existing .weights.h5 or .safetensors file" in message
    assert len(message) < 600


@pytest.mark.parametrize("name", ["imagenet", "mine"])
@pytest.mark.parametrize("variable", ["LAMBDANET_HOME", "HOME"])
def test_a_home_that_is_a_file_is_refused(file, monkeypatch, variable, name):
    monkeypatch.delenv("LAMBDANET_HOME", raising=False)
    monkeypatch.setenv(variable, str(file))
    with pytest.raises(
        InputError, match="LAMBDANET_HOME must be a folder, got '.*tiny.safetensors.*is a file"
    ):
        lambdanet.create_model("lambda_resnet26t", weights=name)


@pytest.mark.parametrize("file", ["small.safetensors", "small.weights.h5"])
def test_global_tables_are_resized(tmp_path, file):
    """Offset 0 and both ends keep their values; local tables are unchanged."""
    small = lambdanet.create_model(NAME, input_size=32, scope=None)
    if file.endswith("h5"):
        small.save_weights(tmp_path / file)
    else:
        weight_files.save(small, tmp_path / file)
    large = lambdanet.create_model(NAME, input_size=64, scope=None, weights=tmp_path / file)
    name = "c4_block1_spatial"
    old, new = (net.get_layer(name).position.table.numpy() for net in (small, large))
    assert (old.shape, new.shape) == ((7, 7, 16), (15, 15, 16))
    np.testing.assert_allclose(new[::7, ::7], old[::3, ::3], atol=1e-6)


def test_gray_images_take_weights_for_rgb(model, file):
    """A gray picture has the same logits as a channel or as three equal ones."""
    gray = lambdanet.create_model(NAME, num_classes=10, in_channels=1, weights=file)
    x = images(2, 32, 32, 1)
    np.testing.assert_allclose(gray(x), model(np.repeat(x, 3, -1)), atol=1e-5)


def test_six_channels_take_weights_for_rgb(model, file, tmp_path):
    """A picture twice has the same logits as once, also in features and from an HDF5 file."""
    model.save_weights(tmp_path / "tiny.weights.h5")
    x = images(2, 32, 32, 3)
    six = lambdanet.create_model(NAME, num_classes=10, in_channels=6, weights=tmp_path / "tiny.weights.h5")
    np.testing.assert_allclose(six(np.concatenate([x, x], -1)), model(x), atol=1e-5)
    arguments = {"num_classes": 10, "features_only": True, "weights": file, "out_levels": [1]}
    halves = [lambdanet.create_model(NAME, in_channels=channels, **arguments) for channels in (3, 6)]
    np.testing.assert_allclose(halves[1](np.concatenate([x, x], -1))["1"], halves[0](x)["1"], atol=1e-5)


@pytest.mark.parametrize("in_channels", [1, 2, 3, 4, 7])
def test_adapted_kernel_equals_that_of_timm(timm, in_channels):
    import torch
    from timm.models._manipulate import adapt_input_conv

    kernel = np.random.default_rng(0).normal(size=[3, 3, 3, 5]).astype(np.float32)
    theirs = adapt_input_conv(in_channels, torch.tensor(kernel.transpose(3, 2, 0, 1)))
    found = weight_files.for_channels(kernel, in_channels)
    np.testing.assert_allclose(found, theirs.numpy().transpose(2, 3, 1, 0), rtol=1e-6)


def test_weights_for_other_channels_than_rgb_do_not_fit(tmp_path):
    four = lambdanet.create_model(NAME, num_classes=10, in_channels=4)
    weight_files.save(four, tmp_path / "four.safetensors")
    message = r"stem1_conv/kernel has the shape \(3, 3, 4, 8\), not \(3, 3, 3, 8\)"
    with pytest.raises(InputError, match=message):
        lambdanet.create_model(NAME, num_classes=10, weights=tmp_path / "four.safetensors")


def test_only_safetensors_are_written(model, tmp_path):
    with pytest.raises(InputError, match="must be a .safetensors file, got 'x.bin'"):
        weight_files.save(model, "x.bin")

# SPDX-License-Identifier: Apache-2.0
"""Published weights: downloaded from a local hub, converted, cached, and refused if they are wrong."""

import dataclasses
import hashlib
import json
import os
import re
import shutil
import socket
import zipfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_equal_arrays
from hub_server import COMMIT, serving
from huggingface_hub import constants
from numpy.testing import assert_array_equal
from processes import run_code
from refusals import refused
from refused_commands import assert_refused
from source_tree import ROOT
from tiny_weights import random_timm_tensors

import lambdanet
from lambdanet import cli, create_model
from lambdanet.configs.registry import pretrained_weights
from lambdanet.models import zoo
from lambdanet.models.preprocessing import from_metadata
from lambdanet.models.weights import (
    pretrained,
    tensor_files,
    timm_rules,
    trained_classes,
    weight_files,
)
from lambdanet.training.convert import convert
from lambdanet.training.run import start

NAME = "lambda_resnet26t"
FILE = f"timm/{NAME}.c1_in1k/model.safetensors"


def tensors_for(model):
    """Random tensors of a network of timm, and one that is not read."""
    return random_timm_tensors(model) | {"bn.num_batches_tracked": np.array(7)}


IMAGES = np.random.default_rng(1).normal(size=[1, 64, 64, 3]).astype(np.float32)
WHOLE = zoo.MODELS[NAME]
SMALL = dataclasses.replace(WHOLE, stages=("C", "", "", "L"))


def without_timm():
    raise ImportError("timm has no network of two blocks")


@pytest.fixture(scope="module", autouse=True)
def two_blocks():
    """Makes the network two blocks, which timm has not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(zoo.MODELS, NAME, SMALL)
        patch.setattr(f"{convert.__module__}.import_timm", without_timm)
        yield


@pytest.fixture(scope="module")
def model():
    """A checkpoint of timm."""
    network = create_model(NAME)
    timm_rules.load(network, tensors_for(network))
    return network


@pytest.fixture(scope="module")
def checkpoint(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("timm") / "model.safetensors"
    tensor_files.write_safetensors(path, tensors_for(model), {"format": "pt"})
    return path


@pytest.fixture(scope="module")
def hub(checkpoint):
    with serving() as running:
        running.files[FILE] = checkpoint.read_bytes()
        yield running


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty cache, and no network."""
    monkeypatch.setenv("LAMBDANET_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "downloads"))
    with socket.socket() as closed:  # bound, but not listening
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}")
        yield tmp_path / "home"


@pytest.fixture(scope="module")
def conversion(checkpoint, tmp_path_factory):
    """The folder of `lambdanet convert`."""
    out = tmp_path_factory.mktemp("converted") / "net"
    words = ["convert", NAME, f"--checkpoint={checkpoint}", f"--out={out}"]
    assert cli.main(words) == 0
    return out


@pytest.mark.slow
def test_model_with_published_weights(model, hub, home, monkeypatch, capsys):
    """The download and conversion happen once; then no network is needed."""
    with monkeypatch.context() as online:
        online.setenv("HF_ENDPOINT", hub.address)
        first = create_model(NAME, weights="imagenet")
    np.testing.assert_allclose(first(IMAGES), model(IMAGES), atol=1e-5)
    sha256 = hashlib.sha256(hub.files[FILE]).hexdigest()
    source = json.loads((home / f"{NAME}.c1_in1k.source.json").read_text())
    address = f"{hub.address}/timm/{NAME}.c1_in1k/resolve/main/model.safetensors"
    assert source == {"url": address, "revision": COMMIT, "sha256": sha256}
    metadata = tensor_files.metadata_of(home / f"{NAME}.c1_in1k.safetensors")
    assert (metadata["source_sha256"], metadata["source_revision"]) == (sha256, COMMIT)
    assert metadata["as_published"] == "first download"
    assert from_metadata(metadata) == lambdanet.preprocess_for(NAME)
    assert capsys.readouterr().out == f"fetching {address}\n"

    ten = create_model(NAME, num_classes=10, input_size=(96, 64), weights="c1_in1k")
    assert ten(tf.zeros([1, 96, 64, 3])).shape == (1, 10)
    for ours, theirs in zip(ten.layers[:-1], model.layers[:-1], strict=True):
        assert_equal_arrays(ours.get_weights(), theirs.get_weights())

    # As in finetune:lambda_resnet26t.
    stem = ten.get_layer("stem1_conv")
    trained = stem.get_weights()
    stem.set_weights([np.zeros_like(kernel) for kernel in trained])
    start.load_initial_weights(ten, "imagenet", zero_head=True)
    assert_array_equal(stem.get_weights(), trained)


def test_file_changed_on_hub_is_refused(hub, home, monkeypatch):
    """It must be the one that was converted first; what could not be converted does not count."""
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    one = pretrained_weights.get(NAME)
    record = home / f"{NAME}.c1_in1k.source.json"
    with monkeypatch.context() as before:
        before.setitem(hub.files, FILE, b"a page to log in")
        with refused("is damaged or not a safetensors file") as damaged:
            create_model(NAME, weights="imagenet")
    Path(
        re.search("; remove '(.*)': weights of the hub are", str(damaged.value))[1]
    ).unlink()
    assert not record.exists()
    path, source = pretrained.download(one)
    assert source.revision == COMMIT and path.read_bytes() == hub.files[FILE]
    pretrained.record_first_download(one, source)
    with monkeypatch.context() as later:
        later.setitem(hub.files, FILE, b"something else")
        later.setattr(constants, "HF_HUB_CACHE", str(home / "other"))
        with refused(f"must be .*, got .*; that of the first .* remove '{record}'"):
            pretrained.download(one)
        assert pretrained.download(one, "main")[0].read_bytes() == b"something else"
    with refused(r"there is no http.*/resolve/0{40}/.*HTTP 404"):
        pretrained.download(one, "0" * 40)
    record.write_text("{}")
    with refused("source.json' cannot be read"):
        pretrained.download(one)


def test_hub_must_have_published_hash_and_commit(home, monkeypatch):
    one = pretrained_weights.get("lambda_resnet50ts")
    with serving() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        hub.files[f"{one.repository}/{one.file}"] = b"not the network"
        with refused(f"/resolve/{one.revision}/.*HTTP 404"):
            create_model(one.model, weights="imagenet")
        hub.commit = one.revision
        with refused(f"sha256 of http.* must be {one.sha256}, got '"):
            create_model(one.model, weights="imagenet")
    assert not home.exists() or list(home.iterdir()) == []


def test_message_without_network(home, capsys):
    assert cli.main(["convert", NAME]) == 1
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    for part in (
        f"/timm/{NAME}.c1_in1k/resolve/main/model.safetensors",
        "; download it where there is a network, and run",
        f"`lambdanet convert {NAME} --checkpoint=FILE --as_published`",
    ):
        assert part in message


@pytest.mark.slow
def test_converted_folder(model, conversion, capsys):
    assert sorted(path.name for path in conversion.iterdir()) == [
        "README.md",
        "metadata.json",
        "weights.safetensors",
    ]
    metadata = json.loads((conversion / "metadata.json").read_text())
    assert metadata == tensor_files.metadata_of(conversion / "weights.safetensors")
    expected = {
        "as_published": "not known",
        "top1": "79.126",
        "license": "Apache-2.0",
    }
    assert {name: metadata[name] for name in expected} == expected
    card = (conversion / "README.md").read_text()
    for fact in (
        "license: apache-2.0",
        metadata["source_sha256"],
        "ReaL 85.33 %, V2 67.7 %, A 11.29 %, R 37.39 %, Sketch 26.36 %",
        "It is unknown whether it is the published file",
    ):
        assert fact in card
    backbone = create_model(NAME, features_only=True, weights=conversion)
    whole = weight_files.weights_by_name(model)
    for name, weight in weight_files.weights_by_name(backbone).items():
        assert_array_equal(weight, whole[name])

    assert cli.main(["convert", NAME, f"--out={conversion}"]) == 2
    assert "is not empty" in capsys.readouterr().err


def test_checkpoint_of_unknown_origin_needs_flag(checkpoint, home, capsys):
    status = cli.main(["convert", NAME, f"--checkpoint={checkpoint}"])
    message = (
        'may be other weights than c1_in1k, which weights="imagenet" loads'
        ".*--out=DIR converts other weights.*--as_published takes a file"
    )
    assert_refused(status, message, capsys)
    assert not list(home.glob("*.safetensors"))


@pytest.mark.slow
def test_timm_is_imported_beside_tensorflow_without_triton(timm, tmp_path):
    """PyTorch for CUDA imports Triton, which crashes such a process; the module here ends it."""
    (tmp_path / "triton.py").write_text("import os; os._exit(3)")
    program = (
        "import tensorflow; from lambdanet.models.weights.tensor_files import import_timm; "
        "import_timm()"
    )
    # Without the tests' own sitecustomize.
    places = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = run_code(program, PYTHONPATH=places)
    assert done.returncode == 0, done.stderr


def test_logits_are_compared_with_timm(home, timm, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(zoo.MODELS, NAME, WHOLE)
    monkeypatch.setattr(f"{convert.__module__}.import_timm", lambda: timm)
    network = timm.create_model(NAME)
    tensors = {name: x.numpy() for name, x in network.state_dict().items()}
    file = tmp_path / "timm.safetensors"
    tensor_files.write_safetensors(file, tensors, {})
    path = convert(NAME, file, as_published=True)
    assert path == home / f"{NAME}.c1_in1k.safetensors"
    told = capsys.readouterr().out.strip()
    assert told.startswith("logits of 2 random images differ from timm 1.")
    assert float(told.split("at most ")[1].split()[0]) < 1e-4
    assert tensor_files.metadata_of(path)["compared"] == told


@pytest.mark.slow
def test_other_weights_claim_nothing(checkpoint, tmp_path):
    """A network for 4 classes is none that timm published."""
    other = tmp_path / "other.safetensors"
    tensors = tensor_files.read_safetensors(checkpoint)[0]
    for part in ("weight", "bias"):
        tensors[f"head.fc.{part}"] = tensors[f"head.fc.{part}"][:4]
    tensor_files.write_safetensors(other, tensors, {})
    out = tmp_path / "out"
    convert(NAME, other, out)
    metadata = tensor_files.metadata_of(out / "weights.safetensors")
    assert (metadata["num_classes"], metadata["as_published"]) == ("4", "no")
    claims = {"published", "repository", "license", "top1", "top5", "top1_real"}
    assert not metadata.keys() & claims
    card = (out / "README.md").read_text()
    assert card.startswith(
        "---\nlibrary_name: lambdanet\ntags: [image-classification, keras]\n---\n"
    )
    for claim in ("79.126", "c1_in1k", "imagenet-1k", "weights by timm", "Apache"):
        assert claim not in card
    with refused(
        "published file of lambda_resnet26t, with 1000 classes, got '.*--out="
    ):
        convert(NAME, other)
    four = create_model(NAME, num_classes=4, weights=out)
    assert four.output_shape == (None, 4)
    # The trained classifier is not dropped.
    with refused(rf"{out}.*logits/bias has the shape \(4,\), not \(5,\)"):
        create_model(NAME, num_classes=5, weights=out)


def test_wrong_files_write_nothing(checkpoint, tmp_path, home):
    tensors = tensor_files.read_safetensors(checkpoint)[0]
    tensors["stages.0.0.stranger"] = tensors.pop("stem.conv1.conv.weight")
    tensor_files.write_safetensors(tmp_path / "names.safetensors", tensors, {})
    (tmp_path / "of_nothing.txt").touch()
    for file, message in {
        "names.safetensors": "stem.conv1.conv.weight is missing; stages.0.0.stranger has no variable",
        "of_nothing.txt": "checkpoint must be a .safetensors file or, for PyTorch, a",
        "nowhere.safetensors": "checkpoint must be an existing file",
    }.items():
        with refused(message):
            convert(NAME, tmp_path / file, tmp_path / "out")
    with refused("revision must be empty with a checkpoint, got 'main'"):
        convert(NAME, checkpoint, tmp_path / "out", "main")
    assert not (tmp_path / "out").exists()
    assert not home.exists()


@pytest.mark.slow
@pytest.mark.parametrize("given", ["class_map", "config.json"])
def test_names_of_classes_are_kept_with_the_weights(checkpoint, tmp_path, given):
    path = shutil.copy(checkpoint, tmp_path / "model.safetensors")
    out = tmp_path / "out"
    file = tmp_path / given
    names = [f"class {number}" for number in range(1000)]
    options = {}
    if given == "class_map":
        options["class_map"] = file
        file.write_text("cat\ndog\n")
        with refused("must be 1000, as in "):
            convert(NAME, path, out, **options)
        assert not out.exists()
        file.write_text("\n".join(names))
    else:
        config = {"architecture": NAME, "label_names": names}
        file.write_text(json.dumps(config), encoding="utf-8-sig")
    convert(NAME, path, out, **options)
    metadata = tensor_files.metadata_of(out / weight_files.FOLDER_FILE)
    assert trained_classes.names_of(metadata) == names


@pytest.mark.peers
def test_pytorch_files(tmp_path):
    torch = pytest.importorskip("torch")
    weight = torch.arange(6.0).reshape(2, 3)
    state = {
        "a.weight": weight,
        "a.half": weight.to(torch.bfloat16),
        "a.counter": torch.tensor(3),
    }
    wrapped = {f"module.{name}": tensor for name, tensor in state.items()}
    for file, content in {
        "plain.pth": state,
        "run.pth.tar": {"epoch": 3, "state_dict": wrapped},
        "average.bin": {"state_dict": {}, "state_dict_ema": state},
    }.items():
        torch.save(content, tmp_path / file)
        found = tensor_files.read_tensors(tmp_path / file)
        assert found.keys() == state.keys()
        assert_array_equal(found["a.weight"], weight)
        assert_array_equal(found["a.half"], weight)
        assert found["a.counter"] == 3


@pytest.mark.peers
def test_pytorch_files_that_are_refused(tmp_path):
    torch = pytest.importorskip("torch")

    class Attack:
        def __reduce__(self):
            return open, (str(tmp_path / "was run"), "w")

    one = torch.zeros(1, dtype=torch.float16)
    for content, message in (
        (
            {"a.weight": Attack()},
            "is damaged, or has more than tensors, which may run code.*use a .safetensors file, or",
        ),
        ({"a.weight": one.expand(10**6, 10**5)}, "not dense"),
        ({"a": one, "module.a": one}, "has a twice, with and without 'module.'"),
        ({"epoch": 3}, "has no state dict"),
    ):
        torch.save(content, tmp_path / "file.pth")
        with refused(message) as caught:
            tensor_files.read_tensors(tmp_path / "file.pth")
        assert "weights_only" not in str(caught.value)
    assert not (tmp_path / "was run").exists()

    # A tensor of ten megabytes in a few bytes.
    torch.save({"a": one}, tmp_path / "file.pth")
    with (
        zipfile.ZipFile(tmp_path / "file.pth") as plain,
        zipfile.ZipFile(tmp_path / "bomb.pth", "w", zipfile.ZIP_DEFLATED) as bomb,
    ):
        for part in plain.infolist():
            is_data = part.filename.endswith("data/0")
            bomb.writestr(part.filename, bytes(10**7) if is_data else plain.read(part))
    with refused("is damaged, or has more"):
        tensor_files.read_tensors(tmp_path / "bomb.pth")


def test_published_weights_are_listed():
    assert lambdanet.model_info(NAME).weights == (pretrained_weights.get(NAME),)

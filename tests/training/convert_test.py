# SPDX-License-Identifier: Apache-2.0
"""Published weights: downloaded from a local hub, converted, cached, and refused if they are wrong."""

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hub_server import COMMIT, serving
from huggingface_hub import constants
from source_tree import ROOT
from terminal import terminal_as_stderr

import lambdanet
from lambdanet import cli
from lambdanet.configs.registry import pretrained_weights
from lambdanet.errors import InputError
from lambdanet.models.preprocessing import from_metadata
from lambdanet.models.weights import (
    pretrained,
    tensor_files,
    timm_rules,
    trained_classes,
    weight_files,
)
from lambdanet.training.convert import convert
from lambdanet.training.run import initial_weights

NAME = "lambda_resnet26t"
FILE = f"timm/{NAME}.c1_in1k/model.safetensors"


def tensors_for(model, seed=0):
    """Random tensors of a network of timm, in a range with small logits."""
    random = np.random.default_rng(seed)
    tensors = {}
    for name, shape in timm_rules.expected_shapes(model).items():
        scale = 1 / np.sqrt(np.prod(shape[1:])) if len(shape) > 1 else 0.1
        tensors[name] = (
            scale * random.normal(size=shape) + name.endswith("running_var")
        ).astype(np.float32)
        if name.endswith("running_mean"):
            tensors[name.replace("running_mean", "num_batches_tracked")] = np.array(7)
    return tensors


def images(size=64):
    return tf.constant(
        np.random.default_rng(1).normal(size=[1, size, size, 3]), tf.float32
    )


@pytest.fixture(scope="module")
def model():
    """A checkpoint of timm."""
    network = lambdanet.create_model(NAME)
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
    """The folder of `lambdanet convert`, and what the command showed in a terminal."""
    out = tmp_path_factory.mktemp("converted") / "net"
    with terminal_as_stderr() as shown:
        assert (
            cli.main(["convert", NAME, f"--checkpoint={checkpoint}", f"--out={out}"])
            == 0
        )
    return out, bytes(shown)


@pytest.fixture(scope="module")
def converted(conversion):
    return conversion[0]


def test_model_with_published_weights(model, hub, home, monkeypatch, capsys):
    """The download and conversion happen once; then no network is needed."""
    with monkeypatch.context() as online:
        online.setenv("HF_ENDPOINT", hub.address)
        first = lambdanet.create_model(NAME, weights="imagenet")
    np.testing.assert_allclose(first(images()), model(images()), atol=1e-5)
    sha256 = hashlib.sha256(hub.files[FILE]).hexdigest()
    source = json.loads((home / f"{NAME}.c1_in1k.source.json").read_text())
    address = f"{hub.address}/timm/{NAME}.c1_in1k/resolve/main/model.safetensors"
    assert source == {"url": address, "revision": COMMIT, "sha256": sha256}
    metadata = tensor_files.metadata_of(home / f"{NAME}.c1_in1k.safetensors")
    assert (metadata["source_sha256"], metadata["source_revision"]) == (sha256, COMMIT)
    assert metadata["as_published"] == "first download"
    assert from_metadata(metadata) == lambdanet.preprocess_for(NAME)
    assert capsys.readouterr().out == f"fetching {address}\n"

    ten = lambdanet.create_model(
        NAME, num_classes=10, input_size=(96, 64), weights="c1_in1k"
    )
    assert ten(tf.zeros([1, 96, 64, 3])).shape == (1, 10)
    assert "logits" in ten.layers[-1].name
    for ours, theirs in zip(ten.layers[:-1], model.layers[:-1], strict=True):
        for new, old in zip(ours.get_weights(), theirs.get_weights(), strict=True):
            np.testing.assert_array_equal(new, old)

    stem = ten.get_layer("stem1_conv")
    stem.set_weights([np.zeros_like(kernel) for kernel in stem.get_weights()])
    # As in finetune:lambda_resnet26t.
    initial_weights.load_initial_weights(ten, "imagenet", zero_head=True)
    np.testing.assert_array_equal(
        stem.get_weights()[0], model.get_layer("stem1_conv").get_weights()[0]
    )
    assert not any(weight.any() for weight in ten.layers[-1].get_weights())


def test_file_changed_on_hub_is_refused(hub, home, monkeypatch):
    """It must be the one that was converted first; what could not be converted does not count."""
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    one = pretrained_weights.get(NAME)
    record = home / f"{NAME}.c1_in1k.source.json"
    with monkeypatch.context() as before:
        before.setitem(hub.files, FILE, b"a page to log in")
        with pytest.raises(
            InputError, match="is damaged or not a safetensors file"
        ) as damaged:
            lambdanet.create_model(NAME, weights="imagenet")
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
        with pytest.raises(
            InputError,
            match=f"must be .*, got .*; that of the first .* remove '{record}'",
        ):
            pretrained.download(one)
        assert pretrained.download(one, "main")[0].read_bytes() == b"something else"
    with pytest.raises(
        InputError, match=r"there is no http.*/resolve/0{40}/.*HTTP 404"
    ):
        pretrained.download(one, "0" * 40)
    record.write_text("{}")
    with pytest.raises(InputError, match="source.json' cannot be read"):
        pretrained.download(one)


def test_hub_must_have_published_hash_and_commit(home, monkeypatch):
    one = pretrained_weights.get("lambda_resnet50ts")
    with serving() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        hub.files[f"{one.repository}/{one.file}"] = b"not the network"
        with pytest.raises(InputError, match=f"/resolve/{one.revision}/.*HTTP 404"):
            lambdanet.create_model(one.model, weights="imagenet")
        hub.commit = one.revision
        with pytest.raises(
            InputError, match=f"sha256 of http.* must be {one.sha256}, got '"
        ):
            lambdanet.create_model(one.model, weights="imagenet")
    assert not home.exists() or list(home.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_refused_first(hub, home, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    monkeypatch.setenv("LAMBDANET_HOME", "/proc/nohome")
    before = len(hub.requests)
    for load in (
        lambda: lambdanet.create_model(NAME, weights="imagenet"),
        lambda: convert(NAME),
    ):
        with pytest.raises(
            InputError, match="LAMBDANET_HOME '/proc/nohome' cannot be written"
        ):
            load()
    assert len(hub.requests) == before


def test_message_without_network(home, capsys):
    assert cli.main(["convert", NAME]) == 1
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "cannot be fetched: " in message
    assert f"/timm/{NAME}.c1_in1k/resolve/main/model.safetensors" in message
    assert "; download it where there is a network, and run" in message
    assert f"`lambdanet convert {NAME} --checkpoint=FILE --as_published`" in message


def test_progress_bar_in_terminal(conversion):
    for step in (f"building {NAME}:   0%|", "converting:", "comparing with timm:"):
        assert step.encode() in conversion[1]
    assert conversion[1].endswith(b"\r")


def test_converted_folder(model, converted):
    assert sorted(path.name for path in converted.iterdir()) == [
        "README.md",
        "metadata.json",
        "weights.safetensors",
    ]
    metadata = json.loads((converted / "metadata.json").read_text())
    assert metadata == tensor_files.metadata_of(converted / "weights.safetensors")
    assert metadata["source"] == "model.safetensors"
    assert metadata["as_published"] == "not known"
    assert (metadata["top1"], metadata["license"], metadata["num_classes"]) == (
        "79.126",
        "Apache-2.0",
        "1000",
    )
    card = (converted / "README.md").read_text()
    assert "ReaL 85.33 %, V2 67.7 %, A 11.29 %, R 37.39 %, Sketch 26.36 %" in card
    for fact in (
        "license: apache-2.0",
        "# lambda_resnet26t.c1_in1k",
        metadata["source_sha256"],
        "79.126 %",
    ):
        assert fact in card
    assert "It is unknown whether it is the published file" in card
    backbone = lambdanet.create_model(NAME, features_only=True, weights=converted)
    whole = weight_files.weights_by_name(model)
    for name, weight in weight_files.weights_by_name(backbone).items():
        np.testing.assert_array_equal(weight, whole[name])


def test_nonempty_folder_is_refused(converted, capsys):
    assert cli.main(["convert", NAME, f"--out={converted}"]) == 2
    assert "is not empty" in capsys.readouterr().err


def test_checkpoint_of_unknown_origin_needs_flag(checkpoint, home, capsys):
    assert cli.main(["convert", NAME, f"--checkpoint={checkpoint}"]) == 2
    message = capsys.readouterr().err
    assert (
        'may be other weights than c1_in1k, which weights="imagenet" loads' in message
    )
    assert (
        "--out=DIR converts other weights" in message
        and "--as_published takes a file" in message
    )
    assert not list(home.glob("*.safetensors"))


def test_timm_is_imported_beside_tensorflow_without_triton(timm, tmp_path):
    """PyTorch for CUDA imports Triton, which crashes such a process; the module here ends it."""
    (tmp_path / "triton.py").write_text("import os; os._exit(3)")
    program = (
        "import tensorflow; from lambdanet.models.weights.tensor_files import import_timm; "
        "import_timm()"
    )
    # Without the tests' own sitecustomize.
    places = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": places},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_logits_are_compared_with_timm(checkpoint, model, home, timm, capsys):
    path = convert(NAME, checkpoint, as_published=True)
    assert path == home / f"{NAME}.c1_in1k.safetensors"
    told = capsys.readouterr().out.strip()
    assert told.startswith("logits of 2 random images differ from timm 1.")
    assert float(told.split("at most ")[1].split()[0]) < 1e-4
    assert tensor_files.metadata_of(path)["compared"] == told
    wrong = tensor_files.read_safetensors(checkpoint)[0]
    wrong["stages.0.0.conv2_kxk.conv.weight"] = wrong[
        "stages.0.0.conv2_kxk.conv.weight"
    ][..., ::-1, :]
    other = {
        "head.fc.weight": np.zeros([4, 2048], np.float32),
        "head.fc.bias": np.zeros(4, np.float32),
    }
    tensor_files.write_safetensors(
        checkpoint.with_name("other.safetensors"), wrong | other, {}
    )
    out = home / "other"
    # Another network, for 4 classes.
    convert(NAME, checkpoint.with_name("other.safetensors"), out)
    metadata = tensor_files.metadata_of(out / "weights.safetensors")
    assert (metadata["num_classes"], metadata["as_published"]) == ("4", "no")
    assert not metadata.keys() & {
        "published",
        "repository",
        "license",
        "top1",
        "top5",
        "top1_real",
    }
    card = (out / "README.md").read_text()
    assert card.startswith(
        "---\nlibrary_name: lambdanet\ntags: [image-classification, keras]\n---\n"
    )
    for claim in (
        "79.126",
        "c1_in1k",
        "imagenet-1k",
        "ImageNet-1k",
        "weights by timm",
        "Apache",
        "timm/lambda",
    ):
        assert claim not in card
    with pytest.raises(
        InputError,
        match="published file of lambda_resnet26t, with 1000 classes, got '.*--out=",
    ):
        convert(NAME, checkpoint.with_name("other.safetensors"))
    assert lambdanet.create_model(NAME, num_classes=4, weights=out).output_shape == (
        None,
        4,
    )
    for num_classes in (1000, 5):  # the trained classifier is not dropped
        with pytest.raises(
            InputError,
            match=rf"{out}.*logits/bias has the shape \(4,\), not \({num_classes},\)",
        ):
            lambdanet.create_model(NAME, num_classes=num_classes, weights=out)


def test_wrong_files_write_nothing(checkpoint, tmp_path, home):
    tensors = tensor_files.read_safetensors(checkpoint)[0]
    tensors["stages.0.0.stranger"] = tensors.pop("stem.conv1.conv.weight")
    tensor_files.write_safetensors(tmp_path / "names.safetensors", tensors, {})
    (tmp_path / "cut.safetensors").write_bytes(checkpoint.read_bytes()[:-1000])
    (tmp_path / "of_nothing.txt").write_text("")
    for kind, value in {"nan": np.nan, "integers": 3}.items():
        changed = tensor_files.read_safetensors(checkpoint)[0]
        changed["head.fc.bias"] = np.full([1000], value, np.asarray(value).dtype)
        tensor_files.write_safetensors(tmp_path / f"{kind}.safetensors", changed, {})
    for file, message in {
        "names.safetensors": "stem.conv1.conv.weight is missing; stages.0.0.stranger has no variable",
        "cut.safetensors": "is damaged or not a safetensors file",
        "nan.safetensors": "head.fc.bias has NaN or infinity",
        "integers.safetensors": "head.fc.bias has int64, not floating-point numbers",
        "of_nothing.txt": "checkpoint must be a .safetensors file or, for PyTorch, a",
        "nowhere.safetensors": "checkpoint must be an existing file",
    }.items():
        with pytest.raises(InputError, match=message):
            convert(NAME, tmp_path / file, tmp_path / "out")
    with pytest.raises(
        InputError, match="revision must be empty with a checkpoint, got 'main'"
    ):
        convert(NAME, checkpoint, tmp_path / "out", "main")
    assert not (tmp_path / "out").exists() and not home.exists()


@pytest.mark.parametrize("given", ["class_map", "config.json"])
def test_names_of_classes_are_kept_with_the_weights(
    checkpoint, tmp_path, capsys, given
):
    path, names = (
        tmp_path / "model.safetensors",
        [f"class {number}" for number in range(1000)],
    )
    shutil.copy(checkpoint, path)
    words = ["convert", NAME, f"--checkpoint={path}", f"--out={tmp_path / 'out'}"]
    if given == "class_map":
        (tmp_path / "map.txt").write_text("\n".join(names))
        words.append(f"--class_map={tmp_path / 'map.txt'}")
    else:
        (tmp_path / "config.json").write_text(
            json.dumps({"architecture": NAME, "label_names": names})
        )
    assert cli.main(words) == 0
    metadata = tensor_files.metadata_of(tmp_path / "out" / weight_files.FOLDER_FILE)
    assert trained_classes.names_of(metadata) == names

    capsys.readouterr()
    (tmp_path / "map.txt").write_text("cat\ndog\n")
    words = [
        *words[:3],
        f"--out={tmp_path / 'other'}",
        f"--class_map={tmp_path / 'map.txt'}",
    ]
    assert cli.main(words) == 2
    assert (
        "must be 1000, as in " in capsys.readouterr().err
        and not (tmp_path / "other").exists()
    )


@pytest.mark.peers
def test_pytorch_files(tmp_path):
    torch = pytest.importorskip("torch")
    weight, counter = torch.arange(6.0).reshape(2, 3), torch.tensor(3)
    state = {
        "a.weight": weight,
        "a.half": weight.to(torch.bfloat16),
        "a.counter": counter,
    }
    for file, content in {
        "plain.pth": state,
        "run.pth.tar": {
            "epoch": 3,
            "state_dict": {f"module.{name}": t for name, t in state.items()},
        },
        "average.bin": {"state_dict": {}, "state_dict_ema": state},
    }.items():
        torch.save(content, tmp_path / file)
        found = tensor_files.read_tensors(tmp_path / file)
        assert found.keys() == state.keys()
        np.testing.assert_array_equal(found["a.weight"], weight)
        np.testing.assert_array_equal(found["a.half"], weight)
        assert found["a.counter"] == 3
    packed = zipfile.ZipFile(tmp_path / "bomb.pth", "w", zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(tmp_path / "plain.pth") as plain, packed as bomb:
        for part in plain.infolist():
            content = (
                bytes(10**7) if part.filename.endswith("data/0") else plain.read(part)
            )
            bomb.writestr(part.filename, content)
    torch.save(
        {"a.weight": torch.zeros(1, dtype=torch.float16).expand(10**6, 10**5)},
        tmp_path / "wide.pth",
    )
    for file, message in {
        "bomb.pth": "is damaged, or has more",
        "wide.pth": "not dense",
    }.items():
        with pytest.raises(InputError, match=message):
            tensor_files.read_tensors(tmp_path / file)
    torch.save({"a": weight, "module.a": weight}, tmp_path / "twice.pth")
    with pytest.raises(
        InputError, match="twice.pth' has a twice, with and without 'module.'"
    ):
        tensor_files.read_tensors(tmp_path / "twice.pth")
    torch.save({"epoch": 3}, tmp_path / "none.pth")
    with pytest.raises(InputError, match="has no state dict"):
        tensor_files.read_tensors(tmp_path / "none.pth")


@pytest.mark.peers
def test_nothing_in_a_file_is_run(tmp_path):
    torch = pytest.importorskip("torch")

    class Attack:
        def __reduce__(self):
            return open, (str(tmp_path / "was run"), "w")

    torch.save({"a.weight": Attack()}, tmp_path / "attack.pth")
    with pytest.raises(
        InputError, match="is damaged, or has more than tensors, which may run code"
    ) as error:
        tensor_files.read_tensors(tmp_path / "attack.pth")
    assert "weights_only" not in str(error.value) and "\n" not in str(error.value)
    assert "use a .safetensors file, or" in str(error.value)
    assert not (tmp_path / "was run").exists()


def test_published_weights_are_listed(capsys):
    assert cli.main(["list", "lambda_resnet26*", "--pretrained", "--format=csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "model",
        NAME,
        "lambda_resnet26rpt_256",
    ]
    assert lines[1].endswith("c1_in1k,79.13,85.33,67.70,11.29,37.39,26.36")
    assert cli.main(["list", "lambda_resnet26t"]) == 0
    assert "c1_in1k, 79.1 %" in capsys.readouterr().out
    assert cli.main(["info", NAME]) == 0
    told = capsys.readouterr().out
    for fact in (
        "top-1 79.13 %, top-5 94.55 %",
        "256x256 pixels, bicubic",
        "Apache-2.0",
        "https://huggingface.co/timm",
    ):
        assert fact in told
    assert lambdanet.model_info(NAME).weights == (pretrained_weights.get(NAME),)
    assert set(lambdanet.list_models(pretrained=True)) == {
        one.model for one in pretrained_weights.WEIGHTS
    }

# SPDX-License-Identifier: Apache-2.0
"""Weights of any repository on a local hub: a converted folder, or timm's files."""

import dataclasses
import json

import numpy as np
import pytest
from helpers import images
from hub_server import COMMIT, serving
from refusals import refused
from tiny_weights import random_timm_tensors

import lambdanet
from lambdanet.models import zoo
from lambdanet.models.preprocessing import BICUBIC, Preprocessing
from lambdanet.models.weights import (
    tensor_files,
    timm_rules,
    trained_classes,
    weight_files,
)

NAME, CLASSES = "lambda_resnet26t", 4
CONFIG = {
    "architecture": NAME,
    "num_classes": CLASSES,
    "label_names": ["cat", "dog", "bird", "fish"],
    "pretrained_cfg": {
        "input_size": [3, 96, 96],
        "interpolation": "bicubic",
        "crop_pct": 0.9,
        "mean": [0.4, 0.5, 0.6],
        "std": [0.2, 0.25, 0.3],
    },
}


@pytest.fixture(scope="module", autouse=True)
def small_network():
    small = dataclasses.replace(
        zoo.MODELS[NAME],
        stages=("C", "C", "L", "L"),
        filters=(16, 16, 32, 32),
        output_filters=(32, 32, 64, 64),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(zoo.MODELS, NAME, small)
        yield


@pytest.fixture(scope="module")
def model():
    network = lambdanet.create_model(NAME, num_classes=CLASSES)
    timm_rules.load(network, random_timm_tensors(network))
    return network


@pytest.fixture
def hub(tmp_path, monkeypatch):
    monkeypatch.setenv("LAMBDANET_HOME", str(tmp_path / "home"))
    with serving() as running:
        running.use(monkeypatch, tmp_path / "cache")
        yield running


@pytest.fixture
def timm_files(model, tmp_path):
    tensor_files.write_safetensors(
        tmp_path / "timm.safetensors", random_timm_tensors(model), {"format": "pt"}
    )
    return {
        "me/pets/model.safetensors": (tmp_path / "timm.safetensors").read_bytes(),
        "me/pets/config.json": json.dumps(CONFIG).encode("utf-8-sig"),
    }


def load(weights="hf:me/pets", num_classes=CLASSES, name=NAME):
    return lambdanet.create_model(name, num_classes=num_classes, weights=weights)


def assert_same(found, model):
    x = images(1, 64, 48, 3)
    np.testing.assert_allclose(found(x), model(x), rtol=1e-4, atol=1e-6)


def cached(tmp_path):
    return [path for path in (tmp_path / "home").rglob("*") if path.is_file()]


def test_a_converted_folder(model, hub, tmp_path):
    weight_files.save(model, tmp_path / "weights.safetensors", {"license": "MIT"})
    hub.files["me/pets/weights.safetensors"] = (
        tmp_path / "weights.safetensors"
    ).read_bytes()
    assert_same(load(), model)
    assert cached(tmp_path) == []  # but in the client's own
    assert_same(load(f"hf:me/pets@{COMMIT}"), model)
    with refused(r"logits/bias has the shape \(4,\), not \(1000,\)"):
        load(num_classes=1000)
    assert load(num_classes=0).output_shape == (None, 64)


def test_a_checkpoint_of_timm(model, hub, tmp_path, timm_files):
    """With its number of classes and its preprocessing; the configuration is that of the same commit."""
    hub.files |= timm_files
    assert_same(load(), model)
    assert f"HEAD /me/pets/resolve/{COMMIT}/config.json" in hub.requests
    metadata = tensor_files.metadata_of(
        tmp_path / f"home/hub/me--pets@main/{NAME}.safetensors"
    )
    assert lambdanet.preprocess_for(NAME, "hf:me/pets") == Preprocessing(
        96, (0.4, 0.5, 0.6), (0.2, 0.25, 0.3), 0.9, BICUBIC
    )
    assert trained_classes.names_of(metadata) == ["cat", "dog", "bird", "fish"]
    assert metadata["num_classes"] == "4" and metadata["source_revision"] == COMMIT
    assert metadata["source"].endswith("/me/pets/resolve/main/model.safetensors")


@pytest.mark.parametrize(
    "change", [None, {"interpolation": "bilinear"}, {"crop_mode": "squash"}]
)
def test_a_checkpoint_of_timm_without_a_known_preprocessing(
    model, hub, timm_files, change
):
    """Weights alone, rather than another preprocessing than that of the training."""
    hub.files |= timm_files
    trained = {**CONFIG["pretrained_cfg"], **(change or {})}
    config = {**CONFIG, "pretrained_cfg": trained}
    hub.files["me/pets/config.json"] = json.dumps(config).encode()
    if change is None:
        del hub.files["me/pets/config.json"]
    assert_same(load(), model)
    with refused("weights must be a file whose metadata has input_size, mean and"):
        lambdanet.preprocess_for(NAME, "hf:me/pets")


PETS, MISSING = "hf:me/pets", "f" * 40


@pytest.mark.parametrize(
    ("arguments", "config", "message"),
    [
        (
            {"weights": "hf:me"},
            CONFIG,
            "weights must be hf:USER/REPO or hf:USER/REPO@REVISION, got 'hf:me'",
        ),
        (
            {"weights": "hf:me/a--b"},
            CONFIG,
            "repository must be USER/REPO as the hub accepts it, got 'me/a--b';",
        ),
        (
            {"weights": "hf:me/cats"},
            CONFIG,
            "hf:me/cats@main has neither weights.safetensors of",
        ),
        (
            {"weights": f"{PETS}@{MISSING}"},
            CONFIG,
            "@f* has neither weights.* is private or gated, `hf auth log",
        ),
        ({}, {**CONFIG, "architecture": "resnet50"}, "model must be 'resnet50', as"),
        (
            {},
            {"pretrained_cfg": {"interpolation": "bicubic"}},
            r"config.json .* \(KeyError\)",
        ),
        (
            {"name": "lambda_resnet50ts"},
            {},
            "the tensors are not those of 'lambda_resnet50ts': .* missing",
        ),
        (
            {"name": "lambda_resnet_tiny"},
            {},
            "unknown model with published weights 'lambda_resnet_tiny'",
        ),
    ],
)
def test_refused_repositories_leave_nothing(
    hub, tmp_path, timm_files, arguments, config, message
):
    hub.files |= {**timm_files, "me/pets/config.json": json.dumps(config).encode()}
    with refused(message):
        load(**arguments)
    assert cached(tmp_path) == []

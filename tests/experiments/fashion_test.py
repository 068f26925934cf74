# SPDX-License-Identifier: Apache-2.0
"""The study on Fashion-MNIST: networks of equal size, the student's layer, and a training that resumes."""

import csv
import dataclasses
import gzip
import subprocess
import sys

import helpers
import numpy as np
import pytest
from source_tree import ROOT

from experiments.fashion import contenders
from experiments.fashion.contenders import STUDIES, recipe_of
from experiments.fashion.student import StudentLambdaLayer
from lambdanet.configs import fashion_mnist
from lambdanet.layers.lambda_layer import LambdaLayer
from lambdanet.models import complexity
from lambdanet.training.run.build import build_optimizer, compile_model

CASES = [(study, name) for study, chosen in STUDIES.items() for name in chosen]


def test_networks_of_the_recipe_have_equal_parameters():
    counts = {
        name: complexity.count_parameters(
            contenders.Contender(name).build(recipe_of("networks", name))
        )
        for name in fashion_mnist.ROWS
    }
    reference = counts["resnet_micro"]
    assert all(abs(count / reference - 1) < 0.01 for count in counts.values()), counts


@pytest.mark.parametrize(("study", "name"), CASES)
def test_every_contender_makes_steps(study, name):
    recipe = dataclasses.replace(recipe_of(study, name), warmup_epochs=0.0)
    model = STUDIES[study][name].build(recipe)
    compile_model(recipe, model, build_optimizer(recipe, 2))
    model.run_eagerly = True
    random = np.random.default_rng(0)
    images = random.normal(size=(4, 56, 56, 1)).astype("float32")
    before = [weight.numpy() for weight in model.trainable_weights]
    for _ in range(2):  # the first one moves the scales at the end of blocks from zero
        losses = model.train_on_batch(images, np.arange(4))
    assert np.isfinite(losses).all()
    moved = {
        weight.path.split("/")[0]
        for weight, old in zip(model.trainable_weights, before, strict=True)
        if not np.array_equal(weight.numpy(), old)
    }
    assert "logits" in moved
    assert moved & {"c5_block1_spatial", "c5_block1_spatial_conv"}


def layers(**mistakes):
    """Returns a layer and the student's with mistakes, with equal weights."""
    layer = LambdaLayer(scope=3, key_dim=4, num_heads=2)
    other = StudentLambdaLayer(scope=3, key_dim=4, num_heads=2, **mistakes)
    for each in (layer, other):
        each.build([None, 6, 6, 8])
    other.set_weights(layer.get_weights())
    return layer, other


def pictures(channels=8):
    random = np.random.default_rng(0)
    return random.normal(size=(2, 6, 6, channels)).astype("float32")


def test_layer_without_mistakes_is_the_lambda_layer():
    layer, other = layers()
    np.testing.assert_array_equal(layer(pictures()), other(pictures()))


def write_pictures(folder, count):
    random = np.random.default_rng(0)
    for split, number in (("train", count), ("t10k", 20)):
        pixels = random.integers(0, 256, [number, 28, 28]).astype(np.uint8)
        labels = (np.arange(number) % 10).astype(np.uint8)
        for kind, array in (("images-idx3", pixels), ("labels-idx1", labels)):
            path = folder / f"{split}-{kind}-ubyte.gz"
            path.write_bytes(gzip.compress(helpers.idx(array)))


def test_command_appends_a_row_per_training_and_resumes(tmp_path):
    write_pictures(tmp_path, 128)
    out = tmp_path / "rows.csv"

    def run(seeds):
        return subprocess.run(
            [sys.executable, "-m", "experiments.fashion", f"--data_dir={tmp_path}"]
            + [f"--out={out}", f"--seeds={seeds}", f"--weights={tmp_path / 'weights'}"]
            + ["--studies=networks", "--contenders=resnet_micro"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    assert "seed 0" in run(1)
    with out.open("a") as file:
        file.write("networks,resnet_micro,1,324")  # of a killed process
    assert "seed 1" in run(2)
    assert "seed" not in run(2)
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["seed"] for row in rows] == ["0", "1"]
    assert all(0 <= float(row["side_40"]) <= 1 for row in rows)
    saved = sorted(path.name for path in (tmp_path / "weights").iterdir())
    assert saved == [f"networks_resnet_micro_{seed}.safetensors" for seed in (0, 1)]

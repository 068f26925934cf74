# SPDX-License-Identifier: Apache-2.0
"""Balanced weights of classes, from the labels of the pictures of training."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf
from helpers import damage_record
from PIL import Image

from lambdanet import cli, configs
from lambdanet.configs.recipe import override
from lambdanet.errors import InputError
from lambdanet.training.data import records
from lambdanet.training.data.dataset import Dataset

BALANCED = {"class_weights": "balanced"}
FOLDER = dataclasses.replace(configs.get_recipe("folder"), **BALANCED)
DIGITS = dataclasses.replace(configs.get_recipe("digits"), **BALANCED)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Six cats and two dogs for training."""
    root = tmp_path_factory.mktemp("pictures")
    for split, counts in (
        ("train", {"cat": 6, "dog": 2}),
        ("validation", {"cat": 1, "dog": 1}),
    ):
        for name, count in counts.items():
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = np.full(
                    [32, 32, 3],
                    20 * number + 5 * len(name) + (split == "train"),
                    np.uint8,
                )
                Image.fromarray(pixels).save(root / split / name / f"{number}.png")
    return root


def test_each_class_has_the_same_total_weight(pictures):
    weights = Dataset.open(FOLDER, str(pictures)).class_weights
    assert weights == pytest.approx((8 / (2 * 6), 8 / (2 * 2)))


def test_weights_given_by_hand_stay_as_they_are(pictures):
    recipe = dataclasses.replace(FOLDER, class_weights=(1.0, 5.0))
    assert Dataset.open(recipe, str(pictures)).class_weights == (1.0, 5.0)
    assert (
        Dataset.open(
            dataclasses.replace(FOLDER, class_weights=()), str(pictures)
        ).class_weights
        == ()
    )


def test_weights_of_records_count_readable_labels(tmp_path):
    labels = [0, 0, 0, 1, 1, 2]
    path = tmp_path / records.shard_name("train", 0, 1)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for label in labels:
            image = tf.io.encode_png(np.full([8, 8, 3], label, np.uint8)).numpy()
            writer.write(records.encode_record(image, label))
    recipe = dataclasses.replace(
        DIGITS, dataset="tfrecord", num_classes=4, eval_split="train"
    )
    assert Dataset.open(recipe, str(tmp_path)).class_weights == pytest.approx(
        (6 / 12, 6 / 8, 6 / 4, 6 / 4)
    )
    damage_record(path, 5)  # the only picture of class 2
    assert Dataset.open(recipe, str(tmp_path)).class_weights == pytest.approx(
        (5 / 12, 5 / 8, 5 / 4, 5 / 4)
    )


def test_a_run_says_its_weights_and_resumes_with_them(
    pictures, tmp_path, capsys, one_block
):
    sets = {
        **{
            "model": "lambda_resnet_tiny",
            "input_size": 32,
            "global_batch_size": 4,
            "epochs": 2,
        },
        **{"warmup_epochs": 0, "randaugment_layers": 0, **BALANCED},
    }
    command = [
        "train",
        "--recipe=folder",
        f"--data_dir={pictures}",
        f"--model_dir={tmp_path / 'run'}",
    ]
    command += [f"--set={name}={value}" for name, value in sets.items()]
    assert cli.main(command) == 0
    assert "weights of the classes: cat 0.667, dog 2\n" in capsys.readouterr().out
    assert (
        json.loads((tmp_path / "run" / "recipe.json").read_text())["class_weights"]
        == "balanced"
    )
    assert cli.main(command) == 0
    assert "finished already" in capsys.readouterr().out


def test_other_words_are_refused():
    with pytest.raises(
        InputError, match=r"class_weights must be .*balanced.*, got 'balance'"
    ):
        override(configs.get_recipe("folder"), ["class_weights=balance"])

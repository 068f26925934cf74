# SPDX-License-Identifier: Apache-2.0
"""Balanced weights of classes, from the labels of the pictures of training."""

from dataclasses import replace

import numpy as np
import pytest
from helpers import damage_record, write_picture
from picture_sources import RECIPE, pixels, write_folder
from refusals import refused
from tensorflow.io import encode_png
from training_runs import open_dataset

from lambdanet import configs
from lambdanet.configs.recipe import override
from lambdanet.training.data import records

BALANCED = replace(RECIPE, class_weights="balanced", num_classes=0, eval_split="train")


def test_weights_of_pictures_are_balanced_or_as_given(tmp_path):
    write_folder(tmp_path, 8)  # 3, 3 and 2 of the classes
    for given, expected in [
        ("balanced", pytest.approx((8 / 9, 8 / 9, 8 / 6))),
        ((1.0, 5.0, 2.0), (1.0, 5.0, 2.0)),
        ((), ()),
    ]:
        changes = {"dataset": "folder", "class_weights": given}
        assert open_dataset(BALANCED, tmp_path, **changes).class_weights == expected


def test_weights_of_records_count_readable_labels(tmp_path):
    path = tmp_path / records.shard_name("train", 0, 1)
    labels = [0, 0, 0, 1, 1, 2]
    contents = [
        records.encode_record(encode_png(pixels(label)).numpy(), label)
        for label in labels
    ]
    records.write_records(str(path), contents)
    recipe = replace(BALANCED, dataset="tfrecord", num_classes=4)
    expected = pytest.approx((6 / 12, 6 / 8, 6 / 4, 6 / 12))
    assert open_dataset(recipe, tmp_path).class_weights == expected
    damage_record(path, 5)  # the only picture of class 2
    expected = pytest.approx((5 / 12, 5 / 8, 5 / 12, 5 / 12))
    assert open_dataset(recipe, tmp_path).class_weights == expected


def test_weights_of_masks_are_bounded(tmp_path, capsys):
    """Without a pixel a class has no weight, and a rare one at most 100 times the smallest."""
    mask = np.zeros([64, 80], np.uint8)
    mask[:16] = 1
    mask[0, 0] = 2
    mask[-1] = 255
    for folder in ("images", "masks"):
        for number in range(3):
            # Of other sizes, as masks are counted one by one.
            path = tmp_path / "train" / folder / f"{number}.png"
            write_picture(path, mask.T if number else mask)
    (tmp_path / "classes.txt").write_text("sky\nroad\ncar\nboat\n")
    changes = {"dataset": "folder", "task": "segmentation", "augmentation": "none"}
    weights = np.array(open_dataset(BALANCED, tmp_path, **changes).class_weights)
    known = 63 * 80
    zeros = known - 16 * 80
    np.testing.assert_allclose(
        weights, known / 4 * np.array([1 / zeros, 1 / (16 * 80 - 1), 100 / zeros, 0])
    )
    printed = capsys.readouterr().out
    assert printed.endswith("train has no boat, which gets the weight 0\n")


def test_other_words_are_refused():
    with refused(r"class_weights must be .*balanced.*, got 'balance'"):
        override(configs.get_recipe("folder"), ["class_weights=balance"])

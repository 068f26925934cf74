# SPDX-License-Identifier: Apache-2.0
"""Tests of the input benchmark."""

import csv
import io
import types

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from benchmarks import input, synthetic_records
from lambdanet import command_line
from lambdanet.errors import InputError
from lambdanet.training.data import records


def test_synthetic_pictures_resemble_those_of_imagenet():
    random = np.random.default_rng(0)
    contents = [synthetic_records.jpeg(random, 375, 500) for _ in range(3)]
    assert 90_000 < np.mean([len(one) for one in contents]) < 140_000  # ImageNet's have 110 kB
    pixels = np.asarray(Image.open(io.BytesIO(contents[0])), np.float32)
    assert pixels.shape == (375, 500, 3) and 20 < pixels.std() < 80
    near = np.corrcoef(pixels[:, :-1].ravel(), pixels[:, 1:].ravel())[0, 1]
    far = np.corrcoef(pixels[:, :-90].ravel(), pixels[:, 90:].ravel())[0, 1]
    assert near > 0.75 > 0.5 > far


@pytest.fixture
def small(tmp_path):
    """Four TFRecord files of small pictures."""
    random = np.random.default_rng(0)
    for index in range(4):
        with tf.io.TFRecordWriter(str(tmp_path / records.shard_name("train", index, 4))) as writer:
            for number in range(16):
                writer.write(records.encode_record(synthetic_records.jpeg(random, 40, 48), number))
    return tmp_path


def test_command_measures_both_readers(small, two_operations, tmp_path, capsys, monkeypatch):
    turn, means = input.take_turn, []

    def check_batch(batch):
        images, labels = batch
        assert images.shape == (8, 24, 24, 3) and images.dtype == tf.float32 and labels.shape == (8,)
        means.append(abs(float(tf.reduce_mean(images))))

    def take_checked_turn(contender, *rest):
        turn(types.SimpleNamespace(take=lambda count: map(check_batch, contender.take(count))), *rest)

    monkeypatch.setattr(input, "take_turn", take_checked_turn)
    flags = ["--image_size=24", "--batch_size=8", "--images=16", "--repeats=1", f"--out={tmp_path / 'out'}"]
    assert command_line.main(input.COMMAND, [f"--data_dir={small}", *flags]) == 0
    printed = capsys.readouterr().out
    assert len(means) == 4 * (2 + 2) and max(means) < 1.5  # all of them normalize
    with (tmp_path / "out" / "input.csv").open() as file:
        rows = {row["contender"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["ours", "model_garden", "ours+randaugment", "model_garden+randaugment"]
    for name, row in rows.items():
        assert name in printed and float(row["images_per_second"]) > 0 and float(row["cpu_ms_per_image"]) > 0
        assert bool(row["times_as_fast_as_model_garden"]) == name.startswith("ours")


def test_ratio_is_the_median_over_the_rounds():
    ours = input.Throughput("ours", speeds=[10.0, 20.0, 30.0], work=[0.1, 0.1, 0.2])
    theirs = input.Throughput("model_garden", speeds=[5.0, 20.0, 10.0], work=[0.2, 0.2, 0.2])
    row = ours.columns(theirs)
    assert row["images_per_second"] == 20 and row["cpu_ms_per_image"] == 100
    assert row["times_as_fast_as_model_garden"] == 2 and row["cpu_time_by_model_garden"] == 0.5
    assert theirs.columns(None)["times_as_fast_as_model_garden"] is None


def test_wrong_arguments_are_rejected(capsys):
    with pytest.raises(InputError, match="images must be at least the batch size of 128, got 5"):
        input.benchmark_input(images=5)
    assert command_line.main(input.COMMAND, ["--images=-1"]) == 2
    assert "images must be a positive integer, got -1" in capsys.readouterr().err

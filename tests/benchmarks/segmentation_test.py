# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.segmentation`: its labels and metric, both networks, and what it writes."""

import numpy as np
import pytest
from PIL import Image

from benchmarks import segmentation
from lambdanet import command_line
from lambdanet.detection.data.scenes import CLASSES, draw_scene
from lambdanet.layers.lambda_layer import LambdaLayer


def test_labels_are_the_visible_objects():
    pictures, labels = segmentation.draw(2, (0, 1))
    picture, objects = draw_scene((0, 1, 1))
    np.testing.assert_array_equal(pictures[1], picture[:128, :128])
    for item in objects:
        seen = labels[1][item.mask[:128, :128]]
        assert (seen == 1 + CLASSES.index(item.name)).all()
    assert 0 in labels


def test_mean_iou_counts_each_class_alike():
    labels = np.array([[0, 0, 0, 1], [2, 3, 4, 5]])
    logits = np.eye(6)[labels]
    assert segmentation.mean_iou(labels, logits) == 1
    logits[0, 0] = np.eye(6)[1]  # 2 / 3 of the background, 1 / 2 of the first class
    expected = (2 / 3 + 1 / 2 + 4) / 6
    assert segmentation.mean_iou(labels, logits) == pytest.approx(expected)


@pytest.mark.rest
def test_networks_are_trained_exported_and_drawn(tmp_path, capsys):
    out = tmp_path / "out"
    words = [f"--out={out}", "--train=4", "--val=8", "--epochs=1", "--batch_size=4"]
    assert command_line.main(segmentation.COMMAND, words) == 0, capsys.readouterr().err
    shown = capsys.readouterr().out
    assert shown.count("mean IoU 0.") == 2 and "with convolutions" in shown
    assert (out / "saved_model" / "saved_model.pb").is_file()
    assert Image.open(out / "found.png").size == (8 * 128, 3 * 128)
    twin = segmentation.segmenter(segmentation.NETWORKS["with convolutions"])
    assert not any(isinstance(layer, LambdaLayer) for layer in twin.layers)

# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.segmentation`: its labels and metric, both networks, and what it writes."""

import numpy as np
import pytest
from PIL import Image

from benchmarks import segmentation
from lambdanet import command_line
from lambdanet.layers.lambda_layer import LambdaLayer


def test_mean_iou_counts_each_class_alike():
    labels = np.array([[0, 0, 0, 1], [2, 3, 4, 5]])
    logits = np.eye(6)[labels]
    assert segmentation.mean_iou(labels, logits) == pytest.approx(1)
    logits[0, 0] = np.eye(6)[1]  # 2 / 3 of the background, 1 / 2 of the first class
    expected = (2 / 3 + 1 / 2 + 4) / 6
    assert segmentation.mean_iou(labels, logits) == pytest.approx(expected)


@pytest.mark.weekly
@pytest.mark.slow
def test_networks_are_trained_exported_and_drawn(tmp_path, capsys):
    out = tmp_path / "out"
    words = [f"--out={out}", "--train=4", "--val=8", "--epochs=1", "--batch_size=4"]
    assert command_line.main(segmentation.COMMAND, words) == 0, capsys.readouterr().err
    shown = capsys.readouterr().out
    assert shown.count("mean IoU 0.") == 2 and "with convolutions" in shown
    assert (out / "saved_model" / "saved_model.pb").is_file()
    with Image.open(out / "found.png") as drawing:
        assert drawing.size == (8 * 64, 3 * 64)
    twin = segmentation.segmenter(segmentation.NETWORKS["with convolutions"])
    assert not any(isinstance(layer, LambdaLayer) for layer in twin.layers)

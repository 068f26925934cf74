# SPDX-License-Identifier: Apache-2.0
"""Bytes that masks of large pictures take, in windows and whole."""

import functools
import tracemalloc
import types

import numpy as np
import pytest
import tensorflow as tf
from helpers import write_picture
from refusals import refused
from training_runs import recipe_with

from lambdanet import sliding_window
from lambdanet.models.sliding_window import window_parts
from lambdanet.training import evaluate
from lambdanet.training.serving.predict import predict
from lambdanet.training.tasks.segmentation import (
    MaskOutputs,
    Segmentation,
)

CLASSES = 21
SIZE = (448, 416)
RANDOM = np.random.default_rng(0)
PICTURES = RANDOM.random([2, *SIZE, 1], dtype=np.float32)
LABELS = RANDOM.integers(0, CLASSES + 1, [2, *SIZE]).astype(np.uint8)
LABELS[LABELS == CLASSES] = 255
LOGITS = 4 * CLASSES * SIZE[0] * SIZE[1]  # bytes of those of a whole picture
WINDOWS = {"window": 64, "overlap": 32}
FACTORS = RANDOM.normal(size=CLASSES).astype(np.float32)
TASK = Segmentation(recipe_with("segment", num_classes=CLASSES))


def network(images):
    """Logits of each pixel that depend on where it is in a window, [b, h, w, CLASSES]."""
    rows = np.linspace(0, 1, images.shape[1], dtype=np.float32)[:, None, None]
    return (images + rows) * FACTORS


def peak(function):
    """The result of a function, and the largest number of bytes of its arrays."""
    tracemalloc.start()
    try:
        return function(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def measure(predict):
    batches = tf.data.Dataset.from_tensor_slices((PICTURES, LABELS)).batch(1)
    return TASK.measure(evaluate.outputs(predict, batches, are_maps=True), None)


@pytest.mark.parametrize(
    ("used", "most"),
    [(network, 1.4), (functools.partial(window_parts, network, **WINDOWS), 0.5)],
)
def test_evaluation_holds_no_second_picture(used, most):
    """What it measures in windows is in segmentation_test."""
    found, size = peak(lambda: measure(used))
    assert size <= most * LOGITS
    assert found.values["examples"] == 2


def test_joined_windows_hold_little_more_than_the_result():
    _, size = peak(lambda: sliding_window(network, PICTURES[:1], **WINDOWS))
    assert LOGITS <= size <= 1.3 * LOGITS


def test_mask_of_windows_holds_no_logits(tmp_path):
    def serve(images):
        scores = network(images.numpy()[..., :1] / np.float32(255))
        return {"probabilities": tf.nn.softmax(scores)}

    image = (255 * PICTURES[0]).astype(np.uint8).repeat(3, -1)
    file = write_picture(tmp_path / "picture.png", image)
    find = MaskOutputs(["a", "b"]).find
    mask, size = peak(lambda: find({"serving_default": serve}, file, **WINDOWS))
    assert size <= 0.5 * LOGITS
    joined = sliding_window(network, image[None, ..., :1] / np.float32(255), **WINDOWS)
    assert np.mean(mask == joined[0].argmax(-1)) > 0.999  # logits, but for rounding


TOO_SMALL = "window must be at least 32, the distance of windows, got 16"


@pytest.mark.parametrize(
    ("window", "overlap", "message"),
    [
        (16, 0, TOO_SMALL),
        (-5, 64, "window must be a positive integer, got -5"),
        (64.5, 16, "window must be a positive integer, got 64.5"),
        (64, -5, "overlap must be zero or a positive integer, got -5"),
    ],
)
def test_wrong_windows_are_refused_once(window, overlap, message, tmp_path):
    with refused(message):
        sliding_window(network, PICTURES, window, overlap)
    with refused(message):
        evaluate.evaluate(tmp_path, window=window, overlap=overlap)


def test_wrong_windows_are_refused_before_pictures(monkeypatch, tmp_path):
    found = types.SimpleNamespace(task_outputs=MaskOutputs(["a", "b"]))
    loader = "lambdanet.training.serving.predict.load_export"
    monkeypatch.setattr(loader, lambda *_, **__: found)
    with refused(TOO_SMALL):
        predict("model", [tmp_path / "missing.png"], window=16)

# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.segmentation`: DeepLabV3+ on drawn shapes, with and without lambda layers."""

import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from PIL import Image

from benchmarks import program
from benchmarks.interleaved import results
from lambdanet import command_line
from lambdanet.backend import keras
from lambdanet.commands import Folder
from lambdanet.detection.data.drawn_shapes import CLASSES, NUM_CLASSES, draw_shape
from lambdanet.errors import check_counts
from lambdanet.files import atomic_dir, check_output_dir
from lambdanet.models import zoo

SIDE = 64
FILTERS = 64
LOW_FILTERS = 24
DILATION_RATES = (1, 2)
NETWORK = "lambda_resnet_tiny"
# The same network with convolutions instead of lambda layers.
NETWORKS = {NETWORK: None, "with convolutions": ("C", "CC", "CC", "C")}
# Red, green, blue, yellow and violet, over the picture.
COLORS = (
    (0, 0, 0),
    (228, 26, 28),
    (77, 175, 74),
    (55, 126, 184),
    (255, 221, 51),
    (152, 78, 163),
)


def segment(
    out: Folder,
    train: int = 700,
    val: int = 100,
    epochs: int = 7,
    batch_size: int = 8,
    seed: int = 0,
) -> dict[str, float]:
    """Trains a LambdaResNet with a DeepLabV3+ head on drawn shapes, and its twin with convolutions.

    Prints the mean IoU of both on pictures that they have not seen, and writes the LambdaResNet as a
    SavedModel, and pictures of what that finds.

    Args:
      out: the folder to write; must be new or empty.
      train: the number of pictures to train with, 64 x 64.
      val: the number of pictures to measure with.
      epochs: the epochs of training.
      batch_size: the pictures in a step.
      seed: the random seed.

    Returns:
      The mean IoU over the classes and the background, by network.

    Raises:
      InputError: a number is not positive, or `out` is not empty.
    """
    check_counts(train=train, val=val, epochs=epochs, batch_size=batch_size)
    check_output_dir(out)
    results.announce("float32")
    pictures, labels = draw(train, (seed, 0))
    test_pictures, test_labels = draw(val, (seed, 1))
    scores = {}
    with atomic_dir(out) as staging:
        for name, stages in NETWORKS.items():
            keras.utils.set_random_seed(seed)
            begin = time.perf_counter()
            model = segmenter(stages)
            fit(model, pictures, labels, epochs, batch_size)
            logits = model.predict(prepared(test_pictures), batch_size, verbose=0)
            scores[name] = mean_iou(test_labels, logits)
            print(
                f"{name}: {model.count_params():,} parameters, mean IoU {scores[name]:.3f} on {val} "
                f"pictures, {time.perf_counter() - begin:.0f} s"
            )
            if stages is None:
                folder = str(Path(staging, "saved_model"))
                model.export(folder, verbose=False)
                found = predict_exported(folder, test_pictures)
                _check_equal(found, logits.argmax(-1))
                _save_drawing(
                    Path(staging, "found.png"), test_pictures, test_labels, found
                )
    print(
        f"The LambdaResNet is in {out}/saved_model, and what that found in {out}/found.png"
    )
    return scores


def draw(count: int, seed: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Draws a shape on a plain gray in each quarter of a picture.

    Args:
      count: the number of pictures.
      seed: integers that determine the pictures.

    Returns:
      The pictures, uint8 [count, 64, 64, 3], and the class of each pixel, int32 [count, 64, 64]; 0 is the
      background.
    """
    random = np.random.default_rng(seed)
    pictures = np.zeros([count, SIDE, SIDE, 3], np.uint8)
    labels = np.zeros([count, SIDE, SIDE], np.int32)
    for index in range(count):
        classes = random.integers(1, NUM_CLASSES, size=4)
        colors = random.uniform(0, 1, [4, 3]).astype(np.float32)
        colors[:, 0] = np.where(colors[:, 0] < 0.5, 0.1, 0.9)  # unlike the background
        picture = np.full([SIDE, SIDE, 3], random.uniform(0.3, 0.5), np.float32)
        for quarter, number in enumerate(classes):
            radius = SIDE * random.uniform(0.14, 0.2)
            corner = np.array([quarter % 2, quarter // 2]) * SIDE / 2
            center = corner + random.uniform(radius, SIDE / 2 - radius, 2)
            name = CLASSES[number - 1]
            coverage = draw_shape(name, radius, tuple(center), random, SIDE, SIDE)
            picture += coverage[..., None] * (colors[quarter] - picture)
            labels[index][coverage >= 0.5] = number
        noise = random.normal(0, 0.02, picture.shape).astype(np.float32)
        pictures[index] = np.round(255 * (picture + noise).clip(0, 1))
    return pictures, labels


def prepared(pictures: np.ndarray) -> np.ndarray:
    """Returns what the networks read, pixels in -1..1."""
    return pictures.astype(np.float32) / 127.5 - 1


def segmenter(stages: Sequence[str] | None) -> keras.Model:
    """Returns a DeepLabV3+ (Chen et al. 2018): images [b, 64, 64, 3] -> logits [b, 64, 64, classes].

    Its head has 64 channels instead of 256.

    Args:
      stages: the stages of the network, as letters of its blocks; None: its own.
    """
    network: Any = zoo.MODELS[NETWORK]
    if stages is not None:
        network = dataclasses.replace(network, stages=stages)
    with mock.patch.dict(zoo.MODELS, {NETWORK: network}):
        trunk = zoo.create_model(
            NETWORK, input_size=SIDE, features_only=True, output_stride=16
        )
    maps = trunk.output
    branches = [_convolution(maps["5"], FILTERS, 1)]
    for rate in DILATION_RATES:
        branches.append(_convolution(maps["5"], FILTERS, 3, rate))
    pooled = keras.layers.GlobalAveragePooling2D(keepdims=True)(maps["5"])
    pooled = _convolution(pooled, FILTERS, 1)
    branches.append(keras.layers.UpSampling2D(SIDE // 16)(pooled))
    x = _convolution(keras.layers.Concatenate()(branches), FILTERS, 1)
    x = keras.layers.UpSampling2D(4, interpolation="bilinear")(x)
    x = keras.layers.Concatenate()([x, _convolution(maps["2"], LOW_FILTERS, 1)])
    x = _convolution(x, FILTERS, 3)
    logits = keras.layers.Conv2D(NUM_CLASSES, 1)(x)
    logits = keras.layers.UpSampling2D(4, interpolation="bilinear")(logits)
    return keras.Model(trunk.input, logits)


def _convolution(x: Any, filters: int, size: int, dilation_rate: int = 1) -> Any:
    layer = keras.layers.Conv2D(
        filters, size, padding="same", dilation_rate=dilation_rate, use_bias=False
    )
    return keras.layers.ReLU()(keras.layers.BatchNormalization()(layer(x)))


def fit(
    model: keras.Model,
    pictures: np.ndarray,
    labels: np.ndarray,
    epochs: int,
    batch_size: int,
) -> None:
    """Trains with a rate that falls to 0, on the pictures and their mirror images in turn."""
    steps = epochs * -(-len(pictures) // batch_size)
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, steps, warmup_target=2e-3, warmup_steps=steps // 10
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate), loss)
    images = prepared(pictures)
    for epoch in range(epochs):
        mirror = slice(None, None, -1 if epoch % 2 else 1)
        model.fit(images[:, :, mirror], labels[:, :, mirror], batch_size, verbose=0)


def mean_iou(labels: np.ndarray, logits: np.ndarray) -> float:
    """Returns Keras's mean over all classes of intersection / union, for logits [..., classes]."""
    metric = keras.metrics.MeanIoU(NUM_CLASSES, sparse_y_pred=False)
    metric.update_state(labels, logits)
    return float(metric.result())


def predict_exported(folder: str, pictures: np.ndarray) -> np.ndarray:
    """Returns the classes [b, 64, 64] that a SavedModel finds."""
    import tensorflow as tf

    exported = tf.saved_model.load(folder)
    logits = [exported.serve(prepared(picture[None]))[0] for picture in pictures]
    return np.argmax(logits, axis=-1)


def _check_equal(found: np.ndarray, expected: np.ndarray) -> None:
    """Checks that an export finds what the model found, but where two classes are equally probable."""
    differing = float(np.mean(found != expected))
    print(f"the export and the model differ in {differing:.4%} of the pixels")
    if differing > 1e-3:
        raise AssertionError("the export differs from the model")


def _save_drawing(
    path: Path, pictures: np.ndarray, labels: np.ndarray, found: np.ndarray
) -> None:
    """Draws eight pictures in a line, with the true classes below, and below these the classes found."""
    colors = np.array(COLORS, np.float32)
    rows = [pictures[:8].astype(np.float32)]
    for classes in (labels[:8], found[:8]):
        painted = (pictures[:8] + 2 * colors[classes]) / 3
        rows.append(np.where(classes[..., None] > 0, painted, pictures[:8]))
    lines = [np.concatenate(list(row), axis=1) for row in rows]
    Image.fromarray(np.concatenate(lines, axis=0).astype(np.uint8)).save(path)


COMMAND = program(
    "benchmarks.segmentation",
    segment,
    examples=("python -m benchmarks.segmentation --out=/tmp/segmentation",),
)

if __name__ == "__main__":
    sys.exit(command_line.main(COMMAND))

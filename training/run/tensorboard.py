# SPDX-License-Identifier: Apache-2.0
"""TensorBoard logs of a run: curves per epoch, and the first pictures after preprocessing."""

import time
from pathlib import Path

import numpy as np
import tensorflow as tf

from lambdanet.backend import keras
from lambdanet.configs.recipe import Recipe

SPEED = "images_per_second"
MAX_PICTURES = 16


class Speed(keras.callbacks.Callback):
    """Adds `images_per_second` to the logs at the end of an epoch; `batch_size` is that of all devices.

    The first execution of an epoch is left out where there are more, because it may compile, or wait for the
    first images.
    """

    takes_tensors = True

    def __init__(self, batch_size: int):
        super().__init__()
        self._batch_size = batch_size
        # Seconds and steps at the beginning, and after the first and the last execution.
        self._ends: list[tuple[float, int]] = []

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self._ends = [(time.perf_counter(), 0)]

    def on_train_batch_end(
        self, batch: int, logs: dict[str, float] | None = None
    ) -> None:
        self._ends[2:] = [(time.perf_counter(), batch + 1)]

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        if len(self._ends) < 2 or logs is None:  # the epoch had no steps left
            return
        (begin, done), (end, steps) = self._ends[-2], self._ends[-1]
        if end > begin:
            logs[SPEED] = (steps - done) * self._batch_size / (end - begin)


class Dashboard(keras.callbacks.TensorBoard):
    """The TensorBoard callback of Keras, with a curve for the accuracy of averaged weights, if any."""

    def __init__(self, folder: Path, averaged: bool):
        super().__init__(str(folder), write_graph=False, profile_batch=0)
        self._averaged = averaged

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        logs = dict(logs or {})
        if self._averaged and "val_accuracy" in logs:
            logs["ema_accuracy"] = logs["val_accuracy"]
        super().on_epoch_end(epoch, logs)


def show_pictures(folder: Path, recipe: Recipe, images: tf.Tensor) -> None:
    """Writes the first 16 pictures, float32 [b, h, w, c], for TensorBoard, without their normalization."""
    pixels = images[:MAX_PICTURES] * np.array(recipe.std, np.float32) + np.array(
        recipe.mean, np.float32
    )
    writer = tf.summary.create_file_writer(str(folder / "pictures"))
    with writer.as_default():
        tf.summary.image(
            "first_batch",
            tf.clip_by_value(pixels, 0, 1),
            step=0,
            max_outputs=MAX_PICTURES,
        )
    writer.close()

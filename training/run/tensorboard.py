# SPDX-License-Identifier: Apache-2.0
"""What TensorBoard shows of a run: curves by epoch, and the first pictures as the model gets them."""

import time
from pathlib import Path

import numpy as np
import tensorflow as tf
import tf_keras as keras

from lambdanet.configs.recipe import Recipe

SPEED = "images_per_second"
MAX_PICTURES = 16


class Speed(keras.callbacks.Callback):
    """Adds `images_per_second` to what other callbacks are told at the end of an epoch.

    The first execution of an epoch is left out where there are more: it may have had to compile, or to wait
    for the first images.

    Args:
      batch_size: images of a step, on all devices.
    """

    _supports_tf_logs = True  # as Keras has it: logs need not be fetched for it at each step

    def __init__(self, batch_size: int):
        super().__init__()
        self._batch_size = batch_size
        self._ends: list[
            tuple[float, int]
        ] = []  # seconds and steps: at the beginning, first and last execution

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        self._ends = [(time.perf_counter(), 0)]

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self._ends[2:] = [(time.perf_counter(), batch + 1)]

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        if len(self._ends) < 2 or logs is None:  # no step was made here
            return
        (begin, done), (end, steps) = self._ends[-2], self._ends[-1]
        if end > begin:
            logs[SPEED] = (steps - done) * self._batch_size / (end - begin)


class Dashboard(keras.callbacks.TensorBoard):
    """TensorBoard's curves of Keras, also of images a second and, with averaged weights, of their accuracy.

    Args:
      folder: for the files.
      averaged: whether the moving averages of the weights are what is evaluated.
    """

    def __init__(self, folder: Path, averaged: bool):
        super().__init__(str(folder), write_graph=False, profile_batch=0)
        self._averaged = averaged

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        logs = dict(logs or {})
        if self._averaged and "val_accuracy" in logs:
            logs["ema_accuracy"] = logs["val_accuracy"]
        super().on_epoch_end(epoch, logs)


def show_pictures(folder: Path, recipe: Recipe, images: tf.Tensor) -> None:
    """Writes pictures for TensorBoard as a model gets them, but for the normalisation.

    Args:
      folder: for the files of the run.
      recipe: tells how they were normalised.
      images: float32 [b, h, w, c]; the first 16 are shown.
    """
    pixels = images[:MAX_PICTURES] * np.array(recipe.std, np.float32) + np.array(recipe.mean, np.float32)
    writer = tf.summary.create_file_writer(str(folder / "pictures"))
    with writer.as_default():
        tf.summary.image("first_batch", tf.clip_by_value(pixels, 0, 1), step=0, max_outputs=MAX_PICTURES)
    writer.close()

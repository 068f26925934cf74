# SPDX-License-Identifier: Apache-2.0
"""Evaluates a trained model on a split of its dataset, by the measures of its task."""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from lambdanet.backend import keras
from lambdanet.configs.recipe import Recipe
from lambdanet.core import which_keras
from lambdanet.core.errors import InputError, invalid
from lambdanet.core.files import check_new, local_path, writable_dir
from lambdanet.models.inference import for_inference
from lambdanet.models.sliding_window import check_windows, window_parts
from lambdanet.training import calibration
from lambdanet.training.data.bad_records import BadRecords
from lambdanet.training.data.dataset import Dataset
from lambdanet.training.data.task import task_of
from lambdanet.training.run.devices import create_devices
from lambdanet.training.run.model_dir import (
    classes_of,
    find_data_dir,
    load_recipe,
    load_trained_model,
)
from lambdanet.training.run.start import read_record

which_keras.check_backend("evaluate", ("tensorflow", "jax"))

MAP_ROWS = 16  # of a whole picture that are measured at a time


def evaluate(
    model_dir: str | Path,
    data_dir: str | None = None,
    split: str | None = None,
    max_bad_records: int | None = None,
    out: str | Path | None = None,
    window: int = 0,
    overlap: int = 64,
    flip: bool = False,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Evaluates the model in a model_dir, and prints the result on one line; for masks, also IoU per class.

    The images are read once, in order, without augmentation. The loss is the mean cross-entropy without label
    smoothing and weight decay, so that it can be compared between recipes. With the task segmentation each
    image is read whole, at its size.

    Args:
      model_dir: a folder of `lambdanet train`, with at least one checkpoint.
      data_dir: the folder of TFDS, or of the pictures or records; None: as in training.
      split: a split of the recipe's dataset, such as "test" or "train[:10%]"; None: the recipe's
        `eval_split`.
      max_bad_records: the largest number of unreadable images, and of files that are no pictures, to name and
        leave out; None: 100 images, and a tenth of the files of each class.
      out: a folder for `classes.csv`, with precision and recall per class, `wrong.csv`, the images that are
        classified wrongly, `confusion.png`, the confusion matrix, and `reliability.png`, the accuracy by
        confidence; for masks, `classes.csv` has the IoU. None: they are not written.
      window: the side of overlapping windows, in pixels, in which large pictures are segmented; 0: whole.
      overlap: what neighboring windows share, as of `sliding_window`.
      flip: whether the logits are the means of those of a picture and of its mirror image.
      overwrite: whether files that exist in `out` are replaced.

    Returns:
      A dict of `dataset`, `split`, `examples`, `loss`, and the measures of the task, all in 0..1: `top_1`,
      `top_5` (1 with five classes or fewer) and `calibration_error`, the expected calibration error;
      `average_precision` and `thresholds`; or `mean_iou`.

    Raises:
      InputError: there is no trained model in `model_dir`, there is no such split or `data_dir`, the data
        has other classes, too many images cannot be read, or a file in `out` exists or cannot be written.

    Example:
      >>> evaluate("runs/digits")["top_1"]
      0.98
    """
    # On JAX, TensorFlow leaves the GPU to it.
    create_devices("one_device", global_batch_size=1)
    if window:
        check_windows(window, overlap)
    folder = None
    if out is not None:
        folder = local_path(out, "out")
        for name in task_of(load_recipe(model_dir)).FILES:
            check_new(folder / name, overwrite)
    model, recipe = load_trained_model(model_dir)
    dataset = open_split(model_dir, recipe, data_dir, split, max_bad_records)
    task = dataset.task
    predict: Callable[[np.ndarray], Any] = for_inference(model).predict_on_batch
    if flip:
        predict = partial(average_mirrors, predict, are_maps=task.any_size)
    if window:
        if not task.any_size:
            raise invalid("window", f"left out with the task {recipe.task}", window)
        predict = partial(window_parts, predict, window=window, overlap=overlap)
    # Before the long part.
    if folder:
        writable_dir(folder)
    with dataset.bad_records.as_input_errors():
        if task.any_size:
            dataset.source.check_readable(dataset.eval_split)
        steps = None if task.any_size else dataset.eval_steps()
        pairs = outputs(
            predict, dataset.eval(whole=task.any_size), steps, task.any_size
        )
        found = task.measure(pairs, Path(model_dir).expanduser())
    result = {"dataset": recipe.dataset, "split": dataset.eval_split, **found.values}
    with_mirrors = " with mirror images" if flip else ""
    line = f"{recipe.dataset} {dataset.eval_split}{with_mirrors}: {found.text}"
    print(line)
    for name, score in zip(dataset.class_names, found.scores, strict=False):
        if not np.isnan(score):
            print(f"  {name} {100 * score:.0f} %")
    if folder:
        task.write(folder, dataset, found, title=f"{recipe.model}, {line}")
    return result


def average_mirrors(
    predict: Callable[..., np.ndarray], images: np.ndarray, are_maps: bool
) -> np.ndarray:
    """Returns the means of the logits, or maps of them, of images [b, h, w, c] and of their mirror images."""
    mirrored = predict(images[:, :, ::-1])
    if are_maps:
        mirrored = mirrored[:, :, ::-1]
    return (predict(images) + mirrored) / 2


def fit_temperature(
    model: keras.Model, recipe: Recipe, open_data: Callable[[], Dataset]
) -> float:
    """Fits a temperature on a run's `held_out_split`, or else its `eval_split`, and prints what it changes.

    Args:
      model: the model of the run.
      recipe: its recipe.
      open_data: returns its dataset, as `open_split`.

    Returns:
      The number to divide logits by before the softmax.

    Raises:
      InputError: an image has not one class; or as `evaluate`, or as `calibration.fit_temperature`.
    """
    if not task_of(recipe).outputs_type.has_one_class:
        raise invalid("calibrate", f"False for the task {recipe.task!r}", True)
    split = recipe.held_out_split or recipe.eval_split
    dataset = dataclasses.replace(open_data(), eval_split=split)
    with dataset.bad_records.as_input_errors():
        pairs = outputs(
            for_inference(model).predict_on_batch, dataset.eval(), dataset.eval_steps()
        )
        logits, labels = map(np.concatenate, zip(*pairs, strict=True))
    temperature = calibration.fit_temperature(logits, labels)
    for divisor in (1.0, temperature):
        found = dataset.task.measure([(logits / divisor, labels)], Path())
        print(f"{dataset.eval_split} with the temperature {divisor:.4g}: {found.text}")
    return temperature


def open_split(
    model_dir: str | Path,
    recipe: Recipe,
    data_dir: str | None,
    split: str | None = None,
    max_bad_records: int | None = None,
) -> Dataset:
    """Opens the dataset of a run, in the order of its classes; arguments and errors as in `evaluate`."""
    record = read_record(model_dir)
    return Dataset.open(
        recipe,
        find_data_dir(model_dir, data_dir),
        BadRecords(max_bad_records),
        split,
        classes_of(model_dir),
        some_classes=True,
        made_from_training=record.held_out,
        white_class=record.white_class,
    )


def outputs(
    predict: Callable[[np.ndarray], Any],
    batches: tf.data.Dataset,
    num_batches: int | None = None,
    are_maps: bool = False,
) -> Iterator[tuple[Any, np.ndarray]]:
    """Runs a model on a dataset, with a progress bar in a terminal.

    Args:
      predict: images -> logits [b, ...], or parts of them, as `window_parts` yields them.
      batches: (images, labels); the last batch may be partial.
      num_batches: the number of batches, for the progress bar.
      are_maps: whether the logits are maps, [b, h, w, ...], of which a part at a time is needed.

    Yields:
      The logits of a batch, float64, and its labels; of maps, an iterator of the parts of their logits,
      float32, as of `window_parts`.

    Raises:
      InputError: there is no image, or an output is not a number.
    """
    size = 0
    for images, labels in tqdm(
        batches.as_numpy_iterator(),
        "evaluating",
        num_batches,
        disable=None,
        leave=False,
    ):
        count = len(images)
        size = max(size, count)
        if count < size:  # JAX compiles each size of a batch
            padding = [(0, size - count)] + [(0, 0)] * (images.ndim - 1)
            images = np.pad(images, padding)
        if are_maps:
            yield _map_parts(predict(images)), labels
        else:
            yield _checked(predict(images)[:count]).astype(np.float64), labels
    if size == 0:
        raise InputError("no image of the split can be read")


def _map_parts(logits: Any) -> Iterator[tuple[tuple[slice, ...], np.ndarray]]:
    """Yields the parts of maps, which may be in parts; as `window_parts`."""
    parts = logits
    if isinstance(logits, np.ndarray):
        starts = range(0, logits.shape[1], MAP_ROWS)
        rows = (slice(start, start + MAP_ROWS) for start in starts)
        parts = (((at,), logits[:, at]) for at in rows)
    for at, part in parts:
        yield at, _checked(part)


def _checked(logits: np.ndarray) -> np.ndarray:
    """Returns logits; `InputError` where one is not a number."""
    if np.isnan(np.max(logits)):
        raise InputError("the model gives outputs that are not numbers (NaN)")
    return logits

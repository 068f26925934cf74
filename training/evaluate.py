# SPDX-License-Identifier: Apache-2.0
"""Evaluates a trained model: accuracy and loss on a split of its dataset."""

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from lambdanet import text_table, which_keras
from lambdanet.backend import keras
from lambdanet.errors import InputError
from lambdanet.files import MARKED_PNG, writable_dir, write_output
from lambdanet.models.inference import for_inference
from lambdanet.training.data.bad_records import BadRecords
from lambdanet.training.data.dataset import Dataset
from lambdanet.training.run.devices import create_devices
from lambdanet.training.run.model_dir import (
    classes_of,
    find_data_dir,
    load_trained_model,
)
from lambdanet.training.run.start import read_record

which_keras.check_backend("evaluate", ("tensorflow", "jax"))


def evaluate(
    model_dir: str | Path,
    data_dir: str | None = None,
    split: str | None = None,
    max_bad_records: int | None = None,
    out: str | Path | None = None,
) -> dict[str, Any]:
    """Evaluates the model in a model_dir, and prints the result on one line.

    The images are read once, in order, without augmentation. The loss is the mean cross-entropy without label
    smoothing and weight decay, so that it can be compared between recipes.

    Args:
      model_dir: a folder of `lambdanet train`, with at least one checkpoint.
      data_dir: the folder of TFDS, or of the pictures or records; None: as in training.
      split: a split of the recipe's dataset, such as "test" or "train[:10%]"; None: the recipe's
        `eval_split`.
      max_bad_records: the largest number of unreadable images, and of files that are no pictures, to name and
        leave out; None: 100 images, and a tenth of the files of each class.
      out: a folder for `classes.csv`, with precision and recall per class, `wrong.csv`, the images that are
        classified wrongly, and `confusion.png`, the confusion matrix; None: they are not written. Only files
        that `evaluate` wrote are replaced.

    Returns:
      A dict of `dataset`, `split`, `examples`, `top_1`, `top_5` (both in 0..1; with five classes or
      fewer `top_5` is 1) and `loss`.

    Raises:
      InputError: there is no trained model in `model_dir`, there is no such split or `data_dir`, the data
        has other classes, too many images cannot be read, or `out` cannot be written.

    Example:
      >>> evaluate("runs/digits")["top_1"]
      0.98
    """
    data_dir = find_data_dir(model_dir, data_dir)
    # On JAX, TensorFlow leaves the GPU to it.
    create_devices("one_device", global_batch_size=1)
    model, recipe = load_trained_model(model_dir)
    classes = classes_of(model_dir)
    dataset = Dataset.open(
        recipe,
        data_dir,
        BadRecords(max_bad_records),
        split,
        classes,
        some_classes=True,
        held_out=read_record(model_dir).held_out,
    )
    files = {
        "classes.csv": b"class,name,precision,",
        "wrong.csv": b"image,class,predicted",
        "confusion.png": MARKED_PNG,
    }
    # Before the long part.
    folder = None if out is None else writable_dir(Path(out).expanduser(), files)
    with dataset.bad_records.as_input_errors():
        measured, labels, predicted = classify(
            for_inference(model), dataset.eval(), dataset.eval_steps()
        )
    result = {"dataset": recipe.dataset, "split": dataset.eval_split, **measured}
    line = summary(result, recipe.num_classes)
    print(line)
    if folder:
        _write(folder, dataset, labels, predicted, title=f"{recipe.model}, {line}")
    return result


def measure(model: keras.Model, batches: tf.data.Dataset) -> dict[str, Any]:
    """Returns the `examples`, `top_1`, `top_5` and `loss` of a classifier.

    Args:
      model: images -> logits [b, num_classes].
      batches: (images, integer labels [b]); the last batch may be partial.

    Raises:
      InputError: there is no image, or an output is not a number.
    """
    return classify(model, batches)[0]


def classify(
    model: keras.Model, batches: tf.data.Dataset, num_batches: int | None = None
) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    """Runs a classifier on a dataset, with a progress bar in a terminal.

    Args:
      model: images -> logits [b, num_classes].
      batches: (images, integer labels [b]); the last batch may be partial.
      num_batches: the number of batches, for the progress bar.

    Returns:
      A dict of `examples`, `top_1`, `top_5` and `loss`, as in `evaluate`; the labels of all images, integers
      [n]; and their predicted classes, integers [n].

    Raises:
      InputError: there is no image, or an output is not a number.
    """
    columns = []
    size = 0
    arrays = batches.as_numpy_iterator()
    for images, labels in tqdm(
        arrays, "evaluating", num_batches, disable=None, leave=False
    ):
        count = len(images)
        size = max(size, count)
        # JAX compiles each size of a batch
        padding = [(0, size - count)] + [(0, 0)] * (images.ndim - 1)
        logits = model.predict_on_batch(np.pad(images, padding))[:count].astype(
            np.float64
        )
        if np.isnan(logits).any():
            raise InputError("the model gives outputs that are not numbers (NaN)")
        # For equal logits the first class counts, so a constant model gets no credit for ties.
        best = np.argsort(-logits, axis=-1, kind="stable")[:, :5]
        correct = best == labels[:, np.newaxis]
        losses = np.logaddexp.reduce(logits, axis=-1) - logits[np.arange(count), labels]
        columns.append(
            (labels, best[:, 0], correct[:, 0], correct.any(axis=-1), losses)
        )
    if not columns:
        raise InputError("no image of the split can be read")
    all_labels, predicted, top_1, top_5, losses = map(
        np.concatenate, zip(*columns, strict=True)
    )
    means = {"top_1": top_1.mean(), "top_5": top_5.mean(), "loss": losses.mean()}
    measured = {name: float(mean) for name, mean in means.items()}
    return {"examples": len(all_labels), **measured}, all_labels, predicted


def _write(
    folder: Path,
    dataset: Dataset,
    labels: np.ndarray,
    predicted: np.ndarray,
    title: str,
) -> None:
    """Writes `classes.csv`, `confusion.png` and `wrong.csv` from the classes of all images, integers [n]."""
    # Here: matplotlib takes a second to import.
    from lambdanet.training import confusion

    names = dataset.class_names
    table = folder / "classes.csv"
    write_output(
        table, text_table.to_csv(confusion.per_class(labels, predicted, names))
    )
    picture = folder / "confusion.png"
    write_output(picture, confusion.draw(labels, predicted, names, title))
    print(f"per class: {table}; confusion matrix: {picture}")
    images = zip(dataset.eval_names(), labels, predicted, strict=True)
    rows = [
        [image, names[label], names[taken]]
        for image, label, taken in images
        if label != taken
    ]
    wrong = folder / "wrong.csv"
    write_output(wrong, text_table.render(["image", "class", "predicted"], rows, "csv"))
    print(f"{len(rows)} wrong images: {wrong}")


def summary(result: dict[str, Any], num_classes: int) -> str:
    """Returns a result on one line, without top-5 where there are five classes or fewer."""
    top_5 = f"top-5 {100 * result['top_5']:.2f} %, " if num_classes > 5 else ""
    return (
        f"{result['dataset']} {result['split']}: {result['examples']} images, "
        f"top-1 {100 * result['top_1']:.2f} %, {top_5}loss {result['loss']:.4f}"
    )

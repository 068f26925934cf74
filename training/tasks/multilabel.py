# SPDX-License-Identifier: Apache-2.0
"""Any number of classes for each image: the task `multilabel`.

A label has a number for each class, float32 [num_classes]: 1 where it is present, 0 where it is absent, and
NaN where that is unknown, which counts in no loss and no metric. Mixed images have mixtures.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from lambdanet.backend import Tensor, keras
from lambdanet.core import text_table
from lambdanet.core.errors import InputError, invalid
from lambdanet.core.files import write_output
from lambdanet.training.data.class_names import read_names
from lambdanet.training.data.task import Evaluation, Task
from lambdanet.training.tasks.classification import ClassLoss

ops = keras.ops

NUM_BINS = 1000  # of probabilities, in the metric and the thresholds of a run
DEFAULT_THRESHOLD = 0.5


class Multilabel(Task):
    """Images with any number of classes, sigmoid, and mean average precision."""

    best = "average_precision"
    FILES: ClassVar[dict[str, bytes]] = {
        "classes.csv": b"class,name,average_precision,",
        "wrong.csv": b"image,missed,wrong",
    }

    def open_source(self, data_dir: str | None) -> Any:
        if self.recipe.labels:
            from lambdanet.training.data import tables

            return tables.MultilabelTable(self.recipe, data_dir)
        if self.recipe.dataset == "tfrecord":
            from lambdanet.training.data import records

            return records.MultilabelRecords(self.recipe, data_dir)
        accepted = (
            "folder with a table in labels, or tfrecord, with the task multilabel"
        )
        raise invalid("dataset", accepted, self.recipe.dataset)

    def read(self, source: Any, example: dict[str, Any]) -> Any:
        import tensorflow as tf

        labels = source.label(example)
        if not source.numbers:
            return labels
        numbers = source.numbers
        places = [len(numbers)] * self.recipe.num_classes  # of the unknown one
        for place, number in enumerate(numbers):
            places[number] = place
        return tf.gather(tf.concat([labels, [np.nan]], axis=0), places)

    def count(self, labels: np.ndarray) -> np.ndarray:
        return np.stack([np.sum(labels == 1, axis=0), np.sum(labels == 0, axis=0)])

    def loss(self) -> keras.losses.Loss:
        recipe = self.recipe
        return MultilabelLoss(
            recipe.label_smoothing, recipe.class_weights, recipe.positive_weights
        )

    def metrics(self) -> list[keras.metrics.Metric]:
        return [MeanAveragePrecision(self.recipe.num_classes)]

    def first_label(self) -> np.ndarray:
        return np.zeros([1, self.recipe.num_classes], np.float32)

    def describe_best(self, model: keras.Model) -> dict[str, Any]:
        (metric,) = model._compile_metrics.metrics
        return {"thresholds": metric.thresholds()}

    def thresholds(self, model_dir: Path) -> list[float]:
        # The file of the best epoch, by its name in `training.run.checkpoints`.
        file = model_dir / "best" / "best.json"
        found = json.loads(file.read_text()) if file.exists() else {}
        default = [DEFAULT_THRESHOLD] * self.recipe.num_classes
        return list(found.get("thresholds", default))

    def measure(
        self, pairs: Iterable[tuple[np.ndarray, np.ndarray]], model_dir: Path
    ) -> Evaluation:
        logits, labels = map(np.concatenate, zip(*pairs, strict=True))
        # Of the sigmoid, without overflow.
        losses = (
            np.maximum(logits, 0) - logits * labels + np.log1p(np.exp(-abs(logits)))
        )
        known = np.sum(~np.isnan(labels), axis=-1)
        scores = _average_precisions(labels, logits)
        if np.isnan(scores).all():
            raise InputError(
                "no class of the split is present in one, and absent in one"
            )
        values: dict[str, Any] = {
            "examples": len(labels),
            "average_precision": float(np.nanmean(scores)),
            "loss": float(np.mean(np.nansum(losses, axis=-1) / np.maximum(known, 1))),
            "thresholds": self.thresholds(model_dir),
        }
        text = (
            f"{values['examples']} images, mean average precision "
            f"{100 * values['average_precision']:.2f} %, loss {values['loss']:.4f}"
        )
        if np.isnan(scores).any():
            names = read_names(model_dir / "classes.txt")
            uncounted = _names(names, np.isnan(scores))
            text += f"; never or always present, so not counted: {uncounted}"
        return Evaluation(values, text, labels, np.exp(-np.logaddexp(0, -logits)))

    def write(self, folder: Path, dataset: Any, found: Evaluation, title: str) -> None:
        thresholds = found.values["thresholds"]
        predicted = found.predicted >= thresholds
        names = dataset.class_names
        scores = _average_precisions(found.labels, found.predicted)
        rows = [
            {
                "class": number,
                "name": name,
                "average_precision": _rounded(scores[number]),
                **_scores(found.labels[:, number], predicted[:, number]),
                "threshold": _rounded(thresholds[number]),
            }
            for number, name in enumerate(names)
        ]
        table = folder / "classes.csv"
        write_output(table, text_table.to_csv(rows))
        print(f"per class: {table}")
        wrong = []
        images = zip(dataset.eval_names(), found.labels, predicted, strict=True)
        for image, label, taken in images:
            missed = _names(names, (label == 1) & ~taken)
            other = _names(names, (label == 0) & taken)
            if missed or other:
                wrong.append([image, missed, other])
        file = folder / "wrong.csv"
        columns = ["image", "missed", "wrong"]
        write_output(file, text_table.render(columns, wrong, "csv"))
        print(f"{len(wrong)} images with a wrong class: {file}")


def _average_precisions(labels: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Returns the average precision of each class, [num_classes]; NaN unless it is present and absent."""
    # Here: scikit-learn takes a second to import.
    from sklearn.metrics import average_precision_score

    found = []
    for label, score in zip(labels.T, scores.T, strict=True):
        known = ~np.isnan(label)
        is_present = label[known] == 1
        has_both = 0 < is_present.sum() < len(is_present)
        found.append(
            average_precision_score(is_present, score[known]) if has_both else np.nan
        )
    return np.array(found)


def _scores(labels: np.ndarray, predicted: np.ndarray) -> dict[str, Any]:
    """Returns the columns of a class, of labels [n] and whether each image was taken to have it, [n]."""
    right = np.sum((labels == 1) & predicted)
    present = np.sum(labels == 1)
    taken = np.sum(~np.isnan(labels) & predicted)
    return {
        "precision": _rounded(right / taken) if taken else None,
        "recall": _rounded(right / present) if present else None,
        "f1": _rounded(2 * right / (present + taken)) if present else None,
        "present": int(present),
        "predicted": int(taken),
    }


def _rounded(value: float) -> float | None:
    return None if np.isnan(value) else round(float(value), 4)


def _names(names: Sequence[str], chosen: np.ndarray) -> str:
    return ";".join(
        name for name, is_chosen in zip(names, chosen, strict=True) if is_chosen
    )


@keras.saving.register_keras_serializable("lambdanet")
class MultilabelLoss(ClassLoss):
    """The mean over the known classes of an image of the binary cross entropy of logits.

    Args:
      label_smoothing: s, at least 0 and below 1; labels become (1 - s) label + s / 2.
      class_weights: the weight of each class; empty: 1.
      positive_weights: the factor of each class where it is present; empty: 1.

    Example:
      >>> float(MultilabelLoss()(tf.constant([[1.0, np.nan]]), tf.constant([[0.0, 9.0]])))
      0.6931...
    """

    def __init__(
        self,
        label_smoothing: float = 0.0,
        class_weights: Any = (),
        positive_weights: Any = (),
        **kwargs: Any,
    ):
        super().__init__(label_smoothing, class_weights, **kwargs)
        self.positive_weights = tuple(positive_weights)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Returns the loss [b] of labels, 0 to 1 or NaN, and logits, both [b, num_classes]."""
        labels = ops.cast(y_true, "float32")
        logits = ops.cast(y_pred, "float32")
        is_known = ops.logical_not(ops.isnan(labels))
        labels = ops.where(is_known, labels, ops.zeros_like(labels))
        labels = labels * (1 - self.label_smoothing) + self.label_smoothing / 2
        present = labels * ops.softplus(-logits)
        if self.positive_weights:
            present = present * ops.convert_to_tensor(self.positive_weights, "float32")
        losses = present + (1 - labels) * ops.softplus(logits)
        if self.class_weights:
            losses = losses * ops.convert_to_tensor(self.class_weights, "float32")
        weights = ops.cast(is_known, "float32")
        return ops.divide_no_nan(ops.sum(losses * weights, -1), ops.sum(weights, -1))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "positive_weights": self.positive_weights}


@keras.saving.register_keras_serializable("lambdanet")
class MeanAveragePrecision(keras.metrics.Metric):
    """The mean over the classes of the average precision of their probabilities, in `NUM_BINS` bins.

    scikit-learn's `average_precision_score`, but for images whose probabilities are in one bin, which are
    as equal ones there. Classes without a present image, or without an absent one, are left out.

    Args:
      num_classes: the number of classes.
      name, dtype: as in Keras.
    """

    def __init__(
        self, num_classes: int, name: str = "average_precision", dtype: Any = None
    ):
        super().__init__(name=name, dtype=dtype)
        self.num_classes = num_classes
        # Of absent and present ones, by class and bin.
        shape = (2 * num_classes * NUM_BINS,)
        self.counts = self.add_variable(shape, initializer="zeros", name="counts")

    def update_state(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> None:
        """Counts labels and logits [b, num_classes]; weights [b] of 0 leave images out."""
        labels = ops.cast(y_true, "float32")
        logits = ops.cast(y_pred, "float32")
        bins = ops.floor(ops.sigmoid(logits) * NUM_BINS)
        bins = ops.minimum(ops.cast(bins, "int32"), NUM_BINS - 1)
        classes = ops.arange(self.num_classes, dtype="int32")
        is_present = ops.cast(labels > 0.5, "int32")
        places = (is_present * self.num_classes + classes) * NUM_BINS + bins
        weights = ops.cast(ops.logical_not(ops.isnan(labels)), "float32")
        if sample_weight is not None:
            is_counted = ops.cast(sample_weight > 0, "float32")
            weights = weights * ops.reshape(is_counted, [-1, 1])
        counts = ops.segment_sum(
            ops.reshape(weights, [-1]), ops.reshape(places, [-1]), self.counts.shape[0]
        )
        self.counts.assign_add(counts)

    def result(self) -> Tensor:
        absent, present = self._cumulated()
        total = present[:, -1:]
        precision = ops.divide_no_nan(present, present + absent)
        before = ops.pad(present, [[0, 0], [1, 0]])[:, :-1]
        found = ops.divide_no_nan((present - before) * precision, total)
        found = ops.sum(found, -1)
        has_both = (total[:, 0] > 0) & (absent[:, -1] > 0)
        counted = ops.cast(has_both, "float32")
        return ops.divide_no_nan(ops.sum(found * counted), ops.sum(counted))

    def thresholds(self) -> list[float]:
        """Returns for each class the probability that divides its images with the largest F1 score."""
        absent, present = map(ops.convert_to_numpy, self._cumulated())
        scores = 2 * present / np.maximum(present + absent + present[:, -1:], 1)
        found = []
        for score in scores:
            is_best = score == score.max()
            if score.max() == 0:
                found.append(DEFAULT_THRESHOLD)
                continue
            first = int(np.argmax(is_best))
            length = int(np.argmin(np.append(is_best[first:], False)))
            # The middle of the first bins where it is largest.
            found.append(round(1 - (first + (length + 1) / 2) / NUM_BINS, 6))
        return found

    def _cumulated(self) -> tuple[Tensor, Tensor]:
        """Returns the numbers of absent and present ones from each bin on, from the last, [classes, bins]."""
        shape = [2, self.num_classes, NUM_BINS]
        counts = ops.flip(ops.reshape(self.counts, shape), -1)
        return tuple(ops.unstack(ops.cumsum(counts, axis=-1), 2))

    def get_config(self) -> dict[str, Any]:
        return {"num_classes": self.num_classes, "name": self.name, "dtype": self.dtype}

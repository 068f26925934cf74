# SPDX-License-Identifier: Apache-2.0
"""One class for each image: the task `classification`."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from lambdanet import backend as K
from lambdanet.backend import Tensor, keras
from lambdanet.core import text_table
from lambdanet.core.files import MARKED_PNG, write_output
from lambdanet.training.calibration import expected_calibration_error
from lambdanet.training.data.task import Evaluation, Task


class Classification(Task):
    """Images with the number of their class, softmax, and accuracy."""

    best = "accuracy"
    FILES: ClassVar[dict[str, bytes]] = {
        "classes.csv": b"class,name,precision,",
        "wrong.csv": b"image,class,predicted",
        "confusion.png": MARKED_PNG,
        "reliability.png": MARKED_PNG,
    }

    def open_source(self, data_dir: str | None) -> Any:
        # Here: TFDS and pyarrow take seconds to import.
        if self.recipe.labels:
            from lambdanet.training.data.tables import TableSource

            return TableSource(self.recipe, data_dir)
        if self.recipe.dataset == "folder":
            from lambdanet.training.data.folder import FolderSource

            return FolderSource(self.recipe, data_dir)
        if self.recipe.dataset == "tfrecord":
            from lambdanet.training.data.records import RecordsSource

            return RecordsSource(self.recipe, data_dir)
        from lambdanet.training.data.tfds_source import TfdsSource

        return TfdsSource(self.recipe, data_dir)

    def read(self, source: Any, example: dict[str, Any]) -> Any:
        import tensorflow as tf

        label = source.label(example)
        if not source.numbers:
            return label
        count = len(source.numbers)
        is_known = (label >= 0) & (label < count)
        numbers = tf.constant([*source.numbers, -1], tf.int64)
        return tf.gather(numbers, tf.where(is_known, label, count))

    def count(self, labels: np.ndarray) -> np.ndarray:
        # Others are bad records.
        known = labels[(labels >= 0) & (labels < self.recipe.num_classes)]
        present = np.bincount(known, minlength=self.recipe.num_classes)
        return np.stack([present, len(known) - present])

    def loss(self) -> keras.losses.Loss:
        recipe = self.recipe
        options = {}
        if recipe.target_threshold:
            options["threshold"] = recipe.target_threshold
        return LOSSES[recipe.loss](
            recipe.label_smoothing, recipe.class_weights, **options
        )

    def metrics(self) -> list[keras.metrics.Metric]:
        return [Accuracy()]

    def first_label(self) -> np.ndarray:
        return np.zeros([1], np.int64)

    def measure(
        self, pairs: Iterable[tuple[np.ndarray, np.ndarray]], model_dir: Path
    ) -> Evaluation:
        del model_dir
        return measure(pairs)

    def write(self, folder: Path, dataset: Any, found: Evaluation, title: str) -> None:
        # Here: matplotlib takes a second to import.
        from lambdanet.training import confusion

        labels = found.labels
        predicted = found.predicted
        names = dataset.class_names
        table = folder / "classes.csv"
        rows = confusion.per_class(labels, predicted, names)
        write_output(table, text_table.to_csv(rows))
        picture = folder / "confusion.png"
        write_output(picture, confusion.draw(labels, predicted, names, title))
        diagram = folder / "reliability.png"
        drawn = confusion.draw_reliability(
            found.confidences, labels == predicted, title
        )
        write_output(diagram, drawn)
        print(
            f"per class: {table}; confusion matrix: {picture}; by confidence: {diagram}"
        )
        images = zip(dataset.eval_names(), labels, predicted, strict=True)
        wrong = [
            [image, names[label], names[taken]]
            for image, label, taken in images
            if label != taken
        ]
        file = folder / "wrong.csv"
        columns = ["image", "class", "predicted"]
        write_output(file, text_table.render(columns, wrong, "csv"))
        print(f"{len(wrong)} wrong images: {file}")


def measure(pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> Evaluation:
    """Returns `examples`, `top_1`, `top_5`, `loss` and `calibration_error`, and the predicted classes [n].

    Args:
      pairs: logits [b, num_classes] and integer labels [b] of each batch.
    """
    columns = []
    for logits, labels in pairs:
        # For equal logits the first class counts, so a constant model gets no credit for ties.
        best = np.argsort(-logits, axis=-1, kind="stable")[:, :5]
        correct = best == labels[:, np.newaxis]
        chosen = logits[np.arange(len(labels)), labels]
        normalizers = np.logaddexp.reduce(logits, axis=-1)
        columns.append(
            (
                labels,
                best[:, 0],
                correct[:, 0],
                correct.any(axis=-1),
                normalizers - chosen,
                np.exp(logits.max(axis=-1) - normalizers),
            )
        )
    all_labels, predicted, top_1, top_5, losses, confidences = map(
        np.concatenate, zip(*columns, strict=True)
    )
    means = {
        "top_1": top_1.mean(),
        "top_5": top_5.mean(),
        "loss": losses.mean(),
        "calibration_error": expected_calibration_error(confidences, top_1),
    }
    values = {name: float(mean) for name, mean in means.items()}
    values = {"examples": len(all_labels), **values}
    text = summary(values, logits.shape[-1])
    if len(set(all_labels.tolist())) == 1:
        text += ", all of one class"
    return Evaluation(values, text, all_labels, predicted, confidences)


def summary(result: dict[str, Any], num_classes: int) -> str:
    """Returns a result on one line, without top-5 where there are five classes or fewer."""
    top_5 = f"top-5 {100 * result['top_5']:.2f} %, " if num_classes > 5 else ""
    return (
        f"{result['examples']} images, "
        f"top-1 {100 * result['top_1']:.2f} %, {top_5}loss {result['loss']:.4f}, "
        f"expected calibration error {100 * result['calibration_error']:.2f} %"
    )


class ClassLoss(keras.losses.Loss):
    """A loss of logits with label smoothing and class weights."""

    def __init__(
        self,
        label_smoothing: float = 0.0,
        class_weights: Sequence[float] = (),
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.label_smoothing = label_smoothing
        self.class_weights = tuple(class_weights)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Returns the loss [b] of labels [b] or [b, 1], or of distributions, and logits [b, num_classes]."""
        labels = _distributions(y_true, y_pred.shape[-1])
        loss = self.compare(labels, K.cast(y_pred, "float32"))
        if not self.class_weights:
            return loss
        return loss * K.sum(
            labels * K.convert_to_tensor(self.class_weights, "float32"), axis=-1
        )

    def compare(self, labels: Tensor, logits: Tensor) -> Tensor:
        """Returns the loss [b] of labels and logits, both float32 [b, num_classes]."""
        raise NotImplementedError

    def smooth_labels(self, labels: Tensor) -> Tensor:
        """Returns labels [b, num_classes] with a part of each spread over all classes."""
        return (
            labels * (1 - self.label_smoothing)
            + self.label_smoothing / labels.shape[-1]
        )

    def get_config(self) -> dict[str, Any]:
        own = {
            "label_smoothing": self.label_smoothing,
            "class_weights": self.class_weights,
        }
        return {**super().get_config(), **own}


@keras.saving.register_keras_serializable("lambdanet")
class SmoothedCrossEntropy(ClassLoss):
    """Softmax cross entropy of logits, with label smoothing.

    The target of class c is (1 - s) [c = label] + s / num_classes, where s is the label smoothing. The loss
    of an example is multiplied by the weight of its class, or for a distribution, by the mean weight.

    Args:
      label_smoothing: s, at least 0 and below 1.
      class_weights: the weight of each class; empty: 1.

    Example:
      >>> float(SmoothedCrossEntropy(0.1)(tf.constant([1]), tf.constant([[0.0, 0.0]])))
      0.6931...
    """

    def compare(self, labels: Tensor, logits: Tensor) -> Tensor:
        return K.softmax_cross_entropy(self.smooth_labels(labels), logits)


@keras.saving.register_keras_serializable("lambdanet")
class SmoothedBinaryCrossEntropy(ClassLoss):
    """The mean over the classes of the binary cross entropy of logits (Wightman et al. 2021, section 3).

    Scores each class independently, so a mixed image can contain both of its classes. Targets and weights are
    as in `SmoothedCrossEntropy`.

    Args:
      label_smoothing: s, at least 0 and below 1.
      class_weights: the weight of each class; empty: 1.
      threshold: labels above it become 1 and others 0, as with timm's `--bce-target-thresh`, but before the
        smoothing, which timm's removes again; 0: they stay.

    Example:
      >>> float(SmoothedBinaryCrossEntropy()(tf.constant([1]), tf.constant([[0.0, 0.0]])))
      0.6931...
    """

    def __init__(
        self,
        label_smoothing: float = 0.0,
        class_weights: Sequence[float] = (),
        threshold: float = 0.0,
        **kwargs: Any,
    ):
        super().__init__(label_smoothing, class_weights, **kwargs)
        self.threshold = threshold

    def compare(self, labels: Tensor, logits: Tensor) -> Tensor:
        if self.threshold:
            labels = K.cast(labels > self.threshold, "float32")
        return keras.losses.binary_crossentropy(
            self.smooth_labels(labels), logits, from_logits=True
        )

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "threshold": self.threshold}


LOSSES = {
    "binary_cross_entropy": SmoothedBinaryCrossEntropy,
    "cross_entropy": SmoothedCrossEntropy,
}


@keras.saving.register_keras_serializable("lambdanet")
class Accuracy(keras.metrics.MeanMetricWrapper):
    """The fraction of images whose largest logit belongs to the label, or to its most probable class."""

    def __init__(self, name: str = "accuracy", dtype: object = None):
        super().__init__(_is_correct, name=name, dtype=dtype)

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, "dtype": self.dtype}


def _is_correct(y_true: Tensor, y_pred: Tensor) -> Tensor:
    targets = _distributions(y_true, y_pred.shape[-1])
    # `==` forgets the rank
    is_equal = keras.ops.equal(K.argmax(targets, axis=-1), K.argmax(y_pred, axis=-1))
    return K.cast(is_equal, "float32")


def _distributions(labels: Tensor, num_classes: int) -> Tensor:
    """Returns labels [b] or [b, 1] as distributions [b, num_classes]; distributions stay unchanged."""
    if len(labels.shape) == 2 and labels.shape[-1] == num_classes:
        return K.cast(labels, "float32")
    return K.one_hot(K.reshape(K.cast(labels, "int32"), [-1]), num_classes)

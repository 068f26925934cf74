# SPDX-License-Identifier: Apache-2.0
"""The losses and metrics of the tasks.

They are apart from the tasks, as what reads an export needs no Keras.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lambdanet import backend as K
from lambdanet.backend import Tensor, keras
from lambdanet.training.data.class_names import IGNORED

ops = keras.ops

NUM_BINS = 1000  # of probabilities, in the metric and the thresholds of a run
DEFAULT_THRESHOLD = 0.5


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


LOSSES: dict[str, Any] = {
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
        # The numbers of absent and present ones, by class and bin.
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
        return {**super().get_config(), "num_classes": self.num_classes}


@keras.saving.register_keras_serializable("lambdanet")
class MaskLoss(ClassLoss):
    """The mean over the known pixels of an image of the softmax cross entropy, the Dice loss, or their sum.

    The Dice loss (Milletari et al. 2016, without squares) is the weighted mean over the classes of
    1 - (2 sum p t + 1) / (sum p + sum t + 1), for probabilities p and targets t in the known pixels of an
    image. An image without known pixels has a loss of 0.

    Args:
      label_smoothing: s, at least 0 and below 1, of the cross entropy.
      class_weights: the weight of each class, of its pixels and of its Dice loss; empty: 1.
      loss: "cross_entropy", "dice" or "cross_entropy_dice".

    Example:
      >>> labels = tf.constant([[[0, 255]]])
      >>> float(MaskLoss()(labels, tf.constant([[[[0.0, 0.0], [9.0, 0.0]]]])))
      0.6931...
    """

    def __init__(
        self,
        label_smoothing: float = 0.0,
        class_weights: Any = (),
        loss: str = "cross_entropy",
        **kwargs: Any,
    ):
        super().__init__(label_smoothing, class_weights, **kwargs)
        self.loss = loss

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Returns the loss [b] of masks [b, h, w] and logits [b, h, w, num_classes]."""
        labels = ops.cast(y_true, "int32")
        logits = ops.cast(y_pred, "float32")
        is_known = ops.not_equal(labels, IGNORED)
        known = ops.cast(is_known, "float32")
        # Without a class, a pixel has no target.
        targets = ops.one_hot(ops.where(is_known, labels, -1), logits.shape[-1])
        weights = ops.ones([logits.shape[-1]])
        if self.class_weights:
            weights = ops.convert_to_tensor(self.class_weights, "float32")
        loss: Any = 0.0
        if "cross_entropy" in self.loss:
            smooth = self.smooth_labels(targets)
            losses = -ops.sum(smooth * ops.log_softmax(logits), -1)
            losses = losses * known * ops.sum(targets * weights, -1)
            total = ops.sum(losses, [1, 2])
            loss = loss + ops.divide_no_nan(total, ops.sum(known, [1, 2]))
        if "dice" in self.loss:
            found = ops.softmax(logits) * known[..., None]
            common = ops.sum(found * targets, [1, 2])
            either = ops.sum(found + targets, [1, 2])
            missed = 1 - (2 * common + 1) / (either + 1)
            loss = loss + ops.sum(weights * missed, -1) / ops.sum(weights)
        return loss

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "loss": self.loss}


@keras.saving.register_keras_serializable("lambdanet")
class MaskIoU(keras.metrics.MeanIoU):
    """Keras's mean IoU of logits, without pixels of 255 and images of weight 0.

    Classes that are in no pixel and are found in none are left out. It counts 2**31 pixels of a kind at most.

    Args:
      num_classes: the number of classes.
      name, dtype: as in Keras.
    """

    def __init__(self, num_classes: int, name: str = "mean_iou", dtype: Any = None):
        super().__init__(
            num_classes,
            name,
            dtype or "int32",
            ignore_class=IGNORED,
            sparse_y_pred=False,
        )

    def update_state(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> None:
        """Counts masks [b, h, w] and logits [b, h, w, num_classes]."""
        labels = ops.cast(y_true, "int32")
        found = ops.cast(ops.argmax(y_pred, axis=-1), "int32")
        is_counted = ops.not_equal(labels, IGNORED)
        if sample_weight is not None:
            has_weight = ops.reshape(ops.greater(sample_weight, 0), [-1, 1, 1])
            is_counted = ops.logical_and(is_counted, has_weight)
        # Others are counted behind the last cell.
        count = self.num_classes**2
        cells = ops.where(is_counted, self.num_classes * labels + found, count)
        cells = ops.reshape(cells, [-1])
        counts = ops.segment_sum(ops.ones_like(cells), cells, count + 1)[:count]
        self.total_cm.assign_add(ops.reshape(counts, self.total_cm.shape))

    def get_config(self) -> dict[str, Any]:
        return {"num_classes": self.num_classes, "name": self.name, "dtype": self.dtype}

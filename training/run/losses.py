# SPDX-License-Identifier: Apache-2.0
"""Loss and accuracy of classification, for labels as integers or as distributions over the classes."""

from collections.abc import Sequence
from typing import Any

from lambdanet import backend as K
from lambdanet.backend import Tensor, keras


class _ClassLoss(keras.losses.Loss):
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
class SmoothedCrossEntropy(_ClassLoss):
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
class SmoothedBinaryCrossEntropy(_ClassLoss):
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

# SPDX-License-Identifier: Apache-2.0
"""Loss and accuracy of classification, for labels as integers or as distributions over the classes."""

from lambdanet import backend as K
from lambdanet.backend import keras


@keras.saving.register_keras_serializable("lambdanet")
class SmoothedCrossEntropy(keras.losses.Loss):
    """Softmax cross entropy of logits, with label smoothing.

    The target of class c is (1 - s) [c = label] + s / num_classes, where s is the label smoothing.

    Args:
      label_smoothing: s, at least 0 and below 1.

    Example:
      >>> float(SmoothedCrossEntropy(0.1)(tf.constant([1]), tf.constant([[0.0, 0.0]])))
      0.6931...
    """

    def __init__(self, label_smoothing: float = 0.0, name: str = "cross_entropy", **kwargs):
        super().__init__(name=name, **kwargs)
        self.label_smoothing = label_smoothing

    def call(self, y_true: K.Tensor, y_pred: K.Tensor) -> K.Tensor:
        """Returns the loss [b] of labels [b] or [b, 1], or of distributions, and logits [b, num_classes]."""
        smoothing, num_classes = self.label_smoothing, y_pred.shape[-1]
        targets = _distributions(y_true, num_classes) * (1 - smoothing) + smoothing / num_classes
        return K.softmax_cross_entropy(targets, K.cast(y_pred, "float32"))

    def get_config(self) -> dict:
        return {**super().get_config(), "label_smoothing": self.label_smoothing}


@keras.saving.register_keras_serializable("lambdanet")
class Accuracy(keras.metrics.MeanMetricWrapper):
    """The fraction of images whose largest logit is that of the label, or of its most probable class."""

    def __init__(self, name: str = "accuracy", dtype: object = None):
        super().__init__(_is_correct, name=name, dtype=dtype)

    def get_config(self) -> dict:
        return {"name": self.name, "dtype": self.dtype}


def _is_correct(y_true: K.Tensor, y_pred: K.Tensor) -> K.Tensor:
    targets = _distributions(y_true, y_pred.shape[-1])
    return K.cast(K.argmax(targets, axis=-1) == K.argmax(y_pred, axis=-1), "float32")


def _distributions(labels: K.Tensor, num_classes: int) -> K.Tensor:
    """Returns labels [b] or [b, 1] as distributions [b, num_classes]; distributions stay unchanged."""
    if len(labels.shape) == 2 and labels.shape[-1] == num_classes:
        return K.cast(labels, "float32")
    return K.one_hot(K.reshape(K.cast(labels, "int32"), [-1]), num_classes)

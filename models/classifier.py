# SPDX-License-Identifier: Apache-2.0
"""The classifier of a model: its replacement, its class names, and its predictions."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lambdanet import backend as K
from lambdanet.backend import compat, keras
from lambdanet.configs.registry import pretrained_weights
from lambdanet.core.errors import InputError, check_count, check_natural, invalid
from lambdanet.layers.argument_checks import check_rates
from lambdanet.models.layer_builder import CLASSIFIER, DROPOUT, LayerBuilder
from lambdanet.models.weights import tensor_files, trained_classes, weight_files


def replace_classifier(
    model: keras.Model, num_classes: int, dropout_rate: float = 0.0
) -> keras.Model:
    """Returns a model with another classifier on the same trunk.

    The layers of the trunk are shared: training one model changes the other.

    Args:
      model: a classifier of the zoo, or a model of `create_model(..., num_classes=0)`.
      num_classes: the number of logits, with random weights; 0 for the embedding [b, d].
      dropout_rate: the rate of dropout before the classifier, in [0, 1).

    Returns:
      A model: images as before -> float32 logits [b, num_classes], or the embedding.

    Raises:
      InputError: the model has neither a classifier nor a pooled embedding, or a value is out of range.

    Example:
      >>> trained = lambdanet.create_model("lambda_resnet_tiny", num_classes=10)
      >>> replace_classifier(trained, 5).output_shape
      (None, 5)
    """
    num_classes = check_natural("num_classes", num_classes)
    check_rates(dropout_rate=dropout_rate)
    output, regularizer = _embedding(model)
    if num_classes:
        output = LayerBuilder(regularizer).classifier(output, num_classes, dropout_rate)
    return keras.Model(model.input, output, name=model.name)


def _embedding(model: keras.Model) -> tuple[Any, Any]:
    """The tensor that the classifier reads, before dropout, and the regularizer of its kernel."""
    compat.graph_of(model)
    layers = {layer.name: layer for layer in model.layers}
    classifier = layers.get(CLASSIFIER)
    last = layers.get(DROPOUT, classifier)
    embedding = last.input if last else model.output
    if isinstance(embedding, dict) or len(embedding.shape) != 2:
        raise InputError(
            f"the model {model.name!r} must have a classifier or a pooled embedding [b, d], "
            f"got an output of the shape {model.output_shape}"
        )
    return embedding, classifier.kernel_regularizer if classifier else None


def class_names(model: str, weights: str = pretrained_weights.ALIAS) -> list[str]:
    """Returns the names of the classes of published or packaged weights, in the order of the logits.

    Args:
      model: a name of `list_models()`.
      weights: the name of a set of its weights.

    Raises:
      InputError: the model has no published weights, or none of this name.

    Example:
      >>> class_names("lambda_resnet50ts")[207]
      'golden retriever'
    """
    if weights in weight_files.packaged_sets(model):
        file = weight_files.find_file(model, weights)
        return trained_classes.names_of(tensor_files.metadata_of(file))
    pretrained_weights.get(model, weights)  # all are for the classes of ImageNet-1k
    return pretrained_weights.imagenet_class_names()


def decode_predictions(
    logits: Any, names: Sequence[str] | None = None, top: int = 5
) -> list[list[tuple[str, float]]]:
    """Returns the most probable classes of each picture.

    Args:
      logits: the output of a model, [b, num_classes]; not probabilities.
      names: one name per class, in the order of the logits; None: ImageNet-1k's.
      top: the number of classes to return; all, if there are fewer.

    Returns:
      for each picture its classes as (name, probability), the most probable first.

    Raises:
      InputError: `logits` is not a matrix of finite logits with one per name, or `top` is not positive.

    Example:
      >>> decode_predictions([[0.0, 2.0, 1.0]], ["cat", "dog", "bird"], top=1)
      [[('dog', 0.6652...)]]
    """
    names = pretrained_weights.imagenet_class_names() if names is None else names
    try:
        values = np.asarray(K.convert_to_numpy(logits), np.float64)
    except (TypeError, ValueError):
        raise invalid("logits", "a matrix of numbers", logits) from None
    top = check_count("top", top)
    if values.ndim != 2 or values.shape[1] != len(names):
        raise invalid(
            "the shape of logits",
            f"[b, {len(names)}], one per class name",
            values.shape,
        )
    if not np.isfinite(values).all():
        raise InputError("logits must be finite, got NaN or infinity")
    if (
        values.size
        and (values >= 0).all()
        and np.allclose(values.sum(-1), 1, atol=1e-3)
    ):
        raise InputError(
            "logits must be what precedes a softmax, got probabilities, which sum to 1"
        )
    powers = np.exp(values - values.max(-1, keepdims=True))
    probabilities = powers / powers.sum(-1, keepdims=True)
    order = np.argsort(-probabilities, axis=-1, kind="stable")[:, :top]
    predictions = []
    for row, indices in zip(probabilities, order, strict=True):
        predictions.append([(names[index], float(row[index])) for index in indices])
    return predictions

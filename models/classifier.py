# SPDX-License-Identifier: Apache-2.0
"""Replacement of a model's classifier, for other classes or for embeddings."""

from typing import Any

from lambdanet.backend import compat, keras
from lambdanet.errors import InputError, check_natural, check_rates, invalid
from lambdanet.models.layer_builder import CLASSIFIER, DROPOUT, LayerBuilder


def replace_classifier(model: keras.Model, num_classes: int, dropout_rate: float = 0.0) -> keras.Model:
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
    if not isinstance(model, keras.Model) or compat.functional_graph(model) is None:
        raise invalid("model", "a functional model", model)
    layers = {layer.name: layer for layer in model.layers}
    classifier = layers.get(CLASSIFIER)
    last = layers.get(DROPOUT, classifier)
    embedding = last.input if last else model.output
    if isinstance(embedding, dict) or len(embedding.shape) != 2:
        raise InputError(
            f"the model {model.name!r} must have a classifier or a pooled embedding [b, d], "
            f"got an output of the shape {model.output_shape}"
        )
    return embedding, classifier and classifier.kernel_regularizer

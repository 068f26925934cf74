# SPDX-License-Identifier: Apache-2.0
"""Class names of published weights, and the most probable classes of a picture."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lambdanet import backend as K
from lambdanet.configs.registry import pretrained_weights
from lambdanet.errors import InputError, check_count, invalid


def class_names(model: str, weights: str = pretrained_weights.ALIAS) -> list[str]:
    """Returns the names of the classes of published weights, in the order of the logits.

    Args:
      model: a name of `list_models(pretrained=True)`.
      weights: the name of a set of its weights.

    Raises:
      InputError: the model has no published weights, or none of this name.

    Example:
      >>> class_names("lambda_resnet50ts")[207]
      'golden retriever'
    """
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
        raise invalid("the shape of logits", f"[b, {len(names)}], one per class name", values.shape)
    if not np.isfinite(values).all():
        raise InputError("logits must be finite, got NaN or infinity")
    if values.size and (values >= 0).all() and np.allclose(values.sum(-1), 1, atol=1e-3):
        raise InputError("logits must be what precedes a softmax, got probabilities, which sum to 1")
    powers = np.exp(values - values.max(-1, keepdims=True))
    probabilities = powers / powers.sum(-1, keepdims=True)
    order = np.argsort(-probabilities, axis=-1, kind="stable")[:, :top]
    return [
        [(names[index], float(row[index])) for index in indices]
        for row, indices in zip(probabilities, order, strict=True)
    ]

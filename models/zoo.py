# SPDX-License-Identifier: Apache-2.0
"""Zoo of models: builds them by name, and reports their sizes."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lambdanet import backend as K
from lambdanet import configs, which_keras
from lambdanet.backend import keras
from lambdanet.configs.registry import pretrained_weights
from lambdanet.configs.registry.pretrained_weights import PublishedWeights
from lambdanet.errors import InputError, check_counts, invalid, is_integer
from lambdanet.models import (
    complexity,
    efficientnet,
    halonet,
    lambda_resnet,
    mobilenet_v2,
    resnet_50,
    resnet_rs,
    timm_networks,
    vision_transformer,
)
from lambdanet.models.architecture import Architecture
from lambdanet.models.layer_builder import LayerBuilder
from lambdanet.models.names import check_model
from lambdanet.models.weights import pretrained, weight_files

MODELS: dict[str, Architecture] = {
    **resnet_50.MODELS,
    **resnet_rs.MODELS,
    **lambda_resnet.MODELS,
    **mobilenet_v2.MODELS,
    **halonet.MODELS,
    **timm_networks.MODELS,
    **efficientnet.MODELS,
    **vision_transformer.MODELS,
}


@dataclasses.dataclass(frozen=True)
class ModelInfo:
    """The size, source, recipes and weights of a model.

    Attributes:
      name: the name, as for `create_model`.
      params: trainable parameters, with 1000 classes.
      flops: FLOPs per image of `input_size` (see `lambdanet.models.complexity`).
      input_size: the side of the square images, in pixels.
      source: the table or section that gives the architecture.
      recipes: the names of recipes that train it, as for `lambdanet train --recipe`.
      weights: the published sets of weights.
    """

    name: str
    params: int
    flops: int
    input_size: int
    source: str
    recipes: tuple[str, ...]
    weights: tuple[PublishedWeights, ...]


def recipes_of(name: str) -> tuple[str, ...]:
    """Returns the names of the recipes that train a model."""
    return _recipes().get(name, ())


@functools.cache
def _recipes() -> dict[str, tuple[str, ...]]:
    by_model: dict[str, tuple[str, ...]] = {}
    for recipe in configs.list_recipes():
        model = configs.get_recipe(recipe).model
        by_model[model] = (*by_model.get(model, ()), recipe)
    return by_model


def model_info(name: str, input_size: int | None = None, **overrides: Any) -> ModelInfo:
    """Returns the size, source, recipes and weights of a model.

    Parameters and FLOPs are counted on a model with one block of each kind, multiplied by the number of these
    blocks in the whole network.

    Args:
      name: one of `list_models()`.
      input_size: the side of the images for the FLOPs, in pixels; default: that of the model's table.
      **overrides: options of the model's layers, as for `create_model`.

    Raises:
      InputError: the model or an override is unknown.

    Example:
      >>> model_info("resnet_50_llll", key_dim=8).params
      14775816
    """
    architecture = _architecture(name)
    input_size = input_size or architecture.input_size
    return ModelInfo(
        name,
        *count(name, input_size, **overrides),
        input_size,
        architecture.source,
        recipes_of(name),
        pretrained_weights.weights_of(name),
    )


def count(name: str, input_size: int, count_lambdas: bool = True, **overrides: Any) -> tuple[int, int]:
    """Returns the trainable parameters of a model with 1000 classes, and its FLOPs per image.

    Args:
      name: one of `list_models()`.
      input_size: the side of the images, in pixels.
      count_lambdas: whether to count computing and applying lambdas, or only the layers' projections.
      **overrides: options of the model's layers, as for `create_model`.

    Raises:
      InputError: the model or an override is unknown.
    """
    with K.without_values():
        if overrides.get("share_positions"):
            model = create_model(name, input_size=input_size, **overrides)
            return complexity.count_parameters(model), complexity.count_flops(model, {}, count_lambdas)
        counter = complexity.LayerCounter()
        *_, repeats = _condense(name, counter, input_size, overrides)
    return counter.parameters(repeats), counter.flops(repeats, count_lambdas)


def condensed_model(
    name: str, input_size: int | None = None, **overrides: Any
) -> tuple[keras.Model, dict[str, int]]:
    """Builds a model with one block of each kind, for counting the whole one.

    Args:
      name: one of `list_models()`.
      input_size: the side of the images, in pixels; None leaves it open.
      **overrides: options of the model's layers, as for `create_model`.

    Returns:
      the model, and the number of blocks that some of its blocks stand for, as for `complexity`.

    Raises:
      InputError: the model or an override is unknown.
    """
    images, logits, repeats = _condense(name, LayerBuilder(), input_size, overrides)
    return keras.Model(images, logits), repeats


def create_model(
    name: str,
    num_classes: int = 1000,
    input_size: int | tuple[int, int] | None = None,
    in_channels: int = 3,
    weights: str | Path | None = None,
    features_only: bool = False,
    dropout_rate: float = 0.0,
    stochastic_depth_rate: float = 0.0,
    kernel_regularizer: Any = None,
    batch_norm: Mapping[str, Any] | None = None,
    activation: str | None = None,
    **overrides: Any,
) -> keras.Model:
    """Builds a model of the zoo.

    Args:
      name: one of `list_models()`.
      num_classes: the number of logits.
      input_size: the side of the images, or (height, width), in pixels; None leaves both open.
      in_channels: the number of channels of the images.
      weights: "imagenet" or another published set of the model, which is fetched and converted once; a
        `.safetensors` or `.weights.h5` file of the same model; a folder that `lambdanet convert` wrote; or
        the name of a set in the folder $LAMBDANET_HOME (default: ~/.cache/lambdanet). None: random weights.
        With another number of classes than that of a published set, the classifier is random.
      features_only: return the endpoints {"2": ..., "5": ...} at strides 4, 8, 16 and 32 instead of logits.
      dropout_rate: the rate of dropout before the classifier, in [0, 1).
      stochastic_depth_rate: the rate of stochastic depth in the last stage, in [0, 1).
      kernel_regularizer: the regularizer of every kernel, such as `keras.regularizers.L2(weight_decay / 2)`.
      batch_norm: arguments of every batch normalization, over momentum 0.9 and epsilon 1e-5.
      activation: the name of the activation of every block, such as "swish"; None: that of the network.
      **overrides: options of the model's layers, such as `key_dim=8` for lambda layers.

    Returns:
      A functional model: normalized float32 images [b, h, w, in_channels] -> float32 logits
      [b, num_classes]. On a CPU, b = 0 needs XLA or TF_ENABLE_ONEDNN_OPTS=0.

    Raises:
      InputError: the model or an override is unknown, a value is out of range, or the weights do not fit.
      ConnectionError: published weights are not in the cache and cannot be fetched.

    Example:
      >>> model = create_model("lambda_resnet_50", num_classes=10, input_size=160)
      >>> model(tf.zeros([1, 160, 160, 3])).shape
      TensorShape([1, 10])
    """
    architecture = _architecture(name)
    _check_overrides(name, architecture, overrides)
    for argument, value in {"kernel_regularizer": kernel_regularizer, **overrides}.items():
        which_keras.check_same(value, argument)
    num_classes, in_channels = check_counts(num_classes=num_classes, in_channels=in_channels)
    _check_rates(dropout_rate=dropout_rate, stochastic_depth_rate=stochastic_depth_rate)
    path = None if weights is None else pretrained.locate(name, weights, lambda: create_model(name))
    builder = LayerBuilder(kernel_regularizer, batch_norm or {}, _checked_activation(activation))
    images = keras.Input([*_image_size(input_size), in_channels], name="images")
    features = architecture.endpoints(images, builder, stochastic_depth_rate, **overrides)
    if features_only and path is None:
        return keras.Model(images, features, name=name)
    whole = keras.Model(images, architecture.logits(features, builder, num_classes, dropout_rate), name=name)
    model = keras.Model(images, features, name=name) if features_only else whole
    if path is not None:
        weight_files.load_weights(model, path, whole)
    return model


def _condense(name: str, builder: LayerBuilder, input_size: int | None, overrides: Mapping[str, Any]):
    """Builds the inputs and logits of a condensed network; also returns the number of blocks of each kind."""
    architecture = _architecture(name)
    repeats: dict[str, int] = {}
    _check_overrides(name, architecture, overrides)
    if not overrides.get("share_positions"):  # shared embeddings must be counted once
        architecture, repeats = architecture.condensed()
    images = keras.Input([*_image_size(input_size), 3])
    endpoints = architecture.endpoints(images, builder, **overrides)
    return images, architecture.logits(endpoints, builder, 1000), repeats


def _architecture(name: str) -> Architecture:
    check_model(name)
    return MODELS[name]


def _check_overrides(name: str, architecture: Architecture, overrides: Mapping[str, Any]) -> None:
    for override in overrides:
        if override not in architecture.option_names():
            accepted = ", ".join(sorted(architecture.option_names())) or "none"
            raise InputError(f"model {name!r} has no option {override!r}; its options: {accepted}")


def _checked_activation(name: str | None) -> str | None:
    try:
        keras.activations.get(name)
    except (ValueError, TypeError):
        raise invalid("activation", "the name of a Keras activation such as 'swish'", name) from None
    return name


def _image_size(input_size: int | tuple[int, int] | None) -> tuple[int | None, int | None]:
    if input_size is None:
        return None, None
    size = input_size if isinstance(input_size, Sequence) else (input_size, input_size)
    if len(size) != 2 or not all(is_integer(side) and side > 0 for side in size):
        raise invalid("input_size", "a positive integer or a pair (height, width)", input_size)
    return int(size[0]), int(size[1])


def _check_rates(**rates: float) -> None:
    for name, value in rates.items():
        if not 0 <= value < 1:
            raise invalid(name, "in [0, 1)", value)

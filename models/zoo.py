# SPDX-License-Identifier: Apache-2.0
"""Zoo of models: builds them by name, and reports their sizes."""

import dataclasses
import functools
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lambdanet import backend as K
from lambdanet import configs, which_keras
from lambdanet.backend import keras
from lambdanet.configs.registry import pretrained_weights
from lambdanet.configs.registry.pretrained_weights import PublishedWeights
from lambdanet.errors import check_count, check_natural, check_rates, invalid
from lambdanet.layers import channel_affine  # noqa: F401  registers the layer that `for_inference` adds
from lambdanet.models import (
    arguments,
    complexity,
    efficientnet,
    halonet,
    lambda_resnet,
    mobilenet_v2,
    resnet_50,
    resnet_rs,
    timm_networks,
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
}


class Stage(NamedTuple):
    """The last map of a network at one stride.

    Attributes:
      level: its number, as for `create_model(out_levels=...)`.
      stride: the ratio of the images' resolution to its own, `2**level`.
      channels: the number of its channels.
    """

    level: int
    stride: int
    channels: int


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
      stages: the maps that `create_model(features_only=True)` can return.
      embedding_size: the number of channels that the classifier reads, d in [b, d] of `num_classes=0`.
    """

    name: str
    params: int
    flops: int
    input_size: int
    source: str
    recipes: tuple[str, ...]
    weights: tuple[PublishedWeights, ...]
    stages: tuple[Stage, ...]
    embedding_size: int


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
      >>> [stage.channels for stage in model_info("resnet_50").stages]
      [64, 256, 512, 1024, 2048]
    """
    architecture = _architecture(name)
    input_size = architecture.input_size if input_size is None else check_count("input_size", input_size)
    network, params, flops = _count(name, input_size, True, overrides)
    levels = {int(level): x.shape[-1] for level, x in network.endpoints.items()}
    return ModelInfo(
        name,
        params,
        flops,
        input_size,
        architecture.source,
        recipes_of(name),
        pretrained_weights.weights_of(name),
        tuple(Stage(level, 2**level, channels) for level, channels in levels.items()),
        network.embedding.shape[-1],
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
    _, params, flops = _count(name, input_size, count_lambdas, overrides)
    return params, flops


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
    network = _condense(name, LayerBuilder(), input_size, overrides)
    return keras.Model(network.images, network.logits), network.repeats


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
    pooling: str | None = "avg",
    out_levels: Sequence[int] | None = None,
    **overrides: Any,
) -> keras.Model:
    """Builds a model of the zoo.

    Args:
      name: one of `list_models()`.
      num_classes: the number of logits; 0 for the embedding that the classifier would read.
      input_size: the side of the images, or (height, width), in pixels; None leaves both open.
      in_channels: the number of channels of the images. Weights for RGB are adapted: the kernel of the first
        convolution is summed over its channels for 1, else repeated and multiplied by 3 / in_channels.
      weights: "imagenet" or another published set of the model, or "hf:USER/REPO" ("hf:USER/REPO@COMMIT") for
        a repository on the Hugging Face hub, which are fetched and converted once; a `.safetensors` or
        `.weights.h5` file of the same model; a folder that `lambdanet convert` wrote; or the name of a set in
        the folder $LAMBDANET_HOME (default: ~/.cache/lambdanet). None: random weights. With another number of
        classes than that of a published set, the classifier is random.
      features_only: return the endpoints {"2": ..., "5": ...} at strides 4, 8, 16 and 32 instead of logits;
        see `out_levels`.
      dropout_rate: the rate of dropout before the classifier, in [0, 1).
      stochastic_depth_rate: the rate of stochastic depth in the last stage, in [0, 1).
      kernel_regularizer: the regularizer of every kernel, such as `keras.regularizers.L2(weight_decay / 2)`.
      batch_norm: arguments of every batch normalization, over momentum 0.9 and epsilon 1e-5.
      activation: the name of the activation of every block, such as "swish"; None: that of the network.
      pooling: the pooling of the last map, "avg" or "max"; with `num_classes=0` also None: the map itself.
      out_levels: with `features_only`, the levels to return, any of 1 to 5; level i is at stride 2**i. None:
        all but level 1.
      **overrides: options of the model's layers, such as `key_dim=8` for lambda layers.

    Returns:
      A functional model: normalized float32 images [b, h, w, in_channels] -> float32 logits
      [b, num_classes], or with `num_classes=0` the embedding [b, d], or with `features_only` maps
      {level: [b, h / 2**level, w / 2**level, d]}. On a CPU, b = 0 needs XLA or TF_ENABLE_ONEDNN_OPTS=0.

    Raises:
      InputError: the model or an override is unknown, a value is out of range, or the weights do not fit.
      ConnectionError: published weights are not in the cache and cannot be fetched.

    Example:
      >>> model = create_model("lambda_resnet_50", num_classes=10, input_size=160)
      >>> model(tf.zeros([1, 160, 160, 3])).shape
      TensorShape([1, 10])
    """
    architecture = _architecture(name)
    arguments.check_overrides(name, architecture, overrides, inspect.signature(create_model).parameters)
    for argument, value in {"kernel_regularizer": kernel_regularizer, **overrides}.items():
        which_keras.check_same(value, argument)
    num_classes = check_natural("num_classes", num_classes)
    in_channels = check_count("in_channels", in_channels)
    pooling = arguments.checked_pooling(pooling, num_classes)
    if out_levels is not None and not features_only:
        raise invalid("out_levels", "None without features_only=True", out_levels)
    check_rates(dropout_rate=dropout_rate, stochastic_depth_rate=stochastic_depth_rate)
    path = (
        None if weights is None else pretrained.locate(name, weights, functools.partial(create_model, name))
    )
    builder = LayerBuilder(
        arguments.checked_regularizer(kernel_regularizer),
        arguments.checked_batch_norm(batch_norm),
        arguments.checked_activation(activation),
    )
    images = keras.Input([*arguments.image_size(input_size), in_channels], name="images")
    features = architecture.endpoints(images, builder, stochastic_depth_rate, **overrides)
    maps = arguments.selected(features, out_levels)
    if features_only and path is None:
        return keras.Model(images, maps, name=name)
    embedding = architecture.embedding(features, builder, pooling)
    whole = keras.Model(images, builder.classifier(embedding, num_classes or 1, dropout_rate), name=name)
    model = whole
    if features_only or not num_classes:
        model = keras.Model(images, maps if features_only else embedding, name=name)
    if path is not None:
        weight_files.load_weights(model, path, whole)
    return model


class _Network(NamedTuple):
    """The tensors of a network, and the number of blocks that a block stands for, as for `complexity`."""

    images: K.Tensor
    endpoints: Mapping[str, K.Tensor]
    embedding: K.Tensor
    logits: K.Tensor
    repeats: dict[str, int]


def _count(
    name: str, input_size: int, count_lambdas: bool, overrides: Mapping[str, Any]
) -> tuple[_Network, int, int]:
    """Returns the condensed network, and what `count` returns."""
    with K.without_values():
        if overrides.get("share_positions"):
            network = _condense(name, LayerBuilder(), input_size, overrides)
            model = keras.Model(network.images, network.logits)
            return (
                network,
                complexity.count_parameters(model),
                complexity.count_flops(model, {}, count_lambdas),
            )
        counter = complexity.LayerCounter()
        network = _condense(name, counter, input_size, overrides)
    return network, counter.parameters(network.repeats), counter.flops(network.repeats, count_lambdas)


def _condense(
    name: str, builder: LayerBuilder, input_size: int | None, overrides: Mapping[str, Any]
) -> _Network:
    """Builds a network with one block of each kind."""
    architecture = _architecture(name)
    repeats: dict[str, int] = {}
    arguments.check_overrides(name, architecture, overrides)
    if not overrides.get("share_positions"):  # shared embeddings must be counted once
        architecture, repeats = architecture.condensed()
    images = keras.Input([*arguments.image_size(input_size), 3])
    endpoints = architecture.endpoints(images, builder, **overrides)
    embedding = architecture.embedding(endpoints, builder)
    return _Network(images, endpoints, embedding, builder.classifier(embedding, 1000), repeats)


def _architecture(name: str) -> Architecture:
    check_model(name)
    return MODELS[name]

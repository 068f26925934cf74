# SPDX-License-Identifier: Apache-2.0
"""Small versions of the models of the zoo, with the same kinds of layers."""

import dataclasses
from typing import Any
from unittest import mock

from lambdanet.backend import keras
from lambdanet.models import micro, zoo
from lambdanet.models.layer_builder import Architecture, LayerBuilder
from lambdanet.models.output_stride import NATIVE
from lambdanet.models.resnet import ResNet
from lambdanet.models.weights import timm_rules


def few_blocks(architecture: Architecture) -> Architecture:
    """Returns a ResNet with the first block of each stage and another of each kind, or any other network."""
    if not isinstance(architecture, ResNet):
        return architecture
    stages = (
        letters[0] + "".join(dict.fromkeys(letters[1:]))
        for letters in architecture.stages
    )
    return dataclasses.replace(architecture, stages=tuple(stages))


def only_few_blocks(name: str) -> Any:
    """Returns a context in which a model of the zoo has `few_blocks`."""
    return mock.patch.dict(zoo.MODELS, {name: few_blocks(zoo.MODELS[name])})


def few_block_model(name: str, **arguments: Any) -> keras.Model:
    """Returns a model of `few_blocks`; arguments as for `create_model`."""
    with only_few_blocks(name):
        return zoo.create_model(name, **arguments)


def small_model(
    name: str,
    input_size: int | None = None,
    num_classes: int = 3,
    in_channels: int = 3,
    features_only: bool = False,
    output_stride: int = NATIVE,
    **fields: Any,
) -> keras.Model:
    """Returns a model of few blocks at a quarter of the width; `fields` are others of the architecture."""
    architecture = few_blocks(zoo.MODELS[name])
    if isinstance(architecture, ResNet):
        *stages, last = architecture.stages
        fields = {
            "stages": (*("".join(dict.fromkeys(letters)) for letters in stages), last),
            **fields,
        }
        # The groups of the one need its width, and the others are small.
        if name != "haloregnetz_b" and name not in micro.MODELS:
            # Its smallest share of channels is an eighth.
            part = 2 if name == "resnet_50_augmented" else 4
            for field in ("filters", "output_filters"):
                fields[field] = tuple(
                    width // part for width in getattr(architecture, field)
                )
    architecture = dataclasses.replace(architecture, **fields)
    builder = LayerBuilder(output_stride=output_stride)
    images = keras.Input([input_size, input_size, in_channels])
    features = architecture.endpoints(images, builder)
    if features_only:
        return keras.Model(images, features)
    embedding = architecture.embedding(features, builder)
    return keras.Model(images, builder.classifier(embedding, num_classes))


def linear_model(
    shape: tuple[int, ...], num_classes: int, *layers: keras.layers.Layer
) -> keras.Model:
    """Returns a model of images of one shape, whose classifier follows these layers."""
    head = keras.layers.Flatten(), keras.layers.Dense(num_classes)
    return keras.Sequential([keras.Input(shape), *layers, *head], name="linear")


def timm_shapes(model: Any) -> dict[str, tuple[int, ...]]:
    """Returns the names and shapes of the tensors of timm's network of the same name."""
    return {rule.tensor: rule.shape for rule in timm_rules.network_rules(model)}

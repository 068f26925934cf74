# SPDX-License-Identifier: Apache-2.0
"""The networks of both studies, as architectures and fields of the recipe."""

import dataclasses
from collections.abc import Mapping
from typing import Any
from unittest import mock

from experiments.fashion.student import StudentLambdaLayer
from lambdanet import configs
from lambdanet.backend import Tensor, keras
from lambdanet.configs import cifar10, fashion_mnist
from lambdanet.configs.recipe import Recipe
from lambdanet.models import micro, zoo
from lambdanet.models.layer_builder import LayerBuilder
from lambdanet.models.resnet import Bottleneck, ResNet
from lambdanet.models.spatial_ops import BlockContext, LambdaOperation
from lambdanet.training.run.build import build_model

MODEL = "lambda_resnet_micro"  # whose architecture students take for a while
FASHION = "fashion_mnist"
# Fields of the recipe that differ for the pictures.
DATASETS: dict[str, dict[str, Any]] = {
    FASHION: {},
    "cifar10": {
        "dataset": "cifar10",
        "input_size": 64,
        "mean": cifar10.BASE.mean,
        "std": cifar10.BASE.std,
    },
}
INTRA_DEPTH = 4  # of the keys that are mixed: with 1, transposing them is all there is


@dataclasses.dataclass(frozen=True)
class Contender:
    """A network and how it is trained.

    Attributes:
      model: its name in the zoo.
      layer: arguments of `StudentLambdaLayer`, which takes the place of the lambda layer; None: the zoo's.
      filters: widths of the four stages in place of the zoo's.
      is_normalized: whether a normalization and an activation follow the layer.
      fields: fields of the recipe that differ.
    """

    model: str = MODEL
    layer: Mapping[str, Any] | None = None
    filters: tuple[int, ...] | None = None
    is_normalized: bool = True
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def build(self, recipe: Recipe) -> keras.Model:
        """Returns the network of a recipe with fresh weights, in place of the zoo's."""
        with mock.patch.dict(zoo.MODELS, {self.model: self.architecture()}):
            return build_model(recipe)

    def architecture(self) -> ResNet:
        """Returns the network as data."""
        network = micro.MODELS[self.model]
        if self.filters is not None:
            network = dataclasses.replace(network, filters=self.filters)
        if self.layer is None and self.is_normalized:
            return network
        operation = LambdaOperation(
            StudentLambdaLayer, {**micro.SCOPE, **(self.layer or {})}
        )
        block = Bottleneck if self.is_normalized else BareBottleneck
        return dataclasses.replace(
            network, blocks={**network.blocks, "O": block(operation)}
        )


class _WithoutNorm:
    """A builder of layers that leaves out what would follow the spatial operation."""

    def __init__(self, builder: LayerBuilder):
        self._builder = builder

    def norm_act(self, x: Tensor, name: str) -> Tensor:
        return x

    def __getattr__(self, name: str) -> Any:
        return getattr(self._builder, name)


@dataclasses.dataclass(frozen=True)
class BareBottleneck(Bottleneck):
    """A bottleneck whose spatial operation is followed by the 1x1 convolution, without a normalization."""

    def __call__(
        self, builder: LayerBuilder, x: Tensor, context: BlockContext
    ) -> Tensor:
        bare: Any = _WithoutNorm(builder)
        return super().__call__(bare, x, context)


# The networks of the recipe, which have equal parameters, and one that has fewer.
NETWORKS = {
    **{name: Contender(name) for name in fashion_mnist.ROWS},
    "narrow lambda_resnet_micro": Contender(filters=micro.FILTERS),
}
# Each published mistake alone. The paper's layer has tables drawn with a deviation of 1.
MISTAKES = {
    "softmax over channels": Contender(layer={"softmax_over_channels": True}),
    "inputs reshaped": Contender(layer={"mixed_inputs": True}),
    "values normalized per position": Contender(layer={"normalized_positions": True}),
    "intra-depth 4": Contender(layer={"intra_depth": INTRA_DEPTH}),
    "keys reshaped at intra-depth 4": Contender(
        layer={"intra_depth": INTRA_DEPTH, "mixed_keys": True}
    ),
    "momentum 0.0001": Contender(fields={"bn_momentum": 0.0001}),
    "no normalization after": Contender(layer={}, is_normalized=False),
    "bias of positions": Contender(layer={"position_bias": True}),
    "pointwise positions": Contender(layer={"scope": 1}),
    "tables of 0.02": Contender(fields={"position_stddev": 0.02}),
    "TU Delft": Contender(
        layer={
            "mixed_inputs": True,
            "normalized_positions": True,
            "position": "unstructured",
        },
        fields={"bn_momentum": 0.0001},
    ),
    "all mistakes": Contender(
        layer={
            "softmax_over_channels": True,
            "mixed_inputs": True,
            "intra_depth": INTRA_DEPTH,
            "mixed_keys": True,
            "position_bias": True,
            "scope": 1,
        },
        is_normalized=False,
        fields={"bn_momentum": 0.0001},
    ),
}
STUDIES = {
    "networks": NETWORKS,
    "mistakes": {
        "convolution": Contender("resnet_micro"),
        "lambda": Contender(),
        **MISTAKES,
    },
}


# Of the pictures for training, the first ones.
FRACTIONS = {"networks": 1.0, "mistakes": 0.2}


def recipe_of(study: str, contender: str, dataset: str = FASHION) -> Recipe:
    """Returns the recipe of a contender."""
    chosen = STUDIES[study][contender]
    recipe = configs.get_recipe("fashion_mnist")
    fields = {**DATASETS[dataset], **chosen.fields, "model": chosen.model}
    return dataclasses.replace(recipe, **fields)

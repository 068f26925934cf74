# SPDX-License-Identifier: Apache-2.0
"""Backbones for Model Garden from the zoo: `lambda_resnet` and `mobilenet_v2_lambda`.

A Model Garden configuration selects them like its own backbones:

    backbone:
      type: lambda_resnet
      lambda_resnet: {model_id: lambda_resnet_152}
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tf_keras

from lambdanet.backend import compat, keras
from lambdanet.backend.strategies import average_on_read
from lambdanet.core.errors import check_known, invalid
from lambdanet.detection.model_garden import (
    backbone_configs,
    backbone_factory,
    hyperparams,
)
from lambdanet.models import zoo
from lambdanet.models.mobilenet_v2 import MobileNetV2
from lambdanet.models.output_stride import NATIVE, last_by_stride
from lambdanet.models.resnet import ResNet
from lambdanet.models.tf_keras_model import TfKerasModel

# Model Garden's default, which selects the model's own activation: ReLU6 in MobileNetV2, SiLU in many
# networks of timm.
DEFAULT_ACTIVATION = "relu"
GLOBAL_SCOPE = 0  # the `scope` of a configuration for scope=None, the whole map


@dataclasses.dataclass
class ZooNetwork(hyperparams.Config):
    """A network of the zoo.

    The options from `key_dim` on configure its lambda or attention layers; None keeps the model's own value.

    Attributes:
      model_id: the name of the model for `lambdanet.create_model`.
      stochastic_depth_drop_rate: the drop rate in the last stage, or of the last block of MobileNetV2.
      bn_trainable: whether batch normalization is trained; if not, it uses its moving statistics.
      key_dim: the key depth.
      num_heads: the number of heads.
      scope: the scope of the positions; 0 for the whole map.
      implementation: the implementation of the position lambda.
      output_stride: the largest stride of a map, 8, 16 or 32, as for `lambdanet.create_model`. The last map
        of each stride is the endpoint of its level, as in Model Garden's `dilated_resnet`.
    """

    model_id: str = ""
    stochastic_depth_drop_rate: float = 0.0
    bn_trainable: bool = True
    key_dim: int | None = None
    num_heads: int | None = None
    scope: int | None = None
    implementation: str | None = None
    output_stride: int = NATIVE


@dataclasses.dataclass
class LambdaResNet(ZooNetwork):
    """A residual network: with convolutions, lambda layers or halo attention."""

    model_id: str = "lambda_resnet_50"
    intra_depth: int | None = None
    block_size: int | None = None  # the side of the query blocks of halo attention
    halo_size: int | None = None


@dataclasses.dataclass
class MobileNetV2Lambda(ZooNetwork):
    """MobileNetV2 with two lightweight lambda blocks (Bello 2021, Table 17), or "mobilenet_v2" without."""

    model_id: str = "mobilenet_v2_lambda"


@dataclasses.dataclass
class Backbone(backbone_configs.Backbone):
    """Model Garden's choice of backbones, extended with lambdanet's."""

    type: str | None = "lambda_resnet"
    lambda_resnet: LambdaResNet = dataclasses.field(default_factory=LambdaResNet)
    mobilenet_v2_lambda: MobileNetV2Lambda = dataclasses.field(
        default_factory=MobileNetV2Lambda
    )


FAMILIES = {"lambda_resnet": ResNet, "mobilenet_v2_lambda": MobileNetV2}


def check_model_id(family: str, model_id: str) -> None:
    """Checks the name of a model of the zoo as a backbone.

    Args:
      family: the type of the backbone, a key of `FAMILIES`, such as "lambda_resnet".
      model_id: the name of the model.

    Raises:
      InputError: the model is not in the family; the message has the nearest names.
    """
    accepted = [
        name
        for name, model in zoo.MODELS.items()
        if isinstance(model, FAMILIES[family])
    ]
    check_known(f"model_id of backbone {family!r}", model_id, accepted)


class ZooBackbone(TfKerasModel):
    """A network of the zoo without its classifier: images -> {"2": ..., "5": ...} at strides 4 to 32.

    With an output stride, only the last map of each stride: {"2": ..., "4": ...} at strides 4 to 16.

    It computes in the precision of tf_keras's global policy.

    Args:
      model_id: the name of the model in the zoo.
      image_shape: (height, width, channels); height and width may both be None.
      options: further arguments of `lambdanet.models.zoo.create_model`; the `kernel_regularizer` is one of
        tf_keras.

    Example:
      >>> ZooBackbone("lambda_resnet_50", [512, 512, 3]).output_specs["5"]
      TensorShape([None, 16, 16, 2048])
    """

    def __init__(
        self,
        model_id: str,
        image_shape: tuple[int | None, int | None, int],
        options: Mapping[str, Any] | None = None,
    ):
        height, width, channels = image_shape
        arguments = dict(options or {})
        regularizer = arguments.get("kernel_regularizer")
        if regularizer is not None:
            arguments["kernel_regularizer"] = lambda kernel: regularizer(kernel.value)
        precision = tf_keras.mixed_precision.global_policy().name
        with compat.dtype_policy(precision), tf.variable_creator_scope(average_on_read):
            network = zoo.create_model(
                model_id,
                input_size=None if height is None or width is None else (height, width),
                in_channels=channels,
                features_only=True,
                **arguments,
            )
        by_stride = last_by_stride(
            network.output, arguments.get("output_stride", NATIVE)
        )
        if len(by_stride) < len(network.output):
            endpoints = {str(level): x for level, x in by_stride.items()}
            network = keras.Model(network.input, endpoints, name=network.name)
        super().__init__(network, name=model_id)
        self._arguments = {
            "model_id": model_id,
            "image_shape": tuple(image_shape),
            "options": options,
        }

    @property
    def output_specs(self) -> dict[str, tf.TensorShape]:
        """The shape of each endpoint, read by Model Garden's decoders."""
        return {
            level: tf.TensorShape(endpoint.shape)
            for level, endpoint in self.network.output.items()
        }

    def get_config(self) -> dict[str, Any]:
        return dict(self._arguments)

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: Any = None
    ) -> "ZooBackbone":
        return cls(**config)


def model_options(
    config: hyperparams.Config, norm_activation: hyperparams.Config
) -> dict[str, Any]:
    """Converts a Model Garden configuration to arguments of `lambdanet.models.zoo.create_model`.

    Args:
      config: a `ZooNetwork`.
      norm_activation: Model Garden's `NormActivation`.
    """
    other = ("model_id", "stochastic_depth_drop_rate", "bn_trainable")
    layer = {
        name: v
        for name, v in config.as_dict().items()
        if v is not None and name not in other
    }
    if layer.get("scope") == GLOBAL_SCOPE:
        layer["scope"] = None
    activation = norm_activation.activation
    return {
        "stochastic_depth_rate": config.stochastic_depth_drop_rate,
        "batch_norm": {
            "momentum": norm_activation.norm_momentum,
            "epsilon": norm_activation.norm_epsilon,
            "synchronized": norm_activation.use_sync_bn,
            "trainable": config.bn_trainable,
        },
        "activation": None if activation == DEFAULT_ACTIVATION else activation,
        **layer,
    }


def _build(
    input_specs: Any,
    backbone_config: Any,
    norm_activation_config: Any,
    l2_regularizer: Any = None,
) -> ZooBackbone:
    config = backbone_config.get()
    check_model_id(backbone_config.type, config.model_id)
    if not 0 <= config.stochastic_depth_drop_rate < 1:
        raise invalid(
            "stochastic_depth_drop_rate", "in [0, 1)", config.stochastic_depth_drop_rate
        )
    options = model_options(config, norm_activation_config)
    return ZooBackbone(
        config.model_id,
        tuple(input_specs.shape[1:]),
        {**options, "kernel_regularizer": l2_regularizer},
    )


for _family in FAMILIES:
    backbone_factory.register_backbone_builder(_family)(_build)

# SPDX-License-Identifier: Apache-2.0
"""The networks of the zoo as backbones of Model Garden: `lambda_resnet` and `mobilenet_v2_lambda`.

A Model Garden configuration names them as it names its own:

    backbone:
      type: lambda_resnet
      lambda_resnet: {model_id: lambda_resnet_152}
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tf_keras as keras

from lambdanet.detection.model_garden import backbone_configs, backbone_factory, hyperparams
from lambdanet.errors import InputError, unknown
from lambdanet.models import zoo
from lambdanet.models.mobilenet_v2 import MobileNetV2
from lambdanet.models.resnet import ResNet

# Model Garden's default. It stands for the activation that a model is made with, which is ReLU6 in
# MobileNetV2 and SiLU in many networks of timm.
DEFAULT = "relu"
WHOLE_MAP = 0  # the `scope` of a configuration that stands for scope=None, all of the map


@dataclasses.dataclass
class LambdaResNet(hyperparams.Config):
    """A network of the zoo's residual families: with convolutions, lambda layers or halo attention.

    Attributes:
      model_id: its name, as `lambdanet.create_model` takes it.
      stochastic_depth_drop_rate: of the last stage.
      bn_trainable: whether batch normalisation learns; if not, it keeps to its moving statistics.
      key_dim: of the lambda or attention layers, as are all below; None: as the model has it.
      num_heads: likewise.
      intra_depth: likewise.
      scope: likewise; 0 stands for the whole map.
      block_size: likewise.
      halo_size: likewise.
      implementation: likewise.
    """

    model_id: str = "lambda_resnet_50"
    stochastic_depth_drop_rate: float = 0.0
    bn_trainable: bool = True
    key_dim: int | None = None
    num_heads: int | None = None
    intra_depth: int | None = None
    scope: int | None = None
    block_size: int | None = None
    halo_size: int | None = None
    implementation: str | None = None


@dataclasses.dataclass
class MobileNetV2Lambda(hyperparams.Config):
    """MobileNetV2 with two lightweight lambda blocks (Bello 2021, Table 17), or without them.

    Attributes:
      model_id: "mobilenet_v2_lambda" or "mobilenet_v2".
      stochastic_depth_drop_rate: of the last block.
      bn_trainable: whether batch normalisation learns; if not, it keeps to its moving statistics.
      key_dim: of the lambda layers, as are all below; None: as the model has it.
      num_heads: likewise.
      scope: likewise; 0 stands for the whole map.
      implementation: likewise.
    """

    model_id: str = "mobilenet_v2_lambda"
    stochastic_depth_drop_rate: float = 0.0
    bn_trainable: bool = True
    key_dim: int | None = None
    num_heads: int | None = None
    scope: int | None = None
    implementation: str | None = None


@dataclasses.dataclass
class Backbone(backbone_configs.Backbone):
    """Model Garden's choice of backbones, with those of lambdanet among them."""

    type: str | None = "lambda_resnet"
    lambda_resnet: LambdaResNet = dataclasses.field(default_factory=LambdaResNet)
    mobilenet_v2_lambda: MobileNetV2Lambda = dataclasses.field(default_factory=MobileNetV2Lambda)


FAMILIES = {"lambda_resnet": ResNet, "mobilenet_v2_lambda": MobileNetV2}


def names(family: str) -> list[str]:
    """Returns the models that a backbone accepts as `model_id`.

    Args:
      family: "lambda_resnet" or "mobilenet_v2_lambda".
    """
    return [name for name, model in zoo.MODELS.items() if isinstance(model, FAMILIES[family])]


def check_model_id(family: str, model_id: str) -> None:
    """Refuses a model that is not of a family.

    Raises:
      InputError: with the names that come near.
    """
    if model_id not in names(family):
        raise unknown(f"model_id of backbone {family!r}", str(model_id), names(family))


class ZooBackbone(keras.Model):
    """A network of the zoo without its classifier: images -> {"2": ..., "5": ...} at strides 4 to 32.

    Args:
      model_id: its name in the zoo.
      image_shape: [height, width, channels]; height and width may both be None.
      options: what else `lambdanet.models.zoo.create_model` takes.

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
        trunk = zoo.create_model(
            model_id,
            input_size=None if height is None or width is None else (height, width),
            in_channels=channels,
            features_only=True,
            **(options or {}),
        )
        super().__init__(trunk.input, trunk.output, name=model_id)
        self._arguments = {"model_id": model_id, "image_shape": tuple(image_shape), "options": options}

    @property
    def output_specs(self) -> dict[str, tf.TensorShape]:
        """The shape of each endpoint, as Model Garden's decoders ask for it."""
        return {level: endpoint.shape for level, endpoint in self.output.items()}

    def get_config(self):
        return dict(self._arguments)

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return cls(**config)


def options_of(config: hyperparams.Config, norm_activation: hyperparams.Config) -> dict[str, Any]:
    """Returns what a Model Garden configuration says, as `lambdanet.models.zoo.create_model` takes it.

    Args:
      config: a LambdaResNet or MobileNetV2Lambda.
      norm_activation: Model Garden's NormActivation.
    """
    layer = config.as_dict()
    for name in ("model_id", "stochastic_depth_drop_rate", "bn_trainable"):
        del layer[name]
    layer = {name: value for name, value in layer.items() if value is not None}
    if layer.get("scope") == WHOLE_MAP:
        layer["scope"] = None
    return {
        "stochastic_depth_rate": config.stochastic_depth_drop_rate,
        "batch_norm": {
            "momentum": norm_activation.norm_momentum,
            "epsilon": norm_activation.norm_epsilon,
            "synchronized": norm_activation.use_sync_bn,
            "trainable": config.bn_trainable,
        },
        "activation": None if norm_activation.activation == DEFAULT else norm_activation.activation,
        **layer,
    }


def _build(input_specs, backbone_config, norm_activation_config, l2_regularizer=None) -> ZooBackbone:
    """Builds a backbone as Model Garden's factory asks for it."""
    family, config = backbone_config.type, backbone_config.get()
    check_model_id(family, config.model_id)
    if not 0 <= config.stochastic_depth_drop_rate < 1:
        raise InputError(
            "stochastic_depth_drop_rate must be in [0, 1), got " + repr(config.stochastic_depth_drop_rate)
        )
    options = options_of(config, norm_activation_config)
    return ZooBackbone(
        config.model_id, tuple(input_specs.shape[1:]), {**options, "kernel_regularizer": l2_regularizer}
    )


for _family in FAMILIES:
    backbone_factory.register_backbone_builder(_family)(_build)

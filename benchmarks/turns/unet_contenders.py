# SPDX-License-Identifier: Apache-2.0
"""The contenders of the U-Net benchmark: training steps of U-Nets on noise."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.turns.cases import ModelCase
from benchmarks.turns.contenders import Run, policy, start
from benchmarks.turns.model_contenders import training_step
from lambdanet import backend as K
from lambdanet.backend import keras
from lambdanet.models import unet
from lambdanet.models.spatial_ops import LayerOperation
from lambdanet.training.run.build import policy as precision

__all__ = ["build", "start"]

PREFIX = "unet/"
LUCIDRAINS = "lucidrains"  # its layer in lambda_unet_2d
SIZES: Mapping[int, tuple[int, ...]] = {2: (128, 128), 3: (32, 64, 64)}
NUM_CLASSES = 2


def build(name: str, case: ModelCase) -> Run:
    """Builds a U-Net and returns a function that makes a training step."""
    name = name.removeprefix(PREFIX)
    network = _with_lucidrains() if name == LUCIDRAINS else unet.MODELS[name]
    size = SIZES[len(network.strides)]
    with precision(policy(case.dtype)):
        model = unet.create_unet(network, NUM_CLASSES, 1, size)
    random = np.random.default_rng(0)
    shape = [case.batch, *size]
    images = K.convert_to_tensor(random.standard_normal([*shape, 1], np.float32))
    labels = K.convert_to_tensor(random.integers(0, NUM_CLASSES, shape))
    return training_step(model, images, labels)


def _with_lucidrains() -> unet.UNet:
    """Returns `lambda_unet_2d` with lucidrains' layer, in Keras, and the same options."""
    from lambda_networks.tfkeras import LambdaLayer

    class Layer(LambdaLayer):
        def compute_output_shape(self, input_shape: Any) -> Any:
            return (*input_shape[:-1], self.out_dim)  # theirs leaves an axis out

    def create(
        filters: int, num_heads: int, kernel_regularizer: Any, name: str
    ) -> keras.layers.Layer:
        return Layer(dim_k=16, r=3, heads=num_heads, dim_out=filters, dim_u=4)

    network = unet.MODELS["lambda_unet_2d"]
    operation = LayerOperation(create, {"num_heads": unet.HEADS})
    return dataclasses.replace(
        network, operations={**network.operations, "L": operation}
    )

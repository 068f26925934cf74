# SPDX-License-Identifier: Apache-2.0
"""Conversion of the weights of published U-Nets in PyTorch: LambdaUNet, and U-Nets with the same names."""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lambdanet.backend import keras
from lambdanet.layers.lambda_layer import LambdaLayer
from lambdanet.models.weights import layer_rules, timm_rules
from lambdanet.models.weights.timm_rules import BATCH_NORM, WeightRule

# Pairs of an operation and its normalization, 0 and 1, 3 and 4, in this order within a level.
OPERATION = re.compile(r"(down|up)(\d)_(\d)_spatial(_conv|_norm|)")
BIAS = re.compile(r"(.*double_conv)\.(\d)\.bias")


def convert_unet(
    state_dict: Mapping[str, Any] | str | Path, model: keras.Model
) -> keras.Model:
    """Assigns the weights of a U-Net in PyTorch to one of `create_unet`, which then has its outputs.

    The levels are `inc`, `down1.maxpool_conv.1` and so on, `up1` (the coarsest) and so on, and `outc`; those
    of `lambda_unet_2_5d` are LambdaUNet's, those of `unet_2d` a U-Net's of convolutions. A bias of a
    convolution becomes a part of the normalization after it. Outputs are equal where the strides divide the
    sides of the input; elsewhere the published networks leave out the last row of a pool, and pad with zeros.

    Args:
      state_dict: the tensors by name, or the path of a file with them, as in `convert_layer`.
      model: the U-Net of the same sizes, of `create_unet` without `deep_supervision`.

    Returns:
      The model.

    Raises:
      InputError: as in `convert_layer`; the model is unchanged.

    Example:
      >>> model = lambdanet.create_unet("lambda_unet_2_5d", num_classes=1, in_channels=2)
      >>> convert_unet("lambda_unet.pt", model)  # doctest: +SKIP
    """
    tensors = dict(layer_rules.read_state(state_dict)[0])
    for name in list(tensors):
        found = BIAS.fullmatch(name)
        mean = f"{found[1]}.{int(found[2]) + 1}.running_mean" if found else None
        if mean in tensors:
            tensors[mean] = tensors[mean] - tensors.pop(name)
    depth = sum(layer.name.endswith("_expand") for layer in model.layers)
    variables: dict[str, Any] = {}
    rules = []
    for layer in model.layers:
        if not layer.weights:
            continue
        prefix = _prefix(layer.name, depth)
        own = layer_rules.variables_of(layer)
        variables |= {f"{layer.name}/{name}": own[name] for name in own}
        shapes = {name: tuple(variable.shape) for name, variable in own.items()}
        for rule in _rules_of(layer, prefix, shapes, tensors):
            names = [f"{layer.name}/{name}" for name in rule.variables]
            tensor = f"{prefix}.{rule.tensor}"
            rules.append(dataclasses.replace(rule, tensor=tensor, variables=names))
    timm_rules.assign(rules, tensors, variables, model.name)
    return model


def _prefix(name: str, depth: int) -> str:
    """Returns the prefix of the tensors of a layer, in a network with `depth` pools."""
    found = OPERATION.fullmatch(name)
    if found is None:
        level = name.removeprefix("up").removesuffix("_expand")
        return f"up{depth - int(level)}.up" if level.isdigit() else "outc.conv"
    way, level, index, part = found.groups()
    number = 3 * (int(index) - 1) + (part == "_norm")
    block = f"up{depth - int(level)}.conv"
    if way == "down":
        block = f"down{level}.maxpool_conv.1" if int(level) else "inc"
    return f"{block}.double_conv.{number}"


def _rules_of(
    layer: Any, prefix: str, shapes: timm_rules.Shapes, tensors: layer_rules.Tensors
) -> list[WeightRule]:
    """Returns the rules of a layer, with names of tensors and variables as within it."""
    if isinstance(layer, LambdaLayer):
        start = f"{prefix}."
        own = {
            n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)
        }
        return layer_rules.rules_of(layer, own, shapes)
    rules = []
    for variable, shape in shapes.items():
        name = variable.partition("/")[2]
        if name == "kernel":
            # [inputs of the gradient, its outputs, *sides] of both kinds of convolutions
            theirs = (shape[-1], shape[-2], *(shape[-4:-2] or (1, 1)))
            tensor = "weight"
        else:
            theirs = shape
            tensor = BATCH_NORM.get(name, name)

        def convert(t: np.ndarray, shape: tuple[int, ...] = shape) -> list[np.ndarray]:
            return [
                (t if t.ndim == 1 else np.moveaxis(t, (0, 1), (-1, -2))).reshape(shape)
            ]

        rules.append(WeightRule(tensor, theirs, [variable], convert))
    return rules

# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters (LoRA) of a run: the layers that get them, and weights in which they are merged."""

from collections.abc import Mapping

import numpy as np

from lambdanet.backend import compat, keras
from lambdanet.core.errors import invalid
from lambdanet.models.layer_builder import CLASSIFIER

FIRST = "lora_kernel_a"  # [inputs, rank]
SECOND = "lora_kernel_b"  # [rank, units], zero at the start


def enable_lora(model: keras.Model, rank: int) -> None:
    """Adds adapters to projections and dense layers, and freezes all else but the classifier.

    A layer with the kernel W then computes with W + A B, and trains A and B (Hu et al. 2021). B is zero at
    the start, so the outputs stay the same. Normalizations are frozen with their moving statistics.

    Args:
      model: a built model with fresh or trained weights.
      rank: the number of columns of A, at least 1.

    Raises:
      InputError: the model has no such layer.
    """
    dense = [
        layer
        for layer in compat.sublayers(model)
        if isinstance(layer, keras.layers.Dense) and layer.name != CLASSIFIER
    ]
    if not dense:
        accepted = f"0 for {model.name}, which has no projections or dense layers"
        raise invalid("lora_rank", accepted, rank)
    for layer in model.layers:
        layer.trainable = layer.name == CLASSIFIER
    for layer in dense:
        layer.trainable = True
        if layer.use_bias:
            layer.bias.trainable = False
        layer.enable_lora(rank, a_initializer=compat.VarianceScaling(2.0))


def merge_adapters(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns weights by name in which each kernel contains its adapter: W + A B."""
    merged = dict(arrays)
    for name in arrays:
        layer, _, last = name.rpartition("/")
        if last == FIRST:
            adapter = merged.pop(name) @ merged.pop(f"{layer}/{SECOND}")
            merged[f"{layer}/kernel"] = merged[f"{layer}/kernel"] + adapter
    return merged

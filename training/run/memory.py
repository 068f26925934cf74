# SPDX-License-Identifier: Apache-2.0
"""Estimates the memory of a training step on a CPU, and reads how much is available."""

import math
import re
from pathlib import Path
from typing import Any

import tensorflow as tf

from lambdanet import backend as K
from lambdanet.backend import keras
from lambdanet.configs.recipe import Recipe

MEMORY = Path("/proc/meminfo")  # of Linux
FIXED = 200_000_000  # bytes of a step with any number of pixels


def memory_lines(recipe: Recipe, model: keras.Model, workers: int) -> list[str]:
    """Returns a line where a step probably needs more memory than a CPU has available, or else none.

    Args:
      recipe: the recipe; with `remat`, nothing is estimated.
      model: its compiled model.
      workers: the number of machines.
    """
    if K.accelerators() or recipe.remat:
        return []
    batch = recipe.global_batch_size // (workers * recipe.accumulate_steps)
    size = recipe.size_in_training
    needed = step_bytes(model, (batch, size, size, len(recipe.mean)))
    available = available_bytes()
    if needed <= available:
        return []
    return [
        f"a step needs about {needed / 1e9:.1f} GB of memory, and {available / 1e9:.1f} GB are available: "
        "a smaller global_batch_size or input_size needs less"
    ]


def step_bytes(model: keras.Model, shape: tuple[int, ...]) -> int:
    """Estimates the memory of a training step by what the layers return.

        0.2 GB + 2 * (bytes of all outputs of layers) + bytes of the weights and of the optimizer's variables

    The outputs have gradients of their size, and the update makes new values. What a layer computes within
    itself is not counted, nor what a layer contains that is a network. In GB, in addition to the variables,
    TensorFlow on a CPU took for two steps, with the tracing of the first one:

        network               images per step   took   estimate
        unet_2d               16 of 64 pixels   0.88       1.55
        resnet_50             32 of 64 pixels   0.89       1.17
        lambda_resnet_micro   64 of 64 pixels   0.21       0.35
        DeepLab on it         16 of 256 pixels  1.49       2.39
        DeepLab on it         16 of 64 pixels   0.43       0.38

    The first term is what these steps need for any number of pixels, such as the tracing.

    Args:
      model: a compiled model; of one that is not functional, only the variables are counted.
      shape: the shape of a batch of images.
    """
    tensors = model.weights + model.optimizer.variables

    def count(layer: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = layer.compute_output_spec(*args, **kwargs)
        tensors.extend(2 * keras.tree.flatten(outputs))
        return outputs

    if hasattr(model, "_run_through_graph"):
        model._run_through_graph(keras.KerasTensor(shape), call_fn=count)
    return FIXED + sum(math.prod(t.shape) * tf.as_dtype(t.dtype).size for t in tensors)


def available_bytes() -> float:
    """Returns the memory that is available; infinity where the system has no `MEMORY`."""
    text = MEMORY.read_text() if MEMORY.exists() else ""
    found = re.search(r"MemAvailable: +(\d+) kB", text)
    return 1024 * int(found[1]) if found else math.inf

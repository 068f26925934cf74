# SPDX-License-Identifier: Apache-2.0
"""Runs contenders of the benchmarks on the backend of this process: benchmark_outputs.py OUT.npz"""

import sys

import keras
import numpy as np

from benchmarks.turns import contenders, model_contenders
from benchmarks.turns.cases import ModelCase, cases

NAMES = (*contenders.FORMS, "layer/auto", "attention/global", "attention/halo")
MODEL = "model/lambda_resnet_tiny@32"


def outputs() -> dict[str, np.ndarray]:
    """Returns the outputs, and the gradients, of contenders of layers, and what those of a model infer."""
    found = {}
    for case in cases(["8x8x16x1"], ["5"], ["forward", "both"], "float32"):
        for name in NAMES:
            keras.utils.set_random_seed(0)
            arrays = keras.tree.flatten(contenders.build(name, case)())
            arrays = [np.array(array) for array in arrays if array is not None]
            found |= {
                f"{name} {case.pass_name} {index}": array
                for index, array in enumerate(arrays)
            }
    keras.utils.set_random_seed(0)
    found["infer"] = np.array(
        model_contenders.build(MODEL, ModelCase(2, False, "float32"))()
    )
    logs = model_contenders.build(MODEL, ModelCase(2, True, "float32"))()
    # On JAX, the state comes after them.
    logs = logs[0] if isinstance(logs, tuple) else logs
    return {**found, "train": np.array(logs["loss"])}


if __name__ == "__main__":
    np.savez(sys.argv[1], **outputs())

# SPDX-License-Identifier: Apache-2.0
"""A file of weights with the metadata that published ones have, and random tensors of timm's networks."""

from pathlib import Path

import keras
import numpy as np
from helpers import randomize_normalizations
from small_models import timm_shapes

from lambdanet.models import zoo
from lambdanet.models.weights import weight_files


def random_timm_tensors(model: keras.Model) -> dict[str, np.ndarray]:
    """Returns tensors that timm's network of this architecture may have, with variances above 0.5."""
    random = np.random.default_rng(0)
    tensors = {}
    for name, shape in timm_shapes(model).items():
        values = random.normal(0, 0.1, shape)
        if "var" in name:
            values = np.abs(values) + 0.5
        tensors[name] = values.astype(np.float32)
    return tensors


def write_tiny_weights(folder: Path) -> keras.Model:
    """Writes tiny.safetensors and names.txt, of two classes at 16 pixels, and returns the model."""
    model = zoo.create_model("lambda_resnet_tiny", num_classes=2)
    randomize_normalizations(model)
    texts = {
        "input_size": "16",
        "mean": "0.3, 0.4, 0.5",
        "std": "0.2, 0.25, 0.3",
        "num_classes": "2",
    }
    weight_files.save(model, folder / "tiny.safetensors", texts)
    (folder / "names.txt").write_text("cat\ndog\n")
    return model

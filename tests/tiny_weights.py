# SPDX-License-Identifier: Apache-2.0
"""A file of weights with the metadata that published ones have, and random tensors of timm's networks."""

from collections.abc import Sequence
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


def write_tiny_weights(
    folder: Path, class_names: Sequence[str] = ("cat", "dog"), **changes: str
) -> keras.Model:
    """Writes tiny.safetensors, for 16 pixels, and names.txt.

    Args:
      folder: the folder of both files.
      class_names: the names of the classes.
      **changes: other metadata.

    Returns:
      The model.
    """
    model = zoo.create_model("lambda_resnet_tiny", num_classes=len(class_names))
    randomize_normalizations(model)
    texts = {
        "input_size": "16",
        "mean": "0.3, 0.4, 0.5",
        "std": "0.2, 0.25, 0.3",
        "num_classes": str(len(class_names)),
    }
    weight_files.save(model, folder / "tiny.safetensors", texts | changes)
    (folder / "names.txt").write_text("\n".join(class_names))
    return model


def export_words(folder: Path, out: Path) -> list[str]:
    """Returns the words of a command that exports these weights."""
    return [
        "export",
        "--model=lambda_resnet_tiny",
        f"--weights={folder / 'tiny.safetensors'}",
        f"--class_names={folder / 'names.txt'}",
        f"--out={out}",
    ]

# SPDX-License-Identifier: Apache-2.0
"""Compares exports of the packaged network for digits with the network itself, on random pictures."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.device import Row, make_row
from benchmarks.interleaved.contenders import start
from lambdanet.training.serving import (
    comparison,
    export,
    trained_weights,
)

__all__ = ["rows", "start"]

MODEL = "lambda_resnet_tiny"
WEIGHTS = "digits"
TOLERANCE = 0.01  # of probabilities, as an accelerator may multiply with fewer bits


def rows(name: str) -> Iterator[Row]:
    """Yields the row of "exports/SavedModel" or "exports/LiteRT"."""
    kind = name.partition("/")[2]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "export")
        if kind == "LiteRT":
            difference = export.export_weights(
                MODEL, WEIGHTS, path, options=export.Options("litert")
            ).probability_difference
        else:
            difference = np.abs(_saved_model_differences(path)).max()
    figures = {"difference": f"{difference:.1g}", "tolerance": f"{TOLERANCE:g}"}
    yield make_row(kind, bool(difference <= TOLERANCE), None, figures)


def _saved_model_differences(path: Path) -> Any:
    """Returns the differences between probabilities of a SavedModel and of the network."""
    network = trained_weights.build_classifier(MODEL, WEIGHTS)
    pictures = comparison.random_pictures(network.preprocessing.input_size).images
    export.export_weights(MODEL, WEIGHTS, path)
    exported = tf.saved_model.load(str(path))
    found = exported.signatures["serving_default"](images=tf.constant(pictures))
    logits = network.model(network.preprocessing(pictures), training=False)
    return found["probabilities"] - tf.nn.softmax(logits)

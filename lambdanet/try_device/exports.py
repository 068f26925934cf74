# SPDX-License-Identifier: Apache-2.0
"""Compares exports of the packaged network for digits with the network itself, on random pictures."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from lambdanet.training.serving import (
    comparison,
    export,
    export_runtimes,
    trained_weights,
)
from lambdanet.try_device import not_installed

MODEL = "lambda_resnet_tiny"
WEIGHTS = "digits"
TOLERANCE = 0.01  # of probabilities, as an accelerator may multiply with fewer bits


def compare_saved_model(folder: Path) -> list[dict[str, Any]]:
    """Returns a row for the SavedModel."""
    network = trained_weights.build_classifier(MODEL, WEIGHTS)
    pictures = comparison.random_pictures(network.preprocessing.input_size).images
    path = export.export_weights(MODEL, WEIGHTS, folder / "saved_model")
    serve = tf.saved_model.load(path).signatures["serving_default"]
    found = serve(images=tf.constant(pictures))["probabilities"]
    logits = network.model(network.preprocessing(pictures), training=False)
    return [_row("SavedModel", found - tf.nn.softmax(logits))]


def compare_litert(folder: Path) -> list[dict[str, Any]]:
    """Returns a row for LiteRT, where it is installed."""
    if importlib.util.find_spec("ai_edge_litert") is None:
        return [not_installed("LiteRT", "ai-edge-litert")]
    parity = export_runtimes.export_weights(MODEL, WEIGHTS, folder / "litert")
    return [_row("LiteRT", parity.probability_difference)]


def _row(case: str, differences: Any) -> dict[str, Any]:
    largest = float(np.abs(differences).max())
    figures = {"difference": f"{largest:.1g}", "tolerance": f"{TOLERANCE:g}"}
    passed = largest <= TOLERANCE
    return {"case": case, "passed": passed, "ms": None, "figures": figures}

# SPDX-License-Identifier: Apache-2.0
"""Loads exported classifiers and detectors. Needs TensorFlow only."""

from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from lambdanet.core.errors import invalid, one_line
from lambdanet.core.files import absolute


class ExportedModel(NamedTuple):
    """An exported classifier or detector."""

    signatures: Any  # the functions `serving_default` and `serving_bytes`
    class_names: list[str]  # by number
    # The probability from which on each class is present; empty: a picture has one class.
    thresholds: Any = ()
    has_masks: bool = False  # whether it has the probabilities of each pixel


def load_exported_model(
    saved_model: str | Path, output: str, program: str
) -> ExportedModel:
    """Loads the SavedModel that a program wrote; `InputError` where there is none, or it is damaged.

    Args:
      saved_model: the folder of the SavedModel.
      output: an output of its signatures, such as "probabilities"; another program's has none of that name.
      program: the program that writes such a SavedModel, for error messages.
    """
    path = absolute(saved_model)
    accepted = f"a folder written by {program}"
    if not tf.saved_model.contains_saved_model(path):
        problem = (
            "holds no SavedModel" if tf.io.gfile.exists(path) else "does not exist"
        )
        raise invalid("saved_model", accepted, path, hint=f"it {problem}")
    try:
        loaded = tf.saved_model.load(path)
    except Exception as error:  # a damaged SavedModel raises exceptions of many kinds
        reason = f"it cannot be loaded ({one_line(error)})"
        raise invalid("saved_model", accepted, path, hint=reason) from error
    signature = getattr(loaded, "signatures", {}).get("serving_bytes")
    if (
        signature is None
        or output not in signature.structured_outputs
        or not hasattr(loaded, "class_names")
    ):
        raise invalid(
            "saved_model", accepted, path, hint=f"it has no output {output!r}"
        )
    names = [name.decode() for name in loaded.class_names().numpy()]
    thresholds = loaded.thresholds().numpy() if hasattr(loaded, "thresholds") else ()
    has_masks = "classes" in signature.structured_outputs
    return ExportedModel(loaded.signatures, names, thresholds, has_masks)


def load_classifier(
    saved_model: str | Path, accepts_masks: bool = False
) -> ExportedModel:
    """Loads a SavedModel of `lambdanet export`.

    Args:
      saved_model: the folder of the SavedModel.
      accepts_masks: whether it may be one that finds masks.

    Raises:
      InputError: as `load_exported_model`, or it finds masks.
    """
    found = load_exported_model(saved_model, "probabilities", "`lambdanet export`")
    if found.has_masks and not accepts_masks:
        hint = "it finds masks, which `lambdanet predict` writes"
        raise invalid("saved_model", "a classifier", str(saved_model), hint)
    return found

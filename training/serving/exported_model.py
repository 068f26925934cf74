# SPDX-License-Identifier: Apache-2.0
"""Loads exported classifiers and detectors. Needs TensorFlow only."""

import os
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from lambdanet.errors import invalid, one_line


class ExportedModel(NamedTuple):
    """An exported classifier or detector."""

    signatures: Any  # the functions `serving_default` and `serving_bytes`
    class_names: list[str]  # by number
    # The probability from which on each class is present; empty: a picture has one class.
    thresholds: Any = ()


def load_exported_model(
    saved_model: str | Path, output: str, program: str
) -> ExportedModel:
    """Loads the SavedModel that a program wrote; `InputError` where there is none, or it is damaged.

    Args:
      saved_model: the folder of the SavedModel.
      output: an output of its signatures, such as "probabilities"; another program's has none of that name.
      program: the program that writes such a SavedModel, for error messages.
    """
    path = os.path.expanduser(saved_model)
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
    return ExportedModel(loaded.signatures, names, thresholds)


def load_classifier(saved_model: str | Path) -> ExportedModel:
    """Loads a SavedModel of `lambdanet export`; raises the errors of `load_exported_model`."""
    return load_exported_model(saved_model, "probabilities", "`lambdanet export`")

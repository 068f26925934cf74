# SPDX-License-Identifier: Apache-2.0
"""Loads exported classifiers and detectors. Needs TensorFlow only."""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from lambdanet.errors import check_counts, invalid, one_line

# In the folder of a SavedModel: the configuration and preprocessing of the network, whose weights are the first
# `model_variables`.
NETWORK = "assets.extra/network.json"


class ExportedModel(NamedTuple):
    """An exported classifier or detector."""

    signatures: Any  # the functions `serving_default` and `serving_bytes`
    class_names: list[str]  # by number
    # The probability from which on each class is present; empty: a picture has one class.
    thresholds: Any = ()
    has_masks: bool = False  # whether it has the probabilities of each pixel
    interpolation: str = ""  # of `Preprocessing`, for masks


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
        accepted = "a classifier of pictures"
        hint = "it finds masks, which `lambdanet predict` writes"
        raise invalid("saved_model", accepted, str(saved_model), hint)
    record = Path(saved_model, NETWORK).expanduser()
    if not found.has_masks or not record.exists():
        return found
    preprocessing = json.loads(record.read_text(encoding="utf-8"))["preprocessing"]
    return found._replace(interpolation=preprocessing["interpolation"])


def check_window(
    has_masks: bool, interpolation: str, window: int, overlap: int | None
) -> int:
    """Checks that a network can read pictures window by window.

    Args:
      has_masks: whether it finds masks.
      interpolation: that of its `Preprocessing`.
      window: the side of the windows.
      overlap: what neighboring windows share; None: a quarter of the window.

    Returns:
      What they share.

    Raises:
      InputError: it finds no masks, or resizes pictures; or the side is not positive.
    """
    if not has_masks or interpolation != "none":
        accepted = "left out, unless for masks of a run with interpolation=none"
        raise invalid("window", accepted, window)
    check_counts(window=window)
    return window // 4 if overlap is None else overlap

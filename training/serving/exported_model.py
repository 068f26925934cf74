# SPDX-License-Identifier: Apache-2.0
"""Loads exported networks and detectors. Needs TensorFlow only."""

from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from lambdanet.core.errors import invalid, one_line
from lambdanet.core.files import absolute
from lambdanet.training.data.task_outputs import read_outputs, read_record


class ExportedModel(NamedTuple):
    """An exported network or detector."""

    signatures: Any  # the functions `serving_default` and `serving_bytes`
    class_names: list[str]  # by number
    record: Any = None  # the task of a network

    @property
    def task_outputs(self) -> Any:
        """What its task makes of outputs, a `TaskOutputs`; `InputError` where the task is not found."""
        return read_outputs(self.class_names, self.record)


def load_exported_model(
    saved_model: str | Path, output: str, program: str, function: str = ""
) -> ExportedModel:
    """Loads the SavedModel that a program wrote; `InputError` where there is none, or it is damaged.

    Args:
      saved_model: the folder of the SavedModel.
      output: an output of its signatures, such as "probabilities"; another program's has none of that name.
      program: the program that writes such a SavedModel, for error messages.
      function: a function that a SavedModel without the output has.
    """
    path = absolute(saved_model)
    accepted = f"a folder written by {program}"
    check_saved_model(path, accepted)
    try:
        loaded = tf.saved_model.load(path)
    except Exception as error:  # a damaged SavedModel raises exceptions of many kinds
        reason = f"it cannot be loaded ({one_line(error)})"
        raise invalid("saved_model", accepted, path, hint=reason) from error
    signature = getattr(loaded, "signatures", {}).get("serving_bytes")
    if (
        signature is None
        or not (output in signature.structured_outputs or hasattr(loaded, function))
        or not hasattr(loaded, "class_names")
    ):
        raise invalid(
            "saved_model", accepted, path, hint=f"it has no output {output!r}"
        )
    names = [name.decode() for name in loaded.class_names().numpy()]
    return ExportedModel(loaded.signatures, names, read_record(loaded))


def check_saved_model(path: str, accepted: str) -> None:
    """Raises `InputError` where a path has no SavedModel, with what is `accepted`."""
    if not tf.saved_model.contains_saved_model(path):
        exists = tf.io.gfile.exists(path)
        hint = (
            "it holds no SavedModel, which `lambdanet export` writes"
            if exists
            else "it does not exist"
        )
        raise invalid("saved_model", accepted, path, hint)


def load_export(saved_model: str | Path) -> ExportedModel:
    """Loads a SavedModel of `lambdanet export`; `InputError` as `load_exported_model`."""
    program = "`lambdanet export`"
    return load_exported_model(saved_model, "probabilities", program, "task_record")


def load_classifier(saved_model: str | Path) -> ExportedModel:
    """Loads a SavedModel of `lambdanet export` with predictions for each picture.

    Raises:
      InputError: as `load_exported_model`, or its predictions are maps.
    """
    found = load_export(saved_model)
    if found.task_outputs.any_size:
        hint = f"it finds {found.task_outputs.kind}, which `lambdanet predict` writes"
        raise invalid("saved_model", "a classifier", str(saved_model), hint)
    return found

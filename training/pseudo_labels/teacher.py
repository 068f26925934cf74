# SPDX-License-Identifier: Apache-2.0
"""The teacher: an exported classifier that says what it sees in picture files."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from lambdanet.training.serving.predict import load_classifier

# What is hashed: what decides its answers.
_GRAPH, _VARIABLES = "saved_model.pb", "variables"


class Teacher:
    """A classifier that `lambdanet export` wrote.

    Args:
      saved_model: its folder.

    Attributes:
      class_names: in the order of the labels.
      sha256: of its graph and its weights.

    Raises:
      InputError: it cannot be used.
    """

    def __init__(self, saved_model: str | Path):
        self._loaded = load_classifier(saved_model)
        self._answer = self._loaded.signatures["serving_bytes"]
        self.class_names = [name.decode() for name in self._loaded.class_names().numpy()]
        self.sha256 = _digest(Path(os.path.expanduser(saved_model)))

    def classify(self, pictures: Sequence[bytes]) -> list[np.ndarray | None]:
        """Returns the probabilities of the classes for each picture, float32; None for a damaged one."""
        try:
            return list(self._probabilities(pictures))
        except tf.errors.OpError:  # a single damaged picture spoils those beside it
            return [self._one(contents) for contents in pictures]

    def _one(self, contents: bytes) -> np.ndarray | None:
        try:
            return self._probabilities([contents])[0]
        except tf.errors.InvalidArgumentError:
            return None

    def _probabilities(self, pictures: Sequence[bytes]) -> np.ndarray:
        return self._answer(image_bytes=tf.constant(pictures))["probabilities"].numpy()


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in [folder / _GRAPH, *sorted((folder / _VARIABLES).iterdir())]:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()

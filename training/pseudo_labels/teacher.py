# SPDX-License-Identifier: Apache-2.0
"""The teacher: an exported classifier of image files."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from lambdanet.training.serving.exported_model import load_classifier


class Teacher:
    """A classifier written by `lambdanet export`.

    Args:
      saved_model: the folder of the SavedModel.

    Attributes:
      class_names: the class names, by label.
      sha256: the hash of the graph and weights.

    Raises:
      InputError: it is not an exported classifier.
    """

    def __init__(self, saved_model: str | Path):
        exported = load_classifier(saved_model)
        self._serve = exported.signatures["serving_bytes"]
        self.class_names = exported.class_names
        self.sha256 = _digest(Path(os.path.expanduser(saved_model)))

    def classify(self, pictures: Sequence[bytes]) -> list[np.ndarray | None]:
        """Returns the float32 probabilities of the classes per picture; None for damaged pictures."""
        try:
            return list(self._probabilities(pictures))
        except tf.errors.OpError:  # a damaged picture fails the whole batch
            return [self._classify_one(content) for content in pictures]

    def _classify_one(self, content: bytes) -> np.ndarray | None:
        try:
            return self._probabilities([content])[0]
        except tf.errors.InvalidArgumentError:
            return None

    def _probabilities(self, pictures: Sequence[bytes]) -> np.ndarray:
        return self._serve(image_bytes=tf.constant(pictures))["probabilities"].numpy()


def _digest(folder: Path) -> str:
    """Returns the hash of the files that the predictions depend on."""
    digest = hashlib.sha256()
    for path in [folder / "saved_model.pb", *sorted((folder / "variables").iterdir())]:
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()

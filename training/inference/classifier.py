# SPDX-License-Identifier: Apache-2.0
"""An exported classifier that takes batches of one size."""

import hashlib
import os
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from lambdanet.training.serving.exported_model import load_classifier

CHUNK = 1 << 24  # bytes


class Classifier:
    """A classifier written by `lambdanet export`; `InputError` where a folder has none.

    It always sees `batch_size` pictures: copies of the last one fill up a batch.
    """

    def __init__(self, saved_model: str, batch_size: int):
        exported = load_classifier(saved_model)
        self._serve = exported.signatures["serving_bytes"]
        self._batch_size = batch_size
        self.class_names = exported.class_names  # by label

    def classify(self, pictures: Sequence[bytes]) -> list[np.ndarray | None]:
        """Returns the float32 probabilities of the classes per picture; None for unreadable ones."""
        known = [content for content in pictures if content]
        filled = known + known[-1:] * (self._batch_size - len(known))
        try:
            rows = iter(self._probabilities(filled) if known else ())
        except tf.errors.OpError:  # a damaged picture fails the whole batch
            rows = map(self._classify_one, known)
        return [next(rows) if content else None for content in pictures]

    def _classify_one(self, content: bytes) -> np.ndarray | None:
        try:
            return self._probabilities([content])[0]
        except tf.errors.InvalidArgumentError:
            return None

    def _probabilities(self, pictures: list[bytes]) -> np.ndarray:
        return self._serve(image_bytes=tf.constant(pictures))["probabilities"].numpy()


def model_sha256(saved_model: str) -> str:
    """Returns the hash of the files of a SavedModel that its predictions depend on."""
    folder, digest = os.path.expanduser(saved_model), hashlib.sha256()
    for path in [
        f"{folder}/saved_model.pb",
        *sorted(tf.io.gfile.glob(f"{folder}/variables/*")),
    ]:
        with tf.io.gfile.GFile(path, "rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
    return digest.hexdigest()

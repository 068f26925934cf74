# SPDX-License-Identifier: Apache-2.0
"""An exported classifier that predicts several batches at the same time, each with one thread."""

import contextlib
import dataclasses
import hashlib
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import tensorflow as tf
from apache_beam.utils.shared import Shared

from lambdanet.errors import check_counts
from lambdanet.training.serving.exported_model import load_classifier

CHUNK = 1 << 24  # bytes
# Of an operation. Sums that are split among threads are rounded by the number of threads.
THREADS_PER_CALL = 1

# The probabilities of the classes per picture, float32; None for unreadable ones.
Rows = list[np.ndarray | None]


class Classifier:
    """A classifier written by `lambdanet export`, and the threads that call it.

    Args:
      saved_model: the folder of the SavedModel.
      num_workers: the number of calls at the same time.

    Raises:
      InputError: the folder has no exported classifier.
    """

    def __init__(self, saved_model: str, num_workers: int):
        limit_threads()
        exported = load_classifier(saved_model)
        self._serve = exported.signatures["serving_bytes"]
        self.class_names = exported.class_names  # by label
        self._threads = ThreadPoolExecutor(num_workers)
        # One more batch waits, so that no thread has to.
        self._slots = threading.Semaphore(num_workers + 1)

    def submit(self, pictures: Sequence[bytes], batch_size: int) -> "Future[Rows]":
        """Begins `classify` in another thread, after waiting until few others are to be done.

        Args:
          pictures: encoded pictures, at most `batch_size`; an empty one stands for an unreadable one.
          batch_size: the number of pictures that the model sees.

        Returns:
          The future result of `classify`.
        """
        self._slots.acquire()
        future = self._threads.submit(self.classify, pictures, batch_size)
        future.add_done_callback(lambda _: self._slots.release())
        return future

    def classify(self, pictures: Sequence[bytes], batch_size: int) -> Rows:
        """Returns the probabilities of the classes per picture; None for unreadable ones.

        The model always sees `batch_size` pictures: copies of the last one fill up a batch.
        """
        known = [content for content in pictures if content]
        if not known:
            return [None] * len(pictures)
        filled = known + known[-1:] * (batch_size - len(known))
        try:
            rows = iter(self._probabilities(filled))
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


@dataclasses.dataclass(frozen=True)
class SharedClassifier:
    """A classifier that each process loads once, however often this object is copied.

    Attributes:
      saved_model: a folder written by `lambdanet export`.
      num_workers: the number of calls at the same time; None: the number of cores.
    """

    saved_model: str
    num_workers: int | None = None
    shared: Shared = dataclasses.field(default_factory=Shared)

    def get(self) -> Classifier:
        """Returns the classifier of this process; `InputError` where the folder has none."""
        return self.shared.acquire(self._load)

    def __post_init__(self) -> None:
        if self.num_workers is not None:
            check_counts(num_workers=self.num_workers)

    def _load(self) -> Classifier:
        num_workers = self.num_workers or os.cpu_count() or 1
        return Classifier(self.saved_model, num_workers)


def limit_threads() -> None:
    """Gives each operation of TensorFlow one thread, unless TensorFlow has already started."""
    with contextlib.suppress(RuntimeError):
        tf.config.threading.set_intra_op_parallelism_threads(THREADS_PER_CALL)


def model_sha256(saved_model: str) -> str:
    """Returns the hash of the files of a SavedModel that its predictions depend on."""
    folder = os.path.expanduser(saved_model)
    digest = hashlib.sha256()
    variables = sorted(tf.io.gfile.glob(f"{folder}/variables/*"))
    for path in [f"{folder}/saved_model.pb", *variables]:
        with tf.io.gfile.GFile(path, "rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
    return digest.hexdigest()

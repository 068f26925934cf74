# SPDX-License-Identifier: Apache-2.0
"""`lambdanet predict-many`: predictions for any number of pictures, in a file per part of them."""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import tensorflow as tf
from apache_beam.utils.shared import Shared

from lambdanet.core.errors import InputError, check_counts, check_known, invalid
from lambdanet.core.files import (
    absolute,
    check_outside,
    locked,
    read_remote,
    write_output,
)
from lambdanet.training.beam import pipeline
from lambdanet.training.beam.inputs import Part, Pictures, open_inputs
from lambdanet.training.data import records
from lambdanet.training.data.bad_records import BadRecords, check_number
from lambdanet.training.serving.exported_model import load_classifier
from lambdanet.training.serving.predict import TABLES

RECORDS = "tfrecord"
FORMATS = ("csv", "jsonl", RECORDS)
NAME, CLASS = "image/filename", "image/class/text"

# The name of a picture, and the probabilities of its classes, or what its task predicts, float32; None: it
# cannot be read.
Prediction = tuple[str, np.ndarray | None]


class Predictions(NamedTuple):
    """Predictions in files."""

    class_names: list[str]  # by label
    settings: dict[str, Any]  # of the run
    parts: list[Part]
    files: list[str]  # the path of the predictions of each part
    unreadable: list[str]  # the names of pictures that cannot be read


def predict_files(
    saved_model: str | Path,
    data: str | Sequence[str],
    out: str | Path,
    format: str,
    top: int = 5,
    split: str | None = None,
    data_dir: str | None = None,
    batch_size: int = 64,
    shard_size: int = 1024,
    max_bad_records: int | None = None,
    num_workers: int | None = None,
    beam_options: Sequence[str] = (),
    seed: int | None = None,
) -> Predictions:
    """Writes the predictions for pictures, on Apache Beam, to files such as predictions-00000-of-00008.csv.

    `manifest.json` is written first, with the settings, the classes, and the names and sizes of the files of
    the pictures. The same call again continues an interrupted run: it leaves out the parts that have a file.
    The names of pictures that cannot be read are in files such as unreadable-00000-of-00008.json.

    Args:
      saved_model: a folder written by `lambdanet export`.
      data: a folder of pictures, TFRecords or Parquet files with pictures, a table with a column `file`, or
        the name of a TFDS dataset; or picture files, folders, and patterns such as "photos/**/*.jpg".
      out: the folder for the files, not within `data`.
      format: "csv", a row per picture and class; "jsonl", a line per picture; or "tfrecord", a record per
        picture with `image/filename`, the top class (`image/class/label` and `image/class/text`), and the
        probabilities of all classes (`image/class/probabilities`).
      top: the number of classes per picture in csv and jsonl, at most all of them.
      split: the split of TFRecords, of Parquet files, of a dataset, or of a table that has a column `split`;
        default: "train".
      data_dir: the folder of TFDS's datasets, or of the files in a table.
      batch_size: the number of pictures per batch of the model.
      shard_size: the number of pictures per part; a worker holds the files of one part in memory.
      max_bad_records: the largest number of unreadable pictures, and of files that are not pictures, to leave
        out; default: 100 pictures, and a tenth of all files.
      num_workers: the number of batches that a process predicts at the same time; default: the number of
        cores.
      beam_options: flags of Beam, such as "--runner=FlinkRunner"; default: its local runner in this process.
      seed: the seed of a random order of files, which mixes subfolders; None: in the order of their names.

    Returns:
      The files, and what is in them.

    Raises:
      InputError: an argument is wrong, the folder has a run with other settings or pictures or is in use, or
        too many pictures are damaged.

    Example:
      >>> predict_files("exported/digits", "photos", "predictions", "csv").files
    """
    check_counts(batch_size=batch_size, shard_size=shard_size, top=top)
    num_workers = (os.cpu_count() or 1) if num_workers is None else num_workers
    check_counts(num_workers=num_workers)
    check_known("format", format, FORMATS)
    bad_records = BadRecords(max_bad_records)
    items = [data] if isinstance(data, str) else list(data)
    out = absolute(out)
    for item in items:
        if os.path.isdir(folder := os.path.expanduser(item)):
            check_outside(out, folder)
    predict = Predict(
        absolute(saved_model), format, top, batch_size, num_workers, bad_records.limit
    )
    # This reference keeps the model loaded for the workers of this process.
    classifier = predict.load()
    if format == RECORDS and not classifier.task_outputs.has_one_class:
        accepted = "a classifier with one class for a picture, to label pictures"
        raise invalid("saved_model", accepted, saved_model)
    files, parts = open_inputs(items, split, data_dir, shard_size, seed, bad_records)
    if not parts:
        raise invalid("split", f"one with pictures in {items}", split or "train")
    settings = {
        "model_sha256": _model_sha256(absolute(saved_model)),
        "format": format,
        "top": top,
        "shard_size": shard_size,
        "seed": seed,
    }
    names = [f"{number:05d}-of-{len(parts):05d}" for number in range(len(parts))]
    predictions = [f"{out}/predictions-{name}.{format}" for name in names]
    unreadable = [f"{out}/unreadable-{name}.json" for name in names]
    tasks = zip(parts, predictions, unreadable, strict=True)
    local = "://" not in out
    with locked(Path(out), "out") if local else contextlib.nullcontext():
        _begin(out, settings, classifier.class_names, files)
        missing = [task for task in tasks if not tf.io.gfile.exists(task[1])]
        if missing:
            pipeline.run(missing, beam.ParDo(predict), beam_options)
        bad = []
        for path in unreadable:
            if tf.io.gfile.exists(path):
                bad += json.loads(read_remote(path))
    count = sum(part.size for part in parts)
    check_number(bad, bad_records.limit)
    if len(bad) == count:
        raise InputError(f"none of {count} pictures can be read")
    found = f"predictions of {count - len(bad)} pictures in {len(parts)} files"
    print(f"{found}; {len(bad)} unreadable", flush=True)
    return Predictions(classifier.class_names, settings, parts, predictions, bad)


def _batches(pictures: Pictures, size: int) -> Iterator[list[tuple[str, bytes]]]:
    while batch := list(itertools.islice(pictures, size)):
        yield batch


def _model_sha256(saved_model: str) -> str:
    """Returns the hash of the files of a SavedModel that its predictions depend on."""
    digest = hashlib.sha256()
    variables = sorted(tf.io.gfile.glob(f"{saved_model}/variables/*"))
    for path in [f"{saved_model}/saved_model.pb", *variables]:
        digest.update(read_remote(path))
    return digest.hexdigest()


def _begin(
    out: str,
    settings: dict[str, Any],
    class_names: list[str],
    files: list[list[str | int]],
) -> None:
    """Writes the manifest; `InputError` where the folder has a run with other settings or pictures."""
    saved = records.read_manifest(out)
    manifest = {"settings": settings, "classes": class_names, "files": files}
    if not saved:
        if tf.io.gfile.glob(f"{out}/predictions-*"):
            raise InputError(
                f"out {out!r} has predictions without a manifest; give another folder"
            )
        write_output(f"{out}/{records.MANIFEST}", json.dumps(manifest, indent=1) + "\n")
        return
    check_settings(out, saved, settings)
    if saved["files"] != files:
        raise InputError(
            f"data has other files than in the run in {out!r}, or some of other sizes; give another folder"
        )


def check_settings(out: str, saved: dict[str, Any], settings: dict[str, Any]) -> None:
    """Raises `InputError` where a folder has the manifest of a run with other settings.

    Args:
      out: the folder.
      saved: its manifest; empty: it has none.
      settings: those of this run.
    """
    if not saved:
        return
    before = saved.get("settings", {})
    if before.keys() != settings.keys():
        raise InputError(
            f"out {out!r} has files of another command or version; give another folder"
        )
    for name, value in settings.items():
        if before[name] != value:
            hint = "continue with the same settings, or give another folder"
            accepted = f"{before[name]!r} as in the run in {out!r}"
            raise invalid(name, accepted, value, hint)


class Classifier:
    """A classifier written by `lambdanet export`; `InputError` where the folder has none."""

    def __init__(self, saved_model: str):
        # Batches are predicted at the same time, so operations need no threads of their own. TensorFlow
        # refuses this after its first computation.
        with contextlib.suppress(RuntimeError):
            tf.config.threading.set_intra_op_parallelism_threads(1)
        exported = load_classifier(saved_model)
        self._serve = exported.signatures["serving_bytes"]
        self.class_names = exported.class_names  # by label
        self.task_outputs = exported.task_outputs

    def classify(self, pictures: Sequence[tuple[str, bytes]]) -> list[Prediction]:
        """Returns the predictions for a batch of pictures, given their names and contents."""
        known = [content for _, content in pictures if content]
        try:
            rows = iter(self._predict(known) if known else ())
        except tf.errors.OpError:  # a damaged picture fails the whole batch
            rows = map(self._classify_one, known)
        return [(name, next(rows) if content else None) for name, content in pictures]

    def _classify_one(self, content: bytes) -> np.ndarray | None:
        try:
            return self._predict([content])[0]
        except tf.errors.InvalidArgumentError:
            return None

    def _predict(self, pictures: list[bytes]) -> np.ndarray:
        found = self._serve(image_bytes=tf.constant(pictures))
        return found[self.task_outputs.output].numpy()


@dataclasses.dataclass(eq=False)
class Predict(beam.DoFn):
    """Predicts the pictures of a part, and writes its file."""

    saved_model: str
    format: str
    top: int
    batch_size: int
    num_workers: int
    max_bad_records: int
    shared: Shared = dataclasses.field(default_factory=Shared)

    def load(self) -> Classifier:
        """Returns the classifier, which each process loads once."""
        return self.shared.acquire(lambda: Classifier(self.saved_model))

    def setup(self) -> None:
        """Loads the classifier, and begins to count."""
        self._classifier = self.load()
        self._bad_records = BadRecords(self.max_bad_records)

    def process(self, task: tuple[Part, str, str]) -> None:
        """Predicts a part, given the paths of its predictions and of the list of unreadable pictures."""
        part, path, unreadable = task
        batches = _batches(part.read(), self.batch_size)
        with ThreadPoolExecutor(self.num_workers) as threads:
            # Reads the next batches while the first ones are predicted.
            results = threads.map(self._classifier.classify, batches)
            predictions = list(itertools.chain.from_iterable(results))
        bad = [name for name, row in predictions if row is None]
        for name in bad:
            self._bad_records.skip(name)
        if bad:
            write_output(unreadable, json.dumps(bad))
        self._write(path, predictions)
        print(f"wrote {path}", flush=True)

    def _write(self, path: str, predictions: Sequence[Prediction]) -> None:
        if self.format == RECORDS:
            records.write_records(path, self._encode(predictions))
            return
        outputs = self._classifier.task_outputs
        results: list[dict[str, Any]] = []
        for name, row in predictions:
            if row is None:
                results.append({"image": name, "error": "it cannot be read"})
            else:
                found = outputs.describe(row, self.top)
                results.append({"image": name, **found})
        text = TABLES[f".{self.format}"](results, outputs)
        write_output(path, text.encode(errors="backslashreplace"))

    def _encode(self, predictions: Sequence[Prediction]) -> Iterator[bytes]:
        for name, row in predictions:
            if row is None:
                continue
            label = int(row.argmax())
            features = records.label_features(label, row.tolist())
            texts = {NAME: name, CLASS: self._classifier.class_names[label]}
            for field, text in texts.items():
                features[field] = records.bytes_feature(os.fsencode(text))
            yield records.serialize(features)

# SPDX-License-Identifier: Apache-2.0
"""`lambdanet predict-many`: predictions for any number of pictures, in files of one format."""

import dataclasses
import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import tensorflow as tf
from apache_beam.pvalue import PCollection

from lambdanet.errors import check_counts, check_known
from lambdanet.files import absolute, write_output
from lambdanet.training.data import records
from lambdanet.training.data.bad_records import BadRecords
from lambdanet.training.inference import pipeline
from lambdanet.training.inference.classifier import (
    Rows,
    SharedClassifier,
    model_sha256,
)
from lambdanet.training.inference.inputs import Part, check_apart, open_inputs
from lambdanet.training.inference.progress import (
    BINS,
    Progress,
    Summary,
    merge_summaries,
)
from lambdanet.training.serving.predict import TABLES, top_classes

RECORDS = "tfrecord"
FORMATS = ("csv", "jsonl", RECORDS)
NAME, CLASS = "image/filename", "image/class/text"


def predict_files(
    saved_model: str | Path,
    data: str | Sequence[str],
    out: str | Path,
    format: str,
    top: int = 5,
    split: str = "train",
    data_dir: str | None = None,
    batch_size: int = 64,
    shard_size: int = 1024,
    max_bad_records: int | None = None,
    num_workers: int | None = None,
    beam_options: Sequence[str] = (),
) -> dict[str, Any]:
    """Writes the predictions for pictures, on Apache Beam, to files such as predictions-00000-of-00008.csv.

    The result does not depend on Beam's runner, the number of workers or that of cores, except that a process
    in which TensorFlow has already computed keeps its threads, which round the last digits. The same call
    again continues an interrupted run: finished files are kept.

    Args:
      saved_model: a folder written by `lambdanet export`.
      data: a folder of pictures or TFRecords, a table with a column `file`, or the name of a TFDS dataset; or
        picture files, folders, and patterns such as "photos/**/*.jpg".
      out: the folder for the files and `manifest.json`, not within `data`.
      format: "csv", a row per picture and class; "jsonl", a line per picture; or "tfrecord", a record per
        picture with `image/filename`, the top class (`image/class/label` and `image/class/text`), and the
        probabilities of all classes (`image/class/probabilities`).
      top: the number of classes per picture in csv and jsonl, at most all of them.
      split: the split of TFRecords, of a dataset, or of a table that has a column `split`.
      data_dir: the folder of TFDS's datasets, or of the files in a table.
      batch_size: the number of pictures per batch of the model.
      shard_size: the number of pictures per file.
      max_bad_records: the largest number of unreadable pictures, and of files that are not pictures, to leave
        out; default: 100 pictures, and a tenth of all files.
      num_workers: the number of batches that a process predicts at the same time, each with one thread;
        default: the number of cores.
      beam_options: flags of Beam, such as "--runner=FlinkRunner"; default: its local runner in this process.

    Returns:
      The manifest: settings, classes, files, unreadable pictures, and the histogram of confidences.

    Raises:
      InputError: an argument is wrong, or too many pictures are damaged.

    Example:
      >>> predict_files("exported/digits", "photos", "predictions", "csv")["shards"]
    """
    batch_size, shard_size, top = check_counts(
        batch_size=batch_size, shard_size=shard_size, top=top
    )
    check_known("format", format, FORMATS)
    bad_records = BadRecords(max_bad_records)
    classifier = SharedClassifier(absolute(saved_model), num_workers)
    # This reference keeps the model loaded for the workers of this process.
    loaded = classifier.get()
    class_names = loaded.class_names
    folder = absolute(out)
    check_apart(data, folder)
    inputs = open_inputs(data, split, data_dir, shard_size, None, bad_records)
    settings = {
        "model_sha256": model_sha256(str(saved_model)),
        "data": inputs.description,
        "data_sha256": inputs.fingerprint,
        "format": format,
        "top": top,
        "shard_size": shard_size,
    }
    progress = Progress(folder, settings)
    shards = Shards(folder, format, top, class_names, len(inputs.parts))
    task = pipeline.Task(
        classifier,
        batch_size,
        bad_records.limit,
        progress,
        write=shards.write,
    )
    job = pipeline.Job(
        inputs.parts, task, functools.partial(_summarize, progress), beam_options
    )

    def make_manifest(result: dict[str, Any]) -> dict[str, Any]:
        return {
            "format": format,
            "classes": class_names,
            "settings": settings,
            "seen": sum(result["histogram"]) + len(result["unreadable"]),
            "unreadable": result["unreadable"],
            "confidences": {"bins": BINS, "counts": result["histogram"]},
            "shards": [
                {"file": shards.name(part), "pictures": part.size}
                for part in inputs.parts
            ],
        }

    return pipeline.run_once(job, make_manifest, _describe)


def _describe(manifest: dict[str, Any]) -> str:
    """Returns a line about a manifest."""
    return (
        f"predictions of {manifest['seen'] - len(manifest['unreadable'])} pictures in "
        f"{len(manifest['shards'])} files; {len(manifest['unreadable'])} unreadable"
    )


def _summarize(progress: Progress, parts: PCollection[Part]) -> None:
    summaries = parts | beam.Map(
        lambda part: progress.summarize(part.number, num_classes=0)
    )
    _ = (
        summaries
        | beam.CombineGlobally(merge_summaries)
        | "Result" >> beam.Map(functools.partial(_save_result, progress))
    )


def _save_result(progress: Progress, summary: Summary) -> None:
    summary.check_readable()
    progress.save_result(summary.as_json())


@dataclasses.dataclass(frozen=True)
class Shards:
    """The files of predictions, one per part."""

    folder: str
    format: str
    top: int
    class_names: list[str]
    count: int

    def name(self, part: Part) -> str:
        """Returns the name of the file of a part."""
        return f"predictions-{part.number:05d}-of-{self.count:05d}.{self.format}"

    def write(self, part: Part, names: Sequence[str], rows: Rows) -> None:
        """Writes the predictions of a part, given the probabilities of each picture."""
        path = f"{self.folder}/{self.name(part)}"
        if self.format == RECORDS:
            records.write_records(path, self._encode(names, rows))
            return
        results = [
            {"image": name, "error": "it cannot be read"}
            if row is None
            else {"image": name, "top": top_classes(row, self.class_names, self.top)}
            for name, row in zip(names, rows, strict=True)
        ]
        write_table, _ = TABLES[f".{self.format}"]
        write_output(path, write_table(results).encode(errors="backslashreplace"))

    def _encode(self, names: Sequence[str], rows: Rows) -> Iterator[bytes]:
        for name, row in zip(names, rows, strict=True):
            if row is not None:
                label = int(row.argmax())
                texts = {NAME: name, CLASS: self.class_names[label]}
                features = {
                    field: tf.train.Feature(
                        bytes_list=tf.train.BytesList(value=[os.fsencode(text)])
                    )
                    for field, text in texts.items()
                } | records.label_features(label, row.tolist())
                yield records.serialize(features)

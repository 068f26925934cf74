# SPDX-License-Identifier: Apache-2.0
"""`lambdanet pseudo-label`: writes TFRecords of the pictures that a teacher labels with confidence."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lambdanet.errors import check_counts, check_known, check_natural, invalid
from lambdanet.files import absolute, write_output
from lambdanet.training.data import records
from lambdanet.training.data.bad_records import BadRecords
from lambdanet.training.inference import pipeline
from lambdanet.training.inference.classifier import SharedClassifier, model_sha256
from lambdanet.training.inference.inputs import open_inputs
from lambdanet.training.inference.progress import BINS, Progress
from lambdanet.training.pseudo_labels import selection
from lambdanet.training.pseudo_labels.steps import SelectLabels, WriteLabels

LABEL_MODES = ("hard", "soft")
PLOT = "pseudo_labels.png"
MAX_PARTS = 99_999  # in five digits, as in the names of the files


def pseudo_label(
    saved_model: str | Path,
    data: str,
    out: str | Path,
    split: str = "train",
    data_dir: str | None = None,
    min_confidence: float = 0.3,
    per_class: int | None = None,
    label_mode: str = "soft",
    batch_size: int = 64,
    shard_size: int = 1024,
    seed: int = 0,
    max_bad_records: int | None = None,
    num_workers: int | None = None,
    beam_options: Sequence[str] = (),
) -> dict[str, Any]:
    """Labels pictures with a trained model, and writes the same number of confident ones per class.

    Works in parts of `shard_size` pictures, on Apache Beam: the result does not depend on its runner, the
    number of workers or that of cores, except that a process in which TensorFlow has already computed keeps
    its threads, which round the last digits. The same call again continues an interrupted run: finished parts
    and files are kept.

    Args:
      saved_model: the teacher, a folder written by `lambdanet export`.
      data: a folder of pictures or TFRecords, a pattern of either, a table, or the name of a TFDS dataset;
        labels in it are ignored.
      out: the folder for the TFRecords, `manifest.json` and `pseudo_labels.png`, not within `data`.
      split: the split of the TFRecords, dataset or table.
      data_dir: the folder of TFDS's datasets, or of the files in a table.
      min_confidence: the smallest accepted probability of the top class; 0.3 in Xie et al. (2020).
      per_class: the number of records per class: the most confident pictures (the first by name where
        confidences are equal), with copies if there are fewer; default: the mean, which keeps the total;
        130,000 in Xie et al.
      label_mode: "soft", the probabilities of all classes, as in Xie et al., or "hard", the top class.
      batch_size: the number of pictures per batch of the teacher.
      shard_size: the number of pictures per part.
      seed: the random seed of the order within a file, and of the copies.
      max_bad_records: the largest number of unreadable pictures, and of files that are not pictures, to leave
        out; default: 100 pictures, and a tenth of all files.
      num_workers: the number of batches that a process predicts at the same time, each with one thread;
        default: the number of cores.
      beam_options: flags of Beam, such as "--runner=FlinkRunner"; default: its local runner in this process.

    Returns:
      The manifest: settings, counts per class, files, and the histogram of confidences.

    Raises:
      InputError: an argument is wrong, too many pictures are damaged, or no prediction is confident.

    Example:
      >>> pseudo_label("exported/teacher", "pictures", "pseudo", per_class=1000)["shards"]
    """
    check_counts(batch_size=batch_size, shard_size=shard_size)
    if per_class is not None:
        check_counts(per_class=per_class)
    check_natural("seed", seed)
    check_known("label_mode", label_mode, LABEL_MODES)
    if not 0 <= min_confidence <= 1:
        raise invalid("min_confidence", "from 0 to 1", min_confidence)
    bad_records = BadRecords(max_bad_records)
    root = Path(data).expanduser()
    paths = {Path(path).expanduser().resolve() for path in (data, out)}
    if root.is_dir() and Path(os.path.commonpath(paths)) in paths:
        raise invalid("out", f"a folder apart from the data in {data!r}", str(out))
    classifier = SharedClassifier(absolute(saved_model), num_workers)
    # This reference keeps the model loaded for the workers of this process.
    loaded = classifier.get()
    class_names = loaded.class_names
    inputs = open_inputs(data, split, data_dir, shard_size, seed, bad_records)
    if len(inputs.parts) > MAX_PARTS:
        least = -(-sum(part.size for part in inputs.parts) // MAX_PARTS)
        raise invalid(
            "shard_size", f"{least} or more for this number of pictures", shard_size
        )
    folder = absolute(out)
    settings = {
        "teacher_sha256": model_sha256(str(saved_model)),
        "data": inputs.description,
        "data_sha256": inputs.fingerprint,
        "min_confidence": min_confidence,
        "per_class": per_class,
        "label_mode": label_mode,
        "shard_size": shard_size,
        "seed": seed,
    }
    progress = Progress(folder, settings)
    task = pipeline.Task(
        classifier,
        batch_size,
        bad_records.limit,
        progress,
        min_confidence,
        label_mode == "soft",
    )
    select = SelectLabels(progress, len(class_names), min_confidence, per_class, seed)
    job = pipeline.Job(inputs.parts, task, WriteLabels(folder, select), beam_options)

    def make_manifest(result: dict[str, Any]) -> dict[str, Any]:
        manifest = _manifest(class_names, settings, result)
        write_output(f"{folder}/{PLOT}", selection.draw_selection(manifest))
        return manifest

    return pipeline.run_once(job, make_manifest, summarize)


def summarize(manifest: dict[str, Any]) -> str:
    """Returns a line about a manifest."""
    counts = manifest["per_class"].values()
    total = sum(count["records"] for count in counts)
    taken = sum(count["taken"] for count in counts)
    return (
        f"{total} records of {taken} pictures in {len(manifest['shards'])} files; {manifest['seen']} "
        f"pictures seen, {manifest['below']} below confidence {manifest['settings']['min_confidence']:g}, "
        f"{len(manifest['unreadable'])} unreadable"
    )


def _manifest(
    class_names: list[str], settings: dict[str, Any], result: dict[str, Any]
) -> dict[str, Any]:
    num_readable = sum(result["histogram"])
    return {
        "split": records.PSEUDO,
        "labels": settings["label_mode"],
        "classes": class_names,
        "settings": settings,
        "seen": num_readable + len(result["unreadable"]),
        "unreadable": result["unreadable"],
        "below": num_readable - sum(row["candidates"] for row in result["per_class"]),
        "records_of_each_class": result["records_of_each_class"],
        "per_class": dict(zip(class_names, result["per_class"], strict=True)),
        "confidences": {"bins": BINS, "counts": result["histogram"]},
        "shards": result["shards"],
    }

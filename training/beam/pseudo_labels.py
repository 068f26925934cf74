# SPDX-License-Identifier: Apache-2.0
"""`lambdanet pseudo-label`: records of pictures that a teacher labels with confidence (Xie et al. 2020)."""

import functools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import tensorflow as tf

from lambdanet.core.errors import (
    InputError,
    check_counts,
    check_known,
    check_natural,
    invalid,
)
from lambdanet.core.files import absolute, write_output
from lambdanet.training.beam import pipeline, predict
from lambdanet.training.beam.inputs import Part
from lambdanet.training.data import records

LABEL_MODES = ("hard", "soft")
BATCH = 1024  # predictions to read at once
PREDICTIONS = "predictions"  # the folder of the predictions in that of the labels


def pseudo_label(
    saved_model: str | Path,
    data: str,
    out: str | Path,
    split: str | None = None,
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

    First predicts all pictures, as `predict_files`, into the folder `predictions` of `out`; then selects, and
    writes the records of each part. The same call again continues an interrupted run.

    Args:
      saved_model: the teacher, a folder written by `lambdanet export`.
      data: a folder of pictures or TFRecords, a pattern of either, a table, or the name of a TFDS dataset;
        labels in it are ignored.
      out: the folder for the TFRecords and `manifest.json`, not within `data`.
      split: the split of the TFRecords, dataset or table; default: "train".
      data_dir: the folder of TFDS's datasets, or of the files in a table.
      min_confidence: the smallest accepted probability of the top class; 0.3 in Xie et al. (2020).
      per_class: the number of records per class: the most confident pictures (the first ones in the files of
        predictions where confidences are equal), with copies if there are fewer; default: the mean, which
        keeps the total; 130,000 in Xie et al.
      label_mode: "soft", the probabilities of all classes, as in Xie et al., or "hard", the top class.
      batch_size: the number of pictures per batch of the teacher.
      shard_size: the number of pictures per part; a worker holds the files of one part in memory.
      seed: the random seed of the order of pictures and records, and of the copies.
      max_bad_records: the largest number of unreadable pictures, and of files that are not pictures, to leave
        out; default: 100 pictures, and a tenth of all files.
      num_workers: the number of batches that a process predicts at the same time; default: the number of
        cores.
      beam_options: flags of Beam, such as "--runner=FlinkRunner"; default: its local runner in this process.

    Returns:
      The manifest: settings, counts per class, unreadable pictures, and files.

    Raises:
      InputError: an argument is wrong, the folder has a run with other settings, too many pictures are
        damaged, or no prediction is confident.

    Example:
      >>> pseudo_label("exported/teacher", "pictures", "pseudo", per_class=1000)["shards"]
    """
    if per_class is not None:
        check_counts(per_class=per_class)
    check_natural("seed", seed)
    check_known("label_mode", label_mode, LABEL_MODES)
    if not 0 <= min_confidence <= 1:
        raise invalid("min_confidence", "from 0 to 1", min_confidence)
    out = absolute(out)
    predictions = predict.predict_files(
        saved_model,
        data,
        f"{out}/{PREDICTIONS}",
        predict.RECORDS,
        split=split,
        data_dir=data_dir,
        batch_size=batch_size,
        shard_size=shard_size,
        max_bad_records=max_bad_records,
        num_workers=num_workers,
        beam_options=beam_options,
        seed=seed,
    )
    settings = {
        "min_confidence": min_confidence,
        "per_class": per_class,
        "label_mode": label_mode,
        **predictions.settings,
    }
    manifest = records.read_manifest(out)
    predict.check_settings(out, manifest, settings)
    if not manifest:
        manifest = _write(out, predictions, settings, beam_options)
        write_output(f"{out}/{records.MANIFEST}", json.dumps(manifest, indent=1) + "\n")
    counts = manifest["per_class"].values()
    print(
        f"{sum(count['records'] for count in counts)} records of "
        f"{sum(count['taken'] for count in counts)} pictures in {len(manifest['shards'])} files; "
        f"{manifest['seen']} pictures seen, {manifest['below']} below confidence {min_confidence:g}, "
        f"{len(manifest['unreadable'])} unreadable",
        flush=True,
    )
    return manifest


def select(
    labels: np.ndarray, confidences: np.ndarray, per_class: int, seed: int
) -> np.ndarray:
    """Selects the most confident pictures of each class, the first ones where confidences are equal.

    Args:
      labels: the class of each picture, int64 [n]; negative: none.
      confidences: the probability of that class, float32 [n].
      per_class: the number of records of each class that has pictures.
      seed: the random seed of the copies; the numbers of copies of a class differ by one at most.

    Returns:
      The number of records of each picture, int64 [n].

    Example:
      >>> select(np.array([0, 0, 1]), np.array([0.5, 0.9, 0.7]), per_class=1, seed=0).tolist()
      [0, 1, 1]
    """
    copies = np.zeros(len(labels), np.int64)
    random = np.random.default_rng(seed)
    for label in np.unique(labels[labels >= 0]):
        members = np.flatnonzero(labels == label)
        order = np.argsort(-confidences[members], kind="stable")
        selected = members[order[:per_class]]
        copies[selected] = per_class // len(selected)
        more = random.permutation(selected)[: per_class % len(selected)]
        copies[more] += 1
    return copies


def _write(
    out: str,
    predictions: predict.Predictions,
    settings: dict[str, Any],
    beam_options: Sequence[str],
) -> dict[str, Any]:
    """Writes the records of all parts, and returns the manifest."""
    class_names = predictions.class_names
    tops = []
    for file in predictions.files:
        _, probabilities = _read_predictions(file, len(class_names))
        tops.append((probabilities.argmax(axis=1), probabilities.max(axis=1)))
    labels, confidences = map(np.concatenate, zip(*tops, strict=True))
    # In float64, as the limit is.
    below = confidences.astype(np.float64) < settings["min_confidence"]
    labels[below] = -1
    candidates = np.bincount(labels[~below], minlength=len(class_names))
    if not candidates.any():
        raise InputError(
            f"no confidence reaches {settings['min_confidence']:g}; give a lower --min_confidence, or other "
            "pictures"
        )
    mean = round(candidates.sum() / np.count_nonzero(candidates))
    per_class = settings["per_class"] or max(1, mean)
    copies = select(labels, confidences, per_class, settings["seed"])
    ends = np.cumsum([len(top) for top, _ in tops])
    tasks = []
    shards = []
    for number, own in enumerate(np.split(copies, ends[:-1])):
        file = records.shard_name(records.PSEUDO, number, len(tops))
        part = predictions.parts[number]
        tasks.append((part, predictions.files[number], own, f"{out}/{file}"))
        shards.append({"file": file, "records": int(own.sum())})
    write = functools.partial(
        write_labels,
        num_classes=len(class_names),
        soft=settings["label_mode"] == "soft",
        seed=settings["seed"],
    )
    pipeline.run(tasks, beam.Map(write), beam_options)
    taken = np.bincount(labels[copies > 0], minlength=len(class_names))
    counts = {}
    for label, name in enumerate(class_names):
        counts[name] = {
            "candidates": int(candidates[label]),
            "taken": int(taken[label]),
            "records": per_class if candidates[label] else 0,
        }
    return {
        "split": records.PSEUDO,
        "labels": settings["label_mode"],
        "classes": class_names,
        "settings": settings,
        "seen": len(labels) + len(predictions.unreadable),
        "unreadable": predictions.unreadable,
        "below": int(below.sum()),
        "records_of_each_class": per_class,
        "per_class": counts,
        "shards": shards,
    }


def write_labels(
    task: tuple[Part, str, np.ndarray, str], num_classes: int, soft: bool, seed: int
) -> None:
    """Writes the records of a part in a random order.

    Args:
      task: the pictures, the path of their predictions, the number of records of each prediction, and the
        path of the records.
      num_classes: the number of classes.
      soft: whether the records have the probabilities of all classes.
      seed: the random seed of the order.
    """
    part, file, copies, path = task
    names, probabilities = _read_predictions(file, num_classes)
    wanted = set(names[copies > 0].tolist())
    contents = {}
    for name, content in part.read() if wanted else ():
        if os.fsencode(name) in wanted:
            contents[os.fsencode(name)] = content
    rows = np.repeat(np.arange(len(copies)), copies)
    encoded = []
    for row in np.random.default_rng(seed).permutation(rows):
        label = int(probabilities[row].argmax())
        soft_label = probabilities[row] if soft else ()
        encoded.append(records.encode_record(contents[names[row]], label, soft_label))
    records.write_records(path, encoded)


def _read_predictions(file: str, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the names of the pictures of a part, bytes [n], and the probabilities, float32 [n, classes]."""
    batches = tf.data.TFRecordDataset(file).batch(BATCH).as_numpy_iterator()
    texts = np.concatenate([np.array([], object), *batches])  # also of no records
    features = {
        predict.NAME: tf.io.FixedLenFeature([], tf.string),
        records.PROBABILITIES: tf.io.FixedLenFeature([num_classes], tf.float32),
    }
    parsed = tf.io.parse_example(tf.constant(texts, tf.string), features)
    return parsed[predict.NAME].numpy(), parsed[records.PROBABILITIES].numpy()

# SPDX-License-Identifier: Apache-2.0
"""`lambdanet pseudo-label`: writes TFRecords of the pictures that a teacher labels with confidence."""

import hashlib
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tqdm

from lambdanet.errors import InputError, check_counts, check_known, invalid
from lambdanet.files import atomic_file, write_atomic
from lambdanet.training.data import records
from lambdanet.training.data.bad_records import BadRecords
from lambdanet.training.data.image_files import as_decodable
from lambdanet.training.pseudo_labels import selection
from lambdanet.training.pseudo_labels.inputs import Inputs, Teacher, open_inputs
from lambdanet.training.pseudo_labels.progress import BINS, Predictions, Progress, check_settings

LABEL_MODES = ("hard", "soft")
PLOT = "pseudo_labels.png"


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
) -> dict[str, Any]:
    """Labels pictures with a trained model, and writes the same number of confident ones per class.

    Works in parts of `shard_size` pictures. The same call again resumes an interrupted run: finished parts
    and files are kept.

    Args:
      saved_model: the teacher, a folder written by `lambdanet export`.
      data: a folder of pictures or TFRecords, or the name of a TFDS dataset; labels in it are ignored.
      out: the folder for the TFRecords, `manifest.json` and `pseudo_labels.png`, not within `data`.
      split: the split of the TFRecords or dataset.
      data_dir: the folder of TFDS's datasets.
      min_confidence: the smallest accepted probability of the top class; 0.3 in Xie et al. (2020).
      per_class: the number of records per class: the most confident pictures, with copies if there are fewer;
        default: the mean, which keeps the total; 130,000 in Xie et al.
      label_mode: "soft", the probabilities of all classes, as in Xie et al., or "hard", the top class.
      batch_size: the number of pictures per batch of the teacher.
      shard_size: the number of pictures per part.
      seed: the random seed of the order within a file, and of the copies.
      max_bad_records: the largest number of unreadable pictures, and of files that are not pictures, to leave
        out; default: 100 pictures, and a tenth of all files.

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
    check_known("label_mode", label_mode, LABEL_MODES)
    if not 0 <= min_confidence <= 1:
        raise invalid("min_confidence", "from 0 to 1", min_confidence)
    bad_records = BadRecords(max_bad_records)
    folder = Path(out).expanduser()
    root, paths = Path(data).expanduser(), {Path(path).expanduser().resolve() for path in (data, out)}
    if root.is_dir() and Path(os.path.commonpath(paths)) in paths:
        raise invalid("out", f"a folder apart from the data in {data!r}", str(out))
    model = Teacher(saved_model)
    inputs = open_inputs(data, split, data_dir, shard_size, seed, bad_records)
    settings = {
        "teacher_sha256": model.sha256,
        "data": inputs.description,
        "data_sha256": inputs.fingerprint,
        "min_confidence": min_confidence,
        "per_class": per_class,
        "label_mode": label_mode,
        "shard_size": shard_size,
        "seed": seed,
    }
    if (folder / records.MANIFEST).exists():
        manifest = records.read_manifest(folder)
        check_settings(folder, manifest.get("settings", {}), settings)
        print(f"already finished: {summarize(manifest)}")
        return manifest
    progress = Progress(folder, settings)
    predictions = _predict_parts(model, inputs, progress, settings, batch_size, bad_records)
    manifest = _write(folder, model, inputs, predictions, settings)
    progress.remove()
    print(summarize(manifest))
    return manifest


def summarize(manifest: dict[str, Any]) -> str:
    """Returns a line about a manifest."""
    counts = manifest["per_class"].values()
    total, taken = (sum(count[name] for count in counts) for name in ("records", "taken"))
    return (
        f"{total} records of {taken} pictures in {len(manifest['shards'])} files; {manifest['seen']} "
        f"pictures seen, {manifest['below']} below confidence {manifest['settings']['min_confidence']:g}, "
        f"{len(manifest['unreadable'])} unreadable"
    )


def _predict_parts(
    model: Teacher,
    inputs: Inputs,
    progress: Progress,
    settings: dict[str, Any],
    batch_size: int,
    bad_records: BadRecords,
) -> list[Predictions]:
    """Returns the predictions of all parts, from `progress` if it has them."""
    parts = []
    for part in tqdm.tqdm(range(inputs.num_parts), unit="part", disable=None, leave=False):
        if progress.has(part):
            parts.append(progress.load(part))
            for name in parts[-1].unreadable.tolist():
                bad_records.skip(name)
            continue
        parts.append(_predict(model, _pictures(inputs, part), batch_size, settings, bad_records))
        progress.save(part, parts[-1])
        tqdm.tqdm.write(f"part {part + 1} of {inputs.num_parts}: kept {len(parts[-1].labels)} pictures")
    return parts


def _pictures(inputs: Inputs, part: int) -> Iterator[tuple[str, bytes]]:
    """Yields the names and contents of the pictures of a part, in formats that models decode."""
    for name, content in inputs.read(part):
        try:
            yield name, as_decodable(content)
        except InputError:
            yield name, b""  # counted as unreadable


def _predict(
    model: Teacher,
    pictures: Iterator[tuple[str, bytes]],
    batch_size: int,
    settings: dict[str, Any],
    bad_records: BadRecords,
) -> Predictions:
    """Returns the predictions for the pictures of a part."""
    positions: list[int] = []
    rows: list[np.ndarray] = []
    unreadable: list[str] = []
    histogram = np.zeros(BINS, np.int64)
    numbered = enumerate(pictures)
    while batch := list(itertools.islice(numbered, batch_size)):
        classified = model.classify([content for _, (_, content) in batch])
        for (position, (name, _)), probabilities in zip(batch, classified, strict=True):
            if probabilities is None:
                bad_records.skip(name)
                unreadable.append(name)
                continue
            confidence = float(probabilities.max())
            histogram[min(int(confidence * BINS), BINS - 1)] += 1
            if confidence >= settings["min_confidence"]:
                positions.append(position)
                rows.append(probabilities)
    table = np.asarray(rows, np.float32).reshape(len(rows), len(model.class_names))
    return Predictions(
        np.asarray(positions, np.int64),
        table.argmax(axis=1).astype(np.int64),
        table.max(axis=1, initial=0),
        table if settings["label_mode"] == "soft" else table[:, :0],
        histogram,
        np.asarray(unreadable, np.str_),
    )


def _write(
    folder: Path, model: Teacher, inputs: Inputs, predictions: list[Predictions], settings: dict[str, Any]
) -> dict[str, Any]:
    """Selects the pictures, and writes the missing files, the plot and the manifest."""
    selected = selection.balance(
        np.concatenate([part.labels for part in predictions]),
        np.concatenate([part.confidences for part in predictions]),
        len(model.class_names),
        settings["per_class"],
        settings["seed"],
    )
    copies = np.split(selected.copies, np.cumsum([len(part.labels) for part in predictions])[:-1])
    used = [part for part in range(inputs.num_parts) if copies[part].any()]
    if not used:
        raise InputError(
            f"no confidence reaches {settings['min_confidence']:g}; give a lower --min_confidence, or other "
            "pictures"
        )
    shards = []
    for index, part in enumerate(used):
        path = folder / records.shard_name(records.PSEUDO, index, len(used))
        if not path.exists():
            seed = [settings["seed"], part]
            write_shard(path, _pictures(inputs, part), predictions[part], copies[part], seed)
        shards.append({"file": path.name, "records": int(copies[part].sum()), "sha256": _sha256(path)})
    manifest = _manifest(model, settings, predictions, selected, shards)
    write_atomic(folder / PLOT, selection.draw_selection(manifest))
    write_atomic(folder / records.MANIFEST, json.dumps(manifest, indent=1) + "\n")
    return manifest


def write_shard(
    path: Path,
    pictures: Iterator[tuple[str, bytes]],
    predictions: Predictions,
    copies: np.ndarray,
    seed: list[int],
) -> None:
    """Writes the records of a part in a random order, each candidate with its number of copies, int64 [n]."""
    contents = [content for _, content in pictures]
    order = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(copies)), copies))
    with atomic_file(path) as temporary, tf.io.TFRecordWriter(str(temporary)) as writer:
        for index in order:
            image, label = contents[predictions.places[index]], int(predictions.labels[index])
            writer.write(records.encode_record(image, label, predictions.probabilities[index]))


def _manifest(
    model: Teacher,
    settings: dict[str, Any],
    predictions: list[Predictions],
    selected: selection.Selection,
    shards: list[dict[str, Any]],
) -> dict[str, Any]:
    histogram = sum(part.histogram for part in predictions)
    labels = np.concatenate([part.labels for part in predictions])
    counts = np.bincount(labels, weights=selected.copies, minlength=len(model.class_names)).astype(int)
    unreadable = [name for part in predictions for name in part.unreadable.tolist()]
    return {
        "split": records.PSEUDO,
        "labels": settings["label_mode"],
        "classes": model.class_names,
        "settings": settings,
        "seen": int(np.sum(histogram)) + len(unreadable),
        "unreadable": unreadable,
        "below": int(np.sum(histogram)) - len(labels),
        "records_of_each_class": selected.per_class,
        "per_class": {
            name: {
                "candidates": int(selected.candidates[label]),
                "taken": int(selected.taken[label]),
                "records": int(counts[label]),
            }
            for label, name in enumerate(model.class_names)
        },
        "confidences": {"bins": BINS, "counts": np.asarray(histogram).tolist()},
        "shards": shards,
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

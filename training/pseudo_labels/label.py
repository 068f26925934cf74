# SPDX-License-Identifier: Apache-2.0
"""`lambdanet pseudo-label`: a teacher labels pictures, the surest ones of each class become TFRecords."""

import hashlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tqdm

from lambdanet.errors import InputError, check_counts, unknown
from lambdanet.training.data import records
from lambdanet.training.data.bad_records import BadRecords
from lambdanet.training.data.image_files import as_decodable
from lambdanet.training.pseudo_labels import plot, selection
from lambdanet.training.pseudo_labels.inputs import Inputs, open_inputs
from lambdanet.training.pseudo_labels.progress import BINS, Answers, Progress, refuse_other, write_bytes
from lambdanet.training.pseudo_labels.teacher import Teacher
from lambdanet.training.run.model_dir import write_text

KINDS = ("hard", "soft")
PICTURE = "pseudo_labels.png"


def pseudo_label(
    teacher: str | Path,
    data: str,
    out: str | Path,
    split: str = "train",
    data_dir: str | None = None,
    min_confidence: float = 0.3,
    per_class: int | None = None,
    labels: str = "soft",
    batch_size: int = 64,
    shard_size: int = 1024,
    seed: int = 0,
    max_bad_records: int | None = None,
) -> dict[str, Any]:
    """Labels pictures with a trained model, and writes those that it is sure of, as many of each class.

    The pictures pass in parts of `shard_size`. A part that is done, and later a file that is written, is not
    done again when the same call comes a second time, after whatever ended the first.

    Args:
      teacher: a folder that `lambdanet export` has written.
      data: a folder of pictures or of TFRecords, or the name of a dataset of TFDS; labels in it are not read.
      out: folder for the TFRecords, `manifest.json` and `pseudo_labels.png`.
      split: of TFRecords or a dataset.
      data_dir: where TFDS keeps its datasets.
      min_confidence: the least probability of the likeliest class; Xie et al. (2020) have 0.3.
      per_class: pictures of each class, the surest ones, and where there are fewer, copies of them; None: the
        mean, which keeps the total; Xie et al. have 130,000.
      labels: "soft", the probabilities of all classes, as Xie et al. have them, or "hard", the likeliest one.
      batch_size: pictures that the teacher sees at a time.
      shard_size: pictures that make a part.
      seed: of the order within a file, and of the copies.
      max_bad_records: the largest number of unreadable pictures, and of files that are no pictures, to name
        and leave out; None: 100 pictures, and a tenth of all files.

    Returns:
      The manifest: settings, counts of each class, the files, and the histogram of the confidences.

    Raises:
      InputError: arguments that cannot be used, too many damaged pictures, or nothing to be sure of.

    Example:
      >>> pseudo_label("exported/teacher", "pictures", "pseudo", per_class=1000)["shards"]
    """
    check_counts(
        batch_size=batch_size,
        shard_size=shard_size,
        **({} if per_class is None else {"per_class": per_class}),
    )
    if labels not in KINDS:
        raise unknown("labels", labels, KINDS)
    if not 0 <= min_confidence <= 1:
        raise InputError(f"min_confidence is {min_confidence}; accepted: a number from 0 to 1")
    bad_records = BadRecords(max_bad_records)
    path = Path(out).expanduser()
    model = Teacher(teacher)
    inputs = open_inputs(data, split, data_dir, shard_size, seed, bad_records)
    settings = {
        "teacher_sha256": model.sha256,
        "data": inputs.description,
        "data_sha256": inputs.fingerprint,
        "min_confidence": min_confidence,
        "per_class": per_class,
        "labels": labels,
        "shard_size": shard_size,
        "seed": seed,
    }
    if (path / records.MANIFEST).exists():
        manifest = records.read_manifest(path)
        refuse_other(path, manifest.get("settings", {}), settings)
        print(f"finished already: {summary(manifest)}")
        return manifest
    progress = Progress(path, settings)
    _ask(model, inputs, progress, min_confidence, labels == "soft", batch_size, bad_records)
    manifest = _write(path, model, inputs, progress, settings)
    print(summary(manifest))
    return manifest


def summary(manifest: dict[str, Any]) -> str:
    """Says in a line what a manifest holds."""
    counts = manifest["per_class"].values()
    total, taken = (sum(count[name] for count in counts) for name in ("records", "taken"))
    return (
        f"{total} records of {taken} pictures in {len(manifest['shards'])} files; {manifest['seen']} were "
        f"seen, "
        f"{manifest['below']} below {manifest['settings']['min_confidence']:g}, "
        f"{len(manifest['unreadable'])} cannot be read"
    )


def _ask(
    model: Teacher,
    inputs: Inputs,
    progress: Progress,
    min_confidence: float,
    soft: bool,
    batch_size: int,
    bad_records: BadRecords,
) -> None:
    """Lets the teacher see every part that it has not seen."""
    for part in tqdm.tqdm(range(inputs.num_parts), unit="part", disable=None, leave=False):
        if progress.has(part):
            for name in progress.load(part).unreadable.tolist():
                bad_records.skip(name)
            continue
        answers = _answers(model, _pictures(inputs, part), min_confidence, soft, batch_size, bad_records)
        progress.save(part, answers)
        tqdm.tqdm.write(f"part {part + 1} of {inputs.num_parts}: {len(answers.labels)} pictures kept")


def _pictures(inputs: Inputs, part: int) -> Iterator[tuple[str, bytes]]:
    """Yields the name and the file of each picture of a part, in a format that models decode."""
    for name, contents in inputs.read(part):
        try:
            yield name, as_decodable(contents)
        except InputError:
            yield name, b""  # counted as one that cannot be read


def _answers(
    model: Teacher,
    pictures: Iterator[tuple[str, bytes]],
    min_confidence: float,
    soft: bool,
    batch_size: int,
    bad_records: BadRecords,
) -> Answers:
    places: list[int] = []
    rows: list[np.ndarray] = []
    unreadable: list[str] = []
    histogram = np.zeros(BINS, np.int64)
    for batch in _batches(enumerate(pictures), batch_size):
        answers = model.classify([contents for _, (_, contents) in batch])
        for (place, (name, _)), probabilities in zip(batch, answers, strict=True):
            if probabilities is None:
                bad_records.skip(name)
                unreadable.append(name)
                continue
            confidence = float(probabilities.max())
            histogram[min(int(confidence * BINS), BINS - 1)] += 1
            if confidence >= min_confidence:
                places.append(place)
                rows.append(probabilities)
    table = np.asarray(rows, np.float32).reshape(len(rows), len(model.class_names))
    return Answers(
        np.asarray(places, np.int64),
        table.argmax(axis=1).astype(np.int64),
        table.max(axis=1, initial=0),
        table if soft else table[:, :0],
        histogram,
        np.asarray(unreadable, np.str_),
    )


def _batches(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while batch := list(itertools.islice(items, size)):
        yield batch


def _write(
    path: Path, model: Teacher, inputs: Inputs, progress: Progress, settings: dict[str, Any]
) -> dict[str, Any]:
    """Chooses, writes the files that are not there yet, and the manifest last."""
    found = list(progress.all(inputs.num_parts))
    chosen = selection.balance(
        np.concatenate([answers.labels for answers in found]),
        np.concatenate([answers.confidences for answers in found]),
        len(model.class_names),
        settings["per_class"],
        settings["seed"],
    )
    copies = np.split(chosen.copies, np.cumsum([len(answers.labels) for answers in found])[:-1])
    used = [part for part in range(inputs.num_parts) if copies[part].any()]
    if not used:
        raise InputError(
            f"the teacher is sure of no picture: no confidence reaches {settings['min_confidence']:g}; "
            f"accepted: a "
            "lower --min_confidence, or other pictures"
        )
    shards = []
    for index, part in enumerate(used):
        name = records.shard_name(records.PSEUDO, index, len(used))
        if not (path / name).exists():
            _write_file(
                path / name, _pictures(inputs, part), found[part], copies[part], [settings["seed"], part]
            )
        shards.append({"file": name, "records": int(copies[part].sum()), "sha256": _sha256(path / name)})
    manifest = _manifest(model, settings, found, chosen, shards)
    write_bytes(path / PICTURE, plot.picture(manifest))
    write_text(path / records.MANIFEST, json.dumps(manifest, indent=1) + "\n")
    progress.remove()
    return manifest


def _write_file(
    path: Path, pictures: Iterator[tuple[str, bytes]], answers: Answers, copies: np.ndarray, seed: list[int]
) -> None:
    """Writes the records of a part, in a random order, whole or not at all."""
    contents = {place: content for place, (_, content) in enumerate(pictures)}
    order = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(copies)), copies))
    partial = path.with_name(f".{path.name}.partial")
    with tf.io.TFRecordWriter(str(partial)) as writer:
        for index in order:
            image, label = contents[answers.places[index]], int(answers.labels[index])
            writer.write(records.record(image, label, answers.probabilities[index]))
    partial.rename(path)


def _manifest(
    model: Teacher,
    settings: dict[str, Any],
    found: list[Answers],
    chosen: selection.Choice,
    shards: list[dict[str, Any]],
) -> dict[str, Any]:
    histogram = sum(answers.histogram for answers in found)
    labels = np.concatenate([answers.labels for answers in found])
    come = np.bincount(labels, weights=chosen.copies, minlength=len(model.class_names)).astype(int)
    unreadable = [name for answers in found for name in answers.unreadable.tolist()]
    return {
        "split": records.PSEUDO,
        "labels": settings["labels"],
        "classes": model.class_names,
        "settings": settings,
        "seen": int(np.sum(histogram)) + len(unreadable),
        "unreadable": unreadable,
        "below": int(np.sum(histogram)) - len(labels),
        "records_of_each_class": chosen.per_class,
        "per_class": {
            name: {
                "candidates": int(chosen.candidates[label]),
                "taken": int(chosen.taken[label]),
                "records": int(come[label]),
            }
            for label, name in enumerate(model.class_names)
        },
        "confidences": {"bins": BINS, "counts": np.asarray(histogram).tolist()},
        "shards": shards,
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

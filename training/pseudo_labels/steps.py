# SPDX-License-Identifier: Apache-2.0
"""The steps of the Beam pipeline after the predictions: the selection of pictures, and their records."""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import tensorflow as tf
from apache_beam.pvalue import AsDict, AsSingleton, PCollection
from apache_beam.transforms.combiners import ToList
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from lambdanet.errors import InputError
from lambdanet.files import read_remote
from lambdanet.training.data import records
from lambdanet.training.inference.inputs import Part
from lambdanet.training.inference.progress import (
    Progress,
    Summary,
    checksum,
    merge_summaries,
    part_file,
)
from lambdanet.training.pseudo_labels.selection import (
    Selection,
    candidate_keys,
    count_copies,
    keep_first,
    select,
)

# Candidates of a bundle before those that cannot be selected are dropped.
BUFFER = 1 << 18
Selections = dict[int, Selection]


class Selected(NamedTuple):
    """Side inputs of the steps after the selection."""

    summary: AsSingleton
    per_class: AsSingleton
    selections: AsDict


@dataclasses.dataclass(frozen=True)
class SelectLabels:
    """Selects the same number of candidates of each class from the predictions of all parts."""

    progress: Progress
    num_classes: int
    min_confidence: float
    per_class: int | None
    seed: int

    def __call__(self, parts: PCollection[Part]) -> Selected:
        """Adds the steps."""
        summary = AsSingleton(
            parts | beam.Map(self._summarize) | beam.CombineGlobally(merge_summaries)
        )
        once = parts.pipeline | "Once" >> beam.Create([None])
        per_class = AsSingleton(once | beam.Map(self._records_per_class, summary))
        selections = (
            parts
            | beam.ParDo(FirstCandidates(self.progress), per_class)
            | beam.GroupByKey()
            | beam.Map(self._select, per_class)
        )
        return Selected(summary, per_class, AsDict(selections))

    def _summarize(self, part: Part) -> Summary:
        return self.progress.summarize(part.number, self.num_classes)

    def _records_per_class(self, _: None, summary: Summary) -> int:
        """Returns the number of records per class; `InputError` where no class has a candidate."""
        summary.check_readable()
        total, classes = (
            int(np.sum(summary.candidates)),
            int(np.count_nonzero(summary.candidates)),
        )
        if not total:
            raise InputError(
                f"no confidence reaches {self.min_confidence:g}; give a lower --min_confidence, or other "
                "pictures"
            )
        return self.per_class or max(1, round(total / classes))

    def _select(
        self, candidates: tuple[int, Iterable[np.ndarray]], per_class: int
    ) -> tuple[int, Selection]:
        label, arrays = candidates
        first = np.zeros(0, np.uint64)
        for keys in arrays:
            first = np.sort(np.concatenate([first, keys]))[:per_class]
        return label, select(first, label, per_class, self.seed)


@dataclasses.dataclass(frozen=True)
class WriteLabels:
    """Writes the records of the selected pictures of all parts, and saves the counts."""

    folder: str
    select: SelectLabels

    def __call__(self, parts: PCollection[Part]) -> None:
        """Adds the steps."""
        selected = self.select(parts)
        used = (
            parts
            | "Used" >> beam.FlatMap(self._number_if_used, selected.selections)
            | ToList()
        )
        files = AsSingleton(used | beam.Map(_number_files))
        shards = parts | "Write" >> beam.FlatMap(
            self._write, selected.selections, files
        )
        _ = (
            shards
            | "Shards" >> ToList()
            | "Result" >> beam.Map(self._save_result, *selected)
        )

    def _copies(self, part: Part, selections: Selections) -> np.ndarray:
        labels, keys = _read_candidates(self.select.progress, part)
        return count_copies(keys, labels, selections)

    def _number_if_used(self, part: Part, selections: Selections) -> Iterator[int]:
        if self._copies(part, selections).any():
            yield part.number

    def _write(
        self, part: Part, selections: Selections, files: dict[int, int]
    ) -> Iterator[dict[str, Any]]:
        """Writes the records of a part in a random order, unless that was done before, and yields its row."""
        if part.number not in files:
            return
        copies = self._copies(part, selections)
        name = records.shard_name(records.PSEUDO, files[part.number], len(files))
        path, progress = f"{self.folder}/{name}", self.select.progress
        row = f"{name}-{checksum(copies.tobytes())}.json"
        if not (tf.io.gfile.exists(path) and progress.exists(row)):
            places = np.repeat(np.arange(len(copies)), copies)
            order = np.random.default_rng([self.select.seed, part.number]).permutation(
                places
            )
            records.write_records(path, self._encode(part, order))
            sha256 = hashlib.sha256(read_remote(path)).hexdigest()
            shard = {"file": name, "records": int(copies.sum()), "sha256": sha256}
            progress.write(row, json.dumps(shard))
        yield json.loads(progress.read(row))

    def _encode(self, part: Part, order: np.ndarray) -> Iterator[bytes]:
        pictures = list(part.read())
        with self.select.progress.open(part.number) as predictions:
            fields = [
                predictions[name]
                for name in ("places", "labels", "probabilities", "checksums")
            ]
        for place, label, probabilities, number in zip(
            *(field[order] for field in fields), strict=True
        ):
            if place >= len(pictures) or checksum(pictures[place].content) != number:
                where = f"{self.select.progress.folder}/{part_file(part.number)}"
                raise InputError(
                    f"pictures were changed after they were predicted; remove {where!r}"
                )
            yield records.encode_record(
                pictures[place].content, int(label), probabilities
            )

    def _save_result(
        self,
        shards: list[dict[str, Any]],
        summary: Summary,
        per_class: int,
        selections: Selections,
    ) -> None:
        counts = [
            {
                "candidates": count,
                "taken": selections[label].taken if count else 0,
                "records": per_class if count else 0,
            }
            for label, count in enumerate(summary.candidates.tolist())
        ]
        result = {
            **summary.as_json(),
            "records_of_each_class": per_class,
            "per_class": counts,
            "shards": sorted(shards, key=lambda shard: shard["file"]),
        }
        self.select.progress.save_result(result)


class FirstCandidates(beam.DoFn):
    """Collects the keys of the first candidates of each class in a bundle of parts."""

    def __init__(self, progress: Progress):
        self._progress = progress

    def start_bundle(self) -> None:
        """Forgets the bundle before."""
        self._labels, self._keys = [np.zeros(0, np.int64)], [np.zeros(0, np.uint64)]
        self._size, self._per_class = 0, 0

    def process(self, part: Part, per_class: int) -> None:
        """Adds the candidates of a part."""
        self._per_class = per_class
        labels, keys = _read_candidates(self._progress, part)
        self._labels.append(labels)
        self._keys.append(keys)
        self._size += len(keys)
        if self._size > BUFFER:
            self._drop()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        """Yields each class and its keys, sorted."""
        self._drop()
        (labels,), (keys,) = self._labels, self._keys
        found, begins = np.unique(labels, return_index=True)
        ends = [*begins[1:], len(keys)][: len(found)]
        for label, begin, end in zip(found.tolist(), begins, ends, strict=True):
            yield GlobalWindows.windowed_value_at_end_of_window(
                (label, keys[begin:end])
            )

    def _drop(self) -> None:
        kept = keep_first(
            np.concatenate(self._labels), np.concatenate(self._keys), self._per_class
        )
        self._labels = [kept[0]]
        self._keys = [kept[1]]
        self._size = 0


def _number_files(parts: list[int]) -> dict[int, int]:
    """Returns the number of the file of each part."""
    return {part: number for number, part in enumerate(sorted(parts))}


def _read_candidates(progress: Progress, part: Part) -> tuple[np.ndarray, np.ndarray]:
    """Returns the labels and keys of the candidates in a part."""
    with progress.open(part.number) as predictions:
        return predictions["labels"], candidate_keys(
            predictions["confidences"], predictions["ranks"]
        )

# SPDX-License-Identifier: Apache-2.0
"""The Beam pipeline that predicts all parts of the pictures, by default in this process."""

import contextlib
import dataclasses
import itertools
import json
import logging
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import apache_beam as beam
import tqdm
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.pvalue import PCollection
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from lambdanet.errors import InputError, one_line
from lambdanet.files import write_output
from lambdanet.training.data import records
from lambdanet.training.data.bad_records import BadRecords, check_number
from lambdanet.training.inference.classifier import Rows, SharedClassifier
from lambdanet.training.inference.inputs import Part
from lambdanet.training.inference.progress import (
    Progress,
    check_settings,
    checksum,
    select_candidates,
)

LOCAL = "DirectRunner"  # without a name, Beam downloads another local runner
LINE_SECONDS = 30.0  # between lines where there is no terminal


@dataclasses.dataclass(frozen=True)
class Task:
    """What a worker does with a part."""

    classifier: SharedClassifier
    batch_size: int
    max_bad_records: int
    progress: Progress
    min_confidence: float = math.inf  # of the predictions to keep
    soft: bool = False  # whether to keep the probabilities of all classes
    # Called with names and probabilities.
    write: Callable[[Part, Sequence[str], Rows], None] | None = None


class Submitted:
    """A part whose batches are with the threads of the classifier."""

    def __init__(self, part: Part, task: Task):
        """Reads the pictures, and returns when the last batch waits for a thread."""
        self.part = part
        self._task = task
        self._pictures: list[tuple[int, str, int]] = []
        self._batches: list[Future[Rows]] = []
        classifier = task.classifier.get()
        reading = part.read()
        while batch := list(itertools.islice(reading, task.batch_size)):
            contents = [picture.content for picture in batch]
            self._batches.append(classifier.submit(contents, task.batch_size))
            self._pictures += [
                (picture.rank, picture.name, checksum(picture.content))
                for picture in batch
            ]

    def save(self, bad_records: BadRecords) -> None:
        """Waits for the predictions, and saves what is kept of them.

        Args:
          bad_records: counts the unreadable pictures.

        Raises:
          InputError: there are too many of these, or an output cannot be written.
        """
        task = self._task
        rows: Rows = []
        for batch in self._batches:
            rows += batch.result()
        names = [name for _, name, _ in self._pictures]
        for name, row in zip(names, rows, strict=True):
            if row is None:
                bad_records.skip(name)
        if task.write:
            task.write(self.part, names, rows)
        predictions = select_candidates(
            self._pictures, rows, task.min_confidence, task.soft
        )
        task.progress.save(self.part.number, predictions)


class PredictPart(beam.DoFn):
    """Predicts the pictures of parts, unless that was done before.

    While the last batches of a part are predicted, the next part is read.
    """

    def __init__(self, task: Task, num_pictures: int):
        self._task = task
        self._num_pictures = num_pictures
        self._last: Submitted | None = None

    def setup(self) -> None:
        """Begins to count."""
        self._bad_records = BadRecords(self._task.max_bad_records)
        seconds = 0.1 if sys.stderr.isatty() else LINE_SECONDS
        self._bar = tqdm.tqdm(
            total=self._num_pictures,
            unit=" pictures",
            leave=False,
            mininterval=seconds,
            maxinterval=max(seconds, 10.0),
            delay=seconds,
        )

    def process(self, part: Part) -> Iterator[Part]:
        """Yields the part before, after it was predicted, or this one if it was predicted long ago."""
        progress = self._task.progress
        if progress.has(part.number):
            with progress.open(part.number) as predictions:
                for name in predictions["unreadable"].tolist():
                    self._bad_records.skip(name)
            self._bar.total -= part.size
            yield part
            return
        submitted = Submitted(part, self._task)
        yield from self._save_last()
        self._last = submitted

    def finish_bundle(self) -> Iterator[WindowedValue]:
        """Yields the last part."""
        for part in self._save_last():
            yield GlobalWindows.windowed_value_at_end_of_window(part)

    def teardown(self) -> None:
        """Removes the bar."""
        self._bar.close()

    def _save_last(self) -> Iterator[Part]:
        if self._last:
            self._last.save(self._bad_records)
            self._bar.update(self._last.part.size)
            yield self._last.part
        self._last = None


@dataclasses.dataclass(frozen=True)
class Job:
    """A pipeline: all parts are predicted, and `finish` adds further steps to them."""

    parts: Sequence[Part]
    task: Task
    finish: Callable[[PCollection[Part]], Any]
    beam_options: Sequence[str] = ()

    def pipeline(self) -> beam.Pipeline:
        """Returns an empty pipeline; `InputError` where Beam does not accept its options."""
        options = PipelineOptions(list(self.beam_options))
        standard = options.view_as(StandardOptions)
        standard.runner = standard.runner or LOCAL
        try:
            return beam.Pipeline(options=options)
        except (ImportError, ValueError) as error:
            raise InputError(f"options of Beam: {one_line(error)}") from None

    def run(self, pipeline: beam.Pipeline) -> None:
        """Runs the job; `InputError` as that of a worker in this process."""
        sizes = [part.size for part in self.parts]
        batch_size = min(self.task.batch_size, max(sizes))
        task = dataclasses.replace(self.task, batch_size=batch_size)
        predict = PredictPart(task, sum(sizes))
        self.task.progress.begin()
        try:
            with _quiet_beam(), pipeline:
                parts = pipeline | beam.Create(self.parts) | beam.Reshuffle()
                self.finish(parts | "Predict" >> beam.ParDo(predict))
        except Exception as error:
            # Beam raises a copy with the name of the step in its message.
            original = error.__context__
            if isinstance(original, InputError | KeyboardInterrupt):
                raise original from None
            raise


def run_once(
    job: Job,
    make_manifest: Callable[[dict[str, Any]], dict[str, Any]],
    describe: Callable[[dict[str, Any]], str],
) -> dict[str, Any]:
    """Runs a job, unless its folder has a manifest, and returns the manifest.

    Args:
      job: the pictures, the work on them, and the options of Beam.
      make_manifest: makes the manifest from what the last step of the pipeline has saved.
      describe: returns the line about a manifest that is printed.

    Raises:
      InputError: an option of Beam is wrong, the run in the folder has other settings, the folder is in use
        or cannot be written, or too many pictures are unreadable.
    """
    pipeline = job.pipeline()
    progress = job.task.progress
    if manifest := records.read_manifest(progress.out):
        check_settings(progress.out, manifest.get("settings", {}), progress.settings)
        print(f"already finished: {describe(manifest)}")
        return manifest
    with progress.locked():
        job.run(pipeline)
        manifest = make_manifest(progress.result())
        check_number(manifest["unreadable"], job.task.max_bad_records)
        write_output(
            f"{progress.out}/{records.MANIFEST}", json.dumps(manifest, indent=1) + "\n"
        )
        progress.remove()
    print(describe(manifest))
    return manifest


@contextlib.contextmanager
def _quiet_beam() -> Iterator[None]:
    """Hides the log of Beam, which raises the same errors, and removes its temporary files."""
    logger = logging.getLogger("apache_beam")
    level = logger.level
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            tempfile.tempdir = before
            logger.setLevel(level)

# SPDX-License-Identifier: Apache-2.0
"""The Beam pipeline that predicts all parts of the pictures: workers, options, progress, and faults."""

import contextlib
import dataclasses
import functools
import io
import itertools
import json
import logging
import math
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.options.pipeline_options import (
    DirectOptions,
    PipelineOptions,
    StandardOptions,
    WorkerOptions,
)
from apache_beam.options.pipeline_options_validator import PipelineOptionsValidator
from apache_beam.pvalue import PCollection
from apache_beam.runners.runner import create_runner
from apache_beam.utils.shared import Shared

from lambdanet.errors import InputError, Unfinished, check_natural, one_line, unknown
from lambdanet.files import write_output
from lambdanet.training.data import records
from lambdanet.training.data.bad_records import BadRecords, check_number
from lambdanet.training.inference import attempt
from lambdanet.training.inference.classifier import Classifier
from lambdanet.training.inference.inputs import Inputs, Part
from lambdanet.training.inference.progress import (
    Progress,
    check_settings,
    checksum,
    select_candidates,
)
from lambdanet.training.inference.watch import Watch

LOCAL = "DirectRunner"  # without a name, Beam downloads another local runner
MULTI_PROCESSING = "multi_processing"
ATTEMPTS = 3  # of a local run whose workers are killed

# The probabilities of the classes per picture; None for unreadable ones.
Rows = Sequence[np.ndarray | None]


@dataclasses.dataclass(frozen=True)
class Task:
    """What a worker does with a part."""

    saved_model: str
    batch_size: int
    max_bad_records: int
    progress: Progress
    min_confidence: float = math.inf  # of the predictions to keep
    soft: bool = False  # whether to keep the probabilities of all classes
    # Called with names and probabilities.
    write: Callable[[Part, Sequence[str], Rows], None] | None = None


class PredictPart(beam.DoFn):
    """Predicts the pictures of a part and saves what is kept of it, unless that was done before."""

    def __init__(self, task: Task):
        self._task = task
        self._shared = Shared()

    def setup(self) -> None:
        """Shares the classifier among the threads of a process."""
        self._worker = self._shared.acquire(lambda: _Worker(self._task))

    def process(self, part: Part) -> Iterator[Part]:
        """Yields the part after it was predicted."""
        if not self._task.progress.has(part.number):
            self._worker.predict(part)
        yield part


class _Worker:
    """The classifier of a process, and the unreadable pictures that it has seen."""

    def __init__(self, task: Task):
        self._task = task
        self._unreadable: list[str] = []

    @functools.cached_property
    def _classifier(self) -> Classifier:
        return Classifier(self._task.saved_model, self._task.batch_size)

    def predict(self, part: Part) -> None:
        pictures: list[tuple[int, str, int]] = []
        rows: list[np.ndarray | None] = []
        progress, reading = self._task.progress, part.read()
        while batch := list(itertools.islice(reading, self._task.batch_size)):
            rows += self._classifier.classify([picture.content for picture in batch])
            pictures += [
                (picture.rank, picture.name, checksum(picture.content))
                for picture in batch
            ]
        names = [name for _, name, _ in pictures]
        self._unreadable += [
            name for name, row in zip(names, rows, strict=True) if row is None
        ]
        check_number(self._unreadable, self._task.max_bad_records)
        if self._task.write:
            self._task.write(part, names, rows)
        predictions = select_candidates(
            pictures, rows, self._task.min_confidence, self._task.soft
        )
        progress.save(part.number, predictions)


@dataclasses.dataclass(frozen=True)
class Job:
    """A pipeline: all parts are predicted, and `finish` adds further steps to them."""

    inputs: Inputs
    task: Task
    finish: Callable[[PCollection[Part]], Any]
    beam_options: Sequence[str]

    def options(self) -> PipelineOptions:
        """Returns Beam's options with our defaults; `InputError` for wrong ones."""
        return _parse_options(self.beam_options, len(self.inputs.parts))

    def execute(self) -> None:
        """Runs the pipeline; `InputError` where a worker raised it."""
        largest = max(part.size for part in self.inputs.parts)
        task = dataclasses.replace(
            self.task, batch_size=min(self.task.batch_size, largest)
        )
        try:
            with beam.Pipeline(options=self.options()) as pipeline:
                parts = pipeline | beam.Create(self.inputs.parts) | beam.Reshuffle()
                self.finish(parts | "Predict" >> beam.ParDo(PredictPart(task)))
        except Exception as error:
            # Beam adds the step to the message, or passes on the traceback of a process as a text.
            text = (
                f"InputError: {error}" if isinstance(error, InputError) else str(error)
            )
            if found := re.findall(
                r"InputError: (.*?)(?: \[while running [^\n]*)?(?:\n|$)", text
            ):
                raise InputError(found[-1]) from None
            if text.startswith("KeyboardInterrupt"):
                raise KeyboardInterrupt from None
            raise


def run_once(
    job: Job,
    bad_records: BadRecords,
    make_manifest: Callable[[dict[str, Any]], dict[str, Any]],
    describe: Callable[[dict[str, Any]], str],
) -> dict[str, Any]:
    """Runs a job as `run` does, unless its folder has a manifest, and returns the manifest.

    `make_manifest` makes it from what the last step of the pipeline has saved, and `describe` the line about
    it that is printed. `InputError` where the manifest has other settings, or the folder is in use.
    """
    job.options()
    progress = job.task.progress
    if manifest := records.read_manifest(progress.out):
        check_settings(progress.out, manifest.get("settings", {}), progress.settings)
        print(f"already finished: {describe(manifest)}")
        return manifest
    with progress.locked():
        run(job, bad_records)
        manifest = make_manifest(progress.result())
        write_output(
            f"{progress.out}/{records.MANIFEST}", json.dumps(manifest, indent=1) + "\n"
        )
        progress.remove()
    print(describe(manifest))
    return manifest


def run(job: Job, bad_records: BadRecords) -> None:
    """Runs a job, and prints its progress and the unreadable pictures.

    Local processes of Beam are repeated where they are killed. They end with this process.

    Args:
      job: the pictures, the work on them, and the options of Beam; default: its local runner, with one
        process per core.
      bad_records: counts the unreadable pictures of all workers.

    Raises:
      InputError: an option is wrong, the run in the folder has other settings, an output cannot be written,
        or too many pictures are unreadable.
      Unfinished: local processes are killed again and again.
    """
    options = job.options()
    job.task.progress.begin()
    direct, runner = (
        options.view_as(DirectOptions),
        options.view_as(StandardOptions).runner,
    )
    with contextlib.closing(Watch(job.inputs, job.task.progress, bad_records)) as watch:
        if runner != LOCAL or direct.direct_running_mode != MULTI_PROCESSING:
            with watch.in_background(), _temporary_files():
                job.execute()
            watch.update()
            return
        for _ in range(ATTEMPTS):
            if attempt.run(job, direct.direct_num_workers, watch):
                return
            print(
                "a worker process was killed; what it did not finish is repeated",
                file=sys.stderr,
            )
    raise Unfinished(
        f"worker processes were killed {ATTEMPTS} times, perhaps for want of memory; the same command "
        "continues the run"
    )


@contextlib.contextmanager
def _temporary_files() -> Iterator[None]:
    """Removes the temporary files that Beam leaves."""
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        try:
            yield
        finally:
            tempfile.tempdir = before


def _parse_options(given: Sequence[str], num_parts: int) -> PipelineOptions:
    """Returns Beam's options with our defaults; `InputError` for flags that Beam does not know."""
    for before, word in zip(["", *given], given, strict=False):
        if word == "--" or not (
            word.startswith("-") or (before.startswith("-") and "=" not in before)
        ):
            raise InputError(f"option of Beam: unexpected {word!r}")
    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output):
            options = PipelineOptions(list(given))
            accepted = options.get_all_options()
            named = options.get_all_options(retain_unknown_options=True)
    except SystemExit:  # argparse has printed its usage and the problem
        problem = output.getvalue().strip().splitlines()[-1].partition("error: ")[2]
        raise InputError(f"option of Beam: {problem}") from None
    standard, direct = options.view_as(StandardOptions), options.view_as(DirectOptions)
    if (standard.runner or LOCAL).lower() in (LOCAL.lower(), "direct"):
        standard.runner = LOCAL
    try:
        problems = PipelineOptionsValidator(
            options, create_runner(standard.runner)
        ).validate()
    except (ImportError, ValueError) as error:
        problems = [one_line(error)]
    if problems:
        raise InputError(f"options of Beam: {' '.join(problems)}")
    if standard.runner == LOCAL and (others := sorted(named.keys() - accepted.keys())):
        raise unknown("option of Beam", others[0], accepted)
    if standard.runner == LOCAL:  # Beam raises what it would log
        options.view_as(WorkerOptions).default_sdk_harness_log_level = "CRITICAL"
        logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
    check_natural("direct_num_workers", direct.direct_num_workers)
    words = [word.partition("=")[0] for word in given]
    if "--direct_num_workers" not in words:
        direct.direct_num_workers = min(os.cpu_count() or 1, num_parts)
    if "--direct_running_mode" not in words and direct.direct_num_workers != 1:
        direct.direct_running_mode = MULTI_PROCESSING
    return options

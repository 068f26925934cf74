# SPDX-License-Identifier: Apache-2.0
"""The Beam pipeline that predicts all parts of the pictures: workers, options, progress, and faults."""

import contextlib
import dataclasses
import io
import itertools
import logging
import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import apache_beam as beam
import grpc
import numpy as np
import tqdm
from apache_beam.options.pipeline_options import (
    DirectOptions,
    PipelineOptions,
    StandardOptions,
    WorkerOptions,
)
from apache_beam.pvalue import PCollection
from apache_beam.utils.shared import Shared

from lambdanet.errors import InputError, Preempted, Unfinished, one_line, unknown
from lambdanet.training.data.bad_records import BadRecords, check_number
from lambdanet.training.inference.classifier import Classifier
from lambdanet.training.inference.inputs import Inputs, Part
from lambdanet.training.inference.progress import Progress, select_candidates
from lambdanet.training.run.preemption import StopRequest

LOCAL = "DirectRunner"  # without a name, Beam downloads another local runner
MULTI_PROCESSING = "multi_processing"
ATTEMPTS = 3  # of a local run whose workers are killed
POLL_SECONDS = 0.5
LINE_SECONDS = 30.0  # between lines of progress where there is no terminal

Rows = Sequence[np.ndarray | None]  # the probabilities of the classes per picture; None for unreadable ones


@dataclasses.dataclass(frozen=True)
class Task:
    """What a worker does with a part."""

    saved_model: str
    batch_size: int
    max_bad_records: int
    progress: Progress
    min_confidence: float = math.inf  # of the predictions to keep
    soft: bool = False  # whether to keep the probabilities of all classes
    write: Callable[[Part, Sequence[str], Rows], None] | None = None  # called with names and probabilities


class PredictPart(beam.DoFn):
    """Predicts the pictures of a part and saves what is kept of it, unless that was done before."""

    def __init__(self, task: Task):
        self._task = task
        self._shared = Shared()

    def setup(self) -> None:
        """Loads the classifier once per process."""
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
        self._classifier = Classifier(task.saved_model, task.batch_size)
        self._unreadable: list[str] = []

    def predict(self, part: Part) -> None:
        pictures: list[tuple[int, str]] = []
        rows: list[np.ndarray | None] = []
        progress, reading = self._task.progress, part.read()
        while batch := list(itertools.islice(reading, self._task.batch_size)):
            progress.check()
            rows += self._classifier.classify([picture.content for picture in batch])
            pictures += [(picture.rank, picture.name) for picture in batch]
        names = [name for _, name in pictures]
        self._unreadable += [name for name, row in zip(names, rows, strict=True) if row is None]
        check_number(self._unreadable, self._task.max_bad_records)
        if self._task.write:
            self._task.write(part, names, rows)
        predictions = select_candidates(pictures, rows, self._task.min_confidence, self._task.soft)
        progress.save(part.number, predictions)


def run(
    inputs: Inputs,
    task: Task,
    finish: Callable[[PCollection[Part]], Any],
    bad_records: BadRecords,
    beam_options: Sequence[str],
) -> None:
    """Predicts all parts, continues with `finish`, and prints the progress.

    Args:
      inputs: the pictures.
      task: the work on a part.
      finish: adds further steps, given all parts after they were predicted.
      bad_records: counts the unreadable pictures of all workers.
      beam_options: the flags of Beam; default: its local runner, with as many processes as cores.

    Raises:
      InputError: an option is wrong, the run in the folder has other settings, an output cannot be written,
        or too many pictures are unreadable.
      Preempted: SIGTERM was received.
      Unfinished: workers are killed again and again.
    """
    options = _parse_options(beam_options, len(inputs.parts))
    task.progress.begin()
    is_local = options.view_as(StandardOptions).runner == LOCAL
    for _ in range(ATTEMPTS if is_local else 1):
        failures: list[BaseException] = []
        thread = threading.Thread(
            target=_execute, args=(options, inputs, task, finish, failures), daemon=True
        )
        quiet = _quiet_local_run(options) if is_local else contextlib.nullcontext()
        with quiet, StopRequest() as request:
            thread.start()
            try:
                _watch(thread, inputs, task.progress, bad_records, request)
            except BaseException:
                task.progress.stop()
                thread.join()
                raise
        if not failures:
            return
        _raise_known(failures[0], is_local)
        print("a worker process was killed; the parts that it did not finish are repeated", file=sys.stderr)
    raise Unfinished(
        f"worker processes were killed {ATTEMPTS} times, perhaps for want of memory; the same command "
        "continues the run"
    )


def _execute(
    options: PipelineOptions,
    inputs: Inputs,
    task: Task,
    finish: Callable[[PCollection[Part]], Any],
    failures: list[BaseException],
) -> None:
    """Runs the pipeline; the exception of a failure is appended to `failures`."""
    try:
        with beam.Pipeline(options=options) as pipeline:
            parts = pipeline | beam.Create(inputs.parts) | beam.Reshuffle()
            finish(parts | "Predict" >> beam.ParDo(PredictPart(task)))
    except BaseException as error:  # raised again in the main thread
        failures.append(error)


def _raise_known(error: BaseException, is_local: bool) -> None:
    """Raises an error of a pipeline, except that of a local worker that was killed."""
    # Beam adds the step to the message, or passes on the traceback of a process as a text.
    text = f"InputError: {error}" if isinstance(error, InputError) else str(error)
    if found := re.findall(r"InputError: (.*?)(?: \[while running [^\n]*)?(?:\n|$)", text):
        raise InputError(found[-1]) from None
    if not is_local or "[while running" in str(error) or not isinstance(error, RuntimeError):
        raise error


def _watch(
    thread: threading.Thread,
    inputs: Inputs,
    progress: Progress,
    bad_records: BadRecords,
    request: StopRequest,
) -> None:
    """Prints the progress and the unreadable pictures until a thread ends; `Preempted` on SIGTERM."""
    sizes = {part.number: part.size for part in inputs.parts}
    seen, begin = progress.finished(), time.monotonic()
    done = first = sum(sizes[number] for number in seen)
    last_line, total = begin, sum(sizes.values())
    for number in sorted(seen):
        _count_unreadable(number, progress, bad_records)
    with tqdm.tqdm(total=total, initial=first, unit=" pictures", disable=None, leave=False) as bar:
        while alive := thread.is_alive():
            thread.join(POLL_SECONDS)
            if request.received:
                raise Preempted("stopped by SIGTERM; the same command continues the run")
            for number in sorted(progress.finished() - seen):
                seen.add(number)
                done += sizes[number]
                bar.update(sizes[number])
                _count_unreadable(number, progress, bad_records)
            now = time.monotonic()
            if bar.disable and done > first and (now > last_line + LINE_SECONDS or not alive):
                last_line, rate = now, (done - first) / (now - begin)
                rest = tqdm.tqdm.format_interval((total - done) / rate)
                print(f"{done} of {total} pictures, {rate:.1f} per second, {rest} left", flush=True)


def _count_unreadable(number: int, progress: Progress, bad_records: BadRecords) -> None:
    with progress.open(number) as predictions:
        for name in predictions["unreadable"].tolist():
            bad_records.skip(name)


def _parse_options(given: Sequence[str], num_parts: int) -> PipelineOptions:
    """Returns Beam's options with our defaults; `InputError` for flags that Beam does not know."""
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
    standard.runner = standard.runner or LOCAL
    try:
        beam.Pipeline(options=options)
    except (ImportError, ValueError) as error:
        raise InputError(f"options of Beam: {one_line(error)}") from None
    if standard.runner == LOCAL and (others := sorted(named.keys() - accepted.keys())):
        raise unknown("option of Beam", others[0], accepted)
    if standard.runner == LOCAL:  # Beam raises what it would log
        options.view_as(WorkerOptions).default_sdk_harness_log_level = "CRITICAL"
    words = [word.partition("=")[0] for word in given]
    if "--direct_num_workers" not in words:
        direct.direct_num_workers = min(os.cpu_count() or 1, num_parts)
    if "--direct_running_mode" not in words and direct.direct_num_workers != 1:
        direct.direct_running_mode = MULTI_PROCESSING
    return options


@contextlib.contextmanager
def _quiet_local_run(options: PipelineOptions) -> Iterator[None]:
    """Shares the cores among processes, and hides the log of Beam, which repeats the error that it raises."""
    direct, logger, hook = (
        options.view_as(DirectOptions),
        logging.getLogger("apache_beam"),
        threading.excepthook,
    )
    level, variable = logger.level, "TF_NUM_INTRAOP_THREADS"
    threads = max(1, (os.cpu_count() or 1) // max(1, direct.direct_num_workers))
    with contextlib.ExitStack() as stack:
        stack.callback(logger.setLevel, level)
        logger.setLevel(logging.CRITICAL)
        stack.callback(setattr, threading, "excepthook", hook)
        threading.excepthook = lambda arguments: None if _is_of_worker(arguments) else hook(arguments)
        if direct.direct_running_mode == MULTI_PROCESSING:
            stack.enter_context(_silent_processes())
            if variable not in os.environ:
                stack.callback(os.environ.pop, variable)
                os.environ[variable] = str(threads)
        yield


@contextlib.contextmanager
def _silent_processes() -> Iterator[None]:
    """Discards what new processes write to stderr, to which this process still writes."""
    with os.fdopen(os.dup(2), "w") as stderr, open(os.devnull, "w") as null:
        is_own = getattr(sys.stderr, "name", "") == "<stderr>"
        os.dup2(null.fileno(), 2)
        try:
            with contextlib.redirect_stderr(stderr) if is_own else contextlib.nullcontext():
                yield
        finally:
            os.dup2(stderr.fileno(), 2)


def _is_of_worker(arguments: Any) -> bool:
    """Returns whether a thread ended because its worker process did."""
    error = arguments.exc_value
    return isinstance(error, grpc.RpcError) or "Worker subprocess exited" in str(error)

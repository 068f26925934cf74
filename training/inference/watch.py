# SPDX-License-Identifier: Apache-2.0
"""Prints the progress of a run, which its workers show by the parts that they have saved."""

import contextlib
import threading
import time
from collections.abc import Iterator

import tqdm

from lambdanet.errors import InputError
from lambdanet.training.data.bad_records import BadRecords
from lambdanet.training.inference.inputs import Inputs
from lambdanet.training.inference.progress import Progress

POLL_SECONDS, REMOTE_POLL_SECONDS = 0.5, 10.0
LINE_SECONDS = 30.0  # between lines where there is no terminal


class Watch:
    """Prints the number of predicted pictures, per second, and the rest; and the unreadable pictures."""

    def __init__(self, inputs: Inputs, progress: Progress, bad_records: BadRecords):
        self._sizes = {part.number: part.size for part in inputs.parts}
        self._progress, self._bad_records = progress, bad_records
        self._seen: set[int] = set()
        total = sum(self._sizes.values())
        first = sum(self._sizes[number] for number in progress.finished())
        self._bar = tqdm.tqdm(
            total=total, initial=first, unit=" pictures", disable=None, leave=False
        )
        self._first, self._begin, self._done = first, time.monotonic(), 0
        self._last_line = self._begin

    def update(self) -> None:
        """Counts the parts that are new; `InputError` for too many unreadable pictures."""
        for number in sorted(self._progress.finished() - self._seen):
            self._seen.add(number)
            self._done += self._sizes[number]
            with self._progress.open(number) as predictions:
                for name in predictions["unreadable"].tolist():
                    self._bad_records.skip(name)
        if self._done > self._first:
            self._bar.update(self._done - self._bar.n)
        now, total = time.monotonic(), self._bar.total
        if (
            self._bar.disable
            and self._done > self._first
            and now > self._last_line + LINE_SECONDS
        ):
            self._last_line, rate = (
                now,
                (self._done - self._first) / (now - self._begin),
            )
            rest = tqdm.tqdm.format_interval((total - self._done) / rate)
            print(
                f"{self._done} of {total} pictures, {rate:.1f} per second, {rest} left",
                flush=True,
            )

    def close(self) -> None:
        """Removes the bar."""
        self._bar.close()

    @contextlib.contextmanager
    def in_background(self) -> Iterator[None]:
        """Updates until the context ends; the worker raises the error of too many unreadable pictures."""
        ended = threading.Event()
        seconds = (
            REMOTE_POLL_SECONDS if "://" in self._progress.folder else POLL_SECONDS
        )

        def update() -> None:
            with contextlib.suppress(InputError):
                while not ended.wait(seconds):
                    self.update()

        thread = threading.Thread(target=update)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

# SPDX-License-Identifier: Apache-2.0
"""Runs contenders in turns, each in its own process."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Collection, Mapping
from typing import Any

from benchmarks.interleaved import memory
from benchmarks.interleaved.cases import Case
from benchmarks.interleaved.contender_process import (
    ContenderFailed,
    ContenderProcess,
)
from benchmarks.interleaved.results import Measurement
from lambdanet.core.errors import check_counts, invalid

TURN_SECONDS = 0.1  # the length of a turn; fast contenders run several calls in it
# Turns of shorter calls start with an untimed call to warm the caches.
SHORT_SECONDS = 0.2
# Between turns, so the threads of the previous contender go to sleep.
SETTLE_SECONDS = 0.02
MIN_TURNS = 3  # unless a single call takes longer than `max_seconds`
TIMEOUT_FACTOR = 6  # a call that takes longer than this times `max_seconds` is stopped


@dataclasses.dataclass(frozen=True)
class Budget:
    """The limits of a measurement; `InputError` for a number that is not positive."""

    repeats: int  # turns per contender
    # The time of a contender's turns in a case; a slow contender gets fewer turns.
    max_seconds: float

    def __post_init__(self) -> None:
        check_counts(repeats=self.repeats)
        if not self.max_seconds > 0:
            raise invalid("max_seconds", "a number above 0", self.max_seconds)

    @property
    def timeout(self) -> float:
        """The seconds after which a call is stopped."""
        return TIMEOUT_FACTOR * self.max_seconds


@dataclasses.dataclass
class _Turn:
    """The turns of a contender."""

    calls: int  # timed calls per turn
    warm: bool  # whether an untimed call precedes them
    repeats: int  # the number of turns

    @classmethod
    def plan(cls, seconds: float, budget: Budget) -> "_Turn":
        """Returns the turns for calls of this duration."""
        warm = seconds < SHORT_SECONDS
        calls = max(1, math.ceil(TURN_SECONDS / max(seconds, 1e-4))) if warm else 1
        fitting = int(budget.max_seconds / ((calls + warm) * seconds))
        fewest = MIN_TURNS if seconds <= budget.max_seconds else 1
        return cls(calls, warm, min(budget.repeats, max(fewest, fitting)))

    def due(self, round_: int, rounds: int) -> bool:
        """Whether the contender has a turn in a round; its turns are spread evenly over the rounds."""
        return (round_ + 1) * self.repeats // rounds > round_ * self.repeats // rounds


class Comparison:
    """The processes of contenders: one to time each, and a second to measure its memory if necessary.

    A context manager, which ends the processes.
    """

    def __init__(self, contenders: Collection[str], budget: Budget):
        self._contenders = contenders
        self._budget = budget
        self._workers: dict[tuple[str, bool], ContenderProcess] = {}
        self._stopped: dict[tuple[str, Any], str] = {}  # the pass that did not finish

    def __enter__(self) -> "Comparison":
        with contextlib.ExitStack() as stack:
            stack.push(self.__exit__)
            for name in self._contenders:  # they start side by side
                self._worker(name, False)
            for name in self._contenders:
                with contextlib.suppress(ContenderFailed):
                    if self._needs_other_process(name):
                        self._worker(name, True)
            # Wait for all before timing the first.
            for worker in self._workers.values():
                with contextlib.suppress(ContenderFailed):
                    worker.about()
            stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers.values():
            worker.close()

    def run(
        self, case: Case | Any, names: Collection[str], reference: str
    ) -> list[Measurement]:
        """Measures contenders in a case, the reference among them, and returns a row for each of them."""
        rows = {name: Measurement(case, name) for name in names}
        turns = {}
        for name, row in rows.items():
            row.reference = rows[reference]
            if turn := self._set_up(row):
                turns[name] = turn
        for row in rows.values():
            row.note_device_mismatch()
        self._take_turns(rows, turns)
        for row in rows.values():
            if row.seconds:
                self._measure_memory(row)
        return list(rows.values())

    def _set_up(self, row: Measurement) -> _Turn | None:
        """Builds a contender and plans its turns by the duration of a call; None if that fails."""
        if _key(row) in self._stopped:
            row.add_note(f"skipped: the pass {self._stopped[_key(row)]} did not finish")
            return None
        try:
            about = self._worker(row.contender, False).about()
            row.library = about["library"]
            row.device = about["device"]
            self._request(row, False, "build", case=dataclasses.asdict(row.case))
            seconds = self._request(row, False, "time", calls=1, warm=False)["seconds"]
        except ContenderFailed as failure:
            row.add_note(str(failure))
            return None
        turn = _Turn.plan(seconds, self._budget)
        if turn.repeats < self._budget.repeats:
            row.add_note(
                f"{turn.repeats} of {self._budget.repeats} repeats: a call takes {seconds:.2g} s"
            )
        if seconds > self._budget.max_seconds:  # this call is the only one
            row.seconds.append(seconds)
            return None
        return turn

    def _take_turns(
        self, rows: Mapping[str, Measurement], turns: dict[str, _Turn]
    ) -> None:
        """Times the contenders in rounds, each of which starts with another contender."""
        rounds = max((turn.repeats for turn in turns.values()), default=0)
        for round_ in range(rounds):
            names = list(turns)
            first = round_ % max(1, len(names))
            for name in names[first:] + names[:first]:
                turn = turns[name]
                if not turn.due(round_, rounds):
                    continue
                time.sleep(SETTLE_SECONDS)
                try:
                    answer = self._request(
                        rows[name], False, "time", calls=turn.calls, warm=turn.warm
                    )
                    rows[name].seconds.append(answer["seconds"])
                except ContenderFailed as failure:
                    rows[name].add_note(str(failure))
                    del turns[name]

    def _measure_memory(self, row: Measurement) -> None:
        """Measures the peak memory, in the second process if there is one."""
        calls = 3 if (row.milliseconds() or 0) < 1000 else 1
        try:
            if elsewhere := self._needs_other_process(row.contender):
                self._request(row, True, "build", case=dataclasses.asdict(row.case))
            row.peak_bytes = self._request(row, elsewhere, "memory", calls=calls)[
                "bytes"
            ]
        except ContenderFailed as failure:
            row.add_note(f"memory: {failure}")

    def _request(
        self, row: Measurement, for_memory: bool, do: str, **arguments: Any
    ) -> dict[str, Any]:
        """Sends a request to a contender, and records if its process ends without an answer."""
        worker = self._worker(row.contender, for_memory)
        try:
            return worker.request(do, self._budget.timeout, **arguments)
        except ContenderFailed:
            if not worker.is_alive() and not for_memory:
                self._stopped[_key(row)] = row.case.pass_name
            raise

    def _needs_other_process(self, name: str) -> bool:
        """Whether the process that is timed cannot measure memory."""
        return not self._worker(name, False).about()["counts_memory"]

    def _worker(self, name: str, for_memory: bool) -> ContenderProcess:
        """Returns the process of a contender, started again if it has ended."""
        worker = self._workers.get((name, for_memory))
        if worker is None or not worker.is_alive():
            if worker:
                worker.close()
            environment = memory.ENVIRONMENT if for_memory else {}
            worker = ContenderProcess(name, environment)
            self._workers[name, for_memory] = worker
        return worker


def _key(row: Measurement) -> tuple[str, Any]:
    return row.contender, dataclasses.replace(row.case, backward=False)

# SPDX-License-Identifier: Apache-2.0
"""Runs contenders side by side: each in its own process, one call at a time, in turns."""

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from lambdanet.training.benchmark import memory
from lambdanet.training.benchmark.cases import Case, caveat
from lambdanet.training.benchmark.process import ContenderFailed, Worker
from lambdanet.training.benchmark.results import Row

TURN_SECONDS = 0.1  # in a turn a quick contender runs as often as fits
SHORT_SECONDS = 0.2  # a call below this starts its turn with one that is not timed, to warm the caches
SETTLE_SECONDS = 0.02  # between turns, in which the threads of the one before go to sleep
FEWEST = 3  # turns, unless a single call takes longer than all turns may
PATIENCE = 6  # a call that takes so many times the seconds meant for a row is stopped


@dataclasses.dataclass(frozen=True)
class Budget:
    """How much to measure.

    Attributes:
      repeats: turns of each contender.
      max_seconds: what the turns of a row may take; a slow contender gets fewer.
      threads: threads of each contender.
    """

    repeats: int
    max_seconds: float
    threads: int

    @property
    def timeout(self) -> float:
        return PATIENCE * self.max_seconds


@dataclasses.dataclass
class _Turn:
    """What a contender does in a turn, and how many turns it has."""

    calls: int
    warm: bool
    repeats: int

    @classmethod
    def of(cls, seconds: float, budget: Budget) -> "_Turn":
        """Returns the turn for calls of so many seconds."""
        warm = seconds < SHORT_SECONDS
        calls = max(1, math.ceil(TURN_SECONDS / max(seconds, 1e-4))) if warm else 1
        fitting = int(budget.max_seconds / ((calls + warm) * seconds))
        fewest = FEWEST if seconds <= budget.max_seconds else 1
        return cls(calls, warm, min(budget.repeats, max(fewest, fitting)))

    def due(self, round_: int, rounds: int) -> bool:
        """Says whether it is this contender's turn: fewer turns than rounds are spread evenly over them."""
        return (round_ + 1) * self.repeats // rounds > round_ * self.repeats // rounds


class Comparison:
    """The processes of some contenders: one for each, and another for memory where that needs its own.

    Use it in a `with` statement, which ends the processes.

    Args:
      pythons: for each contender the interpreter that has its library.
      budget: how much to measure.
    """

    def __init__(self, pythons: Mapping[str, str], budget: Budget):
        self._pythons = pythons
        self._budget = budget
        self._workers: dict[tuple[str, bool], Worker] = {}
        self._stopped: dict[tuple[str, str, str], str] = {}

    def __enter__(self) -> "Comparison":
        try:
            for name in self._pythons:
                self._start(name, False)
            for name in self._pythons:
                if self._ready(name, False) and not self._counts_memory(name):
                    self._start(name, True)
            for name, for_memory in self._workers:  # all of them, before the first is timed
                self._ready(name, for_memory)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers.values():
            worker.close()

    def run(self, case: Case | Any, names: Sequence[str], reference: str) -> list[Row]:
        """Measures contenders in a case.

        Args:
          case: the case.
          names: the contenders, with the reference among them.
          reference: the contender that the others are compared with.

        Returns:
          A row for each name, in this order.
        """
        rows = {name: Row(case, name, note=caveat(name, case)) for name in names}
        for row in rows.values():
            row.reference = rows[reference]
        turns = {}
        for row in rows.values():
            turn = self._set_up(row)
            if turn is not None:
                turns[row.contender] = turn
        for row in rows.values():
            row.mark_device()
        self._take_turns(rows, turns)
        for row in rows.values():
            if row.seconds:
                self._measure_memory(row)
        return list(rows.values())

    def _set_up(self, row: Row) -> _Turn | None:
        """Builds a row's contender and sees how long a call takes; None if that fails."""
        if _key(row) in self._stopped:
            row.explain(f"not tried: the pass {self._stopped[_key(row)]} did not end")
            return None
        try:
            worker = self._worker(row.contender, False)
            about = worker.about()
            row.library, row.device = about["library"], about["device"]
            self._ask(row, False, "build", case=dataclasses.asdict(row.case))
            seconds = self._ask(row, False, "time", calls=1, warm=False)["seconds"]
        except ContenderFailed as failure:
            row.explain(str(failure))
            return None
        turn = _Turn.of(seconds, self._budget)
        if turn.repeats < self._budget.repeats:
            row.explain(f"{turn.repeats} of {self._budget.repeats} repeats: a call takes {seconds:.2g} s")
        if seconds > self._budget.max_seconds:  # this was it
            row.seconds.append(seconds)
            return None
        return turn

    def _take_turns(self, rows: Mapping[str, Row], turns: dict[str, _Turn]) -> None:
        """Lets every contender have its turn in every round, each time another one first."""
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
                    answer = self._ask(rows[name], False, "time", calls=turn.calls, warm=turn.warm)
                    rows[name].seconds.append(answer["seconds"])
                except ContenderFailed as failure:
                    rows[name].explain(str(failure))
                    del turns[name]

    def _measure_memory(self, row: Row) -> None:
        """Measures the peak memory, where the case is still set up or in the process that is for it."""
        calls = 3 if (row.milliseconds() or 0) < 1000 else 1
        try:
            elsewhere = not self._counts_memory(row.contender)
            if elsewhere:
                self._ask(row, True, "build", case=dataclasses.asdict(row.case))
            row.peak_bytes = self._ask(row, elsewhere, "memory", calls=calls)["bytes"]
        except ContenderFailed as failure:
            row.explain(f"memory: {failure}")

    def _ask(self, row: Row, for_memory: bool, do: str, **arguments: Any) -> dict[str, Any]:
        """Asks a row's contender, and remembers if it did not live to answer."""
        worker = self._worker(row.contender, for_memory)
        try:
            return worker.ask(do, self._budget.timeout, **arguments)
        except ContenderFailed:
            if worker.was_ready() and not worker.alive() and not for_memory:
                self._stopped[_key(row)] = row.case.pass_name
            raise

    def _ready(self, name: str, for_memory: bool) -> bool:
        """Waits for a process; if it failed, its rows will say so."""
        try:
            self._workers[name, for_memory].about()
        except ContenderFailed:
            return False
        return True

    def _counts_memory(self, name: str) -> bool:
        return self._workers[name, False].about()["counts_memory"]

    def _worker(self, name: str, for_memory: bool) -> Worker:
        """Returns a contender's process, a new one if it is gone."""
        worker = self._workers[name, for_memory]
        if not worker.alive() and worker.was_ready():
            worker.close()
            self._start(name, for_memory)
        return self._workers[name, for_memory]

    def _start(self, name: str, for_memory: bool) -> None:
        environment = memory.ENVIRONMENT if for_memory else {}
        self._workers[name, for_memory] = Worker(self._pythons[name], name, self._budget.threads, environment)


def _key(row: Row) -> tuple[str, str, str]:
    return row.contender, row.case.map, row.case.scope_name

# SPDX-License-Identifier: Apache-2.0
"""The process in which one contender runs: it reads requests and writes answers, a line of JSON each.

`lambdanet.training.benchmark.process` starts it. Its first answer says what it runs on. Requests: `build` a
case (and call it once), `time` some calls, `memory` of some calls.
"""

import contextlib
import gc
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from lambdanet import errors
from lambdanet.training.benchmark import memory
from lambdanet.training.benchmark.cases import Case

HOMES = {"model": "networks", "peer": "peers"}  # by what a name begins with; others are in `contenders`


class Contender:
    """A contender and the case that it is set up for.

    Args:
      name: such as "position/einsum"; see `HOMES` for the module that has it.
      threads: how many threads it may use.
    """

    def __init__(self, name: str, threads: int):
        home = HOMES.get(name.partition("/")[0], "contenders")
        self._module = importlib.import_module(f"lambdanet.training.benchmark.{home}")
        self._name = name
        self._run: Callable[[], object] | None = None
        self.about = self._module.start(name, threads)
        self.about["counts_memory"] = memory.on_gpu()

    def build(self, case: dict[str, Any]) -> dict[str, Any]:
        """Sets up a case, in the place of the one before, and times its first call."""
        self._run = None
        gc.collect()
        kind = getattr(self._module, "CASE", Case)
        self._run = self._module.CONTENDERS[self._name](kind(**case))
        return self.time(1, False)

    def time(self, calls: int, warm: bool) -> dict[str, Any]:
        """Times calls, after one that is not timed if `warm`: the seconds of one."""
        assert self._run
        if warm:
            self._run()
        start = time.perf_counter()
        for _ in range(calls):
            self._run()
        return {"seconds": (time.perf_counter() - start) / calls}

    def memory(self, calls: int) -> dict[str, Any]:
        """Measures the peak memory of a call."""
        assert self._run
        return {"bytes": memory.peak_bytes(self._run, calls)}


def describe(error: BaseException) -> str:
    """Returns what an exception says, in about 200 characters: TensorFlow names the reason at the end."""
    text = errors.one_line(error)
    return f"{type(error).__name__}: {text if len(text) <= 200 else f'{text[:60]} ... {text[-135:]}'}"


def _answer(answers: TextIO, function: Callable[..., dict[str, Any]], **arguments: Any) -> None:
    try:
        answer = function(**arguments)
    except ModuleNotFoundError as error:
        answer = {"missing": error.name}
    except Exception as error:  # whatever a library raises is the contender's result
        answer = {"error": describe(error)}
    print(json.dumps(answer), file=answers, flush=True)


def main(name: str, threads: int) -> None:
    """Answers requests to a contender until there are no more."""
    # Libraries print what they like to the standard output; it becomes the standard error.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with contextlib.suppress(OSError):  # if memory ends, this process is the one to go
        Path("/proc/self/oom_score_adj").write_text("1000")
    contender: list[Contender] = []

    def start() -> dict[str, Any]:
        contender.append(Contender(name, threads))
        return contender[0].about

    _answer(answers, start)
    gc.disable()  # so that no call is timed with a collection in it
    for line in sys.stdin if contender else ():
        request = json.loads(line)
        _answer(answers, getattr(contender[0], request.pop("do")), **request)

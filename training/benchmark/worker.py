# SPDX-License-Identifier: Apache-2.0
"""The program that runs a contender: reads requests and writes answers, each a line of JSON.

`lambdanet.training.benchmark.contender_process` starts it. The first answer describes the library and device.
Requests: `build` a case (and call it once), `time` calls, measure the `memory` of calls.
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

CONTENDER_MODULES = {  # by prefix; default: `contenders`
    "model": "model_contenders",
    "peer": "peers",
    "timm": "timm_contenders",
    "timm_compiled": "timm_contenders",
}


class Contender:
    """A contender and its current case.

    Args:
      name: the name, such as "position/einsum"; its prefix selects the module, see `CONTENDER_MODULES`.
      threads: the number of threads.
    """

    def __init__(self, name: str, threads: int):
        module = CONTENDER_MODULES.get(name.partition("/")[0], "contenders")
        self._module = importlib.import_module(f"lambdanet.training.benchmark.{module}")
        self._name = name
        self._run: Callable[[], object] | None = None
        self.about = self._module.start(name, threads)
        gc.freeze()  # leaves the modules of the library out of the collections in each case
        self.about["counts_memory"] = memory.on_gpu()

    def build(self, case: dict[str, Any]) -> dict[str, Any]:
        """Builds a case, which replaces the previous one, and times its first call."""
        self._run = None
        gc.collect()
        kind = getattr(self._module, "CASE", Case)
        self._run = self._module.CONTENDERS[self._name](kind(**case))
        gc.collect()  # the model as it was built, where only its form for inference runs
        return self.time(1, False)

    def time(self, calls: int, warm: bool) -> dict[str, Any]:
        """Returns the mean seconds of calls; `warm` adds an untimed call before them."""
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
    """Returns the message of an exception, shortened in the middle: TensorFlow's reason is at the end."""
    text = errors.one_line(error)
    return f"{type(error).__name__}: {text if len(text) <= 200 else f'{text[:60]} ... {text[-135:]}'}"


def _answer(answers: TextIO, function: Callable[..., dict[str, Any]], **arguments: Any) -> None:
    try:
        answer = function(**arguments)
    except ModuleNotFoundError as error:
        answer = {"missing": error.name}
    except Exception as error:  # any error of a library is a result
        answer = {"error": describe(error)}
    print(json.dumps(answer), file=answers, flush=True)


def main(name: str, threads: int) -> None:
    """Answers requests to a contender until the end of the input."""
    # Libraries may print to the standard output, so it becomes the standard error.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with contextlib.suppress(OSError):  # the first process to kill if memory runs out
        Path("/proc/self/oom_score_adj").write_text("1000")
    contender: list[Contender] = []

    def start() -> dict[str, Any]:
        contender.append(Contender(name, threads))
        return contender[0].about

    _answer(answers, start)
    gc.disable()  # no collections during timed calls
    for line in sys.stdin if contender else ():
        request = json.loads(line)
        _answer(answers, getattr(contender[0], request.pop("do")), **request)

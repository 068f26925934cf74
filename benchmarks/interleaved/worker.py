# SPDX-License-Identifier: Apache-2.0
"""The program that runs a contender: reads requests and writes answers, each a line of JSON.

`benchmarks.interleaved.contender_process` starts it. Requests: `about` the library and device, `build`
a case (and call it once), `time` calls, measure the `memory` of calls; or `next_row` of a check of
`benchmarks.device`.
"""

import contextlib
import gc
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.interleaved import memory
from benchmarks.interleaved.cases import Case, InputCase, packages_of
from lambdanet.core import errors

# The module of contenders by the prefix of their names; default: `interleaved.contenders`.
MODULES = {
    "exports": "device.exports",
    "forms": "device.forms",
    "input": "input",
    "model": "interleaved.model_contenders",
    "peer": "interleaved.peers",
    "timm": "interleaved.peers",
    "timm_compiled": "interleaved.peers",
    "training": "device.training",
}


class Contender:
    """A contender, such as "position/einsum", and its current case; its methods answer the requests."""

    def __init__(self, name: str):
        prefix = name.partition("/")[0]
        module = MODULES.get(prefix, "interleaved.contenders")
        self._module = importlib.import_module(f"benchmarks.{module}")
        self._name = name
        self._run: Callable[[], object] = object
        self._rows: Iterator[dict[str, Any]] | None = None
        self._about = self._module.start(name)
        # Leaves the modules of the library out of the collections in each case.
        gc.freeze()

    def about(self) -> dict[str, Any]:
        """Returns the `library`, the `device`, and whether a process that is timed also `counts_memory`."""
        return {**self._about, "counts_memory": self._about["device"] != "CPU"}

    def build(self, case: dict[str, Any]) -> dict[str, Any]:
        """Builds a case, which replaces the previous one, and times its first call."""
        self._run = object
        gc.collect()
        # A case of models is one of the input without pictures.
        self._run = self._module.build(
            self._name, (Case if "height" in case else InputCase)(**case)
        )
        # The model as it was built, where only its form for inference runs.
        gc.collect()
        return self.time(1, False)

    def time(self, calls: int, warm: bool) -> dict[str, Any]:
        """Returns the mean seconds of calls; `warm` adds an untimed call before them."""
        if warm:
            self._run()
        start = time.perf_counter()
        for _ in range(calls):
            self._run()
        return {"seconds": (time.perf_counter() - start) / calls}

    def memory(self, calls: int) -> dict[str, Any]:
        """Measures the peak memory of a call; on an accelerator, of TensorFlow alone."""
        on_tensorflow = self._about["library"].startswith("tensorflow")
        if self._about["device"] != "CPU" and not on_tensorflow:
            return {"bytes": None}
        return {"bytes": memory.peak_bytes(self._run, calls)}

    def next_row(self) -> dict[str, Any]:
        """Returns the next `row` of a check; None after the last."""
        if self._rows is None:
            self._rows = self._module.rows(self._name)
        return {"row": next(self._rows, None)}


def describe(error: BaseException, name: str) -> str:
    """Returns the message of an exception, shortened in the middle: TensorFlow's reason is at the end."""
    if isinstance(error, ModuleNotFoundError):
        packages = " ".join(packages_of(name))
        return f"not installed: no module {error.name!r}; pip install {packages}"
    text = errors.one_line(error)
    return f"{type(error).__name__}: {text if len(text) <= 200 else f'{text[:60]} ... {text[-135:]}'}"


def main(name: str) -> None:
    """Answers requests to a contender until the end of the input."""
    # Libraries may print to the standard output, so it becomes the standard error.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with contextlib.suppress(OSError):  # the first process to kill if memory runs out
        Path("/proc/self/oom_score_adj").write_text("1000")
    contender = None
    failure = {}
    try:
        contender = Contender(name)
    except Exception as error:  # any error of a library is a result
        failure = {"error": describe(error, name)}
    gc.disable()  # no collections during timed calls
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = (
                getattr(contender, request.pop("do"))(**request)
                if contender
                else failure
            )
        except Exception as error:
            answer = {"error": describe(error, name)}
        print(json.dumps(answer), file=answers, flush=True)

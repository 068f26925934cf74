# SPDX-License-Identifier: Apache-2.0
"""The process of a contender, as the comparing process sees it."""

import contextlib
import json
import os
import select
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lambdanet import errors
from lambdanet.training.benchmark.cases import MODEL_PEERS, PEER_PACKAGES

START_SECONDS = 300  # enough to import a library on a busy machine

# The program of the process. The folder of this package comes last in sys.path, so that the interpreter's own
# packages take precedence over those beside it.
_PROGRAM = """\
import sys
sys.path.append(sys.argv[3])
from lambdanet.training.benchmark.worker import main
main(sys.argv[1], int(sys.argv[2]))
"""


class ContenderFailed(Exception):
    """A contender without a result; the message is the reason, one line."""


class ContenderProcess:
    """A process that runs `lambdanet.training.benchmark.worker` for one contender.

    The constructor starts the process and does not wait; `about` does.

    Args:
      python: the interpreter.
      name: the name of the contender.
      threads: the number of threads.
      environment: additional environment variables.
    """

    def __init__(self, python: str, name: str, threads: int, environment: Mapping[str, str]):
        self._errors = tempfile.TemporaryFile()
        folder = Path(errors.__file__).resolve().parents[1]
        self._process = subprocess.Popen(
            [python, "-c", _PROGRAM, name, str(threads), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={
                **os.environ,
                "OMP_NUM_THREADS": str(threads),
                "TF_NUM_INTRAOP_THREADS": str(threads),
                "TF_NUM_INTEROP_THREADS": str(threads),
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "TF_FORCE_GPU_ALLOW_GROWTH": "true",
                **environment,
            },
        )
        self._name = name
        self._about: dict[str, Any] | None = None
        self._failure: ContenderFailed | None = None

    def about(self) -> dict[str, Any]:
        """Waits until the process is ready, and returns its description.

        Returns:
          `library` and `device`, and `counts_memory`: whether the process that is timed can measure memory.

        Raises:
          ContenderFailed: the library is not installed, or the process does not start.
        """
        if self._failure:
            raise self._failure
        if self._about is None:
            try:
                self._about = self._read(START_SECONDS)
            except ContenderFailed as failure:
                self._failure = failure
                raise
        return self._about

    def was_ready(self) -> bool:
        """Whether the process has started and accepted requests."""
        return self._about is not None

    def request(self, do: str, timeout: float, **arguments: Any) -> dict[str, Any]:
        """Sends a request and returns the answer.

        Args:
          do: the request: "build", "time" or "memory".
          timeout: the time limit in seconds, after which the process is killed.
          **arguments: the arguments of the request.

        Raises:
          ContenderFailed: the answer is an error, or there is none.
        """
        self.about()
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ContenderFailed(self._exit_reason()) from None
        return self._read(timeout)

    def is_alive(self) -> bool:
        """Whether the process is running."""
        return self._process.poll() is None

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(BrokenPipeError):  # an unread request
                if stream:
                    stream.close()

    def _read(self, timeout: float) -> dict[str, Any]:
        assert self._process.stdout
        ready, _, _ = select.select([self._process.stdout], [], [], timeout)
        if not ready:
            self._process.kill()
            self._process.wait()
            raise ContenderFailed(f"stopped after {timeout:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise ContenderFailed(self._exit_reason())
        answer = json.loads(line)
        if "missing" in answer:
            prefix = self._name.partition("/")[0]
            packages = " ".join(PEER_PACKAGES.get(self._name) or MODEL_PEERS.get(prefix, ()))
            raise ContenderFailed(
                f"not installed: no module {answer['missing']!r}; pip install {packages}, or --peers_python"
            )
        if "error" in answer:
            raise ContenderFailed(answer["error"])
        return answer

    def _exit_reason(self) -> str:
        """Returns why the process has ended."""
        status = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        if status == -9:
            return "killed by the system, probably out of memory"
        return f"ended with status {status}" + (f": {lines[-1].strip()[:200]}" if lines else "")

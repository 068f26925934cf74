# SPDX-License-Identifier: Apache-2.0
"""The process of a contender, as the comparing process sees it."""

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

START_SECONDS = 300  # enough to import a library on a busy machine

# The program of the process, which may start in any folder. That of this package comes last in sys.path, so
# that installed packages take precedence over those beside it.
_PROGRAM = """\
import sys
sys.path.append(sys.argv[2])
from benchmarks.interleaved.worker import main
main(sys.argv[1])
"""


class ContenderFailed(Exception):
    """A contender without a result; the message is the reason, one line."""


class ContenderProcess:
    """A process that runs `benchmarks.interleaved.worker` for one contender.

    A name that ends with " on jax" or another backend of Keras runs on that one, others as in this process;
    " with NAME=VALUE" sets a variable of its environment.
    The constructor starts it, with additional variables in its environment, and does not wait; `about` does.
    """

    def __init__(self, name: str, environment: Mapping[str, str]):
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        folder = str(Path(__file__).resolve().parents[2])
        variables = {
            "TF_CPP_MIN_LOG_LEVEL": "3",
            # Several processes share a GPU.
            "TF_FORCE_GPU_ALLOW_GROWTH": "true",
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        }
        contender, _, setting = name.partition(" with ")
        if setting:
            variable, _, value = setting.partition("=")
            variables[variable] = value
        contender, _, backend = contender.partition(" on ")
        if backend:
            variables["KERAS_BACKEND"] = backend
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, contender, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **variables, **environment},
            bufsize=0,
        )

    def about(self) -> dict[str, Any]:
        """Waits until the process is ready, and returns `library`, `device` and `counts_memory`."""
        return self.request("about", START_SECONDS)

    def request(self, do: str, timeout: float, **arguments: Any) -> dict[str, Any]:
        """Sends "about", "build", "time", "memory" or "next_row", and returns the answer.

        Raises:
          ContenderFailed: the answer is an error, or there is none in `timeout` seconds; it is killed.
        """
        assert self._process.stdin and self._process.stdout
        with contextlib.suppress(BrokenPipeError):  # the process has ended
            self._process.stdin.write(
                json.dumps({"do": do, **arguments}).encode() + b"\n"
            )
        if not select.select([self._process.stdout], [], [], timeout)[0]:
            self._process.kill()
            self._process.wait()
            raise ContenderFailed(f"stopped after {timeout:.0f} s")
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"error": self._exit_reason()}
        if "error" in answer:
            raise ContenderFailed(answer["error"])
        return answer

    def is_alive(self) -> bool:
        """Whether the process is running."""
        return self._process.poll() is None

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def _exit_reason(self) -> str:
        """Returns why the process has ended."""
        status = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        if status == -9:
            return "killed by the system, probably out of memory"
        return f"ended with status {status}" + (
            f": {lines[-1].strip()[:200]}" if lines else ""
        )

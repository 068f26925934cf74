# SPDX-License-Identifier: Apache-2.0
"""A run of a job on this machine in a group of processes, which ends together.

Where a worker is killed, Beam may wait for it forever: then its group is killed, as it is where the process
that began it ends.
"""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from typing import Any

from lambdanet.errors import InputError
from lambdanet.training.inference.watch import POLL_SECONDS, Watch

GRACE_SECONDS = 3.0  # in which Beam may raise the error of a worker that ended
THREADS = "TF_NUM_INTRAOP_THREADS"
INPUT_ERROR, DONE = "InputError: ", "done"


def run(job: Any, num_workers: int, watch: Watch) -> bool:
    """Runs a `Job`, and returns whether it is finished; its processes share the cores."""
    threads = max(1, (os.cpu_count() or 1) // max(1, num_workers))
    # Beam leaves files of processes that are killed
    with tempfile.TemporaryDirectory() as temporary:
        process = subprocess.Popen(
            [sys.executable, "-m", "lambdanet.training.inference.attempt"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={THREADS: str(threads), **os.environ, "TMPDIR": temporary},
        )
        with process:
            assert process.stdin and process.stdout
            try:
                process.stdin.write(pickle.dumps(job))
                process.stdin.flush()
                while process.poll() is None:
                    time.sleep(POLL_SECONDS)
                    watch.update()
                watch.update()
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            outcome = process.stdout.read().decode(errors="replace")
    if outcome.startswith(INPUT_ERROR):
        raise InputError(outcome.removeprefix(INPUT_ERROR))
    if outcome and outcome != DONE:
        raise RuntimeError(outcome)
    return outcome == DONE


def main() -> None:
    """Runs the job that it reads from stdin, and writes the outcome to stdout: DONE, or an error."""
    job = pickle.load(sys.stdin.buffer)
    with os.fdopen(os.dup(1), "w", errors="backslashreplace") as stdout:
        os.dup2(2, 1)
        threading.Thread(target=_end_with_parent, daemon=True).start()
        threading.excepthook = _end_after_worker
        try:
            job.execute()
            outcome = DONE
        except InputError as error:
            outcome = f"{INPUT_ERROR}{error}"
        except BaseException:
            outcome = traceback.format_exc()
        stdout.write(outcome)
    os._exit(0)  # some threads of Beam do not end


def _end_with_parent() -> None:
    sys.stdin.buffer.read()  # until the parent ends
    os.killpg(0, signal.SIGKILL)


def _end_after_worker(arguments: Any) -> None:
    """Ends the group after a thread of Beam whose worker process has ended."""
    if "Worker subprocess exited" in str(arguments.exc_value):
        time.sleep(GRACE_SECONDS)
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()

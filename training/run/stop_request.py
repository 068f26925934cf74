# SPDX-License-Identifier: Apache-2.0
"""The request to stop a run once it is saved: what SIGTERM and Ctrl-C do."""

import os
import signal
import threading
from typing import Any

STOPPING = "stopping after this step, which is saved first; {} again ends at once\n"


class StopRequest:
    """A context in which the first SIGTERM and SIGINT are recorded and do not end the process.

    A line says so at once, from a thread of its own: Python calls the handlers of signals between the
    operations of the main thread, and the first step compiles for minutes in one. A second SIGTERM ends the
    process, also then. A second SIGINT acts as before the context, or ends the process while the first one
    waits. A process that ignores SIGINT, as one in the background of a script, continues to ignore it. The
    context has no effect outside of the main thread, where signals cannot be handled.

    Attributes:
      received: whether a signal was received.
      name: the signal in messages, "SIGTERM" or "Ctrl-C".
      status: the exit status of the process, 75 or 130.

    Example:
      >>> with StopRequest() as stop:
      ...     while not stop.received:
      ...         work()
    """

    def __init__(self) -> None:
        self.received = False
        self.name = "SIGTERM"
        self.status = 75
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            reading, self._signals = os.pipe()
            os.set_blocking(self._signals, False)
            self._wakeup = signal.set_wakeup_fd(self._signals)
            self._answers = threading.Thread(target=self._answer, args=[reading])
            self._answers.daemon = True
            self._answers.start()
            self._before[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._record)
            if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
                self._before[signal.SIGINT] = signal.signal(signal.SIGINT, self._record)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._before:
            signal.set_wakeup_fd(self._wakeup)
            os.close(self._signals)
            self._answers.join()

    def _record(self, signum: int, frame: object) -> None:
        del frame
        self.received = True
        if signum == signal.SIGINT:
            self.name = "Ctrl-C"
            self.status = 130
            signal.signal(signum, self._before[signum])

    def _answer(self, signals: int) -> None:
        """Prints a line for the first signal of a kind, and ends the process at a second one.

        A second Ctrl-C is left to its handler, unless the main thread has not even come to the first one.

        Args:
          signals: a pipe into which the number of each signal is written as it arrives, which is closed here.
        """
        names: dict[int, str] = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "Ctrl-C"}
        with open(signals, "rb", buffering=0) as pipe:
            while arrived := pipe.read(1):
                number = arrived[0]
                if name := names.pop(number, ""):
                    # Not by a stream, which may be in the middle of a line.
                    os.write(2, STOPPING.format(name).encode())
                elif number == signal.SIGTERM or not self.received:
                    os._exit(128 + number)  # as a shell reports a signal

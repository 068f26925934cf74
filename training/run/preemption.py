# SPDX-License-Identifier: Apache-2.0
"""Requests to stop by SIGTERM or Ctrl-C, which a run follows after the current step, once it is saved."""

import os
import signal
import threading
from typing import Any

INTERRUPTED = (
    b"stopping after this step, which is saved first; Ctrl-C again ends at once\n"
)


class StopRequest:
    """A context in which SIGTERM and the first SIGINT are recorded and do not end the process.

    A second SIGINT acts as before the context. A process that ignores SIGINT, as one in the background of a
    script, continues to ignore it. The context has no effect outside of the main thread, where signals cannot
    be handled.

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
            self._before[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._record)
            if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
                self._before[signal.SIGINT] = signal.signal(signal.SIGINT, self._record)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _record(self, signum: int, frame: object) -> None:
        del frame
        self.received = True
        if signum == signal.SIGINT:
            self.name = "Ctrl-C"
            self.status = 130
            signal.signal(signum, self._before[signum])
            # A handler must not use a stream, which may be in the middle of a line.
            os.write(2, INTERRUPTED)

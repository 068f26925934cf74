# SPDX-License-Identifier: Apache-2.0
"""Requests to stop by SIGTERM, which a run follows after the current step, once it is saved."""

import signal
import threading
from typing import Any


class StopRequest:
    """A context in which SIGTERM is recorded and does not end the process.

    It has no effect outside of the main thread, where signals cannot be handled.

    Attributes:
      received: whether SIGTERM was received.

    Example:
      >>> with StopRequest() as stop:
      ...     while not stop.received:
      ...         work()
    """

    def __init__(self) -> None:
        self.received = False
        self._before: Any = None

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._record)
        return self

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def _record(self, signum: int, frame: object) -> None:
        del signum, frame
        self.received = True

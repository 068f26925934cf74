# SPDX-License-Identifier: Apache-2.0
"""SIGTERM asks a run to stop; the run does so at its next step, once what it has reached is saved."""

import signal
import threading
from typing import Any


class StopRequest:
    """Notes SIGTERM, instead of dying of it, for as long as it is entered.

    Outside of the main thread, where no signal can be handled, it changes nothing.

    Attributes:
      received: whether SIGTERM has come.

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
            self._before = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def _note(self, signum: int, frame: object) -> None:
        del signum, frame
        self.received = True

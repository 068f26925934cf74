# SPDX-License-Identifier: Apache-2.0
"""A terminal instead of the standard error, for tests of progress bars."""

import contextlib
import os
import pty
import termios
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def terminal_as_stderr() -> Iterator[bytearray]:
    """Yields the bytes that the terminal, of 80 columns, was sent; they are complete after the context."""
    # A thread reads up to a mark at the end: writers wait while about 4 KiB are unread.
    ours, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 80))
    shown, end, before = bytearray(), b"\0", os.dup(2)

    def read() -> None:
        while not shown.endswith(end):
            shown.extend(os.read(ours, 4096))

    reader = threading.Thread(target=read)
    reader.start()
    os.dup2(terminal, 2)
    try:
        with open(2, "w", closefd=False) as stderr, contextlib.redirect_stderr(stderr):
            yield shown
    finally:
        os.dup2(before, 2)
        os.write(terminal, end)
        reader.join()
        shown.pop()
        for file in (ours, terminal, before):
            os.close(file)

# SPDX-License-Identifier: Apache-2.0
"""A lock that keeps a second run out of a folder.

It is a lock of the kernel on an open file, so it ends with the process in any case; on NFS it holds between
hosts. The file names the process, for the message of the second run.
"""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import filelock

from lambdanet.errors import InputError

FILE = ".lock"


@contextlib.contextmanager
def locked(model_dir: Path, name: str = "model_dir") -> Iterator[None]:
    """Holds the lock of a folder, which is created if needed, and removed again if it stays empty.

    `InputError` where another run, in any process, holds the lock, or the folder cannot be written; `name`
    is that of the folder in messages.
    """
    created = [path for path in (model_dir, *model_dir.parents) if not path.exists()]
    file = model_dir / FILE
    process = os.getpid()
    try:
        model_dir.mkdir(parents=True, exist_ok=True)
        file.touch()
    except OSError as error:
        raise InputError(
            f"{name} {str(model_dir)!r} cannot be written: {error}"
        ) from None
    # It tries again for a moment, because a run that ends removes its file.
    lock = filelock.FileLock(
        file, timeout=0.1, poll_interval=0.02, fallback_to_soft=False
    )
    _acquire(lock, model_dir, name)
    file.write_text(f"process {process} on host {socket.gethostname()!r}\n")
    own = file.stat()
    try:
        yield
    finally:
        if os.getpid() == process:  # not in a forked child
            with contextlib.suppress(OSError):
                if os.path.samestat(own, file.stat()):
                    file.unlink()
                for path in created:
                    path.rmdir()
            lock.release()


def _acquire(lock: filelock.BaseFileLock, model_dir: Path, name: str) -> None:
    try:
        lock.acquire()
    except filelock.Timeout:
        holder = ""
        with contextlib.suppress(OSError):
            holder = (model_dir / FILE).read_text(errors="replace")[:200].strip()
        raise InputError(
            f"{name} {str(model_dir)!r} is in use by {holder or 'another process'}"
        ) from None
    except OSError as error:
        print(
            f"{name} {str(model_dir)!r} is on a file system without locks ({error}): "
            "a second run in it cannot be detected",
            flush=True,
        )

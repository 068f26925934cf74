# SPDX-License-Identifier: Apache-2.0
"""A lock that keeps a second run out of a model_dir.

It is a lock of the kernel on an open file, so it ends with the process in any case; on NFS it holds between
hosts. The file names the process, for the message of the second run.
"""

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from lambdanet.errors import InputError

FILE = ".lock"

_held: set[IO[bytes]] = set()  # locks of runs in this process


def _close_all() -> None:
    while _held:
        _held.pop().close()


os.register_at_fork(after_in_child=_close_all)  # or a child keeps the lock when its parent is killed


@contextlib.contextmanager
def locked(model_dir: Path) -> Iterator[None]:
    """Holds the lock of a model_dir, which is created if needed, and removed again if it stays empty.

    Raises:
      InputError: another run, in any process, holds the lock, or the folder cannot be written.
    """
    created = [path for path in (model_dir, *model_dir.parents) if not path.exists()]
    try:
        model_dir.mkdir(parents=True, exist_ok=True)
        file = _lock(model_dir)
    except OSError as error:
        raise InputError(f"model_dir {str(model_dir)!r} cannot be written: {error}") from None
    _held.add(file)
    try:
        yield
    finally:
        if file in _held:  # not in a forked child
            _held.remove(file)
            with contextlib.suppress(OSError):
                if _is_at(file, model_dir / FILE):
                    (model_dir / FILE).unlink()
                for path in created:
                    path.rmdir()
            file.close()


def _lock(model_dir: Path) -> IO[bytes]:
    while True:
        file = (model_dir / FILE).open("a+b", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read(200).decode(errors="replace").strip() or "another process"
            file.close()
            raise InputError(f"model_dir {str(model_dir)!r} is in use by {holder}") from None
        except OSError as error:
            print(
                f"model_dir {str(model_dir)!r} is on a file system without locks ({error}): "
                "a second run in it cannot be detected",
                flush=True,
            )
        if _is_at(file, model_dir / FILE):
            break
        file.close()  # its holder has just deleted it
    file.truncate(0)
    file.write(f"process {os.getpid()} on host {socket.gethostname()!r}\n".encode())
    return file


def _is_at(file: IO[bytes], path: Path) -> bool:
    return path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat())

# SPDX-License-Identifier: Apache-2.0
"""Files and folders that are written completely or not at all, and by one process at a time."""

import contextlib
import os
import re
import socket
import tempfile
import uuid
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from lambdanet.core.errors import InputError, invalid

# The chunk after the header of the PNG files that `write_output` writes, and the beginning of such a file.
_TEXT = b"tEXtSoftware\0lambdanet"
PNG_MARK = (len(_TEXT) - 4).to_bytes(4) + _TEXT + zlib.crc32(_TEXT).to_bytes(4)
REMOTE = ("gs://", "file://", "ram://")  # that TensorFlow reads and writes
LOCK = ".lock"  # in a folder that `locked` holds
MARKED_PNG = rb"\x89PNG.{29}" + re.escape(PNG_MARK)


def cache_dir() -> Path:
    """Returns the folder of named and converted weights: $LAMBDANET_HOME, or ~/.cache/lambdanet.

    Raises:
      InputError: the path, or a parent, is a file.
    """
    home = os.environ.get("LAMBDANET_HOME") or "~/.cache/lambdanet"
    path = local_path(home, "LAMBDANET_HOME")
    existing = next(part for part in (path, *path.parents) if part.exists())
    if not existing.is_dir():
        raise invalid(
            "LAMBDANET_HOME", "a folder", str(path), f"{str(existing)!r} is a file"
        )
    return path


@contextlib.contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """Yields a temporary path to write to, which is renamed to `path` at the end and removed on failure."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_atomic(path: str | Path, content: bytes | str) -> None:
    """Writes a file, text as UTF-8, so that no reader ever sees a part of it.

    Raises:
      OSError: it cannot be written; a file that was there before stays as it was.
    """
    content = content.encode() if isinstance(content, str) else content
    if "://" in str(path):
        _write_remote(str(path), content)
        return
    try:
        with atomic_file(path) as temporary:
            temporary.write_bytes(content)
    except OSError as error:  # which has no name of the file, where the disk is full
        reason = error.strerror or str(error)
        raise OSError(error.errno, reason, str(path)) from None


def _write_remote(path: str, content: bytes) -> None:
    """Writes a file to a remote file system, such as gs://, and then renames it."""
    import tensorflow as tf

    temporary = f"{path}.{uuid.uuid4().hex[:8]}.partial"
    try:
        with tf.io.gfile.GFile(temporary, "wb") as file:
            file.write(content)
        tf.io.gfile.rename(temporary, path, overwrite=True)
    except tf.errors.OpError as error:
        raise OSError(error.message) from error


def read_remote(path: str) -> bytes:
    """Returns the content of a file, which may be on a remote file system.

    Raises:
      tf.errors.OpError: it cannot be read.
    """
    import tensorflow as tf

    with tf.io.gfile.GFile(path, "rb") as file:
        return file.read()


def write_output(path: str | Path, content: bytes | str) -> None:
    """Writes a file that the user asked for, completely or not at all, and makes its folder.

    Args:
      path: the file; its folder is made.
      content: what it contains; text is written as UTF-8, and PNG is marked as ours (`PNG_MARK`).

    Raises:
      InputError: it cannot be written.
    """
    if isinstance(content, bytes) and content.startswith(b"\x89PNG"):
        content = content[:33] + PNG_MARK + content[33:]
    try:
        if "://" not in str(path):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content)
    except OSError as error:
        raise InputError(
            f"out {str(path)!r} cannot be written ({error.strerror or error})"
        ) from error


def check_replaceable(path: str | Path, beginning: bytes, name: str = "out") -> None:
    """Raises `InputError` where an output exists already and the same command did not write it.

    Args:
      path: the file, which may also be empty.
      beginning: a regular expression for the beginning of such a file: `MARKED_PNG`, or a table's header.
      name: the argument or flag that has the path, for the message.
    """
    path = Path(path)
    is_own = False
    with contextlib.suppress(OSError):
        if is_own := path.is_file():
            with path.open("rb") as file:
                is_own = bool(
                    re.match(beginning + rb"|\Z", file.read(2**20), re.DOTALL)
                )
    if path.exists() and not is_own:
        raise InputError(
            f"{name} {str(path)!r} exists, and this command did not write it; remove or rename it"
        )


def writable_dir(
    folder: Path, files: Mapping[str, bytes] | None = None, name: str = "out"
) -> Path:
    """Makes the folder of an argument or variable, and checks that files can be written in it.

    Args:
      folder: the folder.
      files: the files that will be written: their names, and the beginning of each, as in
        `check_replaceable`.
      name: the argument, flag or variable that has the path, for the message.

    Returns:
      The folder.

    Raises:
      InputError: they cannot, or one of `files` (names and beginnings) fails `check_replaceable`.
    """
    for file, beginning in (files or {}).items():
        check_replaceable(folder / file, beginning, name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        reason = error.strerror or error
        raise InputError(
            f"{name} {str(folder)!r} cannot be written ({reason}); expected a folder"
        ) from error
    return folder


def local_path(path: str | Path, name: str) -> Path:
    """Returns the path of an argument that must be on this machine; `InputError` for one such as s3://.

    Args:
      path: the path; a tilde is the home folder.
      name: the argument, flag or variable that has it, for the message.
    """
    if "://" in str(path):
        raise invalid(name, "a path on this machine", str(path))
    return Path(path).expanduser()


def absolute(path: str | Path) -> str:
    """Makes a local path absolute; one on a file system of TensorFlow, such as gs://, is returned unchanged.

    `InputError` for others, such as s3://.
    """
    path = str(path)
    if "://" not in path:
        return os.path.abspath(os.path.expanduser(path))
    if not path.startswith(REMOTE):
        raise invalid("path", f"on this machine or {REMOTE[0]}...", path)
    return path.rstrip("/")


def check_output_dir(path: str | Path, accepts_remote: bool = False) -> None:
    """Raises `InputError` where a path is a file, or a folder with something in it.

    Args:
      path: the folder.
      accepts_remote: whether it may be on a remote file system.
    """
    import tensorflow as tf

    if not accepts_remote:
        local_path(path, "out")
    path = absolute(path)
    if not tf.io.gfile.exists(path):
        return
    if not tf.io.gfile.isdir(path):
        raise InputError(
            f"out {path!r} is a file; give a folder that does not exist yet"
        )
    if tf.io.gfile.listdir(path):
        raise InputError(
            f"out {path!r} is not empty; give another folder, or remove this one first"
        )


def check_outside(out: str | Path, folder: str | Path) -> None:
    """Raises `InputError` where an output is in a folder of inputs, among which it would be found later."""
    is_local = "://" not in str(out)
    if is_local and Path(absolute(out)).resolve().is_relative_to(
        Path(folder).resolve()
    ):
        raise invalid("out", f"a path outside of the data in '{folder}'", str(out))


@contextlib.contextmanager
def atomic_dir(path: str) -> Iterator[str]:
    """Yields a new folder, which is renamed to `path` at the end and removed if anything fails.

    Args:
      path: the folder to write, which may be on a remote file system.

    Raises:
      InputError: the folder cannot be written.
    """
    import tensorflow as tf

    staging = f"{path}.partial-{uuid.uuid4().hex[:8]}"
    try:
        tf.io.gfile.makedirs(staging)
        yield staging
        tf.io.gfile.rename(staging, path, overwrite=True)
    except (OSError, tf.errors.OpError) as error:
        raise InputError(
            f"out {path!r} cannot be written: {getattr(error, 'message', error)}"
        ) from error
    finally:
        with contextlib.suppress(tf.errors.NotFoundError):
            tf.io.gfile.rmtree(staging)


@contextlib.contextmanager
def locked(folder: Path, name: str = "model_dir") -> Iterator[None]:
    """Keeps a second run out of a folder, which is created if needed, and removed again if it stays empty.

    It is a lock of the kernel on an open file, so it ends with the process in any case; on NFS it holds
    between hosts. The file names the process, for the message of the second run.

    Args:
      folder: the path of the folder.
      name: the name of the folder in messages.

    Raises:
      InputError: another run, in any process, holds the lock, or the folder cannot be written.
    """
    import filelock

    created = [path for path in (folder, *folder.parents) if not path.exists()]
    file = folder / LOCK
    process = os.getpid()
    failure = f"{name} {str(folder)!r} cannot be written"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file.touch()
    except OSError as error:
        raise InputError(f"{failure}: {error}") from None
    # It tries again for a moment, because a run that ends removes its file.
    lock = filelock.FileLock(
        file, timeout=0.1, poll_interval=0.02, fallback_to_soft=False
    )
    try:
        lock.acquire()
    except filelock.Timeout:
        holder = ""
        with contextlib.suppress(OSError):
            holder = file.read_text(errors="replace")[:200].strip()
        raise InputError(
            f"{name} {str(folder)!r} is in use by {holder or 'another process'}"
        ) from None
    except OSError as error:
        print(
            f"{name} {str(folder)!r} is on a file system without locks ({error}): "
            "a second run in it cannot be detected",
            flush=True,
        )
    own = file.stat()
    try:
        try:
            file.write_text(f"process {process} on host {socket.gethostname()!r}\n")
        except OSError as error:
            raise InputError(f"{failure}: {LOCK}: {error}") from None
        yield
    finally:
        if os.getpid() == process:  # not in a forked child
            with contextlib.suppress(OSError):
                if os.path.samestat(own, file.stat()):
                    file.unlink()
                for path in created:
                    path.rmdir()
            lock.release()

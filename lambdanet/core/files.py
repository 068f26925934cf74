# SPDX-License-Identifier: Apache-2.0
"""Files and folders that are written completely or not at all, and by one process at a time."""

import contextlib
import os
import socket
import tempfile
import uuid
from collections.abc import Collection, Iterator
from pathlib import Path

from lambdanet.core.errors import InputError, invalid

REMOTE = ("gs://", "file://", "ram://")  # that TensorFlow reads and writes
LOCK = ".lock"  # in a folder that `locked` holds


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
      content: what it contains; text is written as UTF-8.

    Raises:
      InputError: it cannot be written.
    """
    try:
        if "://" not in str(path):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content)
    except OSError as error:
        raise InputError(
            f"out {str(path)!r} cannot be written ({error.strerror or error})"
        ) from error


def check_new(path: str | Path, overwrite: bool) -> None:
    """Raises `InputError` where an output exists, before anything is computed for it.

    Args:
      path: the file.
      overwrite: whether a file may be replaced; anything else, such as a folder, may not.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        raise invalid("out", "a path for a file", str(path))
    if path.exists() and not overwrite:
        raise InputError(f"out {str(path)!r} exists; --overwrite replaces it")


def writable_dir(folder: Path, name: str = "out") -> Path:
    """Makes the folder of an argument or variable, and checks that files can be written in it.

    Args:
      folder: the folder.
      name: the argument, flag or variable that has the path, for the message.

    Returns:
      The folder.

    Raises:
      InputError: they cannot.
    """
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


def check_output_dir(
    path: str | Path,
    accepts_remote: bool = False,
    files: Collection[str] = (),
    overwrite: bool = False,
) -> None:
    """Raises `InputError` where a path is a file, or a folder with something in it.

    Args:
      path: the folder.
      accepts_remote: whether it may be on a remote file system.
      files: the names of the files and folders that will be written in it.
      overwrite: whether a folder that has only some of these may be replaced.
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
    # On some file systems, the names of folders end in a slash.
    found = sorted(name.rstrip("/") for name in tf.io.gfile.listdir(path))
    for name in found:
        if name not in files:
            raise InputError(
                f"out {path!r} is not empty, it has {name!r}; give another folder"
            )
    for name in files:
        if name in found and not overwrite:
            raise InputError(
                f"out '{path}/{name}' exists; --overwrite replaces the folder"
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

    A folder that has files at the begin is removed when the new one is in its place: `check_output_dir` comes
    before, and refuses those that may not be replaced.

    Args:
      path: the folder to write, which may be on a remote file system.

    Raises:
      InputError: the folder cannot be written.
    """
    import tensorflow as tf

    if "://" not in path:
        path = os.path.realpath(path)  # a link stays
    staging = f"{path}.partial-{uuid.uuid4().hex[:8]}"
    try:
        replaces = tf.io.gfile.isdir(path) and tf.io.gfile.listdir(path)
        tf.io.gfile.makedirs(staging)
        yield staging
        if replaces:
            _replace_dir(path, staging)
        else:
            tf.io.gfile.rename(staging, path, overwrite=True)
    except (OSError, tf.errors.OpError) as error:
        raise InputError(
            f"out {path!r} cannot be written: {getattr(error, 'message', error)}"
        ) from error
    finally:
        with contextlib.suppress(tf.errors.NotFoundError):
            tf.io.gfile.rmtree(staging)


def _replace_dir(path: str, replacement: str) -> None:
    """Renames a folder to the path of another, which is removed when that has been done."""
    import tensorflow as tf

    replaced = f"{path}.replaced-{uuid.uuid4().hex[:8]}"
    tf.io.gfile.rename(path, replaced)
    try:
        tf.io.gfile.rename(replacement, path)
    finally:
        if not tf.io.gfile.exists(path):
            tf.io.gfile.rename(replaced, path)
    tf.io.gfile.rmtree(replaced)


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

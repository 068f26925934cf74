# SPDX-License-Identifier: Apache-2.0
"""Writes a file whole or not at all; needs nothing but the standard library."""

import contextlib
import os
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

from lambdanet.errors import InputError


def writable(folder: Path) -> Path:
    """Makes a folder and sees that files can be written there, before anything that takes time.

    Raises:
      InputError: they cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"out {str(folder)!r} cannot be written ({reason}); expected a folder") from error
    return folder


def replace_file(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all.

    Raises:
      InputError: it cannot be written.
    """
    partial = path.with_name(f"{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(content)
        os.replace(partial, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise InputError(f"out {str(path)!r} cannot be written ({error.strerror or error})") from error


def absolute(path: str | Path) -> str:
    """Makes a local path absolute; one with a scheme, such as gs://, stays as it is."""
    path = str(path)
    return path.rstrip("/") if "://" in path else os.path.abspath(os.path.expanduser(path))


def refuse_taken(out: str | Path) -> None:
    """Raises `InputError` where `out` is a file, or a folder with something in it."""
    path = absolute(out)
    if not tf.io.gfile.exists(path):
        return
    if not tf.io.gfile.isdir(path):
        raise InputError(f"out {path!r} is a file; give a folder that does not exist yet")
    if tf.io.gfile.listdir(path):
        raise InputError(f"out {path!r} is not empty; give another folder, or remove this one first")


@contextlib.contextmanager
def staged(path: str) -> Iterator[str]:
    """Yields a folder beside `path` that takes its place at the end, and is gone if anything fails.

    Raises:
      InputError: the folder cannot be written.
    """
    staging = f"{path}.partial-{uuid.uuid4().hex[:8]}"
    try:
        tf.io.gfile.makedirs(staging)
        yield staging
        tf.io.gfile.rename(staging, path, overwrite=True)
    except (OSError, tf.errors.OpError) as error:
        raise InputError(f"out {path!r} cannot be written: {getattr(error, 'message', error)}") from error
    finally:
        if tf.io.gfile.exists(staging):
            tf.io.gfile.rmtree(staging)

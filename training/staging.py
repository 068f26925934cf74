# SPDX-License-Identifier: Apache-2.0
"""Writes a folder whole or not at all."""

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

from lambdanet.errors import InputError


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

# SPDX-License-Identifier: Apache-2.0
"""Writes a file whole or not at all; needs nothing but the standard library."""

import contextlib
import os
import tempfile
from pathlib import Path

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

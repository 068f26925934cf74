# SPDX-License-Identifier: Apache-2.0
"""Names of classes: read from a file with one a line, checked, and compared."""

import itertools
from collections.abc import Sequence
from pathlib import Path

from lambdanet.errors import InputError


def read(path: str | Path) -> list[str]:
    """Returns the lines of a file of class names in UTF-8, which end at newlines alone.

    Raises:
      InputError: the file cannot be read.
    """
    try:
        return Path(path).read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, ValueError) as error:
        raise InputError(f"{str(path)!r} cannot be read: {error}") from None


def check(names: Sequence[str], owner: str) -> None:
    """Refuses names that cannot be written one a line: blank ones, line breaks, and bytes that are not UTF-8.

    Args:
      names: in the order of the labels.
      owner: what has these classes, for the message.

    Raises:
      InputError: with the first such name.
    """
    for index, name in enumerate(names):
        if not isinstance(name, str) or not name.strip() or name.splitlines() != [name] or not is_utf8(name):
            raise InputError(f"class {index} of {owner} must be a name of one line in UTF-8, got {name!r}")


def check_equal(names: Sequence[str], accepted: Sequence[str], owner: str, reference: str) -> None:
    """Refuses classes that are not those of something else.

    Args:
      names: in the order of the labels.
      accepted: the names that they must be.
      owner: what has the first ones, for the message.
      reference: what has the others.

    Raises:
      InputError: with the first class that differs.
    """
    pairs = itertools.zip_longest(map(repr, names), map(repr, accepted), fillvalue="none")
    for index, (found, wanted) in enumerate(pairs):
        if found != wanted:
            raise InputError(f"class {index} of {owner} is {found}; accepted: {wanted}, as in {reference}")


def is_utf8(text: str) -> bool:
    """Returns whether TensorFlow can take a text; other bytes in the name of a file become surrogates."""
    return text.encode(errors="ignore").decode() == text

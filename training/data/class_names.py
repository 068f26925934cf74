# SPDX-License-Identifier: Apache-2.0
"""Names of classes: reading them from a file with one per line, checking and comparing them."""

import itertools
from collections.abc import Sequence
from pathlib import Path

from lambdanet.errors import invalid, unreadable


def read_names(path: str | Path) -> list[str]:
    """Returns the lines of a file in UTF-8, ended by newlines alone; `InputError` where it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None


def check_names(names: Sequence[str], owner: str) -> None:
    """Raises `InputError` for a name that cannot be a line of a file: blank, with line breaks, or not UTF-8.

    The message names the owner of the classes, such as the dataset.
    """
    for index, name in enumerate(names):
        if not isinstance(name, str) or not name.strip() or name.splitlines() != [name] or not is_utf8(name):
            raise invalid(f"class {index} of {owner}", "a name of one line in UTF-8", name)


def check_equal(names: Sequence[str], accepted: Sequence[str], owner: str, reference: str) -> None:
    """Raises `InputError` for the first class of an owner that differs from the one of a reference."""
    for index, (name, expected) in enumerate(itertools.zip_longest(names, accepted)):
        if name != expected:
            raise invalid(f"class {index} of {owner}", f"{expected!r}, as in {reference}", name)


def is_utf8(text: str) -> bool:
    """Returns whether a text is valid UTF-8; Python turns other bytes of file names into surrogates."""
    return text.encode(errors="ignore").decode() == text

# SPDX-License-Identifier: Apache-2.0
"""Exceptions for the mistakes of a caller, the form of their messages, and checks of names and numbers."""

import difflib
import numbers
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

SHOWN = 20  # the largest number of names in a message


class InputError(ValueError):
    """A value from the caller that cannot be used.

    The message is one line; for a single wrong value, "NAME must be ACCEPTED, got VALUE" (`invalid`) or
    "unknown KIND NAME" (`unknown`). The command line prints it without a traceback and exits with status 2;
    in Python it is a `ValueError`.
    """


class Preempted(Exception):
    """Training that stopped on SIGTERM or Ctrl-C, after saving a checkpoint.

    The command line prints the message and exits with `status`.

    Attributes:
      status: 75, which means: try again; 130 after Ctrl-C, which ends loops of a shell, too.
    """

    def __init__(self, message: str, status: int = 75) -> None:
        super().__init__(message)
        self.status = status


class Unfinished(Exception):
    """A task of which a part failed: the message names the inputs that could not be used; the rest is done.

    The command line prints the message and exits with status 1.
    """


def invalid(name: str, accepted: str, value: object, hint: str = "") -> InputError:
    """Returns the error for a wrong value, in the form of all such messages.

    Args:
      name: the argument or file that has the value.
      accepted: the values that it may have, as they follow "must be".
      value: the value received.
      hint: what follows after a semicolon, such as the nearest accepted values.

    Example:
      >>> invalid("scope", "odd", 4, hint="3 and 5 would do")
      InputError('scope must be odd, got 4; 3 and 5 would do')
    """
    end = f"; {hint}" if hint else ""
    return InputError(f"{name} must be {accepted}, got {short(value)}{end}")


def escape_unprintable(text: str) -> str:
    r"""Returns a text with line breaks and other unprintable characters as escapes, such as `\n`."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def one_line(error: BaseException) -> str:
    """Returns the message of an exception of a library on one line, or else the name of its class."""
    text = " ".join(str(getattr(error, "message", error)).split())
    if text.startswith("in user code:"):  # AutoGraph's traceback, before the message
        text = text.rpartition(f"{type(error).__name__}: ")[2]
    return (
        text.partition(" Call arguments received by layer")[0] or type(error).__name__
    )


def unreadable(path: object, error: Exception) -> InputError:
    """Returns the error for a file that does not exist, or cannot be read for another reason."""
    if isinstance(error, FileNotFoundError):
        return InputError(f"{str(path)!r} does not exist")
    return InputError(f"{str(path)!r} cannot be read: {error}")


def unknown(kind: str, name: str, accepted: Iterable[str], see: str = "") -> InputError:
    """Returns the error for an unknown name, with the nearest known ones.

    Args:
      kind: the kind of thing that is named, such as "model".
      name: the name received.
      accepted: all known names.
      see: the place where they are listed; by default the message lists the first `SHOWN`.
    """
    accepted = sorted(accepted)
    near = (
        difflib.get_close_matches(name, accepted, n=4, cutoff=0.4)
        if isinstance(name, str)
        else []
    )
    others = f"see {see}" if see else f"accepted: {join_first(accepted, ', ')}"
    hint = f"did you mean {' or '.join(near)}?" if near else others
    return InputError(f"unknown {kind} {short(name)}; {hint}")


def join_first(texts: Sequence[str], separator: str = "; ", most: int = SHOWN) -> str:
    """Joins the first of several texts for a message, and says how many more there are.

    Args:
      texts: the texts.
      separator: what is between them.
      most: the number of texts in the message.
    """
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return separator.join(texts[:most]) + more


def check_known(kind: str, name: Any, accepted: Collection[str], see: str = "") -> None:
    """Raises the error of `unknown` for a name that is not one of the accepted ones.

    Args:
      kind: the kind of thing that is named, such as "model".
      name: the name received; a value of another type is unknown too.
      accepted: all known names.
      see: the place where they are listed; by default the message lists the first `SHOWN`.

    Raises:
      InputError: the name is unknown.
    """
    if not isinstance(name, str) or name not in accepted:
        raise unknown(kind, name, accepted, see)


def normalized(names: Iterable[str]) -> list[str]:
    """Returns names in one Unicode form, as a Mac writes other bytes for the same letters."""
    return [unicodedata.normalize("NFC", name) for name in names]


def check_different(names: Iterable[str], owner: str) -> None:
    """Checks that no name is repeated, in any Unicode form.

    Args:
      names: the names of classes.
      owner: what has them, for the message, such as "dataset digits".

    Raises:
      InputError: names are repeated.
    """
    counts = Counter(normalized(names))
    repeated = [name for name, count in counts.items() if count > 1]
    if repeated:
        raise invalid(f"names of {owner}", "different names", repeated, "rename these")


def short(value: object) -> str:
    """Returns the first 200 characters of `repr(value)`, for a message."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        return f"{type(value).__name__} that is too large to print"
    return text if len(text) <= 200 else f"{text[:200]}..."


def is_integer(value: Any) -> bool:
    """Returns whether a value is an integer of Python or NumPy, and not a boolean."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def check_counts(**counts: Any) -> tuple[int, ...]:
    """Checks that all arguments are positive integers, of Python or NumPy, and returns them as `int`."""
    for name, value in counts.items():
        if not is_integer(value) or value < 1:
            raise invalid(name, "a positive integer", value)
    return tuple(map(int, counts.values()))


def check_count(name: str, value: Any) -> int:
    """Checks that one argument is a positive integer, and returns it as `int`."""
    return check_counts(**{name: value})[0]


def check_flags(**flags: Any) -> None:
    """Checks that all arguments are True or False; 1 and 0, and NumPy's booleans, are equal to these."""
    for name, value in flags.items():
        if value not in (True, False):
            raise invalid(name, "True or False", value)


def check_natural(name: str, value: Any) -> int:
    """Checks that one argument is zero or a positive integer, and returns it as `int`."""
    if not is_integer(value) or value < 0:
        raise invalid(name, "zero or a positive integer", value)
    return int(value)

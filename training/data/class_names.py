# SPDX-License-Identifier: Apache-2.0
"""The classes of weights, records, labels and pictures, compared by name wherever two of them meet."""

import dataclasses
import itertools
import re
from collections.abc import Sequence
from pathlib import Path

from lambdanet.core.errors import InputError, check_different, invalid, unreadable
from lambdanet.core.errors import normalized as normalized

MAX_LISTED = 5  # names in a line
IGNORED = 255  # in a mask: the pixel has no class
LEVEL = r"(25[0-5]|2[0-4]\d|1?\d?\d)"
COLORED_LABEL = re.compile(rf"([^:]+):{LEVEL},{LEVEL},{LEVEL}(?::.*)?")
COLORED_NAME = re.compile(rf"\s*(.*\S)\s+{LEVEL}\s+{LEVEL}\s+{LEVEL}\s*")


@dataclasses.dataclass(frozen=True)
class Classes:
    """The classes of something: their names, or only their number where nothing else is known.

    Attributes:
      owner: what has them, for messages, such as "start_from 'runs/1'".
      count: the number of classes.
      names: their names, in the order of the labels; empty: not known.
    """

    owner: str
    count: int
    names: Sequence[str] = ()

    def are_numbers(self) -> bool:
        """Returns whether the names say no more than the numbers of the labels, or are not known."""
        return list(self.names) == [str(number) for number in range(len(self.names))]

    def columns_in(self, trained: "Classes") -> tuple[list[int | None], str]:
        """Finds these classes among those of a trained classifier.

        Names are equal in any Unicode form. Where only one side has numbers for names, from 0, or no names,
        equal numbers of classes are taken for the same classes.

        Args:
          trained: the classes of the classifier.

        Returns:
          For each class its column in the classifier, or None; and a line that describes what is kept, empty
          where both have the same names in the same order.
        """
        own_forms = normalized(self.names)
        trained_forms = normalized(trained.names)
        if own_forms == trained_forms and self.names:
            return list(range(self.count)), ""
        same = set(own_forms) == set(trained_forms)
        numbered = all(name.isdecimal() for name in own_forms + trained_forms)
        if (self.are_numbers() or trained.are_numbers()) and not (
            numbered and self.names and trained.names
        ):
            if self.count == trained.count:
                line = f"{trained.owner}: its {trained.count} classes are taken as they are, without names"
                return list(range(self.count)), line
            start = f"{trained.owner} has {trained.count} classes, {self.owner} has {self.count}"
            line = f"{start}: the classifier starts with random weights"
            return [None] * self.count, line
        columns = find_columns(self.names, trained.names)
        kept = [
            name
            for name, column in zip(self.names, columns, strict=True)
            if column is not None
        ]
        if same:
            line = f"{self.owner} has the classes of {trained.owner} in another order: matched by name"
        elif kept:
            found = f"{len(kept)} of {self.count} classes of {self.owner} are in {trained.owner}"
            line = f"{found} ({_some(kept)}): the classifier keeps these; the others get random weights"
        else:
            others = f"{trained.owner} has other classes ({_some(trained.names)})"
            others = f"{others} than {self.owner} ({_some(self.names)})"
            line = f"{others}: the classifier starts with random weights"
        return columns, line


def find_columns(names: Sequence[str], trained: Sequence[str]) -> list[int | None]:
    """Returns the place of each name among those of a trained classifier, or None; in any Unicode form."""
    places = {form: place for place, form in enumerate(normalized(trained))}
    return [places.get(form) for form in normalized(names)]


def read_names(path: str | Path) -> list[str]:
    """Returns the lines of a file in UTF-8, with or without a byte order mark, ended by newlines alone.

    Empty lines at the end are ignored.

    Raises:
      InputError: the file cannot be read, or names are repeated.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None
    names = text.rstrip("\n").split("\n")
    check_different(names, repr(str(path)))
    return names


def write_names(path: str | Path, names: Sequence[str]) -> None:
    """Writes a file with a name per line, in UTF-8, as `read_names` reads it."""
    text = "".join(f"{name}\n" for name in names)
    Path(path).write_text(text, encoding="utf-8")


def read_class_map(path: str | Path) -> list[str]:
    """Returns the names in a class map, one per line in the order of the labels, as in timm.

    Raises:
      InputError: the file cannot be read, or names are blank or repeated.
    """
    names = [name.strip() for name in read_names(Path(path).expanduser())]
    check_names(names, f"class_map {str(path)!r}")
    return names


def read_colored_names(path: str) -> tuple[list[str], list[list[int]]]:
    """Returns the names of classes and, where all lines have one, their colors, with an alpha of 255.

    Colors are at the end of a line, as in `water 0 0 255`, or as in a `labelmap.txt` of CVAT.

    `InputError` as of `read_class_map`, or where some lines have no color, or one that is used before.
    """
    names = []
    colors: list[list[int]] = []
    lines = read_names(path)
    form = COLORED_NAME
    if path.endswith("labelmap.txt"):
        lines = [line for line in lines if not line.startswith("#")]
        form = COLORED_LABEL
    matches = [form.fullmatch(line) for line in lines]
    if form is COLORED_NAME and not any(matches):
        return read_class_map(path), []
    for number, match in enumerate(matches, start=1):
        color = [*map(int, match.groups()[1:]), 255] if match else []
        if not match or color in colors:
            accepted = "a class with a color of its own, three numbers up to 255, as others are"
            raise invalid(f"line {number} of {path!r}", accepted, color or None)
        names.append(match[1])
        colors.append(color)
    check_names(names, repr(path))
    return names, colors


def check_names(names: Sequence[str], owner: str) -> None:
    """Rejects names that cannot be lines of a file, or are repeated.

    Args:
      names: the names of classes.
      owner: what has them, for the message, such as "dataset digits".

    Raises:
      InputError: a name is blank, has line breaks, is not UTF-8, or is repeated.
    """
    for index, name in enumerate(names):
        if (
            not isinstance(name, str)
            or not name.strip()
            or name.splitlines() != [name]
            or not is_utf8(name)
        ):
            raise invalid(
                f"class {index} of {owner}", "a name of one line in UTF-8", name
            )
    check_different(names, owner)


def check_equal(
    names: Sequence[str], accepted: Sequence[str], owner: str, reference: str
) -> None:
    """Rejects names that differ from the accepted ones in number, order or more than Unicode form.

    Args:
      names: the names of classes.
      accepted: the names that they must equal.
      owner: what has the names, for the message.
      reference: what has the accepted ones.

    Raises:
      InputError: the first class that differs.
    """
    if len(names) > len(accepted):
        new = set(normalized(names)).difference(normalized(accepted))
        raise InputError(
            f"{owner} has {len(names)} classes, {reference} has {len(accepted)}: {min(new, default='')!r} is "
            "new; another --model_dir with --set=start_from=... learns it"
        )
    pairs = itertools.zip_longest(normalized(names), normalized(accepted))
    for index, (name, expected) in enumerate(pairs):
        if name != expected:
            raise invalid(
                f"class {index} of {owner}", f"{expected!r}, as in {reference}", name
            )


def is_utf8(text: str) -> bool:
    """Returns whether a text is valid UTF-8; Python turns other bytes of file names into surrogates."""
    return text.encode(errors="ignore").decode() == text


def _some(names: Sequence[str]) -> str:
    more = ", ..." if len(names) > MAX_LISTED else ""
    return ", ".join(names[:MAX_LISTED]) + more

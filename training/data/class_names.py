# SPDX-License-Identifier: Apache-2.0
"""The classes of weights, records, labels and pictures, compared by name wherever two of them meet."""

import dataclasses
import itertools
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from lambdanet.errors import invalid, unreadable

MAX_LISTED = 5  # names in a line


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

        Names are equal in any Unicode form. Where one side has only numbers, equal numbers of classes are
        taken for the same classes.

        Args:
          trained: the classes of the classifier.

        Returns:
          for each class its column in the classifier, or None; and a line that says what is kept, empty where
          both have the same names in the same order.
        """
        own_forms, trained_forms = normalized(self.names), normalized(trained.names)
        if own_forms == trained_forms and self.names:
            return list(range(self.count)), ""
        same = set(own_forms) == set(trained_forms)
        if (self.are_numbers() or trained.are_numbers()) and not (same and self.names):
            if self.count == trained.count:
                line = f"{trained.owner}: its {trained.count} classes are taken as they are, without names"
                return list(range(self.count)), line
            start = f"{trained.owner} has {trained.count} classes, {self.owner} has {self.count}"
            return [
                None
            ] * self.count, f"{start}: the classifier starts with random weights"
        numbers = {name: number for number, name in enumerate(trained_forms)}
        columns = [numbers.get(name) for name in own_forms]
        kept = [
            name
            for name, column in zip(self.names, columns, strict=True)
            if column is not None
        ]
        if same:
            line = f"{self.owner} has the classes of {trained.owner} in another order: matched by name"
            return columns, line
        if kept:
            found = f"{len(kept)} of {self.count} classes of {self.owner} are in {trained.owner}"
            line = f"{found} ({_some(kept)}): the classifier keeps these; the others get random weights"
            return columns, line
        others = f"{trained.owner} has other classes ({_some(trained.names)})"
        line = f"{others} than {self.owner} ({_some(self.names)}): the classifier starts with random weights"
        return columns, line


def normalized(names: Sequence[str]) -> list[str]:
    """Returns names in one Unicode form, as a Mac writes other bytes for the same letters."""
    return [unicodedata.normalize("NFC", name) for name in names]


def read_names(path: str | Path) -> list[str]:
    """Returns the lines of a file in UTF-8, ended by newlines alone; `InputError` where it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None


def read_class_map(path: str | Path) -> list[str]:
    """Returns the names in a class map, one per line in the order of the labels, as timm reads it.

    `InputError` for a file that cannot be read, and for names that are blank or repeated.
    """
    names = [name.strip() for name in read_names(Path(path).expanduser())]
    check_names(names, f"class_map {str(path)!r}")
    forms = normalized(names)
    repeated = [
        name for name, form in zip(names, forms, strict=True) if forms.count(form) > 1
    ]
    if repeated:
        raise invalid(
            f"names in class_map {str(path)!r}",
            "different names",
            repeated[:MAX_LISTED],
        )
    return names


def check_names(names: Sequence[str], owner: str) -> None:
    """Raises `InputError` for a name that cannot be a line of a file: blank, with line breaks, or not UTF-8.

    The message names the owner of the classes, such as the dataset.
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


def check_equal(
    names: Sequence[str], accepted: Sequence[str], owner: str, reference: str
) -> None:
    """Raises `InputError` for the first class of an owner that differs from the one of a reference."""
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

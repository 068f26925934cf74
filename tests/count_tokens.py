# SPDX-License-Identifier: Apache-2.0
"""Prints the tokens of code in each room; fails above the budgets in pyproject.toml (`make lint`).

Comments, docstrings and formatting are free, so a line saved by a comma saves nothing.
"""

import ast
import io
import sys
import tokenize
import tomllib
from collections import Counter
from pathlib import Path

import source_tree
from source_tree import FLOORS, ROOT

FREE = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}
CLOSING = {")", "]", "}"}


def main() -> str | None:
    """Prints a table of all rooms, and returns an error message if one is over its budget."""
    budgets = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["lambdanet"][
        "max_tokens"
    ]
    counts = count_rooms(budgets)
    for room, budget in budgets.items():
        print(f"{room:24}{counts[room]:10,} of {budget:,}")
    print(
        f"{'all rooms':24}{counts.total():10,} of {sum(budgets.values()):,} tokens of code"
    )
    over = [
        f"{room} is {counts[room] - budget:,} tokens over its budget"
        for room, budget in budgets.items()
        if counts[room] > budget
    ]
    return f"{'; '.join(over)}: see max_tokens in pyproject.toml" if over else None


def count_rooms(rooms: dict[str, int]) -> Counter[str]:
    """Returns the tokens of each room; a file is in the deepest of the rooms that contain it."""
    counts: Counter[str] = Counter()
    for floor in FLOORS:
        for path in source_tree.files_of(floor):
            counts[room_of(path, rooms)] += len(
                code_tokens(path.read_text(encoding="utf-8"))
            )
    return counts


def room_of(path: Path, rooms: dict[str, int]) -> str:
    """Returns the room of a file, such as `lambdanet/ops` or `training/data`."""
    folder = path.resolve().relative_to(ROOT.resolve()).parent
    return next(
        str(parent) for parent in (folder, *folder.parents) if str(parent) in rooms
    )


def code_tokens(source: str) -> list[str]:
    """Returns the tokens without comments, docstrings, white space and the formatter's commas."""
    docstrings = docstring_positions(source)
    tokens = [
        token
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in FREE and token.start not in docstrings
    ]
    return [
        token.string
        for place, token in enumerate(tokens)
        if not _is_of_formatting(tokens[place : place + 2])
    ]


def _is_of_formatting(tokens: list[tokenize.TokenInfo]) -> bool:
    """Returns whether a token is a comma before a bracket in another line, which the formatter adds."""
    if len(tokens) < 2:
        return False
    token, following = tokens
    return (
        token.string == ","
        and following.string in CLOSING
        and following.start[0] > token.start[0]
    )


def docstring_positions(source: str) -> set[tuple[int, int]]:
    """Returns the line and column at which each docstring begins."""
    positions = set()
    for node in ast.walk(ast.parse(source)):
        documented = isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        )
        if documented and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            positions.add((docstring.lineno, docstring.col_offset))
    return positions


if __name__ == "__main__":
    sys.exit(main())

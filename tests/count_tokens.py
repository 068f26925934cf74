# SPDX-License-Identifier: Apache-2.0
"""Counts the tokens of code in each room.

Comments, docstrings and formatting are free, so a line saved by a comma saves nothing.
"""

import ast
import io
import tokenize
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


def code_tokens(source: str) -> list[tokenize.TokenInfo]:
    """Returns the tokens without comments, docstrings, white space and the formatter's commas."""
    docstrings = docstring_positions(source)
    tokens = [
        token
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in FREE and token.start not in docstrings
    ]
    return [
        token
        for place, token in enumerate(tokens)
        if not _is_of_formatting(tokens[place : place + 2])
    ]


def lines_of_code(source: str) -> int:
    """Returns the number of lines that have one of `code_tokens`."""
    lines = set()
    for token in code_tokens(source):
        lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines)


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

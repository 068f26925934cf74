# SPDX-License-Identifier: Apache-2.0
"""Counts the tokens of code in the library, in the programs of the documentation and in the tests.

Comments, docstrings and formatting are free, so a line saved by a comma saves nothing. Programs in strings,
in the Makefile and in HTML count by their words and signs.
"""

import ast
import io
import re
import textwrap
import tokenize
from collections.abc import Iterable, Iterator

from source_tree import PACKAGES, ROOT, files_of

FREE = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}
CLOSING = {")", "]", "}"}
# Python 3.12 splits an f-string into its parts.
FSTRING_START = getattr(tokenize, "FSTRING_START", None)
FSTRING_END = getattr(tokenize, "FSTRING_END", None)

IMPORT = re.compile(r"^\s*(import|from) \w", re.MULTILINE)
PROGRAMS_OF_MAKE = re.compile(
    r"define \w+\n(.*?)endef| -c \"([^\"]+)\"| -c '([^']+)'", re.S
)
SCRIPT = re.compile(r"<script>(.*?)</script>", re.S)
JAVASCRIPT_COMMENT = re.compile(r"/\*.*?\*/|(?<!:)//[^\n]*", re.S)
WORD_OR_SIGN = re.compile(r"\w+|[^\w\s]")


def count_library() -> int:
    """Returns the tokens of all that is neither below `docs/` nor below `tests/`."""
    count = 0
    for package in PACKAGES:
        for path in files_of(package):
            count += count_python(path.read_text(encoding="utf-8"))
    for path in (ROOT / "lambdanet").glob("*/*.html"):
        for script in SCRIPT.findall(path.read_text(encoding="utf-8")):
            count += _count_javascript(script)
    for programs in PROGRAMS_OF_MAKE.findall((ROOT / "Makefile").read_text()):
        count += _count_programs(programs)
    return count


def count_folder(name: str) -> int:
    """Returns the tokens of Python and JavaScript below a folder, without what is generated."""
    count = 0
    for path in (ROOT / name).rglob("*.*"):
        if {"_build", "_generated"} & set(path.parts):
            continue
        if path.suffix == ".py":
            count += count_python(path.read_text(encoding="utf-8"))
        elif path.suffix == ".js":
            count += _count_javascript(path.read_text(encoding="utf-8"))
    return count


def count_python(source: str) -> int:
    """Returns the tokens of a source, with those of programs in its strings."""
    return len(code_tokens(source)) + _count_programs(_strings(source))


def code_tokens(source: str) -> list[tokenize.TokenInfo]:
    """Returns the tokens without comments, docstrings, white space and the formatter's commas.

    An f-string is one token, or from Python 3.12 on its first part.
    """
    docstrings = docstring_positions(source)
    tokens = []
    fstrings = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == FSTRING_END:
            fstrings -= 1
        elif not fstrings and token.type not in FREE and token.start not in docstrings:
            tokens.append(token)
        if token.type == FSTRING_START:
            fstrings += 1
    return [
        token
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


def _strings(source: str) -> Iterator[str]:
    docstrings = docstring_positions(source)
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if (node.lineno, node.col_offset) not in docstrings:
            yield node.value


def _count_programs(texts: Iterable[str]) -> int:
    """Returns the words and signs of the texts that are Python and import something."""
    count = 0
    for text in texts:
        if IMPORT.search(text) and _is_python(text):
            count += len(WORD_OR_SIGN.findall(text))
    return count


def _is_python(text: str) -> bool:
    try:
        ast.parse(textwrap.dedent(text))
    except SyntaxError:
        return False
    return True


def _count_javascript(source: str) -> int:
    return len(WORD_OR_SIGN.findall(JAVASCRIPT_COMMENT.sub("", source)))

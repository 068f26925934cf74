# SPDX-License-Identifier: Apache-2.0
"""Runs the Python blocks of a program on a page: run_page.py PAGE.md NUMBER

A block that chooses a backend of Keras 3 begins a program, from 1. Pages are written for
`lambda_resnet_tiny`, which as a program has two blocks here to save time.
"""

import ast
import contextlib
import dataclasses
import doctest
import io
import itertools
import re
import sys
from pathlib import Path

BLOCK = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\w+\.py)\n")
KERAS_3 = re.compile(r'^os\.environ\["KERAS_BACKEND"\] = "(\w+)"', re.MULTILINE)


def programs(text: str) -> list[str]:
    """Divides a page before each block that chooses a backend of Keras 3; line numbers stay."""
    begins = [
        text.rindex("```python\n", 0, engine.start())
        for engine in KERAS_3.finditer(text)
    ]
    return [
        "\n" * text.count("\n", 0, begin) + text[begin:end]
        for begin, end in itertools.pairwise([0, *begins, len(text)])
    ]


def run_page(text: str, page: str) -> None:
    """Runs all Python blocks in one namespace, as a reader would paste them, and compares what they print.

    A block that begins with the name of a file is written to it, too.
    """
    namespace: dict = {}
    for block, following in itertools.pairwise([*BLOCK.finditer(text), None]):
        if block[1] != "python":
            continue
        if name := FILE.match(block[2]):
            Path(name[1]).write_text(block[2])
        first_line = text.count("\n", 0, block.start(2))
        with contextlib.redirect_stdout(io.StringIO()) as output:
            _run("\n" * first_line + block[2], page, namespace)
        if (
            following
            and following[1] == "text"
            and not text[block.end() : following.start()].strip()
        ):
            assert _agree(following[2], output.getvalue()), output.getvalue()


def _run(block: str, page: str, namespace: dict) -> None:
    """Runs the statements of a block, and compares values with the literals beside them."""
    lines = block.splitlines()
    for statement in ast.parse(block).body:
        if not isinstance(statement, ast.Expr):
            exec(compile(ast.Module([statement], []), page, "exec"), namespace)
            continue
        value = eval(compile(ast.Expression(statement.value), page, "eval"), namespace)
        comment = (
            lines[statement.end_lineno - 1]
            .encode()[statement.end_col_offset :]
            .decode()
        )
        with contextlib.suppress(ValueError, SyntaxError):  # words
            expected = repr(ast.literal_eval(comment.partition("# ")[2])).replace(
                "Ellipsis", "..."
            )
            text = repr(value) if isinstance(value, str) else str(value)
            assert _agree(f"{expected}\n", f"{text}\n"), (
                f"{page}, line {statement.lineno}: {text}"
            )


def _agree(expected: str, output: str) -> bool:
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(expected, output, flags)


def main() -> None:
    from lambdanet.models import zoo

    tiny = "lambda_resnet_tiny"
    zoo.MODELS[tiny] = dataclasses.replace(zoo.MODELS[tiny], stages=("C", "", "", "L"))
    page, number = sys.argv[1:]
    sys.path.insert(0, "")  # files that the page has written
    run_page(programs(Path(page).read_text())[int(number)], page)


if __name__ == "__main__":
    main()

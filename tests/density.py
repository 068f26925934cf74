# SPDX-License-Identifier: Apache-2.0
"""Finds statements that are too dense to read at a glance; `make lint` accepts none.

    find("a, b, c = 1, 2, 3")  ->  [(1, "3 values assigned in one statement")]

The rules are those that a budget of tokens tempts one to break: a comprehension within a
comprehension, an assignment of several things, and truth values used as numbers or text.
"""

import ast
from collections.abc import Iterator

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
DISPLAYS = (ast.Dict, ast.List, ast.Set, ast.Tuple, *COMPREHENSIONS)
# Functions whose results are no truth values, though Python can test them.
CONSTRUCTORS = {"dict", "float", "int", "len", "list", "set", "sorted", "str", "tuple"}
TESTS = {"all", "any", "bool", "callable", "hasattr", "isinstance", "issubclass"}


def find(source: str) -> list[tuple[int, str]]:
    """Returns the line of each statement that is too dense, and what is wrong with it."""
    tree = ast.parse(source)
    found = list(_find_chains(tree))
    for node in ast.walk(tree):
        for rule in (_find_comprehensions, _find_assignments, _find_repeats):
            found += rule(node)
    return sorted(found)


def _find_comprehensions(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields a comprehension that contains another one, as in `[sum(x for x in y) for y in z]`."""
    if isinstance(node, COMPREHENSIONS):
        parts = list(ast.walk(node))[1:]
        if any(isinstance(part, COMPREHENSIONS) for part in parts):
            yield node.lineno, "comprehension within a comprehension"


def _find_assignments(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields an assignment of three values and more, as in `a, b, c = 1, 2, 3`."""
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
        for target in node.targets:
            number = len(target.elts) if isinstance(target, ast.Tuple) else 0
            if number > 2:
                yield node.lineno, f"{number} values assigned in one statement"


def _find_repeats(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields a text or list times a truth value, as in `"no" * (not flag)` or `"no" * flag`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        sides = [node.left, node.right]
        for repeated, times in (sides, sides[::-1]):
            # Letters and lines such as "-" * 80 are repeated, but no words.
            sequence = _is_text(repeated) or isinstance(repeated, DISPLAYS)
            if _is_word(repeated) or (sequence and _is_truth_value(times)):
                yield node.lineno, "text or list times a truth value"


def _find_chains(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields `x and y` where y is no truth value, as in `return config and {**config}`."""
    conditions = _conditions(tree)
    for node in ast.walk(tree):
        is_and = isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And)
        if is_and and node not in conditions and _is_no_truth_value(node.values[-1]):
            yield node.lineno, "`and` of a value that is no truth value"


def _conditions(tree: ast.AST) -> set[ast.AST]:
    """Returns the expressions of which only the truth is used, as after `if`."""
    conditions = set()
    for node in ast.walk(tree):
        conditions.update(getattr(node, "ifs", ()))
        if isinstance(node, ast.If | ast.IfExp | ast.While | ast.Assert):
            conditions.add(node.test)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            conditions.add(node.operand)
        elif isinstance(node, ast.BoolOp) and node in conditions:  # parents come first
            conditions.update(node.values)
    return conditions


def _is_truth_value(node: ast.expr) -> bool:
    """Returns whether an expression is a comparison, a negation or a test."""
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in TESTS
    return isinstance(node, ast.Compare | ast.BoolOp)


def _is_no_truth_value(node: ast.expr) -> bool:
    """Returns whether an expression is a collection, a text, arithmetic or a function."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in CONSTRUCTORS
    if isinstance(node, ast.Constant):
        return not isinstance(node.value, bool)
    return isinstance(node, (*DISPLAYS, ast.BinOp, ast.JoinedStr, ast.Lambda))


def _is_text(node: ast.expr) -> bool:
    """Returns whether an expression is a text, formatted or not."""
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _is_word(node: ast.expr) -> bool:
    """Returns whether an expression is a text with two letters or more."""
    return isinstance(node, ast.Constant) and sum(map(str.isalpha, str(node.value))) > 1

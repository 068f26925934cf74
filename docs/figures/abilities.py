# SPDX-License-Identifier: Apache-2.0
"""Draws the lambdas of three tasks whose weights are set by hand."""

from collections.abc import Sequence

import numpy as np
from svg import Drawing

from experiments.arena.constructions import ARROWS, REACH

COLORS = ("blue", "orange", "green", "purple")
BOARD = np.array(
    [
        [0, 3, 2, 1, 2],
        [1, 2, 0, 3, 0],
        [2, 0, 1, 0, 3],
        [3, 1, 3, 2, 1],
        [0, 2, 1, 0, 2],
    ]
)
SIGNS = ("↖↑↗", "← →", "↙↓↘")
ARROW = (-2, 2)  # rows and columns from the middle of the board
PAIRS = {"a": 1, "b": 3, "c": 0, "d": 3, "e": 2}  # key -> value
ASKED = "b"
# The side of a cell, and where inputs and lambdas begin.
CELL, LEFT, MATRIX = 36, 24, 390
EXPLANATION = 660


def draw_pointer() -> Drawing:
    """Returns the drawing of the position lambda that follows arrows."""
    title = "A position lambda has a row for each arrow: the color at its end. The query picks a row."
    drawing, top, height = Drawing(1000, 340, title), 84, 15
    drawing.text(LEFT, 32, "*input*: a color in each cell, an arrow in some")
    for (row, column), color in np.ndenumerate(BOARD):
        _square(drawing, LEFT + CELL * column, top + CELL * row, color)
    middle = LEFT + CELL * (REACH + 0.5), top + CELL * (REACH + 0.5)
    drawing.rectangle(
        LEFT + CELL * REACH, top + CELL * REACH, CELL, CELL, "ground", 0, "ink"
    )
    dy, dx = ARROW
    drawing.dot(*middle, 4, "ink")
    drawing.line(
        [middle, (middle[0] + CELL * dx, middle[1] + CELL * dy)], "ink", 3, "arrow"
    )
    drawing.text(LEFT, 292, "n: the cell in the middle", "faint", 13)
    drawing.text(LEFT, 312, "m: the cells around it", "faint", 13)
    drawing.line(
        [(LEFT + 5 * CELL + 12, middle[1]), (MATRIX - 52, middle[1])], "ink", 2, "arrow"
    )
    for number, (dy, dx) in enumerate(ARROWS):
        label = f"{SIGNS[np.sign(dy) + 1][np.sign(dx) + 1]} {max(abs(dy), abs(dx))}"
        drawing.text(MATRIX - 10, top + height * number + 12, label, "ink", 13, "end")
    drawing.text(MATRIX - 34, 44, "*position lambda* λ_{n}^{p}")
    rows = [BOARD[REACH + dy, REACH + dx] for dy, dx in ARROWS]
    _apply(drawing, top, height, rows, ARROWS.index(ARROW))
    explanation = [
        ("V_{m}: the color of the cell m", "one-hot, v = the number of colors"),
        ("E_{nm}: 1 for the arrow from n to m, else 0", "k = 16 arrows, r = 5"),
        (
            "λ_{n}^{p} = Σ_{m} E_{nm} V_{m}^{T}",
            "a row for each arrow: the color at its end",
        ),
        ("y_{n} = λ_{n}^{p T} q_{n}", "q_{n}, the arrow in n, picks its row"),
    ]
    return _explained(drawing, explanation)


def draw_recall() -> Drawing:
    """Returns the drawing of the content lambda that is a dictionary."""
    title = "The content lambda has a row for each key: the value that came with it. The query picks a row."
    drawing, top = Drawing(1000, 300, title), 84
    drawing.text(LEFT, 32, "*input*: pairs of a key and a value, then a key")
    places = [LEFT + 46 * number for number in range(len(PAIRS))]
    for x, (key, color) in zip(places, PAIRS.items(), strict=True):
        _letter(drawing, x, top, key)
        _square(drawing, x, top + CELL, color)
    question = LEFT + 46 * len(PAIRS) + 14
    _letter(drawing, question, top, ASKED)
    drawing.text(question + CELL / 2, top + 1.65 * CELL, "?", "ink", 18, "middle")
    drawing.text(LEFT, top + 2 * CELL + 26, "m: the pairs, in any order", "faint", 13)
    drawing.text(
        LEFT,
        top + 2 * CELL + 46,
        "n: the key that is asked for, in any place",
        "faint",
        13,
    )
    drawing.line(
        [(question + CELL + 10, top + CELL), (MATRIX - 34, top + CELL)],
        "ink",
        2,
        "arrow",
    )
    drawing.text(MATRIX - 24, 44, "*content lambda* λ^{c}")
    _apply_dictionary(drawing, top, "abcde")
    explanation = [
        (
            "K_{m}: large for the key of m",
            "its softmax over m is 1 at the pair with that key",
        ),
        ("V_{m}: the value of m", "one-hot"),
        (
            "λ^{c} = Σ_{m} softmax(K)_{m} V_{m}^{T}",
            "a row for each key: the value that came with it",
        ),
        ("y_{n} = λ^{c T} q_{n}", "q_{n}, the key in n, picks its row"),
    ]
    return _explained(drawing, explanation)


def draw_in_context_recall() -> Drawing:
    """Returns the drawing of two layers, of which the first moves keys and the second is a dictionary."""
    title = "The position lambda of the first layer moves keys, the content lambda of the second recalls."
    drawing, top, second = Drawing(1000, 330, title), 66, 206
    drawing.text(LEFT, 32, "*input*: keys and values as neighbors, then a key")
    tokens = [token for key in "bac" for token in (key, PAIRS[key])] + [ASKED]
    places = [LEFT + 42 * number for number in range(len(tokens))]
    for number, (x, token) in enumerate(zip(places, tokens, strict=True)):
        for y in (top, second):
            _letter(drawing, x, y, token) if isinstance(token, str) else _square(
                drawing, x, y, token
            )
        _letter(
            drawing, x, second + CELL, str(tokens[number - 1]) if number % 2 else ""
        )
        if number % 2:
            start, end = (
                (places[number - 1] + CELL / 2, top + CELL + 6),
                (x + CELL / 2 - 3, second - 6),
            )
            drawing.line([start, end], "orange", 2, "arrow")
    drawing.text(places[-1] + CELL + 10, top + 24, "?", "ink", 18)
    drawing.text(
        LEFT,
        302,
        "n, and all m up to n: each token with the key before it",
        "faint",
        13,
    )
    middle = second + CELL
    drawing.line(
        [(places[-1] + CELL + 10, middle), (MATRIX - 34, middle)], "ink", 2, "arrow"
    )
    drawing.text(MATRIX - 24, second - 38, "*content lambda* λ_{n}^{c}")
    _apply_dictionary(drawing, second, "abc")
    explanation = [
        (
            "first layer: λ_{n}^{p} = E_{n,n-1} V_{n-1}^{T}",
            "E is 1 one token back, V_{m} the key in m, q_{n} = 1",
        ),
        ("its input and output are added", "the token in n, with the key before it"),
        (
            "second layer: λ_{n}^{c} = Σ_{m ≤ n} softmax(K)_{m} V_{m}^{T}",
            "K_{m} is the key before m, V_{m} the value",
        ),
        ("y_{n} = λ_{n}^{c T} q_{n}", "q_{n}, the key in n, picks its row"),
    ]
    return _explained(drawing, explanation)


def _apply_dictionary(drawing: Drawing, top: float, keys: str) -> None:
    for number, key in enumerate(keys):
        drawing.text(MATRIX - 10, top + 24 * number + 17, key, "ink", 15, "end")
    _apply(drawing, top, 24, [PAIRS[key] for key in keys], keys.index(ASKED))


def _apply(
    drawing: Drawing, top: float, height: float, rows: Sequence[int], picked: int
) -> None:
    """Draws a lambda with a color in each row, the query that picks one, and the output."""
    width, query = 24, MATRIX + 4 * 24 + 22
    for number, color in enumerate(rows):
        y = top + height * number
        for column in range(len(COLORS)):
            drawing.rectangle(
                MATRIX + width * column, y, width, height, "ground", 0, "line"
            )
        _square(drawing, MATRIX + width * color, y, color, width, height)
        drawing.rectangle(
            query, y, width, height, "ink", 0.75 * (number == picked), "line"
        )
    drawing.text(query + width / 2, top - 8, "q_{n}", "ink", 14, "middle")
    y = top + height * picked
    drawing.rectangle(MATRIX - 3, y - 1, 4 * width + 6, height + 2, "ground", 0, "ink")
    output = query + width + 34
    drawing.line(
        [(query + width + 6, y + height / 2), (output - 6, y + height / 2)],
        "ink",
        2,
        "arrow",
    )
    _square(drawing, output, y + height / 2 - CELL / 2, rows[picked])
    drawing.text(
        output + CELL / 2, y + height / 2 - CELL / 2 - 8, "y_{n}", "ink", 14, "middle"
    )


def _explained(
    drawing: Drawing, explanation: Sequence[tuple[str, str]], top: float = 74
) -> Drawing:
    for number, (formula, text) in enumerate(explanation):
        drawing.text(EXPLANATION, top + 58 * number, formula, "ink", 15)
        drawing.text(EXPLANATION, top + 58 * number + 21, text, "faint", 13)
    return drawing


def _letter(drawing: Drawing, x: float, y: float, letter: str) -> None:
    drawing.rectangle(x, y, CELL, CELL, "ground", 1, "line")
    drawing.text(x + CELL / 2, y + 0.65 * CELL, letter, "ink", 17, "middle")


def _square(
    drawing: Drawing,
    x: float,
    y: float,
    color: int,
    width: float = CELL,
    height: float = CELL,
) -> None:
    drawing.rectangle(x, y, width, height, COLORS[color], 0.6, "line")

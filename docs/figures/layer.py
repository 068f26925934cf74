# SPDX-License-Identifier: Apache-2.0
"""The lambda layer in one drawing: a context becomes a small matrix, which is applied to a query."""

from svg import Drawing

TITLE = (
    "A lambda layer. The whole map gives the content lambda, the positions around a query give its position "
    "lambda; their sum, a k by v matrix, is applied to the queries of that position."
)
CELL, COLUMNS, ROWS = 22, 9, 9
QUERY, SCOPE = (5, 4), 5  # column and row of the query; the side of its scope


def draw() -> Drawing:
    """Returns the drawing."""
    drawing = Drawing(1000, 330, TITLE)
    left, top = 24, 52
    right, bottom = left + COLUMNS * CELL, top + ROWS * CELL
    x = left + CELL * (QUERY[0] - SCOPE // 2)
    y = top + CELL * (QUERY[1] - SCOPE // 2)
    drawing.rectangle(left, top, COLUMNS * CELL, ROWS * CELL, "blue", 0.13)
    drawing.rectangle(x, y, SCOPE * CELL, SCOPE * CELL, "orange", 0.4)
    drawing.rectangle(
        left + CELL * QUERY[0], top + CELL * QUERY[1], CELL, CELL, "purple"
    )
    _grid(drawing, left, top, COLUMNS, ROWS)
    drawing.text(left, top - 14, "*input*: n positions, d channels")
    drawing.text(left, bottom + 22, "all m: the context", "blue")
    drawing.text(left, bottom + 42, "m in the scope r × r", "orange")
    drawing.text(left, bottom + 62, "n: the query", "purple")

    middle = 318
    drawing.line([(right, top + 24), (middle - 8, top + 24)], "blue", 2, "arrow")
    drawing.line(
        [(x + SCOPE * CELL, y + 100), (middle - 8, y + 100)], "orange", 2, "arrow"
    )
    query = left + CELL * (QUERY[0] + 0.5), top + CELL * (QUERY[1] + 1)
    drawing.line(
        [
            query,
            (query[0], bottom - 8),
            (right + 12, bottom - 8),
            (right + 12, 284),
            (776, 284),
            (776, 174),
        ],
        "purple",
        2,
        "arrow",
    )
    _matrix(drawing, middle, 52, "blue")
    drawing.text(middle + 100, 74, "*content lambda*", "blue")
    drawing.text(middle + 100, 97, "λ^{c} = Σ_{m} softmax(K)_{m} V_{m}^{T}", "blue")
    drawing.text(middle + 100, 117, "one for all n", "faint", 13)
    _matrix(drawing, middle, 170, "orange")
    drawing.text(middle + 100, 192, "*position lambda*", "orange")
    drawing.text(middle + 100, 215, "λ_{n}^{p} = Σ_{m} E_{nm} V_{m}^{T}", "orange")
    drawing.text(middle + 100, 235, "one for each n", "faint", 13)

    drawing.line([(600, 88), (634, 114)], "blue", 2, "arrow")
    drawing.line([(600, 206), (634, 180)], "orange", 2, "arrow")
    drawing.text(610, 152, "+", "ink", 20, "middle")
    _matrix(drawing, 644, 110, "green")
    drawing.text(644, 98, "*λ*_{n}", "green", 16)
    drawing.text(636, 150, "k", "faint", 13, "end")
    drawing.text(686, 197, "v", "faint", 13, "middle")

    drawing.text(740, 151, "×", "ink", 18, "middle")
    drawing.rectangle(753, 126, 46, 40, "purple", 0.45)
    drawing.text(752, 114, "*queries* q_{n}", "purple")
    _grid(drawing, 753, 126, 5, 4, (9.2, 10))
    drawing.line([(806, 146), (838, 146)], "ink", 2, "arrow")
    for head in range(4):
        drawing.rectangle(846 + 34 * head, 133, 32, 26, "ink", 0.3)
    drawing.text(872, 114, "*output* y_{n}")
    drawing.text(800, 190, "h queries, h × v = d outputs", "faint", 13)
    drawing.text(800, 226, "y_{n}^{h} = (λ^{c} + λ_{n}^{p})^{T} q_{n}^{h}", "ink", 17)
    drawing.text(
        318,
        304,
        "no attention map [n, m] for each image: a lambda is a k × v matrix",
        "faint",
        13,
    )
    return drawing


def _grid(
    drawing: Drawing,
    x: float,
    y: float,
    columns: int,
    rows: int,
    cell: tuple[float, float] = (CELL, CELL),
) -> None:
    width, height = cell
    for column in range(columns + 1):
        drawing.line(
            [(x + column * width, y), (x + column * width, y + rows * height)],
            "line",
            1,
        )
    for row in range(rows + 1):
        drawing.line(
            [(x, y + row * height), (x + columns * width, y + row * height)], "line", 1
        )


def _matrix(drawing: Drawing, x: float, y: float, color: str) -> None:
    """Draws a matrix of 5 x 6 cells, k x v."""
    drawing.rectangle(x, y, 84, 70, color, 0.35)
    _grid(drawing, x, y, 6, 5, (14, 14))

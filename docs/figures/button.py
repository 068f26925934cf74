# SPDX-License-Identifier: Apache-2.0
"""The button that opens a notebook in Google Colab."""

from svg import Drawing


def draw() -> Drawing:
    """Returns the drawing."""
    drawing = Drawing(152, 32, "Run in Colab")
    drawing.rectangle(0, 0, 152, 32, "blue", 0.13)
    drawing.line([(12, 16), (30, 16)], "blue", 2, "arrow")
    drawing.text(39, 21, "*Run in Colab*", "blue")
    return drawing

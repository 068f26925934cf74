# SPDX-License-Identifier: Apache-2.0
"""The colors of drawings, in light ones, which a browser replaces by dark ones on dark pages."""

# The contrast of text and ground is at least 4.5. The grounds are those of most pages.
LIGHT = {
    "ground": "#ffffff",
    "ink": "#1f2328",
    "faint": "#59636e",
    "line": "#c4ccd4",
    "blue": "#0b62d6",
    "orange": "#a84800",
    "green": "#17733a",
    "purple": "#7b3fd0",
}
DARK = {
    "ground": "#0d1117",
    "ink": "#e6edf3",
    "faint": "#9aa4af",
    "line": "#3d444d",
    "blue": "#58a6ff",
    "orange": "#f0964a",
    "green": "#4fc46a",
    "purple": "#b98cff",
}

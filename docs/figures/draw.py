# SPDX-License-Identifier: Apache-2.0
"""Draws the figures of the documentation that depend on files of the repository alone.

    python docs/figures/draw.py [FOLDER]

writes each drawing for light and for dark pages, by default beside this file.
"""

import sys
from pathlib import Path

import layer
import speed
import svg

FOLDER = Path(__file__).parent
FIGURES = {"layer": layer.draw, "speed": speed.draw}


def main(folder: Path) -> None:
    for name, draw in FIGURES.items():
        for palette, colors in svg.PALETTES.items():
            (folder / f"{name}_{palette}.svg").write_text(draw(colors).render(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)

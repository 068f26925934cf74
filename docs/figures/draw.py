# SPDX-License-Identifier: Apache-2.0
"""Draws the figures of the documentation that depend on files of the repository alone.

    python docs/figures/draw.py [FOLDER]

writes them, by default beside this file.
"""

import sys
from pathlib import Path

import layer
import speed

FOLDER = Path(__file__).parent
FIGURES = {"layer": layer.draw, "speed": speed.draw}


def main(folder: Path) -> None:
    for name, draw in FIGURES.items():
        (folder / f"{name}.svg").write_text(draw().render(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)

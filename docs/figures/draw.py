# SPDX-License-Identifier: Apache-2.0
"""Draws the figures of the documentation that depend on files of the repository alone.

    python docs/figures/draw.py [FOLDER]

writes them, by default beside this file.
"""

import sys
from pathlib import Path

FOLDER = Path(__file__).parent
# Of `rounding` and `benchmarks`.
sys.path[:0] = [str(FOLDER.parent), str(FOLDER.parents[1])]

import button  # noqa: E402
import layer  # noqa: E402
import plots  # noqa: E402
import speed  # noqa: E402

FIGURES = {
    "layer": layer.draw,
    "speed": speed.draw,
    "colab": button.draw,
}


def main(folder: Path) -> None:
    texts = {name: draw().render() for name, draw in FIGURES.items()}
    texts |= {plot.__name__: plots.draw(plot) for plot in plots.PLOTS}
    for name, text in texts.items():
        (folder / f"{name}.svg").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)

# SPDX-License-Identifier: Apache-2.0
"""Puts pictures that `make demo` and `make demo-detection` drew side by side, for the README.

python docs/figures/pictures.py
"""

from pathlib import Path

from PIL import Image

FOLDER = Path(__file__).parent
DEMO = FOLDER.parents[1] / "demo"
GAP, WIDTH = 12, 1400  # pixels
FIGURES = {
    "digits.png": ("predictions", ["1_is_a_1", "2_is_a_5"]),
    # Others are empty, or large shapes alone.
    "shapes.jpg": ("shapes_found", ["000002", "000008", "000009"]),
}


def main() -> None:
    for name, (folder, stems) in FIGURES.items():
        paths = (DEMO / folder / f"{stem}_prediction.png" for stem in stems)
        pictures = [Image.open(path).convert("RGB") for path in paths]
        join(pictures).save(FOLDER / name, quality=80, optimize=True)


def join(pictures: list[Image.Image]) -> Image.Image:
    """Returns pictures of equal height beside each other, `WIDTH` pixels wide."""
    height = min(picture.height for picture in pictures)
    pictures = [
        picture.resize((picture.width * height // picture.height, height))
        for picture in pictures
    ]
    width = sum(picture.width for picture in pictures) + GAP * (len(pictures) - 1)
    joined = Image.new("RGB", (width, height), "white")
    left = 0
    for picture in pictures:
        joined.paste(picture, (left, 0))
        left += picture.width + GAP
    return joined.resize((WIDTH, height * WIDTH // width), Image.Resampling.LANCZOS)


if __name__ == "__main__":
    main()

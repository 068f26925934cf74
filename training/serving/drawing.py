# SPDX-License-Identifier: Apache-2.0
"""Drawings of predictions and labels: probabilities, overlays of masks, their legends, and their files."""

import base64
import colorsys
import io
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from lambdanet.core.errors import escape_unprintable
from lambdanet.core.files import check_new, local_path, write_output

# All in pixels.
PANEL = 320
MARGIN = 28
ROW = 46
BAR = 12
CHART = 420

MAX_ROWS = 20
INK = "#111827"  # names and probabilities
FAINT = "#6b7280"  # the title
FRAME = "#d1d5db"
TRACK = "#eef1f5"  # the whole length of a bar
FIRST = "#2563eb"  # the bar of the first class
OTHERS = "#93b4f5"


def percent(probability: float) -> str:
    """Formats a probability with one decimal: 0.9876 -> '98.8 %'."""
    return f"{100 * probability:.1f} %"


def picture_paths(
    images: Sequence[str],
    out: str | Path,
    overwrite: bool = False,
    suffix: str = "_prediction",
) -> list[str]:
    """Chooses a file for the drawing of each image.

    Two images with the same name get `NAME_prediction.png` and `NAME_prediction_2.png`, and none of the
    images is overwritten.

    Args:
      images: the paths of the images.
      out: the folder for the drawings.
      overwrite: whether they may replace files.
      suffix: what follows the name of an image in that of its drawing.

    Returns:
      A path per image.

    Raises:
      InputError: a chosen file exists.
    """
    folder = local_path(out, "out")
    taken = {os.path.realpath(path).casefold() for path in images}
    chosen = []
    for image in images:
        name = os.path.splitext(os.path.basename(image))[0]
        stem = os.path.join(folder, name + suffix)
        picture = f"{stem}.png"
        number = 1
        while os.path.realpath(picture).casefold() in taken:
            number += 1
            picture = f"{stem}_{number}.png"
        check_new(picture, overwrite)
        taken.add(os.path.realpath(picture).casefold())
        chosen.append(picture)
    return chosen


def save_picture(picture: Image.Image, path: str) -> None:
    """Writes a PNG completely or not at all; `InputError` where it cannot be written."""
    file = io.BytesIO()
    picture.save(file, format="PNG")
    write_output(Path(path), file.getvalue())


def as_url(picture: Image.Image) -> str:
    """Returns a picture as an address that contains its PNG, for pages without other files."""
    file = io.BytesIO()
    picture.save(file, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def draw_prediction(
    image: np.ndarray, title: str, top: Sequence[tuple[str, float]]
) -> Image.Image:
    """Draws an image at a readable size, and beside it a title and a bar per class.

    Args:
      image: uint8 RGB [h, w, 3]; a small one is enlarged without smoothing.
      title: the text above the bars, such as the name of the file.
      top: names and probabilities in descending order, of which the first 20 are drawn.

    Returns:
      An RGB image.
    """
    rows = top[:MAX_ROWS]
    height = 2 * MARGIN + max(PANEL, 40 + ROW * len(rows))
    canvas = Image.new("RGB", (3 * MARGIN + PANEL + CHART, height), "white")
    shown = ImageOps.expand(fit(Image.fromarray(image)), 1, FRAME)
    x = MARGIN + (PANEL - shown.width) // 2
    y = MARGIN + (PANEL - shown.height) // 2
    canvas.paste(shown, (x, y))
    draw = ImageDraw.Draw(canvas)
    left = 2 * MARGIN + PANEL
    _text(draw, (left, MARGIN), title, 15, FAINT, CHART)
    for index, (name, probability) in enumerate(rows):
        color = FIRST if index == 0 else OTHERS
        _draw_row(draw, left, MARGIN + 40 + ROW * index, name, probability, color)
    return canvas


def mask_image(mask: np.ndarray) -> Image.Image:
    """Returns a mask, uint8 [h, w], as an image with a palette: a color for each class, black for class 0."""
    palette = [0, 0, 0]
    for number in range(1, 256):
        # By the golden ratio, the hues of the first classes differ most.
        color = colorsys.hsv_to_rgb(0.618 * number % 1, 1, 1)
        palette += [round(255 * value) for value in color]
    image = Image.fromarray(mask)
    image.putpalette(palette)
    return image


def draw_mask(image: np.ndarray, mask: np.ndarray) -> Image.Image:
    """Draws an image, uint8 RGB [h, w, 3], under the half transparent colors of a mask; not of class 0.

    Under a color, the image is gray, so the hue is that of the class, as in the legend.
    """
    picture = Image.fromarray(image)
    gray = picture.convert("L").convert("RGB")
    colored = Image.blend(gray, mask_image(mask).convert("RGB"), 0.5)
    return Image.composite(colored, picture, Image.fromarray(mask > 0))


def add_legend(
    picture: Image.Image,
    numbers: Sequence[int] | np.ndarray,
    class_names: Sequence[str],
) -> Image.Image:
    """Adds names of classes below a picture, each beside its color of `mask_image`.

    Args:
      picture: the picture, such as `draw_mask` returns it, where class 0 has no color.
      numbers: the classes to name, integers [n].
      class_names: the names of all classes.

    Returns:
      An RGB image, as wide as the picture.
    """
    line = max(12, picture.height // 24)
    canvas = ImageOps.expand(picture, (0, 0, 0, line * len(numbers)), "white")
    y = picture.height
    for number in numbers:
        if number:
            canvas.paste(mask_image(np.full([line, line], number, np.uint8)), (0, y))
        name = f" {class_names[number]}"
        draw = ImageDraw.Draw(canvas)
        _text(draw, (line, y), name, 3 * line // 4, INK, canvas.width - line)
        y += line
    return canvas


def fit(image: Image.Image) -> Image.Image:
    """Returns an image with a longer side of `PANEL`, or less where pixels become squares of whole pixels."""
    factor = PANEL / max(image.size)
    method = Image.Resampling.LANCZOS
    if factor >= 2:
        factor = int(factor)
        method = Image.Resampling.NEAREST
    size = (max(1, round(image.width * factor)), max(1, round(image.height * factor)))
    return image.resize(size, method)


def _draw_row(
    draw: ImageDraw.ImageDraw,
    left: int,
    y: int,
    name: str,
    probability: float,
    color: str,
) -> None:
    """Draws the name of a class, its probability and its bar."""
    right = left + CHART
    draw.text(
        (right, y), percent(probability), INK, ImageFont.load_default(17), anchor="ra"
    )
    _text(draw, (left, y), name, 17, INK, CHART - 90)
    bar = y + 24
    draw.rectangle((left, bar, right, bar + BAR), fill=TRACK)
    filled = round(CHART * probability)
    if filled:
        draw.rectangle((left, bar, left + filled, bar + BAR), fill=color)


def _text(
    draw: ImageDraw.ImageDraw,
    corner: tuple[int, int],
    text: str,
    size: int,
    color: str,
    width: int,
) -> None:
    """Draws a text, shortened to a width in pixels."""
    font = ImageFont.load_default(size)
    text = escape_unprintable(text)
    if draw.textlength(text, font) > width:
        while text and draw.textlength(f"{text}...", font) > width:
            text = text[:-1]
        text = f"{text}..."
    draw.text(corner, text, color, font)

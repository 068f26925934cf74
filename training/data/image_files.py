# SPDX-License-Identifier: Apache-2.0
"""Reads image files, and draws predictions beside their pictures."""

import io
import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf
import tqdm
from PIL import Image, ImageDraw, ImageFont, ImageOps, UnidentifiedImageError

from lambdanet.errors import InputError, invalid, one_line
from lambdanet.files import MARKED_PNG, check_replaceable, writable_dir, write_output
from lambdanet.training.data.bad_records import describe_left_out, is_of_system
from lambdanet.training.data.image_bytes import JPEG, PNG, RIFF, WEBP, decode

# All in pixels.
PANEL = 320
MARGIN = 28
ROW = 46
BAR = 12
CHART = 420

MAX_ROWS = 20
INK, FAINT, TRACK, FIRST, OTHERS = "#111827", "#6b7280", "#eef1f5", "#2563eb", "#93b4f5"

# Of pictures in a folder.
ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")


def find_pictures(
    folder: str | Path, above: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """Returns the paths of the pictures below a folder, by their names, and of all other files there.

    `above` has the real paths of the folders from which this one was reached.

    Hidden files and folders are ignored. A folder that a system makes is one of the other files, and so is a
    link to a folder that contains it; other links are followed.
    """
    pictures, others = [], []
    above = [*above, os.path.realpath(folder)]
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name.startswith("."):
                continue
            if is_of_system(entry.name) or (
                entry.is_symlink() and _contains(entry.path, above)
            ):
                others.append(entry.path)
            elif entry.is_dir():
                below = find_pictures(entry.path, above)
                pictures += below[0]
                others += below[1]
            elif entry.name.lower().endswith(ENDINGS) and entry.is_file():
                pictures.append(entry.path)
            else:
                others.append(entry.path)
    return pictures, others


def _contains(link: str, folders: Sequence[str]) -> bool:
    """Returns whether a link leads to a folder that contains one of the folders, or is one."""
    target = os.path.join(os.path.realpath(link), "")
    return any(os.path.join(folder, "").startswith(target) for folder in folders)


def read_image(path: str | Path) -> np.ndarray:
    """Reads an image file as uint8 RGB [h, w, 3], the pixels that training and serving see.

    `InputError` where there is no such file, or it is not a complete image that `as_decodable` takes.
    """
    name = str(path)
    if not os.path.exists(name):
        raise invalid("image", "an existing file", name)
    if not os.path.isfile(name):
        raise invalid("image", "a regular file", name)
    try:
        return decode(as_decodable(Path(name).read_bytes())).numpy()
    except (InputError, OSError) as error:
        reason = str(error)
    except tf.errors.OpError:
        reason = "its data is damaged, or it has too many pixels"
    raise invalid("image", "a complete JPEG, PNG or other image file", name, reason)


def as_decodable(contents: bytes) -> bytes:
    """Returns an image file in a format for `image_bytes.decode`: unchanged, or converted to PNG.

    GIF, BMP, TIFF, animated WebP and the other formats of Pillow become PNGs of the first frame, rotated
    according to EXIF, with the upper 8 of 16 bits. `InputError` where it is no image, or its pixels have no
    known range, as in float TIFFs.
    """
    if _is_decodable(contents):
        return contents
    file = io.BytesIO()
    try:
        with Image.open(io.BytesIO(contents)) as image:
            _in_8_bits(ImageOps.exif_transpose(image)).save(
                file, format="PNG", compress_level=1
            )
    except UnidentifiedImageError:
        raise InputError("its format is unknown") from None
    # Pillow raises many kinds for damaged files, SyntaxError and struct.error too
    except Exception as error:
        raise InputError(one_line(error)) from None
    return file.getvalue()


def _is_decodable(contents: bytes) -> bool:
    """Returns the result of `image_bytes.is_decodable` without TensorFlow, for calls within tf.data."""
    animated = contents[12:16] == b"VP8X" and (contents[20:21] or b"\0")[0] & 2
    is_webp = contents.startswith(RIFF) and contents[8:12] == WEBP
    return contents.startswith((JPEG, PNG)) or (is_webp and not animated)


def _in_8_bits(image: Image.Image) -> Image.Image:
    """Returns an image as RGB, or as RGBA where it is transparent."""
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) // 256).astype(np.uint8)).convert(
            "RGB"
        )
    if image.mode in ("I", "F"):
        raise InputError(
            f"its pixels are {'floats' if image.mode == 'F' else '32-bit integers'}"
        )
    return image.convert("RGBA" if image.has_transparency_data else "RGB")


def expand_folders(images: Sequence[str | Path] | str | Path) -> list[str]:
    """Returns paths of image files, a folder replaced by the pictures below it; `InputError` for none."""
    paths: list[str] = []
    for path in map(
        os.path.expanduser, [images] if isinstance(images, str | Path) else images
    ):
        if os.path.isdir(path):
            pictures, others = find_pictures(path)
            if not pictures:
                raise invalid(
                    "image", f"a file, or a folder with {', '.join(ENDINGS)}", path
                )
            if others:
                found = describe_left_out(path, others, len(pictures) + len(others))
                print(f"left out: {found}", file=sys.stderr, flush=True)
            paths += pictures
        else:
            paths.append(os.fspath(path))
    if not paths:
        raise invalid("images", "image files or folders of them", list(paths))
    return paths


def read_images(
    paths: Sequence[str], show_progress: bool = False
) -> Iterator[tuple[str, np.ndarray | InputError]]:
    """Yields each path and its image, uint8 RGB [h, w, 3], or the error for an unreadable one.

    Unreadable files are printed on stderr; `InputError` where no image can be read. The progress bar in a
    terminal is for callers that print nothing meanwhile.
    """
    failures = []
    for path in tqdm.tqdm(
        paths, unit="image", disable=None if show_progress else True, leave=False
    ):
        try:
            yield path, read_image(path)
        except InputError as error:
            failures.append(error)
            if len(failures) == len(paths):
                raise
            tqdm.tqdm.write(f"skipped: {error}", file=sys.stderr)
            yield path, error


def escape_unprintable(text: str) -> str:
    r"""Returns a text with line breaks and other unprintable characters as escapes, such as `\n`."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def picture_paths(images: Sequence[str], out: str | Path) -> list[str]:
    """Creates the folder `out` and chooses a file in it for each image.

    Two images with the same name get `NAME_prediction.png` and `NAME_prediction_2.png`, and none of the
    images is overwritten; `InputError` for a file that `save_picture` did not write.
    """
    folder = os.fspath(writable_dir(Path(out).expanduser()))
    taken = {os.path.realpath(path).casefold() for path in images}
    chosen = []
    for image in images:
        stem = os.path.join(
            folder, f"{os.path.splitext(os.path.basename(image))[0]}_prediction"
        )
        candidates = itertools.chain(
            [f"{stem}.png"], (f"{stem}_{n}.png" for n in itertools.count(2))
        )
        picture = next(
            path
            for path in candidates
            if os.path.realpath(path).casefold() not in taken
        )
        check_replaceable(picture, MARKED_PNG)
        taken.add(os.path.realpath(picture).casefold())
        chosen.append(picture)
    return chosen


def save_picture(picture: Image.Image, path: str) -> None:
    """Writes a PNG completely or not at all; `InputError` where it cannot be written."""
    file = io.BytesIO()
    picture.save(file, format="PNG")
    write_output(Path(path), file.getvalue())


def draw_prediction(
    image: np.ndarray, title: str, top: Sequence[tuple[str, float]]
) -> Image.Image:
    """Draws an image uint8 [h, w, 3] at a readable size, and beside it a title and a bar per class.

    A small image is enlarged without smoothing. `top` has names and probabilities in descending order, of
    which the first 20 are drawn.
    """
    rows = top[:MAX_ROWS]
    shown = _fit(Image.fromarray(image))
    height = 2 * MARGIN + max(PANEL, 40 + ROW * len(rows))
    canvas = Image.new("RGB", (3 * MARGIN + PANEL + CHART, height), "white")
    corner = (MARGIN + (PANEL - shown.width) // 2, MARGIN + (PANEL - shown.height) // 2)
    canvas.paste(shown, corner)
    draw = ImageDraw.Draw(canvas)
    frame = (
        corner[0] - 1,
        corner[1] - 1,
        corner[0] + shown.width,
        corner[1] + shown.height,
    )
    draw.rectangle(frame, outline="#d1d5db")
    left = 2 * MARGIN + PANEL
    _text(draw, (left, MARGIN), title, 15, FAINT, CHART)
    for index, (name, probability) in enumerate(rows):
        _draw_row(
            draw, left, MARGIN + 40 + ROW * index, name, probability, first=index == 0
        )
    return canvas


def _fit(image: Image.Image) -> Image.Image:
    factor = PANEL / max(image.size)
    if factor >= 2:
        factor = int(factor)
    size = (max(1, round(image.width * factor)), max(1, round(image.height * factor)))
    return image.resize(
        size, Image.Resampling.NEAREST if factor >= 2 else Image.Resampling.LANCZOS
    )


def _draw_row(
    draw: ImageDraw.ImageDraw,
    left: int,
    y: int,
    name: str,
    probability: float,
    first: bool,
) -> None:
    right = left + CHART
    draw.text(
        (right, y), percent(probability), INK, ImageFont.load_default(17), anchor="ra"
    )
    _text(draw, (left, y), name, 17, INK, CHART - 90)
    bar = y + 24
    draw.rectangle((left, bar, right, bar + BAR), fill=TRACK)
    filled = round(CHART * probability)
    if filled:
        draw.rectangle(
            (left, bar, left + filled, bar + BAR), fill=FIRST if first else OTHERS
        )


def _text(
    draw: ImageDraw.ImageDraw,
    corner: tuple[int, int],
    text: str,
    size: int,
    color: str,
    width: int,
) -> None:
    font = ImageFont.load_default(size)
    text = escape_unprintable(text)
    if draw.textlength(text, font) > width:
        while text and draw.textlength(f"{text}...", font) > width:
            text = text[:-1]
        text = f"{text}..."
    draw.text(corner, text, color, font)


def percent(probability: float) -> str:
    """Formats a probability with one decimal: 0.9876 -> '98.8 %'."""
    return f"{100 * probability:.1f} %"

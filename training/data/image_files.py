# SPDX-License-Identifier: Apache-2.0
"""Finds, reads and compares image files, in any format of Pillow."""

import contextlib
import hashlib
import io
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tqdm
from PIL import Image, ImageOps, UnidentifiedImageError

from lambdanet.core.errors import InputError, invalid, one_line
from lambdanet.core.files import check_outside
from lambdanet.training.data.bad_records import describe_left_out, is_of_system
from lambdanet.training.data.image_bytes import JPEG, PNG, RIFF, WEBP, decode

# The endings of pictures in a folder.
ENDINGS = (
    ".bmp",
    ".gif",
    ".jfif",
    ".jpe",
    ".jpeg",
    ".jpg",
    ".png",
    ".tif",
    ".tiff",
    ".webp",
)
PIECE = 1 << 16  # bytes of a file that are compared
COMPLETE = "a complete JPEG, PNG or other image file"


def find_pictures(
    folder: str | Path, above: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """Lists the files below a folder, by their names.

    Hidden files and folders are ignored. A folder that a system makes is one of the other files, and so is a
    link to a folder that contains it; other links are followed.

    Args:
      folder: the folder.
      above: the real paths of the folders from which this one was reached.

    Returns:
      The paths of the pictures, and of all other files.
    """
    pictures = []
    others = []
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
    """Reads an image file as uint8 RGB [h, w, 3], the same pixels as in training and serving.

    Raises:
      InputError: there is no such file, or it is not a complete image that `as_decodable` accepts.
    """
    contents = read_contents(path)
    with named_if_damaged(path):
        return decode(contents).numpy()


def read_contents(path: str | Path) -> bytes:
    """Reads an image file in a format for `image_bytes.decode`, and for the signatures of exports.

    Raises:
      InputError: there is no such file, or `as_decodable` does not accept it.
    """
    name = str(path)
    if not os.path.exists(name):
        raise invalid("image", "an existing file", name)
    if not os.path.isfile(name):
        raise invalid("image", "a regular file", name)
    try:
        return as_decodable(Path(name).read_bytes())
    except (InputError, OSError) as error:
        raise invalid("image", COMPLETE, name, str(error)) from None


@contextlib.contextmanager
def named_if_damaged(path: str | Path) -> Iterator[None]:
    """Raises an `InputError` with the path where TensorFlow cannot decode an image."""
    try:
        yield
    except tf.errors.OpError:
        reason = "its data is damaged, or it has too many pixels"
        raise invalid("image", COMPLETE, str(path), reason) from None


def as_decodable(contents: bytes) -> bytes:
    """Returns an image file in a format for `image_bytes.decode`: unchanged, or converted to PNG.

    GIF, BMP, TIFF, animated WebP and the other formats of Pillow become PNGs of the first frame, rotated
    according to EXIF, with the upper 8 of 16 bits.

    Raises:
      InputError: the file is no image, or its pixels have no known range, as in float TIFFs.
    """
    if _is_decodable(contents):
        return contents
    file = io.BytesIO()
    try:
        with Image.open(io.BytesIO(contents)) as image:
            _in_8_bits(ImageOps.exif_transpose(image)).save(
                # Without the profile of LAB, which has the time of the conversion.
                file,
                format="PNG",
                compress_level=1,
                icc_profile=None,
            )
    except UnidentifiedImageError:
        raise InputError("its format is unknown") from None
    # Pillow raises many kinds for damaged files, SyntaxError and struct.error too
    except Exception as error:
        raise InputError(one_line(error)) from None
    return file.getvalue()


def _is_decodable(contents: bytes) -> bool:
    """Returns the result of `image_bytes.is_decodable` without TensorFlow, for calls within tf.data."""
    if contents.startswith(RIFF) and contents[8:12] == WEBP:
        flags = contents[20:21] or b"\0"
        return contents[12:16] != b"VP8X" or not flags[0] & 2  # of an animation
    return contents.startswith((JPEG, PNG))


def _in_8_bits(image: Image.Image) -> Image.Image:
    """Returns an image as RGB, or as RGBA where it is transparent."""
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) // 256).astype(np.uint8)).convert(
            "RGB"
        )
    if image.mode in ("I", "F"):
        kind = "floats" if image.mode == "F" else "32-bit integers"
        raise InputError(f"its pixels are {kind}")
    return image.convert("RGBA" if image.has_transparency_data else "RGB")


def expand_folders(
    images: Sequence[str | Path] | str | Path, out: str | Path | None = None
) -> list[str]:
    """Returns the paths of image files, with the pictures below a folder instead of the folder.

    Files in a folder that are no pictures are printed on stderr.

    Args:
      images: paths of image files and folders, or one path.
      out: the path to write to, if any.

    Raises:
      InputError: there are no paths, a folder has no pictures, or `out` is in it.
    """
    if isinstance(images, str | Path):
        images = [images]
    paths: list[str] = []
    for path in map(os.path.expanduser, images):
        if os.path.isdir(path):
            if out is not None:
                check_outside(out, path)
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
    paths: Sequence[str],
    show_progress: bool = False,
    read: Callable[[str], Any] = read_image,
) -> Iterator[tuple[str, Any]]:
    """Yields each path and its image, uint8 RGB [h, w, 3], or the error for an unreadable one.

    Unreadable files are printed on stderr.

    Args:
      paths: the paths of image files.
      show_progress: whether to show a progress bar in a terminal, for callers that print nothing meanwhile.
      read: what reads the image at a path, such as `read_contents`, or raises `InputError`.

    Raises:
      InputError: no image can be read.
    """
    failures = []
    for path in tqdm.tqdm(
        paths, unit="image", disable=None if show_progress else True, leave=False
    ):
        try:
            yield path, read(path)
        except InputError as error:
            failures.append(error)
            if len(failures) == len(paths):
                raise
            tqdm.tqdm.write(f"skipped: {error}", file=sys.stderr)
            yield path, error


def fingerprint(files: Sequence[tuple[str, Any]]) -> str:
    """Returns a digest of the names, labels and sizes of files, which may be in another folder later.

    Args:
      files: their paths and labels; of a label that is a file, the name counts (`describe_content`).
    """
    rows = []
    for path, label in files:
        name = os.path.basename(label) if isinstance(label, str) else label
        rows.append((os.path.basename(path), name, file_size(path)))
    return hashlib.sha256(repr(rows).encode()).hexdigest()


def describe_content(path: str, known: Mapping[str, list[str]]) -> list[str]:
    """Returns the real path of a file, its size and times, and a digest of its content.

    Args:
      path: the path of the file.
      known: what was returned before, by the real path; with the same size and times, the file is not read.
    """
    path = os.path.realpath(path)
    status = os.stat(path)
    # A copy may keep the time of the content, but not that of the entry.
    stamp = f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
    if path in known and stamp in known[path]:
        return known[path]
    return [path, stamp, hashlib.sha256(Path(path).read_bytes()).hexdigest()]


def find_copies(places: Mapping[str, object]) -> list[str]:
    """Returns the files whose content is at another place, too, with the copies of a file beside each other.

    Contents are compared by their size and the 64 KB in their middle, which are read where sizes are equal.
    Files that cannot be read are left to the run.

    Args:
      places: the paths of files, and the place of each, such as its split and class.
    """
    sizes = {path: file_size(path) for path in places}
    numbers = Counter(sizes.values())
    groups: dict[tuple[int, bytes], list[str]] = {}
    for path, size in sizes.items():
        if size and numbers[size] > 1:
            with open(path, "rb") as file:
                file.seek(max(size - PIECE, 0) // 2)
                piece = hashlib.sha256(file.read(PIECE)).digest()
            groups.setdefault((size, piece), []).append(path)
    copies = []
    for group in groups.values():
        if len({places[path] for path in group}) > 1:
            copies += group
    return copies


def file_size(path: str) -> int:
    """Returns the size of a file in bytes; 0 where it cannot be read."""
    return os.path.getsize(path) if os.access(path, os.R_OK) else 0

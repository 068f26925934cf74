# SPDX-License-Identifier: Apache-2.0
"""Predicts image files with an exported model. Needs TensorFlow and Pillow, but not Keras."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lambdanet.core import text_table
from lambdanet.core.errors import InputError, check_count, escape_unprintable, invalid
from lambdanet.core.files import (
    check_new,
    local_path,
    writable_dir,
    write_output,
)
from lambdanet.training.data.image_files import (
    expand_folders,
    read_image,
    read_images,
)
from lambdanet.training.data.task_outputs import Result
from lambdanet.training.serving.drawing import picture_paths, save_picture
from lambdanet.training.serving.exported_model import load_export


def predict(
    saved_model: str | Path,
    images: Sequence[str | Path] | str | Path,
    out: str | Path | None = None,
    top: int = 5,
    window: int = 0,
    overlap: int = 64,
    overwrite: bool = False,
) -> list[Result]:
    """Prints the top classes of each image, and draws them or writes them to a table.

    Of a model for masks, the classes are printed with the fraction of the pixels that they have. An image
    that cannot be read is reported and skipped.

    Args:
      saved_model: a folder written by `lambdanet export`.
      images: image files in any format that Pillow reads, and folders of them.
      out: a folder for the drawn predictions, `NAME_prediction.png`; or a file to write instead of printing:
        .csv (a row per image and class) or .jsonl (a line per image); default: none.
        For masks, a folder for `NAME_mask.png`, with the numbers of the classes, and `NAME_overlay.png`, the
        image under their colors, with their names below it.
      top: the number of classes per image, at most all of them.
      window, overlap: the windows in which large images are read, for masks, as of `evaluate`.
      overwrite: whether files that exist are replaced.

    Returns:
      A dict per image with `image`, `top` (pairs of name and probability in descending order), `picture`
      (the path of the drawn prediction, or None) and, where an image may have any number of classes,
      `present` (the names of those that it has); for an image that cannot be read, `image` and `error`.

    Raises:
      InputError: no image can be read, `saved_model` is not an exported classifier, `top` is less than 1, or
        `out` has another ending, or a file exists or cannot be written.

    Example:
      >>> predict("exported/digits", ["seven.png"], out="predictions", top=3)
    """
    paths = expand_folders(images, out)
    top = check_count("top", top)
    file = local_path(out or "", "out")
    table = TABLES.get(file.suffix.lower())
    if table:
        check_new(file, overwrite)
    elif file.suffix and not file.is_dir():
        accepted = f"a folder, or a file that ends in {' or '.join(TABLES)}"
        raise invalid("out", accepted, str(out))
    exported = load_export(saved_model)
    outputs = exported.task_outputs
    if table and outputs.any_size:
        raise invalid("out", f"a folder, for {outputs.kind}", str(out))
    if out is not None and not table and not outputs.suffixes:
        accepted = f"a file that ends in {' or '.join(TABLES)}, for {outputs.kind}"
        raise invalid("out", accepted, str(out))
    if window and not outputs.any_size:
        raise invalid("window", "left out, unless for masks", window)
    if window:
        # Here: it imports Keras, which takes seconds.
        from lambdanet.models.sliding_window import check_windows

        check_windows(window, overlap)
    drawings: Sequence[Sequence[str]] = [()] * len(paths)
    if out is not None and not table:
        chosen = [
            picture_paths(paths, out, overwrite, suffix) for suffix in outputs.suffixes
        ]
        drawings = list(zip(*chosen, strict=True))
    if out is not None:
        writable_dir(file.parent if table else file)

    def find(path: str) -> tuple[Any, Result]:
        found = outputs.find(exported.signatures, path, window, overlap)
        return found, outputs.describe(found, top)

    predictions = read_images(paths, show_progress=table is not None, read=find)
    results: list[Result] = []
    for (path, prediction), files in zip(predictions, drawings, strict=True):
        if isinstance(prediction, InputError):
            results.append({"image": path, "error": str(prediction)})
            continue
        found, result = prediction
        if files:
            title = os.path.basename(path)
            drawn = outputs.draw(read_image(path), title, found, result)
            for drawing, name in zip(drawn, files, strict=True):
                save_picture(drawing, name)
        picture = files[0] if files else None
        if not table:
            print(escape_unprintable(path))
            for line in outputs.lines(result):
                print(f"  {line}")
        if picture is not None:
            print(f"  drawn in {escape_unprintable(picture)}")
        results.append({"image": path, "picture": picture, **result})
    if table:
        text = table(results, outputs)
        write_output(file, text.encode(errors="backslashreplace"))
        count = sum("error" not in result for result in results)
        print(f"wrote the predictions of {count} images to {out}")
    return results


def _csv(results: Sequence[Result], outputs: Any) -> str:
    """Returns the rows of each readable image."""
    rows = [
        {"image": result["image"], **row}
        for result in results
        if "error" not in result
        for row in outputs.rows(result)
    ]
    return text_table.to_csv(rows)


def _json_lines(results: Sequence[Result], outputs: Any) -> str:
    """Returns an object per image: `image`, and the fields of its prediction, or an `error`."""
    lines = []
    for result in results:
        line = {"image": result["image"]}
        if "error" in result:
            line["error"] = result["error"]
        else:
            line |= outputs.fields(result)
        lines.append(json.dumps(line) + "\n")
    return "".join(lines)


# By the ending of a file, the function that returns its text.
TABLES: dict[str, Callable[[Sequence[Result], Any], str]] = {
    ".csv": _csv,
    ".jsonl": _json_lines,
}

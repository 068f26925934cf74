# SPDX-License-Identifier: Apache-2.0
"""Says what an exported classifier sees in image files. Needs TensorFlow and Pillow, no Keras."""

import csv
import io
import json
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from lambdanet.errors import InputError, one_line
from lambdanet.files import writable_dir, write_output
from lambdanet.training.data.image_files import (
    draw_prediction,
    expand_folders,
    percent,
    picture_paths,
    printable,
    read_images,
    save_picture,
)


def predict(
    saved_model: str | Path,
    images: Sequence[str | Path] | str | Path,
    out: str | Path | None = None,
    top: int = 5,
) -> list[dict[str, Any]]:
    """Prints the likeliest classes of each image, and draws them beside it or writes them to a table.

    An image that cannot be read is named, and the others go on.

    Args:
      saved_model: a folder that `lambdanet export` has written.
      images: image files, JPEG, PNG or whatever else Pillow reads, and folders of them.
      out: a file .csv (a row for each class of each image) or .jsonl (a line for each image), written instead
        of printing; or a folder for the pictures, `NAME_prediction.png` for each image; None writes nothing.
      top: number of classes to name; all of them where there are fewer.

    Returns:
      For each image a dict of `image`, `top` (pairs of name and probability, the likeliest first) and
      `picture` (the path of what was drawn, or None); of one that cannot be read, `image` and `error`.

    Raises:
      InputError: no image can be read, `saved_model` is not an exported classifier, `top` is less than 1, or
        `out` cannot be written.

    Example:
      >>> predict("exported/digits", ["seven.png"], out="predictions", top=3)
    """
    paths = expand_folders(images)
    if isinstance(top, bool) or not isinstance(top, int) or top < 1:
        raise InputError(f"top={top!r} cannot be used; expected a whole number from 1")
    file = None if out is None else Path(out).expanduser()
    write_table = TABLES.get(file.suffix.lower()) if file else None
    classifier = load_classifier(saved_model)
    names = [name.decode() for name in classifier.class_names().numpy()]
    if file and write_table:
        writable_dir(file.parent)
    pictures = [None] * len(paths) if out is None or write_table else picture_paths(paths, out)
    results: list[dict[str, Any]] = []
    for (path, image), picture in zip(
        read_images(paths, show_progress=bool(write_table)), pictures, strict=True
    ):
        if isinstance(image, InputError):
            results.append({"image": path, "error": str(image)})
            continue
        outputs = classifier.signatures["serving_default"](images=tf.constant(image[np.newaxis]))
        probabilities = outputs["probabilities"][0].numpy()
        best = np.argsort(-probabilities, kind="stable")[:top]
        likeliest = [(names[index], float(probabilities[index])) for index in best]
        if picture is not None:
            save_picture(draw_prediction(image, os.path.basename(path), likeliest), picture)
        if not write_table:
            _print_prediction(path, likeliest, picture)
        results.append({"image": path, "top": likeliest, "picture": picture})
    if file and write_table:
        write_output(file, write_table(results).encode(errors="backslashreplace"))
        print(f"predictions of {sum('top' in result for result in results)} images in {out}")
    return results


def _csv(results: Sequence[dict[str, Any]]) -> str:
    """Returns a row for each class of each image that can be read."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["image", "rank", "class", "probability"])
    for result in results:
        for rank, (name, probability) in enumerate(result.get("top", ()), 1):
            writer.writerow([result["image"], rank, name, f"{probability:.6g}"])
    return text.getvalue()


def _json_lines(results: Sequence[dict[str, Any]]) -> str:
    """Returns an object for each image: `image`, and `classes` with their `probabilities` or an `error`."""
    lines = []
    for result in results:
        line = {"image": result["image"]}
        if "error" in result:
            line["error"] = result["error"]
        else:
            line["classes"], line["probabilities"] = zip(*result["top"], strict=True)
        lines.append(json.dumps(line) + "\n")
    return "".join(lines)


TABLES: dict[str, Callable[[Sequence[dict[str, Any]]], str]] = {".csv": _csv, ".jsonl": _json_lines}


def load_classifier(saved_model: str | Path) -> Any:
    """Loads what `lambdanet export` wrote, with its `signatures` and its `class_names()`.

    Raises:
      InputError: there is no SavedModel, it is damaged, or it is not an exported classifier.
    """
    expected = "expected a folder written by `lambdanet export`"
    loaded = load_saved_model(saved_model, expected)
    if "probabilities" not in outputs_of(loaded) or not hasattr(loaded, "class_names"):
        raise InputError(f"saved_model {str(saved_model)!r} is not a lambdanet classifier; {expected}")
    return loaded


def load_saved_model(saved_model: str | Path, expected: str) -> Any:
    """Loads a SavedModel of any kind.

    Args:
      saved_model: its folder.
      expected: the end of the message where there is none.

    Raises:
      InputError: there is no SavedModel, or it is damaged.
    """
    path = os.path.expanduser(saved_model)
    if not tf.saved_model.contains_saved_model(path):
        problem = "holds no SavedModel" if tf.io.gfile.exists(path) else "does not exist"
        raise InputError(f"saved_model {path!r} {problem}; {expected}")
    try:
        return tf.saved_model.load(path)
    except Exception as error:  # a damaged SavedModel can end in any of a dozen kinds
        reason = one_line(error)
        raise InputError(f"saved_model {path!r} cannot be loaded ({reason}); {expected}") from error


def outputs_of(loaded: Any) -> Collection[str]:
    """Returns the names of what the signature `serving_bytes` of a loaded SavedModel gives."""
    signature = getattr(loaded, "signatures", {}).get("serving_bytes")
    return () if signature is None else signature.structured_outputs.keys()


def _print_prediction(image: str, likeliest: Sequence[tuple[str, float]], picture: str | None) -> None:
    """Prints the name of an image file, and a line for each class."""
    width = max(len(name) for name, _ in likeliest)
    print(printable(image))
    for name, probability in likeliest:
        print(f"  {name:<{width}}  {percent(probability):>7}")
    if picture is not None:
        print(f"  drawn in {printable(picture)}")

# SPDX-License-Identifier: Apache-2.0
"""Classifies image files with an exported model. Needs TensorFlow and Pillow, but not Keras."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from PIL import Image

from lambdanet.core import text_table
from lambdanet.core.errors import InputError, check_count, escape_unprintable, invalid
from lambdanet.core.files import (
    check_replaceable,
    local_path,
    writable_dir,
    write_output,
)
from lambdanet.training.data.image_files import (
    expand_folders,
    named_if_damaged,
    read_contents,
    read_image,
    read_images,
)
from lambdanet.training.serving.drawing import (
    draw_mask,
    draw_prediction,
    mask_image,
    percent,
    picture_paths,
    save_picture,
)
from lambdanet.training.serving.exported_model import (
    ExportedModel,
    load_classifier,
)

TINY = 1e-30  # the smallest probability whose logarithm is taken

Result = dict[str, Any]  # of an image, as `predict` returns it


def predict(
    saved_model: str | Path,
    images: Sequence[str | Path] | str | Path,
    out: str | Path | None = None,
    top: int = 5,
    window: int = 0,
    overlap: int = 64,
) -> list[Result]:
    """Prints the top classes of each image, and draws them or writes them to a table.

    Of a model for masks, the classes are printed with the fraction of the pixels that they have. An image
    that cannot be read is reported and skipped.

    Args:
      saved_model: a folder written by `lambdanet export`.
      images: image files in any format that Pillow reads, and folders of them.
      out: a folder for the drawn predictions, `NAME_prediction.png`; or a file to write instead of printing:
        .csv (a row per image and class) or .jsonl (a line per image); default: none. Replaces only its own.
        For masks, a folder for `NAME_mask.png`, with the numbers of the classes, and `NAME_overlay.png`, the
        image under their colors.
      top: the number of classes per image, at most all of them.
      window, overlap: the windows in which large images are read, for masks, as of `evaluate`.

    Returns:
      A dict per image with `image`, `top` (pairs of name and probability in descending order), `picture`
      (the path of the drawn prediction, or None) and, where an image may have any number of classes,
      `present` (the names of those that it has); for an image that cannot be read, `image` and `error`.

    Raises:
      InputError: no image can be read, `saved_model` is not an exported classifier, `top` is less than 1, or
        `out` has another ending, is a file that `predict` did not write, or cannot be written.

    Example:
      >>> predict("exported/digits", ["seven.png"], out="predictions", top=3)
    """
    paths = expand_folders(images, out)
    top = check_count("top", top)
    file = local_path(out or "", "out")
    table = TABLES.get(file.suffix.lower())
    if table:
        check_replaceable(file, table.beginning)
    elif file.suffix and not file.is_dir():
        accepted = f"a folder, or a file that ends in {' or '.join(TABLES)}"
        raise invalid("out", accepted, str(out))
    classifier = load_classifier(saved_model, accepts_masks=True)
    if table and classifier.has_masks:
        raise invalid("out", "a folder, for masks", str(out))
    if window and not classifier.has_masks:
        raise invalid("window", "left out, unless for masks", window)
    if window:
        # Here: it imports Keras, which takes seconds.
        from lambdanet.models.sliding_window import check_windows

        check_windows(window, overlap)
    pictures: Sequence[str | None] = [None] * len(paths)
    masks: Sequence[str | None] = pictures
    if table:
        writable_dir(file.parent)
    elif classifier.has_masks and out is not None:
        pictures = picture_paths(paths, out, "_overlay")
        masks = picture_paths(paths, out, "_mask")
    elif out is not None:
        pictures = picture_paths(paths, out)

    def segment(path: str) -> Result:
        image = read_image(path)
        mask = find_mask(classifier, image, window, overlap)
        count = len(classifier.class_names)
        shares = np.array(Image.fromarray(mask).histogram()[:count]) / mask.size
        found = top_classes(shares, classifier.class_names, top)
        return {"top": [pair for pair in found if pair[1]], "mask": mask}

    def classify(path: str) -> Result:
        if classifier.has_masks:
            return segment(path)
        contents = tf.constant([read_contents(path)])
        with named_if_damaged(path):
            outputs = classifier.signatures["serving_bytes"](image_bytes=contents)
        return describe(outputs["probabilities"][0].numpy(), classifier, top)

    predictions = read_images(paths, show_progress=table is not None, read=classify)
    results: list[Result] = []
    for (path, found), picture, mask_file in zip(
        predictions, pictures, masks, strict=True
    ):
        if isinstance(found, InputError):
            results.append({"image": path, "error": str(found)})
            continue
        classes = found["top"]
        mask = found.pop("mask", None)
        if picture is not None and mask_file is not None:
            save_picture(mask_image(mask), mask_file)
            save_picture(draw_mask(read_image(path), mask), picture)
        elif picture is not None:
            title = os.path.basename(path)
            save_picture(draw_prediction(read_image(path), title, classes), picture)
        if not table:
            _print_prediction(path, found, picture)
        results.append({"image": path, "picture": picture, **found})
    if table:
        write_output(file, table.write(results).encode(errors="backslashreplace"))
        count = sum("top" in result for result in results)
        print(f"wrote the predictions of {count} images to {out}")
    return results


def find_mask(
    segmenter: ExportedModel, image: np.ndarray, window: int, overlap: int
) -> np.ndarray:
    """Returns the classes of the pixels of an image, uint8 [h, w].

    Args:
      segmenter: an exported model for masks.
      image: uint8 RGB [h, w, 3].
      window, overlap: the windows in which it is read, as of `sliding_window`; 0: it is whole.
    """
    serve = segmenter.signatures["serving_default"]
    if not window:
        return serve(images=tf.constant(image[np.newaxis]))["classes"][0].numpy()

    from lambdanet.models.sliding_window import window_parts

    def scores(images: np.ndarray) -> np.ndarray:
        # Logits but for a number per pixel, of which the mean is taken, as in evaluation.
        found = serve(images=tf.constant(images))["probabilities"]
        return np.log(np.maximum(found, TINY))

    mask = np.empty(image.shape[:2], np.uint8)
    for at, part in window_parts(scores, image[np.newaxis], window, overlap):
        mask[*at] = part[0].argmax(-1)
    return mask


def describe(probabilities: np.ndarray, classifier: ExportedModel, top: int) -> Result:
    """Returns `top` and, where a picture has any number of classes, `present`, as of `predict`."""
    names = classifier.class_names
    found: Result = {"top": top_classes(probabilities, names, top)}
    if len(classifier.thresholds):
        places = np.flatnonzero(probabilities >= classifier.thresholds)
        found["present"] = [names[place] for place in places]
    return found


def top_classes(
    probabilities: np.ndarray, class_names: Sequence[str], top: int
) -> list[tuple[str, float]]:
    """Returns the names and probabilities of the first classes, in descending order.

    Args:
      probabilities: one per class, [num_classes].
      class_names: the name of each class.
      top: the number of classes to return, at most all of them.
    """
    best = np.argsort(-probabilities, kind="stable")[:top]
    return [(class_names[index], float(probabilities[index])) for index in best]


def _csv(results: Sequence[Result]) -> str:
    """Returns a row per class of each readable image."""
    rows = [
        {
            "image": result["image"],
            "rank": rank,
            "class": name,
            "probability": f"{probability:.6g}",
            **({"present": name in result["present"]} if "present" in result else {}),
        }
        for result in results
        for rank, (name, probability) in enumerate(result.get("top", ()), 1)
    ]
    return text_table.to_csv(rows)


def _json_lines(results: Sequence[Result]) -> str:
    """Returns an object per image: `image`, and `classes` with `probabilities`, or an `error`."""
    lines = []
    for result in results:
        line = {"image": result["image"]}
        if "error" in result:
            line["error"] = result["error"]
        else:
            line["classes"], line["probabilities"] = zip(*result["top"], strict=True)
        if "present" in result:
            line["present"] = result["present"]
        lines.append(json.dumps(line) + "\n")
    return "".join(lines)


class Table(NamedTuple):
    """A format of tables of predictions."""

    write: Callable[[Sequence[Result]], str]  # results -> the text of a file
    beginning: bytes  # a pattern of the beginning of its files


TABLES = {
    ".csv": Table(_csv, rb"image,rank,class,probability[,\n]"),
    ".jsonl": Table(
        _json_lines,
        rb'\{"image": "[^\n]*", ("classes": \[[^\n]*\], "probabilities": \[|"error": ")',
    ),
}


def _print_prediction(image: str, found: Result, picture: str | None) -> None:
    classes = found["top"]
    width = max(len(name) for name, _ in classes)
    print(escape_unprintable(image))
    for name, probability in classes:
        mark = "  present" if name in found.get("present", ()) else ""
        print(f"  {name:<{width}}  {percent(probability):>7}{mark}")
    if picture is not None:
        print(f"  drawn in {escape_unprintable(picture)}")

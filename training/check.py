# SPDX-License-Identifier: Apache-2.0
"""A look at the pictures of a recipe before a run: classes, sizes, copies, and what would stop it."""

import contextlib
import io
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image

from lambdanet.configs.recipe import Recipe
from lambdanet.core import text_table
from lambdanet.core.errors import InputError, Unfinished, join_first
from lambdanet.core.files import check_new, local_path, write_output
from lambdanet.training.data.bad_records import prepare_in_groups
from lambdanet.training.data.class_names import IGNORED
from lambdanet.training.data.dataset import Dataset
from lambdanet.training.data.image_files import find_copies
from lambdanet.training.serving.drawing import add_legend, as_url, draw_mask, fit


def check(
    recipe: Recipe,
    data_dir: str | None = None,
    out: str | None = None,
    overwrite: bool = False,
) -> None:
    """Reads all pictures of a recipe, and prints what they are on at most two screens.

    These are those of its splits, with the pictures or pixels of each class, and their share. Copies are
    files of the same size with the same bytes in their middle; those in TFRecords, Parquet and TFDS are not
    compared.

    Args:
      recipe: the dataset, its splits, its task and, for `out`, the augmentation.
      data_dir: the folder of TFDS, or of the pictures or records; None: the default of TFDS.
      out: a folder for `pictures.html`, the first pictures of training as a step sees them, before mixup and
        CutMix, under the colors of their masks and with the names of their classes. None: it is not written.
      overwrite: whether that file may be replaced.

    Raises:
      InputError: the data cannot be opened, or `out` has the file or cannot be written.
      Unfinished: all was read and printed, and a picture cannot be read, or a run would not start.

    Example:
      >>> check(configs.get_recipe("folder"), "pictures")
    """
    if out:
        page = local_path(out, "out") / "pictures.html"
        check_new(page, overwrite)
    lines = []
    problems = []
    sizes: list[Any] = []
    places: dict[str, str] = {}
    with contextlib.redirect_stdout(io.StringIO()) as said:
        dataset = Dataset.open(
            recipe, data_dir, eval_split=recipe.held_out_split or None
        )
        names = dataset.class_names
        columns = [["class", *names]]
        try:
            for split in dict.fromkeys(
                [recipe.train_split, dataset.eval_split, recipe.eval_split]
            ):
                counts = read_split(dataset, split, sizes)
                total = counts.sum() or 1
                columns.append([split, *[f"{n:.0f} ({n / total:.1%})" for n in counts]])
                if not counts.all():
                    lines.append(
                        f"{split} has no {join_first(np.array(names)[counts == 0], ', ')}"
                    )
                places.update((path, path) for path, _ in dataset.source.files(split))
            dataset.check()
        except InputError as error:
            problems.append(str(error))
    if copies := find_copies(places):
        lines.append(
            f"{len(copies)} files have the bytes of others, such as {join_first(copies, ', ', 3)}"
        )
    if unread := dataset.bad_records.names:
        problems.append(
            f"{len(unread)} pictures cannot be read, such as {join_first(sorted(unread), ', ', 3)}"
        )
    if sizes:
        sizes.sort(key=np.prod)
        shown = sizes[0], sizes[-1], sizes[len(sizes) // 2]
        least, most, median = [f"{width} x {height}" for height, width, _ in shown]
        print(f"{len(sizes)} pictures: {least} pixels to {most}, median {median}")
    table = text_table.align_columns(list(zip(*columns, strict=True))).splitlines()
    for part in (table, lines + sorted(said.getvalue().splitlines()), problems):
        print(join_first(part, "\n", 15))  # all are on two screens of 24 lines
    if out:
        write_output(page, draw_page(dataset))
    if problems:
        raise Unfinished(f"problems in the data, printed above: {len(problems)}")


def read_split(dataset: Dataset, split: str, sizes: Any) -> np.ndarray:
    """Returns the number of pictures or pixels of each class in a split, and adds the sizes of its pictures.

    `InputError` where there is no such split, a label is no class, or too many pictures cannot be read.
    """
    source = dataset.source
    task = dataset.task
    counts = np.zeros(len(dataset.class_names))
    pairs = source.examples(split, None).map(lambda example: (example, 0))
    groups = prepare_in_groups(
        pairs,
        lambda example, key: (
            tf.shape(source.image(example).pixels()),
            task.pair(source, example)[1],
        ),
        1 if task.any_size else 16,  # masks have different sizes
    )
    with dataset.bad_records.as_input_errors():
        for shapes, labels in dataset.bad_records.valid_only(groups, len(counts)):
            sizes += shapes.numpy().tolist()
            counts += task.count(labels.numpy())[0]
    return counts


def draw_page(dataset: Dataset) -> str:
    """Returns a page with the first 16 pictures of training, their masks and the names of their classes."""
    page = "<!DOCTYPE html><title>The first pictures of training</title>\n"
    for image, label in dataset.first_pairs(16).as_numpy_iterator():
        picture = Image.fromarray(image.squeeze()).convert("RGB")
        if label.ndim > 1:
            picture = draw_mask(np.array(picture), label % IGNORED)
        counts, _ = dataset.task.count(label[np.newaxis])
        shown = add_legend(fit(picture), np.flatnonzero(counts), dataset.class_names)
        page += f'<img src="{as_url(shown)}">\n'
    return page

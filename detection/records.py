# SPDX-License-Identifier: Apache-2.0
"""The records that a detector learns from, checked one by one as they are read.

Model Garden trains without a word on labels of classes that the model does not have and on boxes outside the
image; records of another kind end it with a message that names no file.
"""

import functools
import re
from collections.abc import Callable, Sequence

import tensorflow as tf

from lambdanet.detection.garden import hyperparams, input_reader
from lambdanet.errors import InputError

LABELS = "image/object/class/label"
MASKS = "image/object/mask"
CORNERS = tuple(f"image/object/bbox/{name}" for name in ("ymin", "xmin", "ymax", "xmax"))
ROUNDING = 1e-3  # by which a corner may lie outside the image, as a fraction of its side
LOOKED_AT = 10  # the records of each file that are checked before anything else is done
KIND = "expected tf.Examples as Model Garden's create_coco_tf_record writes them"

Reader = Callable[[tf.Tensor | Sequence[str]], tf.data.Dataset]


def checked(data: hyperparams.Config, model: hyperparams.Config) -> Reader:
    """Returns what reads TFRecord files and fails at the first record that does not fit the model.

    Args:
      data: task.train_data or task.validation_data.
      model: task.model.
    """
    compression = "GZIP" if data.file_type == "tfrecord_compressed" else None
    masks = bool(model.get("include_mask", False))

    def read_one(file: tf.Tensor) -> tf.data.Dataset:
        found = tf.data.TFRecordDataset(file, compression).enumerate()
        check = functools.partial(_check, file, num_classes=model.num_classes, masks=masks)
        return found.map(check, num_parallel_calls=tf.data.AUTOTUNE)

    def read(files: tf.Tensor | Sequence[str]) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(tf.reshape(files, [-1])).flat_map(read_one)

    return read


def look_into(key: str, data: hyperparams.Config, model: hyperparams.Config) -> None:
    """Checks the first records of each file, which takes seconds where training would begin after minutes.

    Args:
      key: where `data` stands, such as "task.train_data".
      data: of a detection task.
      model: task.model.

    Raises:
      InputError: no such files, or records that do not fit, with the file and what is wrong.
    """
    try:
        files = input_reader.match_files(data.input_path)
    except ValueError:
        raise InputError(f"{key}.input_path {data.input_path!r} matches no file; {KIND}") from None
    number = 0
    for file in files:
        if not tf.io.gfile.exists(file):
            raise InputError(f"{key}.input_path: there is no file {file!r}; {KIND}")
        try:
            number += sum(1 for _ in checked(data, model)([file]).take(LOOKED_AT))
        except tf.errors.OpError as error:
            raise explained(error) or InputError(f"{file!r} holds something else; {KIND}") from None
    if number == 0:
        raise InputError(f"{key}.input_path {data.input_path!r}: no record in {len(files)} files; {KIND}")


def explained(error: Exception) -> InputError | None:
    """Returns what a check found, if that is what ended the reading of records."""
    found = re.search(r"assertion failed: \[(record \d+ of .*?)\]\s*(\[\[|\{\{|$)", str(error), re.S)
    return InputError(found[1]) if found else None


def _check(file: tf.Tensor, number: tf.Tensor, record: tf.Tensor, num_classes: int, masks: bool) -> tf.Tensor:
    """Returns the record; fails if it has an object that the model cannot have."""
    features = {name: tf.io.VarLenFeature(tf.float32) for name in CORNERS}
    features |= {LABELS: tf.io.VarLenFeature(tf.int64), MASKS: tf.io.VarLenFeature(tf.string)}
    features["image/encoded"] = tf.io.FixedLenFeature((), tf.string, "")
    features["image/source_id"] = tf.io.FixedLenFeature((), tf.string, "")
    example = tf.io.parse_single_example(record, features)
    labels, corners = example[LABELS].values, [example[name].values for name in CORNERS]
    ymin, xmin, ymax, xmax = corners
    counts = [tf.size(labels), *map(tf.size, corners)]
    problem = _first(
        (tf.equal(tf.strings.length(example["image/encoded"]), 0), ["holds no image/encoded; " + KIND]),
        (
            tf.reduce_any([count != counts[0] for count in counts]),
            ["has ", counts[0], " labels and ", counts[1], " boxes; expected a box for each label"],
        ),
        (
            tf.reduce_any((labels < 1) | (labels >= num_classes)),
            [
                "has the classes ",
                tf.strings.reduce_join(tf.strings.as_string(tf.unique(labels)[0]), separator=", "),
                f"; task.model.num_classes={num_classes} counts the background and accepts 1 to "
                f"{num_classes - 1}",
            ],
        ),
        (
            _outside(ymin, ymax) | _outside(xmin, xmax),
            [
                "has a box that leaves the image: one reaches from ",
                tf.strings.as_string(_least([ymin, xmin]), precision=3),
                " to ",
                tf.strings.as_string(-_least([-ymax, -xmax]), precision=3),
                " of a side; expected 0 to 1, the lower corner first",
            ],
        ),
        (
            tf.constant(masks) & (tf.size(example[MASKS].values) != counts[0]),
            [
                "has ",
                tf.size(example[MASKS].values),
                " masks for ",
                counts[0],
                " objects; expected one for each (create_coco_tf_record --include_masks), or "
                "task.model.include_mask=false",
            ],
        ),
    )
    where = ["record ", number, " of ", file, " (image ", example["image/source_id"], ") "]
    message = tf.strings.join([_text(part) for part in where] + [problem])
    with tf.control_dependencies([tf.debugging.Assert(tf.equal(problem, ""), [message])]):
        return tf.identity(record)


def _first(*problems: tuple[tf.Tensor, list[str | tf.Tensor]]) -> tf.Tensor:
    """Returns the text of the first problem that there is; empty for none."""
    text = tf.constant("")
    for is_there, parts in reversed(problems):
        text = tf.where(is_there, tf.strings.join([_text(part) for part in parts]), text)
    return text


def _text(part: str | tf.Tensor) -> tf.Tensor:
    part = tf.convert_to_tensor(part)
    return part if part.dtype == tf.string else tf.strings.as_string(part)


def _outside(low: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
    number = tf.minimum(tf.size(low), tf.size(high))  # they differ where another check fails
    low, high = low[:number], high[:number]
    return tf.reduce_any((low < -ROUNDING) | (high > 1 + ROUNDING) | (low > high))


def _least(values: list[tf.Tensor]) -> tf.Tensor:
    return tf.reduce_min(tf.concat([*values, [1.0]], 0))

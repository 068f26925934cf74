# SPDX-License-Identifier: Apache-2.0
"""The records that a detector learns from, checked one by one as they are read.

Model Garden trains without a word on labels of classes that the model does not have and on boxes outside the
image; records of another kind end it with a message that names no file. Its decoders also read the colors
under transparent pixels, and ignore the orientation that EXIF gives.
"""

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import tensorflow as tf

from lambdanet.detection.model_garden import (
    classification_input,
    hyperparams,
    input_reader,
    tf_example_decoder,
)
from lambdanet.errors import InputError
from lambdanet.training.data import image_bytes

LABELS = "image/object/class/label"
MASKS = "image/object/mask"
ENCODED, HEIGHT, WIDTH, SOURCE_ID = "image/encoded", "image/height", "image/width", "image/source_id"
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
        first = checked(data, model)([file]).take(LOOKED_AT)
        try:
            number += sum(1 for _ in first)
        except tf.errors.OpError as error:
            raise explained(error) or InputError(f"{file!r} holds something else; {KIND}") from None
        try:
            for _ in first.map(_decode_image_of, num_parallel_calls=tf.data.AUTOTUNE):
                pass
        except tf.errors.OpError as error:
            reason = explained(error) or error.message.partition("\n")[0].rpartition("}} ")[2]
            raise InputError(f"{file!r} has a picture that cannot be used: {reason}") from None
    if number == 0:
        raise InputError(f"{key}.input_path {data.input_path!r}: no record in {len(files)} files; {KIND}")


def explained(error: Exception) -> InputError | None:
    """Returns what a check found, if that is what ended the reading of records."""
    found = re.search(r"assertion failed: \[((record \d+ of|image ).*?)\]\s*(\[\[|\{\{|$)", str(error), re.S)
    return InputError(found[1]) if found else None


@contextlib.contextmanager
def own_decoder() -> Iterator[None]:
    """Makes the readers of records that are built inside decode pictures with `image_bytes.decode`.

    Model Garden's tasks make their decoder themselves and leave no other way to it.
    """
    detection, classification = tf_example_decoder.TfExampleDecoder, classification_input.Decoder
    theirs = detection._decode_image, classification.decode

    def decode(self: classification_input.Decoder, record: tf.Tensor) -> dict[str, tf.Tensor]:
        features = theirs[1](self, record)  # a picture and a label
        return {name: image_bytes.decode(x) if x.dtype == tf.string else x for name, x in features.items()}

    detection._decode_image, classification.decode = lambda self, record: decode_image(record), decode
    try:
        yield
    finally:
        detection._decode_image, classification.decode = theirs


def decode_image(record: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Decodes the picture of a record as classifiers and exported models do: upright, and on white.

    Fails if the record gives another height and width: its boxes and masks must be those of the upright
    picture.

    Args:
      record: the features of a record by name, with -1 for a height and width that it does not give.

    Returns:
      uint8 [h, w, 3].
    """
    image = image_bytes.decode(record[ENCODED])
    size = tf.shape(image, tf.int64)[:2]
    annotated = tf.stack([record[HEIGHT], record[WIDTH]])
    parts = ["image ", record.get(SOURCE_ID, ""), " is annotated as ", *_pixels(annotated)]
    parts += [
        ", and its picture has ",
        *_pixels(size),
        " (height x width, when upright)",
    ]
    fits = tf.reduce_all((annotated == size) | (annotated < 0))
    message = tf.strings.join([_text(part) for part in parts])
    with tf.control_dependencies([tf.debugging.Assert(fits, [message])]):
        return tf.identity(image)


def _pixels(size: tf.Tensor) -> list[str | tf.Tensor]:
    return [size[0], "x", size[1], " pixels"]


def _decode_image_of(record: tf.Tensor) -> tf.Tensor:
    features = {name: tf.io.FixedLenFeature((), tf.string, "") for name in (ENCODED, SOURCE_ID)}
    features |= {name: tf.io.FixedLenFeature((), tf.int64, -1) for name in (HEIGHT, WIDTH)}
    return decode_image(tf.io.parse_single_example(record, features))


def _check(file: tf.Tensor, number: tf.Tensor, record: tf.Tensor, num_classes: int, masks: bool) -> tf.Tensor:
    """Returns the record; fails if it has an object that the model cannot have."""
    features = {name: tf.io.VarLenFeature(tf.float32) for name in CORNERS}
    features |= {LABELS: tf.io.VarLenFeature(tf.int64), MASKS: tf.io.VarLenFeature(tf.string)}
    features[ENCODED] = tf.io.FixedLenFeature((), tf.string, "")
    features[SOURCE_ID] = tf.io.FixedLenFeature((), tf.string, "")
    example = tf.io.parse_single_example(record, features)
    labels, corners = example[LABELS].values, [example[name].values for name in CORNERS]
    ymin, xmin, ymax, xmax = corners
    counts = [tf.size(labels), *map(tf.size, corners)]
    problem = _first(
        (tf.equal(tf.strings.length(example[ENCODED]), 0), ["holds no image/encoded; " + KIND]),
        (
            ~image_bytes.is_decodable(example[ENCODED]),
            ["holds a picture of another format; expected JPEG, PNG or WebP (not animated)"],
        ),
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
    where = ["record ", number, " of ", file, " (image ", example[SOURCE_ID], ") "]
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

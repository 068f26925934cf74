# SPDX-License-Identifier: Apache-2.0
"""Readers of detection records that check every record.

Model Garden trains silently on labels outside the model's classes and on boxes outside the image; its error
for a malformed record names no file. Its decoders also show the colors of transparent pixels and ignore the
EXIF orientation.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

import tensorflow as tf

from lambdanet.core.errors import InputError, invalid, one_line
from lambdanet.detection.model_garden import (
    classification_input,
    hyperparams,
    input_reader,
    tf_example_decoder,
)
from lambdanet.training.data import image_bytes

LABELS = "image/object/class/label"
NAMES = "image/object/class/text"
MASKS = "image/object/mask"
ENCODED = "image/encoded"
HEIGHT = "image/height"
WIDTH = "image/width"
SOURCE_ID = "image/source_id"
CORNERS = tuple(
    f"image/object/bbox/{name}" for name in ("ymin", "xmin", "ymax", "xmax")
)
# By which a corner may be outside the image, as a fraction of its side.
CORNER_TOLERANCE = 1e-3
# The texts of a record, and how to parse them.
TEXTS = {
    name: tf.io.FixedLenFeature((), tf.string, "") for name in (ENCODED, SOURCE_ID)
}
# Around the message of a check, in that of TensorFlow's exception.
MARK = "@@"
RECORDS_CHECKED = 10  # per file, before the model is built
ACCEPTED = "tf.Examples as Model Garden's create_coco_tf_record writes them"

Reader = Callable[[tf.Tensor | Sequence[str]], tf.data.Dataset]


def checked_reader(data: hyperparams.Config, model: hyperparams.Config) -> Reader:
    """Returns a function from TFRecord files to a dataset that fails at the first unsuitable record.

    Args:
      data: task.train_data or task.validation_data.
      model: task.model.
    """
    compression = "GZIP" if data.file_type == "tfrecord_compressed" else None
    masks = bool(model.get("include_mask", False))

    def read_one(file: tf.Tensor) -> tf.data.Dataset:
        numbered = tf.data.TFRecordDataset(file, compression).enumerate()
        check = functools.partial(
            _check_record, file, num_classes=model.num_classes, masks=masks
        )
        return numbered.map(check, num_parallel_calls=tf.data.AUTOTUNE)

    def read(files: tf.Tensor | Sequence[str]) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(tf.reshape(files, [-1])).flat_map(
            read_one
        )

    return read


def check_first_records(
    key: str, data: hyperparams.Config, model: hyperparams.Config
) -> dict[int, str]:
    """Checks the first records of each file, seconds before training would fail after minutes.

    Args:
      key: the path of `data` in the configuration, such as "task.train_data".
      data: the configuration of the data.
      model: task.model.

    Returns:
      The names of classes in these records, by their numbers.

    Raises:
      InputError: there are no such files, or a record is unsuitable; the message names its file.
    """
    invalid_input = functools.partial(
        invalid, f"{key}.input_path", f"files of {ACCEPTED}"
    )
    try:
        files = input_reader.match_files(data.input_path)
    except ValueError:
        raise invalid_input(data.input_path, "no file matches") from None
    number = 0
    names: dict[int, str] = {}
    for file in files:
        if not tf.io.gfile.exists(file):
            raise invalid_input(file, "there is no such file")
        first = checked_reader(data, model)([file]).take(RECORDS_CHECKED)
        try:
            for record in first:
                number += 1
                found = tf.train.Example.FromString(record.numpy()).features.feature
                texts = map(bytes.decode, found[NAMES].bytes_list.value)
                names |= zip(found[LABELS].int64_list.value, texts, strict=False)
        except tf.errors.OpError as error:
            failed = as_input_error(error)
            if failed is None:
                failed = InputError(f"records of {file!r} must be {ACCEPTED}")
            raise failed from None
        try:
            for _ in first.map(_parse_image, num_parallel_calls=tf.data.AUTOTUNE):
                pass
        except tf.errors.OpError as error:
            reason = as_input_error(error) or one_line(error)
            raise InputError(
                f"{file!r} has an image that cannot be used: {reason}"
            ) from None
    if number == 0:
        raise invalid_input(data.input_path, f"{len(files)} files have no record")
    return names


def as_input_error(error: Exception) -> InputError | None:
    """Returns the error of a check in this module, or None for an exception from elsewhere.

    Args:
      error: an exception of TensorFlow, whose message contains that of the check which failed.

    Returns:
      An `InputError` with the message of the check alone, or None.
    """
    parts = str(error).split(MARK)
    return InputError(parts[1]) if len(parts) > 1 else None


@contextlib.contextmanager
def use_shared_decoder() -> Iterator[None]:
    """Makes datasets that are built inside decode images with `image_bytes.decode`.

    Patches two classes of Model Garden, whose tasks create their decoders themselves.
    """
    detection = tf_example_decoder.TfExampleDecoder
    classification = classification_input.Decoder
    decode_detection = detection._decode_image
    decode_classification = classification.decode

    def decode(
        self: classification_input.Decoder, record: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        features = decode_classification(self, record)  # an image and a label
        return {
            name: image_bytes.decode(x) if x.dtype == tf.string else x
            for name, x in features.items()
        }

    detection._decode_image = staticmethod(decode_image)
    classification.decode = decode
    try:
        yield
    finally:
        detection._decode_image = decode_detection
        classification.decode = decode_classification


def decode_image(record: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Decodes the image of a record as classifiers and exported models do: upright, on white.

    Fails if the record has another height or width: boxes and masks must be of the upright image.

    Args:
      record: the features of a record by name, with -1 for an unknown height or width.

    Returns:
      uint8 [h, w, 3].
    """
    image = image_bytes.decode(record[ENCODED])
    size = tf.shape(image, tf.int64)[:2]
    annotated = tf.stack([record[HEIGHT], record[WIDTH]])
    parts = [
        "image ",
        record.get(SOURCE_ID, ""),
        ": height x width must be ",
        size[0],
        "x",
        size[1],
    ]
    parts += [" as in the upright file, got ", annotated[0], "x", annotated[1]]
    fits = tf.reduce_all((annotated == size) | (annotated < 0))
    with tf.control_dependencies([_require(fits, parts)]):
        return tf.identity(image)


def _parse_image(record: tf.Tensor) -> tf.Tensor:
    features = {
        name: tf.io.FixedLenFeature((), tf.int64, -1) for name in (HEIGHT, WIDTH)
    }
    features |= TEXTS
    return decode_image(tf.io.parse_single_example(record, features))


def _check_record(
    file: tf.Tensor, number: tf.Tensor, record: tf.Tensor, num_classes: int, masks: bool
) -> tf.Tensor:
    """Returns the record; fails if it is malformed, or has an object that the model cannot have."""
    features = {name: tf.io.VarLenFeature(tf.float32) for name in CORNERS}
    features |= {
        LABELS: tf.io.VarLenFeature(tf.int64),
        MASKS: tf.io.VarLenFeature(tf.string),
        **TEXTS,
    }
    example = tf.io.parse_single_example(record, features)
    problem = _find_problem(example, num_classes, masks)
    place = ["record ", number, " of ", file, " (image ", example[SOURCE_ID], ") "]
    is_good = tf.equal(problem, "")
    with tf.control_dependencies([_require(is_good, [*place, problem])]):
        return tf.identity(record)


def _require(condition: tf.Tensor, message: Sequence[str | tf.Tensor]) -> tf.Operation:
    """Returns an operation that fails with a message unless the condition is true."""
    return tf.debugging.Assert(condition, [_join([MARK, *message, MARK])])


def _find_problem(
    example: Mapping[str, tf.Tensor], num_classes: int, masks: bool
) -> tf.Tensor:
    """Returns the text of the first problem of a parsed record, or an empty text."""
    labels = example[LABELS].values
    corners = [example[name].values for name in CORNERS]
    ymin, xmin, ymax, xmax = corners
    counts = [tf.size(labels), *map(tf.size, corners)]
    return _first_problem(
        (
            tf.equal(tf.strings.length(example[ENCODED]), 0),
            ["must be one of " + ACCEPTED + "; it has no image/encoded"],
        ),
        (
            ~image_bytes.is_decodable(example[ENCODED]),
            ["must have a JPEG, PNG or WebP image (not animated)"],
        ),
        (
            tf.reduce_any([count != counts[0] for count in counts]),
            [
                "must have one box per label, got ",
                counts[1],
                " boxes and ",
                counts[0],
                " labels",
            ],
        ),
        (
            tf.reduce_any((labels < 1) | (labels >= num_classes)),
            [
                f"must have classes from 1 to {num_classes - 1} with task.model.num_classes={num_classes}, "
                "which counts the background, got ",
                tf.strings.reduce_join(
                    tf.strings.as_string(tf.unique(labels)[0]), separator=", "
                ),
            ],
        ),
        (
            _outside(ymin, ymax) | _outside(xmin, xmax),
            [
                "must have boxes with 0 <= min <= max <= 1, got a smallest min of ",
                tf.strings.as_string(_smallest([ymin, xmin]), precision=3),
                " and a largest max of ",
                tf.strings.as_string(-_smallest([-ymax, -xmax]), precision=3),
            ],
        ),
        (
            tf.constant(masks) & (tf.size(example[MASKS].values) != counts[0]),
            [
                "must have one mask per object (create_coco_tf_record --include_masks), got ",
                tf.size(example[MASKS].values),
                " masks and ",
                counts[0],
                " objects; a model with task.model.include_mask=false needs no masks",
            ],
        ),
    )


def _first_problem(*problems: tuple[tf.Tensor, list[str | tf.Tensor]]) -> tf.Tensor:
    """Returns the text of the first problem whose condition is true, or an empty text."""
    text = tf.constant("")
    for condition, parts in reversed(problems):
        text = tf.where(condition, _join(parts), text)
    return text


def _join(parts: Sequence[str | tf.Tensor]) -> tf.Tensor:
    tensors = [tf.convert_to_tensor(part) for part in parts]
    return tf.strings.join(
        [x if x.dtype == tf.string else tf.strings.as_string(x) for x in tensors]
    )


def _outside(low: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
    # Sizes differ if another check fails.
    number = tf.minimum(tf.size(low), tf.size(high))
    low = low[:number]
    high = high[:number]
    return tf.reduce_any(
        (low < -CORNER_TOLERANCE) | (high > 1 + CORNER_TOLERANCE) | (low > high)
    )


def _smallest(values: list[tf.Tensor]) -> tf.Tensor:
    return tf.reduce_min(tf.concat([*values, [1.0]], 0))

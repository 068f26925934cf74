# SPDX-License-Identifier: Apache-2.0
"""The decoder of image files for training, evaluation, prediction, serving and detection.

It is made of TensorFlow operations, so that exported models contain it. Pictures are rotated according
to EXIF, and transparent pictures get a white background.
"""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

# The shape of an image, int32 [3] -> the top, the left, the height and the width of a crop, int32 [4].
ChooseWindow = Callable[[tf.Tensor], tf.Tensor]

# The first bytes of files; WEBP follows at byte 8 of a RIFF file.
JPEG = b"\xff\xd8\xff"
PNG = b"\x89PNG\r\n\x1a\n"
RIFF = b"RIFF"
WEBP = b"WEBP"
ORIENTATION = 0x0112  # a tag of EXIF
DCT = "INTEGER_ACCURATE"  # as in Pillow

# The values of the four bytes of an integer.
BIG_ENDIAN = [1 << 24, 1 << 16, 1 << 8, 1]
LITTLE_ENDIAN = BIG_ENDIAN[::-1]

# The header of a common JPEG: JFIF, a quantization table, and the first scan, of 3 components or 1. Patterns
# match text, so bytes above 127 are written as \C, any byte.
PLAIN_JPEG = (
    r"\C{4}\x00\x10JFIF\x00\C{11}\x00[\x43\x84]\C*"
    r"\x00(\x0c\x03\x01[\x00-\x11]\x02[\x00-\x11]\x03|\x08\x01\x01)[\x00-\x11]\x00[\x00-\x3f]\C*"
)
EXIF_MARKER = r"\C*Exif\x00\x00\C*"  # also among pixels
EXIF_CHUNK = r"\C*(eXIf|EXIF)\C*"  # of PNG and of WebP; also among pixels

# Keeps rare steps in separate functions: inlined, they slow down every JPEG, even if they do not run, and
# every start of a pipeline.
_not_inlined = tf.function(
    input_signature=[tf.TensorSpec([], tf.string)],
    autograph=False,
    experimental_attributes={"_noinline": True},
)


@dataclasses.dataclass(frozen=True)
class Encoded:
    """A JPEG, PNG or still WebP file."""

    contents: tf.Tensor  # its bytes, a scalar
    channels: int  # to decode to, 1 or 3

    def pixels(self) -> tf.Tensor:
        """Returns the image, uint8 [h, w, channels]."""
        return decode(self.contents, self.channels)

    def crop(self, choose_window: ChooseWindow) -> tf.Tensor:
        """Returns a window of the image; of an upright JPEG, only the window is decoded completely."""

        def crop_jpeg() -> tf.Tensor:
            window = choose_window(tf.io.extract_jpeg_shape(self.contents))
            return tf.io.decode_and_crop_jpeg(
                self.contents, window, channels=3, dct_method=DCT
            )

        @_not_inlined
        def crop_others(contents: tf.Tensor) -> tf.Tensor:
            upright_jpeg = _starts_with(contents, JPEG) & (orientation(contents) == 1)
            return tf.cond(
                upright_jpeg,
                crop_jpeg,
                lambda: _crop(decode(contents), choose_window),
            )

        image = tf.cond(
            _is_plain_jpeg(self.contents), crop_jpeg, lambda: crop_others(self.contents)
        )
        return _to_channels(image, self.channels)


def _crop(image: tf.Tensor, choose_window: ChooseWindow) -> tf.Tensor:
    top, left, height, width = tf.unstack(choose_window(tf.shape(image)))
    return image[top : top + height, left : left + width]


def decode(contents: tf.Tensor, channels: int = 3) -> tf.Tensor:
    """Decodes one JPEG, PNG or still WebP file.

    Gray, palette and CMYK become RGB, 16-bit PNG keeps its upper 8 bits, a picture is turned upright as its
    EXIF orientation says, and a transparent picture is laid on white (see `on_white`).

    Args:
      contents: the bytes of the file, a string scalar.
      channels: 3, or 1 for the gray of a picture.

    Returns:
      uint8 [h, w, channels].

    Raises:
      tf.errors.InvalidArgumentError: a damaged file, or another format.
    """
    image = tf.cond(
        _is_plain_jpeg(contents),
        lambda: _decode_jpeg(contents),
        lambda: _decode_any(contents),
    )
    return _to_channels(image, channels)


def _to_channels(image: tf.Tensor, channels: int) -> tf.Tensor:
    """Returns an image [h, w, 3], or its gray; TensorFlow cannot decode CMYK to gray."""
    image = tf.ensure_shape(image, [None, None, 3])
    return tf.image.rgb_to_grayscale(image) if channels == 1 else image


@_not_inlined
def _decode_any(contents: tf.Tensor) -> tf.Tensor:
    is_jpeg = _starts_with(contents, JPEG)
    is_png = _starts_with(contents, PNG)
    # Python cannot read a message that is not UTF-8.
    begin = tf.strings.unicode_transcode(_bytes(contents, 0, 24), "UTF-8", "UTF-8")
    message = [
        "the image must be a JPEG, PNG or still WebP file, got one that begins with",
        begin,
    ]
    known = tf.debugging.Assert(is_decodable(contents), message)

    def decode_webp() -> tf.Tensor:
        return _with_alpha(tf.io.decode_webp(contents)[0])

    def decode_others() -> tf.Tensor:
        image = on_white(tf.cond(is_png, lambda: _decode_png(contents), decode_webp))
        return _rotate_upright(image, _chunk_orientation(contents))

    def decode_jpeg() -> tf.Tensor:
        return _rotate_upright(_decode_jpeg(contents), orientation(contents))

    with tf.control_dependencies([known]):
        return tf.cond(is_jpeg, decode_jpeg, decode_others)


def _decode_jpeg(contents: tf.Tensor) -> tf.Tensor:
    return tf.io.decode_jpeg(contents, channels=3, dct_method=DCT)


def _decode_png(contents: tf.Tensor) -> tf.Tensor:
    color_type = _bytes(contents, 25, 1)
    is_gray = color_type == b"\0"
    is_palette = color_type == b"\3"

    def decode_others() -> tf.Tensor:
        rgba = tf.io.decode_png(contents, channels=4)
        # TensorFlow gives opaque pixels an alpha of 1, 3 or 15 in gray of 1, 2 or 4 bits.
        alpha = tf.where(
            is_gray & (rgba[..., 3:] > 0), tf.constant(255, tf.uint8), rgba[..., 3:]
        )
        return tf.concat([rgba[..., :3], alpha], -1)

    return tf.cond(
        is_palette, lambda: _with_alpha(tf.io.decode_png(contents)), decode_others
    )


def _with_alpha(image: tf.Tensor) -> tf.Tensor:
    """Adds an opaque alpha to an image [h, w, 3]; one [h, w, 4] has its own."""
    return tf.pad(
        image, [[0, 0], [0, 0], [0, 4 - tf.shape(image)[-1]]], constant_values=255
    )


def is_decodable(contents: tf.Tensor) -> tf.Tensor:
    """Returns whether a file begins like a JPEG, a PNG, or a WebP that is no animation, as `decode` requires.

    TensorFlow 2.20 corrupts its memory when it decodes an animated WebP.
    """
    flags = tf.io.decode_raw(
        tf.strings.join([_bytes(contents, 20, 1), b"\0"]), tf.uint8
    )[0]
    animated = (_bytes(contents, 12, 4) == b"VP8X") & (flags & 2 > 0)
    is_webp = _starts_with(contents, RIFF) & (_bytes(contents, 8, 4) == WEBP)
    return (
        _starts_with(contents, JPEG)
        | _starts_with(contents, PNG)
        | (is_webp & ~animated)
    )


def on_white(rgba: tf.Tensor) -> tf.Tensor:
    """Returns uint8 pictures [h, w, 4] on a white background, uint8 [h, w, 3]."""

    def blend() -> tf.Tensor:
        colors = tf.cast(rgba[..., :3], tf.int32)
        opacity = tf.cast(rgba[..., 3:], tf.int32)
        return tf.cast(
            (colors * opacity + 255 * (255 - opacity) + 127) // 255, tf.uint8
        )

    return tf.cond(tf.reduce_all(rgba[..., 3] == 255), lambda: rgba[..., :3], blend)


def orientation(contents: tf.Tensor) -> tf.Tensor:
    """Returns the EXIF orientation of a JPEG file, int32 from 1 (upright, or not given) to 8."""
    has_marker = tf.strings.regex_full_match(contents, EXIF_MARKER)
    return tf.cond(
        has_marker, lambda: _read_orientation(contents), lambda: tf.constant(1)
    )


@_not_inlined
def _read_orientation(contents: tf.Tensor) -> tf.Tensor:
    return _orientation_of_exif(_find_exif(contents))


def _chunk_orientation(contents: tf.Tensor) -> tf.Tensor:
    """Returns the EXIF orientation of a PNG or WebP file, as `orientation` of a JPEG."""
    has_chunk = tf.strings.regex_full_match(contents, EXIF_CHUNK)
    return tf.cond(
        has_chunk, lambda: _read_chunk_orientation(contents), lambda: tf.constant(1)
    )


@_not_inlined
def _read_chunk_orientation(contents: tf.Tensor) -> tf.Tensor:
    exif = _find_exif_chunk(contents)
    # As some programs write it into WebP.
    begin = tf.where(_starts_with(exif, b"Exif\0\0"), 6, 0)
    return _orientation_of_exif(_bytes(exif, begin, 1 << 16))


def _rotate_upright(image: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Undoes an EXIF orientation by a transposition, then flips left to right and top to bottom."""

    def turn() -> tf.Tensor:
        turned = tf.cond(
            orientation >= 5, lambda: tf.transpose(image, [1, 0, 2]), lambda: image
        )
        sides = tf.constant(
            [[0, 0], [0, 0], [0, 1], [1, 1], [1, 0], [0, 0], [0, 1], [1, 1], [1, 0]]
        )
        vertical, horizontal = tf.unstack(tf.cast(sides[orientation], tf.bool))
        turned = tf.cond(horizontal, lambda: turned[:, ::-1], lambda: turned)
        return tf.cond(vertical, lambda: turned[::-1], lambda: turned)

    return tf.cond(orientation == 1, lambda: image, turn)


def _is_plain_jpeg(contents: tf.Tensor) -> tf.Tensor:
    """Returns whether a file is a common JPEG: it begins with JFIF and a quantization table, without EXIF.

    Parsing the complete header takes a tenth of the time of decoding a training image.
    """
    begin = tf.strings.substr(contents, 0, 1024)
    has_exif = tf.strings.regex_full_match(begin, r"\C*Exif\x00\x00\C*")
    return tf.strings.regex_full_match(begin, PLAIN_JPEG) & ~has_exif


def _find_exif(contents: tf.Tensor) -> tf.Tensor:
    """Returns the EXIF data of a JPEG file, a string scalar; empty where there is none."""
    size = _size(contents)

    def step(
        at: tf.Tensor, begin: tf.Tensor, more: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Reads a segment; returns the begin of the next one, the begin of EXIF, and whether to continue."""
        del begin, more
        head = tf.cast(tf.io.decode_raw(_bytes(contents, at, 4), tf.uint8), tf.int64)
        marker = tf.where(head[0] == 0xFF, head[1], 0)
        found = (marker == 0xE1) & (_bytes(contents, at + 4, 6) == b"Exif\0\0")
        # Bytes between segments, fill bytes, and markers without a length.
        bare = tf.reduce_any(
            marker == tf.constant([0, 1, *range(0xD0, 0xDA), 0xFF], tf.int64)
        )
        length = tf.where(bare, tf.constant(1, tf.int64), 2 + 256 * head[2] + head[3])
        return at + length, tf.where(found, at + 10, size), ~(found | (marker == 0xDA))

    first = tf.constant(2, tf.int64)  # after the signature
    _, begin, _ = tf.while_loop(
        lambda at, begin, more: more & (at + 8 <= size),
        step,
        (first, size, tf.constant(True)),
    )
    return _bytes(contents, begin, 1 << 16)


def _find_exif_chunk(contents: tf.Tensor) -> tf.Tensor:
    """Returns the EXIF data of a PNG or WebP file, a string scalar; empty where there is none.

    A chunk of PNG is its length, name, data and checksum, one of WebP its name, length and data, of which the
    length is rounded up to an even number.
    """
    size = _size(contents)
    is_png = _starts_with(contents, PNG)
    name = tf.where(is_png, b"eXIf", b"EXIF")
    name_at = tf.where(is_png, 4, 0)
    powers = tf.where(is_png, BIG_ENDIAN, LITTLE_ENDIAN)

    def step(at: tf.Tensor, begin: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Reads a chunk; returns the begin of the next one, and the begin of EXIF."""
        del begin
        number = _bytes(contents, at + tf.cast(4 - name_at, tf.int64), 4)
        digits = tf.cast(tf.io.decode_raw(number, tf.uint8), tf.int64)
        length = tf.reduce_sum(digits * tf.cast(powers, tf.int64))
        found = tf.equal(_bytes(contents, at + tf.cast(name_at, tf.int64), 4), name)
        behind = tf.where(is_png, length + 4, length + length % 2)
        return at + 8 + behind, tf.where(found, at + 8, size)

    first = tf.where(is_png, tf.constant(8, tf.int64), 12)  # after the signature
    _, begin = tf.while_loop(
        lambda at, begin: (begin == size) & (at + 8 <= size), step, (first, size)
    )
    return _bytes(contents, begin, 1 << 16)


def _orientation_of_exif(exif: tf.Tensor) -> tf.Tensor:
    """Returns the orientation that EXIF data gives, int32; 1 where it gives none from 1 to 8."""
    data = tf.pad(tf.cast(tf.io.decode_raw(exif, tf.uint8), tf.int32), [[0, 10]])
    is_little = data[0] == ord("I")
    powers = tf.where(is_little, LITTLE_ENDIAN, BIG_ENDIAN)
    pair = tf.where(is_little, LITTLE_ENDIAN[:2], BIG_ENDIAN[2:])
    directory = tf.clip_by_value(
        tf.reduce_sum(data[4:8] * powers), 0, tf.size(data) - 2
    )
    count = tf.reduce_sum(data[directory : directory + 2] * pair)
    count = tf.minimum(count, (tf.size(data) - directory - 2) // 12)
    entries = tf.reshape(data[directory + 2 : directory + 2 + 12 * count], [count, 12])
    tags, values = (
        tf.reduce_sum(entries[:, at : at + 2] * pair, axis=1) for at in (0, 8)
    )
    value = tf.reduce_max(
        tf.concat([[0], tf.where(tags == ORIENTATION, values, 0)], axis=0)
    )
    return tf.where((value >= 1) & (value <= 8), value, 1)


def _starts_with(contents: tf.Tensor, signature: bytes) -> tf.Tensor:
    return tf.equal(_bytes(contents, 0, len(signature)), signature)


def _bytes(contents: tf.Tensor, at: tf.Tensor | int, count: int) -> tf.Tensor:
    """Returns `count` bytes of a file, or fewer at its end."""
    return tf.strings.substr(
        contents, tf.minimum(tf.cast(at, tf.int64), _size(contents)), count
    )


def _size(contents: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.strings.length(contents), tf.int64)

# SPDX-License-Identifier: Apache-2.0
"""Random augmentation of training images, one by one and by mixing those of a batch.

One by one: crops, flips, affine, color jitter, random erasing. Every transformation is a function of the
image and a seed, so a resumed run reads the same images.

Mixup and CutMix (`mix_batches`): as in timm, a batch is mixed with itself in reverse order, with one share
and one rectangle per batch. The shares of labels and pixels are equal: Model Garden's `MixupAndCutmix` takes
it before the rectangle is cut off at the border, and labels as integers only.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lambdanet.configs.recipe import Recipe
from lambdanet.models.preprocessing import Preprocessing
from lambdanet.training.data.bad_records import Pair
from lambdanet.training.data.image_bytes import Encoded
from lambdanet.training.data.sources import Shard

# The limits of `affine`, small enough that no character turns into another one.
MAX_TURN = 0.2  # radians, 11 degrees
MAX_ZOOM = 0.1  # of the size
MAX_SHIFT = 0.1  # of the size

# The window of `crop_flip` (Szegedy et al. 2015): fraction of the area, and width / height.
CROP_AREAS = (0.08, 1.0)
CROP_RATIOS = (3 / 4, 4 / 3)
PADDING = 1 / 8  # of the size, on each side: 4 of 32 pixels on CIFAR (He et al. 2016)

# The rectangle of `erase` (Zhong et al. 2017, with the limits of timm): fraction of the area, height / width.
ERASED_AREAS = (0.02, 1 / 3)
ERASED_RATIOS = (0.3, 1 / 0.3)

GRAY = (0.299, 0.587, 0.114)  # the weights of red, green and blue in ITU-R 601

STRIDE = 1 << 40  # between the seeds derived from one

# Added to the recipe's seed, for other random numbers than the augmentation's.
MIX_SEED = 1 << 40
# Added to the seed of a batch, for independent numbers.
MIX_CHOICE = [0, 1 << 50]
MIX_CENTER = [0, 1 << 51]


def affine(image: Encoded, prepare: Preprocessing, seed: tf.Tensor) -> tf.Tensor:
    """Returns the central square after a small rotation, zoom and shift, over black."""
    return _to_uint8(random_affine(prepare.square(image.pixels()), seed))


def crop_flip(image: Encoded, prepare: Preprocessing, seed: tf.Tensor) -> tf.Tensor:
    """Returns a random window of the image, resized, and flipped in half of the cases."""
    window = image.crop(lambda shape: random_window(shape, derive_seed(seed, 0)))
    return tf.image.stateless_random_flip_left_right(
        _resize(window, prepare.input_size), derive_seed(seed, 1)
    )


def flip(image: Encoded, prepare: Preprocessing, seed: tf.Tensor) -> tf.Tensor:
    """Returns the central square, flipped in half of the cases."""
    pixels = central_view(image, prepare, seed)
    return tf.image.stateless_random_flip_left_right(pixels, derive_seed(seed, 1))


def padded_crop_flip(
    image: Encoded, prepare: Preprocessing, seed: tf.Tensor
) -> tf.Tensor:
    """Returns the central square shifted by up to `PADDING` over black, flipped in half of the cases."""
    pixels = central_view(image, prepare, seed)
    size = prepare.input_size
    pad = round(PADDING * size)
    padded = tf.pad(pixels, [[pad, pad], [pad, pad], [0, 0]])
    top, left = tf.unstack(
        tf.random.stateless_uniform([2], derive_seed(seed, 0), 0, 2 * pad + 1, tf.int32)
    )
    moved = tf.ensure_shape(padded[top : top + size, left : left + size], pixels.shape)
    return tf.image.stateless_random_flip_left_right(moved, derive_seed(seed, 1))


def central_view(image: Encoded, prepare: Preprocessing, seed: tf.Tensor) -> tf.Tensor:
    """Returns the central square."""
    del seed
    return _to_uint8(prepare.square(image.pixels()))


def derive_seed(seed: tf.Tensor, number: int) -> tf.Tensor:
    """Returns a different seed for each number; TensorFlow's generators are independent for different seeds.

    `tf.random.fold_in` takes many small operations, which are slow compared with the work on an image.
    """
    return seed + tf.constant([(number + 1) * STRIDE, 0], tf.int64)


def _to_uint8(pixels: tf.Tensor) -> tf.Tensor:
    """Returns pixels in 0..1 as uint8, which makes the following steps faster and smaller."""
    return tf.cast(255.0 * tf.clip_by_value(pixels, 0.0, 1.0) + 0.5, tf.uint8)


def _resize(window: tf.Tensor, size: int) -> tf.Tensor:
    """Resizes uint8 [h, w, c] to uint8 [size, size, c].

    Down to half of the size, plain bilinear interpolation skips no pixel; antialiasing costs as much as
    decoding. TensorFlow reads floats faster than bytes, with equal results.
    """
    window = tf.cast(window, tf.float32)
    pixels = tf.cond(
        tf.reduce_max(tf.shape(window)[:2]) > 2 * size,
        lambda: tf.image.resize(window, [size, size], antialias=True),
        lambda: tf.image.resize(window, [size, size]),
    )
    return tf.ensure_shape(
        tf.cast(pixels + 0.5, tf.uint8), [size, size, window.shape[-1]]
    )


def random_window(shape: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Returns the top, left, height and width of a random window in an image of this shape.

    Its area and aspect ratio are in `CROP_AREAS` and `CROP_RATIOS`, if such a window fits.
    """
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape,
        bounding_boxes=tf.zeros([1, 0, 4]),
        seed=seed,
        min_object_covered=0.0,
        aspect_ratio_range=CROP_RATIOS,
        area_range=CROP_AREAS,
        max_attempts=100,
        use_image_if_no_bounding_boxes=True,
    )
    return tf.concat([begin[:2], size[:2]], axis=0)


def random_affine(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Returns an image float32 [h, w, c] after a small random rotation, zoom and shift, over black."""
    turn, zoom, shift_x, shift_y = tf.unstack(
        tf.random.stateless_uniform([4], seed, -1.0, 1.0)
    )
    size = tf.cast(tf.shape(image)[:2], tf.float32)
    center_y, center_x = tf.unstack((size - 1) / 2)
    scale = 1 + MAX_ZOOM * zoom
    cosine = scale * tf.cos(MAX_TURN * turn)
    sine = scale * tf.sin(MAX_TURN * turn)
    shift = (MAX_SHIFT * size[1] * shift_x, MAX_SHIFT * size[0] * shift_y)
    return warp(image, ((cosine, -sine), (sine, cosine)), (center_x, center_y), shift)


def warp(
    image: tf.Tensor,
    matrix: Any,
    center: Any,
    shift: Any = (0.0, 0.0),
    interpolation: str = "BILINEAR",
    fill_mode: str = "CONSTANT",
    size: int | None = None,
) -> tf.Tensor:
    """Returns an image transformed about a point and shifted, over black.

    The pixel at `center + p` of the result is read at `center + matrix p + shift`.

    Args:
      image: float32 or uint8 [h, w, c].
      matrix: two rows of two numbers.
      center: x and y in pixels.
      shift: x and y in pixels.
      interpolation, fill_mode: settings of TensorFlow's `ImageProjectiveTransformV3`.
      size: height and width of the result; None: those of the image.
    """
    shape = image.shape if size is None else (size, size, image.shape[-1])
    (a, b), (c, d) = matrix
    x, y = center
    x_0 = x - a * x - b * y + shift[0]
    y_0 = y - c * x - d * y + shift[1]
    transformed = tf.raw_ops.ImageProjectiveTransformV3(
        images=image[tf.newaxis],
        transforms=tf.stack([a, b, x_0, c, d, y_0, 0.0, 0.0])[tf.newaxis],
        output_shape=(size or tf.shape(image)[0], size or tf.shape(image)[1]),
        fill_value=0.0,
        interpolation=interpolation,
        fill_mode=fill_mode,
    )
    return tf.ensure_shape(transformed[0], shape)


def color_jitter(pixels: tf.Tensor, strength: float, seed: tf.Tensor) -> tf.Tensor:
    """Returns the image with brightness, contrast and saturation changed, in this order.

    Each is multiplied by a factor, uniform in 1 - strength ... 1 + strength: the image is blended with black,
    with its mean gray level, and with its gray levels. uint8 [h, w, 3] or [h, w, 1] -> uint8 [h, w, 3].
    """
    image = tf.broadcast_to(tf.cast(pixels, tf.float32), [*pixels.shape[:2], 3])
    factors = tf.random.stateless_uniform([3], seed, 1 - strength, 1 + strength)
    backgrounds = (tf.zeros_like, mean_gray, gray)
    for background, factor in zip(backgrounds, tf.unstack(factors), strict=True):
        image = blend(image, background(image), factor)
    return tf.cast(image + 0.5, tf.uint8)


def blend(image: tf.Tensor, background: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """Returns `background + factor * (image - background)`, within 0..255; all are float32."""
    return tf.clip_by_value(background + factor * (image - background), 0.0, 255.0)


def row(numbers: Any, width: Any) -> tf.Tensor:
    """Returns numbers of the channels [c] for each pixel of a row, [width, c].

    TensorFlow computes an image with a row in a fifth of the time that it takes with the channels alone.
    """
    return tf.repeat([numbers], width, 0)


def gray(image: tf.Tensor) -> tf.Tensor:
    """Returns the gray levels of an image [h, w, 3], float32 [h, w, 1]."""
    levels = tf.cast(image, tf.float32)
    return tf.tensordot(levels, tf.constant(GRAY), 1)[..., tf.newaxis]


def mean_gray(image: tf.Tensor) -> tf.Tensor:
    """Returns the mean gray level of an image [h, w, 3], a scalar."""
    return tf.reduce_mean(gray(image))


def erase(pixels: tf.Tensor, probability: float, seed: tf.Tensor) -> tf.Tensor:
    """Returns an image, uint8 [h, w, c], with a random rectangle of uniform noise (Zhong et al. 2017).

    Model Garden's class needs floats in 3 channels; the paper's noise has the 256 levels of uint8.

    Args:
      pixels: the image.
      probability: the probability of a rectangle; otherwise the image is returned as it is.
      seed: int64 [2].
    """
    height, width, _ = pixels.shape
    chance, area, ratio, *places = tf.unstack(
        tf.random.stateless_uniform([5], derive_seed(seed, 0))
    )
    area = height * width * _between(ERASED_AREAS, area)
    ratio = tf.exp(_between(tuple(map(math.log, ERASED_RATIOS)), ratio))

    def erased() -> tf.Tensor:
        lengths = tf.minimum(
            tf.round(tf.sqrt([area * ratio, area / ratio])), [height, width]
        )
        begins = tf.floor(places * ([height + 1.0, width + 1.0] - lengths))
        noise = tf.random.stateless_uniform(
            pixels.shape, derive_seed(seed, 1), 0, 256, tf.int32
        )
        return choose(
            rectangle(pixels.shape, begins, lengths), tf.cast(noise, tf.uint8), pixels
        )

    return tf.cond(chance < probability, erased, lambda: pixels)


def choose(mask: tf.Tensor, chosen: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    """Returns the numbers uint8 that `tf.where` returns, in a fifth of its time."""
    bits = 255 * tf.cast(mask, tf.uint8)
    return (chosen & bits) | (others & ~bits)


def rectangle(shape: Sequence[Any], begins: Any, lengths: Any) -> tf.Tensor:
    """Returns whether each pixel of an image is in a rectangle, bool [h, w, 1].

    Args:
      shape: the height and width of the image, and perhaps its channels.
      begins: the top and left of the rectangle, whole numbers in float32; they may be outside of the image.
      lengths: its height and width, float32.
    """

    def within(axis: int) -> tf.Tensor:
        distances = tf.range(shape[axis], dtype=tf.float32) - begins[axis]
        return (distances >= 0) & (distances < lengths[axis])

    return (within(0)[:, tf.newaxis] & within(1))[..., tf.newaxis]


def _between(limits: tuple[float, ...], fraction: tf.Tensor) -> tf.Tensor:
    return limits[0] + (limits[1] - limits[0]) * fraction


def mix_batches(
    batches: tf.data.Dataset, recipe: Recipe, initial_step: int, shard: Shard
) -> tf.data.Dataset:
    """Returns the batches mixed as in the recipe; the result depends on its seed and the step alone.

    Args:
      batches: normalized images [b, h, w, c], and labels int64 [b] or distributions [b, num_classes].
      recipe: `mixup_alpha` and `cutmix_alpha`; with both, each batch takes one of them by chance.
      initial_step: the step of the first batch, from 0.
      shard: the part of the data in these batches, one for each device of this machine.

    Returns:
      The same images, mixed, and distributions float32 [b, num_classes]; `batches` where both alphas are 0.
    """
    alphas = ((mixup_shares, recipe.mixup_alpha), (cutmix_shares, recipe.cutmix_alpha))
    kinds = [(shares, alpha) for shares, alpha in alphas if alpha]
    if not kinds:
        return batches

    def mix_one(number: tf.Tensor, batch: Pair) -> Pair:
        seed = tf.stack(
            [
                tf.constant(recipe.seed + MIX_SEED, tf.int64),
                number * shard.count + shard.index,
            ]
        )
        choice = tf.random.stateless_uniform(
            [], seed + MIX_CHOICE, 0, len(kinds), tf.int32
        )
        shape = tf.shape(batch[0])
        draws = [functools.partial(kind, shape, alpha, seed) for kind, alpha in kinds]
        return mix(*batch, tf.switch_case(choice, draws), recipe.num_classes)

    first = initial_step * (shard.replicas // shard.count)
    return batches.enumerate(first).map(mix_one, tf.data.AUTOTUNE)


def mix(
    images: tf.Tensor, labels: tf.Tensor, shares: tf.Tensor, num_classes: int
) -> Pair:
    """Returns the sum of a batch and itself in reverse order, weighted pixel by pixel.

    Args:
      images: floats [b, h, w, c].
      labels: integers [b] or distributions [b, num_classes].
      shares: the weight of the other image in each pixel, float32 [h, w, 1]; their mean is the weight of the
        other label.
      num_classes: the number of classes.

    Returns:
      The images, floats [b, h, w, c], and labels, distributions [b, num_classes].
    """
    if labels.dtype.is_integer:
        labels = tf.one_hot(labels, num_classes)
    # Of each channel, which TensorFlow multiplies faster.
    pixels = tf.cast(tf.broadcast_to(shares, tf.shape(images)[1:]), images.dtype)
    share = tf.reduce_mean(shares)
    mixed = images * (1 - pixels) + tf.reverse(images, [0]) * pixels
    return mixed, labels * (1 - share) + tf.reverse(labels, [0]) * share


def mixup_shares(shape: tf.Tensor, alpha: float, seed: tf.Tensor) -> tf.Tensor:
    """Returns the same share for all pixels, from Beta(alpha, alpha) (Zhang et al. 2018)."""
    return tf.fill([shape[1], shape[2], 1], _beta(alpha, seed))


def cutmix_shares(shape: tf.Tensor, alpha: float, seed: tf.Tensor) -> tf.Tensor:
    """Returns 1 in a rectangle and 0 elsewhere (Yun et al. 2019).

    Its sides are the image's, scaled by the root of a number from Beta(alpha, alpha); its center is
    any pixel, so the border cuts off a part of some rectangles.
    """
    sizes = tf.cast(shape[1:3], tf.float32)
    lengths = tf.floor(tf.sqrt(_beta(alpha, seed)) * sizes)
    centers = tf.floor(tf.random.stateless_uniform([2], seed + MIX_CENTER) * sizes)
    return tf.cast(
        rectangle(sizes, centers - tf.floor(lengths / 2), lengths), tf.float32
    )


def _beta(alpha: float, seed: tf.Tensor) -> tf.Tensor:
    """Returns a number from Beta(alpha, alpha); in float64, its two numbers from Gamma are never both 0."""
    first, second = tf.unstack(
        tf.random.stateless_gamma(
            [2], seed, tf.constant(alpha, tf.float64), dtype=tf.float64
        )
    )
    return tf.cast(first / (first + second), tf.float32)


# The views of a recipe by the names of its `augmentation`.
AUGMENTATIONS = {
    "affine": affine,
    "crop_flip": crop_flip,
    "flip": flip,
    "none": central_view,
    "padded_crop_flip": padded_crop_flip,
}

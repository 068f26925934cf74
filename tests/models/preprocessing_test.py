# SPDX-License-Identifier: Apache-2.0
"""Preprocessing of published weights, against Pillow's resize and timm's transform."""

import math

import helpers
import numpy as np
import pytest
import tensorflow as tf
from engines import ENGINES
from numpy.testing import assert_allclose
from PIL import Image
from processes import output_of
from refusals import refused

import lambdanet
from lambdanet.configs.registry import pretrained_weights
from lambdanet.models.preprocessing import Preprocessing, from_metadata
from lambdanet.models.tensorflow_squares import pillow_square

GRAY = ((0.5,), (0.5,))
COLORS = ((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
SHAPES = [
    (300, 400),
    (401, 299),
    (64, 64),
    (100, 37),
    (600, 801),
    (1, 3),
]


def noise(height, width):
    return helpers.noise(height, width, 3)


def steps(height, width):
    """Only black and white, so that the kernel overshoots everywhere."""
    return noise(height, width) // 128 * 255


def waves(height, width):
    rows, columns = np.mgrid[:height, :width]
    return np.stack(
        [127 + 127 * np.sin(rows / 7 + columns / 11 + c) for c in range(3)], -1
    ).astype(np.uint8)


def with_pillow(picture, size, crop_fraction):
    """torchvision's Resize and CenterCrop of a Pillow picture, the width first."""
    image = Image.fromarray(picture)
    short = math.floor(size / crop_fraction)
    long = int(short * max(image.size) / min(image.size))
    width, height = (short, long) if image.width <= image.height else (long, short)
    # The width first, which `resize` does but for very high pictures from Pillow 13 on.
    image = image.resize((width, image.height), Image.Resampling.BICUBIC)
    image = image.resize((width, height), Image.Resampling.BICUBIC)
    left, top = (round((side - size) / 2) for side in image.size)
    return np.asarray(image.crop((left, top, left + size, top + size)))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("draw", [noise, steps, waves])
def test_bicubic_is_pillows_to_the_bit(shape, draw):
    picture = draw(*shape)
    for size, crop_fraction in ((256, 0.95), (224, 0.94), (31, 1.0)):
        got = 255 * pillow_square(tf.constant(picture), size, crop_fraction).numpy()
        np.testing.assert_array_equal(
            np.rint(got), with_pillow(picture, size, crop_fraction)
        )
        assert_allclose(got, np.rint(got), atol=1e-4)


@pytest.mark.parametrize("one", pretrained_weights.WEIGHTS, ids=lambda one: one.model)
def test_each_set_is_prepared_as_timm_does(one, timm):
    """timm's own transform of its own configuration; a gray level is 1/255 before normalization."""
    from timm.data import create_transform, resolve_data_config

    config = resolve_data_config(
        timm.get_pretrained_cfg(f"{one.model}.{one.tag}").to_dict()
    )
    transform = create_transform(**config, is_training=False)
    prepare = lambdanet.preprocess_for(one.model)
    for picture in (noise(281, 350), waves(500, 375)):
        expected = transform(Image.fromarray(picture)).numpy().transpose(1, 2, 0)
        got = prepare(picture).numpy()
        assert got.shape == expected.shape == (one.input_size, one.input_size, 3)
        assert np.abs((got - expected) * one.std).max() < 0.01 / 255


def test_batches_unknown_sizes_and_gray():
    prepare = Preprocessing(32, *COLORS, 0.9, "bicubic")
    traced = tf.function(
        prepare,
        input_signature=[tf.TensorSpec([None, None, None, 3], tf.uint8)],
        autograph=False,
    )
    assert traced.get_concrete_function().output_shapes.as_list() == [None, 32, 32, 3]
    pictures = np.stack([noise(50, 41), waves(50, 41)])
    assert_allclose(traced(pictures), [prepare(one) for one in pictures], atol=1e-6)
    gray = pictures[..., :1]
    np.testing.assert_array_equal(prepare(gray), prepare(gray.repeat(3, -1)))
    assert prepare(pictures[:, np.newaxis]).shape == (2, 1, 32, 32, 3)


@pytest.mark.slow
def test_numbers_without_tensorflow_are_the_same(tmp_path):
    pictures = {f"{height}x{width}": noise(height, width) for height, width in SHAPES}
    pictures |= {
        "steps": steps(90, 64),
        "gray": noise(5 * 50, 41).reshape(5, 50, 41, 3)[..., :1],
    }
    np.savez(tmp_path / "pictures.npz", **pictures)
    output_of("use_without_tensorflow.py", tmp_path, **ENGINES["jax"])
    for name, array in np.load(tmp_path / "prepared.npz").items():
        interpolation, picture = name.split()
        prepare = Preprocessing(32, *COLORS, 0.9, interpolation)
        expected = prepare(pictures[picture]).numpy()
        assert array.dtype == expected.dtype
        atol = 0 if interpolation == "bicubic" else 1e-5
        assert_allclose(array, expected, rtol=0, atol=atol, err_msg=name)


@pytest.mark.parametrize("dtype", ["uint16", "float32", "bool"])
def test_pictures_of_other_types_are_refused(dtype):
    """White in 16 bits was black, and so were floats in 0..1."""
    prepare = Preprocessing(8, *GRAY)
    white = np.ones([9, 9, 1], dtype)
    message = f"the type of pictures must be uint8, got '{dtype}'; tf.image.conv"
    with refused(message):
        prepare(white)
    with pytest.raises(Exception, match="must be uint8") as failure:
        tf.data.Dataset.from_tensors(white).map(prepare)
    # AutoGraph writes the type into the message of another error, and fails on Python 3.13.
    assert (
        "InputError: the type of pictures must be uint8"
        in f"{failure.type.__name__}: {failure.value}"
    )


RGB = ((0.5,) * 3, (0.5,) * 3)


@pytest.mark.parametrize(
    ("prepare", "shape", "accepted"),
    [
        (Preprocessing(8, *RGB), (9, 9, 4), "1 or 3"),
        (Preprocessing(8, *GRAY), (2, 9, 9, 3), "1"),
        (Preprocessing(8, *GRAY), (), "1"),
    ],
)
def test_pictures_of_other_shapes_are_refused(prepare, shape, accepted):
    with refused(f"with c = {accepted}, got \\["):
        prepare(tf.zeros(shape, tf.uint8))


@pytest.mark.parametrize(("levels", "channels"), [(RGB, 4), (GRAY, 3)])
def test_channels_of_files_are_checked_at_run_time(levels, channels):
    prepare = Preprocessing(8, *levels)
    file = tf.io.encode_png(np.zeros([9, 9, channels], np.uint8))
    files = tf.data.Dataset.from_tensors(file)
    pictures = files.map(lambda x: prepare(tf.io.decode_png(x)))
    message = "the shape of pictures must be"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        next(iter(pictures))


def test_metadata():
    texts = {
        "input_size": "256",
        "mean": "0.5, 0.4, 0.3",
        "std": "1, 2, 3",
        "interpolation": "bicubic",
    }
    assert from_metadata(texts) == Preprocessing(
        256, (0.5, 0.4, 0.3), (1.0, 2.0, 3.0), 1.0, "bicubic"
    )
    assert from_metadata({"mean": "0.5"}) is None
    for wrong in ({"mean": "none"}, {"input_size": "-3"}):
        with refused("."):
            from_metadata(texts | wrong)
    prepare = lambdanet.preprocess_for("lambda_resnet50ts")
    assert prepare == Preprocessing(
        256, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 0.95, "bicubic"
    )
    assert lambdanet.preprocess_for("haloregnetz_b", "ra3_in1k", 288).input_size == 288


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Preprocessing(0, *GRAY),
            "input_size must be a positive integer, got 0",
        ),
        (
            lambda: Preprocessing(8, (0.5, 0.5), (0.5, 0.5)),
            "must be 3 numbers each or 1",
        ),
        (lambda: Preprocessing(8, (0.5,), (0.0,)), "std above 0"),
        (
            lambda: Preprocessing(8, *GRAY, 1.5),
            "crop_fraction must be above 0 and at most 1, got 1.5",
        ),
        (
            lambda: Preprocessing(8, *GRAY, 1.0, "bicubicc"),
            "unknown interpolation 'bicubicc'; did you mean bic",
        ),
        (
            lambda: lambdanet.preprocess_for("lambda_resnet_50"),
            "unknown model with published weights 'lambda_re",
        ),
    ],
)
def test_invalid_values(make, message):
    with refused(message):
        make()

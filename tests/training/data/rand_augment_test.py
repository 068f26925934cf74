# SPDX-License-Identifier: Apache-2.0
"""RandAugment: dependent on the seed alone, equal to Model Garden and to timm, and its statistics."""

import dataclasses
import itertools
import types
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from helpers import noise
from PIL import Image
from training_runs import recipe_with

from lambdanet.training.data import rand_augment
from lambdanet.training.data.augment import derive_seed

RECIPE = recipe_with("digits", randaugment_layers=2)
TIMM = {"randaugment_policy": "timm"}
FILL = (124, 116, 104)


class _SeededTensorFlow:
    """TensorFlow for Model Garden, whose draws have no seed: the n-th draw has the n-th seed."""

    def __init__(self, seed):
        numbers = itertools.count()

        def uniform(shape, minval=0, maxval=1, dtype=tf.float32):
            return tf.random.stateless_uniform(
                shape, derive_seed(seed, next(numbers)), minval, maxval, dtype
            )

        self.random = types.SimpleNamespace(uniform=uniform)

    def __getattr__(self, name):
        return getattr(tf, name)


@pytest.mark.rest  # of TF Model Garden
@pytest.mark.parametrize(
    ("layers", "magnitude"), [(1, 0.0), (1, 6.3), (1, 10.0), (1, 31.0), (3, 8.0)]
)
def test_policy_equals_model_garden(layers, magnitude):
    """To the bit, for every operation, on an image with a channel of one level."""
    augment = pytest.importorskip("official.vision.ops.augment")

    image = np.array(Image.fromarray(noise(6, 8, 3)).resize((48, 37), Image.BICUBIC))
    image[..., 2] = 77
    recipe = dataclasses.replace(
        RECIPE, randaugment_layers=layers, randaugment_magnitude=magnitude
    )
    policy = augment.RandAugment(layers, magnitude, translate_const=10.0)
    assert [*rand_augment.MODEL_GARDEN] == policy.available_ops

    @tf.function(input_signature=[tf.TensorSpec([2], tf.int64)], autograph=False)
    def change(seed):
        with mock.patch.object(augment, "tf", _SeededTensorFlow(seed)):
            expected = policy.distort(tf.constant(image))
        drawn = tf.random.stateless_uniform([], derive_seed(seed, 0), 0, 17, tf.int32)
        return (
            drawn,
            expected,
            rand_augment.model_garden(tf.constant(image), recipe, seed),
        )

    seen = set()
    for number in range(150):
        drawn, expected, got = change(tf.constant([5, number], tf.int64))
        seen.add(int(drawn))
        np.testing.assert_array_equal(
            got, expected, [*rand_augment.MODEL_GARDEN, "none"][drawn]
        )
    assert seen == set(range(17))


@pytest.mark.parametrize("magnitude", [0.0, 7.0, 9.9])
def test_operations_equal_timm(timm, monkeypatch, magnitude):
    """Except along borders, where Pillow does not blend the image with the color outside."""
    from timm.data import auto_augment

    image = np.asarray(Image.fromarray(noise(6, 8, 3)).resize((48, 36), Image.BICUBIC))
    names = auto_augment._RAND_INCREASING_TRANSFORMS
    shortened = [name.removesuffix("Increasing").removesuffix("Rel") for name in names]
    assert list(rand_augment.TIMM) == shortened
    for name, operation in zip(names, rand_augment.TIMM.values(), strict=True):
        options = {"img_mean": FILL, "interpolation": Image.BILINEAR}
        expected = auto_augment.AugmentOp(name, 1.0, magnitude, options)
        for sign in (1, -1):
            monkeypatch.setattr(
                auto_augment, "_randomly_negate", lambda value, sign=sign: sign * value
            )
            strength = rand_augment.timm_strength(
                tf.constant(magnitude / 10),
                tf.constant(float(sign)),
                image,
                tf.constant(FILL, tf.float32),
            )
            got = operation(tf.constant(image), strength)
            differences = np.abs(
                got.numpy().astype(int) - np.asarray(expected(Image.fromarray(image)))
            )
            assert got.dtype == tf.uint8 and np.mean(differences > 2) < 0.05, name


def test_operations_equal_numpy():
    image = noise(9, 8, 3)
    image[..., 1] = 77  # one level
    levels = image.astype(float)
    low, high = levels.min((0, 1)), levels.max((0, 1))
    stretched = (levels - low) * 255 / np.maximum(high - low, 1)
    stretched[..., 1] = 77
    smooth = levels.copy()
    for y in range(1, 8):
        for x in range(1, 7):
            window = levels[y - 1 : y + 2, x - 1 : x + 2]
            smooth[y, x] = (window.sum((0, 1)) + 4 * levels[y, x]) / 13
    sharp = np.clip(smooth + 1.5 * (levels - smooth), 0, 255)
    shifted = levels.copy()
    shifted[:, :-2] = levels[:, 2:]
    expected = {
        "AutoContrast": stretched,
        "Posterize": levels // 64 * 64,
        "Solarize": np.where(levels < 128, levels, 255 - levels),
        "SolarizeAdd": np.where(levels < 128, np.minimum(levels + 55, 255), levels),
        "Sharpness": sharp,
        "TranslateX": shifted,
    }
    seed = tf.constant([1, 2], tf.int64)
    strength = rand_augment.Strength(0.5, lambda draw: 1.0, 1.5, (2.0, 3.0), seed)
    for name, wanted in expected.items():
        got = rand_augment.MODEL_GARDEN[name](tf.constant(image), strength)
        differences = np.abs(got.numpy() - wanted)
        assert differences[:, :-2].max() <= 1, name
    got = rand_augment.TIMM["Sharpness"](tf.constant(image), strength)
    assert np.abs(got.numpy() - sharp).max() <= 1
    strength = strength._replace(level=0.05)  # a square of 4x4 pixels
    cut = rand_augment.MODEL_GARDEN["Cutout"](tf.constant(image), strength).numpy()
    changed = (cut != image).any(-1)
    assert 0 < changed.sum() <= 16 and (cut[changed] == 128).all()


def test_magnitudes_are_drawn_and_clipped(monkeypatch):
    """With one operation that writes its strength into the image."""

    def show(image, strength):
        shown = tf.stack([200 * strength.level, 100 + 100 * strength.sign(0), 0.0])
        return tf.broadcast_to(tf.cast(tf.round(shown), tf.uint8), image.shape)

    monkeypatch.setattr(rand_augment, "TIMM", {"show": show})

    def strengths(magnitude, std):
        changes = {**TIMM, "randaugment_magnitude": magnitude, "randaugment_std": std}
        recipe = dataclasses.replace(RECIPE, randaugment_layers=1, **changes)
        image = tf.fill([1, 1, 3], tf.constant(255, tf.uint8))
        drawn = tf.data.Dataset.range(800).map(
            lambda number: rand_augment.timm(image, recipe, tf.stack([number, 1]))[0, 0]
        )
        pixels = np.array(list(drawn.as_numpy_iterator()), float)
        shown = pixels[pixels[:, 2] == 0]
        assert 340 < len(shown) < 460  # half of them
        return shown[:, 0] / 20, np.sign(shown[:, 1] - 100)

    magnitudes, signs = strengths(7, 0.5)
    assert magnitudes.mean() == pytest.approx(
        7, abs=0.1
    ) and magnitudes.std() == pytest.approx(0.5, abs=0.06)
    assert abs(signs.mean()) < 0.2
    clipped, _ = strengths(10, 3)
    assert clipped.max() == 10 and np.mean(clipped == 10) == pytest.approx(0.5, abs=0.1)
    fixed, _ = strengths(4, 0)
    assert set(fixed) == {4}

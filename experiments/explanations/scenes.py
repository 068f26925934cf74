# SPDX-License-Identifier: Apache-2.0
"""Drawn scenes whose label is the shape of their red object: lambda maps beside Grad-CAM and gradients."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from lambdanet.backend import keras
from lambdanet.detection.data.scenes import CLASSES, draw_quarters
from lambdanet.explain import grad_cam, implied_attentions, integrated_gradients
from lambdanet.models import zoo

SIDE = 64
RED = [0.9, 0.1, 0.1]
TRAIN = 2000
VALIDATION = 100
TEST = 100
EPOCHS = 6
BATCH_SIZE = 50
LEARNING_RATE = 2e-3
SHARES = np.linspace(0, 1, 11)  # of the pixels that are deleted or inserted


class Scenes(NamedTuple):
    """Pictures [b, 64, 64, 3] in -1..1, their labels, and the pixels of the red object, [b, 64, 64]."""

    images: np.ndarray
    labels: np.ndarray
    masks: np.ndarray


class Choice(NamedTuple):
    """A map of a network: of a layer, a head, and with a sign."""

    layer: str
    head: int
    sign: int


def draw_scenes(count: int, seed: tuple[int, ...]) -> Scenes:
    """Draws pictures with four shapes, one of them red, each in a quarter of its own."""
    random = np.random.default_rng(seed)
    images = np.zeros([count, SIDE, SIDE, 3], np.float32)
    masks = np.zeros([count, SIDE, SIDE], bool)
    labels = np.zeros(count, np.int64)
    for index in range(count):
        names = [str(name) for name in random.choice(CLASSES, size=4)]
        colors = [[random.uniform(0.6, 1)] * 3 for _ in range(4)]
        red = int(random.integers(4))
        colors[red] = RED
        picture, shapes = draw_quarters(names, colors, random, SIDE)
        images[index] = 2 * picture - 1
        labels[index] = CLASSES.index(names[red])
        masks[index] = shapes[red]
    return Scenes(images, labels, masks)


def trained_network(seed: int, epochs: int = EPOCHS) -> keras.Model:
    """Returns a LambdaResNet, trained on scenes."""
    keras.utils.set_random_seed(seed)
    model = zoo.create_model(
        "lambda_resnet_tiny", num_classes=len(CLASSES), input_size=SIDE
    )
    if epochs:
        data = draw_scenes(TRAIN, (seed, 0))
        rate = keras.optimizers.schedules.CosineDecay(
            LEARNING_RATE, epochs * TRAIN // BATCH_SIZE
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(rate), loss)
        model.fit(data.images, data.labels, BATCH_SIZE, epochs, verbose=0)
    return model


def lambda_maps(model: keras.Model, images: np.ndarray) -> dict[Choice, np.ndarray]:
    """Returns what all positions read on average, [b, 64, 64], of each layer and head, and with each sign."""
    found = {}
    batches = [images[i : i + 20] for i in range(0, len(images), 20)]
    parts = [implied_attentions(model, batch) for batch in batches]
    for layer in parts[0]:
        maps = np.concatenate([np.asarray(part[layer].total) for part in parts])
        read = maps.mean(2)  # [b, heads, m]
        side = round(read.shape[-1] ** 0.5)
        for head in range(read.shape[1]):
            for sign in (1, -1):
                small = sign * read[:, head].reshape([-1, side, side])
                found[Choice(layer, head, sign)] = enlarged(small)
    return found


def enlarged(maps: np.ndarray) -> np.ndarray:
    """Returns square maps [b, s, s] with each cell repeated, [b, 64, 64]."""
    times = SIDE // maps.shape[1]
    return maps.repeat(times, axis=1).repeat(times, axis=2)


def share_on_object(maps: np.ndarray, masks: np.ndarray) -> float:
    """Returns the share of pictures whose object has a pixel in the cell with the highest value."""
    highest = maps.max(axis=(1, 2), keepdims=True)
    return float(np.mean(((maps == highest) & masks).any(axis=(1, 2))))


def best_choice(model: keras.Model, scenes: Scenes) -> Choice:
    """Returns the map whose peak is on the object most often."""
    maps = lambda_maps(model, scenes.images)
    return max(maps, key=lambda choice: share_on_object(maps[choice], scenes.masks))


def explanations(
    model: keras.Model, scenes: Scenes, choice: Choice
) -> dict[str, np.ndarray]:
    """Returns what each method finds important, [b, 64, 64]."""
    shares = np.asarray(integrated_gradients(model, scenes.images, steps=16))
    random = np.random.default_rng(0)
    return {
        "lambda map": lambda_maps(model, scenes.images)[choice],
        "Grad-CAM": enlarged(np.asarray(grad_cam(model, scenes.images, level=3))),
        "integrated gradients": shares.sum(-1),
        "random order": random.random(scenes.masks.shape),
    }


def curves(
    model: keras.Model, scenes: Scenes, maps: Mapping[str, np.ndarray]
) -> dict[str, tuple[float, float]]:
    """Returns the areas under the curves of deletion and insertion (Petsiuk et al. 2018), by the method.

    Pixels, the most important first, are replaced by the mean of their picture, or put in its place. The
    curve is the mean probability of the right class.
    """
    mean = scenes.images.mean(axis=(1, 2), keepdims=True)
    areas = {}
    for method, important in maps.items():
        flat = important.reshape([len(important), -1])
        ranks = np.argsort(np.argsort(-flat, axis=1, kind="stable"), axis=1)
        order = ranks.reshape(important.shape)[..., None] / flat.shape[1]
        deleted = []
        inserted = []
        for share in SHARES:
            kept = order >= share
            deleted.append(
                _probability(model, np.where(kept, scenes.images, mean), scenes)
            )
            inserted.append(
                _probability(model, np.where(kept, mean, scenes.images), scenes)
            )
        areas[method] = (
            float(np.trapezoid(deleted, SHARES)),
            float(np.trapezoid(inserted, SHARES)),
        )
    return areas


def _probability(model: keras.Model, images: np.ndarray, scenes: Scenes) -> float:
    logits = model.predict(images.astype(np.float32), verbose=0).astype(np.float64)
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    right = np.take_along_axis(powers, scenes.labels[:, None], axis=1)[:, 0]
    return float(np.mean(right / powers.sum(-1)))
